//! Where the processes listen: one Unix socket each, in a folder that nobody else may enter, removed at the end.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use stilling_workers::processes::Exchange;

/// The variable that tells a process where to listen.
const VARIABLE: &str = "STILLING_SOCKET";

/// The folder.
#[derive(Clone, Debug)]
pub(super) struct Sockets {
    folder: Arc<PathBuf>,
}

impl Sockets {
    /// A new folder, below `XDG_RUNTIME_DIR` or the folder for temporary files.
    pub(super) fn new() -> io::Result<Sockets> {
        /// Servers of this process so far.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
        let parent = runtime.unwrap_or_else(std::env::temp_dir);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let folder = parent.join(format!("stilling-{}-{count}", std::process::id()));
            // Making it fails if it exists, whoever made it: nobody can prepare one for us.
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => return Ok(Sockets { folder: Arc::new(folder) }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let folder = folder.display();
                    return Err(io::Error::new(
                        error.kind(),
                        format!("cannot make the folder {folder}: {error}"),
                    ));
                }
            }
        }
    }

    /// Where process `number` listens.
    pub(super) fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("app-{number}.sock"))
    }

    pub(super) fn remove(&self) {
        // Whatever cannot be removed is left to the system's own cleaning.
        let _ = fs::remove_dir_all(&*self.folder);
    }
}

/// Starts processes that listen on these sockets, and asks whether they do.
pub(super) struct SocketExchange {
    command: String,
    sockets: Sockets,
}

impl SocketExchange {
    pub(super) fn new(command: String, sockets: Sockets) -> SocketExchange {
        SocketExchange { command, sockets }
    }
}

impl Exchange for SocketExchange {
    fn command(&mut self, number: usize) -> io::Result<Command> {
        let path = self.sockets.path(number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let text = self.command.replace("{socket}", &quoted(&path));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &text]).env(VARIABLE, &path);
        Ok(command)
    }

    fn is_ready(&mut self, number: usize) -> bool {
        let Ok(address) = SocketAddrUnix::new(self.sockets.path(number)) else { return false };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .is_ok_and(|socket| connect(&socket, &address).is_ok())
    }
}

/// As a shell reads it as one word.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}
