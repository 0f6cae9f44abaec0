//! Consumers: readers that follow a stream from a position, record by record.
//!
//! ```text
//!   idle ──subscriber or pull──▶ reading ──chunk──▶ sending ──whole chunk──▶ awaiting mark ──mark reached──┐
//!                                   ▲                                                                      │
//!                                   └──────────── more is visible ─────────────────────────────────────────┤
//!                                following ◀───────────── nothing more is visible ─────────────────────────┘
//! ```
//!
//! A consumer that is behind reads in chunks, one at a time. It reads the next chunk when the shard reports the mark
//! after the previous one: at once if the connection's output is not blocked, otherwise when the output has been sent.
//! A slow consumer therefore occupies one chunk and the buffers of its shard, however far it is behind. A consumer that
//! has caught up gets each record as it becomes visible.

use stilling_journal::Record;

pub(crate) use self::consumer::{Consumer, ConsumerSpec};
pub(crate) use self::table::{AddConsumerError, ConsumerTable};
use crate::fan_out::{FanOut, ShardSenders, UnsentItem};
use crate::hash_key::HashKey;
use crate::message::OutboundMessage;
use crate::router::Router;
use crate::storage::Storage;
use crate::streams::StreamTable;

mod catch_up;
mod consumer;
mod deliver;
mod followers;
mod maintenance;
mod pulls;
mod table;

/// Nanoseconds between two checks for consumers that have expired.
const CONSUMER_CHECK_EVERY_NS: u64 = 50_000_000;

#[derive(Debug)]
pub(crate) struct Consumers {
    pub(crate) table: ConsumerTable,
    /// Filters compared with records of chunks in this turn.
    compared: usize,
    offered: u64,
    /// Consumers that match a record; reused buffer.
    matches: Vec<u32>,
    /// Headers without their status; reused buffer.
    stripped: Vec<u8>,
}

impl Consumers {
    pub(crate) fn new(key: HashKey, streams: usize) -> Consumers {
        Consumers {
            table: ConsumerTable::new(key, streams),
            compared: 0,
            offered: 0,
            matches: Vec::new(),
            stripped: Vec::new(),
        }
    }

    /// Begins a turn with a new budget of filter comparisons.
    pub(crate) fn begin_turn(&mut self) {
        self.compared = 0;
    }

    /// Returns how often a record was offered to a consumer, sent or not.
    pub(crate) fn offered(&self) -> u64 {
        self.offered
    }

    /// Maximum nanoseconds until the next check of the consumers.
    pub(crate) fn next_check_in(&self) -> Option<u64> {
        (!self.table.is_empty()).then_some(CONSUMER_CHECK_EVERY_NS)
    }
}

/// Consumers with the parts of the hub that they read from and send through.
pub(crate) struct ConsumerDelivery<'a, S, O> {
    pub(crate) consumers: &'a mut Consumers,
    pub(crate) storage: &'a mut S,
    pub(crate) streams: &'a mut StreamTable,
    pub(crate) router: &'a mut Router,
    pub(crate) fan_out: &'a mut FanOut<O>,
}

impl<S: Storage, O: ShardSenders> ConsumerDelivery<'_, S, O> {
    /// Returns whether no unfinished send waits, and all shards that get a consumer's next message have room.
    #[inline]
    pub(crate) fn has_room_for(&mut self, number: u32) -> bool {
        if !self.finish_unsent() {
            return false;
        }
        if self.fan_out.has_room() {
            return true;
        }
        let target = self.consumers.table.get(number).and_then(Consumer::target);
        target.is_none_or(|target| self.fan_out.has_room_for(self.router, target))
    }

    /// Hands out waiting batches and resumes unfinished sends. Returns whether all sends are finished.
    #[inline]
    pub(crate) fn finish_unsent(&mut self) -> bool {
        self.fan_out.advance();
        !self.fan_out.has_unfinished() || self.resume_unsent()
    }

    fn resume_unsent(&mut self) -> bool {
        while !self.fan_out.is_any_far_over()
            && let Some((first, others)) = self.fan_out.take_unsent()
        {
            match first {
                UnsentItem::Message { dispatch, message, to } => {
                    self.fan_out.send_to_all(self.router, &dispatch, &message.message(), &to);
                }
                UnsentItem::Record { visible, kind, record, to } => {
                    let OutboundMessage { subject, headers, payload, .. } = record.message();
                    self.offer(visible, &Record { kind, subject, headers, payload }, &to);
                }
                UnsentItem::Statuses(ended) => self.send_pull_ends(ended),
                UnsentItem::Mark { to, mark } => self.fan_out.push_mark(to, mark),
            }
            if !self.fan_out.put_back(others) {
                return false;
            }
        }
        !self.fan_out.has_unfinished()
    }

    fn send_status(&mut self, to: &[u8], reply: &[u8], headers: &[u8]) {
        self.fan_out.send_by_subject(
            self.router,
            &OutboundMessage { subject: to, reply, headers, payload: b"".into(), position: None },
        );
    }
}

