//! The header of RFC 5424: `1 TIMESTAMP HOST APP PROCID MSGID STRUCTURED-DATA [MESSAGE]`, each a word or `-`.

use super::limits::WORD_SIZE_MAX;
use super::record::{SyslogFormat, SyslogRecord};
use super::timestamp;

/// RFC 5424 §6.4: the mark before a UTF-8 message.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses the part after the priority; `None` if it is not such a header.
pub(crate) fn parse(input: &[u8]) -> Option<SyslogRecord<'_>> {
    let rest = version(input)?;
    let (stamp, rest) = word(rest)?;
    let timestamp = present(stamp);
    if timestamp.is_some_and(|stamp| timestamp::rfc3339(stamp) != Some(stamp.len())) {
        return None;
    }
    let (host, rest) = word(rest)?;
    let (app, rest) = word(rest)?;
    let (procid, rest) = word(rest)?;
    let (msgid, rest) = last_word(rest)?;
    let header = SyslogRecord {
        format: SyslogFormat::Ietf,
        timestamp,
        host: present(host),
        app: present(app),
        procid: present(procid),
        msgid: present(msgid),
        ..SyslogRecord::plain(b"")
    };
    // Malformed structured data stay in the message.
    let (structured_data, rest) = match rest {
        [] => (None, rest),
        [b'-'] => (None, &[][..]),
        [b'-', b' ', rest @ ..] => (None, rest),
        _ => match structured_data_end(rest) {
            Some(end) => (Some(&rest[..end]), rest[end..].strip_prefix(b" ").unwrap_or(&rest[end..])),
            None => (None, rest),
        },
    };
    let message = rest.strip_prefix(BYTE_ORDER_MARK).unwrap_or(rest);
    Some(SyslogRecord { structured_data, message, ..header })
}

/// RFC 5424 §6.2.2: one to three digits without a leading zero. Only version 1 exists; every version is parsed alike.
fn version(input: &[u8]) -> Option<&[u8]> {
    let digits = input.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
    ((1..=3).contains(&digits) && input[0] != b'0' && input.get(digits) == Some(&b' '))
        .then(|| &input[digits + 1..])
}

/// Splits off a word of visible bytes and the blank after it.
fn word(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = input.iter().take(WORD_SIZE_MAX + 1).position(|&byte| !is_visible(byte))?;
    (end > 0 && input[end] == b' ').then(|| (&input[..end], &input[end + 1..]))
}

/// Splits off a word that may also end the message: some senders omit the structured data.
fn last_word(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_last = (1..=WORD_SIZE_MAX).contains(&input.len()) && input.iter().all(|&byte| is_visible(byte));
    if is_last { Some((input, &[])) } else { word(input) }
}

/// Whether a word may hold `byte`. Accepts UTF-8, which senders use although the RFC requires printable ASCII.
fn is_visible(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f
}

/// RFC 5424 §6.1: `-` is an absent value.
fn present(word: &[u8]) -> Option<&[u8]> {
    (word != b"-").then_some(word)
}

/// Returns the offset after the last element; `None` when there is none or one is malformed. RFC 5424 §6.3: elements
/// `[id name="value" …]` without separators, in values `\` before `"`, `\` and `]`.
fn structured_data_end(input: &[u8]) -> Option<usize> {
    let mut at = 0;
    while input.get(at) == Some(&b'[') {
        at = element_end(input, at + 1)?;
    }
    let is_separate = input.get(at).is_none_or(|&byte| byte == b' ');
    (at > 0 && is_separate).then_some(at)
}

fn element_end(input: &[u8], start: usize) -> Option<usize> {
    let mut at = name_end(input, start)?;
    loop {
        match input.get(at)? {
            b']' => return Some(at + 1),
            b' ' => at += 1,
            _ => return None,
        }
        at = name_end(input, at)?;
        if input.get(at..at + 2)? != b"=\"" {
            return None;
        }
        at += 2;
        loop {
            at += memchr::memchr2(b'"', b'\\', input.get(at..)?)?;
            if input[at] == b'"' {
                break;
            }
            at += 2;
        }
        at += 1;
    }
}

/// Returns the offset after an id or a parameter's name, at least one byte long.
fn name_end(input: &[u8], start: usize) -> Option<usize> {
    let length =
        input[start..].iter().position(|&byte| !is_visible(byte) || matches!(byte, b'=' | b']' | b'"'))?;
    (length > 0).then_some(start + length)
}
