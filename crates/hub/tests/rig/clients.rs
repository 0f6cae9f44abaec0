//! Clients that say anything: bytes go through the decoder of the sessions into the hub, and what comes back through the
//! decoder of clients. Shared by the tests and by the fuzz target.
//!
//! ```text
//!   script ─▶ bytes of a client ─▶ ClientDecoder ─▶ intake ─▶ hub ─▶ deliveries ─▶ ServerDecoder ─▶ checks
//!          └▶ the disk writes, a shard looks, time passes, a client goes
//! ```
//!
//! What holds for whatever is said:
//! - nothing panics, and what a client is told is the protocol, whole, for subscriptions that it has made;
//! - as many PONGs as PINGs, in the end, and never more; no connection is parked in the end;
//! - **ledger**: what came in for streams = stored + duplicates + refused;
//! - **bounded**: a client has at most eight subscriptions, a shard at most its pieces and its intakes, a decoder is never
//!   left with more than a line or a short message.
//! - when nobody says anything more, everything is settled after a while.

use std::collections::{BTreeSet, VecDeque};

use stilling_hub::{
    Client, Deliveries, Delivery, Door, Intake, Loss, Payload, Publication, Request, ShardTable, TooMany,
    Traits,
};
use stilling_journal::disk::simulated::{Faults, NO_SPACE, SimulatedDisk};
use stilling_ring::SharedBlock;
use stilling_wire::nats::{ClientDecoder, ClientEvent, Connect, Limits, ServerDecoder, ServerEvent};

use super::{Ask, Rig, client, put};

const PEERS: usize = 4;
/// Intakes of a shard. All with the hub: its clients are not read.
const INTAKES_MAX: usize = 3;
/// Pieces of deliveries of a shard.
const PIECES: usize = 3;
/// Messages that may wait for the disk: so few that connections are parked.
const PENDING_MAX: u32 = 3;
/// As the rig has it.
const SUBSCRIPTIONS_MAX: u64 = 8;
/// Turns in which everything has to be settled when nobody says anything more.
const TURNS_MAX: usize = 100_000;

/// Short enough that a script reaches them.
const LIMITS: Limits = Limits {
    control_line_size_max: 512,
    payload_size_max: 16 * 1024,
    whole_size_max: 256,
    subject: stilling_wire::nats::SubjectLimits { size_max: 128, tokens_max: 16 },
};

/// What happened, for those who want to know that something did.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Said {
    pub(crate) stored: u64,
    pub(crate) delivered: u64,
    pub(crate) pongs: u64,
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
    pub(crate) closed: u64,
    pub(crate) consumers: u64,
    pub(crate) parked: u64,
}

/// A connection and the client behind it.
struct Peer {
    at: Client,
    traits: Traits,
    /// It has said once that it takes headers; a subscription goes by what was said before it.
    takes_headers: bool,
    decoder: ClientDecoder,
    input: Vec<u8>,
    assembly: Option<Assembly>,
    told: ServerDecoder,
    output: Vec<u8>,
    /// All that it has ever subscribed to.
    sids: BTreeSet<Vec<u8>>,
    pings: u64,
    pongs: u64,
    is_gone: bool,
    /// The hub has parked it: it is not read.
    is_paused: bool,
}

struct Assembly {
    subject: Vec<u8>,
    reply: Vec<u8>,
    headers_size: usize,
    body: Vec<u8>,
}

impl Peer {
    fn new(number: usize, life: u64) -> Peer {
        Peer {
            at: client((number % 2) as u32, life * PEERS as u64 + number as u64),
            traits: Traits::default(),
            takes_headers: false,
            decoder: ClientDecoder::default(),
            input: Vec::new(),
            assembly: None,
            told: ServerDecoder::default(),
            output: Vec::new(),
            sids: BTreeSet::new(),
            pings: 0,
            pongs: 0,
            is_gone: false,
            is_paused: false,
        }
    }
}

/// A shard's way to the hub.
#[derive(Default)]
struct Way {
    intakes: VecDeque<(Intake, usize)>,
}

struct World {
    rig: Rig,
    disk: SimulatedDisk,
    ways: [Way; 2],
    peers: Vec<Peer>,
    lives: u64,
    /// Publications that a stream was to take.
    for_streams: u64,
    said: Said,
}

