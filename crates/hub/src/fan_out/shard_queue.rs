//! What goes out to one shard: the piece that is being filled, and what waits because the shard has all its pieces.
//!
//! ```text
//!   waiting: [ full piece ] [ full piece ] [ message, for s4 … s900000 ] │ piece that is being filled
//!                └─ to the shard, when that gives a piece back               └─ verdicts, marks, PONG, messages
//! ```
//!
//! Everything for the shard keeps its order. Up to the bound of the queue messages are encoded into pieces; beyond it a
//! message waits once, with eight bytes for each of its subscriptions in this shard.

use std::collections::VecDeque;
use std::sync::Arc;

use stilling_ring::planted;
use stilling_wire::nats::Msg;

use super::unsent::KeptMessage;
use super::{Message, Outlets};
use crate::deliveries::{Body, Deliveries};
use crate::router::Router;
use crate::subscriptions::{Recipient, SubscriptionId};

/// The queue of one shard.
#[derive(Debug, Default)]
pub(super) struct ShardQueue {
    /// Its number.
    shard: usize,
    /// The piece that is being filled.
    pub(super) piece: Deliveries,
    /// What goes out before it.
    waiting: VecDeque<Waiting>,
    /// Bytes that wait.
    size: usize,
    /// An empty piece with memory.
    spare: Deliveries,
    /// There was no room when something was asked for or added, and none has been noticed since.
    pub(super) is_stalled: bool,
    /// Subscriptions of a message that is being sent, for which the queue has no room; memory that is used again.
    pub(super) rest: Vec<SubscriptionId>,
}

#[derive(Debug)]
enum Waiting {
    /// With the bytes that it counts for.
    Piece(Deliveries, usize),
    Rest(RestOfMessage),
}

/// A message for the rest of its subscriptions in a shard.
#[derive(Debug)]
struct RestOfMessage {
    number: u64,
    message: Arc<KeptMessage>,
    to: Vec<SubscriptionId>,
    /// The first that was not sent it.
    next: usize,
    /// Bytes that it counts for.
    size: usize,
}

impl ShardQueue {
    pub(super) fn new(shard: usize) -> ShardQueue {
        ShardQueue { shard, ..ShardQueue::default() }
    }

    /// Whether there is anything that was not handed out.
    pub(super) fn has_any(&self) -> bool {
        !self.piece.is_empty() || self.is_waiting()
    }

    /// Whether something waits for the shard to give a piece back.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes that wait.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Whether so many bytes wait that nothing more is to be added.
    #[inline]
    pub(super) fn is_over(&self, size_max: usize) -> bool {
        self.is_waiting() && self.size >= size_max
    }

    /// Whether what is added now goes out without waiting, as far as is known.
    pub(super) fn may_have_room(&self) -> bool {
        !self.is_waiting() && !self.piece.is_full()
    }

    /// The same, where a piece that has come back is used.
    #[inline]
    pub(super) fn has_room(&mut self, outlets: &mut impl Outlets) -> bool {
        let has_room =
            !self.is_waiting() && (!self.piece.is_full() || outlets.swap(self.shard, &mut self.piece));
        self.is_stalled |= !has_room;
        has_room
    }

    /// The piece that comes next, with room for one more entry.
    #[inline]
    pub(super) fn open_piece(&mut self, outlets: &mut impl Outlets) -> &mut Deliveries {
        if self.piece.is_full() && !self.has_room(outlets) {
            self.enqueue_piece();
        }
        &mut self.piece
    }

    fn enqueue_piece(&mut self) {
        if planted!("dropped delivery") {
            return self.piece.clear();
        }
        let piece = std::mem::replace(&mut self.piece, std::mem::take(&mut self.spare));
        let size = piece.size();
        self.size += size;
        self.waiting.push_back(Waiting::Piece(piece, size));
    }

