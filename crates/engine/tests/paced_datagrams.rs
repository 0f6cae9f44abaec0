//! Datagrams that wait in the shard's ring, on the real drivers. The test runs the turns itself.
#![cfg(target_os = "linux")]

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::{Datagram, Driver, Wait, poll::Poll, uring::Uring};
use stilling_engine::{
    Clock, DatagramDropPolicy, DatagramIo, Io, Service, Session, Shard, ShardConfig, ShardControl, Time,
    Wake, net,
};
use stilling_probe::eventually;

/// Bytes per datagram. The ring holds about a thousand.
const SIZE: usize = 1000;
/// Datagrams in one burst: the socket holds them, and one turn may not receive all of them.
const BURST: u32 = 80;
const BURSTS: u32 = 30;

/// Records the numbers of its datagrams and answers each.
#[derive(Default)]
struct RecordingService {
    served: Vec<u32>,
    is_closing: bool,
}

struct NoSession;

impl Service for RecordingService {
    type Session = NoSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> NoSession {
        NoSession
    }

    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        let number = *datagram.payload.first_chunk().expect("the number is in front");
        assert_eq!((datagram.payload.len(), io.path().peer), (SIZE, datagram.from));
        self.served.push(u32::from_be_bytes(number));
        io.reply(&number).expect("there is room for a short answer");
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if std::mem::take(&mut self.is_closing) {
            control.close_datagram_sockets();
        }
        if control.has_datagram_sockets() { None } else { Some(control.now) }
    }
}

impl Session for NoSession {
    type Service = RecordingService;

    fn received(&mut self, bytes: &[u8], _io: &mut Io<'_>, _service: &mut RecordingService) -> usize {
        bytes.len()
    }
}

struct PacedWorld<D: Driver<Socket = OwnedFd>> {
    shard: Shard<D, RecordingService>,
    client: UdpSocket,
}

impl<D: Driver<Socket = OwnedFd>> PacedWorld<D> {
    fn new(driver: D, datagram_drop: DatagramDropPolicy) -> Self {
        Self::with_clock(driver, datagram_drop, Clock::real())
    }

