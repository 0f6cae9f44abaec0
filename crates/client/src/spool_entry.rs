//! A message held by the publisher: its bytes, its ticket and its delivery attempts.

use std::time::Instant;

use stilling_wire::nats::{Headers, MESSAGE_ID};

use crate::limits::MESSAGE_OVERHEAD;
use crate::outcome::DropReason;
use crate::ticket::OutcomeSender;

/// Subject, header block and payload in one allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OutgoingMessage {
    bytes: Box<[u8]>,
    subject_end: usize,
    headers_end: usize,
}

impl OutgoingMessage {
    pub(crate) fn new(subject: &[u8], headers: &[u8], payload: &[u8]) -> OutgoingMessage {
        let mut bytes = Vec::with_capacity(subject.len() + headers.len() + payload.len());
        bytes.extend_from_slice(subject);
        bytes.extend_from_slice(headers);
        bytes.extend_from_slice(payload);
        let (subject_end, headers_end) = (subject.len(), subject.len() + headers.len());
        OutgoingMessage { bytes: bytes.into_boxed_slice(), subject_end, headers_end }
    }

    pub(crate) fn subject(&self) -> &[u8] {
        &self.bytes[..self.subject_end]
    }

    pub(crate) fn headers(&self) -> &[u8] {
        &self.bytes[self.subject_end..self.headers_end]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.headers_end..]
    }

    /// Bytes of headers and payload, as a server's limit counts them.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() - self.subject_end
    }

    /// Bytes that the message costs in a spool in memory.
    pub(crate) fn cost(&self) -> u64 {
        self.bytes.len() as u64 + MESSAGE_OVERHEAD
    }

    pub(crate) fn id(&self) -> String {
        let headers = Headers::parse(self.headers()).ok();
        let id = headers.and_then(|headers| headers.find(MESSAGE_ID)).unwrap_or_default();
        String::from_utf8_lossy(id).into_owned()
    }
}

#[derive(Debug)]
pub(crate) struct SpoolEntry {
    pub(crate) message: OutgoingMessage,
    pub(crate) id: u64,
    /// Bytes that it costs in the spool.
    pub(crate) cost: u64,
    /// Reports the outcome to the caller; `None` if the caller does not wait or has its outcome.
    pub(crate) ticket: Option<OutcomeSender>,
    /// Time of submission; `None` for a message recovered from the spool's directory.
    pub(crate) since: Option<Instant>,
    /// The link's failed connections at submission: each later one counts as an attempt of this message.
    pub(crate) failed_connections_before: u64,
    /// Failed attempts of this message alone.
    pub(crate) attempts: u64,
    pub(crate) rejection: Option<StreamRejection>,
}

/// The reason why a stream does not accept a message, and how long that is tolerated.
#[derive(Clone, Debug)]
pub(crate) struct StreamRejection {
    /// When the message is dropped; `None`: never, because the stream will accept it.
    pub(crate) until: Option<Instant>,
    pub(crate) reason: DropReason,
}

impl SpoolEntry {
    pub(crate) fn new(message: OutgoingMessage, cost: u64) -> SpoolEntry {
        let (id, ticket, since, failed_connections_before, attempts, rejection) = (0, None, None, 0, 0, None);
        SpoolEntry { message, id, cost, ticket, since, failed_connections_before, attempts, rejection }
    }

    /// Failed attempts in all, given the link's failed connections.
    pub(crate) fn attempts_made(&self, failed_connections: u64) -> u64 {
        failed_connections.saturating_sub(self.failed_connections_before) + self.attempts
    }

    /// The caller has stopped waiting and the message is no longer to be sent.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.ticket.as_ref().is_some_and(OutcomeSender::is_cancelled)
    }
}
