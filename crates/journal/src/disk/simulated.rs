//! A directory in memory that records all operations and simulates a crash at any of them.
//!
//! ```text
//!   events   create │ write │ synced │ sync │ write │ synced │ truncate │ …
//!                                             ▲
//!                                crash here: base = what is certainly durable
//!                                            pending = what may be durable, in any part
//! ```
//!
//! At a crash these are pending, each independently: each sector of 512 bytes of a write that has not returned or has
//! failed to sync; each creation, removal and truncation not covered by a sync of the directory; the directory itself
//! until its name is synced. Until the crash all of it can be read, as from a page cache, also after the process was
//! killed. Before each event the disk records the watermark that was acknowledged to clients
//! ([`SimulatedDisk::observe_watermark`]), so that a test can check whether a crash at that point would revoke an
//! acknowledgement.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stilling_ring::planted;

use super::{DirectoryEntry, Disk, DiskFile, FileStatus, LockError, WriteMethod};

/// Bytes that a disk writes atomically.
pub const SECTOR_SIZE: usize = 512;

type FileId = usize;
type WatermarkProbe = Box<dyn Fn() -> u64 + Send>;

/// A recorded operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskEvent {
    /// A file was created; its name and size are not durable yet.
    Created {
        /// The file.
        file: usize,
        /// Its name.
        name: String,
        /// Its size in bytes.
        size: usize,
    },
    /// A write started.
    Writing {
        /// The file.
        file: usize,
        /// Offset in bytes.
        offset: usize,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// The write that was recorded as the event of this index is durable.
    Synced(usize),
    /// A file was truncated.
    Truncated {
        /// The file.
        file: usize,
        /// The new size in bytes.
        size: usize,
    },
    /// A name was removed.
    Removed {
        /// The name.
        name: String,
    },
    /// Creations and removals of names became durable.
    DirectorySynced,
    /// The names of the directory and its ancestors became durable.
    AncestorsSynced,
}

#[derive(Default)]
struct SimulatedDiskState {
    names: BTreeMap<String, FileId>,
    contents: Vec<Arc<Vec<u8>>>,
    events: Vec<(u64, DiskEvent)>,
    is_recording: bool,
    is_locked: bool,
    random_draws: u64,
    bytes_read: u64,
    watermark_probe: Option<WatermarkProbe>,
    faults: DiskFaults,
    /// Files changed by [`SimulatedDisk::change`]; a write beyond their end extends them.
    changed: BTreeSet<FileId>,
}

/// Injected faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskFaults {
    /// After this many durable writes, each further one fails with this error number, half written.
    pub writes: Option<(u32, i32)>,
    /// Number of writes and syncs that fail; `None`: all.
    pub writes_max: Option<u32>,
    /// After this many writes, the sync of each further one fails with this error number: all of its bytes are in the
    /// page cache, marked as clean, and can be read until a power failure; none is durable.
    pub syncs: Option<(u32, i32)>,
    /// After this many reads, the given number of reads fail with this error number.
    pub reads: Option<(u32, u32, i32)>,
    /// Removals of files fail with this error number.
    pub remove: Option<i32>,
    /// The directory was moved.
    pub is_moved: bool,
    /// Creations of files fail with this error number.
    pub create: Option<i32>,
    /// Syncs of the directory fail with this error number.
    pub sync: Option<i32>,
    /// Listing the directory fails with this error number.
    pub list: Option<i32>,
}

/// Error number of a full disk.
pub const ENOSPC: i32 = 28;
/// Error number of an I/O error.
pub const EIO: i32 = 5;
/// Error number of a process with too many open files.
pub const EMFILE: i32 = 24;
/// Error number of an exhausted quota.
pub const EDQUOT: i32 = 122;
/// Makes the write panic, like a bug of the program.
pub const PANIC: i32 = -1;

/// A directory in memory. Clones refer to the same directory.
#[derive(Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<SimulatedDiskState>>);

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.state().names.iter()).finish()
    }
}

impl SimulatedDisk {
    /// An empty directory that does not record operations.
    #[must_use]
    pub fn new() -> SimulatedDisk {
        SimulatedDisk::default()
    }

    /// An empty directory that records all operations.
    #[must_use]
    pub fn recording() -> SimulatedDisk {
        let disk = SimulatedDisk::default();
        disk.state().is_recording = true;
        disk
    }

