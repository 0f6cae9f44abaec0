//! WebSocket (RFC 6455), both directions.
//!
//! The handshake is checked on a parsed HTTP/1.1 head. After it a decoder returns messages, whole or in pieces, and
//! control frames. Payloads are slices of the input, still masked; the caller unmasks them while it copies them.
//!
//! ```text
//!   HTTP head ─► handshake
//!       input ─► decoder ─► frame    headers, and order of frames
//!                   ├─────► mask     payloads
//!                   └─────► utf8     validity of texts
//!
//!   independent: encode, close
//! ```
//!
//! Contract of the decoder, in both directions:
//! - `input` starts at the first unconsumed byte; drop `consumed` bytes after each step, also after `NeedMore`.
//! - Call again until the event is `NeedMore`: the end of a message is a separate step.
//! - A message is one `Message`, or `MessageStart`, `Piece`*, `MessageEnd`. A message in a single frame of at most
//!   [`WebSocketLimits::whole_size_max`] bytes is always one `Message`; a longer one may be either; a fragmented one is
//!   returned in pieces, possibly with `Ping` and `Pong` among them.
//! - Apart from that, every split of the input yields the same events.
//! - A fault is detected at its byte: an invalid byte of a text before the rest of its frame arrives, a message that is
//!   too long at the header of the frame that exceeds the limit. After an error the decoder returns the same error on
//!   every call.
//! - After `Close` all input is consumed and ignored (RFC 6455 §1.4).
//!
//! Empty fragments are legal, and a message may have any number of them: they occupy no memory. Extensions are
//! declined, so the reserved bits must be 0.

mod close;
mod decoder;
mod encode;
mod error;
mod frame;
mod handshake;
pub mod limits;
mod mask;

#[cfg(any(test, feature = "check"))]
#[doc(hidden)]
pub mod check;
#[cfg(test)]
mod tests;

pub use close::CloseCode;
pub use decoder::{MessageKind, WebSocketDecoder, WebSocketEvent, WebSocketStep};
pub use encode::{WebSocketFrame, encode_close, encode_frame_around};
pub use error::{WebSocketDecodeError, WebSocketElement, WebSocketFault};
pub use frame::{Opcode, WebSocketFrameHeader, WebSocketRole};
pub use handshake::{AcceptValue, ClientHandshake, HandshakeFault, HandshakeResponseFault, UpgradeRequest};
pub use limits::WebSocketLimits;
pub use mask::{Mask, MaskedPayload};
