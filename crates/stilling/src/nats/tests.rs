//! NATS sessions on a shard with a hub, over real sockets: memory of payloads, and parked connections.

mod copies;
mod frames;
mod recording;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::{Driver, poll::Poll};
use stilling_engine::limits::SHARED_MIN;
use stilling_engine::{
    Clock, CloseReason, Io, Recipient, Service, Session, Shard, ShardConfig, ShardControl, Time, Wake,
};
use stilling_hub::{
    DeliveryItem, Durability, HubRequest, JournalStorage, Now, PublicationBatch, StreamConfig,
};
use stilling_journal::JournalWorker;
use stilling_ring::ManualTime;
use stilling_wire::nats::Info;

use self::recording::{Recorder, RecordingDisk, RecordingDriver, addresses};
use super::limits::{ASSEMBLY_TIMEOUT, PING_INTERVAL};
use super::{NatsContext, NatsSession, NatsShard};
use crate::hub::testing::{TestHub, hub_with};
use crate::hub::{HubHandle, HubMail, Runner};
use crate::lifecycle::{Lifecycle, WallClock};

/// One shard's NATS sessions, and records of their input and deliveries.
struct NatsTestService {
    hub: HubHandle,
    nats: NatsShard,
    /// Clients connect over WebSocket, after the opening handshake.
    is_framed: bool,
    lifecycle: Lifecycle,
    runner: Runner<JournalStorage>,
    /// The journal's writer, and the time of all its turns.
    journal: Option<(JournalWorker<RecordingDisk>, Instant)>,
    hub_counters: Arc<stilling_hub::HubCounters>,
    /// The hub's time, and how much passes in a turn.
    now_ns: u64,
    step_ns: u64,
    /// Addresses of input passed to sessions.
    received_ranges: Vec<Range<usize>>,
    /// Payloads of publications that reached the hub, with their addresses.
    published: BTreeMap<Vec<u8>, usize>,
    /// Payloads delivered by reference, with their addresses.
    shared: BTreeMap<Vec<u8>, usize>,
    /// Deliveries with copied payloads.
    copied: usize,
}

/// A session that records its input and deliveries.
struct RecordingSession(NatsSession);

impl Service for NatsTestService {
    type Session = RecordingSession;
    type Mail = HubMail;

    fn accepted(&mut self, listener: u32) -> RecordingSession {
        RecordingSession(match self.is_framed {
            true => NatsSession::over_websocket(listener, None),
            false => NatsSession::new(listener, None),
        })
    }

    fn next_mail(&mut self) -> Option<(Recipient, HubMail)> {
        self.hub.next_mail().map(|(token, mail)| (token.into(), mail))
    }

    fn has_mail(&self) -> bool {
        self.hub.has_mail()
    }

    fn turn(&mut self, _: &mut ShardControl<'_, Self>) -> Option<Time> {
        self.hub.port.flush();
        self.now_ns += self.step_ns;
        if let Some(publication_batch) = self.runner.next_publication_batch(0) {
            self.published.extend(published_payloads(publication_batch));
        }
        self.runner.turn(Now::simulated(self.now_ns));
        if let Some((worker, now)) = &mut self.journal {
            worker.turn(*now);
        }
        None
    }
}

impl NatsTestService {
    fn context(&mut self) -> NatsContext<'_> {
        NatsContext { nats: &mut self.nats, hub: Some(&mut self.hub), lifecycle: &self.lifecycle }
    }

    fn watch_delivery(&mut self) {
        let deliveries = self.hub.port.take_current().expect("there is one");
        let current = deliveries.current().expect("there is one");
        self.copied += usize::from(matches!(current, DeliveryItem::Bytes(..)));
        // A session may send several messages at once.
        for delivery in deliveries.rest().map(|(_, delivery)| delivery).chain([current]) {
            if let DeliveryItem::Message(_, payload, _) = delivery {
                self.shared.insert(payload.bytes().to_vec(), addresses(payload.bytes()).start);
            }
        }
        self.hub.port.put_back(deliveries);
    }
}

impl Session for RecordingSession {
    type Service = NatsTestService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut NatsTestService) {
        self.0.opened(io, &mut service.context());
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut NatsTestService) -> usize {
        service.received_ranges.push(addresses(bytes));
        self.0.received(bytes, io, &mut service.context())
    }

    fn delivered(&mut self, mail: HubMail, io: &mut Io<'_>, service: &mut NatsTestService) {
        if mail == HubMail::Delivery {
            service.watch_delivery();
        }
        self.0.delivered(mail, io, &mut service.context());
    }

    fn deadline(&mut self, io: &mut Io<'_>, service: &mut NatsTestService) {
        self.0.deadline(io, &mut service.context());
    }

    fn closed(&mut self, reason: CloseReason, service: &mut NatsTestService) {
        self.0.closed(reason, &mut service.context());
    }
}

