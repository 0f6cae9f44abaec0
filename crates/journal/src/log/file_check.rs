//! Detects that another program removed, moved or truncated the files of an open stream.
//!
//! A write to an unlinked file succeeds, and its bytes disappear with the process. Therefore links and size of the
//! active segment are checked before each group is acknowledged; the older segments and the directory once a second
//! ([`Log::check_files`]).

use std::io;

use super::Log;
use crate::disk::{Disk, DiskFile};
use crate::failure::{Frozen, LogFailure};
use crate::limits::CHECKED_SEGMENTS_MAX;
use crate::segments::Segment;

pub(super) fn check_active(file: &impl DiskFile, segment: &Segment) -> Result<(), LogFailure> {
    let what = || format!("checking {}", segment.name);
    let status = file.status().map_err(|error| LogFailure::new(what(), error))?;
    if status.links == 0 {
        return Err(LogFailure::files_changed(what(), "the file is gone", io::ErrorKind::NotFound));
    }
    check_size(segment, status.size)
}

fn check_size(segment: &Segment, size: u64) -> Result<(), LogFailure> {
    if size >= segment.size() {
        return Ok(());
    }
    let found = format!("the file has {size} bytes instead of {}", segment.size());
    let what = format!("checking {}", segment.name);
    Err(LogFailure::files_changed(what, &found, io::ErrorKind::UnexpectedEof))
}

impl<D: Disk> Log<D> {
    /// Checks that the directory and the segments exist: all of them, or the next [`CHECKED_SEGMENTS_MAX`]. To be
    /// called about once a second. A check that fails with another error is ignored.
    ///
    /// # Errors
    /// [`Frozen`] if something is missing, from then on for all calls.
    pub fn check_files(&mut self) -> Result<(), Frozen> {
        if let Some(frozen) = self.frozen() {
            return Err(frozen.clone());
        }
        let outcome = self.check_all_files();
        outcome.map_err(|failure| self.freeze(&failure))
    }

    fn check_all_files(&mut self) -> Result<(), LogFailure> {
        if self.disk().is_in_place().is_ok_and(|is_in_place| !is_in_place) {
            let what = "checking the directory".to_owned();
            return Err(LogFailure::files_changed(what, "it is gone", io::ErrorKind::NotFound));
        }
        if let Some(active) = &self.active {
            match check_active(&active.file, &active.segment) {
                Err(failure) if failure.is_final => return Err(failure),
                _ => {}
            }
        }
        let count = self.shared().list().len();
        if self.next_checked >= count {
            self.next_checked = 0;
        }
        let end = count.min(self.next_checked + CHECKED_SEGMENTS_MAX);
        for at in self.next_checked..end {
            let Some(segment) = self.shared().list().get(at).cloned() else { break };
            match self.disk().size_of(&segment.name) {
                Ok(size) => check_size(&segment, size)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let what = format!("checking {}", segment.name);
                    return Err(LogFailure::files_changed(what, "the file is gone", io::ErrorKind::NotFound));
                }
                Err(_) => {}
            }
        }
        self.next_checked = end;
        Ok(())
    }
}
