//! Rig for drivers on the real system, and the contract tests that only they support.
//!
//! The other ends are plain non-blocking descriptors on loopback addresses, on the same thread.

use std::fmt::Debug;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::{SockRef, Socket};
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::driver::{Destination, Driver, DriverEvent, Gather, Outgoing, SourceKind, Wait};
use stilling_engine::net::{self, ListenOptions};
use stilling_ring::{Clock, Time};

use super::{AddressKind, DatagramPeer, DriverFixture, DriverRig, ObservedEvent, Peer};

/// A test counts as hanging after this time. It measures nothing.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Starts a driver on the real system.
pub trait SystemDriver: Sized {
    /// The driver.
    type Driver: Driver<Socket = OwnedFd, Accepted: Debug>;

    /// Creates a driver for the calling thread.
    ///
    /// # Errors
    /// The system's error.
    fn start() -> io::Result<Self::Driver>;
}

impl SystemDriver for Poll {
    type Driver = Poll;

    fn start() -> io::Result<Poll> {
        Poll::new()
    }
}

impl SystemDriver for Uring {
    type Driver = Uring;

    fn start() -> io::Result<Uring> {
        Uring::new()
    }
}

/// `uring` with direct descriptors: accepted and connected sockets use no descriptor of the process.
pub struct DirectUring;

/// Most sockets per test.
const DIRECT_DESCRIPTORS: u32 = 1024;

impl SystemDriver for DirectUring {
    type Driver = Uring;

    fn start() -> io::Result<Uring> {
        Uring::with_direct_descriptors(DIRECT_DESCRIPTORS)
    }
}

/// Rig over sockets of the real system.
pub struct SystemRig<D> {
    clock: Clock,
    started_at: Instant,
    directory: tempfile::TempDir,
    paths: u32,
    driver: std::marker::PhantomData<D>,
}

/// The other end of a stream or pipe.
pub struct SystemPeer(OwnedFd);

/// A listener on the other side.
pub enum SystemListener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl<D> SystemRig<D> {
    fn path(&mut self) -> PathBuf {
        self.paths += 1;
        self.directory.path().join(self.paths.to_string())
    }
}

fn loopback(address_kind: AddressKind) -> SocketAddr {
    match address_kind {
        AddressKind::V4 => (Ipv4Addr::LOCALHOST, 0).into(),
        AddressKind::V6 => (Ipv6Addr::LOCALHOST, 0).into(),
        AddressKind::Unix => panic!("a Unix socket has a path"),
    }
}

fn non_blocking(fd: impl Into<OwnedFd>) -> SystemPeer {
    let fd = fd.into();
    rustix::io::ioctl_fionbio(&fd, true).expect("a descriptor can be made non-blocking");
    SystemPeer(fd)
}

impl<D: SystemDriver> DriverRig for SystemRig<D> {
    type Driver = D::Driver;
    type Peer = SystemPeer;
    type PeerListener = SystemListener;
    type DatagramPeer = UdpSocket;

    fn new() -> Self {
        net::raise_descriptor_limit();
        SystemRig {
            clock: Clock::real(),
            started_at: Instant::now(),
            directory: tempfile::tempdir().expect("a directory for sockets"),
            paths: 0,
            driver: std::marker::PhantomData,
        }
    }

