//! `stilling bench`: the load generators, their options, and their figures as a table or as JSON.

mod broadcast;
mod coap;
mod collect;
mod crash;

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::builder::TypedValueParser;
use clap::{Args, CommandFactory, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use stilling_bench::http::{
    self, HttpBenchError, HttpBenchReport, HttpPlan, HttpProgress, HttpStepReport, LatencySummary, RateSteps,
    RunLength, SourceAddresses, Url,
};
use stilling_engine::driver::choice::DriverChoice;

#[derive(Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    what: BenchSubcommand,
}

#[derive(Subcommand)]
enum BenchSubcommand {
    /// Load an HTTP server and check every byte of its responses
    Http(Box<HttpArguments>),
    /// Send one-way messages and account for each of them
    Collect(Box<collect::CollectArguments>),
    /// Send messages to many subscribers and check every delivered byte
    Broadcast(Box<broadcast::BroadcastArguments>),
    /// Request a resource of a CoAP server from many source ports and check every answer
    Coap(Box<coap::CoapArguments>),
    /// Kill a server under load and compare its acknowledgements with its stream
    Crash(Box<crash::CrashBenchArguments>),
}

#[derive(Args)]
struct HttpArguments {
    /// URL of the requests, such as http://127.0.0.1:9000/test/fast
    #[arg(value_parser = url())]
    url: Url,
    /// Concurrent connections over all threads
    #[arg(short, long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Threads, each with an engine of its own
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// End after N requests
    #[arg(short = 'n', long, value_name = "N", group = "length", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// End after S seconds [default: 10]
    #[arg(short, long, value_name = "S", group = "length", value_parser = seconds())]
    duration: Option<Duration>,
    /// Send one request per connection, then hold all connections idle for S seconds
    #[arg(long, value_name = "S", group = "length", conflicts_with_all = ["rate", "steps", "close", "pipeline"], value_parser = seconds())]
    hold: Option<Duration>,
    /// Open a connection for each request instead of reusing connections
    #[arg(long)]
    close: bool,
    /// Requests in flight per connection
    #[arg(long, value_name = "DEPTH", default_value_t = 1, conflicts_with = "close", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pipeline: u16,
    /// Open loop: requests per second in all, started by the clock; latency counts from the intended start of a request
    #[arg(short, long, value_name = "R", value_parser = crate::publish::rate())]
    rate: Option<f64>,
    /// Open loop with a changing rate: requests per second and seconds, such as 400:2,8000:5,400:5; each step is
    /// reported separately
    #[arg(long, value_name = "R:S,…", conflicts_with_all = ["rate", "length", "warmup"])]
    steps: Option<RateSteps>,
    /// Requests per thread that may wait for a free connection in an open loop; more are dropped and counted
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    backlog: u32,
    /// Seconds of uncounted requests before the measurement
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds_or_none())]
    warmup: Duration,
    /// Maximum seconds for a connect, a response, or a due request in the backlog
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds())]
    timeout: Duration,
    /// HTTP method, in capitals
    #[arg(short, long, value_name = "NAME", default_value = "GET")]
    method: String,
    /// Bytes of each request body
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    body_size: u32,
    /// Status of a successful response
    #[arg(long, value_name = "STATUS", default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    expect_status: u16,
    /// Expected body of every response: the content of FILE if it exists, else the text [default: the body of a first
    /// request]
    #[arg(long, value_name = "FILE|TEXT")]
    expect_body: Option<String>,
    /// Kernel interface; auto uses io_uring where it is allowed
    #[arg(long, value_enum, default_value_t = HttpBenchDriver::Auto)]
    driver: HttpBenchDriver,
    /// Keep connections out of the process's descriptor table (io_uring, Linux 6.13): the limit of open files then
    /// applies per thread, not to all together
    #[arg(long)]
    direct_descriptors: bool,
    /// Spread the connections over N local addresses starting with this one, such as 127.0.1.1/20
    #[arg(long, value_name = "ADDRESS/N")]
    source: Option<SourceAddresses>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum HttpBenchDriver {
    /// io_uring where the kernel allows it, else epoll
    Auto,
    /// io_uring, or an error
    Uring,
    /// epoll
    Poll,
}

fn url() -> impl TypedValueParser<Value = Url> {
    clap::builder::StringValueParser::new().try_map(|text| Url::parse(&text))
}

/// A positive number of seconds up to a year.
fn seconds() -> impl TypedValueParser<Value = Duration> {
    seconds_from(0.001)
}

