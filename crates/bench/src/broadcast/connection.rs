//! Opens connections to the measured server.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use super::codec::{BroadcastCodec, Subscription};
use super::error::BroadcastError;
use super::limits::{CONNECT_PAUSE, READ_SIZE};
use super::plan::BroadcastPlan;
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
    let stream = connect(to, timeout).map_err(|error| BroadcastError::Connect(to, error))?;
    let mut opened = OpeningConnection::new(stream, to, timeout)?;
    opened.exchange(opening, size)?;
    opened.finish()
}

/// Opens a subscribing connection, and returns it as [`open`] does.
pub(super) fn open_subscriber(
    plan: &BroadcastPlan,
    codec: &dyn BroadcastCodec,
    subscription: &Subscription,
) -> Result<(TcpStream, Vec<u8>), BroadcastError> {
    let BroadcastPlan { to, timeout, .. } = *plan;
    let failed = |error| BroadcastError::Connect(to, error);
    let stream = match plan.source {
        None => connect(to, timeout),
        Some(source) => connect_from(source, to),
    };
    let mut opened = OpeningConnection::new(stream.map_err(failed)?, to, timeout)?;
    let mut opening = Vec::new();
    codec.open_subscriber(subscription, &mut opening);
    opened.exchange(&opening, |input| codec.opening_size(input))?;
    if codec.framing().is_some() {
        opening.clear();
        codec.subscribe_in_frames(subscription, &mut opening);
        opened.exchange(&opening, |input| codec.framed_opening_size(input))?;
    }
    opened.finish()
}

fn connect_from(source: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddr::from((source, 0)))?;
    rustix::net::connect(&socket, &to)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A blocking connection whose first answers are awaited.
struct OpeningConnection {
    to: SocketAddr,
    stream: TcpStream,
    input: Vec<u8>,
}

impl OpeningConnection {
    fn new(
        stream: TcpStream,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<OpeningConnection, BroadcastError> {
        stream.set_read_timeout(Some(timeout)).map_err(|error| BroadcastError::Connect(to, error))?;
        Ok(OpeningConnection { to, stream, input: Vec::new() })
    }

    /// Sends `opening`, and removes the complete answer that `size` finds from the input.
    fn exchange(
        &mut self,
        opening: &[u8],
        size: impl Fn(&[u8]) -> Result<Option<usize>, String>,
    ) -> Result<(), BroadcastError> {
        self.stream.write_all(opening).map_err(|error| BroadcastError::Connect(self.to, error))?;
        let mut piece = [0; 4096];
        loop {
            if let Some(size) = size(&self.input).map_err(BroadcastError::Server)? {
                self.input.drain(..size);
                return Ok(());
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(BroadcastError::Server("it closed a new connection".to_owned())),
                Ok(count) if self.input.len() + count <= READ_SIZE => {
                    self.input.extend_from_slice(&piece[..count]);
                }
                Ok(_) => return Err(BroadcastError::Server("an answer without an end".to_owned())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(BroadcastError::Server(format!("no answer on a new connection ({error})")));
                }
            }
        }
    }

    fn finish(self) -> Result<(TcpStream, Vec<u8>), BroadcastError> {
        self.stream.set_nonblocking(true).map_err(|error| BroadcastError::Connect(self.to, error))?;
        Ok((self.stream, self.input))
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
