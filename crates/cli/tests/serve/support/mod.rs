//! What the tests stand on: a server process that ends with its test, raw peers, the metrics.

mod control;
mod metrics;
mod server;
mod tool;

pub(crate) use control::ControlPeer;
pub(crate) use metrics::{Metrics, MetricsClient};
pub(crate) use server::{DriverUnderTest, ServerUnderTest, binary};
pub(crate) use stilling_probe::{HANG, TestPeer, eventually};
pub(crate) use tool::Tool;
