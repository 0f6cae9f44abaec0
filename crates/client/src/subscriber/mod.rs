//! The subscriber: receives messages as they are published, or follows a stream from any position.

mod follower;

use std::fmt;
use std::time::{Duration, Instant};

use stilling_wire::nats::{Filter, Pub, SubjectLimits, encode_sub, encode_unsub};

pub use follower::FollowStart;
use follower::{ConsumerReply, ControlAction, PositionCheck, StreamContinuity, StreamFollower};

use crate::address::ServerUrl;
use crate::backoff::{BackoffConfig, JitterRng, RetryBackoff};
use crate::blocking_connection::{BlockingConnection, ConnectionEvent, ConnectionTimeouts};
use crate::connection_error::ConnectionError;
use crate::identity;
use crate::limits::{self, HEARTBEAT, HEARTBEATS_MISSED_MAX, SERVERS_MAX, SPAN_MAX};
use crate::message::ReceivedMessage;

/// The subscription for API replies.
const REPLY_SID: u64 = 1;

/// A stream to follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FollowedStream {
    /// Its name.
    pub stream: String,
    /// Start position.
    pub from: FollowStart,
}

/// Configuration of a subscriber.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriberConfig {
    /// The servers. After a failure the subscriber connects to the next one.
    pub servers: Vec<ServerUrl>,
    /// Name of the connection, shown to the server's operator.
    pub name: Option<String>,
    /// Subject filter.
    pub filter: String,
    /// Queue group that shares the messages; not available with a stream.
    pub queue: Option<String>,
    /// Stream to follow; `None`: receive messages published from now on, at most once.
    pub stream: Option<FollowedStream>,
    /// Waits between connection attempts.
    pub backoff: BackoffConfig,
    /// Timeout for connecting and for the handshake; 5 s.
    pub connect_timeout: Duration,
    /// Timeout for a reply of the server; 5 s.
    pub answer_timeout: Duration,
    /// Silence after which the subscriber sends a PING; 20 s.
    pub ping_interval: Duration,
}

impl Default for SubscriberConfig {
    fn default() -> SubscriberConfig {
        SubscriberConfig {
            servers: Vec::new(),
            name: None,
            filter: ">".to_owned(),
            queue: None,
            stream: None,
            backoff: BackoffConfig::default(),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(20),
        }
    }
}

/// The reason why a subscriber cannot start or continue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscribeError {
    /// No server is configured, or more than [`SERVERS_MAX`].
    Servers(usize),
    /// The filter is not valid.
    InvalidFilter(String),
    /// The stream's name is not valid.
    InvalidStream(String),
    /// The server refuses the consumer.
    Refused {
        /// The stream.
        stream: String,
        /// The status code, as in HTTP.
        code: u16,
        /// The error number of nats-server.
        error_code: u32,
        /// The server's description.
        description: String,
    },
    /// The server does not serve streams or has no room for a consumer, also after as many requests as the backoff
    /// allows.
    NoStreams {
        /// The stream.
        stream: String,
        /// The last answer.
        detail: String,
    },
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubscribeError::Servers(count) => {
                write!(f, "{count} servers are configured: give 1 to {SERVERS_MAX}")
            }
            SubscribeError::InvalidFilter(what) => write!(f, "invalid filter: {what}"),
            SubscribeError::InvalidStream(name) => {
                write!(f, "invalid stream name {name:?}: a name is not empty and has no blanks, dots, * or >")
            }
            SubscribeError::Refused { stream, code, error_code, description } => write!(
                f,
                "stream {stream} cannot be followed: {description} ({code}, error {error_code}); check the server's list of streams"
            ),
            SubscribeError::NoStreams { stream, detail } => {
                write!(f, "stream {stream} cannot be followed now: {detail}")
            }
        }
    }
}

impl std::error::Error for SubscribeError {}

/// An event of a subscriber.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscriberEvent {
    /// A message.
    Message(ReceivedMessage),
    /// The connection is established. Without a stream, messages published from now on are received; with one, the
    /// consumer is requested next.
    Connected,
    /// The connection failed and will be re-established. A follower later receives the messages stored meanwhile,
    /// unless the stream has removed them; without a stream they may be lost.
    Interrupted(ConnectionError),
    /// The stream no longer has these sequences, and they were not received. Reported before the next message. With a
    /// filter some or all of them may belong to other subjects. Only Stilling reports removals; with other servers a
    /// removal during a connection is detected only if the filter is `>`.
    Missed {
        /// The first missing sequence.
        first: u64,
        /// The last missing sequence.
        last: u64,
        /// Why they are missing.
        cause: MissedCause,
    },
    /// The stream was replaced: it was in memory and its server restarted, or it was deleted and created again.
    /// Detected by a different creation time, or by a last sequence below a received one. The new stream is followed
    /// from its first message.
    Recreated {
        /// The last sequence received from the old stream.
        last: u64,
    },
}