    /// A directory with these files, all durable.
    #[must_use]
    pub fn with_files(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> SimulatedDisk {
        let disk = SimulatedDisk::default();
        for (name, content) in files {
            disk.put(&name, content);
        }
        disk
    }

    /// Adds a file durably, or replaces it.
    pub fn put(&self, name: &str, content: Vec<u8>) {
        self.state().add(name.to_owned(), Arc::new(content));
    }

    /// All files with their contents.
    #[must_use]
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state();
        state.names.iter().map(|(name, file)| (name.clone(), state.contents[*file].to_vec())).collect()
    }

    /// Changes one file in place.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let file = *state.names.get(name).expect("the file is there");
        state.changed.insert(file);
        change(Arc::make_mut(&mut state.contents[file]));
    }

    /// Calls `acknowledged` before each event to record the acknowledged watermark.
    pub fn observe_watermark(&self, acknowledged: impl Fn() -> u64 + Send + 'static) {
        self.state().watermark_probe = Some(Box::new(acknowledged));
    }

    /// Sets the faults of further operations.
    pub fn fail(&self, faults: DiskFaults) {
        self.state().faults = faults;
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.state().bytes_read
    }

    /// Number of recorded events.
    #[must_use]
    pub fn recorded(&self) -> usize {
        self.state().events.len()
    }

    /// The recorded operations so far.
    #[must_use]
    pub fn history(&self) -> DiskHistory {
        let state = self.state();
        let acknowledged = state.watermark_probe.as_ref().map_or(0, |watermark_probe| watermark_probe());
        DiskHistory { events: state.events.clone(), acknowledged_at_end: acknowledged }
    }

    fn state(&self) -> MutexGuard<'_, SimulatedDiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFaults {
    /// The faults of the next write: its own, and that of its sync.
    fn next_write(&mut self) -> (Option<i32>, Option<i32>) {
        let faults = (count_down(&mut self.writes), count_down(&mut self.syncs));
        match &mut self.writes_max {
            Some(0) => (None, None),
            Some(left) => {
                *left -= u32::from(faults != (None, None));
                faults
            }
            None => faults,
        }
    }
}

fn count_down(fault: &mut Option<(u32, i32)>) -> Option<i32> {
    match fault {
        Some((0, number)) => Some(*number),
        Some((left, _)) => {
            *left -= 1;
            None
        }
        None => None,
    }
}

impl SimulatedDiskState {
    fn record(&mut self, event: impl FnOnce() -> DiskEvent) -> usize {
        if self.is_recording {
            let acknowledged = self.watermark_probe.as_ref().map_or(0, |watermark_probe| watermark_probe());
            self.events.push((acknowledged, event()));
        }
        self.events.len().saturating_sub(1)
    }

    fn add(&mut self, name: String, content: Arc<Vec<u8>>) -> FileId {
        self.contents.push(content);
        self.names.insert(name, self.contents.len() - 1);
        self.contents.len() - 1
    }

    fn file(&self, name: &str) -> io::Result<FileId> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn fail_with(fault: Option<i32>) -> io::Result<()> {
    fault.map_or(Ok(()), |number| Err(io::Error::from_raw_os_error(number)))
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;
    type Lock = SimulatedLock;

    fn location(&self) -> String {
        "the simulated disk".to_owned()
    }

    fn write_method(&self) -> WriteMethod {
        WriteMethod::Direct
    }

    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        let state = self.state();
        fail_with(state.faults.list)?;
        let entry = |(name, file): (&String, &FileId)| DirectoryEntry {
            name: name.clone(),
            size: state.contents[*file].len() as u64,
        };
        Ok(state.names.iter().map(entry).collect())
    }

    fn create(&self, name: &str, size: u64) -> io::Result<SimulatedFile> {
        let mut state = self.state();
        fail_with(state.faults.create)?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let file = state.add(name.to_owned(), Arc::new(vec![0; size]));
        state.record(|| DiskEvent::Created { file, name: name.to_owned(), size });
        Ok(SimulatedFile { disk: self.clone(), file })
    }

    fn open(&self, name: &str) -> io::Result<SimulatedFile> {
        let file = self.state().file(name)?;
        Ok(SimulatedFile { disk: self.clone(), file })
    }

