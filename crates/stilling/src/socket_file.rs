//! The file of a Unix socket for datagrams, which is ours as long as no other process has put another one in its place.
//!
//! A successor makes its socket beside the path, under a name of its own, and exchanges the two files when it takes over. So
//! the predecessor's socket keeps a name until the predecessor has ended: if the hand-over fails after all, it is put back.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Behind the path of a socket that is not in use: a successor's before it takes over, its predecessor's afterwards.
const BESIDE: &str = ".next";

/// Device, inode and time of creation of a file. The number of an inode is given to another file as soon as the socket has
/// been closed and its name removed.
type Identity = (u64, u64, Option<SystemTime>);

/// Which file a socket has, under whichever name.
#[derive(Clone, Debug)]
pub(crate) struct SocketName {
    path: PathBuf,
    identity: Identity,
    /// The file that was at the path before this one took it.
    predecessor: Option<Identity>,
}

/// The name beside a path.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(BESIDE);
    name.into()
}

impl SocketName {
    fn new(path: &Path, file: &Path) -> io::Result<SocketName> {
        Ok(SocketName { path: path.to_owned(), identity: file_identity(file)?, predecessor: None })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts this socket at its path. What was there stands beside it then.
    ///
    /// # Errors
    /// `NotFound` if the socket is at neither name, so that no sender can reach it; and what the system says.
    pub(crate) fn take_path(&mut self) -> io::Result<()> {
        let beside = beside(&self.path);
        if !self.is_at(&beside) {
            let removed = || io::Error::new(io::ErrorKind::NotFound, "the socket's file has been removed");
            return if self.is_at(&self.path) { Ok(()) } else { Err(removed()) };
        }
        self.predecessor = file_identity(&self.path).ok();
        match renameat_with(CWD, &beside, CWD, &self.path, RenameFlags::EXCHANGE) {
            Err(Errno::NOENT) => fs::rename(&beside, &self.path),
            // A file system that cannot exchange two names.
            Err(Errno::INVAL | Errno::NOSYS) => fs::rename(&beside, &self.path),
            outcome => Ok(outcome?),
        }
    }

    /// Puts this socket back at its path if a successor that has failed had taken it; one that has not can do so no more.
    pub(crate) fn restore(&self) {
        let beside = beside(&self.path);
        // A folder that has become read-only refuses it: then nothing can be done.
        let _ = match (self.is_at(&self.path), self.is_at(&beside)) {
            (false, true) => fs::rename(&beside, &self.path),
            (true, false) => fs::remove_file(&beside),
            _ => Ok(()),
        };
    }

    /// Removes the predecessor's file beside the path, which the predecessor needs no longer. Another file there is a
    /// successor's. Not to be called while a successor may put its file there.
    pub(crate) fn forget_predecessor(&mut self) {
        let beside = beside(&self.path);
        if let Some(predecessor) = self.predecessor.take()
            && file_identity(&beside).is_ok_and(|identity| identity == predecessor)
        {
            // A folder that has become read-only keeps a dead socket, which the next successor replaces.
            let _ = fs::remove_file(beside);
        }
    }

    fn is_at(&self, path: &Path) -> bool {
        file_identity(path).is_ok_and(|identity| identity == self.identity)
    }
}

/// The file of a Unix socket, which is removed with this, unless it is another's by then.
#[derive(Debug)]
pub(crate) struct SocketFile(SocketName);

impl SocketFile {
    /// The socket at this path.
    pub(crate) fn of(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile(SocketName::new(path, path)?))
    }

    /// The socket beside this path, which it is to take later.
    pub(crate) fn beside(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile(SocketName::new(path, &beside(path))?))
    }

    /// Where it is, or is to be.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Its name, to be used by another thread.
    pub(crate) fn name(&self) -> SocketName {
        self.0.clone()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        for path in [self.0.path.clone(), beside(&self.0.path)] {
            if self.0.is_at(&path) {
                // What is left is replaced by the next server.
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn file_identity(path: &Path) -> io::Result<Identity> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), metadata.created().ok()))
}
