//! Opens streams that were not open at the start, each by itself: one that fails is tried again, and the others are used
//! meanwhile.
//!
//! An [`Opening`] does its work in steps and takes the time as an argument. In a server a thread that may wait for the disk
//! calls it; in a simulation the world does.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stilling_hub::{HashKey, Recovered, Resumed, StreamConfig, Threads, UnixNanos};
use stilling_journal::disk::Disk;
use stilling_journal::{Log, OpenError, Read, Recovery};
use stilling_ring::{Full, Receiver, Sender, Wake, mailbox, planted};

use super::limits::{LOCK_WAIT, OPEN_LOOK, OPEN_RETRY};
use super::opened::{OpeningThread, StreamStore, finding, write_method};
use crate::lifecycle::{Lifecycle, Stage};

/// Events of an opening that may be unread. Full: the opening waits.
const OPENING_EVENTS_MAX: usize = 4;

/// Everything that opening needs.
#[derive(Clone)]
pub(crate) struct OpeningJob<S> {
    /// Those on disk.
    pub(super) streams: Vec<StreamConfig>,
    pub(super) store: S,
    /// The creation time of streams that are new.
    pub(super) created_ns: UnixNanos,
    pub(super) key: HashKey,
    /// Wakes the hub's runner.
    pub(super) wake: Arc<Wake>,
    /// Set to the thread that opens, to wake it.
    pub(super) thread: OpeningThread,
    pub(super) report: fn(&str),
}

/// Begins an opening.
pub(super) type DeferredOpening = Box<dyn FnOnce() -> io::Result<Receiver<OpeningEvent>> + Send>;

/// What an opening reports.
pub(super) enum OpeningEvent {
    /// What became of the streams that were not open yet. Streams are numbered as on disk.
    Round {
        /// Those that write and read what was opened, in that order.
        threads: Option<Box<Threads>>,
        opened: Vec<OpenedStream>,
        /// These are tried again. Only those whose reason is new.
        failed: Vec<(usize, Arc<str>)>,
    },
    /// There is no directory: the streams are empty, and the first record makes it.
    Absent(Vec<Recovered>, DeferredOpening),
}

/// A stream that was opened.
pub(super) struct OpenedStream {
    pub(super) stream: usize,
    pub(super) recovered: Recovered,
}

/// Streams that are being opened.
pub(crate) struct Opening<S: StreamStore> {
    job: OpeningJob<S>,
    events: EventSender,
    phase: OpeningPhase,
    /// Those that are not open, with the reason that was reported last.
    closed: Vec<(usize, Option<Arc<str>>)>,
    /// Open, without threads.
    logs: Vec<(usize, Log<S::Disk>)>,
    opened: Vec<OpenedStream>,
}

enum OpeningPhase {
    /// The predecessor has not released the streams.
    Waits(Arc<Lifecycle>),
    /// Locks that are held are tried again without a report until that time.
    Opens(Option<Instant>),
    Done,
}

/// The events for the hub, in order; the last one may wait for room.
pub(super) struct EventSender {
    events: Sender<OpeningEvent>,
    unsent: Option<OpeningEvent>,
    wake: Arc<Wake>,
}

impl EventSender {
    pub(super) fn new(events: Sender<OpeningEvent>, wake: Arc<Wake>) -> EventSender {
        EventSender { events, unsent: None, wake }
    }

    /// Hands an event to the hub when there is room. The one before it has been [sent](EventSender::flush).
    pub(super) fn send(&mut self, event: OpeningEvent) {
        debug_assert!(self.unsent.is_none(), "an event is dropped");
        self.unsent = Some(event);
        self.flush();
    }

    /// Whether nothing waits for room any more.
    pub(super) fn flush(&mut self) -> bool {
        let Some(event) = self.unsent.take() else { return true };
        if let Err(Full(event)) = self.events.push(event) {
            self.unsent = Some(event);
            return false;
        }
        self.events.publish();
        self.wake.force();
        true
    }
}

impl<S: StreamStore> Opening<S> {
    /// Does what there is to do at `now`. Returns how long nothing is to be done, if nothing changes; none if it has come to
    /// its end, because all streams are open or the hub has gone.
    pub(crate) fn step(&mut self, now: Instant) -> Option<Duration> {
        if self.events.events.is_closed() {
            return None;
        }
        if !self.events.flush() {
            return Some(OPEN_LOOK);
        }
        match &self.phase {
            OpeningPhase::Waits(lifecycle) => {
                if !lifecycle.has_reached(Stage::Released) && !planted!("early opening") {
                    return Some(OPEN_LOOK);
                }
                if self.job.store.exists() {
                    // A process that is ending may hold the locks a moment longer.
                    self.phase = OpeningPhase::Opens(Some(now + LOCK_WAIT));
                } else {
                    self.phase = OpeningPhase::Done;
                    self.events.send(self.job.absent());
                }
                Some(Duration::ZERO)
            }
            OpeningPhase::Opens(patient_until) => self.round(*patient_until, now),
            OpeningPhase::Done => None,
        }
    }

