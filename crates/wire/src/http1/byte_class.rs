//! Byte classes, and searches. A `*_end` function returns the offset at or after `from` of the first byte outside its
//! class, or the length.

use crate::swar::{HIGH, below, equal, find, splat};

const TOKEN: u8 = 1;
const HOST: u8 = 2;
const VALUE: u8 = 4;

const CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        // RFC 9110 §5.6.2: tchar.
        if b.is_ascii_alphanumeric() || is_one_of(b, b"!#$%&'*+-.^_`|~") {
            table[byte] |= TOKEN;
        }
        // RFC 3986 §3.2.2: reg-name; the caller checks pct-encoded.
        if b.is_ascii_alphanumeric() || is_one_of(b, b"-._~!$&'()*+,;=") {
            table[byte] |= HOST;
        }
        // RFC 9110 §5.5: field-vchar (VCHAR or obs-text), space and tab.
        if b == b'\t' || (b >= 0x20 && b != 0x7f) {
            table[byte] |= VALUE;
        }
        byte += 1;
    }
    table
}

const fn is_one_of(byte: u8, set: &[u8]) -> bool {
    let mut i = 0;
    while i < set.len() {
        if set[i] == byte {
            return true;
        }
        i += 1;
    }
    false
}

pub(crate) const fn is_token(byte: u8) -> bool {
    CLASSES[byte as usize] & TOKEN != 0
}

pub(crate) const fn is_host(byte: u8) -> bool {
    CLASSES[byte as usize] & HOST != 0
}

pub(crate) const fn is_value(byte: u8) -> bool {
    CLASSES[byte as usize] & VALUE != 0
}

/// RFC 9112 §3.2 allows what RFC 3986 allows; like other servers, this parser accepts any visible ASCII except '#':
/// clients must not send a fragment, and two parsers could disagree about the path.
pub(crate) const fn is_target(byte: u8) -> bool {
    byte > 0x20 && byte < 0x7f && byte != b'#'
}

pub(crate) const fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Marks exactly the lanes that hold an ASCII letter or '-'.
const fn letters_and_dashes(word: u64) -> u64 {
    // Seven bits plus less than 0x80 never carry into the next lane.
    let lower = (word | splat(0x20)) & !HIGH;
    let from_a = lower + splat(0x80 - b'a');
    let past_z = lower + splat(0x80 - b'z' - 1);
    let not_dash = ((word ^ splat(b'-')) & !HIGH) + splat(0x7f);
    ((from_a & !past_z) | !not_dash) & !word & HIGH
}

#[inline(always)]
pub(crate) fn token_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    loop {
        // Nearly all names are letters and dashes; any other token character costs one table lookup.
        at = find(bytes, at, |w| !letters_and_dashes(w) & HIGH, |b| !b.is_ascii_alphabetic() && b != b'-');
        match bytes.get(at) {
            Some(&byte) if is_token(byte) => at += 1,
            _ => return at,
        }
    }
}

#[inline(always)]
pub(crate) fn host_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() && is_host(bytes[at]) {
        at += 1;
    }
    at
}

#[inline(always)]
pub(crate) fn target_end(bytes: &[u8], from: usize) -> usize {
    let stops = |w| below(w, 0x21) | equal(w, 0x7f) | equal(w, b'#') | (w & HIGH);
    find(bytes, from, stops, |b| !is_target(b))
}

/// Offset of the first control byte (tab included) at or after `from`, or the length.
#[inline(always)]
pub(crate) fn value_end(bytes: &[u8], from: usize) -> usize {
    find(bytes, from, |w| below(w, 0x20) | equal(w, 0x7f), |b| b < 0x20 || b == 0x7f)
}

/// Offset of the first `wanted` at or after `from`.
#[inline(always)]
pub(crate) fn position(bytes: &[u8], from: usize, wanted: u8) -> Option<usize> {
    let at = find(bytes, from, |w| equal(w, wanted), |b| b == wanted);
    (at < bytes.len()).then_some(at)
}

/// `bytes` without spaces and tabs at both ends (RFC 9110 §5.6.3).
#[inline(always)]
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_blank(*first)
    {
        bytes = rest;
    }
    trim_end(bytes)
}

#[inline(always)]
pub(crate) fn trim_end(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., last] = bytes
        && is_blank(*last)
    {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_and_byte_searches_stop_at_the_same_byte() {
        for stop in 0..=255u8 {
            for at in 0..20 {
                for next in [0, b'a', stop, 0x1f, 0x80, 0xff] {
                    let mut bytes = [b'a'; 20];
                    bytes[at] = stop;
                    if at + 1 < bytes.len() {
                        bytes[at + 1] = next;
                    }
                    let first = |bad: fn(u8) -> bool| bytes.iter().position(|&b| bad(b)).unwrap_or(20);
                    assert_eq!(value_end(&bytes, 0), first(|b| !is_value(b) || b == b'\t'));
                    assert_eq!(target_end(&bytes, 0), first(|b| !is_target(b)));
                    assert_eq!(token_end(&bytes, 0), first(|b| !is_token(b)));
                    assert_eq!(host_end(&bytes, 0), first(|b| !is_host(b)));
                    assert_eq!(position(&bytes, 0, stop), bytes.iter().position(|&b| b == stop));
                }
            }
        }
    }
}
