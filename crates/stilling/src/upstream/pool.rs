//! The requests of one shard for worker processes, and the shard's connections to the processes.
//!
//! ```text
//!   submit ─► Queued ─ admitted ─► idle connection ─┬─► Active ─► connection idle again
//!               ▲                  new connection ──┘      │ failure
//!               └── no process took it ◄─ Delayed ◄────────┤
//!                                     502, 503, 504 ◄──────┘
//! ```
//!
//! A process is killed only for failures that it causes, because all its other requests fail with it. If a client
//! leaves, or a response stops in the middle, only the connection is closed.
//!
//! A request is sent a second time only if the first attempt used an idle connection that turned out to be dead before
//! any byte of a response arrived, and only if that is safe: none of the request was sent, or its method is idempotent.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::{NO_FREE_SLOT, Recipient, Token};
use stilling_ring::Time;
use stilling_workers::processes::{AdmissionOutcome, ConnectionClaim, ConnectionPermit, SlotPermit};

use super::codec::AppProtocol;
use super::idle_connections::{IdleConnection, IdleConnections};
use super::limits::{CONNECT_REFUSED_MAX, CONNECT_RETRY_DELAY, EXIT_DETECTION_TIMEOUT, IDLE_REUSE_MAX};
use super::message::{ClientMessage, UpstreamEvent, UpstreamFailure};
use super::outbox::{ConnectionCommand, Outbox, UpstreamDelivery};
use super::pending_request::{PendingRequest, QueuedRequest, UpstreamError};
use super::process_streams::ProcessStreams;
use super::request::UpstreamRequest;
use super::request_queue::RequestQueue;
use super::request_table::{PoolIndex, RequestId, RequestTable};
use super::session_state::PoolSessions;

enum RequestState {
    Queued(QueuedRequest),
    /// It has a slot, and waits for [`DelayReason`].
    Delayed(Box<PendingRequest>, DelayReason),
    /// Between two other states, within one call.
    InTransition,
    /// Its connection is being opened, until that time at most.
    Connecting(Time),
    Active(Token),
}

/// What a request with a slot waits for.
enum DelayReason {
    /// A retry of the connect, at that time; at once if another shard had the sessions.
    ConnectRetry(Time),
    /// A free connection: another shard has to close one.
    NoConnection(ConnectionClaim),
    /// Its second attempt at that time, unless its process turns out to be dead before.
    Repeat(Time),
}

struct RequestEntry {
    reply_to: Recipient,
    state: RequestState,
}

/// A connection to be opened for a request.
pub(crate) struct ConnectAttempt {
    pub(super) request: Box<PendingRequest>,
    pub(super) connection_permit: ConnectionPermit,
}

/// What a connection to a process is opened with.
pub(crate) enum ConnectTarget {
    /// The path of a Unix socket.
    Path(PathBuf),
    /// A connected socket.
    Socket(OwnedFd),
}

/// How connections to the processes of a pool are opened.
#[derive(Clone, Debug)]
pub(super) enum ProcessEndpoints {
    /// By the paths of their Unix sockets.
    Paths(Vec<PathBuf>),
    Streams(ProcessStreams),
}

impl ProcessEndpoints {
    fn protocol(&self) -> AppProtocol {
        match self {
            ProcessEndpoints::Paths(_) => AppProtocol::Http,
            ProcessEndpoints::Streams(_) => AppProtocol::Frames,
        }
    }

    fn target(&self, permit: &SlotPermit) -> io::Result<ConnectTarget> {
        match self {
            ProcessEndpoints::Paths(paths) => Ok(ConnectTarget::Path(paths[permit.process()].clone())),
            ProcessEndpoints::Streams(streams) => {
                streams.connect(permit.process(), permit.generation()).map(ConnectTarget::Socket)
            }
        }
    }
}

/// The requests of one shard for worker processes.
pub(crate) struct UpstreamPool {
    queue: RequestQueue,
    endpoints: ProcessEndpoints,
    timeout: Duration,
    pub(super) sessions: Option<PoolSessions>,
    requests: RequestTable<RequestEntry>,
    idle: IdleConnections,
    /// Requests assigned to idle connections that have not begun them yet.
    assigned: Vec<(Token, Box<PendingRequest>)>,
    delayed: Vec<RequestId>,
    /// Requests in the state `Connecting`, and some that have left it.
    connecting: Vec<RequestId>,
    /// Slots that are not reused before that time, unless their process has ended.
    quarantined: Vec<(SlotPermit, Time)>,
    failed: Vec<(Box<PendingRequest>, UpstreamError)>,
    connects: Vec<ConnectAttempt>,
    pub(super) outbox: Outbox,
    abandoned_requests_open: u32,
}