fn published_payloads(batch: &PublicationBatch) -> impl Iterator<Item = (Vec<u8>, usize)> {
    let requests = (0..batch.len()).filter_map(|number| batch.get(number));
    requests.filter_map(|(_, _, request)| match request {
        HubRequest::Publish(publication) => {
            let bytes = publication.payload.bytes();
            Some((bytes.to_vec(), addresses(bytes).start))
        }
        _ => None,
    })
}

struct NatsFixture {
    shard: Shard<RecordingDriver<Poll>, NatsTestService>,
    recorder: Recorder,
    time: ManualTime,
    address: SocketAddr,
}

impl NatsFixture {
    fn new() -> NatsFixture {
        NatsFixture::with_streams(Vec::new())
    }

    fn with_streams(streams: Vec<StreamConfig>) -> NatsFixture {
        NatsFixture::with_hub(hub_with(streams), Recorder::default())
    }

    fn with_hub((port, runner, hub_counters): TestHub, recorder: Recorder) -> NatsFixture {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket takes options");
        let address = listener.local_addr().expect("it is bound");
        let service = NatsTestService {
            hub: HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0),
            nats: NatsShard::new(Info::default()),
            is_framed: false,
            lifecycle: Lifecycle::new(Vec::new(), WallClock::System),
            runner,
            journal: None,
            hub_counters,
            now_ns: 0,
            step_ns: 0,
            received_ranges: Vec::new(),
            published: BTreeMap::new(),
            shared: BTreeMap::new(),
            copied: 0,
        };
        let driver =
            RecordingDriver { driver: Poll::new().expect("the system has it"), recorder: recorder.clone() };
        let handle = driver.wake_handle();
        let wake = Arc::new(Wake::new(move || handle.wake()));
        let (config, counters) =
            (ShardConfig { capacity: 8, ..ShardConfig::default() }, Arc::new(EngineCounters::default()));
        let (clock, time) = Clock::manual();
        let mut shard = Shard::new(driver, service, config, clock, wake, counters);
        shard.listen(OwnedFd::from(listener), false).expect("the first listener");
        NatsFixture { shard, recorder, time, address }
    }

    /// With a stream for `disk.>` that is always full, since it has no journal.
    fn with_full_stream() -> NatsFixture {
        let disk = StreamConfig {
            name: "disk".to_owned(),
            subjects: vec!["disk.>".to_owned()],
            durability: Durability::Disk,
            ..StreamConfig::default()
        };
        NatsFixture::with_streams(vec![disk])
    }

    /// Sends bytes, and turns the shard until the session has received input.
    fn send_and_receive(&mut self, client: &mut TcpStream, bytes: &[u8]) {
        self.shard.service().received_ranges.clear();
        client.write_all(bytes).expect("the buffers of the system take it");
        self.turn_until(|service| !service.received_ranges.is_empty());
    }

    /// Advances the shard's clock in steps, so that each deadline is called in time.
    fn advance_time(&mut self, span: Duration) {
        let end = self.time.now().after(span);
        while self.time.now() < end {
            self.time.advance(Duration::from_secs(1));
            self.shard.turn(false).expect("it turns");
        }
    }

    fn client(&mut self, hello: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket takes options");
        stream.write_all(hello.as_bytes()).expect("it is short");
        self.read(&mut stream, |text| text.ends_with(b"PONG\r\n"));
        stream
    }

    /// Turns the shard until the condition holds.
    fn turn_until(&mut self, is_there: impl Fn(&NatsTestService) -> bool) {
        for _ in 0..10_000 {
            self.shard.turn(false).expect("it turns");
            if is_there(self.shard.service()) {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let hub = &self.shard.service().hub;
        panic!(
            "it never comes so far: {} connections, {} parked",
            hub.publisher_connections,
            hub.port.parked()
        );
    }

    /// Turns the shard until a client has read what it waits for.
    fn read(&mut self, stream: &mut TcpStream, is_all: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let (mut all, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        for _ in 0..10_000 {
            self.shard.turn(false).expect("it turns");
            if let Ok(count) = stream.read(&mut piece) {
                assert!(count > 0, "closed: {}", String::from_utf8_lossy(&all));
                all.extend_from_slice(&piece[..count]);
            }
            if is_all(&all) {
                return all;
            }
        }
        panic!("only {} bytes came: {}", all.len(), String::from_utf8_lossy(&all[..all.len().min(200)]));
    }
}

/// Publishes `count` messages with payloads of `size` bytes in one write, and waits until they are delivered.
fn publish(fixture: &mut NatsFixture, count: usize, size: usize) {
    let mut subscriber = fixture.client("CONNECT {}\r\nSUB a 1\r\nPING\r\n");
    let mut publisher = fixture.client("CONNECT {}\r\nPING\r\n");
    let service = fixture.shard.service();
    (service.received_ranges, service.shared, service.copied) = (Vec::new(), BTreeMap::new(), 0);
    let (mut input, mut expected) = (Vec::new(), Vec::new());
    for number in 0..count {
        let payload = vec![b'a' + (number % 26) as u8; size];
        for (line, all) in [("PUB a", &mut input), ("MSG a 1", &mut expected)] {
            all.extend_from_slice(format!("{line} {size}\r\n").as_bytes());
            all.extend_from_slice(&payload);
            all.extend_from_slice(b"\r\n");
        }
    }
    publisher.write_all(&input).expect("the buffers of the system take it");
    assert!(fixture.read(&mut subscriber, |text| text.len() >= expected.len()) == expected);
}

/// A connection that was notified of the drain, and has left the hub, no longer subscribes: it would take messages
/// from its queue group.
#[test]
fn a_connection_that_has_left_the_hub_registers_nothing() {
    let mut fixture = NatsFixture::new();
    fixture.shard.service().lifecycle.end();
    let mut client = TcpStream::connect(fixture.address).expect("it listens");
    client.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket takes options");
    fixture.send_and_receive(&mut client, b"CONNECT {\"verbose\":true}\r\nSUB work q 1\r\n");
    fixture.turn_until(|service| service.hub_counters.registrations.get() == 1);
    // It is quiet, and has received everything.
    for _ in 0..10_000 {
        fixture.time.advance(Duration::from_millis(10));
        fixture.shard.turn(false).expect("it turns");
        if fixture.shard.service().hub_counters.registrations.get() == 0 {
            break;
        }
    }
    assert_eq!(fixture.shard.service().hub_counters.registrations.get(), 0);
    fixture.send_and_receive(&mut client, b"SUB work q 2\r\nPUB a 1\r\nx\r\n");
    fixture.turn_until(|service| service.hub_counters.messages.get() == 1);
    assert_eq!(fixture.shard.service().hub_counters.registrations.get(), 0);
    let mut text = Vec::new();
    client.read_to_end(&mut text).expect("the server has ended its part");
    let text = String::from_utf8(text).expect("text");
    assert_eq!(text.matches("+OK").count(), 2, "{text}");
}

/// Design, section 4: a streaming connection's payloads are delivered from the memory that they were received into.
#[test]
fn long_payloads_are_delivered_from_where_they_were_received() {
    let mut fixture = NatsFixture::new();
    publish(&mut fixture, 14, 4096);
    let service = fixture.shard.service();
    assert_eq!((service.shared.len(), service.copied), (14, 0));
    for (payload, &start) in &service.shared {
        let end = start + payload.len();
        let lies_in = |range: &Range<usize>| range.start <= start && end <= range.end;
        assert!(
            service.received_ranges.iter().any(lies_in),
            "{start:x}..{end:x} was copied from {:x?}",
            service.received_ranges
        );
    }
    assert_eq!(fixture.shard.block_bytes(), stilling_engine::limits::BLOCK_SIZE);
}

/// Design, section 4: a payload from a small receive is copied once, into a block, and passed on by reference.
#[test]
fn a_payload_received_alone_is_delivered_from_a_block() {
    let mut fixture = NatsFixture::new();
    publish(&mut fixture, 1, SHARED_MIN);
    let service = fixture.shard.service();
    assert_eq!((service.shared.len(), service.copied), (1, 0));
    publish(&mut fixture, 20, SHARED_MIN - 1);
    assert_eq!(fixture.shard.service().shared, BTreeMap::new(), "short ones are copied with their lines");
}

/// Design, section 4: a message assembled from pieces becomes a block of its own.
#[test]
fn a_payload_in_pieces_is_delivered_from_its_own_block() {
    let mut fixture = NatsFixture::new();
    publish(&mut fixture, 1, 200_000);
    let service = fixture.shard.service();
    assert_eq!((service.shared.len(), service.copied), (1, 0));
}

/// Design, section 5: a connection is not read while its stream is full, and others are. Then its later input is
/// handled in order. A connection that leaves meanwhile leaves only its publication.
#[test]
fn a_connection_whose_stream_is_full_is_not_read_and_others_are() {
    let mut fixture = NatsFixture::with_full_stream();
    let mut publisher = fixture.client("CONNECT {}\r\nSUB inbox.* 1\r\nPING\r\n");
    let mut leaving = fixture.client("CONNECT {}\r\nSUB inbox.* 1\r\nPING\r\n");
    let mut other = fixture.client("CONNECT {}\r\nPING\r\n");
    for client in [&mut publisher, &mut leaving] {
        client.write_all(b"PUB disk.a inbox.1 1\r\nx\r\n").expect("it is short");
    }
    fixture.turn_until(|service| service.hub.port.parked() == 2);
    publisher.write_all(b"PING\r\nPUB disk.a inbox.2 1\r\nx\r\n").expect("it is short");
    drop(leaving);
    for _ in 0..20 {
        other.write_all(b"PING\r\n").expect("it is short");
        assert_eq!(fixture.read(&mut other, |text| text.ends_with(b"PONG\r\n")), b"PONG\r\n");
    }
    fixture.turn_until(|service| service.hub.publisher_connections == 2);
    let counters = Arc::clone(&fixture.shard.service().hub_counters);
    // Only the publication of the connection that has left is kept.
    fixture.turn_until(|service| service.hub_counters.subscriptions() == 1);
    assert_eq!((counters.parked.get(), counters.parked_requests.get()), (2, 2));
    fixture.shard.service().step_ns = 1_000_000_000;
    let refusals = |text: &str| text.matches(r#""err_code":10023"#).count();
    let text =
        fixture.read(&mut publisher, |text| text.windows(7).filter(|part| part == b"inbox.2").count() == 1);
    let text = String::from_utf8(text).expect("text");
    let (before, behind) = text.split_once("PONG\r\n").expect("it is answered");
    // The other publisher's refusal may be sent to its inbox, too.
    assert!(refusals(before) >= 1 && before.contains("inbox.1") && behind.contains("inbox.2"), "{text}");
    fixture.turn_until(|service| service.hub.port.parked() == 0);
    fixture.turn_until(|service| service.hub_counters.parked.get() == 0);
    assert_eq!((counters.subscriptions(), counters.parked_requests.get()), (1, 2));
}

/// Design, section 5: a connection that the server does not read is neither silent nor late.
#[test]
fn timeouts_of_a_parked_connection_are_suspended() {
    let mut fixture = NatsFixture::with_full_stream();
    let mut subscriber = fixture.client("CONNECT {}\r\nSUB a 1\r\nPING\r\n");
    let mut assembling = fixture.client("CONNECT {}\r\nPING\r\n");
    let mut answering = fixture.client("CONNECT {}\r\nPING\r\n");
    let payload = vec![b'x'; 200_000];
    let (first, rest) = payload.split_at(1000);
    fixture.send_and_receive(&mut assembling, &[b"PUB disk.a 1\r\nx\r\nPUB a 200000\r\n", first].concat());
    fixture.send_and_receive(&mut answering, b"PUB disk.a 1\r\nx\r\n");
    fixture.turn_until(|service| service.hub.port.parked() == 2);
    fixture.advance_time(ASSEMBLY_TIMEOUT / 2);
    fixture.send_and_receive(&mut assembling, &rest[..1000]);
    fixture.send_and_receive(&mut answering, b"PONG\r\n");
    for _ in 0..6 {
        fixture.advance_time(PING_INTERVAL);
        // The others have time to answer PINGs.
        fixture.send_and_receive(&mut subscriber, b"PONG\r\n");
    }
    assert_eq!(
        (fixture.shard.service().hub.port.parked(), fixture.shard.service().hub.publisher_connections),
        (2, 3)
    );
    // The stream refuses.
    fixture.shard.service().step_ns = 1_000_000_000;
    fixture.turn_until(|service| service.hub.port.parked() == 0);
    fixture.advance_time(ASSEMBLY_TIMEOUT / 4);
    let end = [&rest[1000..], b"\r\nPING\r\n"].concat();
    assembling.set_nonblocking(true).expect("a socket takes options");
    let mut sent = 0;
    while sent < end.len() {
        sent += assembling.write(&end[sent..]).unwrap_or(0);
        fixture.shard.turn(false).expect("it turns");
    }
    assembling.set_nonblocking(false).expect("a socket takes options");
    let expected = [b"MSG a 1 200000\r\n", &payload[..], b"\r\n"].concat();
    let text = fixture.read(&mut subscriber, |text| text.ends_with(&expected[expected.len() - 1000..]));
    assert!(text.ends_with(&expected), "{} bytes came", text.len());
    answering.write_all(b"PING\r\n").expect("it is short");
    for client in [&mut assembling, &mut answering] {
        let text = fixture.read(client, |text| text.ends_with(b"PONG\r\n"));
        let text = String::from_utf8(text).expect("text");
        assert!(!text.contains("-ERR"), "{text}");
    }
    // A late message still ends its connection.
    fixture.send_and_receive(&mut assembling, b"PUB a 200000\r\nx");
    fixture.advance_time(ASSEMBLY_TIMEOUT);
    let text = fixture.read(&mut assembling, |text| text.ends_with(b"-ERR 'Message Timeout'\r\n"));
    assert!(text.starts_with(b"-ERR"), "{}", String::from_utf8_lossy(&text));
}
