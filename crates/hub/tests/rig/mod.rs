//! Test fixture: a hub with a disk that writes step by step, and shards that are lists.

#[cfg(not(stilling_planted))]
pub(crate) mod clients;
pub(crate) mod crash_simulation;

use std::collections::VecDeque;

use stilling_hub::{
    ClientId, ClientOptions, DeliveryBatch, DeliveryItem, Durability, HashKey, Hub, HubConfig, HubRequest,
    Ingress, Now, Outlets, Publication, PublicationBatch, PublishOutcome, ResumePoint, Retention,
    RoutedBatch, ShardTable, SteadyNanos, Storage, StreamConfig, SubscriptionLimit, UnixNanos,
};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{
    AppendError, Batch, Chunk, IdleBatches, JournalAnswer, Log, LogConfig, LogSource, ReadOrder, ReadOutcome,
    Recovery, StreamIndex, read_chunk,
};

pub(crate) const SEGMENTS: LogConfig = LogConfig { segment_size: 128 * 1024, created_ns: 0 };

/// Calendar time at the fixture's start, and at the start of the steady clock.
const RIG_STARTED_NS: u64 = 1_700_000_000_000_000_000;
const STARTED_NS: u64 = 1_600_000_000_000_000_000;

/// Bytes of a batch; a longer record is refused.
pub(crate) const BATCH_SIZE: usize = 8192;

/// Logs that write one batch per call.
pub(crate) struct SteppedStorage {
    pub(crate) logs: Vec<Log<SimulatedDisk>>,
    sources: Vec<LogSource<SimulatedDisk>>,
    pub(crate) idle: Vec<Batch>,
    pub(crate) waiting: VecDeque<(StreamIndex, Batch, u64)>,
    pub(crate) answers: VecDeque<(JournalAnswer, Option<Batch>)>,
    orders: VecDeque<ReadOrder>,
    /// Maximum queued reads and chunks.
    pub(crate) orders_max: usize,
    chunks: VecDeque<Chunk>,
    /// The disk had no room for the oldest waiting batch.
    is_full: bool,
    /// A full disk makes the stream wait, as in the journal; otherwise it freezes the stream.
    pub(crate) waits_for_room: bool,
    /// Last sequence of each stream covered by an answered batch.
    pub(crate) outputs: Vec<u64>,
    pub(crate) is_apart: bool,
    /// Streams for which a round of retention was requested.
    pub(crate) retained: Vec<StreamIndex>,
}

impl SteppedStorage {
    pub(crate) fn new(logs: Vec<Log<SimulatedDisk>>, batches: usize) -> SteppedStorage {
        SteppedStorage {
            sources: logs.iter().map(Log::source).collect(),
            outputs: logs.iter().map(Log::durable).collect(),
            logs,
            idle: (0..batches).map(|_| Batch::new(BATCH_SIZE)).collect(),
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            orders: VecDeque::new(),
            orders_max: usize::MAX,
            chunks: VecDeque::new(),
            retained: Vec::new(),
            is_full: false,
            waits_for_room: false,
            is_apart: false,
        }
    }

    /// Writes the oldest waiting batch; the hub polls the answer. Returns whether there was one.
    pub(crate) fn write(&mut self) -> bool {
        let Some((stream, batch, dedup_from)) = self.waiting.pop_front() else { return false };
        let mut batches = [batch];
        let log = &mut self.logs[stream as usize];
        let answer = match log.append(&mut batches) {
            Ok(watermark) => {
                log.deduplicate_from(dedup_from);
                JournalAnswer::Durable { stream, watermark }
            }
            Err(AppendError::Waiting { reason, kind }) if self.waits_for_room => {
                let [batch] = batches;
                self.waiting.push_front((stream, batch, dedup_from));
                if !std::mem::replace(&mut self.is_full, true) {
                    self.answers.push_back((JournalAnswer::Waiting { stream, reason, kind }, None));
                }
                return false;
            }
            Err(error) => {
                let (watermark, frozen) = (log.durable(), log.give_up(error));
                JournalAnswer::Frozen { stream, watermark, frozen, is_batch_lost: false }
            }
        };
        if std::mem::take(&mut self.is_full) {
            self.answers.push_back((JournalAnswer::Resumed { stream }, None));
        }
        let [batch] = batches;
        self.answers.push_back((answer, Some(batch)));
        true
    }

