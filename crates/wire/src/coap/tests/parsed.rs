//! Row 1.14: what is a message, and what is malformed.

use super::refused;
use crate::coap::{
    CoapFault, CoapMessage, Code, MessageContent, MessageType, OptionNumber, Reaction, Token, check,
};

#[test]
fn the_examples_of_rfc_7252_appendix_a() {
    let request = CoapMessage::parse(b"\x40\x01\x7d\x34\xbbtemperature").expect("a message");
    assert_eq!((request.kind, request.content), (MessageType::Confirmable, MessageContent::Request));
    assert_eq!((request.code, request.id, request.token), (Code::GET, 0x7d34, Token::EMPTY));
    assert!(request.options.values(OptionNumber::URI_PATH).eq([b"temperature"]));
    assert!(request.payload.is_empty());

    let response = CoapMessage::parse(b"\x61\x45\x7d\x35\x20\xff22.3 C").expect("a message");
    assert_eq!((response.kind, response.content), (MessageType::Acknowledgement, MessageContent::Response));
    assert_eq!((response.code, response.token.as_bytes()), (Code::CONTENT, b" ".as_slice()));
    assert_eq!((response.options.count(), response.payload), (0, b"22.3 C".as_slice()));
}

#[test]
fn empty_messages() {
    for (datagram, kind) in [
        (b"\x40\x00\x12\x34", MessageType::Confirmable),
        (b"\x60\x00\x12\x34", MessageType::Acknowledgement),
        (b"\x70\x00\x12\x34", MessageType::Reset),
    ] {
        let message = CoapMessage::parse(datagram).expect("a message");
        assert_eq!((message.kind, message.content, message.id), (kind, MessageContent::Empty, 0x1234));
        assert!(check::message(datagram));
    }
}

/// RFC 7252 §3.1: both extended forms, at their least and greatest values.
#[test]
fn extended_deltas_and_lengths() {
    for (number, delta) in [
        (12u16, b"\xc0".as_slice()),
        (13, b"\xd0\x00"),
        (268, b"\xd0\xff"),
        (269, b"\xe0\x00\x00"),
        (65_535, b"\xe0\xfe\xf2"),
    ] {
        let datagram = [b"\x40\x01\x00\x00", delta].concat();
        let message = CoapMessage::parse(&datagram).expect("a message");
        assert!(message.options.map(|option| option.number).eq([OptionNumber(number)]), "{number}");
        assert!(check::message(&datagram));
    }
    for (size, length) in [
        (12usize, b"\x1c".as_slice()),
        (13, b"\x1d\x00"),
        (268, b"\x1d\xff"),
        (269, b"\x1e\x00\x00"),
        (65_804, b"\x1e\xff\xff"),
    ] {
        let datagram = [b"\x40\x01\x00\x00".as_slice(), length, &vec![7; size]].concat();
        let message = CoapMessage::parse(&datagram).expect("a message");
        assert!(message.options.map(|option| option.value.len()).eq([size]), "{size}");
        assert!(check::message(&datagram));
    }
}

/// RFC 7252 §3: silence, whatever the type.
#[test]
fn what_is_not_of_version_1_is_ignored() {
    refused(b"", CoapFault::Header, 0, Reaction::Ignore);
    refused(b"\x40\x01\x00", CoapFault::Header, 3, Reaction::Ignore);
    for version in [0x00, 0x80, 0xc0] {
        refused(&[version, 1, 0, 0], CoapFault::Version, 0, Reaction::Ignore);
    }
}

/// RFC 7252 §4.2 and §4.3: a reset for a confirmable message, silence for the others.
#[test]
fn a_format_error_is_reset_if_the_message_is_confirmable() {
    let cases: [(&[u8], CoapFault, u16); 12] = [
        (b"\x49\x01\x12\x34123456789", CoapFault::TokenSize, 0),
        (b"\x4f\x01\x12\x34", CoapFault::TokenSize, 0),
        (b"\x48\x01\x12\x341234567", CoapFault::TokenEnd, 11),
        (b"\x41\x01\x12\x34t\xf0", CoapFault::OptionNibble, 5),
        (b"\x41\x01\x12\x34t\x0f", CoapFault::OptionNibble, 5),
        (b"\x41\x01\x12\x34t\xd0", CoapFault::OptionEnd, 5),
        (b"\x41\x01\x12\x34t\x0e\x00", CoapFault::OptionEnd, 5),
        (b"\x41\x01\x12\x34t\x11a\x02b", CoapFault::OptionEnd, 7),
        (b"\x41\x01\x12\x34t\xe0\xfe\xf3", CoapFault::OptionNumber, 5),
        (b"\x40\x01\x12\x34\xff", CoapFault::PayloadMissing, 4),
        (b"\x40\x01\x12\x34\x11a\xff", CoapFault::PayloadMissing, 6),
        (b"\x40\x21\x12\x34", CoapFault::CodeClass, 1),
    ];
    for (datagram, fault, offset) in cases {
        refused(datagram, fault, offset, Reaction::Reset(0x1234));
        let mut unconfirmed = datagram.to_vec();
        unconfirmed[0] |= 0x10;
        refused(&unconfirmed, fault, offset, Reaction::Ignore);
    }
    for class in [1, 6, 7] {
        refused(&[0x40, class << 5, 0x12, 0x34], CoapFault::CodeClass, 1, Reaction::Reset(0x1234));
        refused(&[0x60, class << 5, 0x12, 0x34], CoapFault::CodeClass, 1, Reaction::Ignore);
    }
}

/// RFC 7252 §4.1.
#[test]
fn an_empty_message_has_nothing_behind_its_id() {
    refused(b"\x41\x00\x12\x34t", CoapFault::EmptyContent, 4, Reaction::Reset(0x1234));
    refused(b"\x41\x00\x12\x34", CoapFault::EmptyContent, 4, Reaction::Reset(0x1234));
    refused(b"\x40\x00\x12\x34\xff!", CoapFault::EmptyContent, 4, Reaction::Reset(0x1234));
    refused(b"\x60\x00\x12\x34\xb1a", CoapFault::EmptyContent, 4, Reaction::Ignore);
}

/// RFC 7252 §4.3, table 1.
#[test]
fn a_type_has_the_content_that_it_may_have() {
    for datagram in [b"\x50\x00\x12\x34", b"\x60\x01\x12\x34", b"\x70\x01\x12\x34", b"\x70\x45\x12\x34"] {
        refused(datagram, CoapFault::TypeContent, 0, Reaction::Ignore);
    }
    for datagram in [b"\x50\x01\x12\x34", b"\x50\x45\x12\x34", b"\x40\x45\x12\x34", b"\x60\x45\x12\x34"] {
        assert!(check::message(datagram));
    }
    // Unknown methods and status codes are messages; their recipient answers.
    assert_eq!(
        CoapMessage::parse(b"\x40\x1f\x00\x00").map(|message| message.content),
        Ok(MessageContent::Request)
    );
    assert_eq!(
        CoapMessage::parse(b"\x60\x60\x00\x00").map(|message| message.content),
        Ok(MessageContent::Response)
    );
}

#[test]
fn an_error_is_small_and_shows_its_evidence() {
    let error = CoapMessage::parse(b"\x80\x01\x00\x00").expect_err("version 2");
    assert_eq!(error.to_string(), "expected version 1 at byte 0 of the datagram");
    assert!(size_of_val(&error) <= 8);
    assert_eq!(Code::NOT_FOUND.to_string(), "4.04");
}