    fn driver(&mut self) -> D::Driver {
        D::start().expect("this system grants the driver")
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn is_within_limit(&self) -> bool {
        self.started_at.elapsed() < WAIT_MAX
    }

    fn listener(&mut self, address_kind: AddressKind) -> (OwnedFd, Destination) {
        if address_kind == AddressKind::Unix {
            let path = self.path();
            return (net::listen_unix(&path).expect("listen"), Destination::Unix(path));
        }
        let options = ListenOptions { send_buffer: Some(16 * 1024), ..ListenOptions::default() };
        let listener = net::listen_tcp(loopback(address_kind), &options).expect("listen");
        let to = net::local_addr(&listener).expect("its address");
        (listener, Destination::Tcp { to, from: None })
    }

    fn dial(&mut self, to: &Destination) -> SystemPeer {
        let (socket, address) = net::outgoing_socket(to).expect("a socket");
        let socket = Socket::from(socket);
        // On loopback the handshake completes without an accept.
        socket.set_nonblocking(false).expect("a blocking socket");
        socket.connect(&address).expect("a listener accepts it");
        non_blocking(socket)
    }

    fn peer_listener(&mut self, address_kind: AddressKind) -> (SystemListener, Destination) {
        if address_kind == AddressKind::Unix {
            let path = self.path();
            let listener = UnixListener::bind(&path).expect("listen");
            listener.set_nonblocking(true).expect("a non-blocking listener");
            return (SystemListener::Unix(listener), Destination::Unix(path));
        }
        let listener = TcpListener::bind(loopback(address_kind)).expect("listen");
        listener.set_nonblocking(true).expect("a non-blocking listener");
        let to = listener.local_addr().expect("its address");
        (SystemListener::Tcp(listener), Destination::Tcp { to, from: None })
    }

    fn peer_accept(&mut self, listener: &mut SystemListener) -> Option<SystemPeer> {
        let accepted = match listener {
            SystemListener::Tcp(listener) => listener.accept().map(|(socket, _)| OwnedFd::from(socket)),
            SystemListener::Unix(listener) => listener.accept().map(|(socket, _)| OwnedFd::from(socket)),
        };
        accepted.ok().map(non_blocking)
    }

    fn unused_destination(&mut self, address_kind: AddressKind) -> Destination {
        if address_kind == AddressKind::Unix {
            return Destination::Unix(self.path());
        }
        let listener = TcpListener::bind(loopback(address_kind)).expect("listen");
        Destination::Tcp { to: listener.local_addr().expect("its address"), from: None }
    }

    fn pair(&mut self) -> (OwnedFd, SystemPeer) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (ours.into(), non_blocking(theirs))
    }

    fn pipe_to_driver(&mut self) -> (OwnedFd, SystemPeer) {
        let (reader, writer) = io::pipe().expect("a pipe");
        (reader.into(), non_blocking(writer))
    }

    fn pipe_from_driver(&mut self) -> (OwnedFd, SystemPeer) {
        let (reader, writer) = io::pipe().expect("a pipe");
        (writer.into(), non_blocking(reader))
    }

    fn datagram_socket(&mut self, address_kind: AddressKind) -> (OwnedFd, SocketAddr) {
        let socket = net::bind_udp(loopback(address_kind)).expect("bind");
        let address = net::local_addr(&socket).expect("its address");
        (socket, address)
    }

    fn datagram_socket_on_all(&mut self) -> (OwnedFd, u16) {
        let socket = net::bind_udp((Ipv4Addr::UNSPECIFIED, 0).into()).expect("bind");
        let address = net::local_addr(&socket).expect("its address");
        (socket, address.port())
    }

    fn datagram_peer(&mut self, address_kind: AddressKind) -> UdpSocket {
        let socket = UdpSocket::bind(loopback(address_kind)).expect("bind");
        socket.set_nonblocking(true).expect("a non-blocking socket");
        socket
    }
}

impl Peer for SystemPeer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, into)?)
    }

    fn shutdown(&mut self) {
        SockRef::from(&self.0).shutdown(std::net::Shutdown::Write).expect("shutdown");
    }

    fn reset(self) {
        SockRef::from(&self.0).set_linger(Some(Duration::ZERO)).expect("linger");
    }

    fn remote_addr(&self) -> Option<SocketAddr> {
        SockRef::from(&self.0).peer_addr().ok()?.as_socket()
    }
}

impl DatagramPeer for UdpSocket {
    fn local_addr(&self) -> SocketAddr {
        UdpSocket::local_addr(self).expect("a bound socket has an address")
    }

