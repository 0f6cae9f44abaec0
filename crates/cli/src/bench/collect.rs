//! `stilling bench collect`: one-way messages from many clients. Prints the reports of BBQ's test-server and
//! test-client line by line, followed by an accounting of every message.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, CommandFactory, ValueEnum};
use signal_hook::consts::SIGINT;
use stilling_bench::collect::{
    self, CollectPlan, CollectProtocol, CollectRunReport, CollectStorage, Monitor,
};

use super::seconds;

#[derive(Args)]
pub(super) struct CollectArguments {
    /// Address of the server
    #[arg(default_value = "127.0.0.1:4222", value_name = "ADDRESS")]
    to: SocketAddr,
    /// Protocol of the server
    #[arg(long, value_enum, default_value_t = ProtocolOption::Nats)]
    protocol: ProtocolOption,
    /// Publishing connections
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// Threads shared by the clients [default: one per client, at most one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Bytes of each message
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    size: u32,
    /// Run once for each of these sizes and print a table
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', conflicts_with_all = ["size", "json"], value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    sizes: Vec<u32>,
    /// Messages in flight per connection; with --unconfirmed, messages per write
    #[arg(short, long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// End after N messages
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// End after S seconds, or when the messages are sent [default: 10, without --messages]
    #[arg(short = 'd', long, value_name = "S", value_parser = seconds())]
    seconds: Option<Duration>,
    /// Do not wait for acknowledgements: faster, but losses show only as a difference
    #[arg(long)]
    unconfirmed: bool,
    /// Open a connection for each message
    #[arg(long)]
    per_message: bool,
    /// Client N publishes to SUBJECT.N; the key of the stream for Redis
    #[arg(long, value_name = "SUBJECT", default_value = "events")]
    subject: String,
    /// Stream that stores the messages; its growth is the number of received messages
    #[arg(long, value_name = "NAME", default_value = "events")]
    stream: String,
    /// Publish with core NATS, without a stream
    #[arg(long, conflicts_with = "stream", requires = "unconfirmed")]
    core: bool,
    /// Create the stream first, for all subjects below SUBJECT
    #[arg(long, value_enum, value_name = "STORAGE", conflicts_with = "core")]
    make_stream: Option<StorageOption>,
    /// Connections that receive and check every byte; publishers wait when they are too far ahead
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=64))]
    subscribers: u16,
    /// File to which the server writes each message as a line
    #[arg(long, value_name = "FILE")]
    received_file: Option<PathBuf>,
    /// Metrics URL of the server, such as http://127.0.0.1:9000/metrics
    #[arg(long, value_name = "URL")]
    monitor: Option<Monitor>,
    /// Seconds to wait for the server to start
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds())]
    wait: Duration,
    /// Maximum seconds for a connect, an acknowledgement or a delivery
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds())]
    timeout: Duration,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ProtocolOption {
    /// The NATS client protocol
    Nats,
    /// XADD to one stream
    Redis,
    /// RFC 5424 over TCP, octet-counted
    Syslog,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum StorageOption {
    /// On disk
    File,
    /// In memory
    Memory,
}

impl From<StorageOption> for CollectStorage {
    fn from(storage: StorageOption) -> CollectStorage {
        match storage {
            StorageOption::File => CollectStorage::File,
            StorageOption::Memory => CollectStorage::Memory,
        }
    }
}

impl CollectArguments {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let (json, sizes) = (self.json, self.sizes.clone());
        let plan = self.plan();
        if let Err(contradiction) = plan.check() {
            let mut command = crate::StillingArguments::command();
            command.error(clap::error::ErrorKind::ArgumentConflict, contradiction).print()?;
            return Err(Box::new(crate::ConflictingOptions));
        }
        // The first Ctrl+C ends the load, the second one ends the program.
        let stop: Arc<AtomicBool> = Arc::default();
        signal_hook::flag::register_conditional_shutdown(SIGINT, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
        if sizes.is_empty() {
            let report = collect::run_until(&plan, &stop)?;
            let mut out = std::io::stdout().lock();
            if json {
                serde_json::to_writer(&mut out, &report)?;
                writeln!(out)?;
            } else {
                write!(out, "{}", lines(&report))?;
            }
            out.flush()?;
            return check_report(&report);
        }
        run_sizes(&plan, &sizes, &stop)
    }

    fn plan(self) -> CollectPlan {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = usize::from(self.clients).min(cores);
        let defaults = CollectPlan::new(self.to);
        let protocol = match self.protocol {
            ProtocolOption::Nats => CollectProtocol::Nats,
            ProtocolOption::Redis => CollectProtocol::Redis,
            ProtocolOption::Syslog => CollectProtocol::Syslog,
        };
        CollectPlan {
            protocol,
            clients: self.clients,
            // At most the number of threads that a plan accepts.
            threads: self.threads.unwrap_or(threads.min(1024) as u16),
            size: self.size,
            window: self.window,
            messages: self.messages,
            span: self.seconds.or(if self.messages.is_none() { defaults.span } else { None }),
            confirmed: !self.unconfirmed,
            per_message: self.per_message,
            subject: self.subject,
            stream: (!self.core).then_some(self.stream),
            make_stream: self.make_stream.map(CollectStorage::from),
            subscribers: self.subscribers,
            received_file: self.received_file,
            monitor: self.monitor,
            wait: self.wait,
            timeout: self.timeout,
            ..defaults
        }
    }
}

/// Returns an error for a report with failures, after it is printed.
fn check_report(report: &CollectRunReport) -> Result<(), Box<dyn Error>> {
    if report.is_good() {
        return Ok(());
    }
    if report.accounting.sends == 0 {
        return Err("no message was sent".into());
    }
    let kinds = report
        .evidence
        .iter()
        .map(|(kind, words)| format!("{} {kind} (first: {words})", report.failures.get(kind).unwrap_or(&0)));
    let mut kinds: Vec<String> = kinds.collect();
    if !report.accounting.is_balanced() {
        kinds.push("messages that are not accounted for".to_owned());
    }
    Err(format!("{} failures: {}", report.failures_total, kinds.join("; ")).into())
}

fn run_sizes(plan: &CollectPlan, sizes: &[u32], stop: &Arc<AtomicBool>) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:>9} {:>12} {:>10} {:>10} {:>10} {:>10}",
        "bytes", "messages/s", "MB/s", "p50 ms", "p99 ms", "max ms"
    )?;
    let mut first_wrong = None;
    for (number, size) in sizes.iter().enumerate() {
        // The first run creates the stream.
        let make_stream = plan.make_stream.filter(|_| number == 0);
        let report = collect::run_until(&CollectPlan { size: *size, make_stream, ..plan.clone() }, stop)?;
        let ms = |us: f64| us / 1e3;
        let times = report.send_time;
        writeln!(
            out,
            "{size:>9} {:>12.0} {:>10.1} {:>10.3} {:>10.3} {:>10.3}",
            report.rate_per_s,
            report.megabytes_per_s,
            ms(times.p50_us),
            ms(times.p99_us),
            ms(times.max_us)
        )?;
        out.flush()?;
        first_wrong =
            first_wrong.or(check_report(&report).err().map(|error| format!("{size} bytes: {error}")));
    }
    first_wrong.map_or(Ok(()), |words| Err(words.into()))
}

