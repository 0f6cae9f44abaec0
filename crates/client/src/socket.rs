//! A non-blocking TCP or Unix connection for the publisher's thread.
//!
//! Connecting and sending are separate calls: in NATS the server sends first, and CONNECT depends on its
//! INFO, so a SYN has no message to carry (TCP Fast Open).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};

use mio::event::Source;
use mio::net::TcpStream;
#[cfg(unix)]
use mio::net::UnixStream;
use mio::{Interest, Registry, Token};

use crate::address::{ServerAddress, ServerUrl};
use crate::connection_error::ConnectionError;

#[derive(Debug)]
pub(crate) enum PublisherSocket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Resolves a server's addresses; blocks as long as the system's resolver does.
pub(crate) fn resolve(server: &ServerUrl) -> Result<Vec<SocketAddr>, ConnectionError> {
    let ServerAddress::Tcp { host, port } = &server.address else { return Ok(Vec::new()) };
    let connection_error = |detail: String| ConnectionError::Name { server: server.to_string(), detail };
    let addresses: Vec<SocketAddr> = (host.as_str(), *port)
        .to_socket_addrs()
        .map_err(|error| connection_error(error.to_string()))?
        .collect();
    if addresses.is_empty() {
        Err(connection_error("the name resolves to no address".to_owned()))
    } else {
        Ok(addresses)
    }
}

pub(crate) fn connect_error(server: &ServerUrl, error: &io::Error) -> ConnectionError {
    ConnectionError::Connect { server: server.to_string(), kind: error.kind(), detail: error.to_string() }
}

impl PublisherSocket {
    /// Starts to connect; `address` is one of the server's addresses for TCP.
    pub(crate) fn connect(server: &ServerUrl, address: Option<SocketAddr>) -> io::Result<PublisherSocket> {
        match (&server.address, address) {
            (ServerAddress::Tcp { .. }, Some(address)) => {
                let stream = TcpStream::connect(address)?;
                // Some systems require an established connection; the option is not essential.
                let _ = stream.set_nodelay(true);
                Ok(PublisherSocket::Tcp(stream))
            }
            #[cfg(unix)]
            (ServerAddress::Unix(path), _) => UnixStream::connect(path).map(PublisherSocket::Unix),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "this system does not support the address")),
        }
    }

    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            PublisherSocket::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            #[cfg(unix)]
            PublisherSocket::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
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
            PublisherSocket::Tcp(stream) => stream.register(registry, token, both),
            #[cfg(unix)]
            PublisherSocket::Unix(stream) => stream.register(registry, token, both),
        }
    }
}

impl Read for PublisherSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            PublisherSocket::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            PublisherSocket::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for PublisherSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            PublisherSocket::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            PublisherSocket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
