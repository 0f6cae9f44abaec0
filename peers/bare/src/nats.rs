//! The subset of the NATS client protocol that `stilling bench collect` and `bench broadcast` use.

use memchr::memchr;

/// The server's description. `max_payload` is [`PAYLOAD_SIZE_MAX`].
pub(crate) const INFO: &[u8] =
    b"INFO {\"server_id\":\"bare\",\"version\":\"2.10.0\",\"headers\":true,\"max_payload\":65536}\r\n";

pub(crate) const PONG: &[u8] = b"PONG\r\n";
pub(crate) const CRLF: &[u8] = b"\r\n";

/// Bytes of a payload. More: [`MalformedCommand`].
const PAYLOAD_SIZE_MAX: usize = 65_536;

/// Bytes of a command's line with its end. More: [`MalformedCommand`].
const LINE_SIZE_MAX: usize = 4096;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NatsCommand<'a> {
    /// Publishes a message. `body` is the payload with its CR LF.
    Pub { subject: &'a [u8], reply: Option<&'a [u8]>, body: &'a [u8] },
    /// Subscribes.
    Sub { subject: &'a [u8], sid: &'a [u8] },
    /// Requests a `PONG`.
    Ping,
    /// `CONNECT`, `PONG` or `UNSUB`, which have no effect.
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedCommand;

/// Returns the first command of the input and its size; `None` if it is incomplete.
pub(crate) fn next(input: &[u8]) -> Result<Option<(NatsCommand<'_>, usize)>, MalformedCommand> {
    let Some(end) = memchr(b'\n', &input[..input.len().min(LINE_SIZE_MAX)]) else {
        return if input.len() < LINE_SIZE_MAX { Ok(None) } else { Err(MalformedCommand) };
    };
    let line = input[..end].strip_suffix(b"\r").ok_or(MalformedCommand)?;
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let words: [Option<&[u8]>; 5] = std::array::from_fn(|_| words.next());
    let start = end + 1;
    let (subject, reply, size) = match words {
        [Some(b"PUB"), Some(subject), Some(size), None, _] => (subject, None, size),
        [Some(b"PUB"), Some(subject), Some(reply), Some(size), None] => (subject, Some(reply), size),
        [Some(b"SUB"), Some(subject), Some(sid), None, _]
        | [Some(b"SUB"), Some(subject), Some(_), Some(sid), None] => {
            return Ok(Some((NatsCommand::Sub { subject, sid }, start)));
        }
        [Some(b"PING"), None, ..] => return Ok(Some((NatsCommand::Ping, start))),
        [Some(b"CONNECT" | b"PONG" | b"UNSUB"), ..] => return Ok(Some((NatsCommand::Other, start))),
        _ => return Err(MalformedCommand),
    };
    let size = number(size).filter(|size| *size <= PAYLOAD_SIZE_MAX).ok_or(MalformedCommand)?;
    let Some(body) = input.get(start..start + size + CRLF.len()) else { return Ok(None) };
    if !body.ends_with(CRLF) {
        return Err(MalformedCommand);
    }
    Ok(Some((NatsCommand::Pub { subject, reply, body }, start + body.len())))
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Appends the line of a message of `size` bytes; the payload and CR LF follow.
pub(crate) fn push_msg_line(out: &mut Vec<u8>, subject: &[u8], sid: &[u8], size: usize) {
    let mut digits = itoa::Buffer::new();
    for piece in [b"MSG ", subject, b" ", sid, b" ", digits.format(size).as_bytes(), CRLF] {
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_as_soon_as_it_is_whole() {
        let check = |text: &str, expected: NatsCommand<'_>| {
            let input = format!("{text}PING\r\n");
            let found = next(input.as_bytes());
            assert_eq!(found, Ok(Some((expected, text.len()))), "{text:?}");
            for size in 0..text.len() {
                assert_eq!(next(&text.as_bytes()[..size]), Ok(None), "{size} bytes of {text:?}");
            }
        };
        let publication = |reply, body| NatsCommand::Pub { subject: b"a.b", reply, body };
        check("PUB a.b 5\r\nhello\r\n", publication(None, b"hello\r\n"));
        check("PUB a.b in.1 2\r\n\r\n\r\n", publication(Some(b"in.1"), b"\r\n\r\n"));
        check("PUB a.b  0\r\n\r\n", publication(None, CRLF));
        check("SUB a.* 7\r\n", NatsCommand::Sub { subject: b"a.*", sid: b"7" });
        check("SUB a.* group 7\r\n", NatsCommand::Sub { subject: b"a.*", sid: b"7" });
        check("PING\r\n", NatsCommand::Ping);
        check("CONNECT {\"a\": 1, \"b\": [2, 3], \"c\": 4}\r\n", NatsCommand::Other);
        check("UNSUB 7\r\n", NatsCommand::Other);
    }

    #[test]
    fn anything_else_is_malformed() {
        let long = format!("CONNECT {}", "x".repeat(LINE_SIZE_MAX));
        let cases = [
            "\r\n",
            "PING\n",
            "PING 1\r\n",
            "PUB a\r\n",
            "PUB a b c 1\r\n",
            "PUB a -1\r\n",
            "PUB a 65537\r\n",
            "PUB a 18446744073709551615\r\n",
            "PUB a 1\r\nxyz",
            "SUB a\r\n",
            "HPUB a 12 12\r\n",
            &long,
        ];
        for text in cases {
            assert_eq!(next(text.as_bytes()), Err(MalformedCommand), "{text:?}");
        }
    }

    #[test]
    fn the_greeting_names_the_longest_payload() {
        let info = String::from_utf8_lossy(INFO);
        assert!(info.contains(&format!("\"max_payload\":{PAYLOAD_SIZE_MAX}}}\r\n")), "{info}");
    }
}
