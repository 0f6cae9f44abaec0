//! Clients with arbitrary input: bytes go through the sessions' decoder into the hub, and the output through the
//! clients' decoder. Shared by the tests and the fuzz target.
//!
//! ```text
//!   script ─▶ client bytes ─▶ ClientDecoder ─▶ publication batch ─▶ hub ─▶ delivery batch ─▶ ServerDecoder ─▶ checks
//!          └▶ the disk writes, a shard runs, time passes, a client disconnects
//! ```
//!
//! For any input:
//!
//! - nothing panics, and the output to a client is valid, complete protocol for its own subscriptions;
//! - in the end there are as many PONGs as PINGs, and never more; no connection stays parked;
//! - **ledger**: publications for streams = stored + duplicates + refused;
//! - **bounded**: a client has at most eight subscriptions, a shard at most its routed and publication batches, and a
//!   decoder retains at most a line or a short message;
//! - without further input everything is settled after a while.

use std::collections::{BTreeSet, VecDeque};

use stilling_hub::{
    ClientId, ClientOptions, DeliveryBatch, DeliveryItem, HubRequest, Ingress, Loss, Payload, Publication,
    PublicationBatch, ShardTable, SubscriptionLimit,
};
use stilling_journal::disk::simulated::{DiskFaults, ENOSPC, SimulatedDisk};
use stilling_ring::SharedBlock;
use stilling_wire::nats::{ClientDecoder, ClientEvent, Connect, NatsLimits, ServerDecoder, ServerEvent};

use super::{HubFixture, ShardRequest, client, put};

const SCRIPT_CLIENTS: usize = 4;
/// Publication batches of a shard. When the hub holds all of them, the shard's clients are not read.
const PUBLICATION_BATCHES_MAX: usize = 3;
const PIECES: usize = 3;
/// Messages that may wait for the disk: few enough to park connections.
const PENDING_MAX: u32 = 3;
const SUBSCRIPTIONS_MAX: u64 = 8;
/// Turns within which everything is settled without further input.
const TURNS_MAX: usize = 100_000;

const LIMITS: NatsLimits = NatsLimits {
    control_line_size_max: 512,
    payload_size_max: 16 * 1024,
    whole_size_max: 256,
    subject: stilling_wire::nats::SubjectLimits { size_max: 128, tokens_max: 16 },
};

/// Counts of what occurred, to prove that it did.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ScriptCounts {
    pub(crate) stored: u64,
    pub(crate) delivered: u64,
    pub(crate) pongs: u64,
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
    pub(crate) closed: u64,
    pub(crate) consumers: u64,
    pub(crate) parked: u64,
}

struct ScriptClient {
    at: ClientId,
    client_options: ClientOptions,
    /// It has sent CONNECT with headers at some time; a subscription uses the option sent before it.
    supports_headers: bool,
    decoder: ClientDecoder,
    input: Vec<u8>,
    assembly: Option<PartialPublish>,
    server_decoder: ServerDecoder,
    output: Vec<u8>,
    sids: BTreeSet<Vec<u8>>,
    pings: u64,
    pongs: u64,
    is_gone: bool,
    /// The hub has parked the connection: it is not read.
    is_paused: bool,
}

struct PartialPublish {
    subject: Vec<u8>,
    reply: Vec<u8>,
    headers_size: usize,
    body: Vec<u8>,
}

impl ScriptClient {
    fn new(number: usize, life: u64) -> ScriptClient {
        ScriptClient {
            at: client((number % 2) as u32, life * SCRIPT_CLIENTS as u64 + number as u64),
            client_options: ClientOptions::default(),
            supports_headers: false,
            decoder: ClientDecoder::default(),
            input: Vec::new(),
            assembly: None,
            server_decoder: ServerDecoder::default(),
            output: Vec::new(),
            sids: BTreeSet::new(),
            pings: 0,
            pongs: 0,
            is_gone: false,
            is_paused: false,
        }
    }
}

/// Publication batches on the way from a shard to the hub.
#[derive(Default)]
struct ShardInput {
    publication_batches: VecDeque<(PublicationBatch, usize)>,
}

struct ScriptFixture {
    rig: HubFixture,
    disk: SimulatedDisk,
    shard_inputs: [ShardInput; 2],
    script_clients: Vec<ScriptClient>,
    connections_made: u64,
    /// Publications with a subject of a stream.
    stream_publications: u64,
    counts: ScriptCounts,
}

