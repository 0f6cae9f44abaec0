//! Translates completions into events.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use io_uring::cqueue;
use io_uring::types::RecvMsgOut;
use socket2::{SockAddr, SockAddrStorage};

use super::queue::{Completion, UringOp};
use super::source::ArmedOps;
use super::{AcceptedSocket, Uring};
use crate::driver::pktinfo::{self, CONTROL_SIZE};
use crate::driver::role::SourceRole;
use crate::driver::{BufferId, Datagram, DriverEvent, IncompleteSend};
use crate::limits::{DATAGRAM_SIZE_MAX, RECEIVE_BUFFER_SIZE};
use crate::token::Token;

pub(super) type UringEvents = Vec<DriverEvent<OwnedFd, AcceptedSocket>>;

impl Uring {
    pub(super) fn process_completions(
        &mut self,
        incomplete_sends: &mut Vec<IncompleteSend>,
        events: &mut UringEvents,
    ) {
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.drain(&mut completions);
        for completion in completions.drain(..) {
            self.complete(completion, incomplete_sends, events);
        }
        self.completions = completions;
    }

    fn complete(
        &mut self,
        completion: Completion,
        incomplete_sends: &mut Vec<IncompleteSend>,
        events: &mut UringEvents,
    ) {
        let token = Token::from_bits(completion.user_data);
        let result = completion.result;
        match UringOp::of(completion.user_data) {
            UringOp::Ignore => {}
            UringOp::Wake => {
                events.push(DriverEvent::Woken);
                self.arm_wake();
            }
            UringOp::Send => incomplete_sends.push(short_send(completion.user_data as u32, result)),
            UringOp::Accept => self.complete_accept(token, completion, events),
            UringOp::Receive => self.complete_receive(token, completion, events),
            UringOp::Readable => {
                if self.finish_operation(token, ArmedOps::READABLE, events) {
                    events.push(match result {
                        _ if result >= 0 => DriverEvent::Readable { token },
                        _ if result == -libc::ECANCELED => DriverEvent::ReceiveCancelled { token },
                        _ => self.failed(token, result),
                    });
                }
            }
            UringOp::Writable => self.complete_writable(token, completion, events),
            UringOp::Connect => {
                if self.finish_operation(token, ArmedOps::CONNECT, events) {
                    events.push(match result {
                        0 => DriverEvent::Connected { token },
                        _ => self.failed(token, result),
                    });
                }
            }
            UringOp::CloseAfterSend => {
                if let Some(source) = self.sources.get_mut(token) {
                    source.closing = true;
                }
                self.finish_operation(token, ArmedOps::LINKED_CLOSE, events);
            }
            UringOp::Close => {
                self.finish_operation(token, ArmedOps::CLOSE, events);
            }
            UringOp::Socket => self.complete_socket(token, result, events),
            UringOp::Shutdown => self.complete_shutdown(token, events),
            UringOp::Install => self.complete_install(token, result, events),
            UringOp::SlotClosed => self.release_slot(),
            UringOp::Immediate => debug_assert!(false, "handled by its caller"),
        }
    }

    /// Records that an operation has completed. Returns whether it yields its event; the last one of a closing source
    /// yields `Closed` instead.
    pub(super) fn finish_operation(
        &mut self,
        token: Token,
        what: ArmedOps,
        events: &mut UringEvents,
    ) -> bool {
        let Some(source) = self.sources.get_mut(token) else {
            self.counters.stale += 1;
            return false;
        };
        source.disarm(what);
        if !source.closing {
            return !source.armed.has(ArmedOps::FAILED);
        }
        if what != ArmedOps::CLOSE && what != ArmedOps::LINKED_CLOSE {
            self.counters.stale += 1;
        }
        if source.in_flight == 0 {
            let direct = source.handle.is_direct();
            self.sources.free(token);
            if direct {
                self.release_slot();
            }
            events.push(DriverEvent::Closed { token });
        }
        false
    }

    fn release_slot(&mut self) {
        if let Some(table) = &mut self.table {
            table.count_freed();
        }
    }

    /// The event of a failed operation; no other operation of the connection yields an event after it. A datagram
    /// socket can continue, and has nothing else armed.
    pub(super) fn failed(&mut self, token: Token, result: i32) -> DriverEvent<OwnedFd, AcceptedSocket> {
        if let Some(source) = self.sources.get_mut(token)
            && source.role != SourceRole::Datagram
        {
            source.set_mark(ArmedOps::FAILED);
        }
        DriverEvent::Failed { token, error: error(result) }
    }

