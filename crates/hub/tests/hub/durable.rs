//! Durability with the journal's own thread: a recording disk shows whether the sync that covers a record had returned
//! before its acknowledgement or the record left the hub.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use stilling_hub::{
    DeliveryBatch, DeliveryItem, Durability, HashKey, Hub, HubConfig, JournalStorage, Now, PublicationBatch,
    ResumePoint, RoutedBatch, ShardSenders, ShardSubscriptions, UnixNanos,
};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Journal, JournalLimits, Log, Replay};
use stilling_ring::Wake;

use crate::fixture::{ABLE, BATCH_SIZE, SEGMENTS, ShardRequest, client, put, stream};
use crate::fixture_requests::publish_for;

const MESSAGES: u64 = 200;

/// Senders that note which sequences the hub releases, at the moment of release.
struct ObservingSenders {
    /// Highest sequence acknowledged or sent to a subscriber.
    highest_visible: Arc<AtomicU64>,
    acknowledged: BTreeSet<u64>,
    received_sequences: BTreeSet<u64>,
    tables: [ShardSubscriptions; 2],
}

impl ShardSenders for ObservingSenders {
    fn swap(&mut self, shard: usize, routed_batch: &mut RoutedBatch) -> bool {
        let mut deliveries = DeliveryBatch::new();
        assert!(self.tables[shard].expand(routed_batch, &mut deliveries), "it is short");
        while deliveries.advance().is_some() {
            let bytes = match deliveries.current() {
                Some(DeliveryItem::Bytes(line, payload)) => [line, payload].concat(),
                Some(DeliveryItem::Message(line, payload, end)) => [line, payload.bytes(), end].concat(),
                _ => continue,
            };
            // Consecutive bytes of a connection may be one entry.
            let text = String::from_utf8(bytes).expect("text");
            for message in text.split("MSG ").skip(1) {
                let behind = |what: &str| {
                    let (_, rest) = message.split_once(what)?;
                    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u64>().ok()
                };
                // Messages contain the sequence that they will get.
                let (into, sequence) = match message.starts_with("inbox.") {
                    true => (&mut self.acknowledged, behind("\"seq\":")),
                    false => (&mut self.received_sequences, behind("number ")),
                };
                let sequence = sequence.expect("a sequence");
                into.insert(sequence);
                self.highest_visible.fetch_max(sequence, Ordering::SeqCst);
            }
        }
        routed_batch.clear();
        true
    }
}

/// "A recording disk proves that the sync covering a record completed before its acknowledgement was sent and before
/// any subscriber saw it." At each point of the disk's history, everything released so far is durable, whatever part of
/// the outstanding writes is lost.
#[test]
fn the_sync_of_a_record_comes_before_its_acknowledgement_and_its_visibility() {
    let disk = SimulatedDisk::recording();
    let highest_visible = Arc::new(AtomicU64::new(0));
    disk.observe_watermark({
        let highest_visible = Arc::clone(&highest_visible);
        move || highest_visible.load(Ordering::SeqCst)
    });
    let (log, _) = Log::open(disk.clone(), "disk", SEGMENTS).expect("it opens");
    let own = thread::current();
    let wake = Arc::new(Wake::new(move || own.unpark()));
    let replay = Replay::start(vec![log.source()], 4, Arc::clone(&wake)).expect("a thread");
    let limits = JournalLimits { batches: 4, batch_size: BATCH_SIZE };
    let journal = Journal::start(vec![log], limits, Arc::clone(&wake)).expect("a thread");
    let streams = vec![stream("disk", &["disk.>"], Durability::Disk)];
    let config = HubConfig { streams, memory_batch_size: BATCH_SIZE, ..HubConfig::default() };
    let tables = std::array::from_fn(|_| ShardSubscriptions::new(HashKey(1, 2), 8));
    let outside = ObservingSenders {
        highest_visible,
        acknowledged: BTreeSet::new(),
        received_sequences: BTreeSet::new(),
        tables,
    };
    let storage = JournalStorage::new(journal, replay);
    let resumed = [ResumePoint::default()];
    let mut hub = Hub::new(config, &resumed, (storage, outside), 2, (HashKey(1, 2), UnixNanos::EPOCH));
    let (publisher, subscriber) = (client(0, 1), client(1, 2));
    let mut asked = PublicationBatch::new();
    let table = &mut hub.shard_senders_mut().tables[0];
    put(
        table,
        &mut asked,
        (publisher.token, ABLE),
        ShardRequest::Subscribe { filter: b"inbox.>", queue: b"", sid: b"1", format: None },
    )
    .expect("there is room");
    assert_eq!(hub.process_requests(0, &asked, 0, Now::simulated(1)), 1);
    asked.clear();
    let table = &mut hub.shard_senders_mut().tables[1];
    put(
        table,
        &mut asked,
        (subscriber.token, ABLE),
        ShardRequest::Subscribe { filter: b"disk.>", queue: b"", sid: b"1", format: None },
    )
    .expect("there is room");
    assert_eq!(hub.process_requests(1, &asked, 0, Now::simulated(1)), 1);
    let (mut next, mut burst) = (1, 1);
    loop {
        hub.poll_storage(Now::simulated(next));
        hub.flush();
        let answered = hub.shard_senders().acknowledged.len() as u64;
        if answered == MESSAGES {
            break;
        }
        // Bursts of one to nine messages; in the first half each waits for the answers to the previous one.
        let waits = next <= MESSAGES / 2 && answered < next - 1;
        asked.clear();
        for sequence in (next..=MESSAGES).take(if waits { 0 } else { burst }) {
            let payload = format!("number {sequence} {}", "x".repeat((sequence * 97 % 1700) as usize));
            asked.push(publisher.token, ABLE, &publish_for("disk.a", &payload, "inbox.1"));
        }
        let done = hub.process_requests(0, &asked, 0, Now::simulated(next));
        hub.flush();
        next += done as u64;
        burst = burst % 9 + 1;
        if done == 0 {
            // Waits for the disk.
            wake.set_parked();
            if hub.is_quiet() {
                thread::park();
            }
            wake.clear_parked();
        }
    }
    let all: BTreeSet<u64> = (1..=MESSAGES).collect();
    assert_eq!((&hub.shard_senders().acknowledged, &hub.shard_senders().received_sequences), (&all, &all));
    drop(hub);
    let history = disk.history();
    // Later points with the same highest visible sequence have no less on the disk.
    let mut observed = BTreeSet::new();
    for at in 0..history.points() {
        let highest_visible =
            history.events().get(at).map_or(MESSAGES, |(highest_visible, _)| *highest_visible);
        if observed.insert(highest_visible) {
            let durable = history.at(at).disk(|_| false);
            let (_, recovery) = Log::open(durable, "disk", SEGMENTS).expect("it opens");
            assert!(
                recovery.last >= highest_visible,
                "{highest_visible} was released at point {at}: {recovery:?}"
            );
        }
    }
    assert!(observed.len() > 10, "{observed:?}");
}
