//! Support for the tests: servers in this process, raw peers, controlled sources.

mod server;
mod source;

pub(crate) use server::HttpTestServer;
pub(crate) use source::{CountedSource, channel_source, pattern};
pub(crate) use stilling_probe::{HANG_TIMEOUT, TestPeer, TestResponse, eventually};

/// A request without a body on a persistent connection.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}
