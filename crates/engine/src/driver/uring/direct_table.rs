//! The ring's own descriptor table, and its sockets that are not attached yet.
//!
//! The kernel chooses a free slot when it accepts or creates a socket; the completion has its number. The slot is free
//! again when its close has completed. An accepted connection that is dropped before it is attached adds its slot to a
//! list, which the driver closes in its next turn.
//!
//! The kernel accepts a connection before it looks for a slot, and closes it if there is none. So a ring whose table is
//! nearly full accepts one connection per listener and turn, and its owner has time to react.
//!
//! Requires Linux 6.13. Earlier kernels release a direct descriptor only when all operations of the ring that began
//! before its close have completed, so one idle connection delays all later closes. [`DirectTable::check`] detects such
//! kernels.

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use io_uring::{Probe, opcode, types};
use stilling_ring::Time;

use super::queue::{UringOp, UringQueue};
use crate::driver::Wait;
use crate::limits::{COMPLETION_QUEUE_SIZE, DIRECT_DESCRIPTORS_MAX, TURN_LIST_CAPACITY};

/// A connection that is not attached: in the process's descriptor table or in a ring's. Dropping it closes it.
#[derive(Debug)]
pub enum AcceptedSocket {
    /// An ordinary descriptor.
    Plain(OwnedFd),
    /// A slot of one ring's table, for that ring's driver only.
    Direct(DirectSocket),
}

impl From<OwnedFd> for AcceptedSocket {
    fn from(fd: OwnedFd) -> Self {
        AcceptedSocket::Plain(fd)
    }
}

/// An owned slot of a ring's table.
#[derive(Debug)]
pub struct DirectSocket {
    /// `None` after [`DirectTable::claim`].
    slot: Option<u32>,
    dropped: Rc<RefCell<Vec<u32>>>,
}

impl Drop for DirectSocket {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.dropped.borrow_mut().push(slot);
        }
    }
}

#[derive(Debug)]
pub(super) struct DirectTable {
    size: u32,
    used: u32,
    /// Slots to be closed, because their owner was dropped.
    dropped: Rc<RefCell<Vec<u32>>>,
}

impl DirectTable {
    pub(super) fn register(queue: &mut UringQueue, size: u32) -> io::Result<Self> {
        if size > DIRECT_DESCRIPTORS_MAX {
            let message = format!("{size} direct descriptors exceed the maximum of {DIRECT_DESCRIPTORS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let submitter = queue.ring().submitter();
        submitter.register_files_sparse(size)?;
        // Shutdowns are the only operation that the kernel runs on its own threads: one of them is enough.
        submitter.register_iowq_max_workers(&mut [1, 1])?;
        let dropped = Rc::new(RefCell::new(Vec::with_capacity(TURN_LIST_CAPACITY)));
        Ok(DirectTable { size, used: 0, dropped })
    }

    pub(super) fn count_used(&mut self) {
        self.used += 1;
    }

    pub(super) fn count_freed(&mut self) {
        debug_assert!(self.used > 0, "more slots freed than used");
        self.used -= 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.used == self.size
    }

    /// Whether a multishot accept can fill the table in one turn: it ends when the completion queue is full.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.size - self.used <= COMPLETION_QUEUE_SIZE
    }

    /// The owner of a slot from a completion.
    pub(super) fn owned_slot(&self, slot: u32) -> DirectSocket {
        DirectSocket { slot: Some(slot), dropped: Rc::clone(&self.dropped) }
    }

    /// Transfers the ownership of a slot to the caller, which attaches it. Returns a socket of another ring unchanged.
    pub(super) fn claim(&self, mut socket: DirectSocket) -> Result<u32, DirectSocket> {
        if !Rc::ptr_eq(&self.dropped, &socket.dropped) {
            return Err(socket);
        }
        Ok(socket.slot.take().expect("claimed only here, once"))
    }

    /// Removes and returns a slot to be closed.
    pub(super) fn next_dropped(&self) -> Option<u32> {
        self.dropped.borrow_mut().pop()
    }

    /// Whether this kernel has all operations and releases a closed file at once. Needs a ring of its own.
    pub(super) fn check(queue: &mut UringQueue) -> io::Result<()> {
        let mut probe = Probe::new();
        queue.ring().submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Socket::CODE,
            opcode::SetSockOpt::CODE,
            opcode::Bind::CODE,
            opcode::FixedFdInstall::CODE,
        ];
        if !needed.iter().all(|code| probe.is_supported(*code)) || !closes_at_once(queue)? {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "they need Linux 6.13"));
        }
        Ok(())
    }
}

/// Whether closing one direct descriptor reaches its peer while an operation on another is armed.
fn closes_at_once(queue: &mut UringQueue) -> io::Result<bool> {
    let (_idle_peer, idle) = UnixStream::pair()?;
    let (mut peer, closing) = UnixStream::pair()?;
    peer.set_nonblocking(true)?;
    DirectTable::register(queue, 2)?;
    queue.ring().submitter().register_files_update(0, &[idle.as_raw_fd(), closing.as_raw_fd()])?;
    drop((idle, closing));
    let wait =
        opcode::PollAdd::new(types::Fixed(0), libc::POLLIN as u32).build().user_data(UringOp::Ignore.bits());
    queue.push(&wait);
    queue.push(&opcode::Close::new(types::Fixed(1)).build().user_data(UringOp::Ignore.bits()));
    queue.enter(Time::ZERO, Wait::No)?;
    Ok(matches!(peer.read(&mut [0]), Ok(0)))
}
