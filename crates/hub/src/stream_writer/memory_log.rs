//! The records of a stream in memory, in batches; the oldest batches are dropped.

use std::collections::VecDeque;
use std::ops::Range;

use stilling_journal::{Batch, BatchPushError, Chunk, ReadRequest, Record, StartAt};

use stilling_ring::SharedBlock;

use crate::limits::MEMORY_TIME_STEP_NS;
use crate::time::UnixNanos;

#[derive(Debug, Default)]
pub(super) struct MemoryLog {
    batches: VecDeque<Batch>,
    /// Reference to the last batch; extended with each record, which is cheaper than a new reference.
    block: Option<SharedBlock>,
    /// First sequence of each time: a batch has one time for all its records, and may be filled for hours.
    times: VecDeque<(u64, UnixNanos)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLimits {
    pub(super) batch_size: usize,
    pub(super) size_max: usize,
}

impl MemoryLog {
    /// Appends a record under the sequence after the last one, and returns the time under which it is kept; drops the
    /// oldest records when full.
    ///
    /// # Errors
    /// The record is longer than a batch.
    pub(super) fn push(
        &mut self,
        sequence: u64,
        record: &Record<'_>,
        now_ns: UnixNanos,
        MemoryLimits { batch_size, size_max }: MemoryLimits,
    ) -> Result<UnixNanos, BatchPushError> {
        let mut outcome = Err(BatchPushError::Full);
        if let Some(batch) = self.batches.back_mut() {
            outcome = batch.push(record);
        }
        if outcome == Err(BatchPushError::Full) {
            let is_full = (self.batches.len() + 1) * batch_size > size_max.max(2 * batch_size);
            self.block = None;
            let oldest = if is_full { self.batches.pop_front() } else { None };
            // A batch in use by deliveries is freed when these have been sent.
            let free = oldest.and_then(|mut oldest| oldest.reset().then_some(oldest));
            let mut batch = free.unwrap_or_else(|| Batch::new(batch_size));
            batch.begin(sequence, now_ns.as_nanos());
            outcome = batch.push(record);
            self.batches.push_back(batch);
            let first = self.batches.front().map_or(sequence, Batch::first);
            while self.times.get(1).is_some_and(|(from, _)| *from <= first) {
                self.times.pop_front();
            }
        }
        let is_new = |&(_, time_ns): &(u64, UnixNanos)| {
            now_ns.as_nanos().abs_diff(time_ns.as_nanos()) >= MEMORY_TIME_STEP_NS
        };
        outcome?;
        match self.times.back() {
            Some(step) if !is_new(step) => Ok(step.1),
            _ => {
                self.times.push_back((sequence, now_ns));
                Ok(now_ns)
            }
        }
    }

    /// Takes the block of the last record with the range of its payload, the last `size` bytes. The caller [puts it
    /// back](Self::put_block_back).
    pub(super) fn take_last_payload(&mut self, size: usize) -> Option<(SharedBlock, Range<usize>)> {
        let batch = self.batches.back_mut()?;
        let mut block = self.block.take().unwrap_or_else(|| batch.share());
        batch.extend(&mut block);
        Some((block, batch.last_range(size)))
    }

    pub(super) fn put_block_back(&mut self, block: SharedBlock) {
        self.block = Some(block);
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.batches.front().map(Batch::first)
    }

    pub(super) fn size(&self) -> u64 {
        self.batches.iter().map(|batch| batch.size() as u64).sum()
    }

    /// Returns the time of the first record kept.
    pub(super) fn oldest_ns(&self) -> Option<UnixNanos> {
        self.batches.front().and(self.times.front()).map(|(_, time_ns)| *time_ns)
    }

    /// Reads the records of a stream from its first sequence `kept_from` up to its next one `next`.
    pub(super) fn read(&self, read_request: &ReadRequest, kept_from: u64, next: u64) -> Chunk {
        let mut chunk = Chunk::empty(read_request);
        let first = match read_request.from {
            StartAt::Sequence(sequence) => sequence.max(kept_from),
            StartAt::Time(time_ns) => {
                let first = self.first_since(UnixNanos::from_nanos(time_ns));
                first.map_or(next, |from| from.max(kept_from))
            }
        };
        chunk.next = first;
        let mut times = self.times.partition_point(|(from, _)| *from <= first).saturating_sub(1);
        let begin = self.batches.partition_point(|batch| batch.next() <= first);
        for batch in self.batches.range(begin..) {
            for (sequence, record) in batch.records() {
                if sequence < first {
                    continue;
                }
                if chunk.is_full() || chunk.len() >= read_request.records_max as usize {
                    return chunk;
                }
                while self.times.get(times + 1).is_some_and(|(from, _)| *from <= sequence) {
                    times += 1;
                }
                let time_ns =
                    self.times.get(times).map_or(batch.time_ns(), |(_, time_ns)| time_ns.as_nanos());
                chunk.push(sequence, time_ns, &record);
                chunk.next = sequence + 1;
            }
        }
        (chunk.next, chunk.is_end) = (chunk.next.max(next), true);
        chunk
    }

