//! Outcomes of messages, and counters that balance: each submitted message is delivered, dropped with a reason, or
//! held.

use std::fmt;
use std::time::Duration;

use crate::connection_error::ConnectionError;

/// The outcome of a message, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a message may have been dropped"]
pub enum PublishOutcome {
    /// The server has acknowledged the message.
    Delivered {
        /// The stream that stored it.
        stream: String,
        /// Its sequence in the stream.
        sequence: u64,
        /// Whether an earlier attempt was stored and its acknowledgement lost.
        duplicate: bool,
    },
    /// The message is held and will be delivered when the server accepts it.
    /// [`Publisher::failures`](crate::Publisher::failures) reports it if it is dropped later.
    Queued,
    /// The message was not delivered and is not held.
    Dropped(DropReason),
}

/// The reason why a message was dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// The subject is not valid for publishing.
    InvalidSubject(String),
    /// A header cannot be encoded.
    InvalidHeader(String),
    /// The message is longer than the server or the spool accepts.
    TooLarge {
        /// Size of the message in bytes, headers included.
        size: usize,
        /// Largest accepted size in bytes.
        size_max: usize,
    },
    /// The spool is full.
    SpoolFull,
    /// The spool cannot be written. The message may be on disk all the same: unless a later message was written, the
    /// next publisher with the directory may find it and send it, with the same `Nats-Msg-Id`.
    SpoolFailed(String),
    /// A part of the spool on disk is no longer readable.
    SpoolDamaged,
    /// The stream refused the message.
    Refused {
        /// The stream; empty if the server did not name one.
        stream: String,
        /// The status code, as in HTTP.
        code: u16,
        /// The error number of nats-server; 0 if there is none.
        error_code: u32,
        /// The server's description.
        description: String,
    },
    /// The user has no permission to publish to the subject.
    NotPermitted(String),
    /// No stream stored the subject for [`no_stream_timeout`](crate::PublisherConfig::no_stream_timeout).
    NoStream,
    /// The answer is not a stream's acknowledgement.
    NoAcknowledgement(String),
    /// The message was tried as often as the backoff allows.
    AttemptsExhausted {
        /// Number of attempts.
        attempts: u32,
        /// The last connection error.
        connection_error: Option<ConnectionError>,
    },
    /// The caller's timeout expired. The message may have arrived.
    TimedOut,
    /// The connection ended after a one-way message was written. The message may have arrived.
    Unconfirmed,
    /// The publisher was closed before delivery, and the message is not in a spool on disk.
    Closed,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DropReason::InvalidSubject(what) => write!(f, "invalid subject: {what}"),
            DropReason::InvalidHeader(what) => write!(f, "invalid header: {what}"),
            DropReason::TooLarge { size, size_max } => {
                write!(f, "the message has {size} bytes, the maximum is {size_max}: send smaller messages")
            }
            DropReason::SpoolFull => f.write_str(
                "the spool is full: messages are sent faster than the server accepts them; enlarge the spool or send less",
            ),
            DropReason::SpoolFailed(what) => write!(f, "the spool cannot be written: {what}"),
            DropReason::SpoolDamaged => {
                f.write_str("the spool is damaged: the disk or another program has changed its bytes")
            }
            DropReason::Refused { stream, code, error_code, description } => {
                let stream = if stream.is_empty() { "the server" } else { stream };
                write!(f, "{stream} refused the message: {description} ({code}, error {error_code})")
            }
            DropReason::NotPermitted(detail) => write!(f, "no permission to publish: {detail}"),
            DropReason::NoStream => f.write_str(
                "no stream stores this subject: add it to a stream, or use the one-way mode",
            ),
            DropReason::NoAcknowledgement(detail) => {
                write!(f, "the answer is not an acknowledgement of a stream: {detail:?}")
            }
            DropReason::AttemptsExhausted { attempts, connection_error: Some(connection_error) } => {
                write!(f, "dropped after {attempts} attempts: {connection_error}")
            }
            DropReason::AttemptsExhausted { attempts, connection_error: None } => {
                write!(f, "dropped after {attempts} attempts: the server did not acknowledge it in time")
            }
            DropReason::TimedOut => f.write_str("not acknowledged in time; it may have arrived"),
            DropReason::Unconfirmed => f.write_str("the connection ended while the message was in flight; it may have arrived"),
            DropReason::Closed => f.write_str("the publisher was closed before it was delivered"),
        }
    }
}

impl std::error::Error for DropReason {}

/// A message that was dropped after its caller had stopped waiting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishFailure {
    /// The subject.
    pub subject: String,
    /// Its `Nats-Msg-Id`; empty for one-way messages.
    pub id: String,
    /// The reason.
    pub reason: DropReason,
}

/// Counters of a publisher. Always `submitted + recovered == delivered + dropped + held`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PublisherCounts {
    /// Messages submitted by callers.
    pub submitted: u64,
    /// Messages found in the spool's directory at the start.
    pub recovered: u64,
    /// Messages acknowledged by the server; one-way messages that it has read.
    pub delivered: u64,
    /// Delivered messages that an earlier attempt had already stored.
    pub duplicates: u64,
    /// Messages dropped, for any reason.
    pub dropped: u64,
    /// Messages held.
    pub held: u64,
    /// Bytes that the held messages cost in the spool.
    pub held_bytes: u64,
    /// Payload bytes of delivered messages.
    pub delivered_bytes: u64,
    /// Messages sent again.
    pub retried: u64,
    /// Connections established.
    pub connected: u64,
    /// Connection attempts that failed and connections that were lost.
    pub connection_failures: u64,
    /// Answers that match no unanswered message, such as a second acknowledgement.
    pub stray_answers: u64,
    /// Answers of the server that defer a message.
    pub deferrals: u64,
    /// Shortest time from submission to acknowledgement; `None` before the first one.
    pub send_time_min: Option<Duration>,
    /// Longest time from submission to acknowledgement.
    pub send_time_max: Option<Duration>,
    /// Sum of these times over all delivered messages submitted to this publisher.
    pub send_time_sum: Duration,
}

impl PublisherCounts {
    /// Whether every message is accounted for.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.submitted + self.recovered == self.delivered + self.dropped + self.held
    }

    pub(crate) fn record_send_time(&mut self, span: Duration) {
        self.send_time_min = Some(self.send_time_min.map_or(span, |least| least.min(span)));
        self.send_time_max = Some(self.send_time_max.map_or(span, |most| most.max(span)));
        self.send_time_sum += span;
    }
}