impl UpstreamPool {
    pub(super) fn new(
        index: PoolIndex,
        queue: RequestQueue,
        sessions: Option<PoolSessions>,
        endpoints: ProcessEndpoints,
        timeout: Duration,
    ) -> UpstreamPool {
        UpstreamPool {
            idle: IdleConnections::new(queue.processes()),
            queue,
            sessions,
            timeout,
            requests: RequestTable::new(index),
            endpoints,
            assigned: Vec::new(),
            delayed: Vec::new(),
            connecting: Vec::new(),
            quarantined: Vec::new(),
            failed: Vec::new(),
            connects: Vec::new(),
            outbox: Outbox::default(),
            abandoned_requests_open: 0,
        }
    }

    /// The number of connections to worker processes with abandoned requests.
    pub(crate) fn abandoned_requests_open(&self) -> u32 {
        self.abandoned_requests_open
    }

    pub(super) fn abandoned_request_opened(&mut self) {
        self.abandoned_requests_open += 1;
    }

    pub(super) fn abandoned_request_closed(&mut self) {
        self.abandoned_requests_open -= 1;
    }

    /// See [`UpstreamHandle::submit`](super::UpstreamHandle::submit).
    ///
    /// # Errors
    /// Returns the request if the queue is full.
    pub(super) fn submit(
        &mut self,
        reply_to: Recipient,
        mut request: Box<UpstreamRequest>,
        now: Time,
    ) -> Result<RequestId, Box<UpstreamRequest>> {
        let id = self.requests.next_id();
        let Some(ticket) = self.queue.enqueue(now, reply_to, id) else { return Err(request) };
        request.close_head();
        if let ProcessEndpoints::Streams(streams) = &self.endpoints {
            request.put_into_frame(streams.next_number());
        }
        let state = RequestState::Queued(QueuedRequest { request, ticket });
        self.requests.insert(id, RequestEntry { reply_to, state });
        self.dispatch(now);
        Ok(id)
    }

    /// The protocol of the processes.
    pub(super) fn protocol(&self) -> AppProtocol {
        self.endpoints.protocol()
    }

    pub(crate) fn is_queued(&self, id: RequestId) -> bool {
        matches!(self.requests.get(id), Some(RequestEntry { state: RequestState::Queued(_), .. }))
    }

    pub(super) fn print_line(&self, text: &str) {
        self.queue.print_line(text);
    }

    pub(super) fn check_timeout(&mut self, id: RequestId) {
        self.send_command(id, ConnectionCommand::CheckTimeout(id));
    }

    pub(super) fn send(&mut self, id: RequestId, message: ClientMessage) {
        self.send_command(id, ConnectionCommand::Client(id, message));
    }

    pub(super) fn abandon(&mut self, id: RequestId, is_late: bool) {
        let Some(RequestEntry { reply_to, state }) = self.requests.remove(id) else { return };
        match state {
            RequestState::Queued(queued) => _ = self.queue.withdraw(reply_to, queued.ticket, is_late),
            RequestState::Delayed(pending, delay) => {
                self.delayed.retain(|delayed| *delayed != id);
                // The slot stays quarantined until the process's exit would have been detected.
                if let DelayReason::Repeat(until) = delay {
                    self.quarantined.push((pending.permit, until));
                }
            }
            RequestState::Active(token) => {
                self.outbox.send_command(token, ConnectionCommand::Abandon(id));
            }
            // The connection finds no request once it is open.
            RequestState::Connecting(_) | RequestState::InTransition => {}
        }
    }

    /// The name of the cookie of its sessions; `None`: it has no sessions.
    pub(super) fn session_cookie(&self) -> Option<Arc<str>> {
        self.sessions.as_ref().map(|sessions| Arc::clone(sessions.cookie()))
    }

    /// See [`UpstreamHandle::client_left`](super::UpstreamHandle::client_left).
    pub(super) fn client_left(&mut self, client: Recipient) {
        self.queue.client_left(client);
    }

    pub(crate) fn next_delivery(&mut self) -> Option<UpstreamDelivery> {
        self.outbox.pop()
    }

