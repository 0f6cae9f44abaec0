//! HTTP/1.1 on the engine: routes, sessions, and what they share per shard.
//!
//! ```text
//!  bytes ─► RequestDecoder ─► Route ─┬─► answered at once (fast, pages)
//!                                    └─► job for a worker ─► mail ─► answered (slow)
//! ```
//!
//! A connection handles its requests strictly in order: while a job runs, reading pauses, so answers
//! cannot overtake each other and the peer is slowed down by TCP.

mod answer;
mod counters;
mod pages;
mod route;
mod service;
mod session;

pub use counters::{COUNTED, HttpCounters};
pub use service::{HttpConfig, HttpService, JobOutcome, Timeouts};
pub use session::HttpSession;
