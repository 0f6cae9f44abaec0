//! State of the disks when a server ends: sealed cleanly, or cut off at any point.

use std::ops::RangeInclusive;
use std::time::Instant;

use stilling::parts::SteppedJournal;
use stilling_journal::disk::simulated::{DiskEvent, SimulatedDisk};

use crate::SplitMix64;

/// Most journal steps after the rest of the process is dead.
const STEPS_MAX: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerCrash {
    /// Power failure: any part of what no sync covered may be present.
    Power,
    /// Kill: everything written is readable, but not yet durable.
    Kill,
}

/// Ends the journal at a random point within its next steps. Returns the disks as the next server finds them.
pub(super) fn crash(
    mut journal: SteppedJournal,
    disks: &[SimulatedDisk],
    (how, now): (ServerCrash, Instant),
    random: &mut SplitMix64,
) -> Vec<SimulatedDisk> {
    let mut before: Vec<usize> = recorded(disks);
    for _ in 0..random.below(STEPS_MAX + 1) {
        before = recorded(disks);
        if !journal.writer.turn(now) {
            break;
        }
    }
    drop(journal);
    disks.iter().zip(before).map(|(disk, before)| crash_disk(disk, before, how, random)).collect()
}

/// Closes the journal cleanly after all its input, unless a crash interrupts the sealing of the streams.
pub(super) fn seal(
    mut journal: SteppedJournal,
    disks: &[SimulatedDisk],
    (how, now): (Option<ServerCrash>, Instant),
    random: &mut SplitMix64,
) -> Vec<SimulatedDisk> {
    while journal.writer.turn(now) {}
    let before = recorded(disks);
    drop(journal.reader);
    // A frozen stream is not sealed; its server has reported it.
    drop(journal.writer.close());
    match how {
        None => disks.to_vec(),
        Some(how) => {
            disks.iter().zip(before).map(|(disk, before)| crash_disk(disk, before, how, random)).collect()
        }
    }
}

/// The points of `disk` at which the first snapshot written from the event `from` on is complete, but not durable.
pub(super) fn unsynced_snapshot(disk: &SimulatedDisk, from: usize) -> Option<RangeInclusive<usize>> {
    if disk.recorded() == from {
        return None;
    }
    let history = disk.history();
    let events = || history.events().iter().map(|(_, event)| event).enumerate().skip(from);
    let snapshot = events().find_map(|(_, event)| match event {
        DiskEvent::Created { file, name, .. } if name.ends_with(".snapshot") => Some(*file),
        _ => None,
    })?;
    let (written, _) =
        events().find(|(_, event)| matches!(event, DiskEvent::Writing { file, .. } if *file == snapshot))?;
    let (synced, _) = events().find(|(at, event)| *at > written && **event == DiskEvent::DirectorySynced)?;
    Some(written + 1..=synced)
}

/// Ends the journal with a kill when the disk of this number is at this point. All other disks have everything written.
pub(super) fn kill_at(
    journal: SteppedJournal,
    disks: &[SimulatedDisk],
    (number, point): (usize, usize),
) -> Vec<SimulatedDisk> {
    let mut points = recorded(disks);
    points[number] = point;
    drop(journal);
    disks.iter().zip(points).map(|(disk, point)| disk.history().killed_at(point, usize::MAX)).collect()
}

fn recorded(disks: &[SimulatedDisk]) -> Vec<usize> {
    disks.iter().map(SimulatedDisk::recorded).collect()
}

/// The disk after a crash at a random point from the event `before` on.
fn crash_disk(
    disk: &SimulatedDisk,
    before: usize,
    how: ServerCrash,
    random: &mut SplitMix64,
) -> SimulatedDisk {
    let history = disk.history();
    let point = random.between(before as u64, history.points() as u64 - 1) as usize;
    match how {
        ServerCrash::Kill => {
            let written = if random.chance(300) { random.below(64 * 1024) as usize } else { usize::MAX };
            history.killed_at(point, written)
        }
        ServerCrash::Power => {
            let share = random.below(1001) as u16;
            let disk = history.at(point).disk(|_| random.chance(share));
            disk.start_recording();
            disk
        }
    }
}
