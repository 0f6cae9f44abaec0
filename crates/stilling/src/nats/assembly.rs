//! A message received in pieces: its memory grows with the received bytes, within the limits of the shard.

use std::time::Duration;

use stilling_engine::Token;
use stilling_hub::{Ingress, Payload, Publication};
use stilling_ring::{SharedBlock, Time};
use stilling_wire::nats::PublishHead;

use super::limits::{ASSEMBLY_MAX, ASSEMBLY_STEP, ASSEMBLY_TIMEOUT};
use super::shard::NatsShard;

#[derive(Debug)]
pub(super) struct PublishAssembly {
    subject: Vec<u8>,
    reply: Vec<u8>,
    headers_size: usize,
    size: usize,
    body: Vec<u8>,
    /// The client may not publish it; its pieces are dropped.
    pub(super) is_refused: bool,
    /// The deadline for completing the message; then the connection is closed. Earlier than `end` while the message
    /// exceeds the shard's limit.
    pub(super) until: Time,
    /// The deadline within the limit.
    end: Time,
}

impl PublishAssembly {
    pub(super) fn new(head: &PublishHead<'_>, is_refused: bool, now: Time) -> PublishAssembly {
        let end = now.after(ASSEMBLY_TIMEOUT);
        PublishAssembly {
            subject: head.subject.as_bytes().to_vec(),
            reply: head.reply.map_or_else(Vec::new, |reply| reply.as_bytes().to_vec()),
            headers_size: head.headers_size as usize,
            size: head.size as usize,
            body: Vec::new(),
            is_refused,
            until: end,
            end,
        }
    }

    /// Bytes by which its memory must grow before more of it is read.
    pub(super) fn growth(&self) -> usize {
        let (capacity, needed) = (self.body.capacity(), (self.body.len() + ASSEMBLY_STEP).min(self.size));
        if self.is_refused || needed <= capacity {
            return 0;
        }
        needed.max(2 * capacity).min(self.size) - capacity
    }

    /// Adds a piece, and its memory to the shard's total.
    pub(super) fn add(&mut self, piece: &[u8], nats: &mut NatsShard) {
        if self.is_refused {
            return;
        }
        let before = self.body.capacity();
        self.body.reserve_exact(before + self.growth() - self.body.len());
        self.body.extend_from_slice(piece);
        nats.assembled_bytes += self.body.capacity() - before;
    }

    /// The complete body, as a block of its own: it is not copied again.
    pub(super) fn take_body(&mut self) -> SharedBlock {
        SharedBlock::from(std::mem::take(&mut self.body))
    }

    /// The message with its `body`, which [`take_body`](Self::take_body) has returned.
    pub(super) fn publication<'a>(&'a self, body: &'a SharedBlock) -> Publication<'a> {
        Publication {
            ingress: Ingress::Nats,
            subject: &self.subject,
            reply: &self.reply,
            headers: body.bytes(0..self.headers_size),
            payload: Payload::shared(body, self.headers_size..self.size),
            ticket: None,
        }
    }

    /// Restores the full deadline of the message that may exceed the shard's limit, if there is room for `growth` more
    /// bytes again. Returns whether it did.
    pub(super) fn regain_time(&mut self, token: Token, growth: usize, nats: &mut NatsShard) -> bool {
        let regains = nats.over_limit == Some(token) && nats.assembled_bytes + growth <= ASSEMBLY_MAX;
        if regains {
            nats.over_limit = None;
            self.until = self.end;
        }
        regains
    }

    /// Extends the deadlines by the span in which its client was not read.
    pub(super) fn extend(&mut self, span: Duration) {
        (self.until, self.end) = (self.until.after(span), self.end.after(span));
    }

    pub(super) fn is_overdue(&mut self, token: Token, now: Time, nats: &mut NatsShard) -> bool {
        if now >= self.until {
            self.regain_time(token, 0, nats);
        }
        now >= self.until
    }

    /// Subtracts its memory from the shard's total.
    pub(super) fn release_memory(&self, token: Token, nats: &mut NatsShard) {
        nats.assembled_bytes -= self.body.capacity();
        nats.over_limit = nats.over_limit.filter(|over_limit| *over_limit != token);
    }
}
