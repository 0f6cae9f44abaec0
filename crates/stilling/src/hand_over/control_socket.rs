//! The control socket in the file system: its permissions, and how the path changes hands.
//!
//! A server that can hand over listens at its path. Its successor first listens at the path with the suffix
//! `.next` and later renames that over the path, which is atomic: at every moment either the old or the new socket is
//! at the path. Only one successor at a time gets this far, so one pending name suffices; the next successor replaces
//! what a crash leaves there.
//!
//! A process with the listeners can act as the server, so only the server's own user may use the socket: its mode is
//! 0600, a file of another user is never connected to or replaced, and the folder must not let other users replace the
//! socket. The connection also checks the user at the other end (`control_connection.rs`).

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrUnix, accept_with, bind, listen, shutdown};

use super::control_connection::{ControlConnection, FLAGS, packet_socket};
use super::error::HandOverError;
use super::limits::{CONTROL_BACKLOG, PATH_SIZE_MAX};
use super::lock::StartLock;

/// Suffix of the path while a successor waits for its turn.
const NEXT_SUFFIX: &str = ".next";

/// File mode: only the owner may connect.
const MODE: u32 = 0o600;

/// Device and inode.
type ControlSocketId = (u64, u64);

#[derive(Debug)]
pub(super) struct ControlSocket {
    listener: OwnedFd,
    path: PathBuf,
    /// The socket file, under either name.
    socket_id: ControlSocketId,
    /// The file is not removed at the end.
    keeps_file: bool,
}

