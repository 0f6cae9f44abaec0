//! WebSocket connections without room on the server are closed with 1013, and the others continue.

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling_wire::websocket::{Opcode, WebSocketFrame};

use crate::support::HubTestServer;
use crate::websocket::{Frame, KEY, WebSocket};

on_both_drivers!(
    incomplete_messages_of_subscribers_beyond_the_maximum_close_with_1013,
    incomplete_messages_to_the_echo_beyond_the_maximum_close_with_1013,
    unread_echoes_beyond_the_maximum_close_with_1013,
);

const MIB: usize = 1024 * 1024;

/// Mebibytes of a message, and how many of them a shard has room for.
const MESSAGE_MIB: usize = 15;
const MESSAGES: usize = 64 / 16;

const INCOMPLETE: &str = "too many incomplete messages: connect again later";

/// A server whose connections share one budget, and whose subscribers may send messages as long as the echo's.
fn server(driver: DriverChoice) -> HubTestServer {
    HubTestServer::with(driver, |config| {
        config.shards = 1;
        config.hub.streams[0].message_size_max = 8 * MIB as u32;
    })
}

/// Sends a message but its end. Returns the code and reason of the close, if there is one.
fn send_incomplete(socket: &mut WebSocket) -> Option<(Option<u16>, String)> {
    for number in 0..MESSAGE_MIB {
        let opcode = if number == 0 { Opcode::Text } else { Opcode::Continuation };
        // A client that is closed meanwhile reads why.
        socket.try_send(opcode, false, &vec![b'x'; MIB]);
        socket.try_send(Opcode::Ping, true, b"held");
        match socket.next() {
            Frame::Pong(payload) => assert_eq!(payload, b"held"),
            Frame::Close(code, reason) => return Some((code, reason)),
            other => panic!("{other:?}"),
        }
    }
    None
}

/// Holds incomplete messages until one is refused, and returns the connections that remain.
#[track_caller]
fn hold_until_refused(server: &HubTestServer, path: &str) -> Vec<WebSocket> {
    let mut held = Vec::new();
    loop {
        let mut socket = WebSocket::open(server, path);
        if let Some(close) = send_incomplete(&mut socket) {
            assert_eq!(close, (Some(1013), INCOMPLETE.to_owned()));
            break;
        }
        held.push(socket);
        assert!(held.len() <= MESSAGES, "more than the maximum is held");
    }
    assert!(held.len() >= MESSAGES - 1, "{} are held", held.len());
    held
}

fn finish(server: HubTestServer) {
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::InputFull)), 1);
}

/// Row 2.18.
fn incomplete_messages_of_subscribers_beyond_the_maximum_close_with_1013(driver: DriverChoice) {
    let server = server(driver);
    let path = "/subscribe/plain?format=raw";
    for mut socket in hold_until_refused(&server, path) {
        socket.send(Opcode::Continuation, true, b"");
        let Frame::Text(answer) = socket.next() else { panic!("no answer") };
        assert!(answer.starts_with("{\"error\":{\"code\":400,"), "{answer}");
    }
    let mut socket = WebSocket::open(&server, path);
    assert_eq!(send_incomplete(&mut socket), None, "there is room again");
    drop(socket);
    finish(server);
}

fn incomplete_messages_to_the_echo_beyond_the_maximum_close_with_1013(driver: DriverChoice) {
    let server = server(driver);
    for mut socket in hold_until_refused(&server, "/test/echo") {
        socket.send(Opcode::Continuation, true, b"");
        assert_eq!(socket.peer.read_exactly(10)[..2], [0x81, 127]);
        assert_eq!(socket.peer.read_exactly(MESSAGE_MIB * MIB), vec![b'x'; MESSAGE_MIB * MIB]);
    }
    let mut socket = WebSocket::open(&server, "/test/echo");
    assert_eq!(send_incomplete(&mut socket), None, "there is room again");
    drop(socket);
    finish(server);
}

/// Clients that do not read their echoes are not closed, and those that the server has no room for are.
fn unread_echoes_beyond_the_maximum_close_with_1013(driver: DriverChoice) {
    let server = server(driver);
    let mut message = Vec::new();
    WebSocketFrame::binary(&vec![b'x'; MESSAGE_MIB * MIB]).masked(KEY).encode(&mut message);
    let mut unread = Vec::new();
    loop {
        let mut socket = WebSocket::open(&server, "/test/echo");
        // A client that is closed meanwhile reads why.
        socket.peer.try_send(&message);
        match socket.peer.read_exactly(2)[..] {
            [0x82, 127] => unread.push(socket),
            [0x88, size] => {
                let close = socket.peer.read_exactly(size.into());
                assert_eq!(close, [&1013_u16.to_be_bytes(), INCOMPLETE.as_bytes()].concat());
                break;
            }
            ref other => panic!("{other:?}"),
        }
        // Half of the output's memory may hold some, too.
        assert!(unread.len() <= 2 * MESSAGES, "more than the maximum is held");
    }
    assert!(unread.len() >= MESSAGES, "{} are held", unread.len());
    for mut socket in unread {
        socket.peer.read_exactly(8);
        assert_eq!(socket.peer.read_exactly(MESSAGE_MIB * MIB), vec![b'x'; MESSAGE_MIB * MIB]);
    }
    finish(server);
}
