//! A shard with a datagram socket on the real drivers: a custom protocol over UDP.
#![cfg(target_os = "linux")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::{Datagram, Driver, poll::Poll, uring::Uring};
use stilling_engine::limits::{DATAGRAM_SIZE_MAX, DATAGRAMS_PER_TURN};
use stilling_engine::{
    Clock, DatagramDropReason, DatagramIo, Io, Service, Session, Shard, ShardConfig, ShardControl, Time,
    Wake, net,
};
use stilling_probe::eventually;

const HANG_TIMEOUT: Duration = Duration::from_secs(20);

/// Answers every datagram with its length and its first bytes; `twice` is answered twice, `stall` blocks the shard until
/// the test releases it, and `forward` is also sent to [`FORBIDDEN`].
struct LengthService {
    is_ending: Arc<AtomicBool>,
    stall: ShardStall,
}

/// The shard's end of a stall: signals that it is blocked, and waits.
type ShardStall = (Sender<()>, Receiver<()>);

struct LengthSession;

/// A broadcast address, to which a socket without `SO_BROADCAST` may not send.
const FORBIDDEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 255, 255, 255)), 9);

impl Service for LengthService {
    type Session = LengthSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> LengthSession {
        LengthSession
    }

    fn has_mail(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        let start = &datagram.payload[..datagram.payload.len().min(8)];
        let cut = if datagram.truncated { " cut" } else { "" };
        let answer = format!("{}{cut} {}", datagram.payload.len(), start.escape_ascii());
        if start == b"stall" {
            self.stall.0.send(()).expect("the test waits for it");
            self.stall.1.recv().expect("the test ends it");
        }
        if start == b"forward" {
            io.send(FORBIDDEN, b"forwarded").expect("there is room for a short datagram");
        }
        let times = if start == b"twice" { 2 } else { 1 };
        for _ in 0..times {
            io.reply(answer.as_bytes()).expect("there is room for a short answer");
        }
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if self.is_ending.load(Ordering::Acquire) {
            control.close_listeners();
            if control.is_empty() {
                control.stop();
            }
        }
        None
    }
}

impl Session for LengthSession {
    type Service = LengthService;

    fn received(&mut self, bytes: &[u8], _io: &mut Io<'_>, _service: &mut LengthService) -> usize {
        bytes.len()
    }
}

/// Runs a shard on a thread of its own while `run_clients` uses it.
fn with_shard<D: Driver<Socket = OwnedFd>>(
    make: impl FnOnce() -> D + Send + 'static,
    run_clients: impl FnOnce(SocketAddr, &EngineCounters),
) {
    let (stall, _test_ends) = stalls();
    with_shard_at(any_socket(), make, stall, run_clients);
}

fn any_socket() -> OwnedFd {
    socket_at("127.0.0.1:0")
}

fn socket_at(address: &str) -> OwnedFd {
    net::bind_udp(address.parse().expect("an address")).expect("a free port")
}

fn stalls() -> (ShardStall, (Receiver<()>, Sender<()>)) {
    let ((began_sender, began_receiver), (end_sender, end_receiver)) = (channel(), channel());
    ((began_sender, end_receiver), (began_receiver, end_sender))
}

