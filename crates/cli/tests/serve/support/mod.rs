//! Common test support: a server process that ends with its test, raw peers, metrics.

mod browser;
mod control;
mod disk_fault;
mod metrics;
mod server;
mod tool;
mod websocket;

pub(crate) use browser::{Browser, BrowserPage};
pub(crate) use control::ControlPeer;
pub(crate) use disk_fault::DiskFault;
pub(crate) use metrics::{Metrics, MetricsClient};
pub(crate) use server::{DriverUnderTest, ServerUnderTest, binary};
pub(crate) use stilling_probe::{HANG_TIMEOUT, TestPeer, eventually};
pub(crate) use tool::Tool;
pub(crate) use websocket::RawWebSocket;
