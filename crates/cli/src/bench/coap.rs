//! `stilling bench coap`: requests to a CoAP server from many source ports.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Args, CommandFactory};
use signal_hook::consts::SIGINT;
use stilling_bench::coap::{self, CoapFaults, CoapPlan, CoapReport, LatencySummary};
use stilling_bench::http::{HttpStepReport, RateSteps};
use stilling_client::coap::CoapUrl;

use super::seconds;

#[derive(Args)]
pub(super) struct CoapArguments {
    /// Address of the resource; {n} in path or query is replaced by the number of the variant
    #[arg(value_name = "URL", value_parser = clap::builder::StringValueParser::new().try_map(|text| text.parse::<CoapUrl>()))]
    url: CoapUrl,
    /// POST requests, each with its number as body, for a resource that counts executions, such as /executions of
    /// stilling serve; one that is executed twice is a failure
    #[arg(long, requires = "requests", conflicts_with = "variants")]
    count_executions: bool,
    /// Different requests, in turn; {n} is 0 to N - 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    variants: u32,
    /// Source ports in use at a time; one with used message ids is replaced
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=16_384))]
    sockets: u16,
    /// Requests in flight per source port
    #[arg(short, long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// End after N requests
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// End after S seconds, or when the requests are done [default: 10, without --requests]
    #[arg(short = 'd', long, value_name = "S", value_parser = seconds())]
    seconds: Option<Duration>,
    /// Open loop: requests per second in all, started by the clock; latency counts from the intended start of a request
    #[arg(short, long, value_name = "R", value_parser = crate::publish::rate())]
    rate: Option<f64>,
    /// Open loop with a changing rate: requests per second and seconds, such as 400:2,8000:5,400:5; each step is
    /// reported separately
    #[arg(long, value_name = "R:S,…", conflicts_with_all = ["rate", "requests", "seconds"])]
    steps: Option<RateSteps>,
    /// Send non-confirmable requests
    #[arg(long)]
    non_confirmable: bool,
    /// Drop this part of the datagrams in both directions, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// Send this part of the datagrams twice, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    duplication: f64,
    /// Send this part of the datagrams after a later one, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    reordering: f64,
    /// Seed of the injected faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Process of the server, to report its CPU time; repeatable
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Seconds to wait for the server to start
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds())]
    wait: Duration,
    /// Maximum seconds for a whole response
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds())]
    timeout: Duration,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl CoapArguments {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let plan = self.plan()?;
        if let Err(contradiction) = plan.check() {
            let mut command = crate::StillingArguments::command();
            command.error(clap::error::ErrorKind::ArgumentConflict, contradiction).print()?;
            return Err(Box::new(crate::ConflictingOptions));
        }
        // The first Ctrl+C ends the load, the second one ends the program.
        let stop: Arc<AtomicBool> = Arc::default();
        signal_hook::flag::register_conditional_shutdown(SIGINT, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
        let report = coap::run_until(&plan, &stop)?;
        let text = if self.json { serde_json::to_string(&report)? + "\n" } else { lines(&report) };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        check_failures(&report)
    }

    fn plan(&self) -> Result<CoapPlan, Box<dyn Error>> {
        let server = self.url.server();
        let resolved = (self.url.host.as_str(), self.url.port).to_socket_addrs();
        let to: SocketAddr = resolved
            .map_err(|error| format!("cannot resolve {server}: {error}"))?
            .next()
            .ok_or_else(|| format!("cannot resolve {server}: the name has no address"))?;
        let defaults = CoapPlan::new(to);
        let has_end = self.requests.is_some() || self.steps.is_some();
        Ok(CoapPlan {
            path: self.url.path.clone(),
            query: self.url.query.clone(),
            variants: self.variants,
            counts_executions: self.count_executions,
            is_confirmable: !self.non_confirmable,
            sockets: self.sockets,
            window: self.window,
            requests: self.requests,
            span: self.seconds.or(if has_end { None } else { defaults.span }),
            rate: self.rate,
            steps: self.steps.clone().map_or_else(Vec::new, |RateSteps(steps)| steps),
            faults: CoapFaults {
                loss: self.loss,
                duplication: self.duplication,
                reordering: self.reordering,
            },
            seed: self.seed,
            timeout: self.timeout,
            wait: self.wait,
            server_pids: self.pid.clone(),
            ..defaults
        })
    }
}

