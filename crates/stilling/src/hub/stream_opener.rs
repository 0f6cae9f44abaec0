//! Opens streams that were not open at the start, independently: a stream that fails is tried again while the others
//! are used.
//!
//! A [`StreamOpener`] works in steps and takes the time as an argument. In a server, a thread that may wait for the
//! disk calls it; in a simulation, the event loop.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use stilling_hub::{
    GateRegistry, HashKey, JournalStorage, RecoveredStream, ResumePoint, StreamConfig, StreamGate, UnixNanos,
};
use stilling_journal::disk::Disk;
use stilling_journal::{Log, OpenError, ReadOutcome, Recovery, StartAt};
use stilling_ring::{MailboxFull, Receiver, Sender, Wake, mailbox, planted};

use super::limits::{LOCK_GRACE, LOCK_WAIT, OPEN_CHECK_INTERVAL, OPEN_RETRY_INTERVAL};
use crate::lifecycle::{HandoverStage, Lifecycle};

/// Unread events of an opening. Full: the opening waits.
const OPENING_EVENTS_MAX: usize = 4;

/// Storage of streams on disk, and its writers. Streams are numbered as on disk.
pub(crate) trait StreamStore: Clone + Send + Sized + 'static {
    type Disk: Disk;

    /// Whether there may be a directory to open.
    fn exists(&self) -> bool;

    /// Whether a stream could be opened, without locking or changing anything.
    fn check(&self, number: usize, stream: &StreamConfig) -> Result<(), OpenError>;

    /// Opens a stream. A new stream gets the creation time `created_ns`.
    fn open(
        &self,
        number: usize,
        stream: &StreamConfig,
        created_ns: UnixNanos,
    ) -> Result<(Log<Self::Disk>, Recovery), OpenError>;

    /// Starts the threads that write and read these streams.
    fn start(
        &self,
        logs: Vec<(usize, Log<Self::Disk>)>,
        wake: &Arc<Wake>,
        now: Instant,
    ) -> io::Result<JournalStorage>;

    /// Starts threads for streams that are opened later.
    ///
    /// # Errors
    /// The system starts no thread.
    fn prepare(&self) -> io::Result<()> {
        Ok(())
    }

    /// Runs an opening. Returns its thread, if it has one.
    fn run(opening: StreamOpener<Self>) -> io::Result<Option<Thread>>;
}

/// The thread that waits for the predecessor's release, once it runs.
pub(crate) type OpeningThread = Arc<OnceLock<Thread>>;

#[derive(Clone)]
pub(crate) struct OpeningJob<S> {
    /// The streams on disk.
    pub(super) streams: Vec<StreamConfig>,
    pub(super) gates: GateRegistry,
    pub(super) store: S,
    pub(super) created_ns: UnixNanos,
    pub(super) key: HashKey,
    pub(super) wake: Arc<Wake>,
    /// Set to the opening thread, so that it can be woken.
    pub(super) thread: OpeningThread,
    pub(super) report: fn(&str),
}

pub(super) type DeferredOpening = Box<dyn FnOnce() -> io::Result<Receiver<OpeningEvent>> + Send>;

pub(super) enum OpeningEvent {
    /// Results for streams that were not open yet. Streams are numbered as on disk.
    Round {
        /// The threads that write and read the opened streams, numbered in that order.
        threads: Option<Box<JournalStorage>>,
        opened: Vec<OpenedStream>,
        /// Streams that will be tried again, if the reason is new.
        failed: Vec<(usize, Arc<str>)>,
    },
    /// There is no directory: the streams are empty, and the first record creates it.
    Absent(Vec<RecoveredStream>, DeferredOpening),
}

pub(super) struct OpenedStream {
    pub(super) stream: usize,
    pub(super) recovered: RecoveredStream,
}

