//! Connections that a worker serves: synchronously, or with an event loop of its own.
//!
//! ```text
//! cargo run -p stilling --example delegated
//! curl -N telnet://127.0.0.1:9000        # then: GET /shout HTTP/1.1, Host: a, an empty line, words
//! ```
//!
//! `/shout` answers every line in capitals from a blocking loop in a worker thread. `/echo` hands the socket to a shard
//! that the worker creates for this connection.

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;

use stilling::engine::driver::Driver;
use stilling::engine::driver::poll::Poll;
use stilling::engine::{
    Clock, CloseReason, Detached, Io, Service, Session, Shard, ShardConfig, ShardControl, Time, Wake,
};
use stilling::http::{DelegatedConnection, Method, Response, Routes};
use stilling::{ServeConfig, ServeError};

const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: lines\r\n\r\n";

/// Row 4.4: a worker reads and writes with blocking calls.
fn shout(mut client: DelegatedConnection) -> std::io::Result<()> {
    client.write_all(SWITCH)?;
    let mut client = BufReader::new(client);
    let mut line = String::new();
    while client.read_line(&mut line)? > 0 {
        client.get_mut().write_all(line.to_uppercase().as_bytes())?;
        line.clear();
    }
    Ok(())
}

/// Row 4.5: a worker runs an event loop for one connection.
fn echo(mut client: DelegatedConnection) -> std::io::Result<()> {
    client.write_all(SWITCH)?;
    let (socket, unread) = client.into_parts();
    let driver = Poll::new()?;
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let config = ShardConfig { capacity: 1, ..ShardConfig::default() };
    let mut shard = Shard::new(driver, UpgradedService, config, Clock::real(), wake, Arc::default());
    let connection = Detached { session: UpgradedSession, socket, unread };
    // There is one slot, and it is free.
    shard.adopt(connection).map_err(|refused| std::io::Error::other(format!("{:?}", refused.error_kind)))?;
    shard.run()
}

/// The service of a shard with one connection; the shard stops when it is closed.
struct UpgradedService;

struct UpgradedSession;

impl Service for UpgradedService {
    type Session = UpgradedSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> UpgradedSession {
        UpgradedSession
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if control.is_empty() {
            control.stop();
        }
        None
    }
}

impl Session for UpgradedSession {
    type Service = UpgradedService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut UpgradedService) -> usize {
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

fn main() -> Result<(), ServeError> {
    let listen = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let listen = vec![listen.unwrap_or(([127, 0, 0, 1], 9000).into())];
    let routes = Routes::new()
        .inline(Method::Get, "/shout", |_| Response::delegate(|client| drop(shout(client))))
        .inline(Method::Get, "/echo", |_| Response::delegate(|client| drop(echo(client))));
    stilling::serve(ServeConfig { listen, ..ServeConfig::default() }, routes)
}
