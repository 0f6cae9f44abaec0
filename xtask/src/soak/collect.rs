//! `cargo xtask soak collect`: publishers faster than the server, for a long time (rows 0.17 and 0.33).
//!
//! ```text
//!  nominal   ██                              ██    only confirmed messages: the rate before and after
//!  flood       ████████████████████████████        unconfirmed messages; only TCP backpressure limits them
//!  waiting     ████████████████████████████        a connection per message, confirmed: the wait of a client meanwhile
//!  compared         ├─warm─┤         ├─end─┤       memory, descriptors, threads, and the wait of those clients
//! ```
//!
//! The flood ends last, so that its end is visible: within the same few seconds after its last write, no message may be
//! pending and the nominal load must reach its earlier rate.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Deserialize;

use super::watch::ResourceSample;
use super::{
    SoakOptions, SoakVerdict, joined, level, resource_table, sample_until, schedule, verdict_table,
    wait_for_release,
};
use crate::XtaskResult;
use crate::bench::figures::{self, median};
use crate::bench::server::BenchServer;
use crate::bench::{copy_binary, isolation};
use crate::steps::command_text;
use crate::tree;

const SEGMENT_S: u32 = 10;

/// Options of the load before and after the flood, which measures the rate of an undisturbed server.
const NOMINAL: [&str; 3] = ["--clients=4", "--size=1024", "--window=64"];

/// Seconds of the nominal load before the flood and, after the recovery, once more.
const NOMINAL_SECONDS: &str = "--seconds=8";

/// Seconds of each nominal run right after the flood, repeated until one reaches the earlier rate.
const NOMINAL_PROBE_SECONDS: &str = "--seconds=1";

const FLOOD: [&str; 5] = ["--clients=8", "--size=1024", "--window=256", "--threads=1", "--unconfirmed"];

const WAITING: [&str; 4] = ["--clients=4", "--size=1024", "--window=1", "--per-message"];

/// Seconds after the last write of the flood within which all sent messages must be durable and the nominal load must
/// reach its rate (row 0.17).
const CALM_WITHIN_S: f64 = 5.0;

/// Longest wait for that, in seconds, so that a missed limit still has a figure.
const CALM_AWAITED_S: f64 = 60.0;

const PENDING_EVERY: Duration = Duration::from_millis(20);

/// Least rate after the flood, as a part of the rate before it: runs on one machine differ by as much.
const RATE_PART: f64 = 0.8;

/// Most wait of clients at the end, as a multiple of the wait after the warm-up: runs on one machine differ by as much.
const WAIT_PART: f64 = 1.5;

#[derive(Args)]
pub(super) struct CollectSoak {
    #[command(flatten)]
    options: SoakOptions,
}

struct LoadSegment {
    at_s: f64,
    report: SegmentReport,
}

#[derive(Deserialize)]
struct SegmentReport {
    accounting: SegmentAccounting,
    rate_per_s: f64,
    failures_total: u64,
    /// Seconds from the last write until all messages were stored.
    stored_after_s: f64,
    send_time: SegmentSpread,
}

#[derive(Deserialize)]
struct SegmentAccounting {
    sends: u64,
    unexplained: u64,
    invented: u64,
}

#[derive(Deserialize)]
struct SegmentSpread {
    mean_us: f64,
    p99_us: f64,
    max_us: f64,
}

struct CollectObservation {
    before: ResourceSample,
    resource_samples: Vec<ResourceSample>,
    after: Option<ResourceSample>,
    flood: Vec<LoadSegment>,
    waiting: Vec<LoadSegment>,
    nominal: [SegmentReport; 2],
    recovery: FloodRecovery,
    ended_well: bool,
}

struct FloodRecovery {
    /// Until no message is pending; `None`: not within the time limit.
    stored_after_s: Option<f64>,
    /// Until the end of a nominal run with the earlier rate; `None`: not within the time limit.
    nominal_s: Option<f64>,
}

struct CollectServer {
    binary: PathBuf,
    nats: SocketAddr,
    metrics: String,
}