pub(crate) struct StreamOpener<S: StreamStore> {
    job: OpeningJob<S>,
    events: EventSender,
    phase: OpeningPhase,
    /// Streams that are not open, with the last reported reason.
    closed: Vec<(usize, Option<Arc<str>>)>,
    /// Open logs without threads.
    logs: Vec<(usize, Log<S::Disk>)>,
    /// When the first of them was opened.
    logs_since: Option<Instant>,
    opened: Vec<OpenedStream>,
}

enum OpeningPhase {
    /// The predecessor has not released the streams.
    AwaitingRelease(Arc<Lifecycle>),
    /// Until that time, held locks are retried without a report.
    Opening(Option<Instant>),
    Done,
}

/// Sends events to the hub in order; the last one may wait for room.
pub(super) struct EventSender {
    events: Sender<OpeningEvent>,
    unsent: Option<OpeningEvent>,
    wake: Arc<Wake>,
}

impl EventSender {
    pub(super) fn new(events: Sender<OpeningEvent>, wake: Arc<Wake>) -> EventSender {
        EventSender { events, unsent: None, wake }
    }

    /// Sends an event when there is room. Requires that the one before has been [sent](EventSender::flush).
    pub(super) fn send(&mut self, event: OpeningEvent) {
        debug_assert!(self.unsent.is_none(), "an event is dropped");
        self.unsent = Some(event);
        self.flush();
    }

    /// Sends the waiting event. Returns whether none waits.
    pub(super) fn flush(&mut self) -> bool {
        let Some(event) = self.unsent.take() else { return true };
        if let Err(MailboxFull(event)) = self.events.push(event) {
            self.unsent = Some(event);
            return false;
        }
        self.events.publish();
        self.wake.force();
        true
    }
}

impl<S: StreamStore> StreamOpener<S> {
    /// Does the work due at `now`. Returns the time until the next step, or `None` at the end: all streams are open
    /// or the hub has ended.
    pub(crate) fn step(&mut self, now: Instant) -> Option<Duration> {
        if self.events.events.is_closed() {
            return None;
        }
        if !self.events.flush() {
            return Some(OPEN_CHECK_INTERVAL);
        }
        match &self.phase {
            OpeningPhase::AwaitingRelease(lifecycle) => {
                if !lifecycle.has_reached(HandoverStage::Released) && !planted!("early opening") {
                    return Some(OPEN_CHECK_INTERVAL);
                }
                if self.job.store.exists() {
                    // A process that is ending may hold the locks a moment longer.
                    self.phase = OpeningPhase::Opening(Some(now + LOCK_WAIT));
                } else {
                    self.phase = OpeningPhase::Done;
                    self.events.send(self.job.absent());
                }
                Some(Duration::ZERO)
            }
            OpeningPhase::Opening(lock_deadline) => self.round(*lock_deadline, now),
            OpeningPhase::Done => None,
        }
    }

    pub(super) fn store(&self) -> &S {
        &self.job.store
    }

