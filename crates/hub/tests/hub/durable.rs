//! Durable first, with the journal's own thread: a disk that records everything says whether the sync that covers a record
//! had come back before anybody outside heard of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use stilling_hub::{
    Deliveries, Delivery, Durability, HashKey, Hub, HubConfig, Intake, Now, Outlets, Resumed, Routed,
    ShardTable, Threads, UnixNanos,
};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Journal, Limits, Log, Replay};
use stilling_ring::Wake;

use crate::asking::publish_for;
use crate::rig::{ABLE, Ask, BATCH_SIZE, SEGMENTS, client, put, stream};

const MESSAGES: u64 = 200;

/// Shards that note, at the moment in which the hub lets something go, which sequence it tells of.
struct Outside {
    /// The highest sequence that an acknowledgement named or a subscriber saw.
    told: Arc<AtomicU64>,
    acknowledged: BTreeSet<u64>,
    seen: BTreeSet<u64>,
    tables: [ShardTable; 2],
}

impl Outlets for Outside {
    fn swap(&mut self, shard: usize, piece: &mut Routed) -> bool {
        let mut deliveries = Deliveries::new();
        assert!(self.tables[shard].expand(piece, &mut deliveries), "it is short");
        while deliveries.advance().is_some() {
            let bytes = match deliveries.current() {
                Some(Delivery::Bytes(line, payload)) => [line, payload].concat(),
                Some(Delivery::Message(line, payload, end)) => [line, payload.bytes(), end].concat(),
                _ => continue,
            };
            // What goes to one connection may stand in a row.
            let text = String::from_utf8(bytes).expect("text");
            for message in text.split("MSG ").skip(1) {
                let behind = |what: &str| {
                    let (_, rest) = message.split_once(what)?;
                    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u64>().ok()
                };
                // Messages are published with the sequence that they are to get.
                let (into, sequence) = match message.starts_with("inbox.") {
                    true => (&mut self.acknowledged, behind("\"seq\":")),
                    false => (&mut self.seen, behind("number ")),
                };
                let sequence = sequence.expect("a sequence");
                into.insert(sequence);
                self.told.fetch_max(sequence, Ordering::SeqCst);
            }
        }
        piece.clear();
        true
    }
}

/// "A recording disk proves that the sync covering a record completed before its acknowledgement was sent and before any
/// subscriber saw it." At each moment of the disk's life, everything that was told until then is durable, however much of
/// what was under way is lost.
#[test]
fn the_sync_of_a_record_comes_before_its_acknowledgement_and_its_sight() {
    let disk = SimulatedDisk::recording();
    let told = Arc::new(AtomicU64::new(0));
    disk.watch({
        let told = Arc::clone(&told);
        move || told.load(Ordering::SeqCst)
    });
    let (log, _) = Log::open(disk.clone(), "disk", SEGMENTS).expect("it opens");
    let own = thread::current();
    let wake = Arc::new(Wake::new(move || own.unpark()));
    let replay = Replay::start(vec![log.source()], 4, Arc::clone(&wake)).expect("a thread");
    let limits = Limits { batches: 4, batch_size: BATCH_SIZE };
    let journal = Journal::start(vec![log], limits, Arc::clone(&wake)).expect("a thread");
    let streams = vec![stream("disk", &["disk.>"], Durability::Disk)];
    let config = HubConfig { streams, memory_batch_size: BATCH_SIZE, ..HubConfig::default() };
    let tables = std::array::from_fn(|_| ShardTable::new(HashKey(1, 2), 8));
    let outside = Outside { told, acknowledged: BTreeSet::new(), seen: BTreeSet::new(), tables };
    let storage = Threads::new(journal, replay);
    let resumed = [Resumed::default()];
    let mut hub = Hub::new(config, &resumed, (storage, outside), 2, (HashKey(1, 2), UnixNanos::EPOCH));
    let (publisher, subscriber) = (client(0, 1), client(1, 2));
    let mut asked = Intake::new();
    let table = &mut hub.outlets_mut().tables[0];
    put(
        table,
        &mut asked,
        (publisher.token, ABLE),
        Ask::Subscribe { filter: b"inbox.>", queue: b"", sid: b"1" },
    )
    .expect("there is room");
    assert_eq!(hub.take(0, &asked, 0, Now::simulated(1)), 1);
    asked.clear();
    let table = &mut hub.outlets_mut().tables[1];
    put(
        table,
        &mut asked,
        (subscriber.token, ABLE),
        Ask::Subscribe { filter: b"disk.>", queue: b"", sid: b"1" },
    )
    .expect("there is room");
    assert_eq!(hub.take(1, &asked, 0, Now::simulated(1)), 1);
    let (mut next, mut burst) = (1, 1);
    loop {
        hub.absorb(Now::simulated(next));
        hub.flush();
        let answered = hub.outlets().acknowledged.len() as u64;
        if answered == MESSAGES {
            break;
        }
        // Bursts of one to nine messages; in the first half each waits for the answers to the one before.
        let waits = next <= MESSAGES / 2 && answered < next - 1;
        asked.clear();
        for sequence in (next..=MESSAGES).take(if waits { 0 } else { burst }) {
            let payload = format!("number {sequence} {}", "x".repeat((sequence * 97 % 1700) as usize));
            asked.push(publisher.token, ABLE, &publish_for("disk.a", &payload, "inbox.1"));
        }
        let done = hub.take(0, &asked, 0, Now::simulated(next));
        hub.flush();
        next += done as u64;
        burst = burst % 9 + 1;
        if done == 0 {
            // It waits for the disk.
            wake.park();
            if hub.is_quiet() {
                thread::park();
            }
            wake.unpark();
        }
    }
    let all: BTreeSet<u64> = (1..=MESSAGES).collect();
    assert_eq!((&hub.outlets().acknowledged, &hub.outlets().seen), (&all, &all));
    drop(hub);
    let history = disk.history();
    // Later points with the same telling have no less on the disk.
    let mut tellings = BTreeSet::new();
    for at in 0..history.points() {
        let told = history.events().get(at).map_or(MESSAGES, |(told, _)| *told);
        if tellings.insert(told) {
            let durable = history.at(at).disk(|_| false);
            let (_, recovery) = Log::open(durable, "disk", SEGMENTS).expect("it opens");
            assert!(recovery.last >= told, "{told} was told at point {at}: {recovery:?}");
        }
    }
    assert!(tellings.len() > 10, "{tellings:?}");
}
