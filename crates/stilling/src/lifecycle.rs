//! The life of the process: running, draining, stopping; and what time it is for people.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use stilling_hub::{Now, SteadyNanos, UnixNanos};
use stilling_ring::{Time, Wake};

/// Where the process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecyclePhase {
    /// Work is welcome.
    Running,
    /// Nothing new is accepted; requests in flight finish.
    Draining,
    /// What has not finished is cut off.
    Stopping,
}

/// How far a server has come that succeeds another. Others begin with the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HandoverStage {
    /// Its worker processes start: it accepts nobody whom it could only have wait for them.
    Preparing,
    /// Both serve: it accepts from the listeners that it has got, and from no other, so that nobody is lost with it
    /// when it fails.
    Overlapping,
    /// It is the server. The one before it may still write the streams and read the datagram sockets.
    PathTaken,
    /// The server before it has released them, or has ended.
    Released,
}

/// What time it is in the world outside.
#[derive(Clone, Copy, Debug)]
pub enum WallClock {
    /// The system's.
    System,
    /// That many seconds after the epoch at `Time::ZERO`: for the simulator.
    StartingAt(u64),
}

impl WallClock {
    /// Nanoseconds since 1970.
    pub(crate) fn unix_nanos(self, now: Time) -> UnixNanos {
        UnixNanos::from_nanos(match self {
            WallClock::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
            WallClock::StartingAt(start) => start * 1_000_000_000 + now.as_nanos(),
        })
    }
}

/// Shared by all shards and the signal handler.
#[derive(Debug)]
pub struct Lifecycle {
    /// Requests to end so far: the first drains, the second stops.
    requests: Arc<AtomicU32>,
    /// Another server has taken over. It drains like the first request, and is none: whoever asks for the end
    /// of a server that hands over asks for what is happening.
    handed_over: AtomicBool,
    /// Another server has these listeners as well, or may get them: who waits at them is not lost with this one.
    shares_listeners: AtomicBool,
    /// A part of the server has failed. However many do, it drains like the first request and cuts nobody off.
    failed: AtomicBool,
    /// Shards that accept.
    accepting_shards: AtomicUsize,
    /// Shards over whose connections nothing publishes any more, after a hand-over.
    finished_shards: AtomicUsize,
    /// Calls of `request_queue_check`, wrapping.
    queue_checks: AtomicU32,
    /// A `HandoverStage`.
    stage: AtomicU8,
    /// The hub takes requests, or there is none.
    hub_began: AtomicBool,
    /// This server holds streams and datagram sockets that a successor waits for.
    holds_streams: AtomicBool,
    wakes: Vec<Arc<Wake>>,
    wall_clock: WallClock,
}

impl Lifecycle {
    /// A running process whose shards hear of changes through `wakes`.
    pub fn new(wakes: Vec<Arc<Wake>>, wall_clock: WallClock) -> Self {
        Lifecycle {
            requests: Arc::default(),
            handed_over: AtomicBool::new(false),
            shares_listeners: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            accepting_shards: AtomicUsize::new(0),
            finished_shards: AtomicUsize::new(0),
            queue_checks: AtomicU32::new(0),
            stage: AtomicU8::new(HandoverStage::Released as u8),
            hub_began: AtomicBool::new(true),
            holds_streams: AtomicBool::new(false),
            wakes,
            wall_clock,
        }
    }

    /// The phase.
    pub fn phase(&self) -> LifecyclePhase {
        match self.requests.load(Ordering::Acquire) {
            0 if !self.handed_over.load(Ordering::Acquire) && !self.failed.load(Ordering::Acquire) => {
                LifecyclePhase::Running
            }
            0 | 1 => LifecyclePhase::Draining,
            _ => LifecyclePhase::Stopping,
        }
    }

