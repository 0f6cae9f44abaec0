//! Sending datagrams from a service: in a callback, on mail for a peer, and at the end of a turn.

use std::net::{IpAddr, SocketAddr};

use stilling_ring::Time;

use super::io::OutputFull;
use super::listener::{ShardListener, ShardListeners};
use super::output::{DATAGRAM_COST, Output};
use crate::counters::EngineCounters;

/// The addresses and the socket of a datagram exchange: enough to send at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramPath {
    /// The number of the socket, in the order in which listeners and datagram sockets were added to the shard.
    pub socket: u32,
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The local address, for a socket bound to the unspecified address; `None`: the system chooses.
    pub local: Option<IpAddr>,
}

/// A datagram that a socket of the shard has received or sent: see [`Service::datagram_passed`].
///
/// [`Service::datagram_passed`]: crate::Service::datagram_passed
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedDatagram<'a> {
    /// Its bytes.
    pub payload: &'a [u8],
    /// It was sent, else received.
    pub is_sent: bool,
    /// It was received, and the end of the payload was cut off.
    pub is_truncated: bool,
}

/// Sends datagrams with the output of the turn, as far as there is room.
pub(crate) struct DatagramSender<'a> {
    output: &'a mut Output,
    listeners: &'a ShardListeners,
    counters: &'a EngineCounters,
    room: usize,
}

impl<'a> DatagramSender<'a> {
    pub(super) fn new(
        output: &'a mut Output,
        listeners: &'a ShardListeners,
        counters: &'a EngineCounters,
        room: usize,
    ) -> Self {
        DatagramSender { output, listeners, counters, room }
    }

    pub(super) fn send(&mut self, path: &DatagramPath, payload: &[u8]) -> Result<(), OutputFull> {
        self.room = self.room.checked_sub(payload.len() + DATAGRAM_COST).ok_or(OutputFull)?;
        if self.listeners.get(path.socket).is_some_and(ShardListener::can_send_datagrams) {
            let socket = self.listeners.token(path.socket);
            self.output.push_datagram(socket, path.peer, path.local, payload);
        } else {
            self.counters.count_datagram_without_socket();
        }
        Ok(())
    }
}

/// The handle of a service during a call of `datagram` or `delivered`.
pub struct DatagramIo<'a> {
    pub(super) now: Time,
    pub(super) path: DatagramPath,
    pub(super) sender: DatagramSender<'a>,
}

impl DatagramIo<'_> {
    /// The time of this turn.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The number of the receiving socket, in the order in which listeners and datagram sockets were added to the
    /// shard.
    pub fn socket(&self) -> u32 {
        self.path.socket
    }

    /// The path to the datagram's sender, or to the mail's recipient. It may be stored to send later, by
    /// [`ShardControl::send_datagram`](crate::ShardControl::send_datagram) or by mail.
    pub fn path(&self) -> DatagramPath {
        self.path
    }

    /// Sends a datagram along the [`path`](Self::path).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn reply(&mut self, payload: &[u8]) -> Result<(), OutputFull> {
        self.sender.send(&self.path, payload)
    }

    /// Sends a datagram to `to` from the same socket.
    ///
    /// # Errors
    /// [`OutputFull`]: this call has sent 64 KiB (each datagram counts some 100 bytes beside its payload); nothing of
    /// this datagram is sent.
    pub fn send(&mut self, to: SocketAddr, payload: &[u8]) -> Result<(), OutputFull> {
        let path = DatagramPath { socket: self.path.socket, peer: to, local: None };
        self.sender.send(&path, payload)
    }
}
