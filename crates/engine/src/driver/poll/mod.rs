//! The readiness driver: epoll reports ready sources, ordinary system calls move the bytes.
//!
//! It caches the last readiness from epoll per source (see `source.rs`), and registers a source with epoll only when
//! one of its operations would block, once, for all edges. So a short connection whose request has already arrived when
//! it is accepted costs accept, receive, send and close, and no other system call.
//!
//! A turn, in this order (see `turn.rs`):
//!
//! ```text
//!  1  sends, then shutdowns, closes, detaches     ──► incomplete sends, Closed, Detached
//!  2  intents since the last turn                 ──► events of ready sources
//!  3  epoll: no wait if there are events, else as long as the shard permits
//!  4  edges from epoll: accept, receive           ──► events
//! ```
//!
//! Closes come before all steps that produce events, so no event has the token of a closed source.
//!
//! Hazards: only the next `turn` carries out intents, so in a foreign event loop `turn` is called until there are no
//! more intents; and bytes for an idle registered source end a wait without an event.

mod buffers;
mod datagrams;
mod outgoing;
mod source;
mod turn;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::SockRef;
use stilling_ring::Time;

use self::buffers::PollBuffers;
use self::datagrams::DatagramHeaders;
use self::source::{PollSource, PollSources, ReadInterest, SourceFlags};
use super::accept::{ReserveDescriptor, accept_now};
use super::descriptor_gap::DescriptorGap;
use super::message_headers::MessageHeaders;
use super::peer::{has_hung_up, has_no_unread_bytes};
use super::role::SourceRole;
use super::{
    BufferId, Datagram, Destination, Driver, DriverCounters, DriverEvent, IncompleteSend, Outgoing,
    ReceivedDatagram, SourceDescriptor, SourceKind, Wait, WakeHandle, sockopt,
};
use crate::limits::{PIECES_MAX, TURN_LIST_CAPACITY};
use crate::net;
use crate::token::Token;

/// Edges reported by epoll in one turn. Further ones are reported in the next.
const EDGES_PER_TURN: usize = 1024;

/// Token of the wake handle in epoll; no source's token has bits in its top byte.
const WAKE_TOKEN: mio::Token = mio::Token(usize::MAX);

/// The readiness driver. Used by one thread.
pub struct Poll {
    poll: mio::Poll,
    edges: mio::Events,
    waker: Arc<mio::Waker>,
    sources: PollSources,
    buffers: PollBuffers,
    datagrams: DatagramHeaders,
    messages: MessageHeaders,
    /// Sources to check in the next turn, without duplicates.
    requested: Vec<Token>,
    shutdowns: Vec<Token>,
    closes: Vec<Token>,
    detaches: Vec<Token>,
    /// Receives that found no buffer, oldest first.
    starved: Vec<Token>,
    /// Connects that failed at once.
    failed_connects: Vec<(Token, io::Error)>,
    /// Reserved so that one connection can be refused when descriptors run out.
    reserve: ReserveDescriptor,
    descriptor_gap: DescriptorGap,
    counters: DriverCounters,
}

impl Poll {
    /// A driver with its buffers; their memory is touched only on use.
    ///
    /// # Errors
    /// The descriptors ran out.
    pub fn new() -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKE_TOKEN)?);
        Ok(Poll {
            poll,
            edges: mio::Events::with_capacity(EDGES_PER_TURN),
            waker,
            sources: PollSources::default(),
            buffers: PollBuffers::new(),
            datagrams: DatagramHeaders::new(),
            messages: MessageHeaders::new(1, PIECES_MAX),
            requested: Vec::with_capacity(TURN_LIST_CAPACITY),
            shutdowns: Vec::with_capacity(TURN_LIST_CAPACITY),
            closes: Vec::with_capacity(TURN_LIST_CAPACITY),
            detaches: Vec::new(),
            starved: Vec::with_capacity(TURN_LIST_CAPACITY),
            failed_connects: Vec::new(),
            reserve: ReserveDescriptor::new(),
            descriptor_gap: DescriptorGap::default(),
            counters: DriverCounters::default(),
        })
    }

    /// Sockets leave these descriptors to other files where the limit of open files permits.
    #[must_use]
    pub fn with_descriptor_gap(mut self, gap: Range<RawFd>) -> Self {
        self.descriptor_gap = DescriptorGap(gap);
        self
    }

    fn request_check(&mut self, token: Token) {
        if let Some(source) = self.sources.get_mut(token)
            && !source.source_flags.has(SourceFlags::CHECK_REQUESTED)
        {
            source.source_flags.set(SourceFlags::CHECK_REQUESTED);
            self.requested.push(token);
        }
    }

    fn wait_for(&mut self, token: Token, what: ReadInterest) {
        let Some(source) = self.sources.get_mut(token) else {
            self.counters.stale += 1;
            return;
        };
        debug_assert_eq!(source.read_interest, ReadInterest::Idle, "{token:?}: armed twice");
        source.read_interest = what;
        self.request_check(token);
    }
}

