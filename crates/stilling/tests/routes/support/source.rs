//! Sources of streamed responses: with checkable bytes, fed by the test, or counted.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes that differ from their neighbours, at any offset.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// A source that returns what the test sends, when it is sent. It ends when the sender is dropped.
pub(crate) struct ChannelSource {
    pieces: Receiver<io::Result<Vec<u8>>>,
    rest: Vec<u8>,
}

/// A sender and its source.
pub(crate) fn channel_source() -> (Sender<io::Result<Vec<u8>>>, ChannelSource) {
    let (source_sender, pieces) = channel();
    (source_sender, ChannelSource { pieces, rest: Vec::new() })
}

impl Read for ChannelSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            self.rest = piece?;
        }
        let count = self.rest.len().min(into.len());
        into[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

/// A source of `left` equal bytes; existing ones are counted in `alive`.
pub(crate) struct CountedSource {
    left: u64,
    alive: Arc<AtomicUsize>,
}

impl CountedSource {
    pub(crate) fn new(left: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        CountedSource { left, alive: Arc::clone(alive) }
    }
}

impl Read for CountedSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        into[..count].fill(b'w');
        self.left -= count as u64;
        Ok(count)
    }
}

impl Drop for CountedSource {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}
