//! Supervision of real processes: shell scripts that serve, exit, hang and ignore signals.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use stilling_probe::{HANG_TIMEOUT, eventually};
use stilling_ring::{Clock, Time, Wake};

use super::{
    AdmissionOutcome, OutputSink, ProcessCounters, ProcessLimits, Processes, QueueLimits,
    ShardAdmissionQueue, SlotPermit, StandardStream, WorkerProgram,
};

/// Longer than any test.
const LONG_GRACE: Duration = Duration::from_secs(3600);

/// Processes that run a script with `$DIR` and `$N`; a process is ready when it has created the file `ready.N`, which
/// the next start removes.
struct ShellProgram {
    folder: PathBuf,
    text: &'static str,
}

impl WorkerProgram for ShellProgram {
    fn command(&mut self, number: usize, _generation: u64) -> io::Result<Command> {
        let _ = std::fs::remove_file(self.folder.join(format!("ready.{number}")));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", self.text]).env("DIR", &self.folder).env("N", number.to_string());
        Ok(command)
    }

    fn is_ready(&mut self, number: usize) -> Result<bool, String> {
        Ok(self.folder.join(format!("ready.{number}")).exists())
    }
}

/// A script that serves until it is stopped. The sleeping child belongs to the same group.
const GOOD: &str = "echo $$ > $DIR/pid.$N; sleep 1000 & echo $! > $DIR/child.$N; touch $DIR/ready.$N; wait";

struct ProcessFixture {
    folder: tempfile::TempDir,
    processes: Processes,
    shard_queue: ShardAdmissionQueue<()>,
    printed: Arc<Mutex<Vec<(StandardStream, String)>>>,
}

impl ProcessFixture {
    fn new(text: &'static str, limits: ProcessLimits) -> ProcessFixture {
        let folder = tempfile::tempdir().expect("a folder");
        let (processes, mut shard_queues) =
            Processes::new(limits, QueueLimits::default(), vec![Arc::new(Wake::new(|| ()))]).expect("a plan");
        let printed: Arc<Mutex<Vec<(StandardStream, String)>>> = Arc::default();
        let sink: OutputSink = Box::new({
            let printed = Arc::clone(&printed);
            move |stream, line| {
                let line = String::from_utf8_lossy(line).into_owned();
                printed.lock().expect("no panic").push((stream, line));
            }
        });
        let program = ShellProgram { folder: folder.path().to_owned(), text };
        processes.start("app", Box::new(program), sink).expect("it starts");
        ProcessFixture { folder, processes, shard_queue: shard_queues.remove(0), printed }
    }

    #[track_caller]
    fn until(&self, what: &str, wanted: impl Fn(&ProcessCounters) -> bool) -> ProcessCounters {
        eventually(what, || Some(self.processes.counters()).filter(|counters| wanted(counters)))
    }

    fn acquire(&self, process: usize) -> SlotPermit {
        eventually("the process takes requests", || self.try_acquire(process))
    }

    fn try_acquire(&self, process: usize) -> Option<SlotPermit> {
        self.shard_queue.acquire_slot_of(process, Time::ZERO)
    }

    fn pid(&self, name: &str) -> Pid {
        read_pid(self.folder.path(), name)
    }

    /// Stops everything and checks that all processes end.
    fn finish(self, grace: Duration) -> (ProcessCounters, Vec<(StandardStream, String)>) {
        self.processes.stop(grace);
        assert!(self.processes.join(HANG_TIMEOUT), "the processes end");
        let printed = self.printed.lock().expect("no panic").clone();
        (self.processes.counters(), printed)
    }
}

fn read_pid(folder: &Path, name: &str) -> Pid {
    eventually("a process writes its number", || {
        let text = std::fs::read_to_string(folder.join(name)).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    })
}

