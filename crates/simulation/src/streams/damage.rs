//! Damage to disks between two servers: reads that fail at the next opening, a folder that cannot be listed, a removed
//! segment, a flipped bit.
//!
//! The stream is read before and after a change: only the records of the affected segment or batch may be missing, and
//! readers must report exactly their sequences as a gap.

use std::collections::BTreeSet;

use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};
use stilling_journal::limits::BLOCK_SIZE;

use super::ledger::{StreamContent, StreamLedger};
use crate::SplitMix64;

#[derive(Clone, Copy, Debug)]
pub(super) enum DiskDamage {
    /// At the next opening, `times` reads fail after `after` reads.
    ReadsFail { disk: usize, after: u32, times: u32 },
    /// The next opening cannot list the folder.
    ListFails { disk: usize },
    /// The file of a sealed segment is removed.
    SegmentRemoved { disk: usize },
    /// A bit of a sealed segment flips.
    BitFlipped { disk: usize },
}

/// A disk whose content has changed.
pub(super) struct AlteredDisk {
    pub(super) disk: SimulatedDisk,
    /// File of the affected segment.
    segment: String,
    /// Sequences of the segment.
    range: (u64, u64),
}

impl DiskDamage {
    pub(super) fn name(self) -> &'static str {
        match self {
            DiskDamage::ReadsFail { .. } => "reads of the opening fail",
            DiskDamage::ListFails { .. } => "listing fails",
            DiskDamage::SegmentRemoved { .. } => "segment removed",
            DiskDamage::BitFlipped { .. } => "bit flipped",
        }
    }

    pub(super) fn disk(self) -> usize {
        match self {
            DiskDamage::ReadsFail { disk, .. }
            | DiskDamage::ListFails { disk }
            | DiskDamage::SegmentRemoved { disk }
            | DiskDamage::BitFlipped { disk } => disk,
        }
    }

    /// Faults of the disk at the next opening; `None` if its content changes.
    pub(super) fn faults(self) -> Option<DiskFaults> {
        match self {
            DiskDamage::ReadsFail { after, times, .. } => {
                Some(DiskFaults { reads: Some((after, times, EIO)), ..DiskFaults::default() })
            }
            DiskDamage::ListFails { .. } => Some(DiskFaults { list: Some(EIO), ..DiskFaults::default() }),
            DiskDamage::SegmentRemoved { .. } | DiskDamage::BitFlipped { .. } => None,
        }
    }

    /// Damages a segment of `disk` and checks what readers find. Returns the changed disk, if there is a segment to damage.
    pub(super) fn change(
        self,
        disk: &SimulatedDisk,
        ledger: &mut StreamLedger,
        random: &mut SplitMix64,
    ) -> Result<Option<SimulatedDisk>, String> {
        let Some(AlteredDisk { disk: changed, segment, range }) = self.alter(disk, random) else {
            return Ok(None);
        };
        let (before, after) = (ledger.read(disk)?, ledger.read(&changed)?);
        let is_removed = matches!(self, DiskDamage::SegmentRemoved { .. });
        check(&before, &after, range, is_removed)
            .map_err(|what| format!("{}, {segment} of {}: {what}", self.name(), ledger.name()))?;
        ledger.lose(&before, &after);
        Ok(Some(changed))
    }

    /// Damages a segment of `disk`; `None` if there is no segment between the oldest, whose loss would look like the
    /// result of retention, and the last.
    pub(super) fn alter(self, disk: &SimulatedDisk, random: &mut SplitMix64) -> Option<AlteredDisk> {
        let mut files = disk.files();
        // A crash can leave a file without a whole header as the last one: the segment before it is the newest.
        let is_written = |(_, bytes): &&(String, Vec<u8>)| {
            bytes.get(..BLOCK_SIZE).is_some_and(|header| header.iter().any(|byte| *byte != 0))
        };
        let segments: Vec<(String, u64)> = files
            .iter()
            .filter(is_written)
            .filter_map(|(name, _)| Some((name.clone(), name.strip_suffix(".segment")?.parse().ok()?)))
            .collect();
        if segments.len() < 3 {
            return None;
        }
        let at = random.between(1, segments.len() as u64 - 2) as usize;
        let (segment, first) = segments[at].clone();
        let range = (first, segments[at + 1].1 - 1);
        let index = files.iter().position(|(name, _)| *name == segment).unwrap_or(0);
        match self {
            DiskDamage::BitFlipped { .. } => {
                let bytes = &mut files[index].1;
                let offset = random.index(bytes.len());
                bytes[offset] ^= 1 << random.below(8);
            }
            _ => drop(files.remove(index)),
        }
        let disk = SimulatedDisk::with_files(files);
        disk.start_recording();
        Some(AlteredDisk { disk, segment, range })
    }
}

/// Checks that exactly the affected records are missing and reported as a gap. `range`: sequences of the segment.
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
    if is_exact { Ok(()) } else { Err(format!("gaps report {reported:?} of the segment {range:?}")) }
}
