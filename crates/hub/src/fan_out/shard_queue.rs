//! What goes out to one shard: the piece that is being filled, and what waits because the shard has all its pieces.
//!
//! ```text
//!   waiting: [ full piece ] [ full piece ] │ piece that is being filled
//!                └─ to the shard, when     └─ messages, verdicts, marks, PONG
//!                   that gives a piece back
//! ```
//!
//! Everything for the shard keeps its order.

use std::collections::VecDeque;

use stilling_ring::planted;

use super::{MessageDispatch, OutboundMessage, Outlets};
use crate::publication_batch::RegistrationId;
use crate::routed_batch::RoutedBatch;

/// The queue of one shard.
#[derive(Debug, Default)]
pub(super) struct ShardQueue {
    /// Its number.
    shard: usize,
    /// The piece that is being filled.
    pub(super) piece: RoutedBatch,
    /// What goes out before it, with the bytes that each counts for.
    waiting: VecDeque<(RoutedBatch, usize)>,
    /// Bytes that wait.
    size: usize,
    /// An empty piece with memory.
    spare: RoutedBatch,
    /// There was no room when something was asked for or added, and none has been noticed since.
    pub(super) is_stalled: bool,
    /// Requests of the shard that are processed.
    pub(super) processed: u64,
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
    pub(super) fn open_piece(&mut self, outlets: &mut impl Outlets) -> &mut RoutedBatch {
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
        self.waiting.push_back((piece, size));
    }

    /// Adds a message for a registration of the shard, once for all registrations in a row.
    #[inline]
    pub(super) fn message(
        &mut self,
        dispatch: &MessageDispatch,
        message: &OutboundMessage<'_>,
        target: RegistrationId,
        outlets: &mut impl Outlets,
    ) {
        let &MessageDispatch { number, silent, position } = dispatch;
        let shard = self.shard as u32;
        let silent = silent.filter(|client| client.shard == shard).map(|client| client.token);
        let own_position = position.filter(|(of, _)| *of == shard).map(|(_, position)| position);
        let processed = own_position.unwrap_or(self.processed);
        let piece = if self.piece.ends_with(number) { &mut self.piece } else { self.open_piece(outlets) };
        piece.message((number, processed), silent, message, target);
    }

    /// Hands out what waits, as far as the shard has given pieces back.
    pub(super) fn advance(&mut self, outlets: &mut impl Outlets) {
        while let Some((mut piece, size)) = self.waiting.pop_front() {
            if !outlets.swap(self.shard, &mut piece) {
                self.is_stalled = true;
                self.waiting.push_front((piece, size));
                if outlets.is_gone(self.shard) {
                    self.drop_all();
                }
                return;
            }
            self.size -= size;
            self.spare = piece;
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
