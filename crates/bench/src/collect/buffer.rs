//! Buffer of received, undecoded bytes.

use std::io::{self, Read};

use super::limits::READ_SIZE;

/// A receive buffer that grows only for items longer than a read.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Reads once; 0 is the end of the connection.
    pub(super) fn fill(&mut self, from: &mut impl Read) -> io::Result<usize> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < READ_SIZE {
            self.bytes.resize((self.end + READ_SIZE).next_power_of_two(), 0);
        }
        let count = from.read(&mut self.bytes[self.end..self.end + READ_SIZE])?;
        self.end += count;
        Ok(count)
    }
}

/// Returns whether the call may simply be repeated: no data or space yet, a timeout, or a signal.
pub(super) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unconsumed_bytes_stay_in_order_across_reads() {
        let mut buffer = ReceiveBuffer::default();
        let mut from: &[u8] = b"abc";
        assert_eq!(buffer.fill(&mut from).expect("it reads"), 3);
        buffer.consume(2);
        let mut from: &[u8] = b"def";
        buffer.fill(&mut from).expect("it reads");
        assert_eq!(buffer.unread(), b"cdef");
        buffer.consume(4);
        assert!(buffer.unread().is_empty() && buffer.fill(&mut from).expect("it reads") == 0);
    }
}
