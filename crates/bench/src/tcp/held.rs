//! Idle connections, held until their owner asks for an exchange on each.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::connection::EchoConnection;

/// Open connections; dropping them closes them.
pub struct HeldConnections {
    connections: Vec<EchoConnection>,
    buffer: Vec<u8>,
}

impl HeldConnections {
    /// Opens `count` connections from a source address.
    ///
    /// # Errors
    /// The first connection that does not open.
    pub fn open(
        to: SocketAddr,
        source: Ipv4Addr,
        count: usize,
        size: usize,
        timeout: Duration,
    ) -> Result<HeldConnections, String> {
        let mut connections = Vec::with_capacity(count);
        for at in 0..count {
            let stream = connect(to, source).map_err(|error| format!("connection {at}: {error}"))?;
            let set = stream.set_read_timeout(Some(timeout));
            set.map_err(|error| format!("setsockopt: {error}"))?;
            connections.push(EchoConnection::with_stream(stream, size, Instant::now())?);
        }
        Ok(HeldConnections { connections, buffer: vec![0; size + 1] })
    }

    /// One exchange on each connection, in turn; returns how many there were.
    ///
    /// # Errors
    /// The first wrong or missing answer.
    pub fn exchange(&mut self) -> Result<usize, String> {
        for (number, connection) in (1..).zip(&mut self.connections) {
            let result = connection.exchange(number, &mut self.buffer);
            result.map_err(|error| format!("connection {number}: {error}"))?;
        }
        Ok(self.connections.len())
    }
}

/// A connection from this source address, which has some 28,000 ports or more.
fn connect(to: SocketAddr, source: Ipv4Addr) -> rustix::io::Result<TcpStream> {
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((source, 0)))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}
