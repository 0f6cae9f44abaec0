//! Many datagrams per system call: recvmmsg(2) and sendmmsg(2) on connected sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

use super::limits::{DATAGRAM_SIZE_MAX, DATAGRAMS_PER_CALL};

/// Buffers that all sockets share.
pub(super) struct DatagramIo {
    receive_headers: MultiHeaders<SockaddrStorage>,
    send_headers: MultiHeaders<SockaddrStorage>,
    buffers: Vec<[u8; DATAGRAM_SIZE_MAX]>,
    sizes: Vec<usize>,
}

/// Datagrams that are to be sent by one socket.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    datagrams: Vec<Range<usize>>,
}

impl Outbox {
    pub(super) fn push(&mut self, datagram: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        self.datagrams.push(start..self.bytes.len());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.datagrams.clear();
    }
}

impl DatagramIo {
    pub(super) fn new() -> DatagramIo {
        DatagramIo {
            receive_headers: MultiHeaders::preallocate(DATAGRAMS_PER_CALL, None),
            send_headers: MultiHeaders::preallocate(DATAGRAMS_PER_CALL, None),
            buffers: vec![[0; DATAGRAM_SIZE_MAX]; DATAGRAMS_PER_CALL],
            sizes: Vec::with_capacity(DATAGRAMS_PER_CALL),
        }
    }

    /// Receives what is there, at most [`DATAGRAMS_PER_CALL`]. Returns the number.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.sizes.clear();
        let mut slices: Vec<_> = self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let flags = MsgFlags::MSG_DONTWAIT;
        match recvmmsg(socket.as_raw_fd(), &mut self.receive_headers, slices.iter_mut(), flags, None) {
            Ok(received) => {
                self.sizes.extend(received.map(|message| message.bytes));
                Ok(self.sizes.len())
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// A datagram of the last call.
    pub(super) fn datagram(&self, at: usize) -> &[u8] {
        &self.buffers[at][..self.sizes[at]]
    }

    /// Sends all datagrams. Returns how many the system refused for want of memory; they count as lost.
    pub(super) fn send(&mut self, socket: &UdpSocket, outbox: &mut Outbox) -> io::Result<usize> {
        let mut sent = 0;
        let result = loop {
            let left = &outbox.datagrams[sent..];
            if left.is_empty() {
                break Ok(0);
            }
            let bytes = &outbox.bytes;
            let slices: Vec<_> = left
                .iter()
                .take(DATAGRAMS_PER_CALL)
                .map(|range| [IoSlice::new(&bytes[range.clone()])])
                .collect();
            let addresses: [Option<SockaddrStorage>; DATAGRAMS_PER_CALL] = [None; DATAGRAMS_PER_CALL];
            let (headers, flags) = (&mut self.send_headers, MsgFlags::MSG_DONTWAIT);
            match sendmmsg(socket.as_raw_fd(), headers, slices.iter(), addresses, [], flags) {
                Ok(results) => sent += results.count(),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => break Ok(left.len()),
                Err(error) => break Err(error.into()),
            }
        };
        outbox.clear();
        result
    }
}