    fn truncate(&self, name: &str, size: u64) -> io::Result<()> {
        let mut state = self.state();
        let file = state.file(name)?;
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
        state.record(|| DiskEvent::Truncated { file, size });
        Arc::make_mut(&mut state.contents[file]).truncate(size);
        Ok(())
    }

    fn open_to_write(&self, name: &str) -> io::Result<SimulatedFile> {
        self.open(name)
    }

    fn size_of(&self, name: &str) -> io::Result<u64> {
        let state = self.state();
        Ok(state.contents[state.file(name)?].len() as u64)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        Ok(!self.state().faults.is_moved)
    }

    fn sync_ancestors(&self) -> io::Result<()> {
        let mut state = self.state();
        fail_with(state.faults.sync)?;
        state.record(|| DiskEvent::AncestorsSynced);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        fail_with(state.faults.remove)?;
        state.file(name)?;
        state.record(|| DiskEvent::Removed { name: name.to_owned() });
        state.names.remove(name);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        fail_with(state.faults.sync)?;
        state.record(|| DiskEvent::DirectorySynced);
        Ok(())
    }

    fn lock(&self) -> Result<SimulatedLock, LockError> {
        let mut state = self.state();
        // These planted bugs show only if the lock does not exclude a second writer.
        let is_unguarded = [planted!("early opening"), planted!("early release")].contains(&true);
        if state.is_locked && !is_unguarded {
            return Err(LockError::Held { location: self.location(), holder: Some(std::process::id()) });
        }
        state.is_locked = true;
        Ok(SimulatedLock(self.clone()))
    }

    fn random_u64(&self) -> u64 {
        let mut state = self.state();
        state.random_draws += 1;
        state.random_draws.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The lock of a simulated disk; released when dropped.
#[derive(Debug)]
pub struct SimulatedLock(SimulatedDisk);

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.0.state().is_locked = false;
    }
}

/// An open file of a simulated disk.
#[derive(Debug)]
pub struct SimulatedFile {
    disk: SimulatedDisk,
    file: FileId,
}

impl DiskFile for SimulatedFile {
    fn status(&self) -> io::Result<FileStatus> {
        let state = self.disk.state();
        let links = state.names.values().filter(|file| **file == self.file).count() as u64;
        Ok(FileStatus { links, size: state.contents[self.file].len() as u64 })
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let state = &mut *state;
        match &mut state.faults.reads {
            Some((0, 0, _)) | None => {}
            Some((0, left, number)) => {
                *left -= 1;
                return Err(io::Error::from_raw_os_error(*number));
            }
            Some((skipped, ..)) => *skipped -= 1,
        }
        let content = &state.contents[self.file];
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let length = into.len().min(content.len() - start);
        into[..length].copy_from_slice(&content[start..start + length]);
        state.bytes_read += length as u64;
        Ok(length)
    }

    fn write_durable(&mut self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Arc<[u8]>>();
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut state = self.disk.state();
        let (fault, sync_fault) = state.faults.next_write();
        let accepted = if fault.is_some() { bytes.len() / 2 } else { bytes.len() };
        // A failed write never passed the other bytes to the disk.
        let began = state.record(|| DiskEvent::Writing {
            file: self.file,
            offset,
            bytes: Arc::from(&bytes[..accepted]),
        });
        if fault == Some(PANIC) {
            drop(state);
            panic!("an injected panic of a write");
        }
        let is_changed = state.changed.contains(&self.file);
        let content = Arc::make_mut(&mut state.contents[self.file]);
        if is_changed && content.len() < offset + accepted {
            content.resize(offset + accepted, 0);
        }
        let Some(destination) = content.get_mut(offset..offset + accepted) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        destination.copy_from_slice(&bytes[..accepted]);
        fail_with(fault)?;
        fail_with(sync_fault)?;
        if !planted!("missing sync") {
            state.record(|| DiskEvent::Synced(began));
        }
        Ok(())
    }
}

/// All operations on a disk, in order.
#[derive(Clone, Debug)]
pub struct DiskHistory {
    events: Vec<(u64, DiskEvent)>,
    acknowledged_at_end: u64,
}

