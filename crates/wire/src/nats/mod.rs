//! The NATS client protocol, both directions.
//!
//! Lines of an operation and its arguments; behind some lines a payload of the announced size. A line is judged when it is
//! complete, a payload is never copied: it comes whole, with its line, when it is there or short enough to wait for, and in
//! pieces otherwise.
//!
//! ```text
//!   input ─► decoder ─► client, server      where lines and payloads end
//!                          │
//!                          └─► line ─► subject   what a line means
//!
//!   in use beside them: headers, handshake (INFO, CONNECT), jetstream (acknowledgements), encode
//! ```
//!
//! Contract of the decoder, in both directions:
//! - `input` starts at the first byte not yet consumed; drop `consumed` bytes after each step, also after `NeedMore`.
//! - Call again until the event is `NeedMore`.
//! - However the input is cut, the same comes out; only whether a message longer than [`NatsLimits::whole_size_max`] comes whole
//!   or in pieces depends on how much of it is there.
//! - A refused operation whose end is known is an event, and the connection goes on. After an error the decoder returns that
//!   error for ever.
//!
//! Taken as nats-server takes it: operations without regard to case, blanks and tabs in any number between arguments, LF for
//! CR LF at the end of a line (never behind a payload), `CONNECT{…}`. Stricter: nothing but blanks behind `PING` and `PONG`, a
//! CR only at the end of a line, control bytes nowhere, sizes and counts in digits; publishing to wildcards and empty tokens
//! is refused and said, where nats-server takes the message and delivers it to nobody. What nats-server answers with a silent
//! close, broken arguments, is told `'Parser Error'`.

mod client;
mod decoder;
mod encode;
mod error;
mod handshake;
mod headers;
mod jetstream;
pub mod limits;
mod line;
mod operation_len;
mod server;
mod subject;

#[cfg(any(test, feature = "check"))]
#[doc(hidden)]
pub mod check;
#[cfg(test)]
mod tests;

pub use client::{ClientDecoder, ClientEvent, Publish, PublishHead, Subscribe};
pub use decoder::{DecodeStep, Decoder};
pub use encode::{Msg, OK, PING, PONG, Pub, encode_err, encode_sub, encode_unsub};
pub use error::{NatsDecodeError, NatsElement, NatsFault};
pub use handshake::{Connect, Info};
pub use headers::{
    BadHeader, BadHeaders, EXPECTED_LAST_SEQUENCE, FLOW_CONTROL, HeaderFields, HeaderStatus, Headers,
    IDLE_HEARTBEAT, MESSAGE_ID, NO_RESPONDERS, encode_headers, strip_status,
};
pub use jetstream::{
    ACK_PREFIX, AckSubject, DISK_FULL, DISK_HUNG, GAP_CAUSE, GAP_FIRST, GAP_LAST, PubAck, PubAckError,
    PubAckResponse,
};
pub use limits::{NatsLimits, SubjectLimits};
pub use operation_len::server_operation_len;
pub use server::{NatsDelivery, NatsDeliveryHead, ServerDecoder, ServerEvent};
pub use subject::{BadSubject, Filter, Subject, SubjectFault, Tokens, is_wildcard};