    /// Serves the oldest read. Returns whether there was one.
    pub(crate) fn serve_read(&mut self) -> bool {
        let Some(order) = self.orders.pop_front() else { return false };
        let mut reader = self.sources[order.stream as usize].read_from(order.from);
        self.chunks.push_back(read_chunk(&mut reader, &order));
        true
    }

    /// Answers the oldest waiting batch as if it had been written.
    #[cfg(not(stilling_planted))]
    pub(crate) fn complete_write(&mut self) {
        let (stream, mut batch, _) = self.waiting.pop_front().expect("a batch waits");
        batch.build();
        let watermark = batch.next() - 1;
        self.answers.push_back((JournalAnswer::Durable { stream, watermark }, Some(batch)));
    }

    #[cfg(not(stilling_planted))]
    pub(crate) fn report_full_disk(&mut self, stream: StreamIndex) {
        let (reason, kind) = ("no space".into(), std::io::ErrorKind::StorageFull);
        self.answers.push_back((JournalAnswer::Waiting { stream, reason, kind }, None));
    }

    #[cfg(not(stilling_planted))]
    pub(crate) fn fail_read(&mut self) {
        let order = self.orders.pop_front().expect("a read is queued");
        let mut chunk = Chunk::empty(&order);
        chunk.failure = Some(std::io::Error::other("reading panicked"));
        self.chunks.push_back(chunk);
    }
}

impl Storage for SteppedStorage {
    fn batch(&mut self, _: StreamIndex) -> Option<Batch> {
        let at = self.idle.iter_mut().rposition(Batch::reset)?;
        Some(self.idle.swap_remove(at))
    }

    fn idle(&self, _: StreamIndex) -> IdleBatches {
        match self.idle.iter().all(Batch::is_shared) {
            _ if self.idle.is_empty() => IdleBatches::None,
            true => IdleBatches::Shared,
            false => IdleBatches::Free,
        }
    }

    fn writer(&self, stream: StreamIndex) -> Option<usize> {
        Some(if self.is_apart { stream as usize } else { 0 })
    }

    fn return_batch(&mut self, _: StreamIndex, mut batch: Batch) {
        batch.reset();
        self.idle.push(batch);
    }

    fn append(&mut self, stream: StreamIndex, batch: Batch, dedup_from: u64) {
        self.waiting.push_back((stream, batch, dedup_from));
    }

    fn retain(&mut self, stream: StreamIndex, _: stilling_journal::LogRetention, _: UnixNanos) -> bool {
        self.retained.push(stream);
        true
    }

    fn read(&mut self, order: ReadOrder) -> bool {
        let has_room = self.orders.len() + self.chunks.len() < self.orders_max;
        if has_room {
            self.orders.push_back(order);
        }
        has_room
    }

    fn publish(&mut self) {}

    fn next_answer(&mut self) -> Option<(JournalAnswer, Option<Batch>)> {
        let (answer, batch) = self.answers.pop_front()?;
        if let JournalAnswer::Durable { stream, watermark } = answer
            && let Some(outputs) = self.outputs.get_mut(stream as usize)
        {
            *outputs = watermark;
        }
        Some((answer, batch))
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        self.chunks.pop_front()
    }

    fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    fn is_quiet(&self) -> bool {
        self.answers.is_empty() && self.chunks.is_empty()
    }
}

