//! Tests of the NATS client protocol over WebSocket: frames of every form, access, and the ends of connections.

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling::settings::{Credential, Secret, UserConfig};
use stilling_wire::websocket::{CloseCode, Opcode, WebSocketFrame, encode_close};

use crate::support::{HubTestServer, NatsSubscriber, TestPeer, any_port, eventually, records};
use crate::websocket::{Frame, KEY, WebSocket, handshake};

on_both_drivers!(
    the_session_is_that_of_tcp,
    lines_may_be_split_and_joined_anywhere,
    fragments_pings_and_texts_carry_the_same_bytes,
    long_payloads_cross_frames_of_any_length,
    bad_frames_close_with_the_code_of_their_fault,
    bad_lines_are_answered_and_close_with_1002,
    a_close_frame_is_answered_after_the_acknowledgements,
    a_flood_of_pings_holds_little_memory,
    many_subscribers_share_the_bytes_of_a_feed_with_tcp,
    a_flood_in_frames_of_odd_sizes_is_stored_in_order,
    a_slow_consumer_is_closed_with_1008,
    the_end_of_the_server_closes_with_1001_after_the_acknowledgements,
    a_reset_within_a_line_leaves_nothing,
    users_authenticate_with_connect,
    a_listener_of_its_own_serves_every_path_and_nothing_else,
    handshakes_of_other_sites_are_refused,
);

const CONNECT: &str = "CONNECT {\"verbose\":false,\"headers\":true}\r\n";

/// A client over WebSocket that reads the bytes of all binary frames as one stream.
struct FramedClient {
    socket: WebSocket,
    bytes: Vec<u8>,
    /// The payload of pongs, in order.
    pongs: Vec<Vec<u8>>,
}

impl FramedClient {
    /// Connects, and reads INFO.
    #[track_caller]
    fn open(server: &HubTestServer) -> FramedClient {
        FramedClient::on(server.connect(), "/nats")
    }

    #[track_caller]
    fn on(peer: TestPeer, path: &str) -> FramedClient {
        let socket = WebSocket::on(peer, path, "");
        let mut client = FramedClient { socket, bytes: Vec::new(), pongs: Vec::new() };
        let info = client.line();
        assert!(info.starts_with("INFO {"), "{info}");
        client
    }

    fn send(&mut self, text: impl AsRef<[u8]>) {
        self.socket.send(Opcode::Binary, true, text.as_ref());
    }

    /// Sends frames in one write.
    fn send_frames<'a>(&mut self, payloads: impl IntoIterator<Item = &'a [u8]>) {
        let mut bytes = Vec::new();
        for payload in payloads {
            WebSocketFrame::binary(payload).masked(KEY).encode(&mut bytes);
        }
        self.socket.peer.send(bytes);
    }

    #[track_caller]
    fn fill(&mut self) {
        match self.socket.next() {
            Frame::Binary(bytes) => self.bytes.extend(bytes),
            Frame::Pong(payload) => self.pongs.push(payload),
            other => panic!("no bytes: {other:?}"),
        }
    }

    #[track_caller]
    fn take(&mut self, size: usize) -> Vec<u8> {
        while self.bytes.len() < size {
            self.fill();
        }
        self.bytes.drain(..size).collect()
    }

    #[track_caller]
    fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.bytes.windows(2).position(|end| end == b"\r\n") {
                let line = self.take(at + 2);
                return String::from_utf8_lossy(&line[..at]).into_owned();
            }
            self.fill();
        }
    }

    /// The next message: its line and payload.
    #[track_caller]
    fn message(&mut self) -> (String, Vec<u8>) {
        let line = self.line();
        let payload = self.payload(&line);
        (line, payload)
    }

    /// The payload of the message with this line.
    #[track_caller]
    fn payload(&mut self, line: &str) -> Vec<u8> {
        let size: usize = line.rsplit(' ').next().and_then(|size| size.parse().ok()).expect("a message");
        let mut payload = self.take(size + 2);
        payload.truncate(size);
        payload
    }

    /// Reads up to the answer of a PING.
    #[track_caller]
    fn sync(&mut self) {
        self.send("PING\r\n");
        assert_eq!(self.line(), "PONG");
    }
}

/// Publications with an acknowledgement need an inbox.
fn open_with_inbox(server: &HubTestServer) -> FramedClient {
    let mut client = FramedClient::open(server);
    client.send(format!("{CONNECT}SUB inbox 9\r\n"));
    client.sync();
    client
}