/// Rows 0.23 to 0.32: the two reports of BBQ's stress programs, then the additional lines.
fn lines(report: &CollectRunReport) -> String {
    let mut out = String::new();
    let seconds = report.elapsed_s.max(f64::MIN_POSITIVE);
    let runtime = (report.elapsed_s * 1e3).round();
    let rated = |count: u64| format!("{count} ({:.2} per sec)", count as f64 / seconds);
    let megabytes = |messages: u64| {
        let megabytes = messages as f64 * f64::from(report.parameters.size) / 1e6;
        format!("{megabytes:.2} ({:.2} per sec)", megabytes / seconds)
    };
    let known = |figure: Option<String>| figure.unwrap_or_else(|| "n/a".to_owned());
    let server = report.server.unwrap_or_default();
    let account = report.accounting;
    let receives = account.received.or(server.received);
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line("SERVER\n".to_owned());
    line(format!("runtime: {runtime}"));
    line(format!("server accepts: {}", known(server.accepts.map(rated))));
    line(format!("server megabytes: {}", known(receives.map(megabytes))));
    line(format!("server receives: {}", known(receives.map(rated))));
    line(format!("max pending msgs: {}", known(server.pending_max.map(|count| count.to_string()))));
    line(format!("curr pending msgs: {}", known(server.pending.map(|count| count.to_string()))));
    line("\nCLIENT\n".to_owned());
    for (number, failure_records) in report.failure_records.iter().enumerate() {
        let kind = failure_records.failure.name();
        line(format!(
            "send failed #{}, thread: {}, type: {kind}, err: {}",
            number + 1,
            failure_records.client,
            failure_records.error
        ));
    }
    line(format!("runtime: {runtime}"));
    line(format!("clients sends: {}", rated(account.sends)));
    line(format!("clients megabytes: {}", megabytes(account.sends)));
    line(format!("clients fails: {}", rated(account.fails)));
    line(format!("connections fails: {}", rated(report.connection_fails)));
    line(format!("queued msgs: {}", rated(account.queued)));
    let times = report.send_time;
    line(format!("min sendtime: {:.6} secs", times.min_us / 1e6));
    line(format!("max sendtime: {:.6} secs", times.max_us / 1e6));
    line(format!("avg sendtime: {:.6} secs", times.mean_us / 1e6));
    let _ = write!(out, "\n{}", additional_lines(report));
    out
}

