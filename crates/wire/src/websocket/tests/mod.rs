//! Accepted and rejected input, as tables through one [`check`], and as properties over generated input.

mod accepted;
mod encoded;
mod handshake;
mod properties;
mod rejected;

use super::check::{self, WebSocketObservation};
use super::{MessageKind, WebSocketLimits, WebSocketRole};

/// Small enough for a table's rows to reach.
const LIMITS: WebSocketLimits = WebSocketLimits { message_size_max: 70_000, whole_size_max: 64 };

/// Every message that does not arrive at once is returned in pieces, and every bound is near.
const TIGHT: WebSocketLimits = WebSocketLimits { message_size_max: 10, whole_size_max: 3 };

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// One line per event: `text hi`, `ping`, `close 1000 bye`, `1002 Opcode @0 0x83`, `wait 3`.
fn describe(seen: &[WebSocketObservation]) -> String {
    let kind_of = |kind: &MessageKind| if *kind == MessageKind::Text { "text" } else { "binary" };
    let lines: Vec<String> = seen
        .iter()
        .filter_map(|seen| match seen {
            WebSocketObservation::Message(kind, bytes) => {
                Some(format!("{} {}", kind_of(kind), bytes.escape_ascii()))
            }
            WebSocketObservation::Incomplete(kind, bytes) => {
                Some(format!("begun {} {}", kind_of(kind), bytes.escape_ascii()))
            }
            WebSocketObservation::Ping(bytes) => Some(format!("ping {}", bytes.escape_ascii())),
            WebSocketObservation::Pong(bytes) => Some(format!("pong {}", bytes.escape_ascii())),
            WebSocketObservation::Close(None, _) => Some("close".to_owned()),
            WebSocketObservation::Close(Some(code), reason) => {
                Some(format!("close {code} {}", reason.escape_ascii()))
            }
            WebSocketObservation::Error(error) => {
                let found = error.found().map(|byte| format!(" {byte:#04x}")).unwrap_or_default();
                Some(format!("{} {:?} @{}{found}", error.close_code(), error.fault(), error.offset()))
            }
            WebSocketObservation::Waiting(0) => None,
            WebSocketObservation::Waiting(bytes) => Some(format!("wait {bytes}")),
        })
        .collect();
    lines.join("; ")
}

/// Returns the bytes with every frame masked, as a client sends them. Lengths are complete.
fn masked(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), bytes);
    while let [first, second, ref more @ ..] = *rest {
        let length_size = match second {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let (length_bytes, behind) = more.split_at(length_size);
        let long = length_bytes.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        let length = if length_size == 0 { u64::from(second) } else { long };
        let payload = &behind[..behind.len().min(length as usize)];
        out.extend_from_slice(&[first, second | 0x80]);
        out.extend_from_slice(length_bytes);
        out.extend_from_slice(&KEY);
        out.extend(payload.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
        rest = &behind[payload.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// Checks that a server's bytes decode to `expected`, and so do the same frames of a client; also byte by byte and with
/// every single split, and that the naive decoder agrees.
#[track_caller]
fn check(bytes: impl AsRef<[u8]>, expected: &str) {
    let bytes = bytes.as_ref();
    check_sent(WebSocketRole::Server, bytes, expected);
    check_sent(WebSocketRole::Client, &masked(bytes), expected);
}

#[track_caller]
fn check_sent(sender: WebSocketRole, bytes: &[u8], expected: &str) {
    let seen = check::decode(sender, &LIMITS, bytes, &[]).seen;
    assert_eq!(describe(&seen), expected, "input {}", bytes.escape_ascii());
    if bytes.len() < 1000 {
        for limits in [LIMITS, TIGHT] {
            check_splits(sender, &limits, bytes);
        }
    }
}

#[track_caller]
fn check_splits(sender: WebSocketRole, limits: &WebSocketLimits, bytes: &[u8]) {
    let each: Vec<usize> = (0..bytes.len()).collect();
    check::splits(sender, limits, bytes, &each);
    for &cut in &each {
        check::splits(sender, limits, bytes, &[cut]);
    }
    check::oracle(sender, limits, bytes);
}
