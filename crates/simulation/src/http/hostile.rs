//! Clients that violate the protocol or never finish. The server only has to end their connections.

use std::time::Duration;

use stilling_ring::Time;

use super::HttpClientContext;
use crate::SplitMix64;
use crate::network::{PeerKey, SimPeer};

/// Behaviour of a hostile client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostileStyle {
    /// Sends random bytes.
    Garbage,
    /// Sends valid requests, then resets at a random time.
    Resetting,
    /// Sends a head that never ends.
    Slowloris,
    /// Sends a body very slowly.
    SlowBody,
    /// Sends nothing.
    Silent,
    /// Sends requests and never reads.
    NeverReading,
    /// Sends one request, then nothing.
    Idle,
    /// Sends a head that is too long.
    LongHead,
    /// Disconnects in the middle of a request.
    Disconnecting,
    /// Sends random NATS commands.
    RandomCommands,
    /// Subscribes to everything and never reads.
    NeverAcknowledging,
}

impl HostileStyle {
    /// All styles.
    pub const ALL: [HostileStyle; 11] = [
        HostileStyle::Garbage,
        HostileStyle::Resetting,
        HostileStyle::Slowloris,
        HostileStyle::SlowBody,
        HostileStyle::Silent,
        HostileStyle::NeverReading,
        HostileStyle::Idle,
        HostileStyle::LongHead,
        HostileStyle::Disconnecting,
        HostileStyle::RandomCommands,
        HostileStyle::NeverAcknowledging,
    ];

    /// Whether it connects to the NATS listener.
    pub(super) fn uses_nats(self) -> bool {
        matches!(self, HostileStyle::RandomCommands | HostileStyle::NeverAcknowledging)
    }

    /// The first bytes sent, the bytes then repeated, and the pause in between.
    fn script(self, random: &mut SplitMix64) -> (Vec<u8>, &'static [u8], Duration) {
        let (first, again, ms): (&[u8], &'static [u8], u64) = match self {
            HostileStyle::Garbage => {
                let bytes = (0..random.between(1, 3000)).map(|_| random.bits() as u8).collect();
                return (bytes, b"", Duration::from_millis(10));
            }
            HostileStyle::LongHead => {
                let mut head = b"GET / HTTP/1.1\r\nHost: sim\r\nX-Long: ".to_vec();
                head.resize(20_000, b'x');
                return (head, b"", Duration::from_millis(1));
            }
            HostileStyle::Resetting => {
                let slow = b"GET /test/slow HTTP/1.1\r\nHost: sim\r\n\r\n";
                let first: &[u8] = match random.index(3) {
                    0 => b"GET /livez HTTP/1.1\r\nHost: sim\r\n\r\n",
                    1 => b"GET /own/open HTTP/1.1\r\nHost: sim\r\n\r\n",
                    _ => b"POST /own/work HTTP/1.1\r\nHost: sim\r\nContent-Length: 3\r\n\r\nall",
                };
                (first, slow, random.between(1, 20))
            }
            HostileStyle::Slowloris => (b"GET /test/fast HTTP/1.1\r\nHost: sim\r\n", b"X-And: more\r\n", 50),
            HostileStyle::SlowBody => {
                (b"POST /test/fast HTTP/1.1\r\nHost: sim\r\nContent-Length: 9999\r\n\r\n", b"slow", 50)
            }
            HostileStyle::Silent => (b"", b"", 1000),
            HostileStyle::NeverReading => (
                b"",
                b"GET /metrics HTTP/1.1\r\nHost: sim\r\n\r\nGET /nothing HTTP/1.1\r\nHost: sim\r\n\r\n",
                1,
            ),
            HostileStyle::Idle => (b"GET /test/fast HTTP/1.1\r\nHost: sim\r\n\r\n", b"", 1000),
            HostileStyle::RandomCommands => return (random_commands(random), b"", Duration::from_millis(5)),
            HostileStyle::NeverAcknowledging => (b"CONNECT {}\r\nSUB > 1\r\n", b"PING\r\n", 20),
            HostileStyle::Disconnecting => {
                (b"POST /own/work HTTP/1.1\r\nHost: sim\r\nContent-Length: 5\r\n\r\nhal", b"", 1000)
            }
        };
        (first.to_vec(), again, Duration::from_millis(ms))
    }
}