/// The reason why a stream no longer has some sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissedCause {
    /// Retention, or a request to remove them.
    Removed,
    /// Their bytes are damaged.
    Damaged,
    /// A crash of the server has truncated them.
    Torn,
}

impl MissedCause {
    fn of(word: &[u8]) -> MissedCause {
        match word {
            b"damaged" => MissedCause::Damaged,
            b"torn" => MissedCause::Torn,
            _ => MissedCause::Removed,
        }
    }
}

/// Receives messages on the caller's thread, over a connection that is re-established after each loss.
///
/// As an iterator it yields messages and errors, and does not end.
#[derive(Debug)]
pub struct Subscriber {
    config: SubscriberConfig,
    follower: Option<StreamFollower>,
    backoff: RetryBackoff,
    random: JitterRng,
    name: String,
    connection: Option<BlockingConnection>,
    server: usize,
    retry_at: Instant,
    /// The current subscription; each consumer request has its own.
    sid: u64,
    phase: ConsumerPhase,
    deliver: String,
    /// The current consumer has delivered a message or a heartbeat.
    has_progressed: bool,
    refusals: u32,
    /// The message that follows the missing range just reported.
    queued_message: Option<ReceivedMessage>,
}

/// Progress of a consumer request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConsumerPhase {
    /// To be requested, not before this time.
    Due(Instant),
    /// The stream's state is requested; the reply is due by this time.
    InfoRequested(Instant),
    /// The consumer is requested; the reply is due by this time.
    CreateRequested(Instant),
    /// The consumer exists; its next message or heartbeat is due by this time.
    Active(Instant),
}

impl ConsumerPhase {
    fn at(self) -> Instant {
        let (ConsumerPhase::Due(at)
        | ConsumerPhase::InfoRequested(at)
        | ConsumerPhase::CreateRequested(at)
        | ConsumerPhase::Active(at)) = self;
        at
    }
}

impl Subscriber {
    /// A subscriber. It connects with the first call of [`next_event`](Subscriber::next_event).
    ///
    /// # Errors
    /// [`SubscribeError`], if the configuration is not valid.
    pub fn new(mut config: SubscriberConfig) -> Result<Subscriber, SubscribeError> {
        for span in [
            &mut config.backoff.wait,
            &mut config.backoff.wait_max,
            &mut config.connect_timeout,
            &mut config.answer_timeout,
            &mut config.ping_interval,
        ] {
            *span = SPAN_MAX.min(*span);
        }
        if config.servers.is_empty() || config.servers.len() > SERVERS_MAX {
            return Err(SubscribeError::Servers(config.servers.len()));
        }
        let limits = SubjectLimits::default();
        if let Err(bad) = Filter::parse(config.filter.as_bytes(), &limits) {
            return Err(SubscribeError::InvalidFilter(bad.to_string()));
        }
        if let Some(queue) = &config.queue
            && let Err(bad) = Filter::parse(queue.as_bytes(), &limits)
        {
            return Err(SubscribeError::InvalidFilter(format!("queue {queue:?}: {bad}")));
        }
        if let Some(followed) = &config.stream
            && (followed.stream.is_empty()
                || followed.stream.contains(|c: char| " .*>".contains(c) || c.is_control()))
        {
            return Err(SubscribeError::InvalidStream(followed.stream.clone()));
        }
        let now = Instant::now();
        let follower = config.stream.as_ref();
        Ok(Subscriber {
            follower: follower
                .map(|followed| StreamFollower::new(&followed.stream, &config.filter, followed.from)),
            backoff: RetryBackoff::new(config.backoff),
            random: JitterRng::new(identity::random_seed()),
            name: identity::random_name(),
            connection: None,
            server: 0,
            retry_at: now,
            sid: REPLY_SID,
            phase: ConsumerPhase::Due(now),
            deliver: String::new(),
            has_progressed: false,
            refusals: 0,
            queued_message: None,
            config,
        })
    }

