//! Crash test of a server with SIGKILL: every acknowledged message must exist once, in order and at its acknowledged
//! position, and the stream must contain no message that no client sent.
//!
//! ```text
//!   for each kill:  start ─► replay the new messages, compare ─► load ─► SIGKILL at a random moment
//!                         ─► read the remaining answers
//!   at the end:     start ─► replay everything, compare with every acknowledgement
//! ```
//!
//! An acknowledgement that is still in the socket when the server is killed counts. A message without an
//! acknowledgement may exist or not; after the next start it is sent again under its message id and must then exist
//! once. Removed messages are not lost if retention was allowed to remove them.
//!
//! A killed process loses nothing that it has passed to the kernel, synced or not. The test therefore shows that
//! acknowledgements, order and recovery agree, not what a power failure would lose.

mod client;
mod target;
mod verifier;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use stilling_ring::SplitMix64;

use super::api::JetStreamApi;
use super::collect_run::CollectRun;
use super::connection::connect;
use super::error::CollectError;
use super::limits::CHECK_INTERVAL;
use super::plan::{CollectPlan, CollectStorage};
use client::{CrashClient, LoadControl};
pub use target::{
    CrashTarget, TargetProcess, can_write_directly, descriptors, resident_bytes, writes_directly,
};
use verifier::CrashVerifier;

/// Maximum acknowledgements before a kill in a short run of the server; most runs are short.
const ACKS_SHORT_MAX: u64 = 2000;

/// Mean number of runs per long run.
const LONG_RUN_EVERY: u64 = 8;

/// Maximum microseconds between the last acknowledgement and the kill.
const DELAY_US_MAX: u64 = 3000;

/// Messages per client before the first count of descriptors; they open all descriptors that stay open.
const WARM_UP: u64 = 8;

/// Equal counts in a row, [`CHECK_INTERVAL`] apart, that show an idle server.
const STEADY_COUNTS: u32 = 3;

/// Bytes by which resident memory may grow between the idle states after two equal loads: buffers and pool blocks that
/// the first load did not touch.
const MEMORY_GROWTH_MAX: u64 = 16 << 20;

/// Bytes that a server may keep in memory per message: its id, for de-duplication.
const MEMORY_PER_MESSAGE_MAX: u64 = 128;

/// Bytes that a message may take in a stream besides its payload: its header, and a block if it is written alone.
const STORED_OVERHEAD_MAX: u64 = 5 << 10;

/// Configuration of a crash test.
#[derive(Clone, Debug)]
pub struct CrashPlan {
    /// Number of kills. Default: 10.
    pub kills: u32,
    /// Seed of the random moments. Default: 1.
    pub seed: u64,
    /// Publishing connections, each with a thread. Default: 4.
    pub clients: u16,
    /// Bytes of each payload. Default: 512.
    pub size: u32,
    /// Messages in flight on each connection. Default: 256.
    pub window: u32,
    /// Client number N publishes to `<subject>.N`. Default: `events`.
    pub subject: String,
    /// Name of the stream. Default: `events`.
    pub stream: String,
    /// Maximum acknowledgements per run of the server. Default: 2,000.
    pub acks_max: u64,
    /// Retention limit of the stream in bytes; `None`: unlimited. Default: unlimited.
    pub retention_bytes: Option<u64>,
    /// Directory of the stream, to check that retention was allowed to remove what it removed. Default: none.
    pub stream_directory: Option<PathBuf>,
    /// Whether segments must, or must not, bypass the page cache. Default: either.
    pub direct: Option<bool>,
    /// Descriptors and resident memory are compared in every Nth run of the server; 0: never. Default: 10.
    pub descriptors_every: u32,
    /// Creates the stream at the first start. Default: no.
    pub make_stream: Option<CollectStorage>,
    /// Maximum time for a server to start, to answer or to make progress. Default: 30 s.
    pub timeout: Duration,
}

impl CrashPlan {
    /// Returns whether retention may have removed records after this many messages.
    fn may_have_removed(&self, messages: u64) -> bool {
        let bytes = messages.saturating_mul(u64::from(self.size) + STORED_OVERHEAD_MAX);
        self.retention_bytes.is_some_and(|bound| bytes >= bound)
    }
}

