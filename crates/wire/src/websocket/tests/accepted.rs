//! Input that a decoder accepts.

use super::{KEY, check, check_sent};
use crate::websocket::{
    MessageKind, Opcode, WebSocketDecoder, WebSocketEvent, WebSocketFrame, WebSocketLimits, WebSocketRole,
};

#[test]
fn the_examples_of_rfc_6455_section_5_7() {
    check(b"\x81\x05Hello", "text Hello");
    check_sent(WebSocketRole::Client, b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "text Hello");
    check(b"\x01\x03Hel\x80\x02lo", "text Hello");
    check(b"\x89\x05Hello", "ping Hello");
    check_sent(WebSocketRole::Client, b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "pong Hello");
    let long = [b"\x82\x7e\x01\x00".as_slice(), &[b'x'; 256]].concat();
    check(long, &format!("binary {}", "x".repeat(256)));
    let longer = [b"\x82\x7f\0\0\0\0\0\x01\0\0".as_slice(), &[b'x'; 65_536]].concat();
    check(longer, &format!("binary {}", "x".repeat(65_536)));
}

#[test]
fn messages_of_any_form() {
    check(b"", "");
    check(b"\x81\x00", "text ");
    check(b"\x82\x00", "binary ");
    check(b"\x01\x00\x00\x00\x80\x00", "text ");
    check(b"\x02\x00\x00\x01a\x00\x00\x80\x01\xff", "binary a\\xff");
    check(b"\x81\x01a\x82\x01b\x81\x01c", "text a; binary b; text c");
    check(b"\x81\x05Hel", "wait 3");
    check(b"\x02\x05Hel", "begun binary Hel");
    check(b"\x01\x01a\x00\x02b", "begun text ab");
    check(b"\x81", "wait 1");
    check_sent(WebSocketRole::Server, b"\x81\x7e\x01", "wait 3");
    check_sent(WebSocketRole::Client, b"\x81\x85\x37\xfa\x21", "wait 5");
    check([b"\x82\x7d".as_slice(), &[7; 125]].concat(), &format!("binary {}", "\\x07".repeat(125)));
    check([b"\x82\x7e\0\x7e".as_slice(), &[7; 126]].concat(), &format!("binary {}", "\\x07".repeat(126)));
}

/// RFC 6455 §5.4: control frames may come between fragments, also between those of one character.
#[test]
fn control_frames_interrupt_a_message() {
    check(b"\x01\x01a\x89\x01p\x00\x01b\x8a\x00\x80\x01c", "ping p; pong ; text abc");
    check(b"\x01\x01\xc3\x89\x00\x80\x01\xa9", "ping ; text \\xc3\\xa9");
    check([b"\x89\x7d".as_slice(), &[b'x'; 125]].concat(), &format!("ping {}", "x".repeat(125)));
    check(b"\x02\x01a\x88\x00", "close; begun binary a");
    check(b"\x89\x05pi", "wait 2");
}

#[test]
fn text_is_utf_8_wherever_it_is_cut() {
    let word = "κόσμε𐀀\u{10ffff}";
    let bytes = word.as_bytes();
    let expected = format!("text {}", bytes.escape_ascii());
    check([[0x81, bytes.len() as u8].as_slice(), bytes].concat(), &expected);
    for cut in 0..=bytes.len() {
        let (first, second) = bytes.split_at(cut);
        let parts: [&[u8]; 4] = [&[0x01, first.len() as u8], first, &[0x80, second.len() as u8], second];
        check(parts.concat(), &expected);
    }
    // Binary messages may have any bytes, also after a text.
    check(b"\x81\x01a\x82\x02\xc3\xff", "text a; binary \\xc3\\xff");
}

#[test]
fn after_a_close_frame_all_input_is_ignored() {
    check(b"\x88\x00", "close");
    check(b"\x88\x02\x03\xe8", "close 1000 ");
    check(b"\x88\x05\x03\xebbye\xff\xff\x81\x01a", "close 1003 bye");
    let reason = "é".repeat(61) + "a";
    let frame = [b"\x88\x7d\x0f\xa0".as_slice(), reason.as_bytes()].concat();
    check(frame, &format!("close 4000 {}", reason.as_bytes().escape_ascii()));
    for code in
        [1000_u16, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999]
    {
        check([b"\x88\x02".as_slice(), &code.to_be_bytes()].concat(), &format!("close {code} "));
    }
}

/// A message in one frame is returned at once if it is complete or short, and its size is known if it is not.
#[test]
fn a_long_message_is_returned_in_pieces_of_the_input() {
    let limits = WebSocketLimits { message_size_max: 100, whole_size_max: 10 };
    let mut input = Vec::new();
    WebSocketFrame::binary(b"0123456789ab").masked(KEY).encode(&mut input);
    let mut decoder = WebSocketDecoder::of_client();
    let step = decoder.decode(&limits, &input).expect("a message");
    let WebSocketEvent::Message { kind: MessageKind::Binary, payload } = step.event else {
        panic!("a message")
    };
    assert_eq!((payload.to_vec(), step.consumed), (b"0123456789ab".to_vec(), input.len()));
    assert_eq!(payload.masked_bytes().as_ptr(), input[6..].as_ptr(), "the payload is not copied");

    let step = decoder.decode(&limits, &input[..8]).expect("a start");
    assert_eq!(
        (step.event, step.consumed),
        (WebSocketEvent::MessageStart { kind: MessageKind::Binary, size: Some(12) }, 6)
    );
    assert!(decoder.in_message() && !decoder.is_idle());
    let mut bytes = Vec::new();
    for part in [6..8, 8..9, 9..18] {
        let step = decoder.decode(&limits, &input[part.clone()]).expect("a piece");
        let WebSocketEvent::Piece(piece) = step.event else { panic!("a piece") };
        assert_eq!(step.consumed, part.len());
        piece.append_to(&mut bytes);
    }
    assert_eq!(bytes, b"0123456789ab");
    assert_eq!(decoder.decode(&limits, b"").expect("the end").event, WebSocketEvent::MessageEnd);
    assert!(decoder.is_idle());

    let mut input = Vec::new();
    let frame = WebSocketFrame::new(Opcode::Text, b"a");
    WebSocketFrame { is_final: false, ..frame.masked(KEY) }.encode(&mut input);
    let step = decoder.decode(&limits, &input).expect("a start");
    assert_eq!(step.event, WebSocketEvent::MessageStart { kind: MessageKind::Text, size: None });
}
