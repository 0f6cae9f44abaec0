//! The io_uring driver: many operations per system call, completions instead of readiness.
//!
//! **Every access to the shard's memory completes inside the call that submits it.** Sends carry `MSG_DONTWAIT`, so the
//! kernel copies the bytes or fails during the submission; a successful send posts no completion (`sending.rs`).
//! Receives use buffers of the ring's own pool, selected when there are bytes. So no pointer into the shard's memory
//! outlives a call.
//!
//! A stream receive completes once (it is not multishot): bytes that a session has not requested stay in the socket,
//! where TCP's flow control slows the sender. Accepts and datagram receives are multishot.
//!
//! ```text
//!  receive(), close(), …  ──►  submission queue ─┐
//!  turn(outgoing)         ──►  send [→ close]  ──┴─► one enter: submit, run task work, wait
//!                                                        │
//!  DriverEvent            ◄── completions.rs ◄── completion queue
//! ```
//!
//! Accepted and connected sockets are in the process's descriptor table, or, with [`Uring::with_direct_descriptors`],
//! in the ring's own (`handle.rs`, `direct_table.rs`, `direct.rs`). All other sources have ordinary descriptors.
//!
//! Requires Linux 6.1 (`DEFER_TASKRUN`); [`Uring::probe`] checks whether this system permits it.
#![allow(unsafe_code)]

mod accepting;
mod buffers;
mod completions;
mod direct;
mod direct_table;
mod handle;
mod queue;
mod sending;
mod source;
mod starved;
mod wakeup;
mod writability;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use rustix::net::{SendFlags, SocketFlags};
use socket2::SockAddr;
use stilling_ring::Time;

use self::buffers::ProvidedBuffers;
use self::completions::{RecvmsgLayout, UringEvents};
use self::direct::PendingConnect;
use self::direct_table::DirectTable;
pub use self::direct_table::{AcceptedSocket, DirectSocket};
use self::handle::Handle;
use self::queue::{Completion, UringOp, UringQueue};
use self::source::{AcceptRequest, ArmedOps, UringSources};
use self::wakeup::Wakeup;
use super::accept::{ReserveDescriptor, accept_now};
use super::descriptor_gap::DescriptorGap;
use super::immediate_datagram::{recv_from, send_to};
use super::message_headers::MessageHeaders;
use super::peer::{has_hung_up, has_no_unread_bytes, is_readable};
use super::pktinfo::CONTROL_SIZE;
use super::role::SourceRole;
use super::{
    BufferId, Datagram, Destination, Driver, DriverCounters, DriverEvent, IncompleteSend, Outgoing,
    ReceivedDatagram, SourceDescriptor, SourceKind, Wait, WakeHandle, sockopt,
};
use crate::limits::{
    COMPLETION_QUEUE_SIZE, GATHERED_PIECES_MAX, GATHERED_SENDS_MAX, RECEIVE_BUFFER_SIZE,
    SUBMISSION_QUEUE_SIZE, TURN_LIST_CAPACITY,
};
use crate::net;
use crate::token::Token;

/// `IORING_RECVSEND_POLL_FIRST`: wait for readiness before the first attempt, because after a response there is usually
/// nothing to read yet.
const POLL_FIRST: u16 = 1;

/// Operations cancelled when a source is closed or detached. The others complete soon without that.
const CANCELLED_ON_CLOSE: [(ArmedOps, UringOp); 5] = [
    (ArmedOps::RECEIVE, UringOp::Receive),
    (ArmedOps::READABLE, UringOp::Readable),
    (ArmedOps::WRITABLE, UringOp::Writable),
    (ArmedOps::CONNECT, UringOp::Connect),
    (ArmedOps::ACCEPT, UringOp::Accept),
];

