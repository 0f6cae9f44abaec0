//! The publisher's connection as a state machine without socket and clock: methods take events and return commands.
//! Time is an argument, so that tests reproduce every failure to the millisecond.
//!
//! ```text
//!             ┌────────────────────── failure: backoff wait, next server ─────────────────────────────────┐
//!             ▼                                                                                           │
//!   Waiting ──► Connecting ──► Handshaking (INFO, CONNECT, PING, PONG) ──► Ready ──► (lame duck: drain) ──┘
//!
//!   spool ─► window ─► output ─► server ─► answer ─► completed: delivered | dropped
//!              ▲                     │
//!              └── due again ◄───────┘  lost, late, refused for now
//! ```
//!
//! A message leaves the window only with an answer, or dropped with a reason. After a failure all unanswered messages
//! are sent again, in order and under their old `Nats-Msg-Id`, as fast as the retry budget allows.

mod completion;
mod publish_response;
mod send_order;
mod send_window;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use stilling_wire::nats::{NatsLimits, PING, PONG, ServerDecoder, ServerEvent, encode_sub};

use crate::address::ServerUrl;
use crate::backoff::{JitterRng, RetryBackoff, RetryBudget, RetryBudgetConfig};
use crate::config::{PublishMode, PublisherConfig, SpoolMode};
use crate::connection_error::ConnectionError;
use crate::handshake::{ConnectOptions, Handshake, ServerLimits};
use crate::identity::Inbox;
use crate::limits::{ANSWER_SIZE_MAX, OUTPUT_SIZE, UNACKNOWLEDGED_MAX};
use crate::outcome::{DropReason, PublishFailure, PublishOutcome, PublisherCounts};
use crate::spool::Spool;
use crate::spool_entry::SpoolEntry;
pub(crate) use completion::LinkUpdate;
use send_window::{SendCause, SendStage, SendWindow};

const REPLY_SID: &[u8] = b"1";

/// Commands for the publisher's thread: first close the current connection, then connect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LinkCommands {
    pub(crate) close: bool,
    pub(crate) connect: Option<ServerUrl>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkState {
    Waiting { until: Instant },
    Connecting { deadline: Instant },
    Handshaking { deadline: Instant, handshake: Handshake },
    Ready { server_limits: ServerLimits },
}

#[derive(Debug, Default)]
struct LinkConnection {
    out: Vec<u8>,
    flushed: usize,
    /// Total bytes of output, including those no longer in `out`.
    written: u64,
    input: Vec<u8>,
    decoder: ServerDecoder,
    /// For each unanswered PING, the token below which all messages had been written.
    barriers: VecDeque<u64>,
    /// The token of the last barrier.
    barrier_token: u64,
    /// When the oldest unanswered PING was written, or the PONG before it was received.
    ping_sent_at: Option<Instant>,
    /// Until when the answers of a lame duck are awaited.
    drain_until: Option<Instant>,
}

impl LinkConnection {
    fn flushed_total(&self) -> u64 {
        self.written - (self.out.len() - self.flushed) as u64
    }

    fn ping(&mut self, now: Instant, token: u64) {
        self.out.extend_from_slice(PING);
        self.written += PING.len() as u64;
        self.barriers.push_back(token);
        self.barrier_token = token;
        self.ping_sent_at.get_or_insert(now);
    }
}

pub(crate) struct PublisherLink {
    config: PublisherConfig,
    limits: NatsLimits,
    unacknowledged: usize,
    inbox: Inbox,
    backoff: RetryBackoff,
    budget: RetryBudget,
    random: JitterRng,
    spool: Box<dyn Spool>,
    window: SendWindow,
    state: LinkState,
    connection: LinkConnection,
    last_received: Instant,
    server: usize,
    failed_connections: u64,
    close: bool,
    /// A failure has occurred, so messages may have used up their attempts.
    needs_exhausted_check: bool,
    resume_at: Option<Instant>,
    send_at: Option<Instant>,
    /// When the first rejected message is to be dropped.
    rejection_deadline: Option<Instant>,
    answer_at: Option<Instant>,
    reply: Vec<u8>,
    connection_error: Option<ConnectionError>,
    counts: PublisherCounts,
    /// Number and cost of the messages no longer held, since the last update.
    released: (u64, u64),
    failures: Vec<PublishFailure>,
}

