//! All streams: writers by number, turns of release and retention, and stall timers of the journals.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use stilling_journal::{Batch, IdleBatches, LogRetention, StreamIndex};

use crate::counters::StreamCounters;
use crate::disk_stall::WriterStalls;
use crate::gate::{GateRegistry, StreamGate};
use crate::hash_key::HashKey;
use crate::limits::{
    AGE_RETENTION_EVERY_NS, BATCHES_PER_STREAM_MAX, DISK_CHECK_EVERY_NS, NOTICE_EVERY_NS,
    REFERENCES_CHECK_EVERY_NS, RETAIN_EVERY_NS, SWEEP_EVERY_NS,
};
use crate::storage::Storage;
use crate::stream::{Durability, ResumePoint, StreamConfig};
use crate::stream_writer::{Release, StreamWriter, WriterLimits};
use crate::time::{SteadyNanos, UnixNanos};

#[derive(Debug)]
pub(crate) struct StreamTable {
    writers: Vec<StreamWriter>,
    stalls: WriterStalls,
    /// Streams with releases, each once, in the order of their turns.
    releasing: VecDeque<usize>,
    /// Time of the next round of retention, and the stream of the last one. The first round is due at once, so that
    /// retention also runs in short runs of the server.
    retain_at_ns: SteadyNanos,
    retained: usize,
}

impl Index<usize> for StreamTable {
    type Output = StreamWriter;

    #[inline]
    fn index(&self, number: usize) -> &StreamWriter {
        &self.writers[number]
    }
}

impl IndexMut<usize> for StreamTable {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut StreamWriter {
        &mut self.writers[number]
    }
}

