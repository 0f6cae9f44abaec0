//! Feeds: messages encoded once per shard for all subscriptions that receive identical bytes, or identical ones but for the
//! sid.
//!
//! ```text
//!   feed     │ MSG a 1 5␍␊hello␍␊ │ MSG a 1 3␍␊abc␍␊ │ MSG a 1 2␍␊xy␍␊ │       one block while the feed is open
//!                                  ▲ position of 17                    ▲ head, position of 18
//! ```
//!
//! A feed belongs to one registration and one encoding ([`Encoding`]). Its members are positions: a message costs one
//! copy however many there are, and each member is handed everything between its position and the head at once, when
//! the expansion of a routed batch ends or before another item for its connection. A feed is open from its first
//! message to the end of the expansion, so no position outlives a turn.
//!
//! Subscriptions whose lines differ in the sid alone, of equal size, share a feed too. Its block has a placeholder in each
//! line, and each member's output gets a copy with the member's sid: one copy of the run, not one encoding per message.
//!
//! A connection has a position in at most one feed. A member whose connection reads another open feed becomes private
//! for good, so the order of messages per connection remains that of the hub.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;

use stilling_ring::{BlockWriter, planted};

use super::{Subscription, SubscriptionOwner};
use crate::deliveries::DeliveryBatch;
use crate::encoding::MessageFormat;
use crate::free_list::FreeList;
use crate::limits::{FEED_BLOCK_SIZE, FEED_BLOCK_SIZE_MIN, FEEDS_MAX, FEEDS_SIZE_MAX};
use crate::short_bytes::ShortBytes;

/// What makes the bytes of a message equal for two subscriptions of one filter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Encoding {
    Nats {
        sid: ShortBytes,
        supports_headers: bool,
    },
    /// Lines with a placeholder of this size in place of the sid: each member gets a copy with its own.
    NatsOfSidSize {
        sid_size: usize,
        supports_headers: bool,
    },
    /// Over WebSocket or SSE.
    Format {
        format: MessageFormat,
        /// The stream whose records have ids.
        stream: Option<u32>,
    },
}

#[derive(Debug)]
pub(super) struct Feed {
    pub(super) encoding: Encoding,
    /// Slots of its subscriptions, in no order.
    members: Vec<u32>,
    /// Number of the last message appended, and the messages appended so far.
    last_message: u64,
    message_count: u64,
    /// Sequence of the last record appended; 0: none with a sequence.
    last_sequence: u64,
    /// Largest begin of a member: the number of requests that the hub had processed with its SUB.
    newest_from: u64,
    /// Encoded messages while the feed is open.
    block: Option<BlockWriter>,
    /// Where the placeholders of sids begin in the block.
    sid_starts: Vec<u32>,
    /// Bytes of the longest run so far, halved by shorter ones: the size of the next block.
    run_size: usize,
}

/// Position of a connection in an open feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FeedPosition {
    pub(super) feed: u32,
    /// Slot of the subscription.
    pub(super) slot: u32,
    /// Offset in the block. Blocks are shorter than 4 GiB, as messages are.
    pub(super) offset: u32,
}

/// No block is free: the blocks of earlier runs are still in the output of this turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoBlock;

/// The feeds of a shard.
#[derive(Debug)]
pub(super) struct Feeds {
    /// Part of this shard in [`FEEDS_MAX`].
    feeds_max: usize,
    slots: Vec<Option<Feed>>,
    free: FreeList,
    open: Vec<u32>,
    /// Members of all feeds.
    sharers: usize,
    blocks: FeedBlocks,
    /// Bytes appended to feeds, and bytes that their members were handed, since the start.
    encoded_size: u64,
    sent_size: Cell<u64>,
}

impl Feeds {
    /// The feeds of one of `shards` shards.
    pub(super) fn new(shards: usize) -> Feeds {
        let shards = shards.max(1);
        Feeds {
            feeds_max: (FEEDS_MAX / shards).max(1),
            slots: Vec::new(),
            free: FreeList::new(),
            open: Vec::new(),
            sharers: 0,
            blocks: FeedBlocks::new((FEEDS_SIZE_MAX / shards).max(FEED_BLOCK_SIZE)),
            encoded_size: 0,
            sent_size: Cell::new(0),
        }
    }

