//! A bounded queue from exactly one thread to exactly one other.
//!
//! ```text
//!            head (receiver)         tail (sender)         next (sender, private)
//!              ▼                       ▼                     ▼
//!    … taken │ published, unread     │ pushed, unpublished │ vacant …      index = sequence & mask
//! ```
//!
//! Sequences are 64-bit and never wrap; a place is a sequence modulo a power of two. Items are built in their
//! places, and a whole batch becomes visible with one store. Each side keeps the last value it saw of the other
//! side's index and reads the shared one only when that value no longer helps, so that a busy mailbox moves
//! about one cache line per batch.
//!
//! Who owns a place: the receiver owns `head..tail`, the sender everything else. Ownership moves to the
//! receiver by the release store of `tail`, and back by the release store of `head`.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;

use crate::sync::{Arc, AtomicBool, AtomicU64, CachePadded, Ordering, UnsafeCell};

/// The most places a mailbox can have.
pub const CAPACITY_MAX: usize = 1 << 30;

/// A new mailbox for `capacity` items, rounded up to a power of two.
///
/// The storage is allocated here, once; the operating system backs it with memory as places are first used.
///
/// # Panics
/// If `capacity` is zero or above [`CAPACITY_MAX`].
#[must_use]
pub fn mailbox<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(
        (1..=CAPACITY_MAX).contains(&capacity),
        "a mailbox holds 1 to {CAPACITY_MAX} items, asked for {capacity}"
    );
    let shared = Arc::new(SharedRing {
        slots: vacant_slots(capacity.next_power_of_two()),
        head: CachePadded(RingEnd { index: AtomicU64::new(0), is_dropped: AtomicBool::new(false) }),
        tail: CachePadded(RingEnd { index: AtomicU64::new(0), is_dropped: AtomicBool::new(false) }),
    });
    let sender = Sender { shared: Arc::clone(&shared), next: 0, published: 0, cached_head: 0 };
    (sender, Receiver { shared, next: 0, cached_tail: 0 })
}

/// The mailbox or queue has no room; what was offered comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MailboxFull<T>(pub T);

impl<T> fmt::Debug for MailboxFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MailboxFull(..)")
    }
}

impl<T> fmt::Display for MailboxFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the mailbox is full: its receiver has not taken enough yet")
    }
}

impl<T> std::error::Error for MailboxFull<T> {}

/// The end that puts items in. Dropping it drops what was pushed but not published; what was published stays
/// for the receiver.
pub struct Sender<T> {
    shared: Arc<SharedRing<T>>,
    next: u64,
    published: u64,
    cached_head: u64,
}

impl<T> Sender<T> {
    /// Puts `item` behind everything pushed before. The receiver sees it after [`publish`](Sender::publish).
    ///
    /// # Errors
    /// [`MailboxFull`] with the item.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), MailboxFull<T>> {
        match self.vacancy() {
            Some(vacancy) => {
                vacancy.fill(|| item);
                Ok(())
            }
            None => Err(MailboxFull(item)),
        }
    }

    /// Like [`push`](Sender::push), but the item is built straight in its place.
    ///
    /// # Errors
    /// [`MailboxFull`] with `build`, which was not called.
    #[inline]
    pub fn push_with<F: FnOnce() -> T>(&mut self, build: F) -> Result<(), MailboxFull<F>> {
        match self.vacancy() {
            Some(vacancy) => {
                vacancy.fill(build);
                Ok(())
            }
            None => Err(MailboxFull(build)),
        }
    }

    /// The next free place, if there is one: for callers that decide what to push only when they know it fits.
    #[inline]
    pub fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        let capacity = self.capacity() as u64;
        if self.next - self.cached_head == capacity {
            self.cached_head = self.shared.head.0.index.load(Ordering::Acquire);
            if self.next - self.cached_head == capacity {
                return None;
            }
        }
        Some(Vacancy { sender: self })
    }

    /// Makes everything pushed so far visible to the receiver; call it once per batch. Returns whether there was
    /// anything new.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        self.shared.tail.0.index.store(self.next, Ordering::Release);
        true
    }

    /// How many items were ever pushed, which is the sequence of the next one.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.next
    }

    /// How many items the receiver has ever taken: the item with sequence `n` is taken once this is above `n`.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.shared.head.0.index.load(Ordering::Acquire)
    }

    /// How many items the mailbox can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Whether the receiver is gone. Pushing still works, but nobody will take anything.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.head.0.is_dropped.load(Ordering::Acquire)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        for sequence in self.published..self.next {
            // SAFETY: places from `published` up to `next` were filled by this sender and never shown to the
            // receiver, so they are initialised and nobody else reads or drops them.
            self.shared.slot(sequence).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
        self.shared.tail.0.is_dropped.store(true, Ordering::Release);
    }
}

