//! Sans-I/O codecs: bytes in, events out.
//!
//! The codecs use no socket, thread, clock or randomness. The caller owns the receive buffer; a decoder is a few bytes
//! of plain state that borrows from it, so one thread can hold hundreds of thousands of decoders.
//!
//! [`http1`] is HTTP/1.1, [`nats`] the NATS client protocol, [`syslog`] both syslog formats and their framing,
//! [`websocket`] WebSocket, [`sse`] server-sent events, and [`coap`] CoAP. [`frames`] is the protocol of worker processes
//! on standard input and output. [`pcapng`] writes captures. [`message_object`] is a message as subscribers
//! over WebSocket and SSE receive it, [`resume_position`] the position from which they resume.
//!
//! ```
//! use stilling_wire::http1::{HttpLimits, OK_CLOSE, RequestDecoder, RequestEvent};
//!
//! let limits = HttpLimits::default();
//! let mut decoder = RequestDecoder::default();
//! let received = b"GET /test/fast HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n";
//! let step = decoder.decode(&limits, received)?;
//! let RequestEvent::Head(head) = step.event else { panic!("the request is complete") };
//! assert_eq!(head.target.path, b"/test/fast");
//! assert!(head.persistent);
//! assert_eq!(step.consumed, received.len());
//! assert_eq!(OK_CLOSE.len(), 57);
//! # Ok::<(), stilling_wire::http1::HttpDecodeError>(())
//! ```
#![forbid(unsafe_code)]

pub mod coap;
pub mod frames;
pub mod http1;
pub mod message_object;
mod meter;
pub mod nats;
pub mod pcapng;
pub mod resume_position;
pub mod sse;
mod swar;
pub mod syslog;
mod utf8;
pub mod websocket;