fn is_gone(pid: Pid) -> bool {
    // A zombie not yet reaped by its new parent counts as gone.
    test_kill_process(pid).is_err()
        || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// Row 1.3: a few worker processes; neither they nor their children survive the end.
#[test]
fn all_processes_serve_until_the_end_and_none_outlives_it() {
    let fixture =
        ProcessFixture::new(GOOD, ProcessLimits { processes: 3, slots: 2, ..ProcessLimits::default() });
    let permits: Vec<SlotPermit> = [0, 1, 2, 0, 1, 2].map(|process| fixture.acquire(process)).into();
    assert!(permits.iter().all(|permit| permit.generation() == 1));
    assert!((0..3).all(|process| fixture.try_acquire(process).is_none()), "there are `slots` slots");
    drop(permits);
    let pids: Vec<Pid> =
        (0..3).flat_map(|n| [fixture.pid(&format!("pid.{n}")), fixture.pid(&format!("child.{n}"))]).collect();
    let (counters, printed) = fixture.finish(LONG_GRACE);
    assert!(pids.iter().all(|pid| eventually("it is gone", || is_gone(*pid).then_some(true))));
    assert_eq!((counters.started, counters.exited, counters.killed), (3, 0, 0));
    assert_eq!(printed, []);
}

/// Row 1.24: an exit is detected at once, and the process is started again without remains of its group.
#[test]
fn an_exited_process_is_restarted() {
    let fixture = ProcessFixture::new(GOOD, ProcessLimits { processes: 2, ..ProcessLimits::default() });
    fixture.until("both serve", |counters| counters.ready == 2);
    let (pid, child) = (fixture.pid("pid.1"), fixture.pid("child.1"));
    kill_process(pid, Signal::KILL).expect("it lives");
    fixture.until("the death is counted", |counters| counters.exited == 1);
    assert!(eventually("what it had started is gone", || is_gone(child).then_some(true)));
    let counters = fixture.until("both serve again", |counters| counters.ready == 2);
    assert_eq!((counters.started, counters.backing_off), (3, 0));
    assert_eq!((fixture.acquire(0).generation(), fixture.acquire(1).generation()), (1, 2));
    let (_, printed) = fixture.finish(LONG_GRACE);
    assert!(
        matches!(&printed[..], [(StandardStream::Err, line)] if line.starts_with("app 1: ended (signal: 9")
            && line.ends_with("; starts again in 100ms\n")),
        "{printed:?}"
    );
}

/// Row 1.24: a program that exits at its start is retried with growing delays.
#[test]
fn a_program_that_exits_at_once_is_restarted_with_backoff() {
    for text in ["echo I cannot >&2; exit 3", "exec /nonexistent/program"] {
        let fixture = ProcessFixture::new(text, ProcessLimits::default());
        let counters = fixture.until("it died three times", |counters| counters.exited >= 3);
        assert_eq!((counters.ready, counters.killed), (0, 0));
        fixture.until("the restart delay has grown", |counters| {
            counters.backing_off == 1 && counters.backoff.as_millis() >= 400
        });
        assert!(fixture.try_acquire(0).is_none(), "no process accepts requests");
        let (_, printed) = fixture.finish(LONG_GRACE);
        let waits: Vec<&str> =
            printed.iter().filter_map(|(_, line)| line.trim().split("starts again in ").nth(1)).collect();
        assert_eq!(waits[..3], ["100ms", "200ms", "400ms"], "{printed:?}");
        if text.starts_with("echo") {
            assert!(printed.contains(&(StandardStream::Err, "app 0: I cannot\n".to_owned())), "{printed:?}");
        }
    }
}

#[test]
fn a_process_that_never_answers_is_killed_and_tried_again() {
    let start_timeout = Duration::from_millis(50);
    let fixture =
        ProcessFixture::new("exec sleep 1000", ProcessLimits { start_timeout, ..ProcessLimits::default() });
    let counters = fixture.until("it was killed twice", |counters| counters.killed >= 2);
    assert_eq!((counters.ready, counters.exited), (0, 0));
    let (_, printed) = fixture.finish(LONG_GRACE);
    assert_eq!(printed[0].1, "app 0: was not ready within 50ms; killed\n");
}

/// Row 1.24: a request without a response in time costs only its own process.
#[test]
fn a_hung_process_is_killed_with_its_descendants() {
    let fixture = ProcessFixture::new(GOOD, ProcessLimits { processes: 2, ..ProcessLimits::default() });
    fixture.until("both serve", |counters| counters.ready == 2);
    let (pid, child) = (fixture.pid("pid.0"), fixture.pid("child.0"));
    let permit = fixture.acquire(0);
    permit.request_kill();
    assert!(fixture.try_acquire(0).is_none(), "it takes no more");
    assert!(eventually("it is gone", || (is_gone(pid) && is_gone(child)).then_some(true)));
    drop(permit);
    assert_eq!((fixture.acquire(0).generation(), fixture.acquire(1).generation()), (2, 1));
    let (counters, _) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.killed, counters.exited, counters.started), (1, 0, 3));
}

