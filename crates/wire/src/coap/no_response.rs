//! Values of `No-Response` (RFC 7967 §2.1).

use super::code::Code;

/// The classes of responses that a client does not want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoResponse(u8);

impl NoResponse {
    /// Decodes an option's value of at most one byte; without a byte all responses are wanted.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self(bytes.first().copied().unwrap_or_default())
    }

    /// Whether the client does not want a response with this code. The bit of class `n` is `n - 1`.
    #[must_use]
    pub const fn suppresses(self, code: Code) -> bool {
        match code.class() {
            0 => false,
            class => self.0 >> (class - 1) & 1 != 0,
        }
    }
}