impl DiskHistory {
    /// Number of points at which the power may fail: before each event, and after the last.
    #[must_use]
    pub fn points(&self) -> usize {
        self.events.len() + 1
    }

    /// The operations, each with the watermark acknowledged before it.
    #[must_use]
    pub fn events(&self) -> &[(u64, DiskEvent)] {
        &self.events
    }

    /// The durable and the pending state when the power fails before event `point`.
    #[must_use]
    pub fn at(&self, point: usize) -> CrashPoint {
        let done = &self.events[..point.min(self.events.len())];
        let all_synced: BTreeSet<usize> = done
            .iter()
            .filter_map(|(_, event)| if let DiskEvent::Synced(at) = event { Some(*at) } else { None })
            .collect();
        let synced = |at: usize| all_synced.contains(&at);
        let last_sync = done.iter().rposition(|(_, event)| *event == DiskEvent::DirectorySynced).unwrap_or(0);
        let acknowledged =
            self.events.get(point).map_or(self.acknowledged_at_end, |(acknowledged, _)| *acknowledged);
        let is_path_durable = done.iter().any(|(_, event)| *event == DiskEvent::AncestorsSynced);
        let mut crash =
            CrashPoint { acknowledged, names: BTreeMap::new(), contents: Vec::new(), pending: Vec::new() };
        for (at, (_, event)) in done.iter().enumerate() {
            let is_durable = at < last_sync;
            match event {
                DiskEvent::Created { file, name, size } => {
                    crash.contents.resize(crash.contents.len().max(file + 1), Arc::default());
                    if is_durable {
                        crash.names.insert(name.clone(), *file);
                        crash.contents[*file] = Arc::new(vec![0; *size]);
                    } else {
                        crash.pending.push(PendingDiskChange::Name(name.clone(), *file));
                        crash.pending.push(PendingDiskChange::Size(*file, *size));
                    }
                }
                DiskEvent::Writing { file, offset, bytes } if synced(at) => {
                    // Durable bytes extend a file at least to their end, even if its size is not durable.
                    let content = Arc::make_mut(&mut crash.contents[*file]);
                    content.resize(content.len().max(offset + bytes.len()), 0);
                    let range = *offset..offset + bytes.len();
                    content[range.clone()].copy_from_slice(bytes);
                    // Earlier unsynced sectors are overwritten.
                    crash.pending.retain(|pending| !pending.is_within(*file, &range));
                }
                DiskEvent::Writing { file, offset, bytes } => {
                    for from in (0..bytes.len()).step_by(SECTOR_SIZE) {
                        let to = bytes.len().min(from + SECTOR_SIZE);
                        let (file, offset, bytes) = (*file, offset + from, Arc::clone(bytes));
                        crash.pending.push(PendingDiskChange::Sector { file, offset, bytes, from, to });
                    }
                }
                DiskEvent::Truncated { file, size } if is_durable => {
                    Arc::make_mut(&mut crash.contents[*file]).truncate(*size);
                }
                DiskEvent::Truncated { file, size } => {
                    crash.pending.push(PendingDiskChange::Cut(*file, *size));
                }
                DiskEvent::Removed { name } if is_durable => {
                    crash.names.remove(name);
                }
                DiskEvent::Removed { name } => crash.pending.push(PendingDiskChange::Removal(name.clone())),
                DiskEvent::Synced(_) | DiskEvent::DirectorySynced | DiskEvent::AncestorsSynced => {}
            }
        }
        if !is_path_durable {
            crash.pending.push(PendingDiskChange::Directory);
        }
        crash
    }
}

