//! A directory in memory that remembers everything that was done to it, and can be cut off at any point.
//!
//! ```text
//!   events   create │ write │ synced │ sync │ write │ synced │ truncate │ …
//!                                             ▲
//!                                crash here: base = what is durable for certain
//!                                            pending = what may be there, in any part
//! ```
//!
//! What is pending at a crash: each sector of 512 bytes of each write that has not come back or whose sync failed, on its
//! own, each creation, removal and cut that no sync of the directory has covered, and the directory itself until its name is
//! synced. Until the crash all of it can be read, as from a page cache; a process that ends changes nothing. Before each event the disk asks what watermark
//! has been told to the outside ([`SimulatedDisk::watch`]): so it is on record whether anything was told that a crash at
//! that point could take back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stilling_ring::planted;

use super::{Disk, DiskFile, Entry, FileStatus, LockError, WriteMethod};

/// What a disk writes in one piece or not at all, in bytes.
pub const SECTOR_SIZE: usize = 512;

type FileId = usize;
type Watch = Box<dyn Fn() -> u64 + Send>;

/// Something that was done to the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A file was made; its name and size are not durable yet.
    Created {
        /// Which one.
        file: usize,
        /// Its name.
        name: String,
        /// Its size in bytes.
        size: usize,
    },
    /// A write began.
    Writing {
        /// To which file.
        file: usize,
        /// Where.
        offset: usize,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// The write that began as the event of this number is durable.
    Synced(usize),
    /// A file was cut.
    Truncated {
        /// Which one.
        file: usize,
        /// To how many bytes.
        size: usize,
    },
    /// A name was removed.
    Removed {
        /// Which one.
        name: String,
    },
    /// Which names there are became durable.
    DirectorySynced,
    /// The name of the directory itself became durable, with those above it.
    AncestorsSynced,
}

#[derive(Default)]
struct World {
    names: BTreeMap<String, FileId>,
    contents: Vec<Arc<Vec<u8>>>,
    events: Vec<(u64, Event)>,
    is_recording: bool,
    is_locked: bool,
    draws: u64,
    bytes_read: u64,
    watch: Option<Watch>,
    faults: Faults,
    /// Files that were changed from outside; a write beyond their end makes them longer.
    changed: BTreeSet<FileId>,
}

/// What the disk refuses from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// After so many more durable writes each one fails with this error number, half written.
    pub writes: Option<(u32, i32)>,
    /// How many writes and syncs fail; all if nothing is said.
    pub writes_max: Option<u32>,
    /// After that many more writes each one fails with this error number when it is synced: all of its bytes are in the page
    /// cache, marked as clean, and can be read until the power goes; none is durable.
    pub syncs: Option<(u32, i32)>,
    /// After that many more reads so many fail with this error number.
    pub reads: Option<(u32, u32, i32)>,
    /// Removing files fails with this error number.
    pub remove: Option<i32>,
    /// The directory is not where it was.
    pub is_moved: bool,
    /// Making files fails with this error number.
    pub create: Option<i32>,
    /// Syncing the directory fails with this error number.
    pub sync: Option<i32>,
    /// Reading the directory fails with this error number.
    pub list: Option<i32>,
}

/// The error number of a full disk.
pub const NO_SPACE: i32 = 28;
/// The error number of a disk that does not answer.
pub const INPUT_OUTPUT: i32 = 5;
/// The error number of a process with too many open files.
pub const TOO_MANY_FILES: i32 = 24;
/// The error number of a user without room.
pub const QUOTA: i32 = 122;
/// No error number of a disk, but a mistake of the program: the write panics.
pub const PANIC: i32 = -1;

/// A directory in memory. Clones are the same directory.
#[derive(Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<World>>);

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.world().names.iter()).finish()
    }
}

impl SimulatedDisk {
    /// An empty directory that records nothing.
    #[must_use]
    pub fn new() -> SimulatedDisk {
        SimulatedDisk::default()
    }

    /// An empty directory that records what is done to it.
    #[must_use]
    pub fn recording() -> SimulatedDisk {
        let disk = SimulatedDisk::default();
        disk.world().is_recording = true;
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

    /// Puts a file there, durably, in place of one of the same name.
    pub fn put(&self, name: &str, content: Vec<u8>) {
        self.world().add(name.to_owned(), Arc::new(content));
    }

    /// All files with their contents.
    #[must_use]
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let world = self.world();
        world.names.iter().map(|(name, file)| (name.clone(), world.contents[*file].to_vec())).collect()
    }