/// Plays a script: each step is a byte that says what happens to whom, and for what a client says a length and its bytes.
pub(crate) fn play(mut script: &[u8]) -> Said {
    let disk = SimulatedDisk::new();
    let (rig, _) = Rig::changed(&disk, (2, PIECES), |streams| streams[0].pending_max = PENDING_MAX);
    let mut world = World {
        rig,
        disk,
        ways: Default::default(),
        peers: (0..PEERS).map(|number| Peer::new(number, 0)).collect(),
        lives: 0,
        for_streams: 0,
        said: Said::default(),
    };
    while let Some((&step, rest)) = script.split_first() {
        script = rest;
        let number = usize::from(step) % PEERS;
        match step / 4 % 16 {
            0..9 => {
                let (length, rest) =
                    script.split_first().map_or((0, script), |(&l, rest)| (usize::from(l), rest));
                let (said, rest) = rest.split_at(length.min(rest.len()));
                script = rest;
                world.peers[number].input.extend_from_slice(said);
                world.read(number);
            }
            9 | 10 => {
                world.rig.hub.storage_mut().write();
            }
            11 => {
                world.rig.hub.storage_mut().look_up();
            }
            12 => world.look(number % 2),
            13 => world.rig.now_ns += u64::from(step) * 10_000_000,
            14 => world.leave(number),
            // One disk in a thousand fails: most scripts have no such step.
            _ if step == 255 => {
                world.disk.fail(Faults { writes: Some((2, NO_SPACE)), ..Faults::default() });
            }
            _ => {}
        }
        world.turn();
        world.check_bounds();
    }
    world.settle();
    world.finish()
}

impl World {
    /// A session reads what its client has said, as far as there is room.
    fn read(&mut self, number: usize) {
        let World { rig, peers, ways, for_streams, said, .. } = self;
        let peer = &mut peers[number];
        let way = &mut ways[peer.at.shard as usize];
        let mut consumed = 0;
        while !peer.is_gone && !peer.is_paused && way.has_room() {
            let Ok(step) = peer.decoder.decode(&LIMITS, &peer.input[consumed..]) else {
                peer.is_gone = true;
                break;
            };
            consumed += step.consumed;
            let traits = peer.traits;
            let table = &mut rig.tables[peer.at.shard as usize];
            let mut ask = |ask: Ask<'_>| way.ask(table, (peer.at.token, traits), ask);
            match step.event {
                ClientEvent::NeedMore => break,
                ClientEvent::Connect(json) => match Connect::parse(json) {
                    Ok(connect) => {
                        peer.takes_headers |= connect.headers;
                        peer.traits = Traits {
                            headers: connect.headers,
                            no_responders: connect.no_responders,
                            no_echo: !connect.echo,
                        };
                    }
                    Err(_) => peer.is_gone = true,
                },
                ClientEvent::Pong | ClientEvent::Refused(_) => {}
                ClientEvent::Publish(message) => {
                    let publication = Publication {
                        door: Door::Nats,
                        subject: message.subject.as_bytes(),
                        reply: message.reply.map_or(&b""[..], |reply| reply.as_bytes()),
                        headers: message.headers,
                        payload: message.payload.into(),
                        ticket: None,
                    };
                    *for_streams += u64::from(is_for_stream(publication.subject));
                    ask(Request::Publish(publication).into()).expect("it is no subscription");
                }
                ClientEvent::PublishStart(head) => {
                    peer.assembly = Some(Assembly {
                        subject: head.subject.as_bytes().to_vec(),
                        reply: head.reply.map_or_else(Vec::new, |reply| reply.as_bytes().to_vec()),
                        headers_size: head.headers_size as usize,
                        body: Vec::new(),
                    });
                }
                ClientEvent::Piece(piece) => {
                    if let Some(assembly) = &mut peer.assembly {
                        assembly.body.extend_from_slice(piece);
                        assert!(assembly.body.len() <= LIMITS.payload_size_max as usize);
                    }
                }
                ClientEvent::PublishEnd => {
                    let Some(Assembly { subject, reply, headers_size, body }) = peer.assembly.take() else {
                        panic!("the end of a message that never began");
                    };
                    // What came in pieces goes on by reference, as in a server.
                    let payload_range = headers_size..body.len();
                    let block = SharedBlock::from(body);
                    let headers = block.bytes(0..headers_size);
                    let payload = Payload::shared(&block, payload_range);
                    let (subject, reply) = (&subject[..], &reply[..]);
                    *for_streams += u64::from(is_for_stream(subject));
                    let publication =
                        Publication { door: Door::Nats, subject, reply, headers, payload, ticket: None };
                    ask(Request::Publish(publication).into()).expect("it is no subscription");
                }
                ClientEvent::Subscribe(wanted) => {
                    peer.sids.insert(wanted.sid.to_vec());
                    let queue = wanted.queue.unwrap_or(b"");
                    let subscribe =
                        Ask::Subscribe { filter: wanted.filter.as_bytes(), queue, sid: wanted.sid };
                    peer.is_gone |= ask(subscribe).is_err();
                }
                ClientEvent::Unsubscribe { sid, after } => {
                    ask(Ask::Unsubscribe { sid, after }).expect("it is no subscription");
                }
                ClientEvent::Ping => {
                    peer.pings += 1;
                    ask(Request::Barrier.into()).expect("it is no subscription");
                }
            }
        }
        peer.input.drain(..consumed);
        if way.has_room() && !peer.is_gone && !peer.is_paused {
            let most = LIMITS.control_line_size_max.max(LIMITS.whole_size_max + LIMITS.control_line_size_max);
            assert!(peer.input.len() <= most as usize, "{} bytes are left", peer.input.len());
        }
        if peer.is_gone {
            said.closed += 1;
            self.leave(number);
        }
    }

