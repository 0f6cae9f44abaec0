//! Sends every message to every subscriber from one shared log: encoded once, one send per subscriber with everything
//! new.
//!
//! ```text
//!   publisher ─► encode as MSG lines ─► log: ───────────────●────────●── end
//!                                            subscriber 1 ──┘        │
//!                                            subscribers 2, 3 … ─────┘
//! ```
//!
//! A subscriber is an offset into the log. All subscribers have the same subscription id, so all read the same bytes.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use rustix::net::{SendFlags, send};

use crate::PeerResult;
use crate::nats::{self, NatsCommand};
use crate::net::{self, PeerConnection, PeerService};

pub(crate) fn run(address: SocketAddr) -> PeerResult {
    let listener = net::listen(address, None)?;
    net::announce("nats", &listener)?;
    Ok(net::serve(&listener, &mut PeerBroadcast::default())?)
}

struct LogReader {
    stream: Arc<TcpStream>,
    offset: usize,
}

#[derive(Default)]
struct PeerBroadcast {
    /// Message lines that not all subscribers have received.
    log: Vec<u8>,
    /// The id of all subscriptions.
    sid: Vec<u8>,
    readers: Vec<LogReader>,
}

impl PeerService for PeerBroadcast {
    /// So long that the messages of a large window become one send.
    const READ_SIZE: usize = 256 * 1024;

    fn greeting(&self) -> &'static [u8] {
        nats::INFO
    }

    fn receive(&mut self, connection: &mut PeerConnection, input: &[u8]) -> Option<usize> {
        let mut answers = Vec::new();
        let mut consumed = 0;
        while let Some((command, size)) = nats::next(&input[consumed..]).ok()? {
            consumed += size;
            match command {
                NatsCommand::Pub { subject, body, .. } => {
                    nats::push_msg_line(&mut self.log, subject, &self.sid, body.len() - nats::CRLF.len());
                    self.log.extend_from_slice(body);
                }
                NatsCommand::Sub { sid, .. } => {
                    // Another id needs other bytes.
                    if !self.readers.is_empty() && sid != self.sid {
                        return None;
                    }
                    sid.clone_into(&mut self.sid);
                    // What was published before is not for this subscriber.
                    self.send_log();
                    self.readers.push(LogReader { stream: Arc::clone(&connection.stream), offset: 0 });
                }
                NatsCommand::Ping => answers.extend_from_slice(nats::PONG),
                NatsCommand::Other => {}
            }
        }
        self.send_log();
        connection.send(&answers).ok()?;
        Some(consumed)
    }

    fn close(&mut self, connection: &PeerConnection) {
        self.readers.retain(|reader| !Arc::ptr_eq(&reader.stream, &connection.stream));
    }
}

impl PeerBroadcast {
    /// Sends the log to all subscribers and empties it. A subscriber without room does not delay those behind it; it is
    /// waited for at the end, and closed if it does not read in time.
    fn send_log(&mut self) {
        let PeerBroadcast { log, readers, .. } = self;
        if log.is_empty() {
            return;
        }
        for reader in readers.iter_mut() {
            // An error returns with the next send.
            let sent = send(&*reader.stream, log, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            reader.offset = sent.unwrap_or(0);
        }
        readers.retain_mut(|reader| {
            let is_sent = send_rest(&reader.stream, &log[reader.offset..]).is_ok();
            reader.offset = 0;
            if !is_sent {
                let _ = reader.stream.shutdown(Shutdown::Both);
            }
            is_sent
        });
        log.clear();
    }
}

/// Waits until the rest is sent.
fn send_rest(mut stream: &TcpStream, rest: &[u8]) -> io::Result<()> {
    if rest.is_empty() { Ok(()) } else { stream.write_all(rest) }
}
