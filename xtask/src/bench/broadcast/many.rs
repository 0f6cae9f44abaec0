//! 60,000 WebSocket subscribers of one server process, and one message per second.
//!
//! A process has descriptors for fewer subscribers, so that several generators share them: one publishes, and the others
//! know what to expect. The server keeps its connections in the descriptor tables of its rings.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::BroadcastBench;
use super::load::FanOutReport;
use super::peers::{BroadcastPeer, BroadcastStream, RunningPeer};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::monitor;
use crate::bench::targets::BenchTarget;
use crate::steps::{command_text, report};

pub(super) const TITLE: &str = "60,000 WebSocket subscribers, one message per second";

/// Subscribers of one generator, within a limit of 20,000 open files.
const PER_GENERATOR: u32 = 15_000;

/// Options of the server: four rings hold 20,000 connections each.
const SERVER_OPTIONS: [&str; 3] = ["--direct-descriptors", "-A", "4"];

/// Most bytes of the server's own memory for each subscriber.
const EACH_MAX: f64 = 1024.0;

/// Longest time until the passive subscribers are open, and without a delivery.
const OPENING_TIMEOUT: Duration = Duration::from_secs(180);

/// Generators and messages.
#[derive(Clone, Copy)]
struct ManyLoad {
    generators: u32,
    per_generator: u32,
    messages: u32,
}

/// Reports of all generators, the publishing one first.
struct ManyReports {
    reports: Vec<FanOutReport>,
}

impl ManyLoad {
    fn subscribers(&self) -> u32 {
        self.generators * self.per_generator
    }

    fn options(&self, number: u32) -> Vec<String> {
        let mut options = vec![
            "--protocol=websocket".to_owned(),
            format!("--subscribers={}", self.per_generator),
            format!("--messages={}", self.messages),
            format!("--timeout={}", OPENING_TIMEOUT.as_secs()),
            format!("--source=127.0.1.{}", number + 1),
        ];
        options.extend(
            if number == 0 { ["--window=1", "--rate=1"] } else { ["--window=256", "--passive"] }
                .map(str::to_owned),
        );
        options
    }
}

/// A generator that is ended when it is dropped.
struct PassiveGenerator {
    child: Option<Child>,
    command: String,
}

impl PassiveGenerator {
    fn start(mut command: Command) -> XtaskResult<PassiveGenerator> {
        let text = command_text(&command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        Ok(PassiveGenerator { child: Some(child), command: text })
    }

    fn report(mut self) -> XtaskResult<FanOutReport> {
        let child = self.child.take().ok_or("a generator has one report")?;
        let output = child.wait_with_output()?;
        let report = serde_json::from_slice(&output.stdout);
        Ok(report.map_err(|_| format!("`{}` printed no report", self.command))?)
    }
}

impl Drop for PassiveGenerator {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl BroadcastBench {
    pub(super) fn many(&self) -> XtaskResult<PageSection> {
        let load = if self.options.quick {
            ManyLoad { generators: 2, per_generator: 2000, messages: 5 }
        } else {
            ManyLoad { generators: 4, per_generator: PER_GENERATOR, messages: 30 }
        };
        let folder = self.programs.folder.join("data");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let peer = BroadcastPeer::StillingUring;
        let running = peer.start(&self.programs, &folder, BroadcastStream::BenchInMemory, &SERVER_OPTIONS)?;
        let found = self.measure_many(load, &running)?;
        drop(running);
        fs::remove_dir_all(&folder)?;
        self.judge_many(load, &found);
        let description = format!(
            "One server process, `stilling serve {}`, with a stream in memory; {} generators with {} subscribers each: \
             `stilling bench broadcast ADDRESS {}`, and the others with `{}`. The bytes are the growth of the server's `Pss` \
             since the first 500 subscribers, divided by all: when they had subscribed, and after the last message. A latency runs from the write \
             of a message to its delivery to the last subscriber of the publishing generator.",
            SERVER_OPTIONS.join(" "),
            load.generators,
            figures::thousands(load.per_generator.into()),
            load.options(0).join(" "),
            load.options(1).join(" "),
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table: found.table(load) })
    }

    fn generator(&self, load: ManyLoad, number: u32, running: &RunningPeer) -> Command {
        let mut command = Command::new(&self.programs.stilling);
        command.args(["bench", "broadcast", &running.web.to_string()]).args(load.options(number));
        command.arg(format!("--publish-to={}", running.server.address));
        command.arg(format!("--pid={}", running.server.first_process())).arg("--json");
        command
    }

