//! The folder of a server's sockets: private to this user, removed at the end. If the server is killed, the reaper of
//! its worker processes removes the folder; if the reaper is killed too, the next server does.
//!
//! A server holds a lock on its folder (flock(2), on the folder itself), which the system releases when the process
//! ends: a folder that can be locked belongs to no running server. Only sockets with the names that servers use are
//! removed from it, and then the folder, if it is empty.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, open, unlinkat};
use rustix::io::Errno;

use super::limits::STALE_DIRECTORIES_MAX;

/// Prefix of the folder's name; the process id and the number of folders that it created before follow.
const PREFIX: &str = "stilling-";

/// A folder that is locked while this value exists.
#[derive(Debug)]
pub(super) struct SocketFolder {
    path: PathBuf,
    /// `None` on a file system without locks; other servers cannot lock the folder either, so they do not remove it.
    _lock: Option<OwnedFd>,
}

enum LockAttempt {
    Locked(OwnedFd),
    /// Another server has locked it, or it was removed.
    Contended,
    /// The file system has no locks.
    Unsupported,
}

impl SocketFolder {
    /// Removes the folders of dead servers from `parent`, then creates a new one there.
    pub(super) fn new(parent: &Path) -> io::Result<SocketFolder> {
        /// Folders of this process so far.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_stale_folders(parent);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{PREFIX}{}-{count}", std::process::id()));
            // Creation fails if the folder exists: no other user can prepare it.
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => {
                    let path = path.display();
                    return Err(io::Error::new(
                        error.kind(),
                        format!("cannot create the directory {path}: {error}"),
                    ));
                }
            }
            // Another server that starts now may find the folder unlocked, and remove it as stale.
            match lock(&path) {
                LockAttempt::Locked(lock) => return Ok(SocketFolder { path, _lock: Some(lock) }),
                LockAttempt::Unsupported => return Ok(SocketFolder { path, _lock: None }),
                LockAttempt::Contended => {}
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn remove(&self) {
        // Best effort: the system cleans its folders for temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

pub(super) fn socket_name(number: usize) -> String {
    format!("app-{number}.sock")
}

/// Removes the folders of dead servers of this user from `parent`, as far as possible.
fn remove_stale_folders(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let is_ours = |name: &str| {
        let numbers = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        numbers.is_some_and(|(process, count)| is_number(process) && is_number(count))
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    for name in names.filter(|name| is_ours(name)).take(STALE_DIRECTORIES_MAX) {
        let path = parent.join(name);
        if let LockAttempt::Locked(folder) = lock(&path) {
            remove_sockets(&folder);
            // Fails if the folder contains other files.
            let _ = fs::remove_dir(&path);
        }
    }
}

fn lock(path: &Path) -> LockAttempt {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(folder) = open(path, flags, Mode::empty()) else { return LockAttempt::Contended };
    match fstat(&folder) {
        Ok(found) if found.st_uid == rustix::process::geteuid().as_raw() => {}
        _ => return LockAttempt::Contended,
    }
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return LockAttempt::Contended,
        Err(_) => return LockAttempt::Unsupported,
    }
    // It may have been removed before it was locked.
    let is_there = fs::symlink_metadata(path).is_ok_and(|there| {
        fstat(&folder).is_ok_and(|found| (found.st_dev, found.st_ino) == (there.dev(), there.ino()))
    });
    if is_there { LockAttempt::Locked(folder) } else { LockAttempt::Contended }
}

fn remove_sockets(folder: &OwnedFd) {
    let Ok(entries) = Dir::read_from(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().ok().and_then(|name| name.strip_prefix("app-")?.strip_suffix(".sock"));
        if number.is_some_and(is_number) && entry.file_type() == FileType::Socket {
            let _ = unlinkat(folder, name, AtFlags::empty());
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn names(parent: &Path) -> Vec<String> {
        let entries = fs::read_dir(parent).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Row 1.24: the folder of a killed server is removed by the next one; those of live servers, and other files,
    /// are not.
    #[test]
    fn folders_of_dead_servers_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let living = SocketFolder::new(parent.path()).unwrap();
        drop(UnixListener::bind(living.path().join(socket_name(0))).unwrap());
        let make = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let dead = make("stilling-1-0");
        for number in [0, 1, 12] {
            drop(UnixListener::bind(dead.join(socket_name(number))).unwrap());
        }
        make("stilling-4294967295-7");
        fs::write(make("stilling-2-0").join("app-0.sock"), "precious").unwrap();
        drop(UnixListener::bind(make("stilling-3-0").join("other.sock")).unwrap());
        make("stilling-x-0");
        make("stilling-4-");
        std::os::unix::fs::symlink(make("elsewhere"), parent.path().join("stilling-5-0")).unwrap();
        let next = SocketFolder::new(parent.path()).unwrap();
        let mut expected =
            ["elsewhere", "stilling-2-0", "stilling-3-0", "stilling-4-", "stilling-5-0", "stilling-x-0"]
                .map(str::to_owned)
                .to_vec();
        expected.extend(
            [&living, &next].map(|folder| folder.path().file_name().unwrap().to_str().unwrap().to_owned()),
        );
        expected.sort();
        assert_eq!(names(parent.path()), expected);
        assert!(living.path().join(socket_name(0)).exists());
        living.remove();
        next.remove();
        assert_eq!(names(parent.path()).len(), 6);
    }

    /// Row 1.24: servers that start and end at the same time do not remove each other's folders.
    #[test]
    fn a_folder_that_is_being_created_is_not_removed_as_stale() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let folder = SocketFolder::new(parent.path()).unwrap();
                        drop(UnixListener::bind(folder.path().join(socket_name(0))).unwrap());
                        folder.remove();
                    }
                });
            }
        });
        // Removed by a server that took it for stale.
        assert_eq!(names(parent.path()), Vec::<String>::new());
    }
}