    /// A connection is gone, and the next one comes.
    fn leave(&mut self, number: usize) {
        let at = self.peers[number].at;
        self.ask(at, Request::Leave);
        self.lives += 1;
        self.peers[number] = Peer::new(number, self.lives);
    }

    fn ask(&mut self, from: Client, request: Request<'_>) {
        let World { rig, ways, .. } = self;
        let table = &mut rig.tables[from.shard as usize];
        let asked = ways[from.shard as usize].ask(table, (from.token, Traits::default()), request.into());
        asked.expect("it is no subscription");
    }

    /// The hub's turn, as its runner does it.
    fn turn(&mut self) {
        for (shard, way) in self.ways.iter_mut().enumerate() {
            let table = &mut self.rig.tables[shard];
            table.remove_some();
            if table.has_changes() {
                table.push_changes(way.intake());
            }
            while let Some(mark) = table.next_unanswerable_mark() {
                table.push(way.intake(), 0, Traits::default(), &Request::Reached { mark });
            }
        }
        let World { rig, ways, .. } = self;
        let now = rig.now();
        rig.hub.absorb(now);
        for (shard, way) in ways.iter_mut().enumerate() {
            while let Some((intake, at)) = way.intakes.front_mut() {
                *at = rig.hub.take(shard, intake, *at, now);
                if *at < intake.len() {
                    break;
                }
                way.intakes.pop_front();
            }
        }
        rig.hub.flush();
        for number in 0..PEERS {
            self.read(number);
        }
    }

    /// A shard hands out what it was given.
    fn look(&mut self, shard: usize) {
        while let Some(mut piece) = self.rig.hub.outlets_mut().handed[shard].pop_front() {
            let mut deliveries = Deliveries::new();
            while !self.rig.tables[shard].expand(&mut piece, &mut deliveries) {
                self.hand_out(shard, &mut deliveries);
            }
            self.hand_out(shard, &mut deliveries);
        }
        for number in (0..PEERS).filter(|number| number % 2 == shard) {
            self.peers[number].hear(&mut self.said);
            if self.peers[number].is_gone {
                self.said.closed += 1;
                self.leave(number);
            }
        }
    }

    fn hand_out(&mut self, shard: usize, deliveries: &mut Deliveries) {
        while let Some(token) = deliveries.advance() {
            let peer = self.peers.iter_mut().find(|peer| peer.at == client(shard as u32, token));
            let Some(peer) = peer else {
                // One that is gone is told nothing. Its shard answers for it.
                if let Some(Delivery::Mark(mark)) = deliveries.current() {
                    self.ask(client(shard as u32, token), Request::Reached { mark });
                }
                continue;
            };
            match deliveries.current().expect("there is one") {
                Delivery::Bytes(first, second) => {
                    peer.output.extend_from_slice(first);
                    peer.output.extend_from_slice(second);
                }
                Delivery::Message(line, payload, end) => {
                    peer.output.extend([line, payload.bytes(), end].concat());
                }
                Delivery::Mark(mark) => {
                    let at = peer.at;
                    self.ask(at, Request::Reached { mark });
                }
                Delivery::Pause => peer.is_paused = true,
                Delivery::Resume => peer.is_paused = false,
                Delivery::Close => peer.is_gone = true,
                Delivery::Verdict { .. } => panic!("nobody asked for a verdict"),
            }
        }
        deliveries.clear();
    }

