//! Validation of UTF-8 (RFC 3629) in pieces that end anywhere, also inside a sequence.

/// Validates a text piece by piece; an invalid byte is detected in the piece that contains it. 4 bytes of plain state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Utf8Validator {
    /// The bytes of an incomplete sequence at the end of the last piece.
    pending: [u8; 3],
    pending_len: u8,
}

/// A byte that no valid text has at this offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidUtf8 {
    /// Offset in the piece.
    pub(crate) at: usize,
    pub(crate) found: u8,
}

impl Utf8Validator {
    /// Before the first piece.
    pub(crate) const EMPTY: Self = Self { pending: [0; 3], pending_len: 0 };

    /// Validates the next piece.
    #[inline]
    pub(crate) fn check(&mut self, piece: &[u8]) -> Result<(), InvalidUtf8> {
        let done = if self.pending_len == 0 { 0 } else { self.complete_pending(piece)? };
        let Err(error) = str::from_utf8(&piece[done..]) else { return Ok(()) };
        let start = done + error.valid_up_to();
        let Some(length) = error.error_len() else {
            let rest = &piece[start..];
            self.pending[..rest.len()].copy_from_slice(rest);
            self.pending_len = rest.len() as u8;
            return Ok(());
        };
        // Behind a possible first byte, the byte that ends the invalid prefix is at fault.
        let at = if matches!(piece[start], 0xc2..=0xf4) { start + length } else { start };
        Err(InvalidUtf8 { at, found: piece[at] })
    }

    /// Whether the text may end here.
    #[inline]
    pub(crate) fn is_complete(self) -> bool {
        self.pending_len == 0
    }

    /// Adds bytes of `piece` to the pending sequence until it is complete; returns their number.
    #[cold]
    fn complete_pending(&mut self, piece: &[u8]) -> Result<usize, InvalidUtf8> {
        for (at, &found) in piece.iter().enumerate() {
            let length = usize::from(self.pending_len);
            let mut sequence = [0; 4];
            sequence[..length].copy_from_slice(&self.pending[..length]);
            sequence[length] = found;
            match str::from_utf8(&sequence[..=length]) {
                Ok(_) => {
                    self.pending_len = 0;
                    return Ok(at + 1);
                }
                // At most three bytes are an incomplete sequence.
                Err(error) if error.error_len().is_none() => {
                    self.pending[length] = found;
                    self.pending_len += 1;
                }
                Err(_) => return Err(InvalidUtf8 { at, found }),
            }
        }
        Ok(piece.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether a text is complete, or the offset and value of the offending byte.
    type Verdict = Result<bool, (usize, u8)>;

    fn in_pieces(bytes: &[u8], size: usize) -> Verdict {
        let mut validator = Utf8Validator::EMPTY;
        for (number, piece) in bytes.chunks(size).enumerate() {
            validator.check(piece).map_err(|error| (number * size + error.at, error.found))?;
        }
        Ok(validator.is_complete())
    }

    #[test]
    fn the_first_byte_that_no_text_continues_with_is_at_fault() {
        let table: [(&[u8], Verdict); 12] = [
            (b"", Ok(true)),
            ("κόσμε𐀀\u{10ffff}".as_bytes(), Ok(true)),
            (b"a\xce", Ok(false)),
            (b"\xf4\x8f\xbf", Ok(false)),
            (b"a\x80", Err((1, 0x80))),
            (b"\xc0\xaf", Err((0, 0xc0))),
            (b"\xe0\x80\xaf", Err((1, 0x80))),
            (b"\xed\xa0\x80", Err((1, 0xa0))),
            (b"\xf4\x90\x80\x80", Err((1, 0x90))),
            (b"\xf0\x9d\x84a", Err((3, b'a'))),
            (b"\xe2\x82a", Err((2, b'a'))),
            (b"\xff", Err((0, 0xff))),
        ];
        for (bytes, expected) in table {
            for size in 1..=5 {
                assert_eq!(in_pieces(bytes, size), expected, "{} in pieces of {size}", bytes.escape_ascii());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        /// The verdict of the standard library on the whole, and the same offset for every size of pieces.
        #[test]
        fn pieces_have_the_verdict_of_the_whole(
            text in "[a-zé€𐀀]{0,8}",
            change in proptest::option::of((any::<proptest::sample::Index>(), any::<u8>())),
            size in 1..9_usize,
        ) {
            let mut bytes = text.into_bytes();
            if let Some((at, byte)) = change && !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let verdict = in_pieces(&bytes, size);
            prop_assert_eq!(verdict, in_pieces(&bytes, bytes.len().max(1)));
            prop_assert_eq!(verdict == Ok(true), str::from_utf8(&bytes).is_ok());
            if let Err((at, _)) = verdict {
                let before = str::from_utf8(&bytes[..at]);
                prop_assert!(before.is_ok() || before.is_err_and(|error| error.error_len().is_none()));
                prop_assert!(str::from_utf8(&bytes[..=at]).is_err_and(|error| error.error_len().is_some()));
            }
        }
    }
}
