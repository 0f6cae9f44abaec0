//! Opens connections to the measured server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::error::BroadcastError;
use super::limits::{CONNECT_PAUSE, READ_SIZE};
use crate::collect::connect;

/// Waits until the server accepts connections, so that the start order does not matter.
pub(super) fn wait_for_server(
    to: SocketAddr,
    wait: Duration,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<(), BroadcastError> {
    let begun = Instant::now();
    loop {
        match connect(to, timeout) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() >= wait || stop.load(Ordering::Relaxed) => {
                return Err(BroadcastError::Connect(to, error));
            }
            Err(_) => thread::sleep(CONNECT_PAUSE),
        }
    }
}

/// Connects, sends `opening`, and reads until `size` finds the complete answer. Returns a non-blocking stream and the
/// input behind the answer.
pub(super) fn open(
    to: SocketAddr,
    timeout: Duration,
    opening: &[u8],
    size: impl Fn(&[u8]) -> Result<Option<usize>, String>,
) -> Result<(TcpStream, Vec<u8>), BroadcastError> {
    let failed = |error| BroadcastError::Connect(to, error);
    let mut stream = connect(to, timeout).map_err(failed)?;
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.write_all(opening).map_err(failed)?;
    let mut input = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(size) = size(&input).map_err(BroadcastError::Server)? {
            stream.set_nonblocking(true).map_err(failed)?;
            return Ok((stream, input.split_off(size)));
        }
        match stream.read(&mut piece) {
            Ok(0) => return Err(BroadcastError::Server("it closed a new connection".to_owned())),
            Ok(count) if input.len() + count <= READ_SIZE => input.extend_from_slice(&piece[..count]),
            Ok(_) => return Err(BroadcastError::Server("an answer without an end".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(BroadcastError::Server(format!("no answer on a new connection ({error})")));
            }
        }
    }
}

/// Returns whether the call may simply be repeated when the socket is ready.
pub(super) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Output of a non-blocking connection.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    bytes: Vec<u8>,
    written: usize,
}

impl OutputBuffer {
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Number of unwritten bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Writes what the kernel accepts; returns whether all is written.
    pub(super) fn write(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        while self.len() > 0 {
            match stream.write(&self.bytes[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.written = 0;
        Ok(true)
    }
}
