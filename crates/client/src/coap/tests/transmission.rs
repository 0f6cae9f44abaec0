//! Messages, acknowledgements and resets (RFC 7252 §4, §5.2, §5.3).

use stilling_wire::coap::{Code, MessageType, OptionNumber};

use super::fixture::{Fixture, OwnedMessage, get, put};
use crate::coap::CoapClientConfig;
use crate::coap::limits::{ACK_TIMEOUT, MAX_RETRANSMIT};

#[test]
fn a_piggybacked_response_ends_the_request() {
    let mut client = Fixture::new();
    let request = client.start(get("/a/b?x=1&y"));
    assert_eq!((request.kind, request.code), (MessageType::Confirmable, Code::GET));
    assert_eq!(request.token.size(), 8);
    let texts: Vec<_> = request.options.iter().map(|(number, value)| (number.0, &value[..])).collect();
    assert_eq!(texts, [(11, &b"a"[..]), (11, b"b"), (15, b"x=1"), (15, b"y")]);
    client.receive(&request.piggybacked(Code::CONTENT).body(b"hello"));
    assert_eq!(client.response(), (Code::CONTENT, b"hello".to_vec()));
    assert_eq!((client.sent(), client.core.next_timer()), (vec![], None));
}

/// RFC 7252 §4.2: the same message again, with the same id, until an answer arrives.
#[test]
fn a_lost_message_is_sent_again_unchanged() {
    let mut client = Fixture::new();
    let request = client.start(put("/a", b"1"));
    for _ in 0..MAX_RETRANSMIT {
        assert!(client.run_timer() >= ACK_TIMEOUT);
        assert_eq!(client.only_sent(), request);
    }
    client.receive(&request.piggybacked(Code::CHANGED));
    assert_eq!(client.response().0, Code::CHANGED);
}

#[test]
fn a_server_that_never_answers_is_reported() {
    let config = CoapClientConfig { request_timeout: ACK_TIMEOUT * 100, ..CoapClientConfig::default() };
    let mut client = Fixture::with_config(config);
    client.start(get("/"));
    for _ in 0..=MAX_RETRANSMIT {
        client.run_timer();
    }
    assert!(client.error().starts_with("no answer to 5 transmissions: the server is down"));
}

#[test]
fn the_timeout_of_a_request_tells_how_far_it_came() {
    let mut client = Fixture::new();
    client.core.start(get("/").non_confirmable(), client.now);
    assert_eq!(client.only_sent().kind, MessageType::NonConfirmable);
    client.run_timer();
    assert_eq!(client.error(), "no complete response within 90 s: nothing was received");

    let request = client.start(get("/"));
    client.receive(&OwnedMessage::empty(MessageType::Acknowledgement, request.id));
    client.run_timer();
    let error = client.error();
    assert!(error.ends_with("the server received the request and did not respond"), "{error}");
}

/// RFC 7252 §5.2.2: an empty acknowledgement ends retransmission, and the separate response is acknowledged each time
/// it arrives.
#[test]
fn a_separate_response_is_acknowledged_and_counted_once() {
    let mut client = Fixture::new();
    let request = client.start(get("/separate"));
    client.receive(&OwnedMessage::empty(MessageType::Acknowledgement, request.id));
    let response = request.separate(MessageType::Confirmable, 9, Code::CONTENT).body(b"late");
    for _ in 0..3 {
        client.receive(&response);
        assert_eq!(client.only_sent(), OwnedMessage::empty(MessageType::Acknowledgement, 9));
    }
    assert_eq!(client.response(), (Code::CONTENT, b"late".to_vec()));
    assert_eq!(client.event(), None);
}

#[test]
fn a_separate_response_before_its_acknowledgement_is_the_response() {
    let mut client = Fixture::new();
    let request = client.start(get("/separate"));
    client.receive(&request.separate(MessageType::NonConfirmable, 9, Code::CONTENT).body(b"first"));
    client.receive(&OwnedMessage::empty(MessageType::Acknowledgement, request.id));
    assert_eq!(client.response().1, b"first");
    assert_eq!((client.event(), client.sent()), (None, vec![]));
}