    /// The next event, or `None` after `timeout`. Connecting and waiting for a reply of the server may take as long as
    /// [`SubscriberConfig`] allows in addition. Calls may be far apart: data that has already arrived is processed
    /// before any timeout applies. A server that continuously sends unrelated data does not extend `timeout`.
    ///
    /// # Errors
    /// [`SubscribeError`], if the server refuses. The next call retries, over the same connection and after the backoff
    /// wait.
    pub fn next_event(&mut self, timeout: Duration) -> Result<Option<SubscriberEvent>, SubscribeError> {
        let now = Instant::now();
        let deadline = limits::deadline(now, timeout);
        if let Some(message) = self.queued_message.take() {
            return Ok(Some(SubscriberEvent::Message(message)));
        }
        if let Some(connection) = &mut self.connection {
            connection.begin_wait();
        }
        loop {
            let now = Instant::now();
            let Some(mut connection) = self.connection.take() else {
                if now < self.retry_at {
                    std::thread::sleep(self.retry_at.min(deadline) - now);
                    if Instant::now() < self.retry_at {
                        return Ok(None);
                    }
                }
                return Ok(Some(self.connect()));
            };
            match self.step(&mut connection, deadline) {
                Ok(SubscriberStep::Deliver(event)) => {
                    self.connection = Some(connection);
                    return Ok(Some(event));
                }
                // More data may have arrived before the deadline.
                Ok(SubscriberStep::Progress) => self.connection = Some(connection),
                Ok(SubscriberStep::Nothing) => {
                    connection.begin_wait();
                    self.connection = Some(connection);
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(StepError::ConnectionError(connection_error)) => {
                    return Ok(Some(self.lost(connection_error)));
                }
                Err(StepError::Error(error)) => {
                    self.connection = Some(connection);
                    return Err(error);
                }
            }
        }
    }

    fn connect(&mut self) -> SubscriberEvent {
        let timeouts = ConnectionTimeouts {
            connect: self.config.connect_timeout,
            answer: self.config.answer_timeout,
            ping_interval: self.config.ping_interval,
        };
        let server = &self.config.servers[self.server];
        let begun = BlockingConnection::connect(server, self.config.name.as_deref(), timeouts).and_then(
            |mut connection| {
                let mut out = Vec::new();
                match self.follower {
                    Some(_) => encode_sub(&mut out, self.reply_filter().as_bytes(), None, b"1"),
                    None => {
                        self.sid += 1;
                        let queue = self.config.queue.as_deref().map(str::as_bytes);
                        let sid = self.sid.to_string();
                        encode_sub(&mut out, self.config.filter.as_bytes(), queue, sid.as_bytes());
                    }
                }
                connection.send(&out)?;
                if self.follower.is_none() {
                    connection.round_trip()?;
                }
                Ok(connection)
            },
        );
        match begun {
            Ok(connection) => {
                self.connection = Some(connection);
                self.phase = ConsumerPhase::Due(Instant::now());
                if self.follower.is_none() {
                    self.backoff.record_success();
                }
                SubscriberEvent::Connected
            }
            Err(connection_error) => self.lost(connection_error),
        }
    }

    fn lost(&mut self, connection_error: ConnectionError) -> SubscriberEvent {
        self.connection = None;
        self.backoff.record_failure();
        self.retry_at = Instant::now() + self.random.jitter(self.backoff.wait());
        self.server = (self.server + 1) % self.config.servers.len();
        SubscriberEvent::Interrupted(connection_error)
    }

    /// Performs what is due and processes the next event. All data that has arrived is read before a timeout applies.
    fn step(
        &mut self,
        connection: &mut BlockingConnection,
        deadline: Instant,
    ) -> Result<SubscriberStep, StepError> {
        let mut until = deadline;
        if self.follower.is_some() {
            if let ConsumerPhase::Due(at) = self.phase
                && Instant::now() >= at
            {
                self.request_stream_info(connection)?;
            }
            until = until.min(self.phase.at());
        }
        let event = match connection.next_event(until).map_err(StepError::ConnectionError)? {
            ConnectionEvent::TimedOut => return self.handle_timeout(connection),
            ConnectionEvent::ReadLimit => return Ok(SubscriberStep::Nothing),
            ConnectionEvent::LameDuck => return Err(StepError::ConnectionError(ConnectionError::LameDuck)),
            ConnectionEvent::Message(sid, message) if self.follower.is_none() => {
                (sid == self.sid).then_some(SubscriberEvent::Message(message))
            }
            ConnectionEvent::Message(REPLY_SID, message) => self.handle_api_reply(connection, &message)?,
            ConnectionEvent::Message(sid, message) if sid == self.sid => {
                self.handle_delivery(connection, message)?
            }
            ConnectionEvent::Message(..) => None,
        };
        Ok(event.map_or(SubscriberStep::Progress, SubscriberStep::Deliver))
    }

    fn handle_timeout(&mut self, connection: &mut BlockingConnection) -> Result<SubscriberStep, StepError> {
        if self.follower.is_some() && Instant::now() >= self.phase.at() {
            match self.phase {
                ConsumerPhase::Due(_) => {}
                ConsumerPhase::InfoRequested(_) | ConsumerPhase::CreateRequested(_) => {
                    return Err(StepError::ConnectionError(ConnectionError::Hung));
                }
                ConsumerPhase::Active(_) => self.replace_consumer(connection)?,
            }
        }
        Ok(SubscriberStep::Nothing)
    }

    /// Replaces the current consumer. If it delivered nothing, the backoff wait comes first.
    fn replace_consumer(&mut self, connection: &mut BlockingConnection) -> Result<(), StepError> {
        if std::mem::take(&mut self.has_progressed) {
            return self.request_stream_info(connection);
        }
        let mut out = Vec::new();
        self.drop_consumer(&mut out);
        connection.send(&out).map_err(StepError::ConnectionError)?;
        self.backoff.record_failure();
        self.phase = ConsumerPhase::Due(Instant::now() + self.random.jitter(self.backoff.wait()));
        Ok(())
    }

    /// Deletes the current consumer. Its further deliveries are ignored.
    fn drop_consumer(&mut self, out: &mut Vec<u8>) {
        if self.sid > REPLY_SID {
            encode_unsub(out, self.sid.to_string().as_bytes(), None);
        }
        if let Some(subject) = self.follower.as_mut().and_then(StreamFollower::drop_consumer) {
            self.remove(&subject, out);
        }
        self.sid += 1;
    }

    /// Requests the deletion of a consumer. The reply matches no `sid` and is ignored.
    fn remove(&self, subject: &str, out: &mut Vec<u8>) {
        let reply = format!("_INBOX.{}.a.0", self.name);
        Pub { subject: subject.as_bytes(), reply: Some(reply.as_bytes()), headers: &[], payload: &[] }
            .encode(out);
    }

    /// Deletes the current consumer and requests the stream's state, as the first step to a new consumer.
    fn request_stream_info(&mut self, connection: &mut BlockingConnection) -> Result<(), StepError> {
        let Some(follower) = &self.follower else { return Ok(()) };
        let subject = follower.info_subject();
        let mut out = Vec::new();
        self.drop_consumer(&mut out);
        let reply = self.reply_subject();
        Pub { subject: subject.as_bytes(), reply: Some(reply.as_bytes()), headers: &[], payload: &[] }
            .encode(&mut out);
        connection.send(&out).map_err(StepError::ConnectionError)?;
        self.phase = ConsumerPhase::InfoRequested(Instant::now() + self.config.answer_timeout);
        Ok(())
    }

    fn request_consumer(&mut self, connection: &mut BlockingConnection) -> Result<(), StepError> {
        let reply = self.reply_subject();
        let Some(follower) = &mut self.follower else { return Ok(()) };
        let mut out = Vec::new();
        self.deliver = format!("_INBOX.{}.d.{}", self.name, self.sid);
        self.has_progressed = false;
        encode_sub(&mut out, self.deliver.as_bytes(), None, self.sid.to_string().as_bytes());
        let (subject, request) = (follower.create_subject(), follower.create_request(&self.deliver));
        Pub { subject: subject.as_bytes(), reply: Some(reply.as_bytes()), headers: &[], payload: &request }
            .encode(&mut out);
        connection.send(&out).map_err(StepError::ConnectionError)?;
        self.phase = ConsumerPhase::CreateRequested(Instant::now() + self.config.answer_timeout);
        Ok(())
    }

    fn reply_subject(&self) -> String {
        format!("_INBOX.{}.a.{}", self.name, self.sid)
    }

    fn reply_filter(&self) -> String {
        format!("_INBOX.{}.a.*", self.name)
    }

    fn handle_api_reply(
        &mut self,
        connection: &mut BlockingConnection,
        message: &ReceivedMessage,
    ) -> Result<Option<SubscriberEvent>, StepError> {
        let is_of_now = message.subject.rsplit('.').next() == Some(self.sid.to_string().as_str());
        let Some(follower) = &mut self.follower else { return Ok(None) };
        if !is_of_now {
            if let Some(subject) = follower.late_removal(message.status(), &message.payload) {
                let mut out = Vec::new();
                self.remove(&subject, &mut out);
                connection.send(&out).map_err(StepError::ConnectionError)?;
            }
            return Ok(None);
        }
        let created = match self.phase {
            ConsumerPhase::InfoRequested(_) => {
                let before = follower.clone();
                match follower.handle_stream_info(message.status(), &message.payload) {
                    Ok(continuity) => return self.resume_stream(connection, continuity, before),
                    Err(refused) => refused,
                }
            }
            _ => follower.handle_created(message.status(), &message.payload),
        };
        let stream = self.config.stream.as_ref().map(|followed| followed.stream.clone()).unwrap_or_default();
        match created {
            ConsumerReply::Accepted => {
                self.refusals = 0;
                // Messages may have arrived before this reply and have set the phase already.
                self.phase = ConsumerPhase::Active(Instant::now() + HEARTBEAT * HEARTBEATS_MISSED_MAX);
                Ok(None)
            }
            ConsumerReply::RetryLater(detail) => {
                self.refusals += 1;
                self.backoff.record_failure();
                self.phase = ConsumerPhase::Due(Instant::now() + self.random.jitter(self.backoff.wait()));
                if self.refusals >= self.backoff.attempts() {
                    self.refusals = 0;
                    return Err(StepError::Error(SubscribeError::NoStreams { stream, detail }));
                }
                Ok(None)
            }
            ConsumerReply::Refused { code, error_code, description } => {
                self.backoff.record_failure();
                self.phase = ConsumerPhase::Due(Instant::now() + self.random.jitter(self.backoff.wait()));
                Err(StepError::Error(SubscribeError::Refused { stream, code, error_code, description }))
            }
        }
    }

    /// Requests a consumer and reports changes of the stream. `before` is the follower before the stream's state was
    /// applied.
    fn resume_stream(
        &mut self,
        connection: &mut BlockingConnection,
        continuity: StreamContinuity,
        before: StreamFollower,
    ) -> Result<Option<SubscriberEvent>, StepError> {
        let event = match continuity {
            StreamContinuity::Unchanged => None,
            StreamContinuity::Missed { first, last } => {
                Some(SubscriberEvent::Missed { first, last, cause: MissedCause::Removed })
            }
            StreamContinuity::Recreated { last } => Some(SubscriberEvent::Recreated { last }),
        };
        self.request_consumer(connection).inspect_err(|_| {
            // The event was not reported: the next connection detects it again.
            if event.is_some() {
                self.follower = Some(before);
            }
        })?;
        Ok(event)
    }

    fn handle_delivery(
        &mut self,
        connection: &mut BlockingConnection,
        message: ReceivedMessage,
    ) -> Result<Option<SubscriberEvent>, StepError> {
        let Some(follower) = &mut self.follower else { return Ok(None) };
        if let ConsumerPhase::Active(at) = &mut self.phase {
            *at = Instant::now() + HEARTBEAT * HEARTBEATS_MISSED_MAX;
        }
        if StreamFollower::is_control(&message, &self.deliver) {
            match follower.handle_control(&message.headers, message.reply.as_deref()) {
                ControlAction::Ignore => self.mark_progress(),
                ControlAction::Reply(subject) => {
                    self.mark_progress();
                    let mut out = Vec::new();
                    Pub { subject: subject.as_bytes(), reply: None, headers: &[], payload: &[] }
                        .encode(&mut out);
                    connection.send(&out).map_err(StepError::ConnectionError)?;
                }
                ControlAction::Restart => self.replace_consumer(connection)?,
                ControlAction::Gap { first, last, cause } => {
                    self.mark_progress();
                    return Ok(Some(SubscriberEvent::Missed { first, last, cause }));
                }
            }
            return Ok(None);
        }
        match follower.check_position(message.reply.as_deref()) {
            PositionCheck::Next { missed } => {
                self.mark_progress();
                let message = message.with_position();
                let Some((first, last)) = missed else { return Ok(Some(SubscriberEvent::Message(message))) };
                self.queued_message = Some(message);
                Ok(Some(SubscriberEvent::Missed { first, last, cause: MissedCause::Removed }))
            }
            PositionCheck::Gap => self.replace_consumer(connection).map(|()| None),
            PositionCheck::Foreign => Ok(None),
        }
    }

    /// The current consumer works.
    fn mark_progress(&mut self) {
        if !std::mem::replace(&mut self.has_progressed, true) {
            self.backoff.record_success();
        }
    }
}

enum SubscriberStep {
    Deliver(SubscriberEvent),
    /// An event that does not concern the caller.
    Progress,
    /// Nothing until the deadline, or the read limit after it was reached.
    Nothing,
}

enum StepError {
    ConnectionError(ConnectionError),
    /// The connection is usable, but the request failed.
    Error(SubscribeError),
}

impl Iterator for Subscriber {
    type Item = Result<ReceivedMessage, SubscribeError>;

    /// The next message, without a time limit. Missing ranges are reported by [`Subscriber::next_event`] only.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_event(SPAN_MAX) {
                Ok(Some(SubscriberEvent::Message(message))) => return Some(Ok(message)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
