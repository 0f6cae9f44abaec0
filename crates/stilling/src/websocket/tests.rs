//! Time limits of WebSocket connections, at times that the tests choose, and refused subscriptions.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::CloseReason;
use stilling_hub::StreamConfig;

use super::limits::{ASSEMBLY_TIMEOUT, PING_INTERVAL, PINGS_MAX};
use crate::http::{HttpEndpoint, HttpScope};
use crate::hub::testing::hub_of_one_shard;
use crate::hub::{HubHandle, StreamDirectory};
use crate::shard::Endpoint;
use crate::shard::testing::{ShardFixture, shard_hub};

const SECOND: Duration = Duration::from_secs(1);

/// The close frame with code 1008, without its length and text.
const CLOSE_1008: [u8; 2] = [0x03, 0xf0];

/// The fields of an opening handshake.
const HANDSHAKE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn endpoint(subscribes: bool) -> Endpoint {
    Endpoint::Http(HttpEndpoint { scope: HttpScope::Everything, demo: true, publishes: false, subscribes })
}

struct EchoFixture {
    shard: ShardFixture,
    client: TcpStream,
    sent: u64,
}

impl EchoFixture {
    fn open() -> EchoFixture {
        let mut shard = ShardFixture::new(endpoint(false), None);
        let client = shard.connect();
        let mut fixture = EchoFixture { shard, client, sent: 0 };
        fixture.send(format!("GET /test/echo HTTP/1.1\r\nHost: a\r\n{HANDSHAKE}\r\n").as_bytes());
        let head = fixture.shard.read(&mut fixture.client, |text| text.ends_with("\r\n\r\n"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        fixture
    }

    /// Sends bytes; the shard has received them.
    fn send(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).expect("it is open");
        self.sent += bytes.len() as u64;
        self.shard.turn_until_received(self.sent);
    }

    /// Advances the time by a second. Returns whether the connection has been closed for this reason.
    fn advance(&mut self, reason: CloseReason) -> bool {
        self.shard.time.advance(SECOND);
        self.shard.turn();
        let mut bytes = [0; 1024];
        while let Ok(count @ 1..) = self.client.read(&mut bytes) {
            let pings = bytes[..count].chunks(2).take_while(|frame| *frame == [0x89, 0]).count();
            let rest = &bytes[2 * pings..count];
            if rest.is_empty() {
                continue;
            }
            assert_eq!((rest[0], &rest[2..4]), (0x88, &CLOSE_1008[..]));
            let Self { shard, client, .. } = self;
            client.shutdown(Shutdown::Both).expect("it is open");
            shard.turn_until("it is closed", |fixture| fixture.engine_counters.closed(reason).get() == 1);
            return true;
        }
        false
    }
}

/// Bad input: a message that arrives one byte per second ends after a minute, whatever its length, in one frame and in
/// fragments.
#[test]
fn a_message_of_one_byte_per_second_ends_after_a_minute() {
    let whole = [&b"\x82\xfe\x03\xe8\0\0\0\0"[..], &[b'x'; 1000]].concat();
    let fragments = [&b"\x02\x81\0\0\0\0x"[..], &b"\x00\x81\0\0\0\0x".repeat(200)].concat();
    for bytes in [whole, fragments] {
        let mut fixture = EchoFixture::open();
        let ended = bytes.chunks(1).position(|byte| {
            fixture.send(byte);
            fixture.advance(CloseReason::BodyTimeout)
        });
        let seconds = ended.expect("it ends") as u64 + 1;
        assert!(seconds.abs_diff(ASSEMBLY_TIMEOUT.as_secs()) < 15, "{seconds} seconds");
    }
}

/// A client that answers no ping is closed when a third one is due; one that sends anything is not.
#[test]
fn a_silent_client_is_closed_after_its_pings() {
    let mut fixture = EchoFixture::open();
    for _ in 0..3 * PING_INTERVAL.as_secs() {
        fixture.send(b"\x8a\x80\0\0\0\0");
        assert!(!fixture.advance(CloseReason::IdleTimeout));
    }
    let due = (u64::from(PINGS_MAX) + 1) * PING_INTERVAL.as_secs();
    let seconds = (1..2 * due).find(|_| fixture.advance(CloseReason::IdleTimeout)).expect("it ends");
    assert!(seconds.abs_diff(due) <= PING_INTERVAL.as_secs(), "{seconds} seconds");
}

/// Shedding: a subscription for which the hub has no room is closed with 1013; over SSE the response ends.
#[test]
fn a_subscription_that_the_hub_refuses_is_closed_with_1013() {
    // The hub does not have the stream that the sessions know.
    let (port, runner, _) = hub_of_one_shard();
    let streams = Arc::new(StreamDirectory::new(&[StreamConfig::default()]));
    let handle = HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0).with_streams(streams);
    let mut shard = ShardFixture::new(endpoint(true), Some((shard_hub(handle), runner)));
    for (fields, expected) in
        [(HANDSHAKE, "\u{3}\u{f5}too many subscriptions: connect again later"), ("", "retry: 1000\n\n")]
    {
        let mut client = shard.connect();
        let request = format!("GET /subscribe/events.a HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        client.write_all(request.as_bytes()).expect("it is open");
        let mut received = Vec::new();
        shard.turn_until("it is closed", |_| {
            let mut bytes = [0; 1024];
            let read = client.read(&mut bytes);
            received.extend_from_slice(&bytes[..*read.as_ref().unwrap_or(&0)]);
            matches!(read, Ok(0))
        });
        let text: String = received.into_iter().map(char::from).collect();
        assert!(text.ends_with(expected), "{text}");
    }
    shard.turn_until("both are closed", |fixture| {
        fixture.engine_counters.closed(CloseReason::Done).get() == 2
    });
}
