//! Input that a decoder rejects, with the code of the close frame.

use super::{LIMITS, TIGHT, check, check_sent, check_splits, describe};
use crate::websocket::check::decode;
use crate::websocket::{CloseCode, WebSocketRole};

#[test]
fn reserved_bits_and_opcodes() {
    check(b"\xc1\x00", "1002 ReservedBits @0 0xc1");
    check(b"\xa1\x00", "1002 ReservedBits @0 0xa1");
    check(b"\x91\x00", "1002 ReservedBits @0 0x91");
    check(b"\x81\x01a\xf9\x00", "text a; 1002 ReservedBits @0 0xf9");
    for opcode in [3_u8, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        check([0x80 | opcode, 0], &format!("1002 Opcode @0 {:#04x}", 0x80 | opcode));
    }
    // The first byte is enough.
    check(b"\x83", "1002 Opcode @0 0x83");
}

#[test]
fn masks_of_the_wrong_side() {
    check_sent(WebSocketRole::Client, b"\x81\x01a", "1002 MaskMissing @1 0x01");
    check_sent(WebSocketRole::Client, b"\x88\x00", "1002 MaskMissing @1 0x00");
    check_sent(WebSocketRole::Server, b"\x81\x81\0\0\0\0a", "1002 MaskPresent @1 0x81");
    // A key of zeros is a mask.
    check_sent(WebSocketRole::Client, b"\x81\x81\0\0\0\0a", "text a");
}

#[test]
fn control_frames_are_short_and_whole() {
    check(b"\x09\x00", "1002 ControlFragmented @0 0x09");
    check(b"\x0a\x00", "1002 ControlFragmented @0 0x0a");
    check(b"\x08\x00", "1002 ControlFragmented @0 0x08");
    check_sent(WebSocketRole::Server, b"\x89\x7e", "1002 ControlSize @1 0x7e");
    check_sent(WebSocketRole::Server, b"\x88\x7f", "1002 ControlSize @1 0x7f");
    check_sent(WebSocketRole::Client, b"\x8a\xfe", "1002 ControlSize @1 0xfe");
}

#[test]
fn fragments_in_the_wrong_order() {
    check(b"\x80\x00", "1002 ContinuationUnexpected @0 0x80");
    check(b"\x00\x00", "1002 ContinuationUnexpected @0 0x00");
    check(b"\x81\x01a\x80\x01b", "text a; 1002 ContinuationUnexpected @0 0x80");
    check(b"\x01\x01a\x80\x01b\x80\x00", "text ab; 1002 ContinuationUnexpected @0 0x80");
    check(b"\x01\x01a\x81\x01b", "1002 MessageUnfinished @0 0x81");
    check(b"\x02\x01a\x89\x00\x02\x01b", "ping ; 1002 MessageUnfinished @0 0x02");
}

/// RFC 6455 §5.2: the shortest form, and 63 bits.
#[test]
fn lengths_in_other_forms() {
    check(b"\x81\x7e\0\x7d", "1002 LengthForm @2 0x00");
    check(b"\x81\x7e\0\0", "1002 LengthForm @2 0x00");
    check(b"\x82\x7f\0\0\0\0\0\0\xff\xff", "1002 LengthForm @2 0x00");
    check(b"\x82\x7f\x80\0\0\0\0\0\0\0", "1002 LengthSign @2 0x80");
    check(b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff", "1002 LengthSign @2 0xff");
}

/// The header is enough: no byte of a message that is too long is received.
#[test]
fn messages_above_the_limit() {
    check(b"\x82\x7f\0\0\0\0\0\x01\x11\x71", "1009 MessageSize @1");
    check(b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff", "1009 MessageSize @1");
    let first = [b"\x02\x7e\xff\xff".as_slice(), &[0; 65_535]].concat();
    let rest = |size: u16| [first.as_slice(), b"\x00\x7e", &size.to_be_bytes()].concat();
    check(rest(4466), "1009 MessageSize @1");
    let seen = decode(WebSocketRole::Server, &LIMITS, &rest(4465), &[]).seen;
    assert!(!describe(&seen).contains("1009"), "70,000 bytes are allowed");
    for (bytes, expected) in [
        (&b"\x82\x0b"[..], "1009 MessageSize @1"),
        (b"\x01\x09123456789\x00\x01a\x00\x01b", "1009 MessageSize @1"),
        (b"\x01\x09123456789\x00\x01a\x80\x00", "text 123456789a"),
        // Control frames do not count.
        (b"\x01\x09123456789\x89\x0bhello world\x80\x01a", "ping hello world; text 123456789a"),
    ] {
        let seen = decode(WebSocketRole::Server, &TIGHT, bytes, &[]).seen;
        assert_eq!(describe(&seen), expected);
        check_splits(WebSocketRole::Server, &TIGHT, bytes);
    }
}

/// RFC 6455 §8.1, as early as possible.
#[test]
fn texts_that_are_not_utf_8() {
    check(b"\x81\x02a\x80", "1007 Text @1 0x80");
    check(b"\x81\x03\xed\xa0\x80", "1007 Text @1 0xa0");
    check(b"\x81\x01\xc3", "1007 TextEnd @1");
    check(b"\x01\x01\xc3\x80\x00", "1007 TextEnd @1");
    check(b"\x01\x01\xc3\x80\x01a", "1007 Text @1 0x61");
    check(b"\x01\x03\xf0\x9d\x84\x89\x00\x80\x01a", "ping ; 1007 Text @3 0x61");
    // The rest of the frame is not awaited.
    check(b"\x81\x7e\x01\x00ab\xff", "1007 Text @2 0xff");
    check(b"\x81\x20ab\xf4\x90", "1007 Text @3 0x90");
    let bytes = b"\x81\x20ab\xf4\x90";
    let each: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(decode(WebSocketRole::Server, &LIMITS, bytes, &each).failed_at, Some(bytes.len()));
    assert_eq!(decode(WebSocketRole::Server, &LIMITS, &bytes[..5], &each).failed_at, None);
}

#[test]
fn close_frames_that_cannot_be() {
    check(b"\x88\x01\x03", "1002 ClosePayload @1");
    for code in [0_u16, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        check([b"\x88\x02".as_slice(), &code.to_be_bytes()].concat(), "1002 CloseCode @0");
        assert_eq!(CloseCode::new(code), None);
    }
    check(b"\x88\x04\x03\xe8a\xff", "1007 CloseReason @3 0xff");
    check(b"\x88\x03\x03\xe8\xc3", "1007 CloseReason @3");
}
