//! The generators of messages over real sockets, against a server that does as it should and against servers that lie in
//! every way that must be noticed.
#![cfg(target_os = "linux")]

mod crash;
mod fake;
mod others;
mod right;
mod wrong;

use std::net::SocketAddr;
use std::time::Duration;

use stilling_bench::collect::Plan;

/// A small plan: so many messages of one client, few at a time.
fn plan(address: SocketAddr, messages: u64) -> Plan {
    Plan {
        clients: 1,
        size: 64,
        window: 4,
        messages: Some(messages),
        span: None,
        // Of loopback connections to a listener that is there.
        timeout: Duration::from_secs(20),
        ..Plan::new(address)
    }
}
