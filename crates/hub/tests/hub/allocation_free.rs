//! A million messages through the hub, each answered once, without allocations after the warm-up.

use std::io::Write;

use stilling_hub::{
    ClientId, DeliveryBatch, DeliveryItem, Durability, HashKey, Hub, HubConfig, HubRequest, Ingress, Loss,
    Now, Publication, PublicationBatch, PublishOutcome, Retention, RoutedBatch, ShardSenders,
    ShardSubscriptions, StreamConfig, UnixNanos,
};
use stilling_probe::allocations::thread_allocations;

use crate::fixture::{ABLE, BATCH_SIZE, ShardRequest, SteppedStorage, client, put, stream};
use crate::fixture_requests::publication;

/// Row 0.22.
const MESSAGES: usize = 1_000_000;
/// Messages that a shard hands over at once, the same number of each kind every time.
const WINDOW: usize = 100;
/// Windows until all growth has ended: the memory stream has dropped records and ids.
const WARM_UP: usize = 2000;

const PUBLISHER: ClientId = ClientId { shard: 0, token: 1 };

struct AnswerCounts {
    of: [u8; WINDOW],
    refusals: u64,
    deliveries: u64,
    tables: [ShardSubscriptions; 2],
    expanded: DeliveryBatch,
}

impl AnswerCounts {
    /// Counts the acknowledgements: the number after `inbox.` in each line.
    fn read(&mut self, text: &[u8]) {
        const START: &[u8] = b"MSG inbox.";
        for (at, word) in text.windows(START.len()).enumerate() {
            if word == START {
                let digits = text[at + START.len()..].iter().take_while(|byte| byte.is_ascii_digit());
                let number = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
                self.of[number % WINDOW] += 1;
            }
            if word.starts_with(b"MSG none.") {
                self.deliveries += 1;
            }
        }
    }
}

impl ShardSenders for AnswerCounts {
    fn swap(&mut self, shard: usize, routed_batch: &mut RoutedBatch) -> bool {
        let mut deliveries = std::mem::take(&mut self.expanded);
        while !self.tables[shard].expand(routed_batch, &mut deliveries) {
            self.read_all(&mut deliveries);
        }
        self.read_all(&mut deliveries);
        self.expanded = deliveries;
        routed_batch.clear();
        true
    }
}

impl AnswerCounts {
    fn read_all(&mut self, deliveries: &mut DeliveryBatch) {
        while deliveries.advance().is_some() {
            match deliveries.current() {
                Some(DeliveryItem::Bytes(line, _) | DeliveryItem::Message(line, ..)) => self.read(line),
                Some(DeliveryItem::Feed(messages)) => self.read(messages.bytes()),
                Some(DeliveryItem::FeedWithSid(_)) => panic!("all sids are equal"),
                Some(DeliveryItem::PublishOutcome { ticket, outcome }) => {
                    self.of[ticket as usize % WINDOW] += 1;
                    self.refusals += u64::from(matches!(outcome, PublishOutcome::Refused(_)));
                }
                Some(DeliveryItem::Rejection { ticket, .. }) => {
                    self.of[ticket as usize % WINDOW] += 1;
                    self.refusals += 1;
                }
                Some(
                    DeliveryItem::Mark(_)
                    | DeliveryItem::Pause
                    | DeliveryItem::Resume
                    | DeliveryItem::Refused
                    | DeliveryItem::SlowConsumer
                    | DeliveryItem::Close,
                )
                | None => {}
            }
        }
        deliveries.clear();
    }
}

/// Fills a window with messages of every kind.
fn fill(publication_batch: &mut PublicationBatch, start: usize, too_long: &[u8], texts: &mut [Vec<u8>; 2]) {
    let [reply, id] = texts;
    publication_batch.clear();
    for number in start..start + WINDOW {
        let ticket = Some(number as u32);
        reply.clear();
        id.clear();
        let kept = Publication { ticket, ..publication("memory.a", "kept") };
        let message = match number % 10 {
            // Answered with a message, as for NATS clients.
            0..=3 => {
                write!(reply, "inbox.{number}").expect("a vector takes it");
                Publication { reply, ticket: None, ..kept }
            }
            // Answered with a publish outcome, as for other protocols.
            4 | 5 => kept,
            // The second of two is a duplicate.
            6 | 7 => {
                write!(id, "NATS/1.0\r\nNats-Msg-Id: {}\r\n\r\n", number / 10).expect("a vector takes it");
                Publication { headers: id, ..kept }
            }
            // A condition that does not hold, or occasionally a message that is too long.
            8 if number % 100 == 8 => Publication { payload: too_long.into(), ..kept },
            8 => Publication { headers: b"NATS/1.0\r\nNats-Expected-Stream: none\r\n\r\n", ..kept },
            // No stream, but a subscriber.
            _ => Publication { ticket, ..publication("none.a", "heard") },
        };
        publication_batch.push(PUBLISHER.token, ABLE, &HubRequest::Publish(message));
    }
}