impl PublisherLink {
    pub(crate) fn new(
        config: PublisherConfig,
        spool: Box<dyn Spool>,
        seed: u64,
        now: Instant,
    ) -> PublisherLink {
        let limits = NatsLimits {
            payload_size_max: ANSWER_SIZE_MAX,
            whole_size_max: u32::MAX,
            ..NatsLimits::for_client()
        };
        let unacknowledged = config.unacknowledged.clamp(1, UNACKNOWLEDGED_MAX);
        // One lost connection leaves at most a window of messages, which are sent again at once.
        let window = u32::try_from(unacknowledged).unwrap_or(u32::MAX);
        let budget = RetryBudgetConfig { burst: config.budget.burst.max(window), ..config.budget };
        PublisherLink {
            limits,
            unacknowledged,
            inbox: Inbox::new(),
            backoff: RetryBackoff::new(config.backoff),
            budget: RetryBudget::new(budget, now),
            random: JitterRng::new(seed),
            spool,
            window: SendWindow::default(),
            state: LinkState::Waiting { until: now },
            connection: LinkConnection::default(),
            last_received: now,
            server: 0,
            failed_connections: 0,
            close: false,
            needs_exhausted_check: false,
            resume_at: None,
            send_at: None,
            rejection_deadline: None,
            answer_at: None,
            reply: Vec::new(),
            connection_error: None,
            counts: PublisherCounts::default(),
            released: (0, 0),
            failures: Vec::new(),
            config,
        }
    }

    /// Accepts a submitted message. The spool has stored it safely after the next turn.
    pub(crate) fn submit(&mut self, mut entry: SpoolEntry) {
        entry.failed_connections_before = self.failed_connections;
        self.spool.push(entry);
    }

    pub(crate) fn commit(&mut self, unix_ns: u64) {
        for (entry, reason) in self.spool.commit(unix_ns) {
            self.drop_entry(entry, reason);
        }
    }

    /// Drops the oldest message that has not been sent and returns its cost; `None` if there is none.
    pub(crate) fn drop_oldest(&mut self) -> Option<u64> {
        let entry = self.spool.pop()?;
        let cost = entry.cost;
        self.window.skip(cost);
        self.drop_entry(entry, DropReason::SpoolFull);
        Some(cost)
    }

    /// Applies the timeouts. All data that arrived before `now` must have been passed to `received`: a late caller must
    /// not cause timeouts.
    pub(crate) fn check_timeouts(&mut self, now: Instant) {
        match self.state {
            LinkState::Connecting { deadline } if now >= deadline => {
                let server = self.server_name();
                self.connection_lost(now, ConnectionError::ConnectTimeout { server });
            }
            LinkState::Handshaking { deadline, .. } if now >= deadline => {
                let server = self.server_name();
                self.connection_lost(now, ConnectionError::HandshakeTimeout { server });
            }
            LinkState::Ready { .. } => self.check_liveness(now),
            LinkState::Waiting { .. } | LinkState::Connecting { .. } | LinkState::Handshaking { .. } => {}
        }
    }

