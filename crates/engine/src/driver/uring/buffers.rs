//! The receive buffers: one mapping, provided to the kernel through a ring of entries (io_uring_register_buf_ring(3)).
//!
//! ```text
//!  entries (16 B each)   buffers (4 KiB each)
//! ┌──┬──┬──┬─…─┬──┐     ┌───────┬───────┬─…─┬───────┐
//! │  │  │  │   │  │     │ 0     │ 1     │   │ 511   │
//! └──┴──┴──┴─…─┴──┘     └───────┴───────┴─…─┴───────┘
//!   ▲ tail: the driver's, head: the kernel's
//! ```
//!
//! A buffer belongs to the kernel (its entry lies between head and tail), is named by an unprocessed completion, or is
//! lent to the shard. Released buffers return to the kernel with the next `publish`.
//!
//! The kernel takes the buffer that was released first, so after a while all of them are resident. Therefore the ring
//! begins with few; when all are lent and a receive finds none, `grow` adds as many again.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::queue::UringQueue;
use crate::driver::BufferId;
use crate::limits::{RECEIVE_BUFFER_SIZE, RECEIVE_BUFFERS, RECEIVE_BUFFERS_INITIAL};

/// The buffer group that receives select from.
pub(super) const BUFFER_GROUP: u16 = 0;

const ENTRIES_SIZE: usize = RECEIVE_BUFFERS as usize * size_of::<BufRingEntry>();
const MAPPING_SIZE: usize = ENTRIES_SIZE + RECEIVE_BUFFERS as usize * RECEIVE_BUFFER_SIZE;

const _: () = assert!(RECEIVE_BUFFERS.is_power_of_two() && ENTRIES_SIZE.is_multiple_of(4096));
const _: () =
    assert!(RECEIVE_BUFFERS_INITIAL.is_power_of_two() && RECEIVE_BUFFERS_INITIAL <= RECEIVE_BUFFERS);

pub(super) struct ProvidedBuffers {
    mapping: NonNull<u8>,
    tail: u16,
    /// Buffers that the kernel has been given so far, those with the lowest ids.
    provided: u16,
    lent: Box<[bool]>,
    lent_count: usize,
    reports_local: Box<[bool]>,
}

