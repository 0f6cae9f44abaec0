//! The public publisher: accepts messages, waits for acknowledgements, reports outcomes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use stilling_journal::disk::file::FileDisk;
use stilling_journal::{Findings, OpenError};
use stilling_wire::nats::{BadHeader, MESSAGE_ID, Subject, SubjectLimits, encode_headers};

use crate::address::BadAddress;
use crate::config::{OverflowPolicy, PublishMode, PublisherConfig, SpoolMode};
use crate::connection_error::ConnectionError;
use crate::identity;
use crate::limits::{self, SERVERS_MAX};
use crate::link::PublisherLink;
use crate::outcome::{DropReason, PublishFailure, PublishOutcome, PublisherCounts};
use crate::publisher_thread::{PublisherThread, WAKER};
use crate::shared::{PublisherState, SharedState};
use crate::spool::disk::{self, DiskSpool};
use crate::spool::{Spool, memory::MemorySpool};
use crate::spool_entry::{OutgoingMessage, SpoolEntry};
use crate::ticket::{OutcomeSender, OutcomeSlot, PublishTicket};

/// The reason why a publisher did not start. An unreachable server is not an error.
#[derive(Debug)]
pub enum StartError {
    /// The address cannot be parsed.
    Address(BadAddress),
    /// No server is configured, or more than [`SERVERS_MAX`].
    Servers(usize),
    /// The spool's directory cannot be created or written.
    Directory(std::io::Error),
    /// The spool cannot be opened.
    Spool(OpenError),
    /// The system provides no thread or no descriptors.
    System(std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Address(bad) => bad.fmt(f),
            StartError::Servers(count) => {
                write!(f, "{count} servers are configured: give 1 to {SERVERS_MAX}")
            }
            StartError::Directory(error) => write!(f, "the spool: {error}"),
            StartError::Spool(error) => write!(f, "the spool: {error}"),
            StartError::System(error) => {
                write!(f, "cannot create a thread or descriptors for a publisher: {error}")
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Address(error) => Some(error),
            StartError::Directory(error) | StartError::System(error) => Some(error),
            StartError::Spool(error) => Some(error),
            StartError::Servers(_) => None,
        }
    }
}