    /// Whether the end has been asked for.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase() != LifecyclePhase::Running
    }

    /// The number of requests to end so far, for a signal handler to count on.
    pub fn requests(&self) -> &Arc<AtomicU32> {
        &self.requests
    }

    /// Asks for the end: politely the first time. Safe in a signal handler.
    pub fn end(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// A part of the server cannot go on: the others drain.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.wake_all();
    }

    /// Another server has taken over: drains.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Release);
        self.wake_all();
    }

    /// Whether there is another server that has these listeners, or may get them: an old one or a successor.
    pub(crate) fn set_listeners_shared(&self, is_shared: bool) {
        self.shares_listeners.store(is_shared, Ordering::Release);
    }

    /// Whether nobody else can answer who waits at the listeners of this server.
    pub(crate) fn has_listeners_alone(&self) -> bool {
        !self.handed_over.load(Ordering::Acquire) && !self.shares_listeners.load(Ordering::Acquire)
    }

    /// A shard accepts from now on.
    pub fn shard_began(&self) {
        self.accepting_shards.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// Shards that accept.
    pub(crate) fn accepting_shards(&self) -> usize {
        self.accepting_shards.load(Ordering::Acquire)
    }

    /// Nothing publishes any more over connections of one more shard.
    pub(crate) fn shard_stopped_publishing(&self) {
        self.finished_shards.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// Whether that holds for all shards.
    pub(crate) fn all_stopped_publishing(&self) -> bool {
        self.finished_shards.load(Ordering::Acquire) >= self.accepting_shards()
    }

    /// Has every shard look into the queues of its listeners, now and for a while.
    pub(crate) fn request_queue_check(&self) {
        self.queue_checks.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// How often that has been asked for.
    pub(crate) fn queue_checks(&self) -> u32 {
        self.queue_checks.load(Ordering::Acquire)
    }

    /// This server succeeds another one and begins at this stage. Called before anything else uses the stage.
    pub(crate) fn begin_succession(&self, stage: HandoverStage) {
        self.stage.store(stage as u8, Ordering::Release);
        self.wake_all();
    }

    /// Sets the hand-over stage, which never goes back.
    pub(crate) fn reach(&self, stage: HandoverStage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.wake_all();
    }

    /// The hub begins only when a predecessor has released the streams.
    pub(crate) fn hub_waits(&self) {
        self.hub_began.store(false, Ordering::Release);
    }

    /// The hub takes requests from now on.
    pub(crate) fn hub_begins(&self) {
        self.hub_began.store(true, Ordering::Release);
        self.wake_all();
    }

    /// Whether the hub takes requests, or there is none.
    pub(crate) fn hub_has_begun(&self) -> bool {
        self.hub_began.load(Ordering::Acquire)
    }

    /// Whether the hub never begins, because this server ends without having become the server.
    pub(crate) fn hub_is_abandoned(&self) -> bool {
        let failed = self.failed.load(Ordering::Acquire);
        let is_over =
            failed || self.phase() != LifecyclePhase::Running && !self.has_reached(HandoverStage::PathTaken);
        is_over && !self.hub_has_begun()
    }

    /// This server has streams, or sockets for datagrams.
    pub(crate) fn hold_streams(&self) {
        self.holds_streams.store(true, Ordering::Release);
    }

    /// The streams are closed and nothing reads the datagram sockets: a successor may have them.
    pub(crate) fn release_streams(&self) {
        self.holds_streams.store(false, Ordering::Release);
        self.wake_all();
    }

    /// Whether a successor has to wait for streams or datagram sockets of this server.
    pub(crate) fn holds_streams(&self) -> bool {
        self.holds_streams.load(Ordering::Acquire)
    }

    /// Whether another server has taken over.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Whether the succession has come so far.
    pub(crate) fn has_reached(&self, stage: HandoverStage) -> bool {
        self.stage.load(Ordering::Acquire) >= stage as u8
    }

    fn wake_all(&self) {
        for wake in &self.wakes {
            wake.force();
        }
    }

    /// Nanoseconds since 1970.
    pub fn unix_nanos(&self, now: Time) -> UnixNanos {
        self.wall_clock.unix_nanos(now)
    }

    /// What time it is for the hub: by the calendar, and by the clock of `now`, which is never set.
    pub(crate) fn both_clocks(&self, now: Time) -> Now {
        Now { unix_ns: self.unix_nanos(now), steady_ns: SteadyNanos::from_nanos(now.as_nanos()) }
    }

    /// Seconds since 1970.
    pub fn unix_seconds(&self, now: Time) -> u64 {
        match self.wall_clock {
            WallClock::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
            }
            WallClock::StartingAt(start) => start + now.as_nanos() / 1_000_000_000,
        }
    }
}

/// Reports that the streams are released when it is dropped. To be made before what holds them, so that it is dropped later.
pub(crate) struct ReleaseOnDrop(pub(crate) Arc<Lifecycle>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release_streams();
    }
}

/// Asks for the end when a thread that the server needs is left without having served to its end.
pub(crate) struct FailureGuard {
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) served: bool,
}

impl Drop for FailureGuard {
    fn drop(&mut self) {
        if !self.served {
            self.lifecycle.fail();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 4.37: a supervisor that ends the server which it has just succeeded cuts nobody off.
    #[test]
    fn a_request_to_end_after_a_hand_over_changes_nothing_and_a_second_cuts_off() {
        let life = Lifecycle::new(Vec::new(), WallClock::System);
        assert_eq!(life.phase(), LifecyclePhase::Running);
        life.hand_over();
        assert_eq!(life.phase(), LifecyclePhase::Draining);
        life.end();
        assert_eq!(life.phase(), LifecyclePhase::Draining);
        life.end();
        assert_eq!(life.phase(), LifecyclePhase::Stopping);
    }

    /// Row 4.37: the stage never goes back, in whichever order the steps of a hand-over are seen.
    #[test]
    fn a_stage_that_was_reached_stays_reached() {
        let life = Lifecycle::new(Vec::new(), WallClock::System);
        life.begin_succession(HandoverStage::Preparing);
        assert!(!life.has_reached(HandoverStage::Overlapping));
        life.reach(HandoverStage::Released);
        life.reach(HandoverStage::PathTaken);
        assert!(life.has_reached(HandoverStage::Released));
    }

    /// Row 4.9: one failure seldom comes alone, and the clients of what has not failed are answered.
    #[test]
    fn failures_drain_and_however_many_cut_nobody_off() {
        let life = Lifecycle::new(Vec::new(), WallClock::System);
        for _ in 0..3 {
            life.fail();
            assert_eq!(life.phase(), LifecyclePhase::Draining);
        }
        life.end();
        assert_eq!(life.phase(), LifecyclePhase::Draining);
        life.end();
        assert_eq!(life.phase(), LifecyclePhase::Stopping);
    }
}
