//! A load of `stilling bench collect` on a server started for it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::CollectPrograms;
use super::peers::{CollectPeer, RunningPeer, StorageKind};
use crate::XtaskResult;
use crate::bench::monitor;
use crate::bench::sample::BenchSample;
use crate::bench::server::{BenchServer, ContextSwitches};
use crate::steps::{command_text, report};

const TIMEOUT_S: u32 = 20;

/// Bytes of each message already in a stream before a load begins.
const BACKLOG_SIZE: u32 = 128;

/// A subject without a stream on any server, whatever its defaults.
const ALONE: &str = "alone";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CollectLoad {
    pub(crate) clients: u32,
    pub(crate) size: u32,
    pub(crate) window: u32,
    pub(crate) seconds: u32,
    pub(crate) confirmed: bool,
    pub(crate) per_message: bool,
    pub(crate) subscribers: u32,
    pub(crate) storage: StorageKind,
    /// Messages in the stream before the load begins.
    pub(crate) backlog: u64,
}

#[derive(Deserialize)]
struct CollectReport {
    elapsed_s: f64,
    rate_per_s: f64,
    accounting: CollectAccounting,
    failures_total: u64,
    connection_fails: u64,
    evidence: std::collections::BTreeMap<String, String>,
    send_time: CollectSpread,
    delivery_time: CollectSpread,
}

#[derive(Deserialize)]
struct CollectAccounting {
    sends: u64,
    reported_lost: u64,
    unexplained: u64,
    invented: u64,
}

#[derive(Deserialize)]
struct CollectSpread {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    mean_us: f64,
}

impl CollectLoad {
    fn options(&self) -> Vec<String> {
        let mut options = vec![
            format!("--clients={}", self.clients),
            format!("--size={}", self.size),
            format!("--window={}", self.window),
            format!("--seconds={}", self.seconds),
            format!("--timeout={TIMEOUT_S}"),
        ];
        if !self.per_message {
            // One thread for all: the generator is not under measurement.
            options.push("--threads=1".to_owned());
        }
        let flags = [
            (!self.confirmed, "--unconfirmed".to_owned()),
            (self.per_message, "--per-message".to_owned()),
            (self.storage == StorageKind::Nothing, format!("--core --subject={ALONE}")),
            (self.subscribers > 0, format!("--subscribers={}", self.subscribers)),
        ];
        let set = flags.into_iter().filter(|(is_set, _)| *is_set);
        options.extend(set.flat_map(|(_, flags)| flags.split(' ').map(str::to_owned).collect::<Vec<_>>()));
        options
    }

    /// The command as a reader types it.
    pub(crate) fn command_line(&self) -> String {
        format!("stilling bench collect ADDRESS {}", self.options().join(" "))
    }

    /// Starts the server with an empty folder, runs the load, ends the server, removes the folder.
    ///
    /// # Errors
    /// If the server does not start or there is no report. Failures are figures.
    pub(crate) fn measure(&self, peer: CollectPeer, programs: &CollectPrograms) -> XtaskResult<BenchSample> {
        let folder = programs.folder.join("data");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let sample = self.on(peer, programs, &folder);
        fs::remove_dir_all(&folder)?;
        sample
    }

