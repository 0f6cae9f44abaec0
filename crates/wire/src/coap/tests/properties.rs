//! Random messages and datagrams, with `coap-lite` as the oracle in both directions.

use std::collections::{BTreeMap, LinkedList};

use coap_lite::Packet;
use proptest::prelude::*;

use crate::coap::check;
use crate::coap::{CoapFault, CoapMessage, Code, MessageType, MessageWriter, OptionNumber, Token};

/// A message as its parts.
#[derive(Clone, Debug)]
struct MessageParts {
    kind: MessageType,
    code: u8,
    id: u16,
    token: Vec<u8>,
    options: BTreeMap<u16, Vec<Vec<u8>>>,
    payload: Vec<u8>,
}

impl MessageParts {
    fn encode(&self) -> Vec<u8> {
        let mut buffer = vec![0; 65_536];
        let token = Token::new(&self.token).expect("a token");
        let code = Code::from_byte(self.code);
        let mut writer =
            MessageWriter::new(&mut buffer, self.kind, code, self.id, token).expect("room for a header");
        for (number, values) in &self.options {
            for value in values {
                writer.option(OptionNumber(*number), value).expect("room, in order");
            }
        }
        writer.payload(&self.payload).expect("room for the payload").to_vec()
    }

    /// The message of the oracle.
    fn packet(&self) -> Packet {
        let mut packet = Packet::new();
        packet.header.set_type(match self.kind {
            MessageType::Confirmable => coap_lite::MessageType::Confirmable,
            MessageType::NonConfirmable => coap_lite::MessageType::NonConfirmable,
            MessageType::Acknowledgement => coap_lite::MessageType::Acknowledgement,
            MessageType::Reset => coap_lite::MessageType::Reset,
        });
        packet.header.code = self.code.into();
        packet.header.message_id = self.id;
        packet.set_token(self.token.clone());
        for (number, values) in &self.options {
            packet.set_option((*number).into(), values.iter().cloned().collect());
        }
        packet.payload.clone_from(&self.payload);
        packet
    }
}

/// Codes that the oracle knows, and that the type may have.
fn kinds_and_codes() -> impl Strategy<Value = (MessageType, u8)> {
    let requests = [Code::GET, Code::POST, Code::PUT, Code::DELETE, Code::FETCH, Code::PATCH, Code::IPATCH];
    let responses =
        [Code::CREATED, Code::CONTENT, Code::CONTINUE, Code::NOT_FOUND, Code::SERVICE_UNAVAILABLE];
    let both = || prop::sample::select(&[MessageType::Confirmable, MessageType::NonConfirmable]);
    prop_oneof![
        (both(), prop::sample::select(requests.to_vec())),
        (both(), prop::sample::select(responses.to_vec())),
        (Just(MessageType::Acknowledgement), prop::sample::select(responses.to_vec())),
    ]
    .prop_map(|(kind, code)| (kind, code.byte()))
}

fn messages() -> impl Strategy<Value = MessageParts> {
    let numbers = prop_oneof![
        4 => prop::sample::select(OptionNumber::ALL).prop_map(|number| number.0),
        1 => any::<u16>(),
    ];
    let value = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..20),
        1 => prop::collection::vec(any::<u8>(), 250..300),
    ];
    let options = prop::collection::btree_map(numbers, prop::collection::vec(value, 1..4), 0..8);
    let token = prop::collection::vec(any::<u8>(), 0..=8);
    let payload = prop::collection::vec(any::<u8>(), 0..100);
    (kinds_and_codes(), any::<u16>(), token, options, payload).prop_map(
        |((kind, code), id, token, options, payload)| MessageParts {
            kind,
            code,
            id,
            token,
            options,
            payload,
        },
    )
}

/// Checks that the oracle found the same parts.
fn same_parts(message: &CoapMessage<'_>, packet: &Packet) {
    assert_eq!(u8::from(packet.header.code), message.code.byte());
    assert_eq!((packet.header.message_id, packet.get_token()), (message.id, message.token.as_bytes()));
    assert_eq!(packet.payload, message.payload);
    let mut options: BTreeMap<u16, LinkedList<Vec<u8>>> = BTreeMap::new();
    for option in message.options {
        options.entry(option.number.0).or_default().push_back(option.value.to_vec());
    }
    let theirs: BTreeMap<u16, LinkedList<Vec<u8>>> =
        packet.options().map(|(number, values)| (*number, values.clone())).collect();
    assert_eq!(theirs, options);
}

/// Whether the oracle knows the code: it has one value for all codes that it does not know.
fn oracle_knows(code: Code) -> bool {
    u8::from(coap_lite::MessageClass::from(code.byte())) == code.byte()
}

proptest! {
    #[test]
    fn both_implementations_write_the_same_bytes(parts in messages()) {
        let ours = parts.encode();
        let theirs = parts.packet().to_bytes_unlimited().expect("a message");
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn what_either_writes_the_other_reads(parts in messages()) {
        let theirs = parts.packet().to_bytes_unlimited().expect("a message");
        let message = CoapMessage::parse(&theirs).expect("a message");
        prop_assert_eq!((message.kind, message.id), (parts.kind, parts.id));
        same_parts(&message, &Packet::from_bytes(&parts.encode()).expect("a message"));
        check::message(&theirs);
    }

    #[test]
    fn changed_messages_are_refused_or_have_the_same_parts(
        parts in messages(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut datagram = parts.encode();
        for (at, byte) in changes {
            let at = at.index(datagram.len());
            datagram[at] = byte;
        }
        if is_cut {
            datagram.truncate(cut.index(datagram.len()));
        }
        check::message(&datagram);
        compare(&datagram);
    }

    #[test]
    fn any_bytes_are_refused_or_have_the_same_parts(datagram in prop::collection::vec(any::<u8>(), 0..80)) {
        check::message(&datagram);
        compare(&datagram);
    }
}

/// Compares the verdicts on a datagram. The oracle accepts what breaks rules beyond the form of options.
fn compare(datagram: &[u8]) {
    match (CoapMessage::parse(datagram), Packet::from_bytes(datagram)) {
        (Ok(message), Ok(packet)) => {
            if oracle_knows(message.code) {
                same_parts(&message, &packet);
            }
        }
        (Ok(message), Err(error)) => panic!("only the oracle refuses: {error:?}, {message:?}"),
        (Err(error), Ok(_)) => assert!(
            matches!(
                error.fault(),
                CoapFault::Version
                    | CoapFault::CodeClass
                    | CoapFault::TypeContent
                    | CoapFault::EmptyContent
                    | CoapFault::PayloadMissing
            ),
            "only the oracle accepts: {error}: {}",
            datagram.escape_ascii()
        ),
        (Err(_), Err(_)) => {}
    }
}