impl ControlSocket {
    /// Opens a control socket at the pending name of `path`.
    pub(super) fn bind_pending(path: &Path) -> Result<ControlSocket, HandOverError> {
        let next = pending_path(path);
        let doing = || format!("listen on {}", next.display());
        // The file is a leftover, of a successor that has ended or of this server.
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
                let _ = std::fs::remove_file(&next);
                Err(HandOverError::system(doing())(error))
            }
        }
    }

    /// Takes the path, replacing any socket there.
    pub(super) fn claim_path(&self) -> Result<(), HandOverError> {
        std::fs::rename(pending_path(&self.path), &self.path)
            .map_err(HandOverError::system(format!("listen on {}", self.path.display())))
    }

    pub(super) fn holds_path(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|file| socket_id(&file) == self.socket_id)
    }

    /// Removes the pending socket of a successor, which then cannot take the path any more.
    pub(super) fn remove_pending_path(&self) {
        // In a folder that has become read-only the successor cannot rename the file either.
        let _ = std::fs::remove_file(pending_path(&self.path));
    }

    /// Stops new connections; earlier ones can still be accepted.
    pub(super) fn close(&self) {
        // Linux does not refuse this for a listening socket.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }

    /// Keeps the file: a successor may replace it at any moment, even between a check and the removal. The next
    /// server replaces the dead socket.
    pub(super) fn keep_file(&mut self) {
        self.keeps_file = true;
    }

    /// Removes the socket's file under either name, if it is still this socket's. Only with the lock: otherwise a
    /// server that starts, or that takes its path back, could put another file there between the check and the
    /// removal. The holder of the lock replaces a leftover.
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

    /// The path, whether or not the socket has taken it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a successor. `None`: none is waiting.
    pub(super) fn accept(&self) -> Result<Option<ControlConnection>, HandOverError> {
        match accept_with(&self.listener, FLAGS) {
            Ok(socket) => Ok(Some(ControlConnection::accepted(socket))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(HandOverError::system("accept a successor")(error)),
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ControlSocket {
    /// Removes the files while the socket still listens. Otherwise another server could find it dead and replace it,
    /// and this server would remove the replacement.
    fn drop(&mut self) {
        self.remove_files();
    }
}

/// Checks the path before it is used. Returns whether there is a socket.
pub(super) fn check(path: &Path) -> Result<bool, HandOverError> {
    if path.as_os_str().len() > PATH_SIZE_MAX {
        return Err(HandOverError::PathTooLong(path.to_owned()));
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let metadata = std::fs::metadata(folder).map_err(HandOverError::system(format!(
        "find the directory {} of the control socket",
        folder.display()
    )))?;
    check_folder(folder, &metadata, rustix::process::geteuid().as_raw())?;
    check_socket(path)
}

/// Fails unless only the user and root can replace files in the folder: one of them owns it, and it is either not
/// writable for others or sticky, so that only owners remove files.
fn check_folder(folder: &Path, metadata: &Metadata, user: u32) -> Result<(), HandOverError> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let owned = metadata.uid() == user || metadata.uid() == 0;
    let safe = metadata.mode() & OTHERS_WRITE == 0 || metadata.mode() & STICKY != 0;
    if owned && safe { Ok(()) } else { Err(HandOverError::DirectoryWritableByOthers(folder.to_owned())) }
}

/// Whether there is a socket of this user. Any other file is an error.
fn check_socket(path: &Path) -> Result<bool, HandOverError> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(HandOverError::system(format!("inspect {}", path.display()))(error)),
    };
    if !file.file_type().is_socket() {
        return Err(HandOverError::NotASocket(path.to_owned()));
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

    /// Row 4.37: a successor takes the path in one step, and its predecessor does not remove the new socket.
    #[test]
    fn the_path_moves_to_the_successor_atomically() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        assert!(!check(&path).unwrap());
        let old = ControlSocket::bind_pending(&path).unwrap();
        assert!(connect_to(&path).is_none());
        old.claim_path().unwrap();
        assert!(check(&path).unwrap() && old.holds_path());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, MODE);
        let new = ControlSocket::bind_pending(&path).unwrap();
        let early = connect_to(&path).unwrap();
        new.claim_path().unwrap();
        assert!(!old.holds_path() && new.holds_path());
        let late = connect_to(&path).unwrap();
        old.close();
        assert!(old.accept().unwrap().is_some() && old.accept().unwrap().is_none());
        assert!(new.accept().unwrap().is_some() && new.accept().unwrap().is_none());
        drop((early, late, old));
        assert!(connect_to(&path).is_some());
        drop(new);
        assert!(!check(&path).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Row 4.37: leftovers of a crash do not prevent a start.
    #[test]
    fn dead_sockets_are_replaced_under_both_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        drop(UnixListener::bind(&path).unwrap());
        drop(UnixListener::bind(pending_path(&path)).unwrap());
        assert!(check(&path).unwrap());
        assert!(connect_to(&path).is_none());
        ControlSocket::bind_pending(&path).unwrap().claim_path().unwrap();
    }

    /// Row 4.37: a mistyped path does not overwrite a file.
    #[test]
    fn files_that_are_no_control_socket_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(check(&path), Err(HandOverError::NotASocket(_))));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(check(&link), Err(HandOverError::NotASocket(_))));
        let socket_path = folder.path().join("socket");
        std::fs::write(pending_path(&socket_path), "precious").unwrap();
        assert!(matches!(ControlSocket::bind_pending(&socket_path), Err(HandOverError::NotASocket(_))));
        let long = folder.path().join("x".repeat(PATH_SIZE_MAX));
        assert!(matches!(check(&long), Err(HandOverError::PathTooLong(_))));
        assert!(matches!(check(&folder.path().join("no/control")), Err(HandOverError::System { .. })));
    }

    /// Row 4.37: a folder in which others can replace files is refused.
    #[test]
    fn a_folder_that_others_can_write_to_is_refused_unless_it_is_sticky() {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        for (mode, is_allowed) in
            [(0o700, true), (0o755, true), (0o777, false), (0o770, false), (0o1777, true), (0o702, false)]
        {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let metadata = std::fs::metadata(folder.path()).unwrap();
            assert_eq!(check_folder(folder.path(), &metadata, user).is_ok(), is_allowed, "{mode:o}");
            let owner = metadata.uid();
            assert_eq!(check_folder(folder.path(), &metadata, owner + 1).is_ok(), owner == 0 && is_allowed);
        }
    }
}
