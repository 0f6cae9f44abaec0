//! HTTP/1.1 (RFC 9110, RFC 9112), both directions.
//!
//! One automaton reads a head byte by byte and is the only judge of its syntax. It stops wherever the input stops and
//! goes on from there, so a head that arrives in single bytes costs linear work, and an error is found at the same
//! byte however the input was cut. What the fields *mean* (host, framing, persistence) is judged once, when the head
//! is complete: on the way when it came in one piece, in a second pass over the head when it came in several.
//!
//! ```text
//!   input ─► request ─┐                 ┌─► head    what the fields mean
//!                     ├─► line ► fields ┤
//!   input ─► response ┘                 └─► chunked, body
//! ```
//!
//! Contract of both decoders:
//! - `input` starts at the first byte not yet consumed; drop `consumed` bytes after each step, also after `NeedMore`.
//! - Call again until the event is `NeedMore`: the end of a body is a step of its own.
//! - A message without a body is one `Head` and no `End`; one with a body is `Head`, `Body`*, `End`.
//! - After an error the decoder returns that error for ever: the connection has no recoverable framing.

mod body;
mod byte_class;
mod chunked;
mod date;
mod encode;
mod error;
mod fields;
mod head;
pub mod limits;
mod line;
mod request;
mod response;
mod status;
mod status_line;
mod target;
mod version;

#[cfg(any(test, feature = "check"))]
#[doc(hidden)]
pub mod check;
#[cfg(test)]
mod tests;

pub use date::Date;
pub use encode::{BadField, CONTINUE, OK_CLOSE, Persistence, ResponseEncoder};
pub use error::{HttpDecodeError, HttpElement, HttpFault};
pub use fields::Fields;
pub use head::{BodyLength, Method, RequestHead};
pub use limits::HttpLimits;
pub use request::{RequestDecoder, RequestEvent, RequestStep};
pub use response::{
    AnsweredMethod, InputEnd, ResponseBodyLength, ResponseDecoder, ResponseEvent, ResponseHead, ResponseStep,
};
pub use status::Status;
pub use target::{RequestTarget, TargetForm};
pub use version::HttpVersion;