/// The session is unchanged.
fn the_session_is_that_of_tcp(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut client = open_with_inbox(&server);
    let mut listener = server.subscribe("events.>");
    client.send("SUB events.* 1\r\nPUB events.a inbox 5\r\nhello\r\n");
    assert_eq!(client.message(), ("MSG events.a 1 inbox 5".to_owned(), b"hello".to_vec()));
    assert_eq!(client.message().1, b"{\"stream\":\"events\",\"seq\":1}");
    assert_eq!(listener.next(), ("events.a".to_owned(), "hello".to_owned()));
    listener.publish("events.b", "", "back");
    assert_eq!(client.message(), ("MSG events.b 1 4".to_owned(), b"back".to_vec()));
    client.send("PUB nowhere inbox 0\r\n\r\nHPUB events.h 12 13\r\nNATS/1.0\r\n\r\nx\r\n");
    assert_eq!(client.message().1, b"NATS/1.0\r\n\r\nx");
    drop((client, listener));
    server.finish();
}

/// Frames may split or join protocol lines anywhere.
fn lines_may_be_split_and_joined_anywhere(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let script = format!(
        "{CONNECT}SUB quick.> 7\r\nPUB quick.a 3\r\nabc\r\nHPUB quick.b 12 14\r\nNATS/1.0\r\n\r\nde\r\n\
         PUB quick.c 0\r\n\r\nPING\r\n"
    );
    let expected = "MSG quick.a 7 3\r\nabc\r\nHMSG quick.b 7 12 14\r\nNATS/1.0\r\n\r\nde\r\nMSG quick.c 7 0\r\n\r\nPONG\r\n";
    let bytes = script.as_bytes();
    // Two frames, split at every byte, each in one write and in two.
    for cut in 0..=bytes.len() {
        let mut client = FramedClient::open(&server);
        let (first, second) = bytes.split_at(cut);
        if cut % 2 == 0 {
            client.send_frames([first, second]);
        } else {
            client.send(first);
            client.send(second);
        }
        let received = client.take(expected.len());
        assert_eq!(String::from_utf8_lossy(&received), expected, "cut at {cut}");
    }
    // A frame for each byte, and everything many times in one frame.
    let mut client = FramedClient::open(&server);
    client.send_frames(bytes.chunks(1));
    assert_eq!(client.take(expected.len()), expected.as_bytes());
    let mut client = FramedClient::open(&server);
    client.send(format!("{CONNECT}SUB quick.> 7\r\n"));
    client.send("PUB quick.a 3\r\nabc\r\n".repeat(10_000));
    for _ in 0..10_000 {
        assert_eq!(client.message(), ("MSG quick.a 7 3".to_owned(), b"abc".to_vec()));
    }
    drop(client);
    server.finish();
}

/// Fragments, control frames in between, and text messages, as in nats-server.
fn fragments_pings_and_texts_carry_the_same_bytes(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut client = open_with_inbox(&server);
    let line = b"PUB quick.a inbox 6\r\nab\r\ncd\r\n";
    for (number, cut) in (0..line.len()).enumerate() {
        let opcode = if number % 2 == 0 { Opcode::Binary } else { Opcode::Text };
        let (first, rest) = line.split_at(cut);
        let (second, third) = rest.split_at(rest.len() / 2);
        client.socket.send(opcode, false, first);
        client.socket.send(Opcode::Ping, true, b"here");
        client.socket.send(Opcode::Continuation, false, second);
        client.socket.send(Opcode::Pong, true, b"unasked");
        client.socket.send(Opcode::Continuation, false, b"");
        client.socket.send(Opcode::Continuation, true, third);
        let expected = format!("{{\"stream\":\"quick\",\"seq\":{}}}", number + 1);
        assert_eq!(client.message().1, expected.as_bytes());
    }
    assert_eq!(client.pongs, vec![b"here".to_vec(); line.len()]);
    // Without an end: a message is a stream of bytes.
    client.socket.send(Opcode::Binary, false, b"PI");
    client.socket.send(Opcode::Continuation, false, b"NG\r\nPING\r\n");
    assert_eq!((client.line(), client.line()), ("PONG".to_owned(), "PONG".to_owned()));
    drop(client);
    server.finish();
}

