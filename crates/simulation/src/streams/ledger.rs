//! External record of every disk stream, and the audit that compares it with the disk.
//!
//! Publishers and subscribers report each acknowledgement and each received message. After every run of the server the
//! audit reads the stream directly from a copy of its disk:
//!
//! - **durable**: acknowledged or received messages are stored under the reported sequence with the right bytes, unless
//!   removed by retention;
//! - **once**: a message with an id is stored once, any other at most as often as it was sent;
//! - **stable**: a sequence once reported or read never has another record;
//! - **nothing invented**: stored messages were sent;
//! - **gaps**: sequences reported to a follower as a gap have no record for it;
//! - **retention** removes no more than its bounds allow.

use std::collections::{BTreeMap, BTreeSet};

use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::limits::BLOCK_SIZE;
use stilling_journal::{Log, LogConfig, ReadOutcome, RecordKind, StartAt};

use super::message::MessageName;

/// The minimum that retention is configured to keep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetentionBounds {
    pub(super) bytes: Option<u64>,
    pub(super) records: Option<u64>,
}

#[derive(Debug)]
pub(super) struct StreamLedger {
    name: &'static str,
    bounds: RetentionBounds,
    segment_size: u64,
    /// Longest segment: a batch may be longer than an ordinary segment.
    segment_max: u64,
    sent: BTreeMap<MessageName, u32>,
    acknowledged: BTreeMap<MessageName, u64>,
    seen: BTreeSet<MessageName>,
    /// Known message at each sequence: reported, or read by an audit.
    at: BTreeMap<u64, MessageName>,
    /// Messages at sequences with bytes damaged or removed from outside.
    lost: BTreeMap<u64, MessageName>,
    skipped: Vec<(u64, u64)>,
    /// First sequence found by the last audit.
    first: u64,
    /// Last sequence reported or received.
    last_known: u64,
    pub(super) removals: u64,
    pub(super) records: u64,
    pub(super) markers: u64,
}

#[derive(Debug, Default)]
pub(super) struct StreamContent {
    pub(super) records: BTreeMap<u64, Option<MessageName>>,
    pub(super) batches: Vec<(u64, u64)>,
    pub(super) gaps: BTreeSet<u64>,
    first: u64,
    bytes: u64,
    /// Findings of the opening, and the ranges skipped.
    findings: String,
}

impl StreamLedger {
    pub(super) fn new(
        name: &'static str,
        bounds: RetentionBounds,
        (segment_size, batch_size): (u64, u64),
    ) -> StreamLedger {
        StreamLedger {
            name,
            bounds,
            segment_size,
            segment_max: segment_size.max(batch_size + BLOCK_SIZE as u64),
            sent: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            seen: BTreeSet::new(),
            at: BTreeMap::new(),
            lost: BTreeMap::new(),
            skipped: Vec::new(),
            first: 1,
            last_known: 0,
            removals: 0,
            records: 0,
            markers: 0,
        }
    }

    pub(super) fn send(&mut self, name: MessageName) {
        *self.sent.entry(name).or_default() += 1;
    }

    pub(super) fn acknowledge(
        &mut self,
        name: MessageName,
        sequence: u64,
        is_duplicate: bool,
    ) -> Result<(), String> {
        let times = self.sent.get(&name).copied().unwrap_or(0);
        if is_duplicate && times < 2 {
            return Err(format!("{name}, sent {times} times, was acknowledged as a duplicate"));
        }
        if let Some(before) = self.acknowledged.insert(name, sequence)
            && before != sequence
            && self.lost.get(&before) != Some(&name)
        {
            return Err(format!("{name} was acknowledged as {before} and as {sequence}"));
        }
        self.is_at(sequence, name)
    }

    pub(super) fn record_seen(&mut self, name: MessageName) -> Result<(), String> {
        if !self.sent.contains_key(&name) {
            return Err(format!("{name} was received but never sent"));
        }
        self.seen.insert(name);
        Ok(())
    }

    /// Records that a follower received a message under a sequence.
    pub(super) fn record_seen_at(&mut self, name: MessageName, sequence: u64) -> Result<(), String> {
        self.record_seen(name)?;
        self.is_at(sequence, name)
    }