impl CollectSoak {
    pub(super) fn soak(&self) -> XtaskResult {
        // Not in the system's temporary folder, which may be in memory.
        let folder = tempfile::tempdir_in(tree::target().canonicalize()?)?;
        let binary = copy_binary("stilling", folder.path())?;
        let (server, stage) = self.start(&binary, &folder.path().join("data"))?;
        let total_s = self.options.total_s();
        println!(
            "`{}` for {} min; TCP congestion control {}",
            server.command,
            self.options.minutes,
            isolation::congestion()
        );
        let command = server.command.clone();
        let observation = watched(server, &stage, total_s)?;
        let verdicts = verdicts(&observation, total_s);
        print!("{}", tables(&observation, &verdicts, total_s));
        let description = format!(
            "Rows 0.17 and 0.33. Publishers that wait for nothing (`{}`) and confirmed ones with a connection per message \
             (`{}`) on `{command}`; before and after, confirmed publishers alone (`{}`).",
            FLOOD.join(" "),
            WAITING.join(" "),
            NOMINAL.join(" ")
        );
        self.options.conclude("collect", "Publishers faster than the server", description, &verdicts)
    }

    fn start(&self, binary: &Path, data: &Path) -> XtaskResult<(BenchServer, CollectServer)> {
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let nats = free()?;
        let streams = ["flood", "waiting", "nominal"]
            .map(|name| format!("--stream={name}={name}.>:disk:retention-bytes=1GiB"));
        let mut command = Command::new(binary);
        command.args(["serve", "--driver", self.options.driver().option(), "--listen", "127.0.0.1:0"]);
        command.args(["--nats", &nats.to_string(), "--data", &data.display().to_string()]).args(streams);
        let command_line = format!(
            "stilling serve --driver {} --nats … --data … --stream …:disk:retention-bytes=1GiB",
            self.options.driver().option()
        );
        let server = BenchServer::announced("stilling", command_line, command)?;
        let metrics = server.url("/metrics");
        Ok((server, CollectServer { binary: binary.to_owned(), nats, metrics }))
    }
}

impl CollectServer {
    fn run(&self, stream: &str, options: &[&str]) -> XtaskResult<SegmentReport> {
        let mut command = Command::new(&self.binary);
        command.args(["bench", "collect", &self.nats.to_string(), "--json", "--stream", stream]);
        command.args(["--subject", stream]).args(options).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("`{}`: {error}", command_text(&command)))?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("`{}` printed no report: {error}", command_text(&command)).into())
    }

    /// Runs the generator repeatedly until `over`.
    fn keep_running(
        &self,
        stream: &str,
        options: &[&str],
        start: Instant,
        over: &AtomicBool,
    ) -> Result<Vec<LoadSegment>, String> {
        let seconds = format!("--seconds={SEGMENT_S}");
        let options: Vec<&str> = options.iter().copied().chain([seconds.as_str()]).collect();
        let mut segments = Vec::new();
        while !over.load(Relaxed) {
            let at_s = start.elapsed().as_secs_f64();
            let report = self.run(stream, &options).map_err(|error| error.to_string())?;
            segments.push(LoadSegment { at_s, report });
        }
        Ok(segments)
    }

    fn nominal(&self, seconds: &str) -> XtaskResult<SegmentReport> {
        self.run("nominal", &[&NOMINAL[..], &[seconds]].concat())
    }

    /// Waits until no message is pending and then until the rate is nominal; the last write was `since_s` ago.
    fn recovery(&self, since_s: f64, nominal_rate: f64) -> XtaskResult<FloodRecovery> {
        let begun = Instant::now();
        let now_s = || since_s + begun.elapsed().as_secs_f64();
        let stored_after_s = loop {
            if self.pending()? == 0 {
                break Some(now_s());
            }
            if now_s() >= CALM_AWAITED_S {
                break None;
            }
            std::thread::sleep(PENDING_EVERY);
        };
        let nominal_s = loop {
            let rate = self.nominal(NOMINAL_PROBE_SECONDS)?.rate_per_s;
            if rate >= nominal_rate * RATE_PART {
                break Some(now_s());
            }
            if now_s() >= CALM_AWAITED_S {
                break None;
            }
        };
        Ok(FloodRecovery { stored_after_s, nominal_s })
    }

    /// Messages received by the server and not yet durable.
    fn pending(&self) -> XtaskResult<u64> {
        let output = Command::new("curl").args(["-sS", "--max-time", "5", &self.metrics]).output()?;
        pending(&String::from_utf8_lossy(&output.stdout))
            .ok_or_else(|| format!("{} has no figure of pending messages", self.metrics).into())
    }
}

