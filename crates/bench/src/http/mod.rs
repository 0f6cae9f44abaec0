//! HTTP/1.1 load: closed loop, open loop, and connections that are merely held.
//!
//! ```text
//!  Plan ─► scout: is anybody there, and what is the right answer?
//!            │
//!            ▼                      one per thread
//!  schedule ─► Generator (Service) ─► Client (Session) ─► Tally ─► Report
//! ```
//!
//! A *closed* loop sends the next request when an answer has come: it measures how much a server can
//! do. An *open* loop sends by the clock, as the world does: it measures how long people wait. Each
//! request of an open loop has an intended start, and its latency counts from there, whether or not
//! a connection was free to send it then.
//!
//! Times are those of the shard's turns: a latency runs from the turn that sent a request to the
//! turn that saw the end of its answer.

mod error;
mod generator;
pub mod limits;
mod plan;
mod reference_request;
mod report;
mod request;
mod run;
mod schedule;
#[cfg(test)]
mod simulated_server;
mod slots;
mod start_barrier;
mod tally;
mod timeline;
mod url;

pub use crate::statistics::LatencySummary;
pub use error::HttpBenchError;
pub use plan::{HttpPlan, InvalidHttpPlan, RateSteps, RunLength, SourceAddresses};
pub use report::{DroppedRequests, HttpBenchReport, HttpParameters, HttpStepReport, HttpWindowReport};
pub use run::{HttpProgress, run, run_watched};
pub use schedule::{RateSchedule, RateStep, RequestBacklog};
pub use tally::RequestFailure;
pub use url::{InvalidUrl, Url};
