//! Offers instead of sends: unsent bytes stay with the session, and the shard's store stays empty. Each case alone,
//! over the simulated network.

use std::time::Duration;

use stilling_engine::limits::{ARENA_SIZE, SEND_MAX};
use stilling_engine::{CloseReason, Io, OutputFull, Service, Session, ShardConfig};
use stilling_simulation::SimPeer;
use stilling_simulation::single_shard::{SingleShard, read};

/// Bytes that the network holds in one direction.
const BUFFER: usize = 5000;
/// Bytes that a session sends before it offers.
const HEAD: usize = 3000;
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes that a peer has to read each second.
const READ_MIN: usize = stilling_engine::limits::WRITE_RATE_MIN as usize;

#[derive(Default)]
struct OfferService {
    /// Bytes that each session offers, and bytes per offer.
    body: usize,
    piece: usize,
    head: usize,
    offer_sent: Vec<usize>,
    ended: Vec<CloseReason>,
}

#[derive(Default)]
struct OfferSession {
    at: usize,
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

impl OfferSession {
    fn offer_next(&mut self, io: &mut Io<'_>, service: &mut OfferService) {
        if self.at == service.body {
            return io.finish(CloseReason::Done);
        }
        let (from, to) = (service.head + self.at, service.head + service.body);
        let rest: Vec<u8> = (from..to.min(from + service.piece)).map(pattern).collect();
        io.offer(&rest);
        assert_eq!((io.room(), io.spare_room()), (0, 0));
        assert_eq!(io.send(b"behind"), Err(OutputFull), "nothing goes behind an offer");
    }
}

impl Service for OfferService {
    type Session = OfferSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> OfferSession {
        OfferSession::default()
    }
}

impl Session for OfferSession {
    type Service = OfferService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut OfferService) {
        let head: Vec<u8> = (0..service.head).map(pattern).collect();
        io.send(&head).expect("there is room");
        self.offer_next(io, service);
    }

    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, service: &mut OfferService) -> usize {
        assert_eq!(self.at, service.body, "input is shown before the offer is over");
        bytes.len()
    }

    fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, service: &mut OfferService) {
        service.offer_sent.push(count);
        self.at += count;
        self.offer_next(io, service);
    }

    fn closed(&mut self, reason: CloseReason, service: &mut OfferService) {
        service.ended.push(reason);
    }
}

/// Sessions that send `head` bytes and offer `body` more, over a network that holds `buffer` bytes.
fn fixture(head: usize, body: usize, buffer: usize) -> SingleShard<OfferService> {
    let service = OfferService { body, head, piece: usize::MAX / 2, ..OfferService::default() };
    SingleShard::new(
        service,
        ShardConfig { capacity: 100, write_timeout: WRITE_TIMEOUT, ..ShardConfig::default() },
        buffer,
    )
}

/// Row 4.36: a long response to a slow reader: all bytes arrive in order, and only those of the head are ever stored.
#[test]
fn offered_bytes_arrive_whole_and_are_never_stored() {
    for (head, body, buffer) in [
        (0, 300_000, BUFFER),
        (HEAD, 300_000, BUFFER),
        // The head itself does not fit.
        (HEAD, 100_000, 1000),
        (HEAD, 1, HEAD),
        // All bytes are sent at once.
        (HEAD, 300_000, 1_000_000),
        (SEND_MAX, 100_000, BUFFER),
    ] {
        let mut fixture = fixture(head, body, buffer);
        let mut client = fixture.client();
        // Not to an ended session: the result would be a reset.
        if fixture.shard.service().ended.is_empty() {
            client.write(b"?").expect("there is room");
        }
        let mut seen = 0;
        loop {
            fixture.run_turns();
            assert!(
                fixture.shard.held_bytes().1 <= if seen < head { SEND_MAX } else { 0 },
                "{:?}",
                fixture.shard.held_bytes()
            );
            let (bytes, end) = read(&mut client, 2500);
            for byte in bytes {
                assert_eq!(byte, pattern(seen), "byte {seen}");
                seen += 1;
            }
            if end {
                break;
            }
        }
        assert_eq!(seen, head + body);
        drop(client);
        fixture.run_turns();
        let service = fixture.shard.service();
        assert_eq!(
            (service.offer_sent.iter().sum::<usize>(), &service.ended),
            (body, &vec![CloseReason::Done])
        );
        assert_eq!(fixture.shard.held_bytes(), (0, 0));
    }
}

