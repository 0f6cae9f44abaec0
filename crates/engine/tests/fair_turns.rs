//! A stage with much output in every turn does not starve later ones: events before mail, mail before deadlines. Over
//! the simulated network.

use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::limits::{ARENA_SIZE, SEND_MAX};
use stilling_engine::{Io, Recipient, Service, Session, Shard, ShardConfig, Token};
use stilling_ring::Wake;
use stilling_simulation::{Address, Network, NetworkOptions, SimDriver, SimPeer};

/// Connections with so much output that it fills the arena more than once in each turn.
const READERS: usize = 2 * ARENA_SIZE / SEND_MAX;

#[derive(Default)]
struct FairService {
    open: Vec<Token>,
    /// Mail to deliver in this turn: the indices of its recipients.
    mail: Vec<usize>,
    /// Number of deliveries and of expired deadlines, per connection.
    delivered: Vec<u32>,
    late: Vec<u32>,
}

struct FairSession {
    at: usize,
}

impl Service for FairService {
    type Session = FairSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> FairSession {
        self.delivered.push(0);
        self.late.push(0);
        FairSession { at: self.delivered.len() - 1 }
    }

    fn next_mail(&mut self) -> Option<(Recipient, ())> {
        self.mail.pop().map(|at| (self.open[at].into(), ()))
    }

    fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }
}

impl Session for FairSession {
    type Service = FairService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut FairService) {
        let token = io.token();
        service.open.push(token);
    }

    /// Answers each byte with as much as may be sent.
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut FairService) -> usize {
        let room = io.room();
        io.send(&vec![0; room]).expect("there is room");
        bytes.len()
    }

    fn delivered(&mut self, (): (), io: &mut Io<'_>, service: &mut FairService) {
        service.delivered[self.at] += 1;
        let room = io.room();
        io.send(&vec![0; room]).expect("there is room");
        io.set_deadline(Some(io.now().after(Duration::from_millis(1))));
    }

    fn deadline(&mut self, _: &mut Io<'_>, service: &mut FairService) {
        service.late[self.at] += 1;
    }
}

struct FairFixture {
    network: Network,
    shard: Shard<SimDriver, FairService>,
    peers: Vec<SimPeer>,
}

impl FairFixture {
    /// The readers, and one more.
    fn new() -> Self {
        let network = Network::new(1, NetworkOptions { buffer: 4 * SEND_MAX, ..NetworkOptions::default() });
        let listener = network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 100, None);
        let address = listener.listening_at().expect("it listens");
        let config = ShardConfig { capacity: 100, ..ShardConfig::default() };
        let (wake, counters) = (Arc::new(Wake::new(|| ())), Arc::new(EngineCounters::default()));
        let mut shard = Shard::new(
            SimDriver::new(&network),
            FairService::default(),
            config,
            network.clock(),
            wake,
            counters,
        );
        shard.listen(listener, false).expect("the first listener");
        let mut fixture = FairFixture { network, shard, peers: Vec::new() };
        for _ in 0..=READERS {
            let peer = fixture.network.connect(address.clone(), None);
            fixture.peers.push(peer);
            while fixture.shard.service().open.len() < fixture.peers.len() {
                fixture.turn();
            }
        }
        fixture
    }

    /// Runs one turn, and all peers read everything.
    fn turn(&mut self) {
        self.network.advance_to(self.network.now().after(Duration::from_millis(1)));
        self.shard.turn(false).expect("turns");
        let mut into = vec![0; SEND_MAX];
        for peer in &mut self.peers {
            while peer.read(&mut into).is_ok_and(|count| count > 0) {}
        }
    }
}

/// Row 4.12: requests with responses that fill every turn leave room for mail from workers.
#[test]
fn events_do_not_keep_mail_waiting() {
    let mut fixture = FairFixture::new();
    for _ in 0..20 {
        for peer in &mut fixture.peers[..READERS] {
            peer.write(b"?").expect("there is room");
        }
        fixture.turn();
    }
    let mut turns = 0;
    fixture.shard.service().mail.push(READERS);
    while fixture.shard.service().delivered[READERS] == 0 {
        for peer in &mut fixture.peers[..READERS] {
            peer.write(b"?").expect("there is room");
        }
        fixture.turn();
        turns += 1;
        assert!(turns < 10, "it waits for connections with requests");
    }
}

/// Row 4.12: mail that fills every turn leaves room for deadlines.
#[test]
fn mail_does_not_keep_deadlines_waiting() {
    let mut fixture = FairFixture::new();
    fixture.shard.service().mail.push(READERS);
    fixture.turn();
    assert_eq!(fixture.shard.service().delivered[READERS], 1);
    let mut turns = 0;
    while fixture.shard.service().late[READERS] == 0 {
        fixture.shard.service().mail = (0..READERS).collect();
        fixture.turn();
        turns += 1;
        assert!(turns < 20, "it waits for connections with mail");
    }
    assert!(fixture.shard.service().delivered[..READERS].iter().sum::<u32>() >= turns);
}