fn with_shard_at<D: Driver<Socket = OwnedFd>>(
    socket: OwnedFd,
    make: impl FnOnce() -> D + Send + 'static,
    stall: ShardStall,
    run_clients: impl FnOnce(SocketAddr, &EngineCounters),
) {
    let address = net::local_addr(&socket).expect("it is bound");
    let (is_ending, counters) = (Arc::new(AtomicBool::new(false)), Arc::new(EngineCounters::default()));
    let service = LengthService { is_ending: Arc::clone(&is_ending), stall };
    let (wake_sender, wake_receiver) = channel();
    let counts = Arc::clone(&counters);
    let shard = thread::spawn(move || {
        let driver = make();
        let handle = driver.wake_handle();
        let wake = Arc::new(Wake::new(move || handle.wake()));
        wake_sender.send(Arc::clone(&wake)).expect("the test waits for it");
        let config = ShardConfig { capacity: 1, ..ShardConfig::default() };
        let mut shard = Shard::new(driver, service, config, Clock::real(), wake, counts);
        assert_eq!(shard.receive_datagrams(socket).expect("the driver accepts it"), 0);
        shard.run().expect("the driver works");
    });
    run_clients(address, &counters);
    is_ending.store(true, Ordering::Release);
    wake_receiver.recv().expect("the shard runs").force();
    shard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn client(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.connect(server).expect("an address");
    socket.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    socket
}

fn receive_text(socket: &UdpSocket) -> String {
    let mut bytes = [0; 200];
    let count = socket.recv(&mut bytes).expect("an answer");
    String::from_utf8(bytes[..count].to_vec()).expect("answers are text")
}

fn every_client_is_answered(server: SocketAddr, counters: &EngineCounters) {
    let clients: Vec<UdpSocket> = (0..3).map(|_| client(server)).collect();
    // More than one turn receives.
    for round in 0..DATAGRAMS_PER_TURN {
        for (number, socket) in clients.iter().enumerate() {
            socket.send(format!("{number}-{round}").as_bytes()).expect("it is sent");
        }
    }
    for (number, socket) in clients.iter().enumerate() {
        for round in 0..DATAGRAMS_PER_TURN {
            let sent = format!("{number}-{round}");
            assert_eq!(receive_text(socket), format!("{} {sent}", sent.len()));
        }
    }
    let [first, ..] = &clients[..] else { unreachable!("there are three") };
    first.send(b"").expect("it is sent");
    assert_eq!(receive_text(first), "0 ");
    first.send(b"twice").expect("it is sent");
    assert_eq!([receive_text(first), receive_text(first)], ["5 twice", "5 twice"]);
    first.send(&vec![b'x'; DATAGRAM_SIZE_MAX]).expect("it is sent");
    assert_eq!(receive_text(first), format!("{DATAGRAM_SIZE_MAX} xxxxxxxx"));
    first.send(&vec![b'x'; DATAGRAM_SIZE_MAX + 1]).expect("it is sent");
    assert_eq!(receive_text(first), format!("{DATAGRAM_SIZE_MAX} cut xxxxxxxx"));
    assert_eq!(counters.datagrams_received.get(), 3 * DATAGRAMS_PER_TURN as u64 + 4);
}

/// A closed client makes the system report an error on the socket (ICMP port unreachable).
fn a_closed_client_does_not_affect_others(server: SocketAddr, _counters: &EngineCounters) {
    for _ in 0..20 {
        let closed_client = client(server);
        closed_client.send(b"bye").expect("it is sent");
        drop(closed_client);
        let open_client = client(server);
        open_client.send(b"hello").expect("it is sent");
        assert_eq!(receive_text(&open_client), "5 hello");
    }
}

/// A datagram that the system rejects is counted with its reason, and those beside it are sent.
fn a_rejected_datagram_is_counted(server: SocketAddr, counters: &EngineCounters) {
    let client = client(server);
    for text in ["twice", "forward", "twice"] {
        client.send(text.as_bytes()).expect("it is sent");
    }
    for expected in ["5 twice", "5 twice", "7 forward", "5 twice", "5 twice"] {
        assert_eq!(receive_text(&client), expected);
    }
    // The last answer may arrive before the shard has processed its turn.
    eventually("all sends are counted", || (counters.datagrams_sent.get() == 6).then_some(()));
    eventually("the rejection is counted", || (counters.datagrams_dropped_total() > 0).then_some(()));
    let forbidden = counters.datagrams_dropped(DatagramDropReason::Forbidden).get();
    assert_eq!((forbidden, counters.datagrams_dropped_total()), (1, 1));
}

/// Datagrams in one flood: far more than a receive buffer of the system holds.
const FLOOD: u64 = 4000;

/// Sends a flood; on loopback each datagram is in the receiver's queue, or dropped, when the call returns.
fn flood(client: &UdpSocket) {
    for _ in 0..FLOOD {
        client.send(&[b'f'; 1000]).expect("it is sent");
    }
}

/// The kernel's drops while the shard is blocked are counted exactly, and drops for an earlier reader of the socket are
/// not counted.
fn drops_are_counted<D: Driver<Socket = OwnedFd>>(make: impl FnOnce() -> D + Send + 'static) {
    let socket = any_socket();
    let address = net::local_addr(&socket).expect("it is bound");
    flood(&client(address));
    let old = UdpSocket::from(socket);
    let mut bytes = [0; 2000];
    let before = std::iter::from_fn(|| old.recv(&mut bytes).ok()).count() as u64;
    assert!(before < FLOOD, "the kernel queued all {before}");
    let (stall, (began_receiver, end_sender)) = stalls();
    with_shard_at(old.into(), make, stall, |server, counters| {
        let client = client(server);
        for round in 1..=2 {
            let (received, dropped) =
                (counters.datagrams_received.get(), counters.datagrams_dropped_by_kernel.get());
            client.send(b"stall").expect("it is sent");
            began_receiver.recv_timeout(HANG_TIMEOUT).expect("the shard is blocked");
            flood(&client);
            end_sender.send(()).expect("the shard waits");
            let counted = || {
                let received = counters.datagrams_received.get() - received;
                let dropped = counters.datagrams_dropped_by_kernel.get() - dropped;
                (received + dropped, dropped)
            };
            eventually("all datagrams are counted", || (counted().0 > FLOOD).then_some(()));
            let (all, dropped) = counted();
            assert!(all == FLOOD + 1 && dropped > 0, "round {round}: {all}, {dropped} of them dropped");
        }
    });
}

/// A client receives only datagrams from the address that it sent to, whichever of the server's that is.
fn answers_come_from_the_requested_address<D: Driver<Socket = OwnedFd> + 'static>(make: fn() -> D) {
    let check = |bound: &str, target: &str| {
        let (stall, _test_ends) = stalls();
        with_shard_at(socket_at(bound), make, stall, |server, _| {
            let target = SocketAddr::new(target.parse().expect("an address"), server.port());
            let own = if target.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
            let client = UdpSocket::bind(own).expect("a free port");
            client.connect(target).expect("an address");
            client.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
            for _ in 0..3 {
                client.send(b"twice").expect("it is sent");
                assert_eq!(
                    [receive_text(&client), receive_text(&client)],
                    ["5 twice", "5 twice"],
                    "{bound} {target}"
                );
            }
            client.send(&vec![b'x'; DATAGRAM_SIZE_MAX]).expect("it is sent");
            assert_eq!(receive_text(&client), format!("{DATAGRAM_SIZE_MAX} xxxxxxxx"));
            client.send(&vec![b'x'; DATAGRAM_SIZE_MAX + 1]).expect("it is sent");
            assert_eq!(receive_text(&client), format!("{DATAGRAM_SIZE_MAX} cut xxxxxxxx"));
        });
    };
    check("0.0.0.0:0", "127.0.0.1");
    check("0.0.0.0:0", "127.0.0.2");
    check("[::]:0", "127.0.0.2");
    check("[::]:0", "::1");
}

