//! What goes out: messages to subscriptions, and what publishers are told.

use stilling_wire::nats::{DISK_FULL, DISK_HUNG, PubAck, PubRefusal};

use super::{Hub, Message, Outlets};
use crate::deliveries::{Refusal, Verdict};
use crate::fan_out::Publisher;
use crate::intake::{Client, Publication};
use crate::loss::Loss;
use crate::storage::Storage;

impl<S: Storage, O: Outlets> Hub<S, O> {
    pub(super) fn refuse(&mut self, client: Client, publication: &Publication<'_>, refusal: Refusal) {
        let loss = match refusal {
            Refusal::Frozen { .. } => Loss::Frozen,
            Refusal::Hung { .. } | Refusal::Closed { .. } => Loss::Hung,
            Refusal::NoRoom { .. } => Loss::NoRoom,
            Refusal::TooLarge { .. } => Loss::TooLarge,
            Refusal::WrongLastSequence { .. }
            | Refusal::WrongStream { .. }
            | Refusal::UnknownCondition { .. } => Loss::Condition,
        };
        self.losses.count(publication.door, loss, 1);
        self.answer(client, publication.ticket, publication.reply, Verdict::Refused(refusal));
    }

    pub(super) fn give_verdict(&mut self, client: Client, ticket: Option<u32>, verdict: Verdict) {
        if let Some(ticket) = ticket {
            self.totals.verdicts += 1;
            self.fan_out.verdict(client, ticket, verdict);
        }
    }

    /// Says what became of a message: as a verdict, or as a message to its reply subject.
    pub(super) fn answer(&mut self, client: Client, ticket: Option<u32>, reply: &[u8], verdict: Verdict) {
        if ticket.is_some() {
            self.give_verdict(client, ticket, verdict);
            return;
        }
        if reply.is_empty() {
            return;
        }
        self.totals.verdicts += 1;
        let mut json = std::mem::take(&mut self.scratch.json);
        json.clear();
        self.encode(verdict, &mut json);
        let message = Message { subject: reply, reply: b"", headers: b"", payload: json[..].into() };
        self.fan_out.send_reply(&mut self.router, client, &message);
        self.scratch.json = json;
    }

    fn encode(&self, verdict: Verdict, json: &mut Vec<u8>) {
        match verdict {
            Verdict::Stored { stream, sequence, duplicate } => {
                let name = self.streams[stream as usize].config.name.as_str();
                PubAck { stream: name.into(), sequence, duplicate }.encode(json);
            }
            Verdict::Passed { .. } => {}
            Verdict::Refused(refusal) => {
                let stream = &self.streams[refusal.stream() as usize];
                let (code, error_code, description) =
                    describe(refusal, stream.frozen.as_deref().or(stream.closed.as_deref()));
                let name = stream.config.name.as_str();
                let description = description.into();
                PubRefusal { stream: name.into(), code, error_code, description }.encode(json);
            }
        }
    }

    /// Sends a message to the registrations `found`, one of each queue. Returns to how many connections, at least.
    pub(super) fn send(&mut self, found: &[u32], from: Option<Publisher>, message: &Message<'_>) -> u32 {
        self.fan_out.send(&mut self.router, found, from, message)
    }

    /// Sends a message of the hub's own to the subscriptions that take its subject; to none if it has none.
    pub(super) fn send_by_subject(&mut self, message: &Message<'_>) {
        self.fan_out.send_by_subject(&mut self.router, message);
    }

    /// Sends a message that has a status and no payload.
    pub(super) fn send_status(&mut self, to: &[u8], reply: &[u8], headers: &[u8]) {
        self.send_by_subject(&Message { subject: to, reply, headers, payload: b"".into() });
    }
}

/// Code, error code as nats-server numbers them, and words.
#[must_use]
pub fn describe(refusal: Refusal, reason: Option<&str>) -> (u16, u32, String) {
    match refusal {
        Refusal::Frozen { .. } => {
            (503, 10077, format!("the stream is frozen until the next start: {}", reason.unwrap_or("")))
        }
        Refusal::Closed { .. } => {
            (503, 10023, format!("the stream is not open yet: {}", reason.unwrap_or("")))
        }
        Refusal::Hung { .. } => (503, 10023, DISK_HUNG.to_owned()),
        Refusal::NoRoom { .. } => (503, 10023, DISK_FULL.to_owned()),
        Refusal::TooLarge { .. } => (400, 10054, "message size exceeds maximum allowed".to_owned()),
        Refusal::WrongLastSequence { last, .. } => (400, 10071, format!("wrong last sequence: {last}")),
        Refusal::WrongStream { .. } => (400, 10060, "expected stream does not match".to_owned()),
        Refusal::UnknownCondition { .. } => {
            (400, 10052, "a condition in the headers is not known here".to_owned())
        }
    }
}
