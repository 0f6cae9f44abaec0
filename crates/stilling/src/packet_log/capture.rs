//! A shard's part of the packet log: encodes its datagrams into buffers and passes them to the thread.

use std::net::SocketAddr;
use std::sync::Arc;

use stilling_engine::{DatagramPath, PassedDatagram};
use stilling_ring::{Receiver, Sender, Time, Wake};
use stilling_wire::pcapng::{self, CapturedDatagram, Direction};

use super::counters::CaptureCounters;
use super::limits::{BUFFER_SIZE, FLUSH_INTERVAL, UNFILLED_BUFFERS_MAX};

/// Encoded datagrams.
#[derive(Debug, Default)]
pub(super) struct PacketBatch {
    pub(super) bytes: Vec<u8>,
    pub(super) count: u64,
}

/// See the [module](self). Dropping it passes the last datagrams on.
pub(crate) struct PacketCapture {
    /// The bound address of each socket, by its number.
    addresses: Vec<SocketAddr>,
    current: PacketBatch,
    /// Has room for all buffers of the shard.
    filled: Sender<PacketBatch>,
    empty: Receiver<PacketBatch>,
    wake: Arc<Wake>,
    counters: Arc<CaptureCounters>,
}

impl PacketCapture {
    pub(super) fn new(
        filled: Sender<PacketBatch>,
        empty: Receiver<PacketBatch>,
        wake: Arc<Wake>,
        counters: Arc<CaptureCounters>,
    ) -> PacketCapture {
        let current = PacketBatch::default();
        PacketCapture { addresses: Vec::new(), current, filled, empty, wake, counters }
    }

    /// Sets the bound addresses of all listeners and datagram sockets of the shard, in order.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
    }

    /// Records a datagram of an internet socket.
    pub(crate) fn record(&mut self, unix_ns: u64, path: &DatagramPath, datagram: &PassedDatagram<'_>) {
        let Some(bound) = self.addresses.get(path.socket as usize) else { return };
        let local = SocketAddr::new(path.local.unwrap_or(bound.ip()), bound.port());
        let (from, to, direction) = match datagram.is_sent {
            true => (local, path.peer, Direction::Outbound),
            false => (path.peer, local, Direction::Inbound),
        };
        let payload = datagram.payload;
        let captured =
            CapturedDatagram { unix_ns, from, to, direction, payload, truncated: datagram.is_truncated };
        if self.current.bytes.len() + pcapng::datagram_size(&captured) > BUFFER_SIZE {
            self.flush();
        }
        if self.current.bytes.capacity() == 0 {
            let Some(empty) = self.empty.pop() else { return self.counters.dropped.add(1) };
            self.current = empty;
        }
        pcapng::write_datagram(&mut self.current.bytes, &captured);
        self.current.count += 1;
        self.counters.recorded.add(1);
    }

    /// Passes recorded datagrams to the thread at the end of a turn, unless it is behind: then the buffer is filled first.
    /// Returns when to call again at the latest.
    pub(crate) fn turn(&mut self, now: Time) -> Option<Time> {
        let waiting = self.filled.pushed() - self.filled.popped();
        if waiting < UNFILLED_BUFFERS_MAX {
            self.flush();
        }
        (self.current.count > 0).then(|| now.after(FLUSH_INTERVAL))
    }

    pub(super) fn flush(&mut self) {
        if self.current.count == 0 {
            return;
        }
        if self.filled.push(std::mem::take(&mut self.current)).is_ok() {
            self.filled.publish();
            self.wake.notify();
        }
    }
}

impl Drop for PacketCapture {
    fn drop(&mut self) {
        self.flush();
    }
}

impl std::fmt::Debug for PacketCapture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketCapture").field("counters", &self.counters).finish_non_exhaustive()
    }
}
