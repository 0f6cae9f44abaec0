//! A custom UDP protocol: a shared counter.
//!
//! ```text
//! cargo run -p stilling --example own_datagrams
//! echo add 5 | socat - udp:127.0.0.1:9000        # answers "5"
//! ```

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use stilling::engine::driver::poll::Poll;
use stilling::engine::driver::{Datagram, Driver};
use stilling::engine::{Clock, DatagramIo, Io, Service, Session, Shard, ShardConfig, Wake, net};

/// The state of the protocol. One shard owns it, so it needs no lock.
struct DatagramCounter {
    total: u64,
}

impl Service for DatagramCounter {
    type Session = NoConnections;
    type Mail = ();

    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        let text = std::str::from_utf8(datagram.payload).unwrap_or_default();
        let answer = match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["add", number] => match number.parse::<u64>() {
                Ok(number) => {
                    self.total = self.total.saturating_add(number);
                    self.total.to_string()
                }
                Err(error) => format!("`{number}`: {error}"),
            },
            ["read"] => self.total.to_string(),
            _ => "send `add NUMBER` or `read`".to_owned(),
        };
        // Ignored: a short reply has room, and datagrams may be lost anyway.
        let _ = io.reply(answer.as_bytes());
    }

    fn accepted(&mut self, _listener: u32) -> NoConnections {
        NoConnections
    }
}

/// Without a listener there are no connections.
struct NoConnections;

impl Session for NoConnections {
    type Service = DatagramCounter;

    fn received(&mut self, bytes: &[u8], _io: &mut Io<'_>, _service: &mut DatagramCounter) -> usize {
        bytes.len()
    }
}

fn main() -> std::io::Result<()> {
    let address: Option<SocketAddr> = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let socket = net::bind_udp(address.unwrap_or(([127, 0, 0, 1], 9000).into()))?;
    writeln!(std::io::stdout(), "counting on {}", net::local_addr(&socket)?)?;
    let driver = Poll::new()?;
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let config = ShardConfig { capacity: 1, ..ShardConfig::default() };
    let mut shard =
        Shard::new(driver, DatagramCounter { total: 0 }, config, Clock::real(), wake, Arc::default());
    shard.receive_datagrams(socket)?;
    shard.run()
}
