//! Frames of both sides, appended to a buffer the caller reuses: no allocation while the buffer's capacity suffices.
//! Frames of a server are the same bytes for all clients.

use super::close::CloseCode;
use super::frame::{Opcode, WebSocketFrameHeader};
use super::limits::CONTROL_SIZE_MAX;
use super::mask::Mask;

/// A frame to send. Constructors build the unmasked, unfragmented frames of a server.
///
/// ```
/// use stilling_wire::websocket::WebSocketFrame;
///
/// let mut out = Vec::new();
/// WebSocketFrame::text("Hello").encode(&mut out);
/// WebSocketFrame::text("Hello").masked([0x37, 0xfa, 0x21, 0x3d]).encode(&mut out);
/// // RFC 6455 §5.7.
/// assert_eq!(out, b"\x81\x05Hello\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WebSocketFrame<'a> {
    /// The kind.
    pub opcode: Opcode,
    /// Whether it is the last frame of its message; true for control frames.
    pub is_final: bool,
    /// The masking key; required in a client, forbidden in a server.
    pub mask: Option<[u8; 4]>,
    /// The payload, unmasked. Of a control frame at most 125 bytes.
    pub payload: &'a [u8],
}

impl<'a> WebSocketFrame<'a> {
    /// Returns an unfragmented, unmasked frame.
    #[must_use]
    pub const fn new(opcode: Opcode, payload: &'a [u8]) -> Self {
        Self { opcode, is_final: true, mask: None, payload }
    }

    /// Returns a text message.
    #[must_use]
    pub const fn text(payload: &'a str) -> Self {
        Self::new(Opcode::Text, payload.as_bytes())
    }

    /// Returns a binary message.
    #[must_use]
    pub const fn binary(payload: &'a [u8]) -> Self {
        Self::new(Opcode::Binary, payload)
    }

    /// Returns a ping; `payload` has at most 125 bytes.
    #[must_use]
    pub const fn ping(payload: &'a [u8]) -> Self {
        Self::new(Opcode::Ping, payload)
    }

    /// Returns a pong; `payload` has at most 125 bytes.
    #[must_use]
    pub const fn pong(payload: &'a [u8]) -> Self {
        Self::new(Opcode::Pong, payload)
    }

    /// Returns the frame with a masking key, as a client sends it.
    #[must_use]
    pub const fn masked(self, key: [u8; 4]) -> Self {
        Self { mask: Some(key), ..self }
    }

    /// Appends the frame to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.header().encode(out);
        let start = out.len();
        out.extend_from_slice(self.payload);
        if let Some(key) = self.mask {
            Mask::new(key).apply(&mut out[start..]);
        }
    }

    /// Returns the number of bytes that [`WebSocketFrame::encode`] appends.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.header().size() + self.payload.len()
    }

    const fn header(&self) -> WebSocketFrameHeader {
        let length = self.payload.len() as u64;
        WebSocketFrameHeader { opcode: self.opcode, is_final: self.is_final, length, mask: self.mask }
    }
}

/// Appends an unmasked, unfragmented frame around the payload that `fill` appends. `fill` must only append.
#[inline]
pub fn encode_frame_around(out: &mut Vec<u8>, opcode: Opcode, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    fill(out);
    let length = (out.len() - start) as u64;
    let header = WebSocketFrameHeader { opcode, is_final: true, length, mask: None };
    // The header depends on the length: it is appended behind the payload and moved to its place.
    header.encode(out);
    out[start..].rotate_right(header.size());
}

/// Appends a close frame; a client gives a masking key. A `reason` of more than 123 bytes is cut before a character.
/// Without a code the frame is empty.
pub fn encode_close(out: &mut Vec<u8>, code: Option<CloseCode>, reason: &str, mask: Option<[u8; 4]>) {
    let mut payload = [0; CONTROL_SIZE_MAX];
    let mut length = 0;
    if let Some(code) = code {
        let mut end = reason.len().min(CONTROL_SIZE_MAX - 2);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        length = 2 + end;
        payload[..2].copy_from_slice(&code.get().to_be_bytes());
        payload[2..length].copy_from_slice(&reason.as_bytes()[..end]);
    }
    WebSocketFrame { mask, ..WebSocketFrame::new(Opcode::Close, &payload[..length]) }.encode(out);
}