fn seconds_or_none() -> impl TypedValueParser<Value = Duration> {
    seconds_from(0.0)
}

fn seconds_from(least: f64) -> impl TypedValueParser<Value = Duration> {
    clap::builder::StringValueParser::new().try_map(move |text| {
        let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
        if (least..=31_536_000.0).contains(&seconds) {
            Ok(Duration::from_secs_f64(seconds))
        } else {
            Err(format!("it must be in the range {least} to 31536000"))
        }
    })
}

impl BenchArguments {
    /// Runs the load. A report with failures is printed, then returned as an error.
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        match self.what {
            BenchSubcommand::Http(options) => options.run(),
            BenchSubcommand::Collect(options) => options.run(),
            BenchSubcommand::Broadcast(options) => options.run(),
            BenchSubcommand::Coap(options) => options.run(),
            BenchSubcommand::Crash(options) => options.run(),
        }
    }
}

impl HttpArguments {
    fn run(self) -> Result<(), Box<dyn Error>> {
        let json = self.json;
        let plan = self.plan()?;
        if let Err(contradiction) = plan.check() {
            // The same output as for a conflict that clap detects.
            let mut command = crate::StillingArguments::command();
            command.error(clap::error::ErrorKind::ArgumentConflict, contradiction).print()?;
            return Err(Box::new(crate::ConflictingOptions));
        }
        let report = run_with_progress(&plan)?;
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", table(&report))?;
        }
        out.flush()?;
        if report.is_good() { Ok(()) } else { Err(failure_summary(&report).into()) }
    }

    fn plan(self) -> Result<HttpPlan, Box<dyn Error>> {
        let defaults = HttpPlan::new(self.url);
        let steps = self.steps.map_or_else(Vec::new, |RateSteps(steps)| steps);
        let stepped = steps.iter().fold(Duration::ZERO, |sum, step| sum.saturating_add(step.span));
        let length = match (self.requests, self.duration, self.hold) {
            (Some(count), _, _) => RunLength::Requests(count),
            (_, Some(span), _) => RunLength::Duration(span),
            (_, _, Some(span)) => RunLength::Hold(span),
            (None, None, None) if !steps.is_empty() => RunLength::Duration(stepped),
            (None, None, None) => defaults.length,
        };
        Ok(HttpPlan {
            method: self.method,
            body_size: self.body_size,
            connections: self.connections,
            threads: self.threads,
            pipeline: self.pipeline,
            keep_alive: !self.close,
            rate: self.rate,
            steps,
            backlog_max: self.backlog,
            length,
            warmup: self.warmup,
            timeout: self.timeout,
            expect_status: self.expect_status,
            expect_body: self.expect_body.map(file_or_text).transpose()?,
            driver: match self.driver {
                HttpBenchDriver::Auto => DriverChoice::Auto,
                HttpBenchDriver::Uring => DriverChoice::Uring,
                HttpBenchDriver::Poll => DriverChoice::Poll,
            },
            direct_descriptors: self.direct_descriptors,
            sources: self.source,
            ..defaults
        })
    }
}

fn file_or_text(argument: String) -> std::io::Result<Vec<u8>> {
    if Path::new(&argument).exists() { std::fs::read(&argument) } else { Ok(argument.into_bytes()) }
}

/// Runs the plan, with a progress bar if standard error is a terminal.
fn run_with_progress(plan: &HttpPlan) -> Result<HttpBenchReport, HttpBenchError> {
    if !std::io::stderr().is_terminal() {
        return run_announced(plan);
    }
    let begun = Instant::now();
    let bar = match plan.length {
        RunLength::Requests(count) => ProgressBar::new(count).with_style(style("{pos}/{len} requests")),
        RunLength::Duration(span) => {
            let whole = (plan.warmup + span).as_millis() as u64;
            ProgressBar::new(whole).with_style(style("{elapsed}"))
        }
        RunLength::Hold(_) => ProgressBar::new(plan.connections.into()).with_style(style("{pos}/{len} open")),
    };
    let report = http::run_watched(plan, |progress: &HttpProgress| {
        bar.set_position(match plan.length {
            RunLength::Requests(_) => progress.ok + progress.shed + progress.failures,
            RunLength::Duration(_) => begun.elapsed().as_millis() as u64,
            RunLength::Hold(_) => progress.open,
        });
        let holding = if progress.holding { ", holding" } else { "" };
        bar.set_message(format!(
            "{} correct, {} shed, {} failed, {} open{holding}",
            progress.ok, progress.shed, progress.failures, progress.open
        ));
    });
    bar.finish_and_clear();
    report
}

