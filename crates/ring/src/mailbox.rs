//! A bounded queue from exactly one thread to exactly one other.
//!
//! ```text
//!            head (receiver)         tail (sender)         next (sender, private)
//!              ▼                       ▼                     ▼
//!   … popped │ published, unread     │ pushed, unpublished │ vacant …      index = sequence & mask
//! ```
//!
//! Sequences are 64-bit and never wrap; the slot of a sequence is the sequence modulo a power of two. Items are built
//! in their slots, and one store makes a whole batch visible. Each side caches the other side's index and rereads the
//! shared one only when the cached value does not suffice, so a busy mailbox moves about one cache line per batch.
//!
//! The receiver owns the slots `head..tail`, the sender all others. The release store of `tail` passes slots to the
//! receiver, the release store of `head` passes them back.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;

use crate::sync::{Arc, AtomicBool, AtomicU64, CachePadded, Ordering, UnsafeCell};

/// Largest capacity of a mailbox, in items.
pub const CAPACITY_MAX: usize = 1 << 30;

/// A new mailbox for `capacity` items, rounded up to a power of two.
///
/// The storage is allocated here, once; the operating system backs it with memory as slots are first used.
///
/// # Panics
/// If `capacity` is zero or above [`CAPACITY_MAX`].
#[must_use]
pub fn mailbox<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(
        (1..=CAPACITY_MAX).contains(&capacity),
        "mailbox capacity {capacity} is not in 1..={CAPACITY_MAX}"
    );
    let shared = Arc::new(SharedRing {
        slots: vacant_slots(capacity.next_power_of_two()),
        head: CachePadded(RingEnd { index: AtomicU64::new(0), is_dropped: AtomicBool::new(false) }),
        tail: CachePadded(RingEnd { index: AtomicU64::new(0), is_dropped: AtomicBool::new(false) }),
    });
    let sender = Sender { shared: Arc::clone(&shared), next: 0, published: 0, cached_head: 0 };
    (sender, Receiver { shared, next: 0, cached_tail: 0 })
}

/// The mailbox or queue is full; returns the rejected item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MailboxFull<T>(pub T);

impl<T> fmt::Debug for MailboxFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MailboxFull(..)")
    }
}

impl<T> fmt::Display for MailboxFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the mailbox is full")
    }
}

impl<T> std::error::Error for MailboxFull<T> {}

/// The sending end. Dropping it drops unpublished items; published items stay for the receiver.
pub struct Sender<T> {
    shared: Arc<SharedRing<T>>,
    next: u64,
    published: u64,
    cached_head: u64,
}

impl<T> Sender<T> {
    /// Appends `item`. The receiver sees it after [`publish`](Sender::publish).
    ///
    /// # Errors
    /// [`MailboxFull`] with the item.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), MailboxFull<T>> {
        match self.vacant_slot() {
            Some(vacant_slot) => {
                vacant_slot.fill(|| item);
                Ok(())
            }
            None => Err(MailboxFull(item)),
        }
    }

    /// Like [`push`](Sender::push), but builds the item directly in its slot.
    ///
    /// # Errors
    /// [`MailboxFull`] with `build`, which was not called.
    #[inline]
    pub fn push_with<F: FnOnce() -> T>(&mut self, build: F) -> Result<(), MailboxFull<F>> {
        match self.vacant_slot() {
            Some(vacant_slot) => {
                vacant_slot.fill(build);
                Ok(())
            }
            None => Err(MailboxFull(build)),
        }
    }

    /// The next free slot, or `None` if the mailbox is full. For callers that build an item only if it fits.
    #[inline]
    pub fn vacant_slot(&mut self) -> Option<VacantSlot<'_, T>> {
        let capacity = self.capacity() as u64;
        if self.next - self.cached_head == capacity {
            self.cached_head = self.shared.head.0.index.load(Ordering::Acquire);
            if self.next - self.cached_head == capacity {
                return None;
            }
        }
        Some(VacantSlot { sender: self })
    }

    /// Makes everything pushed so far visible to the receiver; called once per batch. Returns false if there was
    /// nothing new.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        self.shared.tail.0.index.store(self.next, Ordering::Release);
        true
    }

    /// Number of items ever pushed: the sequence of the next one.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.next
    }

    /// Number of items the receiver has ever popped: the item with sequence `n` is popped once this is above `n`.
    #[must_use]
    pub fn popped(&self) -> u64 {
        self.shared.head.0.index.load(Ordering::Acquire)
    }

    /// Number of items the mailbox can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Whether the receiver is dropped. Pushing still works, but the items are never popped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.head.0.is_dropped.load(Ordering::Acquire)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        for sequence in self.published..self.next {
            // SAFETY: this sender filled the slots from `published` up to `next` and never published them, so they are
            // initialised and nothing else reads or drops them.
            self.shared.slot(sequence).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
        self.shared.tail.0.is_dropped.store(true, Ordering::Release);
    }
}

