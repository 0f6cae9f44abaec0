//! Operations that use system calls on ordinary descriptors, and the ring on direct ones.
//!
//! - **Connecting** takes two steps, because the kernel chooses the slot:
//!
//!   ```text
//!    socket ──► its slot ──► no delay, bind ─► connect ──► Connected or Failed
//!   ```
//!
//!   The source counts as connecting throughout; a close in between waits for the slot.
//! - **Shutting down**: the kernel runs it on a thread of its own, which looks up the slot late. So a close waits for
//!   the shutdown.
//! - **Detaching** creates an ordinary descriptor for the same socket, and then closes the slot.
//! - **Immediate operations** (`recv_now`, `send_now`, `descriptor`) are entries that the kernel completes during
//!   submission.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::{opcode, squeue, types};
use socket2::SockAddr;

use super::buffers::ProvidedBuffers;
use super::completions::UringEvents;
use super::direct_table::DirectTable;
use super::handle::Handle;
use super::queue::{UringOp, UringQueue};
use super::source::ArmedOps;
use super::{AcceptedSocket, Completion, Uring};
use crate::driver::role::SourceRole;
use crate::driver::{Destination, DriverEvent};
use crate::token::Token;

/// Maximum of entries of a connect: no delay, reuse of the address, bind, connect.
const CONNECT_ENTRIES: usize = 4;

/// Maximum of addresses of a connect.
const CONNECT_ADDRESSES: usize = 2;

/// The value of a switched-on option, at an address that the kernel can read at any time.
static ON: libc::c_int = 1;

#[derive(Debug)]
pub(super) struct PendingConnect {
    token: Token,
    to: SockAddr,
    from: Option<SockAddr>,
}

impl Uring {
    /// A ring with its own descriptor table for the sockets that it accepts and connects, with `size` slots: at most
    /// the process's limit of open files, and [`DIRECT_DESCRIPTORS_MAX`]. These sockets use no descriptor of the
    /// process, so the limit applies to each ring's table separately. Nearly full (fewer
    /// free slots than [`COMPLETION_QUEUE_SIZE`]): one connection is accepted per listener and turn. Full: connects fail,
    /// and accepting stops as when descriptors run out, with `ENFILE`; the kernel has then closed one connection.
    ///
    /// # Errors
    /// `InvalidInput`, `EMFILE`: the table is too large; else as [`Uring::new`].
    ///
    /// [`DIRECT_DESCRIPTORS_MAX`]: crate::limits::DIRECT_DESCRIPTORS_MAX
    /// [`COMPLETION_QUEUE_SIZE`]: crate::limits::COMPLETION_QUEUE_SIZE
    pub fn with_direct_descriptors(size: u32) -> io::Result<Self> {
        let mut driver = Uring::new()?;
        driver.table = Some(DirectTable::register(&mut driver.queue, size)?);
        Ok(driver)
    }

    /// Checks whether this system permits [`Uring::with_direct_descriptors`]; `Unsupported` on kernels before 6.13.
    pub fn probe_direct_descriptors() -> io::Result<()> {
        let mut queue = UringQueue::new()?;
        ProvidedBuffers::register(&mut queue)?;
        DirectTable::check(&mut queue)
    }