#[test]
fn a_process_is_replaced_after_its_number_of_requests_and_between_requests() {
    let fixture = ProcessFixture::new(
        GOOD,
        ProcessLimits { processes: 1, slots: 2, requests_max: 5, ..ProcessLimits::default() },
    );
    let long = fixture.acquire(0);
    for _ in 0..5 {
        assert_eq!(fixture.acquire(0).generation(), 1);
    }
    eventually("the slots are closed", || fixture.try_acquire(0).is_none().then_some(()));
    let counters = fixture.processes.counters();
    assert_eq!((counters.recycled, counters.started), (0, 1), "a request is under way");
    drop(long);
    assert_eq!(fixture.acquire(0).generation(), 2);
    let (counters, _) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.recycled, counters.started, counters.exited, counters.killed), (1, 2, 0, 0));
}

/// Row 1.24: the memory of the command's children counts, and the request under way is not lost.
#[test]
fn a_process_whose_child_uses_too_much_memory_is_replaced_between_requests() {
    // Only the first run has a large child: `tail` holds the line that `sleep` does not read.
    let large = "if mkdir $DIR/first; then head -c 64M /dev/zero | tail -n 1 | sleep 1000 & fi
        touch $DIR/ready.$N; sleep 1000 & wait";
    let limits = ProcessLimits { slots: 2, memory_max: 32 << 20, ..ProcessLimits::default() };
    let fixture = ProcessFixture::new(large, limits);
    let long = fixture.acquire(0);
    assert_eq!(long.generation(), 1);
    eventually("the slots are closed", || fixture.try_acquire(0).is_none().then_some(()));
    let counters = fixture.processes.counters();
    assert_eq!((counters.recycled_memory, counters.started), (0, 1), "a request is under way");
    drop(long);
    assert_eq!(fixture.acquire(0).generation(), 2);
    let (counters, printed) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.recycled_memory, counters.recycled, counters.exited, counters.killed), (1, 0, 0, 0));
    assert!(
        printed.iter().any(|(_, line)| line.starts_with("app 0: used ")
            && line.ends_with(" KiB of memory, more than 32768 KiB; is replaced\n")),
        "{printed:?}"
    );
}

/// Row 1.24: an endless request does not block the replacement of its process.
#[test]
fn a_request_that_does_not_end_holds_up_the_replacement_only_for_its_grace() {
    let drain_timeout = Duration::from_millis(50);
    let fixture = ProcessFixture::new(
        GOOD,
        ProcessLimits { slots: 2, requests_max: 2, drain_timeout, ..ProcessLimits::default() },
    );
    let endless = fixture.acquire(0);
    drop(fixture.acquire(0));
    drop(fixture.acquire(0));
    fixture.until("it is asked to end", |counters| counters.recycled == 1);
    assert_eq!(fixture.acquire(0).generation(), 2);
    drop(endless);
    let (counters, _) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.recycled, counters.exited, counters.killed), (1, 0, 0));
}