/// Plays a script: each step is a byte that selects an action and a client; for client input a length and the bytes
/// follow.
pub(crate) fn play(mut script: &[u8]) -> ScriptCounts {
    let disk = SimulatedDisk::new();
    let (rig, _) = HubFixture::changed(&disk, (2, PIECES), |streams| streams[0].pending_max = PENDING_MAX);
    let mut world = ScriptFixture {
        rig,
        disk,
        shard_inputs: Default::default(),
        script_clients: (0..SCRIPT_CLIENTS).map(|number| ScriptClient::new(number, 0)).collect(),
        connections_made: 0,
        stream_publications: 0,
        counts: ScriptCounts::default(),
    };
    while let Some((&step, rest)) = script.split_first() {
        script = rest;
        let number = usize::from(step) % SCRIPT_CLIENTS;
        match step / 4 % 16 {
            0..9 => {
                let (length, rest) =
                    script.split_first().map_or((0, script), |(&l, rest)| (usize::from(l), rest));
                let (counts, rest) = rest.split_at(length.min(rest.len()));
                script = rest;
                world.script_clients[number].input.extend_from_slice(counts);
                world.read(number);
            }
            9 | 10 => {
                world.rig.hub.storage_mut().write();
            }
            11 => {
                world.rig.hub.storage_mut().serve_read();
            }
            12 => world.poll_shards(number % 2),
            13 => world.rig.now_ns += u64::from(step) * 10_000_000,
            14 => world.disconnect(number),
            // One step value in 256 fails the disk; most scripts do not contain it.
            _ if step == 255 => {
                world.disk.fail(DiskFaults { writes: Some((2, ENOSPC)), ..DiskFaults::default() });
            }
            _ => {}
        }
        world.turn();
        world.check_bounds();
    }
    world.run_until_settled();
    world.finish()
}

