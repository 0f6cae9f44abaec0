//! The file of a Unix datagram socket: owned by a server until another process replaces it.
//!
//! A successor makes its socket under a second name beside the path, and exchanges the two files when it takes over.
//! So the predecessor's socket keeps a name until the predecessor has ended: if the hand-over fails, it is put back.
//! On a file system that cannot exchange two names, the predecessor's socket gets a third name.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Suffix of the second name: the successor's socket before the take-over, the predecessor's afterwards.
const NEXT_SUFFIX: &str = ".next";

/// Suffix of the predecessor's socket on a file system that cannot exchange two names.
const PREVIOUS_SUFFIX: &str = ".previous";

/// Device, inode and creation time of a file. An inode number is reused as soon as the socket is closed and its name
/// removed.
type SocketFileId = (u64, u64, Option<SystemTime>);

/// A socket's path and the identity of its file, under any name.
#[derive(Clone, Debug)]
pub(crate) struct SocketName {
    path: PathBuf,
    file_id: SocketFileId,
    /// The file that was at the path before this one took it.
    predecessor: Option<SocketFileId>,
}

/// The second name of a path.
pub(crate) fn beside(path: &Path) -> PathBuf {
    with_suffix(path, NEXT_SUFFIX)
}

fn previous(path: &Path) -> PathBuf {
    with_suffix(path, PREVIOUS_SUFFIX)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl SocketName {
    fn new(path: &Path, file: &Path) -> io::Result<SocketName> {
        Ok(SocketName { path: path.to_owned(), file_id: file_identity(file)?, predecessor: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts this socket at its path. The previous file gets the second name.
    ///
    /// # Errors
    /// `NotFound` if the socket has neither name, so that no sender can reach it; otherwise the error of the system.
    pub(crate) fn take_path(&mut self) -> io::Result<()> {
        self.take_path_by(|beside, path| renameat_with(CWD, beside, CWD, path, RenameFlags::EXCHANGE))
    }

    fn take_path_by(
        &mut self,
        exchange: impl FnOnce(&Path, &Path) -> rustix::io::Result<()>,
    ) -> io::Result<()> {
        let beside = beside(&self.path);
        if !self.is_at(&beside) {
            let removed = || io::Error::new(io::ErrorKind::NotFound, "the socket's file has been removed");
            return if self.is_at(&self.path) { Ok(()) } else { Err(removed()) };
        }
        self.predecessor = file_identity(&self.path).ok();
        match exchange(&beside, &self.path) {
            Err(Errno::NOENT) => fs::rename(&beside, &self.path),
            // The file system cannot exchange two names.
            Err(Errno::INVAL | Errno::NOSYS) => self.replace_predecessor(),
            outcome => Ok(outcome?),
        }
    }

    /// Puts this socket at its path. The previous file gets a third name first.
    fn replace_predecessor(&self) -> io::Result<()> {
        let previous = previous(&self.path);
        // A leftover of earlier servers would refuse the link.
        let _ = fs::remove_file(&previous);
        // Without hard links the path is missing for a moment.
        let kept = fs::hard_link(&self.path, &previous).or_else(|_| fs::rename(&self.path, &previous));
        match kept {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let renamed = fs::rename(beside(&self.path), &self.path);
        if renamed.is_err() {
            // The error of the rename matters more than an error of its undoing.
            let _ = if self.path.exists() {
                fs::remove_file(&previous)
            } else {
                fs::rename(&previous, &self.path)
            };
        }
        renamed
    }

    /// Puts this socket back at its path if a failed successor had taken it. A successor that has not taken the path
    /// can no longer do so.
    pub(crate) fn restore(&self) {
        // Fails in a folder that has become read-only, without a remedy.
        let _ = self.try_restore();
    }

    fn try_restore(&self) -> io::Result<()> {
        let (beside, previous) = (beside(&self.path), previous(&self.path));
        match (self.is_at(&self.path), self.is_at(&beside), self.is_at(&previous)) {
            (false, true, _) => return fs::rename(&beside, &self.path),
            (false, false, false) | (true, true, _) => return Ok(()),
            (true, false, _) | (false, false, true) => {}
        }
        // Without a file beside the path, a successor cannot take it.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match (self.is_at(&self.path), self.is_at(&previous)) {
            // Renaming one link to another of the same file does nothing.
            (true, true) => fs::remove_file(&previous),
            (false, true) => fs::rename(&previous, &self.path),
            (_, false) => Ok(()),
        }
    }

    /// Removes the predecessor's file, which is no longer needed. Another file beside the path belongs to a
    /// successor. Not to be called while a successor may put its file there.
    pub(crate) fn forget_predecessor(&mut self) {
        let Some(predecessor) = self.predecessor.take() else { return };
        for name in [beside(&self.path), previous(&self.path)] {
            if file_identity(&name).is_ok_and(|file_id| file_id == predecessor) {
                // A folder that has become read-only keeps a dead socket, which the next successor replaces.
                let _ = fs::remove_file(name);
            }
        }
    }

    fn is_at(&self, path: &Path) -> bool {
        file_identity(path).is_ok_and(|file_id| file_id == self.file_id)
    }
}

/// The file of a Unix socket. Removed on drop, unless another file has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile(SocketName);

impl SocketFile {
    /// The socket at this path.
    pub(crate) fn of(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile(SocketName::new(path, path)?))
    }

    /// The socket beside this path, which takes the path later.
    pub(crate) fn beside(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile(SocketName::new(path, &beside(path))?))
    }

    /// The path, whether or not the socket has taken it.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// The socket's name, for use on another thread.
    pub(crate) fn name(&self) -> SocketName {
        self.0.clone()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        for path in [self.0.path.clone(), beside(&self.0.path), previous(&self.0.path)] {
            if self.0.is_at(&path) {
                // The next server replaces a leftover.
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn file_identity(path: &Path) -> io::Result<SocketFileId> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), metadata.created().ok()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// The answer of a file system that cannot exchange two names.
    const CANNOT_EXCHANGE: fn(&Path, &Path) -> rustix::io::Result<()> = |_, _| Err(Errno::INVAL);

    struct TestSocketServer {
        socket: UnixDatagram,
        file: SocketFile,
    }

    impl TestSocketServer {
        fn first(path: &Path) -> TestSocketServer {
            TestSocketServer {
                socket: UnixDatagram::bind(path).unwrap(),
                file: SocketFile::of(path).unwrap(),
            }
        }

        fn successor(path: &Path) -> TestSocketServer {
            let socket = UnixDatagram::bind(beside(path)).unwrap();
            TestSocketServer { socket, file: SocketFile::beside(path).unwrap() }
        }

        /// Ends without removing its files.
        fn kill(self) {
            std::mem::forget(self.file);
        }

        /// Whether a datagram to the path arrives here.
        fn is_reached_at(&self, path: &Path) -> bool {
            self.socket.set_nonblocking(true).unwrap();
            let sent = UnixDatagram::unbound().unwrap().send_to(b"x", path);
            sent.is_ok() && self.socket.recv(&mut [0; 1]).is_ok()
        }
    }

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_successor_that_dies_without_an_exchange_leaves_the_path_to_its_predecessor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let old = TestSocketServer::first(&path);
        for is_killed in [true, false] {
            let new = TestSocketServer::successor(&path);
            new.file.name().take_path_by(CANNOT_EXCHANGE).unwrap();
            assert!(new.is_reached_at(&path) && !old.is_reached_at(&path));
            if is_killed {
                new.kill();
            } else {
                drop(new);
            }
            old.file.name().restore();
            assert!(old.is_reached_at(&path), "killed: {is_killed}");
            assert_eq!(names(folder.path()), 1);
        }
    }

    /// A successor may end or hang between any two of its steps.
    #[test]
    fn a_partly_replaced_path_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (old, third) = (TestSocketServer::first(&path), previous(&path));
        for keep in [fs::hard_link::<&Path, &Path>, fs::rename] {
            let new = TestSocketServer::successor(&path);
            keep(&path, &third).unwrap();
            old.file.name().restore();
            assert!(old.is_reached_at(&path));
            assert_eq!(names(folder.path()), 1);
            assert!(new.file.name().take_path_by(CANNOT_EXCHANGE).is_err(), "it comes too late");
            assert!(old.is_reached_at(&path));
        }
    }

    #[test]
    fn the_previous_name_is_removed_with_the_predecessor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(previous(&path), "left by a server that was killed").unwrap();
        let first = TestSocketServer::first(&path);
        let second = TestSocketServer::successor(&path);
        let mut name = second.file.name();
        name.take_path_by(CANNOT_EXCHANGE).unwrap();
        assert_eq!(names(folder.path()), 2);
        first.kill();
        name.forget_predecessor();
        assert_eq!(names(folder.path()), 1);
        let third = TestSocketServer::successor(&path);
        third.file.name().take_path_by(CANNOT_EXCHANGE).unwrap();
        drop(second);
        assert_eq!(names(folder.path()), 1);
        assert!(third.is_reached_at(&path));
        drop(third);
        assert_eq!(names(folder.path()), 0);
    }
}