impl Default for CrashPlan {
    fn default() -> Self {
        CrashPlan {
            kills: 10,
            seed: 1,
            clients: 4,
            size: 512,
            window: 256,
            subject: "events".to_owned(),
            stream: "events".to_owned(),
            acks_max: ACKS_SHORT_MAX,
            retention_bytes: None,
            stream_directory: None,
            direct: None,
            descriptors_every: 10,
            make_stream: None,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Result of a crash test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CrashReport {
    /// Completed kills.
    pub kills: u32,
    /// Acknowledged messages.
    pub acknowledged: u64,
    /// Messages in the stream.
    pub stored: u64,
    /// Acknowledged messages that are missing, and bytes that retention should have kept.
    pub lost: u64,
    /// Messages that no client sent, or with wrong content.
    pub invented: u64,
    /// Messages before an earlier one of their client, or not at their acknowledged position.
    pub reordered: u64,
    /// Messages stored more than once.
    pub stored_twice: u64,
    /// Records removed by retention.
    pub removed: u64,
    /// Answers other than acknowledgements.
    pub refused: u64,
    /// Starts after which the server exited by itself and was started again.
    pub failed_starts: u64,
    /// Runs in which descriptors stayed open after a load.
    pub descriptor_leaks: u64,
    /// Runs in which resident memory was compared: those in which retention cannot have removed anything.
    pub memory_compared: u32,
    /// Compared runs in which memory grew from one load to the next.
    pub memory_leaks: u64,
    /// Maximum growth of resident memory in KiB.
    pub memory_growth_kib: u64,
    /// Runs in which segments were not written with the required method.
    pub wrong_write_method: u64,
    /// Maximum time from a start to the first answer about the stream, in milliseconds.
    pub longest_start_ms: u64,
    /// First evidence of each kind.
    pub evidence: BTreeMap<&'static str, String>,
}

/// A kind of violation with its own counter in [`CrashReport`].
#[derive(Clone, Copy, Debug)]
enum CrashViolation {
    Lost,
    Invented,
    Reordered,
    StoredTwice,
    Refused,
    FailedStarts,
    DescriptorLeaks,
    MemoryLeaks,
    WrongWriteMethod,
}

impl CrashViolation {
    /// The name of its counter and of its evidence.
    const fn name(self) -> &'static str {
        match self {
            CrashViolation::Lost => "lost",
            CrashViolation::Invented => "invented",
            CrashViolation::Reordered => "reordered",
            CrashViolation::StoredTwice => "stored_twice",
            CrashViolation::Refused => "refused",
            CrashViolation::FailedStarts => "failed_starts",
            CrashViolation::DescriptorLeaks => "descriptor_leaks",
            CrashViolation::MemoryLeaks => "memory_leaks",
            CrashViolation::WrongWriteMethod => "wrong_write_method",
        }
    }
}

impl CrashReport {
    /// Returns whether nothing was wrong and at least one message was acknowledged.
    pub fn is_good(&self) -> bool {
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
        wrong == [0; 9] && self.acknowledged > 0
    }

    /// Messages that were stored without an acknowledgement.
    pub fn stored_unacknowledged(&self) -> u64 {
        self.stored.saturating_sub(self.acknowledged)
    }

    /// Compares resident memory after two equal loads of `messages` messages.
    fn compare_memory(&mut self, first: u64, second: u64, messages: u64) {
        self.memory_compared += 1;
        let growth = second.saturating_sub(first);
        self.memory_growth_kib = self.memory_growth_kib.max(growth / 1024);
        if growth > MEMORY_GROWTH_MAX + messages * MEMORY_PER_MESSAGE_MAX {
            let detail =
                || format!("{first} bytes resident after {messages} messages, {second} after as many more");
            self.note(CrashViolation::MemoryLeaks, detail);
        }
    }

    fn note(&mut self, kind: CrashViolation, detail: impl FnOnce() -> String) {
        let count = match kind {
            CrashViolation::Lost => &mut self.lost,
            CrashViolation::Invented => &mut self.invented,
            CrashViolation::Reordered => &mut self.reordered,
            CrashViolation::StoredTwice => &mut self.stored_twice,
            CrashViolation::Refused => &mut self.refused,
            CrashViolation::FailedStarts => &mut self.failed_starts,
            CrashViolation::DescriptorLeaks => &mut self.descriptor_leaks,
            CrashViolation::MemoryLeaks => &mut self.memory_leaks,
            CrashViolation::WrongWriteMethod => &mut self.wrong_write_method,
        };
        *count += 1;
        if let Entry::Vacant(empty) = self.evidence.entry(kind.name()) {
            empty.insert(detail());
        }
    }
}

/// Kills the server as often as planned and compares; calls `watch` after each kill.
///
/// # Errors
/// The server does not start, does not answer, or stops answering before it is killed. Lost messages are in the report,
/// not an error.
pub fn run(
    target: &mut dyn CrashTarget,
    plan: &CrashPlan,
    mut watch: impl FnMut(&CrashReport),
) -> Result<CrashReport, CollectError> {
    let mut report = CrashReport::default();
    // The address is a placeholder: each start returns its own.
    let load = CollectPlan {
        clients: plan.clients,
        size: plan.size,
        window: plan.window,
        subject: plan.subject.clone(),
        stream: Some(plan.stream.clone()),
        message_ids: true,
        timeout: plan.timeout,
        ..CollectPlan::new(SocketAddr::from(([127, 0, 0, 1], 1)))
    };
    load.check()?;
    let run = CollectRun::new(load);
    let mut clients: Vec<CrashClient> =
        (0..plan.clients).map(|number| CrashClient::new(&run, number)).collect();
    let (mut random, mut verifier) = (SplitMix64::new(plan.seed), CrashVerifier::default());
    for kill in 0..plan.kills {
        let (to, mut api) = start_and_wait(target, plan, kill == 0, &mut report)?;
        verifier.compare(&mut api, plan, &run, &mut clients, &mut report)?;
        drop(api);
        let is_long = random.below(LONG_RUN_EVERY) == 0;
        let acks =
            random.below(if is_long { plan.acks_max } else { plan.acks_max.min(ACKS_SHORT_MAX) }.max(1));
        let delay = Duration::from_micros(random.below(DELAY_US_MAX));
        if plan.descriptors_every > 0 && kill % plan.descriptors_every == 0 {
            inspect_process(target, plan, to, &mut clients, acks, &mut report)?;
        }
        load_until_killed(target, plan, to, &mut clients, acks, delay)?;
        report.kills += 1;
        watch(&report);
    }
    let (_, mut api) = start_and_wait(target, plan, plan.kills == 0, &mut report)?;
    verifier.compare(&mut api, plan, &run, &mut clients, &mut report)?;
    verifier.compare_all(&mut api, plan, &run, &mut report)?;
    drop(api);
    target.kill()?;
    Ok(report)
}

fn start_and_wait(
    target: &mut dyn CrashTarget,
    plan: &CrashPlan,
    is_first: bool,
    report: &mut CrashReport,
) -> Result<(SocketAddr, JetStreamApi), CollectError> {
    let begun = Instant::now();
    let mut to = target.start()?;
    let mut exit_error = None;
    loop {
        let ready = JetStreamApi::connect(to, plan.timeout).and_then(|mut api| {
            if let Some(storage) = plan.make_stream.filter(|_| is_first) {
                api.make_stream(&plan.stream, &format!("{}.>", plan.subject), storage)?;
            }
            api.stream_state(&plan.stream)?;
            Ok(api)
        });
        match ready {
            Ok(api) => {
                report.longest_start_ms = report.longest_start_ms.max(begun.elapsed().as_millis() as u64);
                return Ok((to, api));
            }
            // A server that exits at its start is started again and counted.
            Err(error) if !target.is_running() => {
                // `kill` fails after an exit, and its error contains the exit status.
                exit_error = Some(target.kill().err().unwrap_or(error));
                if begun.elapsed() >= plan.timeout {
                    break;
                }
                let ended = exit_error.as_ref().map(ToString::to_string).unwrap_or_default();
                report.note(CrashViolation::FailedStarts, || ended);
                thread::sleep(CHECK_INTERVAL);
                to = target.start()?;
            }
            Err(error) if begun.elapsed() >= plan.timeout => {
                exit_error.get_or_insert(error);
                break;
            }
            Err(_) => thread::sleep(CHECK_INTERVAL),
        }
    }
    Err(exit_error.unwrap_or_else(|| CollectError::server("the server does not start")))
}

/// Runs equal loads to their end and checks that as many descriptors are open as before, that resident memory has not
/// grown from the first load to the second, and that segments are written as planned.
fn inspect_process(
    target: &mut dyn CrashTarget,
    plan: &CrashPlan,
    to: SocketAddr,
    clients: &mut [CrashClient],
    acks: u64,
    report: &mut CrashReport,
) -> Result<(), CollectError> {
    let Some(process) = target.process() else { return Ok(()) };
    load_and_wait(plan, to, clients, WARM_UP)?;
    if let Some(wanted) = plan.direct
        && let Some(is_direct) = writes_directly(process)
        && is_direct != wanted
    {
        report.note(CrashViolation::WrongWriteMethod, || {
            format!("O_DIRECT is {is_direct} where it should be {wanted}")
        });
    }
    let Some(before) = wait_until_steady(process, plan, |_| true) else { return Ok(()) };
    let each = acks / u64::from(plan.clients.max(1)) + 1;
    let mut resident = [None; 2];
    let messages = each * u64::from(plan.clients);
    let sent: u64 = clients.iter().map(|client| client.sent).sum();
    // Once retention removes records, memory depends on the current segments and is not compared: one load is enough.
    let loads = if plan.may_have_removed(sent + 2 * messages) { 1 } else { resident.len() };
    for resident in &mut resident[..loads] {
        load_and_wait(plan, to, clients, each)?;
        if let Some(after) =
            wait_until_steady(process, plan, |count| count <= before).filter(|after| *after > before)
        {
            report.note(CrashViolation::DescriptorLeaks, || {
                format!("{before} descriptors before a load, {after} after it")
            });
        }
        *resident = resident_bytes(process);
    }
    if let [Some(first), Some(second)] = resident {
        report.compare_memory(first, second, messages);
    }
    Ok(())
}

/// Waits until the number of open descriptors is steady and `enough`, or until the timeout; returns it.
fn wait_until_steady(process: u32, plan: &CrashPlan, enough: impl Fn(usize) -> bool) -> Option<usize> {
    let begun = Instant::now();
    let (mut count, mut times) = (descriptors(process)?, 0);
    while times < STEADY_COUNTS || !enough(count) {
        if begun.elapsed() > plan.timeout {
            break;
        }
        thread::sleep(CHECK_INTERVAL);
        let now = descriptors(process)?;
        times = if now == count { times + 1 } else { 0 };
        count = now;
    }
    Some(count)
}

/// Publishes `each` messages over each connection, waits for their answers, and closes.
fn load_and_wait(
    plan: &CrashPlan,
    to: SocketAddr,
    clients: &mut [CrashClient],
    each: u64,
) -> Result<(), CollectError> {
    let (acknowledged_count, is_killed) = (AtomicU64::new(0), AtomicBool::new(false));
    let load = LoadControl {
        window: plan.window,
        acknowledged_count: &acknowledged_count,
        is_killed: &is_killed,
        budget: Some(each),
    };
    let connected: Vec<_> = clients.iter().map(|_| connect(to, plan.timeout)).collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (client, stream) in clients.iter_mut().zip(connected) {
            let stream = stream.map_err(|error| CollectError::Connect(to, error))?;
            let load = &load;
            threads.push(scope.spawn(move || client.publish(stream, load)));
        }
        let begun = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if begun.elapsed() > plan.timeout {
                is_killed.store(true, Ordering::Release);
                return Err(CollectError::server("a bounded load was not acknowledged in time"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })
}

fn load_until_killed(
    target: &mut dyn CrashTarget,
    plan: &CrashPlan,
    to: SocketAddr,
    clients: &mut [CrashClient],
    acks: u64,
    delay: Duration,
) -> Result<(), CollectError> {
    let (acknowledged_count, is_killed) = (AtomicU64::new(0), AtomicBool::new(false));
    let load = LoadControl {
        window: plan.window,
        acknowledged_count: &acknowledged_count,
        is_killed: &is_killed,
        budget: None,
    };
    thread::scope(|scope| {
        for client in clients {
            let load = &load;
            scope.spawn(move || {
                // Without a connection nothing is in flight.
                if let Ok(stream) = connect(to, plan.timeout) {
                    client.publish(stream, load);
                }
            });
        }
        let begun = Instant::now();
        let mut outcome = Ok(());
        while acknowledged_count.load(Ordering::Acquire) < acks {
            if begun.elapsed() > plan.timeout {
                let detail = format!(
                    "only {} of {acks} acknowledgements arrived in time",
                    acknowledged_count.load(Ordering::Acquire)
                );
                outcome = Err(CollectError::Server(detail));
                break;
            }
            thread::sleep(Duration::from_micros(100));
        }
        thread::sleep(delay);
        let killed = target.kill();
        is_killed.store(true, Ordering::Release);
        outcome.and(killed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_may_have_removed_records_only_where_the_bound_was_in_reach() {
        let with = |bound| CrashPlan { retention_bytes: bound, size: 512, ..CrashPlan::default() };
        assert!(!with(None).may_have_removed(u64::MAX));
        // Messages of all runs so far; `cargo xtask crash` sends about 12,000 per run.
        assert!(!with(Some(10 << 30)).may_have_removed(100_000));
        assert!(with(Some(8 << 20)).may_have_removed(100_000));
        let each = 512 + STORED_OVERHEAD_MAX;
        assert!(!with(Some(1000 * each + 1)).may_have_removed(1000));
        assert!(with(Some(1000 * each)).may_have_removed(1000));
    }

    #[test]
    fn a_violation_counts_under_the_name_of_its_evidence() {
        for violation in [
            CrashViolation::Lost,
            CrashViolation::Invented,
            CrashViolation::Reordered,
            CrashViolation::StoredTwice,
            CrashViolation::Refused,
            CrashViolation::FailedStarts,
            CrashViolation::DescriptorLeaks,
            CrashViolation::MemoryLeaks,
            CrashViolation::WrongWriteMethod,
        ] {
            let mut report = CrashReport { acknowledged: 1, ..CrashReport::default() };
            assert!(report.is_good());
            report.note(violation, || "what happened".to_owned());
            assert!(!report.is_good(), "{violation:?}");
            let fields = serde_json::to_value(&report).expect("a report is an object");
            assert_eq!(fields[violation.name()], 1, "{violation:?}");
            assert_eq!(report.evidence.get(violation.name()).map(String::as_str), Some("what happened"));
        }
    }

    #[test]
    fn memory_that_grows_by_more_than_message_ids_is_a_leak() {
        const MESSAGES: u64 = 1000;
        let limit = MEMORY_GROWTH_MAX + MESSAGES * MEMORY_PER_MESSAGE_MAX;
        let mut report = CrashReport { acknowledged: 1, ..CrashReport::default() };
        report.compare_memory(5 << 20, 4 << 20, MESSAGES);
        assert_eq!((report.memory_compared, report.memory_growth_kib), (1, 0));
        report.compare_memory(1 << 20, (1 << 20) + limit, MESSAGES);
        assert_eq!((report.memory_compared, report.memory_leaks), (2, 0));
        assert!(report.is_good());
        report.compare_memory(1 << 20, (1 << 20) + limit + 1, MESSAGES);
        assert_eq!((report.memory_compared, report.memory_leaks), (3, 1));
        assert_eq!(report.memory_growth_kib, limit / 1024);
        assert!(!report.is_good() && report.evidence.contains_key("memory_leaks"), "{report:?}");
    }
}