/// Row 0.22: every message is released once: the answers equal the publications, message by message; after the warm-up
/// nothing is allocated, so nothing can grow.
#[test]
fn a_million_messages_are_answered_once_each_and_leave_nothing() {
    let memory = StreamConfig {
        retention: Retention { bytes: 256 * 1024, ..Retention::of(Durability::Memory) },
        ..stream("memory", &["memory.>"], Durability::Memory)
    };
    let streams = vec![memory, stream("none", &["none.>"], Durability::None)];
    let config = HubConfig { streams, memory_batch_size: BATCH_SIZE, ..HubConfig::default() };
    let tables = std::array::from_fn(|_| ShardSubscriptions::new(HashKey(1, 2), 8));
    let answers =
        AnswerCounts { of: [0; WINDOW], refusals: 0, deliveries: 0, tables, expanded: DeliveryBatch::new() };
    let storage = SteppedStorage::new(Vec::new(), 0);
    let mut hub = Hub::new(config, &[], (storage, answers), 2, (HashKey(1, 2), UnixNanos::EPOCH));
    let mut publication_batch = PublicationBatch::new();
    for (from, filter) in [(PUBLISHER, "inbox.*"), (client(1, 2), "none.>")] {
        publication_batch.clear();
        let subscribe =
            ShardRequest::Subscribe { filter: filter.as_bytes(), queue: b"", sid: b"1", format: None };
        let table = &mut hub.shard_senders_mut().tables[from.shard as usize];
        put(table, &mut publication_batch, (from.token, ABLE), subscribe).expect("there is room");
        assert_eq!(hub.process_requests(from.shard as usize, &publication_batch, 0, Now::simulated(1)), 1);
    }
    let too_long = vec![b'x'; BATCH_SIZE + 1];
    let mut texts = [Vec::with_capacity(64), Vec::with_capacity(64)];
    let (mut now_ns, mut warm) = (1, 0);
    for window in 0..MESSAGES / WINDOW {
        if window == WARM_UP {
            warm = thread_allocations();
        }
        now_ns += 1_000_000_000;
        fill(&mut publication_batch, window * WINDOW, &too_long, &mut texts);
        let mut at = 0;
        while at < publication_batch.len() {
            at = hub.process_requests(
                PUBLISHER.shard as usize,
                &publication_batch,
                at,
                Now::simulated(now_ns),
            );
            hub.poll_storage(Now::simulated(now_ns));
            hub.flush();
        }
        let answered = &mut hub.shard_senders_mut().of;
        assert!(answered.iter().all(|count| *count == 1), "window {window}: {answered:?}");
        answered.fill(0);
    }
    assert_eq!(thread_allocations() - warm, 0, "allocations after the warm-up");

    assert!(hub.is_drained());
    let (counters, answers) = (hub.counters(), hub.shard_senders());
    let share = MESSAGES as u64 / 10;
    assert_eq!(
        (counters.messages.get(), counters.publish_outcomes.get()),
        (MESSAGES as u64, MESSAGES as u64)
    );
    assert_eq!(counters.duplicates.get(), share);
    assert_eq!((answers.refusals, answers.deliveries), (share, share));
    let lost = [Loss::TooLarge, Loss::Condition].map(|loss| counters.losses(Ingress::Nats, loss));
    assert_eq!(lost, [share / 10, share - share / 10]);
    let kept = &counters.streams[0];
    // Seven of ten are new to the stream; retention has removed most of them.
    assert_eq!(kept.last.get(), 7 * share);
    assert!(kept.last.get() - kept.first.get() < 10_000, "from {} on", kept.first.get());
    assert_eq!(kept.pending.get(), 0);
}
