//! Stilling: a server for bursts, as a library.
//!
//! A server is a table of routes. A handler is a plain function: `inline` handlers run in a shard, an event loop on a
//! thread of its own, and must be quick; `worker` handlers run in a bounded thread pool and may block.
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
//!             let day: u32 = day.parse().map_err(|_| Status::BadRequest)?;
//!             let file = std::fs::File::open(format!("reports/{day}"));
//!             file.map(|file| Response::stream("text/csv", file)).map_err(|_| Status::NotFound)
//!         });
//!     stilling::serve(ServeConfig::default(), routes)
//! }
//! ```
//!
//! `examples/` has more: slow work, a JSON API, a socket handed to a worker, and custom protocols on the [`engine`]'s
//! sessions and datagrams.
//!
//! A [`gate`] decides which messages enter a stream.
//!
//! A custom [`protocol`] has its own listener beside those for HTTP, NATS and syslog. Its sessions run in the same
//! shards and can publish messages.
//!
//! Every server also answers `/status`, `/metrics`, `/livez` and `/readyz`, drains on SIGTERM and SIGINT, and bounds
//! all memory that clients can occupy (`docs/limits.md`).
#![forbid(unsafe_code)]

mod addresses;
mod coap;
mod config;
mod control_frames;
mod data_directory;
mod descriptor_budget;
mod exposure;
pub mod hand_over;
pub mod http;
mod hub;
mod hub_plan;
mod lifecycle;
mod listener_monitor;
mod listeners;
mod log;
mod memory;
mod metrics;
mod nats;
mod overview;
mod packet_log;
pub mod protocol;
mod rates;
mod reload;
mod running_server;
mod server;
pub mod settings;
mod shard;
mod socket_file;
mod sse;
mod syslog;
pub mod upstream;
mod users;
mod volume_monitor;
mod websocket;

pub use coap::UnprovenPeers;
pub use config::{Admin, HubThread, ServeConfig, ServeError};
pub use data_directory::DataDirectory;
pub use exposure::Exposure;
pub use listener_monitor::ListenerMonitor;
pub use metrics::render as render_metrics;
pub use overview::Overview;
pub use packet_log::{CaptureCounters, PacketLogConfig, PacketLogCounters};
pub use running_server::{RunningServer, Stopper};
pub use server::Server;
pub use stilling_engine as engine;
pub use stilling_engine::driver::choice::DriverChoice;
pub use stilling_workers::processes::ProcessLimits;
pub use stilling_workers::{PoolScaling, QueueTarget};

/// Gates: business logic that decides what enters a stream. Register one in
/// [`MessagingConfig::gates`](settings::MessagingConfig::gates), and name it in
/// [`StreamConfig::gate`](settings::StreamConfig::gate); `examples/gate.rs` is one.
pub mod gate {
    pub use stilling_hub::{
        AuctionGate, Gate, GateMessage, GateRecord, GateRecords, GateRegistry, RejectReason, StatelessGate,
        UnixNanos, Verdict,
    };
}

/// Parts of a server, for programs that assemble their own, such as the simulator. A program that only reads an
/// [`Overview`] needs [`HttpCounters`](parts::HttpCounters).
pub mod parts {
    pub use crate::coap::{CoapCounters, CoapEndpoint, DatagramClass};
    pub use crate::hand_over::succession::{
        PredecessorDrain, PredecessorEvent, Succession, SuccessionAction,
    };
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
    pub use crate::upstream::simulated::SimulatedPool;
}

use std::io::Write;

/// Binds, prints the listening addresses on standard output, serves `routes` until SIGTERM or SIGINT, and drains.
/// [`Server`] offers the same in steps.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(config: ServeConfig, routes: http::Routes) -> Result<(), ServeError> {
    let server = Server::bind(config, routes)?;
    server.watch_signals()?;
    // Standard output may be closed.
    let _ = writeln!(std::io::stdout(), "{}", server.banner().join("\n"));
    server.run().map(drop)
}
