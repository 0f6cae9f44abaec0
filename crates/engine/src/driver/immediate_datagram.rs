//! Datagrams that are received and sent at once, by system calls on ordinary descriptors.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recvfrom, send, sendto};

use super::ReceivedDatagram;

/// Receives a datagram without waiting.
pub(super) fn recv_from(socket: &impl AsFd, into: &mut [u8]) -> Result<ReceivedDatagram, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    loop {
        match recvfrom(socket, &mut *into, flags) {
            Ok((_, len, from)) => {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                return Ok(ReceivedDatagram { len, from });
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends a datagram without waiting.
pub(super) fn send_to(socket: &impl AsFd, bytes: &[u8], to: Option<SocketAddr>) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let sent = match to {
            Some(to) => sendto(socket, bytes, flags, &to),
            None => send(socket, bytes, flags),
        };
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
