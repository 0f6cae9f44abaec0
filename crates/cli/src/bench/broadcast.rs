//! `stilling bench broadcast`: fan-out to many subscribers, or auctions in which every client answers every bid.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, CommandFactory, ValueEnum};
use signal_hook::consts::SIGINT;
use stilling_bench::broadcast::{
    self, BroadcastPlan, BroadcastProtocol, BroadcastReport, DisturbancePlan, DisturbanceReport,
    LatencySummary, LoadFigures, ResumingPlan, ResumingReport, ThrashPlan, ThrashReport,
};

use super::seconds;

#[derive(Args)]
pub(super) struct BroadcastArguments {
    /// Address of the server
    #[arg(default_value = "127.0.0.1:4222", value_name = "ADDRESS")]
    to: SocketAddr,
    /// Protocol of the server
    #[arg(long, value_enum, default_value_t = BroadcastProtocolOption::Nats)]
    protocol: BroadcastProtocolOption,
    /// NATS address for the publishers of WebSocket and SSE runs
    #[arg(long, value_name = "ADDRESS")]
    publish_to: Option<SocketAddr>,
    /// Publishing connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    publishers: u16,
    /// Subscribing connections
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    subscribers: u32,
    /// Bytes of each message
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    size: u32,
    /// Messages of a publisher that not all subscribers have received
    #[arg(short, long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// End after N messages, or with --thrash after N accepted bids
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// End after S seconds, or when the messages are sent [default: 10, without --messages]
    #[arg(short = 'd', long, value_name = "S", value_parser = seconds())]
    seconds: Option<Duration>,
    /// Subject of the messages, or first part of several subjects [default: bench, with --thrash auction]
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// N subjects with one subscriber each, to which messages go in turn
    #[arg(long, value_name = "N", conflicts_with = "subscribers", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    subjects: Option<u32>,
    /// Give each subscriber a subscription id of its own
    #[arg(long)]
    distinct_sids: bool,
    /// Publish nothing, and expect the --messages of a run in another process
    #[arg(long, requires = "messages")]
    passive: bool,
    /// Source address of the subscribers [default: the system's choice]
    #[arg(long, value_name = "ADDRESS")]
    source: Option<Ipv4Addr>,
    /// Messages per second of each publisher [default: as many as the window allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    #[command(flatten)]
    additional: AdditionalSubscribers,
    /// Bid instead: each client answers every accepted bid, on a stream with the gate auction
    #[arg(long, conflicts_with_all = ["protocol", "publish_to", "publishers", "subscribers", "size", "window", "subjects", "distinct_sids"])]
    thrash: bool,
    /// Bidding clients
    #[arg(short, long, value_name = "N", default_value_t = 200, requires = "thrash", value_parser = clap::value_parser!(u32).range(2..=16_384))]
    clients: u32,
    /// Process of the server, to report its CPU time
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Seconds to wait for the server to start
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds())]
    wait: Duration,
    /// Maximum seconds for a connect, and without any delivery
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds())]
    timeout: Duration,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Subscribers that the window does not wait for.
#[derive(Args)]
struct AdditionalSubscribers {
    /// Further subscribers that never read, over --protocol sse or websocket, else NATS
    #[arg(long, value_name = "N", default_value_t = 0)]
    stopped: u32,
    /// Further subscribers that read 1 KiB per second, likewise
    #[arg(long, value_name = "N", default_value_t = 0)]
    trickling: u32,
    /// NATS subscriptions per second that begin and end on open connections
    #[arg(long, value_name = "N", default_value_t = 0)]
    joins: u32,
    /// NATS connections per second that open, subscribe and close
    #[arg(long, value_name = "N", default_value_t = 0)]
    reconnects: u32,
    /// Stilling's HTTP port, for --slow and --flapping; the subject must be one of a stream
    #[arg(long, value_name = "ADDRESS")]
    resume_at: Option<SocketAddr>,
    /// Further WebSocket and SSE subscribers that read slowly and resume
    #[arg(long, value_name = "N", default_value_t = 0, requires = "resume_at")]
    slow: u32,
    /// Further WebSocket and SSE subscribers that disconnect again and again and resume
    #[arg(long, value_name = "N", default_value_t = 0, requires = "resume_at")]
    flapping: u32,
}

