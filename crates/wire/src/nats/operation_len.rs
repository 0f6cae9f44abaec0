//! The length of an encoded server operation, without a decoder: for output that was sent only in part.

use crate::swar;

/// Returns the length, payload included, of the operation that `bytes` begin with; `None` if its line is incomplete or
/// lacks a required size. The payload may extend beyond `bytes`. The line is not validated further.
#[must_use]
pub fn server_operation_len(bytes: &[u8]) -> Option<usize> {
    let is_end = |byte| byte == b'\n';
    let line = swar::find(bytes, 0, |word| swar::equal(word, b'\n'), is_end);
    if line == bytes.len() {
        return None;
    }
    let has_payload = matches!(bytes[0], b'M' | b'm' | b'H' | b'h');
    if !has_payload {
        return Some(line + 1);
    }
    let last = bytes[..line].trim_ascii_end().rsplit(|byte| *byte == b' ').next()?;
    let size: usize = std::str::from_utf8(last).ok()?.parse().ok()?;
    size.checked_add(line + 1 + 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nats::{Msg, OK, PING, encode_err};

    #[test]
    fn operations_end_where_the_next_ones_begin() {
        let mut output = Vec::new();
        let mut starts = Vec::new();
        for number in 0..200_usize {
            starts.push(output.len());
            match number % 5 {
                0 => output.extend_from_slice(PING),
                1 => output.extend_from_slice(OK),
                2 => encode_err(&mut output, "Slow Consumer"),
                rest => {
                    let payload = b"\r\nMSG a 1 5\r\n".repeat(number);
                    let headers: &[u8] = if rest == 3 { b"NATS/1.0\r\nA: b\r\n\r\n" } else { b"" };
                    let msg = Msg { subject: b"a.b", sid: b"12", reply: None, headers, payload: &payload };
                    msg.encode(&mut output);
                }
            }
        }
        starts.push(output.len());
        for pair in starts.windows(2) {
            assert_eq!(server_operation_len(&output[pair[0]..]), Some(pair[1] - pair[0]));
        }
    }

    #[test]
    fn what_is_no_operation_has_no_end() {
        for bytes in
            [&b""[..], b"PING", b"MSG a 1 x\r\n", b"MSG a 1 99999999999999999999\r\n", b"HMSG \xff\r\n"]
        {
            assert_eq!(server_operation_len(bytes), None, "{}", bytes.escape_ascii());
        }
    }
}
