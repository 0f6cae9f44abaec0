//! The start lock: one process at a time may become the server at a path.
//!
//! Two servers that start at the same moment would both find no predecessor, and both begin. So a starting server
//! holds a lock until it is at the path; a server that gets no lock and finds no predecessor ends. With a
//! predecessor, that server orders its successors.
//!
//! The system releases a lock when its process ends, however that happens, so the file of a killed server blocks
//! nothing. The holder removes the file before it releases the lock: a process that opened the file before then locks
//! a file that is no longer at the path, notices, and tries again.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::error::HandOverError;
use super::limits::{LOCK_RETRY_INTERVAL, LOCK_TIMEOUT};

const LOCK_SUFFIX: &str = ".lock";

/// File mode: only the owner may open it.
const MODE: u32 = 0o600;

/// Bytes of a process id that are read.
const PROCESS_ID_SIZE_MAX: u64 = 10;

/// The right of this process to become the server, until it is dropped.
#[derive(Debug)]
pub(super) struct StartLock {
    file: File,
    path: PathBuf,
}

impl StartLock {
    /// Takes the lock of the control socket at `path`. The folder has been checked. `None`: another process holds it.
    pub(super) fn try_acquire(path: &Path) -> Result<Option<StartLock>, HandOverError> {
        let path = lock_path(path);
        loop {
            let doing = || format!("lock {}", path.display());
            let file = open(&path).map_err(HandOverError::system(doing()))?;
            let metadata = file.metadata().map_err(HandOverError::system(doing()))?;
            check_owner(&path, &metadata)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(HandOverError::system(doing())(error)),
            }
            let is_there = std::fs::symlink_metadata(&path).is_ok_and(|there| is_same(&there, &metadata));
            if is_there {
                let mut lock = StartLock { file, path };
                lock.write_process_id();
                return Ok(Some(lock));
            }
        }
    }

    /// Like [`try_acquire`](Self::try_acquire), but waits up to `LOCK_TIMEOUT`: most holders release it soon.
    pub(super) fn acquire(path: &Path) -> Result<Option<StartLock>, HandOverError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match Self::try_acquire(path) {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY_INTERVAL),
                outcome => return outcome,
            }
        }
    }

    /// The process id in the lock file of the control socket at `path`, for display.
    pub(super) fn holder(path: &Path) -> Option<u32> {
        let mut text = String::new();
        let file = OpenOptions::new().read(true).custom_flags(NO_LINKS).open(lock_path(path)).ok()?;
        file.take(PROCESS_ID_SIZE_MAX).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }

    /// Writes the process id, for the errors of other processes. On a full disk the file stays empty.
    fn write_process_id(&mut self) {
        let _ = self.file.set_len(0).and_then(|()| write!(self.file, "{}", std::process::id()));
    }
}

impl Drop for StartLock {
    fn drop(&mut self) {
        // A folder that has become read-only keeps the file, which blocks nothing.
        let _ = std::fs::remove_file(&self.path);
        // A child that is being started may briefly hold a copy of the descriptor, so closing it is not enough.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

const NO_LINKS: i32 = OFlags::NOFOLLOW.bits().cast_signed();

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(MODE).custom_flags(NO_LINKS);
    options.open(path)
}

/// Another user could hold a lock on its own file for ever.
fn check_owner(path: &Path, file: &Metadata) -> Result<(), HandOverError> {
    let user = rustix::process::geteuid().as_raw();
    if file.uid() == user {
        return Ok(());
    }
    Err(HandOverError::ForeignSocket { path: path.to_owned(), owner: file.uid(), user })
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(LOCK_SUFFIX);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Row 4.37: one process at a time holds the lock, its id can be read, and no file remains.
    #[test]
    fn a_lock_is_held_by_one_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        // Left by a process that was killed.
        std::fs::write(lock_path(&path), "4294967295 and more").unwrap();
        let first = StartLock::try_acquire(&path).unwrap().expect("it is free");
        assert!(StartLock::try_acquire(&path).unwrap().is_none());
        assert_eq!(StartLock::holder(&path), Some(std::process::id()));
        drop(first);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(StartLock::holder(&path), None);
        drop(StartLock::try_acquire(&path).unwrap().expect("it is free again"));
    }

    /// Row 4.37: the same while several threads acquire, release and remove it concurrently.
    #[test]
    fn at_most_one_thread_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (holders, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while held.load(Ordering::Relaxed) < 500 {
                        let Some(lock) = StartLock::try_acquire(&path).unwrap() else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        assert_eq!(holders.fetch_sub(1, Ordering::SeqCst), 1);
                        held.fetch_add(1, Ordering::Relaxed);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Row 4.37: a symbolic link is not followed.
    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), lock_path(&path)).unwrap();
        let error = StartLock::try_acquire(&path).unwrap_err().to_string();
        assert!(error.starts_with("cannot lock "), "{error}");
        assert!(!folder.path().join("elsewhere").exists());
    }
}