/// The io_uring driver. Created and used by one thread.
pub struct Uring {
    // Declared first, so dropped first: the kernel releases all memory below before it is freed.
    queue: UringQueue,
    buffers: ProvidedBuffers,
    sources: UringSources,
    /// The table of accepted and connected sockets; `None`: the process's descriptor table.
    table: Option<DirectTable>,
    /// Connects that wait for a direct socket, in the order of their requests.
    pending_connects: VecDeque<PendingConnect>,
    /// Receives that found no buffer, oldest first; some may have been cancelled since.
    starved: VecDeque<Token>,
    /// The pool has grown since the waiting receives were last armed.
    has_new_buffers: bool,
    /// Receives that were cancelled while they waited for a buffer.
    cancelled: Vec<Token>,
    /// Addresses of connects and datagrams that the kernel has not read yet.
    addresses: Vec<SockAddr>,
    /// Headers of sends in several pieces that the kernel has not read yet.
    messages: MessageHeaders,
    /// Sends of this turn after which the connection is closed, unless they stop short; without a linked close, because
    /// operations are armed or it is a pipe.
    close_after: Vec<(u32, Option<Token>)>,
    /// Sends of this turn with a linked close.
    linked: Vec<(u32, Token)>,
    /// Sources to be detached when nothing of them is in flight.
    detaching: Vec<Token>,
    /// Unprocessed completions; between turns only those drained by immediate operations.
    completions: Vec<Completion>,
    wakeup: Arc<Wakeup>,
    wake_count: Box<u64>,
    /// Layouts of received datagrams: of a socket bound to one address, and of one bound to all.
    recvmsg_layouts: [RecvmsgLayout; 2],
    /// Reserved so that one connection can be refused when descriptors run out.
    reserve: ReserveDescriptor,
    descriptor_gap: DescriptorGap,
    /// Turns that sent datagrams.
    datagram_turns: u64,
    counters: DriverCounters,
}

impl Uring {
    /// A ring with its buffers. To be called on the thread that uses it.
    pub fn new() -> io::Result<Self> {
        let mut queue = UringQueue::new()?;
        let buffers = ProvidedBuffers::register(&mut queue)?;
        let wakeup = Arc::new(Wakeup::new()?);
        let mut driver = Uring {
            queue,
            buffers,
            sources: UringSources::default(),
            table: None,
            pending_connects: VecDeque::new(),
            starved: VecDeque::with_capacity(TURN_LIST_CAPACITY),
            has_new_buffers: false,
            cancelled: Vec::new(),
            addresses: Vec::with_capacity(SUBMISSION_QUEUE_SIZE as usize),
            messages: MessageHeaders::new(GATHERED_SENDS_MAX, GATHERED_PIECES_MAX),
            close_after: Vec::with_capacity(TURN_LIST_CAPACITY),
            linked: Vec::with_capacity(TURN_LIST_CAPACITY),
            detaching: Vec::new(),
            completions: Vec::with_capacity(COMPLETION_QUEUE_SIZE as usize),
            wakeup,
            wake_count: Box::new(0),
            recvmsg_layouts: [RecvmsgLayout::new(0), RecvmsgLayout::new(CONTROL_SIZE)],
            reserve: ReserveDescriptor::new(),
            descriptor_gap: DescriptorGap::default(),
            datagram_turns: 0,
            counters: DriverCounters::default(),
        };
        driver.arm_wake();
        Ok(driver)
    }

    /// Sockets leave these descriptors of the process to other files where the limit of open files permits.
    #[must_use]
    pub fn with_descriptor_gap(mut self, gap: Range<RawFd>) -> Self {
        self.descriptor_gap = DescriptorGap(gap);
        self
    }

    /// Checks whether this system permits the driver; the error is the reason (`EPERM` and `ENOSYS` in most containers,
    /// `EINVAL` on kernels before 6.1).
    pub fn probe() -> io::Result<()> {
        let mut queue = UringQueue::new()?;
        ProvidedBuffers::register(&mut queue).map(drop)
    }

    fn arm_wake(&mut self) {
        let count: *mut u64 = &mut *self.wake_count;
        let read = opcode::Read::new(types::Fd(self.wakeup.event()), count.cast(), 8)
            .offset(u64::MAX)
            .build()
            .user_data(UringOp::Wake.bits());
        self.submit(&read);
    }

    /// Queues one submission, entering the kernel first if the queue is full.
    fn submit(&mut self, entry: &squeue::Entry) {
        if self.queue.room() == 0 {
            self.flush();
        }
        self.queue.push(entry);
    }

    fn flush(&mut self) {
        self.counters.system_calls += u64::from(self.queue.submit_all());
        self.clear_submitted();
    }