impl StreamTable {
    /// Creates streams that continue at `resumed`; a stream without a resume point starts empty.
    pub(crate) fn new(
        configs: Vec<StreamConfig>,
        resumed: &[ResumePoint],
        memory_batch_size: usize,
        (key, started_ns): (HashKey, UnixNanos),
    ) -> StreamTable {
        let on_disk = configs.iter().filter(|config| config.durability == Durability::Disk).count();
        let batches_max =
            if on_disk > 1 { (2 * BATCHES_PER_STREAM_MAX / on_disk).max(2) } else { usize::MAX };
        let limits = WriterLimits { batches_max, memory_batch_size };
        let writers = configs.into_iter().enumerate().map(|(number, config)| {
            let mut resumed = resumed.get(number).copied().unwrap_or_default();
            if resumed.created_ns == UnixNanos::EPOCH {
                resumed.created_ns = started_ns;
            }
            StreamWriter::new((number as u32, config), key, resumed, limits)
        });
        let writers: Vec<StreamWriter> = writers.collect();
        let stalls = WriterStalls::new(writers.len());
        StreamTable {
            writers,
            stalls,
            releasing: VecDeque::new(),
            retain_at_ns: SteadyNanos::START,
            retained: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.writers.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StreamWriter> {
        self.writers.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamWriter> {
        self.writers.iter_mut()
    }

    pub(crate) fn named(&self, name: &str) -> Option<usize> {
        self.writers.iter().position(|stream| stream.config.name == name)
    }

    pub(crate) fn stalls(&mut self) -> &mut WriterStalls {
        &mut self.stalls
    }

    /// Returns the streams with releases in the order of their turns.
    pub(crate) fn releasing(&self) -> &VecDeque<usize> {
        &self.releasing
    }

    /// Queues a release after those of its stream.
    pub(crate) fn queue_release(&mut self, number: usize, release: Release) {
        let stream = &mut self.writers[number];
        if !stream.is_releasing() {
            self.releasing.push_back(number);
        }
        stream.queue_release(release);
    }

    /// Takes the oldest release of the next stream. The caller [ends](Self::end_release) it or [puts it
    /// back](Self::put_release_back) before it takes another.
    pub(crate) fn next_release(&mut self) -> Option<(usize, Release)> {
        let number = self.releasing.pop_front()?;
        Some((number, self.writers[number].take_release()?))
    }

    /// Completes a release; its stream's next one comes after those of other streams. Returns its batch.
    pub(crate) fn end_release(&mut self, number: usize, release: Release) -> Option<Batch> {
        let stream = &mut self.writers[number];
        if stream.is_releasing() {
            self.releasing.push_back(number);
        }
        stream.end_release(release)
    }

    pub(crate) fn put_release_back(&mut self, number: usize, release: Release) {
        self.writers[number].put_release_back(release);
        self.releasing.push_back(number);
    }

    pub(crate) fn begin_turn(&mut self, now_ns: SteadyNanos) {
        for stream in &mut self.writers {
            stream.begin_turn(now_ns);
        }
    }

    /// Returns whether a batch is free for a stream that found all in use by deliveries in this turn.
    pub(crate) fn has_free_batch<S: Storage>(&self, storage: &S) -> bool {
        let has_batch = |(number, stream): (usize, &StreamWriter)| {
            stream.waits_for_references() && storage.idle(number as StreamIndex) == IdleBatches::Free
        };
        self.writers.iter().enumerate().any(has_batch)
    }

    pub(crate) fn flush<S: Storage>(&mut self, storage: &mut S) {
        for stream in &mut self.writers {
            stream.flush(storage);
        }
    }

    pub(crate) fn set_gates(&mut self, gates: &GateRegistry) {
        for stream in &mut self.writers {
            stream.set_gate(StreamGate::new(gates, &stream.config).map(Box::new));
        }
    }

    /// Hands the states of gates to the storage that have changed since their last snapshots.
    pub(crate) fn write_final_snapshots<S: Storage>(&mut self, storage: &mut S) {
        for stream in &mut self.writers {
            stream.write_final_snapshot(storage);
        }
    }

    pub(crate) fn publish_metrics(&mut self, to: &[StreamCounters]) {
        for (stream, counters) in self.writers.iter_mut().zip(to) {
            stream.publish_metrics(counters);
        }
    }

    pub(crate) fn next_retention(&mut self, now_ns: SteadyNanos) -> Option<(StreamIndex, LogRetention, u64)> {
        if self.writers.is_empty() || now_ns < self.retain_at_ns {
            return None;
        }
        self.retain_at_ns = now_ns.after(RETAIN_EVERY_NS);
        self.retained = (self.retained + 1) % self.writers.len();
        let stream = &self.writers[self.retained];
        let config = &stream.config;
        let retention = config.retention.for_journal();
        let has_any = config.durability == Durability::Disk && retention != LogRetention::default();
        has_any.then_some((self.retained as StreamIndex, retention, stream.keep_from()))
    }

    /// Returns the maximum nanoseconds until timed work must be checked.
    pub(crate) fn next_check_in(&self) -> Option<u64> {
        let ages =
            |stream: &StreamWriter| stream.config.retention.age.is_some() && stream.first < stream.next;
        let ages = self.writers.iter().any(ages).then_some(AGE_RETENTION_EVERY_NS);
        let is_watched = self.stalls.is_any_running() || self.writers.iter().any(StreamWriter::is_watched);
        let disk = is_watched.then_some(DISK_CHECK_EVERY_NS);
        let lines = self.writers.iter().any(|stream| stream.health.has_lines()).then_some(NOTICE_EVERY_NS);
        let ids = self.writers.iter().filter_map(|stream| stream.dedup.sweep_in()).min();
        let ids = ids.map(|span_ns| span_ns.max(SWEEP_EVERY_NS));
        let references = self.writers.iter().filter_map(StreamWriter::builds_in).min();
        let waits = self.writers.iter().any(StreamWriter::waits_for_references);
        let batches = waits.then_some(REFERENCES_CHECK_EVERY_NS);
        [ages, disk, lines, ids, references, batches].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stream::Retention;

    fn at(nanos: u64) -> SteadyNanos {
        SteadyNanos::from_nanos(nanos)
    }

    const STARTED_NS: UnixNanos = UnixNanos::from_nanos(77);

    fn streams(durabilities: &[Durability]) -> StreamTable {
        let config = |(number, durability): (usize, &Durability)| StreamConfig {
            name: number.to_string(),
            durability: *durability,
            retention: Retention { age: Some(Duration::from_nanos(1)), ..Retention::of(*durability) },
            ..StreamConfig::default()
        };
        let configs = durabilities.iter().enumerate().map(config).collect();
        let resumed = [ResumePoint { first: 3, next: 9, created_ns: UnixNanos::EPOCH }];
        StreamTable::new(configs, &resumed, 4096, (HashKey(1, 2), STARTED_NS))
    }

    #[test]
    fn existing_streams_resume_and_new_ones_begin() {
        let streams = streams(&[Durability::Disk, Durability::Memory]);
        let numbers = |stream: &StreamWriter| (stream.first, stream.next, stream.visible, stream.created_ns);
        assert_eq!(numbers(&streams[0]), (3, 9, 8, STARTED_NS));
        assert_eq!(numbers(&streams[1]), (1, 1, 0, STARTED_NS));
        assert_eq!((streams.len(), streams.named("1"), streams.named("2")), (2, Some(1), None));
        assert_eq!(streams.next_check_in(), Some(AGE_RETENTION_EVERY_NS), "the first has records");
    }

    #[test]
    fn streams_take_turns_with_their_releases() {
        let mut streams = streams(&[Durability::Disk; 3]);
        for (number, watermark) in [(0, 10), (0, 11), (2, 5), (0, 12)] {
            let release = streams[number].answered(None, watermark);
            streams.queue_release(number, release);
        }
        let mut order = Vec::new();
        let mut has_room = false;
        while let Some((number, release)) = streams.next_release() {
            order.push((number, release.watermark));
            match has_room {
                true => assert!(streams.end_release(number, release).is_none()),
                false => streams.put_release_back(number, release),
            }
            has_room = true;
        }
        assert_eq!(order, [(0, 10), (2, 5), (0, 10), (0, 11), (0, 12)]);
        assert!(streams.releasing().is_empty() && streams.iter().all(StreamWriter::is_drained));
        assert_eq!((streams[0].visible, streams[1].visible, streams[2].visible), (12, 0, 5));
    }

    #[test]
    fn each_round_of_retention_is_for_the_next_stream_on_disk() {
        let mut streams = streams(&[Durability::Disk, Durability::Memory, Durability::Disk]);
        let mut rounds = Vec::new();
        for now_ns in 1..=6 {
            let round = streams.next_retention(at(now_ns * RETAIN_EVERY_NS));
            rounds.push(round.map(|(stream, ..)| stream));
            assert_eq!(streams.next_retention(at((now_ns + 1) * RETAIN_EVERY_NS - 1)), None, "once per span");
        }
        assert_eq!(rounds, [None, Some(2), Some(0), None, Some(2), Some(0)]);
        let mut none = StreamTable::new(Vec::new(), &[], 0, (HashKey(1, 2), STARTED_NS));
        assert_eq!(none.next_retention(at(5)), None);
    }
}
