//! State of a message body in a decoder, for every framing.

use super::chunked::{BodyPiece, ChunkedDecoder};
use super::error::HttpDecodeError;

/// Remaining part of a body. A message without a body has no `BodyState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// Remaining bytes, at least one.
    Sized(u64),
    Chunked(ChunkedDecoder),
    /// Everything up to the end of the input; responses only.
    UntilClose,
    /// All bytes have been returned, the end event has not.
    Ended,
}

impl BodyState {
    #[inline]
    pub(crate) fn step<'a>(
        &mut self,
        body_size_max: u64,
        input: &'a [u8],
    ) -> Result<(usize, BodyPiece<'a>), HttpDecodeError> {
        match self {
            Self::Ended => Ok((0, BodyPiece::End)),
            Self::Chunked(chunked) => chunked.step(body_size_max, input),
            _ if input.is_empty() => Ok((0, BodyPiece::More)),
            Self::UntilClose => Ok((input.len(), BodyPiece::Data(input))),
            Self::Sized(remaining) => {
                let length = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len());
                *remaining -= length as u64;
                if *remaining == 0 {
                    *self = Self::Ended;
                }
                Ok((length, BodyPiece::Data(&input[..length])))
            }
        }
    }
}
