//! Load generators of Stilling that verify every result. [`http`] sends requests with the engine of the server;
//! [`collect`] sends one-way messages with plain threads; [`broadcast`] sends few messages to many subscribers;
//! [`coap`] sends requests over UDP from many source ports; [`tcp`] loads plain TCP servers.
//!
//! A generator decodes every answer strictly and compares every byte; an unexpected answer is a failure of its own
//! kind, never a success. Latency counts from the intended start of a request, so that a stalling server cannot hide
//! the requests that were not sent meanwhile.
//!
//! ```no_run
//! use std::time::Duration;
//! use stilling_bench::http::{self, HttpPlan, RunLength, Url};
//!
//! let mut plan = HttpPlan::new(Url::parse("http://127.0.0.1:9000/test/fast")?);
//! plan.length = RunLength::Duration(Duration::from_secs(5));
//! plan.rate = Some(10_000.0);
//! let report = http::run(&plan)?;
//! println!("{:.0} answers/s, p99 {:.0} µs", report.rate_per_s, report.latency.p99_us);
//! assert!(report.is_good());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod broadcast;
pub mod coap;
pub mod collect;
pub mod http;
mod plan_checks;
mod server_cpu;
mod statistics;
pub mod tcp;
