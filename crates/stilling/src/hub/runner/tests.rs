//! A hub on its own thread does not sleep past an answer of the journal, even if a shard has no room.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use stilling_engine::Token;
use stilling_hub::{
    ClientOptions, DeliveryItem, Durability, HashKey, HubConfig, HubRequest, Ingress, JournalStorage,
    Publication, StreamConfig, UnixNanos,
};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Journal, JournalLimits, JournalWorker, Log as StreamLog, LogConfig, Replay};

use super::*;
use crate::hub::HubMail;

const SUBSCRIBER: Token = Token::from_bits(1);
const PUBLISHER: Token = Token::from_bits(2);

/// A hub with the stream `disk.>`, the ports of its two shards, and the journal in steps.
struct RunnerFixture {
    runner: Runner<JournalStorage>,
    ports: [HubPort; 2],
    writer: JournalWorker<SimulatedDisk>,
    /// The hub's wake, and how often it ended a sleep.
    wake: Arc<Wake>,
    woken: Arc<AtomicUsize>,
}

impl RunnerFixture {
    fn new() -> RunnerFixture {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let wake = Arc::new(Wake::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        let shards: [Arc<Wake>; 2] = std::array::from_fn(|_| Arc::new(Wake::new(|| ())));
        let (ports, shard_senders, shard_receivers) = connect(&shards, &wake, HashKey(1, 2));
        let (log, _) = StreamLog::open(SimulatedDisk::new(), "disk", LogConfig::default()).expect("it opens");
        let sources = vec![log.source()];
        let limits = JournalLimits { batches: 4, batch_size: 64 * 1024 };
        let (journal, writer) =
            Journal::stepped(vec![log], limits, &wake, Instant::now()).expect("one stream");
        let (replay, _) = Replay::stepped(sources, 1, Arc::clone(&wake));
        let disk = StreamConfig {
            subjects: vec!["disk.>".to_owned()],
            durability: Durability::Disk,
            ..StreamConfig::default()
        };
        let config = HubConfig { streams: vec![disk], ..HubConfig::default() };
        let storage = (JournalStorage::new(journal, replay), shard_senders);
        let hub = Hub::new(config, &[], storage, 2, (HashKey(1, 2), UnixNanos::EPOCH));
        let ports = ports.try_into().unwrap_or_else(|_| panic!("a port for each shard"));
        RunnerFixture { runner: Runner::new(hub, shard_receivers, None), ports, writer, wake, woken }
    }

    fn push_request(&mut self, shard: usize, token: Token, request: &HubRequest<'_>) {
        self.ports[shard].push_request(token, ClientOptions::default(), request);
    }

    /// Hands over the requests, and turns the hub until it would sleep.
    fn turn(&mut self) {
        self.ports.iter_mut().for_each(HubPort::flush);
        let mut turns = 0;
        while turns == 0 || !self.runner.is_quiet() {
            self.runner.turn(Now::simulated(0));
            turns += 1;
            assert!(turns < 1000, "the hub never sleeps");
        }
    }

    /// The hub thread's steps before a sleep. Returns whether it would sleep.
    fn park(&self) -> bool {
        self.wake.set_parked();
        self.runner.is_quiet() && !self.runner.is_done()
    }

    /// The text of a shard's deliveries.
    fn delivered_text(&mut self, shard: usize) -> String {
        let mut text = Vec::new();
        let port = &mut self.ports[shard];
        while let Some((_, mail)) = port.next_mail() {
            if mail == HubMail::Room {
                continue;
            }
            let current = port.take_current().expect("there is a delivery");
            match current.current() {
                Some(DeliveryItem::Bytes(first, second)) => text.extend([first, second].concat()),
                Some(DeliveryItem::Message(line, payload, end)) => {
                    text.extend([line, payload.bytes(), end].concat());
                }
                _ => {}
            }
            port.put_back(current);
        }
        String::from_utf8(text).expect("text")
    }
}

fn publication<'a>(subject: &'a [u8], reply: &'a [u8], payload: &'a [u8]) -> HubRequest<'a> {
    let payload = payload.into();
    HubRequest::Publish(Publication {
        ingress: Ingress::Nats,
        subject,
        reply,
        headers: b"",
        payload,
        ticket: None,
    })
}

/// All routed batches of shard 0 are in use. An answer of the journal still wakes the hub, and the acknowledgement
/// goes to shard 1, which has room.
#[test]
fn an_answer_of_the_journal_is_handled_while_a_shard_is_full() {
    let mut fixture = RunnerFixture::new();
    for (shard, token, filter) in [(0, SUBSCRIBER, &b"noise"[..]), (1, PUBLISHER, b"inbox.>")] {
        let subscription = (filter, &b""[..], &b"1"[..]);
        fixture.ports[shard].subscribe(token, ClientOptions::default(), subscription).expect("there is room");
    }
    fixture.push_request(1, PUBLISHER, &publication(b"disk.a", b"inbox.1", b"kept"));
    fixture.turn();
    let mut sent = 0;
    while fixture.ports[1].has_room() {
        while fixture.ports[1].has_room() {
            fixture.push_request(1, PUBLISHER, &publication(b"noise", b"", &[b'x'; 10_000]));
            sent += 1;
        }
        fixture.turn();
    }
    assert_eq!(fixture.delivered_text(1), "", "the journal has not written");
    assert!(fixture.park(), "the hub waits for shard 0");
    let woken = fixture.woken.load(Ordering::Relaxed);
    assert!(fixture.writer.turn(Instant::now()));
    assert_eq!(fixture.woken.load(Ordering::Relaxed), woken + 1, "the answer ends the sleep");
    assert!(!fixture.park(), "an answer that came before the sleep is seen");
    fixture.wake.clear_parked();
    fixture.turn();
    let delivered_text = fixture.delivered_text(1);
    assert!(
        delivered_text.contains("MSG inbox.1 ") && delivered_text.contains(r#""seq":1}"#),
        "{delivered_text}"
    );
    assert!(fixture.park(), "shard 0 is still full, and the hub does not spin");
    fixture.wake.clear_parked();
    let mut noise = String::new();
    loop {
        let more = fixture.delivered_text(0);
        if more.is_empty() {
            break;
        }
        noise.push_str(&more);
        fixture.turn();
    }
    assert_eq!(noise.matches("MSG noise ").count(), sent);
}
