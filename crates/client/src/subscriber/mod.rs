//! The subscriber: a filter of subjects as their messages are published, or a stream from any place on.

mod follow;

use std::fmt;
use std::time::{Duration, Instant};

use stilling_wire::nats::{Filter, Pub, SubjectLimits, encode_sub, encode_unsub};

pub use follow::From;
use follow::{Created, Follow, Place, Standing, Word};

use crate::address::Server;
use crate::identity;
use crate::ladder::{Ladder, LadderConfig, Random};
use crate::limits::{self, HEARTBEAT, HEARTBEATS_MISSED_MAX, SERVERS_MAX, SPAN_MAX};
use crate::line::{Heard, Line, Patience};
use crate::message::Message;
use crate::trouble::Trouble;

/// The subscription for the answers to what is asked.
const ANSWERS: u64 = 1;
/// A stream to be followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamPlace {
    /// Its name.
    pub stream: String,
    /// From where.
    pub from: From,
}

/// What a subscriber may be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriberConfig {
    /// The servers. After a failure the next one is tried.
    pub servers: Vec<Server>,
    /// What the server's operator sees as the name of the connection.
    pub name: Option<String>,
    /// Which subjects.
    pub filter: String,
    /// Share the messages with all others of the same queue; not together with a stream.
    pub queue: Option<String>,
    /// Follow a stream; nothing: hear what is published from now on, at most once.
    pub stream: Option<StreamPlace>,
    /// When to connect again.
    pub ladder: LadderConfig,
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
            ladder: LadderConfig::default(),
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
        said: String,
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
            SubscribeError::NoStreams { stream, said } => {
                write!(f, "stream {stream} cannot be followed now: {said}")
            }
        }
    }
}

impl std::error::Error for SubscribeError {}

/// What happens to a subscriber.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A message.
    Message(Message),
    /// The connection is there. Whoever follows no stream gets what is published from now on; a stream is asked for next.
    Connected,
    /// The connection is not there; it is being made again. Who follows a stream gets what comes meanwhile later, as long as
    /// the stream keeps it; who does not may miss it.
    Interrupted(Trouble),
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
    Anew {
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
    follow: Option<Follow>,
    ladder: Ladder,
    random: Random,
    /// What its inboxes begin with.
    name: String,
    line: Option<Line>,
    server: usize,
    retry_at: Instant,
    /// The subscription of now; each wish for a consumer has its own.
    sid: u64,
    wish: Wish,
    /// Where the consumer of now delivers to.
    deliver: String,
    /// The consumer of now has delivered something, or has lived until a heartbeat.
    has_progressed: bool,
    /// Wishes that were not granted in a row.
    refused: u32,
    /// The message behind what has been told as missed.
    behind: Option<Message>,
}

/// How far a follower's wish is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// To be uttered, not before this time.
    Due(Instant),
    /// The stream was asked how far it goes; the answer is late after this time.
    Asked(Instant),
    /// Uttered; the answer is late after this time.
    Uttered(Instant),
    /// Granted; the next word is late after this time.
    Granted(Instant),
}

