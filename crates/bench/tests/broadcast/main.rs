//! The broadcast generator over real sockets, against a correct server and against servers with every fault that must
//! be detected.
#![cfg(target_os = "linux")]

mod auctions;
mod correct_servers;
mod fake;
mod faulty_servers;
mod real_servers;

use std::net::SocketAddr;
use std::time::Duration;

use stilling_bench::broadcast::BroadcastPlan;

/// Maximum time without a delivery, for loopback connections to an open listener.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A small plan: 40 messages to three subscribers, in batches of four.
fn plan(to: SocketAddr) -> BroadcastPlan {
    BroadcastPlan {
        subscribers: 3,
        size: 32,
        window: 8,
        messages: Some(40),
        span: None,
        timeout: TIMEOUT,
        ..BroadcastPlan::new(to)
    }
}