/// Sends messages to a server over one connection, which is re-established after each loss.
///
/// Threads may share it. Dropping it ends its thread; undelivered messages stay in the spool's directory, if there is
/// one, and are lost otherwise: [`close`](Publisher::close) waits and reports.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<SharedState>,
    mode: PublishMode,
    spool_mode: SpoolMode,
    overflow: OverflowPolicy,
    spool_size: u64,
    send_timeout: Duration,
    /// Prefix of each `Nats-Msg-Id`.
    name: String,
    numbers: AtomicU64,
    findings: Findings,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// A publisher for one server with default configuration.
    ///
    /// # Errors
    /// [`StartError`]; an unreachable server is no error.
    pub fn connect(address: &str) -> Result<Publisher, StartError> {
        let server = address.parse().map_err(StartError::Address)?;
        Publisher::new(PublisherConfig { servers: vec![server], ..PublisherConfig::default() })
    }

    /// A publisher. Its thread starts to connect at once.
    ///
    /// # Errors
    /// [`StartError`]; an unreachable server is no error.
    pub fn new(config: PublisherConfig) -> Result<Publisher, StartError> {
        if config.servers.is_empty() || config.servers.len() > SERVERS_MAX {
            return Err(StartError::Servers(config.servers.len()));
        }
        let config = config.bounded();
        let poll = Poll::new().map_err(StartError::System)?;
        let shared = SharedState::new(Waker::new(poll.registry(), WAKER).map_err(StartError::System)?);
        let mut findings = Findings::default();
        let spool: Box<dyn Spool> = match &config.spool_mode {
            SpoolMode::Attempts | SpoolMode::Memory => Box::new(MemorySpool::default()),
            SpoolMode::Directory(path) => {
                let directory = FileDisk::open_or_create(path).map_err(StartError::Directory)?;
                let opened = DiskSpool::open(directory, config.spool_size).map_err(StartError::Spool)?;
                let mut state = shared.lock();
                state.recovered = opened.messages;
                state.held = (opened.messages, opened.bytes);
                findings = opened.findings;
                Box::new(opened.spool)
            }
        };
        let shared = Arc::new(shared);
        let seed = config.seed.unwrap_or_else(identity::random_seed);
        let link = PublisherLink::new(config.clone(), spool, seed, Instant::now());
        let publisher_thread = PublisherThread::new(Arc::clone(&shared), link, poll, &config);
        let thread = std::thread::Builder::new()
            .name("stilling-publisher".to_owned())
            .spawn(move || publisher_thread.run())
            .map_err(StartError::System)?;
        Ok(Publisher {
            shared,
            mode: config.mode,
            spool_mode: config.spool_mode,
            overflow: config.overflow,
            spool_size: config.spool_size,
            send_timeout: config.send_timeout,
            name: identity::random_name(),
            numbers: AtomicU64::new(0),
            findings,
            thread: Some(thread),
        })
    }

    /// Sends a message according to the [`PublishMode`]: waits for its acknowledgement, or returns at once.
    pub fn send(&self, subject: &str, payload: &[u8]) -> PublishOutcome {
        self.send_with(subject, &[], payload)
    }

    /// [`send`](Publisher::send) with additional headers.
    pub fn send_with(&self, subject: &str, headers: &[(&str, &str)], payload: &[u8]) -> PublishOutcome {
        let deadline = Instant::now() + self.send_timeout;
        let waits = self.mode == PublishMode::Confirmed;
        let ticket = match self.enqueue(subject, headers, payload, waits, waits.then_some(deadline)) {
            Ok(Some(ticket)) => ticket,
            Ok(None) => return PublishOutcome::Queued,
            Err(reason) => return PublishOutcome::Dropped(reason),
        };
        if let Some(outcome) = ticket.wait(deadline.saturating_duration_since(Instant::now())) {
            return outcome;
        }
        let Some(slot) = ticket.slot() else { return PublishOutcome::Queued };
        let is_retained = self.spool_mode != SpoolMode::Attempts;
        if !is_retained {
            slot.cancel();
        }
        // The outcome may have arrived just now; after `detach`, a failure goes to `failures`.
        let late =
            if is_retained { PublishOutcome::Queued } else { PublishOutcome::Dropped(DropReason::TimedOut) };
        slot.detach().unwrap_or(late)
    }

    /// Queues a message and returns at once, or, with [`OverflowPolicy::Wait`], as soon as there is room: many messages
    /// can be in flight. In the mode [`PublishMode::OneWay`] the ticket is resolved at once.
    pub fn submit(&self, subject: &str, payload: &[u8]) -> PublishTicket {
        self.submit_with(subject, &[], payload)
    }

    /// [`submit`](Publisher::submit) with additional headers.
    pub fn submit_with(&self, subject: &str, headers: &[(&str, &str)], payload: &[u8]) -> PublishTicket {
        let waits = self.mode != PublishMode::OneWay;
        let deadline = (self.mode == PublishMode::Confirmed).then(|| Instant::now() + self.send_timeout);
        match self.enqueue(subject, headers, payload, waits, deadline) {
            Ok(Some(ticket)) => ticket,
            Ok(None) => PublishTicket::resolved(PublishOutcome::Queued),
            Err(reason) => PublishTicket::resolved(PublishOutcome::Dropped(reason)),
        }
    }

    /// Waits until no message is held, at most for `timeout`, and returns the counters: `held` is the number of
    /// undelivered messages.
    pub fn flush(&self, timeout: Duration) -> PublisherCounts {
        let deadline = Some(limits::deadline(Instant::now(), timeout));
        let mut state = self.shared.lock();
        loop {
            if state.held.0 == 0 || state.ended {
                return state.counts();
            }
            let (again, in_time) = self.shared.wait(state, deadline);
            state = again;
            if !in_time {
                return state.counts();
            }
        }
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> PublisherCounts {
        self.shared.lock().counts()
    }

    /// The current connection error; `None` while connected.
    #[must_use]
    pub fn connection_error(&self) -> Option<ConnectionError> {
        let state = self.shared.lock();
        state.connection_error.clone().filter(|_| !state.is_ready)
    }

    /// Whether the connection is established.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.lock().is_ready
    }

    /// Removes and returns the messages that were dropped after their callers had stopped waiting, oldest first. At
    /// most [`FAILURES_MAX`](crate::limits::FAILURES_MAX) are kept; [`failures_lost`](Publisher::failures_lost) counts
    /// the others, and [`PublisherCounts::dropped`] counts all.
    pub fn failures(&self) -> impl Iterator<Item = PublishFailure> {
        std::mem::take(&mut self.shared.lock().failures).into_iter()
    }

    /// Failures that were discarded because earlier ones had not been fetched.
    #[must_use]
    pub fn failures_lost(&self) -> u64 {
        self.shared.lock().failures_lost
    }

    /// Passes each further failure to `callback` instead of keeping it. The callback runs on the publisher's thread and
    /// must return soon: nothing is sent meanwhile.
    pub fn on_failure(&self, callback: impl FnMut(&PublishFailure) + Send + 'static) {
        self.shared.lock().callback = Some(Box::new(callback));
    }

    /// Damage found in the spool's directory when it was opened.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Waits until all messages are delivered, at most for `timeout`, ends the publisher and returns the counters.
    /// Messages that `held` counts afterwards are in the spool's directory; without a directory they are dropped.
    pub fn close(mut self, timeout: Duration) -> PublisherCounts {
        let _ = self.flush(timeout);
        self.stop();
        self.counts()
    }

    fn stop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.stop = true;
            self.shared.wake(&mut state);
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread needs no handling here: `SharedState::end` has run.
            let _ = thread.join();
        }
    }

    /// Passes a message to the thread; returns a ticket if requested.
    fn enqueue(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
        wants_ticket: bool,
        deadline: Option<Instant>,
    ) -> Result<Option<PublishTicket>, DropReason> {
        if let Err(bad) = Subject::parse(subject.as_bytes(), &SubjectLimits::default()) {
            return self.refuse(DropReason::InvalidSubject(bad.to_string()));
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let message = match self.message(subject, headers, payload, number) {
            Ok(message) => message,
            Err(bad) => return self.refuse(DropReason::InvalidHeader(bad.to_string())),
        };
        let cost = match self.spool_mode {
            SpoolMode::Attempts | SpoolMode::Memory => message.cost(),
            SpoolMode::Directory(_) => disk::cost(&message),
        };
        let mut entry = SpoolEntry::new(message, cost);
        entry.since = Some(Instant::now());
        let slot = wants_ticket.then(OutcomeSlot::default);
        entry.ticket = slot.clone().map(OutcomeSender::new);
        let mut state = self.shared.lock();
        // Submission and outcome are counted under one lock, so that the counters always balance.
        while !self.make_room(&mut state, cost) {
            let in_time = match (self.overflow, deadline) {
                (OverflowPolicy::Wait, Some(deadline)) if !state.ended && cost <= self.spool_size => {
                    let (again, in_time) = self.shared.wait(state, Some(deadline));
                    state = again;
                    in_time
                }
                _ => false,
            };
            if !in_time {
                state.submitted += 1;
                state.dropped += 1;
                return Err(DropReason::SpoolFull);
            }
        }
        state.submitted += 1;
        if state.ended {
            state.dropped += 1;
            return Err(DropReason::Closed);
        }
        state.held.0 += 1;
        state.held.1 += cost;
        state.submissions.push_back(entry);
        self.shared.wake(&mut state);
        Ok(slot.map(PublishTicket::waiting))
    }

    /// Whether a message of this cost is accepted. With [`OverflowPolicy::DropOldest`] every message that fits the
    /// spool is accepted. The thread drops old ones; until then the spool may exceed its size by a quarter, and beyond
    /// that the oldest messages that the thread has not yet received are dropped here.
    fn make_room(&self, state: &mut PublisherState, cost: u64) -> bool {
        if self.overflow != OverflowPolicy::DropOldest {
            return state.held.1.saturating_add(cost) <= self.spool_size;
        }
        if cost > self.spool_size {
            return false;
        }
        let most = self.spool_size.saturating_add(self.spool_size / 4);
        while state.held.1.saturating_add(cost) > most
            && let Some(oldest) = state.submissions.pop_front()
        {
            state.held.0 -= 1;
            state.held.1 -= oldest.cost;
            state.dropped += 1;
            match &oldest.ticket {
                Some(ticket) if ticket.complete(PublishOutcome::Dropped(DropReason::SpoolFull)) => {}
                _ => {
                    let subject = String::from_utf8_lossy(oldest.message.subject()).into_owned();
                    state.fail(PublishFailure {
                        subject,
                        id: oldest.message.id(),
                        reason: DropReason::SpoolFull,
                    });
                }
            }
        }
        true
    }

    fn message(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
        number: u64,
    ) -> Result<OutgoingMessage, BadHeader> {
        if self.mode == PublishMode::OneWay && headers.is_empty() {
            return Ok(OutgoingMessage::new(subject.as_bytes(), &[], payload));
        }
        let id = format!("{}-{number}", self.name);
        let mut block = Vec::with_capacity(64);
        let has_id = self.mode == PublishMode::OneWay || headers.iter().any(|(name, _)| *name == MESSAGE_ID);
        if has_id {
            encode_headers(&mut block, None, headers)?;
        } else if headers.is_empty() {
            encode_headers(&mut block, None, &[(MESSAGE_ID, &id)])?;
        } else {
            let mut all = vec![(MESSAGE_ID, id.as_str())];
            all.extend_from_slice(headers);
            encode_headers(&mut block, None, &all)?;
        }
        Ok(OutgoingMessage::new(subject.as_bytes(), &block, payload))
    }

    fn refuse(&self, reason: DropReason) -> Result<Option<PublishTicket>, DropReason> {
        let mut state = self.shared.lock();
        state.submitted += 1;
        state.dropped += 1;
        Err(reason)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_message_pushes_out_as_many_old_ones_as_it_needs_room() {
        let config = PublisherConfig {
            servers: vec!["nats://127.0.0.1:1".parse().expect("an address")],
            overflow: OverflowPolicy::DropOldest,
            spool_size: 2000,
            ..PublisherConfig::default()
        };
        let publisher = Publisher::new(config).expect("it can work");
        let mut state = PublisherState::default();
        for _ in 0..20 {
            state.submissions.push_back(SpoolEntry::new(OutgoingMessage::new(b"a", b"", b""), 100));
        }
        state.held = (20, 2000);
        assert!(publisher.make_room(&mut state, 2000));
        assert_eq!((state.held, state.dropped, state.submissions.len()), ((5, 500), 15, 5));
        assert_eq!(state.failures.len(), 15);
        assert!(!publisher.make_room(&mut state, 2001), "it never fits");
        assert_eq!(state.held, (5, 500), "and pushes nothing out");
    }
}
