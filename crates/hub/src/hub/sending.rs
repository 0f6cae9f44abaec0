//! What goes out: messages to subscriptions, and what publishers are told.

use stilling_wire::nats::{DISK_FULL, DISK_HUNG, Msg, PubAck, PubRefusal};

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
            Refusal::Hung { .. } | Refusal::Closed { .. } => Loss::Hung,
            Refusal::NoRoom { .. } => Loss::NoRoom,
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
                let (code, error_code, description) =
                    describe(refusal, stream.frozen.as_deref().or(stream.closed.as_deref()));
                let name = stream.config.name.as_str();
                let description = description.into();
                PubRefusal { stream: name.into(), code, error_code, description }.encode(json);
            }
        }
    }

    /// Sends a message to the subscriptions `found`, one of each queue; what there is no room for is sent as soon as there
    /// is. Returns to how many.
    pub(super) fn send(
        &mut self,
        found: &[u32],
        from: Option<(Client, Traits)>,
        message: &Message<'_>,
    ) -> u32 {
        self.message += 1;
        let number = self.message;
        let mut to = std::mem::take(&mut self.to);
        to.clear();
        let silent = from.filter(|(_, traits)| traits.no_echo).map(|(client, _)| client);
        let mut members = std::mem::take(&mut self.members);
        members.clear();
        for &id in found.iter().filter(|&&id| id < STREAMS) {
            let Some(subscription) = self.subscriptions.get(id) else {
                self.note_left_match(id);
                continue;
            };
            if silent == Some(subscription.client) {
                continue;
            }
            match subscription.queue {
                Some(queue) => members.push((queue, id)),
                None => to.push(id),
            }
        }
        if !members.is_empty() {
            members.sort_unstable();
            for queue in members.chunk_by(|one, other| one.0 == other.0) {
                let chosen = self.subscriptions.choose(queue[0].0, queue.len());
                to.push(queue[chosen].1);
            }
        }
        self.members = members;
        self.remove_left_matches();
        let sent = if self.has_begun() { 0 } else { self.send_to_all(number, message, &to) };
        if sent < to.len() {
            self.keep_message(number, message, &to[sent..]);
        }
        let count = to.len() as u32;
        self.to = to;
        count
    }

    /// Sends the message `number` to subscriptions, as long as their shards have room. Returns to how many of them.
    pub(super) fn send_to_all(&mut self, number: u64, message: &Message<'_>, to: &[u32]) -> usize {
        let sent = to.iter().take_while(|&&id| self.send_to(id, number, message)).count();
        for id in std::mem::take(&mut self.ended) {
            self.forget(id);
        }
        sent
    }

    /// Sends the message `number` to a subscription that may be gone. Returns whether there was room.
    #[inline]
    fn send_to(&mut self, id: u32, number: u64, message: &Message<'_>) -> bool {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return true };
        let shard = subscription.client.shard as usize;
        let out = &mut self.outs[shard];
        if out.is_full() && !self.outlets.swap(shard, out) {
            self.stalled = Some(shard);
            return false;
        }
        let &Message { subject, reply, headers, payload } = message;
        let has_headers = subscription.traits.headers && !headers.is_empty();
        let headers = if has_headers { headers } else { b"" };
        let reply = (!reply.is_empty()).then_some(reply);
        let line = Msg { subject, sid: &subscription.sid, reply, headers, payload };
        // One number with headers, one without.
        let number = number * 2 + u64::from(has_headers);
        out.message(
            subscription.client.token,
            number,
            |out| line.encode_line(out),
            |out| {
                out.extend_from_slice(headers);
                out.extend_from_slice(payload);
                out.extend_from_slice(b"\r\n");
            },
        );
        self.totals.delivered += 1;
        subscription.delivered += 1;
        if subscription.ends_after.is_some_and(|after| subscription.delivered >= u64::from(after)) {
            self.ended.push(id);
        }
        true
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
