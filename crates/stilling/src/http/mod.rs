//! HTTP/1.1 on the engine: routes, sessions, and what they share per shard.
//!
//! ```text
//!  bytes ─► RequestDecoder ─► Route ─┬─► answered at once (fast, pages, inline handlers)
//!                                    └─► job for a worker ─► mail ─► answered (slow, worker handlers,
//!                                                                    worker processes)
//! ```
//!
//! A connection handles its requests strictly in order: while a job runs, reading pauses, so answers
//! cannot overtake each other and the peer is slowed down by TCP.

mod answer;
mod counters;
mod delegated;
mod files;
mod forward;
mod methods;
mod pages;
mod request;
mod response;
mod route;
mod routes;
mod sending;
mod service;
mod session;
mod stream;

pub(crate) use counters::Held;
pub use counters::HttpCounters;
pub use delegated::Delegated;
pub use request::Request;
pub use response::Response;
pub use route::{Door, Serves};
pub use routes::Routes;
pub use service::{HttpConfig, HttpService, JobOutcome, Timeouts};
pub use session::HttpSession;
pub use stilling_wire::http1::{Fields, Limits, Method, RequestHead, Status};