    fn measure_many(&self, load: ManyLoad, running: &RunningPeer) -> XtaskResult<ManyReports> {
        let passive = (1..load.generators)
            .map(|number| PassiveGenerator::start(self.generator(load, number, running)))
            .collect::<XtaskResult<Vec<_>>>()?;
        wait_for_connections(running.web, (load.generators - 1) * load.per_generator)?;
        let mut reports = vec![report(&mut self.generator(load, 0, running))?];
        for generator in passive {
            reports.push(generator.report()?);
        }
        for (number, report) in reports.iter().enumerate() {
            for (kind, words) in &report.evidence {
                println!("  generator {number}: {kind}: {words}");
            }
        }
        Ok(ManyReports { reports })
    }

    fn judge_many(&self, load: ManyLoad, found: &ManyReports) {
        let expected = u64::from(load.messages) * u64::from(load.subscribers());
        let what = format!("deliveries, each in order: {TITLE}");
        self.targets.add_target(BenchTarget::at_least(
            what,
            expected as f64,
            Some(found.deliveries() as f64),
            "",
        ));
        let what = format!("failures: {TITLE}");
        self.targets.add_target(BenchTarget::at_most(what, 0.0, Some(found.failures() as f64), ""));
        let [subscribed, delivered] = found.each(load);
        for (moment, each) in [("all subscribed", subscribed), ("the last message", delivered)] {
            let what = format!("memory of each subscriber after {moment}: {TITLE}");
            self.targets.add_target(BenchTarget::at_most(what, EACH_MAX, each, "B"));
        }
    }
}

impl ManyReports {
    fn deliveries(&self) -> u64 {
        self.reports.iter().map(|report| report.deliveries).sum()
    }

    fn failures(&self) -> u64 {
        self.reports.iter().map(|report| report.failures_total).sum()
    }

    /// Bytes of each subscriber when all had subscribed, and after the last message.
    fn each(&self, load: ManyLoad) -> [Option<f64>; 2] {
        let memory = self.reports.first().and_then(|report| report.server_memory.as_ref());
        let passive = self.reports.iter().skip(1).filter_map(|report| report.server_memory.as_ref());
        let before = passive.map(|memory| memory.before).min().unwrap_or(0);
        let each = |bytes: u64| (bytes as f64 - before as f64) / f64::from(load.subscribers());
        [memory.map(|memory| each(memory.subscribed)), memory.map(|memory| each(memory.delivered))]
    }

    fn table(&self, load: ManyLoad) -> Vec<Vec<String>> {
        let mut table = figures::table(
            "server | subscribers | messages | deliveries | bytes of each, subscribed | after the last message | p50 ms | p99 ms | max ms | failures",
        );
        let each = self.each(load).map(|each| each.map_or_else(figures::unknown, figures::thousands));
        let latency = &self.reports[0].latency;
        let ms = |us: f64| figures::two_places(us / 1e3);
        let [subscribed, delivered] = each;
        table.push(vec![
            BroadcastPeer::StillingUring.name().to_owned(),
            figures::thousands(load.subscribers().into()),
            self.reports[0].messages.to_string(),
            figures::thousands(self.deliveries() as f64),
            subscribed,
            delivered,
            ms(latency.p50_us),
            ms(latency.p99_us),
            ms(latency.max_us),
            self.failures().to_string(),
        ]);
        table
    }
}

/// Waits until the server has this number of connections, and a moment longer for the last handshakes.
fn wait_for_connections(address: SocketAddr, count: u32) -> XtaskResult {
    let start = Instant::now();
    // The reading itself is one.
    while monitor::figure(address, "connections")? <= count.into() {
        if start.elapsed() > OPENING_TIMEOUT {
            return Err(format!("fewer than {count} passive subscribers are open").into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_generator_publishes_and_each_has_its_source() {
        let load = ManyLoad { generators: 3, per_generator: 10, messages: 5 };
        assert_eq!(load.subscribers(), 30);
        let options = [0, 1, 2].map(|number| load.options(number).join(" "));
        assert!(options[0].ends_with("--source=127.0.1.1 --window=1 --rate=1"), "{}", options[0]);
        assert!(options[2].ends_with("--source=127.0.1.3 --window=256 --passive"), "{}", options[2]);
    }
}
