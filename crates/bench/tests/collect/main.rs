//! The message generators over real sockets, against a correct server and against servers with every fault that must be
//! detected.
#![cfg(target_os = "linux")]

mod correct_servers;
mod crash;
mod fake;
mod faulty_servers;
mod other_servers;

use std::net::SocketAddr;
use std::time::Duration;

use stilling_bench::collect::CollectPlan;

/// A small plan: `messages` messages of one client, few at a time.
fn plan(address: SocketAddr, messages: u64) -> CollectPlan {
    CollectPlan {
        clients: 1,
        size: 64,
        window: 4,
        messages: Some(messages),
        span: None,
        // For loopback connections to an open listener.
        timeout: Duration::from_secs(20),
        ..CollectPlan::new(address)
    }
}
