//! The control socket's place in the file system: who may own it, how it changes hands.
//!
//! A server that is to be succeeded listens at its path. Its successor listens first at the path with `.next`
//! behind it, and when its turn has come renames that over the path, which is one step for the file system:
//! at every moment there is somebody at the path, the old server or the new one. Only one successor at a time
//! is let so far, so one name to wait under is enough, and what a crash leaves there is replaced by the next.
//!
//! The listeners of a server are worth as much as the server. So the socket is for its own user alone: mode
//! 0600, nothing of another user's is ever connected to or replaced, and the folder must be one in which
//! others cannot exchange the socket. The user at the other end is checked besides (`channel.rs`).

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrUnix, accept_with, bind, listen, shutdown};

use super::channel::{ControlConnection, FLAGS, packet_socket};
use super::error::HandOverError;
use super::limits::{CONTROL_BACKLOG, PATH_SIZE_MAX};
use super::lock::StartLock;

/// Behind the path while a successor waits for its turn.
const NEXT_SUFFIX: &str = ".next";

/// Who may connect: the owner.
const MODE: u32 = 0o600;

/// What a file is, whatever its name.
type ControlSocketId = (u64, u64);

/// A socket at which successors knock.
#[derive(Debug)]
pub(super) struct ControlSocket {
    listener: OwnedFd,
    path: PathBuf,
    /// The socket file, under whichever name.
    socket_id: ControlSocketId,
    /// The file is left where it is at the end.
    keeps_file: bool,
}

impl ControlSocket {
    /// A door beside `path`, where nobody looks for it yet.
    pub(super) fn beside(path: &Path) -> Result<ControlSocket, HandOverError> {
        let next = pending_path(path);
        let doing = || format!("listen on {}", next.display());
        // What is there was left behind: by a successor that is gone, or by this one before.
        if check_socket(&next)? {
            std::fs::remove_file(&next).map_err(HandOverError::system(doing()))?;
        }
        let listener = packet_socket()?;
        let address = SocketAddrUnix::new(&next).map_err(HandOverError::system(doing()))?;
        bind(&listener, &address).map_err(HandOverError::system(doing()))?;
        let prepared = std::fs::set_permissions(&next, std::fs::Permissions::from_mode(MODE))
            .and_then(|()| Ok(listen(&listener, CONTROL_BACKLOG)?))
            .and_then(|()| std::fs::symlink_metadata(&next));
        match prepared {
            Ok(file) => Ok(ControlSocket {
                listener,
                path: path.to_owned(),
                socket_id: socket_id(&file),
                keeps_file: false,
            }),
            Err(error) => {
                // It is not ours to keep if it cannot be used.
                let _ = std::fs::remove_file(&next);
                Err(HandOverError::system(doing())(error))
            }
        }
    }

    /// Takes the path, from whoever has it.
    pub(super) fn claim_path(&self) -> Result<(), HandOverError> {
        std::fs::rename(pending_path(&self.path), &self.path)
            .map_err(HandOverError::system(format!("listen on {}", self.path.display())))
    }