impl Wish {
    fn at(self) -> Instant {
        let (Wish::Due(at) | Wish::Asked(at) | Wish::Uttered(at) | Wish::Granted(at)) = self;
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
            &mut config.ladder.wait,
            &mut config.ladder.wait_max,
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
        let follow = config.stream.as_ref();
        Ok(Subscriber {
            follow: follow.map(|place| Follow::new(&place.stream, &config.filter, place.from)),
            ladder: Ladder::new(config.ladder),
            random: Random::new(identity::unpredictable()),
            name: identity::name(),
            line: None,
            server: 0,
            retry_at: now,
            sid: ANSWERS,
            wish: Wish::Due(now),
            deliver: String::new(),
            has_progressed: false,
            refused: 0,
            behind: None,
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
    pub fn next_event(&mut self, timeout: Duration) -> Result<Option<Event>, SubscribeError> {
        let now = Instant::now();
        let deadline = limits::deadline(now, timeout);
        if let Some(message) = self.behind.take() {
            return Ok(Some(Event::Message(message)));
        }
        if let Some(line) = &mut self.line {
            line.look();
        }
        loop {
            let now = Instant::now();
            let Some(mut line) = self.line.take() else {
                if now < self.retry_at {
                    std::thread::sleep(self.retry_at.min(deadline) - now);
                    if Instant::now() < self.retry_at {
                        return Ok(None);
                    }
                }
                return Ok(Some(self.connect()));
            };
            match self.step(&mut line, deadline) {
                Ok(Step::Event(event)) => {
                    self.line = Some(line);
                    return Ok(Some(event));
                }
                // There may be more of what had come before the deadline.
                Ok(Step::Progress) => self.line = Some(line),
                Ok(Step::Nothing) => {
                    line.look();
                    self.line = Some(line);
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(End::Trouble(trouble)) => return Ok(Some(self.lost(trouble))),
                Err(End::Error(error)) => {
                    self.line = Some(line);
                    return Err(error);
                }
            }
        }
    }

    fn connect(&mut self) -> Event {
        let patience = Patience {
            connect: self.config.connect_timeout,
            answer: self.config.answer_timeout,
            ping_interval: self.config.ping_interval,
        };
        let server = &self.config.servers[self.server];
        let begun = Line::connect(server, self.config.name.as_deref(), patience).and_then(|mut line| {
            let mut out = Vec::new();
            match self.follow {
                Some(_) => encode_sub(&mut out, self.answers().as_bytes(), None, b"1"),
                None => {
                    self.sid += 1;
                    let queue = self.config.queue.as_deref().map(str::as_bytes);
                    let sid = self.sid.to_string();
                    encode_sub(&mut out, self.config.filter.as_bytes(), queue, sid.as_bytes());
                }
            }
            line.send(&out)?;
            if self.follow.is_none() {
                line.settle()?;
            }
            Ok(line)
        });
        match begun {
            Ok(line) => {
                self.line = Some(line);
                self.wish = Wish::Due(Instant::now());
                if self.follow.is_none() {
                    self.ladder.succeeded();
                }
                Event::Connected
            }
            Err(trouble) => self.lost(trouble),
        }
    }

    fn lost(&mut self, trouble: Trouble) -> Event {
        self.line = None;
        self.ladder.failed();
        self.retry_at = Instant::now() + self.random.jitter(self.ladder.wait());
        self.server = (self.server + 1) % self.config.servers.len();
        Event::Interrupted(trouble)
    }

    /// Does what is due and takes what comes next. Nothing is late before all that has come is read.
    fn step(&mut self, line: &mut Line, deadline: Instant) -> Result<Step, End> {
        let mut until = deadline;
        if self.follow.is_some() {
            if let Wish::Due(at) = self.wish
                && Instant::now() >= at
            {
                self.utter(line)?;
            }
            until = until.min(self.wish.at());
        }
        let event = match line.next(until).map_err(End::Trouble)? {
            Heard::Nothing => return self.miss(line),
            Heard::Enough => return Ok(Step::Nothing),
            Heard::LameDuck => return Err(End::Trouble(Trouble::LameDuck)),
            Heard::Message(sid, message) if self.follow.is_none() => {
                (sid == self.sid).then_some(Event::Message(message))
            }
            Heard::Message(ANSWERS, message) => self.granted(line, &message)?,
            Heard::Message(sid, message) if sid == self.sid => self.followed(line, message)?,
            // A consumer that was given up.
            Heard::Message(..) => None,
        };
        Ok(event.map_or(Step::Progress, Step::Event))
    }

    /// Nothing has come: what has been waited for may be late.
    fn miss(&mut self, line: &mut Line) -> Result<Step, End> {
        if self.follow.is_some() && Instant::now() >= self.wish.at() {
            match self.wish {
                Wish::Due(_) => {}
                Wish::Asked(_) | Wish::Uttered(_) => return Err(End::Trouble(Trouble::Hung)),
                Wish::Granted(_) => self.start_over(line)?,
            }
        }
        Ok(Step::Nothing)
    }

    /// Gives up the consumer of now for another one. Where it has brought nothing, the next one would hardly do better at once:
    /// the ladder's wait comes first.
    fn start_over(&mut self, line: &mut Line) -> Result<(), End> {
        if std::mem::take(&mut self.has_progressed) {
            return self.utter(line);
        }
        let mut out = Vec::new();
        self.give_up(&mut out);
        line.send(&out).map_err(End::Trouble)?;
        self.ladder.failed();
        self.wish = Wish::Due(Instant::now() + self.random.jitter(self.ladder.wait()));
        Ok(())
    }

    /// Has the server forget the consumer of now. What it still delivers is not listened to.
    fn give_up(&mut self, out: &mut Vec<u8>) {
        if self.sid > ANSWERS {
            encode_unsub(out, self.sid.to_string().as_bytes(), None);
        }
        if let Some(subject) = self.follow.as_mut().and_then(Follow::give_up) {
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
    fn utter(&mut self, line: &mut Line) -> Result<(), End> {
        let Some(follow) = &self.follow else { return Ok(()) };
        let subject = follow.question();
        let mut out = Vec::new();
        self.give_up(&mut out);
        let reply = self.answer();
        Pub { subject: subject.as_bytes(), reply: Some(reply.as_bytes()), headers: &[], payload: &[] }
            .encode(&mut out);
        line.send(&out).map_err(End::Trouble)?;
        self.wish = Wish::Asked(Instant::now() + self.config.answer_timeout);
        Ok(())
    }

    /// Wishes for a consumer, with a subscription of its own for what it delivers.
    fn order(&mut self, line: &mut Line) -> Result<(), End> {
        let reply = self.answer();
        let Some(follow) = &mut self.follow else { return Ok(()) };
        let mut out = Vec::new();
        self.deliver = format!("_INBOX.{}.d.{}", self.name, self.sid);
        self.has_progressed = false;
        encode_sub(&mut out, self.deliver.as_bytes(), None, self.sid.to_string().as_bytes());
        let (subject, request) = (follow.subject(), follow.request(&self.deliver));
        Pub { subject: subject.as_bytes(), reply: Some(reply.as_bytes()), headers: &[], payload: &request }
            .encode(&mut out);
        line.send(&out).map_err(End::Trouble)?;
        self.wish = Wish::Uttered(Instant::now() + self.config.answer_timeout);
        Ok(())
    }

    /// Where the answers to the wish of now come.
    fn answer(&self) -> String {
        format!("_INBOX.{}.a.{}", self.name, self.sid)
    }

    /// Where the answers to wishes come.
    fn answers(&self) -> String {
        format!("_INBOX.{}.a.*", self.name)
    }

    /// Takes an answer about the stream, or to the wish for a consumer.
    fn granted(&mut self, line: &mut Line, message: &Message) -> Result<Option<Event>, End> {
        let is_of_now = message.subject.rsplit('.').next() == Some(self.sid.to_string().as_str());
        let Some(follow) = &mut self.follow else { return Ok(None) };
        if !is_of_now {
            if let Some(subject) = follow.given_up(message.status(), &message.payload) {
                let mut out = Vec::new();
                self.remove(&subject, &mut out);
                line.send(&out).map_err(End::Trouble)?;
            }
            return Ok(None);
        }
        let created = match self.wish {
            Wish::Asked(_) => {
                let before = follow.clone();
                match follow.told(message.status(), &message.payload) {
                    Ok(standing) => return self.go_on(line, standing, before),
                    Err(refused) => refused,
                }
            }
            _ => follow.created(message.status(), &message.payload),
        };
        let stream = self.config.stream.as_ref().map(|place| place.stream.clone()).unwrap_or_default();
        match created {
            Created::Yes => {
                self.refused = 0;
                // Messages may have come before it, and have said the same.
                self.wish = Wish::Granted(Instant::now() + HEARTBEAT * HEARTBEATS_MISSED_MAX);
                Ok(None)
            }
            Created::Later(said) => {
                self.refused += 1;
                self.ladder.failed();
                self.wish = Wish::Due(Instant::now() + self.random.jitter(self.ladder.wait()));
                if self.refused >= self.ladder.attempts() {
                    self.refused = 0;
                    return Err(End::Error(SubscribeError::NoStreams { stream, said }));
                }
                Ok(None)
            }
            Created::No { code, error_code, description } => {
                self.ladder.failed();
                self.wish = Wish::Due(Instant::now() + self.random.jitter(self.ladder.wait()));
                Err(End::Error(SubscribeError::Refused { stream, code, error_code, description }))
            }
        }
    }

    /// The stream stands so: wishes for a consumer, and tells what has happened to it. `before` is the follower who did not
    /// know.
    fn go_on(&mut self, line: &mut Line, standing: Standing, before: Follow) -> Result<Option<Event>, End> {
        let event = match standing {
            Standing::Whole => None,
            Standing::Missed { first, last } => {
                Some(Event::Missed { first, last, cause: MissedCause::Removed })
            }
            Standing::Anew { last } => Some(Event::Anew { last }),
        };
        self.order(line).inspect_err(|_| {
            // The next connection finds out again what has not been told.
            if event.is_some() {
                self.follow = Some(before);
            }
        })?;
        Ok(event)
    }

    fn followed(&mut self, line: &mut Line, message: Message) -> Result<Option<Event>, End> {
        let Some(follow) = &mut self.follow else { return Ok(None) };
        if let Wish::Granted(at) = &mut self.wish {
            *at = Instant::now() + HEARTBEAT * HEARTBEATS_MISSED_MAX;
        }
        if Follow::is_control(&message, &self.deliver) {
            match follow.word(&message.headers, message.reply.as_deref()) {
                Word::Fine => self.progressed(),
                Word::Answer(subject) => {
                    self.progressed();
                    let mut out = Vec::new();
                    Pub { subject: subject.as_bytes(), reply: None, headers: &[], payload: &[] }
                        .encode(&mut out);
                    line.send(&out).map_err(End::Trouble)?;
                }
                Word::Again => self.start_over(line)?,
                Word::Gap { first, last, cause } => {
                    self.progressed();
                    return Ok(Some(Event::Missed { first, last, cause }));
                }
            }
            return Ok(None);
        }
        match follow.place(message.reply.as_deref()) {
            Place::Next { missed } => {
                self.progressed();
                let message = message.placed();
                let Some((first, last)) = missed else { return Ok(Some(Event::Message(message))) };
                self.behind = Some(message);
                Ok(Some(Event::Missed { first, last, cause: MissedCause::Removed }))
            }
            Place::Gap => self.start_over(line).map(|()| None),
            Place::Foreign => Ok(None),
        }
    }

    /// The consumer of now is good for something.
    fn progressed(&mut self) {
        if !std::mem::replace(&mut self.has_progressed, true) {
            self.ladder.succeeded();
        }
    }
}

/// What a step has brought.
enum Step {
    Event(Event),
    /// Nothing for the caller.
    Progress,
    /// Nothing until the deadline, or too little for as much as was read after it.
    Nothing,
}

/// Why a step was the last one for now.
enum End {
    /// The connection is no good.
    Trouble(Trouble),
    /// The connection is good, and what is wished for is not to be had on it.
    Error(SubscribeError),
}

impl Iterator for Subscriber {
    type Item = Result<Message, SubscribeError>;

    /// The next message, however long it takes. What was missed is told by [`Subscriber::next_event`] alone.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_event(SPAN_MAX) {
                Ok(Some(Event::Message(message))) => return Some(Ok(message)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
