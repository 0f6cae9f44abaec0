//! Connection of a client: output, input, and decoding of the input.

use std::io::ErrorKind;

use crate::SplitMix64;
use crate::network::{Address, Network, PeerKey, SimPeer};

/// A connection, or none at the moment.
#[derive(Debug, Default)]
pub(super) struct ClientWire {
    peer: Option<SimPeer>,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    pub(super) attempt: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum WireInput {
    Pong,
    Ping,
    Info,
    Error(String),
    Message(NatsMessage),
}

/// Input of a NATS client that concerns what it does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NatsInput {
    Pong,
    Message(NatsMessage),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct NatsMessage {
    pub(super) subject: String,
    /// Id of the subscription.
    pub(super) sid: String,
    /// Empty without one.
    pub(super) reply: String,
    pub(super) payload: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum WireError {
    /// A violation by the server.
    Wrong(String),
    Ended(String),
}

impl ClientWire {
    pub(super) fn key(&self) -> Option<PeerKey> {
        self.peer.as_ref().map(SimPeer::key)
    }

    pub(super) fn is_open(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.peer.as_ref().is_some_and(SimPeer::is_damaged)
    }

    pub(super) fn dial(&mut self, network: &Network, to: &Address) {
        self.peer = Some(network.connect(to.clone(), None));
        self.attempt += 1;
        self.inbox.clear();
        self.outbox.clear();
    }

    pub(super) fn hang_up(&mut self) {
        self.peer = None;
    }

    pub(super) fn line(&mut self, line: &str) {
        self.outbox.extend_from_slice(line.as_bytes());
        self.outbox.extend_from_slice(b"\r\n");
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.outbox.extend_from_slice(bytes);
    }

    /// Publishes, with a reply subject and a message id unless they are empty.
    pub(super) fn publish(&mut self, subject: &str, reply: &str, id: &str, payload: &[u8]) {
        let space = if reply.is_empty() { "" } else { " " };
        if id.is_empty() {
            self.line(&format!("PUB {subject}{space}{reply} {}", payload.len()));
        } else {
            let head = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
            self.line(&format!("HPUB {subject}{space}{reply} {} {}", head.len(), head.len() + payload.len()));
            self.bytes(head.as_bytes());
        }
        self.bytes(payload);
        self.bytes(b"\r\n");
    }

    /// Writes as much as possible, in pieces of random sizes.
    pub(super) fn flush(&mut self, random: &mut SplitMix64) -> Result<(), WireError> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        match peer.connected() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(WireError::Ended(format!("it was refused: {error}"))),
        }
        while !self.outbox.is_empty() {
            let all = self.outbox.len() as u64;
            let some = if random.chance(700) { all } else { random.between(1, all.min(500)) };
            match peer.write(&self.outbox[..some as usize]) {
                Ok(taken) => drop(self.outbox.drain(..taken)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(WireError::Ended(format!("a write failed: {error}"))),
            }
        }
        Ok(())
    }

    /// Whether the connection is established.
    pub(super) fn is_connected(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| matches!(peer.connected(), Ok(true)))
    }

    /// Bytes received and not consumed.
    pub(super) fn received(&self) -> &[u8] {
        &self.inbox
    }

    pub(super) fn consume(&mut self, len: usize) {
        self.inbox.drain(..len);
    }

    /// Reads available bytes. Returns whether the end follows them.
    pub(super) fn fill(&mut self) -> Result<bool, WireError> {
        self.fill_at_most(usize::MAX)
    }