    fn send(&mut self, to: SocketAddr, payload: &[u8]) {
        assert_eq!(self.send_to(payload, to).expect("send"), payload.len());
    }

    fn receive(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let mut into = vec![0; 65_536];
        let (len, from) = self.recv_from(&mut into).ok()?;
        into.truncate(len);
        Some((from, into))
    }
}

/// Ends the process if a wait without limit takes too long: nothing else could.
fn start_watchdog() -> mpsc::Sender<()> {
    let (alive, over) = mpsc::channel();
    std::thread::spawn(move || {
        if over.recv_timeout(WAIT_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            std::process::abort();
        }
    });
    alive
}

/// Waits until the thread sleeps in the kernel.
fn wait_until_asleep(thread: rustix::process::Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).expect("the thread lives");
    // proc_pid_stat(5): the state follows the command in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Row 5.1: a wake from another thread ends a wait that has begun.
pub fn a_wake_ends_a_wait_without_limit<D: SystemDriver>() {
    let _watchdog = start_watchdog();
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let waiting = rustix::thread::gettid();
    for _ in 0..20 {
        let (wake, (may_wake, begin)) = (fixture.driver.wake_handle(), mpsc::channel());
        let waker = std::thread::spawn(move || {
            begin.recv().expect("the test continues");
            while !wait_until_asleep(waiting) {
                std::thread::yield_now();
            }
            wake.wake();
        });
        may_wake.send(()).expect("the other thread waits");
        while fixture.events.is_empty() {
            fixture.turn(Wait::Forever, &[]);
        }
        fixture.expect(ObservedEvent::Woken);
        waker.join().expect("the other thread ends well");
    }
}

/// Row 5.1: a wake ends the wait whenever it arrives: before, at the beginning, during.
pub fn no_wake_is_lost<D: SystemDriver>() {
    let _watchdog = start_watchdog();
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let wake = fixture.driver.wake_handle();
    let (request, requests) = mpsc::channel();
    let waker = std::thread::spawn(move || requests.into_iter().for_each(|()| wake.wake()));
    for round in 0..2000 {
        request.send(()).expect("the other thread lives");
        // The wake hits varying points between here and the sleep of the wait.
        for _ in 0..round % 50 {
            std::hint::spin_loop();
        }
        while fixture.events.is_empty() {
            fixture.turn(Wait::Forever, &[]);
        }
        fixture.expect(ObservedEvent::Woken);
        assert!(fixture.events.is_empty(), "{:?}", fixture.events);
    }
    drop(request);
    waker.join().expect("the other thread ends well");
}

/// Rows 4.4, 4.5: detaching a socket needs no event from its peer and waits for none.
pub fn a_detach_ends_a_wait_without_limit<D: SystemDriver>() {
    let _watchdog = start_watchdog();
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    for armed in [false, true] {
        let (token, _peer) = fixture.connection();
        if armed {
            fixture.driver.receive(token);
            fixture.expect_silence();
        }
        fixture.driver.detach(token);
        loop {
            while fixture.events.is_empty() {
                fixture.turn(Wait::Forever, &[]);
            }
            match fixture.next_event() {
                DriverEvent::Detached { token: of, .. } if of == token => break,
                DriverEvent::ReceiveCancelled { token: of } if of == token => {}
                event => panic!("unexpected: {event:?}"),
            }
        }
        assert!(fixture.events.is_empty(), "{:?}", fixture.events);
    }
}

/// Row 0.9: a wait ends at its time, not before, also for times that are not whole milliseconds.
pub fn a_timed_wait_is_never_early<D: SystemDriver>() {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    for micros in [0, 1, 300, 999, 1000, 1001, 3700] {
        let until = fixture.rig.now().after(Duration::from_micros(micros));
        fixture.turn(Wait::Until(until), &[]);
        assert!(fixture.events.is_empty(), "{:?}", fixture.events);
        assert!(fixture.rig.now() >= until, "a wait of {micros} µs was early");
    }
}

