//! A gate of a program: 100 tickets are sold, and never more.
//!
//! ```text
//! cargo run -p stilling --example gate
//! curl -d 60 http://127.0.0.1:9000/publish/tickets.ann        # {"stream":"tickets","first":1,"last":1}
//! curl -d 60 http://127.0.0.1:9000/publish/tickets.bo         # 40 tickets are left
//! ```

use std::error::Error;

use stilling::ServeConfig;
use stilling::gate::{Gate, GateMessage, GateRecord, UnixNanos, Verdict};
use stilling::http::Routes;
use stilling::settings::{Durability, StreamConfig};

/// The number of tickets that are left.
struct TicketGate(u64);

impl Gate for TicketGate {
    fn judge(&self, message: &GateMessage<'_>, _now: UnixNanos) -> Verdict {
        match count(message.payload) {
            Some(count) if (1..=self.0).contains(&count) => Verdict::Accept,
            Some(_) => Verdict::reject(format_args!("{} tickets are left", self.0)),
            None => Verdict::reject("send the number of tickets"),
        }
    }

    fn apply(&mut self, record: &GateRecord<'_>) {
        self.0 = self.0.saturating_sub(count(record.payload).unwrap_or(0));
    }

    fn snapshot(&self, into: &mut Vec<u8>) {
        into.extend(self.0.to_le_bytes());
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = u64::from_le_bytes(snapshot.try_into().map_err(|_| "a snapshot has 8 bytes")?);
        Ok(())
    }
}

fn count(payload: &[u8]) -> Option<u64> {
    std::str::from_utf8(payload).ok()?.parse().ok()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = ServeConfig::default();
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:9000".to_owned());
    config.listen = vec![address.parse()?];
    config.hub.nats = vec!["127.0.0.1:0".parse()?];
    config.hub.gates.register("tickets", || TicketGate(100));
    let mut stream = StreamConfig::new("tickets", ["tickets.*"]);
    (stream.gate, stream.durability) = (Some("tickets".to_owned()), Durability::Memory);
    config.hub.streams = vec![stream];
    Ok(stilling::serve(config, Routes::new())?)
}
