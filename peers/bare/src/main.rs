//! The I/O of six jobs and nothing else: a lower bound for the benchmarks of all servers.
//!
//! `http` answers requests, `relay` forwards messages, `broadcast` forwards them from one shared log, `durable` stores
//! and acknowledges them, `coap` answers datagrams, `worker` answers the requests of a server in front of it. Each finds the end of a request or message, makes its system calls, and has no routes, limits,
//! counters or timers.
#![forbid(unsafe_code)]

mod broadcast;
mod coap;
mod durable;
mod http;
mod log;
mod nats;
mod net;
mod relay;
mod worker;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

type PeerResult = Result<(), Box<dyn Error>>;

const USAGE: &str = "usage: stilling-peer-bare http ADDRESS THREADS | relay ADDRESS | broadcast ADDRESS | durable ADDRESS FILE | coap ADDRESS SIZE | coap-blocking ADDRESS SIZE MS | worker SOCKET MS SIZE";

fn main() -> PeerResult {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["http", address, threads] => http::run(address.parse()?, threads.parse()?),
        ["relay", address] => relay::run(address.parse()?),
        ["broadcast", address] => broadcast::run(address.parse()?),
        ["durable", address, file] => durable::run(address.parse()?, Path::new(file)),
        ["coap", address, size] => coap::run(address.parse()?, size.parse()?),
        ["coap-blocking", address, size, work] => {
            coap::run_blocking(address.parse()?, size.parse()?, Duration::from_millis(work.parse()?))
        }
        ["worker", socket, work, size] => {
            worker::run(Path::new(socket), Duration::from_millis(work.parse()?), size.parse()?)
        }
        _ => Err(USAGE.into()),
    }
}