/// Row 5.1: events that a driver encounters during an immediate receive end the next wait.
pub fn an_immediate_receive_delays_no_event<D: SystemDriver>() {
    let _watchdog = start_watchdog();
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (receiving, mut receiving_peer) = fixture.connection();
    let (polled, mut polled_peer) = fixture.connection();
    for round in 0..20 {
        fixture.driver.receive(receiving);
        fixture.expect_silence();
        fixture.peer_writes(&mut receiving_peer, &[round]);
        fixture.peer_writes(&mut polled_peer, &[round + 100]);
        let mut into = [0; 4];
        assert_eq!(fixture.driver.recv_now(polled, &mut into).expect("a byte is there"), 1);
        assert_eq!(into[0], round + 100);
        let nothing = fixture.driver.recv_now(polled, &mut into).expect_err("it was the last one");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        while fixture.events.is_empty() {
            fixture.turn(Wait::Forever, &[]);
        }
        fixture.expect(ObservedEvent::Received(receiving, vec![round]));
    }
}

/// Row 5.1: the same for an immediate send.
pub fn an_immediate_send_delays_no_event<D: SystemDriver>() {
    let _watchdog = start_watchdog();
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (receiving, mut receiving_peer) = fixture.connection();
    let (sending, mut sending_peer) = fixture.connection();
    for round in 0..20 {
        fixture.driver.await_readable(receiving);
        fixture.expect_silence();
        fixture.peer_writes(&mut receiving_peer, &[round]);
        assert_eq!(fixture.driver.send_now(sending, &[round]).expect("there is room"), 1);
        while fixture.events.is_empty() {
            fixture.turn(Wait::Forever, &[]);
        }
        fixture.expect(ObservedEvent::Readable(receiving));
        assert_eq!(fixture.driver.recv_now(receiving, &mut [0; 2]).expect("a byte is there"), 1);
        fixture.expect_at_peer(&mut sending_peer, &[round]);
    }
}

/// Row 3.33: a datagram that is received at once is whole and has its sender, and those behind it stay readable.
pub fn immediate_datagrams_leave_the_others_readable<D: SystemDriver>() {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let (address, from) = (local_address(&socket), local_address(&peer));
    let token = fixture.attach(OwnedFd::from(socket), SourceKind::Datagram);
    for size in [3, 20] {
        peer.send_to(&vec![1; size], address).expect("there is room");
    }
    let mut into = [0; 8];
    for size in [3, 20] {
        fixture.driver.await_readable(token);
        fixture.expect(ObservedEvent::Readable(token));
        let received = fixture.driver.recv_from_now(token, &mut into).expect("a datagram is there");
        assert_eq!((received.len, received.from), (size, Some(from)));
    }
    fixture.driver.await_readable(token);
    fixture.expect_silence();
    let error = fixture.driver.recv_from_now(token, &mut into).expect_err("nothing is there");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    fixture.driver.send_to_now(token, b"answer", Some(from)).expect("there is room");
    assert_eq!(peer.recv_from(&mut into).expect("loopback delivers at once"), (6, address));
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
}

fn local_address(socket: &impl AsFd) -> SocketAddr {
    net::local_addr(socket).expect("an internet socket is bound")
}

