//! What goes out: messages to subscriptions, and what publishers are told.

use stilling_wire::nats::{Msg, PubAck, PubRefusal};

use super::{Hub, Message, Outlets};
use crate::deliveries::{Refusal, Verdict};
use crate::intake::{Client, Publication, Traits};
use crate::ledger::Loss;
use crate::storage::Storage;
use crate::subscriptions::STREAMS;

impl<S: Storage, O: Outlets> Hub<S, O> {
    pub(super) fn refuse(&mut self, client: Client, publication: &Publication<'_>, refusal: Refusal) {
        let loss = match refusal {
            Refusal::Frozen { .. } => Loss::Frozen,
            Refusal::TooLarge { .. } => Loss::TooLarge,
            Refusal::WrongLastSequence { .. }
            | Refusal::WrongStream { .. }
            | Refusal::UnknownCondition { .. } => Loss::Condition,
        };
        self.ledger.add(publication.door, loss, 1);
        self.answer(client, publication.ticket, publication.reply, Verdict::Refused(refusal));
    }

    pub(super) fn give_verdict(&mut self, client: Client, ticket: Option<u32>, verdict: Verdict) {
        if let Some(ticket) = ticket {
            self.totals.verdicts += 1;
            self.outs[client.shard as usize].verdict(client.token, ticket, verdict);
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
        let mut json = std::mem::take(&mut self.scratch);
        json.clear();
        self.encode(verdict, &mut json);
        // Who takes the message itself may stand in the other list still.
        let mut found = std::mem::take(&mut self.found_again);
        found.clear();
        self.interest.find(reply, &mut found);
        self.send(&found, None, &Message { subject: reply, reply: b"", headers: b"", payload: &json });
        (self.found_again, self.scratch) = (found, json);
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
                let (code, error_code, description) = describe(refusal, stream.frozen.as_deref());
                let name = stream.config.name.as_str();
                let description = description.into();
                PubRefusal { stream: name.into(), code, error_code, description }.encode(json);
            }
        }
    }

    /// Sends a message to the subscriptions `found`, one of each queue. Returns to how many.
    pub(super) fn send(
        &mut self,
        found: &[u32],
        from: Option<(Client, Traits)>,
        message: &Message<'_>,
    ) -> u32 {
        let mut count = 0;
        self.message += 1;
        let silent = from.filter(|(_, traits)| traits.no_echo).map(|(client, _)| client);
        let mut members = std::mem::take(&mut self.members);
        members.clear();
        for &id in found.iter().filter(|&&id| id < STREAMS) {
            let Some(subscription) = self.subscriptions.get(id) else { continue };
            if silent == Some(subscription.client) {
                continue;
            }
            match subscription.queue {
                Some(queue) => members.push((queue, id)),
                None => {
                    self.send_to(id, message);
                    count += 1;
                }
            }
        }
        if !members.is_empty() {
            members.sort_unstable();
            for queue in members.chunk_by(|one, other| one.0 == other.0) {
                let chosen = self.subscriptions.choose(queue[0].0, queue.len());
                self.send_to(queue[chosen].1, message);
                count += 1;
            }
        }
        self.members = members;
        self.totals.delivered += u64::from(count);
        for id in std::mem::take(&mut self.ended) {
            self.forget(id);
        }
        count
    }

    #[inline]
    fn send_to(&mut self, id: u32, message: &Message<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let &Message { subject, reply, headers, payload } = message;
        let has_headers = subscription.traits.headers && !headers.is_empty();
        let headers = if has_headers { headers } else { b"" };
        let reply = (!reply.is_empty()).then_some(reply);
        let line = Msg { subject, sid: &subscription.sid, reply, headers, payload };
        // One number with headers, one without.
        let number = self.message * 2 + u64::from(has_headers);
        self.outs[subscription.client.shard as usize].message(
            subscription.client.token,
            number,
            |out| line.encode_line(out),
            |out| {
                out.extend_from_slice(headers);
                out.extend_from_slice(payload);
                out.extend_from_slice(b"\r\n");
            },
        );
        subscription.delivered += 1;
        if subscription.ends_after.is_some_and(|after| subscription.delivered >= u64::from(after)) {
            self.ended.push(id);
        }
    }
}

/// Code, error code as nats-server numbers them, and words.
#[must_use]
pub fn describe(refusal: Refusal, frozen: Option<&str>) -> (u16, u32, String) {
    match refusal {
        Refusal::Frozen { .. } => {
            (503, 10077, format!("the stream is frozen until the next start: {}", frozen.unwrap_or("")))
        }
        Refusal::TooLarge { .. } => (400, 10054, "message size exceeds maximum allowed".to_owned()),
        Refusal::WrongLastSequence { last, .. } => (400, 10071, format!("wrong last sequence: {last}")),
        Refusal::WrongStream { .. } => (400, 10060, "expected stream does not match".to_owned()),
        Refusal::UnknownCondition { .. } => {
            (400, 10052, "a condition in the headers is not known here".to_owned())
        }
    }
}
