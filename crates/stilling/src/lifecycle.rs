//! The life of the process: running, draining, stopping; and what time it is for people.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use stilling_hub::{Now, SteadyNanos, UnixNanos};
use stilling_ring::{Time, Wake};

/// Where the process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Work is welcome.
    Running,
    /// Nothing new is accepted; requests in flight finish.
    Draining,
    /// What has not finished is cut off.
    Stopping,
}

/// How far a server has come that succeeds another. Others begin with the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Its worker processes start: it accepts nobody whom it could only have wait for them.
    Before,
    /// Both serve: it accepts from the listeners that it has got, and from no other, so that nobody is lost with it
    /// when it fails.
    Beside,
    /// It is the server. The one before it may still write the streams and read the datagram sockets.
    Alone,
    /// The server before it has released them, or has ended.
    Released,
}

/// What time it is in the world outside.
#[derive(Clone, Copy, Debug)]
pub enum Calendar {
    /// The system's.
    System,
    /// That many seconds after the epoch at `Time::ZERO`: for the simulator.
    From(u64),
}

impl Calendar {
    /// Nanoseconds since 1970.
    pub(crate) fn unix_nanos(self, now: Time) -> UnixNanos {
        UnixNanos::from_nanos(match self {
            Calendar::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
            Calendar::From(start) => start * 1_000_000_000 + now.as_nanos(),
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
    accompanied: AtomicBool,
    /// A part of the server has failed. However many do, it drains like the first request and cuts nobody off.
    failed: AtomicBool,
    /// Shards that accept.
    began: AtomicUsize,
    /// Shards over whose connections nothing publishes any more, after a hand-over.
    parted: AtomicUsize,
    /// Calls of `look_again`, wrapping.
    looks: AtomicU32,
    /// A `Stage`.
    stage: AtomicU8,
    /// The hub takes requests, or there is none.
    hub_began: AtomicBool,
    /// This server holds streams and datagram sockets that a successor waits for.
    holds_streams: AtomicBool,
    wakes: Vec<Arc<Wake>>,
    calendar: Calendar,
}

impl Lifecycle {
    /// A running process whose shards hear of changes through `wakes`.
    pub fn new(wakes: Vec<Arc<Wake>>, calendar: Calendar) -> Self {
        Lifecycle {
            requests: Arc::default(),
            handed_over: AtomicBool::new(false),
            accompanied: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            began: AtomicUsize::new(0),
            parted: AtomicUsize::new(0),
            looks: AtomicU32::new(0),
            stage: AtomicU8::new(Stage::Released as u8),
            hub_began: AtomicBool::new(true),
            holds_streams: AtomicBool::new(false),
            wakes,
            calendar,
        }
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        match self.requests.load(Ordering::Acquire) {
            0 if !self.handed_over.load(Ordering::Acquire) && !self.failed.load(Ordering::Acquire) => {
                Phase::Running
            }
            0 | 1 => Phase::Draining,
            _ => Phase::Stopping,
        }
    }

    /// Whether the end has been asked for.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase() != Phase::Running
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
    pub(crate) fn accompany(&self, is_accompanied: bool) {
        self.accompanied.store(is_accompanied, Ordering::Release);
    }

    /// Whether nobody else can answer who waits at the listeners of this server.
    pub(crate) fn is_alone(&self) -> bool {
        !self.handed_over.load(Ordering::Acquire) && !self.accompanied.load(Ordering::Acquire)
    }

    /// A shard accepts from now on.
    pub fn shard_began(&self) {
        self.began.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// Shards that accept.
    pub(crate) fn began(&self) -> usize {
        self.began.load(Ordering::Acquire)
    }

    /// Nothing publishes any more over connections of one more shard.
    pub(crate) fn shard_parted(&self) {
        self.parted.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// Whether that holds for all shards.
    pub(crate) fn all_have_parted(&self) -> bool {
        self.parted.load(Ordering::Acquire) >= self.began()
    }

    /// Has every shard look into the queues of its listeners, now and for a while.
    pub(crate) fn look_again(&self) {
        self.looks.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    /// How often that has been asked for.
    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Acquire)
    }

    /// This server succeeds another one and begins at this stage. Called before anything else uses the stage.
    pub(crate) fn begin_succession(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
        self.wake_all();
    }

    /// Sets the hand-over stage, which never goes back.
    pub(crate) fn reach(&self, stage: Stage) {
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
        let is_over = failed || self.phase() != Phase::Running && !self.has_reached(Stage::Alone);
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
    pub(crate) fn has_reached(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Acquire) >= stage as u8
    }

    fn wake_all(&self) {
        for wake in &self.wakes {
            wake.force();
        }
    }

    /// Nanoseconds since 1970.
    pub fn unix_nanos(&self, now: Time) -> UnixNanos {
        self.calendar.unix_nanos(now)
    }

    /// What time it is for the hub: by the calendar, and by the clock of `now`, which is never set.
    pub(crate) fn both_clocks(&self, now: Time) -> Now {
        Now { unix_ns: self.unix_nanos(now), steady_ns: SteadyNanos::from_nanos(now.as_nanos()) }
    }

    /// Seconds since 1970.
    pub fn unix_seconds(&self, now: Time) -> u64 {
        match self.calendar {
            Calendar::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
            }
            Calendar::From(start) => start + now.as_nanos() / 1_000_000_000,
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
pub(crate) struct EndUnless {
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) served: bool,
}

impl Drop for EndUnless {
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
        let life = Lifecycle::new(Vec::new(), Calendar::System);
        assert_eq!(life.phase(), Phase::Running);
        life.hand_over();
        assert_eq!(life.phase(), Phase::Draining);
        life.end();
        assert_eq!(life.phase(), Phase::Draining);
        life.end();
        assert_eq!(life.phase(), Phase::Stopping);
    }

    /// Row 4.37: the stage never goes back, in whichever order the steps of a hand-over are seen.
    #[test]
    fn a_stage_that_was_reached_stays_reached() {
        let life = Lifecycle::new(Vec::new(), Calendar::System);
        life.begin_succession(Stage::Before);
        assert!(!life.has_reached(Stage::Beside));
        life.reach(Stage::Released);
        life.reach(Stage::Alone);
        assert!(life.has_reached(Stage::Released));
    }

    /// Row 4.9: one failure seldom comes alone, and the clients of what has not failed are answered.
    #[test]
    fn failures_drain_and_however_many_cut_nobody_off() {
        let life = Lifecycle::new(Vec::new(), Calendar::System);
        for _ in 0..3 {
            life.fail();
            assert_eq!(life.phase(), Phase::Draining);
        }
        life.end();
        assert_eq!(life.phase(), Phase::Draining);
        life.end();
        assert_eq!(life.phase(), Phase::Stopping);
    }
}