/// A free place in the mailbox. Dropping it unfilled pushes nothing.
pub struct Vacancy<'a, T> {
    sender: &'a mut Sender<T>,
}

impl<T> Vacancy<'_, T> {
    /// Builds the item in its place. If `build` panics, nothing was pushed.
    #[inline(always)]
    pub fn fill(self, build: impl FnOnce() -> T) {
        let Vacancy { sender } = self;
        // SAFETY: a vacancy exists only while `next` is less than a whole capacity ahead of `head`, so this place
        // was taken by the receiver (the acquire load of `head` ordered its read before this write) or never
        // used, and it stays the sender's until `tail` passes it.
        sender.shared.slot(sender.next).with_mut(|slot| unsafe {
            (*slot).write(build());
        });
        sender.next += 1;
    }
}

/// The end that takes items out. Dropping it leaves unread items to be dropped together with the sender.
pub struct Receiver<T> {
    shared: Arc<SharedRing<T>>,
    next: u64,
    cached_tail: u64,
}

impl<T> Receiver<T> {
    /// Takes the oldest published item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if !self.has_next() {
            return None;
        }
        // SAFETY: `next` is below a `tail` read with acquire, so the sender initialised this place before and
        // will not touch it until `head` passes it; `next` moves on below, so it is read out only once.
        let item = self.shared.slot(self.next).with(|slot| unsafe { (*slot).assume_init_read() });
        self.next += 1;
        self.shared.head.0.index.store(self.next, Ordering::Release);
        Some(item)
    }

    /// Looks at the oldest published item without taking it.
    #[inline]
    pub fn peek(&mut self) -> Option<&T> {
        if !self.has_next() {
            return None;
        }
        // SAFETY: as in `pop`; the reference borrows the receiver, so the item cannot be taken while it lives.
        Some(self.shared.slot(self.next).with(|slot| unsafe { (*slot).assume_init_ref() }))
    }

    /// How many items this end has ever taken, which is the sequence of the next one.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.next
    }

    /// Whether there is nothing to take now. Asked after [`Wake::park`](crate::Wake::park), it cannot miss what
    /// the sender published before its [`notify`](crate::Wake::notify) found nobody parked.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.cached_tail && self.next == self.shared.tail.0.index.load(Ordering::Acquire)
    }

    /// Whether the sender is gone. If so, what [`pop`](Receiver::pop) finds from now on is all there will be.
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
    /// What the receiver writes: how many items it took, and that it is gone.
    head: CachePadded<RingEnd>,
    /// What the sender writes: how many items it published, and that it is gone.
    tail: CachePadded<RingEnd>,
    slots: Box<[MailboxSlot<T>]>,
}

struct RingEnd {
    index: AtomicU64,
    is_dropped: AtomicBool,
}

// SAFETY: the two ends hand each place back and forth with release stores and acquire loads, as the head of this
// file says, so no place is ever accessed from two threads at once; items move between threads, hence `T: Send`.
unsafe impl<T: Send> Send for SharedRing<T> {}
// SAFETY: as above; `&SharedRing` gives access to items only through the two ends, of which there is one each.
unsafe impl<T: Send> Sync for SharedRing<T> {}

impl<T> SharedRing<T> {
    #[inline(always)]
    fn slot(&self, sequence: u64) -> &MailboxSlot<T> {
        // The length is a power of two, and the cast keeps all bits that the mask keeps.
        &self.slots[sequence as usize & (self.slots.len() - 1)]
    }
}

impl<T> Drop for SharedRing<T> {
    fn drop(&mut self) {
        // Both ends are gone, and the sender dropped what it had not published.
        let head = self.head.0.index.load(Ordering::Acquire);
        let tail = self.tail.0.index.load(Ordering::Acquire);
        for sequence in head..tail {
            // SAFETY: published and never taken, so initialised; `&mut self` excludes everybody else.
            self.slot(sequence).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
    }
}

#[cfg(not(loom))]
fn vacant_slots<T>(count: usize) -> Box<[MailboxSlot<T>]> {
    // SAFETY: a place is a transparent wrapper around `MaybeUninit`, for which any bytes are valid.
    unsafe { Box::new_uninit_slice(count).assume_init() }
}

#[cfg(loom)]
fn vacant_slots<T>(count: usize) -> Box<[MailboxSlot<T>]> {
    (0..count).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect()
}