#[test]
fn only_one_process_at_a_time_is_replaced() {
    let limits = ProcessLimits { processes: 2, slots: 2, requests_max: 1, ..ProcessLimits::default() };
    let fixture = ProcessFixture::new(GOOD, limits);
    fixture.until("both serve", |counters| counters.ready == 2);
    let held = [fixture.acquire(0), fixture.acquire(1)];
    drop(fixture.acquire(0));
    drop(fixture.acquire(1));
    let closed = || (0..2).filter(|process| fixture.try_acquire(*process).is_none()).count();
    eventually("one of them takes no more", || (closed() > 0).then_some(()));
    assert_eq!(closed(), 1);
    drop(held);
    fixture.until("both are replaced", |counters| counters.recycled >= 2 && counters.ready == 2);
    let (counters, _) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.exited, counters.killed), (0, 0));
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_its_grace() {
    let deaf = "trap '' TERM; touch $DIR/ready.$N; while :; do sleep 1000; done";
    let fixture = ProcessFixture::new(deaf, ProcessLimits::default());
    fixture.until("it serves", |counters| counters.ready == 1);
    let (counters, printed) = fixture.finish(Duration::ZERO);
    assert_eq!((counters.killed, counters.exited), (1, 0));
    assert_eq!(printed[0].1, "app 0: did not end in time; killed\n");

    let fixture = ProcessFixture::new(deaf, ProcessLimits::default());
    fixture.until("it serves", |counters| counters.ready == 1);
    fixture.processes.stop(LONG_GRACE);
    assert!(!fixture.processes.join(Duration::ZERO), "it still lives");
    let (counters, _) = fixture.finish(Duration::ZERO);
    assert_eq!(counters.killed, 1, "a second stop may shorten the grace");
}

/// Two shards before one process: each is admitted only when it is its turn, and is notified of it.
fn two_shards(limits: ProcessLimits) -> (tempfile::TempDir, [ShardAdmissionQueue<u32>; 2], Processes) {
    let folder = tempfile::tempdir().expect("a folder");
    let wakes = (0..2).map(|_| Arc::new(Wake::new(|| ()))).collect();
    let queue = QueueLimits { queue_max: 3, ..QueueLimits::default() };
    let (processes, shard_queues) = Processes::new(limits, queue, wakes).expect("a plan");
    let program = ShellProgram { folder: folder.path().to_owned(), text: GOOD };
    processes.start("app", Box::new(program), Box::new(|_, _| ())).expect("it starts");
    let Ok(shard_queues) = <[ShardAdmissionQueue<u32>; 2]>::try_from(shard_queues) else {
        panic!("one for each shard")
    };
    eventually("it serves", || (processes.counters().ready == 1).then_some(()));
    shard_queues.iter().for_each(|shard_queue| _ = shard_queue.take_notification());
    (folder, shard_queues, processes)
}

#[track_caller]
fn expect_admitted(called: Option<AdmissionOutcome<u32>>, wanted: u32) -> SlotPermit {
    let Some(AdmissionOutcome::Admitted(permit, number)) = called else {
        panic!("{wanted} is not called: {called:?}")
    };
    assert_eq!(number, wanted);
    permit
}

