//! The Unix sockets of the worker processes: one per process, in a private folder that is removed at the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use stilling_workers::processes::WorkerProgram;

use super::socket_folder::{SocketFolder, socket_name};

/// Environment variable with the path of a process's socket.
const VARIABLE: &str = "STILLING_SOCKET";

/// Environment variable that may contain users with their passwords.
const USERS_VARIABLE: &str = "STILLING_USER";

#[derive(Clone, Debug)]
pub(super) struct ProcessSockets {
    folder: Arc<SocketFolder>,
}

impl ProcessSockets {
    /// Creates a folder below `XDG_RUNTIME_DIR` or the folder for temporary files.
    pub(super) fn new() -> io::Result<ProcessSockets> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
        let parent = runtime.unwrap_or_else(std::env::temp_dir);
        Ok(ProcessSockets { folder: Arc::new(SocketFolder::new(&parent)?) })
    }

    pub(super) fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join(socket_name(number))
    }

    pub(super) fn remove(&self) {
        self.folder.remove();
    }
}

/// Starts processes that listen on these sockets, and checks whether they accept connections.
pub(super) struct SocketProgram {
    command: String,
    /// Environment variables that the processes do not inherit.
    secrets: Vec<String>,
    sockets: ProcessSockets,
}

impl SocketProgram {
    pub(super) fn new(command: String, secrets: Vec<String>, sockets: ProcessSockets) -> SocketProgram {
        SocketProgram { command, secrets, sockets }
    }
}

impl WorkerProgram for SocketProgram {
    fn command(&mut self, number: usize, _generation: u64) -> io::Result<Command> {
        let path = self.sockets.path(number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let text = self.command.replace("{socket}", &quoted(&path));
        let mut command = shell_command(&text, &self.secrets);
        command.env(VARIABLE, &path);
        Ok(command)
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(self.sockets.folder.path().to_owned())
    }

    fn is_ready(&mut self, number: usize) -> Result<bool, String> {
        let Ok(address) = SocketAddrUnix::new(self.sockets.path(number)) else { return Ok(false) };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .is_ok_and(|socket| connect(&socket, &address).is_ok()))
    }
}

/// A command for the shell that does not inherit the environment variables `secrets`.
pub(super) fn shell_command(text: &str, secrets: &[String]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", text]).env_remove(USERS_VARIABLE);
    secrets.iter().for_each(|secret| _ = command.env_remove(secret));
    command
}

/// Quotes a path as one word for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}
