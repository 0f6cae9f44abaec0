//! Messages that identify their publisher and prove that they are complete.

use std::fmt;

use crate::SplitMix64;

/// Most bytes of an ordinary message after its name.
const PADDING_MAX: u64 = 1500;

/// Most bytes of a long message after its name.
const LONG_MAX: u64 = 7000;

/// Publisher and number of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MessageName {
    pub(super) publisher: u32,
    pub(super) message: u32,
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of {}", self.message, self.publisher)
    }
}

impl MessageName {
    /// Payload of the message: its name, and a text that differs per name.
    pub(super) fn payload(self) -> Vec<u8> {
        let mut random = SplitMix64::new(u64::from(self.publisher) << 32 | u64::from(self.message));
        let most = if random.chance(50) { LONG_MAX } else { PADDING_MAX };
        let filling = random.below(most);
        let mut text = format!("{} {} ", self.publisher, self.message).into_bytes();
        let word = random.bits();
        text.extend((0..filling).map(|at| b'a' + ((word.rotate_left(at as u32) ^ at) % 26) as u8));
        text
    }

    /// The name in a payload; `None` if it has none or is incomplete.
    pub(super) fn of(payload: &[u8]) -> Option<MessageName> {
        let head = &payload[..payload.len().min(32)];
        let mut words = head.split(|&byte| byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let name = MessageName { publisher: number()?, message: number()? };
        (name.payload() == payload).then_some(name)
    }

    /// Number of the stream it is published to.
    pub(super) fn stream(self) -> usize {
        let draw =
            SplitMix64::new(u64::from(self.publisher).rotate_left(40) ^ u64::from(self.message)).below(10);
        match draw {
            // A publisher sends mostly to one stream.
            0..8 => self.publisher as usize % 2,
            8 => 1 - self.publisher as usize % 2,
            _ => MEMORY,
        }
    }
}

/// Streams: two on disk, one in memory, one without storage.
pub(super) const STREAMS: [&str; 4] = ["events", "orders", "cache", "live"];

/// Number of streams on disk, which come first.
pub(super) const ON_DISK: usize = 2;

pub(super) const MEMORY: usize = 2;

pub(super) const UNSTORED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_identifies_its_message_and_every_change_is_detected() {
        let name = MessageName { publisher: 3, message: 17 };
        let payload = name.payload();
        assert_eq!(MessageName::of(&payload), Some(name));
        assert_eq!(MessageName::of(&payload[..payload.len() - 1]), None);
        let mut changed = payload.clone();
        changed[5] ^= 1;
        assert_eq!(MessageName::of(&changed), None);
        assert_eq!(MessageName::of(b""), None);
    }
}