fn random_commands(random: &mut SplitMix64) -> Vec<u8> {
    const WORDS: [&[u8]; 14] = [
        b"CONNECT {}\r\n",
        b"CONNECT {\"verbose\":true,\"headers\":true}\r\n",
        b"PING\r\n",
        b"PONG\r\n",
        b"PUB noise 5\r\nhello\r\n",
        b"PUB noise _INBOX.x 100000\r\nnot so long",
        b"HPUB noise 12 15\r\nNATS/1.0\r\n\r\nabc\r\n",
        b"SUB > 1\r\n",
        b"SUB noise.* group 2\r\n",
        b"UNSUB 1 3\r\n",
        b"PUB $JS.API.STREAM.INFO.events _INBOX.y 0\r\n\r\n",
        b"PUB $JS.API.CONSUMER.CREATE.events _INBOX.z 2\r\n{}\r\n",
        b"PUB noise -1\r\n",
        b"MSG noise 1 0\r\n\r\n",
    ];
    let first = WORDS[random.index(2)].to_vec();
    let words = (0..random.between(1, 30)).map(|_| WORDS[random.index(WORDS.len())]);
    words.fold(first, |mut commands, word| {
        commands.extend_from_slice(word);
        commands
    })
}

#[derive(Debug)]
pub(super) struct HostileClient {
    pub(super) style: HostileStyle,
    first: Vec<u8>,
    again: &'static [u8],
    /// Bytes already sent of `first`, or of `again` once `first` is sent.
    sent: usize,
    interval: Duration,
    start: Time,
    disconnects_at: Time,
    next_at: Time,
    peer: Option<SimPeer>,
    done: bool,
}

impl HostileClient {
    pub(super) fn new(style: HostileStyle, start: Time, random: &mut SplitMix64) -> Self {
        let (first, again, interval) = style.script(random);
        let connected_ms = match style {
            HostileStyle::Resetting | HostileStyle::Disconnecting => random.between(0, 100),
            _ => random.between(1000, 6000),
        };
        let disconnects_at = start.after(Duration::from_millis(connected_ms));
        HostileClient {
            style,
            first,
            again,
            sent: 0,
            interval,
            start,
            disconnects_at,
            next_at: start,
            peer: None,
            done: false,
        }
    }

    pub(super) fn key(&self) -> Option<PeerKey> {
        self.peer.as_ref().map(SimPeer::key)
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        (!self.done).then_some(self.next_at.min(self.disconnects_at))
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn step(&mut self, context: &mut HttpClientContext<'_>) -> Result<(), String> {
        if self.done || context.now < self.start {
            return Ok(());
        }
        let address = if self.style.uses_nats() { context.hub_address } else { context.address };
        let peer = self.peer.get_or_insert_with(|| context.network.connect(address.clone(), None));
        if context.now >= self.disconnects_at {
            self.done = true;
            if let Some(peer) = self.peer.take()
                && (self.style == HostileStyle::Resetting || context.random.chance(300))
            {
                peer.reset();
            }
            return Ok(());
        }
        let mut into = [0; 1024];
        while !matches!(self.style, HostileStyle::NeverReading | HostileStyle::NeverAcknowledging) {
            match peer.read(&mut into) {
                Ok(len) if len > 0 => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                _ => {
                    (self.done, self.peer) = (true, None);
                    return Ok(());
                }
            }
        }
        if context.now >= self.next_at {
            self.write(context);
        }
        Ok(())
    }

    fn write(&mut self, context: &mut HttpClientContext<'_>) {
        self.next_at = context.now.after(self.interval);
        let Some(peer) = &mut self.peer else { return };
        let script = if self.first.is_empty() { self.again } else { &self.first[..] };
        let rest = &script[self.sent..];
        if rest.is_empty() {
            return;
        }
        let some = if context.random.chance(500) {
            rest.len()
        } else {
            context.random.between(1, rest.len() as u64) as usize
        };
        match peer.write(&rest[..some]) {
            Ok(taken) => self.sent += taken,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => (self.done, self.peer) = (true, None),
        }
        if self.sent == script.len() {
            self.first = Vec::new();
            self.sent = 0;
        }
    }
}
