//! Frames as bytes.

use super::{KEY, check, check_sent};
use crate::websocket::limits::{CONTROL_SIZE_MAX, HEADER_SIZE_MAX};
use crate::websocket::{
    CloseCode, Opcode, WebSocketFrame, WebSocketFrameHeader, WebSocketRole, encode_close, encode_frame_around,
};

#[test]
fn a_length_has_its_shortest_form() {
    let table: [(u64, &[u8]); 8] = [
        (0, b"\x82\x00"),
        (125, b"\x82\x7d"),
        (126, b"\x82\x7e\0\x7e"),
        (0xffff, b"\x82\x7e\xff\xff"),
        (0x1_0000, b"\x82\x7f\0\0\0\0\0\x01\0\0"),
        (u64::from(u32::MAX), b"\x82\x7f\0\0\0\0\xff\xff\xff\xff"),
        (1 << 32, b"\x82\x7f\0\0\0\x01\0\0\0\0"),
        (u64::MAX >> 1, b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"),
    ];
    for (length, expected) in table {
        let header = WebSocketFrameHeader { opcode: Opcode::Binary, is_final: true, length, mask: None };
        let mut out = Vec::new();
        header.encode(&mut out);
        assert_eq!((&out[..], out.len()), (expected, header.size()));
        let header = WebSocketFrameHeader { mask: Some(KEY), is_final: false, ..header };
        out.clear();
        header.encode(&mut out);
        assert_eq!(out, [[0x02, expected[1] | 0x80].as_slice(), &expected[2..], &KEY].concat());
        assert_eq!(out.len(), header.size());
        assert!(out.len() <= HEADER_SIZE_MAX);
    }
}

#[test]
fn frames_of_every_kind() {
    let encode = |frame: WebSocketFrame<'_>| {
        let mut out = b"before".to_vec();
        frame.encode(&mut out);
        assert_eq!(out.len(), 6 + frame.size());
        out[6..].to_vec()
    };
    assert_eq!(encode(WebSocketFrame::text("Hello")), b"\x81\x05Hello");
    assert_eq!(encode(WebSocketFrame::binary(b"")), b"\x82\x00");
    assert_eq!(encode(WebSocketFrame::ping(b"a")), b"\x89\x01a");
    assert_eq!(encode(WebSocketFrame::pong(b"a")), b"\x8a\x01a");
    let fragment = WebSocketFrame { is_final: false, ..WebSocketFrame::new(Opcode::Continuation, b"a") };
    assert_eq!(encode(fragment), b"\x00\x01a");
}

/// Row 2.4: a frame is encoded once, around a payload whose length is not known before.
#[test]
fn a_frame_is_encoded_around_its_payload() {
    for length in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000] {
        let payload: Vec<u8> = (0..=255).cycle().take(length).collect();
        let (mut around, mut direct) = (b"before".to_vec(), b"before".to_vec());
        encode_frame_around(&mut around, Opcode::Binary, |out| out.extend_from_slice(&payload));
        WebSocketFrame::binary(&payload).encode(&mut direct);
        assert_eq!(around, direct, "length {length}");
    }
}

#[test]
fn a_close_frame_is_a_control_frame_whatever_its_reason() {
    let encode = |code, reason: &str, mask| {
        let mut out = Vec::new();
        encode_close(&mut out, code, reason, mask);
        out
    };
    assert_eq!(encode(Some(CloseCode::NORMAL), "bye", None), b"\x88\x05\x03\xe8bye");
    assert_eq!(encode(None, "bye", None), b"\x88\x00");
    let masked = encode(Some(CloseCode::SLOW_CONSUMER), "", Some(KEY));
    check_sent(WebSocketRole::Client, &masked, "close 4008 ");
    let cut = encode(Some(CloseCode::POLICY_VIOLATION), &"é".repeat(200), None);
    assert_eq!(cut.len(), 2 + CONTROL_SIZE_MAX - 1, "a character is not cut");
    check(&cut, &format!("close 1008 {}", "é".repeat(61).as_bytes().escape_ascii()));
}
