//! A TCP or Unix connection that does not block, for the publisher's thread.
//!
//! Connecting and sending are two calls (row 0.10): in NATS the server speaks first, and CONNECT depends on its INFO, so a
//! SYN has no message to carry (TCP Fast Open).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};

use mio::event::Source;
use mio::net::TcpStream;
#[cfg(unix)]
use mio::net::UnixStream;
use mio::{Interest, Registry, Token};

use crate::address::{Place, Server};
use crate::trouble::Trouble;

/// A connection, or one that is being made.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// The addresses of a server: looking them up may take as long as the system's resolver does.
pub(crate) fn resolve(server: &Server) -> Result<Vec<SocketAddr>, Trouble> {
    let Place::Tcp { host, port } = &server.place else { return Ok(Vec::new()) };
    let trouble = |said: String| Trouble::Name { server: server.to_string(), said };
    let found: Vec<SocketAddr> =
        (host.as_str(), *port).to_socket_addrs().map_err(|error| trouble(error.to_string()))?.collect();
    if found.is_empty() { Err(trouble("the name is known and has none".to_owned())) } else { Ok(found) }
}

/// What the system said to an attempt to connect.
pub(crate) fn refused(server: &Server, error: &io::Error) -> Trouble {
    Trouble::Connect { server: server.to_string(), kind: error.kind(), said: error.to_string() }
}

impl Socket {
    /// Begins to connect; `address` is one of the server's if it is reached over TCP.
    pub(crate) fn connect(server: &Server, address: Option<SocketAddr>) -> io::Result<Socket> {
        match (&server.place, address) {
            (Place::Tcp { .. }, Some(address)) => {
                let stream = TcpStream::connect(address)?;
                // Some systems want the connection first; then it stays as it is.
                let _ = stream.set_nodelay(true);
                Ok(Socket::Tcp(stream))
            }
            #[cfg(unix)]
            (Place::Unix(path), _) => UnixStream::connect(path).map(Socket::Unix),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "no such address on this system")),
        }
    }

    /// Whether the connection is there.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Socket::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            #[cfg(unix)]
            Socket::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(true),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, Err(error)) => Err(error),
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Socket::Tcp(stream) => stream.register(registry, token, both),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.register(registry, token, both),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
