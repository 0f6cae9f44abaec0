//! A protocol inside WebSocket frames (RFC 6455): removes the heads of frames from a subscriber's input.

/// Bytes of the longest head of an unmasked frame.
const HEAD_SIZE_MAX: usize = 10;

const FIN: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const CONTINUATION: u8 = 0x0;
pub(super) const TEXT: u8 = 0x1;
pub(super) const BINARY: u8 = 0x2;
const PING: u8 = 0x9;

/// A masked pong without payload, with a mask of zeros.
pub(super) const PONG: &[u8] = b"\x8a\x80\0\0\0\0";

/// How the protocol is put into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// A stream of bytes, cut anywhere.
    Stream,
    /// Lines; the last line of a message has no line end, which is added.
    Lines,
}

/// Position in the frames of one connection.
#[derive(Debug, Default)]
pub(super) struct FrameStripper {
    /// Bytes of an incomplete head.
    head: Vec<u8>,
    /// Bytes of the frame's payload that have not arrived.
    left: u64,
    is_last_of_message: bool,
    /// An empty ping has arrived, whose pong is due.
    pub(super) pongs_due: u32,
}

impl FrameStripper {
    /// Removes heads in place; returns the size of what is left. The first byte is no input, but room for a line end.
    ///
    /// # Errors
    /// A text about a frame that no server may send, or that ends the connection.
    pub(super) fn strip(&mut self, framing: Framing, bytes: &mut [u8]) -> Result<usize, String> {
        let (mut from, mut to) = (1, 0);
        while from < bytes.len() {
            if self.left == 0 {
                self.head.push(bytes[from]);
                from += 1;
                self.decode_head()?;
                continue;
            }
            let count = (bytes.len() - from).min(usize::try_from(self.left).unwrap_or(usize::MAX));
            bytes.copy_within(from..from + count, to);
            (from, to) = (from + count, to + count);
            self.left -= count as u64;
            if self.left == 0 && self.is_last_of_message && framing == Framing::Lines {
                // In place of the first byte, or of a head.
                bytes[to] = b'\n';
                to += 1;
            }
        }
        Ok(to)
    }

    /// Decodes the head if it is complete.
    fn decode_head(&mut self) -> Result<(), String> {
        let [first, second, ..] = self.head[..] else { return Ok(()) };
        let size = match second {
            126 => 4,
            127 => HEAD_SIZE_MAX,
            _ => 2,
        };
        if self.head.len() < size {
            return Ok(());
        }
        self.left = match second {
            126 => u16::from_be_bytes([self.head[2], self.head[3]]).into(),
            127 => self.head[2..].iter().fold(0, |size, byte| size << 8 | u64::from(*byte)),
            size => size.into(),
        };
        self.head.clear();
        self.is_last_of_message = first & FIN != 0;
        match first & OPCODE {
            CONTINUATION | TEXT | BINARY if second & 0x80 == 0 => Ok(()),
            PING if self.left == 0 => {
                self.pongs_due += 1;
                Ok(())
            }
            opcode => Err(format!("a frame with opcode {opcode} and {} bytes", self.left)),
        }
    }
}

/// Appends a final frame of a client, masked with zeros, so that its payload stays readable.
pub(super) fn push_client_frame(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(FIN | opcode);
    match payload.len() {
        size @ ..126 => out.push(0x80 | size as u8),
        size @ 126..65_536 => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(size as u16).to_be_bytes());
        }
        size => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(size as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
}

/// An unmasked frame, RFC 6455 §5.2.
pub(super) struct ServerFrame {
    pub(super) first: u8,
    pub(super) head_size: usize,
    pub(super) size: usize,
}

/// Decodes the frame at the start of `input`; `None`: incomplete.
pub(super) fn frame(input: &[u8]) -> Option<ServerFrame> {
    let (&first, &length) = (input.first()?, input.get(1)?);
    let (head_size, payload_size) = match length {
        127 => (10, u64::from_be_bytes(input.get(2..10)?.try_into().ok()?)),
        126 => (4, u16::from_be_bytes(input.get(2..4)?.try_into().ok()?).into()),
        length => (2, length.into()),
    };
    let size = usize::try_from(payload_size).ok()?.checked_add(head_size)?;
    (input.len() >= size).then_some(ServerFrame { first, head_size, size })
}

/// The payloads of the complete frames of `input`, each with a line end, and their size.
pub(super) fn whole_frames(input: &[u8]) -> (Vec<u8>, usize) {
    let (mut payloads, mut size) = (Vec::new(), 0);
    while let Some(frame) = frame(&input[size..]) {
        payloads.extend_from_slice(&input[size + frame.head_size..size + frame.size]);
        payloads.push(b'\n');
        size += frame.size;
    }
    (payloads, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(first: u8, payloads: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for payload in payloads {
            out.push(first);
            if payload.len() < 126 {
                out.push(payload.len() as u8);
            } else {
                out.push(126);
                out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
            }
            out.extend_from_slice(payload);
        }
        out
    }

    /// Feeds the input in pieces of one size.
    fn strip(framing: Framing, input: &[u8], piece: usize) -> Vec<u8> {
        let mut stripper = FrameStripper::default();
        let mut stripped = Vec::new();
        for piece in input.chunks(piece) {
            let mut bytes = [b"-", piece].concat();
            let count = stripper.strip(framing, &mut bytes).expect("the frames are valid");
            stripped.extend_from_slice(&bytes[..count]);
        }
        stripped
    }

    #[test]
    fn heads_are_removed_wherever_the_input_is_cut() {
        let long = vec![b'x'; 300];
        let input = frames(0x82, &[b"MSG bench", b" 1 2\r\n", &long, b"", b"hi\r\n"]);
        let expected = [&b"MSG bench 1 2\r\n"[..], &long, b"hi\r\n"].concat();
        for piece in [1, 2, 3, 5, 7, input.len()] {
            assert_eq!(strip(Framing::Stream, &input, piece), expected, "{piece}");
        }
        assert_eq!(whole_frames(&input).1, input.len());
    }

    #[test]
    fn each_message_of_lines_gets_its_line_end() {
        let input = frames(0x81, &[b"{}\n{\"a\":1}", b"{}"]);
        for piece in [1, 2, 3, 5, input.len()] {
            assert_eq!(strip(Framing::Lines, &input, piece), b"{}\n{\"a\":1}\n{}\n", "{piece}");
        }
        assert_eq!(whole_frames(&input[..input.len() - 1]), (b"{}\n{\"a\":1}\n".to_vec(), 12));
    }

    #[test]
    fn other_frames_are_pings_or_faults() {
        let mut stripper = FrameStripper::default();
        assert_eq!(stripper.strip(Framing::Stream, &mut [0, 0x89, 0, 0x82, 1, b'x']), Ok(1));
        assert_eq!(stripper.pongs_due, 1);
        assert!(stripper.strip(Framing::Stream, &mut [0, 0x88, 2, 3, 0xe8]).is_err());
        assert!(FrameStripper::default().strip(Framing::Stream, &mut [0, 0x82, 0x81]).is_err());
    }

    #[test]
    fn a_client_frame_is_masked_with_zeros() {
        let mut out = Vec::new();
        push_client_frame(TEXT, b"hi", &mut out);
        assert_eq!(out, b"\x81\x82\0\0\0\0hi");
    }
}