impl DiskHistory {
    /// The disk after its process was killed before event `point`: all operations until then can be read, and those
    /// that were not durable remain pending for a later [crash](DiskHistory::at). Of a write in progress the bytes up
    /// to `written` exist.
    #[must_use]
    pub fn killed_at(&self, point: usize, written: usize) -> SimulatedDisk {
        let mut events = self.events[..point.min(self.events.len())].to_vec();
        if let Some((_, DiskEvent::Writing { bytes, .. })) = events.last_mut() {
            *bytes = Arc::from(&bytes[..written.min(bytes.len())]);
        }
        let mut state = SimulatedDiskState { is_recording: true, ..SimulatedDiskState::default() };
        for (_, event) in &events {
            match event {
                DiskEvent::Created { file, name, size } => {
                    state.contents.resize(state.contents.len().max(file + 1), Arc::default());
                    state.contents[*file] = Arc::new(vec![0; *size]);
                    state.names.insert(name.clone(), *file);
                }
                DiskEvent::Writing { file, offset, bytes } => {
                    let content = Arc::make_mut(&mut state.contents[*file]);
                    content.resize(content.len().max(offset + bytes.len()), 0);
                    content[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
                DiskEvent::Truncated { file, size } => {
                    Arc::make_mut(&mut state.contents[*file]).truncate(*size);
                }
                DiskEvent::Removed { name } => {
                    state.names.remove(name);
                }
                DiskEvent::Synced(_) | DiskEvent::DirectorySynced | DiskEvent::AncestorsSynced => {}
            }
        }
        state.events = events;
        SimulatedDisk(Arc::new(Mutex::new(state)))
    }
}

#[derive(Clone, Debug)]
enum PendingDiskChange {
    Name(String, FileId),
    Size(FileId, usize),
    Sector {
        file: FileId,
        offset: usize,
        bytes: Arc<[u8]>,
        from: usize,
        to: usize,
    },
    Cut(FileId, usize),
    Removal(String),
    /// The directory itself.
    Directory,
}

impl PendingDiskChange {
    fn is_within(&self, of: FileId, range: &Range<usize>) -> bool {
        match self {
            PendingDiskChange::Sector { file, offset, from, to, .. } => {
                *file == of && range.start <= *offset && offset + (to - from) <= range.end
            }
            _ => false,
        }
    }
}

/// The certain and the possible state of the disk after a crash at one point.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    /// The acknowledged watermark: no sequence up to it may be lost.
    pub acknowledged: u64,
    names: BTreeMap<String, FileId>,
    contents: Vec<Arc<Vec<u8>>>,
    pending: Vec<PendingDiskChange>,
}

impl CrashPoint {
    /// Number of pending changes, each of which may or may not have happened.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The disk after the crash; `happened` selects the pending changes that took effect.
    #[must_use]
    pub fn disk(&self, mut happened: impl FnMut(usize) -> bool) -> SimulatedDisk {
        let mut names = self.names.clone();
        let mut contents = self.contents.clone();
        for (at, pending) in self.pending.iter().enumerate() {
            if !happened(at) {
                if matches!(pending, PendingDiskChange::Directory) {
                    names.clear();
                }
                continue;
            }
            match pending {
                PendingDiskChange::Directory => {}
                PendingDiskChange::Name(name, file) => {
                    names.insert(name.clone(), *file);
                }
                PendingDiskChange::Size(file, size) => {
                    let content = Arc::make_mut(&mut contents[*file]);
                    content.resize(content.len().max(*size), 0);
                }
                PendingDiskChange::Sector { file, offset, bytes, from, to } => {
                    let content = Arc::make_mut(&mut contents[*file]);
                    let end = offset + (to - from);
                    content.resize(content.len().max(end), 0);
                    content[*offset..end].copy_from_slice(&bytes[*from..*to]);
                }
                PendingDiskChange::Cut(file, size) => Arc::make_mut(&mut contents[*file]).truncate(*size),
                PendingDiskChange::Removal(name) => {
                    names.remove(name);
                }
            }
        }
        SimulatedDisk(Arc::new(Mutex::new(SimulatedDiskState {
            names,
            contents,
            ..SimulatedDiskState::default()
        })))
    }
}

impl SimulatedDisk {
    /// Starts recording. Present files count as durable, with their creation as the start of the history; returns the
    /// first point after it.
    pub fn start_recording(&self) -> usize {
        let mut state = self.state();
        state.is_recording = true;
        let mut events = Vec::new();
        for (name, file) in &state.names {
            let (content, name) = (&state.contents[*file], name.clone());
            events.push((0, DiskEvent::Created { file: *file, name, size: content.len() }));
            let bytes = Arc::from(content.as_slice());
            events.push((0, DiskEvent::Writing { file: *file, offset: 0, bytes }));
            events.push((0, DiskEvent::Synced(events.len() - 1)));
        }
        events.push((0, DiskEvent::DirectorySynced));
        events.push((0, DiskEvent::AncestorsSynced));
        state.events = events;
        state.events.len()
    }
}
