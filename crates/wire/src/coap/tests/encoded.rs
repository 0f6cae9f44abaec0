//! What a writer writes, and what it refuses.

use crate::coap::{
    CoapEncodeError, Code, MessageType, MessageWriter, OptionNumber, Token, UnrecognisedOption, encode_empty,
    limits::EXTENDED_MAX,
};

#[test]
fn a_message_has_its_options_in_order() {
    let mut buffer = [0; 64];
    let token = Token::new(b"ab").expect("a token");
    let mut writer =
        MessageWriter::new(&mut buffer, MessageType::Acknowledgement, Code::CONTENT, 0x0102, token)
            .expect("room for a header");
    writer.option(OptionNumber::ETAG, b"tag").expect("room");
    writer.uint(OptionNumber::CONTENT_FORMAT, 0).expect("room");
    writer.uint(OptionNumber::SIZE1, 500).expect("room");
    assert_eq!(writer.option(OptionNumber::OBSERVE, b""), Err(CoapEncodeError::Order));
    assert_eq!(writer.payload_room(), 64 - 15 - 1);
    assert_eq!(writer.payload(b"hi"), Ok(b"\x62\x45\x01\x02ab\x43tag\x80\xd2\x23\x01\xf4\xffhi".as_slice()));
}

#[test]
fn an_empty_payload_has_no_marker() {
    let mut buffer = [0; 4];
    let writer = MessageWriter::new(&mut buffer, MessageType::NonConfirmable, Code::CHANGED, 1, Token::EMPTY);
    assert_eq!(writer.and_then(|writer| writer.payload(b"")), Ok(b"\x50\x44\x00\x01".as_slice()));
    assert_eq!(encode_empty(MessageType::Reset, 0x1234), *b"\x70\x00\x12\x34");
}

/// A part without room leaves the message as it was.
#[test]
fn a_full_buffer_is_an_error() {
    let (kind, code) = (MessageType::Confirmable, Code::GET);
    let (mut small, mut buffer) = ([0; 3], [0; 8]);
    let refused = MessageWriter::new(&mut small, kind, code, 0, Token::EMPTY);
    assert!(matches!(refused, Err(CoapEncodeError::Full)));
    let mut writer = MessageWriter::new(&mut buffer, kind, code, 0, Token::EMPTY).expect("room for a header");
    assert_eq!(writer.option(OptionNumber::URI_PATH, b"abcd"), Err(CoapEncodeError::Full));
    assert_eq!(writer.option(OptionNumber::URI_PATH, b"abc"), Ok(()));
    assert_eq!(writer.option(OptionNumber::URI_PATH, b""), Err(CoapEncodeError::Full));
    assert_eq!(writer.payload_room(), 0);
    assert_eq!(writer.finish(), b"\x40\x01\0\0\xb3abc");
}

#[test]
fn a_value_that_no_option_can_have_is_an_error() {
    let mut buffer = vec![0; 2 * EXTENDED_MAX];
    let mut writer = MessageWriter::new(&mut buffer, MessageType::Confirmable, Code::GET, 0, Token::EMPTY)
        .expect("room for a header");
    let value = vec![0; EXTENDED_MAX + 1];
    assert_eq!(writer.option(OptionNumber::IF_MATCH, &value), Err(CoapEncodeError::ValueSize));
    assert_eq!(writer.option(OptionNumber::IF_MATCH, &value[1..]), Ok(()));
    assert_eq!(Token::new(b"123456789"), None);
    assert_eq!(UnrecognisedOption(OptionNumber::ACCEPT).0.to_string(), "Accept");
}
