//! NATS clients of the hub, beside the HTTP clients.
//!
//! ```text
//!  publishers  publish each message to the stream and one to a live subject; the acknowledgements and their own live
//!              messages must arrive in order, before the PONG
//!  subscribers receive the live messages of all publishers, those of each publisher in order
//!  the auditor comes last and reads the stream until it is quiet: each acknowledged message once, at its position, and
//!              no other record
//! ```
//!
//! A connection damaged by the network is retried with the unacknowledged messages, under the same message ids.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use stilling_ring::Time;

use super::HttpClientContext;
use crate::SplitMix64;
use crate::network::{PeerKey, SimPeer};

const MESSAGES_MAX: u64 = 40;

/// Most payload bytes of a message after its number.
const PADDING_MAX: u64 = 3000;

/// Time without a record after which the auditor takes the stream's end as reached.
const QUIET: Duration = Duration::from_millis(50);

/// A publisher's connection number and message number.
type PublishAttempt = (u32, u32);

/// Results shared by all NATS clients.
#[derive(Debug, Default)]
pub(super) struct NatsTally {
    /// Acknowledged stream position of each message, by publisher and message number.
    acknowledged: BTreeMap<(usize, u32), u64>,
    pub(super) messages_received: u64,
    pub(super) records_audited: u64,
}

