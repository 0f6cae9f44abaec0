//! Tests of WebSocket connections: subscriptions, publications and the echo.

use std::net::SocketAddr;

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling::settings::{Credential, Secret, SlowSubscribers, UserConfig};
use stilling_wire::websocket::{
    CloseCode, MessageKind, Opcode, WebSocketDecoder, WebSocketEvent, WebSocketFrame, WebSocketLimits,
    encode_close,
};

use crate::support::{HubTestServer, TestPeer, eventually};

on_both_drivers!(
    messages_are_text_or_binary_frames,
    a_subscriber_resumes_by_epoch_and_sequence,
    a_subscriber_resumes_before_its_first_message,
    publications_are_acknowledged_with_their_reference,
    what_cannot_be_published_says_why,
    bad_frames_close_with_the_code_of_their_fault,
    the_echo_returns_messages_of_every_size_and_form,
    a_flood_of_pings_is_answered,
    a_reset_within_a_frame_leaves_nothing,
    handshakes_that_are_none_are_refused,
    a_slow_subscriber_is_closed_with_4008,
    a_slow_subscriber_skips_where_the_stream_says_so,
    the_end_of_the_server_closes_with_1001_after_the_acknowledgements,
    the_end_of_the_server_answers_all_that_a_full_window_has_published,
);

