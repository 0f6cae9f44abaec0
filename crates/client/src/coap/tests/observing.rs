//! Observations (RFC 7641).

use std::time::Duration;

use stilling_wire::coap::{BlockSize, BlockValue, Code, MessageType, OptionNumber};

use super::fixture::{Fixture, OwnedMessage, get, pattern};
use crate::coap::limits::NOTIFICATION_AGE_MAX;

fn notification(registration: &OwnedMessage, id: u16, sequence: u8, payload: &[u8]) -> OwnedMessage {
    registration
        .separate(MessageType::NonConfirmable, id, Code::CONTENT)
        .with(OptionNumber::OBSERVE, &[sequence])
        .body(payload)
}

/// A client that has received the state with sequence 10.
fn registered() -> (Fixture, OwnedMessage) {
    let mut client = Fixture::new();
    let registration = client.observe(get("/obs"));
    assert_eq!(registration.option(OptionNumber::OBSERVE), Some(&[][..]));
    client
        .receive(&registration.piggybacked(Code::CONTENT).with(OptionNumber::OBSERVE, &[10]).body(b"first"));
    assert_eq!(client.notification(), b"first");
    (client, registration)
}

/// RFC 7641 §3.4: only newer states count, whatever order they arrive in.
#[test]
fn notifications_arrive_in_their_order() {
    let (mut client, registration) = registered();
    client.receive(&notification(&registration, 1, 12, b"12"));
    client.receive(&notification(&registration, 2, 11, b"11"));
    client.receive(&notification(&registration, 1, 12, b"12"));
    client.receive(&notification(&registration, 3, 13, b"13"));
    assert_eq!((client.notification(), client.notification()), (b"12".to_vec(), b"13".to_vec()));
    assert_eq!((client.event(), client.sent()), (None, vec![]));
    client.now += NOTIFICATION_AGE_MAX + Duration::from_secs(1);
    client.receive(&notification(&registration, 4, 1, b"restarted"));
    assert_eq!(client.notification(), b"restarted");
}

#[test]
fn a_confirmable_notification_is_acknowledged_also_when_it_is_old() {
    let (mut client, registration) = registered();
    for (id, sequence) in [(1, 12), (1, 12), (2, 11)] {
        let message = OwnedMessage {
            kind: MessageType::Confirmable,
            ..notification(&registration, id, sequence, b"state")
        };
        client.receive(&message);
        assert_eq!(client.only_sent(), OwnedMessage::empty(MessageType::Acknowledgement, id));
    }
    assert_eq!(client.notification(), b"state");
    assert_eq!(client.event(), None);
}

#[test]
fn a_response_without_observe_is_the_only_one() {
    let mut client = Fixture::new();
    let registration = client.observe(get("/plain"));
    client.receive(&registration.piggybacked(Code::CONTENT).body(b"once"));
    assert_eq!(client.response(), (Code::CONTENT, b"once".to_vec()));
    assert_eq!(client.core.next_timer(), None);
}

/// RFC 7641 §3.2: an error, or a state without a sequence, ends the observation.
#[test]
fn the_server_can_end_the_observation() {
    let (mut client, registration) = registered();
    client.receive(&registration.separate(MessageType::Confirmable, 5, Code::NOT_FOUND));
    assert_eq!(client.only_sent(), OwnedMessage::empty(MessageType::Acknowledgement, 5));
    assert_eq!(client.response().0, Code::NOT_FOUND);
    // What comes after it is rejected.
    client.receive(&notification(&registration, 6, 20, b"more"));
    assert_eq!(client.only_sent(), OwnedMessage::empty(MessageType::Reset, 6));
}

/// RFC 7959 §2.6: the rest of a long state is fetched by ordinary requests, and a newer state replaces it.
#[test]
fn the_rest_of_a_long_state_is_fetched_unless_a_newer_one_arrives() {
    let (old, new) = (pattern(1, 100), pattern(2, 100));
    let block = |number, more| {
        let value = BlockValue::new(number, more, BlockSize::at_most(64)).expect("a small number");
        value.encode().as_bytes().to_vec()
    };
    let (mut client, registration) = registered();
    let first = |id, sequence, body: &[u8]| {
        let message = registration
            .separate(MessageType::NonConfirmable, id, Code::CONTENT)
            .with(OptionNumber::ETAG, &[sequence])
            .with(OptionNumber::OBSERVE, &[sequence]);
        message.with(OptionNumber::BLOCK2, &block(0, true)).body(&body[..64])
    };
    let abandoned = client.exchange(&first(1, 11, &old));
    let request = client.exchange(&first(2, 12, &new));
    assert_eq!(request.block(OptionNumber::BLOCK2), Some((1, false, 64)));
    assert_eq!(request.option(OptionNumber::OBSERVE), None);
    let rest = |request: &OwnedMessage, etag, body: &[u8]| {
        let answer = request.piggybacked(Code::CONTENT).with(OptionNumber::ETAG, &[etag]);
        answer.with(OptionNumber::BLOCK2, &block(1, false)).body(&body[64..])
    };
    client.receive(&rest(&abandoned, 11, &old));
    assert_eq!(client.event(), None, "the block belongs to the older state");
    client.receive(&rest(&request, 12, &new));
    assert_eq!(client.notification(), new);
}

/// RFC 7641 §3.3.1: without notifications the client registers again, with the same token.
#[test]
fn a_silent_server_gets_the_registration_again() {
    let (mut client, registration) = registered();
    let silence = client.run_timer();
    assert!((Duration::from_secs(65)..=Duration::from_secs(80)).contains(&silence), "{silence:?}");
    let again = client.only_sent();
    assert_eq!((again.token, again.option(OptionNumber::OBSERVE)), (registration.token, Some(&[][..])));
    assert_ne!(again.id, registration.id);
    client.receive(&again.piggybacked(Code::CONTENT).with(OptionNumber::OBSERVE, &[9]).body(b"again"));
    assert_eq!(client.notification(), b"again");
}

/// RFC 7641 §3.6: the end is a request with the registration's token.
#[test]
fn the_client_can_end_the_observation() {
    let (mut client, registration) = registered();
    assert!(client.core.end_observation(client.now));
    let end = client.only_sent();
    assert_eq!((end.token, end.option(OptionNumber::OBSERVE)), (registration.token, Some(&[1][..])));
    client.receive(&end.piggybacked(Code::CONTENT).body(b"last"));
    assert_eq!(client.response().1, b"last");
    assert!(!client.core.end_observation(client.now));
}

#[test]
fn a_registration_is_repeated_with_an_echo_and_stays_a_registration() {
    let mut client = Fixture::new();
    let registration = client.observe(get("/obs"));
    let again =
        client.exchange(&registration.piggybacked(Code::UNAUTHORIZED).with(OptionNumber::ECHO, b"proof"));
    assert_eq!(again.option(OptionNumber::OBSERVE), Some(&[][..]));
    client.receive(&again.piggybacked(Code::CONTENT).with(OptionNumber::OBSERVE, &[1]).body(b"first"));
    assert_eq!(client.notification(), b"first");
    client.receive(&notification(&again, 9, 2, b"second"));
    assert_eq!(client.notification(), b"second");
}
