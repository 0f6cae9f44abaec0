//! Receive buffers: lent to the shard with an event, returned by `release`.

use std::net::{IpAddr, SocketAddr};

use stilling_engine::driver::{BufferId, Datagram};
use stilling_engine::limits::RECEIVE_BUFFER_SIZE;

#[derive(Debug)]
pub(super) struct SimBufferPool {
    buffers: Vec<SimBuffer>,
    /// Last in, first out, like the real drivers (for the cache): a buffer used after its release is soon overwritten.
    free: Vec<u16>,
    lent: usize,
    releases: u64,
}

#[derive(Debug, Default)]
struct SimBuffer {
    /// Allocated at first use, then kept.
    bytes: Box<[u8]>,
    from: Option<SocketAddr>,
    local: Option<IpAddr>,
    /// Length of the datagram; bytes beyond the buffer are lost.
    len: usize,
    state: SimBufferState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SimBufferState {
    #[default]
    Free,
    /// Filled by the driver, not yet lent to the shard.
    Filled,
    Lent,
}

impl SimBufferPool {
    pub(super) fn new(count: u16) -> Self {
        let buffers = (0..count).map(|_| SimBuffer::default()).collect();
        SimBufferPool { buffers, free: (0..count).rev().collect(), lent: 0, releases: 0 }
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<(BufferId, &mut [u8])> {
        let number = self.free.pop()?;
        let buffer = &mut self.buffers[usize::from(number)];
        if buffer.bytes.is_empty() {
            buffer.bytes = vec![0; RECEIVE_BUFFER_SIZE].into_boxed_slice();
        }
        buffer.state = SimBufferState::Filled;
        Some((BufferId(number), &mut buffer.bytes))
    }

    pub(super) fn fill(&mut self, id: BufferId, from: SocketAddr, local: Option<IpAddr>, payload: &[u8]) {
        let buffer = &mut self.buffers[usize::from(id.0)];
        let stored_len = payload.len().min(buffer.bytes.len());
        buffer.bytes[..stored_len].copy_from_slice(&payload[..stored_len]);
        (buffer.from, buffer.local, buffer.len) = (Some(from), local, payload.len());
    }

    pub(super) fn lend(&mut self, id: BufferId) {
        self.buffers[usize::from(id.0)].state = SimBufferState::Lent;
        self.lent += 1;
    }

    /// Frees a filled buffer after its event was discarded.
    pub(super) fn reclaim(&mut self, id: BufferId) {
        self.buffers[usize::from(id.0)].state = SimBufferState::Free;
        self.free.push(id.0);
    }

    pub(super) fn release(&mut self, id: BufferId) {
        let buffer = self.buffers.get_mut(usize::from(id.0));
        let lent = buffer.is_some_and(|buffer| std::mem::take(&mut buffer.state) == SimBufferState::Lent);
        assert!(lent, "contract broken by the shard: buffer {} released although it is not lent", id.0);
        self.lent -= 1;
        self.releases += 1;
        self.free.push(id.0);
        if stilling_ring::planted!("double-freed buffer") && self.releases.is_multiple_of(8) {
            self.free.push(id.0);
        }
    }

    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    pub(super) fn bytes(&self, id: BufferId) -> &[u8] {
        &self.borrowed(id).bytes
    }

    pub(super) fn datagram(&self, id: BufferId) -> Datagram<'_> {
        let buffer = self.borrowed(id);
        let stored_len = buffer.len.min(buffer.bytes.len());
        let from = buffer.from.expect("contract broken by the shard: the buffer holds no datagram");
        Datagram {
            from,
            local: buffer.local,
            payload: &buffer.bytes[..stored_len],
            truncated: buffer.len > stored_len,
        }
    }

    fn borrowed(&self, id: BufferId) -> &SimBuffer {
        let buffer = &self.buffers[usize::from(id.0)];
        let lent = buffer.state == SimBufferState::Lent;
        assert!(lent, "contract broken by the shard: buffer {} used although it is not lent", id.0);
        buffer
    }
}
