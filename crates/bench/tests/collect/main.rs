//! The generators of messages over real sockets, against a server that does as it should and against servers that lie in
//! every way that must be noticed.
#![cfg(target_os = "linux")]

mod correct_servers;
mod crash;
mod fake;
mod faulty_servers;
mod other_servers;

use std::net::SocketAddr;
use std::time::Duration;

use stilling_bench::collect::CollectPlan;

/// A small plan: so many messages of one client, few at a time.
fn plan(address: SocketAddr, messages: u64) -> CollectPlan {
    CollectPlan {
        clients: 1,
        size: 64,
        window: 4,
        messages: Some(messages),
        span: None,
        // Of loopback connections to a listener that is there.
        timeout: Duration::from_secs(20),
        ..CollectPlan::new(address)
    }
}