/// Row 4.3: first in, first out over all shards; no request starves, and no shard misses its turn.
#[test]
fn two_shards_with_one_slot_are_served_in_the_order_of_their_requests() {
    let (_folder, [mut first, mut second], _processes) = two_shards(ProcessLimits::default());
    let clock = Clock::real();
    let enqueue = |shard_queue: &mut ShardAdmissionQueue<u32>, number| {
        shard_queue.enqueue(clock.now(), number).expect("there is room")
    };
    enqueue(&mut first, 0);
    let busy = expect_admitted(first.poll_admission(clock.now(), |_| false), 0);
    enqueue(&mut second, 1);
    enqueue(&mut first, 2);
    let third = enqueue(&mut second, 3);
    for shard_queue in [&mut first, &mut second] {
        shard_queue.take_notification();
        assert!(shard_queue.poll_admission(clock.now(), |_| false).is_none(), "the slot is taken");
    }
    assert_eq!(first.enqueue(clock.now(), 4), Err(4), "the queue limit covers all shards");
    busy.release(clock.now());
    assert!(second.take_notification() && !first.take_notification(), "the oldest is notified");
    assert!(first.poll_admission(clock.now(), |_| false).is_none(), "it is not its turn");
    let busy = expect_admitted(second.poll_admission(clock.now(), |_| false), 1);
    drop(busy);
    assert!(first.take_notification());
    let busy = expect_admitted(first.poll_admission(clock.now(), |_| false), 2);
    // A withdrawn request does not delay others.
    assert_eq!(second.withdraw(third, true), Some(3));
    enqueue(&mut first, 5);
    drop(busy);
    assert!(first.take_notification());
    drop(expect_admitted(first.poll_admission(clock.now(), |_| false), 5));
}

/// Row 4.3: while slots are free, each admission notifies the next shard.
#[test]
fn a_free_slot_is_never_reserved_for_a_shard_that_does_not_poll() {
    let limits = ProcessLimits { slots: 2, ..ProcessLimits::default() };
    let (_folder, [mut first, mut second], processes) = two_shards(limits);
    let now = Clock::real();
    let busy: Vec<SlotPermit> =
        (0..2).map(|_| first.acquire_slot_of(0, now.now()).expect("a slot")).collect();
    first.enqueue(now.now(), 0).expect("there is room");
    second.enqueue(now.now(), 1).expect("there is room");
    busy.into_iter().for_each(drop);
    assert!(first.take_notification() && !second.take_notification());
    let _in = expect_admitted(first.poll_admission(now.now(), |_| false), 0);
    assert!(second.take_notification(), "there is room for the next, too");
    let _too = expect_admitted(second.poll_admission(now.now(), |_| false), 1);
    let requests = processes.requests();
    assert_eq!((requests.queued, requests.busy, requests.queued_max), (0, 2, 2));
}

/// The time with a slot is no wait, and a requeued request counts in the peak, whatever the queue's length.
#[test]
fn a_requeued_request_counts_each_wait_once() {
    let (_folder, [mut first, mut second], processes) = two_shards(ProcessLimits::default());
    let at = |millis| Time::ZERO.after(Duration::from_millis(millis));
    let ticket = first.enqueue(at(0), 0).expect("there is room");
    let permit = expect_admitted(first.poll_admission(at(10), |_| false), 0);
    for number in 1..=3 {
        second.enqueue(at(20), number).expect("there is room");
    }
    first.requeue(at(30), ticket, 0);
    permit.release_unused();
    let requests = processes.requests();
    assert_eq!((requests.queued, requests.queued_max), (4, 4));
    let permit = expect_admitted(first.poll_admission(at(35), |_| false), 0);
    assert_eq!(processes.requests().waited, Duration::from_millis(10 + 5));
    first.requeue(at(40), ticket, 0);
    permit.release_unused();
    let _permit = expect_admitted(first.poll_admission(at(47), |_| false), 0);
    assert_eq!(processes.requests().waited, Duration::from_millis(10 + 5 + 7));
}

/// Row 1.3: a process has no more connections than slots, even when another shard holds an idle one.
#[test]
fn a_connection_idle_in_another_shard_is_requested() {
    let (_folder, [first, second], _processes) = two_shards(ProcessLimits::default());
    let permit = first.acquire_slot_of(0, Time::ZERO).expect("a slot");
    let kept = permit.connection_permit().expect("room for a connection");
    drop(permit);
    let permit = second.acquire_slot_of(0, Time::ZERO).expect("a slot");
    assert!(permit.connection_permit().is_none());
    assert_eq!(first.connection_claims(0), 0);
    let claim = permit.claim();
    assert!(first.take_notification() && first.connection_claims(0) == 1);
    second.take_notification();
    drop(kept);
    assert!(second.take_notification() && permit.connection_permit().is_some());
    drop(claim);
    assert_eq!(first.connection_claims(0), 0);
}

