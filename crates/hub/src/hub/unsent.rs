//! What a shard had no room for in the middle of a message: the rest waits here, in order, and everything else behind it.
//!
//! ```text
//!   send ─▶ s1 s2 s3 ▌ the shard of s4 has all its pieces
//!                     └▶ unsent: [ message, s4 … s900000 ] [ record, its last 7 consumers ] [ mark ] ─▶ when one comes back
//! ```
//!
//! One message may go to a million subscriptions, and one record to thousands of consumers with thousands of listeners each:
//! what that makes must not stand in memory at once. So it is handed out piece by piece, and the hub takes nothing more from
//! anybody meanwhile. What waits costs its message once and four bytes for each subscription.

use std::collections::VecDeque;

use stilling_journal::{Kind, Record};

use super::pulls::Ended;
use super::roster::Ticket;
use super::{Hub, Message, Outlets, SteadyNanos, UnixNanos};
use crate::intake::Client;
use crate::storage::Storage;

/// Something that could not be handed out to its end.
#[derive(Debug)]
pub(super) enum Unsent {
    /// A message for the rest of its subscriptions.
    Message { number: u64, message: Kept, to: Vec<u32> },
    /// A record for the rest of the consumers that want it.
    Record { visible: Visible, kind: Kind, record: Kept, to: Vec<u32> },
    /// What those are told who had asked for messages that do not come.
    Statuses(VecDeque<Ended>),
    /// A mark behind what waits.
    Mark { client: Client, ticket: Ticket },
}

/// Which record has become visible, when it came, and what time it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visible {
    pub(super) stream: usize,
    pub(super) sequence: u64,
    pub(super) time_ns: UnixNanos,
    pub(super) now_ns: SteadyNanos,
}

/// A message's parts, one behind the other.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// Where its reply subject, its headers and its payload begin.
    starts: [usize; 3],
}

impl Kept {
    fn new(message: &Message<'_>) -> Kept {
        let Message { subject, reply, headers, payload } = *message;
        let (headers_at, payload_at) =
            (subject.len() + reply.len(), subject.len() + reply.len() + headers.len());
        Kept {
            bytes: [subject, reply, headers, payload].concat(),
            starts: [subject.len(), headers_at, payload_at],
        }
    }

    fn message(&self) -> Message<'_> {
        let [reply_at, headers_at, payload_at] = self.starts;
        Message {
            subject: &self.bytes[..reply_at],
            reply: &self.bytes[reply_at..headers_at],
            headers: &self.bytes[headers_at..payload_at],
            payload: &self.bytes[payload_at..],
        }
    }
}

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Whether something that was begun waits for room.
    pub(super) fn has_begun(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Has the rest of a message wait.
    pub(super) fn keep_message(&mut self, number: u64, message: &Message<'_>, to: &[u32]) {
        self.unsent.push_back(Unsent::Message { number, message: Kept::new(message), to: to.to_vec() });
    }

    /// Has a record wait for the rest of the consumers that want it.
    pub(super) fn keep_record(&mut self, visible: Visible, record: &Record<'_>, to: &[u32]) {
        let &Record { kind, subject, headers, payload } = record;
        let record = Kept::new(&Message { subject, reply: b"", headers, payload });
        self.unsent.push_back(Unsent::Record { visible, kind, record, to: to.to_vec() });
    }

    /// Has statuses wait, behind what waits already.
    pub(super) fn keep_ended(&mut self, ended: VecDeque<Ended>) {
        self.unsent.push_back(Unsent::Statuses(ended));
    }

    /// Appends a mark, behind what waits.
    pub(super) fn put_mark(&mut self, client: Client, ticket: Ticket) {
        if self.has_begun() {
            self.unsent.push_back(Unsent::Mark { client, ticket });
        } else {
            self.outs[client.shard as usize].mark(client.token, ticket);
        }
    }

    /// Goes on with what was begun. Returns whether it came to its end.
    pub(super) fn finish_begun(&mut self) -> bool {
        while let Some(first) = self.unsent.pop_front() {
            // What it leaves behind goes before the others.
            let mut others = std::mem::take(&mut self.unsent);
            match first {
                Unsent::Message { number, message, mut to } => {
                    let sent = self.send_to_all(number, &message.message(), &to);
                    if sent < to.len() {
                        to.drain(..sent);
                        self.unsent.push_back(Unsent::Message { number, message, to });
                    }
                }
                Unsent::Record { visible, kind, record, to } => {
                    let Message { subject, headers, payload, .. } = record.message();
                    self.offer(visible, &Record { kind, subject, headers, payload }, &to);
                }
                Unsent::Statuses(ended) => self.tell_ended(ended),
                Unsent::Mark { client, ticket } => {
                    self.outs[client.shard as usize].mark(client.token, ticket);
                }
            }
            let is_stopped = self.has_begun();
            self.unsent.append(&mut others);
            if is_stopped {
                return false;
            }
        }
        true
    }
}