/// Runs the plan and prints one line when all connections are held, so that a calling program can start to measure.
fn run_announced(plan: &HttpPlan) -> Result<HttpBenchReport, HttpBenchError> {
    let mut announced = false;
    http::run_watched(plan, |progress| {
        if progress.holding && !std::mem::replace(&mut announced, true) {
            // A closed standard error does not affect the figures.
            let _ = writeln!(std::io::stderr(), "holding {} connections", progress.open);
        }
    })
}

fn style(counter: &str) -> ProgressStyle {
    let template = format!("{{bar:30}} {counter}  {{msg}}");
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The kinds of failures in one line, for standard error.
fn failure_summary(report: &HttpBenchReport) -> String {
    if report.failures_total == 0 {
        return "no request succeeded".to_owned();
    }
    let kinds: Vec<String> = report
        .evidence
        .iter()
        .map(|(kind, detail)| format!("{} {kind} (first: {detail})", report.failures.get(kind).unwrap_or(&0)))
        .collect();
    format!("{} failures: {}", report.failures_total, kinds.join("; "))
}

fn table(report: &HttpBenchReport) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        out.push_str(&format!("{name:<22}{value}\n"));
    };
    let asked = &report.parameters;
    let mode = match (asked.rate, asked.hold_s, asked.keep_alive) {
        (_, Some(span), _) => format!("hold for {span} s"),
        (Some(rate), _, _) => format!("open loop, {rate} requests/s"),
        _ if !report.steps.is_empty() => format!("open loop, {} steps", report.steps.len()),
        (None, _, true) => format!("closed loop, {} in flight each", asked.pipeline),
        (None, _, false) => "closed loop, a connection per request".to_owned(),
    };
    line("load", format!("{} {}", asked.method, asked.url));
    line(
        "mode",
        format!(
            "{mode}, {} connections, {} threads, driver {}",
            asked.connections, asked.threads, report.driver
        ),
    );
    line("measured", format!("{:.3} s", report.elapsed_s));
    line("requests", report.requests.to_string());
    line("correct responses", format!("{} ({:.2}/s)", report.ok, report.rate_per_s));
    line("shed (503)", report.shed.to_string());
    line("failures", report.failures_total.to_string());
    for (kind, count) in report.failures.iter().filter(|(_, count)| **count > 0) {
        let first = report.evidence.get(kind).map_or("", String::as_str);
        line(&format!("  {}", kind.replace('_', " ")), format!("{count}, first: {first}"));
    }
    if report.service_time.is_some() || report.dropped.total() > 0 {
        let dropped = report.dropped;
        line("not sent", dropped.total().to_string());
        line("  backlog full", dropped.backlog_full.to_string());
        line("  waited too long", dropped.waited_too_long.to_string());
        line("  not started at end", dropped.at_end.to_string());
    }
    let statuses: Vec<String> =
        report.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    line("responses by status", statuses.join(", "));
    line("bytes", format!("{} received, {} sent", report.bytes_received, report.bytes_sent));
    line("connections", format!("{} opened, {} reopened", report.connected, report.reconnects));
    if asked.hold_s.is_some() {
        line("held to the end", report.held.to_string());
    }
    line("CPU time", format!("{:.3} s of the generator", report.cpu_s));
    line("", spread_heading());
    line("latency (ms)", spread_row(&report.latency));
    if let Some(service) = &report.service_time {
        line("service time (ms)", spread_row(service));
    }
    for step in &report.steps {
        line(&format!("{} requests/s", step.rate), step_row(step));
        line("  latency (ms)", spread_row(&step.latency));
    }
    out
}

fn step_row(step: &HttpStepReport) -> String {
    format!(
        "{} s: {:.2} correct/s; of {} due {} correct, {} shed, {} failed, {} not sent",
        step.span_s,
        step.goodput_per_s,
        step.due,
        step.ok,
        step.shed,
        step.failed,
        step.due.saturating_sub(step.requests)
    )
}

fn spread_heading() -> String {
    ["min", "p50", "p90", "p99", "p99.9", "max", "mean"].map(|name| format!("{name:>10}")).concat()
}

fn spread_row(spread: &LatencySummary) -> String {
    let values = [
        spread.min_us,
        spread.p50_us,
        spread.p90_us,
        spread.p99_us,
        spread.p999_us,
        spread.max_us,
        spread.mean_us,
    ];
    values.map(|micros| format!("{:>10.3}", micros / 1000.0)).concat()
}