impl Driver for Poll {
    type Socket = OwnedFd;
    type Accepted = OwnedFd;

    fn name(&self) -> &'static str {
        "poll"
    }

    fn reserve(&mut self, count: usize) {
        self.sources.reserve(count);
    }

    fn peer(&self, socket: &OwnedFd) -> Option<IpAddr> {
        net::peer_ip(socket)
    }

    fn listen(&mut self, token: Token, socket: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        self.sources.insert(token, self.descriptor_gap.leave(socket), SourceRole::Listener)?;
        Ok(())
    }

    fn accept(&mut self, listener: Token) {
        if let Some(source) = self.sources.get_mut(listener) {
            source.read_interest = ReadInterest::Accept;
            self.request_check(listener);
        }
    }

    fn pause_accept(&mut self, listener: Token) {
        self.cancel_receive(listener);
    }

    fn accept_now(&mut self, listener: Token) -> io::Result<Option<OwnedFd>> {
        let Some(source) = self.sources.get_mut(listener) else { return Ok(None) };
        self.counters.system_calls += 1;
        accept_now(&source.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    fn refuse_one(&mut self, listener: Token) -> bool {
        let Some(source) = self.sources.get_mut(listener) else { return false };
        self.reserve.refuse_one(&source.fd)
    }

    fn attach(
        &mut self,
        token: Token,
        socket: OwnedFd,
        kind: SourceKind,
        readable_now: bool,
    ) -> io::Result<()> {
        if kind == SourceKind::Pipe {
            rustix::io::ioctl_fionbio(&socket, true)?;
        }
        let connected = kind == SourceKind::Datagram && SockRef::from(&socket).peer_addr().is_ok();
        let reports_local = kind == SourceKind::Datagram && sockopt::report_local_addresses_if_any(&socket)?;
        let source = self.sources.insert(token, self.descriptor_gap.leave(socket), kind.into())?;
        if readable_now {
            source.source_flags.set(SourceFlags::READABLE);
        }
        if connected {
            source.source_flags.set(SourceFlags::CONNECTED);
        }
        if reports_local {
            source.source_flags.set(SourceFlags::REPORTS_LOCAL);
        }
        if kind == SourceKind::Datagram {
            self.buffers.reserve_datagram_metadata();
        }
        Ok(())
    }

    fn set_shared(&mut self, token: Token) {
        if let Some(source) = self.sources.get_mut(token) {
            source.source_flags.set(SourceFlags::SHARED);
        }
    }

    fn connect(&mut self, token: Token, to: &Destination) -> io::Result<()> {
        let (socket, address) = net::outgoing_socket(to)?;
        let socket = self.descriptor_gap.leave(socket);
        // One call for the socket, one to connect it.
        self.counters.system_calls += 2;
        let outcome = SockRef::from(&socket).connect(&address);
        let source = self.sources.insert(token, socket, SourceRole::Stream)?;
        source.source_flags.set(SourceFlags::CONNECTING);
        match outcome {
            Ok(()) => {}
            Err(error) if in_progress(&error) => source.source_flags.clear(SourceFlags::WRITABLE),
            Err(error) => self.failed_connects.push((token, error)),
        }
        self.request_check(token);
        Ok(())
    }

    fn receive(&mut self, token: Token) {
        self.wait_for(token, ReadInterest::Receive);
    }

    fn await_readable(&mut self, token: Token) {
        self.wait_for(token, ReadInterest::Readable);
    }

    fn cancel_receive(&mut self, token: Token) {
        if let Some(source) = self.sources.get_mut(token)
            && source.read_interest != ReadInterest::Idle
        {
            source.read_interest = ReadInterest::Idle;
            source.source_flags.set(SourceFlags::CANCELLED);
            self.request_check(token);
        }
    }

    fn recv_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize> {
        let source = self.sources.get_mut(token).ok_or(io::ErrorKind::NotConnected)?;
        self.counters.system_calls += 1;
        Ok(source.receive(into)?)
    }

    fn send_now(&mut self, token: Token, bytes: &[u8]) -> io::Result<usize> {
        let source = self.sources.get_mut(token).ok_or(io::ErrorKind::NotConnected)?;
        self.counters.system_calls += 1;
        Ok(source.send(bytes)?)
    }

    fn recv_from_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        let source = self.sources.get_mut(token).ok_or(io::ErrorKind::NotConnected)?;
        self.counters.system_calls += 1;
        Ok(source.receive_datagram(into)?)
    }

    fn send_to_now(&mut self, token: Token, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        let source = self.sources.get_mut(token).ok_or(io::ErrorKind::NotConnected)?;
        self.counters.system_calls += 1;
        Ok(source.send_datagram(bytes, to)?)
    }

    fn forget_writable(&mut self, token: Token) {
        let Some(source) = self.sources.get_mut(token) else { return };
        source.source_flags.clear(SourceFlags::WRITABLE);
        self.counters.system_calls += 1;
        // If it cannot be watched, `await_writable` reports that.
        let _ = source.watch_again(self.poll.registry(), token);
    }

    fn is_readable(&mut self, token: Token) -> bool {
        self.counters.system_calls += 1;
        self.sources.get_mut(token).is_some_and(PollSource::is_readable_now)
    }

    fn descriptor(&mut self, token: Token) -> io::Result<SourceDescriptor<'_>> {
        let source = self.sources.get_mut(token);
        let source = source.filter(|source| !source.source_flags.has(SourceFlags::CLOSING));
        Ok(SourceDescriptor::Borrowed(source.ok_or(io::ErrorKind::NotConnected)?.fd.as_fd()))
    }

    fn is_hung_up(&mut self, token: Token) -> bool {
        self.counters.system_calls += 1;
        self.sources.get_mut(token).is_some_and(|source| has_hung_up(&source.fd))
    }

    fn has_no_unread_input(&mut self, token: Token) -> bool {
        self.counters.system_calls += 1;
        self.sources.get_mut(token).is_some_and(|source| has_no_unread_bytes(&source.fd))
    }

    fn await_writable(&mut self, token: Token) {
        if let Some(source) = self.sources.get_mut(token) {
            source.source_flags.set(SourceFlags::WRITE_INTEREST);
            self.request_check(token);
        }
    }

    fn shutdown(&mut self, token: Token) {
        self.shutdowns.push(token);
    }

    fn close(&mut self, token: Token) {
        if let Some(source) = self.sources.get_mut(token)
            && !source.source_flags.has(SourceFlags::CLOSING)
        {
            source.source_flags.set(SourceFlags::CLOSING);
            self.closes.push(token);
        }
    }

    fn detach(&mut self, token: Token) {
        self.detaches.push(token);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    fn datagram(&self, buffer: BufferId) -> Datagram<'_> {
        self.buffers.datagram(buffer)
    }

    fn dropped_datagrams(&mut self, token: Token) -> Option<u32> {
        let source = self.sources.get_mut(token)?;
        self.counters.system_calls += 1;
        sockopt::dropped_by_socket(&source.fd)
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
        events: &mut Vec<DriverEvent<OwnedFd>>,
    ) -> io::Result<()> {
        self.send_all(outgoing, incomplete_sends, events);
        self.process_closes(events);
        self.resume_starved(events);
        self.check_requested(events);
        let has_events = !events.is_empty() || !incomplete_sends.is_empty();
        self.await_edges(now, if has_events { Wait::No } else { wait })?;
        self.process_edges(events);
        Ok(())
    }

    fn wake_handle(&self) -> WakeHandle {
        let waker = Arc::clone(&self.waker);
        WakeHandle::new(move || {
            // It fails only when the driver is gone, and then there is no wait to end.
            let _ = waker.wake();
        })
    }

    fn waitable(&mut self) -> Option<i32> {
        Some(self.poll.as_raw_fd())
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }
}