/// Lines that BBQ's programs do not have.
fn additional_lines(report: &CollectRunReport) -> String {
    let mut out = String::new();
    let account = report.accounting;
    let received = account.received.map_or("n/a".to_owned(), |count| count.to_string());
    let verdict = if account.is_balanced() { "balanced" } else { "NOT balanced" };
    let _ = writeln!(
        out,
        "accounting            {verdict}: queued {} = sends {} + fails {}; received {received}, {} of them of failed \
         messages; {} reported lost by the server, {} unexplained, {} never sent",
        account.queued,
        account.sends,
        account.fails,
        account.received_of_fails,
        account.reported_lost,
        account.unexplained,
        account.invented
    );
    let mut spread = |name: &str, of: stilling_bench::collect::LatencySummary| {
        let ms = |us: f64| us / 1e3;
        let _ = writeln!(
            out,
            "{name:<22}p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}",
            ms(of.p50_us),
            ms(of.p99_us),
            ms(of.p999_us),
            ms(of.max_us)
        );
    };
    spread(if report.parameters.confirmed { "acknowledged (ms)" } else { "accepted (ms)" }, report.send_time);
    if report.parameters.subscribers > 0 {
        spread("delivered (ms)", report.delivery_time);
        let _ = writeln!(out, "{:<22}{}", "deliveries", report.deliveries);
    }
    let _ = writeln!(out, "{:<22}{}", "connections", report.connects);
    let _ = writeln!(out, "{:<22}{:.2}", "generator CPU (s)", report.cpu_s);
    let _ = writeln!(out, "{:<22}{}", "failures", report.failures_total);
    for (kind, words) in &report.evidence {
        let count = report.failures.get(kind).unwrap_or(&0);
        let _ = writeln!(out, "  {:<20}{count}, first: {words}", kind.replace('_', " "));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stilling_bench::collect::{
        CollectParameters, FailureRecord, LatencySummary, MessageAccounting, MessageFailure,
        MonitoredCounters,
    };

    use super::*;

    /// The figures of BBQ's own report where they are counts or times.
    fn report() -> CollectRunReport {
        CollectRunReport {
            parameters: CollectParameters {
                to: "127.0.0.1:4222".to_owned(),
                protocol: "nats",
                clients: 4,
                threads: 4,
                size: 4096,
                window: 256,
                confirmed: true,
                per_message: true,
                subscribers: 0,
                stream: Some("events".to_owned()),
            },
            elapsed_s: 60.0,
            stored_after_s: 0.0,
            accounting: MessageAccounting {
                queued: 64_326,
                sends: 64_324,
                fails: 2,
                received: Some(64_324),
                ..MessageAccounting::default()
            },
            rate_per_s: 1072.07,
            megabytes_per_s: 4.39,
            connects: 64_324,
            connection_fails: 6,
            deliveries: 0,
            failures: BTreeMap::from([("refused", 2)]),
            failures_total: 2,
            evidence: BTreeMap::from([("refused", "503 no room".to_owned())]),
            failure_records: vec![
                FailureRecord { client: 3, failure: MessageFailure::Refused, error: 105 },
                FailureRecord { client: 1, failure: MessageFailure::Refused, error: 105 },
            ],
            send_time: LatencySummary {
                min_us: 120.0,
                max_us: 5_030_000.0,
                mean_us: 3_810_000.0,
                ..LatencySummary::default()
            },
            delivery_time: LatencySummary::default(),
            server: Some(MonitoredCounters {
                accepts: Some(64_324),
                pending: Some(0),
                pending_max: Some(1647),
                ..MonitoredCounters::default()
            }),
            cpu_s: 1.0,
        }
    }

    /// Row 0.23: all six lines of the server and all eight of the client, beside those of failed messages.
    #[test]
    fn the_reports_of_bbq_are_printed_line_by_line() {
        let text = lines(&report());
        let expected = "SERVER\n\nruntime: 60000\nserver accepts: 64324 (1072.07 per sec)\n\
            server megabytes: 263.47 (4.39 per sec)\nserver receives: 64324 (1072.07 per sec)\n\
            max pending msgs: 1647\ncurr pending msgs: 0\n\nCLIENT\n\n\
            send failed #1, thread: 3, type: refused, err: 105\nsend failed #2, thread: 1, type: refused, err: 105\n\
            runtime: 60000\nclients sends: 64324 (1072.07 per sec)\nclients megabytes: 263.47 (4.39 per sec)\n\
            clients fails: 2 (0.03 per sec)\nconnections fails: 6 (0.10 per sec)\nqueued msgs: 64326 (1072.10 per sec)\n\
            min sendtime: 0.000120 secs\nmax sendtime: 5.030000 secs\navg sendtime: 3.810000 secs\n\naccounting ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("balanced: queued 64326 = sends 64324 + fails 2;"), "{text}");
        assert!(
            text.ends_with("failures              2\n  refused             2, first: 503 no room\n"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_server_counter_is_not_zero() {
        let mut report = report();
        (report.server, report.accounting.received) = (None, None);
        let text = lines(&report);
        for line in ["server accepts: n/a", "server receives: n/a", "max pending msgs: n/a"] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
