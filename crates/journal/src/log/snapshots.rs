//! Snapshots of a gate's state: one file beside the segments, replaced by each newer one once that is durable.

use std::io::{self, IoSlice};

use stilling_ring::planted;

use super::{Log, ignore_not_found};
use crate::batch::AlignedBuffer;
use crate::disk::{Disk, DiskFile};
use crate::format::snapshot::{Snapshot, file_name, sequence_of};
use crate::limits::{BLOCK_SIZE, SNAPSHOT_SIZE_MAX};

/// The snapshots of a stream, as found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundSnapshots {
    /// The newest one that can be used.
    pub usable: Option<Snapshot>,
    /// Newer files, each with the reason why it cannot be used.
    pub unusable: Vec<String>,
}

impl<D: Disk> Log<D> {
    /// Writes a snapshot and makes it durable, unless it is there; then removes older ones.
    ///
    /// # Errors
    /// The system's, with the file: the snapshot is not durable, and older ones remain. `InvalidInput` if it is longer
    /// than [`SNAPSHOT_SIZE_MAX`] or covers records that are not durable.
    pub fn write_snapshot(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        if snapshot.state.len() > SNAPSHOT_SIZE_MAX {
            let what = format!(
                "the snapshot has {} bytes; the maximum is {SNAPSHOT_SIZE_MAX}",
                snapshot.state.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if snapshot.sequence > self.durable() || snapshot.sequence == 0 {
            let what = format!("record {} is not durable", snapshot.sequence);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let name = file_name(snapshot.sequence);
        if self.has_snapshot(&name, snapshot) {
            return Ok(());
        }
        self.make_snapshot(&name, snapshot).map_err(|error| {
            // What remains of it is recognised by its CRC.
            let _ = self.disk().remove(&name);
            self.snapshot_error("writing", &name, &error)
        })?;
        // An older one that remains is harmless, and removed with the next snapshot.
        for entry in self.disk().list().unwrap_or_default() {
            if sequence_of(&entry.name).is_some_and(|sequence| sequence < snapshot.sequence) {
                let _ = self.disk().remove(&entry.name);
            }
        }
        Ok(())
    }

    /// Whether the file of this name has this snapshot. It is not written again: until the new file is durable, no
    /// other one includes the records that retention has removed.
    fn has_snapshot(&self, name: &str, snapshot: &Snapshot) -> bool {
        let entries = self.disk().list().unwrap_or_default();
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else { return false };
        self.read_snapshot(name, entry.size).is_ok_and(|found| found.as_ref() == Ok(snapshot))
    }

    /// Writes a file again in place. It may exist only in the page cache, because its process was killed before the
    /// sync, and a sync alone has no effect on pages marked as clean ([`crate::unsynced_tail`]).
    fn rewrite_snapshot(&self, name: &str, snapshot: &Snapshot) -> io::Result<()> {
        let mut content = AlignedBuffer::new(snapshot.file_size());
        snapshot.write(self.stream_id, content.bytes_mut());
        let rewrite = || {
            let mut file = self.disk().open_to_write(name)?;
            file.write_durable(0, &mut [IoSlice::new(content.bytes())])?;
            self.disk().sync()
        };
        rewrite().map_err(|error| self.snapshot_error("rewriting", name, &error))
    }

    fn snapshot_error(&self, what: &str, name: &str, error: &io::Error) -> io::Error {
        let location = self.disk().location();
        io::Error::new(error.kind(), format!("stream {}: {what} {location}/{name}: {error}", self.name()))
    }

    fn make_snapshot(&self, name: &str, snapshot: &Snapshot) -> io::Result<()> {
        self.disk().remove(name).or_else(ignore_not_found)?;
        let mut content = AlignedBuffer::new(snapshot.file_size());
        snapshot.write(self.stream_id, content.bytes_mut());
        let mut file = self.disk().create(name, snapshot.file_size() as u64)?;
        file.write_durable(0, &mut [IoSlice::new(content.bytes())])?;
        self.disk().sync()
    }

    /// Removes snapshots of records that the stream has lost: other records get their sequences.
    pub(super) fn remove_snapshots_ahead(&self) -> io::Result<()> {
        for entry in self.disk().list()? {
            if sequence_of(&entry.name).is_some_and(|sequence| sequence >= self.next()) {
                self.disk().remove(&entry.name).or_else(ignore_not_found)?;
            }
        }
        Ok(())
    }

    /// Reads the newest snapshot of this gate that belongs to the stream's records, and makes it durable: retention
    /// removes records that it includes.
    ///
    /// # Errors
    /// The system's, if a file cannot be read, since it may be a usable one, or cannot be made durable.
    pub fn find_snapshot(&self, gate: &str) -> io::Result<FoundSnapshots> {
        let mut found = FoundSnapshots::default();
        let entries = self.disk().list()?;
        let mut files: Vec<(u64, String, u64)> = entries
            .into_iter()
            .filter_map(|entry| Some((sequence_of(&entry.name)?, entry.name, entry.size)))
            .collect();
        files.sort_unstable_by(|one, other| other.cmp(one));
        for (sequence, name, size) in files {
            match self.read_snapshot(&name, size)? {
                Ok(snapshot) if snapshot.sequence != sequence => {
                    found.unusable.push(format!("{name}: the sequence in its header differs from its name"));
                }
                Ok(snapshot) if snapshot.gate != gate => {
                    found.unusable.push(format!("{name}: it is of the gate {}", snapshot.gate));
                }
                Ok(_) if sequence >= self.next() => {
                    found.unusable.push(format!("{name}: the stream ends before it, at {}", self.next() - 1));
                }
                Ok(snapshot) => {
                    if !planted!("unsynced snapshot") {
                        self.rewrite_snapshot(&name, &snapshot)?;
                    }
                    found.usable = Some(snapshot);
                    break;
                }
                Err(reason) => found.unusable.push(format!("{name}: {reason}")),
            }
        }
        Ok(found)
    }

    fn read_snapshot(&self, name: &str, size: u64) -> io::Result<Result<Snapshot, String>> {
        let size_max = (BLOCK_SIZE + SNAPSHOT_SIZE_MAX.next_multiple_of(BLOCK_SIZE)) as u64;
        if size > size_max {
            return Ok(Err(format!("it has {size} bytes; the maximum is {size_max}")));
        }
        let failed = |error: io::Error| {
            let location = self.disk().location();
            io::Error::new(error.kind(), format!("reading {location}/{name}: {error}"))
        };
        let file = self.disk().open(name).map_err(failed)?;
        let mut bytes = vec![0; size as usize];
        let length = file.read_at(0, &mut bytes).map_err(failed)?;
        Ok(Snapshot::read(&bytes[..length], self.stream_id))
    }
}