/// Row 4.36: when the rest of an offer is sent the session continues in the same turn, however long the shard could
/// wait.
#[test]
fn the_result_of_an_offer_is_reported_without_a_wait() {
    let mut fixture = fixture(0, 100_000, BUFFER);
    fixture.shard.service().piece = 2000;
    let mut client = fixture.client();
    let mut seen = 0;
    while seen < 100_000 {
        seen += read(&mut client, 2500).0.len();
        fixture.shard.turn(true).expect("turns");
    }
    assert!(
        fixture.network.now().as_nanos() < WRITE_TIMEOUT.as_nanos() as u64,
        "{:?}",
        fixture.network.now()
    );
}

/// Row 4.36: fast readers of long responses leave room for all other connections, and for each other.
#[test]
fn fast_readers_of_long_answers_do_not_delay_others() {
    const READERS: usize = 3 * ARENA_SIZE / SEND_MAX;
    const BODY: usize = 40 * SEND_MAX;
    let mut fixture = fixture(10, BODY, 2 * SEND_MAX);
    fixture.shard.service().piece = SEND_MAX;
    let mut readers: Vec<(SimPeer, usize)> = (0..READERS).map(|_| (fixture.client(), 0)).collect();
    let turn = |fixture: &mut SingleShard<OfferService>, readers: &mut Vec<(SimPeer, usize)>| {
        for (peer, seen) in readers {
            *seen += read(peer, usize::MAX).0.len();
        }
        fixture.shard.turn(false).expect("turns");
        fixture.network.advance_to(fixture.network.now().after(Duration::from_micros(1)));
    };
    for _ in 0..10 {
        turn(&mut fixture, &mut readers);
    }
    let mut late = fixture.start_connecting();
    for _ in 0..5 {
        turn(&mut fixture, &mut readers);
    }
    assert!(!read(&mut late, usize::MAX).0.is_empty(), "it is served beside the others");
    // As many turns as they need if each gets its share of half of the arena.
    for _ in 0..60 {
        turn(&mut fixture, &mut readers);
    }
    let (least, most) =
        readers.iter().fold((usize::MAX, 0), |(least, most), (_, seen)| (least.min(*seen), most.max(*seen)));
    assert!(most < BODY && most - least <= 4 * SEND_MAX, "{least} {most}");
}

/// Row 4.35: a peer that reads nothing is closed at the timeout; a peer that reads at the minimum rate gets more time.
#[test]
fn the_write_timeout_holds_for_offers() {
    let mut fixture = fixture(0, 100_000, BUFFER);
    let mut client = fixture.client();
    let mut seen = 0;
    for _ in 0..10 {
        fixture.network.advance_to(fixture.network.now().after(WRITE_TIMEOUT * 2 / 3));
        seen += read(&mut client, 2 * READ_MIN).0.len();
        fixture.run_turns();
        assert_eq!(fixture.shard.open_connections(), 1, "after {seen} bytes");
    }
    let reports = fixture.shard.service().offer_sent.len();
    fixture.network.advance_to(fixture.network.now().after(WRITE_TIMEOUT * 3));
    fixture.run_turns();
    assert_eq!(fixture.shard.service().ended, [CloseReason::WriteTimeout]);
    assert_eq!(fixture.shard.service().offer_sent.len(), reports, "no report of unsent bytes");
    assert_eq!(fixture.shard.held_bytes(), (0, 0));
}

/// Row 4.34: a peer that closes in the middle of an offer ends its connection once.
#[test]
fn a_peer_that_closes_during_an_offer_ends_its_connection() {
    let mut fixture = fixture(HEAD, 100_000, BUFFER);
    let mut client = fixture.client();
    read(&mut client, 4000);
    fixture.run_turns();
    client.reset();
    fixture.run_turns();
    assert_eq!(fixture.shard.service().ended, [CloseReason::PeerReset]);
    assert_eq!((fixture.shard.open_connections(), fixture.shard.held_bytes()), (0, (0, 0)));
}
