//! The engine's shard as this extension uses it: one per interpreter thread, behind an interface that is the same for
//! all drivers.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::choice::DriverKind;
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::driver::{Destination, Driver, ReceivedDatagram, Wait, WakeHandle};
use stilling_engine::limits::DIRECT_DESCRIPTORS_MAX;
use stilling_engine::{Clock, CloseReason, Detached, Io, Service, Session, Shard, ShardConfig, Token, Wake};

use crate::slab::SlabKey;
use crate::tcl::Interest;

/// Sockets per shard. More: accepting pauses until one closes, and connecting fails.
pub(crate) const SOCKETS_PER_SHARD_MAX: u32 = 1_000_000;

/// An event of one socket or listener, in the order of occurrence.
#[derive(Debug)]
pub(crate) enum SocketEvent {
    /// A listener of the shard accepted a connection, which has no channel yet.
    Accepted { listener: u32, token: Token },
    /// A connect succeeded.
    Connected { socket: SlabKey },
    /// A connect failed with this system error.
    ConnectFailed { socket: SlabKey, error: i32 },
    /// These directions are ready.
    Ready { socket: SlabKey, directions: Interest },
    /// The driver cannot use the socket any more.
    Broken { socket: SlabKey },
    /// The shard released a socket. `None`: no descriptor could be created, and the socket is closed.
    Detached { descriptor: Option<OwnedFd> },
}

/// The part of a socket that its shard knows.
#[derive(Debug)]
pub(crate) struct SocketSession {
    owner: SocketOwner,
    end: ExpectedEnd,
}

const _: () = assert!(size_of::<SocketSession>() <= 16, "a slot has grown");

#[derive(Clone, Copy, Debug)]
enum SocketOwner {
    Channel(SlabKey),
    /// An accepted connection without a channel.
    Listener(u32),
}

/// Why the connection will be closed, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedEnd {
    Unknown,
    /// The event `ConnectFailed` has reported it.
    ConnectFailed,
    Detach,
}

impl SocketSession {
    pub(crate) fn new(socket: SlabKey) -> Self {
        SocketSession { owner: SocketOwner::Channel(socket), end: ExpectedEnd::Unknown }
    }
}

/// Collects the events of all sockets of a shard.
#[derive(Debug, Default)]
pub(crate) struct SocketService {
    events: Vec<SocketEvent>,
}

impl Service for SocketService {
    type Session = SocketSession;
    type Mail = ();

    fn accepted(&mut self, listener: u32) -> SocketSession {
        SocketSession { owner: SocketOwner::Listener(listener), end: ExpectedEnd::Unknown }
    }
}

impl Session for SocketSession {
    type Service = SocketService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut SocketService) {
        io.receive_on_demand();
        service.events.push(match self.owner {
            SocketOwner::Channel(socket) => SocketEvent::Connected { socket },
            SocketOwner::Listener(listener) => SocketEvent::Accepted { listener, token: io.token() },
        });
    }

    fn received(&mut self, _: &[u8], _: &mut Io<'_>, _: &mut SocketService) -> usize {
        unreachable!("the shard does not receive for a session that receives on demand");
    }

    fn readable(&mut self, _: &mut Io<'_>, service: &mut SocketService) {
        service.ready(self.owner, Interest::READABLE);
    }

    fn writable(&mut self, _: &mut Io<'_>, service: &mut SocketService) {
        service.ready(self.owner, Interest::WRITABLE);
    }

    fn connect_failed(&mut self, error: &io::Error, service: &mut SocketService) {
        self.end = ExpectedEnd::ConnectFailed;
        if let SocketOwner::Channel(socket) = self.owner {
            let error = error.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
            service.events.push(SocketEvent::ConnectFailed { socket, error });
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut SocketService) {
        match (self.end, reason) {
            (_, CloseReason::Done | CloseReason::Detached) | (ExpectedEnd::ConnectFailed, _) => {}
            (ExpectedEnd::Detach, _) => service.events.push(SocketEvent::Detached { descriptor: None }),
            (ExpectedEnd::Unknown, _) => {
                if let SocketOwner::Channel(socket) = self.owner {
                    service.events.push(SocketEvent::Broken { socket });
                }
            }
        }
    }
}

impl SocketService {
    fn ready(&mut self, owner: SocketOwner, directions: Interest) {
        if let SocketOwner::Channel(socket) = owner {
            self.events.push(SocketEvent::Ready { socket, directions });
        }
    }
}