    pub(super) fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.job.wake)
    }

    fn round(&mut self, lock_deadline: Option<Instant>, now: Instant) -> Option<Duration> {
        let (failures, are_locks) = self.open_closed();
        if !self.logs.is_empty() {
            self.logs_since.get_or_insert(now);
        }
        let retries_locks =
            !failures.is_empty() && are_locks && lock_deadline.is_some_and(|until| now < until);
        // A lock that another process holds delays the opened streams only by `LOCK_GRACE`.
        if retries_locks && self.logs_since.is_none_or(|since| now < since + LOCK_GRACE) {
            return Some(OPEN_CHECK_INTERVAL);
        }
        if let Some(event) = self.finish_round(failures, now) {
            self.events.send(event);
        }
        if self.closed.is_empty() {
            self.phase = OpeningPhase::Done;
            return Some(Duration::ZERO);
        }
        Some(if retries_locks { OPEN_CHECK_INTERVAL } else { OPEN_RETRY_INTERVAL })
    }

    /// Tries each closed stream. Returns the failures, and whether all of them are held locks.
    fn open_closed(&mut self) -> (Vec<(usize, Arc<str>)>, bool) {
        let (mut failures, mut are_locks) = (Vec::new(), true);
        let (job, logs, opened) = (&self.job, &mut self.logs, &mut self.opened);
        self.closed.retain(|&(stream, _)| match job.open(stream) {
            Ok((log, recovered)) => {
                logs.push((stream, log));
                opened.push(OpenedStream { stream, recovered });
                false
            }
            Err(error) => {
                are_locks &= matches!(error, OpenError::Lock(_));
                failures.push((stream, error.to_string().into()));
                true
            }
        });
        (failures, are_locks)
    }

    /// The event of a round, if it has news for the hub.
    fn finish_round(&mut self, mut failures: Vec<(usize, Arc<str>)>, now: Instant) -> Option<OpeningEvent> {
        let (logs, mut opened) = (std::mem::take(&mut self.logs), std::mem::take(&mut self.opened));
        self.logs_since = None;
        let mut threads = None;
        if !opened.is_empty() {
            match self.job.store.start(logs, &self.job.wake, now) {
                Ok(started) => threads = Some(Box::new(started)),
                Err(error) => {
                    let reason: Arc<str> = format!("cannot start a thread: {error}").into();
                    for OpenedStream { stream, .. } in opened.drain(..) {
                        self.closed.push((stream, None));
                        failures.push((stream, Arc::clone(&reason)));
                    }
                }
            }
        }
        failures.retain(|(stream, reason)| {
            let closed = self.closed.iter_mut().find(|(closed, _)| closed == stream);
            let is_new = closed
                .is_some_and(|(_, reported)| reported.replace(Arc::clone(reason)).as_ref() != Some(reason));
            if is_new {
                let name = &self.job.streams[*stream].name;
                (self.job.report)(&format!("cannot open the stream {name}, trying again: {reason}"));
            }
            is_new
        });
        let is_news = threads.is_some() || !failures.is_empty();
        is_news.then_some(OpeningEvent::Round { threads, opened, failed: failures })
    }
}

impl<S: StreamStore> OpeningJob<S> {
    fn open(&self, number: usize) -> Result<(Log<S::Disk>, RecoveredStream), OpenError> {
        let stream = &self.streams[number];
        let (log, recovery) = self.store.open(number, stream, self.created_ns)?;
        let recovered = recover(stream, (self.key, &self.gates), &log, &recovery)?;
        finding(&stream.name, &recovery).into_iter().for_each(|line| (self.report)(&line));
        (self.report)(&write_method(&log));
        Ok((log, recovered))
    }

    fn absent(&self) -> OpeningEvent {
        // If this fails, the next opening starts its own threads.
        let _ = self.store.prepare();
        let resumed = ResumePoint { created_ns: self.created_ns, ..ResumePoint::default() };
        let empty = self.streams.iter().map(|stream| RecoveredStream::new(stream, self.key, resumed));
        OpeningEvent::Absent(empty.collect(), deferred(self.clone()))
    }
}

/// Recovers a stream's position, its message ids and the state of its gate.
pub(super) fn recover<D: Disk>(
    stream: &StreamConfig,
    (key, gates): (HashKey, &GateRegistry),
    log: &Log<D>,
    recovery: &Recovery,
) -> Result<RecoveredStream, OpenError> {
    let (first, created_ns) = (recovery.first.max(1), UnixNanos::from_nanos(log.created_ns()));
    let resumed = ResumePoint { first, next: recovery.next, created_ns };
    let mut recovered = RecoveredStream::new(stream, key, resumed);
    recovered.set_log_stats(log.log_stats());
    // The window contained nothing before this sequence when the segment was made; ids that have expired since are
    // skipped by time.
    let from = if stream.dedup_time.is_zero() { recovery.next } else { recovery.deduplicate_from.max(1) };
    let mut reader = log.source().read_from(StartAt::Sequence(from));
    loop {
        // Not skipped: with an incomplete window, repeated messages would silently be stored again.
        let read = reader.read().map_err(|source| OpenError::Disk { location: log.location(), source })?;
        match read {
            ReadOutcome::Batch(_) if planted!("lost window") => {}
            ReadOutcome::Batch(batch) => recovered.restore_ids(batch),
            ReadOutcome::Gap(gap) => recovered.report_unreadable(gap),
            ReadOutcome::End => break,
        }
    }
    if !recovery.findings.is_empty() {
        recovered.report_findings(&recovery.findings.to_string());
    }
    let gate = StreamGate::recover(gates, stream, log)
        .map_err(|source| OpenError::Disk { location: log.location(), source })?;
    if let Some(gate) = gate {
        recovered.set_gate(gate);
    }
    Ok(recovered)
}