/// A frame of any length is decoded as it arrives; long payloads cross frames, in both directions.
fn long_payloads_cross_frames_of_any_length(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut client = open_with_inbox(&server);
    let mut subscriber = FramedClient::open(&server);
    subscriber.send(format!("{CONNECT}SUB events.> 1\r\n"));
    subscriber.sync();
    let mut listener = server.subscribe("events.>");
    let payload: Vec<u8> = (0..1024 * 1024).map(|at: u32| (at % 251) as u8).collect();
    for (number, size) in
        [125, 126, 1000, 16_384, 65_535, 65_536, 65_537, 2 * 1024 * 1024].into_iter().enumerate()
    {
        let mut bytes = format!("PUB events.long inbox {}\r\n", payload.len()).into_bytes();
        bytes.extend(&payload);
        bytes.extend(b"\r\n");
        client.send_frames(bytes.chunks(size));
        let acknowledged = format!("{{\"stream\":\"events\",\"seq\":{}}}", number + 1);
        assert_eq!(client.message().1, acknowledged.as_bytes());
        assert!(subscriber.message().1 == payload, "frames of {size} bytes");
        assert!(listener.raw().1 == payload, "frames of {size} bytes");
    }
    // One frame with several messages, beyond any buffer.
    let mut bytes = Vec::new();
    for _ in 0..3 {
        bytes.extend(format!("PUB events.long inbox {}\r\n", payload.len()).into_bytes());
        bytes.extend(&payload);
        bytes.extend(b"\r\n");
    }
    client.send(&bytes);
    for number in 9..12 {
        assert_eq!(client.message().1, format!("{{\"stream\":\"events\",\"seq\":{number}}}").as_bytes());
        assert!(subscriber.message().1 == payload);
    }
    drop((client, subscriber, listener));
    server.finish();
}

fn bad_frames_close_with_the_code_of_their_fault(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let cases: [(&[u8], u16); 11] = [
        // Not masked; reserved bits; a reserved opcode; a continuation of nothing.
        (b"\x82\x06PING\r\n", 1002),
        (b"\xc2\x80\0\0\0\0", 1002),
        (b"\x83\x80\0\0\0\0", 1002),
        (b"\x80\x80\0\0\0\0", 1002),
        // Control frames: fragmented, too long, a close with half a code.
        (b"\x09\x80\0\0\0\0", 1002),
        (b"\x89\xfe\x00\x7e\0\0\0\0", 1002),
        (b"\x88\x81\0\0\0\0x", 1002),
        // A message within a message; a length with a sign; a text that is none; more than 4 GiB.
        (b"\x02\x80\0\0\0\0\x82\x80\0\0\0\0", 1002),
        (b"\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0", 1002),
        (b"\x81\x82\0\0\0\0\xc3\x28", 1007),
        (b"\x82\xff\0\0\0\x01\0\0\0\0\0\0\0\0", 1009),
    ];
    for (bytes, code) in cases {
        let mut client = FramedClient::open(&server);
        client.socket.peer.send(bytes);
        let (given, reason) = client.socket.closed();
        assert_eq!(given, code, "{}: {reason}", bytes.escape_ascii());
    }
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::ProtocolError)), cases.len() as u64);
}

fn bad_lines_are_answered_and_close_with_1002(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    for (line, error) in [
        ("NOTHING\r\n", "-ERR 'Unknown Protocol Operation'"),
        ("PUB events.a 9999999\r\n", "-ERR 'Maximum Payload Violation'"),
        (&*format!("SUB {}", "x".repeat(5000)), "-ERR 'Maximum Control Line Exceeded'"),
    ] {
        let mut client = FramedClient::open(&server);
        client.send(format!("{CONNECT}{line}"));
        assert_eq!(client.line(), error);
        assert_eq!(client.socket.closed().0, 1002);
    }
    server.finish();
}

/// A client that closes gets the acknowledgements of what it has published, then the close frame with its code.
fn a_close_frame_is_answered_after_the_acknowledgements(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut client = open_with_inbox(&server);
    let stalled = server.stall_disk();
    let mut bytes = Vec::new();
    WebSocketFrame::binary(b"PUB events.a inbox 1\r\nx\r\n").masked(KEY).encode(&mut bytes);
    encode_close(&mut bytes, CloseCode::new(4321), "bye", Some(KEY));
    // Ignored: it comes after the close frame.
    WebSocketFrame::binary(b"PUB events.a inbox 1\r\ny\r\n").masked(KEY).encode(&mut bytes);
    client.socket.peer.send(bytes);
    eventually("it waits for the disk", || {
        (server.metric("stilling_hub_paused_connections") == 1).then_some(())
    });
    let _open = stalled.end();
    assert_eq!(client.message().1, b"{\"stream\":\"events\",\"seq\":1}");
    assert_eq!(client.socket.closed().0, 4321);
    let (overview, folder) = server.keep();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::PeerClosed)), 1);
    assert_eq!(records(&folder.path().join("streams")).len(), 1);
}