    /// Whether somebody who looks for the path finds this door.
    pub(super) fn holds_path(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|file| socket_id(&file) == self.socket_id)
    }

    /// Takes away what a successor waits under, which can then not take the path any more.
    pub(super) fn remove_pending_path(&self) {
        // A folder that has become read-only lets the successor rename as little as this server remove.
        let _ = std::fs::remove_file(pending_path(&self.path));
    }

    /// Nobody can knock any more; who has knocked before can still be let in.
    pub(super) fn close(&self) {
        // Linux knows no reason to refuse that for a socket that listens.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }

    /// From now on its file is not to be removed: a successor may put its own in the place at any moment, also
    /// between a look and the removal. What stays is a dead socket, which the next server replaces.
    pub(super) fn keep_file(&mut self) {
        self.keeps_file = true;
    }

    /// Takes the socket's file away, under whichever name it is still this door's. Only with the lock, lest somebody
    /// puts another file in the place between the look and the removal: a server that takes its path back, or one
    /// that begins. Whoever has the lock replaces what is left.
    pub(super) fn remove_files(&self) {
        if self.keeps_file {
            return;
        }
        let Ok(Some(_lock)) = StartLock::try_acquire(&self.path) else { return };
        for name in [pending_path(&self.path), self.path.clone()] {
            if std::fs::symlink_metadata(&name).is_ok_and(|file| socket_id(&file) == self.socket_id) {
                // A folder that has become read-only keeps a dead socket, which the next server replaces.
                let _ = std::fs::remove_file(&name);
            }
        }
    }

    /// Where it is, or is to be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Who knocks; `None`: nobody any more.
    pub(super) fn open(&self) -> Result<Option<ControlConnection>, HandOverError> {
        match accept_with(&self.listener, FLAGS) {
            Ok(socket) => Ok(Some(ControlConnection::accepted(socket))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(HandOverError::system("let a successor in")(error)),
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ControlSocket {
    /// It does so while it listens: nobody takes the socket for a dead one and puts a new one in its place, which
    /// would then be removed.
    fn drop(&mut self) {
        self.remove_files();
    }
}

/// Checks the path of a control socket, before anything is done with it. Returns whether there is a socket.
pub(super) fn check(path: &Path) -> Result<bool, HandOverError> {
    if path.as_os_str().len() > PATH_SIZE_MAX {
        return Err(HandOverError::PathTooLong(path.to_owned()));
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let metadata = std::fs::metadata(folder)
        .map_err(HandOverError::system(format!("look at the folder {}", folder.display())))?;
    check_folder(folder, &metadata, rustix::process::geteuid().as_raw())?;
    check_socket(path)
}

/// Nobody but the user and root may exchange files in the folder: they own it, and others cannot write to it, or
/// it is sticky, so that only owners remove what is there.
fn check_folder(folder: &Path, metadata: &Metadata, user: u32) -> Result<(), HandOverError> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let owned = metadata.uid() == user || metadata.uid() == 0;
    let safe = metadata.mode() & OTHERS_WRITE == 0 || metadata.mode() & STICKY != 0;
    if owned && safe { Ok(()) } else { Err(HandOverError::FolderOpenToOthers(folder.to_owned())) }
}

/// Whether there is a socket of this user; anything else but nothing is an error.
fn check_socket(path: &Path) -> Result<bool, HandOverError> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(HandOverError::system(format!("look at {}", path.display()))(error)),
    };
    if !file.file_type().is_socket() {
        return Err(HandOverError::NoSocket(path.to_owned()));
    }
    let user = rustix::process::geteuid().as_raw();
    if file.uid() != user {
        return Err(HandOverError::ForeignSocket { path: path.to_owned(), owner: file.uid(), user });
    }
    Ok(true)
}

fn pending_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(NEXT_SUFFIX);
    name.into()
}

fn socket_id(file: &Metadata) -> ControlSocketId {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use super::*;

    fn connect_to(path: &Path) -> Option<ControlConnection> {
        ControlConnection::connect(path, Instant::now() + Duration::from_secs(30)).unwrap()
    }

    /// Row 4.37: a successor takes the path in one step, and the one before it does not take it away again.
    #[test]
    fn a_door_changes_hands_without_a_moment_of_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        assert!(!check(&path).unwrap());
        let old = ControlSocket::beside(&path).unwrap();
        assert!(connect_to(&path).is_none());
        old.claim_path().unwrap();
        assert!(check(&path).unwrap() && old.holds_path());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, MODE);
        let new = ControlSocket::beside(&path).unwrap();
        let early = connect_to(&path).unwrap();
        new.claim_path().unwrap();
        assert!(!old.holds_path() && new.holds_path());
        let late = connect_to(&path).unwrap();
        old.close();
        assert!(old.open().unwrap().is_some() && old.open().unwrap().is_none());
        assert!(new.open().unwrap().is_some() && new.open().unwrap().is_none());
        drop((early, late, old));
        assert!(connect_to(&path).is_some());
        drop(new);
        assert!(!check(&path).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Row 4.37: what a crash leaves behind keeps nobody out.
    #[test]
    fn dead_sockets_are_replaced_under_both_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        drop(UnixListener::bind(&path).unwrap());
        drop(UnixListener::bind(pending_path(&path)).unwrap());
        assert!(check(&path).unwrap());
        assert!(connect_to(&path).is_none());
        ControlSocket::beside(&path).unwrap().claim_path().unwrap();
    }

    /// Row 4.37: a mistyped path costs nobody a file.
    #[test]
    fn what_is_no_socket_of_ours_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(check(&path), Err(HandOverError::NoSocket(_))));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(check(&link), Err(HandOverError::NoSocket(_))));
        let beside = folder.path().join("door");
        std::fs::write(pending_path(&beside), "precious").unwrap();
        assert!(matches!(ControlSocket::beside(&beside), Err(HandOverError::NoSocket(_))));
        let long = folder.path().join("x".repeat(PATH_SIZE_MAX));
        assert!(matches!(check(&long), Err(HandOverError::PathTooLong(_))));
        assert!(matches!(check(&folder.path().join("no/control")), Err(HandOverError::System { .. })));
    }

    /// Row 4.37: a folder in which others may exchange files is no place for the socket.
    #[test]
    fn a_folder_that_others_can_write_to_is_refused_unless_it_is_sticky() {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        for (mode, fine) in
            [(0o700, true), (0o755, true), (0o777, false), (0o770, false), (0o1777, true), (0o702, false)]
        {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let metadata = std::fs::metadata(folder.path()).unwrap();
            assert_eq!(check_folder(folder.path(), &metadata, user).is_ok(), fine, "{mode:o}");
            let owner = metadata.uid();
            assert_eq!(check_folder(folder.path(), &metadata, owner + 1).is_ok(), owner == 0 && fine);
        }
    }
}
