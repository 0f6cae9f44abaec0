//! Bulk data through one shard: a server that receives into nothing, or sends one shared block again and again.
//!
//! ```text
//! cargo run --release -p stilling-engine --example bulk -- uring source
//! nc 127.0.0.1 PORT | pv >/dev/null
//! ```
//!
//! `sink` reads everything and answers with the number of bytes; `source` writes the bytes 0 to 255 until its peer closes.
//! The driver is `uring` or `poll`. `cargo xtask bench tcl` measures it beside Tcl's channels.

use std::error::Error;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use stilling_engine::driver::Driver;
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::net::{self, ListenOptions};
use stilling_engine::{
    BlockWriter, Clock, CloseReason, Io, Service, Session, Shard, ShardConfig, SharedBlock, Wake,
};

/// Bytes of the shared block, and most unsent bytes of a connection.
const BLOCK_SIZE: usize = 256 * 1024;

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BulkRole {
    Sink,
    Source,
}

struct BulkService {
    role: BulkRole,
    block: SharedBlock,
}

struct BulkSession {
    role: BulkRole,
    received: u64,
}

impl Service for BulkService {
    type Session = BulkSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> BulkSession {
        BulkSession { role: self.role, received: 0 }
    }
}

impl BulkSession {
    /// Sends the block; `received` is called when the system has all of it.
    fn send_block(&self, io: &mut Io<'_>, block: &SharedBlock) {
        match io.send_shared(block, 0..BLOCK_SIZE) {
            Ok(()) => io.call_again(),
            Err(_) => io.abort(CloseReason::OutputFull),
        }
    }
}

impl Session for BulkSession {
    type Service = BulkService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut BulkService) {
        if self.role == BulkRole::Source {
            io.set_send_max(BLOCK_SIZE);
            self.send_block(io, &service.block);
        }
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut BulkService) -> usize {
        self.received += bytes.len() as u64;
        if self.role == BulkRole::Source {
            self.send_block(io, &service.block);
        }
        bytes.len()
    }

    fn ended(&mut self, io: &mut Io<'_>, _service: &mut BulkService) {
        let count = format!("{}\n", self.received);
        // A peer of a source has closed; what is sent then is lost.
        if self.role == BulkRole::Source || io.send(count.as_bytes()).is_ok() {
            io.finish(CloseReason::PeerClosed);
        } else {
            io.abort(CloseReason::OutputFull);
        }
    }
}

fn serve<D: Driver<Socket = OwnedFd>>(driver: D, role: BulkRole) -> Result<(), Box<dyn Error>> {
    let pattern: Vec<u8> = (0..=u8::MAX).cycle().take(BLOCK_SIZE).collect();
    let mut writer = BlockWriter::new(BLOCK_SIZE);
    writer.append(&pattern).ok_or("the block has room for its own size")?;
    let service = BulkService { role, block: writer.share() };
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let mut shard = Shard::new(driver, service, ShardConfig::default(), Clock::real(), wake, Arc::default());
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = net::listen_tcp(any_port, &ListenOptions::default())?;
    let address = net::local_addr(&listener)?;
    shard.listen(listener, false)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening http://{address}")?;
    stdout.flush()?;
    Ok(shard.run()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let role = match words.get(1) {
        Some(&"sink") => BulkRole::Sink,
        Some(&"source") => BulkRole::Source,
        _ => return Err("usage: bulk uring|poll sink|source".into()),
    };
    match words[0] {
        "uring" => serve(Uring::new()?, role),
        "poll" => serve(Poll::new()?, role),
        other => Err(format!("unknown driver {other}: uring or poll").into()),
    }
}
