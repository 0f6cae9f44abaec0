//! A message on its way: its bytes in one piece of memory, who waits for it, and what it has been through.

use std::time::Instant;

use stilling_wire::nats::{Headers, MESSAGE_ID};

use crate::limits::MESSAGE_OVERHEAD;
use crate::outcome::DropReason;
use crate::ticket::OutcomeSender;

/// Subject, header block and payload, one behind the other.
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

    /// The header block; empty for none.
    pub(crate) fn headers(&self) -> &[u8] {
        &self.bytes[self.subject_end..self.headers_end]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.headers_end..]
    }

    /// Bytes of headers and payload: what a server's limit counts.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() - self.subject_end
    }

    /// Bytes that it counts in a spool in memory.
    pub(crate) fn cost(&self) -> u64 {
        self.bytes.len() as u64 + MESSAGE_OVERHEAD
    }

    /// By which the server recognises it; empty without one.
    pub(crate) fn id(&self) -> String {
        let headers = Headers::parse(self.headers()).ok();
        let id = headers.and_then(|headers| headers.find(MESSAGE_ID)).unwrap_or_default();
        String::from_utf8_lossy(id).into_owned()
    }
}

/// A message that is held.
#[derive(Debug)]
pub(crate) struct SpoolEntry {
    pub(crate) message: OutgoingMessage,
    /// Its place in the spool.
    pub(crate) id: u64,
    /// What it counts in the spool, in bytes.
    pub(crate) cost: u64,
    /// Who waits for it, unless nobody does or they have been answered.
    pub(crate) ticket: Option<OutcomeSender>,
    /// When its caller gave it; nothing for one that an earlier publisher left.
    pub(crate) since: Option<Instant>,
    /// The link's count of failed connections when it came: all later ones were attempts of its own, too.
    pub(crate) failed_connections_before: u64,
    /// Its own failed attempts.
    pub(crate) attempts: u64,
    /// Its stream does not take it.
    pub(crate) rejection: Option<StreamRejection>,
}

/// Why a message's own stream does not take it, and for how long that is borne.
#[derive(Clone, Debug)]
pub(crate) struct StreamRejection {
    /// Then it is dropped; nothing: it is kept, for its stream will take it.
    pub(crate) until: Option<Instant>,
    pub(crate) reason: DropReason,
}

impl SpoolEntry {
    pub(crate) fn new(message: OutgoingMessage, cost: u64) -> SpoolEntry {
        let (id, ticket, since, failed_connections_before, attempts, rejection) = (0, None, None, 0, 0, None);
        SpoolEntry { message, id, cost, ticket, since, failed_connections_before, attempts, rejection }
    }

    /// How often it has been tried in vain, when so many connections have failed in all.
    pub(crate) fn attempts_made(&self, failed_connections: u64) -> u64 {
        failed_connections.saturating_sub(self.failed_connections_before) + self.attempts
    }

    /// Its caller has gone and does not want it to be sent any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.ticket.as_ref().is_some_and(OutcomeSender::is_cancelled)
    }
}
