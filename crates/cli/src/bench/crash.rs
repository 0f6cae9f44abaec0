//! `stilling bench crash`: kills a server under load, again and again, and compares what it acknowledged with what it has.

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

/// The options of `bench crash`.
#[derive(Args)]
pub(super) struct CrashBenchArguments {
    /// How often the server is killed
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    kills: u32,
    /// Decides the moments
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
    /// The stream
    #[arg(long, value_name = "NAME", default_value = "events")]
    stream: String,
    /// Most acknowledgements between a start and a kill; most lives have at most 2000
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    acks: u64,
    /// What the server was told to keep of the stream: older records may be gone [default: everything is to be there]
    #[arg(long, value_name = "BYTES", value_parser = bytes(1..))]
    retention_bytes: Option<u64>,
    /// The folder of the stream's segments, to judge what retention removed [default: what is gone may be gone]
    #[arg(long, value_name = "FOLDER", requires = "retention_bytes")]
    stream_folder: Option<PathBuf>,
    /// How segments have to be written; direct counts where the volume of --data allows it [default: either way]
    #[arg(long, value_enum, value_name = "METHOD")]
    write_method: Option<SegmentWriteMethod>,
    /// Compare the server's descriptors and memory before and after a load in one life of so many; 0: in none
    #[arg(long, value_name = "N", default_value_t = 10)]
    descriptors_every: u32,
    /// Make the stream at the first start
    #[arg(long, value_enum, value_name = "WHERE")]
    make_stream: Option<StorageOption>,
    /// Where the server keeps its data: {data} of its command
    #[arg(long, value_name = "FOLDER")]
    data: PathBuf,
    /// Where the server listens: {address} and {port} of its command [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Seconds for the server to start, to answer, to go on
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds())]
    timeout: Duration,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
    /// The server's command, in which {address}, {port} and {data} are replaced
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How segments are written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SegmentWriteMethod {
    /// Past the page cache (O_DIRECT)
    Direct,
    /// Through the page cache
    Buffered,
}

impl CrashBenchArguments {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let address = match self.listen {
            Some(address) => address,
            // Not every server can say which port it took.
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
            folder: self.stream_folder,
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
        Err(format!("the server did not keep its word (seed {}): {}", plan.seed, words.join("; ")).into())
    }
}

fn table(report: &CrashReport) -> String {
    let rows = [
        ("kills", u64::from(report.kills)),
        ("acknowledged", report.acknowledged),
        ("found", report.found),
        ("found unacknowledged", report.found_unacknowledged()),
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
        ("wrong method", report.wrong_method),
        ("longest start (ms)", report.longest_start_ms),
    ];
    rows.iter().map(|(name, value)| format!("{name:<22}{value}\n")).collect()
}
