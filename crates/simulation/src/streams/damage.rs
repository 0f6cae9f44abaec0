//! What happens to disks while no server has them: reads that fail in the next opening, a folder that cannot be listed, a
//! segment that is removed, a byte that is changed.
//!
//! The stream is read before and after a change: exactly the records of the segment or of the batch concerned may be gone, and
//! readers have to be given exactly their sequences as a gap.

use std::collections::BTreeSet;

use stilling_journal::disk::simulated::{DiskFaults, INPUT_OUTPUT, SimulatedDisk};

use super::ledger::{StreamContent, StreamLedger};
use crate::SplitMix64;

/// What happens to a disk between two servers.
#[derive(Clone, Copy, Debug)]
pub(super) enum DiskDamage {
    /// After so many reads of the next opening so many fail.
    ReadsFail { disk: usize, after: u32, times: u32 },
    /// The folder cannot be listed by the next opening.
    ListFails { disk: usize },
    /// The file of a sealed segment is removed.
    SegmentRemoved { disk: usize },
    /// A bit of a sealed segment changes.
    ByteFlipped { disk: usize },
}

impl DiskDamage {
    pub(super) fn name(self) -> &'static str {
        match self {
            DiskDamage::ReadsFail { .. } => "reads of the opening fail",
            DiskDamage::ListFails { .. } => "listing fails",
            DiskDamage::SegmentRemoved { .. } => "segment removed",
            DiskDamage::ByteFlipped { .. } => "byte flipped",
        }
    }

    pub(super) fn disk(self) -> usize {
        match self {
            DiskDamage::ReadsFail { disk, .. }
            | DiskDamage::ListFails { disk }
            | DiskDamage::SegmentRemoved { disk }
            | DiskDamage::ByteFlipped { disk } => disk,
        }
    }

    /// What the disk refuses to the next opening; nothing if it is its content that changes.
    pub(super) fn faults(self) -> Option<DiskFaults> {
        match self {
            DiskDamage::ReadsFail { after, times, .. } => {
                Some(DiskFaults { reads: Some((after, times, INPUT_OUTPUT)), ..DiskFaults::default() })
            }
            DiskDamage::ListFails { .. } => {
                Some(DiskFaults { list: Some(INPUT_OUTPUT), ..DiskFaults::default() })
            }
            DiskDamage::SegmentRemoved { .. } | DiskDamage::ByteFlipped { .. } => None,
        }
    }

    /// Changes the content of `disk` and checks what readers make of it. Returns the changed disk, if it has a sealed segment
    /// behind its oldest: without that one the rest looks like what retention has left.
    pub(super) fn change(
        self,
        disk: &SimulatedDisk,
        ledger: &mut StreamLedger,
        random: &mut SplitMix64,
    ) -> Result<Option<SimulatedDisk>, String> {
        let mut files = disk.files();
        let is_written = |(_, bytes): &&(String, Vec<u8>)| bytes.iter().any(|byte| *byte != 0);
        let segments: Vec<(String, u64)> = files
            .iter()
            .filter(is_written)
            .filter_map(|(name, _)| Some((name.clone(), name.strip_suffix(".segment")?.parse().ok()?)))
            .collect();
        if segments.len() < 3 {
            return Ok(None);
        }
        let at = random.between(1, segments.len() as u64 - 2) as usize;
        let (victim, first) = &segments[at];
        let range = (*first, segments[at + 1].1 - 1);
        let place = files.iter().position(|(name, _)| name == victim).unwrap_or(0);
        match self {
            DiskDamage::ByteFlipped { .. } => {
                let bytes = &mut files[place].1;
                let offset = random.index(bytes.len());
                bytes[offset] ^= 1 << random.below(8);
            }
            _ => drop(files.remove(place)),
        }
        let changed = SimulatedDisk::with_files(files);
        let (before, after) = (ledger.read(disk)?, ledger.read(&changed)?);
        let is_removed = matches!(self, DiskDamage::SegmentRemoved { .. });
        check(&before, &after, range, is_removed)
            .map_err(|what| format!("{}, {victim} of {}: {what}", self.name(), ledger.name()))?;
        ledger.lose(&before, &after);
        changed.record();
        Ok(Some(changed))
    }
}

/// Whether exactly what was affected is gone, and a gap. `range` are the sequences of the segment concerned.
fn check(
    before: &StreamContent,
    after: &StreamContent,
    range: (u64, u64),
    is_removed: bool,
) -> Result<(), String> {
    if let Some((sequence, record)) =
        after.records.iter().find(|(sequence, record)| before.records.get(sequence) != Some(record))
    {
        return Err(format!("{record:?} at {sequence} was not there before"));
    }
    let gone = before.records.keys().filter(|sequence| !after.records.contains_key(sequence));
    let gone: BTreeSet<u64> = gone.copied().collect();
    let reported: BTreeSet<u64> = after.gaps.difference(&before.gaps).copied().collect();
    if let Some(sequence) = gone.difference(&reported).next() {
        return Err(format!("the record at {sequence} is gone and in no gap"));
    }
    let of = |(first, last): (u64, u64)| -> BTreeSet<u64> {
        (first..=last).filter(|sequence| !before.gaps.contains(sequence)).collect()
    };
    let is_batch = |batch: &&(u64, u64)| batch.0 >= range.0 && batch.1 <= range.1 && of(**batch) == reported;
    let is_exact = match is_removed {
        true => reported == of(range),
        false => reported.is_empty() || before.batches.iter().any(|batch| is_batch(&batch)),
    };
    if is_exact { Ok(()) } else { Err(format!("{reported:?} of {range:?} are in gaps")) }
}
