//! Sending: messages to subscriptions, and outcomes to publishers.

use stilling_wire::nats::{DISK_FULL, DISK_HUNG, PubAck, PubAckError};

use super::{Hub, OutboundMessage, ShardSenders};
use crate::fan_out::MessageSender;
use crate::loss::Loss;
use crate::publication_batch::{ClientId, Publication};
use crate::publish_outcome::{PublishOutcome, RefusalReason};
use crate::storage::Storage;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    pub(super) fn refuse(&mut self, client: ClientId, publication: &Publication<'_>, refusal: RefusalReason) {
        let loss = match refusal {
            RefusalReason::Frozen { .. } => Loss::Frozen,
            RefusalReason::Hung { .. } | RefusalReason::Closed { .. } => Loss::Hung,
            RefusalReason::NoRoom { .. } => Loss::NoRoom,
            RefusalReason::TooLarge { .. } => Loss::TooLarge,
            RefusalReason::WrongLastSequence { .. }
            | RefusalReason::WrongStream { .. }
            | RefusalReason::UnknownCondition { .. } => Loss::Condition,
            RefusalReason::Gate { .. } => Loss::Rejected,
        };
        self.losses.count(publication.ingress, loss, 1);
        self.answer(client, publication.ticket, publication.reply, PublishOutcome::Refused(refusal));
    }

    pub(super) fn send_outcome(&mut self, client: ClientId, ticket: Option<u32>, outcome: PublishOutcome) {
        if let Some(ticket) = ticket {
            self.totals.publish_outcomes += 1;
            self.fan_out.outcome(client, ticket, outcome);
        }
    }

    /// Answers a publication: with a publish outcome, or with a message to its reply subject.
    pub(super) fn answer(
        &mut self,
        client: ClientId,
        ticket: Option<u32>,
        reply: &[u8],
        outcome: PublishOutcome,
    ) {
        if ticket.is_some() {
            self.send_outcome(client, ticket, outcome);
            return;
        }
        if reply.is_empty() {
            return;
        }
        self.totals.publish_outcomes += 1;
        let mut json = std::mem::take(&mut self.scratch.json);
        json.clear();
        self.encode(outcome, &mut json);
        let message = OutboundMessage {
            subject: reply,
            reply: b"",
            headers: b"",
            payload: json[..].into(),
            position: None,
        };
        self.fan_out.send_reply(&mut self.router, client, &message);
        self.scratch.json = json;
    }

    /// Answers a publication that the gate of its stream has rejected: to its ticket, or to its reply subject.
    pub(super) fn answer_rejection(
        &mut self,
        client: ClientId,
        (ticket, reply): (Option<u32>, &[u8]),
        stream: u32,
        reason: &[u8],
    ) {
        if let Some(ticket) = ticket {
            self.totals.publish_outcomes += 1;
            return self.fan_out.rejection(client, (ticket, stream), reason);
        }
        if reply.is_empty() {
            return;
        }
        self.totals.publish_outcomes += 1;
        let mut json = std::mem::take(&mut self.scratch.json);
        json.clear();
        let text = std::str::from_utf8(reason).unwrap_or_default();
        let (code, error_code, description) = describe(RefusalReason::Gate { stream }, Some(text));
        let name = self.streams[stream as usize].config.name.as_str();
        PubAckError { stream: name.into(), code, error_code, description: description.into() }
            .encode(&mut json);
        let message = OutboundMessage {
            subject: reply,
            reply: b"",
            headers: b"",
            payload: json[..].into(),
            position: None,
        };
        self.fan_out.send_reply(&mut self.router, client, &message);
        self.scratch.json = json;
    }

    fn encode(&self, outcome: PublishOutcome, json: &mut Vec<u8>) {
        match outcome {
            PublishOutcome::Stored { stream, sequence, duplicate } => {
                let name = self.streams[stream as usize].config.name.as_str();
                PubAck { stream: name.into(), sequence, duplicate }.encode(json);
            }
            PublishOutcome::Forwarded { .. } => {}
            PublishOutcome::Refused(refusal) => {
                let stream = &self.streams[refusal.stream() as usize];
                let (code, error_code, description) =
                    describe(refusal, stream.frozen.as_deref().or(stream.closed.as_deref()));
                let name = stream.config.name.as_str();
                let description = description.into();
                PubAckError { stream: name.into(), code, error_code, description }.encode(json);
            }
        }
    }

    /// Sends a message to the registrations `matches`, one per queue group. Returns a lower bound of the number of
    /// connections.
    pub(super) fn send(
        &mut self,
        matches: &[u32],
        from: Option<MessageSender>,
        message: &OutboundMessage<'_>,
    ) -> u32 {
        self.fan_out.send(&mut self.router, matches, from, message)
    }

    /// Sends the hub's own message to the subscriptions that match its subject; to none if that is empty.
    pub(super) fn send_by_subject(&mut self, message: &OutboundMessage<'_>) {
        self.fan_out.send_by_subject(&mut self.router, message);
    }

    pub(super) fn send_status(&mut self, to: &[u8], reply: &[u8], headers: &[u8]) {
        self.send_by_subject(&OutboundMessage {
            subject: to,
            reply,
            headers,
            payload: b"".into(),
            position: None,
        });
    }
}

/// Error code of a rejection by a gate: beyond those of nats-server.
const GATE_ERROR_CODE: u32 = 20_422;

/// Returns the status code, nats-server's error code and the description of a refusal.
#[must_use]
pub fn describe(refusal: RefusalReason, reason: Option<&str>) -> (u16, u32, String) {
    match refusal {
        RefusalReason::Frozen { .. } => {
            (503, 10077, format!("the stream is frozen until the next start: {}", reason.unwrap_or("")))
        }
        RefusalReason::Closed { .. } => {
            (503, 10023, format!("the stream is not open yet: {}", reason.unwrap_or("")))
        }
        RefusalReason::Hung { .. } => (503, 10023, DISK_HUNG.to_owned()),
        RefusalReason::NoRoom { .. } => (503, 10023, DISK_FULL.to_owned()),
        RefusalReason::TooLarge { .. } => (400, 10054, "message size exceeds maximum allowed".to_owned()),
        RefusalReason::WrongLastSequence { last, .. } => (400, 10071, format!("wrong last sequence: {last}")),
        RefusalReason::WrongStream { .. } => (400, 10060, "expected stream does not match".to_owned()),
        RefusalReason::UnknownCondition { .. } => (400, 10052, "unknown condition in the headers".to_owned()),
        RefusalReason::Gate { .. } => (422, GATE_ERROR_CODE, reason.unwrap_or("").to_owned()),
    }
}
