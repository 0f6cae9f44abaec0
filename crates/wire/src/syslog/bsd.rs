//! The format known as RFC 3164: `TIME HOST TAG[PID]: MESSAGE`, with optional and varying parts.
//!
//! ```text
//!   Oct 11 22:14:15 mymachine su[7]: failed     a daemon over the network
//!   Oct 11 22:14:15 su[7]: failed               the same on its own machine
//!   2003-10-11T22:14:15.003Z mymachine su: …    with an RFC 3339 time
//!   29: *Mar  1 18:46:11.123: %SYS-5-CONFIG: …  a router, which numbers its messages
//! ```
//!
//! A word is the program's name when a colon follows it or its process id; the first other word after a time is the
//! host.

use super::limits::WORD_SIZE_MAX;
use super::record::{SyslogFormat, SyslogRecord};
use super::timestamp;

/// Parses the part after the priority. Unrecognised text is the message.
pub(crate) fn parse(input: &[u8]) -> SyslogRecord<'_> {
    let input = input.strip_prefix(b" ").unwrap_or(input);
    let Some((timestamp, rest)) = time(input) else {
        let (tag, message) = tag(input).unwrap_or((Tag::default(), input));
        return SyslogRecord { app: tag.app, procid: tag.procid, ..SyslogRecord::plain(message) };
    };
    let (host, rest) = host(rest);
    let (tag, message) = tag(rest).unwrap_or((Tag::default(), rest));
    SyslogRecord {
        format: SyslogFormat::Bsd,
        timestamp: Some(timestamp),
        host,
        app: tag.app,
        procid: tag.procid,
        ..SyslogRecord::plain(message)
    }
}

fn time(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = strip_number(input);
    // Routers mark an unsynchronised clock.
    let text = text.strip_prefix(b"*").or_else(|| text.strip_prefix(b".")).unwrap_or(text);
    let end = timestamp::bsd(text).or_else(|| timestamp::rfc3339(text))?;
    let rest = match &text[end..] {
        [] => &[][..],
        [b' ', rest @ ..] | [b':', b' ', rest @ ..] => rest,
        _ => return None,
    };
    Some((&text[..end], rest))
}

/// Strips a leading `29: ` or `: `.
fn strip_number(input: &[u8]) -> &[u8] {
    let digits = input.iter().take(20).take_while(|byte| byte.is_ascii_digit()).count();
    input[digits..].strip_prefix(b": ").unwrap_or(input)
}

/// Splits off the host, unless the first word is already a tag or part of the text.
fn host(input: &[u8]) -> (Option<&[u8]>, &[u8]) {
    if tag(input).is_some() {
        return (None, input);
    }
    let end = input.iter().take(WORD_SIZE_MAX + 1).position(|&byte| byte == b' ').unwrap_or(input.len());
    let word = &input[..end];
    let is_name = (1..=WORD_SIZE_MAX).contains(&end)
        && word
            .iter()
            .all(|&byte| byte > b' ' && !matches!(byte, b'[' | b']' | b'{' | b'"' | b'<' | b'>' | 0x7f));
    match input.get(end..) {
        Some([b' ', rest @ ..]) if is_name => ((word != b"-").then_some(word), rest),
        Some([]) if is_name => ((word != b"-").then_some(word), &[]),
        _ => (None, input),
    }
}

#[derive(Default)]
struct Tag<'a> {
    app: Option<&'a [u8]>,
    procid: Option<&'a [u8]>,
}

/// Splits off `app: `, `app[pid]: ` or `app[pid] `.
fn tag(input: &[u8]) -> Option<(Tag<'_>, &[u8])> {
    let is_end = |byte: u8| byte <= b' ' || matches!(byte, b':' | b'[' | b']' | b'"' | b'{' | b'<' | 0x7f);
    let end = input.iter().take(WORD_SIZE_MAX + 1).position(|&byte| is_end(byte)).filter(|&end| end > 0)?;
    let (app, rest) = input.split_at(end);
    let (procid, rest, may_lack_colon) = match rest {
        [b'[', rest @ ..] => {
            let is_end = |byte: u8| byte <= b' ' || matches!(byte, b']' | b'[');
            let end =
                rest.iter().take(WORD_SIZE_MAX + 1).position(|&byte| is_end(byte)).filter(|&end| end > 0)?;
            (Some(&rest[..end]), rest[end..].strip_prefix(b"]")?, true)
        }
        _ => (None, rest, false),
    };
    let message = match rest {
        [b':'] => &[][..],
        [b':', b' ' | b'\t', message @ ..] => message,
        [] if may_lack_colon => rest,
        [b' ', message @ ..] if may_lack_colon => message,
        _ => return None,
    };
    Some((Tag { app: Some(app), procid }, message))
}