pub(crate) const KEY: [u8; 4] = [1, 2, 3, 4];

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Text(String),
    Binary(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

pub(crate) struct WebSocket {
    pub(crate) peer: TestPeer,
    decoder: WebSocketDecoder,
    buffer: Vec<u8>,
}

impl WebSocket {
    #[track_caller]
    pub(crate) fn open(server: &HubTestServer, path: &str) -> WebSocket {
        Self::on(server.connect(), path, "")
    }

    #[track_caller]
    pub(crate) fn on(mut peer: TestPeer, path: &str, fields: &str) -> WebSocket {
        peer.send(handshake(path, fields));
        let head = peer.head();
        assert_eq!(head.status, 101, "{head:?}");
        assert_eq!(head.field("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(head.field("Sec-WebSocket-Extensions"), None, "compression is declined");
        WebSocket { peer, decoder: WebSocketDecoder::of_server(), buffer: Vec::new() }
    }

    #[track_caller]
    pub(crate) fn send(&mut self, opcode: Opcode, is_final: bool, payload: &[u8]) {
        assert!(self.try_send(opcode, is_final, payload), "the server accepts frames");
    }

    /// Sends a frame to a server that may have closed; false if it has.
    pub(crate) fn try_send(&mut self, opcode: Opcode, is_final: bool, payload: &[u8]) -> bool {
        let mut bytes = Vec::new();
        WebSocketFrame { is_final, ..WebSocketFrame::new(opcode, payload).masked(KEY) }.encode(&mut bytes);
        self.peer.try_send(bytes)
    }

    fn send_text(&mut self, text: &str) {
        self.send(Opcode::Text, true, text.as_bytes());
    }

    #[track_caller]
    pub(crate) fn next(&mut self) -> Frame {
        loop {
            match self.decode() {
                Some(frame) => return frame,
                None => self.buffer.extend(self.peer.read_some()),
            }
        }
    }

    /// All frames until the server closes or resets the connection, which are whole.
    #[track_caller]
    pub(crate) fn frames_until_closed(mut self) -> Vec<Frame> {
        self.buffer.extend(self.peer.read_until_closed());
        let frames = std::iter::from_fn(|| self.decode()).collect();
        assert!(self.buffer.is_empty(), "{} bytes of an incomplete frame", self.buffer.len());
        frames
    }

    /// The next received frame.
    #[track_caller]
    fn decode(&mut self) -> Option<Frame> {
        let limits = WebSocketLimits { whole_size_max: u32::MAX, ..WebSocketLimits::for_client() };
        let step = self.decoder.decode(&limits, &self.buffer).expect("the server keeps to the protocol");
        let frame = match step.event {
            WebSocketEvent::NeedMore => None,
            WebSocketEvent::Message { kind: MessageKind::Text, payload } => {
                Some(Frame::Text(String::from_utf8(payload.to_vec()).expect("text is UTF-8")))
            }
            WebSocketEvent::Message { kind: MessageKind::Binary, payload } => {
                Some(Frame::Binary(payload.to_vec()))
            }
            WebSocketEvent::Pong(payload) => Some(Frame::Pong(payload.to_vec())),
            WebSocketEvent::Close { code, reason } => Some(Frame::Close(
                code.map(CloseCode::get),
                String::from_utf8(reason.to_vec()).expect("a reason is UTF-8"),
            )),
            other => panic!("{other:?}"),
        };
        self.buffer.drain(..step.consumed);
        frame
    }

    #[track_caller]
    fn text(&mut self) -> String {
        match self.next() {
            Frame::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    /// The position that ends the catch-up.
    #[track_caller]
    fn caught_up(&mut self) -> String {
        let text = self.text();
        let position = text.strip_prefix("{\"position\":\"").and_then(|rest| rest.strip_suffix("\"}"));
        position.unwrap_or_else(|| panic!("no position: {text}")).to_owned()
    }

    /// Reads up to a close frame, and the end of the connection.
    #[track_caller]
    pub(crate) fn closed(mut self) -> (u16, String) {
        loop {
            if let Frame::Close(code, reason) = self.next() {
                self.peer.rest();
                return (code.expect("a code"), reason);
            }
        }
    }
}

pub(crate) fn handshake(path: &str, fields: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Extensions: permessage-deflate\r\n{fields}\r\n"
    )
}

#[track_caller]
fn publish(server: &HubTestServer, subject: &str, payload: &str) {
    let size = payload.len();
    let request =
        format!("POST /publish/{subject} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{payload}");
    assert_eq!(server.connect().ask(request).status, 200);
}

fn messages_are_text_or_binary_frames(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut json = WebSocket::open(&server, "/subscribe/events.%3E");
    let mut raw = WebSocket::open(&server, "/subscribe/events.a?format=raw");
    assert_eq!(json.caught_up(), raw.caught_up());
    publish(&server, "events.a", "{\"price\":11}");
    publish(&server, "events.a", "text");
    for (sequence, object, payload) in
        [(1, "\"data\":{\"price\":11}", "{\"price\":11}"), (2, "\"text\":\"text\"", "text")]
    {
        let text = json.text();
        assert!(
            text.starts_with(&format!("{{\"seq\":{sequence},\"subject\":\"events.a\",\"time\":\"20")),
            "{text}"
        );
        assert!(text.ends_with(&format!("{object}}}")), "{text}");
        let expected = [&[0, 0, 0, 0, 0, 0, 0, sequence], payload.as_bytes()].concat();
        assert_eq!(raw.next(), Frame::Binary(expected));
    }
    let page = server.page("/status").into_text();
    assert!(page.contains("<td>subscribers by WebSocket now<td>2"), "{page}");
    for mut socket in [json, raw] {
        let mut bytes = Vec::new();
        encode_close(&mut bytes, Some(CloseCode::NORMAL), "bye", Some(KEY));
        socket.peer.send(bytes);
        assert_eq!(socket.closed(), (1000, String::new()));
    }
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::ProtocolError)), 0);
}

/// Row 2.18: every protocol resumes by `epoch-sequence`.
fn a_subscriber_resumes_by_epoch_and_sequence(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut socket = WebSocket::open(&server, "/subscribe/quick.a");
    let position = socket.caught_up();
    drop(socket);
    for number in 1..=3 {
        publish(&server, "quick.a", &number.to_string());
    }
    let (epoch, _) = position.split_once('-').expect("an id");
    for (after, expected) in [(0, vec![1, 2, 3]), (2, vec![3]), (3, vec![])] {
        let mut socket = WebSocket::open(&server, &format!("/subscribe/quick.a?from={epoch}-{after}"));
        for number in expected {
            assert!(socket.text().starts_with(&format!("{{\"seq\":{number},")));
        }
        assert_eq!(socket.caught_up(), format!("{epoch}-3"));
    }
    let mut socket = WebSocket::open(&server, "/subscribe/quick.a?from=5-1&format=raw");
    assert!(socket.text().starts_with("{\"reset\":{\"cause\":\"epoch\""), "notices are text in every format");
    assert_eq!(socket.text(), format!("{{\"start\":\"{epoch}-0\"}}"));
    assert_eq!(socket.next(), Frame::Binary(b"\0\0\0\0\0\0\0\x011".to_vec()));
    drop(socket);
    server.finish();
}

/// Row 2.15: a client knows the epoch before the first message, whose object has none: in both formats it can resume
/// however early its connection is lost.
fn a_subscriber_resumes_before_its_first_message(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    for (subject, number) in [("events.a", 1), ("quick.a", 1), ("events.a", 2), ("quick.a", 2)] {
        publish(&server, subject, &number.to_string());
    }
    for subject in ["events.a", "quick.a"] {
        let mut socket = WebSocket::open(&server, &format!("/subscribe/{subject}?from=all"));
        let text = socket.text();
        drop(socket);
        let start = text.strip_prefix("{\"start\":\"").and_then(|rest| rest.strip_suffix("\"}"));
        let start = start.unwrap_or_else(|| panic!("no start: {text}"));
        let mut raw = WebSocket::open(&server, &format!("/subscribe/{subject}?from=all&format=raw"));
        assert_eq!(raw.text(), text, "notices are text in every format");
        drop(raw);
        let mut socket = WebSocket::open(&server, &format!("/subscribe/{subject}?from={start}"));
        for number in 1..=2 {
            assert!(socket.text().starts_with(&format!("{{\"seq\":{number},")));
        }
        let position = socket.caught_up();
        assert_eq!(position.strip_suffix("-2"), start.strip_suffix("-0"), "the epoch is the same");
    }
    server.finish();
}

fn publications_are_acknowledged_with_their_reference(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut socket = WebSocket::open(&server, "/subscribe/replies");
    let mut listener = server.subscribe("events.>");
    for (message, ack) in [
        (
            r#"{"publish":{"subject":"events.a","data":{"bid": 7},"id":"x","ref":"r1"}}"#,
            r#"{"ack":{"ref":"r1","stream":"events","seq":1}}"#,
        ),
        (
            r#"{"publish":{"subject":"events.a","data":{"bid": 7},"id":"x","ref":2}}"#,
            r#"{"ack":{"ref":2,"stream":"events","seq":1,"duplicate":true}}"#,
        ),
        (
            r#"{"publish":{"subject":"events.a","base64":"aGVsbG8="}}"#,
            r#"{"ack":{"stream":"events","seq":2}}"#,
        ),
        (
            r#"{"publish":{"subject":"unheard","text":"","ref":3}}"#,
            r#"{"ack":{"ref":3,"stream":null,"subscriptions":0}}"#,
        ),
    ] {
        socket.send_text(message);
        assert_eq!(socket.text(), ack);
    }
    assert_eq!(listener.next(), ("events.a".to_owned(), "{\"bid\": 7}".to_owned()));
    assert_eq!(listener.next(), ("events.a".to_owned(), "hello".to_owned()));
    // A long payload is passed by reference, fragments with a ping in between are one message.
    let long = "y".repeat(100_000);
    let message = format!(r#"{{"publish":{{"subject":"events.a","text":"{long}"}}}}"#);
    let (first, rest) = message.as_bytes().split_at(50_000);
    socket.send(Opcode::Text, false, first);
    socket.send(Opcode::Ping, true, b"still here");
    socket.send(Opcode::Continuation, true, rest);
    assert_eq!(socket.next(), Frame::Pong(b"still here".to_vec()));
    assert_eq!(socket.text(), r#"{"ack":{"stream":"events","seq":3}}"#);
    assert_eq!(listener.next().1, long);
    // The publisher is a subscriber like any other.
    socket.send_text(r#"{"publish":{"subject":"replies","data":1,"ref":4}}"#);
    let both = [socket.text(), socket.text()];
    assert!(both.contains(&r#"{"subject":"replies","data":1}"#.to_owned()), "{both:?}");
    assert!(both.contains(&r#"{"ack":{"ref":4,"stream":null,"subscriptions":1}}"#.to_owned()), "{both:?}");
    // More at once than may be unanswered.
    const MANY: u64 = 3000;
    let mut bytes = Vec::new();
    for number in 0..MANY {
        let message = format!(r#"{{"publish":{{"subject":"events.a","data":{number},"ref":{number}}}}}"#);
        WebSocketFrame::text(&message).masked(KEY).encode(&mut bytes);
    }
    socket.peer.send(bytes);
    for number in 0..MANY {
        let expected = format!(r#"{{"ack":{{"ref":{number},"stream":"events","seq":{}}}}}"#, number + 4);
        assert_eq!(socket.text(), expected);
    }
    drop((socket, listener));
    server.finish();
}

fn what_cannot_be_published_says_why(driver: DriverChoice) {
    let password = Credential::Password(Secret::new("p"));
    let server = HubTestServer::with(driver, |config| {
        let user = UserConfig { publish: vec!["events.a".into()], ..UserConfig::new("ann", password) };
        config.hub.users = vec![user];
        config.hub.streams[0].message_size_max = 2000;
    });
    let mut socket = WebSocket::on(server.connect(), "/subscribe/news", "Authorization: Basic YW5uOnA=\r\n");
    let long = "x".repeat(1024 * 1024 + 1);
    let too_long_for_the_stream = "x".repeat(2001);
    for (message, part) in [
        ("no JSON", "\"code\":400,\"reason\":\"expected {"),
        (
            r#"{"publish":{"subject":"a b","text":"","ref":1}}"#,
            "\"ref\":1,\"code\":400,\"reason\":\"invalid subject",
        ),
        (r#"{"publish":{"subject":"events.b","text":"","ref":2}}"#, "\"ref\":2,\"code\":403"),
        (r#"{"publish":{"subject":"$JS.API.INFO","text":"","ref":3}}"#, "\"code\":400,\"reason\":\"reserved"),
        (
            &format!(r#"{{"publish":{{"subject":"events.a","text":"{long}","ref":4}}}}"#),
            "\"ref\":4,\"code\":413",
        ),
        (
            &format!(r#"{{"publish":{{"subject":"events.a","text":"{too_long_for_the_stream}","ref":7}}}}"#),
            "\"ref\":7,\"code\":413,\"reason\":\"the message is longer than the stream events accepts\"",
        ),
        (r#"{"publish":{"subject":"events.a","text":"","ref":5,"retain":"\"\u0000"}}"#, "unknown field"),
    ] {
        socket.send_text(message);
        let text = socket.text();
        assert!(text.starts_with("{\"error\":{") && text.contains(part), "{part}: {text}");
    }
    socket.send_text(r#"{"publish":{"subject":"events.a","text":"","ref":6}}"#);
    assert_eq!(socket.text(), r#"{"ack":{"ref":6,"stream":"events","seq":1}}"#, "it goes on");
    drop(socket);
    server.finish();
}

fn bad_frames_close_with_the_code_of_their_fault(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let utf8_split = [&b"\x01\x83\0\0\0\0\xe2\x82\xac"[..], b"\x80\x81\0\0\0\0\xff"].concat();
    for (path, bytes, code) in [
        ("/subscribe/a", &b"\x81\x01x"[..], 1002),
        ("/subscribe/a", b"\xc1\x80\0\0\0\0", 1002),
        ("/subscribe/a", b"\x83\x80\0\0\0\0", 1002),
        ("/subscribe/a", b"\x80\x80\0\0\0\0", 1002),
        ("/subscribe/a", b"\x09\x80\0\0\0\0", 1002),
        ("/subscribe/a", b"\x89\xfe\x00\x7e\0\0\0\0", 1002),
        ("/subscribe/a", b"\x88\x81\0\0\0\0x", 1002),
        ("/subscribe/a", b"\x88\x82\0\0\0\0\x03\xed", 1002),
        ("/subscribe/a", &utf8_split, 1007),
        ("/subscribe/a", b"\x82\x80\0\0\0\0", 1003),
        ("/subscribe/a", b"\x81\xff\0\0\0\0\x7f\xff\xff\xff\0\0\0\0", 1009),
        ("/test/echo", b"\x82\xff\0\0\0\0\x01\0\0\x01\0\0\0\0", 1009),
        ("/test/echo", b"\x81\x82\0\0\0\0\xc3\x28", 1007),
    ] {
        let mut socket = WebSocket::open(&server, path);
        socket.peer.send(bytes);
        let (given, reason) = socket.closed();
        assert_eq!(given, code, "{}: {reason}", bytes.escape_ascii());
    }
    // The fault may come one byte at a time.
    let mut socket = WebSocket::open(&server, "/test/echo");
    for byte in utf8_split {
        if !socket.peer.try_send([byte]) {
            break;
        }
    }
    assert_eq!(socket.closed().0, 1007);
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::ProtocolError)), 14);
}

fn the_echo_returns_messages_of_every_size_and_form(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut socket = WebSocket::open(&server, "/test/echo");
    for size in [0, 1, 125, 126, 127, 4096, 65_535, 65_536, 1_000_000, 16 * 1024 * 1024] {
        let payload: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let mut writer = socket.peer.clone_writer();
        let mut bytes = Vec::new();
        WebSocketFrame::binary(&payload).masked(KEY).encode(&mut bytes);
        let sender = std::thread::spawn(move || writer.send(bytes));
        // Read in large pieces: the test's decoder looks at every byte.
        let header_size = match size {
            0..=125 => 2,
            126..=65_535 => 4,
            _ => 10,
        };
        socket.peer.read_exactly(header_size);
        assert_eq!(socket.peer.read_exactly(size), payload, "{size}");
        sender.join().expect("it is read");
    }
    for (number, piece) in [&b"Hel"[..], b"", b"lo \xe2", b"\x82\xac"].into_iter().enumerate() {
        let opcode = if number == 0 { Opcode::Text } else { Opcode::Continuation };
        socket.send(opcode, number == 3, piece);
    }
    assert_eq!(socket.next(), Frame::Text("Hello \u{20ac}".to_owned()));
    socket.send(Opcode::Pong, true, b"unasked");
    socket.send(Opcode::Close, true, b"\x0b\xb8ok");
    assert_eq!(socket.closed().0, 3000);
    let mut socket = WebSocket::open(&server, "/test/echo");
    socket.send(Opcode::Close, true, b"");
    assert_eq!(socket.next(), Frame::Close(None, String::new()));
    assert_eq!(socket.peer.rest(), b"");
    server.finish();
}

fn a_flood_of_pings_is_answered(driver: DriverChoice) {
    const PINGS: usize = 20_000;
    let server = HubTestServer::start(driver);
    let mut socket = WebSocket::open(&server, "/subscribe/a");
    let mut writer = socket.peer.clone_writer();
    let sender = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for _ in 0..PINGS {
            WebSocketFrame::ping(b"flood").masked(KEY).encode(&mut bytes);
        }
        writer.send(bytes);
    });
    let pongs = socket.peer.read_exactly(7 * PINGS);
    assert!(pongs.chunks(7).all(|pong| pong == b"\x8a\x05flood"));
    sender.join().expect("they are read");
    drop(socket);
    server.finish();
}

fn a_reset_within_a_frame_leaves_nothing(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    for path in ["/subscribe/events.a?from=all", "/test/echo"] {
        let mut socket = WebSocket::open(&server, path);
        // A long frame, of which a part has been received.
        socket.peer.send(b"\x81\xff\0\0\0\0\0\x0f\x42\x40\0\0\0\0");
        socket.peer.send([b'x'; 100_000]);
        socket.peer.reset();
    }
    eventually("they are closed", || {
        (server.metric("stilling_hub_subscribers{protocol=\"websocket\"}") == 0).then_some(())
    });
    server.finish();
}

fn handshakes_that_are_none_are_refused(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let whole = handshake("/subscribe/events.a", "");
    for (request, status, part) in [
        (whole.replace("Version: 13", "Version: 8"), 426, "Sec-WebSocket-Version: 13"),
        (whole.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"), 400, "Sec-WebSocket-Key"),
        (whole.replace("events.a", "a..b"), 400, "invalid filter"),
        (whole.replace("events.a", "%3E?from=1"), 400, "several streams"),
        (handshake("/subscribe/events.a", "Origin: http://evil.example\r\n"), 403, "cross-origin"),
        (handshake("/test/echo", "Origin: http://evil.example\r\n"), 403, "cross-origin"),
        (handshake("/test/echo", "").replace("Upgrade: websocket\r\n", ""), 426, "Upgrade: websocket"),
    ] {
        let answer = server.connect().ask(&request);
        assert!(answer.status == status && answer.text().contains(part), "{request}: {answer:?}");
        if status == 426 {
            assert_eq!(answer.field("Upgrade"), Some("websocket"));
            assert_eq!(answer.field("Sec-WebSocket-Version"), Some("13"));
        }
    }
    server.finish();
}

/// Row 2.18: a slow client is told why it is closed, at the end of the frame that it has begun to read.
fn a_slow_subscriber_is_closed_with_4008(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let peer = TestPeer::connect_with_small_buffer(server.at("http"));
    // No stream stores its subject, so it cannot catch up.
    let socket = WebSocket::on(peer, "/subscribe/plain.a?format=raw", "");
    eventually("it has subscribed", || (server.metric("stilling_hub_subscriptions") == 1).then_some(()));
    let mut publisher = server.connect();
    let request = publication("plain.a", 100_000);
    eventually("it is disconnected", || {
        assert_eq!(publisher.ask(&request).status, 200);
        (server.metric("stilling_hub_slow_consumers_total") == 1).then_some(())
    });
    let mut frames = socket.frames_until_closed();
    assert_eq!(frames.pop(), Some(Frame::Close(Some(4008), String::new())));
    let is_message = |frame: &Frame| matches!(frame, Frame::Binary(bytes) if bytes.len() >= 100_000);
    assert!(!frames.is_empty() && frames.iter().all(is_message), "{} frames", frames.len());
    drop(publisher);
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::SlowConsumer)), 1);
}

/// A publication of `size` bytes.
fn publication(subject: &str, size: usize) -> String {
    let payload = "x".repeat(size);
    format!("POST /publish/{subject} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{payload}")
}

/// Row 2.18: a slow subscriber of a stream with the policy `skip` is told exactly what it does not receive.
fn a_slow_subscriber_skips_where_the_stream_says_so(driver: DriverChoice) {
    let server = HubTestServer::with(driver, |config| {
        config.hub.streams[1].slow_subscribers = SlowSubscribers::Skip;
    });
    let peer = TestPeer::connect_with_small_buffer(server.at("http"));
    let mut socket = WebSocket::on(peer, "/subscribe/quick.a?format=raw", "");
    socket.caught_up();
    let (mut publisher, mut published) = (server.connect(), 0);
    let mut publish = |count| {
        for _ in 0..count {
            published += 1;
            assert_eq!(publisher.ask(publication("quick.a", 100_000)).status, 200);
        }
        published
    };
    eventually("it falls behind", || {
        publish(1);
        (server.metric("stilling_hub_fallen_behind_total") == 1).then_some(())
    });
    let missed_through = publish(10);
    let (mut next, mut gaps, mut last) = (1, 0, missed_through);
    while next <= last {
        match socket.next() {
            Frame::Binary(message) => {
                let sequence = u64::from_be_bytes(*message.first_chunk().expect("a sequence"));
                assert_eq!(sequence, next);
                next += 1;
            }
            Frame::Text(notice) if notice.contains("\"gap\"") => {
                let expected = format!(r#"{{"gap":{{"first":{next},"last":{last},"cause":"slow"}}}}"#);
                assert_eq!(notice, expected);
                (next, gaps) = (last + 1, gaps + 1);
                socket.caught_up();
                last = publish(1);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(gaps, 1);
    let missed = server.metric("stilling_hub_stream_skipped_total{stream=\"quick\",reason=\"slow\"}");
    assert!(missed >= 10, "{missed}");
    drop((socket, publisher));
    server.finish();
}

fn the_end_of_the_server_closes_with_1001_after_the_acknowledgements(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let http: SocketAddr = server.at("http");
    let mut socket = WebSocket::on(TestPeer::connect(http), "/subscribe/news", "");
    let echo = WebSocket::open(&server, "/test/echo");
    let stalled = server.stall_disk();
    socket.send_text(r#"{"publish":{"subject":"events.a","text":"","ref":1}}"#);
    eventually("it waits for the disk", || {
        (server.metric("stilling_hub_paused_connections") == 1).then_some(())
    });
    let ending = std::thread::spawn(move || server.finish());
    assert_eq!(echo.closed().0, 1001);
    assert!(socket.peer.is_silent(), "its publication is not answered yet");
    let _open = stalled.end();
    assert_eq!(socket.text(), r#"{"ack":{"ref":1,"stream":"events","seq":1}}"#);
    assert_eq!(socket.closed().0, 1001);
    let overview = ending.join().expect("it ends");
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::Drained)), 2);
}

/// A client that has as many publications unanswered as it may, and more under way, gets all answers and the close.
fn the_end_of_the_server_answers_all_that_a_full_window_has_published(driver: DriverChoice) {
    const WINDOW: u64 = 1024;
    let server = HubTestServer::start(driver);
    let mut socket = WebSocket::on(TestPeer::connect(server.at("http")), "/subscribe/news", "");
    let echo = WebSocket::open(&server, "/test/echo");
    let stalled = server.stall_disk();
    for number in 0..2 * WINDOW {
        socket.send_text(&format!(r#"{{"publish":{{"subject":"events.a","text":"","ref":{number}}}}}"#));
    }
    let read = || (server.metric("stilling_hub_requests_total") >= WINDOW).then_some(());
    eventually("the window is full", read);
    let ending = std::thread::spawn(move || server.finish());
    assert_eq!(echo.closed().0, 1001, "it drains");
    let _open = stalled.end();
    for number in 0..WINDOW {
        // On a busy machine the disk may stall for longer than the hub waits for it.
        let answers = ["ack", "error"].map(|kind| format!(r#"{{"{kind}":{{"ref":{number},"#));
        let answer = socket.text();
        assert!(answers.iter().any(|expected| answer.starts_with(expected)), "{number}: {answer}");
    }
    assert_eq!(socket.closed().0, 1001);
    ending.join().expect("it ends");
}
