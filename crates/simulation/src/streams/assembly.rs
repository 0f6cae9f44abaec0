//! Long messages that are never completed: their connections are closed at the timeout.

use std::time::{Duration, Instant};

use stilling_journal::JournalLimits;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_ring::Time;

use super::message::{ON_DISK, UNSTORED};
use super::parameters;
use super::server::{self, NATS, ServerPlan, StreamsServer};
use super::wire::{ClientWire, WireInput};
use crate::SplitMix64;
use crate::network::{Address, Network, NetworkOptions};

/// Bytes of a message. Four messages use all of a shard's memory for incomplete messages.
const SIZE: u32 = 16 << 20;

/// Bytes of a message after which the server holds memory for all of it, because the buffer doubles.
const MORE_THAN_HALF: usize = 9 << 20;

/// Turns of the server while time stands still; more count as spinning.
const TURNS_MAX: u32 = 100_000;

struct AssemblyFixture {
    network: Network,
    server: StreamsServer,
    random: SplitMix64,
    clients: Vec<AssemblyClient>,
}

#[derive(Default)]
struct AssemblyClient {
    wire: ClientWire,
    /// The error received, and the second of its arrival.
    error: Option<(u64, String)>,
}

impl AssemblyFixture {
    fn new() -> AssemblyFixture {
        let network = Network::new(1, NetworkOptions { buffer: 1 << 20, ..NetworkOptions::default() });
        let mut streams = parameters::streams(&[]);
        streams[UNSTORED].message_size_max = SIZE;
        let plan = ServerPlan {
            streams,
            segment_size: 1 << 16,
            journal: JournalLimits { batches: 2, batch_size: 1 << 14 },
            shards: 1,
            buffers: 8,
            drain: Duration::from_secs(1),
            disk_latency: Duration::from_micros(50),
            memory_batch_size: None,
            output_bytes_max: None,
            origin: Instant::now(),
        };
        let disks: Vec<_> = (0..ON_DISK).map(|_| SimulatedDisk::new()).collect();
        let sockets = server::listen(&network, plan.shards);
        let server = StreamsServer::start(&plan, &network, &disks, sockets);
        let server = server.map_err(|(_, error)| error).expect("it starts");
        AssemblyFixture { network, server, random: SplitMix64::new(1), clients: Vec::new() }
    }

    /// Connects a client and sends `sent` bytes of a message, which the server reads.
    fn begin(&mut self, sent: usize) {
        let mut wire = ClientWire::default();
        wire.dial(&self.network, &Address::Tcp(NATS.parse().expect("an address")));
        wire.line("CONNECT {\"verbose\":false}");
        wire.line(&format!("PUB live.a {SIZE}"));
        wire.bytes(&vec![b'x'; sent]);
        self.clients.push(AssemblyClient { wire, error: None });
        self.run_until(self.network.now());
    }

    /// Sends more of a client's message, which the server reads.
    fn send_until_blocked(&mut self, client: usize, sent: usize) {
        self.clients[client].wire.bytes(&vec![b'x'; sent]);
        self.run_until(self.network.now());
    }

    fn run_until(&mut self, until: Time) {
        let mut turns = 0;
        loop {
            let before = self.network.activity();
            let ran = self.server.run(self.network.now(), &mut self.random).expect("it runs");
            self.clients.iter_mut().for_each(|client| client.run(&self.network, &mut self.random));
            if ran || self.network.activity() != before {
                turns += 1;
                assert!(turns < TURNS_MAX, "it spins");
                continue;
            }
            let next = self.server.wakes_at().into_iter().chain(self.network.next_event()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            turns = 0;
            self.network.advance_to(next.max(self.network.now()));
        }
        self.network.advance_to(until.max(self.network.now()));
    }

    /// The seconds in which the clients received a message timeout.
    fn timeouts(&self) -> Vec<Option<u64>> {
        let timeout = |client: &AssemblyClient| {
            let (second, error) = client.error.as_ref()?;
            assert_eq!(error, "-ERR 'Message Timeout'");
            Some(*second)
        };
        self.clients.iter().map(timeout).collect()
    }
}

impl AssemblyClient {
    fn run(&mut self, network: &Network, random: &mut SplitMix64) {
        // The server closes the connection at the end.
        let _ = self.wire.flush(random);
        let _ = self.wire.fill();
        while let Some(input) = self.wire.next_input().expect("it is well formed") {
            if let WireInput::Error(error) = input {
                self.error = Some((network.now().as_nanos() / 1_000_000_000, error));
            }
        }
    }
}

fn second(number: u64) -> Time {
    Time::ZERO.after(Duration::from_secs(number))
}

/// Row 0.8: a message may take a minute to arrive.
#[test]
fn a_message_whose_end_does_not_come_is_given_up() {
    let mut fixture = AssemblyFixture::new();
    fixture.begin(1000);
    fixture.run_until(second(70));
    assert_eq!(fixture.timeouts(), [Some(60)]);
}

/// Row 0.8: while there is no room for incomplete messages, connections are read one after the other, for five seconds
/// each.
#[test]
fn messages_for_which_there_is_no_room_come_to_their_ends_one_after_the_other() {
    let mut fixture = AssemblyFixture::new();
    (0..4).for_each(|_| fixture.begin(MORE_THAN_HALF));
    (0..2).for_each(|_| fixture.begin(1000));
    fixture.run_until(second(70));
    assert_eq!(fixture.timeouts(), [60, 60, 60, 60, 5, 10].map(Some));
}

/// Row 0.8: when there is room again, a message that lacked room, or waited for it, may still take a minute.
#[test]
fn messages_that_have_waited_for_room_have_their_minute() {
    let mut fixture = AssemblyFixture::new();
    (0..4).for_each(|_| fixture.begin(MORE_THAN_HALF));
    (0..2).for_each(|_| fixture.begin(1000));
    fixture.run_until(second(1));
    fixture.clients[0].wire.hang_up();
    fixture.run_until(second(70));
    assert_eq!(fixture.timeouts()[4..], [60, 60].map(Some));
}

/// Row 0.8: a message that regained room in between gets another five seconds when room runs out again.
#[test]
fn a_message_that_loses_its_room_again_has_another_five_seconds() {
    let mut fixture = AssemblyFixture::new();
    (0..4).for_each(|_| fixture.begin(MORE_THAN_HALF));
    fixture.begin(1000);
    fixture.run_until(second(1));
    fixture.clients[0].wire.hang_up();
    fixture.run_until(second(2));
    fixture.send_until_blocked(4, 1000);
    // Buffers double: these messages use 15 of the 16 MiB that became free.
    [7 << 20, 3 << 20, 3 << 19, 3 << 18].into_iter().for_each(|sent| fixture.begin(sent));
    fixture.run_until(second(4));
    fixture.send_until_blocked(4, 2 << 20);
    fixture.run_until(second(70));
    assert_eq!(fixture.timeouts()[4], Some(9));
}