fn pending(metrics: &str) -> Option<u64> {
    let values = metrics.lines().filter(|line| line.starts_with("stilling_hub_stream_pending{"));
    let values: Vec<u64> = values.filter_map(|line| line.split_whitespace().last()?.parse().ok()).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

fn watched(server: BenchServer, stage: &CollectServer, total_s: f64) -> XtaskResult<CollectObservation> {
    let process = server.first_process();
    let before = ResourceSample::at(process, 0.0).ok_or("the server ended before the load began")?;
    let nominal_before = stage.nominal(NOMINAL_SECONDS)?;
    let (waited, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let start = Instant::now();
    let (resource_samples, flood, waiting) = std::thread::scope(|threads| {
        let flood = threads.spawn(|| stage.keep_running("flood", &FLOOD, start, &over));
        let waiting = threads.spawn(|| stage.keep_running("waiting", &WAITING, start, &waited));
        let resource_samples = sample_until(process, start, total_s, true);
        waited.store(true, Relaxed);
        let waiting = joined(waiting);
        over.store(true, Relaxed);
        (resource_samples, joined(flood), waiting)
    });
    let (flood, waiting) = (flood?, waiting?);
    let last = flood.last().ok_or("the flood was shorter than one run of it")?;
    let recovery = stage.recovery(last.report.stored_after_s, nominal_before.rate_per_s)?;
    let nominal_after = stage.nominal(NOMINAL_SECONDS)?;
    let after = wait_for_release(process, start, &before);
    let ended_well = server.end();
    let nominal = [nominal_before, nominal_after];
    Ok(CollectObservation { before, resource_samples, after, flood, waiting, nominal, recovery, ended_well })
}

/// Wait of clients within a time window, in milliseconds: the median of the runs' means.
fn waited_ms(segments: &[LoadSegment], stretch: schedule::SoakWindow) -> f64 {
    let within = segments.iter().filter(|segment| stretch.contains(segment.at_s));
    median(within.map(|segment| segment.report.send_time.mean_us / 1e3).collect())
}

fn verdicts(observation: &CollectObservation, total_s: f64) -> Vec<SoakVerdict> {
    let mut verdicts = losses(observation);
    verdicts.extend([waiting(observation, total_s), settling(observation)]);
    verdicts.extend(recovery(observation));
    verdicts.extend(ending(observation));
    verdicts.extend(level(", row 0.33", &observation.resource_samples, total_s));
    verdicts
}

fn losses(observation: &CollectObservation) -> Vec<SoakVerdict> {
    let judge = |(name, segments): (&str, &Vec<LoadSegment>)| {
        let sum =
            |of: fn(&SegmentReport) -> u64| segments.iter().map(|segment| of(&segment.report)).sum::<u64>();
        let (sends, failures) = (sum(|report| report.accounting.sends), sum(|report| report.failures_total));
        let [unexplained, invented] =
            [sum(|report| report.accounting.unexplained), sum(|report| report.accounting.invented)];
        SoakVerdict {
            what: format!("nothing fails, and the server counts every loss: {name}"),
            limit: "0".to_owned(),
            holds: sends > 0 && failures + unexplained + invented == 0,
            measured: format!(
                "{sends} messages, {failures} failures, {unexplained} unexplained, {invented} invented"
            ),
        }
    };
    [("flood", &observation.flood), ("waiting", &observation.waiting)].map(judge).into()
}

fn waiting(observation: &CollectObservation, total_s: f64) -> SoakVerdict {
    let (warm, end) = (
        waited_ms(&observation.waiting, schedule::warm(total_s)),
        waited_ms(&observation.waiting, schedule::end(total_s)),
    );
    SoakVerdict {
        what: "row 0.33, latency is flat: mean wait at the end".to_owned(),
        limit: format!("≤ × {WAIT_PART} of after the warm-up"),
        holds: end <= warm * WAIT_PART,
        measured: format!("{warm:.2} ms after the warm-up, {end:.2} ms at the end"),
    }
}

/// Judges how soon the messages of each flood run are stored after its last write, while the other runs continue.
fn settling(observation: &CollectObservation) -> SoakVerdict {
    let settled = observation.flood.iter().map(|segment| segment.report.stored_after_s).fold(0.0, f64::max);
    SoakVerdict {
        what: "all messages of each run are durable soon after its last write".to_owned(),
        limit: format!("< {CALM_WITHIN_S} s"),
        holds: settled < CALM_WITHIN_S,
        measured: format!("{settled:.2} s at most"),
    }
}

/// Judges how soon the server has recovered from the flood.
fn recovery(observation: &CollectObservation) -> Vec<SoakVerdict> {
    let FloodRecovery { stored_after_s, nominal_s } = observation.recovery;
    let soon = |what: &str, end_s: Option<f64>| SoakVerdict {
        what: what.to_owned(),
        limit: format!("< {CALM_WITHIN_S} s"),
        holds: end_s.is_some_and(|end_s| end_s < CALM_WITHIN_S),
        measured: end_s.map_or_else(|| format!("not in {CALM_AWAITED_S} s"), |end_s| format!("{end_s:.2} s")),
    };
    let [rate_before, rate_after] = observation.nominal.each_ref().map(|report| report.rate_per_s);
    let rate = SoakVerdict {
        what: "row 0.17: the rate after the flood".to_owned(),
        limit: format!("≥ × {RATE_PART} of before"),
        holds: rate_after >= rate_before * RATE_PART,
        measured: format!(
            "{} of {} messages/s",
            figures::thousands(rate_after),
            figures::thousands(rate_before)
        ),
    };
    vec![
        soon("row 0.17: nothing is pending after the flood's last write", stored_after_s),
        soon("row 0.17: the rate is nominal again after the flood's last write", nominal_s),
        rate,
    ]
}

/// Judges the descriptors left after all clients have gone, and the end of the server.
fn ending(observation: &CollectObservation) -> [SoakVerdict; 2] {
    let (before, after) = (observation.before.descriptors, observation.after);
    let descriptors_max = before + 3.0 * DESCRIPTORS_PER_STREAM;
    let descriptors = SoakVerdict {
        what: "all descriptors are closed, except those of three streams' segments".to_owned(),
        limit: format!("≤ {descriptors_max}"),
        holds: after.is_some_and(|after| after.descriptors <= descriptors_max),
        measured: after.map_or_else(figures::unknown, |after| format!("{} of {before}", after.descriptors)),
    };
    let end = SoakVerdict::of_stop(observation.ended_well);
    [descriptors, end]
}

/// Files that a stream keeps open once it has records.
const DESCRIPTORS_PER_STREAM: f64 = 6.0;

fn tables(observation: &CollectObservation, verdicts: &[SoakVerdict], total_s: f64) -> String {
    let mut text = String::from(
        "\n| minute | flood, messages/s | confirmed, a connection each, messages/s | mean ms | p99 ms | max ms |\n|---|---|---|---|---|---|\n",
    );
    for minute in 0..(total_s / 60.0).ceil() as u32 {
        let from_s = f64::from(minute) * 60.0;
        let stretch = schedule::SoakWindow { from_s, to_s: from_s + 60.0 };
        let middle = |segments: &[LoadSegment], of: fn(&SegmentReport) -> f64| {
            let within = segments.iter().filter(|segment| stretch.contains(segment.at_s));
            median(within.map(|segment| of(&segment.report)).collect())
        };
        text += &format!(
            "| {minute} | {} | {} | {} | {} | {} |\n",
            figures::thousands(middle(&observation.flood, |report| report.rate_per_s)),
            figures::thousands(middle(&observation.waiting, |report| report.rate_per_s)),
            figures::two_places(middle(&observation.waiting, |report| report.send_time.mean_us / 1e3)),
            figures::two_places(middle(&observation.waiting, |report| report.send_time.p99_us / 1e3)),
            figures::two_places(middle(&observation.waiting, |report| report.send_time.max_us / 1e3)),
        );
    }
    text += &resource_table(
        &observation.before,
        &observation.resource_samples,
        observation.after.as_ref(),
        total_s,
    );
    text += &verdict_table(verdicts);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rate_per_s: f64, mean_us: f64) -> SegmentReport {
        SegmentReport {
            accounting: SegmentAccounting { sends: 5, unexplained: 0, invented: 0 },
            rate_per_s,
            failures_total: 0,
            stored_after_s: 0.1,
            send_time: SegmentSpread { mean_us, p99_us: mean_us, max_us: mean_us },
        }
    }

    fn observation() -> CollectObservation {
        let segments = || {
            (0..10)
                .map(|at| LoadSegment { at_s: f64::from(at) * 10.0, report: report(10.0, 100.0) })
                .collect()
        };
        let look = ResourceSample { at_s: 0.0, resident: 1e8, descriptors: 20.0, threads: 9.0 };
        CollectObservation {
            before: look,
            resource_samples: (0..100).map(|at| ResourceSample { at_s: f64::from(at), ..look }).collect(),
            after: Some(look),
            flood: segments(),
            waiting: segments(),
            nominal: [report(100.0, 1.0), report(90.0, 1.0)],
            recovery: FloodRecovery { stored_after_s: Some(0.2), nominal_s: Some(0.3) },
            ended_well: true,
        }
    }

    fn broken(observation: &CollectObservation) -> Vec<String> {
        let broken = verdicts(observation, 100.0).into_iter().filter(|verdict| !verdict.holds);
        broken.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn what_does_not_hold_is_named() {
        assert!(broken(&observation()).is_empty());
        let mut slower = observation();
        slower.waiting[9].report.send_time.mean_us = 1000.0;
        slower.waiting[8].report.send_time.mean_us = 1000.0;
        slower.nominal[1].rate_per_s = 10.0;
        slower.flood[2].report.stored_after_s = 5.5;
        slower.recovery.stored_after_s = None;
        slower.flood[3].report.accounting.unexplained = 1;
        assert_eq!(
            broken(&slower),
            [
                "nothing fails, and the server counts every loss: flood",
                "row 0.33, latency is flat: mean wait at the end",
                "all messages of each run are durable soon after its last write",
                "row 0.17: nothing is pending after the flood's last write",
                "row 0.17: the rate after the flood"
            ]
        );
    }

    #[test]
    fn the_rate_has_to_be_nominal_soon_after_the_flood() {
        let mut late = observation();
        late.recovery.nominal_s = Some(5.5);
        assert_eq!(broken(&late), ["row 0.17: the rate is nominal again after the flood's last write"]);
        late.recovery.nominal_s = None;
        assert_eq!(broken(&late).len(), 1);
    }

    #[test]
    fn what_is_pending_is_the_sum_of_all_streams() {
        let text = "# TYPE x gauge\nstilling_hub_stream_pending{stream=\"a\"} 2\nstilling_hub_stream_pending{stream=\"b\"} 3\n\
                    stilling_hub_stream_pending_max{stream=\"a\"} 9\n";
        assert_eq!(pending(text), Some(5));
        assert_eq!(pending("stilling_turns_total 3\n"), None);
    }
}
