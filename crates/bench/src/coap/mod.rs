//! Requests to a CoAP server from many source ports, every answer verified: token, message id, bytes, blocks.
//!
//! ```text
//!   Endpoint (a source port, 65,536 message ids) ─► Slot, one request each ─► Outbox ─► Faults ─► sendmmsg(2)
//!      ▲                                              ▲ token: endpoint, slot, generation
//!      └───────────── recvmmsg(2) ◄───────────────────┘
//! ```
//!
//! One thread with one epoll loop drives all endpoints. A token names the slot and the message that an answer belongs to,
//! so an answer to another peer or to another request is recognised at once. Bodies are recorded by a first request of
//! each variant and compared byte by byte.
//!
//! A message id identifies a message of one source port for 247 seconds (RFC 7252 §4.4). An endpoint that has used its
//! ids continues with a new source port, and the old one stays open, so no id is ever repeated.

mod datagrams;
mod endpoint;
mod error;
mod executions;
mod expected;
mod faults;
pub mod limits;
mod plan;
mod report;
mod run;
mod slot;
mod tally;

pub use error::{CoapBenchError, InvalidCoapPlan};
pub use executions::CoapExecutions;
pub use plan::{CoapFaults, CoapPlan};
pub use report::{CoapParameters, CoapReport};
pub use run::{run, run_until};
pub use tally::CoapFailure;

pub use crate::statistics::LatencySummary;
