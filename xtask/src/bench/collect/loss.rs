//! Messages stored after the server was killed: `stilling bench crash` on every NATS server.

use std::fs;
use std::process::Command;

use serde::Deserialize;

use super::peers::{CollectPeer, StorageKind};
use super::{CollectBench, CollectPrograms};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::targets::BenchTarget;
use crate::steps::report;

pub(super) const TITLE: &str = "What is lost when the server is killed";

/// The servers that can report their stored messages.
pub(crate) const KILLED_PEERS: [CollectPeer; 4] = [
    CollectPeer::StillingUring,
    CollectPeer::StillingPoll,
    CollectPeer::JetStream,
    CollectPeer::JetStreamAlways,
];

/// Findings of `stilling bench crash`.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct CrashFindings {
    pub(crate) kills: u32,
    pub(crate) acknowledged: u64,
    pub(crate) stored: u64,
    pub(crate) lost: u64,
    pub(crate) invented: u64,
    pub(crate) reordered: u64,
    pub(crate) stored_twice: u64,
    pub(crate) removed: u64,
    pub(crate) refused: u64,
    pub(crate) failed_starts: u64,
    pub(crate) descriptor_leaks: u64,
    pub(crate) memory_compared: u32,
    pub(crate) memory_leaks: u64,
    pub(crate) memory_growth_kib: u64,
    pub(crate) wrong_write_method: u64,
    pub(crate) longest_start_ms: u64,
    pub(crate) evidence: std::collections::BTreeMap<String, String>,
}

impl CrashFindings {
    /// Whether nothing was wrong, messages were acknowledged, and memory was compared if demanded.
    pub(crate) fn is_good(&self, demands: &CrashDemands) -> bool {
        let wrong = [
            self.lost,
            self.invented,
            self.reordered,
            self.stored_twice,
            self.refused,
            self.failed_starts,
            self.descriptor_leaks,
            self.memory_leaks,
            self.wrong_write_method,
        ];
        wrong == [0; 9] && self.acknowledged > 0 && !self.lacks_memory(demands)
    }

    /// Whether memory was to be compared and never was.
    pub(crate) fn lacks_memory(&self, demands: &CrashDemands) -> bool {
        demands.descriptors_every > 0 && !demands.retention_removes && self.memory_compared == 0
    }

    pub(crate) fn memory(&self) -> String {
        match self.memory_compared {
            0 => "memory not compared".to_owned(),
            lives => {
                let (leaks, growth) = (self.memory_leaks, self.memory_growth_kib);
                format!("{leaks} memory leaks in {lives} runs (most growth {growth} KiB)")
            }
        }
    }

    pub(crate) fn stored_unacknowledged(&self) -> u64 {
        self.stored.saturating_sub(self.acknowledged)
    }
}

/// Options of the killed server beside its defaults, and the limits of its runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrashDemands {
    pub(crate) kills: u32,
    pub(crate) seed: u64,
    /// Most acknowledgements per run of the server.
    pub(crate) acks: u64,
    /// Retention bound of the stream, as the value of the option.
    pub(crate) retention_bytes: Option<&'static str>,
    /// Whether this bound is so small that retention may remove records in every run: memory is then not compared.
    pub(crate) retention_removes: bool,
    pub(crate) is_buffered: bool,
    /// Descriptors and memory are compared in every n-th run; 0: never.
    pub(crate) descriptors_every: u32,
}

/// Kills a server repeatedly.
///
/// # Errors
/// If there is no report.
pub(crate) fn kill(
    peer: CollectPeer,
    programs: &CollectPrograms,
    demands: &CrashDemands,
) -> XtaskResult<CrashFindings> {
    let folder = programs.folder.join("data");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut arguments = peer.command(programs, address, &folder, StorageKind::Disk)?;
    let mut command = Command::new(&programs.stilling);
    command.args(["bench", "crash", "--json"]);
    let CrashDemands { kills, seed, acks, descriptors_every, .. } = demands;
    command.args([format!("--kills={kills}"), format!("--seed={seed}"), format!("--listen={address}")]);
    command.args([format!("--acks={acks}"), format!("--descriptors-every={descriptors_every}")]);
    command.arg("--data").arg(&folder);
    if matches!(peer, CollectPeer::JetStream | CollectPeer::JetStreamAlways) {
        command.arg("--make-stream=file");
    } else {
        if let (Some(bytes), Some(stream)) = (demands.retention_bytes, arguments.last_mut()) {
            stream.push_str(&format!(":retention-bytes={bytes}"));
            command.arg(format!("--retention-bytes={bytes}"));
            command.arg("--stream-directory").arg(folder.join("kept").join("events"));
        }
        if demands.is_buffered {
            arguments.extend(["--write-method", "buffered"].map(str::to_owned));
            command.arg("--write-method=buffered");
        } else {
            command.arg("--write-method=direct");
        }
    }
    command.arg("--").args(arguments);
    let findings = report(&mut command)?;
    fs::remove_dir_all(&folder)?;
    Ok(findings)
}