    /// Whether there is work for a turn; checked before the shard sleeps.
    pub(crate) fn has_work(&self) -> bool {
        !self.outbox.is_empty() || !self.failed.is_empty() || self.queue.is_notified()
    }

    /// Does the work that is due. Returns when to call again at the latest.
    pub(crate) fn turn(&mut self, now: Time) -> Option<Time> {
        for (pending, error) in std::mem::take(&mut self.failed) {
            self.handle_failure(pending, error, now);
        }
        let is_notified = self.queue.take_notification();
        if !self.quarantined.is_empty() {
            self.check_quarantined(now);
        }
        if !self.delayed.is_empty() {
            self.resume_delayed(now);
        }
        if !self.connecting.is_empty() {
            self.expire_connects(now);
        }
        if is_notified {
            self.close_unneeded();
        }
        if is_notified || self.queue.next_deadline().is_some_and(|due| due <= now) {
            self.dispatch(now);
        }
        self.next_due()
    }

    /// Frees the slots whose quarantine is over. A process that speaks frames cannot be used again: if it has not ended
    /// by then, it is killed.
    fn check_quarantined(&mut self, now: Time) {
        let is_unusable = self.protocol() == AppProtocol::Frames;
        self.quarantined.retain(|(permit, until)| {
            let is_over = now >= *until || permit.is_stale();
            if is_over && is_unusable {
                permit.request_kill();
            }
            !is_over
        });
    }

    /// When the next delayed or connecting request is due, the next slot leaves quarantine, or the queue has work.
    fn next_due(&self) -> Option<Time> {
        let due = |id: &RequestId| match &self.requests.get(*id)?.state {
            RequestState::Connecting(until)
            | RequestState::Delayed(_, DelayReason::ConnectRetry(until) | DelayReason::Repeat(until)) => {
                Some(*until)
            }
            RequestState::Delayed(pending, DelayReason::NoConnection(_)) => Some(pending.deadline),
            RequestState::Queued(_) | RequestState::InTransition | RequestState::Active(_) => None,
        };
        let requests = self.delayed.iter().chain(&self.connecting).filter_map(due);
        let quarantined = self.quarantined.iter().map(|(_, until)| *until);
        requests.chain(quarantined).chain(self.queue.next_deadline()).min()
    }