impl ProvidedBuffers {
    /// Maps the buffers and registers them with the ring, which must be dropped first.
    pub(super) fn register(queue: &mut UringQueue) -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping aliases nothing.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                MAPPING_SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let mapping = NonNull::new(address.cast()).expect("mmap never returns null");
        let mut buffers = ProvidedBuffers {
            mapping,
            tail: 0,
            provided: 0,
            lent: vec![false; RECEIVE_BUFFERS as usize].into_boxed_slice(),
            lent_count: 0,
            reports_local: vec![false; RECEIVE_BUFFERS as usize].into_boxed_slice(),
        };
        // SAFETY: the mapping is page-aligned, holds that many entries, and outlives the ring because the driver drops
        // its queue first.
        unsafe {
            queue.ring().submitter().register_buf_ring_with_flags(
                address as u64,
                RECEIVE_BUFFERS,
                BUFFER_GROUP,
                0,
            )?;
        }
        buffers.provide_up_to(RECEIVE_BUFFERS_INITIAL);
        Ok(buffers)
    }

    /// Provides as many buffers again if all are lent. Returns whether there are more now.
    pub(super) fn grow(&mut self) -> bool {
        let may_grow = self.free() == 0 && !self.is_complete();
        if may_grow {
            self.provide_up_to(2 * self.provided);
        }
        may_grow
    }

    /// Whether all buffers that may exist are provided.
    pub(super) fn is_complete(&self) -> bool {
        self.provided == RECEIVE_BUFFERS
    }

    fn provide_up_to(&mut self, count: u16) {
        for id in self.provided..count {
            self.offer(BufferId(id));
        }
        self.provided = count;
        self.publish();
    }

    pub(super) fn lend(&mut self, id: BufferId) {
        debug_assert!(!self.lent[id.0 as usize], "buffer {} lent twice", id.0);
        self.lent[id.0 as usize] = true;
        self.lent_count += 1;
    }

    pub(super) fn set_reports_local(&mut self, id: BufferId, reports_local: bool) {
        self.reports_local[id.0 as usize] = reports_local;
    }

    pub(super) fn reports_local(&self, id: BufferId) -> bool {
        self.reports_local[id.0 as usize]
    }

    pub(super) fn lent(&self) -> usize {
        self.lent_count
    }

    pub(super) fn free(&self) -> usize {
        usize::from(self.provided) - self.lent_count
    }

    pub(super) fn bytes(&self, id: BufferId) -> &[u8] {
        assert!(self.lent[id.0 as usize], "buffer {} is not lent", id.0);
        // SAFETY: the buffer lies inside the mapping, and while it is lent the kernel does not write to it; releasing
        // takes `&mut self`, which ends this borrow first.
        unsafe { std::slice::from_raw_parts(self.start(id), RECEIVE_BUFFER_SIZE) }
    }

    pub(super) fn release(&mut self, id: BufferId) {
        assert!(std::mem::take(&mut self.lent[id.0 as usize]), "buffer {} released twice", id.0);
        self.lent_count -= 1;
        self.offer(id);
    }

    /// Makes all entries offered since the last call visible to the kernel.
    pub(super) fn publish(&mut self) {
        // SAFETY: the mapping starts with the entries, and the first one holds the ring's tail; the kernel reads it
        // with acquire, so the entries written before are visible to it.
        let tail = unsafe { &*BufRingEntry::tail(self.mapping.as_ptr().cast()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }

    fn start(&self, id: BufferId) -> *mut u8 {
        // SAFETY: ids are below RECEIVE_BUFFERS (`lent` is indexed by them first), so the offset lies inside the
        // mapping.
        unsafe { self.mapping.as_ptr().add(ENTRIES_SIZE + id.0 as usize * RECEIVE_BUFFER_SIZE) }
    }

    fn offer(&mut self, id: BufferId) {
        let slot = usize::from(self.tail & (RECEIVE_BUFFERS - 1));
        let address = self.start(id) as u64;
        // SAFETY: `slot` is inside the entries. The kernel does not read an entry beyond the published tail, and there
        // are as many entries as buffers, so this one is not in use.
        let entry = unsafe { &mut *self.mapping.as_ptr().cast::<BufRingEntry>().add(slot) };
        entry.set_addr(address);
        entry.set_len(RECEIVE_BUFFER_SIZE as u32);
        entry.set_bid(id.0);
        self.tail = self.tail.wrapping_add(1);
    }
}

impl Drop for ProvidedBuffers {
    fn drop(&mut self) {
        // SAFETY: the ring that used the mapping is gone (field order in the driver), and nothing borrows from it any
        // more.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), MAPPING_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that a load does not need stays untouched.
    #[test]
    fn a_ring_begins_with_few_buffers_and_doubles_them_when_all_are_lent() {
        let mut queue = UringQueue::new().expect("io_uring is available");
        let mut buffers = ProvidedBuffers::register(&mut queue).expect("buffers can be registered");
        let mut expected = RECEIVE_BUFFERS_INITIAL;
        let mut lent = 0;
        loop {
            assert_eq!(buffers.free(), usize::from(expected - lent));
            assert!(!buffers.grow(), "there are free buffers");
            (lent..expected).for_each(|id| buffers.lend(BufferId(id)));
            lent = expected;
            if expected == RECEIVE_BUFFERS {
                break;
            }
            assert!(!buffers.is_complete() && buffers.grow());
            expected *= 2;
        }
        assert!(buffers.is_complete() && !buffers.grow(), "the maximum");
        // The ring must go first.
        drop(queue);
    }
}
