//! HTTP/1.1 on the engine: routes, sessions, and the state that they share per shard.
//!
//! ```text
//!  bytes ─► RequestDecoder ─► Route ─┬─► response at once (pages, inline handlers)
//!                                    ├─► job in a worker thread ─► mail ─► response (worker handlers, files)
//!                                    ├─► worker process         ─► mail ─► response (`crate::upstream`)
//!                                    └─► hub                    ─► mail ─► response (`/publish/*`)
//! ```
//!
//! A connection handles its requests strictly in order: while a request waits, the session does not read. So responses
//! cannot overtake each other, and TCP flow control slows down the peer.

mod accept;
mod active_request;
mod auction_page;
mod buffered_request;
mod counters;
mod delegated_connection;
mod delegation;
mod files;
mod forward;
mod forwarded_request;
mod head_cache;
mod job_input;
mod method_set;
mod pages;
mod patterns;
mod peer;
mod pending_publication;
pub(crate) mod publish;
mod publish_admission;
mod request;
mod respond;
mod response;
mod response_writer;
mod route;
mod routes;
mod session;
mod shard;
mod status_page;
mod stream;
mod subscribe;
#[cfg(test)]
mod tests;
mod unsent_body;

pub(crate) use auction_page::auction_filters;
pub use delegated_connection::DelegatedConnection;
pub(crate) use parts::*;
pub(crate) use pending_publication::refusal_status;
pub(crate) use publish_admission::encode_conditions;
pub use request::Request;
pub use response::Response;
pub use routes::Routes;
pub(crate) use session::HttpSession;
pub use shard::Timeouts;
pub(crate) use shard::{HttpContext, HttpShard};
pub use stilling_wire::http1::{Fields, HttpLimits, Method, RequestHead, Status};
pub(crate) use subscribe::ProtocolSwitch;

/// The items that `crate::parts` re-exports.
pub(crate) mod parts {
    pub use super::counters::HttpCounters;
    pub use super::route::{HttpEndpoint, HttpScope};
    pub use super::shard::{HttpConfig, JobOutcome};
}
