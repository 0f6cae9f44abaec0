//! Tcl's own encoding of text: UTF-8, but U+0000 is two bytes, and in Tcl 8.6 a character beyond U+FFFF is a surrogate
//! pair of three bytes each.

use std::borrow::Cow;

/// U+0000.
const ZERO: [u8; 2] = [0xc0, 0x80];

/// The first byte of a surrogate.
const SURROGATE_FIRST_BYTE: u8 = 0xed;

/// Text from Tcl. What is no text at all becomes U+FFFD.
pub(super) fn from_internal(mut bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    while !bytes.is_empty() {
        let valid = match std::str::from_utf8(bytes) {
            Ok(rest) => rest.len(),
            Err(error) => error.valid_up_to(),
        };
        let (start, rest) = bytes.split_at(valid);
        text.push_str(&String::from_utf8_lossy(start));
        let (character, len) = if rest.is_empty() { break } else { decode_special(rest) };
        text.push(character);
        bytes = &rest[len..];
    }
    Cow::Owned(text)
}

/// The character at the start of bytes that are no UTF-8, and its length.
fn decode_special(bytes: &[u8]) -> (char, usize) {
    if bytes.starts_with(&ZERO) {
        return ('\0', ZERO.len());
    }
    let units = surrogate(bytes).zip(bytes.get(3..).and_then(surrogate));
    let pair = units.and_then(|(high, low)| char::decode_utf16([high, low]).next()?.ok());
    pair.map_or((char::REPLACEMENT_CHARACTER, 1), |character| (character, 6))
}

/// The surrogate at the start of these bytes.
fn surrogate(bytes: &[u8]) -> Option<u16> {
    let &[SURROGATE_FIRST_BYTE, second @ 0xa0..=0xbf, third @ 0x80..=0xbf, ..] = bytes else { return None };
    Some(0xd000 | u16::from(second & 0x3f) << 6 | u16::from(third & 0x3f))
}

/// Text for Tcl.
pub(super) fn to_internal(text: &str, is_tcl_9: bool) -> Cow<'_, [u8]> {
    let is_special = |character: char| character == '\0' || !is_tcl_9 && character > '\u{ffff}';
    if !text.contains(is_special) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(2 * text.len());
    for character in text.chars() {
        if character == '\0' {
            bytes.extend(ZERO);
        } else if is_special(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let (second, third) = ((*unit >> 6 & 0x3f) as u8, (*unit & 0x3f) as u8);
                bytes.extend([SURROGATE_FIRST_BYTE, 0x80 | second, 0x80 | third]);
            }
        } else {
            bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_the_same_after_both_ways() {
        for text in ["", "plain", "ü€", "a\0b", "\0", "😀", "x😀\0ü", "\u{10000}\u{10ffff}\u{ffff}"] {
            for is_tcl_9 in [false, true] {
                assert_eq!(from_internal(&to_internal(text, is_tcl_9)), text);
            }
        }
        assert_eq!(*to_internal("\0😀", false), *b"\xc0\x80\xed\xa0\xbd\xed\xb8\x80");
        assert_eq!(*to_internal("😀", true), *"😀".as_bytes());
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        for bytes in [&b"\xff"[..], b"\xc0", b"\xed\xa0\xbd", b"\xed\xa0\xbdx", b"\xed\xb8\x80\xed\xa0\xbd"] {
            assert!(from_internal(bytes).starts_with(char::REPLACEMENT_CHARACTER), "{bytes:x?}");
        }
        assert_eq!(from_internal(b"a\xffb\xc0\x80"), "a\u{fffd}b\0");
    }
}
