//! The lifecycle of the process (running, draining, stopping), and its wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use stilling_hub::{Now, SteadyNanos, UnixNanos};
use stilling_ring::{Time, Wake};

/// Phase of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecyclePhase {
    /// The server accepts work.
    Running,
    /// Nothing new is accepted; requests in flight finish.
    Draining,
    /// Unfinished work is cut off.
    Stopping,
}

/// Progress of a server that takes over from a predecessor. Other servers begin with the last stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HandoverStage {
    /// Worker processes start. The server accepts no connections, which could only wait for them.
    Preparing,
    /// Both servers serve. This one accepts only from the listeners that it received: a connection to any other would
    /// be lost if the hand-over failed.
    Overlapping,
    /// This is the server. The predecessor may still write the streams and read the datagram sockets.
    PathTaken,
    /// The predecessor has released them, or has ended.
    Released,
}

/// Source of calendar time.
#[derive(Clone, Copy, Debug)]
pub enum WallClock {
    /// The system clock.
    System,
    /// `Time::ZERO` is so many seconds after the Unix epoch, for the simulator.
    StartingAt(u64),
}

impl WallClock {
    pub(crate) fn unix_nanos(self, now: Time) -> UnixNanos {
        UnixNanos::from_nanos(match self {
            WallClock::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
            WallClock::StartingAt(start) => start * 1_000_000_000 + now.as_nanos(),
        })
    }
}

/// State of the process, shared by all shards and the signal handler.
#[derive(Debug)]
pub struct Lifecycle {
    /// Requests to end so far: the first drains, the second stops.
    shutdown_requests: Arc<AtomicU32>,
    /// A successor has taken over. This drains but does not count as a request to end: the first such request to a
    /// server that hands over changes nothing.
    handed_over: AtomicBool,
    /// Another server has these listeners or may get them, so connections in their queues survive this one.
    shares_listeners: AtomicBool,
    /// A part of the server has failed. Any number of failures drains, and none cuts off.
    failed: AtomicBool,
    /// Shards that accept.
    accepting_shards: AtomicUsize,
    /// Shards with no more publications from their connections, after a hand-over.
    finished_shards: AtomicUsize,
    /// Calls of `request_queue_check`, wrapping.
    queue_checks: AtomicU32,
    /// A `HandoverStage`.
    stage: AtomicU8,
    /// The hub accepts requests, or there is none.
    hub_started: AtomicBool,
    /// This server holds streams that a successor waits for.
    holds_streams: AtomicBool,
    /// Shards that receive datagrams.
    datagram_readers: AtomicUsize,
    wakes: Vec<Arc<Wake>>,
    wall_clock: WallClock,
}

impl Lifecycle {
    /// A running process. Changes wake the shards through `wakes`.
    pub fn new(wakes: Vec<Arc<Wake>>, wall_clock: WallClock) -> Self {
        Lifecycle {
            shutdown_requests: Arc::default(),
            handed_over: AtomicBool::new(false),
            shares_listeners: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            accepting_shards: AtomicUsize::new(0),
            finished_shards: AtomicUsize::new(0),
            queue_checks: AtomicU32::new(0),
            stage: AtomicU8::new(HandoverStage::Released as u8),
            hub_started: AtomicBool::new(true),
            holds_streams: AtomicBool::new(false),
            datagram_readers: AtomicUsize::new(0),
            wakes,
            wall_clock,
        }
    }

    /// The current phase.
    pub fn phase(&self) -> LifecyclePhase {
        match self.shutdown_requests.load(Ordering::Acquire) {
            0 if !self.handed_over.load(Ordering::Acquire) && !self.failed.load(Ordering::Acquire) => {
                LifecyclePhase::Running
            }
            0 | 1 => LifecyclePhase::Draining,
            _ => LifecyclePhase::Stopping,
        }
    }