    pub(super) fn skip(&mut self, first: u64, last: u64) {
        self.skipped.push((first, last));
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Records lost by damage from outside.
    pub(super) fn lost(&self) -> u64 {
        self.lost.len() as u64
    }

    /// Records damage from outside: records in `before` but not in `after` are lost.
    pub(super) fn lose(&mut self, before: &StreamContent, after: &StreamContent) {
        let gone = before.records.iter().filter(|(sequence, _)| !after.records.contains_key(sequence));
        self.lost.extend(gone.filter_map(|(sequence, record)| Some((*sequence, (*record)?))));
    }

    /// Sequence of the last known record.
    pub(super) fn last(&self) -> Option<u64> {
        self.at.last_key_value().map(|(sequence, _)| *sequence)
    }

    fn is_at(&mut self, sequence: u64, name: MessageName) -> Result<(), String> {
        self.last_known = self.last_known.max(sequence);
        match self.at.insert(sequence, name) {
            Some(other) if other != name => {
                Err(format!("{}: {name} is at {sequence}, where {other} was", self.name))
            }
            _ => Ok(()),
        }
    }

    /// Reads the disk and compares it with the ledger.
    pub(super) fn audit(&mut self, disk: &SimulatedDisk) -> Result<(), String> {
        let content = self.read(disk)?;
        let name = self.name;
        self.check_retention(&content)?;
        let mut stored_at: BTreeMap<MessageName, u64> = BTreeMap::new();
        for (&sequence, record) in &content.records {
            let Some(record) = *record else { continue };
            let Some(&times) = self.sent.get(&record) else {
                return Err(format!("{name}: {record} at {sequence} was never sent"));
            };
            if let Some(other) = stored_at.insert(record, sequence) {
                return Err(format!("{name}: {record}, sent {times} times, is at {other} and at {sequence}"));
            }
            self.is_at(sequence, record)?;
        }
        let is_retained = |sequence: u64| sequence >= content.first;
        for (record, &sequence) in &self.acknowledged {
            let stored = stored_at.get(record).copied();
            let is_lost = self.lost.get(&sequence) == Some(record);
            if is_retained(sequence) && !is_lost && stored != Some(sequence) {
                return Err(format!(
                    "{name}: {record} was acknowledged as {sequence}, but is stored at {stored:?}: {}",
                    content.findings
                ));
            }
        }
        let known: BTreeMap<MessageName, u64> =
            self.at.iter().map(|(sequence, record)| (*record, *sequence)).collect();
        let lost: BTreeSet<MessageName> = self.lost.values().copied().collect();
        let is_missing = |record: &&MessageName| !stored_at.contains_key(record) && !lost.contains(record);
        for record in self.seen.iter().filter(is_missing) {
            let sequence = known.get(record).copied();
            // A message received without its sequence may have been removed by retention.
            let is_removed = sequence.map_or(content.first > 1, |sequence| !is_retained(sequence));
            if !is_removed {
                return Err(format!(
                    "{name}: {record} was received at {sequence:?} but is not stored: {}",
                    content.findings
                ));
            }
        }
        for (first, last) in std::mem::take(&mut self.skipped) {
            let kept = content
                .records
                .range(first..=last)
                .find_map(|(sequence, record)| record.map(|record| (*sequence, record)));
            if let Some((sequence, record)) = kept {
                return Err(format!("{name}: a follower skipped {record} at {sequence}"));
            }
        }
        // Messages lost with the tail may be stored elsewhere later, but never under a reported sequence.
        self.at.retain(|sequence, record| !is_retained(*sequence) || stored_at.get(record) == Some(sequence));
        self.first = content.first;
        self.records = content.records.values().flatten().count() as u64;
        self.markers += content.records.values().filter(|record| record.is_none()).count() as u64;
        Ok(())
    }

    fn check_retention(&mut self, content: &StreamContent) -> Result<(), String> {
        if content.first <= self.first {
            return Ok(());
        }
        let lost_tail = content.records.is_empty();
        self.removals += 1;
        let RetentionBounds { bytes, records } = self.bounds;
        // The journal counts sequences, so records lost by damage count as kept.
        let kept = (content.records.len() + self.lost.range(content.first..).count()) as u64;
        let of_bytes = bytes.is_some_and(|most| content.bytes + self.segment_max + BLOCK_SIZE as u64 >= most);
        let of_records = records.is_some_and(|least| kept >= least);
        if of_bytes || of_records || lost_tail && self.last_known < content.first {
            return Ok(());
        }
        Err(format!(
            "{}: records up to {} were removed, and {kept} records of {} bytes are left; {:?} keeps more",
            self.name,
            content.first - 1,
            content.bytes,
            self.bounds
        ))
    }

    pub(super) fn read(&self, disk: &SimulatedDisk) -> Result<StreamContent, String> {
        // A separate disk: reading must change nothing.
        let copy = SimulatedDisk::with_files(disk.files());
        let config = LogConfig { segment_size: self.segment_size, ..LogConfig::default() };
        let (log, recovery) = Log::open(copy, self.name, config).map_err(|error| error.to_string())?;
        let mut content = StreamContent { first: recovery.first.max(1), ..StreamContent::default() };
        let (before, last_segment) = sizes(&disk.files());
        content.bytes = before;
        content.findings =
            format!("{} to {}, next {}; {}", recovery.first, recovery.last, recovery.next, recovery.findings);
        let mut reader = log.source().read_from(StartAt::Sequence(1));
        loop {
            match reader.read().map_err(|error| error.to_string())? {
                ReadOutcome::End => return Ok(content),
                ReadOutcome::Gap(gap) => {
                    content.findings.push_str(&format!("; {gap:?}"));
                    content.gaps.extend(gap.first..=gap.last);
                }
                ReadOutcome::Batch(batch) => {
                    let (mut size, mut is_last, mut first) = (0, false, batch.last);
                    for (sequence, record) in batch.records {
                        first = first.min(sequence);
                        size += record.size().unwrap_or(0) as u64;
                        is_last |= sequence >= last_segment;
                        let name = (record.kind == RecordKind::Ordinary).then(|| {
                            MessageName::of(record.payload)
                                .ok_or_else(|| format!("{}: the record at {sequence} is damaged", self.name))
                        });
                        content.records.insert(sequence, name.transpose()?);
                    }
                    content.batches.push((first, batch.last));
                    if is_last {
                        content.bytes += size.next_multiple_of(BLOCK_SIZE as u64);
                    }
                }
            }
        }
    }
}

/// Bytes written to all segments but the last, plus the header of the last, and the first sequence of the last. A crash
/// may give a segment back space that was cut off; only written bytes count.
fn sizes(files: &[(String, Vec<u8>)]) -> (u64, u64) {
    let first = |name: &str| name.strip_suffix(".segment").and_then(|number| number.parse::<u64>().ok());
    let written = |content: &[u8]| {
        let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        end.next_multiple_of(BLOCK_SIZE) as u64
    };
    let segments: Vec<(u64, u64)> =
        files.iter().filter_map(|(name, content)| Some((first(name)?, written(content)))).collect();
    let last = segments.iter().map(|(first, _)| *first).max().unwrap_or(0);
    let before: u64 = segments.iter().filter(|(first, _)| *first < last).map(|(_, size)| *size).sum();
    (before + BLOCK_SIZE as u64, last)
}