    /// Has a message wait for the subscriptions in `rest`.
    pub(super) fn enqueue_rest(&mut self, number: u64, message: &Arc<KeptMessage>) {
        if !self.piece.is_empty() {
            self.enqueue_piece();
        }
        let to = std::mem::take(&mut self.rest);
        let size = size_of::<RestOfMessage>() + message.size() + size_of_val(&to[..]);
        self.size += size;
        self.is_stalled = true;
        self.waiting.push_back(Waiting::Rest(RestOfMessage {
            number,
            message: Arc::clone(message),
            to,
            next: 0,
            size,
        }));
    }

    /// Hands out what waits, as far as the shard has given pieces back. Returns how many messages it has encoded.
    pub(super) fn advance(&mut self, outlets: &mut impl Outlets, router: &mut Router) -> u64 {
        let mut encoded = 0;
        loop {
            match self.waiting.pop_front() {
                None => return encoded,
                Some(Waiting::Piece(mut piece, size)) => {
                    if !outlets.swap(self.shard, &mut piece) {
                        self.is_stalled = true;
                        self.waiting.push_front(Waiting::Piece(piece, size));
                        if outlets.is_gone(self.shard) {
                            self.drop_all();
                        }
                        return encoded;
                    }
                    self.size -= size;
                    self.spare = piece;
                }
                Some(Waiting::Rest(mut rest)) => {
                    let mut piece = std::mem::take(&mut self.spare);
                    encoded += rest.encode(&mut piece, router);
                    if rest.next < rest.to.len() {
                        self.waiting.push_front(Waiting::Rest(rest));
                    } else {
                        self.size -= rest.size;
                    }
                    if !piece.is_empty() {
                        let size = piece.size();
                        self.size += size;
                        self.waiting.push_front(Waiting::Piece(piece, size));
                    }
                }
            }
        }
    }

    /// Drops what is for a shard that has ended: its connections are gone, and nothing else is to wait for it.
    fn drop_all(&mut self) {
        self.waiting.clear();
        self.piece.clear();
        (self.size, self.is_stalled) = (0, false);
    }

    /// Ends a turn: hands out what there is, as far as there are pieces.
    pub(super) fn flush(&mut self, outlets: &mut impl Outlets) {
        if !self.is_waiting() && !self.piece.is_empty() {
            outlets.swap(self.shard, &mut self.piece);
        }
    }
}

impl RestOfMessage {
    /// Encodes the message for the next subscriptions, until the piece is full. Returns for how many; the others are gone.
    fn encode(&mut self, piece: &mut Deliveries, router: &mut Router) -> u64 {
        let message = self.message.message();
        let mut encoded = 0;
        while !piece.is_full()
            && let Some(&id) = self.to.get(self.next)
        {
            self.next += 1;
            let Some(subscription) = router.get_exact_mut(id) else { continue };
            encode(piece, subscription.recipient(), self.number, &message);
            encoded += 1;
            if subscription.count_delivery() {
                router.forget(id.number);
            }
        }
        encoded
    }
}

/// Appends the message `number` for a subscription.
#[inline]
pub(super) fn encode(piece: &mut Deliveries, to: Recipient<'_>, number: u64, message: &Message<'_>) {
    let Recipient { client, sid, takes_headers } = to;
    let &Message { subject, reply, headers, payload } = message;
    let has_headers = takes_headers && !headers.is_empty();
    let headers = if has_headers { headers } else { b"" };
    let reply = (!reply.is_empty()).then_some(reply);
    let line = Msg { subject, sid, reply, headers, payload: payload.bytes() };
    if let Some(range) = payload.block() {
        let line = |out: &mut Vec<u8>| {
            line.encode_line(out);
            out.extend_from_slice(headers);
        };
        piece.shared_message(client.token, number, line, range);
    } else {
        piece.message(
            client.token,
            Body { message: number, has_headers },
            |out| line.encode_line(out),
            |out| {
                out.extend_from_slice(headers);
                out.extend_from_slice(payload.bytes());
                out.extend_from_slice(b"\r\n");
            },
        );
    }
}
