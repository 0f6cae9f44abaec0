//! Request and reply over one connection.

use std::fmt;
use std::time::{Duration, Instant};

use stilling_wire::nats::{Pub, Subject, SubjectLimits, encode_sub};

use crate::address::ServerUrl;
use crate::blocking_connection::{BlockingConnection, ConnectionEvent, ConnectionTimeouts};
use crate::connection_error::ConnectionError;
use crate::identity::Inbox;
use crate::limits::SPAN_MAX;
use crate::message::ReceivedMessage;

/// The reason why a request has no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequesterError {
    /// The subject is not valid for publishing.
    InvalidSubject(String),
    /// The subject has no subscriber.
    NoResponders,
    /// The request is longer than the server accepts.
    TooLarge {
        /// Size of the request in bytes.
        size: usize,
        /// Largest accepted size in bytes.
        size_max: usize,
    },
    /// No reply arrived in time.
    TimedOut,
    /// The connection failed. The request may have arrived.
    ConnectionError(ConnectionError),
}

impl fmt::Display for RequesterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequesterError::InvalidSubject(what) => write!(f, "invalid subject: {what}"),
            RequesterError::NoResponders => {
                f.write_str("no responders for the subject: start the service, or check the subject")
            }
            RequesterError::TooLarge { size, size_max } => {
                write!(f, "the request has {size} bytes, the maximum is {size_max}")
            }
            RequesterError::TimedOut => f.write_str("no reply in time"),
            RequesterError::ConnectionError(connection_error) => connection_error.fmt(f),
        }
    }
}

impl std::error::Error for RequesterError {}

/// Sends requests over one connection, one at a time. After a connection error or a timeout the next request opens a
/// new connection; no request is sent twice.
#[derive(Debug)]
pub struct Requester {
    server: ServerUrl,
    name: Option<String>,
    inbox: Inbox,
    requests_sent: u64,
    connection: Option<BlockingConnection>,
}

impl Requester {
    /// A requester for this server; it connects with the first request.
    #[must_use]
    pub fn new(server: ServerUrl, name: Option<String>) -> Requester {
        Requester { server, name, inbox: Inbox::new(), requests_sent: 0, connection: None }
    }

    /// Sends a request and waits for the reply, at most for `timeout`.
    ///
    /// # Errors
    /// [`RequesterError`].
    pub fn request(
        &mut self,
        subject: &str,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<ReceivedMessage, RequesterError> {
        if let Err(bad) = Subject::parse(subject.as_bytes(), &SubjectLimits::default()) {
            return Err(RequesterError::InvalidSubject(bad.to_string()));
        }
        let timeout = timeout.min(SPAN_MAX);
        let deadline = Instant::now() + timeout;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(timeout).map_err(RequesterError::ConnectionError)?,
        };
        let answer = self.exchange(&mut connection, subject, payload, deadline);
        // After a timeout the state of the connection is unknown.
        if !matches!(answer, Err(RequesterError::ConnectionError(_) | RequesterError::TimedOut)) {
            self.connection = Some(connection);
        }
        answer
    }

    fn connect(&self, timeout: Duration) -> Result<BlockingConnection, ConnectionError> {
        let ping_interval = Duration::from_secs(3600);
        let timeouts = ConnectionTimeouts { connect: timeout, answer: timeout, ping_interval };
        let mut connection = BlockingConnection::connect(&self.server, self.name.as_deref(), timeouts)?;
        let mut out = Vec::new();
        encode_sub(&mut out, &self.inbox.filter(), None, b"1");
        connection.send(&out)?;
        Ok(connection)
    }

    fn exchange(
        &mut self,
        connection: &mut BlockingConnection,
        subject: &str,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<ReceivedMessage, RequesterError> {
        let size_max = connection.server_limits.payload_size_max;
        if payload.len() > size_max {
            return Err(RequesterError::TooLarge { size: payload.len(), size_max });
        }
        self.requests_sent += 1;
        let (mut reply, mut out) = (Vec::new(), Vec::new());
        self.inbox.subject(self.requests_sent, &mut reply);
        Pub { subject: subject.as_bytes(), reply: Some(&reply), headers: &[], payload }.encode(&mut out);
        connection.send(&out).map_err(RequesterError::ConnectionError)?;
        connection.begin_wait();
        loop {
            match connection.next_event(deadline).map_err(RequesterError::ConnectionError)? {
                ConnectionEvent::ReadLimit if Instant::now() < deadline => connection.begin_wait(),
                ConnectionEvent::TimedOut | ConnectionEvent::ReadLimit => {
                    return Err(RequesterError::TimedOut);
                }
                ConnectionEvent::Message(_, message)
                    if self.inbox.token(message.subject.as_bytes()) != Some(self.requests_sent) => {}
                ConnectionEvent::Message(_, message)
                    if message.status() == Some(503) && message.payload.is_empty() =>
                {
                    return Err(RequesterError::NoResponders);
                }
                ConnectionEvent::Message(_, message) => return Ok(message),
                ConnectionEvent::LameDuck => {}
            }
        }
    }
}
