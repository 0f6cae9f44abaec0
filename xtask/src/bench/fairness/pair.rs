//! The well-behaved pair: a publisher that waits for each acknowledgement, a subscriber that reads at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::FairnessServer;
use crate::XtaskResult;

/// Time between two messages.
const PACE: Duration = Duration::from_millis(2);

/// Time without input after which a connection counts as cut off.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The 99th percentiles of one measurement, and its longest latency.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairFigures {
    /// From sending a message to its acknowledgement.
    pub(super) ack: Duration,
    /// From sending a message to its delivery.
    pub(super) delivery: Duration,
    /// The longest of both.
    pub(super) longest: Duration,
    pub(super) disconnects: u64,
}

pub(in crate::bench) struct PairConnection {
    pub(in crate::bench) write: TcpStream,
    read: BufReader<TcpStream>,
}

impl PairConnection {
    pub(in crate::bench) fn open(to: SocketAddr) -> XtaskResult<PairConnection> {
        let write = TcpStream::connect(to)?;
        write.set_nodelay(true)?;
        write.set_read_timeout(Some(SILENCE_MAX))?;
        let read = BufReader::new(write.try_clone()?);
        let mut connection = PairConnection { write, read };
        connection.write.write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\n")?;
        Ok(connection)
    }

    /// Sends a PING and reads up to its PONG.
    pub(super) fn round_trip(&mut self) -> XtaskResult {
        self.write.write_all(b"PING\r\n")?;
        let mut line = String::new();
        while line != "PONG\r\n" {
            line.clear();
            if self.read.read_line(&mut line)? == 0 {
                return Err("the connection was closed before its PONG".into());
            }
        }
        Ok(())
    }

    /// The payload of the next message; `None` if the connection has ended.
    pub(in crate::bench) fn next_message(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.read.read_line(&mut line).ok()? == 0 || line.starts_with("-ERR") {
                return None;
            }
            if line.starts_with("PING") {
                self.write.write_all(b"PONG\r\n").ok()?;
            }
            if line.starts_with("MSG ") || line.starts_with("HMSG ") {
                let size: usize = line.trim_end().rsplit(' ').next()?.parse().ok()?;
                let mut payload = vec![0; size + 2];
                self.read.read_exact(&mut payload).ok()?;
                payload.truncate(size);
                return Some(payload);
            }
        }
    }
}

pub(super) fn measure(server_addresses: FairnessServer, span: Duration) -> XtaskResult<PairFigures> {
    let mut subscriber = PairConnection::open(server_addresses.nats)?;
    subscriber.write.write_all(b"SUB fair.pair 1\r\n")?;
    subscriber.round_trip()?;
    let mut publisher = PairConnection::open(server_addresses.nats)?;
    publisher.write.write_all(b"SUB _INBOX.fair 1\r\n")?;
    publisher.round_trip()?;
    let began = Instant::now();
    let listening = thread::spawn(move || subscribe(&mut subscriber, began));
    let mut acks = Vec::new();
    let mut disconnects = 0;
    while began.elapsed() < span {
        let sent = Instant::now();
        if publish(&mut publisher, &sent.duration_since(began).as_nanos().to_string()).is_none() {
            disconnects += 1;
            break;
        }
        acks.push(sent.elapsed());
        thread::sleep(PACE.saturating_sub(sent.elapsed()));
    }
    if disconnects == 0 && publish(&mut publisher, "end").is_none() {
        disconnects += 1;
    }
    let (deliveries, is_whole) = listening.join().map_err(|_| "the subscriber panicked")?;
    disconnects += u64::from(!is_whole);
    let longest = acks.iter().chain(&deliveries).max().copied().unwrap_or_default();
    Ok(PairFigures { ack: p99(acks), delivery: p99(deliveries), longest, disconnects })
}

/// Publishes and waits for the acknowledgement.
fn publish(publisher: &mut PairConnection, text: &str) -> Option<()> {
    let line = format!("PUB fair.pair _INBOX.fair {}\r\n{text}\r\n", text.len());
    publisher.write.write_all(line.as_bytes()).ok()?;
    let answer = publisher.next_message()?;
    (!String::from_utf8_lossy(&answer).contains("\"error\"")).then_some(())
}

/// Reads until the end message. Returns the latencies, and whether the end message arrived.
fn subscribe(subscriber: &mut PairConnection, began: Instant) -> (Vec<Duration>, bool) {
    let mut spans = Vec::new();
    while let Some(payload) = subscriber.next_message() {
        let text = String::from_utf8_lossy(&payload).into_owned();
        let Ok(sent) = text.parse::<u64>() else { return (spans, text == "end") };
        spans.push(began.elapsed().saturating_sub(Duration::from_nanos(sent)));
    }
    (spans, false)
}

fn p99(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans.get(spans.len() * 99 / 100).copied().unwrap_or_default()
}