impl CollectBench {
    /// Rows 0.4 and 0.32: acknowledged messages after SIGKILL.
    pub(super) fn loss(&self) -> XtaskResult<PageSection> {
        let kills = if self.options.quick { 3 } else { 50 };
        let mut table = figures::table(
            "server | kills | acknowledged | lost | invented | reordered | stored unacknowledged | failed starts | \
             longest start ms",
        );
        for peer in self.available_peers(&KILLED_PEERS) {
            println!("{TITLE}, {}", peer.name());
            let demands = CrashDemands {
                kills,
                seed: 1,
                acks: 2000,
                retention_bytes: None,
                retention_removes: false,
                is_buffered: false,
                descriptors_every: 0,
            };
            let findings = kill(peer, &self.programs, &demands)?;
            if matches!(peer, CollectPeer::StillingUring | CollectPeer::StillingPoll) {
                let wrong =
                    (findings.lost + findings.invented + findings.reordered + findings.stored_twice) as f64;
                let what = format!("acknowledged messages not as they were after SIGKILL, {}", peer.name());
                self.targets.add_target(BenchTarget::at_most(what, 0.0, Some(wrong), ""));
            }
            let counts = [findings.acknowledged, findings.lost, findings.invented, findings.reordered];
            let mut row = vec![peer.name().to_owned(), findings.kills.to_string()];
            row.extend(counts.map(|count| figures::thousands(count as f64)));
            row.extend([
                figures::thousands(findings.stored_unacknowledged() as f64),
                findings.failed_starts.to_string(),
                findings.longest_start_ms.to_string(),
            ]);
            table.push(row);
        }
        let description = format!(
            "`stilling bench crash --kills {kills} -- SERVER …`: four publishers of 512 bytes keep 256 messages in flight; the \
             server gets SIGKILL at a random moment, is restarted with its data, and its stream is replayed and \
             compared with every acknowledgement that it sent. `cargo xtask crash` runs this part alone. A start \
             fails when the port is still in use: the kernel releases the io_uring of a killed process a moment after \
             its end.\n\n\
             A killed process loses nothing that it has written, synced \
             or not, so this table does not show which servers acknowledge before they sync; only a power failure \
             would. A power failure cannot be tested with a real disk here. For Stilling's journal it is simulated: `crates/journal/tests/journal/crash.rs` \
             drops every set of unsynced sectors at every point."
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMANDS: CrashDemands = CrashDemands {
        kills: 1,
        seed: 1,
        acks: 1,
        retention_bytes: Some("10GiB"),
        retention_removes: false,
        is_buffered: false,
        descriptors_every: 1,
    };

    fn good() -> CrashFindings {
        CrashFindings { kills: 1, acknowledged: 1, stored: 1, memory_compared: 1, ..CrashFindings::default() }
    }

    #[test]
    fn each_fault_fails_the_verdict() {
        assert!(good().is_good(&DEMANDS));
        let faults: [fn(&mut CrashFindings); 10] = [
            |findings| findings.lost = 1,
            |findings| findings.invented = 1,
            |findings| findings.reordered = 1,
            |findings| findings.stored_twice = 1,
            |findings| findings.refused = 1,
            |findings| findings.failed_starts = 1,
            |findings| findings.descriptor_leaks = 1,
            |findings| findings.memory_leaks = 1,
            |findings| findings.wrong_write_method = 1,
            |findings| findings.acknowledged = 0,
        ];
        for (at, fault) in faults.into_iter().enumerate() {
            let mut findings = good();
            fault(&mut findings);
            assert!(!findings.is_good(&DEMANDS), "fault {at}: {findings:?}");
        }
    }

    #[test]
    fn memory_that_was_never_compared_fails_the_verdict_where_it_was_demanded() {
        let findings = CrashFindings { memory_compared: 0, ..good() };
        assert!(findings.lacks_memory(&DEMANDS) && !findings.is_good(&DEMANDS));
        assert!(findings.is_good(&CrashDemands { descriptors_every: 0, ..DEMANDS }));
        assert!(findings.is_good(&CrashDemands { retention_removes: true, ..DEMANDS }));
    }
}