/// A connect that a signal interrupted continues like any other (connect(2)).
fn in_progress(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INPROGRESS | Errno::INTR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Gather;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// Row 0.10: the cost stated in the module documentation, by the driver's counters: receive, send and close, plus
    /// the waits of the two turns.
    #[test]
    fn a_message_that_has_arrived_costs_a_receive_a_send_and_a_close() {
        let (mut peer, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        peer.write_all(b"message").unwrap();
        let (mut driver, token) = (Poll::new().unwrap(), Token::new(0, 1));
        driver.attach(token, ours.into(), SourceKind::Stream, true).unwrap();
        driver.receive(token);
        let (mut incomplete_sends, mut events) = (Vec::new(), Vec::new());
        driver.turn(Time::ZERO, Wait::No, std::iter::empty(), &mut incomplete_sends, &mut events).unwrap();
        let [DriverEvent::Received { buffer, len: 7, .. }] = events[..] else { panic!("{events:?}") };
        driver.release(buffer);
        events.clear();
        let answer = Outgoing::stream(token, Gather::One(b"answer"), true);
        driver
            .turn(Time::ZERO, Wait::No, std::iter::once(answer), &mut incomplete_sends, &mut events)
            .unwrap();
        assert!(
            matches!(events[..], [DriverEvent::Closed { .. }]) && incomplete_sends.is_empty(),
            "{events:?} {incomplete_sends:?}"
        );
        assert_eq!(driver.counters().system_calls, 3 + 2);
    }
}
