//! The subscriber: a filter of subjects as their messages are published, or a stream from any place on.

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

/// The subscription for the answers to what is asked.
const ANSWERS: u64 = 1;
/// A stream to be followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FollowedStream {
    /// Its name.
    pub stream: String,
    /// From where.
    pub from: FollowStart,
}

/// What a subscriber may be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriberConfig {
    /// The servers. After a failure the next one is tried.
    pub servers: Vec<ServerUrl>,
    /// What the server's operator sees as the name of the connection.
    pub name: Option<String>,
    /// Which subjects.
    pub filter: String,
    /// Share the messages with all others of the same queue; not together with a stream.
    pub queue: Option<String>,
    /// Follow a stream; nothing: hear what is published from now on, at most once.
    pub stream: Option<FollowedStream>,
    /// When to connect again.
    pub backoff: BackoffConfig,
    /// For a connection to open and the server to greet; 5 s.
    pub connect_timeout: Duration,
    /// For the server to answer a question; 5 s.
    pub answer_timeout: Duration,
    /// After so long without a word from the server it is asked whether it lives; 20 s.
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

/// Why a subscriber cannot begin or go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscribeError {
    /// No server is named, or more than [`SERVERS_MAX`].
    Servers(usize),
    /// The filter is none.
    Filter(String),
    /// A stream cannot be named so.
    Stream(String),
    /// The server does not let the stream be followed.
    Refused {
        /// The stream.
        stream: String,
        /// The kind of error, as in HTTP.
        code: u16,
        /// The error, as nats-server numbers them.
        error_code: u32,
        /// What the server says.
        description: String,
    },
    /// The server does not answer for streams, or has no room for a follower, however often it is asked.
    NoStreams {
        /// The stream.
        stream: String,
        /// What came last.
        detail: String,
    },
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubscribeError::Servers(count) => {
                write!(f, "{count} servers are named; it takes 1 to {SERVERS_MAX}")
            }
            SubscribeError::Filter(what) => write!(f, "the filter cannot be subscribed to: {what}"),
            SubscribeError::Stream(name) => {
                write!(f, "no stream is named {name:?}: a name is not empty and has no blanks, dots, * or >")
            }
            SubscribeError::Refused { stream, code, error_code, description } => write!(
                f,
                "stream {stream} cannot be followed: {description} ({code}, error {error_code}); look at the server's list of streams"
            ),
            SubscribeError::NoStreams { stream, detail } => {
                write!(f, "stream {stream} cannot be followed now: {detail}")
            }
        }
    }
}

impl std::error::Error for SubscribeError {}

/// What happens to a subscriber.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscriberEvent {
    /// A message.
    Message(ReceivedMessage),
    /// The connection is there. Whoever follows no stream gets what is published from now on; a stream is asked for next.
    Connected,
    /// The connection is not there; it is being made again. Who follows a stream gets what comes meanwhile later, as long as
    /// the stream keeps it; who does not may miss it.
    Interrupted(ConnectionError),
    /// The stream that is followed does not have these sequences any more, and they have not come. Told before the next message.
    /// With a filter some or all of them may be other subjects' messages. Of servers other than Stilling, what is removed while
    /// the follower is connected is told only if the filter is `>`.
    Missed {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
        /// Why they are gone.
        cause: MissedCause,
    },
    /// The stream that is followed is another one than before: it lay in memory and its server began again, or it was deleted
    /// and has begun anew. Its server says that it was made at another time, or it ends before a sequence that has come. It
    /// is followed from its first message.
    Recreated {
        /// The last sequence that came of the old one.
        last: u64,
    },
}

/// Why a stream does not have sequences any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissedCause {
    /// Its limits, or a request to remove them.
    Removed,
    /// Their bytes are not what was written.
    Damaged,
    /// A crash of the server has cut them off.
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

/// Receives messages, on the thread of its caller, over a connection that is made again whenever it is lost.
///
/// It is an iterator over messages that ends never, or with a reason.
#[derive(Debug)]
pub struct Subscriber {
    config: SubscriberConfig,
    follower: Option<StreamFollower>,
    backoff: RetryBackoff,
    random: JitterRng,
    /// What its inboxes begin with.
    name: String,
    connection: Option<BlockingConnection>,
    server: usize,
    retry_at: Instant,
    /// The subscription of now; each wish for a consumer has its own.
    sid: u64,
    phase: ConsumerPhase,
    /// Where the consumer of now delivers to.
    deliver: String,
    /// The consumer of now has delivered something, or has lived until a heartbeat.
    has_progressed: bool,
    /// Wishes that were not granted in a row.
    refusals: u32,
    /// The message behind what has been told as missed.
    queued_message: Option<ReceivedMessage>,
}

