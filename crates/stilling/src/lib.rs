//! Stilling: the server that stays calm when everyone talks at once.
//!
//! This crate puts the parts together: HTTP sessions on the engine, slow work in the worker pool, the
//! life of the process, the pages about itself.
//!
//! ```no_run
//! use stilling::{ServeConfig, Server};
//!
//! let server = Server::bind(ServeConfig { worker_threads: 4, ..ServeConfig::default() })?;
//! println!("serving on {:?}", server.addresses());
//! server.watch_signals()?;
//! server.run()?;
//! # Ok::<(), stilling::ServeError>(())
//! ```
#![forbid(unsafe_code)]

mod config;
pub mod http;
mod lifecycle;
mod metrics;
mod overview;
mod server;

pub use config::{ServeConfig, ServeError};
pub use lifecycle::{Calendar, Lifecycle, Phase};
pub use metrics::render as render_metrics;
pub use overview::Overview;
pub use server::{RunningServer, Server};
pub use stilling_engine::driver::choice::DriverChoice;