/// A client that does not read gets no pongs beyond what its connection takes.
fn a_flood_of_pings_holds_little_memory(driver: DriverChoice) {
    const PINGS: usize = 150_000;
    let server = HubTestServer::start(driver);
    let peer = TestPeer::connect_with_small_buffer(server.at("http"));
    let mut client = FramedClient::on(peer, "/nats");
    let mut writer = client.socket.peer.clone_writer();
    let sender = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        WebSocketFrame::ping(&[b'x'; 125]).masked(KEY).encode(&mut bytes);
        writer.send(bytes.repeat(PINGS));
    });
    // Pings are read whether they are answered or not.
    sender.join().expect("all are read");
    let held = server.metric("stilling_output_held_bytes");
    assert!(0 < held && held <= 1 << 20, "{held} bytes are held");
    client.sync();
    drop(client);
    server.finish();
}

/// Row 2.4: the bytes of a feed are encoded once for connections with and without frames.
fn many_subscribers_share_the_bytes_of_a_feed_with_tcp(driver: DriverChoice) {
    const EACH: usize = 20;
    const MESSAGES: usize = 500;
    const ROUND: usize = 50;
    let server = HubTestServer::with(driver, |config| config.shards = 1);
    let mut framed: Vec<FramedClient> = (0..EACH)
        .map(|_| {
            let mut client = FramedClient::open(&server);
            client.send(format!("{CONNECT}SUB quick.> 1\r\n"));
            client.sync();
            client
        })
        .collect();
    let mut plain: Vec<NatsSubscriber> = (0..EACH).map(|_| server.subscribe("quick.>")).collect();
    let mut publisher = open_with_inbox(&server);
    let payload = |number: usize| format!("{number} {}", "x".repeat(number % 300));
    for start in (0..MESSAGES).step_by(ROUND) {
        let mut bytes = Vec::new();
        for number in start..start + ROUND {
            let payload = payload(number);
            bytes.extend(format!("PUB quick.a {}\r\n{payload}\r\n", payload.len()).into_bytes());
        }
        publisher.send(bytes);
        // Private lines between the shared bytes change neither.
        framed.iter_mut().for_each(|client| client.send("PING\r\n"));
        for client in &mut framed {
            let (mut number, mut pongs) = (start, 0);
            while number < start + ROUND || pongs < 1 {
                let line = client.line();
                if line == "PONG" {
                    pongs += 1;
                    continue;
                }
                assert_eq!(client.payload(&line), payload(number).into_bytes());
                number += 1;
            }
        }
    }
    assert_eq!(server.metric("stilling_hub_feeds"), 1);
    assert_eq!(server.metric("stilling_hub_feed_subscriptions"), 2 * EACH as u64);
    let encoded_size = server.metric("stilling_hub_feed_encoded_bytes_total");
    assert!(encoded_size > 0 && server.metric("stilling_hub_feed_held_bytes") > 0);
    assert_eq!(server.metric("stilling_hub_feed_sent_bytes_total"), 2 * EACH as u64 * encoded_size);
    for client in &mut plain {
        for number in 0..MESSAGES {
            assert_eq!(client.next(), ("quick.a".to_owned(), payload(number)));
        }
    }
    // Private messages and feed bytes keep their order.
    for client in &mut framed {
        client.sync();
    }
    drop((framed, plain, publisher));
    server.finish();
}