    fn complete_receive(&mut self, token: Token, completion: Completion, events: &mut UringEvents) {
        // First, because the kernel has passed the buffer even if the source is closed.
        let buffer = cqueue::buffer_select(completion.flags).map(BufferId);
        if let Some(buffer) = buffer {
            self.buffers.lend(buffer);
        }
        let more = cqueue::more(completion.flags);
        let alive = match self.sources.get_mut(token) {
            Some(source) if more => !source.closing,
            _ => self.finish_operation(token, ArmedOps::RECEIVE, events),
        };
        if !alive {
            return buffer.into_iter().for_each(|buffer| self.buffers.release(buffer));
        }
        let source = self.sources.get_mut(token).expect("it is alive");
        let datagrams = source.role == SourceRole::Datagram;
        let reports_local = source.armed.has(ArmedOps::REPORTS_LOCAL);
        source.expects_data = cqueue::sock_nonempty(completion.flags);
        let detaching = source.detaching;
        if completion.result != -libc::ENOBUFS {
            source.clear_mark(ArmedOps::STARVED);
        }
        let mut rearm = datagrams && !more;
        match (completion.result, buffer) {
            (len, Some(buffer)) if len > 0 => {
                events.push(if datagrams {
                    self.buffers.set_reports_local(buffer, reports_local);
                    DriverEvent::Datagram { token, buffer }
                } else {
                    DriverEvent::Received { token, buffer, len: len as u32 }
                });
            }
            (result, buffer) => {
                buffer.into_iter().for_each(|buffer| self.buffers.release(buffer));
                match -result {
                    libc::ENOBUFS if !detaching => {
                        if self.buffers.is_complete() {
                            self.counters.starved += u64::from(source.set_mark(ArmedOps::STARVED));
                        }
                        source.set_mark(ArmedOps::WAITING);
                        self.has_new_buffers |= self.buffers.grow();
                        self.starved.push_back(token);
                        rearm = false;
                    }
                    libc::ECANCELED | libc::ENOBUFS => {
                        events.push(DriverEvent::ReceiveCancelled { token });
                        rearm = false;
                    }
                    libc::EINTR | libc::EAGAIN => rearm = true,
                    // An error of an earlier datagram, such as "port unreachable".
                    _ if datagrams => {}
                    0 => events.push(DriverEvent::Ended { token }),
                    _ => events.push(self.failed(token, result)),
                }
            }
        }
        if rearm && !detaching {
            self.arm_receive(token);
        } else if rearm && datagrams {
            // It completed before the cancel reached it.
            events.push(DriverEvent::ReceiveCancelled { token });
        }
    }
}

pub(super) fn error(result: i32) -> io::Error {
    io::Error::from_raw_os_error(-result)
}

fn short_send(position: u32, result: i32) -> IncompleteSend {
    match result {
        _ if result >= 0 => IncompleteSend { position, sent: result as u32, error: None },
        _ if result == -libc::EAGAIN || result == -libc::EINTR => {
            IncompleteSend { position, sent: 0, error: None }
        }
        _ => IncompleteSend { position, sent: 0, error: Some(error(result)) },
    }
}

/// `struct io_uring_recvmsg_out`: four 32-bit words before the address (io_uring_prep_recvmsg(3)).
const HEADER_SIZE: usize = 16;

const _: () = assert!(
    HEADER_SIZE + size_of::<libc::sockaddr_storage>() + CONTROL_SIZE + DATAGRAM_SIZE_MAX
        <= RECEIVE_BUFFER_SIZE
);

/// Layout of datagrams from a multishot `recvmsg`: header, address, control messages, payload.
pub(super) struct RecvmsgLayout {
    header: Box<libc::msghdr>,
    control_size: usize,
}

impl RecvmsgLayout {
    pub(super) fn new(control_size: usize) -> Self {
        // SAFETY: an all-zero msghdr is a valid empty one.
        let mut header: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_controllen = control_size as _;
        RecvmsgLayout { header, control_size }
    }

    /// The header for receives; it does not move.
    pub(super) fn header(&self) -> *const libc::msghdr {
        &*self.header
    }

    pub(super) fn datagram<'a>(&self, bytes: &'a [u8]) -> Datagram<'a> {
        let out = RecvMsgOut::parse(bytes, &self.header).expect("buffers hold more than the header");
        let mut storage = SockAddrStorage::zeroed();
        let name = out.name_data();
        // SAFETY: the storage is plain memory larger than any address, which the kernel wrote.
        unsafe {
            let view = storage.view_as::<[u8; size_of::<libc::sockaddr_storage>()]>();
            view[..name.len()].copy_from_slice(name);
        }
        // SAFETY: the storage holds an address of that length as the kernel wrote it.
        let address = unsafe { SockAddr::new(storage, name.len() as libc::socklen_t) };
        let from = address.as_socket().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        let local = pktinfo::local_address(out.control_data());
        // Sliced from `bytes`, because `out` does not live long enough. Without control messages the buffer has room
        // for more than the maximum.
        let start = HEADER_SIZE + size_of::<libc::sockaddr_storage>() + self.control_size;
        let len = out.payload_data().len().min(DATAGRAM_SIZE_MAX);
        let truncated = out.is_payload_truncated() || len < out.payload_data().len();
        Datagram { from, local, payload: &bytes[start..start + len], truncated }
    }
}