/// Returns an error for a report with failures, after it is printed.
fn check_failures(report: &CoapReport) -> Result<(), Box<dyn Error>> {
    if report.is_good() {
        return Ok(());
    }
    if report.failures_total == 0 {
        return Err("no request was completed".into());
    }
    let kinds = report
        .evidence
        .iter()
        .map(|(kind, words)| format!("{} {kind} (first: {words})", report.failures.get(kind).unwrap_or(&0)));
    Err(format!("{} failures: {}", report.failures_total, kinds.collect::<Vec<_>>().join("; ")).into())
}

fn push_line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{name:<24}{value}");
}

fn spread(latency: &LatencySummary) -> String {
    let ms = |us: f64| us / 1e3;
    format!(
        "p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}  mean {:.3}  standard deviation {:.3}",
        ms(latency.p50_us),
        ms(latency.p99_us),
        ms(latency.p999_us),
        ms(latency.max_us),
        ms(latency.mean_us),
        ms(latency.stdev_us)
    )
}

fn step_line(step: &HttpStepReport) -> String {
    format!(
        "{} of {} due: {} correct ({:.0} per second), {} shed, {} failed; p99 {:.3} ms",
        step.requests,
        step.due,
        step.ok,
        step.goodput_per_s,
        step.shed,
        step.failed,
        step.latency.p99_us / 1e3
    )
}

fn lines(report: &CoapReport) -> String {
    let mut out = String::new();
    let asked = &report.parameters;
    let kind = if asked.confirmable { "confirmable" } else { "non-confirmable" };
    let load = format!(
        "{kind} {} {}, {} sockets, window {}",
        asked.method, asked.resource, asked.sockets, asked.window
    );
    push_line(&mut out, "load", load);
    let (least, most) = asked.body_bytes;
    push_line(&mut out, "body (bytes)", format_args!("{least} to {most}"));
    push_line(&mut out, "measured (s)", format_args!("{:.3}", report.elapsed_s));
    let completed = format!("{} ({:.0} per second)", report.completed, report.completed_per_s);
    push_line(&mut out, "completed", completed);
    push_line(&mut out, "blocks", report.blocks);
    push_line(&mut out, "shed (4.29, 5.03)", report.shed);
    push_line(&mut out, "not sent", report.not_sent);
    push_line(&mut out, "lost", report.lost);
    push_line(&mut out, "retransmissions", report.retransmissions);
    push_line(&mut out, "duplicate answers", report.duplicates);
    if let Some(executions) = report.executions {
        push_line(&mut out, "executed", executions.executed);
        push_line(&mut out, "executed again", executions.repeated);
    }
    let (lost, duplicated, reordered) = report.injected;
    if lost + duplicated + reordered > 0 {
        let injected = format!("{lost} dropped, {duplicated} sent twice, {reordered} reordered");
        push_line(&mut out, "injected faults", injected);
    }
    push_line(&mut out, "source ports", report.ports);
    push_line(&mut out, "latency (ms)", spread(&report.latency));
    if report.shed > 0 {
        push_line(&mut out, "refused after (ms)", spread(&report.refusal_latency));
    }
    for step in &report.steps {
        push_line(&mut out, &format!("{:.0} requests/s", step.rate), step_line(step));
    }
    let cpu = match (report.server_cpu_s, report.server_cpu_s_per_million) {
        (Some(seconds), Some(each)) => format!("{seconds:.2}, {each:.3} per million requests"),
        _ => "n/a".to_owned(),
    };
    push_line(&mut out, "server CPU (s)", cpu);
    push_line(&mut out, "generator CPU (s)", format_args!("{:.2}", report.cpu_s));
    push_line(&mut out, "failures", report.failures_total);
    for (kind, words) in &report.evidence {
        let count = report.failures.get(kind).unwrap_or(&0);
        push_line(
            &mut out,
            &format!("  {}", kind.replace('_', " ")),
            format_args!("{count}, first: {words}"),
        );
    }
    out
}
