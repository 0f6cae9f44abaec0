//! Receiving ahead of the script: the modes `flow-controlled` and `burst-detection` of IOCPSOCK.
//!
//! In `flow-controlled` mode one buffer of the channel's size is received ahead, and the next one when the script has
//! read it: a script that does not read closes the TCP window. In `burst-detection` mode as many buffers of 4 KiB are
//! received at once as bursts have needed lately, up to a cap; when bursts stop, the number falls back to one.

use std::collections::VecDeque;
use std::time::Duration;

use stilling_engine::Time;

use crate::special_pool::SPECIAL_POOL;

/// Bytes per buffer of the mode `burst-detection`.
pub(crate) const BURST_BUFFER_SIZE: usize = 4096;

/// Time from the last burst until only one buffer is received at once again; the number falls evenly.
const BURST_DECAY: Duration = Duration::from_secs(4);

/// A receive mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReceiveMode {
    /// Nothing is received ahead; bytes go from the socket into the channel's buffer.
    #[default]
    ZeroByte,
    /// One buffer of the channel's size is received ahead.
    FlowControlled,
    /// Several buffers are received ahead in bursts.
    BurstDetection {
        /// Buffers received at once, at most.
        cap: u32,
        /// Buffers that wait for the script, at most.
        buffers_max: u32,
    },
}

/// What was received ahead of the script.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    mode: ReceiveMode,
    /// Oldest first; never empty ones.
    buffers: VecDeque<Box<[u8]>>,
    /// Bytes of the oldest buffer that the script has read.
    consumed: usize,
    /// The end of the stream (0) or the error behind the buffers.
    end: Option<i32>,
    /// Buffers that the last burst needed.
    burst_size: u32,
    burst_at: Time,
}

/// The state of the mode `burst-detection`, in the order of its option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BurstState {
    pub(crate) cap: u32,
    pub(crate) in_use: u32,
    pub(crate) buffers_max: u32,
    pub(crate) pending: u32,
}

impl ReadAhead {
    pub(crate) fn new(mode: ReceiveMode) -> Self {
        ReadAhead {
            mode,
            buffers: VecDeque::new(),
            consumed: 0,
            end: None,
            burst_size: 1,
            burst_at: Time::ZERO,
        }
    }

    pub(crate) fn mode(&self) -> ReceiveMode {
        self.mode
    }

    /// Changes the mode; what was received ahead stays readable.
    pub(crate) fn set_mode(&mut self, mode: ReceiveMode) {
        self.mode = mode;
        self.burst_size = 1;
    }

    pub(crate) fn burst_state(&self, now: Time) -> Option<BurstState> {
        let ReceiveMode::BurstDetection { cap, buffers_max } = self.mode else { return None };
        let pending = self.buffers.len() as u32;
        Some(BurstState { cap, in_use: self.burst_size_at(now), buffers_max, pending })
    }

    /// Whether the script can read without the socket.
    pub(crate) fn has_input(&self) -> bool {
        !self.buffers.is_empty() || self.end.is_some()
    }

    /// Whether there is room to receive ahead.
    pub(crate) fn wants_more(&self) -> bool {
        self.end.is_none()
            && match self.mode {
                ReceiveMode::ZeroByte => false,
                ReceiveMode::FlowControlled => self.buffers.is_empty(),
                ReceiveMode::BurstDetection { buffers_max, .. } => self.buffers.len() < buffers_max as usize,
            }
    }

    /// Buffers received at once now: as many as the last burst needed, less for every moment since.
    fn burst_size_at(&self, now: Time) -> u32 {
        let since = now.since(self.burst_at).min(BURST_DECAY);
        let rest = (BURST_DECAY - since).as_millis() as u64;
        let above_one = u64::from(self.burst_size - 1) * rest / BURST_DECAY.as_millis() as u64;
        1 + above_one as u32
    }

    /// Receives ahead until the socket is empty, or as much as the mode permits. Errors are the system's numbers.
    pub(crate) fn fill(
        &mut self,
        now: Time,
        channel_buffer_size: usize,
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, i32>,
    ) {
        let (buffer_size, cap) = match self.mode {
            ReceiveMode::ZeroByte => return,
            ReceiveMode::FlowControlled => (channel_buffer_size, 1),
            ReceiveMode::BurstDetection { cap, .. } => (BURST_BUFFER_SIZE, cap),
        };
        let mut count = 0;
        let expected = self.burst_size_at(now);
        while count < cap && self.wants_more() {
            let mut buffer = vec![0; buffer_size];
            match receive(&mut buffer) {
                Ok(0) => self.end = Some(0),
                Ok(len) => {
                    let is_full = len == buffer_size;
                    buffer.truncate(len);
                    SPECIAL_POOL.add(len);
                    self.buffers.push_back(buffer.into_boxed_slice());
                    count += 1;
                    // A full buffer: the burst needs one more. Beyond the expected number, only a burst goes on.
                    if !is_full {
                        break;
                    }
                    if count >= expected {
                        (self.burst_size, self.burst_at) = ((count + 1).min(cap), now);
                    }
                }
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(error) => self.end = Some(error),
            }
        }
    }

