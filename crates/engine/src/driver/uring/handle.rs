//! A source's file: a descriptor of the process, or a slot of the ring's own table.
//!
//! A *direct* descriptor is such a slot. It uses no descriptor of the process, and only operations of this ring can use
//! it. [`Handle`] hides the difference from the code that builds entries.

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};

use io_uring::{opcode, squeue, types};

/// `IOSQE_FIXED_FILE` of io_uring_enter(2): the entry's descriptor is a slot.
const FIXED_FILE: squeue::Flags = squeue::Flags::from_bits_retain(1);

/// A descriptor, a slot, or neither, in one word: `0…` is a descriptor, `-3 - slot` a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandleTarget {
    Nothing,
    Process(RawFd),
    Ring(u32),
}

impl Handle {
    pub(super) const FREE: Handle = Handle(-1);
    /// A source without a socket: it is still being created, or could not be.
    pub(super) const PENDING: Handle = Handle(-2);

    pub(super) fn plain(fd: RawFd) -> Self {
        debug_assert!(fd >= 0, "{fd} is no descriptor");
        Handle(fd)
    }

    pub(super) fn direct(slot: u32) -> Self {
        Handle(-3 - slot.cast_signed())
    }

    fn target(self) -> HandleTarget {
        match self.0 {
            fd @ 0.. => HandleTarget::Process(fd),
            -2..=-1 => HandleTarget::Nothing,
            slot => HandleTarget::Ring((-3 - slot).cast_unsigned()),
        }
    }

    pub(super) fn slot(self) -> Option<u32> {
        match self.target() {
            HandleTarget::Ring(slot) => Some(slot),
            HandleTarget::Process(_) | HandleTarget::Nothing => None,
        }
    }

    pub(super) fn is_direct(self) -> bool {
        self.slot().is_some()
    }

    /// Builds an entry for this file with `build`.
    pub(super) fn entry(self, build: impl FnOnce(types::Fd) -> squeue::Entry) -> squeue::Entry {
        match self.target() {
            HandleTarget::Process(fd) => build(types::Fd(fd)),
            HandleTarget::Ring(slot) => build(types::Fd(slot.cast_signed())).flags(FIXED_FILE),
            // The kernel returns EBADF, as for any descriptor that is not open.
            HandleTarget::Nothing => build(types::Fd(-1)),
        }
    }

    /// The entry that closes it; without a file a no-op, which completes as well.
    pub(super) fn close(self) -> squeue::Entry {
        match self.target() {
            HandleTarget::Process(fd) => opcode::Close::new(types::Fd(fd)).build(),
            HandleTarget::Ring(slot) => opcode::Close::new(types::Fixed(slot)).build(),
            HandleTarget::Nothing => opcode::Nop::new().build(),
        }
    }

    /// The ordinary descriptor, if it is one, for system calls. The caller ensures that it stays open.
    pub(super) fn descriptor<'a>(self) -> Option<BorrowedFd<'a>> {
        match self.target() {
            // SAFETY: the source table owns the descriptor until its close completes; callers use the borrow within one
            // call, or while they borrow the driver, in which no source changes.
            HandleTarget::Process(fd) => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
            HandleTarget::Ring(_) | HandleTarget::Nothing => None,
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_returns_its_descriptor_or_slot() {
        let highest = crate::limits::DIRECT_DESCRIPTORS_MAX - 1;
        for slot in [0, 1, 77, highest] {
            assert_eq!(Handle::direct(slot).target(), HandleTarget::Ring(slot));
            assert!(Handle::direct(slot).is_direct());
        }
        for fd in [0, 1, i32::MAX] {
            assert_eq!(Handle::plain(fd).target(), HandleTarget::Process(fd));
        }
        for nothing in [Handle::FREE, Handle::PENDING] {
            assert_eq!((nothing.target(), nothing.is_direct()), (HandleTarget::Nothing, false));
        }
    }
}
