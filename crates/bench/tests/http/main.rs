//! The HTTP generator over real sockets, on both drivers and with direct descriptors: against servers with every fault
//! that it must detect, and against the real server.
#![cfg(target_os = "linux")]

mod fake;
mod faulty_servers;
mod real_servers;

use std::net::SocketAddr;

use stilling::DriverChoice;
use stilling_bench::http::{HttpPlan, RunLength, Url};

const DRIVERS: [DriverChoice; 2] = [DriverChoice::Uring, DriverChoice::Poll];

/// A small plan: `requests` requests over a single connection.
fn plan(address: SocketAddr, path: &str, requests: u64, driver: DriverChoice) -> HttpPlan {
    let mut plan = HttpPlan::new(Url::parse(&format!("http://{address}{path}")).expect("a URL"));
    plan.connections = 1;
    plan.length = RunLength::Requests(requests);
    plan.driver = driver;
    plan
}