impl AdditionalSubscribers {
    fn disturbance(&self) -> DisturbancePlan {
        DisturbancePlan {
            stopped: self.stopped,
            trickling: self.trickling,
            joins_per_s: self.joins,
            reconnects_per_s: self.reconnects,
        }
    }

    fn resuming(&self) -> ResumingPlan {
        ResumingPlan { to: self.resume_at, slow: self.slow, flapping: self.flapping }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum BroadcastProtocolOption {
    /// The NATS client protocol
    Nats,
    /// PUBLISH and SUBSCRIBE
    Redis,
    /// MQTT 3.1.1 at QoS 0
    Mqtt,
    /// Server-sent events of a stream; publishes over NATS
    Sse,
    /// WebSockets of a stream, binary frames; publishes over NATS
    Websocket,
    /// WebSockets of a stream, text frames; publishes over NATS
    WebsocketJson,
    /// NATS over WebSocket; publishes over NATS
    NatsWebsocket,
    /// JSON over WebSocket; publishes over the HTTP API
    Centrifugo,
}

impl From<BroadcastProtocolOption> for BroadcastProtocol {
    fn from(option: BroadcastProtocolOption) -> BroadcastProtocol {
        match option {
            BroadcastProtocolOption::Nats => BroadcastProtocol::Nats,
            BroadcastProtocolOption::Redis => BroadcastProtocol::Redis,
            BroadcastProtocolOption::Mqtt => BroadcastProtocol::Mqtt,
            BroadcastProtocolOption::Sse => BroadcastProtocol::Sse,
            BroadcastProtocolOption::Websocket => BroadcastProtocol::WebSocketRaw,
            BroadcastProtocolOption::WebsocketJson => BroadcastProtocol::WebSocketJson,
            BroadcastProtocolOption::NatsWebsocket => BroadcastProtocol::NatsWebSocket,
            BroadcastProtocolOption::Centrifugo => BroadcastProtocol::Centrifugo,
        }
    }
}

impl BroadcastArguments {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let json = self.json;
        let is_thrash = self.thrash;
        let (fan_out, thrash) = (self.fan_out_plan(), self.thrash_plan());
        let checked = if is_thrash { thrash.check() } else { fan_out.check() };
        if let Err(contradiction) = checked {
            let mut command = crate::StillingArguments::command();
            command.error(clap::error::ErrorKind::ArgumentConflict, contradiction).print()?;
            return Err(Box::new(crate::ConflictingOptions));
        }
        // The first Ctrl+C ends the load, the second one ends the program.
        let stop: Arc<AtomicBool> = Arc::default();
        signal_hook::flag::register_conditional_shutdown(SIGINT, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
        if is_thrash {
            let report = broadcast::thrash_until(&thrash, &stop)?;
            let text = if json { serde_json::to_string(&report)? + "\n" } else { thrash_lines(&report) };
            print(&text)?;
            check_failures(report.is_good(), &report.figures)
        } else {
            let report = broadcast::run_until(&fan_out, &stop)?;
            let text = if json { serde_json::to_string(&report)? + "\n" } else { fan_out_lines(&report) };
            print(&text)?;
            check_failures(report.is_good(), &report.figures)
        }
    }

    fn fan_out_plan(&self) -> BroadcastPlan {
        let defaults = BroadcastPlan::new(self.to);
        BroadcastPlan {
            protocol: self.protocol.into(),
            publish_to: self.publish_to,
            publishers: self.publishers,
            subscribers: self.subscribers,
            size: self.size,
            window: self.window,
            messages: self.messages,
            span: self.seconds.or(if self.messages.is_none() { defaults.span } else { None }),
            subject: self.subject.clone().unwrap_or(defaults.subject),
            subjects: self.subjects,
            distinct_sids: self.distinct_sids,
            is_passive: self.passive,
            source: self.source,
            rate: self.rate,
            disturbance: self.additional.disturbance(),
            resuming: self.additional.resuming(),
            server_pid: self.pid,
            wait: self.wait,
            timeout: self.timeout,
            ..defaults
        }
    }

    fn thrash_plan(&self) -> ThrashPlan {
        let defaults = ThrashPlan::new(self.to);
        ThrashPlan {
            clients: self.clients,
            span: self.seconds.unwrap_or(if self.messages.is_none() { defaults.span } else { Duration::MAX }),
            bids: self.messages,
            subject: self.subject.clone().unwrap_or(defaults.subject),
            server_pid: self.pid,
            wait: self.wait,
            timeout: self.timeout,
            ..defaults
        }
    }
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns an error for a report with failures, after it is printed.
fn check_failures(is_good: bool, figures: &LoadFigures) -> Result<(), Box<dyn Error>> {
    if is_good {
        return Ok(());
    }
    let LoadFigures { failures, failures_total, evidence, .. } = figures;
    if *failures_total == 0 {
        return Err("nothing was delivered".into());
    }
    let kinds = evidence
        .iter()
        .map(|(kind, words)| format!("{} {kind} (first: {words})", failures.get(kind).unwrap_or(&0)));
    Err(format!("{failures_total} failures: {}", kinds.collect::<Vec<_>>().join("; ")).into())
}

fn push_line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{name:<24}{value}");
}

fn spread(latency: LatencySummary) -> String {
    let ms = |us: f64| us / 1e3;
    let LatencySummary { p50_us, p99_us, p999_us, max_us, .. } = latency;
    format!("p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}", ms(p50_us), ms(p99_us), ms(p999_us), ms(max_us))
}

fn cpu(seconds: Option<f64>, per_million: Option<f64>) -> String {
    match (seconds, per_million) {
        (Some(seconds), Some(per_million)) => {
            format!("{seconds:.2}, {per_million:.4} per million deliveries")
        }
        _ => "n/a".to_owned(),
    }
}

/// The figures of both kinds of runs, with a name for the latencies.
fn push_figures(out: &mut String, latency: &str, figures: &LoadFigures) {
    push_line(out, latency, spread(figures.latency));
    push_line(out, "server CPU (s)", cpu(figures.server_cpu_s, figures.server_cpu_s_per_million));
    push_line(out, "generator CPU (s)", format_args!("{:.2}", figures.cpu_s));
    push_line(out, "failures", figures.failures_total);
    for (kind, words) in &figures.evidence {
        let count = figures.failures.get(kind).unwrap_or(&0);
        push_line(out, &format!("  {}", kind.replace('_', " ")), format_args!("{count}, first: {words}"));
    }
}

/// Lines that only some runs have.
fn push_additional(out: &mut String, report: &BroadcastReport) {
    if let Some(memory) = &report.server_memory {
        let each = memory.per_subscriber();
        let bytes = format_args!(
            "{} before, {} subscribed ({each:.0} each), {} delivered",
            memory.before, memory.subscribed, memory.delivered
        );
        push_line(out, "server memory (bytes)", bytes);
    }
    if let Some(found) = &report.disturbance {
        let DisturbanceReport { joins, reconnects, deliveries, disconnected, elapsed_s } = found;
        let counts = format_args!(
            "{joins} joins, {reconnects} reconnects, {deliveries} deliveries, {disconnected} disconnected in \
             {elapsed_s:.1} s"
        );
        push_line(out, "disturbing", counts);
    }
    if let Some(found) = &report.resuming {
        let ResumingReport { subscribers, delivered, reported, gaps, resumes, closed_by_server, .. } = found;
        let counts = format_args!(
            "{subscribers} subscribers, {delivered} delivered + {reported} reported in {gaps} gaps, \
             {resumes} resumes, {closed_by_server} closed by the server"
        );
        push_line(out, "resuming", counts);
    }
}

fn fan_out_lines(report: &BroadcastReport) -> String {
    let mut out = String::new();
    let asked = &report.parameters;
    let load = format!(
        "{} publishers, {} subscribers, {} bytes, window {}, over {}",
        asked.publishers, asked.subscribers, asked.size, asked.window, asked.protocol
    );
    push_line(&mut out, "load", load);
    push_line(&mut out, "measured (s)", format_args!("{:.3}", report.elapsed_s));
    let rated = |count: u64, rate: f64| format!("{count} ({rate:.0} per second)");
    push_line(&mut out, "messages", rated(report.messages, report.messages_per_s));
    push_line(&mut out, "deliveries", rated(report.deliveries, report.deliveries_per_s));
    push_line(&mut out, "megabytes per second", format_args!("{:.1}", report.megabytes_per_s));
    push_additional(&mut out, report);
    push_figures(&mut out, "last delivery (ms)", &report.figures);
    out
}

/// Rows 2.1 to 2.3: bids in and out per second, average and peak.
fn thrash_lines(report: &ThrashReport) -> String {
    let mut out = String::new();
    let asked = &report.parameters;
    push_line(&mut out, "load", format_args!("{} bidding clients on {}", asked.clients, asked.auction));
    push_line(&mut out, "measured (s)", format_args!("{:.3}", report.elapsed_s));
    let rated = |count: u64, average: f64, peak: u64| {
        format!("{count} ({average:.0} per second, {peak} in the best second)")
    };
    push_line(&mut out, "bids in", rated(report.bids_in, report.in_per_s, report.in_peak_per_s));
    push_line(&mut out, "bids accepted", report.bids_accepted);
    push_line(&mut out, "bids out", rated(report.bids_out, report.out_per_s, report.out_peak_per_s));
    push_figures(&mut out, "own bid back (ms)", &report.figures);
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stilling_bench::broadcast::{BroadcastParameters, ServerMemory, ThrashParameters};

    use super::*;

    /// Row 2.3: the average and the best second of deliveries.
    #[test]
    fn the_thrash_report_has_averages_and_peaks() {
        let report = ThrashReport {
            parameters: ThrashParameters {
                to: "127.0.0.1:4222".to_owned(),
                clients: 200,
                auction: "auction.a".to_owned(),
            },
            elapsed_s: 10.0,
            bids_in: 1800,
            bids_accepted: 900,
            bids_out: 180_000,
            in_per_s: 180.0,
            in_peak_per_s: 1600,
            out_per_s: 18_000.0,
            out_peak_per_s: 52_000,
            figures: LoadFigures::default(),
        };
        let text = thrash_lines(&report);
        assert!(
            text.contains("bids in                 1800 (180 per second, 1600 in the best second)\n"),
            "{text}"
        );
        assert!(text.contains("180000 (18000 per second, 52000 in the best second)\n"), "{text}");
        assert!(text.contains("server CPU (s)          n/a\n"), "{text}");
    }

    #[test]
    fn failures_are_printed_with_their_evidence_and_returned_as_an_error() {
        let report = BroadcastReport {
            parameters: BroadcastParameters {
                to: "127.0.0.1:4222".to_owned(),
                protocol: "nats",
                publishers: 1,
                subscribers: 200,
                size: 64,
                window: 2048,
                subjects: None,
                distinct_sids: false,
            },
            elapsed_s: 1.0,
            messages: 10,
            messages_per_s: 10.0,
            deliveries: 1999,
            deliveries_per_s: 1999.0,
            megabytes_per_s: 0.1,
            received_megabytes_per_s: 0.2,
            server_memory: Some(ServerMemory {
                before: 1000,
                subscribers: 200,
                subscribed: 21_000,
                delivered: 30_000,
            }),
            disturbance: None,
            resuming: None,
            figures: LoadFigures {
                failures: BTreeMap::from([("undelivered", 1)]),
                failures_total: 1,
                evidence: BTreeMap::from([("undelivered", "subscriber 3".to_owned())]),
                server_cpu_s: Some(0.5),
                server_cpu_s_per_million: Some(250.0),
                ..LoadFigures::default()
            },
        };
        let text = fan_out_lines(&report);
        assert!(
            text.ends_with("failures                1\n  undelivered           1, first: subscriber 3\n"),
            "{text}"
        );
        assert!(text.contains("0.50, 250.0000 per million deliveries"), "{text}");
        assert!(text.contains("1000 before, 21000 subscribed (100 each), 30000 delivered"), "{text}");
        let error = check_failures(false, &report.figures).unwrap_err();
        assert_eq!(error.to_string(), "1 failures: 1 undelivered (first: subscriber 3)");
    }
}
