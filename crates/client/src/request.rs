//! One question, one answer.

use std::fmt;
use std::time::{Duration, Instant};

use stilling_wire::nats::{Pub, Subject, SubjectLimits, encode_sub};

use crate::address::Server;
use crate::identity::Inbox;
use crate::limits::SPAN_MAX;
use crate::line::{Heard, Line, Patience};
use crate::message::Message;
use crate::trouble::Trouble;

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// The subject cannot be published to.
    Subject(String),
    /// Nobody listens to the subject.
    NoResponders,
    /// The question is longer than the server takes.
    TooLarge {
        /// Its bytes.
        size: usize,
        /// The most that is taken.
        size_max: usize,
    },
    /// No answer came in time.
    TimedOut,
    /// The connection failed. The question may have arrived.
    Trouble(Trouble),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Subject(what) => write!(f, "the subject cannot be published to: {what}"),
            RequestError::NoResponders => {
                f.write_str("nobody listens to the subject: start what answers it, or check its name")
            }
            RequestError::TooLarge { size, size_max } => {
                write!(f, "the question has {size} bytes and {size_max} are taken")
            }
            RequestError::TimedOut => f.write_str("no answer came in time"),
            RequestError::Trouble(trouble) => trouble.fmt(f),
        }
    }
}

impl std::error::Error for RequestError {}

/// Asks questions over one connection, one at a time. A connection that failed, or brought no answer in
/// time, is made again with the next question; no
/// question is asked twice.
#[derive(Debug)]
pub struct Requester {
    server: Server,
    name: Option<String>,
    inbox: Inbox,
    asked: u64,
    line: Option<Line>,
}

impl Requester {
    /// For questions to this server; connects with the first one.
    #[must_use]
    pub fn new(server: Server, name: Option<String>) -> Requester {
        Requester { server, name, inbox: Inbox::new(), asked: 0, line: None }
    }

    /// Asks, and waits for the answer at most for `timeout`.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn request(
        &mut self,
        subject: &str,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Message, RequestError> {
        if let Err(bad) = Subject::parse(subject.as_bytes(), &SubjectLimits::default()) {
            return Err(RequestError::Subject(bad.to_string()));
        }
        let timeout = timeout.min(SPAN_MAX);
        let deadline = Instant::now() + timeout;
        let mut line = match self.line.take() {
            Some(line) => line,
            None => self.connect(timeout).map_err(RequestError::Trouble)?,
        };
        let answer = self.ask(&mut line, subject, payload, deadline);
        // Without an answer nobody knows whether the connection still is one.
        if !matches!(answer, Err(RequestError::Trouble(_) | RequestError::TimedOut)) {
            self.line = Some(line);
        }
        answer
    }

    fn connect(&self, timeout: Duration) -> Result<Line, Trouble> {
        let ping_interval = Duration::from_secs(3600);
        let patience = Patience { connect: timeout, answer: timeout, ping_interval };
        let mut line = Line::connect(&self.server, self.name.as_deref(), patience)?;
        let mut out = Vec::new();
        encode_sub(&mut out, &self.inbox.filter(), None, b"1");
        line.send(&out)?;
        Ok(line)
    }

    fn ask(
        &mut self,
        line: &mut Line,
        subject: &str,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<Message, RequestError> {
        let size_max = line.greeting.payload_size_max;
        if payload.len() > size_max {
            return Err(RequestError::TooLarge { size: payload.len(), size_max });
        }
        self.asked += 1;
        let (mut reply, mut out) = (Vec::new(), Vec::new());
        self.inbox.subject(self.asked, &mut reply);
        Pub { subject: subject.as_bytes(), reply: Some(&reply), headers: &[], payload }.encode(&mut out);
        line.send(&out).map_err(RequestError::Trouble)?;
        line.look();
        loop {
            match line.next(deadline).map_err(RequestError::Trouble)? {
                Heard::Enough if Instant::now() < deadline => line.look(),
                Heard::Nothing | Heard::Enough => return Err(RequestError::TimedOut),
                // An answer to an earlier question comes too late.
                Heard::Message(_, message)
                    if self.inbox.token(message.subject.as_bytes()) != Some(self.asked) => {}
                Heard::Message(_, message) if message.status() == Some(503) && message.payload.is_empty() => {
                    return Err(RequestError::NoResponders);
                }
                Heard::Message(_, message) => return Ok(message),
                Heard::LameDuck => {}
            }
        }
    }
}
