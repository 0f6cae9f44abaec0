//! Content of payloads: client, counter, and a filling derived from both.
//!
//! ```text
//!   client, 4 hex digits │ counter, 12 hex digits │ filling: `size - 16` bytes of one long row of letters,
//!                        │                        │ from an offset derived from client and counter
//! ```
//!
//! Creating a payload is a copy and checking one a comparison, so that the generator costs less than the server. All
//! bytes are letters and digits, so that a payload may also be a line of a file.

/// Bytes before the filling.
pub(super) const HEAD_SIZE: usize = 16;

const CLIENT_DIGITS: usize = 4;

/// Number of offsets at which a filling may begin; a prime, so that successive messages and clients differ.
const OFFSETS: usize = 251;

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Identity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PayloadId {
    /// The number of the client that sent it.
    pub client: u16,
    /// Number of earlier messages of the client; below 2^48.
    pub counter: u64,
}

/// The payloads of one run, all of one size.
#[derive(Clone, Debug)]
pub struct Pattern {
    size: usize,
    row: Vec<u8>,
}

impl Pattern {
    /// Creates the pattern for payloads of `size` bytes, at least 16.
    pub fn new(size: u32) -> Pattern {
        let size = (size as usize).max(HEAD_SIZE);
        // A linear congruential generator; its high bits are the random ones.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let letter = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            LETTERS[(state >> 58) as usize]
        };
        Pattern { size, row: std::iter::repeat_with(letter).take(size - HEAD_SIZE + OFFSETS).collect() }
    }

    /// Bytes of a payload.
    pub fn size(&self) -> usize {
        self.size
    }

    fn filling(&self, id: PayloadId) -> &[u8] {
        let offset = (id.counter.wrapping_add(u64::from(id.client) * 31) % OFFSETS as u64) as usize;
        &self.row[offset..offset + self.size - HEAD_SIZE]
    }

    /// Appends the payload of a message.
    pub fn write(&self, id: PayloadId, out: &mut Vec<u8>) {
        let number = u64::from(id.client) << 48 | id.counter & ((1 << 48) - 1);
        let digits: [u8; HEAD_SIZE] = std::array::from_fn(|at| HEX[(number >> (60 - 4 * at)) as usize & 15]);
        out.extend_from_slice(&digits);
        out.extend_from_slice(self.filling(id));
    }

    /// Returns the message of a payload if every byte is right.
    pub fn check(&self, payload: &[u8]) -> Option<PayloadId> {
        let (head, filling) = payload.split_at_checked(HEAD_SIZE)?;
        let id = PayloadId {
            client: number(&head[..CLIENT_DIGITS])? as u16,
            counter: number(&head[CLIENT_DIGITS..])?,
        };
        (payload.len() == self.size && filling == self.filling(id)).then_some(id)
    }
}

/// Parses lower-case hexadecimal digits.
fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_names_its_message_and_every_other_byte_is_noticed() {
        for size in [16, 17, 128, 4096] {
            let pattern = Pattern::new(size);
            for id in
                [PayloadId { client: 0, counter: 0 }, PayloadId { client: u16::MAX, counter: (1 << 48) - 1 }]
            {
                let mut payload = Vec::new();
                pattern.write(id, &mut payload);
                assert_eq!((payload.len(), pattern.check(&payload)), (size as usize, Some(id)));
                assert!(payload.iter().all(u8::is_ascii_graphic));
                for at in 0..payload.len() {
                    payload[at] ^= 1;
                    assert_ne!(pattern.check(&payload), Some(id), "byte {at} of {size}");
                    payload[at] ^= 1;
                }
                assert_eq!(pattern.check(&payload[1..]), None);
                payload.push(b'A');
                assert_eq!(pattern.check(&payload), None);
            }
        }
    }

    #[test]
    fn payloads_with_adjacent_numbers_differ() {
        let pattern = Pattern::new(64);
        let of = |client, counter| {
            let mut payload = Vec::new();
            pattern.write(PayloadId { client, counter }, &mut payload);
            payload
        };
        let mixed = [&of(3, 7)[..HEAD_SIZE], &of(3, 8)[HEAD_SIZE..]].concat();
        assert_eq!(pattern.check(&mixed), None);
        let mixed = [&of(3, 7)[..HEAD_SIZE], &of(4, 7)[HEAD_SIZE..]].concat();
        assert_eq!(pattern.check(&mixed), None);
    }
}
