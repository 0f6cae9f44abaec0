//! Sends, and the closes that follow them.
//!
//! ```text
//!  one piece       ──► SEND     ┐
//!                               ├─► sent all: no completion   [─► linked CLOSE]
//!  several pieces  ──► SENDMSG  ┘   short: a completion        (the close is cancelled)
//! ```
//!
//! Datagrams with a given local address use `SENDMSG` as well. Both carry `MSG_DONTWAIT`, so the kernel no longer uses
//! the bytes, the header and the vectors when the submitting call returns.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use io_uring::{opcode, squeue};
use rustix::io::Errno;
use socket2::SockAddr;

use super::Uring;
use super::handle::Handle;
use super::queue::UringOp;
use super::source::ArmedOps;
use crate::driver::role::SourceRole;
use crate::driver::{Driver, Gather, IncompleteSend, Outgoing};
use crate::token::Token;

/// With `MSG_WAITALL` a short send breaks the link, so the linked close runs only after a complete send.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// The linked close then sends the bytes together with its FIN: one packet, not two.
const LAST_SEND: i32 = libc::MSG_MORE;

/// Of so many turns that send datagrams, one is measured.
const SEND_SAMPLE_TURNS: u64 = 64;

impl Uring {
    /// The socket for a system call. Datagram sockets have ordinary descriptors.
    pub(super) fn datagram_socket(&mut self, token: Token) -> io::Result<BorrowedFd<'_>> {
        self.counters.system_calls += 1;
        let handle = self.sources.get_mut(token).ok_or(io::ErrorKind::NotConnected)?.handle;
        handle.descriptor().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    pub(super) fn push_send(
        &mut self,
        position: u32,
        out: &Outgoing<'_>,
        incomplete_sends: &mut Vec<IncompleteSend>,
    ) {
        let Some(source) = self.sources.get_mut(out.token) else {
            let error = Some(io::ErrorKind::NotConnected.into());
            return incomplete_sends.push(IncompleteSend { position, sent: 0, error });
        };
        let handle = source.handle;
        if source.role == SourceRole::Pipe {
            return self.write_pipe(position, out, incomplete_sends);
        }
        let fits = self.addresses.len() < self.addresses.capacity() && self.messages.has_room_for(out.bytes);
        if self.queue.room() < 2 || !fits {
            self.flush();
        }
        let send = self.send_entry(handle, out).user_data(UringOp::Send.at(position));
        if !out.close {
            self.queue.push(&send.flags(squeue::Flags::SKIP_SUCCESS));
            return;
        }
        let source = self.sources.get_mut(out.token).expect("looked up above");
        if source.in_flight > 0 {
            self.close_after.push((position, Some(out.token)));
            self.queue.push(&send.flags(squeue::Flags::SKIP_SUCCESS));
            return;
        }
        source.arm(ArmedOps::LINKED_CLOSE);
        self.linked.push((position, out.token));
        let close = handle.close().user_data(UringOp::CloseAfterSend.with(out.token));
        self.queue.push(&send.flags(squeue::Flags::SKIP_SUCCESS | squeue::Flags::IO_LINK));
        self.queue.push(&close);
    }

    /// Before the first datagram of a turn: decides whether the turn's datagrams are measured. One system call submits
    /// and waits, so measured ones are submitted by a call of their own.
    pub(super) fn begin_send_sample(&mut self) -> Option<Instant> {
        let is_sampled = self.datagram_turns.is_multiple_of(SEND_SAMPLE_TURNS);
        self.datagram_turns += 1;
        is_sampled.then(|| {
            self.flush();
            Instant::now()
        })
    }

    /// After the last datagram of a turn.
    pub(super) fn end_send_sample(&mut self, sample: Option<Instant>, datagrams: u64) {
        if let Some(begin) = sample {
            self.flush();
            self.counters.send_nanos += begin.elapsed().as_nanos() as u64;
            self.counters.sends_timed += datagrams;
        }
    }