/// The reaper kills the processes when this process cannot, so its loss must be detected.
#[test]
fn the_reaper_kills_the_groups_when_its_pipe_ends_and_its_own_exit_is_detected() {
    let mut reaper = super::reaper::Reaper::start(None).expect("a shell");
    let mut victim = Command::new("sleep");
    std::os::unix::process::CommandExt::process_group(&mut victim, 0);
    let mut victim = victim.arg("1000").spawn().expect("a process");
    let group = Pid::from_child(&victim);
    reaper.set_groups([group].into_iter()).expect("the reaper reads");
    drop(reaper);
    let status = eventually("it is killed", || victim.try_wait().expect("a child"));
    assert!(!status.success());

    let mut reaper = super::reaper::Reaper::start(None).expect("a shell");
    kill_process_group(reaper.group(), Signal::KILL).expect("it lives");
    eventually("its pipe is closed", || reaper.set_groups([].into_iter()).is_err().then_some(()));
}

/// A stopped reaper blocks neither its own end nor a supervisor with much to write.
#[test]
fn a_stopped_reaper_blocks_nothing() {
    let mut reaper = super::reaper::Reaper::start(None).expect("a shell");
    kill_process_group(reaper.group(), Signal::STOP).expect("it lives");
    let group = reaper.group();
    // More than a pipe holds.
    let refused = (0..100_000).any(|_| reaper.set_groups([group; 100].into_iter()).is_err());
    assert!(refused, "the full pipe is reported");
    reaper.detach();
}

impl ProcessFixture {
    fn reload(&self, text: &'static str) {
        self.processes.reload(Box::new(ShellProgram { folder: self.folder.path().to_owned(), text }));
    }
}

/// Row 1.24: the present processes serve until all new ones are ready, and then finish their requests.
#[test]
fn a_reload_replaces_all_processes_and_loses_no_request() {
    let fixture = ProcessFixture::new(GOOD, ProcessLimits { processes: 2, ..ProcessLimits::default() });
    fixture.until("both serve", |counters| counters.ready == 2);
    let long = fixture.acquire(0);
    let (busy, idle) = (fixture.pid("pid.0"), fixture.pid("pid.1"));
    fixture.reload(GOOD);
    fixture.until("the new ones serve", |counters| counters.reloaded == 1);
    assert!(fixture.try_acquire(0).is_none() && fixture.try_acquire(1).is_none());
    drop((fixture.acquire(2), fixture.acquire(3)));
    assert!(eventually("the idle one ends", || is_gone(idle).then_some(true)));
    assert!(!is_gone(busy) && long.is_stale());
    drop(long);
    assert!(eventually("the other ends after its request", || is_gone(busy).then_some(true)));
    // The next reload uses the numbers of the first processes again.
    fixture.reload(GOOD);
    assert_eq!(fixture.acquire(0).generation(), 2);
    fixture.until("they have been replaced", |counters| counters.reloaded == 2 && counters.ready == 2);
    let (counters, _) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.started, counters.exited, counters.killed, counters.reloads_failed), (6, 0, 0, 0));
}

