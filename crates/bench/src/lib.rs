//! Load generators of Stilling: they believe nothing. [`http`] asks, on the same engine that serves; [`collect`] sends one-way
//! messages, on plain threads.
//!
//! A generator decodes every answer strictly and compares every byte of it; an answer that is not
//! exactly what was expected is a failure of its own kind, never a success. Latency is counted from
//! the moment at which a request should have begun, so that a server that stalls cannot hide the
//! requests that were not sent meanwhile.
//!
//! ```no_run
//! use std::time::Duration;
//! use stilling_bench::http::{self, Length, Plan, Url};
//!
//! let mut plan = Plan::new(Url::parse("http://127.0.0.1:9000/test/fast")?);
//! plan.length = Length::For(Duration::from_secs(5));
//! plan.rate = Some(10_000.0);
//! let report = http::run(&plan)?;
//! println!("{:.0} answers/s, p99 {:.0} µs", report.rate_per_s, report.latency.p99_us);
//! assert!(report.is_good());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod collect;
pub mod http;
mod statistics;
