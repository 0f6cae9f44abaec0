//! Tokens, which match responses to requests (RFC 7252 §5.3.1).

use super::limits::TOKEN_SIZE_MAX;

/// A token of up to 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token {
    // Bytes beyond `size` are 0, so that equal tokens have equal fields.
    bytes: [u8; TOKEN_SIZE_MAX],
    size: u8,
}

impl Token {
    /// The token without bytes.
    pub const EMPTY: Self = Self { bytes: [0; TOKEN_SIZE_MAX], size: 0 };

    /// Returns the token, or `None` if it is too long.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut token = Self { size: u8::try_from(bytes.len()).ok()?, ..Self::EMPTY };
        token.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(token)
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.size()]
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size as usize
    }
}
