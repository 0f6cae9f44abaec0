//! What became of a message, and the figures that add up: whatever was taken is delivered, dropped with a reason, or
//! still held.

use std::fmt;
use std::time::Duration;

use crate::connection_error::ConnectionError;

/// What became of a message, as far as is known.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a message may have been dropped"]
pub enum PublishOutcome {
    /// The server has acknowledged it.
    Delivered {
        /// The stream that took it.
        stream: String,
        /// Its sequence there.
        sequence: u64,
        /// It was there already: an earlier attempt had arrived, and its acknowledgement got lost.
        duplicate: bool,
    },
    /// It is held and will be delivered when the server takes it. If it is dropped after all, that is told by
    /// [`Publisher::failures`](crate::Publisher::failures).
    Queued,
    /// It was not delivered and is not held.
    Dropped(DropReason),
}

/// Why a message was dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// Its subject cannot be published to.
    Subject(String),
    /// One of its headers cannot be sent.
    Header(String),
    /// It is longer than the server or the spool takes.
    TooLarge {
        /// Its bytes, headers included.
        size: usize,
        /// The most that is taken.
        size_max: usize,
    },
    /// The spool is full.
    SpoolFull,
    /// The spool cannot be written.
    SpoolFailed(String),
    /// A part of the spool on disk could not be read any more.
    SpoolDamaged,
    /// The stream does not want it.
    Refused {
        /// The stream, if one is named.
        stream: String,
        /// The kind of error, as in HTTP.
        code: u16,
        /// The error, as nats-server numbers them; 0 if it has no number.
        error_code: u32,
        /// What the server says.
        description: String,
    },
    /// The user may not publish to its subject.
    NotPermitted(String),
    /// No stream keeps its subject, for longer than the publisher is willing to wait for one.
    NoStream,
    /// The answer is not an acknowledgement of a stream.
    NoAcknowledgement(String),
    /// It was tried as often as the ladder allows.
    GaveUp {
        /// How often.
        attempts: u32,
        /// What was wrong last.
        connection_error: Option<ConnectionError>,
    },
    /// The caller's time was over. It may have arrived.
    TimedOut,
    /// A one-way message was on its way when the connection ended. It may have arrived.
    Unsure,
    /// The publisher was closed before the message was delivered, and nothing holds it.
    Closed,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DropReason::Subject(what) => write!(f, "the subject cannot be published to: {what}"),
            DropReason::Header(what) => write!(f, "one of its headers cannot be sent: {what}"),
            DropReason::TooLarge { size, size_max } => {
                write!(f, "the message has {size} bytes and {size_max} are taken: send less at once")
            }
            DropReason::SpoolFull => f.write_str(
                "the spool is full: the server takes less than is sent; make the spool larger or send less",
            ),
            DropReason::SpoolFailed(what) => write!(f, "the spool cannot be written: {what}"),
            DropReason::SpoolDamaged => {
                f.write_str("the spool's bytes are not what was written: the disk or something beside this program has changed them")
            }
            DropReason::Refused { stream, code, error_code, description } => {
                let stream = if stream.is_empty() { "the server" } else { stream };
                write!(f, "{stream} refused it: {description} ({code}, error {error_code})")
            }
            DropReason::NotPermitted(detail) => write!(f, "the user may not publish it: {detail}"),
            DropReason::NoStream => f.write_str(
                "no stream keeps this subject, so it was not stored: add it to a stream, or send it one-way",
            ),
            DropReason::NoAcknowledgement(detail) => {
                write!(f, "the answer is not an acknowledgement of a stream: {detail:?}")
            }
            DropReason::GaveUp { attempts, connection_error: Some(connection_error) } => {
                write!(f, "given up after {attempts} attempts: {connection_error}")
            }
            DropReason::GaveUp { attempts, connection_error: None } => {
                write!(f, "given up after {attempts} attempts: the server did not acknowledge it in time")
            }
            DropReason::TimedOut => f.write_str("not acknowledged in time; it may have arrived"),
            DropReason::Unsure => f.write_str("the connection ended while it was on its way; it may have arrived"),
            DropReason::Closed => f.write_str("the publisher was closed before it was delivered"),
        }
    }
}

impl std::error::Error for DropReason {}

/// A message that was dropped after its caller had gone on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishFailure {
    /// The message's subject.
    pub subject: String,
    /// Its `Nats-Msg-Id`; empty for one-way messages.
    pub id: String,
    /// Why it was dropped.
    pub reason: DropReason,
}

/// What a publisher did so far. Always `submitted + recovered == delivered + dropped + held`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PublisherCounts {
    /// Messages that callers gave.
    pub submitted: u64,
    /// Messages that an earlier publisher had left in the spool's directory.
    pub recovered: u64,
    /// Messages that the server has; one-way messages that it has read.
    pub delivered: u64,
    /// Those of them that were there already.
    pub duplicates: u64,
    /// Messages dropped, for whatever reason.
    pub dropped: u64,
    /// Messages held.
    pub held: u64,
    /// Bytes that they count in the spool.
    pub held_bytes: u64,
    /// Bytes of the payloads delivered.
    pub delivered_bytes: u64,
    /// Messages sent again.
    pub retried: u64,
    /// Connections that were made.
    pub connected: u64,
    /// Connections that could not be made, or ended.
    pub connection_failures: u64,
    /// Answers of the server to nothing that is waited for, such as a second acknowledgement.
    pub stray_answers: u64,
    /// The server's hints to come back later.
    pub hints: u64,
    /// The shortest time from submission to acknowledgement; nothing while there was none.
    pub send_time_min: Option<Duration>,
    /// The longest.
    pub send_time_max: Option<Duration>,
    /// The sum over all delivered messages that this publisher was given.
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
