//! The receive buffers of one driver: one allocation, lent out buffer by buffer.
//!
//! ```text
//!  memory   │ buffer 0 │ buffer 1 │ … │ buffer 511 │    touched only when used
//!  free     [ …, 7, 2 ]  last in, first out: the last released buffer is still in the cache
//! ```

use std::net::{IpAddr, SocketAddr};

use crate::driver::{BufferId, Datagram};
use crate::limits::{RECEIVE_BUFFER_SIZE, RECEIVE_BUFFERS};

#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramMetadata {
    pub(super) from: SocketAddr,
    pub(super) local: Option<IpAddr>,
    pub(super) len: u32,
    pub(super) truncated: bool,
}

#[derive(Debug)]
pub(super) struct PollBuffers {
    memory: Box<[u8]>,
    free: Vec<u16>,
    lent: Box<[bool]>,
    /// By buffer; empty until there is a datagram socket.
    datagram_metadata: Vec<DatagramMetadata>,
}

impl PollBuffers {
    pub(super) fn new() -> Self {
        PollBuffers {
            memory: vec![0; RECEIVE_BUFFERS as usize * RECEIVE_BUFFER_SIZE].into_boxed_slice(),
            free: (0..RECEIVE_BUFFERS).rev().collect(),
            lent: vec![false; RECEIVE_BUFFERS as usize].into_boxed_slice(),
            datagram_metadata: Vec::new(),
        }
    }

    pub(super) fn reserve_datagram_metadata(&mut self) {
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let blank = DatagramMetadata { from: unspecified, local: None, len: 0, truncated: false };
        self.datagram_metadata.resize(RECEIVE_BUFFERS as usize, blank);
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn lent(&self) -> usize {
        RECEIVE_BUFFERS as usize - self.free.len()
    }

    /// The buffer that `take` returns after `ahead` other calls.
    pub(super) fn upcoming(&self, ahead: usize) -> Option<BufferId> {
        let at = self.free.len().checked_sub(ahead + 1)?;
        Some(BufferId(self.free[at]))
    }

    pub(super) fn take(&mut self) -> Option<BufferId> {
        let id = self.free.pop()?;
        self.lent[id as usize] = true;
        Some(BufferId(id))
    }

    /// Returns a buffer. Panics if it is not lent: it would get two owners.
    pub(super) fn release(&mut self, buffer: BufferId) {
        let lent = &mut self.lent[buffer.0 as usize];
        assert!(*lent, "buffer {} was released but not lent", buffer.0);
        *lent = false;
        self.free.push(buffer.0);
    }

    pub(super) fn bytes(&self, buffer: BufferId) -> &[u8] {
        let start = buffer.0 as usize * RECEIVE_BUFFER_SIZE;
        &self.memory[start..start + RECEIVE_BUFFER_SIZE]
    }

    pub(super) fn bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        let start = buffer.0 as usize * RECEIVE_BUFFER_SIZE;
        &mut self.memory[start..start + RECEIVE_BUFFER_SIZE]
    }

    pub(super) fn set_datagram_metadata(&mut self, buffer: BufferId, metadata: DatagramMetadata) {
        self.datagram_metadata[buffer.0 as usize] = metadata;
    }

    pub(super) fn datagram(&self, buffer: BufferId) -> Datagram<'_> {
        let DatagramMetadata { from, local, len, truncated } = self.datagram_metadata[buffer.0 as usize];
        Datagram { from, local, payload: &self.bytes(buffer)[..len as usize], truncated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_released_last_is_lent_first() {
        let mut buffers = PollBuffers::new();
        let (first, second) = (buffers.take().unwrap(), buffers.take().unwrap());
        assert_ne!(first, second);
        buffers.release(second);
        buffers.release(first);
        assert_eq!((buffers.upcoming(0), buffers.upcoming(1)), (Some(first), Some(second)));
        assert_eq!((buffers.take(), buffers.take()), (Some(first), Some(second)));
    }

    #[test]
    fn every_buffer_can_be_lent_and_no_more() {
        let mut buffers = PollBuffers::new();
        let mut seen: Vec<_> = std::iter::from_fn(|| buffers.take()).collect();
        assert_eq!((buffers.lent(), buffers.free()), (RECEIVE_BUFFERS as usize, 0));
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), RECEIVE_BUFFERS as usize);
        assert_eq!(buffers.upcoming(0), None);
    }

    #[test]
    #[should_panic(expected = "released but not lent")]
    fn a_buffer_released_twice_is_noticed() {
        let mut buffers = PollBuffers::new();
        let buffer = buffers.take().unwrap();
        buffers.release(buffer);
        buffers.release(buffer);
    }
}
