//! The supervision met with real processes: shell scripts that live, die, hang and refuse to go.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use stilling_probe::{HANG, eventually};
use stilling_ring::{Clock, Time, Wake};

use super::{Called, Entrance, Limits, Pass, ProcessCounters, Processes, Program, QueueLimits, Sink, Stream};

/// Long enough for nobody to wait for it.
const EVER: Duration = Duration::from_secs(3600);

/// Processes that run a script with `$DIR` and `$N`; one is ready when it has made the file `ready.N`, which the
/// next start removes.
struct Script {
    folder: PathBuf,
    text: &'static str,
}

impl Program for Script {
    fn command(&mut self, number: usize) -> io::Result<Command> {
        let _ = std::fs::remove_file(self.folder.join(format!("ready.{number}")));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", self.text]).env("DIR", &self.folder).env("N", number.to_string());
        Ok(command)
    }

    fn is_ready(&mut self, number: usize) -> bool {
        self.folder.join(format!("ready.{number}")).exists()
    }
}

/// A script that serves until it is ended. The sleeping child is a process of the same group.
const GOOD: &str = "echo $$ > $DIR/pid.$N; sleep 1000 & echo $! > $DIR/child.$N; touch $DIR/ready.$N; wait";

struct World {
    folder: tempfile::TempDir,
    processes: Processes,
    entrance: Entrance<()>,
    printed: Arc<Mutex<Vec<(Stream, String)>>>,
}

impl World {
    fn new(text: &'static str, limits: Limits) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let (processes, mut entrances) =
            Processes::new(limits, QueueLimits::default(), vec![Arc::new(Wake::new(|| ()))]).expect("a plan");
        let printed: Arc<Mutex<Vec<(Stream, String)>>> = Arc::default();
        let sink: Sink = Box::new({
            let printed = Arc::clone(&printed);
            move |stream, line| {
                let line = String::from_utf8_lossy(line).into_owned();
                printed.lock().expect("no panic").push((stream, line));
            }
        });
        let program = Script { folder: folder.path().to_owned(), text };
        processes.start("app", Box::new(program), sink).expect("it starts");
        World { folder, processes, entrance: entrances.remove(0), printed }
    }

    #[track_caller]
    fn until(&self, what: &str, wanted: impl Fn(&ProcessCounters) -> bool) -> ProcessCounters {
        eventually(what, || Some(self.processes.counters()).filter(|counters| wanted(counters)))
    }

    fn enter(&self, process: usize) -> Pass {
        eventually("the process takes requests", || self.try_enter(process))
    }

    fn try_enter(&self, process: usize) -> Option<Pass> {
        self.entrance.enter_at(process, Time::ZERO)
    }

    fn pid(&self, name: &str) -> Pid {
        read_pid(self.folder.path(), name)
    }