/// Row 5.1: a server with several addresses answers from the one that received the request, on both drivers.
#[test]
fn replies_come_from_the_receiving_address_on_uring() {
    answers_come_from_the_requested_address(|| Uring::new().expect("the system grants io_uring"));
}

#[test]
fn replies_come_from_the_receiving_address_on_poll() {
    answers_come_from_the_requested_address(|| Poll::new().expect("the system has epoll"));
}

/// Row 0.14: no loss is silent, also not one before the server, on both drivers.
#[test]
fn drops_are_counted_on_uring() {
    drops_are_counted(|| Uring::new().expect("the system grants io_uring"));
}

#[test]
fn drops_are_counted_on_poll() {
    drops_are_counted(|| Poll::new().expect("the system has epoll"));
}

/// Row 1.18: datagrams that could not be sent are counted by reason, on both drivers.
#[test]
fn a_rejected_datagram_is_counted_on_uring() {
    with_shard(|| Uring::new().expect("the system grants io_uring"), a_rejected_datagram_is_counted);
}

#[test]
fn a_rejected_datagram_is_counted_on_poll() {
    with_shard(|| Poll::new().expect("the system has epoll"), a_rejected_datagram_is_counted);
}

/// Row 5.1: datagrams in and out, on both drivers.
#[test]
fn every_client_is_answered_on_uring() {
    with_shard(|| Uring::new().expect("the system grants io_uring"), every_client_is_answered);
}

#[test]
fn every_client_is_answered_on_poll() {
    with_shard(|| Poll::new().expect("the system has epoll"), every_client_is_answered);
}

#[test]
fn a_closed_client_does_not_affect_others_on_uring() {
    with_shard(|| Uring::new().expect("the system grants io_uring"), a_closed_client_does_not_affect_others);
}

#[test]
fn a_closed_client_does_not_affect_others_on_poll() {
    with_shard(|| Poll::new().expect("the system has epoll"), a_closed_client_does_not_affect_others);
}