    /// The entry of a send; the caller ensures room among addresses and messages.
    fn send_entry(&mut self, handle: Handle, out: &Outgoing<'_>) -> squeue::Entry {
        let flags = if out.close { SEND_FLAGS | LAST_SEND } else { SEND_FLAGS };
        match (out.bytes, out.to, out.from) {
            (Gather::One(payload), Some(to), Some(from)) => self.datagram_entry(handle, payload, to, from),
            (Gather::One(bytes), to, _) => handle.entry(|fd| {
                let mut send = opcode::Send::new(fd, bytes.as_ptr(), bytes.len() as u32).flags(flags);
                if let Some(to) = to {
                    self.addresses.push(SockAddr::from(to));
                    let address = self.addresses.last().expect("just pushed");
                    send = send.dest_addr(address.as_ptr().cast()).dest_addr_len(address.len());
                }
                send.build()
            }),
            (Gather::Many(_), to, _) => {
                assert!(to.is_none(), "a datagram is in one piece");
                let header = self.messages.push(out.bytes);
                handle.entry(|fd| opcode::SendMsg::new(fd, header).flags(flags.cast_unsigned()).build())
            }
        }
    }

    fn datagram_entry(
        &mut self,
        handle: Handle,
        payload: &[u8],
        to: SocketAddr,
        from: IpAddr,
    ) -> squeue::Entry {
        self.addresses.push(SockAddr::from(to));
        let name = self.addresses.last().expect("just pushed");
        let header = self.messages.push_datagram(payload, name, to, from);
        handle.entry(|fd| opcode::SendMsg::new(fd, header).flags(SEND_FLAGS.cast_unsigned()).build())
    }

    /// Pipes have no `MSG_DONTWAIT`: they are non-blocking and written to directly.
    fn write_pipe(&mut self, position: u32, out: &Outgoing<'_>, incomplete_sends: &mut Vec<IncompleteSend>) {
        if out.bytes.as_slice().is_none() {
            // The write below reuses the message list, so the kernel must have read it.
            self.flush();
        }
        let source = self.sources.get_mut(out.token).expect("the caller looked it up");
        let pipe = source.handle.descriptor().expect("a pipe keeps its descriptor");
        self.counters.system_calls += 1;
        let (sent, error) = match self.messages.write(pipe, out.bytes) {
            Ok(sent) => (sent, None),
            Err(Errno::AGAIN | Errno::INTR) => (0, None),
            Err(error) => (0, Some(io::Error::from(error))),
        };
        if sent < out.bytes.len() {
            incomplete_sends.push(IncompleteSend { position, sent: sent as u32, error });
        } else if out.close {
            self.close_after.push((position, Some(out.token)));
        }
    }

    /// Disarms the linked closes of sends that stopped short: the kernel cancels them without a completion, because the
    /// send at the head of the link has `SKIP_SUCCESS`.
    pub(super) fn unlink_stopped(&mut self, incomplete_sends: &[IncompleteSend]) {
        for stop in incomplete_sends {
            if let Ok(at) = self.linked.binary_search_by_key(&stop.position, |(position, _)| *position)
                && let Some(source) = self.sources.get_mut(self.linked[at].1)
            {
                source.disarm(ArmedOps::LINKED_CLOSE);
            }
        }
        self.linked.clear();
    }

    /// Closes the connections of complete sends in `close_after`.
    pub(super) fn close_finished(&mut self, incomplete_sends: &[IncompleteSend]) {
        for stop in incomplete_sends {
            if let Ok(at) = self.close_after.binary_search_by_key(&stop.position, |(position, _)| *position) {
                self.close_after[at].1 = None;
            }
        }
        for at in 0..self.close_after.len() {
            if let (_, Some(token)) = self.close_after[at] {
                self.close(token);
            }
        }
        self.close_after.clear();
    }
}
