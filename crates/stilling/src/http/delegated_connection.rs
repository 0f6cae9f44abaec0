//! A client's socket that a worker serves.
//!
//! A handler may respond with the connection itself: the shard releases the socket, and a worker serves it,
//! synchronously or with an event loop of its own. The server no longer tracks the connection: it counts as closed
//! with the reason `detached`, and a drain does not wait for it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

/// The function that a worker runs with the connection.
pub(super) struct Delegate(pub(super) Box<dyn FnOnce(DelegatedConnection) + Send>);

impl fmt::Debug for Delegate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delegate")
    }
}

/// A client's connection that has left its shard. Reading begins with the bytes that the client sent after its
/// request. Dropping it closes the connection.
#[derive(Debug)]
pub struct DelegatedConnection {
    stream: TcpStream,
    unread: Vec<u8>,
    /// Bytes of `unread` that have been read.
    read: usize,
}

impl DelegatedConnection {
    pub(super) fn new(stream: TcpStream, unread: Vec<u8>) -> DelegatedConnection {
        DelegatedConnection { stream, unread, read: 0 }
    }

    /// The socket: blocking, with the server's idle and write timeouts set; both may be changed. Read with
    /// [`read`](Read::read) of this connection instead: the server may already have received bytes from the socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The socket, and the bytes received but not read, for a shard that adopts them as an
    /// [`engine::Detached`](stilling_engine::Detached).
    pub fn into_parts(mut self) -> (OwnedFd, Vec<u8>) {
        self.unread.drain(..self.read);
        (self.stream.into(), self.unread)
    }
}

impl Read for DelegatedConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut rest = &self.unread[self.read..];
        if rest.is_empty() {
            return self.stream.read(into);
        }
        let count = rest.read(into)?;
        self.read += count;
        Ok(count)
    }
}

impl Write for DelegatedConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
