//! A blocking CoAP client (RFC 7252): retransmission, separate responses, block-wise bodies in both directions
//! (RFC 7959), Observe (RFC 7641) and Echo (RFC 9175).
//!
//! ```text
//!   caller ─► CoapClient ─► CoapClientCore ─► Transaction ─► MessageExchange ─► datagrams
//!             socket,       tokens, ids,      blocks, ETag,  retransmission
//!             deadline      duplicates        Echo
//! ```
//!
//! - A client has one request or one observation in progress (`NSTART` is 1, RFC 7252 §4.7).
//! - A confirmable message is sent again with the same id until the server acknowledges it; a server that recognises
//!   duplicates executes the request once.
//! - All blocks of a response have the same `ETag`. If it changes, the transfer begins again; bytes of two
//!   representations are never joined.
//! - [`CoapClientCore`] has no socket and no clock, so that tests and simulations control both.
//!
//! ```no_run
//! use stilling_client::coap::{CoapClient, CoapClientConfig, CoapRequest, CoapUrl};
//! use stilling_wire::coap::Code;
//!
//! let url: CoapUrl = "coap://127.0.0.1/large?lines=200".parse()?;
//! let mut client = CoapClient::connect(&url, CoapClientConfig::default())?;
//! let response = client.request(CoapRequest::new(Code::GET, &url))?;
//! println!("{}: {} bytes", response.code, response.payload.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocking;
mod body;
mod core;
mod error;
mod exchange;
pub mod limits;
mod message_ids;
mod observation;
mod recent_ids;
mod request;
mod response;
mod transaction;
mod url;

#[cfg(test)]
mod tests;

pub use blocking::{CoapClient, CoapNotifications};
pub use core::{CoapClientConfig, CoapClientCore, CoapClientEvent};
pub use error::CoapClientError;
pub use request::CoapRequest;
pub use response::CoapResponse;
pub use url::{BadCoapUrl, CoapUrl};
