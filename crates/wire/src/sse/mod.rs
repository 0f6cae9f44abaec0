//! Server-sent events (WHATWG HTML §9.2, `text/event-stream`): the encoder of a server and the decoder of a client.
//!
//! An event is a few lines and an empty one. The encoder ends lines with LF; the decoder accepts LF, CR LF and CR.

mod decoder;
mod encode;
pub mod limits;

#[cfg(any(test, feature = "check"))]
#[doc(hidden)]
pub mod check;
#[cfg(test)]
mod tests;

pub use decoder::{SseDecoder, SseEventTooLong, SseFields, SseStep};
pub use encode::{GAP_EVENT, HEARTBEAT, SseEvent, encode_comment, encode_message, encode_retry};
pub use limits::SseLimits;