/// Backpressure: what the hub has no room for waits, and is decoded in order.
fn a_flood_in_frames_of_odd_sizes_is_stored_in_order(driver: DriverChoice) {
    const MESSAGES: usize = 60_000;
    let server = HubTestServer::start(driver);
    let mut client = open_with_inbox(&server);
    let stalled = server.stall_disk();
    let mut bytes = Vec::new();
    for number in 0..MESSAGES {
        bytes.extend(format!("PUB events.n inbox 100\r\n{number:0100}\r\n").into_bytes());
    }
    let mut frames = Vec::new();
    let (mut rest, mut size) = (&bytes[..], 1);
    while !rest.is_empty() {
        let (frame, later) = rest.split_at(size.min(rest.len()));
        WebSocketFrame::binary(frame).masked(KEY).encode(&mut frames);
        (rest, size) = (later, (size * 7 + 3) % 70_001);
    }
    let mut writer = client.socket.peer.clone_writer();
    let sender = std::thread::spawn(move || writer.send(frames));
    eventually("it waits for the disk", || {
        (server.metric("stilling_hub_paused_connections") == 1).then_some(())
    });
    let _open = stalled.end();
    for number in 1..=MESSAGES {
        let expected = format!("{{\"stream\":\"events\",\"seq\":{number}}}");
        assert_eq!(String::from_utf8_lossy(&client.message().1), expected);
    }
    sender.join().expect("all is sent");
    drop(client);
    let (_, folder) = server.keep();
    let stored = records(&folder.path().join("streams"));
    let payloads = stored.iter().map(|(_, _, payload)| payload.parse::<usize>().expect("a number"));
    assert!(payloads.eq(0..MESSAGES), "{} records", stored.len());
}

/// Row 2.18: a slow client is told why it is closed, at the end of the frame that it has begun to read.
fn a_slow_consumer_is_closed_with_1008(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let peer = TestPeer::connect_with_small_buffer(server.at("http"));
    let mut client = FramedClient::on(peer, "/nats");
    client.send(format!("{CONNECT}SUB plain 1\r\n"));
    client.sync();
    let mut publisher = server.subscribe("other");
    let payload = "x".repeat(100_000);
    eventually("it is disconnected", || {
        publisher.publish("plain", "", &payload);
        (server.metric("stilling_hub_slow_consumers_total") == 1).then_some(())
    });
    let mut frames = client.socket.frames_until_closed();
    assert_eq!(frames.pop(), Some(Frame::Close(Some(1008), String::new())));
    assert_eq!(frames.pop(), Some(Frame::Binary(b"-ERR 'Slow Consumer'\r\n".to_vec())));
    let message = Frame::Binary(format!("MSG plain 1 {}\r\n{payload}\r\n", payload.len()).into_bytes());
    assert!(!frames.is_empty() && frames.iter().all(|frame| *frame == message), "{} frames", frames.len());
    drop(publisher);
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::SlowConsumer)), 1);
}

/// Hot restart and end: INFO with `ldm`, then all acknowledgements, then the close frame.
fn the_end_of_the_server_closes_with_1001_after_the_acknowledgements(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut client = open_with_inbox(&server);
    let stalled = server.stall_disk();
    client.send("PUB events.a inbox 1\r\nx\r\n");
    eventually("it waits for the disk", || {
        (server.metric("stilling_hub_paused_connections") == 1).then_some(())
    });
    let ending = std::thread::spawn(move || server.finish());
    let info = client.line();
    assert!(info.starts_with("INFO {") && info.contains("\"ldm\":true"), "{info}");
    let _open = stalled.end();
    assert_eq!(client.message().1, b"{\"stream\":\"events\",\"seq\":1}");
    assert_eq!(client.socket.closed().0, 1001);
    let overview = ending.join().expect("it ends");
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::Drained)), 1);
}

fn a_reset_within_a_line_leaves_nothing(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let undecoded = || server.metric("stilling_hub_nats_undecoded_bytes");
    // The pieces of a long payload are decoded as they arrive.
    for (bytes, is_undecoded) in
        [(&b"PUB eve"[..], true), (b"PUB events.a 100000\r\nxxx", false), (b"PUB events.a 10\r\nxxx", true)]
    {
        let mut client = FramedClient::open(&server);
        client.send(CONNECT);
        client.send(bytes);
        client.socket.send(Opcode::Ping, true, b"");
        assert_eq!(client.socket.next(), Frame::Pong(Vec::new()), "it has received the line");
        client.socket.peer.send(b"\x82\xfe\x10\x00\0\0\0\0more");
        assert_eq!(undecoded() > 0, is_undecoded);
        client.socket.peer.reset();
        eventually("nothing is left", || (undecoded() == 0).then_some(()));
    }
    let (_, folder) = server.keep();
    assert!(!folder.path().join("streams/events").exists(), "no message is complete");
}