/// Row 3.9: the descriptor of a listener, a connecting socket and a connection is the source's own, or a temporary one
/// that closes with its value.
pub fn a_lent_descriptor_is_the_socket_of_its_source<D: SystemDriver>() {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let Destination::Tcp { to, .. } = destination else { panic!("{destination:?} is no TCP address") };
    let lent = fixture.driver.descriptor(listener).expect("it is open");
    assert_eq!(local_address(&lent), to);
    drop(lent);
    let connecting = fixture.token();
    fixture.driver.connect(connecting, &destination).expect("a socket");
    while !matches!(fixture.next_event(), DriverEvent::Connected { token } if token == connecting) {
        fixture.driver.descriptor(connecting).expect("its socket exists after a turn");
    }
    let lent = fixture.driver.descriptor(connecting).expect("it is open");
    assert_eq!(net::peer_addr(&lent).expect("it is connected"), to);
    SockRef::from(&lent).set_keepalive(true).expect("a socket takes options");
    let raw = std::os::fd::AsRawFd::as_raw_fd(&lent.as_fd());
    let is_owned = matches!(lent, stilling_engine::driver::SourceDescriptor::Owned(_));
    drop(lent);
    let path = format!("/proc/self/fdinfo/{raw}");
    // Another test may have the number of a closed one by now, but the own one stays open.
    assert!(is_owned || std::path::Path::new(&path).exists());
    let lent = fixture.driver.descriptor(connecting).expect("it is open");
    assert!(SockRef::from(&lent).keepalive().expect("a socket has options"));
    drop(lent);
    fixture.driver.close(connecting);
    let error = fixture.driver.descriptor(connecting).expect_err("it is closing");
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
}

/// Row 3.8: one turn closes a listener that accepts.
pub fn a_close_without_another_turn_stops_a_listener<D: SystemDriver>() {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    for _ in 0..3 {
        let (listener, destination) = fixture.listen(AddressKind::V4);
        fixture.expect_silence();
        let Destination::Tcp { to, .. } = destination else { panic!("{destination:?} is no TCP address") };
        let mut waiting = fixture.rig.dial(&destination);
        fixture.driver.close(listener);
        fixture.turn(Wait::No, &[]);
        let refused = std::net::TcpStream::connect(to).expect_err("it is closed");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let ended = fixture
            .peer_reads(&mut waiting)
            .map_or_else(|error| error.kind(), |_| io::ErrorKind::UnexpectedEof);
        assert!(matches!(ended, io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof), "{ended}");
        fixture.expect(ObservedEvent::Closed(listener));
        fixture.expect_silence();
    }
}

/// Row 3.27: a socket that cannot accept reports its error and stops; it does not retry.
pub fn accepting_on_a_non_listener_stops_with_its_error<D: SystemDriver>() {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (socket, mut peer) = fixture.rig.pipe_to_driver();
    // Something to read, so that a driver based on readiness tries.
    peer.write(b"no connection").expect("there is room");
    let listener = fixture.token();
    fixture.driver.listen(listener, socket).expect("it is not known yet");
    for _ in 0..2 {
        fixture.driver.accept(listener);
        match fixture.next_event() {
            DriverEvent::AcceptStopped { listener: of, error: Some(error), refused: 0 } if of == listener => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
            }
            event => panic!("unexpected: {event:?}"),
        }
        fixture.expect_silence();
    }
}

/// Row 3.27: refusing a client when none waits must not block the shard, even if the listener was created as a blocking
/// socket.
pub fn refusing_without_a_waiting_client_does_not_block<D: SystemDriver>() {
    let _watchdog = start_watchdog();
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (socket, _) = fixture.rig.listener(AddressKind::V4);
    // Another process may share the listener and change it at any time.
    let duplicate_listener = socket.try_clone().expect("a descriptor");
    let listener = fixture.token();
    fixture.driver.listen(listener, socket).expect("listen");
    net::set_blocking(&duplicate_listener).expect("a socket can be made blocking");
    assert!(!fixture.driver.refuse_one(listener));
    net::set_blocking(&duplicate_listener).expect("a socket can be made blocking");
    assert!(fixture.driver.accept_now(listener).expect("it can accept").is_none());
}