/// How far a follower's wish is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConsumerPhase {
    /// To be uttered, not before this time.
    Due(Instant),
    /// The stream was asked how far it goes; the answer is late after this time.
    InfoRequested(Instant),
    /// Uttered; the answer is late after this time.
    CreateRequested(Instant),
    /// Granted; the next word is late after this time.
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
    /// A subscriber. It connects when it is first asked for something.
    ///
    /// # Errors
    /// If the configuration cannot work.
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
            return Err(SubscribeError::Filter(bad.to_string()));
        }
        if let Some(queue) = &config.queue
            && let Err(bad) = Filter::parse(queue.as_bytes(), &limits)
        {
            return Err(SubscribeError::Filter(format!("its queue {queue:?}: {bad}")));
        }
        if let Some(place) = &config.stream
            && (place.stream.is_empty()
                || place.stream.contains(|c: char| " .*>".contains(c) || c.is_control()))
        {
            return Err(SubscribeError::Stream(place.stream.clone()));
        }
        let now = Instant::now();
        let follower = config.stream.as_ref();
        Ok(Subscriber {
            follower: follower.map(|place| StreamFollower::new(&place.stream, &config.filter, place.from)),
            backoff: RetryBackoff::new(config.backoff),
            random: JitterRng::new(identity::random_seed()),
            name: identity::random_name(),
            connection: None,
            server: 0,
            retry_at: now,
            sid: ANSWERS,
            phase: ConsumerPhase::Due(now),
            deliver: String::new(),
            has_progressed: false,
            refusals: 0,
            queued_message: None,
            config,
        })
    }

    /// What happens next, or nothing if nothing has until `timeout`. A connection that has to be made, or a question that the
    /// server does not answer, may take as long as [`SubscriberConfig`] allows for it in addition. It may be called as rarely
    /// as its caller likes: what has come meanwhile counts before anything is late. A server that sends without a pause what is
    /// not for the caller does not extend `timeout`.
    ///
    /// # Errors
    /// [`SubscribeError`], if going on makes no sense. Asked again, it tries again, over the same connection and not before
    /// the ladder's wait.
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
                // There may be more of what had come before the deadline.
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

    /// Does what is due and takes what comes next. Nothing is late before all that has come is read.
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
            ConnectionEvent::Message(ANSWERS, message) => self.handle_api_reply(connection, &message)?,
            ConnectionEvent::Message(sid, message) if sid == self.sid => {
                self.handle_delivery(connection, message)?
            }
            // A consumer that was given up.
            ConnectionEvent::Message(..) => None,
        };
        Ok(event.map_or(SubscriberStep::Progress, SubscriberStep::Deliver))
    }

    /// Nothing has come: what has been waited for may be late.
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

    /// Gives up the consumer of now for another one. Where it has brought nothing, the next one would hardly do better at once:
    /// the ladder's wait comes first.
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

    /// Has the server forget the consumer of now. What it still delivers is not listened to.
    fn drop_consumer(&mut self, out: &mut Vec<u8>) {
        if self.sid > ANSWERS {
            encode_unsub(out, self.sid.to_string().as_bytes(), None);
        }
        if let Some(subject) = self.follower.as_mut().and_then(StreamFollower::drop_consumer) {
            self.remove(&subject, out);
        }
        self.sid += 1;
    }

    /// Asks for the removal of a consumer. The answer is one to no wish.
    fn remove(&self, subject: &str, out: &mut Vec<u8>) {
        let reply = format!("_INBOX.{}.a.0", self.name);
        Pub { subject: subject.as_bytes(), reply: Some(reply.as_bytes()), headers: &[], payload: &[] }
            .encode(out);
    }

    /// Gives up the consumer of now and begins to wish for another one.
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

    /// Wishes for a consumer, with a subscription of its own for what it delivers.
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

    /// Where the answers to the wish of now come.
    fn reply_subject(&self) -> String {
        format!("_INBOX.{}.a.{}", self.name, self.sid)
    }

    /// Where the answers to wishes come.
    fn reply_filter(&self) -> String {
        format!("_INBOX.{}.a.*", self.name)
    }

    /// Takes an answer about the stream, or to the wish for a consumer.
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
        let stream = self.config.stream.as_ref().map(|place| place.stream.clone()).unwrap_or_default();
        match created {
            ConsumerReply::Accepted => {
                self.refusals = 0;
                // Messages may have come before it, and have said the same.
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

    /// The stream stands so: wishes for a consumer, and tells what has happened to it. `before` is the follower who did not
    /// know.
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
            // The next connection finds out again what has not been told.
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

    /// The consumer of now is good for something.
    fn mark_progress(&mut self) {
        if !std::mem::replace(&mut self.has_progressed, true) {
            self.backoff.record_success();
        }
    }
}

/// What a step has brought.
enum SubscriberStep {
    Deliver(SubscriberEvent),
    /// Nothing for the caller.
    Progress,
    /// Nothing until the deadline, or too little for as much as was read after it.
    Nothing,
}

/// Why a step was the last one for now.
enum StepError {
    /// The connection is no good.
    ConnectionError(ConnectionError),
    /// The connection is good, and what is wished for is not to be had on it.
    Error(SubscribeError),
}

impl Iterator for Subscriber {
    type Item = Result<ReceivedMessage, SubscribeError>;

    /// The next message, however long it takes. What was missed is told by [`Subscriber::next_event`] alone.
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
