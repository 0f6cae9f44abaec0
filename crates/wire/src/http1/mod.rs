//! HTTP/1.1 (RFC 9110, RFC 9112), both directions.
//!
//! One automaton scans a head byte by byte; no other code checks its syntax. It stops at the end of the input and
//! resumes there, so a head that arrives in single bytes costs linear work, and an error occurs at the same byte for
//! every split of the input. The *meaning* of the fields (host, framing, persistence) is checked once, when the head is
//! complete: during the scan if it arrived in one piece, in a second pass if it arrived in several.
//!
//! ```text
//!   input ─► request ─┐                 ┌─► head    meaning of the fields
//!                     ├─► line ► fields ┤
//!   input ─► response ┘                 └─► chunked, body
//! ```
//!
//! Contract of both decoders:
//! - `input` starts at the first unconsumed byte; drop `consumed` bytes after each step, also after `NeedMore`.
//! - Call again until the event is `NeedMore`: the end of a body is a separate step.
//! - A message without a body is one `Head` and no `End`; a message with a body is `Head`, `Body`*, `End`.
//! - After an error the decoder returns the same error on every call: the connection has no recoverable framing.

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