/// Row 5.1: one descriptor shows a foreign event loop when to turn: it covers all events, and repeated signals do not
/// keep the loop turning.
pub fn the_waitable_is_readable_when_there_is_work<D: SystemDriver>() {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (token, mut peer) = fixture.connection();
    let mut idle_turns = 0;
    for round in 0..3 {
        fixture.driver.receive(token);
        fixture.expect_silence();
        turn_until_idle(&mut fixture, &mut idle_turns);
        fixture.peer_writes(&mut peer, &[round]);
        turn_when_signalled(&mut fixture, &mut idle_turns);
        fixture.expect(ObservedEvent::Received(token, vec![round]));
        fixture.driver.wake_handle().wake();
        turn_when_signalled(&mut fixture, &mut idle_turns);
        fixture.expect(ObservedEvent::Woken);
    }
    let (socket, address) = fixture.rig.datagram_socket(AddressKind::V4);
    let datagrams = fixture.attach(socket, SourceKind::Datagram);
    fixture.driver.receive(datagrams);
    fixture.expect_silence();
    turn_until_idle(&mut fixture, &mut idle_turns);
    let bytes = Gather::One(b"to myself");
    let outgoing = Outgoing { token: datagrams, bytes, to: Some(address), from: None, close: false };
    // More datagrams than one turn sends, so that work remains.
    let many = [outgoing; 2 * stilling_engine::limits::DATAGRAMS_PER_TURN];
    fixture.turn(Wait::No, &many);
    let mut received = 0;
    while received < many.len() {
        if fixture.events.is_empty() {
            turn_when_signalled(&mut fixture, &mut idle_turns);
        }
        for event in fixture.events.drain(..) {
            let DriverEvent::Datagram { buffer, .. } = event else { panic!("{event:?}") };
            fixture.driver.release(buffer);
            received += 1;
        }
    }
}

/// Turns that a waitable may cause without events, in a test of a dozen events. The kernel signals a ring's eventfd
/// late when the event is itself an eventfd's, so a turn may already have taken it.
const IDLE_TURNS_MAX: u32 = 100;

/// Whether the waitable polls readable within `timeout`.
fn is_signalled<D: SystemDriver>(fixture: &mut DriverFixture<SystemRig<D>>, timeout: Timespec) -> bool {
    let waitable = duplicate(fixture.driver.waitable().expect("a system driver has one"));
    let mut poll_fds = [PollFd::from_borrowed_fd(waitable.as_fd(), PollFlags::IN)];
    rustix::event::poll(&mut poll_fds, Some(&timeout)).expect("poll") == 1
}

/// Turns when the waitable is readable, as a foreign loop does, until there are events.
fn turn_when_signalled<D: SystemDriver>(fixture: &mut DriverFixture<SystemRig<D>>, idle_turns: &mut u32) {
    let timeout = Timespec { tv_sec: WAIT_MAX.as_secs() as i64, tv_nsec: 0 };
    loop {
        assert!(is_signalled(fixture, timeout), "events are pending, but the waitable is not readable");
        fixture.turn(Wait::No, &[]);
        if !fixture.events.is_empty() {
            return;
        }
        count_idle(idle_turns);
    }
}

/// Turns without events until the waitable is no longer readable.
fn turn_until_idle<D: SystemDriver>(fixture: &mut DriverFixture<SystemRig<D>>, idle_turns: &mut u32) {
    while is_signalled(fixture, Timespec { tv_sec: 0, tv_nsec: 0 }) {
        fixture.turn(Wait::No, &[]);
        assert!(fixture.events.is_empty(), "unexpected events: {:?}", fixture.events);
        count_idle(idle_turns);
    }
}

fn count_idle(idle_turns: &mut u32) {
    *idle_turns += 1;
    assert!(*idle_turns < IDLE_TURNS_MAX, "the waitable keeps the loop turning for nothing");
}

/// Duplicates a descriptor known only by its number.
fn duplicate(raw: i32) -> OwnedFd {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let own_process = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process lives");
    pidfd_getfd(own_process, raw, PidfdGetfdFlags::empty()).expect("it is open")
}
