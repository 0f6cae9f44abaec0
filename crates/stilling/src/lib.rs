//! Stilling: the server that stays calm when everyone talks at once.
//!
//! A server of your own is a table of routes. A handler is a plain function: `inline` ones answer in the
//! shard and must be quick; `worker` ones run in a bounded pool and may block.
//!
//! ```no_run
//! use stilling::http::{Method, Response, Routes, Status};
//! use stilling::{ServeConfig, ServeError};
//!
//! fn main() -> Result<(), ServeError> {
//!     let routes = Routes::new()
//!         .inline(Method::Get, "/hello", |_| "Hello\n")
//!         .worker(Method::Get, "/report/{day}", |request| {
//!             let day = request.param("day").ok_or(Status::BadRequest)?;
//!             let file = std::fs::File::open(format!("reports/{}", day.parse::<u32>().map_err(|_| Status::BadRequest)?));
//!             file.map(|file| Response::stream("text/csv", file)).map_err(|_| Status::NotFound)
//!         });
//!     stilling::serve(ServeConfig::default(), routes)
//! }
//! ```
//!
//! `examples/` has more: slow work, a JSON API, a socket handed to a worker, and protocols of your own on
//! the [`engine`]'s sessions and datagrams.
//!
//! A [`protocol`] of your own has its listener beside those for HTTP, NATS and syslog. Its sessions run in the same shards
//! and may publish messages.
//!
//! Beside the routes every server answers `/status`, `/metrics`, `/livez` and `/readyz`, drains on SIGTERM
//! and SIGINT, and bounds whatever a client can make it hold (`docs/limits.md`).
#![forbid(unsafe_code)]

mod addresses;
mod config;
mod data_folder;
mod descriptor_budget;
mod exposure;
pub mod hand_over;
pub mod http;
mod hub;
mod hub_plan;
mod lifecycle;
mod listeners;
mod log;
mod memory;
mod metrics;
mod nats;
mod overview;
pub mod protocol;
mod rates;
mod running_server;
mod server;
pub mod settings;
mod shard;
mod socket_file;
mod syslog;
pub mod upstream;
mod volume_monitor;

pub use config::{Admin, HubThread, ServeConfig, ServeError};
pub use data_folder::DataFolder;
pub use exposure::Exposure;
pub use metrics::render as render_metrics;
pub use overview::Overview;
pub use running_server::{RunningServer, Stopper};
pub use server::Server;
pub use stilling_engine as engine;
pub use stilling_engine::driver::choice::DriverChoice;
pub use stilling_workers::processes::ProcessLimits;
pub use stilling_workers::{Growth, QueueTarget};

/// What a server is put together from, for those who put it together otherwise, as the simulator does. A program that
/// serves HTTP needs none of it but [`HttpCounters`](parts::HttpCounters), to read an [`Overview`].
pub mod parts {
    pub use crate::hand_over::succession::{PredecessorEvent, Retirement, Succession, SuccessionAction};
    pub use crate::http::parts::*;
    pub use crate::hub::{
        SharedDisks, SteppedHub, SteppedJournal, SteppedOpening, SteppedRelease, SteppedThreads,
    };
    pub use crate::hub_plan::{
        PredecessorState, SimulatedHub, SimulatedStorage, SimulatedSuccession, hub_in_memory,
        hub_in_succession, hub_on_simulated_disks,
    };
    pub use crate::lifecycle::{Lifecycle, LifecyclePhase, WallClock};
    pub use crate::shard::{Endpoint, ShardHub, ShardMail, ShardService, ShardSession};
    pub use crate::syslog::SyslogTransport;
}

use std::io::Write;

/// Serves `routes` until SIGTERM or SIGINT, says on standard output where it listens, and drains at the end.
/// [`Server`] is the same in steps.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(config: ServeConfig, routes: http::Routes) -> Result<(), ServeError> {
    let server = Server::bind(config, routes)?;
    server.watch_signals()?;
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stdout(), "{}", server.banner().join("\n"));
    server.run().map(drop)
}
