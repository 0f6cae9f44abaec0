//! What the tests stand on: servers in this process, raw peers, sources that do as they are told.

mod served;
mod source;

pub(crate) use served::Served;
pub(crate) use source::{Watched, feed, pattern};
pub(crate) use stilling_probe::{Answer, HANG, Peer, eventually};

/// A request without a body on a kept connection.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}