    fn check_bounds(&self) {
        self.rig.count();
        let counters = self.rig.hub.counters();
        let lives = self.peers.len() as u64;
        let subscriptions = counters.subscriptions();
        assert!(subscriptions <= lives * SUBSCRIPTIONS_MAX, "{subscriptions} subscriptions");
        for handed in &self.rig.hub.outlets().handed {
            assert!(handed.len() <= PIECES);
        }
    }

    /// Nobody says anything more.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let storage = self.rig.hub.storage_mut();
            let has_written = storage.write();
            let has_read = storage.look_up();
            self.turn();
            self.look(0);
            self.look(1);
            let is_idle = self.ways.iter().all(|way| way.intakes.is_empty())
                && self.rig.hub.outlets().handed.iter().all(VecDeque::is_empty)
                && !(0..2).any(|shard| self.rig.hub.has_unsent(shard));
            let has_removals = self.rig.tables.iter().any(ShardTable::has_removals);
            let is_idle = is_idle && !has_written && !has_read && !has_removals;
            if is_idle && self.rig.hub.is_quiet() && self.rig.hub.is_settled() {
                return self.rig.check_registrations();
            }
        }
        panic!("it never settles");
    }

    fn finish(mut self) -> Said {
        self.rig.hub.flush();
        let counters = self.rig.hub.counters();
        let stored: u64 = counters.streams.iter().map(|stream| stream.visible.get()).sum();
        let lost: u64 = Loss::ALL.iter().map(|loss| counters.losses(Door::Nats, *loss)).sum();
        let duplicates = counters.duplicates.get();
        assert_eq!(
            self.for_streams,
            stored + duplicates + lost,
            "the ledger: {stored} stored, {duplicates} duplicates, {lost} lost"
        );
        for peer in &self.peers {
            assert_eq!(peer.pongs, peer.pings, "{:?}", peer.at);
            assert!(!peer.is_paused, "{:?} is never resumed", peer.at);
            assert!(!peer.told.in_body() && peer.output.is_empty(), "{}", peer.output.escape_ascii());
        }
        assert!(counters.subscriptions() <= PEERS as u64 * SUBSCRIPTIONS_MAX);
        Said {
            stored,
            duplicates,
            refused: lost,
            delivered: counters.delivered(),
            consumers: counters.consumers.get(),
            parked: counters.parked_requests.get(),
            ..self.said
        }
    }
}

impl Way {
    fn has_room(&self) -> bool {
        self.intakes.len() < INTAKES_MAX
    }

    /// What has begun when there was room may make it longer.
    fn ask(&mut self, table: &mut ShardTable, from: (u64, Traits), ask: Ask<'_>) -> Result<(), TooMany> {
        put(table, self.intake(), from, ask)
    }

    /// The intake into which the next request goes.
    fn intake(&mut self) -> &mut Intake {
        if self.intakes.back().is_none_or(|(intake, at)| *at > 0 || intake.len() >= 16) {
            self.intakes.push_back((Intake::new(), 0));
        }
        &mut self.intakes.back_mut().expect("there is one").0
    }
}

impl Peer {
    /// The client reads all it was told.
    fn hear(&mut self, said: &mut Said) {
        let mut consumed = 0;
        loop {
            let step = self.told.decode(&Limits::for_client(), &self.output[consumed..]);
            let step = step.unwrap_or_else(|error| {
                panic!("{error:?}: {}", self.output[consumed..].escape_ascii());
            });
            consumed += step.consumed;
            match step.event {
                ServerEvent::NeedMore => break,
                ServerEvent::Message(message) => {
                    let sid = message.sid;
                    assert!(self.sids.contains(sid), "nobody asked for {}", sid.escape_ascii());
                    assert!(message.headers.is_empty() || self.takes_headers);
                }
                ServerEvent::Pong => {
                    (self.pongs, said.pongs) = (self.pongs + 1, said.pongs + 1);
                    assert!(self.pongs <= self.pings, "a PONG that nobody asked for");
                }
                ServerEvent::Err(_) | ServerEvent::MessageStart(_) | ServerEvent::Piece(_) => {}
                ServerEvent::MessageEnd => {}
                ServerEvent::Info(_) | ServerEvent::Ok | ServerEvent::Ping => {
                    panic!("the hub says only what is its own")
                }
            }
        }
        self.output.drain(..consumed);
    }
}

/// Whether one of the rig's streams takes the subject.
fn is_for_stream(subject: &[u8]) -> bool {
    let takes = |start: &[u8]| subject.starts_with(start);
    takes(b"disk.") || takes(b"memory.") || takes(b"none.")
}