/// Row 1.24: no new process serves before all are ready, so that a failed reload leaves no trace in answers.
#[test]
fn the_processes_of_a_reload_serve_when_all_are_ready() {
    let fixture = ProcessFixture::new(GOOD, ProcessLimits { processes: 2, ..ProcessLimits::default() });
    fixture.until("both serve", |counters| counters.ready == 2);
    fixture.reload(
        "touch $DIR/started.$N; while [ $N = 3 ] && ! [ -e $DIR/go ]; do sleep 0.01; done\n\
         touch $DIR/ready.$N; exec sleep 1000",
    );
    for file in ["ready.2", "started.3"] {
        eventually("the new ones have started", || fixture.folder.path().join(file).exists().then_some(()));
    }
    // Longer than the supervisor takes to notice that the process is ready.
    std::thread::sleep(2 * super::limits::READY_CHECK_MAX);
    assert!(fixture.try_acquire(2).is_none() && fixture.try_acquire(3).is_none());
    drop((fixture.acquire(0), fixture.acquire(1)));
    assert_eq!(fixture.processes.counters().ready, 2);
    std::fs::write(fixture.folder.path().join("go"), "").expect("a file");
    drop((fixture.acquire(2), fixture.acquire(3)));
    assert!(fixture.try_acquire(0).is_none() && fixture.try_acquire(1).is_none());
    fixture.finish(LONG_GRACE);
}

/// A program that does not start costs nothing but a line.
#[test]
fn a_reload_whose_processes_do_not_start_leaves_the_present_ones() {
    let fixture = ProcessFixture::new(GOOD, ProcessLimits { processes: 2, ..ProcessLimits::default() });
    fixture.until("both serve", |counters| counters.ready == 2);
    // One of the two becomes ready.
    fixture.reload("if [ $N = 2 ]; then exit 7; fi; touch $DIR/ready.$N; exec sleep 1000");
    fixture.until("it has failed", |counters| counters.reloads_failed == 1 && counters.ready == 2);
    assert_eq!((fixture.acquire(0).generation(), fixture.acquire(1).generation()), (1, 1));
    eventually("no new one serves", || {
        (fixture.try_acquire(2).is_none() && fixture.try_acquire(3).is_none()).then_some(())
    });
    let (counters, printed) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.reloaded, counters.exited, counters.killed), (0, 1, 0));
    let lines = |text: &str| printed.iter().filter(|(_, line)| line.contains(text)).count();
    assert_eq!(lines("app: reload failed: "), 1, "{printed:?}");
    assert_eq!((lines("app 2: ended (exit status: 7)\n"), lines("starts again")), (1, 0), "{printed:?}");
}

/// Several requests for a reload in a row lead to processes of the last program.
#[test]
fn a_reload_during_another_follows_it() {
    let slow = "while ! [ -e $DIR/go ]; do sleep 0.01; done; touch $DIR/ready.$N; exec sleep 1000";
    let fixture = ProcessFixture::new(GOOD, ProcessLimits::default());
    fixture.until("it serves", |counters| counters.ready == 1);
    fixture.reload(slow);
    fixture.until("a new one starts", |counters| counters.started == 2);
    fixture.reload("exit 1");
    fixture.reload("echo last; touch $DIR/ready.$N; exec sleep 1000");
    assert_eq!(fixture.acquire(0).generation(), 1);
    std::fs::write(fixture.folder.path().join("go"), "").expect("a file");
    fixture.until("the last one serves", |counters| counters.reloaded == 2 && counters.ready == 1);
    let (counters, printed) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.started, counters.exited, counters.reloads_failed), (3, 0, 0));
    assert!(printed.iter().any(|(_, line)| line == "app 0: last\n"), "{printed:?}");
}

/// A stop ends the processes of an unfinished reload, too.
#[test]
fn a_stop_during_a_reload_ends_both_sets() {
    let fixture = ProcessFixture::new(GOOD, ProcessLimits::default());
    fixture.until("it serves", |counters| counters.ready == 1);
    fixture.reload("exec sleep 1000");
    fixture.until("a new one starts", |counters| counters.started == 2);
    let (counters, _) = fixture.finish(LONG_GRACE);
    assert_eq!((counters.exited, counters.killed, counters.reloaded), (0, 0, 0));
}