    /// Whether the server drains or stops.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase() != LifecyclePhase::Running
    }

    /// The number of shutdown requests so far, for a signal handler to increment.
    pub fn shutdown_requests(&self) -> &Arc<AtomicU32> {
        &self.shutdown_requests
    }

    /// Requests the end: the first call drains, the second cuts off. Safe in a signal handler.
    pub fn end(&self) {
        self.shutdown_requests.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// Drains because a part of the server has failed.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.wake_all();
    }

    /// Drains because a successor has taken over.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Release);
        self.wake_all();
    }

    /// Sets whether a predecessor or successor has these listeners, or may get them.
    pub(crate) fn set_listeners_shared(&self, is_shared: bool) {
        self.shares_listeners.store(is_shared, Ordering::Release);
    }

    /// Whether no other server can answer the connections in the listeners' queues.
    pub(crate) fn has_exclusive_listeners(&self) -> bool {
        !self.handed_over.load(Ordering::Acquire) && !self.shares_listeners.load(Ordering::Acquire)
    }

    /// Counts a shard that accepts from now on.
    pub fn add_accepting_shard(&self) {
        self.accepting_shards.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    pub(crate) fn accepting_shards(&self) -> usize {
        self.accepting_shards.load(Ordering::Acquire)
    }

    /// Counts a shard when its connections no longer publish.
    pub(crate) fn shard_stopped_publishing(&self) {
        self.finished_shards.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// Whether this holds for all shards.
    pub(crate) fn all_stopped_publishing(&self) -> bool {
        self.finished_shards.load(Ordering::Acquire) >= self.accepting_shards()
    }

    /// Makes every shard check its listeners' queues, now and for `QUEUE_CHECK_SPAN`.
    pub(crate) fn request_queue_check(&self) {
        self.queue_checks.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// Number of such requests, wrapping.
    pub(crate) fn queue_checks(&self) -> u32 {
        self.queue_checks.load(Ordering::Acquire)
    }

    /// Sets the first stage of a server with a predecessor. Called before anything else reads the stage.
    pub(crate) fn begin_succession(&self, stage: HandoverStage) {
        self.stage.store(stage as u8, Ordering::Release);
        self.wake_all();
    }

    /// Sets the hand-over stage, which never goes back.
    pub(crate) fn reach(&self, stage: HandoverStage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.wake_all();
    }

    /// The hub begins only after a predecessor has released the streams.
    pub(crate) fn defer_hub_start(&self) {
        self.hub_started.store(false, Ordering::Release);
    }

    /// The hub accepts requests from now on.
    pub(crate) fn set_hub_started(&self) {
        self.hub_started.store(true, Ordering::Release);
        self.wake_all();
    }

    /// Whether the hub accepts requests, or there is none.
    pub(crate) fn hub_has_started(&self) -> bool {
        self.hub_started.load(Ordering::Acquire)
    }

    /// Whether the hub never begins, because this server ends without having taken over.
    pub(crate) fn hub_is_abandoned(&self) -> bool {
        let failed = self.failed.load(Ordering::Acquire);
        let is_over =
            failed || self.phase() != LifecyclePhase::Running && !self.has_reached(HandoverStage::PathTaken);
        is_over && !self.hub_has_started()
    }

    /// This server has streams.
    pub(crate) fn hold_streams(&self) {
        self.holds_streams.store(true, Ordering::Release);
    }

    /// The streams are closed: a successor may have them.
    pub(crate) fn release_streams(&self) {
        self.holds_streams.store(false, Ordering::Release);
        self.wake_all();
    }

    /// Whether a successor has to wait for streams or datagram sockets of this server.
    pub(crate) fn holds_streams(&self) -> bool {
        self.holds_streams.load(Ordering::Acquire) || self.datagram_readers.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    pub(crate) fn has_reached(&self, stage: HandoverStage) -> bool {
        self.stage.load(Ordering::Acquire) >= stage as u8
    }

    fn wake_all(&self) {
        for wake in &self.wakes {
            wake.force();
        }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn unix_nanos(&self, now: Time) -> UnixNanos {
        self.wall_clock.unix_nanos(now)
    }

    /// Both clocks for the hub: calendar time, and the monotonic time of `now`.
    pub(crate) fn both_clocks(&self, now: Time) -> Now {
        Now { unix_ns: self.unix_nanos(now), steady_ns: SteadyNanos::from_nanos(now.as_nanos()) }
    }

    /// Seconds since the Unix epoch.
    pub fn unix_seconds(&self, now: Time) -> u64 {
        match self.wall_clock {
            WallClock::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
            }
            WallClock::StartingAt(start) => start + now.as_nanos() / 1_000_000_000,
        }
    }
}

/// Reports the release of the streams when dropped. Created before the holder of the streams, so that it is dropped
/// later.
pub(crate) struct ReleaseOnDrop(pub(crate) Arc<Lifecycle>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release_streams();
    }
}

/// A shard that receives datagrams. A successor receives from its sockets only after this is dropped.
#[derive(Debug)]
pub(crate) struct DatagramReader(Arc<Lifecycle>);

impl DatagramReader {
    pub(crate) fn new(lifecycle: &Arc<Lifecycle>) -> DatagramReader {
        lifecycle.datagram_readers.fetch_add(1, Ordering::AcqRel);
        DatagramReader(Arc::clone(lifecycle))
    }
}

impl Drop for DatagramReader {
    fn drop(&mut self) {
        self.0.datagram_readers.fetch_sub(1, Ordering::AcqRel);
        self.0.wake_all();
    }
}

/// Drains the server when a necessary thread ends early.
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

    /// Row 4.37: a supervisor that ends a server which has just been succeeded cuts off nothing.
    #[test]
    fn a_request_to_end_after_a_hand_over_changes_nothing_and_a_second_cuts_off() {
        let lifecycle = Lifecycle::new(Vec::new(), WallClock::System);
        assert_eq!(lifecycle.phase(), LifecyclePhase::Running);
        lifecycle.hand_over();
        assert_eq!(lifecycle.phase(), LifecyclePhase::Draining);
        lifecycle.end();
        assert_eq!(lifecycle.phase(), LifecyclePhase::Draining);
        lifecycle.end();
        assert_eq!(lifecycle.phase(), LifecyclePhase::Stopping);
    }

    /// Rows 1.17, 4.37: a successor waits for every shard that receives datagrams, with and without streams.
    #[test]
    fn a_successor_waits_for_streams_and_for_readers_of_datagrams() {
        let lifecycle = Arc::new(Lifecycle::new(Vec::new(), WallClock::System));
        assert!(!lifecycle.holds_streams());
        let readers = [DatagramReader::new(&lifecycle), DatagramReader::new(&lifecycle)];
        lifecycle.hold_streams();
        let [first, second] = readers;
        drop(first);
        lifecycle.release_streams();
        assert!(lifecycle.holds_streams());
        drop(second);
        assert!(!lifecycle.holds_streams());
    }

    /// Row 4.37: the stage never goes back, in any order of the steps.
    #[test]
    fn a_stage_that_was_reached_stays_reached() {
        let lifecycle = Lifecycle::new(Vec::new(), WallClock::System);
        lifecycle.begin_succession(HandoverStage::Preparing);
        assert!(!lifecycle.has_reached(HandoverStage::Overlapping));
        lifecycle.reach(HandoverStage::Released);
        lifecycle.reach(HandoverStage::PathTaken);
        assert!(lifecycle.has_reached(HandoverStage::Released));
    }

    /// Row 4.9: several failures only drain: the healthy parts answer their clients.
    #[test]
    fn any_number_of_failures_drains_and_cuts_nothing_off() {
        let lifecycle = Lifecycle::new(Vec::new(), WallClock::System);
        for _ in 0..3 {
            lifecycle.fail();
            assert_eq!(lifecycle.phase(), LifecyclePhase::Draining);
        }
        lifecycle.end();
        assert_eq!(lifecycle.phase(), LifecyclePhase::Draining);
        lifecycle.end();
        assert_eq!(lifecycle.phase(), LifecyclePhase::Stopping);
    }
}