    /// Changes one file in place.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let file = *world.names.get(name).expect("the file is there");
        world.changed.insert(file);
        change(Arc::make_mut(&mut world.contents[file]));
    }

    /// Asks `told` before each event what watermark is known outside.
    pub fn watch(&self, told: impl Fn() -> u64 + Send + 'static) {
        self.world().watch = Some(Box::new(told));
    }

    /// Refuses from now on.
    pub fn fail(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Bytes that were read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.world().bytes_read
    }

    /// How many events have been recorded.
    #[must_use]
    pub fn recorded(&self) -> usize {
        self.world().events.len()
    }

    /// What was done so far.
    #[must_use]
    pub fn history(&self) -> History {
        let world = self.world();
        let told = world.watch.as_ref().map_or(0, |watch| watch());
        History { events: world.events.clone(), told_at_end: told }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults {
    /// What the next write meets: its own failure, and that of its sync.
    fn of_write(&mut self) -> (Option<i32>, Option<i32>) {
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

/// Counts down to the first that fails.
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

impl World {
    fn record(&mut self, event: impl FnOnce() -> Event) -> usize {
        if self.is_recording {
            let told = self.watch.as_ref().map_or(0, |watch| watch());
            self.events.push((told, event()));
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

fn refuse(fault: Option<i32>) -> io::Result<()> {
    fault.map_or(Ok(()), |number| Err(io::Error::from_raw_os_error(number)))
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;
    type Lock = SimulatedLock;

    fn place(&self) -> String {
        "the simulated disk".to_owned()
    }

    fn write_method(&self) -> WriteMethod {
        WriteMethod::Direct
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let world = self.world();
        refuse(world.faults.list)?;
        let entry = |(name, file): (&String, &FileId)| Entry {
            name: name.clone(),
            size: world.contents[*file].len() as u64,
        };
        Ok(world.names.iter().map(entry).collect())
    }

    fn create(&self, name: &str, size: u64) -> io::Result<SimulatedFile> {
        let mut world = self.world();
        refuse(world.faults.create)?;
        if world.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let file = world.add(name.to_owned(), Arc::new(vec![0; size]));
        world.record(|| Event::Created { file, name: name.to_owned(), size });
        Ok(SimulatedFile { disk: self.clone(), file })
    }

    fn open(&self, name: &str) -> io::Result<SimulatedFile> {
        let file = self.world().file(name)?;
        Ok(SimulatedFile { disk: self.clone(), file })
    }

    fn truncate(&self, name: &str, size: u64) -> io::Result<()> {
        let mut world = self.world();
        let file = world.file(name)?;
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
        world.record(|| Event::Truncated { file, size });
        Arc::make_mut(&mut world.contents[file]).truncate(size);
        Ok(())
    }

    fn open_to_write(&self, name: &str) -> io::Result<SimulatedFile> {
        self.open(name)
    }

    fn size_of(&self, name: &str) -> io::Result<u64> {
        let world = self.world();
        Ok(world.contents[world.file(name)?].len() as u64)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        Ok(!self.world().faults.is_moved)
    }

    fn sync_ancestors(&self) -> io::Result<()> {
        let mut world = self.world();
        refuse(world.faults.sync)?;
        world.record(|| Event::AncestorsSynced);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        refuse(world.faults.remove)?;
        world.file(name)?;
        world.record(|| Event::Removed { name: name.to_owned() });
        world.names.remove(name);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world();
        refuse(world.faults.sync)?;
        world.record(|| Event::DirectorySynced);
        Ok(())
    }

    fn lock(&self) -> Result<SimulatedLock, LockError> {
        let mut world = self.world();
        // These bugs show only where nothing else keeps a second writer away.
        let is_unguarded = [planted!("early opening"), planted!("early release")].contains(&true);
        if world.is_locked && !is_unguarded {
            return Err(LockError::Held { place: self.place(), holder: Some(std::process::id()) });
        }
        world.is_locked = true;
        Ok(SimulatedLock(self.clone()))
    }

    fn unpredictable(&self) -> u64 {
        let mut world = self.world();
        world.draws += 1;
        world.draws.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Keeps others away from a simulated disk until it is dropped.
#[derive(Debug)]
pub struct SimulatedLock(SimulatedDisk);

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.0.world().is_locked = false;
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
        let world = self.disk.world();
        let links = world.names.values().filter(|file| **file == self.file).count() as u64;
        Ok(FileStatus { links, size: world.contents[self.file].len() as u64 })
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut world = self.disk.world();
        let world = &mut *world;
        match &mut world.faults.reads {
            Some((0, 0, _)) | None => {}
            Some((0, left, number)) => {
                *left -= 1;
                return Err(io::Error::from_raw_os_error(*number));
            }
            Some((skipped, ..)) => *skipped -= 1,
        }
        let content = &world.contents[self.file];
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let length = into.len().min(content.len() - start);
        into[..length].copy_from_slice(&content[start..start + length]);
        world.bytes_read += length as u64;
        Ok(length)
    }

    fn write_durable(&mut self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Arc<[u8]>>();
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut world = self.disk.world();
        let (fault, sync_fault) = world.faults.of_write();
        let taken = if fault.is_some() { bytes.len() / 2 } else { bytes.len() };
        // What a failed write left out was never given to the disk.
        let began =
            world.record(|| Event::Writing { file: self.file, offset, bytes: Arc::from(&bytes[..taken]) });
        if fault == Some(PANIC) {
            drop(world);
            panic!("a write panics, as it was told to");
        }
        let is_changed = world.changed.contains(&self.file);
        let content = Arc::make_mut(&mut world.contents[self.file]);
        if is_changed && content.len() < offset + taken {
            content.resize(offset + taken, 0);
        }
        let Some(place) = content.get_mut(offset..offset + taken) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        place.copy_from_slice(&bytes[..taken]);
        refuse(fault)?;
        refuse(sync_fault)?;
        if !planted!("missing sync") {
            world.record(|| Event::Synced(began));
        }
        Ok(())
    }
}

/// Everything that was done to a disk, in order.
#[derive(Clone, Debug)]
pub struct History {
    events: Vec<(u64, Event)>,
    told_at_end: u64,
}

impl History {
    /// How many points there are at which the power can go: before each event, and after the last.
    #[must_use]
    pub fn points(&self) -> usize {
        self.events.len() + 1
    }

    /// What was done, each with the watermark that was known outside just before.
    #[must_use]
    pub fn events(&self) -> &[(u64, Event)] {
        &self.events
    }

    /// What is durable, and what may be, when the power goes before event `point`.
    #[must_use]
    pub fn at(&self, point: usize) -> CrashPoint {
        let done = &self.events[..point.min(self.events.len())];
        let all_synced: BTreeSet<usize> = done
            .iter()
            .filter_map(|(_, event)| if let Event::Synced(at) = event { Some(*at) } else { None })
            .collect();
        let synced = |at: usize| all_synced.contains(&at);
        let last_sync = done.iter().rposition(|(_, event)| *event == Event::DirectorySynced).unwrap_or(0);
        let told = self.events.get(point).map_or(self.told_at_end, |(told, _)| *told);
        let is_anchored = done.iter().any(|(_, event)| *event == Event::AncestorsSynced);
        let mut crash =
            CrashPoint { told, names: BTreeMap::new(), contents: Vec::new(), pending: Vec::new() };
        for (at, (_, event)) in done.iter().enumerate() {
            let is_durable = at < last_sync;
            match event {
                Event::Created { file, name, size } => {
                    crash.contents.resize(crash.contents.len().max(file + 1), Arc::default());
                    if is_durable {
                        crash.names.insert(name.clone(), *file);
                        crash.contents[*file] = Arc::new(vec![0; *size]);
                    } else {
                        crash.pending.push(Pending::Name(name.clone(), *file));
                        crash.pending.push(Pending::Size(*file, *size));
                    }
                }
                Event::Writing { file, offset, bytes } if synced(at) => {
                    // Durable bytes of a file whose size is not durable make it at least that long.
                    let content = Arc::make_mut(&mut crash.contents[*file]);
                    content.resize(content.len().max(offset + bytes.len()), 0);
                    let range = *offset..offset + bytes.len();
                    content[range.clone()].copy_from_slice(bytes);
                    // What was there before and had not been synced is overwritten.
                    crash.pending.retain(|pending| !pending.is_within(*file, &range));
                }
                Event::Writing { file, offset, bytes } => {
                    for from in (0..bytes.len()).step_by(SECTOR_SIZE) {
                        let to = bytes.len().min(from + SECTOR_SIZE);
                        let (file, offset, bytes) = (*file, offset + from, Arc::clone(bytes));
                        crash.pending.push(Pending::Sector { file, offset, bytes, from, to });
                    }
                }
                Event::Truncated { file, size } if is_durable => {
                    Arc::make_mut(&mut crash.contents[*file]).truncate(*size);
                }
                Event::Truncated { file, size } => crash.pending.push(Pending::Cut(*file, *size)),
                Event::Removed { name } if is_durable => {
                    crash.names.remove(name);
                }
                Event::Removed { name } => crash.pending.push(Pending::Removal(name.clone())),
                Event::Synced(_) | Event::DirectorySynced | Event::AncestorsSynced => {}
            }
        }
        if !is_anchored {
            crash.pending.push(Pending::Directory);
        }
        crash
    }
}

impl History {
    /// The disk after its process was killed before event `point`: everything done by then is there to be read, and what
    /// was not durable is as much at the mercy of a later [crash](History::at) as before. Of a write that was under way
    /// the bytes are there up to `written`.
    #[must_use]
    pub fn killed_at(&self, point: usize, written: usize) -> SimulatedDisk {
        let mut events = self.events[..point.min(self.events.len())].to_vec();
        if let Some((_, Event::Writing { bytes, .. })) = events.last_mut() {
            *bytes = Arc::from(&bytes[..written.min(bytes.len())]);
        }
        let mut world = World { is_recording: true, ..World::default() };
        for (_, event) in &events {
            match event {
                Event::Created { file, name, size } => {
                    world.contents.resize(world.contents.len().max(file + 1), Arc::default());
                    world.contents[*file] = Arc::new(vec![0; *size]);
                    world.names.insert(name.clone(), *file);
                }
                Event::Writing { file, offset, bytes } => {
                    let content = Arc::make_mut(&mut world.contents[*file]);
                    content.resize(content.len().max(offset + bytes.len()), 0);
                    content[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
                Event::Truncated { file, size } => {
                    Arc::make_mut(&mut world.contents[*file]).truncate(*size);
                }
                Event::Removed { name } => {
                    world.names.remove(name);
                }
                Event::Synced(_) | Event::DirectorySynced | Event::AncestorsSynced => {}
            }
        }
        world.events = events;
        SimulatedDisk(Arc::new(Mutex::new(world)))
    }
}

#[derive(Clone, Debug)]
enum Pending {
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

impl Pending {
    /// Whether it is a sector of that range of a file.
    fn is_within(&self, of: FileId, range: &Range<usize>) -> bool {
        match self {
            Pending::Sector { file, offset, from, to, .. } => {
                *file == of && range.start <= *offset && offset + (to - from) <= range.end
            }
            _ => false,
        }
    }
}

/// What a crash at one point leaves for certain, and what it may leave besides.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    /// The watermark that was known outside: up to it nothing may be lost.
    pub told: u64,
    names: BTreeMap<String, FileId>,
    contents: Vec<Arc<Vec<u8>>>,
    pending: Vec<Pending>,
}

impl CrashPoint {
    /// How many things may have happened or not, each on its own.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The disk after the crash; `happened` says which of the pending things did happen.
    #[must_use]
    pub fn disk(&self, mut happened: impl FnMut(usize) -> bool) -> SimulatedDisk {
        let mut names = self.names.clone();
        let mut contents = self.contents.clone();
        for (at, pending) in self.pending.iter().enumerate() {
            if !happened(at) {
                if matches!(pending, Pending::Directory) {
                    names.clear();
                }
                continue;
            }
            match pending {
                Pending::Directory => {}
                Pending::Name(name, file) => {
                    names.insert(name.clone(), *file);
                }
                Pending::Size(file, size) => {
                    let content = Arc::make_mut(&mut contents[*file]);
                    content.resize(content.len().max(*size), 0);
                }
                Pending::Sector { file, offset, bytes, from, to } => {
                    let content = Arc::make_mut(&mut contents[*file]);
                    let end = offset + (to - from);
                    content.resize(content.len().max(end), 0);
                    content[*offset..end].copy_from_slice(&bytes[*from..*to]);
                }
                Pending::Cut(file, size) => Arc::make_mut(&mut contents[*file]).truncate(*size),
                Pending::Removal(name) => {
                    names.remove(name);
                }
            }
        }
        SimulatedDisk(Arc::new(Mutex::new(World { names, contents, ..World::default() })))
    }
}

impl SimulatedDisk {
    /// Begins to record. What is there now counts as durable, its making as the beginning of the history; returns the
    /// first point after that.
    pub fn record(&self) -> usize {
        let mut world = self.world();
        world.is_recording = true;
        let mut events = Vec::new();
        for (name, file) in &world.names {
            let (content, name) = (&world.contents[*file], name.clone());
            events.push((0, Event::Created { file: *file, name, size: content.len() }));
            let bytes = Arc::from(content.as_slice());
            events.push((0, Event::Writing { file: *file, offset: 0, bytes }));
            events.push((0, Event::Synced(events.len() - 1)));
        }
        events.push((0, Event::DirectorySynced));
        events.push((0, Event::AncestorsSynced));
        world.events = events;
        world.events.len()
    }
}