fn flow_subject(stream: &str, consumer: &str) -> Vec<u8> {
    format!("$JS.FC.{stream}.{consumer}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fan_out::VisibleRecord;
    use crate::limits::DELIVERY_BATCH_SIZE;
    use crate::publication_batch::{ClientId, RegistrationId};
    use crate::routed_batch::RoutedBatch;
    use crate::storage::JournalStorage;
    use crate::stream::{Durability, StreamConfig};
    use crate::time::Now;

    const KEY: HashKey = HashKey(1, 2);
    const NOW: Now = Now::simulated(0);
    const ALICE: ClientId = ClientId { shard: 0, token: 1 };

    struct DiscardingSenders {
        has_room: bool,
    }

    impl ShardSenders for DiscardingSenders {
        fn swap(&mut self, _: usize, routed_batch: &mut RoutedBatch) -> bool {
            if self.has_room {
                routed_batch.clear();
            }
            self.has_room
        }
    }

    /// The parts of a hub with one memory stream, and a client subscribed to `push`.
    struct DeliveryFixture {
        consumers: Consumers,
        storage: JournalStorage,
        streams: StreamTable,
        router: Router,
        fan_out: FanOut<DiscardingSenders>,
    }

    impl DeliveryFixture {
        fn new(has_room: bool) -> DeliveryFixture {
            let config = StreamConfig { durability: Durability::Memory, ..StreamConfig::default() };
            let mut router = Router::new(KEY, std::iter::empty());
            router.register(ALICE, RegistrationId::default(), (b"push", b"")).expect("there is room");
            DeliveryFixture {
                consumers: Consumers::new(KEY, 1),
                storage: JournalStorage::default(),
                streams: StreamTable::new(vec![config], &[], 1024 * 1024, (KEY, NOW.unix_ns)),
                router,
                fan_out: FanOut::new(DiscardingSenders { has_room }, 1, 0),
            }
        }

        fn delivery(&mut self) -> ConsumerDelivery<'_, JournalStorage, DiscardingSenders> {
            let DeliveryFixture { consumers, storage, streams, router, fan_out } = self;
            ConsumerDelivery { consumers, storage, streams, router, fan_out }
        }

        fn add(&mut self, name: usize) -> u32 {
            let spec =
                ConsumerSpec { deliver: Some(b"push".to_vec()), ..ConsumerSpec::of_everything(0, name) };
            let number = self.consumers.table.add(ALICE, spec, NOW).expect("there is room");
            self.delivery().advance(number, NOW.steady_ns);
            number
        }

        fn publish(&mut self, payload: &[u8]) {
            let record = Record::new(b"events.a", payload).with_payload(payload.into());
            let sequence = self.streams[0].apply(&record, None, &mut self.storage, NOW).expect("it is kept");
            let Now { unix_ns: time_ns, steady_ns: now_ns } = NOW;
            self.delivery().follow(VisibleRecord { stream: 0, sequence, time_ns, now_ns }, &record);
        }
    }

    #[test]
    fn a_consumer_reads_what_is_kept_and_then_follows() {
        let mut parts = DeliveryFixture::new(true);
        for _ in 0..3 {
            parts.publish(b"x");
        }
        let number = parts.add(1);
        assert_eq!(parts.fan_out.messages(), 3);
        parts.publish(b"x");
        assert_eq!(parts.fan_out.messages(), 3, "what was read has not left");
        let mark = parts.consumers.table.awaited_mark(number).expect("it waits");
        parts.delivery().reached(mark + (1 << 32), NOW.steady_ns);
        assert_eq!(parts.fan_out.messages(), 3, "an answer to another mark");
        parts.delivery().reached(mark, NOW.steady_ns);
        assert_eq!(parts.fan_out.messages(), 4);
        let next = parts.consumers.table.awaited_mark(number).expect("it waits");
        parts.delivery().reached(mark, NOW.steady_ns);
        assert_eq!(parts.consumers.table.awaited_mark(number), Some(next), "a second answer");
        parts.delivery().reached(next, NOW.steady_ns);
        assert_eq!(parts.consumers.offered(), 0);
        parts.publish(b"x");
        assert_eq!((parts.fan_out.messages(), parts.consumers.offered()), (5, 1));
    }

    #[test]
    fn without_room_the_rest_of_the_consumers_gets_a_record_later() {
        let mut parts = DeliveryFixture::new(false);
        for name in 0..3 {
            parts.add(name);
        }
        parts.publish(&vec![b'x'; DELIVERY_BATCH_SIZE]);
        assert_eq!((parts.fan_out.messages(), parts.consumers.offered()), (2, 2));
        assert!(!parts.delivery().finish_unsent());
        parts.fan_out.shard_senders_mut().has_room = true;
        assert!(parts.delivery().finish_unsent());
        assert_eq!((parts.fan_out.messages(), parts.consumers.offered()), (3, 3));
    }

    #[test]
    fn without_consumers_no_check_is_due() {
        let mut parts = DeliveryFixture::new(true);
        assert_eq!(parts.consumers.next_check_in(), None);
        let number = parts.add(1);
        assert_eq!(parts.consumers.next_check_in(), Some(CONSUMER_CHECK_EVERY_NS));
        parts.delivery().delete(number);
        assert_eq!(parts.consumers.next_check_in(), None);
    }
}