    fn with_clock(driver: D, datagram_drop: DatagramDropPolicy, clock: Clock) -> Self {
        let socket = net::bind_udp("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        client.connect(net::local_addr(&socket).expect("it is bound")).expect("an address");
        client.set_nonblocking(true).expect("a socket takes options");
        let handle = driver.wake_handle();
        let wake = Arc::new(Wake::new(move || handle.wake()));
        let config = ShardConfig {
            capacity: 1,
            datagram_drop,
            datagrams_served_per_turn: 1,
            ..ShardConfig::default()
        };
        let service = RecordingService::default();
        let mut shard = Shard::new(driver, service, config, clock, wake, Arc::default());
        shard.receive_paced_datagrams(socket).expect("the driver accepts it");
        PacedWorld { shard, client }
    }

    fn counters(&self) -> Arc<EngineCounters> {
        Arc::clone(self.shard.counters())
    }

    /// Sends one burst, and runs turns until the shard has received it.
    fn burst(&mut self, number: u32) {
        let received = self.counters().datagrams_received.get() + u64::from(BURST);
        for at in number * BURST..(number + 1) * BURST {
            let mut payload = [0; SIZE];
            payload[..4].copy_from_slice(&at.to_be_bytes());
            self.client.send(&payload).expect("it is sent");
        }
        eventually("the burst is received", || {
            self.shard.turn(false).expect("the driver works");
            (self.counters().datagrams_received.get() >= received).then_some(())
        });
    }

    fn serve_all(&mut self) {
        eventually("the ring is served", || {
            (0..BURST).for_each(|_| self.shard.turn(false).expect("the driver works"));
            (self.counters().datagrams_waiting.get() == 0).then_some(())
        });
    }
}

fn a_flood_is_served_by_policy<D: Driver<Socket = OwnedFd>>(make: impl Fn() -> D) {
    for policy in [DatagramDropPolicy::Oldest, DatagramDropPolicy::Newest] {
        let mut world = PacedWorld::new(make(), policy);
        (0..BURSTS).for_each(|number| world.burst(number));
        let counters = world.counters();
        assert_eq!(counters.datagrams_dropped_by_kernel.get(), 0, "the socket is drained at once");
        assert_ne!(world.shard.prepare_to_wait(), Wait::Forever, "datagrams wait");
        let served_in_flood = world.shard.service().served.len();
        assert!(served_in_flood > 0, "serving is not put off for ever");
        let waiting = counters.datagrams_waiting.get();
        assert!(waiting > 900 && counters.datagrams_waiting_max.get() >= waiting, "{waiting} wait");
        world.serve_all();
        let served = std::mem::take(&mut world.shard.service().served);
        let (shed, all) = (counters.datagrams_shed.get() as usize, (BURST * BURSTS) as usize);
        assert!(shed > 0 && served.len() + shed == all, "{} served, {shed} shed", served.len());
        assert!(served.is_sorted(), "the oldest of the ring come first");
        let freshest = Vec::from_iter(BURST * BURSTS - 900..BURST * BURSTS);
        match policy {
            DatagramDropPolicy::Oldest => {
                assert!(served.ends_with(&freshest), "the freshest are served");
            }
            DatagramDropPolicy::Newest => {
                assert!(served.starts_with(&Vec::from_iter(0..900)), "the oldest are served");
            }
        }
    }
}

/// A closed socket's datagrams in the ring are served and answered before the close.
fn waiting_datagrams_are_served_before_a_close<D: Driver<Socket = OwnedFd>>(make: impl Fn() -> D) {
    let mut world = PacedWorld::new(make(), DatagramDropPolicy::Oldest);
    world.burst(0);
    assert!(world.counters().datagrams_waiting.get() > 1, "the service takes one per turn");
    world.shard.service().is_closing = true;
    world.serve_all();
    assert_eq!(world.shard.service().served, Vec::from_iter(0..BURST));
    let mut answer = [0; 8];
    for number in 0..BURST {
        eventually("the answer arrives", || {
            world.shard.turn(false).expect("the driver works");
            world.client.recv(&mut answer).ok()
        });
        assert_eq!(answer[..4], number.to_be_bytes());
    }
    assert_eq!(world.counters().datagrams_dropped_total(), 0);
    eventually("the socket is closed", || {
        world.shard.turn(false).expect("the driver works");
        world.client.send(b"late").is_err().then_some(())
    });
}

/// The wait in the ring and the sends are accounted for every datagram, or for a part of them whose size is known.
fn stages_are_accounted<D: Driver<Socket = OwnedFd>>(make: impl Fn() -> D) {
    const WAIT: Duration = Duration::from_millis(5);
    let (clock, time) = Clock::manual();
    let mut world = PacedWorld::with_clock(make(), DatagramDropPolicy::Oldest, clock);
    world.burst(0);
    let counters = world.counters();
    let early = counters.datagrams_waited.count.get();
    assert!(early < u64::from(BURST) && counters.datagrams_waited.nanos.get() == 0);
    time.advance(WAIT);
    world.serve_all();
    let waited = counters.datagrams_waited.nanos.get();
    assert_eq!(waited, (u64::from(BURST) - early) * WAIT.as_nanos() as u64);
    assert_eq!(counters.datagrams_waited.count.get(), u64::from(BURST));
    // The manual clock stands still in a call.
    assert_eq!((counters.datagrams_served.nanos.get(), counters.datagrams_served.count.get()), (0, 80));
    eventually("some sends are measured", || {
        world.shard.turn(false).expect("the driver works");
        let sends = &counters.datagram_sends;
        (sends.count.get() > 0 && sends.nanos.get() > 0).then_some(())
    });
    assert!(counters.datagram_sends.count.get() <= counters.datagrams_sent.get());
}

/// Row 1.22: the time of each stage is accounted, on both drivers.
#[test]
fn stages_are_accounted_on_uring() {
    stages_are_accounted(|| Uring::new().expect("the system grants io_uring"));
}

#[test]
fn stages_are_accounted_on_poll() {
    stages_are_accounted(|| Poll::new().expect("the system has epoll"));
}

/// Row 1.16: under a flood beyond what the service takes, `oldest` serves the freshest, on both drivers. Row 1.7: the
/// number of waiting datagrams is bounded and known.
#[test]
fn a_flood_is_served_by_policy_on_uring() {
    a_flood_is_served_by_policy(|| Uring::new().expect("the system grants io_uring"));
}

#[test]
fn a_flood_is_served_by_policy_on_poll() {
    a_flood_is_served_by_policy(|| Poll::new().expect("the system has epoll"));
}

/// Row 4.36: a drain loses no received datagram, on both drivers.
#[test]
fn waiting_datagrams_are_served_before_a_close_on_uring() {
    waiting_datagrams_are_served_before_a_close(|| Uring::new().expect("the system grants io_uring"));
}

#[test]
fn waiting_datagrams_are_served_before_a_close_on_poll() {
    waiting_datagrams_are_served_before_a_close(|| Poll::new().expect("the system has epoll"));
}