/// With users, CONNECT authenticates, as over TCP.
fn users_authenticate_with_connect(driver: DriverChoice) {
    let password = Credential::Password(Secret::new("p"));
    let server = HubTestServer::with(driver, |config| {
        let user = UserConfig { publish: vec!["events.a".into()], ..UserConfig::new("ann", password) };
        config.hub.users = vec![user];
    });
    let mut client = FramedClient::open(&server);
    client.send("CONNECT {\"user\":\"ann\",\"pass\":\"wrong\"}\r\n");
    assert_eq!(client.line(), "-ERR 'Authorization Violation'");
    assert_eq!(client.socket.closed().0, 1008);
    let mut client = FramedClient::open(&server);
    client.send("PUB events.a 1\r\nx\r\n");
    assert_eq!(client.line(), "-ERR 'Authorization Violation'");
    let mut client = FramedClient::open(&server);
    client.send("CONNECT {\"user\":\"ann\",\"pass\":\"p\",\"verbose\":false}\r\nPUB events.b 1\r\nx\r\n");
    assert_eq!(client.line(), "-ERR 'Permissions Violation for Publish to \"events.b\"'");
    client.sync();
    // A host name is under the control of its owner, but no page knows the password.
    let named = handshake("/nats", "").replace("127.0.0.1", "nats.example");
    assert_eq!(server.connect().ask(named).status, 101);
    drop(client);
    server.finish();
}

/// `--nats-websocket`.
fn a_listener_of_its_own_serves_every_path_and_nothing_else(driver: DriverChoice) {
    let server = HubTestServer::with(driver, |config| config.hub.nats_websocket = vec![any_port()]);
    let at = server.at("ws");
    for path in ["/", "/nats", "/any/path?x=1"] {
        let mut client = FramedClient::on(TestPeer::connect(at), path);
        client.send(format!("{CONNECT}SUB a 1\r\nPUB a 1\r\nx\r\n"));
        assert_eq!(client.message(), ("MSG a 1 1".to_owned(), b"x".to_vec()));
    }
    let mut socket = WebSocket::on(TestPeer::connect(at), "/", "");
    let Frame::Binary(info) = socket.next() else { panic!("no INFO") };
    let info = String::from_utf8(info).expect("text");
    for part in ["\"client_ip\":\"127.0.0.1\"".to_owned(), format!("\"port\":{}", at.port())] {
        assert!(info.contains(&part), "{part}: {info}");
    }
    for (request, status) in [
        ("GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 426),
        ("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 426),
        ("POST /publish/events.a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n", 405),
    ] {
        assert_eq!(TestPeer::connect(at).ask(request).status, status, "{request}");
    }
    // It serves no pages: those of another port of the host may use it.
    for (origin, status) in [
        ("http://127.0.0.1:8080", 101),
        ("https://127.0.0.1", 101),
        ("http://127.0.0.2:8080", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ] {
        let request = handshake("/", &format!("Origin: {origin}\r\n"));
        assert_eq!(TestPeer::connect(at).ask(request).status, status, "{origin}");
    }
    drop(socket);
    server.finish();
}

/// As `/subscribe/*`.
fn handshakes_of_other_sites_are_refused(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let whole = handshake("/nats", "");
    for (request, status, part) in [
        (handshake("/nats", "Origin: http://evil.example\r\n"), 403, "cross-origin"),
        (handshake("/nats", "Origin: http://127.0.0.1:8080\r\n"), 403, "cross-origin"),
        (whole.replace("Host: 127.0.0.1", "Host: evil.example"), 403, "DNS rebinding"),
        (whole.replace("Version: 13", "Version: 8"), 426, "Sec-WebSocket-Version: 13"),
        (whole.replace("Upgrade: websocket\r\n", ""), 426, "Upgrade: websocket"),
        (whole.replace("GET", "POST"), 405, ""),
        (whole.replace("/nats", "/nats/"), 404, ""),
    ] {
        let answer = server.connect().ask(&request);
        assert!(answer.status == status && answer.text().contains(part), "{request}: {answer:?}");
    }
    let offered = "Origin: http://127.0.0.1\r\nSec-WebSocket-Protocol: nats\r\n";
    let mut peer = server.connect();
    peer.send(handshake("/nats", offered));
    let head = peer.head();
    // As nats-server: no subprotocol is chosen.
    assert_eq!((head.status, head.field("Sec-WebSocket-Protocol")), (101, None));
    drop(peer);
    server.finish();
}
