//! The NATS client protocol, both directions.
//!
//! An operation is a line with arguments, followed for some operations by a payload of the announced size. A line is
//! parsed when it is complete. A payload is never copied: it is returned whole, with its line, when it is available or
//! short enough to wait for, and in pieces otherwise.
//!
//! ```text
//!   input ─► decoder ─► client, server      framing of lines and payloads
//!                          │
//!                          └─► line ─► subject   meaning of a line
//!
//!   independent: headers, handshake (INFO, CONNECT), jetstream (acknowledgements), encode
//! ```
//!
//! Contract of the decoder, in both directions:
//! - `input` starts at the first unconsumed byte; drop `consumed` bytes after each step, also after `NeedMore`.
//! - Call again until the event is `NeedMore`.
//! - Every split of the input yields the same events, except that a message longer than [`NatsLimits::whole_size_max`]
//!   is returned whole or in pieces, depending on how much of it is available.
//! - A rejected operation with a known end is an event, and the connection continues. After an error the decoder
//!   returns the same error on every call.
//!
//! As in nats-server: operations are case-insensitive, arguments are separated by any number of blanks and tabs, LF may
//! replace CR LF at the end of a line (never after a payload), `CONNECT{…}` needs no blank. Stricter: only blanks may
//! follow `PING` and `PONG`, a CR is valid only at the end of a line, control bytes are invalid everywhere, sizes and
//! counts are digits; publishing to wildcards and empty tokens is rejected with `-ERR`, where nats-server accepts the
//! message and delivers it to no subscriber. Malformed arguments are answered with `'Parser Error'`, where nats-server
//! closes silently.

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