    /// Frees the addresses and headers of entries that the kernel has read.
    fn clear_submitted(&mut self) {
        self.addresses.clear();
        self.messages.clear();
    }

    fn arm_receive(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        let role = source.role;
        source.detaching &= role != SourceRole::Datagram;
        if role == SourceRole::Listener {
            return;
        }
        let poll_first = if source.expects_data { 0 } else { POLL_FIRST };
        let layout = &self.recvmsg_layouts[usize::from(source.armed.has(ArmedOps::REPORTS_LOCAL))];
        let entry = source.handle.entry(|fd| match role {
            SourceRole::Pipe => opcode::Read::new(fd, std::ptr::null_mut(), RECEIVE_BUFFER_SIZE as u32)
                .offset(u64::MAX)
                .buf_group(buffers::BUFFER_GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
            SourceRole::Datagram => {
                opcode::RecvMsgMulti::new(fd, layout.header(), buffers::BUFFER_GROUP).build()
            }
            SourceRole::Stream | SourceRole::Listener => {
                opcode::Recv::new(fd, std::ptr::null_mut(), RECEIVE_BUFFER_SIZE as u32)
                    .ioprio(poll_first)
                    .buf_group(buffers::BUFFER_GROUP)
                    .build()
                    .flags(squeue::Flags::BUFFER_SELECT)
            }
        });
        source.expects_data = false;
        source.arm(ArmedOps::RECEIVE);
        self.submit(&entry.user_data(UringOp::Receive.with(token)));
    }

    fn arm_poll(&mut self, token: Token, op: UringOp, armed: ArmedOps, interest: i16) {
        let Some(source) = self.sources.get_mut(token) else { return };
        debug_assert!(!source.armed.has(armed), "{token:?}: armed twice");
        source.arm(armed);
        let entry = source.handle.entry(|fd| opcode::PollAdd::new(fd, interest as u32).build());
        self.submit(&entry.user_data(op.with(token)));
    }

    fn cancel(&mut self, op: UringOp, token: Token) {
        let entry = opcode::AsyncCancel::new(op.with(token))
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(UringOp::Ignore.bits());
        self.submit(&entry);
    }

    /// Cancels armed operations one by one. A cancel by descriptor would search all operations of the ring, which makes
    /// closing thousands of idle connections quadratic.
    fn cancel_armed(&mut self, token: Token, armed: ArmedOps) {
        for (what, op) in CANCELLED_ON_CLOSE {
            if armed.has(what) {
                self.cancel(op, token);
            }
        }
    }

    /// Queues a connect; the caller ensures room for an entry and an address.
    fn push_connect(&mut self, token: Token, handle: Handle, to: SockAddr) {
        // Within its capacity the list never moves, so the address stays valid until the kernel reads it.
        self.addresses.push(to);
        let to = self.addresses.last().expect("just pushed");
        let entry = handle.entry(|fd| opcode::Connect::new(fd, to.as_ptr().cast(), to.len()).build());
        self.queue.push(&entry.user_data(UringOp::Connect.with(token)));
    }

    fn push_close(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        source.arm(ArmedOps::CLOSE);
        let entry = source.handle.close().user_data(UringOp::Close.with(token));
        self.submit(&entry);
    }

    /// Whether a source can be detached now.
    fn can_detach(&mut self) -> bool {
        self.detaching
            .iter()
            .any(|token| self.sources.get_mut(*token).is_none_or(|source| source.in_flight == 0))
    }

    /// Detaches the sources without operations in flight, after all their other events.
    fn complete_detaches(&mut self, events: &mut UringEvents) {
        if self.detaching.is_empty() {
            return;
        }
        let mut detaching = std::mem::take(&mut self.detaching);
        detaching.retain(|token| {
            let Some(source) = self.sources.get_mut(*token) else { return false };
            if source.in_flight > 0 {
                return true;
            }
            let Some(fd) = source.handle.descriptor() else {
                self.install(*token);
                return true;
            };
            // SAFETY: the descriptor is the source's own, which is freed right after.
            let socket = unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) };
            self.sources.free(*token);
            events.push(DriverEvent::Detached { token: *token, socket: Ok(socket) });
            false
        });
        self.detaching = detaching;
    }
}