    pub(crate) fn connects(&mut self) -> impl Iterator<Item = (ConnectTarget, ConnectAttempt)> + use<'_> {
        let (endpoints, failed) = (&self.endpoints, &mut self.failed);
        self.connects.drain(..).filter_map(|attempt| match endpoints.target(&attempt.request.permit) {
            Ok(target) => Some((target, attempt)),
            Err(error) => {
                failed.push((attempt.request, UpstreamError::ConnectFailed(error.kind())));
                None
            }
        })
    }

    /// Records a failed request; it is handled in the next turn.
    pub(super) fn fail(&mut self, pending: Box<PendingRequest>, error: UpstreamError) {
        self.failed.push((pending, error));
    }

    /// The connection opened for a request is established. False: the client has left meanwhile.
    pub(super) fn connected(&mut self, id: RequestId, token: Token) -> bool {
        let entry = self.requests.get_mut(id);
        let is_pending = entry.is_some();
        if let Some(entry) = entry {
            entry.state = RequestState::Active(token);
        }
        is_pending
    }

    /// The request assigned to this connection, unless its client has left meanwhile.
    pub(super) fn take_assigned(&mut self, token: Token) -> Option<Box<PendingRequest>> {
        let at = self.assigned.iter().position(|(to, _)| *to == token)?;
        let (_, pending) = self.assigned.swap_remove(at);
        self.requests.get(pending.id).is_some().then_some(pending)
    }

    pub(super) fn finish(&mut self, pending: Box<PendingRequest>, now: Time) {
        self.requests.remove(pending.id);
        pending.permit.release(now);
        self.dispatch(now);
    }

    /// Keeps a connection for the next request, or assigns a request to it. False: the connection is not needed.
    pub(super) fn retain_connection(
        &mut self,
        process: usize,
        generation: u64,
        token: Token,
        now: Time,
    ) -> bool {
        if let Some(pending) = self.take_unconnected(process, generation) {
            self.assign(pending, token);
            return true;
        }
        let is_needed =
            self.queue.generation(process) == generation && self.queue.connection_claims(process) == 0;
        if is_needed {
            self.idle.push(process, IdleConnection { token, generation, since: now });
        }
        is_needed
    }

    /// Takes a request that waits for a connection to this generation of the process.
    fn take_unconnected(&mut self, process: usize, generation: u64) -> Option<Box<PendingRequest>> {
        let fits = |id: &RequestId| match self.requests.get(*id).map(|entry| &entry.state) {
            // A request that failed on a dead connection needs a new one: this one is closed for it.
            Some(RequestState::Delayed(pending, DelayReason::NoConnection(_))) => {
                pending.may_repeat
                    && pending.permit.process() == process
                    && pending.permit.generation() == generation
            }
            _ => false,
        };
        let at = self.delayed.iter().position(fits)?;
        let id = self.delayed.swap_remove(at);
        match std::mem::replace(&mut self.requests.get_mut(id)?.state, RequestState::InTransition) {
            RequestState::Delayed(pending, _) => Some(pending),
            _ => None,
        }
    }

    fn assign(&mut self, pending: Box<PendingRequest>, token: Token) {
        self.set_state(pending.id, RequestState::Active(token));
        self.assigned.push((token, pending));
        self.outbox.send_command(token, ConnectionCommand::Begin);
    }

    pub(super) fn remove_idle(&mut self, process: usize, token: Token) {
        self.idle.remove(process, token);
    }

    /// Closes idle connections to ended processes, and those that other shards claim.
    fn close_unneeded(&mut self) {
        let (queue, outbox) = (&self.queue, &mut self.outbox);
        let demand = |process| (queue.generation(process), queue.connection_claims(process));
        self.idle.release_unneeded(demand, |token| outbox.send_command(token, ConnectionCommand::Close));
    }

    /// Admits queued requests to free slots.
    pub(super) fn dispatch(&mut self, now: Time) {
        loop {
            let idle = &self.idle;
            let Some(admission) = self.queue.poll_admission(now, |process| idle.has_connection(process))
            else {
                return;
            };
            match admission {
                AdmissionOutcome::Expired(id) => {
                    if let Some(entry) = self.requests.remove(id) {
                        self.outbox.send_event(entry.reply_to, id, UpstreamEvent::Expired);
                    }
                }
                AdmissionOutcome::Refused(id) => {
                    if let Some(entry) = self.requests.remove(id) {
                        self.outbox.send_event(entry.reply_to, id, UpstreamEvent::Refused);
                    }
                }
                AdmissionOutcome::Admitted(permit, id) => {
                    let Some(entry) = self.requests.get_mut(id) else { continue };
                    let reply_to = entry.reply_to;
                    match std::mem::replace(&mut entry.state, RequestState::InTransition) {
                        RequestState::Queued(queued) => {
                            let pending =
                                PendingRequest::new(id, reply_to, queued, permit, now, self.timeout);
                            self.connect(pending, now);
                        }
                        state => entry.state = state,
                    }
                }
            }
        }
    }

    /// Attaches the state of its session to a request, and finds a connection for it: an idle one that is safe for it,
    /// or a new one. The second attempt of a request always uses a new one, since other idle connections may be dead as
    /// well.
    fn connect(&mut self, mut pending: Box<PendingRequest>, now: Time) {
        if !pending.request.attach_session_state(self.sessions.as_ref(), now) {
            return self.delay(pending, DelayReason::ConnectRetry(now));
        }
        let (process, generation) = (pending.permit.process(), pending.permit.generation());
        while let Some(idle) = self.idle.pop(process) {
            let is_young = now.since(idle.since) < IDLE_REUSE_MAX;
            // A process that speaks frames never ends its only connection.
            let is_permanent = self.protocol() == AppProtocol::Frames;
            let is_safe = pending.request.is_idempotent || is_young || is_permanent;
            if idle.generation == generation && pending.may_repeat && is_safe {
                return self.assign(pending, idle.token);
            }
            self.outbox.send_command(idle.token, ConnectionCommand::Close);
        }
        match pending.permit.connection_permit() {
            Some(connection_permit) => self.connect_new(pending, connection_permit),
            None => {
                let claim = pending.permit.claim();
                // Another shard may have closed a connection just before the claim.
                match pending.permit.connection_permit() {
                    Some(connection_permit) => self.connect_new(pending, connection_permit),
                    None => self.delay(pending, DelayReason::NoConnection(claim)),
                }
            }
        }
    }

    fn connect_new(&mut self, pending: Box<PendingRequest>, connection_permit: ConnectionPermit) {
        self.set_state(pending.id, RequestState::Connecting(pending.deadline));
        self.connecting.push(pending.id);
        self.connects.push(ConnectAttempt { request: pending, connection_permit });
    }

    fn delay(&mut self, pending: Box<PendingRequest>, delay: DelayReason) {
        let id = pending.id;
        self.set_state(id, RequestState::Delayed(pending, delay));
        self.delayed.push(id);
    }

    /// Answers requests that exceed their deadline while connecting; `connected` then returns false.
    fn expire_connects(&mut self, now: Time) {
        for id in std::mem::take(&mut self.connecting) {
            let Some(entry) = self.requests.get(id) else { continue };
            let RequestState::Connecting(until) = entry.state else { continue };
            if now < until {
                self.connecting.push(id);
                continue;
            }
            self.outbox.send_event(entry.reply_to, id, UpstreamEvent::Failed(UpstreamFailure::Timeout));
            self.requests.remove(id);
        }
    }

    fn resume_delayed(&mut self, now: Time) {
        for id in std::mem::take(&mut self.delayed) {
            let Some(entry) = self.requests.get_mut(id) else { continue };
            let state = std::mem::replace(&mut entry.state, RequestState::InTransition);
            let RequestState::Delayed(pending, delay) = state else { continue };
            let is_stale = pending.permit.is_stale();
            match delay {
                // A request that may have crashed its process is not sent to the next one.
                _ if is_stale && pending.maybe_delivered => {
                    self.fail_request(pending, UpstreamFailure::BadGateway);
                }
                _ if is_stale => self.requeue(pending, now),
                DelayReason::NoConnection(_) if now >= pending.deadline => {
                    self.fail_request(pending, UpstreamFailure::Unavailable);
                }
                DelayReason::ConnectRetry(at) | DelayReason::Repeat(at) if now < at => {
                    self.delay(pending, delay);
                }
                DelayReason::ConnectRetry(_) | DelayReason::Repeat(_) => self.connect(pending, now),
                DelayReason::NoConnection(claim) => match pending.permit.connection_permit() {
                    Some(connection_permit) => self.connect_new(pending, connection_permit),
                    None => self.delay(pending, DelayReason::NoConnection(claim)),
                },
            }
        }
    }

    /// Returns a request that no process has received to its position in the queue.
    fn requeue(&mut self, pending: Box<PendingRequest>, now: Time) {
        let PendingRequest { id, reply_to, request, ticket, permit, .. } = *pending;
        self.set_state(id, RequestState::Queued(QueuedRequest { request, ticket }));
        self.queue.requeue(now, ticket, reply_to, id);
        permit.release_unused();
    }

    fn handle_failure(&mut self, mut pending: Box<PendingRequest>, error: UpstreamError, now: Time) {
        let error = match error {
            UpstreamError::ConnectFailed(_) => error,
            error if self.protocol() == AppProtocol::Frames => {
                return self.handle_stream_failure(pending, error, now);
            }
            error => error,
        };
        if self.requests.get(pending.id).is_none() {
            // Its client has left, or was answered 504.
            if let UpstreamError::ConnectFailed(kind) = error
                && now >= pending.deadline
            {
                report_unreachable(&pending, kind);
            }
            return;
        }
        let is_repeatable = pending.may_repeat && pending.is_repeatable();
        match error {
            UpstreamError::ConnectFailed(NO_FREE_SLOT) => {
                pending.permit.print_line("the server has no connection slot for it");
                self.fail_request(pending, UpstreamFailure::Unavailable);
            }
            UpstreamError::ConnectFailed(kind) => self.handle_connect_failure(pending, kind, now),
            UpstreamError::Stale { nothing_sent: true } if is_repeatable => {
                pending.may_repeat = false;
                self.connect(pending, now);
            }
            UpstreamError::Stale { .. } if is_repeatable && pending.request.is_idempotent => {
                (pending.may_repeat, pending.maybe_delivered) = (false, true);
                self.delay(pending, DelayReason::Repeat(now.after(EXIT_DETECTION_TIMEOUT)));
            }
            UpstreamError::TimedOut if !pending.is_answered() => {
                self.report_timeout(&pending);
                // `mark_overdue` decides whether the request is slow or the process hangs.
                let _ = pending.permit.mark_overdue(now);
            }
            UpstreamError::TimedOut => {
                pending
                    .permit
                    .print_line("a response stopped in the middle for too long; its connection is closed");
                self.fail_request(pending, UpstreamFailure::Timeout);
            }
            error => self.quarantine(pending, &error, now),
        }
    }

    /// Handles the failure of a process that speaks frames: its stream cannot be used again, so it is replaced.
    fn handle_stream_failure(&mut self, pending: Box<PendingRequest>, error: UpstreamError, now: Time) {
        let is_waiting = self.requests.get(pending.id).is_some();
        match error {
            // The process has closed its input and received nothing of the request.
            UpstreamError::Stale { nothing_sent: true } if is_waiting && pending.is_repeatable() => {
                self.handle_connect_failure(pending, ErrorKind::ConnectionRefused, now);
            }
            UpstreamError::TimedOut => {
                self.report_timeout(&pending);
                pending.permit.request_kill();
            }
            UpstreamError::Stale { .. } => {
                self.quarantine(pending, &UpstreamError::Lost(ErrorKind::UnexpectedEof), now);
            }
            error => self.quarantine(pending, &error, now),
        }
    }

    /// Answers a request whose process has died or violated the protocol. The next request must not go to a process that
    /// is about to die.
    fn quarantine(&mut self, pending: Box<PendingRequest>, error: &UpstreamError, now: Time) {
        pending.permit.print_line(&error.to_string());
        self.report_failure(&pending, UpstreamFailure::BadGateway);
        self.quarantined.push((pending.permit, now.after(EXIT_DETECTION_TIMEOUT)));
    }

    /// Retries a failed connect, for a limited time: the process has ended unnoticed, or refuses connections.
    fn handle_connect_failure(&mut self, mut pending: Box<PendingRequest>, kind: ErrorKind, now: Time) {
        let generation = pending.permit.generation();
        let (_, since) =
            pending.refused_since.filter(|(of, _)| *of == generation).unwrap_or((generation, now));
        pending.refused_since = Some((generation, since));
        let is_late = now >= pending.deadline;
        if is_late || !is_overloaded(kind) && now.since(since) >= CONNECT_REFUSED_MAX {
            report_unreachable(&pending, kind);
            let failure = if is_late { UpstreamFailure::Timeout } else { UpstreamFailure::BadGateway };
            return self.fail_request(pending, failure);
        }
        let again = now.after(CONNECT_RETRY_DELAY).min(pending.deadline);
        self.delay(pending, DelayReason::ConnectRetry(again));
    }

    /// Logs and answers a request that timed out; `pending` still holds its slot.
    pub(super) fn report_timeout(&mut self, pending: &PendingRequest) {
        pending.permit.print_line("a request was not answered in time");
        self.report_failure(pending, UpstreamFailure::Timeout);
    }

    /// Answers a failed request and frees its slot.
    fn fail_request(&mut self, pending: Box<PendingRequest>, failure: UpstreamFailure) {
        self.report_failure(&pending, failure);
    }

    /// Answers a failed request, unless its client has left.
    fn report_failure(&mut self, pending: &PendingRequest, failure: UpstreamFailure) {
        if self.requests.remove(pending.id).is_some() {
            self.outbox.send_event(pending.reply_to, pending.id, pending.failure_event(failure));
        }
    }

    /// Sends a command to the connection that has the request, if any.
    fn send_command(&mut self, id: RequestId, command: ConnectionCommand) {
        if let Some(RequestEntry { state: RequestState::Active(token), .. }) = self.requests.get(id) {
            self.outbox.send_command(*token, command);
        }
    }

    fn set_state(&mut self, id: RequestId, state: RequestState) {
        if let Some(entry) = self.requests.get_mut(id) {
            entry.state = state;
        }
    }
}

/// Logs that the process was unreachable for too long, and has it killed if it is the cause.
fn report_unreachable(pending: &PendingRequest, kind: ErrorKind) {
    if is_overloaded(kind) {
        pending.permit.print_line("accepts no connections");
    } else {
        pending.permit.print_line(&UpstreamError::ConnectFailed(kind).to_string());
    }
    // Other errors, such as a lack of descriptors, are not the process's fault.
    if is_overloaded(kind) || matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound) {
        pending.permit.request_kill();
    }
}

/// Whether the process does not accept: its backlog is full, or the connection was not established in time.
fn is_overloaded(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
