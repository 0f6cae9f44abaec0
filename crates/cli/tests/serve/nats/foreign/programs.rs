//! Clients in other languages: programs that check for themselves and print line by line.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::support::HANG;

/// Last line of a successful program.
pub(super) const ALL_OF_IT: &str = "all of it";

pub(super) struct ClientProgram {
    child: GuardedClientProcess,
    lines: Receiver<String>,
}

struct GuardedClientProcess(Child);

impl Drop for GuardedClientProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Path of a program that `cargo xtask test` installs.
fn installed(path: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(path);
    assert!(place.exists(), "{} is missing; `cargo xtask test` installs it", place.display());
    place
}

pub(super) fn python(task: &str, address: SocketAddr) -> ClientProgram {
    let mut command = Command::new(installed("nats-py/bin/python"));
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/nats/foreign/client.py"));
    ClientProgram::start(command, task, address)
}

/// nats-py, case by case.
pub(super) fn python_conformance(address: SocketAddr) -> ClientProgram {
    let mut command = Command::new(installed("nats-py/bin/python"));
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/nats/foreign/conformance/client.py"));
    ClientProgram::spawn(command, address, &[])
}

/// The clients for Node, case by case. The program lies beside its packages, where Node searches for them.
pub(super) fn node(address: SocketAddr) -> ClientProgram {
    let mut command = Command::new("node");
    command.arg(installed("nats-node/conformance.mjs"));
    ClientProgram::spawn(command, address, &[])
}

pub(super) fn go(task: &str, address: SocketAddr) -> ClientProgram {
    ClientProgram::start(Command::new(installed("nats-go/client")), task, address)
}

impl ClientProgram {
    fn start(command: Command, task: &str, address: SocketAddr) -> ClientProgram {
        ClientProgram::spawn(command, address, &[task])
    }

    fn spawn(mut command: Command, address: SocketAddr, arguments: &[&str]) -> ClientProgram {
        command.arg(format!("nats://{address}")).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = GuardedClientProcess(command.spawn().expect("the program runs"));
        let out = BufReader::new(child.0.stdout.take().expect("it is piped"));
        let (told, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        ClientProgram { child, lines }
    }

    /// Waits for the successful end of the program.
    #[track_caller]
    pub(super) fn expect_complete(mut self) {
        let mut said = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(HANG) {
            said.push(line);
        }
        assert_eq!(said.last().map(String::as_str), Some(ALL_OF_IT), "{said:?}");
        let status = self.child.0.wait().expect("it is ours");
        assert!(status.success(), "{status}: {said:?}");
    }

    pub(super) fn lines(self) -> Vec<String> {
        std::iter::from_fn(self.next_line()).collect()
    }

    /// The next line of output; `None` at its end.
    pub(super) fn next_line(self) -> impl FnMut() -> Option<String> {
        move || {
            let ClientProgram { lines, .. } = &self;
            lines.recv_timeout(HANG).ok()
        }
    }
}