    /// Returns whether there is room for a further feed.
    pub(super) fn may_add(&self) -> bool {
        self.len() < self.feeds_max
    }

    pub(super) fn add(&mut self, encoding: Encoding) -> u32 {
        let new = Feed {
            encoding,
            members: Vec::new(),
            last_message: 0,
            message_count: 0,
            last_sequence: 0,
            newest_from: 0,
            block: None,
            sid_starts: Vec::new(),
            run_size: FEED_BLOCK_SIZE_MIN,
        };
        self.free.place(&mut self.slots, Some(new))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Subscriptions that read a feed.
    pub(super) fn sharers(&self) -> usize {
        self.sharers
    }

    /// Bytes of the memory for feeds, not counting messages longer than [`FEED_BLOCK_SIZE`].
    pub(super) fn held_size(&self) -> u64 {
        self.blocks.size as u64
    }

    /// Bytes that were encoded for feeds since the start.
    pub(super) fn encoded_size(&self) -> u64 {
        self.encoded_size
    }

    /// Bytes that members of feeds were handed since the start.
    pub(super) fn sent_size(&self) -> u64 {
        self.sent_size.get()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Feed> {
        self.slots[number as usize].as_ref()
    }

    /// Adds a subscription that begins at `from`. Returns its index among the members.
    pub(super) fn join(&mut self, number: u32, slot: u32, from: u64) -> u32 {
        let Some(feed) = &mut self.slots[number as usize] else { return 0 };
        feed.members.push(slot);
        feed.newest_from = feed.newest_from.max(from);
        self.sharers += 1;
        (feed.members.len() - 1) as u32
    }

    /// Removes the member at `index`. Returns the slot of the member that has moved there, if any.
    pub(super) fn leave(&mut self, number: u32, index: u32) -> Option<u32> {
        let feed = self.slots[number as usize].as_mut()?;
        feed.members.swap_remove(index as usize);
        self.sharers -= 1;
        feed.members.get(index as usize).copied()
    }

    /// Removes a feed without members.
    pub(super) fn remove(&mut self, number: u32) {
        self.close(number);
        self.slots[number as usize] = None;
        self.free.push(number);
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn last_opened(&self) -> Option<u32> {
        self.open.last().copied()
    }

    /// Opens a feed, unless it is open, with room for `size` bytes. Returns whether it has been opened.
    pub(super) fn open(&mut self, number: u32, size: usize) -> Result<bool, NoBlock> {
        let Some(feed) = &mut self.slots[number as usize] else { return Ok(false) };
        if feed.block.is_some() {
            return Ok(false);
        }
        feed.block = Some(self.blocks.take(feed.run_size.max(size)).ok_or(NoBlock)?);
        self.open.push(number);
        Ok(true)
    }

    /// Closes a feed after its members were handed its bytes.
    pub(super) fn close(&mut self, number: u32) {
        let Some(feed) = &mut self.slots[number as usize] else { return };
        if let Some(block) = feed.block.take() {
            // Most often it is the last one.
            let at = self.open.iter().rposition(|open| *open == number);
            at.into_iter().for_each(|at| _ = self.open.swap_remove(at));
            let size = block.committed().next_power_of_two();
            feed.run_size = size.max(feed.run_size / 2).clamp(FEED_BLOCK_SIZE_MIN, FEED_BLOCK_SIZE);
            feed.sid_starts.clear();
            self.blocks.put_back(block);
        }
    }
}

impl Feed {
    pub(super) fn members(&self) -> &[u32] {
        &self.members
    }

    pub(super) fn last_message(&self) -> u64 {
        self.last_message
    }

    pub(super) fn newest_from(&self) -> u64 {
        self.newest_from
    }

    pub(super) fn message_count(&self) -> u64 {
        self.message_count
    }

    pub(super) fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Bytes of the feed, if it is open.
    pub(super) fn head(&self) -> Option<usize> {
        self.block.as_ref().map(BlockWriter::committed)
    }

    pub(super) fn has_room_for(&self, size: usize) -> bool {
        self.block.as_ref().is_none_or(|block| block.spare_len() >= size)
    }

    /// Where the placeholders of sids begin in a range of the block.
    fn sid_starts(&self, range: &Range<usize>) -> &[u32] {
        let first = self.sid_starts.partition_point(|start| (*start as usize) < range.start);
        let end = self.sid_starts.partition_point(|start| (*start as usize) < range.end);
        let end = if planted!("missing sid") { end - 1 } else { end };
        &self.sid_starts[first..end]
    }
}

impl Feeds {
    /// Appends message `number` to an open feed with room for it. Returns its range.
    pub(super) fn append(&mut self, feed: u32, number: u64, message: &EncodedMessage<'_>) -> Range<usize> {
        let Some(feed) = &mut self.slots[feed as usize] else { return 0..0 };
        feed.last_message = number;
        feed.message_count += 1;
        feed.last_sequence = feed.last_sequence.max(message.sequence);
        let Some(block) = &mut feed.block else { return 0..0 };
        let start = block.committed();
        // A block is shorter than 4 GiB.
        feed.sid_starts.extend(message.sid_start.map(|sid_start| (start + sid_start) as u32));
        for part in message.parts {
            block.append(part);
        }
        let range = start..block.committed();
        self.encoded_size += range.len() as u64;
        range
    }

    /// Hands out everything that a connection has not been handed of the open feed that it reads, before another item
    /// for it.
    #[inline]
    pub(super) fn hand_out(
        &self,
        token: u64,
        owner: &mut SubscriptionOwner,
        subscriptions: &[Option<Subscription>],
        into: &mut DeliveryBatch,
    ) {
        if planted!("overtaken feed") {
            return;
        }
        self.hand_out_before(usize::MAX, (token, owner), subscriptions, into);
    }

    /// The same, up to the offset `end`.
    pub(super) fn hand_out_before(
        &self,
        end: usize,
        (token, owner): (u64, &mut SubscriptionOwner),
        subscriptions: &[Option<Subscription>],
        into: &mut DeliveryBatch,
    ) {
        let Some(position) = &mut owner.position else { return };
        let Some(feed) = self.get(position.feed) else { return };
        let Some(block) = &feed.block else { return };
        let range = position.offset as usize..end.min(block.committed());
        if range.is_empty() {
            return;
        }
        position.offset = range.end as u32;
        self.sent_size.set(self.sent_size.get() + range.len() as u64);
        match (&feed.encoding, &subscriptions[position.slot as usize]) {
            (Encoding::NatsOfSidSize { .. }, Some(subscription)) => {
                let sid_starts = feed.sid_starts(&range);
                into.feed_with_sid(token, (block.shared(), range), (subscription.sid.bytes(), sid_starts));
            }
            _ => into.feed(token, (block.shared(), range)),
        }
    }
}

/// A message as a feed's members receive it.
pub(super) struct EncodedMessage<'a> {
    pub(super) parts: [&'a [u8]; 4],
    /// Where the placeholder of the sid begins, if there is one.
    pub(super) sid_start: Option<usize>,
    /// Of a record, or 0.
    pub(super) sequence: u64,
}

/// Blocks of feeds, by size. A block is reused when nothing refers to its bytes.
#[derive(Debug)]
struct FeedBlocks {
    /// Part of this shard in [`FEEDS_SIZE_MAX`].
    size_max: usize,
    /// Used blocks of each power of two from [`FEED_BLOCK_SIZE_MIN`], the one used first in front.
    used: [VecDeque<BlockWriter>; FEED_BLOCK_SIZES],
    /// Bytes of all blocks.
    size: usize,
}

const FEED_BLOCK_SIZES: usize = (FEED_BLOCK_SIZE / FEED_BLOCK_SIZE_MIN).ilog2() as usize + 1;

/// Index of the smallest blocks with at least `size` bytes; `None` for bytes beyond [`FEED_BLOCK_SIZE`].
fn class_of(size: usize) -> Option<usize> {
    let blocks = size.div_ceil(FEED_BLOCK_SIZE_MIN).next_power_of_two();
    Some(blocks.ilog2() as usize).filter(|class| *class < FEED_BLOCK_SIZES)
}

impl FeedBlocks {
    fn new(size_max: usize) -> FeedBlocks {
        FeedBlocks { size_max, used: Default::default(), size: 0 }
    }

    fn take(&mut self, size: usize) -> Option<BlockWriter> {
        // A longer message gets a block of its own, which is freed after use.
        let Some(class) = class_of(size) else { return Some(BlockWriter::new(size)) };
        if let Some(first) = self.used[class].front_mut()
            && first.reset_planted([planted!("early reuse"), planted!("early feed reuse")].contains(&true))
        {
            return self.used[class].pop_front();
        }
        let size = FEED_BLOCK_SIZE_MIN << class;
        if self.size + size > self.size_max {
            self.free_idle();
        }
        if self.size + size > self.size_max {
            return None;
        }
        self.size += size;
        Some(BlockWriter::new(size))
    }

    fn put_back(&mut self, block: BlockWriter) {
        let size = block.committed() + block.spare_len();
        if let Some(class) = class_of(size) {
            self.used[class].push_back(block);
        }
    }

    /// Frees all blocks that nothing refers to.
    fn free_idle(&mut self) {
        for (class, blocks) in self.used.iter_mut().enumerate() {
            let before = blocks.len();
            blocks.retain(BlockWriter::is_shared);
            self.size -= (before - blocks.len()) * (FEED_BLOCK_SIZE_MIN << class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_blocks() {
        let sizes = [1, FEED_BLOCK_SIZE_MIN, FEED_BLOCK_SIZE_MIN + 1, FEED_BLOCK_SIZE, FEED_BLOCK_SIZE + 1];
        let classes = [Some(0), Some(0), Some(1), Some(FEED_BLOCK_SIZES - 1), None];
        assert_eq!(sizes.map(class_of), classes);
    }

    #[test]
    fn a_block_is_reused_once_nothing_refers_to_it() {
        let mut blocks = FeedBlocks::new(FEED_BLOCK_SIZE);
        let mut block = blocks.take(10).expect("there is room");
        block.append(b"bytes").expect("there is room");
        let reference = block.share();
        blocks.put_back(block);
        assert_eq!(blocks.take(10).map(|block| block.committed()), Some(0), "another block");
        assert_eq!(blocks.size, 2 * FEED_BLOCK_SIZE_MIN);
        drop(reference);
        assert!(blocks.take(10).is_some());
        assert_eq!(blocks.size, 2 * FEED_BLOCK_SIZE_MIN, "the first block");
    }

    #[test]
    fn the_blocks_of_a_shard_are_bounded() {
        const SIZE_MAX: usize = 4 * FEED_BLOCK_SIZE;
        let mut blocks = FeedBlocks::new(SIZE_MAX);
        let mut references = Vec::new();
        while let Some(block) = blocks.take(FEED_BLOCK_SIZE) {
            references.push(block.share());
            blocks.put_back(block);
        }
        assert_eq!((references.len() * FEED_BLOCK_SIZE, blocks.size), (SIZE_MAX, SIZE_MAX));
        assert!(blocks.take(1).is_none());
        references.clear();
        assert!(blocks.take(1).is_some(), "idle blocks of another size make room");
        assert_eq!(blocks.size, FEED_BLOCK_SIZE_MIN);
    }

    /// The bounds are those of the process, and each shard can open a feed.
    #[test]
    fn a_hundred_shards_share_the_bounds_of_one() {
        for shards in [0, 1, 2, 100, 1000] {
            let mut all = Feeds::new(shards);
            let mut references = Vec::new();
            while let Some(mut block) = all.blocks.take(FEED_BLOCK_SIZE) {
                block.append(&[0; FEED_BLOCK_SIZE]).expect("there is room");
                references.push(block.share());
                all.blocks.put_back(block);
            }
            let count = shards.max(1);
            assert!(!references.is_empty() && all.blocks.size == references.len() * FEED_BLOCK_SIZE);
            assert!(
                count * all.blocks.size <= FEEDS_SIZE_MAX.max(count * FEED_BLOCK_SIZE),
                "{shards} shards"
            );
            let encoding = || Encoding::Nats { sid: b"1"[..].into(), supports_headers: true };
            while all.may_add() {
                all.add(encoding());
            }
            assert!(all.len() >= 1 && count * all.len() <= FEEDS_MAX, "{shards} shards");
            all.remove(0);
            assert!(all.may_add());
        }
    }
}
