//! Bounds of undecoded bytes from clients over WebSocket.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use stilling_engine::Token;
use stilling_hub::limits::{PUBLICATION_BATCH_SIZE, PUBLICATION_BATCHES};
use stilling_hub::{ClientOptions, HubRequest, Ingress, Publication};
use stilling_wire::websocket::WebSocketFrame;

use super::NatsFixture;
use crate::hub::HubPort;
use crate::hub::testing::GREEDY;
use crate::nats::limits::ASSEMBLY_TIMEOUT;

fn frame(payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    WebSocketFrame::binary(payload.as_ref()).masked([7, 5, 3, 1]).encode(&mut bytes);
    bytes
}

fn send(client: &mut TcpStream, payload: impl AsRef<[u8]>) {
    client.write_all(&frame(payload)).expect("the buffers of the system take it");
}

impl NatsFixture {
    fn with_frames(mut self) -> NatsFixture {
        self.shard.service().is_framed = true;
        self
    }

    fn framed_client(&mut self) -> TcpStream {
        let mut client = TcpStream::connect(self.address).expect("it listens");
        client.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket takes options");
        send(&mut client, "CONNECT {}\r\nPING\r\n");
        self.expect_end(&mut client, b"PONG\r\n");
        client
    }

    /// Reads until the bytes end like this.
    #[track_caller]
    fn expect_end(&mut self, client: &mut TcpStream, end: &[u8]) {
        self.read(client, |bytes| bytes.ends_with(end));
    }

    fn undecoded(&mut self) -> usize {
        self.shard.service().nats.undecoded.used
    }
}

/// Row 2.18: incomplete lines beyond the shard's maximum close the connection with 1013; the others continue.
#[test]
fn incomplete_lines_beyond_the_maximum_close_with_1013() {
    let mut fixture = NatsFixture::new().with_frames();
    fixture.shard.service().nats.undecoded.max = 100;
    let (mut short, mut long) = (fixture.framed_client(), fixture.framed_client());
    send(&mut short, "PUB a");
    fixture.turn_until(|service| service.nats.undecoded.used > 0);
    send(&mut long, format!("PUB {}", "x".repeat(200)));
    fixture.expect_end(&mut long, b"\x03\xf5too many incomplete messages: connect again later");
    send(&mut short, " 1\r\nx\r\nPING\r\n");
    fixture.expect_end(&mut short, b"PONG\r\n");
    assert_eq!(fixture.undecoded(), 0);
}

/// A client that sends bytes without ever completing a line does not occupy memory forever.
#[test]
fn an_incomplete_line_has_a_timeout() {
    let mut fixture = NatsFixture::new().with_frames();
    let (mut slow, mut steady) = (fixture.framed_client(), fixture.framed_client());
    send(&mut slow, "PUB a");
    send(&mut steady, "PUB a");
    fixture.turn_until(|service| service.nats.undecoded.used >= 10);
    fixture.advance_time(ASSEMBLY_TIMEOUT / 2);
    fixture.send_and_receive(&mut slow, &frame("x"));
    fixture.send_and_receive(&mut steady, &frame(" 1\r\nx\r\nPUB a"));
    fixture.advance_time(ASSEMBLY_TIMEOUT / 2);
    fixture.expect_end(&mut slow, b"-ERR 'Message Timeout'\r\n\x88\x02\x03\xf0");
    for _ in 0..3 {
        fixture.send_and_receive(&mut steady, &frame(" 1\r\nx\r\nPUB a"));
        fixture.advance_time(ASSEMBLY_TIMEOUT * 3 / 4);
    }
    send(&mut steady, " 1\r\nx\r\nPING\r\n");
    fixture.expect_end(&mut steady, b"PONG\r\n");
    assert_eq!(fixture.undecoded(), 0);
}

/// Backpressure: the input of a client whose stream is full stays in its socket, and its timeouts are suspended.
#[test]
fn frames_are_not_decoded_while_their_stream_is_full() {
    let mut fixture = NatsFixture::with_full_stream().with_frames();
    fixture.shard.service().nats.undecoded.max = 0;
    let mut client = fixture.framed_client();
    send(&mut client, "PUB disk.a 1\r\nx\r\n");
    fixture.turn_until(|service| service.hub.port.parked() == 1);
    for _ in 0..4 {
        send(&mut client, "PUB disk.a 1\r\nx\r\n".repeat(3000));
    }
    fixture.advance_time(ASSEMBLY_TIMEOUT * 2);
    assert_eq!(fixture.undecoded(), 0);
    assert_eq!(fixture.shard.service().hub.publisher_connections, 1);
}

/// Backpressure: a client is not closed because the hub has no room for the rest of a frame.
#[test]
fn the_rest_of_a_frame_without_room_closes_nothing() {
    let mut fixture = NatsFixture::new().with_frames();
    // More than a line, less than what is left without room.
    fixture.shard.service().nats.undecoded.max = 1024;
    let mut client = fixture.framed_client();
    send(&mut client, "PUB a 0\r\n\r\n".repeat(20_000));
    let mut undecoded_max = 0;
    for _ in 0..200 {
        fill_all_but(&mut fixture.shard.service().hub.port, 64 * 1024);
        fixture.shard.turn(false).expect("it turns");
        undecoded_max = undecoded_max.max(fixture.undecoded());
    }
    assert!(undecoded_max > 1024, "{undecoded_max} bytes: there was room for all");
    send(&mut client, "PING\r\n");
    fixture.expect_end(&mut client, b"PONG\r\n");
    assert_eq!(fixture.undecoded(), 0);
}

/// Publishes so much that there is little more than `room` bytes of room for a turn.
fn fill_all_but(port: &mut HubPort, room: usize) {
    let payload = [b'x'; 10_000];
    for _ in 0..(PUBLICATION_BATCHES * PUBLICATION_BATCH_SIZE - room) / payload.len() {
        if port.has_room() {
            let publication = Publication {
                ingress: Ingress::Nats,
                subject: b"b",
                reply: b"",
                headers: b"",
                payload: (&payload).into(),
                ticket: None,
            };
            let token = Token::from_bits(GREEDY);
            port.push_request(token, ClientOptions::default(), &HubRequest::Publish(publication));
        }
    }
}
