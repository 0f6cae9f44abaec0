//! Values of the format `uint` (RFC 7252 §3.2): big-endian, in as few bytes as possible; 0 has none.

/// Bytes of the longest value.
const SIZE_MAX: usize = 4;

/// Returns a value; `None` if it exceeds 32 bits. Leading zeros are accepted, as RFC 7252 §3.2 requires.
#[must_use]
#[inline]
pub fn decode_uint(bytes: &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for &byte in bytes {
        if value >> 24 != 0 {
            return None;
        }
        value = value << 8 | u32::from(byte);
    }
    Some(value)
}

/// An encoded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UintValue {
    bytes: [u8; SIZE_MAX],
    first: u8,
}

impl UintValue {
    /// Returns the shortest encoding.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self { bytes: value.to_be_bytes(), first: (value.leading_zeros() / 8) as u8 }
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.first)..]
    }
}
