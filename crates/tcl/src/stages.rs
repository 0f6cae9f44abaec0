//! Where the time of the threads goes: into scripts, or into the socket layer. On while `stilling::stats -stages` is.
//!
//! ```text
//!  wait ─▶ turn ─▶ script ─┬─▶ receive ─┬─▶ script ─▶ …
//!                          ├─▶ send ────┤
//!                          └─▶ copy ────┘
//! ```
//!
//! Each moment belongs to one stage: the time of a script is without what it receives and sends. Two readings of the
//! clock per stage cost an echo server of 64 bytes 2 % (8.0 -> 8.1 us of CPU per exchange), so they are off by default.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use stilling_engine::counters::StageTime;

use crate::tcl::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Scripts for events and connections, and Tcl's own work for them.
    Script,
    /// The shards collect events, accept, connect and close.
    Turn,
    Receive,
    Send,
    /// The system copies for `stilling::fcopy`.
    Copy,
    /// The thread waits for events of any source.
    Wait,
}

impl Stage {
    const ALL: [(Stage, &'static str); 6] = [
        (Stage::Script, "script"),
        (Stage::Turn, "turn"),
        (Stage::Receive, "receive"),
        (Stage::Send, "send"),
        (Stage::Copy, "copy"),
        (Stage::Wait, "wait"),
    ];
}

type StageTimes = [StageTime; Stage::ALL.len()];

/// Changes whenever measuring starts or stops: odd while stages are measured.
static PERIOD: AtomicU32 = AtomicU32::new(0);

fn is_on() -> bool {
    PERIOD.load(Ordering::Relaxed) % 2 == 1
}

static ALL_TIMES: Mutex<Vec<Weak<StageTimes>>> = Mutex::new(Vec::new());

fn all_times() -> MutexGuard<'static, Vec<Weak<StageTimes>>> {
    ALL_TIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The present stage of a thread.
#[derive(Clone, Copy)]
struct RunningStage {
    stage: Stage,
    /// Its begin, or the last return to it.
    since: Instant,
    /// A stage that lasts longer than the period is not measured.
    period: u32,
}

/// The stages of one thread.
struct StageClock {
    times: Arc<StageTimes>,
    current: Cell<Option<RunningStage>>,
    waiting: RefCell<Option<StageGuard>>,
}

thread_local! {
    static CLOCK: StageClock = StageClock::new();
}

impl StageClock {
    fn new() -> StageClock {
        let times = Arc::new(StageTimes::default());
        let mut all = all_times();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&times));
        StageClock { times, current: Cell::new(None), waiting: RefCell::default() }
    }

    /// Ends the present stage, for the moment or for good; begins or continues the next one.
    fn switch(&self, next: Option<Stage>) -> Option<Stage> {
        let (since, period) = (Instant::now(), PERIOD.load(Ordering::Relaxed));
        let former = self.current.replace(next.map(|stage| RunningStage { stage, since, period }))?;
        if former.period == period {
            self.times[former.stage as usize].add(since - former.since, 0);
        }
        Some(former.stage)
    }
}

/// A stage of this thread; dropping it returns to the stage around it.
#[must_use]
pub(crate) struct StageGuard {
    /// `None`: nothing was measured. Else the stage around this one.
    outer: Option<Option<Stage>>,
}

impl Drop for StageGuard {
    fn drop(&mut self) {
        if let Some(outer) = self.outer {
            // A thread at its end has no clock any more.
            let _ = CLOCK.try_with(|clock| clock.switch(outer));
        }
    }
}

/// Begins a stage, if stages are measured. A wait has no stages within it.
#[inline]
pub(crate) fn enter(stage: Stage) -> StageGuard {
    if is_on() { enter_measured(stage) } else { StageGuard { outer: None } }
}

#[cold]
fn enter_measured(stage: Stage) -> StageGuard {
    let outer = CLOCK.try_with(|clock| {
        let is_waiting = clock.current.get().is_some_and(|running| running.stage == Stage::Wait);
        (!is_waiting).then(|| {
            clock.times[stage as usize].count.add(1);
            clock.switch(Some(stage))
        })
    });
    StageGuard { outer: outer.ok().flatten() }
}

/// The thread begins to wait for events, until [`end_wait`].
#[inline]
pub(crate) fn begin_wait() {
    end_wait();
    if is_on() {
        let guard = enter_measured(Stage::Wait);
        let _ = CLOCK.try_with(|clock| clock.waiting.replace(Some(guard)));
    }
}