    /// Requests a socket in the ring's table; its completion continues with the connect.
    pub(super) fn connect_direct(&mut self, token: Token, to: &Destination) -> io::Result<()> {
        let pending = match to {
            Destination::Tcp { to, from } => {
                PendingConnect { token, to: SockAddr::from(*to), from: from.map(SockAddr::from) }
            }
            Destination::Unix(path) => PendingConnect { token, to: SockAddr::unix(path)?, from: None },
        };
        let socket =
            opcode::Socket::new(pending.to.family().into(), libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
                .file_index(Some(types::DestinationSlot::auto_target()))
                .build();
        self.pending_connects.push_back(pending);
        self.sources.insert(token, Handle::PENDING, SourceRole::Stream, false);
        self.sources.get_mut(token).expect("just inserted").arm(ArmedOps::CONNECT);
        self.submit(&socket.user_data(UringOp::Socket.with(token)));
        Ok(())
    }

    pub(super) fn complete_socket(&mut self, token: Token, result: i32, events: &mut UringEvents) {
        // Usually the first, because sockets are created in the order of their requests.
        let at = self.pending_connects.iter().position(|pending| pending.token == token);
        let pending = at.and_then(|at| self.pending_connects.remove(at));
        let (Some(pending), Some(source)) = (pending, self.sources.get_mut(token)) else {
            debug_assert!(false, "{token:?}: a socket that was not requested");
            return;
        };
        if result < 0 {
            if self.finish_operation(token, ArmedOps::CONNECT, events) {
                events.push(self.failed(token, result));
            }
            return;
        }
        let handle = Handle::direct(result.cast_unsigned());
        source.handle = handle;
        let closing = source.closing;
        if let Some(table) = &mut self.table {
            table.count_used();
        }
        if closing {
            self.push_close(token);
            self.finish_operation(token, ArmedOps::CONNECT, events);
            return;
        }
        self.connect_slot(token, handle, pending);
    }

    fn connect_slot(
        &mut self,
        token: Token,
        handle: Handle,
        PendingConnect { to, from, .. }: PendingConnect,
    ) {
        // A chain is not split, and addresses do not move until the kernel has read them.
        if self.queue.room() < CONNECT_ENTRIES
            || self.addresses.len() + CONNECT_ADDRESSES > self.addresses.capacity()
        {
            self.flush();
        }
        if !to.is_unix() {
            self.push_switch_on(handle, libc::IPPROTO_TCP, libc::TCP_NODELAY);
        }
        if let Some(from) = from {
            if from.as_socket().is_some_and(|from| from.port() != 0) {
                // A fixed source port may belong to earlier connections that are waiting for their end.
                self.push_switch_on(handle, libc::SOL_SOCKET, libc::SO_REUSEADDR);
            }
            self.addresses.push(from);
            let from = self.addresses.last().expect("just pushed");
            let bind = handle.entry(|fd| opcode::Bind::new(fd, from.as_ptr().cast(), from.len()).build());
            // If it fails, its completion reports the error as that of the connect, whose own completion is skipped.
            let flags = squeue::Flags::SKIP_SUCCESS | squeue::Flags::IO_LINK;
            self.queue.push(&bind.flags(flags).user_data(UringOp::Connect.with(token)));
        }
        self.push_connect(token, handle, to);
    }

    /// Adds an entry that switches an option of the socket on. The queue has room for it.
    fn push_switch_on(&mut self, handle: Handle, level: libc::c_int, name: libc::c_int) {
        let entry = handle.entry(|fd| {
            let (level, name, size) = (level.cast_unsigned(), name.cast_unsigned(), size_of_val(&ON) as u32);
            opcode::SetSockOpt::new(fd, level, name, (&raw const ON).cast(), size).build()
        });
        self.queue.push(&entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(UringOp::Ignore.bits()));
    }

    pub(super) fn shutdown_direct(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        if source.closing || source.armed.has(ArmedOps::SHUTDOWN) {
            return;
        }
        source.arm(ArmedOps::SHUTDOWN);
        let entry = source.handle.entry(|fd| opcode::Shutdown::new(fd, libc::SHUT_WR).build());
        self.submit(&entry.user_data(UringOp::Shutdown.with(token)));
    }

    /// A shutdown has completed, or failed because the peer is gone. Submits the close that waits for it.
    pub(super) fn complete_shutdown(&mut self, token: Token, events: &mut UringEvents) {
        let waiting = self.sources.get_mut(token).is_some_and(|source| source.closing);
        if waiting {
            self.push_close(token);
        }
        self.finish_operation(token, ArmedOps::SHUTDOWN, events);
    }

    pub(super) fn peek(&mut self, handle: Handle) -> io::Result<usize> {
        match handle.is_direct() {
            true => self.recv_now_direct(handle, &mut [0], libc::MSG_PEEK),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Receives at once into the caller's memory, which the kernel no longer uses when this returns: such a receive
    /// completes during its submission, with the available bytes or with `EAGAIN`.
    pub(super) fn recv_now_direct(
        &mut self,
        handle: Handle,
        into: &mut [u8],
        flags: i32,
    ) -> io::Result<usize> {
        let (start, len) = (into.as_mut_ptr(), u32::try_from(into.len()).unwrap_or(u32::MAX));
        let receive =
            handle.entry(|fd| opcode::Recv::new(fd, start, len).flags(libc::MSG_DONTWAIT | flags).build());
        self.run_now(receive).map(|received| received as usize)
    }

    /// Sends at once from the caller's memory, as [`recv_now_direct`](Self::recv_now_direct) receives.
    pub(super) fn send_now_direct(&mut self, handle: Handle, bytes: &[u8]) -> io::Result<usize> {
        let (start, len) = (bytes.as_ptr(), u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let send = handle.entry(|fd| opcode::Send::new(fd, start, len).flags(flags).build());
        self.run_now(send).map(|sent| sent as usize)
    }

    /// Creates an ordinary descriptor for a direct socket.
    pub(super) fn install_now(&mut self, handle: Handle) -> io::Result<OwnedFd> {
        let slot = handle.slot().ok_or(io::ErrorKind::NotConnected)?;
        let fd = self.run_now(opcode::FixedFdInstall::new(types::Fixed(slot), 0).build())?;
        // SAFETY: the descriptor is new and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd.cast_signed()) })
    }

    /// Submits an entry that the kernel completes during its submission, and returns its result. Other completions wait
    /// for the next turn; the kernel has signalled a foreign loop for them.
    fn run_now(&mut self, entry: squeue::Entry) -> io::Result<u32> {
        self.submit(&entry.user_data(UringOp::Immediate.bits()));
        self.flush();
        let is_immediate = |completion: &Completion| UringOp::of(completion.user_data) == UringOp::Immediate;
        // More than one round is needed only when completions have overflowed.
        loop {
            self.queue.drain(&mut self.completions);
            if let Some(at) = self.completions.iter().position(is_immediate) {
                let result = self.completions.remove(at).result;
                return u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            }
            self.counters.system_calls +=
                u64::from(self.queue.enter(stilling_ring::Time::ZERO, crate::driver::Wait::No)?);
        }
    }

    /// Requests an ordinary descriptor for a direct socket that is detached.
    pub(super) fn install(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        let Some(slot) = source.handle.slot() else { return };
        source.arm(ArmedOps::INSTALL);
        let entry = opcode::FixedFdInstall::new(types::Fixed(slot), 0).build();
        self.submit(&entry.user_data(UringOp::Install.with(token)));
    }

    /// The ordinary descriptor was created, or that failed. Closes the slot in either case.
    pub(super) fn complete_install(&mut self, token: Token, result: i32, events: &mut UringEvents) {
        let Some(source) = self.sources.get_mut(token) else { return };
        let close = source.handle.close();
        let socket = if result < 0 {
            Err(io::Error::from_raw_os_error(-result))
        } else {
            // SAFETY: the descriptor is new and has no other owner.
            Ok(unsafe { OwnedFd::from_raw_fd(result) })
        };
        self.sources.free(token);
        self.submit(&close.user_data(UringOp::SlotClosed.bits()));
        events.push(DriverEvent::Detached { token, socket });
    }

    /// Closes sockets that were accepted into the ring's table and then dropped.
    pub(super) fn close_dropped(&mut self) {
        while let Some(slot) = self.table.as_ref().and_then(DirectTable::next_dropped) {
            let entry = Handle::direct(slot).close().user_data(UringOp::SlotClosed.bits());
            self.submit(&entry);
        }
    }

    pub(super) fn accepted_socket(&mut self, result: i32) -> AcceptedSocket {
        match &mut self.table {
            Some(table) => {
                table.count_used();
                AcceptedSocket::Direct(table.owned_slot(result.cast_unsigned()))
            }
            // SAFETY: a non-negative result of an accept is a new descriptor without another owner.
            None => AcceptedSocket::Plain(unsafe { OwnedFd::from_raw_fd(result) }),
        }
    }
}