    /// Returns the first record that may have the given time or a later one.
    fn first_since(&self, time_ns: UnixNanos) -> Option<u64> {
        // The records of a step arrived between its beginning and its end.
        let may_be = |(_, begin): &&(u64, UnixNanos)| begin.after(MEMORY_TIME_STEP_NS) > time_ns;
        self.times.iter().find(may_be).map(|(from, _)| *from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MemoryLimits = MemoryLimits { batch_size: 4096, size_max: 3 * 4096 };

    fn read_request(from: StartAt) -> ReadRequest {
        ReadRequest { reader_id: 0, stream: 0, from, records_max: u32::MAX }
    }

    fn read(log: &MemoryLog, from: StartAt, next: u64) -> Vec<(u64, u64)> {
        let chunk = log.read(&read_request(from), log.first().unwrap_or(1), next);
        assert!(chunk.is_end && chunk.next == next, "{chunk:?}");
        (0..chunk.len()).filter_map(|at| chunk.get(at)).map(|(sequence, time, _)| (sequence, time)).collect()
    }

    #[test]
    fn a_batch_that_is_referred_to_is_not_filled_again_and_costs_no_wait() {
        let mut log = MemoryLog::default();
        let payload = |sequence: u64| [sequence as u8; 1500];
        let mut kept = Vec::new();
        for sequence in 1..=40 {
            let bytes = payload(sequence);
            let outcome = log.push(sequence, &Record::new(b"a", &bytes), UnixNanos::EPOCH, LIMITS);
            assert_eq!(outcome, Ok(UnixNanos::EPOCH));
            let (block, range) = log.take_last_payload(bytes.len()).expect("there is a record");
            if sequence % 3 == 0 {
                kept.push((block.clone(), range, sequence));
            }
            log.put_block_back(block);
        }
        for (block, range, sequence) in &kept {
            assert_eq!(block.bytes(range.clone()), payload(*sequence));
        }
        assert!(log.first().is_some_and(|first| first > 30) && log.size() <= LIMITS.size_max as u64);
    }

    #[test]
    fn the_newest_records_are_kept_with_their_times() {
        let mut log = MemoryLog::default();
        let payload = [b'x'; 1000];
        assert_eq!((log.first(), log.size(), log.oldest_ns()), (None, 0, None));
        assert_eq!(read(&log, StartAt::Sequence(1), 1), []);
        for sequence in 1..=30 {
            let record = Record::new(b"a", &payload);
            let now_ns = UnixNanos::from_nanos(sequence * MEMORY_TIME_STEP_NS);
            assert_eq!(log.push(sequence, &record, now_ns, LIMITS), Ok(now_ns));
        }
        let first = log.first().expect("there are records");
        assert!((20..28).contains(&first), "from {first} on");
        assert!(log.size() <= LIMITS.size_max as u64);
        assert_eq!(log.oldest_ns(), Some(UnixNanos::from_nanos(first * MEMORY_TIME_STEP_NS)));
        let expected: Vec<_> = (first..31).map(|number| (number, number * MEMORY_TIME_STEP_NS)).collect();
        assert_eq!(read(&log, StartAt::Sequence(1), 31), expected);
        assert_eq!(read(&log, StartAt::Sequence(29), 31), expected[expected.len() - 2..]);
        // A record within a step is delivered with the time under which it is read later.
        let within = UnixNanos::from_nanos(30 * MEMORY_TIME_STEP_NS + 7);
        let step = UnixNanos::from_nanos(30 * MEMORY_TIME_STEP_NS);
        assert_eq!(log.push(31, &Record::new(b"a", b""), within, LIMITS), Ok(step));
        assert_eq!(read(&log, StartAt::Sequence(31), 32), [(31, step.as_nanos())]);
        // A time within a step includes the records of the whole step.
        let since = StartAt::Time(29 * MEMORY_TIME_STEP_NS + 1);
        assert_eq!(read(&log, since, 32)[..2], expected[expected.len() - 2..]);
        assert_eq!(read(&log, StartAt::Time(40 * MEMORY_TIME_STEP_NS), 32), []);
        let long = [b'x'; 4096];
        let refused = log.push(32, &Record::new(b"a", &long), UnixNanos::EPOCH, LIMITS);
        assert_eq!((refused, log.first()), (Err(BatchPushError::TooLarge), Some(first)));
    }
}
