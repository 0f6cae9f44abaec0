//! Support for the journal's tests: distinguishable records, and reading a whole stream.

pub(crate) mod blocks;
pub(crate) mod crash;

use stilling_journal::{
    Batch, Disk, Gap, GapCause, Log, LogConfig, LogSource, ReadOutcome, Record, RecordKind, StartAt,
};

/// The time of the batch that begins with `sequence`.
pub(crate) const fn time_of(sequence: u64) -> u64 {
    1_700_000_000_000_000_000_u64.wrapping_add(sequence.wrapping_mul(1_000_000))
}

/// The payload of the record `sequence` in the run `run` of its writer: all payloads differ, and so do their lengths.
pub(crate) fn payload(run: u64, sequence: u64, size: usize) -> Vec<u8> {
    let mut bytes = format!("{run}/{sequence}:").into_bytes();
    let mut state = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ run;
    while bytes.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.push((state >> 56) as u8);
    }
    bytes
}

pub(crate) fn batch(run: u64, first: u64, count: u64, size: usize) -> Batch {
    let mut batch = Batch::new(256 * 1024);
    batch.begin(first, time_of(first));
    for sequence in first..first + count {
        let payload = payload(run, sequence, size);
        let kind = if sequence.is_multiple_of(7) { RecordKind::Loss } else { RecordKind::Ordinary };
        let record = Record { kind, subject: b"events.a", headers: b"id", payload: &payload[..] };
        assert_eq!(batch.push(&record), Ok(sequence));
    }
    batch
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LogContent {
    pub(crate) records: Vec<(u64, Vec<u8>)>,
    pub(crate) gaps: Vec<(u64, u64, GapCause)>,
}

/// Everything from the first stored record on. Checks that each sequence occurs once, in order: as a record or in a
/// gap.
pub(crate) fn content<D: Disk>(source: &LogSource<D>) -> LogContent {
    content_from(source, StartAt::Sequence(source.first().unwrap_or(1)))
}

/// Everything from `from` on, checked as in [`content`].
pub(crate) fn content_from<D: Disk>(source: &LogSource<D>, from: StartAt) -> LogContent {
    let mut content = LogContent::default();
    let mut reader = source.read_from(from);
    let mut expected = None;
    loop {
        match reader.read().expect("every file can be opened") {
            ReadOutcome::End => break,
            ReadOutcome::Gap(Gap { first, last, cause }) => {
                assert!(first <= last && expected.is_none_or(|expected| expected == first));
                expected = Some(last + 1);
                content.gaps.push((first, last, cause));
            }
            ReadOutcome::Batch(batch) => {
                let last = batch.last;
                for (sequence, record) in batch.records {
                    assert!(expected.is_none_or(|expected| expected == sequence), "{sequence} {expected:?}");
                    expected = Some(sequence + 1);
                    content.records.push((sequence, record.payload.to_vec()));
                }
                assert_eq!(expected, Some(last + 1));
            }
        }
    }
    if let Some(expected) = expected {
        // At most a cut-off write follows the durable records.
        let torn = content
            .gaps
            .last()
            .filter(|(first, _, cause)| *cause == GapCause::Torn && *first == source.durable() + 1);
        assert_eq!(expected, torn.map_or(source.durable(), |(_, last, _)| *last) + 1);
    }
    content
}

pub(crate) fn open<D: Disk>(disk: &D, segment_size: u64) -> (Log<D>, stilling_journal::Recovery) {
    Log::open(disk.clone(), "events", LogConfig { segment_size, ..LogConfig::default() })
        .expect("any bytes open")
}

/// Pseudo-random numbers that are the same in every run.
pub(crate) struct XorShift64(pub(crate) u64);

impl XorShift64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