/// A free slot of the mailbox. Dropping it unfilled pushes nothing.
pub struct VacantSlot<'a, T> {
    sender: &'a mut Sender<T>,
}

impl<T> VacantSlot<'_, T> {
    /// Builds the item in its slot. If `build` panics, nothing is pushed.
    #[inline(always)]
    pub fn fill(self, build: impl FnOnce() -> T) {
        let VacantSlot { sender } = self;
        // SAFETY: a vacant slot exists only while `next` is less than a whole capacity ahead of `head`, so the receiver
        // has popped this slot (the acquire load of `head` ordered its read before this write) or it was never used,
        // and the sender owns it until `tail` passes it.
        sender.shared.slot(sender.next).with_mut(|slot| unsafe {
            (*slot).write(build());
        });
        sender.next += 1;
    }
}

/// The receiving end. If it is dropped, unread items are dropped when the sender is.
pub struct Receiver<T> {
    shared: Arc<SharedRing<T>>,
    next: u64,
    cached_tail: u64,
}

impl<T> Receiver<T> {
    /// Removes and returns the oldest published item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if !self.has_next() {
            return None;
        }
        // SAFETY: `next` is below a `tail` read with acquire, so the sender initialised this slot before and does not
        // touch it until `head` passes it; `next` advances below, so it is read out only once.
        let item = self.shared.slot(self.next).with(|slot| unsafe { (*slot).assume_init_read() });
        self.next += 1;
        self.shared.head.0.index.store(self.next, Ordering::Release);
        Some(item)
    }

    /// The oldest published item, without removing it.
    #[inline]
    pub fn peek(&mut self) -> Option<&T> {
        if !self.has_next() {
            return None;
        }
        // SAFETY: as in `pop`; the reference borrows the receiver, so the item cannot be popped while it exists.
        Some(self.shared.slot(self.next).with(|slot| unsafe { (*slot).assume_init_ref() }))
    }

    /// Number of items this end has ever popped: the sequence of the next one.
    #[must_use]
    pub fn popped(&self) -> u64 {
        self.next
    }

    /// Whether there is nothing to pop. After [`Wake::set_parked`](crate::Wake::set_parked) it is exact for a consumer
    /// that is about to sleep: it sees every item whose [`notify`](crate::Wake::notify) did not wake the consumer.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.cached_tail && self.next == self.shared.tail.0.index.load(Ordering::Acquire)
    }

    /// Whether the sender is dropped. If so, [`pop`](Receiver::pop) returns the remaining items and then `None` for
    /// ever.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.tail.0.is_dropped.load(Ordering::Acquire)
    }

    #[inline]
    fn has_next(&mut self) -> bool {
        if self.next == self.cached_tail {
            self.cached_tail = self.shared.tail.0.index.load(Ordering::Acquire);
        }
        self.next != self.cached_tail
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.head.0.is_dropped.store(true, Ordering::Release);
    }
}

type MailboxSlot<T> = UnsafeCell<MaybeUninit<T>>;

struct SharedRing<T> {
    /// Written by the receiver: number of popped items, and whether it is dropped.
    head: CachePadded<RingEnd>,
    /// Written by the sender: number of published items, and whether it is dropped.
    tail: CachePadded<RingEnd>,
    slots: Box<[MailboxSlot<T>]>,
}

struct RingEnd {
    index: AtomicU64,
    is_dropped: AtomicBool,
}

// SAFETY: the two ends pass each slot back and forth with release stores and acquire loads (see the module
// documentation), so two threads never access a slot at once; items move between threads, hence `T: Send`.
unsafe impl<T: Send> Send for SharedRing<T> {}
// SAFETY: as above; `&SharedRing` gives access to items only through the two ends, and there is one of each.
unsafe impl<T: Send> Sync for SharedRing<T> {}

impl<T> SharedRing<T> {
    #[inline(always)]
    fn slot(&self, sequence: u64) -> &MailboxSlot<T> {
        // The length is a power of two: the cast keeps all bits that the mask keeps.
        &self.slots[sequence as usize & (self.slots.len() - 1)]
    }
}

impl<T> Drop for SharedRing<T> {
    fn drop(&mut self) {
        // Both ends are dropped, and the sender has dropped its unpublished items.
        let head = self.head.0.index.load(Ordering::Acquire);
        let tail = self.tail.0.index.load(Ordering::Acquire);
        for sequence in head..tail {
            // SAFETY: published and never popped, so initialised; `&mut self` excludes any other access.
            self.slot(sequence).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
    }
}

#[cfg(not(loom))]
fn vacant_slots<T>(count: usize) -> Box<[MailboxSlot<T>]> {
    // SAFETY: a slot is a transparent wrapper around `MaybeUninit`, for which any bytes are valid.
    unsafe { Box::new_uninit_slice(count).assume_init() }
}

#[cfg(loom)]
fn vacant_slots<T>(count: usize) -> Box<[MailboxSlot<T>]> {
    (0..count).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect()
}