pub(super) fn finding(name: &str, recovery: &Recovery) -> Option<String> {
    (!recovery.findings.is_empty()).then(|| format!("stream {name}: {}", recovery.findings))
}

pub(super) fn write_method<D: Disk>(log: &Log<D>) -> String {
    format!("stream {}: writes are {}", log.name(), log.write_method())
}

/// An opening that starts when called and waits for no predecessor.
pub(super) fn deferred<S: StreamStore>(job: OpeningJob<S>) -> DeferredOpening {
    Box::new(move || begin_opening(job, None))
}

/// Begins an opening; with a `lifecycle`, after the predecessor's release.
pub(super) fn begin_opening<S: StreamStore>(
    job: OpeningJob<S>,
    lifecycle: Option<Arc<Lifecycle>>,
) -> io::Result<Receiver<OpeningEvent>> {
    let (events, received) = mailbox(OPENING_EVENTS_MAX);
    let thread = Arc::clone(&job.thread);
    let opening = StreamOpener {
        events: EventSender::new(events, Arc::clone(&job.wake)),
        phase: lifecycle.map_or(OpeningPhase::Opening(None), OpeningPhase::AwaitingRelease),
        closed: (0..job.streams.len()).map(|stream| (stream, None)).collect(),
        logs: Vec::new(),
        logs_since: None,
        opened: Vec::new(),
        job,
    };
    if let Some(handle) = S::run(opening)? {
        let _ = thread.set(handle);
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use stilling_journal::disk::simulated::SimulatedDisk;
    use stilling_journal::{JournalLimits, LogConfig};

    use super::super::stepped::{SharedDisks, SimulatedStore, SteppedOpening, SteppedThreads};
    use super::*;
    use crate::lifecycle::WallClock;

    /// Steps within which a test expects an event: twice as many as fit into `LOCK_WAIT`.
    const STEPS_MAX: u128 = 2 * LOCK_WAIT.as_millis() / OPEN_CHECK_INTERVAL.as_millis();

    /// Two streams, each on its own disk, right after the predecessor's release.
    struct OpeningFixture {
        disks: [SimulatedDisk; 2],
        opening: SteppedOpening,
        events: Receiver<OpeningEvent>,
        began: Instant,
        now: Instant,
    }

    impl OpeningFixture {
        fn after_release() -> OpeningFixture {
            let disks = [SimulatedDisk::new(), SimulatedDisk::new()];
            let threads = SteppedThreads::default();
            let store = SimulatedStore {
                disks: SharedDisks::new(disks.to_vec()),
                log: LogConfig::default(),
                limits: JournalLimits::default(),
                threads: threads.clone(),
            };
            let lifecycle = Arc::new(Lifecycle::new(Vec::new(), WallClock::System));
            lifecycle.begin_succession(HandoverStage::PathTaken);
            let named = |name: &str| StreamConfig { name: name.to_owned(), ..StreamConfig::default() };
            let job = OpeningJob {
                streams: vec![named("a"), named("b")],
                gates: GateRegistry::default(),
                store,
                created_ns: UnixNanos::EPOCH,
                key: HashKey(1, 2),
                wake: Arc::new(Wake::new(|| ())),
                thread: Arc::default(),
                report: |_| (),
            };
            let events = begin_opening(job, Some(Arc::clone(&lifecycle))).expect("nothing is started");
            let opening = threads.take_opening().expect("it has begun");
            lifecycle.reach(HandoverStage::Released);
            let now = Instant::now();
            OpeningFixture { disks, opening, events, began: now, now }
        }

        /// Steps until an event. Returns the opened streams, the failed ones, and the time since the release.
        fn next_round(&mut self) -> (Vec<usize>, Vec<usize>, Duration) {
            for _ in 0..STEPS_MAX {
                let at = self.now;
                let span = self.opening.step(at);
                self.now += span.unwrap_or_default();
                match self.events.pop() {
                    Some(OpeningEvent::Round { opened, failed, .. }) => {
                        let opened = opened.iter().map(|opened| opened.stream).collect();
                        let failed = failed.iter().map(|(stream, _)| *stream).collect();
                        return (opened, failed, at - self.began);
                    }
                    Some(OpeningEvent::Absent(..)) => panic!("the disks are there"),
                    None => assert!(span.is_some(), "it goes on"),
                }
            }
            panic!("nothing is reported in {:?}", self.now - self.began);
        }
    }

    /// Row 4.37: a lock held by another process delays only its own stream, which is opened soon after the lock is
    /// released.
    #[test]
    fn a_foreign_lock_delays_its_own_stream_alone() {
        let mut behind = OpeningFixture::after_release();
        let lock = behind.disks[0].lock().expect("it is free");
        let (opened, failed, after) = behind.next_round();
        assert_eq!((opened, failed), (vec![1], vec![0]));
        assert!(after <= LOCK_GRACE + OPEN_CHECK_INTERVAL, "{after:?}");
        drop(lock);
        let (opened, failed, later) = behind.next_round();
        assert_eq!((opened, failed), (vec![0], vec![]));
        assert!(later <= after + 2 * OPEN_CHECK_INTERVAL, "{later:?}");
        let has_ended = (0..STEPS_MAX).any(|_| match behind.opening.step(behind.now) {
            Some(span) => {
                behind.now += span;
                false
            }
            None => true,
        });
        assert!(has_ended && behind.events.is_empty(), "nothing more is reported");
    }

    /// Row 4.37: locks that a killed predecessor loses one after the other cause no refusal: the streams are opened
    /// together.
    #[test]
    fn locks_that_go_one_after_the_other_are_waited_for() {
        let mut behind = OpeningFixture::after_release();
        let locks = [0, 1].map(|stream| behind.disks[stream].lock().expect("it is free"));
        let step_until = |behind: &mut OpeningFixture, at: Instant| {
            for _ in 0..STEPS_MAX {
                if behind.now >= at {
                    break;
                }
                let span = behind.opening.step(behind.now).expect("it has not ended");
                behind.now += span;
            }
            assert!(behind.now >= at && behind.events.is_empty(), "nothing is reported");
        };
        let [first, second] = locks;
        let mut at = behind.began + LOCK_WAIT / 2;
        step_until(&mut behind, at);
        drop(first);
        at += LOCK_GRACE / 2;
        step_until(&mut behind, at);
        drop(second);
        let (opened, failed, after) = behind.next_round();
        assert_eq!((opened, failed), (vec![0, 1], vec![]));
        assert!(behind.began + after <= at + OPEN_CHECK_INTERVAL, "{after:?}");
    }

    /// Row 4.37: locks that remain held are reported in the end.
    #[test]
    fn locks_that_stay_are_reported() {
        let mut behind = OpeningFixture::after_release();
        let _locks = [0, 1].map(|stream| behind.disks[stream].lock().expect("it is free"));
        let (opened, failed, after) = behind.next_round();
        assert_eq!((opened, failed), (vec![], vec![0, 1]));
        assert!((LOCK_WAIT..=LOCK_WAIT + OPEN_CHECK_INTERVAL).contains(&after), "{after:?}");
    }
}