/// A shard of sockets on any driver. It calls no Tcl function.
pub(crate) trait SocketShard {
    /// Carries out requests and collects events, without a wait.
    fn turn(&mut self) -> io::Result<()>;
    /// The same with a wait of at most `span`.
    fn turn_within(&mut self, span: Duration) -> io::Result<()>;
    fn prepare_to_wait(&mut self) -> Wait;
    /// Appends all events since the last call.
    fn take_events(&mut self, into: &mut Vec<SocketEvent>);
    fn counters(&self) -> &Arc<EngineCounters>;
    fn waitable(&mut self) -> io::Result<i32>;
    /// Ends a wait for the shard, from any thread, also when the shard is gone.
    fn wake_handle(&mut self) -> WakeHandle;
    fn listen(&mut self, socket: OwnedFd) -> io::Result<u32>;
    /// The same, but accepts from `resume_listener` on.
    fn listen_paused(&mut self, socket: OwnedFd) -> io::Result<u32>;
    fn close_listener(&mut self, listener: u32);
    /// Releases a listening socket in one of the next turns, for `take_detached_listener`. Returns false if it is closed.
    fn detach_listener(&mut self, listener: u32) -> bool;
    fn take_detached_listener(&mut self, listener: u32) -> Option<OwnedFd>;
    fn pause_listener(&mut self, listener: u32);
    fn resume_listener(&mut self, listener: u32);
    fn connect(&mut self, to: &Destination, socket: SlabKey) -> io::Result<Token>;
    fn attach(&mut self, descriptor: OwnedFd, socket: SlabKey) -> io::Result<Token>;
    /// Adds a datagram socket, whose only events are `Ready` and `Broken`.
    fn attach_datagram_socket(&mut self, descriptor: OwnedFd, socket: SlabKey) -> io::Result<Token>;
    /// Gives an accepted connection to a channel.
    fn assign(&mut self, token: Token, socket: SlabKey);
    /// Requests one event for each direction.
    fn await_ready(&mut self, token: Token, directions: Interest);
    fn receive(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize>;
    fn send(&mut self, token: Token, from: &[u8]) -> io::Result<usize>;
    fn receive_from(&mut self, token: Token, into: &mut [u8]) -> io::Result<ReceivedDatagram>;
    /// Sends a datagram; `to` is `None` for the peer of a connected socket.
    fn send_to(&mut self, token: Token, from: &[u8], to: Option<SocketAddr>) -> io::Result<()>;
    /// Makes a later wait for writability ask the system, whose answer depends on `TCP_NOTSENT_LOWAT`.
    fn forget_writable(&mut self, token: Token);
    /// Whether the readiness of all these directions is still to be reported; false once the connection is not open.
    fn awaits(&mut self, token: Token, directions: Interest) -> bool;
    /// Ends the sending direction in the next turn.
    fn end_output(&mut self, token: Token);
    fn close(&mut self, token: Token);
    /// Requests the event `Detached`. Returns false if the connection is not open.
    fn detach(&mut self, token: Token) -> bool;
    /// Calls `act` with the socket's descriptor, which may be temporary.
    fn with_descriptor(&mut self, token: Token, act: &mut dyn FnMut(BorrowedFd<'_>)) -> io::Result<()>;
    fn share_descriptor(&mut self, token: Token);
    fn with_listener(&mut self, listener: u32, act: &mut dyn FnMut(BorrowedFd<'_>)) -> io::Result<()>;
    fn peer_address(&mut self, token: Token) -> io::Result<SocketAddr>;
    fn local_address(&mut self, token: Token) -> io::Result<SocketAddr>;
    /// Whether it is nearly full, and another shard can hold more sockets.
    fn is_crowded(&self) -> bool;
}

impl<D: Driver<Socket = OwnedFd>> SocketShard for Shard<D, SocketService> {
    fn turn(&mut self) -> io::Result<()> {
        Shard::turn(self, false)
    }

    fn turn_within(&mut self, span: Duration) -> io::Result<()> {
        Shard::turn_within(self, span)
    }

    fn prepare_to_wait(&mut self) -> Wait {
        Shard::prepare_to_wait(self)
    }

    fn take_events(&mut self, into: &mut Vec<SocketEvent>) {
        into.append(&mut self.service().events);
    }

    fn counters(&self) -> &Arc<EngineCounters> {
        Shard::counters(self)
    }

    fn waitable(&mut self) -> io::Result<i32> {
        // These drivers have one, unless the system lacks descriptors.
        self.driver().waitable().ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
    }

    fn wake_handle(&mut self) -> WakeHandle {
        self.driver().wake_handle()
    }

    fn listen(&mut self, socket: OwnedFd) -> io::Result<u32> {
        Shard::listen(self, socket, false)
    }

    fn listen_paused(&mut self, socket: OwnedFd) -> io::Result<u32> {
        Shard::listen_paused(self, socket, false)
    }

    fn close_listener(&mut self, listener: u32) {
        Shard::close_listener(self, listener);
    }

    fn detach_listener(&mut self, listener: u32) -> bool {
        Shard::detach_listener(self, listener)
    }

    fn take_detached_listener(&mut self, listener: u32) -> Option<OwnedFd> {
        Shard::take_detached_listener(self, listener)
    }

    fn pause_listener(&mut self, listener: u32) {
        Shard::pause_listener(self, listener);
    }

    fn resume_listener(&mut self, listener: u32) {
        Shard::resume_listener(self, listener);
    }

    fn connect(&mut self, to: &Destination, socket: SlabKey) -> io::Result<Token> {
        Shard::connect(self, to, SocketSession::new(socket)).map_err(|error| error.error)
    }

    fn attach(&mut self, descriptor: OwnedFd, socket: SlabKey) -> io::Result<Token> {
        let detached =
            Detached { session: SocketSession::new(socket), socket: descriptor, unread: Vec::new() };
        self.adopt(detached).map_err(|_| io::ErrorKind::QuotaExceeded.into())
    }

    fn attach_datagram_socket(&mut self, descriptor: OwnedFd, socket: SlabKey) -> io::Result<Token> {
        let adopted = self.adopt_datagram_socket(descriptor, SocketSession::new(socket));
        adopted.map_err(|_| io::ErrorKind::QuotaExceeded.into())
    }

    fn assign(&mut self, token: Token, socket: SlabKey) {
        self.with(token, |session, _| session.owner = SocketOwner::Channel(socket));
    }

    fn await_ready(&mut self, token: Token, directions: Interest) {
        self.with(token, |_, io| {
            if directions.has(Interest::READABLE) {
                io.await_readable();
            }
            if directions.has(Interest::WRITABLE) {
                io.await_writable();
            }
        });
    }

    fn receive(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize> {
        self.receive_now(token, into)
    }

    fn send(&mut self, token: Token, from: &[u8]) -> io::Result<usize> {
        self.send_now(token, from)
    }

    fn receive_from(&mut self, token: Token, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        self.receive_from_now(token, into)
    }

    fn send_to(&mut self, token: Token, from: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        self.send_to_now(token, from, to)
    }

    fn forget_writable(&mut self, token: Token) {
        Shard::forget_writable(self, token);
    }

    fn awaits(&mut self, token: Token, directions: Interest) -> bool {
        let awaits = self.with(token, |_, io| {
            (io.awaits_readable() || !directions.has(Interest::READABLE))
                && (io.awaits_writable() || !directions.has(Interest::WRITABLE))
        });
        awaits.unwrap_or(false)
    }

    fn end_output(&mut self, token: Token) {
        self.with(token, |_, io| io.end_output());
    }

    fn close(&mut self, token: Token) {
        self.abort(token, CloseReason::Done);
    }

    fn detach(&mut self, token: Token) -> bool {
        let requested = self.with(token, |session, io| {
            session.end = ExpectedEnd::Detach;
            io.detach();
        });
        requested.is_some()
    }

    fn share_descriptor(&mut self, token: Token) {
        Shard::share_descriptor(self, token);
    }

    fn with_descriptor(&mut self, token: Token, act: &mut dyn FnMut(BorrowedFd<'_>)) -> io::Result<()> {
        act(self.descriptor(token)?.as_fd());
        Ok(())
    }

    fn with_listener(&mut self, listener: u32, act: &mut dyn FnMut(BorrowedFd<'_>)) -> io::Result<()> {
        act(self.listener_descriptor(listener)?.as_fd());
        Ok(())
    }

    fn peer_address(&mut self, token: Token) -> io::Result<SocketAddr> {
        Shard::peer_address(self, token)
    }

    fn local_address(&mut self, token: Token) -> io::Result<SocketAddr> {
        Shard::local_address(self, token)
    }

    fn is_crowded(&self) -> bool {
        self.open_connections() >= direct_descriptors() / 8 * 7
    }
}

/// Creates this thread's shard.
pub(crate) fn create(kind: DriverKind, clock: Clock) -> io::Result<Box<dyn SocketShard>> {
    Ok(match kind {
        DriverKind::Poll => new_shard(Poll::new()?.with_descriptor_gap(descriptor_gap()), clock),
        DriverKind::Uring => new_shard(Uring::new()?.with_descriptor_gap(descriptor_gap()), clock),
        DriverKind::UringDirect => new_shard(Uring::with_direct_descriptors(direct_descriptors())?, clock),
    })
}

/// Descriptors that `select`(2) can watch, and that sockets leave to the channels of Tcl 8.6: it ends the process when
/// it must watch another one. Sockets take the lower half of them, because moving each socket costs two system calls.
const SELECT_DESCRIPTORS: Range<RawFd> = 512..1024;

fn descriptor_gap() -> Range<RawFd> {
    if crate::tcl::is_tcl_9() { 0..0 } else { SELECT_DESCRIPTORS }
}

/// Slots in the table of a ring: the limit of open files, which is raised as far as possible, bounds it, too.
fn direct_descriptors() -> u32 {
    static SLOTS: OnceLock<u32> = OnceLock::new();
    *SLOTS.get_or_init(|| {
        let (soft, _) = stilling_engine::net::raise_descriptor_limit();
        u32::try_from(soft).unwrap_or(u32::MAX).min(DIRECT_DESCRIPTORS_MAX)
    })
}

fn new_shard<D: Driver<Socket = OwnedFd> + 'static>(driver: D, clock: Clock) -> Box<dyn SocketShard> {
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let config = ShardConfig { capacity: SOCKETS_PER_SHARD_MAX, ..ShardConfig::default() };
    let mut shard = Shard::new(driver, SocketService::default(), config, clock, wake, Arc::default());
    shard.on_detached(|service: &mut SocketService, detached| {
        service.events.push(SocketEvent::Detached { descriptor: Some(detached.socket) });
    });
    Box::new(shard)
}