    fn on(&self, peer: CollectPeer, programs: &CollectPrograms, folder: &Path) -> XtaskResult<BenchSample> {
        let RunningPeer { server, monitor } = peer.start(programs, folder, self.storage)?;
        if self.backlog > 0 {
            self.fill(&server, programs)?;
        }
        let mut command = Command::new(&programs.stilling);
        command.args(["bench", "collect", &server.address.to_string()]).args(self.options());
        command.args(peer.generator_options(folder, self.storage)).arg("--json");
        let before = UsageReading::of(&server, monitor)?;
        let report: CollectReport = report(&mut command)?;
        let used = UsageReading::of(&server, monitor)?.since(&before);
        for (kind, detail) in &report.evidence {
            println!("  {}: {kind}: {detail}", peer.name());
        }
        // Where there are subscribers, the delivery time counts.
        let times = if self.subscribers > 0 { &report.delivery_time } else { &report.send_time };
        let sends = report.accounting.sends;
        let per_thousand = |count: u64| count as f64 * 1e3 / sends.max(1) as f64;
        let ms = |us: f64| (sends > 0 && (self.confirmed || self.subscribers > 0)).then_some(us / 1e3);
        Ok(BenchSample {
            requests: sends,
            took_s: report.elapsed_s,
            rate: report.rate_per_s,
            p50_ms: ms(times.p50_us),
            p99_ms: ms(times.p99_us),
            p999_ms: ms(times.p999_us),
            // The caller's wait, with every way of sending: until the acknowledgement, or until the system accepted the
            // message.
            max_ms: (sends > 0).then_some(report.send_time.max_us / 1e3),
            mean_ms: (sends > 0).then_some(report.send_time.mean_us / 1e3),
            lost: report.accounting.reported_lost,
            failures: report.failures_total
                + report.connection_fails
                + report.accounting.unexplained
                + report.accounting.invented,
            refused: 0,
            cpu_s: used.cpu_s * 1e6 / sends.max(1) as f64,
            instructions: None,
            switches: used.switches.map(per_thousand),
            system_calls: used.system_calls.map(per_thousand),
            memory: None,
            memory_each: None,
            received_mb_s: None,
            disturbances_per_s: None,
        })
    }
}

impl CollectLoad {
    /// Leaves `backlog` messages in the stream, which nothing reads.
    fn fill(&self, server: &BenchServer, programs: &CollectPrograms) -> XtaskResult {
        let mut command = Command::new(&programs.stilling);
        command.args(["bench", "collect", &server.address.to_string(), "--json", "--threads=1"]);
        command.arg(format!("--messages={}", self.backlog)).arg(format!("--size={BACKLOG_SIZE}"));
        let CollectReport { accounting: CollectAccounting { sends, .. }, .. } = report(&mut command)?;
        if sends != self.backlog {
            return Err(format!("`{}` left {sends} messages", command_text(&command)).into());
        }
        Ok(())
    }
}

/// Counters of a server's usage since its start.
struct UsageReading {
    cpu_s: f64,
    switches: ContextSwitches,
    /// System calls of its driver, if it has a metric for them.
    system_calls: Option<u64>,
}

struct UsageDifference {
    cpu_s: f64,
    /// `None`: a thread has ended.
    switches: Option<u64>,
    /// `None`: the server has no metric for them.
    system_calls: Option<u64>,
}

impl UsageReading {
    fn of(server: &BenchServer, monitor: Option<SocketAddr>) -> XtaskResult<UsageReading> {
        let read = |monitor| monitor::figure(monitor, "driver_system_calls_total");
        let system_calls = monitor.map(read).transpose()?;
        Ok(UsageReading { cpu_s: server.cpu_s(), switches: server.context_switches(), system_calls })
    }

    fn since(&self, before: &UsageReading) -> UsageDifference {
        UsageDifference {
            cpu_s: self.cpu_s - before.cpu_s,
            switches: self.switches.since(&before.switches),
            system_calls: self.system_calls.zip(before.system_calls).map(|(after, before)| after - before),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_shown_as_it_is_typed() {
        let load = CollectLoad {
            clients: 4,
            size: 128,
            window: 256,
            seconds: 4,
            confirmed: false,
            per_message: true,
            subscribers: 0,
            storage: StorageKind::Disk,
            backlog: 0,
        };
        assert_eq!(
            load.command_line(),
            "stilling bench collect ADDRESS --clients=4 --size=128 --window=256 --seconds=4 --timeout=20 --unconfirmed --per-message"
        );
        let load = CollectLoad { per_message: false, subscribers: 1, storage: StorageKind::Nothing, ..load };
        assert!(
            load.command_line().ends_with("--threads=1 --unconfirmed --core --subject=alone --subscribers=1")
        );
    }
}