    /// Reads at most `most` of the available bytes. Returns whether the end follows them.
    pub(super) fn fill_at_most(&mut self, most: usize) -> Result<bool, WireError> {
        let mut into = [0; 4096];
        let mut rest = most;
        if !self.is_connected() {
            return Ok(false);
        }
        let Some(peer) = &mut self.peer else { return Ok(false) };
        while rest > 0 {
            let len = rest.min(into.len());
            match peer.read(&mut into[..len]) {
                Ok(0) => return Ok(true),
                Ok(len) => {
                    self.inbox.extend_from_slice(&into[..len]);
                    rest -= len;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(WireError::Ended(format!("a read failed: {error}"))),
            }
        }
        Ok(false)
    }

    pub(super) fn next_input(&mut self) -> Result<Option<WireInput>, WireError> {
        let Some(end) = find(&self.inbox, b"\r\n") else { return Ok(None) };
        let line = String::from_utf8_lossy(&self.inbox[..end]).into_owned();
        let words: Vec<&str> = line.split(' ').collect();
        let (subject, sid, reply, headers, size) = match words[..] {
            ["MSG", subject, sid, size] => (subject, sid, "", "0", size),
            ["MSG", subject, sid, reply, size] => (subject, sid, reply, "0", size),
            ["HMSG", subject, sid, headers, size] => (subject, sid, "", headers, size),
            ["HMSG", subject, sid, reply, headers, size] => (subject, sid, reply, headers, size),
            _ => {
                self.inbox.drain(..end + 2);
                return match words[0] {
                    "PONG" => Ok(Some(WireInput::Pong)),
                    "PING" => Ok(Some(WireInput::Ping)),
                    "INFO" => Ok(Some(WireInput::Info)),
                    "-ERR" => Ok(Some(WireInput::Error(line))),
                    _ => Err(WireError::Wrong(format!("unexpected line {line}"))),
                };
            }
        };
        let (Ok(headers), Ok(size)) = (headers.parse::<usize>(), size.parse::<usize>()) else {
            return Err(WireError::Wrong(format!("no sizes: {line}")));
        };
        let start = end + 2;
        let Some(body) = self.inbox.get(start..start + size + 2) else { return Ok(None) };
        let Some(payload) = body.strip_suffix(b"\r\n").and_then(|body| body.get(headers..)) else {
            return Err(WireError::Wrong(format!("message length does not match its header: {line}")));
        };
        let message = NatsMessage {
            subject: subject.to_owned(),
            sid: sid.to_owned(),
            reply: reply.to_owned(),
            payload: payload.to_vec(),
        };
        self.inbox.drain(..start + size + 2);
        Ok(Some(WireInput::Message(message)))
    }

    /// The next NATS message or PONG. Answers PING.
    pub(super) fn next_nats(&mut self) -> Result<Option<NatsInput>, WireError> {
        while let Some(input) = self.next_input()? {
            match input {
                WireInput::Info => {}
                WireInput::Ping => self.line("PONG"),
                WireInput::Pong => return Ok(Some(NatsInput::Pong)),
                WireInput::Error(line) => return Err(WireError::Ended(line)),
                WireInput::Message(message) => return Ok(Some(NatsInput::Message(message))),
            }
        }
        Ok(None)
    }

    /// Decodes the next HTTP response: its status, its body, and whether the connection is kept.
    pub(super) fn next_answer(&mut self) -> Result<Option<(u16, String, bool)>, WireError> {
        let Some(end) = find(&self.inbox, b"\r\n\r\n") else { return Ok(None) };
        let head = String::from_utf8_lossy(&self.inbox[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let field = |name: &str| {
            head.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let length = field("content-length").and_then(|value| value.parse::<usize>().ok());
        let (Some(status), Some(length)) = (status, length) else {
            return Err(WireError::Wrong(format!("no status or length: {head}")));
        };
        let Some(body) = self.inbox.get(end + 4..end + 4 + length) else { return Ok(None) };
        let body = String::from_utf8_lossy(body).into_owned();
        self.inbox.drain(..end + 4 + length);
        let is_kept = !field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        Ok(Some((status, body, is_kept)))
    }

    pub(super) fn describe(&self) -> String {
        let got = String::from_utf8_lossy(&self.inbox[..self.inbox.len().min(200)]).into_owned();
        format!("connection {}, {} bytes unsent, got {got:?}", self.attempt, self.outbox.len())
    }
}

pub(super) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The number of a key in a small JSON text.
pub(super) fn number_of(text: &str, key: &str) -> Option<u64> {
    let (_, behind) = text.split_once(&format!("\"{key}\":"))?;
    behind.trim_start().split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}