    /// Moves received bytes to the script; `None`: there are none, read the socket.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Option<Result<usize, i32>> {
        let Some(buffer) = self.buffers.front() else {
            // The end repeats until the channel is closed.
            return self.end.map(|error| if error == 0 { Ok(0) } else { Err(error) });
        };
        let unread = &buffer[self.consumed..];
        let count = unread.len().min(into.len());
        into[..count].copy_from_slice(&unread[..count]);
        self.consumed += count;
        if self.consumed == buffer.len() {
            SPECIAL_POOL.remove(buffer.len());
            self.consumed = 0;
            self.buffers.pop_front();
            if self.buffers.is_empty() {
                self.buffers = VecDeque::new();
            }
        }
        Some(Ok(count))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        SPECIAL_POOL.remove(self.buffers.iter().map(|buffer| buffer.len()).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    /// A socket with this many bytes.
    fn socket(mut bytes: usize) -> impl FnMut(&mut [u8]) -> Result<usize, i32> {
        move |into| {
            if bytes == 0 {
                return Err(libc::EAGAIN);
            }
            let count = bytes.min(into.len());
            bytes -= count;
            Ok(count)
        }
    }

    const BURST: ReceiveMode = ReceiveMode::BurstDetection { cap: 10, buffers_max: 6 };

    /// Row 3.23: unread buffers never exceed their maximum, whatever arrives.
    #[test]
    fn buffers_that_wait_are_bounded() {
        let mut ahead = ReadAhead::new(BURST);
        for round in 0..100 {
            ahead.fill(at(round), 4096, socket(usize::MAX));
            assert_eq!(ahead.burst_state(at(round)).unwrap().pending, 6);
        }
        assert!(!ahead.wants_more());
        assert_eq!(ahead.read(&mut [0; 4096]), Some(Ok(4096)));
        assert!(ahead.wants_more());
    }

    /// Row 3.22, 3.24: the number of receives at once grows in a burst, and is one again within five seconds.
    #[test]
    fn bursts_grow_and_decay() {
        let mut ahead = ReadAhead::new(ReceiveMode::BurstDetection { cap: 10, buffers_max: 100 });
        assert_eq!(ahead.burst_state(at(0)).unwrap().in_use, 1);
        ahead.fill(at(0), 4096, socket(100_000));
        assert_eq!(ahead.burst_state(at(0)).unwrap().in_use, 10);
        assert!(ahead.burst_state(at(2_000)).unwrap().in_use < 10);
        assert_eq!(ahead.burst_state(at(4_999)).unwrap().in_use, 1);
    }

    /// Row 3.21: in flow-controlled mode the next buffer is received only when the script has read the last one.
    #[test]
    fn one_buffer_is_received_ahead_in_flow_controlled_mode() {
        let mut ahead = ReadAhead::new(ReceiveMode::FlowControlled);
        ahead.fill(at(0), 100, socket(1000));
        ahead.fill(at(0), 100, socket(1000));
        assert!(!ahead.wants_more());
        assert_eq!(ahead.read(&mut [0; 60]), Some(Ok(60)));
        assert!(!ahead.wants_more());
        assert_eq!(ahead.read(&mut [0; 60]), Some(Ok(40)));
        assert_eq!(ahead.read(&mut [0; 60]), None);
        assert!(ahead.wants_more());
    }

    #[test]
    fn the_end_follows_the_bytes_and_repeats() {
        let mut ahead = ReadAhead::new(BURST);
        let mut chunks = vec![0, 3].into_iter().rev();
        ahead.fill(at(0), 4096, |_| Ok(chunks.next().unwrap()));
        ahead.fill(at(0), 4096, |_| Ok(0));
        assert_eq!(ahead.read(&mut [0; 9]), Some(Ok(3)));
        for _ in 0..3 {
            assert_eq!(ahead.read(&mut [0; 9]), Some(Ok(0)));
        }
    }
}
