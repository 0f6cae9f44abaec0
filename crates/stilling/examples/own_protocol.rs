//! A custom protocol on the engine's sessions: an echo server on every core.
//!
//! ```text
//! cargo run -p stilling --example own_protocol
//! curl telnet://127.0.0.1:9000
//! ```
//!
//! One shard per core, each with its own thread and its own listener on the same port. The shards share nothing.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use stilling::engine::driver::Driver;
use stilling::engine::driver::poll::Poll;
use stilling::engine::driver::uring::Uring;
use stilling::engine::net::{self, ListenOptions};
use stilling::engine::{Clock, CloseReason, Io, Service, Session, Shard, ShardConfig, Wake};

struct OwnProtocolService;

struct OwnProtocolSession;

impl Service for OwnProtocolService {
    type Session = OwnProtocolSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> OwnProtocolSession {
        OwnProtocolSession
    }
}

impl Session for OwnProtocolSession {
    type Service = OwnProtocolService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut OwnProtocolService) -> usize {
        // Backpressure: consumes only as many bytes as can be sent.
        let count = bytes.len().min(io.room());
        if io.send(&bytes[..count]).is_err() {
            io.abort(CloseReason::OutputFull);
        }
        if count < bytes.len() {
            io.call_again();
        }
        count
    }
}

fn serve<D: Driver<Socket = std::os::fd::OwnedFd>>(driver: D, address: SocketAddr) -> std::io::Result<()> {
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let mut shard =
        Shard::new(driver, OwnProtocolService, ShardConfig::default(), Clock::real(), wake, Arc::default());
    shard.listen(net::listen_tcp(address, &ListenOptions::default())?, false)?;
    shard.run()
}

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let address = address.unwrap_or(([127, 0, 0, 1], 9000).into());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let shards: Vec<_> = (0..cores)
        .map(|_| {
            std::thread::spawn(move || match Uring::new() {
                Ok(driver) => serve(driver, address),
                Err(_) => serve(Poll::new()?, address),
            })
        })
        .collect();
    writeln!(std::io::stdout(), "echoing on {address}")?;
    for shard in shards {
        shard.join().expect("a shard does not panic")?;
    }
    Ok(())
}
