//! HTTP/1.1 load: closed loop, open loop, and idle connections.
//!
//! ```text
//!  HttpPlan ─► first request: is the server reachable, and what is the correct answer?
//!                │
//!                ▼                                   one per thread
//!  RateSchedule ─► LoadGenerator (Service) ─► GeneratorSession ─► HttpTally ─► HttpBenchReport
//! ```
//!
//! A *closed* loop sends the next request when an answer arrives: it measures throughput. An *open* loop sends by the
//! clock, as independent clients do: it measures waiting times. Each request of an open loop has an intended start, and
//! its latency counts from there, whether or not a connection was free at that time.
//!
//! Times are those of the shard's turns: a latency runs from the turn that sent a request to the turn that read the end
//! of its answer.

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
pub(crate) use report::{step_figures, window_figures};
pub use run::{HttpProgress, run, run_watched};
pub use schedule::{RateSchedule, RateStep, RequestBacklog};
pub use tally::RequestFailure;
pub(crate) use timeline::Timeline;
pub use url::{InvalidUrl, Url};