/// Outlets that hold routed batches until the shards are polled.
#[derive(Default)]
pub(crate) struct BufferingOutlets {
    pub(crate) handed: Vec<VecDeque<RoutedBatch>>,
    /// Routed batches that each shard may hold.
    pub(crate) room: usize,
    /// Number of full batches that find no room before a shard returns one.
    pub(crate) late: u32,
}

impl Outlets for BufferingOutlets {
    fn swap(&mut self, shard: usize, piece: &mut RoutedBatch) -> bool {
        if self.late > 0 && piece.is_full() {
            self.late -= 1;
            return false;
        }
        if self.handed[shard].len() >= self.room {
            return false;
        }
        self.handed[shard].push_back(std::mem::take(piece));
        true
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionOutput {
    Text(String),
    PublishOutcome(u32, PublishOutcome),
    Mark(u64),
    Pause,
    Resume,
    Close,
    /// Sent by its shard.
    SubscriptionLimit,
}

/// A request of a connection to the hub or to its shard's table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShardRequest<'a> {
    Hub(HubRequest<'a>),
    Subscribe { filter: &'a [u8], queue: &'a [u8], sid: &'a [u8] },
    Unsubscribe { sid: &'a [u8], after: Option<u32> },
}

impl<'a> From<HubRequest<'a>> for ShardRequest<'a> {
    fn from(request: HubRequest<'a>) -> ShardRequest<'a> {
        ShardRequest::Hub(request)
    }
}

/// Puts a connection's request into a publication batch, as its shard does. Fails if a subscription exceeds a limit.
pub(crate) fn put(
    table: &mut ShardTable,
    publication_batch: &mut PublicationBatch,
    (token, client_options): (u64, ClientOptions),
    ask: ShardRequest<'_>,
) -> Result<(), SubscriptionLimit> {
    let put = match ask {
        ShardRequest::Hub(request) => {
            match request {
                HubRequest::Disconnect => table.disconnect(token),
                _ => table.push(publication_batch, token, client_options, &request),
            }
            Ok(())
        }
        ShardRequest::Subscribe { filter, queue, sid } => {
            table.subscribe(token, client_options, (filter, queue, sid))
        }
        ShardRequest::Unsubscribe { sid, after } => {
            table.unsubscribe(token, sid, after);
            Ok(())
        }
    };
    table.push_changes(publication_batch);
    put
}

pub(crate) struct HubFixture {
    pub(crate) hub: Hub<SteppedStorage, BufferingOutlets>,
    pub(crate) tables: Vec<ShardTable>,
    /// Subscription changes that the hub has not processed, and the progress in the first batch.
    changes: [VecDeque<(PublicationBatch, usize)>; 2],
    /// Maximum bytes that a shard expanded at once.
    pub(crate) expanded_max: usize,
    /// Outputs to connections in order, as far as their shards were polled.
    pub(crate) outputs: Vec<(ClientId, ConnectionOutput)>,
    /// Calendar time without the set-back.
    pub(crate) now_ns: u64,
    pub(crate) set_back_ns: u64,
}

const UNBOUNDED: Retention = Retention { bytes: 0, records: None, age: None };

pub(crate) fn stream(name: &str, subjects: &[&str], durability: Durability) -> StreamConfig {
    StreamConfig {
        name: name.to_owned(),
        subjects: subjects.iter().map(|subject| (*subject).to_owned()).collect(),
        durability,
        retention: UNBOUNDED,
        message_size_max: u32::MAX,
        ..StreamConfig::default()
    }
}

pub(crate) fn client(shard: u32, token: u64) -> ClientId {
    ClientId { shard, token }
}

pub(crate) const ABLE: ClientOptions = ClientOptions { headers: true, no_responders: true, no_echo: false };

fn tables(subscriptions_per_client_max: usize) -> Vec<ShardTable> {
    (0..2).map(|_| ShardTable::new(HashKey(1, 2), subscriptions_per_client_max)).collect()
}

impl HubFixture {
    /// A fixture with two shards, a disk stream (`disk.>`), a memory stream (`memory.>`) and a stream without storage
    /// (`none.>`); a disk that may have contents, `batches` batches, and shards with `room` routed batches.
    #[cfg(not(stilling_planted))]
    pub(crate) fn on(disk: &SimulatedDisk, batches: usize, room: usize) -> (HubFixture, Recovery) {
        HubFixture::changed(disk, (batches, room), |_| ())
    }

    /// As [`on`](Self::on), with changed streams.
    #[cfg(not(stilling_planted))]
    pub(crate) fn changed(
        disk: &SimulatedDisk,
        (batches, room): (usize, usize),
        change: impl FnOnce(&mut Vec<StreamConfig>),
    ) -> (HubFixture, Recovery) {
        HubFixture::configured(disk, (batches, room), (8, 0), change)
    }

    /// As [`changed`](Self::changed), with a maximum of subscriptions per connection and a creation time of a new disk
    /// stream.
    #[cfg(not(stilling_planted))]
    pub(crate) fn configured(
        disk: &SimulatedDisk,
        (batches, room): (usize, usize),
        (subscriptions_per_client_max, created_ns): (usize, u64),
        change: impl FnOnce(&mut Vec<StreamConfig>),
    ) -> (HubFixture, Recovery) {
        HubFixture::with_queues(disk, (batches, room), 0, (subscriptions_per_client_max, created_ns), change)
    }

    /// As [`configured`](Self::configured), with a maximum of bytes waiting per shard. With 0 a queue is over its bound
    /// as soon as something waits.
    pub(crate) fn with_queues(
        disk: &SimulatedDisk,
        (batches, room): (usize, usize),
        shard_queue_size_max: usize,
        (subscriptions_per_client_max, created_ns): (usize, u64),
        change: impl FnOnce(&mut Vec<StreamConfig>),
    ) -> (HubFixture, Recovery) {
        let config = LogConfig { created_ns, ..SEGMENTS };
        let (log, recovery) = Log::open(disk.clone(), "disk", config).expect("it opens");
        let mut streams = vec![
            StreamConfig {
                retention: Retention { bytes: 1 << 30, ..UNBOUNDED },
                ..stream("disk", &["disk.>"], Durability::Disk)
            },
            stream("memory", &["memory.>"], Durability::Memory),
            stream("none", &["none.>"], Durability::None),
        ];
        change(&mut streams);
        let created_ns = UnixNanos::from_nanos(log.created_ns());
        let resumed = [ResumePoint { first: recovery.first.max(1), next: recovery.next, created_ns }];
        let ids = log.source();
        let config = HubConfig { streams, memory_batch_size: BATCH_SIZE, shard_queue_size_max };
        let shards = BufferingOutlets { handed: vec![VecDeque::new(), VecDeque::new()], room, late: 0 };
        let storage = SteppedStorage::new(vec![log], batches);
        let mut hub = Hub::new(config, &resumed, (storage, shards), 2, (HashKey(1, 2), UnixNanos::EPOCH));
        let from = recovery.deduplicate_from.max(1);
        let mut reader = ids.read_from(stilling_journal::StartAt::Sequence(from));
        loop {
            match reader.read().expect("it can be read") {
                ReadOutcome::Batch(batch) => hub.restore_ids(0, batch),
                ReadOutcome::Gap { .. } => {}
                ReadOutcome::End => break,
            }
        }
        let tables = tables(subscriptions_per_client_max);
        (
            HubFixture {
                hub,
                tables,
                changes: Default::default(),
                expanded_max: 0,
                outputs: Vec::new(),
                now_ns: RIG_STARTED_NS,
                set_back_ns: 0,
            },
            recovery,
        )
    }

    /// As [`on`](Self::on), with the disk stream before its opening: it starts empty, and nothing is read. Also returns
    /// the result of its opening.
    #[cfg(not(stilling_planted))]
    pub(crate) fn unopened(disk: &SimulatedDisk) -> (HubFixture, stilling_hub::RecoveredStream) {
        let (log, recovery) = Log::open(disk.clone(), "disk", SEGMENTS).expect("it opens");
        let streams = vec![
            stream("disk", &["disk.>"], Durability::Disk),
            stream("memory", &["memory.>"], Durability::Memory),
        ];
        let resumed =
            ResumePoint { first: recovery.first.max(1), next: recovery.next, created_ns: UnixNanos::EPOCH };
        let recovered = stilling_hub::RecoveredStream::new(&streams[0], HashKey(1, 2), resumed);
        let config = HubConfig { streams, memory_batch_size: BATCH_SIZE, ..HubConfig::default() };
        let shards =
            BufferingOutlets { handed: vec![VecDeque::new(), VecDeque::new()], room: 1 << 20, late: 0 };
        let mut storage = SteppedStorage::new(vec![log], 8);
        storage.orders_max = 0;
        let hub = Hub::new(config, &[], (storage, shards), 2, (HashKey(1, 2), UnixNanos::EPOCH));
        let tables = tables(8);
        (
            HubFixture {
                hub,
                tables,
                changes: Default::default(),
                expanded_max: 0,
                outputs: Vec::new(),
                now_ns: RIG_STARTED_NS,
                set_back_ns: 0,
            },
            recovered,
        )
    }

    pub(crate) fn now(&self) -> Now {
        let steady_ns = SteadyNanos::from_nanos(self.now_ns - STARTED_NS);
        Now { unix_ns: UnixNanos::from_nanos(self.now_ns - self.set_back_ns), steady_ns }
    }

    pub(crate) fn ask<'a>(
        &mut self,
        from: ClientId,
        client_options: ClientOptions,
        asked: &[impl Into<ShardRequest<'a>> + Copy],
    ) -> usize {
        let (mut publication_batch, mut ends) = (PublicationBatch::new(), Vec::new());
        let table = &mut self.tables[from.shard as usize];
        for &ask in asked {
            if put(table, &mut publication_batch, (from.token, client_options), ask.into()).is_err() {
                self.outputs.push((from, ConnectionOutput::SubscriptionLimit));
            }
            ends.push(publication_batch.len());
        }
        let has_taken_changes = self.take_changes(from.shard as usize);
        let now = self.now();
        let done = if has_taken_changes {
            self.hub.process_requests(from.shard as usize, &publication_batch, 0, now)
        } else {
            0
        };
        let mut changes = PublicationBatch::new();
        for (token, client_options, request) in (done..).map_while(|at| publication_batch.get(at)) {
            if matches!(request, HubRequest::Interest(_)) {
                self.tables[from.shard as usize].push(&mut changes, token, client_options, &request);
            }
        }
        self.changes[from.shard as usize].push_back((changes, 0));
        self.hub.flush();
        self.count();
        ends.iter().filter(|end| **end <= done).count()
    }

    /// Lets the shards report their own changes, and remove subscriptions that receive nothing more.
    fn report_changes(&mut self) {
        for shard in 0..self.tables.len() {
            let (table, mut publication_batch) = (&mut self.tables[shard], PublicationBatch::new());
            table.remove_some();
            table.push_changes(&mut publication_batch);
            while let Some(mark) = table.next_unanswerable_mark() {
                table.push(
                    &mut publication_batch,
                    0,
                    ClientOptions::default(),
                    &HubRequest::MarkReached { mark },
                );
            }
            self.changes[shard].push_back((publication_batch, 0));
            self.take_changes(shard);
        }
    }

    /// Processes changes of a shard. Returns whether all are processed.
    fn take_changes(&mut self, shard: usize) -> bool {
        let now = self.now();
        while let Some((changes, at)) = self.changes[shard].front_mut() {
            *at = self.hub.process_requests(shard, changes, *at, now);
            if *at < changes.len() {
                return false;
            }
            self.changes[shard].pop_front();
        }
        true
    }

    /// Lets the shards remove everything that receives nothing more, then compares the registrations of hub and shards.
    #[cfg(not(stilling_planted))]
    pub(crate) fn check_registrations(&mut self) {
        while self.tables.iter().any(ShardTable::has_removals) {
            self.turn();
        }
        self.turn();
        let registered: usize = self.tables.iter().map(ShardTable::registrations).sum();
        assert_eq!(self.hub.counters().registrations.get(), registered as u64);
    }

    pub(crate) fn count(&self) {
        let counters = self.hub.counters();
        for (table, counters) in self.tables.iter().zip(&counters.shards) {
            table.publish_metrics(counters);
        }
    }

    pub(crate) fn turn(&mut self) {
        self.report_changes();
        self.hub.poll_storage(self.now());
        self.hub.flush();
        self.count();
    }

    /// Runs the disk and the hub until nothing happens any more.
    pub(crate) fn run_until_settled(&mut self) {
        loop {
            self.turn();
            let storage = self.hub.storage_mut();
            let has_written = storage.write();
            let has_read = storage.serve_read();
            if !has_written && !has_read && storage.is_quiet() {
                break;
            }
        }
        self.turn();
    }

    pub(crate) fn poll_shards(&mut self) {
        for shard in 0..2_u32 {
            while let Some(mut piece) = self.hub.outlets_mut().handed[shard as usize].pop_front() {
                let mut deliveries = DeliveryBatch::new();
                let mut is_all = false;
                while !is_all {
                    is_all = self.tables[shard as usize].expand(&mut piece, &mut deliveries);
                    self.receive(shard, &mut deliveries);
                    deliveries.clear();
                }
            }
        }
        self.count();
    }

    fn receive(&mut self, shard: u32, deliveries: &mut DeliveryBatch) {
        let size = deliveries.rest().map(|(_, delivery)| match delivery {
            DeliveryItem::Bytes(first, _) => first.len(),
            DeliveryItem::Message(line, ..) => line.len(),
            _ => 0,
        });
        self.expanded_max = self.expanded_max.max(size.sum());
        while let Some(token) = deliveries.advance() {
            let outputs = match deliveries.current().expect("there is one") {
                DeliveryItem::Bytes(first, second) => {
                    ConnectionOutput::Text(String::from_utf8([first, second].concat()).expect("text"))
                }
                DeliveryItem::Message(line, payload, end) => {
                    let parts = [line, payload.bytes(), end].concat();
                    ConnectionOutput::Text(String::from_utf8(parts).expect("text"))
                }
                DeliveryItem::PublishOutcome { ticket, outcome } => {
                    ConnectionOutput::PublishOutcome(ticket, outcome)
                }
                DeliveryItem::Mark(mark) => ConnectionOutput::Mark(mark),
                DeliveryItem::Pause => ConnectionOutput::Pause,
                DeliveryItem::Resume => ConnectionOutput::Resume,
                DeliveryItem::Close => ConnectionOutput::Close,
            };
            self.outputs.push((ClientId { shard, token }, outputs));
        }
    }

    /// Takes the text output to a connection since the last call.
    pub(crate) fn received(&mut self, by: ClientId) -> String {
        self.poll_shards();
        let mut text = String::new();
        self.outputs.retain(|(client, outputs)| match outputs {
            ConnectionOutput::Text(more) if *client == by => {
                text.push_str(more);
                false
            }
            _ => true,
        });
        text
    }
}

pub(crate) fn publish_with<'a>(
    subject: &'a str,
    payload: &'a str,
    reply: &'a str,
    headers: &'a str,
) -> HubRequest<'a> {
    HubRequest::Publish(Publication {
        ingress: Ingress::Nats,
        subject: subject.as_bytes(),
        reply: reply.as_bytes(),
        headers: headers.as_bytes(),
        payload: payload.as_bytes().into(),
        ticket: None,
    })
}
