//! What the tests stand on: a server process that ends with its test, raw peers, the metrics.

mod control;
mod metrics;
mod server;
mod tool;

pub(crate) use control::Control;
pub(crate) use metrics::{Metrics, Watcher};
pub(crate) use server::{Driver, Server, binary};
pub(crate) use stilling_probe::{HANG, Peer, eventually};
pub(crate) use tool::Tool;