/// Ends the wait, if one was measured. Measuring may have stopped meanwhile.
#[inline]
pub(crate) fn end_wait() {
    // Dropped after the borrow.
    drop(CLOCK.try_with(|clock| clock.waiting.take()));
}

/// Starts or stops to measure stages, in all threads of the process. What other threads are doing when it stops is not
/// counted.
pub(crate) fn switch(turn_on: bool) {
    let period = PERIOD.load(Ordering::Relaxed);
    if turn_on == (period % 2 == 1) {
        return;
    }
    if !turn_on {
        let _ = CLOCK.try_with(|clock| clock.switch(clock.current.get().map(|running| running.stage)));
    }
    // Fails if another thread has just done the same.
    let _ = PERIOD.compare_exchange(period, period.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
}

/// The dictionary `stages` of `stilling::stats`: the sums of the threads that have not ended.
pub(crate) fn stage_stats() -> Value {
    let times: Vec<Arc<StageTimes>> = all_times().iter().filter_map(Weak::upgrade).collect();
    let is_on = Value::integer(i64::from(is_on()));
    let stages = Stage::ALL.iter().map(|&(stage, name)| {
        let sum = |of: fn(&StageTime) -> u64| -> Value {
            Value::integer(times.iter().map(|times| of(&times[stage as usize])).sum::<u64>() as i64)
        };
        let counts = [("count", sum(|time| time.count.get())), ("nanoseconds", sum(|time| time.nanos.get()))];
        (name, Value::dict(counts))
    });
    Value::dict(std::iter::once(("on", is_on)).chain(stages))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> [u64; 6] {
        CLOCK.with(|clock| std::array::from_fn(|stage| clock.times[stage].count.get()))
    }

    fn nanos(stage: Stage) -> u64 {
        CLOCK.with(|clock| clock.times[stage as usize].nanos.get())
    }

    fn spin_until_the_clock_advances() {
        let begin = Instant::now();
        while Instant::now() == begin {}
    }

    /// Row 3.29: nested stages are apart, and nothing is measured while it is off.
    #[test]
    fn each_moment_belongs_to_one_stage() {
        drop(enter(Stage::Script));
        assert_eq!(counts(), [0; 6]);
        switch(true);
        let script = enter(Stage::Script);
        let begun = Instant::now();
        for _ in 0..3 {
            let receive = enter(Stage::Receive);
            spin_until_the_clock_advances();
            drop(receive);
        }
        let (script_before, receive_before) = (nanos(Stage::Script), nanos(Stage::Receive));
        spin_until_the_clock_advances();
        drop(script);
        let total = begun.elapsed().as_nanos() as u64;
        assert_eq!(counts(), [1, 0, 3, 0, 0, 0]);
        assert_eq!(nanos(Stage::Receive), receive_before);
        assert!(nanos(Stage::Script) > script_before && receive_before > 0);
        // The script's first moments are before `begun`.
        assert!(nanos(Stage::Receive) <= total);

        begin_wait();
        drop(enter(Stage::Turn));
        end_wait();
        assert_eq!(counts(), [1, 0, 3, 0, 0, 1]);
        drop(enter(Stage::Turn));
        assert_eq!(counts(), [1, 1, 3, 0, 0, 1]);
        // A guard outlives the switch; its time counts up to there.
        let script = enter(Stage::Script);
        spin_until_the_clock_advances();
        let before = nanos(Stage::Script);
        switch(false);
        let counted = nanos(Stage::Script);
        assert!(counted > before);
        spin_until_the_clock_advances();
        drop(script);
        assert_eq!(nanos(Stage::Script), counted);
        assert!(CLOCK.with(|clock| clock.current.get().is_none()));
        begin_wait();
        assert_eq!(counts(), [2, 1, 3, 0, 0, 1]);

        // Another thread switches measuring off, or off and on, during a wait.
        for periods in [1, 2] {
            PERIOD.store(1, Ordering::Relaxed);
            begin_wait();
            let before = nanos(Stage::Wait);
            PERIOD.fetch_add(periods, Ordering::Relaxed);
            spin_until_the_clock_advances();
            end_wait();
            assert_eq!(nanos(Stage::Wait), before);
            assert!(CLOCK.with(|clock| clock.current.get().is_none()));
        }
        PERIOD.store(0, Ordering::Relaxed);
    }
}
