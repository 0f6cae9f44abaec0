//! User memory of an idle connection: the server's memory with and without thousands of connections that were each
//! answered once.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::load::{BenchEnvironment, HttpLoad};
use super::server::BenchServer;
use crate::XtaskResult;

/// Rest of the connections before the second reading: longer than a server takes to park one.
const SETTLE_TIME: Duration = Duration::from_secs(7);

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct IdleMemory {
    /// Bytes before any connection.
    pub(super) at_start: u64,
    /// Bytes after the warm-up, without connections.
    pub(super) before: u64,
    /// Bytes with all connections, right after their responses.
    pub(super) fresh: u64,
    /// Bytes with all connections, after a rest.
    pub(super) rested: u64,
    pub(super) connections: usize,
}

impl IdleMemory {
    /// Bytes per connection after the rest; negative if the server released memory.
    pub(super) fn per_connection(&self) -> f64 {
        (self.rested as f64 - self.before as f64) / self.connections as f64
    }

    pub(super) fn per_fresh_connection(&self) -> f64 {
        (self.fresh as f64 - self.before as f64) / self.connections as f64
    }
}

/// Raises the limit of descriptors of this process and its children to the system's maximum.
pub(crate) fn raise_descriptors() {
    let me = std::process::id().to_string();
    let hard =
        Command::new("prlimit").args(["--pid", &me, "--nofile", "--noheadings", "--output", "HARD"]).output();
    let hard =
        hard.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    // If this fails, opening the connections fails with a clear message.
    let _ = Command::new("prlimit")
        .args(["--pid", &me, &format!("--nofile={hard}:{hard}")])
        .stderr(Stdio::null())
        .status();
}

/// Measures a server that was just started.
pub(super) fn measure(
    server: &BenchServer,
    connections: usize,
    environment: &BenchEnvironment,
) -> XtaskResult<IdleMemory> {
    let at_start = server.memory();
    // Warms up buffers shared by all connections before the first reading: they are no cost of idle connections.
    HttpLoad::Ab { requests: 20_000, connections: 100, keep: true }.measure(
        server,
        "/test/fast",
        environment,
    )?;
    let before = server.memory();
    let mut held = Vec::with_capacity(connections);
    for at in 0..connections {
        let connection =
            asked_once(server).map_err(|error| format!("{}: connection {at}: {error}", server.name))?;
        held.push(connection);
    }
    let fresh = server.memory();
    std::thread::sleep(SETTLE_TIME);
    let rested = server.memory();
    for stream in &mut held {
        stream.set_nonblocking(true)?;
        let is_open = matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        if !is_open {
            return Err(format!("{} closed a connection before it was measured", server.name).into());
        }
    }
    Ok(IdleMemory { at_start, before, fresh, rested, connections })
}

/// A connection that was answered once and is kept.
fn asked_once(server: &BenchServer) -> XtaskResult<TcpStream> {
    let mut stream = TcpStream::connect(server.address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(stream, "GET /test/fast HTTP/1.1\r\nHost: {}\r\n\r\n", server.address)?;
    let mut answer = Vec::new();
    let mut piece = [0; 512];
    while !answer.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Err(format!("closed after {:?}", String::from_utf8_lossy(&answer)).into()),
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    if answer.starts_with(b"HTTP/1.1 200 ") { Ok(stream) } else { Err("not a 200".into()) }
}