    /// What the streams are kept in.
    pub(super) fn store(&self) -> &S {
        &self.job.store
    }

    /// Wakes the hub's runner.
    pub(super) fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.job.wake)
    }

    fn round(&mut self, patient_until: Option<Instant>, now: Instant) -> Option<Duration> {
        let (failures, are_locks) = self.try_all();
        if !failures.is_empty() && are_locks && patient_until.is_some_and(|until| now < until) {
            return Some(OPEN_LOOK);
        }
        if let Some(event) = self.conclude(failures, now) {
            self.events.send(event);
        }
        if self.closed.is_empty() {
            self.phase = OpeningPhase::Done;
            return Some(Duration::ZERO);
        }
        Some(OPEN_RETRY)
    }

    /// Opens those that are closed, each by itself. Returns the failures, and whether all of them are locks.
    fn try_all(&mut self) -> (Vec<(usize, Arc<str>)>, bool) {
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

    /// What the hub is to know of a round; nothing if it knows everything.
    fn conclude(&mut self, mut failures: Vec<(usize, Arc<str>)>, now: Instant) -> Option<OpeningEvent> {
        let (logs, mut opened) = (std::mem::take(&mut self.logs), std::mem::take(&mut self.opened));
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
                (self.job.report)(&format!(
                    "the stream {name} cannot be opened, and is tried again: {reason}"
                ));
            }
            is_new
        });
        let is_news = threads.is_some() || !failures.is_empty();
        is_news.then_some(OpeningEvent::Round { threads, opened, failed: failures })
    }
}

impl<S: StreamStore> OpeningJob<S> {
    fn open(&self, number: usize) -> Result<(Log<S::Disk>, Recovered), OpenError> {
        let stream = &self.streams[number];
        let (log, recovery) = self.store.open(number, stream, self.created_ns)?;
        let recovered = recover(stream, self.key, &log, &recovery)?;
        finding(&stream.name, &recovery).into_iter().for_each(|line| (self.report)(&line));
        (self.report)(&write_method(&log));
        Ok((log, recovered))
    }

    fn absent(&self) -> OpeningEvent {
        // Without threads of its own the next opening starts them.
        let _ = self.store.prepare();
        let resumed = Resumed { created_ns: self.created_ns, ..Resumed::default() };
        let empty = self.streams.iter().map(|stream| Recovered::new(stream, self.key, resumed));
        OpeningEvent::Absent(empty.collect(), deferred(self.clone()))
    }
}

/// Where a stream goes on, with the message ids that it knows.
pub(super) fn recover<D: Disk>(
    stream: &StreamConfig,
    key: HashKey,
    log: &Log<D>,
    recovery: &Recovery,
) -> Result<Recovered, OpenError> {
    let (first, created_ns) = (recovery.first.max(1), log.created_ns());
    let resumed = Resumed { first, next: recovery.next, created_ns };
    let mut recovered = Recovered::new(stream, key, resumed);
    recovered.set_extent(log.extent());
    // Nothing before it was in the window when its segment was made; what is too old since is left out by time.
    let from = if stream.dedup_time_ns == 0 { recovery.next } else { recovery.deduplicate_from.max(1) };
    let mut reader = log.source().read_from(stilling_journal::From::Sequence(from));
    loop {
        // With a part of the window missing, messages sent again would be stored again, unnoticed.
        let read = reader.read().map_err(|source| OpenError::Disk { place: log.place(), source })?;
        match read {
            Read::Batch(_) if planted!("forgotten window") => {}
            Read::Batch(batch) => recovered.remember(batch),
            Read::Gap(gap) => recovered.report_unreadable(gap),
            Read::End => break,
        }
    }
    if !recovery.findings.is_empty() {
        recovered.report_findings(&recovery.findings.to_string());
    }
    Ok(recovered)
}

/// An opening that begins when it is called, and waits for no predecessor.
pub(super) fn deferred<S: StreamStore>(job: OpeningJob<S>) -> DeferredOpening {
    Box::new(move || begin_opening(job, None))
}

/// Begins to open, with a `lifecycle` when that has reached the release.
pub(super) fn begin_opening<S: StreamStore>(
    job: OpeningJob<S>,
    lifecycle: Option<Arc<Lifecycle>>,
) -> io::Result<Receiver<OpeningEvent>> {
    let (events, received) = mailbox(OPENING_EVENTS_MAX);
    let thread = Arc::clone(&job.thread);
    let opening = Opening {
        events: EventSender::new(events, Arc::clone(&job.wake)),
        phase: lifecycle.map_or(OpeningPhase::Opens(None), OpeningPhase::Waits),
        closed: (0..job.streams.len()).map(|stream| (stream, None)).collect(),
        logs: Vec::new(),
        opened: Vec::new(),
        job,
    };
    if let Some(handle) = S::run(opening)? {
        let _ = thread.set(handle);
    }
    Ok(received)
}