    /// Stores new messages safely, handles what is due and writes messages that may be sent.
    pub(crate) fn turn(&mut self, now: Instant, unix_ns: u64) -> LinkCommands {
        self.commit(unix_ns);
        let mut connect = None;
        match self.state {
            LinkState::Waiting { until } if now >= until => {
                connect = self.config.servers.get(self.server).cloned();
                self.state = LinkState::Connecting { deadline: now + self.config.connect_timeout };
            }
            LinkState::Ready { .. } if self.connection.drain_until.is_some() => {
                self.disconnect_if_drained(now);
            }
            LinkState::Waiting { .. }
            | LinkState::Connecting { .. }
            | LinkState::Handshaking { .. }
            | LinkState::Ready { .. } => {}
        }
        if std::mem::take(&mut self.needs_exhausted_check) {
            self.handle_exhausted();
        }
        if let LinkState::Ready { server_limits } = self.state {
            self.send_due(now, server_limits);
            if self.drop_expired_rejections(now) {
                // The dropped messages may have blocked others.
                self.send_due(now, server_limits);
            }
        }
        for cost in self.spool.lost() {
            self.count_drop(cost, String::new(), String::new(), DropReason::SpoolDamaged);
        }
        self.spool.release_below(self.window.oldest_id().min(self.spool.next_id()), now);
        if self.spool.checkpoint_at().is_some_and(|at| now >= at) {
            self.spool.checkpoint(unix_ns);
        }
        LinkCommands { close: std::mem::take(&mut self.close), connect }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let own = match self.state {
            LinkState::Waiting { until } => Some(until),
            LinkState::Connecting { deadline } | LinkState::Handshaking { deadline, .. } => Some(deadline),
            LinkState::Ready { .. } => {
                let ping = match self.connection.ping_sent_at {
                    Some(ping_sent_at) => ping_sent_at + self.config.acknowledge_timeout,
                    None => self.last_received + self.config.ping_interval,
                };
                let others =
                    [self.answer_at, self.send_at, self.rejection_deadline, self.connection.drain_until];
                Some(others.into_iter().flatten().fold(ping, Instant::min))
            }
        };
        [own, self.spool.checkpoint_at()].into_iter().flatten().min()
    }

    pub(crate) fn connected(&mut self, now: Instant) {
        if let LinkState::Connecting { deadline } = self.state {
            let first = self.window.iter().next().map(|(token, _)| token);
            let barrier_token = first.unwrap_or(self.window.next_token());
            self.connection = LinkConnection { barrier_token, ..LinkConnection::default() };
            self.last_received = now;
            self.state = LinkState::Handshaking { deadline, handshake: Handshake::AwaitingInfo };
        }
    }

    pub(crate) fn closed(&mut self, now: Instant, connection_error: ConnectionError) {
        if !matches!(self.state, LinkState::Waiting { .. }) {
            self.connection_lost(now, connection_error);
            // The thread has closed the connection already.
            self.close = false;
        }
    }

