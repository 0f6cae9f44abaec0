//! `stilling bench crash`: kills a server under load repeatedly and compares its acknowledgements with its stream.

use std::error::Error;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use stilling_bench::collect::CollectStorage;
use stilling_bench::collect::crash::{self, CrashPlan, CrashReport, TargetProcess};

use super::collect::StorageOption;
use super::seconds;
use crate::settings::units::bytes;

#[derive(Args)]
pub(super) struct CrashBenchArguments {
    /// Number of kills
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    kills: u32,
    /// Seed of the random moments
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Publishing connections, each with a thread
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Bytes of each message
    #[arg(short, long, value_name = "BYTES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    size: u32,
    /// Messages in flight on each connection
    #[arg(short, long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// Client N publishes to SUBJECT.N
    #[arg(long, value_name = "SUBJECT", default_value = "events")]
    subject: String,
    /// Name of the stream
    #[arg(long, value_name = "NAME", default_value = "events")]
    stream: String,
    /// Maximum acknowledgements between a start and a kill; most runs of the server get at most 2000
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    acks: u64,
    /// Retention that the server is configured with: older records may be missing [default: every record must exist]
    #[arg(long, value_name = "BYTES", value_parser = bytes(1..))]
    retention_bytes: Option<u64>,
    /// Directory of the stream's segments, to check what retention removed [default: removed records are not checked]
    #[arg(long, value_name = "DIRECTORY", requires = "retention_bytes")]
    stream_directory: Option<PathBuf>,
    /// Required write method of segments; direct applies where the volume of --data allows it [default: any]
    #[arg(long, value_enum, value_name = "METHOD")]
    write_method: Option<SegmentWriteMethod>,
    /// Compare the server's descriptors and memory before and after a load in every Nth run of the server; 0: never
    #[arg(long, value_name = "N", default_value_t = 10)]
    descriptors_every: u32,
    /// Create the stream at the first start
    #[arg(long, value_enum, value_name = "STORAGE")]
    make_stream: Option<StorageOption>,
    /// Data directory of the server: {data} in its command
    #[arg(long, value_name = "DIRECTORY")]
    data: PathBuf,
    /// Address of the server: {address} and {port} in its command [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Maximum seconds for the server to start, to answer or to make progress
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds())]
    timeout: Duration,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Command of the server, in which {address}, {port} and {data} are replaced
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SegmentWriteMethod {
    /// Bypass the page cache (O_DIRECT)
    Direct,
    /// Through the page cache
    Buffered,
}

impl CrashBenchArguments {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let address = match self.listen {
            Some(address) => address,
            // Not every server reports the port that it bound.
            None => TcpListener::bind("127.0.0.1:0")?.local_addr()?,
        };
        let plan = CrashPlan {
            kills: self.kills,
            seed: self.seed,
            clients: self.clients,
            size: self.size,
            window: self.window,
            subject: self.subject,
            stream: self.stream,
            acks_max: self.acks,
            retention_bytes: self.retention_bytes,
            stream_directory: self.stream_directory,
            direct: self
                .write_method
                .map(|method| method == SegmentWriteMethod::Direct)
                .filter(|is_direct| !is_direct || crash::can_write_directly(&self.data)),
            descriptors_every: self.descriptors_every,
            make_stream: self.make_stream.map(CollectStorage::from),
            timeout: self.timeout,
        };
        let mut target = TargetProcess::new(&self.command, address, &self.data);
        let report = crash::run(&mut target, &plan, |_| {})?;
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", table(&report))?;
        }
        out.flush()?;
        if report.is_good() {
            return Ok(());
        }
        let words: Vec<String> =
            report.evidence.iter().map(|(kind, words)| format!("{kind}: {words}")).collect();
        Err(format!("the server failed the crash test (seed {}): {}", plan.seed, words.join("; ")).into())
    }
}

fn table(report: &CrashReport) -> String {
    let rows = [
        ("kills", u64::from(report.kills)),
        ("acknowledged", report.acknowledged),
        ("stored", report.stored),
        ("stored unacknowledged", report.stored_unacknowledged()),
        ("lost", report.lost),
        ("invented", report.invented),
        ("reordered", report.reordered),
        ("stored twice", report.stored_twice),
        ("removed by retention", report.removed),
        ("refused", report.refused),
        ("failed starts", report.failed_starts),
        ("descriptor leaks", report.descriptor_leaks),
        ("memory compared", u64::from(report.memory_compared)),
        ("memory leaks", report.memory_leaks),
        ("memory growth (KiB)", report.memory_growth_kib),
        ("wrong write method", report.wrong_write_method),
        ("longest start (ms)", report.longest_start_ms),
    ];
    rows.iter().map(|(name, value)| format!("{name:<22}{value}\n")).collect()
}