    /// Ends everything; nothing may live on.
    fn finish(self, grace: Duration) -> (ProcessCounters, Vec<(Stream, String)>) {
        self.processes.stop(grace);
        assert!(self.processes.join(HANG), "the processes end");
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
    // A zombie that its new parent has not waited for is as good as gone.
    test_kill_process(pid).is_err()
        || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// Row 1.3: a few worker processes; and none is left behind at the end, nor what they started.
#[test]
fn all_processes_serve_until_the_end_and_none_outlives_it() {
    let world = World::new(GOOD, Limits { processes: 3, slots: 2, ..Limits::default() });
    let passes: Vec<Pass> = [0, 1, 2, 0, 1, 2].map(|process| world.enter(process)).into();
    assert!(passes.iter().all(|pass| pass.life() == 1));
    assert!((0..3).all(|process| world.try_enter(process).is_none()), "there are as many slots as said");
    drop(passes);
    let pids: Vec<Pid> =
        (0..3).flat_map(|n| [world.pid(&format!("pid.{n}")), world.pid(&format!("child.{n}"))]).collect();
    let (counters, printed) = world.finish(EVER);
    assert!(pids.iter().all(|pid| eventually("it is gone", || is_gone(*pid).then_some(true))));
    assert_eq!((counters.started, counters.died, counters.killed), (3, 0, 0));
    assert_eq!(printed, []);
}

/// Row 1.24: a process that dies is noticed at once and started again, with all that it had started gone.
#[test]
fn a_process_that_dies_is_started_again() {
    let world = World::new(GOOD, Limits { processes: 2, ..Limits::default() });
    world.until("both serve", |counters| counters.ready == 2);
    let (pid, child) = (world.pid("pid.1"), world.pid("child.1"));
    kill_process(pid, Signal::KILL).expect("it lives");
    world.until("the death is counted", |counters| counters.died == 1);
    assert!(eventually("what it had started is gone", || is_gone(child).then_some(true)));
    let counters = world.until("both serve again", |counters| counters.ready == 2);
    assert_eq!((counters.started, counters.resting), (3, 0));
    assert_eq!((world.enter(0).life(), world.enter(1).life()), (1, 2));
    let (_, printed) = world.finish(EVER);
    assert!(
        matches!(&printed[..], [(Stream::Err, line)] if line.starts_with("app 1: ended (signal: 9")
            && line.ends_with("; starts again in 100ms\n")),
        "{printed:?}"
    );
}

/// Row 1.24: a program that dies at its start is tried again, later and later.
#[test]
fn a_program_that_cannot_live_is_tried_ever_more_rarely() {
    for text in ["echo I cannot >&2; exit 3", "exec /nonexistent/program"] {
        let world = World::new(text, Limits::default());
        let counters = world.until("it died three times", |counters| counters.died >= 3);
        assert_eq!((counters.ready, counters.killed), (0, 0));
        world.until("it rests for long", |counters| {
            counters.resting == 1 && counters.backoff.as_millis() >= 400
        });
        assert!(world.try_enter(0).is_none(), "nobody takes requests");
        let (_, printed) = world.finish(EVER);
        let waits: Vec<&str> =
            printed.iter().filter_map(|(_, line)| line.trim().split("starts again in ").nth(1)).collect();
        assert_eq!(waits[..3], ["100ms", "200ms", "400ms"], "{printed:?}");
        if text.starts_with("echo") {
            assert!(printed.contains(&(Stream::Err, "app 0: I cannot\n".to_owned())), "{printed:?}");
        }
    }
}

#[test]
fn a_process_that_never_answers_is_killed_and_tried_again() {
    let start_timeout = Duration::from_millis(50);
    let world = World::new("exec sleep 1000", Limits { start_timeout, ..Limits::default() });
    let counters = world.until("it was killed twice", |counters| counters.killed >= 2);
    assert_eq!((counters.ready, counters.died), (0, 0));
    let (_, printed) = world.finish(EVER);
    assert_eq!(printed[0].1, "app 0: did not answer within 50ms; killed\n");
}

/// Row 1.24: a request that is not answered in time costs the process, and nobody else anything.
#[test]
fn a_condemned_process_is_killed_with_all_it_has_started() {
    let world = World::new(GOOD, Limits { processes: 2, ..Limits::default() });
    world.until("both serve", |counters| counters.ready == 2);
    let (pid, child) = (world.pid("pid.0"), world.pid("child.0"));
    let pass = world.enter(0);
    pass.condemn();
    assert!(world.try_enter(0).is_none(), "it takes no more");
    assert!(eventually("it is gone", || (is_gone(pid) && is_gone(child)).then_some(true)));
    drop(pass);
    assert_eq!((world.enter(0).life(), world.enter(1).life()), (2, 1));
    let (counters, _) = world.finish(EVER);
    assert_eq!((counters.killed, counters.died, counters.started), (1, 0, 3));
}

#[test]
fn a_process_is_replaced_after_its_number_of_requests_and_between_requests() {
    let world = World::new(GOOD, Limits { processes: 1, slots: 2, requests_max: 5, ..Limits::default() });
    let long = world.enter(0);
    for _ in 0..5 {
        assert_eq!(world.enter(0).life(), 1);
    }
    eventually("the door is closed", || world.try_enter(0).is_none().then_some(()));
    let counters = world.processes.counters();
    assert_eq!((counters.recycled, counters.started), (0, 1), "a request is under way");
    drop(long);
    assert_eq!(world.enter(0).life(), 2);
    let (counters, _) = world.finish(EVER);
    assert_eq!((counters.recycled, counters.started, counters.died, counters.killed), (1, 2, 0, 0));
}

/// Row 1.24: an endless request does not keep a worn process, and with it everybody, waiting.
#[test]
fn a_request_that_does_not_end_holds_up_the_replacement_only_for_its_grace() {
    let drain_timeout = Duration::from_millis(50);
    let world = World::new(GOOD, Limits { slots: 2, requests_max: 2, drain_timeout, ..Limits::default() });
    let endless = world.enter(0);
    drop(world.enter(0));
    drop(world.enter(0));
    world.until("it is asked to end", |counters| counters.recycled == 1);
    assert_eq!(world.enter(0).life(), 2);
    drop(endless);
    let (counters, _) = world.finish(EVER);
    assert_eq!((counters.recycled, counters.died, counters.killed), (1, 0, 0));
}

#[test]
fn only_one_process_at_a_time_is_replaced() {
    let limits = Limits { processes: 2, slots: 2, requests_max: 1, ..Limits::default() };
    let world = World::new(GOOD, limits);
    world.until("both serve", |counters| counters.ready == 2);
    let held = [world.enter(0), world.enter(1)];
    drop(world.enter(0));
    drop(world.enter(1));
    let closed = || (0..2).filter(|process| world.try_enter(*process).is_none()).count();
    eventually("one of them takes no more", || (closed() > 0).then_some(()));
    assert_eq!(closed(), 1);
    drop(held);
    world.until("both are replaced", |counters| counters.recycled >= 2 && counters.ready == 2);
    let (counters, _) = world.finish(EVER);
    assert_eq!((counters.died, counters.killed), (0, 0));
}

#[test]
fn a_process_that_does_not_want_to_end_is_killed_after_its_grace() {
    let deaf = "trap '' TERM; touch $DIR/ready.$N; while :; do sleep 1000; done";
    let world = World::new(deaf, Limits::default());
    world.until("it serves", |counters| counters.ready == 1);
    let (counters, printed) = world.finish(Duration::ZERO);
    assert_eq!((counters.killed, counters.died), (1, 0));
    assert_eq!(printed[0].1, "app 0: did not end in time; killed\n");

    let world = World::new(deaf, Limits::default());
    world.until("it serves", |counters| counters.ready == 1);
    world.processes.stop(EVER);
    assert!(!world.processes.join(Duration::ZERO), "it still lives");
    let (counters, _) = world.finish(Duration::ZERO);
    assert_eq!(counters.killed, 1, "who asks again may be less patient");
}

/// Two shards before one process: each is called only when it is its turn, and hears of it.
fn two_shards(limits: Limits) -> (tempfile::TempDir, [Entrance<u32>; 2], Processes) {
    let folder = tempfile::tempdir().expect("a folder");
    let wakes = (0..2).map(|_| Arc::new(Wake::new(|| ()))).collect();
    let queue = QueueLimits { queue_max: 3, ..QueueLimits::default() };
    let (processes, entrances) = Processes::new(limits, queue, wakes).expect("a plan");
    let program = Script { folder: folder.path().to_owned(), text: GOOD };
    processes.start("app", Box::new(program), Box::new(|_, _| ())).expect("it starts");
    let Ok(entrances) = <[Entrance<u32>; 2]>::try_from(entrances) else { panic!("one for each shard") };
    eventually("it serves", || (processes.counters().ready == 1).then_some(()));
    entrances.iter().for_each(|entrance| _ = entrance.heed());
    (folder, entrances, processes)
}

#[track_caller]
fn is_in(called: Option<Called<u32>>, wanted: u32) -> Pass {
    let Some(Called::In(pass, number)) = called else { panic!("{wanted} is not called: {called:?}") };
    assert_eq!(number, wanted);
    pass
}

/// Row 4.3: over all shards, first come, first served; nobody starves, and no shard sleeps through its turn.
#[test]
fn two_shards_with_one_slot_are_served_in_the_order_of_their_requests() {
    let (_folder, [mut first, mut second], _processes) = two_shards(Limits::default());
    let clock = Clock::real();
    let wait =
        |entrance: &mut Entrance<u32>, number| entrance.wait(clock.now(), number).expect("there is room");
    wait(&mut first, 0);
    let busy = is_in(first.call(clock.now(), |_| false), 0);
    wait(&mut second, 1);
    wait(&mut first, 2);
    let third = wait(&mut second, 3);
    for entrance in [&mut first, &mut second] {
        entrance.heed();
        assert!(entrance.call(clock.now(), |_| false).is_none(), "the slot is taken");
    }
    assert_eq!(first.wait(clock.now(), 4), Err(4), "no more wait than may, in all shards together");
    busy.leave(clock.now());
    assert!(second.heed() && !first.heed(), "the oldest hears of it");
    assert!(first.call(clock.now(), |_| false).is_none(), "it is not its turn");
    let busy = is_in(second.call(clock.now(), |_| false), 1);
    drop(busy);
    assert!(first.heed());
    let busy = is_in(first.call(clock.now(), |_| false), 2);
    // Who is not waited for any more is in nobody's way.
    assert_eq!(second.withdraw(third, true), Some(3));
    wait(&mut first, 5);
    drop(busy);
    assert!(first.heed());
    drop(is_in(first.call(clock.now(), |_| false), 5));
}

/// Row 4.3: as long as there is room, one that is called calls the next.
#[test]
fn a_free_slot_is_never_left_to_a_shard_that_does_not_look() {
    let limits = Limits { slots: 2, ..Limits::default() };
    let (_folder, [mut first, mut second], processes) = two_shards(limits);
    let now = Clock::real();
    let busy: Vec<Pass> = (0..2).map(|_| first.enter_at(0, now.now()).expect("a slot")).collect();
    first.wait(now.now(), 0).expect("there is room");
    second.wait(now.now(), 1).expect("there is room");
    busy.into_iter().for_each(drop);
    assert!(first.heed() && !second.heed());
    let _in = is_in(first.call(now.now(), |_| false), 0);
    assert!(second.heed(), "there is room for the next, too");
    let _too = is_in(second.call(now.now(), |_| false), 1);
    let requests = processes.requests();
    assert_eq!((requests.queued, requests.busy, requests.queued_max), (0, 2, 2));
}

/// Row 1.3: a process has no more connections than slots, also when another shard keeps one that it does not use.
#[test]
fn a_connection_that_another_shard_keeps_is_asked_for() {
    let (_folder, [first, second], _processes) = two_shards(Limits::default());
    let pass = first.enter_at(0, Time::ZERO).expect("a slot");
    let kept = pass.line().expect("room for a connection");
    drop(pass);
    let pass = second.enter_at(0, Time::ZERO).expect("a slot");
    assert!(pass.line().is_none());
    assert_eq!(first.wanted(0), 0);
    let claim = pass.claim();
    assert!(first.heed() && first.wanted(0) == 1);
    second.heed();
    drop(kept);
    assert!(second.heed() && pass.line().is_some());
    drop(claim);
    assert_eq!(first.wanted(0), 0);
}

/// The keeper is what ends the processes when this one cannot: it must be there whatever happened to it.
#[test]
fn the_keeper_kills_what_lives_when_its_pipe_ends_and_its_own_death_is_heard() {
    let mut keeper = super::keeper::Keeper::start(None).expect("a shell");
    let mut victim = Command::new("sleep");
    std::os::unix::process::CommandExt::process_group(&mut victim, 0);
    let mut victim = victim.arg("1000").spawn().expect("a process");
    let group = Pid::from_child(&victim);
    keeper.hears([group].into_iter()).expect("the keeper reads");
    drop(keeper);
    let status = eventually("it is killed", || victim.try_wait().expect("a child"));
    assert!(!status.success());

    let mut keeper = super::keeper::Keeper::start(None).expect("a shell");
    kill_process_group(keeper.group(), Signal::KILL).expect("it lives");
    eventually("it hears nothing any more", || keeper.hears([].into_iter()).is_err().then_some(()));
}

/// A stopped keeper blocks neither its own end nor a supervisor with much to tell it.
#[test]
fn a_stopped_keeper_blocks_nothing() {
    let mut keeper = super::keeper::Keeper::start(None).expect("a shell");
    kill_process_group(keeper.group(), Signal::STOP).expect("it lives");
    let group = keeper.group();
    // More than a pipe takes.
    let refused = (0..100_000).any(|_| keeper.hears([group; 100].into_iter()).is_err());
    assert!(refused, "the pipe is full, and that is said");
    keeper.retire();
}
