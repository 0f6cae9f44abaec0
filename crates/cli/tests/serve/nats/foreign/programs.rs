//! Clients in other languages: programs that check for themselves and print line by line.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::support::HANG_TIMEOUT;

/// Last line of a successful program.
pub(crate) const SUCCESS_LINE: &str = "all checks passed";

pub(crate) struct ClientProgram {
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
pub(crate) fn installed(path: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(path);
    assert!(program.exists(), "{} is missing; `cargo xtask test` installs it", program.display());
    program
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
    ClientProgram::spawn(command, &format!("nats://{address}"), &[])
}

/// The clients for Node, case by case. The program lies beside its packages, where Node searches for them.
pub(super) fn node(url: &str) -> ClientProgram {
    let mut command = Command::new("node");
    command.arg(installed("nats-node/conformance.mjs"));
    ClientProgram::spawn(command, url, &[])
}

pub(super) fn go(task: &str, address: SocketAddr) -> ClientProgram {
    ClientProgram::start(Command::new(installed("nats-go/client")), task, address)
}

impl ClientProgram {
    fn start(command: Command, task: &str, address: SocketAddr) -> ClientProgram {
        ClientProgram::spawn(command, &format!("nats://{address}"), &[task])
    }

    pub(crate) fn spawn(mut command: Command, url: &str, arguments: &[&str]) -> ClientProgram {
        command.arg(url).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = GuardedClientProcess(command.spawn().expect("the program runs"));
        let out = BufReader::new(child.0.stdout.take().expect("it is piped"));
        let (line_sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if line_sender.send(line).is_err() {
                    return;
                }
            }
        });
        ClientProgram { child, lines }
    }

    /// Waits for the successful end of the program.
    #[track_caller]
    pub(crate) fn expect_complete(mut self) {
        let mut output_lines = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(HANG_TIMEOUT) {
            output_lines.push(line);
        }
        assert_eq!(output_lines.last().map(String::as_str), Some(SUCCESS_LINE), "{output_lines:?}");
        let status = self.child.0.wait().expect("it is ours");
        assert!(status.success(), "{status}: {output_lines:?}");
    }

    /// The lines of output that have arrived.
    pub(crate) fn received(&self) -> impl Iterator<Item = String> {
        self.lines.try_iter()
    }

    /// The rest of the output, up to its end.
    pub(crate) fn lines(self) -> Vec<String> {
        std::iter::from_fn(self.next_line()).collect()
    }

    /// The next line of output; `None` at its end.
    pub(crate) fn next_line(self) -> impl FnMut() -> Option<String> {
        move || {
            let ClientProgram { lines, .. } = &self;
            lines.recv_timeout(HANG_TIMEOUT).ok()
        }
    }
}
