//! The hub's cost per message at two payload sizes, for counting instructions.
//!
//! ```text
//! cargo build --release -p stilling-hub --example payload_sizes
//! for size in 128 4096; do for kind in plain disk; do
//!   valgrind --tool=callgrind --toggle-collect='payload_sizes::hub_turn' target/release/examples/payload_sizes $kind $size
//! done; done
//! ```
//!
//! Divide the collected instructions by the printed number of messages. Payloads of 4,096 bytes are passed by reference,
//! those of 128 bytes are copied, as by the server.
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::collections::VecDeque;

use stilling_hub::{
    ClientOptions, Durability, HashKey, Hub, HubConfig, HubRequest, Ingress, Now, Payload, Publication,
    PublicationBatch, Retention, RoutedBatch, ShardSenders, ShardSubscriptions, Storage, StreamConfig,
    UnixNanos,
};
use stilling_journal::{Batch, Chunk, IdleBatches, JournalAnswer, LogRetention, ReadRequest, StreamIndex};
use stilling_ring::BlockWriter;

/// Messages per turn of the hub, the same for both sizes.
const MESSAGES_PER_TURN: usize = 32;

const TURNS: usize = 2_000;

/// Payloads from this size on are in a shared block.
const SHARED_MIN: usize = 1024;

const KEY: HashKey = HashKey(1, 2);

/// A shard that discards what it receives.
struct DiscardingSenders;

impl ShardSenders for DiscardingSenders {
    fn swap(&mut self, _: usize, batch: &mut RoutedBatch) -> bool {
        batch.clear();
        true
    }
}

/// A disk whose writes are durable when [`write`](Self::write) is called, in place of the journal's threads.
struct SteppedStorage {
    idle: Vec<Batch>,
    appended: Vec<(StreamIndex, Batch)>,
    written: VecDeque<(JournalAnswer, Option<Batch>)>,
}

impl SteppedStorage {
    fn write(&mut self) {
        for (stream, mut batch) in self.appended.drain(..) {
            batch.build();
            let watermark = batch.next() - 1;
            self.written.push_back((JournalAnswer::Durable { stream, watermark }, Some(batch)));
        }
    }
}

impl Storage for SteppedStorage {
    fn batch(&mut self, _: StreamIndex) -> Option<Batch> {
        let at = self.idle.iter_mut().rposition(Batch::reset)?;
        Some(self.idle.swap_remove(at))
    }

    fn idle(&self, _: StreamIndex) -> IdleBatches {
        if self.idle.is_empty() { IdleBatches::None } else { IdleBatches::Free }
    }

    fn return_batch(&mut self, _: StreamIndex, mut batch: Batch) {
        batch.reset();
        self.idle.push(batch);
    }

    fn append(&mut self, stream: StreamIndex, batch: Batch, _: u64) {
        self.appended.push((stream, batch));
    }

    fn retain(&mut self, _: StreamIndex, _: LogRetention, _: UnixNanos, _: u64) -> bool {
        true
    }

    fn read(&mut self, _: ReadRequest) -> bool {
        false
    }

    fn publish(&mut self) {}

    fn next_answer(&mut self) -> Option<(JournalAnswer, Option<Batch>)> {
        self.written.pop_front()
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        None
    }

    fn has_answer(&self) -> bool {
        !self.written.is_empty()
    }

    fn is_quiet(&self) -> bool {
        self.written.is_empty()
    }
}

type MeasuredHub = Hub<SteppedStorage, DiscardingSenders>;

/// A turn of the hub's thread.
#[inline(never)]
fn hub_turn(hub: &mut MeasuredHub, batch: &PublicationBatch, now: Now) {
    hub.poll_storage(now);
    assert_eq!(hub.process_requests(0, batch, 0, now), batch.len());
    hub.flush();
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("plain or disk");
    let size: usize = arguments.next().and_then(|size| size.parse().ok()).expect("a payload size");
    let durability = Durability::Disk;
    let stream = StreamConfig {
        name: "events".to_owned(),
        subjects: vec!["events.>".to_owned()],
        durability,
        retention: Retention::of(durability),
        ..StreamConfig::default()
    };
    let storage = SteppedStorage {
        idle: (0..8).map(|_| Batch::new(MESSAGES_PER_TURN * (size + 256))).collect(),
        appended: Vec::new(),
        written: VecDeque::new(),
    };
    let config = HubConfig { streams: vec![stream], ..HubConfig::default() };
    let mut hub = Hub::new(config, &[], (storage, DiscardingSenders), 1, (KEY, UnixNanos::EPOCH));
    let mut table = ShardSubscriptions::new(KEY, 10);
    let subject = if kind == "disk" { "events.a" } else { "plain.a" };
    let mut batch = PublicationBatch::new();
    table.subscribe(1, ClientOptions::default(), (subject.as_bytes(), b"", b"1")).expect("there is room");
    table.push_changes(&mut batch);
    hub_turn(&mut hub, &batch, Now::simulated(0));

    let mut block = BlockWriter::new(MESSAGES_PER_TURN * size);
    for turn in 0..TURNS {
        batch.clear();
        assert!(size < SHARED_MIN || block.reset(), "the hub released the block");
        let bytes = vec![b'x'; size];
        for _ in 0..MESSAGES_PER_TURN {
            let range = (size >= SHARED_MIN).then(|| block.append(&bytes).expect("the block has room"));
            let shared = block.shared();
            let payload = match range {
                Some(range) => Payload::shared(shared, range),
                None => Payload::from(&bytes[..]),
            };
            let publication = Publication {
                ingress: Ingress::Nats,
                subject: subject.as_bytes(),
                reply: b"",
                headers: b"",
                payload,
                ticket: None,
            };
            table.push(&mut batch, 2, ClientOptions::default(), &HubRequest::Publish(publication));
        }
        hub_turn(&mut hub, &batch, Now::simulated(turn as u64 * 1000));
        batch.clear();
        hub.storage_mut().write();
        // Releases the records of the batch.
        hub_turn(&mut hub, &batch, Now::simulated(turn as u64 * 1000 + 500));
    }
    println!("{} messages of {size} bytes, {kind}", TURNS * MESSAGES_PER_TURN);
}