#[test]
fn answers_to_other_messages_change_nothing() {
    let mut client = Fixture::new();
    let request = client.start(get("/"));
    let mut other_id = request.piggybacked(Code::CONTENT);
    other_id.id ^= 1;
    client.receive(&other_id);
    let mut other_token = request.piggybacked(Code::CONTENT);
    other_token.token = stilling_wire::coap::Token::new(b"x").expect("a short token");
    client.receive(&other_token);
    client.receive(&OwnedMessage::empty(MessageType::Reset, request.id ^ 1));
    client.receive(&OwnedMessage::empty(MessageType::Acknowledgement, request.id ^ 1));
    client.core.handle_datagram(b"\x00garbage", client.now);
    assert_eq!((client.event(), client.sent()), (None, vec![]));
    client.run_timer();
    assert_eq!(client.only_sent(), request, "it is still transmitted");
    client.receive(&request.piggybacked(Code::CONTENT));
    assert_eq!(client.response().0, Code::CONTENT);
}

#[test]
fn a_reset_fails_the_request() {
    let mut client = Fixture::new();
    let request = client.start(get("/"));
    client.receive(&OwnedMessage::empty(MessageType::Reset, request.id));
    assert!(client.error().starts_with("the server rejected the message with a reset"));
}

/// RFC 7252 §4.2, §4.3: pings, requests, unknown responses and broken messages are rejected.
#[test]
fn messages_without_a_request_are_reset() {
    let mut client = Fixture::new();
    let request = client.start(get("/"));
    client.receive(&request.piggybacked(Code::CONTENT));
    let unknown = OwnedMessage { token: Default::default(), ..request.clone() };
    for (message, id) in [
        (OwnedMessage::empty(MessageType::Confirmable, 1), 1),
        (OwnedMessage { id: 2, ..request.clone() }, 2),
        (unknown.separate(MessageType::Confirmable, 3, Code::CONTENT), 3),
        (
            unknown.separate(MessageType::NonConfirmable, 4, Code::CONTENT).with(OptionNumber::OBSERVE, &[7]),
            4,
        ),
    ] {
        client.receive(&message);
        assert_eq!(client.only_sent(), OwnedMessage::empty(MessageType::Reset, id));
    }
    client.core.handle_datagram(b"\x40\x01\x00\x05\xff", client.now);
    assert_eq!(client.only_sent(), OwnedMessage::empty(MessageType::Reset, 5));
    client.receive(&unknown.separate(MessageType::NonConfirmable, 6, Code::CONTENT));
    assert_eq!(client.sent(), []);
}

/// RFC 7252 §5.4.1: a response with an unknown critical option is no response.
#[test]
fn an_unknown_critical_option_is_an_error_and_an_elective_one_is_not() {
    let mut client = Fixture::new();
    let request = client.start(get("/"));
    client.receive(&request.piggybacked(Code::CONTENT).with(OptionNumber(65_000), b"x").body(b"y"));
    assert_eq!(client.response().1, b"y");
    let request = client.start(get("/"));
    client.receive(&request.piggybacked(Code::CONTENT).with(OptionNumber(65_001), b"x").body(b"y"));
    assert_eq!(client.error(), "the response has the critical option 65001, which this client does not know");
}

/// RFC 9175 §2.3: the request is repeated with the server's value, under a new id.
#[test]
fn an_echo_challenge_is_answered_by_the_client() {
    let mut client = Fixture::new();
    let request = client.start(put("/a", b"body"));
    let again = client.exchange(&request.piggybacked(Code::UNAUTHORIZED).with(OptionNumber::ECHO, b"proof"));
    assert_eq!(again.option(OptionNumber::ECHO), Some(&b"proof"[..]));
    assert_ne!((again.id, again.token), (request.id, request.token));
    assert_eq!(again.payload, b"body");
    client.receive(&again.piggybacked(Code::CHANGED));
    assert_eq!(client.response().0, Code::CHANGED);
}

#[test]
fn a_server_that_asks_for_an_echo_for_ever_gets_a_bounded_number() {
    let mut client = Fixture::new();
    let mut request = client.start(get("/"));
    let mut repeats = 0;
    loop {
        client.receive(&request.piggybacked(Code::UNAUTHORIZED).with(OptionNumber::ECHO, b"proof"));
        let Some(next) = client.sent().pop() else { break };
        (request, repeats) = (next, repeats + 1);
    }
    assert_eq!((repeats, client.response().0), (3, Code::UNAUTHORIZED));
}

#[test]
fn a_request_that_fits_no_message_is_refused() {
    let mut client = Fixture::new();
    let path = format!("/{}", vec!["a".repeat(255); 20].join("/"));
    client.core.start(get(&path), client.now);
    assert!(client.error().contains("do not fit a message: shorten them"));
    assert_eq!(client.core.next_timer(), None);
}