impl ScriptFixture {
    fn read(&mut self, number: usize) {
        let ScriptFixture { rig, script_clients, shard_inputs, stream_publications, counts, .. } = self;
        let peer = &mut script_clients[number];
        let way = &mut shard_inputs[peer.at.shard as usize];
        let mut consumed = 0;
        while !peer.is_gone && !peer.is_paused && way.has_room() {
            let Ok(step) = peer.decoder.decode(&LIMITS, &peer.input[consumed..]) else {
                peer.is_gone = true;
                break;
            };
            consumed += step.consumed;
            let client_options = peer.client_options;
            let table = &mut rig.tables[peer.at.shard as usize];
            let mut ask = |ask: ShardRequest<'_>| way.ask(table, (peer.at.token, client_options), ask);
            match step.event {
                ClientEvent::NeedMore => break,
                ClientEvent::Connect(json) => match Connect::parse(json) {
                    Ok(connect) => {
                        peer.supports_headers |= connect.headers;
                        peer.client_options = ClientOptions {
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
                        ingress: Ingress::Nats,
                        subject: message.subject.as_bytes(),
                        reply: message.reply.map_or(&b""[..], |reply| reply.as_bytes()),
                        headers: message.headers,
                        payload: message.payload.into(),
                        ticket: None,
                    };
                    *stream_publications += u64::from(is_for_stream(publication.subject));
                    ask(HubRequest::Publish(publication).into()).expect("it is no subscription");
                }
                ClientEvent::PublishStart(head) => {
                    peer.assembly = Some(PartialPublish {
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
                    let Some(PartialPublish { subject, reply, headers_size, body }) = peer.assembly.take()
                    else {
                        panic!("the end of a message that never began");
                    };
                    // A message assembled from parts is passed by reference, as in a server.
                    let payload_range = headers_size..body.len();
                    let block = SharedBlock::from(body);
                    let headers = block.bytes(0..headers_size);
                    let payload = Payload::shared(&block, payload_range);
                    let (subject, reply) = (&subject[..], &reply[..]);
                    *stream_publications += u64::from(is_for_stream(subject));
                    let publication = Publication {
                        ingress: Ingress::Nats,
                        subject,
                        reply,
                        headers,
                        payload,
                        ticket: None,
                    };
                    ask(HubRequest::Publish(publication).into()).expect("it is no subscription");
                }
                ClientEvent::Subscribe(wanted) => {
                    peer.sids.insert(wanted.sid.to_vec());
                    let queue = wanted.queue.unwrap_or(b"");
                    let subscribe =
                        ShardRequest::Subscribe { filter: wanted.filter.as_bytes(), queue, sid: wanted.sid };
                    peer.is_gone |= ask(subscribe).is_err();
                }
                ClientEvent::Unsubscribe { sid, after } => {
                    ask(ShardRequest::Unsubscribe { sid, after }).expect("it is no subscription");
                }
                ClientEvent::Ping => {
                    peer.pings += 1;
                    ask(HubRequest::Barrier.into()).expect("it is no subscription");
                }
            }
        }
        peer.input.drain(..consumed);
        if way.has_room() && !peer.is_gone && !peer.is_paused {
            let most = LIMITS.control_line_size_max.max(LIMITS.whole_size_max + LIMITS.control_line_size_max);
            assert!(peer.input.len() <= most as usize, "{} bytes are left", peer.input.len());
        }
        if peer.is_gone {
            counts.closed += 1;
            self.disconnect(number);
        }
    }

    fn disconnect(&mut self, number: usize) {
        let at = self.script_clients[number].at;
        self.ask(at, HubRequest::Disconnect);
        self.connections_made += 1;
        self.script_clients[number] = ScriptClient::new(number, self.connections_made);
    }

    fn ask(&mut self, from: ClientId, request: HubRequest<'_>) {
        let ScriptFixture { rig, shard_inputs, .. } = self;
        let table = &mut rig.tables[from.shard as usize];
        let asked = shard_inputs[from.shard as usize].ask(
            table,
            (from.token, ClientOptions::default()),
            request.into(),
        );
        asked.expect("it is no subscription");
    }

    /// Runs the hub for a turn, as its runner does.
    fn turn(&mut self) {
        for (shard, way) in self.shard_inputs.iter_mut().enumerate() {
            let table = &mut self.rig.tables[shard];
            table.remove_some();
            if table.has_changes() {
                table.push_changes(way.publication_batch());
            }
            while let Some(mark) = table.next_unanswerable_mark() {
                table.push(
                    way.publication_batch(),
                    0,
                    ClientOptions::default(),
                    &HubRequest::MarkReached { mark },
                );
            }
        }
        let ScriptFixture { rig, shard_inputs, .. } = self;
        let now = rig.now();
        rig.hub.poll_storage(now);
        for (shard, way) in shard_inputs.iter_mut().enumerate() {
            while let Some((publication_batch, at)) = way.publication_batches.front_mut() {
                *at = rig.hub.process_requests(shard, publication_batch, *at, now);
                if *at < publication_batch.len() {
                    break;
                }
                way.publication_batches.pop_front();
            }
        }
        rig.hub.flush();
        for number in 0..SCRIPT_CLIENTS {
            self.read(number);
        }
    }

    fn poll_shards(&mut self, shard: usize) {
        while let Some(mut piece) = self.rig.hub.outlets_mut().handed[shard].pop_front() {
            let mut deliveries = DeliveryBatch::new();
            while !self.rig.tables[shard].expand(&mut piece, &mut deliveries) {
                self.hand_out(shard, &mut deliveries);
            }
            self.hand_out(shard, &mut deliveries);
        }
        for number in (0..SCRIPT_CLIENTS).filter(|number| number % 2 == shard) {
            self.script_clients[number].receive(&mut self.counts);
            if self.script_clients[number].is_gone {
                self.counts.closed += 1;
                self.disconnect(number);
            }
        }
    }

    fn hand_out(&mut self, shard: usize, deliveries: &mut DeliveryBatch) {
        while let Some(token) = deliveries.advance() {
            let peer = self.script_clients.iter_mut().find(|peer| peer.at == client(shard as u32, token));
            let Some(peer) = peer else {
                // A disconnected client gets no output; its shard answers its marks.
                if let Some(DeliveryItem::Mark(mark)) = deliveries.current() {
                    self.ask(client(shard as u32, token), HubRequest::MarkReached { mark });
                }
                continue;
            };
            match deliveries.current().expect("there is one") {
                DeliveryItem::Bytes(first, second) => {
                    peer.output.extend_from_slice(first);
                    peer.output.extend_from_slice(second);
                }
                DeliveryItem::Message(line, payload, end) => {
                    peer.output.extend([line, payload.bytes(), end].concat());
                }
                DeliveryItem::Mark(mark) => {
                    let at = peer.at;
                    self.ask(at, HubRequest::MarkReached { mark });
                }
                DeliveryItem::Pause => peer.is_paused = true,
                DeliveryItem::Resume => peer.is_paused = false,
                DeliveryItem::Close => peer.is_gone = true,
                DeliveryItem::PublishOutcome { .. } => panic!("an outcome without a ticket"),
            }
        }
        deliveries.clear();
    }

    fn check_bounds(&self) {
        self.rig.count();
        let counters = self.rig.hub.counters();
        let connections_made = self.script_clients.len() as u64;
        let subscriptions = counters.subscriptions();
        assert!(subscriptions <= connections_made * SUBSCRIPTIONS_MAX, "{subscriptions} subscriptions");
        for handed in &self.rig.hub.outlets().handed {
            assert!(handed.len() <= PIECES);
        }
    }

    fn run_until_settled(&mut self) {
        for _ in 0..TURNS_MAX {
            let storage = self.rig.hub.storage_mut();
            let has_written = storage.write();
            let has_read = storage.serve_read();
            self.turn();
            self.poll_shards(0);
            self.poll_shards(1);
            let is_idle = self.shard_inputs.iter().all(|way| way.publication_batches.is_empty())
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

    fn finish(mut self) -> ScriptCounts {
        self.rig.hub.flush();
        let counters = self.rig.hub.counters();
        let stored: u64 = counters.streams.iter().map(|stream| stream.visible.get()).sum();
        let lost: u64 = Loss::ALL.iter().map(|loss| counters.losses(Ingress::Nats, *loss)).sum();
        let duplicates = counters.duplicates.get();
        assert_eq!(
            self.stream_publications,
            stored + duplicates + lost,
            "the ledger: {stored} stored, {duplicates} duplicates, {lost} lost"
        );
        for peer in &self.script_clients {
            assert_eq!(peer.pongs, peer.pings, "{:?}", peer.at);
            assert!(!peer.is_paused, "{:?} is never resumed", peer.at);
            assert!(
                !peer.server_decoder.in_body() && peer.output.is_empty(),
                "{}",
                peer.output.escape_ascii()
            );
        }
        assert!(counters.subscriptions() <= SCRIPT_CLIENTS as u64 * SUBSCRIPTIONS_MAX);
        ScriptCounts {
            stored,
            duplicates,
            refused: lost,
            delivered: counters.delivered(),
            consumers: counters.consumers.get(),
            parked: counters.parked_requests.get(),
            ..self.counts
        }
    }
}

impl ShardInput {
    fn has_room(&self) -> bool {
        self.publication_batches.len() < PUBLICATION_BATCHES_MAX
    }

    /// A batch that had room when a request began may become longer.
    fn ask(
        &mut self,
        table: &mut ShardTable,
        from: (u64, ClientOptions),
        ask: ShardRequest<'_>,
    ) -> Result<(), SubscriptionLimit> {
        put(table, self.publication_batch(), from, ask)
    }

    /// Returns the publication batch for the next request.
    fn publication_batch(&mut self) -> &mut PublicationBatch {
        if self
            .publication_batches
            .back()
            .is_none_or(|(publication_batch, at)| *at > 0 || publication_batch.len() >= 16)
        {
            self.publication_batches.push_back((PublicationBatch::new(), 0));
        }
        &mut self.publication_batches.back_mut().expect("there is one").0
    }
}

impl ScriptClient {
    fn receive(&mut self, counts: &mut ScriptCounts) {
        let mut consumed = 0;
        loop {
            let step = self.server_decoder.decode(&NatsLimits::for_client(), &self.output[consumed..]);
            let step = step.unwrap_or_else(|error| {
                panic!("{error:?}: {}", self.output[consumed..].escape_ascii());
            });
            consumed += step.consumed;
            match step.event {
                ServerEvent::NeedMore => break,
                ServerEvent::Message(message) => {
                    let sid = message.sid;
                    assert!(self.sids.contains(sid), "no subscription {}", sid.escape_ascii());
                    assert!(message.headers.is_empty() || self.supports_headers);
                }
                ServerEvent::Pong => {
                    (self.pongs, counts.pongs) = (self.pongs + 1, counts.pongs + 1);
                    assert!(self.pongs <= self.pings, "a PONG without a PING");
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

/// Returns whether the subject belongs to one of the fixture's streams.
fn is_for_stream(subject: &[u8]) -> bool {
    let takes = |start: &[u8]| subject.starts_with(start);
    takes(b"disk.") || takes(b"memory.") || takes(b"none.")
}