    pub(crate) fn received(&mut self, now: Instant, bytes: &[u8]) {
        if !matches!(self.state, LinkState::Handshaking { .. } | LinkState::Ready { .. }) {
            return;
        }
        self.last_received = now;
        let mut input = std::mem::take(&mut self.connection.input);
        input.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let step = match self.connection.decoder.decode(&self.limits, &input[at..]) {
                Ok(step) => step,
                Err(error) => return self.connection_lost(now, ConnectionError::Protocol(error.to_string())),
            };
            at += step.consumed;
            if step.event == ServerEvent::NeedMore {
                break;
            }
            if let Err(connection_error) = self.handle_event(now, &step.event) {
                return self.connection_lost(now, connection_error);
            }
        }
        input.drain(..at);
        self.connection.input = input;
    }

    pub(crate) fn output(&self) -> &[u8] {
        &self.connection.out[self.connection.flushed..]
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.connection.flushed += count;
        if self.connection.flushed >= self.connection.out.len() {
            self.connection.out.clear();
            self.connection.flushed = 0;
        } else if self.connection.flushed >= OUTPUT_SIZE {
            self.connection.out.drain(..self.connection.flushed);
            self.connection.flushed = 0;
        }
    }

    /// Closes the spool. Messages that it does not retain are dropped.
    pub(crate) fn close(&mut self, now: Instant, unix_ns: u64) {
        let is_retained = matches!(self.config.spool_mode, SpoolMode::Directory(_));
        self.commit(unix_ns);
        self.spool.release_below(self.window.oldest_id().min(self.spool.next_id()), now);
        if is_retained {
            let answer = |entry: &mut SpoolEntry| {
                entry.ticket.take().is_some_and(|it| it.complete(PublishOutcome::Queued))
            };
            for token in self.window.tokens() {
                self.window.get_mut(token).map(|flight| answer(&mut flight.entry));
            }
            let _ = self.spool.retain(&mut |entry| {
                answer(entry);
                true
            });
            return self.spool.close(unix_ns);
        }
        for token in self.window.tokens() {
            self.drop_token(token, DropReason::Closed);
        }
        while let Some(entry) = self.spool.pop() {
            self.drop_entry(entry, DropReason::Closed);
        }
    }

    fn server_name(&self) -> String {
        self.config.servers.get(self.server).map(ToString::to_string).unwrap_or_default()
    }

    fn is_one_way(&self) -> bool {
        self.config.mode == PublishMode::OneWay
    }

    fn handle_event(&mut self, now: Instant, event: &ServerEvent<'_>) -> Result<(), ConnectionError> {
        match self.state {
            LinkState::Handshaking { deadline, mut handshake } => {
                let connect_options = ConnectOptions {
                    credentials: &self.config.servers[self.server].credentials,
                    name: self.config.name.as_deref(),
                    needs_headers: !self.is_one_way(),
                };
                let before = self.connection.out.len();
                let server_limits =
                    handshake.handle_event(event, &connect_options, &mut self.connection.out)?;
                self.connection.written += (self.connection.out.len() - before) as u64;
                self.state = match server_limits {
                    None => LinkState::Handshaking { deadline, handshake },
                    Some(server_limits) => self.enter_ready(server_limits),
                };
                Ok(())
            }
            LinkState::Ready { server_limits } => self.handle_ready_event(now, event, server_limits),
            LinkState::Waiting { .. } | LinkState::Connecting { .. } => Ok(()),
        }
    }

    fn enter_ready(&mut self, server_limits: ServerLimits) -> LinkState {
        self.counts.connected += 1;
        self.connection_error = None;
        let before = self.connection.out.len();
        if !self.is_one_way() {
            encode_sub(&mut self.connection.out, &self.inbox.filter(), None, REPLY_SID);
        }
        self.connection.written += (self.connection.out.len() - before) as u64;
        LinkState::Ready { server_limits }
    }

    fn handle_ready_event(
        &mut self,
        now: Instant,
        event: &ServerEvent<'_>,
        server_limits: ServerLimits,
    ) -> Result<(), ConnectionError> {
        match event {
            ServerEvent::Message(delivery) => {
                match self.inbox.token(delivery.subject) {
                    Some(token) => self.handle_response(now, token, delivery.headers, delivery.payload),
                    None => self.counts.stray_answers += 1,
                }
                Ok(())
            }
            ServerEvent::Ping => {
                self.connection.out.extend_from_slice(PONG);
                self.connection.written += PONG.len() as u64;
                Ok(())
            }
            ServerEvent::Pong => {
                self.handle_pong(now);
                Ok(())
            }
            ServerEvent::Info(json) => {
                // INFO may arrive at any time; only lame duck mode matters.
                let is_lame_duck = stilling_wire::nats::Info::parse(json).is_ok_and(|info| info.ldm);
                if is_lame_duck && self.connection.drain_until.is_none() {
                    self.connection.drain_until = Some(now + self.config.acknowledge_timeout);
                }
                Ok(())
            }
            ServerEvent::Err(text) => self.handle_server_error(text, server_limits),
            ServerEvent::Ok | ServerEvent::NeedMore => Ok(()),
            // The decoder delivers messages within the limits in one event.
            ServerEvent::MessageStart(_) | ServerEvent::Piece(_) | ServerEvent::MessageEnd => Ok(()),
        }
    }

    fn connection_lost(&mut self, now: Instant, connection_error: ConnectionError) {
        self.backoff.record_failure();
        self.failed_connections += 1;
        self.counts.connection_failures += 1;
        self.connection_error = Some(connection_error);
        let flushed_total = self.connection.flushed_total();
        for token in self.window.tokens() {
            let Some(flight) = self.window.get_mut(token) else { continue };
            let was_rejected = flight.entry.rejection.take().is_some();
            let cause = match flight.stage {
                SendStage::Sent { end, .. }
                    if end <= flushed_total && self.config.mode == PublishMode::OneWay =>
                {
                    self.drop_token(token, DropReason::Unconfirmed);
                    continue;
                }
                SendStage::Sent { end, .. } if end <= flushed_total => SendCause::Interrupted,
                // On the next connection the stream may accept it, so all messages parked for it are sent without a
                // further wait.
                SendStage::Sent { .. } | SendStage::Due(..) if was_rejected => SendCause::Interrupted,
                // The socket did not accept all of it, so the server did not receive it.
                SendStage::Sent { cause, .. } | SendStage::Due(_, cause) => cause,
            };
            self.window.set(token, SendStage::Due(now, cause));
        }
        self.disconnect(now);
        self.needs_exhausted_check = true;
    }

    fn disconnect(&mut self, now: Instant) {
        let wait = self.random.jitter(self.backoff.wait());
        self.state = LinkState::Waiting { until: now + wait };
        self.connection = LinkConnection::default();
        self.close = true;
        (self.answer_at, self.send_at, self.rejection_deadline) = (None, None, None);
        self.server = (self.server + 1) % self.config.servers.len().max(1);
    }

    fn disconnect_if_drained(&mut self, now: Instant) {
        let is_drained = self.window.iter().all(|(_, flight)| matches!(flight.stage, SendStage::Due(..)));
        if is_drained && self.output().is_empty() {
            self.connection_error = Some(ConnectionError::LameDuck);
            self.disconnect(now);
        }
    }

    /// Checks late answers, a silent server and a lame duck that does not finish.
    fn check_liveness(&mut self, now: Instant) {
        if self.connection.drain_until.is_some_and(|until| now >= until) {
            return self.connection_lost(now, ConnectionError::LameDuck);
        }
        match self.connection.ping_sent_at {
            Some(ping_sent_at) if now >= ping_sent_at + self.config.acknowledge_timeout => {
                return self.connection_lost(now, ConnectionError::Hung);
            }
            None if now >= self.last_received + self.config.ping_interval => {
                self.connection.ping(now, self.window.next_token());
            }
            _ => {}
        }
        if self.answer_at.is_some_and(|at| now >= at) {
            self.handle_overdue(now);
        }
    }

    /// Handles overdue answers: without any data since, the connection hangs and is closed; otherwise only these
    /// messages are sent again.
    fn handle_overdue(&mut self, now: Instant) {
        let timeout = self.config.acknowledge_timeout;
        let mut late = Vec::new();
        self.answer_at = None;
        for (token, flight) in self.window.iter() {
            let SendStage::Sent { at, .. } = flight.stage else { continue };
            if now >= at + timeout {
                late.push((token, at));
            } else {
                self.answer_at = Some(self.answer_at.map_or(at + timeout, |first| first.min(at + timeout)));
            }
        }
        if late.iter().any(|(_, at)| self.last_received <= *at) {
            return self.connection_lost(now, ConnectionError::Hung);
        }
        if self.is_one_way() || late.is_empty() {
            return;
        }
        self.backoff.record_failure();
        self.pause(now, Duration::ZERO);
        for (token, _) in late {
            self.window.set(token, SendStage::Due(now, SendCause::Declined));
            if let Some(flight) = self.window.get_mut(token) {
                flight.entry.attempts += 1;
            }
        }
        self.needs_exhausted_check = true;
    }

    /// Stops sending for the backoff wait, or for the server's hint if that is longer.
    fn pause(&mut self, now: Instant, hint: Duration) {
        let wait = self.random.jitter(self.backoff.wait()).max(hint);
        let until = now + wait;
        self.resume_at = Some(self.resume_at.map_or(until, |at| at.max(until)));
    }
}