impl Driver for Uring {
    type Socket = OwnedFd;
    type Accepted = AcceptedSocket;

    fn name(&self) -> &'static str {
        "uring"
    }

    fn reserve(&mut self, count: usize) {
        self.sources.reserve(count);
    }

    fn peer(&self, socket: &AcceptedSocket) -> Option<IpAddr> {
        match socket {
            AcceptedSocket::Plain(fd) => net::peer_ip(fd),
            // The system calls for it need ordinary descriptors.
            AcceptedSocket::Direct(_) => None,
        }
    }

    fn listen(&mut self, token: Token, socket: OwnedFd) -> io::Result<()> {
        // The ring works either way, but `refuse_one` uses system calls.
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = self.descriptor_gap.leave(socket);
        self.sources.insert(token, Handle::plain(socket.into_raw_fd()), SourceRole::Listener, true);
        Ok(())
    }

    fn accept(&mut self, listener: Token) {
        let Some(source) = self.sources.get_mut(listener) else { return };
        match source.accepting {
            AcceptRequest::Yes | AcceptRequest::Resume => {}
            AcceptRequest::No if source.armed.has(ArmedOps::ACCEPT) => {
                source.accepting = AcceptRequest::Resume;
            }
            AcceptRequest::No => {
                source.accepting = AcceptRequest::Yes;
                self.arm_accept(listener);
            }
        }
    }

    fn pause_accept(&mut self, listener: Token) {
        let Some(source) = self.sources.get_mut(listener) else { return };
        if std::mem::replace(&mut source.accepting, AcceptRequest::No) == AcceptRequest::Yes {
            self.cancel(UringOp::Accept, listener);
        }
    }

    fn accept_now(&mut self, listener: Token) -> io::Result<Option<AcceptedSocket>> {
        let source = self.sources.get_mut(listener);
        let Some(socket) = source.and_then(|source| source.handle.descriptor()) else { return Ok(None) };
        self.counters.system_calls += 1;
        Ok(accept_now(socket, SocketFlags::CLOEXEC)?.map(AcceptedSocket::Plain))
    }

    fn refuse_one(&mut self, listener: Token) -> bool {
        let Some(source) = self.sources.get_mut(listener) else { return false };
        source.handle.descriptor().is_some_and(|socket| self.reserve.refuse_one(socket))
    }

    fn attach(
        &mut self,
        token: Token,
        socket: AcceptedSocket,
        kind: SourceKind,
        readable_now: bool,
    ) -> io::Result<()> {
        let mut reports_local = false;
        let handle = match (socket, &self.table) {
            (AcceptedSocket::Plain(socket), _) => {
                match kind {
                    SourceKind::Pipe => rustix::io::ioctl_fionbio(&socket, true)?,
                    SourceKind::Datagram => reports_local = sockopt::report_local_addresses_if_any(&socket)?,
                    SourceKind::Stream => {}
                }
                Handle::plain(self.descriptor_gap.leave(socket).into_raw_fd())
            }
            (AcceptedSocket::Direct(socket), Some(table)) if kind == SourceKind::Stream => {
                Handle::direct(table.claim(socket).map_err(|_| io::ErrorKind::InvalidInput)?)
            }
            // It belongs to another ring, or is not a stream.
            (AcceptedSocket::Direct(_), _) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.sources.insert(token, handle, kind.into(), readable_now);
        if reports_local {
            self.sources.get_mut(token).expect("just inserted").set_mark(ArmedOps::REPORTS_LOCAL);
        }
        Ok(())
    }

    fn connect(&mut self, token: Token, to: &Destination) -> io::Result<()> {
        if self.table.is_some() {
            return self.connect_direct(token, to);
        }
        let (socket, address) = net::outgoing_socket(to)?;
        self.counters.system_calls += 1;
        if self.queue.room() == 0 || self.addresses.len() == self.addresses.capacity() {
            self.flush();
        }
        let handle = Handle::plain(self.descriptor_gap.leave(socket).into_raw_fd());
        self.sources.insert(token, handle, SourceRole::Stream, false);
        self.sources.get_mut(token).expect("just inserted").arm(ArmedOps::CONNECT);
        self.push_connect(token, handle, address);
        Ok(())
    }

    fn receive(&mut self, token: Token) {
        self.arm_receive(token);
    }

    fn await_readable(&mut self, token: Token) {
        self.arm_poll(token, UringOp::Readable, ArmedOps::READABLE, libc::POLLIN | libc::POLLRDHUP);
    }

    fn cancel_receive(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        source.detaching |= source.role == SourceRole::Datagram;
        if source.clear_waiting() {
            source.clear_mark(ArmedOps::STARVED);
            return self.cancelled.push(token);
        }
        if source.armed.has(ArmedOps::RECEIVE) {
            self.cancel(UringOp::Receive, token);
        } else if source.armed.has(ArmedOps::READABLE) {
            self.cancel(UringOp::Readable, token);
        }
    }

    fn recv_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize> {
        let source = self.sources.get_mut(token).ok_or(io::ErrorKind::NotConnected)?;
        let (handle, role) = (source.handle, source.role);
        // Receives through the ring are counted on its enter.
        self.counters.system_calls += u64::from(handle.descriptor().is_some());
        match handle.descriptor() {
            Some(fd) if role == SourceRole::Pipe => Ok(rustix::io::read(fd, into)?),
            Some(fd) => Ok(rustix::net::recv(fd, into, rustix::net::RecvFlags::DONTWAIT)?.0),
            None if handle.is_direct() => self.recv_now_direct(handle, into, 0),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn send_now(&mut self, token: Token, bytes: &[u8]) -> io::Result<usize> {
        let source = self.sources.get_mut(token).ok_or(io::ErrorKind::NotConnected)?;
        let (handle, role) = (source.handle, source.role);
        // Sends through the ring are counted on its enter.
        self.counters.system_calls += u64::from(handle.descriptor().is_some());
        match handle.descriptor() {
            Some(fd) if role == SourceRole::Pipe => Ok(rustix::io::write(fd, bytes)?),
            Some(fd) => Ok(rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?),
            None if handle.is_direct() => self.send_now_direct(handle, bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn recv_from_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        Ok(recv_from(&self.datagram_socket(token)?, into)?)
    }

    fn send_to_now(&mut self, token: Token, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        Ok(send_to(&self.datagram_socket(token)?, bytes, to)?)
    }

    fn is_readable(&mut self, token: Token) -> bool {
        // Without a descriptor it is not known.
        let readable = self.descriptor(token).map_or(true, |socket| is_readable(&socket));
        self.counters.system_calls += 1;
        readable
    }

    fn descriptor(&mut self, token: Token) -> io::Result<SourceDescriptor<'_>> {
        let source = self.sources.get_mut(token).filter(|source| !source.closing);
        let handle = source.ok_or(io::ErrorKind::NotConnected)?.handle;
        match handle.descriptor() {
            Some(fd) => Ok(SourceDescriptor::Borrowed(fd)),
            None => Ok(SourceDescriptor::Owned(self.install_now(handle)?)),
        }
    }

    fn is_hung_up(&mut self, token: Token) -> bool {
        let Some(handle) = self.sources.get_mut(token).map(|source| source.handle) else { return false };
        match handle.descriptor() {
            Some(fd) => {
                self.counters.system_calls += 1;
                has_hung_up(&fd)
            }
            // Bytes before the reset hide it.
            None => self.peek(handle).is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock),
        }
    }

    fn has_no_unread_input(&mut self, token: Token) -> bool {
        let Some(handle) = self.sources.get_mut(token).map(|source| source.handle) else { return false };
        match handle.descriptor() {
            Some(fd) => {
                self.counters.system_calls += 1;
                has_no_unread_bytes(&fd)
            }
            None => self.peek(handle).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
        }
    }

    fn await_writable(&mut self, token: Token) {
        self.arm_poll(token, UringOp::Writable, ArmedOps::WRITABLE, libc::POLLOUT);
    }

    fn shutdown(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        let Some(socket) = source.handle.descriptor() else { return self.shutdown_direct(token) };
        // Not through the ring: the kernel runs shutdowns on a thread of its own, which looks up the descriptor late,
        // when the number may belong to another connection. All sends have completed; an error means that the peer is
        // already gone.
        self.counters.system_calls += 1;
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
    }

    fn close(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        if source.closing {
            return;
        }
        source.closing = true;
        source.clear_waiting();
        let (handle, armed, in_flight) = (source.handle, source.armed, source.in_flight);
        if in_flight > 0 {
            if handle == Handle::PENDING {
                // There is no socket to close yet; `complete_socket` closes it.
                return;
            }
            self.cancel_armed(token, armed);
        }
        if !armed.has(ArmedOps::SHUTDOWN) {
            self.push_close(token);
        }
    }

    fn detach(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        source.detaching = true;
        source.clear_waiting();
        let armed = source.armed;
        self.detaching.push(token);
        self.cancel_armed(token, armed);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    fn datagram(&self, buffer: BufferId) -> Datagram<'_> {
        self.recvmsg_layouts[usize::from(self.buffers.reports_local(buffer))]
            .datagram(self.buffers.bytes(buffer))
    }

    fn dropped_datagrams(&mut self, token: Token) -> Option<u32> {
        let socket = self.sources.get_mut(token)?.handle.descriptor()?;
        self.counters.system_calls += 1;
        sockopt::dropped_by_socket(&socket)
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers.release(buffer);
    }

    fn buffers_lent(&self) -> usize {
        self.buffers.lent()
    }

    fn turn<'a>(
        &mut self,
        now: Time,
        wait: Wait,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        incomplete_sends: &mut Vec<IncompleteSend>,
        events: &mut UringEvents,
    ) -> io::Result<()> {
        self.wakeup.clear_waitable();
        self.buffers.publish();
        let more_to_rearm = self.rearm_starved();
        let cancelled = self.report_cancelled(events);
        self.close_dropped();
        let mut sending = false;
        let mut datagrams = 0;
        let mut sample = None;
        for (position, out) in outgoing.enumerate() {
            if out.to.is_some() {
                if datagrams == 0 {
                    sample = self.begin_send_sample();
                }
                datagrams += 1;
            }
            self.push_send(position as u32, &out, incomplete_sends);
            sending = true;
        }
        self.end_send_sample(sample, datagrams);
        // A stop (of a pipe), a close or detach that is due, or a completion drained by an immediate operation must be reported
        // without a wait.
        let has_results = !incomplete_sends.is_empty()
            || !self.close_after.is_empty()
            || !self.completions.is_empty()
            || self.can_detach();
        let wait = if has_results || cancelled || more_to_rearm { Wait::No } else { wait };
        self.counters.system_calls += u64::from(self.queue.enter(now, wait)?);
        self.clear_submitted();
        loop {
            self.process_completions(incomplete_sends, events);
            // An overflowed completion may be the short send of this turn.
            if !(sending && self.queue.overflowed()) {
                break;
            }
            self.counters.overflows += 1;
            self.counters.system_calls += u64::from(self.queue.enter(now, Wait::No)?);
        }
        if std::mem::take(&mut self.has_new_buffers) {
            self.rearm_starved();
        }
        self.unlink_stopped(incomplete_sends);
        self.close_finished(incomplete_sends);
        self.complete_detaches(events);
        if events.is_empty() && self.queue.has_queued() {
            // Without events the shard may not run another turn soon, so new submissions are flushed now.
            self.flush();
        }
        if self.queue.has_pending_completions() {
            // The kernel has signalled these completions already, and does not signal them again.
            self.wakeup.signal_waitable();
        }
        Ok(())
    }

    fn wake_handle(&self) -> WakeHandle {
        let wakeup = Arc::clone(&self.wakeup);
        WakeHandle::new(move || wakeup.wake())
    }

    fn waitable(&mut self) -> Option<i32> {
        // Polling the ring's own descriptor misses work that is deferred to the next enter; an eventfd registered with
        // the ring does not. Created on demand, because it costs a write per completion.
        let submitter = self.queue.ring().submitter();
        self.wakeup.waitable(|event| submitter.register_eventfd(event)).ok()
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Submits queued operations; closes that have reached the kernel count as done.
        self.flush();
        if self.table.is_some() {
            // Closes the direct sockets now; the kernel would do that later.
            let _ = self.queue.ring().submitter().unregister_files();
        }
        for fd in self.sources.open_descriptors() {
            // SAFETY: the source table owns these descriptors and is dropped right after.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}