impl NatsTally {
    /// Checks that record number `record` is the message that was acknowledged at this position.
    fn check_record(
        &self,
        record: u64,
        subject: &str,
        reply: &str,
        payload: &str,
    ) -> Result<(), NatsClientError> {
        let (number, message) = owner(subject, payload)
            .ok_or_else(|| NatsClientError::Wrong(format!("{subject} has {payload:.40}")))?;
        let sequence = reply.split('.').nth(5).and_then(|part| part.parse().ok());
        let acknowledged = self.acknowledged.get(&(number, message)).copied();
        if sequence != Some(record) || acknowledged != sequence {
            let what = format!("message {message} of publisher {number} is at {sequence:?}");
            return Err(NatsClientError::Wrong(format!(
                "{what}, record {record}, acknowledged as {acknowledged:?}"
            )));
        }
        if payload != self::payload(number, message) {
            return Err(NatsClientError::Wrong(format!(
                "message {message} of publisher {number} is damaged"
            )));
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct SimNatsClient {
    role: NatsRole,
    wake_at: Option<Time>,
    peer: Option<SimPeer>,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    attempt: u32,
    /// PONGs received on this connection.
    pongs: u32,
    is_done: bool,
}

#[derive(Debug)]
enum NatsRole {
    Publisher {
        number: usize,
        total: u32,
        acknowledged: u32,
        echoed: u32,
    },
    Subscriber {
        last: BTreeMap<usize, PublishAttempt>,
        disconnects_at: Time,
    },
    /// It ends at `quiet_at`, unless another record arrives.
    Auditor {
        read: u64,
        quiet_at: Option<Time>,
    },
}

#[derive(Debug, PartialEq, Eq)]
enum ServerMessage {
    Pong,
    Message { subject: String, reply: String, payload: String },
    Other(String),
}

impl SimNatsClient {
    fn new(role: NatsRole, start: Time) -> SimNatsClient {
        SimNatsClient {
            role,
            wake_at: Some(start),
            peer: None,
            outbox: Vec::new(),
            inbox: Vec::new(),
            attempt: 0,
            pongs: 0,
            is_done: false,
        }
    }

    pub(super) fn publisher(number: usize, start: Time, random: &mut SplitMix64) -> SimNatsClient {
        let total = random.between(1, MESSAGES_MAX) as u32;
        SimNatsClient::new(NatsRole::Publisher { number, total, acknowledged: 0, echoed: 0 }, start)
    }

    pub(super) fn subscriber(start: Time, random: &mut SplitMix64) -> SimNatsClient {
        let disconnects_at = start.after(Duration::from_millis(random.between(50, 1500)));
        SimNatsClient::new(NatsRole::Subscriber { last: BTreeMap::new(), disconnects_at }, start)
    }

    pub(super) fn auditor(now: Time) -> SimNatsClient {
        SimNatsClient::new(NatsRole::Auditor { read: 0, quiet_at: None }, now)
    }

    pub(super) fn key(&self) -> Option<PeerKey> {
        self.peer.as_ref().map(SimPeer::key)
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        match &self.role {
            NatsRole::Subscriber { disconnects_at, .. } if !self.is_done => {
                Some(self.wake_at.map_or(*disconnects_at, |at| at.min(*disconnects_at)))
            }
            NatsRole::Auditor { quiet_at: Some(quiet_at), .. } if self.peer.is_some() => {
                Some(self.wake_at.map_or(*quiet_at, |at| at.min(*quiet_at)))
            }
            _ => self.wake_at,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    pub(super) fn step(&mut self, context: &mut HttpClientContext<'_>) -> Result<(), String> {
        if let NatsRole::Subscriber { disconnects_at, .. } = &self.role
            && context.now >= *disconnects_at
        {
            self.disconnect();
        }
        if self.is_done || self.wake_at.is_some_and(|at| context.now < at) && self.peer.is_none() {
            return Ok(());
        }
        self.wake_at = self.wake_at.filter(|at| context.now < *at);
        if self.peer.is_none() {
            self.dial(context);
        }
        match self.advance_role(context) {
            Ok(()) => {
                self.end_quiet_audit(context.now);
                Ok(())
            }
            Err(NatsClientError::Wrong(why)) => Err(self.failure_message(&why)),
            Err(NatsClientError::Ended(why)) => self.broken(&why, context),
        }
    }

    fn end_quiet_audit(&mut self, now: Time) {
        if let NatsRole::Auditor { quiet_at: Some(quiet_at), .. } = self.role
            && now >= quiet_at
        {
            self.disconnect();
        }
    }

    fn dial(&mut self, context: &HttpClientContext<'_>) {
        self.peer = Some(context.network.connect(context.hub_address.clone(), None));
        self.attempt += 1;
        self.pongs = 0;
        self.inbox.clear();
        self.outbox.clear();
        self.enqueue("CONNECT {\"verbose\":false,\"headers\":true}");
        match self.role {
            NatsRole::Publisher { number, total, acknowledged, ref mut echoed } => {
                *echoed = acknowledged;
                self.enqueue(&format!("SUB _INBOX.{number}.* 1"));
                self.enqueue(&format!("SUB live.{number} 2"));
                self.enqueue("PING");
                for message in acknowledged..total {
                    self.publish(number, message);
                }
                self.enqueue("PING");
            }
            NatsRole::Subscriber { .. } => {
                self.enqueue("SUB live.* 1");
                self.enqueue("PING");
            }
            NatsRole::Auditor { ref mut read, ref mut quiet_at } => {
                (*read, *quiet_at) = (0, None);
                let config =
                    r#"{"stream_name":"events","config":{"deliver_subject":"_D","ack_policy":"none"}}"#;
                self.enqueue("SUB _D 1");
                self.enqueue("SUB _R 2");
                self.enqueue(&format!("PUB $JS.API.CONSUMER.CREATE.events _R {}\r\n{config}", config.len()));
                self.enqueue("PING");
            }
        }
    }

    fn enqueue(&mut self, line: &str) {
        self.outbox.extend_from_slice(line.as_bytes());
        self.outbox.extend_from_slice(b"\r\n");
    }

    /// Publishes a message to the stream and one to the live subject.
    fn publish(&mut self, number: usize, message: u32) {
        let head = format!("NATS/1.0\r\nNats-Msg-Id: {number}-{message}\r\n\r\n");
        let payload = payload(number, message);
        let size = head.len() + payload.len();
        let line = format!("HPUB events.{number} _INBOX.{number}.{message} {} {size}", head.len());
        self.enqueue(&format!("{line}\r\n{head}{payload}"));
        let live = format!("{} {message}", self.attempt);
        self.enqueue(&format!("PUB live.{number} {}\r\n{live}", live.len()));
    }

    fn advance_role(&mut self, context: &mut HttpClientContext<'_>) -> Result<(), NatsClientError> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        match peer.connected() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(NatsClientError::Ended(format!("it was refused: {error}"))),
        }
        while !self.outbox.is_empty() {
            let all = self.outbox.len() as u64;
            let some = if context.random.chance(700) { all } else { context.random.between(1, all.min(500)) };
            match peer.write(&self.outbox[..some as usize]) {
                Ok(taken) => drop(self.outbox.drain(..taken)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(NatsClientError::Ended(format!("a write failed: {error}"))),
            }
        }
        let mut into = [0; 2048];
        while let Some(peer) = &mut self.peer {
            match peer.read(&mut into) {
                Ok(0) => return Err(NatsClientError::Ended("the connection ended".to_owned())),
                Ok(len) => self.inbox.extend(&into[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(NatsClientError::Ended(format!("a read failed: {error}"))),
            }
            while let Some(received) = self.next_message()? {
                self.receive_message(received, context)?;
            }
        }
        Ok(())
    }

    fn next_message(&mut self) -> Result<Option<ServerMessage>, NatsClientError> {
        let Some(end) = self.inbox.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
        let line = String::from_utf8_lossy(&self.inbox[..end]).into_owned();
        let words: Vec<&str> = line.split(' ').collect();
        let (subject, reply, headers, size) = match words[..] {
            ["PONG"] => {
                self.inbox.drain(..end + 2);
                return Ok(Some(ServerMessage::Pong));
            }
            ["MSG", subject, _, size] => (subject, "", "0", size),
            ["MSG", subject, _, reply, size] => (subject, reply, "0", size),
            ["HMSG", subject, _, headers, size] => (subject, "", headers, size),
            ["HMSG", subject, _, reply, headers, size] => (subject, reply, headers, size),
            _ => {
                self.inbox.drain(..end + 2);
                return Ok(Some(ServerMessage::Other(line)));
            }
        };
        let (Ok(headers), Ok(size)) = (headers.parse::<usize>(), size.parse::<usize>()) else {
            return Err(NatsClientError::Wrong(format!("no sizes: {line}")));
        };
        let start = end + 2;
        let Some(body) = self.inbox.get(start..start + size + 2) else { return Ok(None) };
        let Some(payload) = body.strip_suffix(b"\r\n").and_then(|body| body.get(headers..)) else {
            return Err(NatsClientError::Wrong(format!("message length does not match its header: {line}")));
        };
        let payload = String::from_utf8_lossy(payload).into_owned();
        let received =
            ServerMessage::Message { subject: subject.to_owned(), reply: reply.to_owned(), payload };
        self.inbox.drain(..start + size + 2);
        Ok(Some(received))
    }

    fn receive_message(
        &mut self,
        received: ServerMessage,
        context: &mut HttpClientContext<'_>,
    ) -> Result<(), NatsClientError> {
        if self.is_done {
            return Ok(());
        }
        let wrong = |what: &str| Err(NatsClientError::Wrong(what.to_owned()));
        match (&mut self.role, received) {
            (_, ServerMessage::Other(line)) if line.starts_with("INFO ") => {}
            (_, ServerMessage::Other(line)) if line == "PING" => self.outbox.extend_from_slice(b"PONG\r\n"),
            (_, ServerMessage::Other(line)) => {
                return Err(NatsClientError::Wrong(format!("unexpected line {line}")));
            }
            (_, ServerMessage::Pong) => return self.handle_pong(context),
            (NatsRole::Publisher { number, echoed, .. }, ServerMessage::Message { subject, payload, .. })
                if subject == format!("live.{number}") =>
            {
                if payload != format!("{} {echoed}", self.attempt) {
                    return wrong(&format!("its echo is {payload:?}, expected message {echoed}"));
                }
                *echoed += 1;
                context.nats_tally.messages_received += 1;
            }
            (
                NatsRole::Publisher { number, acknowledged, .. },
                ServerMessage::Message { subject, payload, .. },
            ) => {
                if subject != format!("_INBOX.{number}.{acknowledged}") {
                    return wrong(&format!("expected the answer to {acknowledged}, got one on {subject}"));
                }
                let Some(sequence) = sequence_of(&payload) else {
                    return wrong(&format!("{subject} was answered with {payload}"));
                };
                let is_duplicate = payload.contains("\"duplicate\":true");
                if is_duplicate && self.attempt == 1 {
                    return wrong("a message that was sent once is a duplicate");
                }
                context.nats_tally.acknowledged.insert((*number, *acknowledged), sequence);
                *acknowledged += 1;
                context.answers += 1;
            }
            (NatsRole::Subscriber { last, .. }, ServerMessage::Message { subject, payload, .. }) => {
                check_order(last, &subject, &payload)?;
                context.nats_tally.messages_received += 1;
            }
            (NatsRole::Auditor { .. }, ServerMessage::Message { subject, payload, .. })
                if subject == "_R" =>
            {
                if payload.contains("\"error\"") {
                    return wrong(&format!("there is no consumer: {payload}"));
                }
            }
            (NatsRole::Auditor { read, quiet_at }, ServerMessage::Message { subject, reply, payload }) => {
                *read += 1;
                context.nats_tally.check_record(*read, &subject, &reply, &payload)?;
                if *read == context.nats_tally.acknowledged.len() as u64 {
                    context.nats_tally.records_audited = *read;
                    *quiet_at = Some(context.now.after(QUIET));
                }
            }
        }
        Ok(())
    }

    /// Handles a PONG. A publisher's second one arrives after everything it waits for.
    fn handle_pong(&mut self, context: &HttpClientContext<'_>) -> Result<(), NatsClientError> {
        if let NatsRole::Auditor { quiet_at, .. } = &mut self.role
            && context.nats_tally.acknowledged.is_empty()
        {
            // No message was acknowledged: the stream must be empty.
            *quiet_at = Some(context.now.after(QUIET));
            return Ok(());
        }
        self.pongs += 1;
        if let NatsRole::Publisher { total, acknowledged, echoed, .. } = &self.role
            && self.pongs == 2
        {
            if acknowledged < total {
                return Err(NatsClientError::Wrong("the PONG overtook acknowledgements".to_owned()));
            }
            if echoed < total {
                return Err(NatsClientError::Wrong("the PONG overtook messages".to_owned()));
            }
            self.disconnect();
        }
        Ok(())
    }

    fn disconnect(&mut self) {
        (self.is_done, self.peer, self.wake_at) = (true, None, None);
    }

    /// Handles the end of the connection: acceptable if the network damaged it or the server drains.
    fn broken(&mut self, why: &str, context: &mut HttpClientContext<'_>) -> Result<(), String> {
        let was_damaged = self.peer.as_ref().is_some_and(SimPeer::is_damaged);
        if !was_damaged && !context.draining {
            return Err(self.failure_message(why));
        }
        self.peer = None;
        context.retries += 1;
        if context.draining {
            self.disconnect();
        } else {
            let span = context.random.between(1, 50_000_000);
            self.wake_at = Some(context.now.after(Duration::from_nanos(span)));
        }
        Ok(())
    }

    pub(super) fn failure_message(&self, what: &str) -> String {
        let got = String::from_utf8_lossy(&self.inbox[..self.inbox.len().min(300)]).into_owned();
        let unsent = self.outbox.len();
        format!("{:?}, connection {}: {what}\n  {unsent} bytes unsent, got: {got:?}", self.role, self.attempt)
    }
}

enum NatsClientError {
    /// A violation by the server.
    Wrong(String),
    Ended(String),
}

/// Checks that a live message comes after all earlier messages of its publisher.
fn check_order(
    last: &mut BTreeMap<usize, PublishAttempt>,
    subject: &str,
    payload: &str,
) -> Result<(), NatsClientError> {
    let number = subject.strip_prefix("live.").and_then(|number| number.parse().ok());
    let attempt_and_message = payload.split_once(' ');
    let attempt_and_message =
        attempt_and_message.and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    let (Some(number), Some(attempt_and_message)) = (number, attempt_and_message) else {
        return Err(NatsClientError::Wrong(format!("{subject} carries {payload:?}")));
    };
    if last.insert(number, attempt_and_message).is_some_and(|before| before >= attempt_and_message) {
        return Err(NatsClientError::Wrong(format!(
            "{attempt_and_message:?} of publisher {number} arrived out of order"
        )));
    }
    Ok(())
}

/// Payload of a message: its number, then padding that differs per message.
fn payload(number: usize, message: u32) -> String {
    let mut random = SplitMix64::new((number as u64) << 32 | u64::from(message));
    let mut text = Vec::new();
    let _ = write!(text, "{message} ");
    let filling = random.below(PADDING_MAX);
    text.extend((0..filling).map(|_| b'a' + random.below(26) as u8));
    String::from_utf8(text).unwrap_or_default()
}

fn owner(subject: &str, payload: &str) -> Option<(usize, u32)> {
    let number = subject.strip_prefix("events.")?.parse().ok()?;
    let (message, _) = payload.split_once(' ')?;
    Some((number, message.parse().ok()?))
}

fn sequence_of(text: &str) -> Option<u64> {
    let (_, behind) = text.split_once("\"seq\":")?;
    behind.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Address, Network, NetworkOptions};

    fn record(sequence: u64) -> ServerMessage {
        ServerMessage::Message {
            subject: "events.0".to_owned(),
            reply: format!("$JS.ACK.events.consumer.1.{sequence}.{sequence}.0.0"),
            payload: payload(0, 0),
        }
    }

    /// Gives the auditor the PONG and the records of a stream with `acknowledged` messages, then waits until it is quiet.
    fn audit(acknowledged: u64, records: u64) -> Result<SimNatsClient, NatsClientError> {
        let address: Address = Address::Tcp("127.0.0.1:4222".parse().expect("an address"));
        let (network, mut random) = (Network::new(1, NetworkOptions::default()), SplitMix64::new(1));
        let mut nats_tally = NatsTally::default();
        nats_tally.acknowledged.extend((1..=acknowledged).map(|sequence| ((0, 0), sequence)));
        let mut context = HttpClientContext {
            network: &network,
            now: Time::ZERO,
            address: &address,
            hub_address: &address,
            nats_tally: &mut nats_tally,
            random: &mut random,
            draining: false,
            is_short_of_memory: false,
            has_workers: false,
            answers: 0,
            retries: 0,
            broken: 0,
        };
        let mut auditor = SimNatsClient::auditor(Time::ZERO);
        auditor.receive_message(ServerMessage::Pong, &mut context)?;
        for sequence in 1..=records {
            auditor.receive_message(record(sequence), &mut context)?;
        }
        auditor.end_quiet_audit(Time::ZERO.after(QUIET));
        Ok(auditor)
    }

    #[test]
    fn the_auditor_ends_once_the_stream_is_quiet() {
        for acknowledged in 0..=1 {
            let auditor = audit(acknowledged, acknowledged).unwrap_or_else(|_| panic!("no record is wrong"));
            assert!(auditor.is_done(), "{acknowledged}");
        }
        let missing = audit(1, 0).unwrap_or_else(|_| panic!("no record is wrong"));
        assert!(!missing.is_done());
    }

    #[test]
    fn the_auditor_rejects_a_record_after_the_last_acknowledged_message() {
        for acknowledged in 0..=1 {
            assert!(
                matches!(audit(acknowledged, acknowledged + 1), Err(NatsClientError::Wrong(_))),
                "{acknowledged}"
            );
        }
    }
}
