//! Bodies in blocks (RFC 7959).

use stilling_wire::coap::{BlockSize, BlockValue, Code, OptionNumber};

use super::fixture::{Fixture, OwnedMessage, get, pattern, put};
use crate::coap::{CoapClientConfig, CoapRequest};

fn block(number: u32, more: bool, size: usize) -> Vec<u8> {
    let value = BlockValue::new(number, more, BlockSize::at_most(size)).expect("a small number");
    value.encode().as_bytes().to_vec()
}

/// The response with a block of `body`, as a server sends it that serves blocks of `size`.
fn served(request: &OwnedMessage, body: &[u8], etag: &[u8], size: usize) -> OwnedMessage {
    let (number, _, asked) = request.block(OptionNumber::BLOCK2).unwrap_or((0, false, size));
    let size = asked.min(size);
    let (start, end) = (number as usize * size, (number as usize * size + size).min(body.len()));
    request
        .piggybacked(Code::CONTENT)
        .with(OptionNumber::ETAG, etag)
        .with(OptionNumber::BLOCK2, &block(number, end < body.len(), size))
        .body(&body[start..end])
}

#[test]
fn a_response_in_blocks_is_assembled() {
    let body = pattern(1, 10_000);
    for size in [16, 64, 1024] {
        let mut client = Fixture::new();
        let mut request = client.start(get("/large"));
        assert_eq!(request.block(OptionNumber::BLOCK2), None);
        let mut messages = 1;
        loop {
            client.receive(&served(&request, &body, b"v1", size));
            let Some(next) = client.sent().pop() else { break };
            assert_eq!(next.block(OptionNumber::BLOCK2), Some((messages, false, size)));
            assert_eq!(next.option(OptionNumber::URI_PATH), Some(&b"large"[..]));
            assert_ne!(next.token, request.token);
            (request, messages) = (next, messages + 1);
        }
        assert_eq!(messages as usize, body.len().div_ceil(size));
        assert_eq!(client.response(), (Code::CONTENT, body.clone()));
    }
}

#[test]
fn a_smaller_block_size_can_be_requested_from_the_start_and_later() {
    let body = pattern(1, 300);
    let small = CoapRequest { block_size: BlockSize::at_most(64), ..get("/large") };
    let mut client = Fixture::new();
    let request = client.start(CoapRequest { asks_for_block_size: true, ..small.clone() });
    assert_eq!(request.block(OptionNumber::BLOCK2), Some((0, false, 64)));
    // Without the early option the size shrinks after the first block, whose bytes are kept.
    let request = client.start(small);
    let next = client.exchange(&served(&request, &body, b"v1", 128));
    assert_eq!(next.block(OptionNumber::BLOCK2), Some((2, false, 64)));
    client.receive(&served(&next, &body[..150], b"v1", 128));
    assert_eq!(client.response().1, body[..150]);
}

/// RFC 7959 §2.4: bytes of two representations are never joined.
#[test]
fn another_etag_begins_the_transfer_again() {
    let (old, new) = (pattern(1, 200), pattern(2, 150));
    let mut client = Fixture::new();
    let request = client.start(get("/large"));
    let second = client.exchange(&served(&request, &old, b"v1", 64));
    let again = client.exchange(&served(&second, &new, b"v2", 64));
    assert_eq!(again.block(OptionNumber::BLOCK2).map(|(number, ..)| number), Some(0));
    let second = client.exchange(&served(&again, &new, b"v2", 64));
    let third = client.exchange(&served(&second, &new, b"v2", 64));
    client.receive(&served(&third, &new, b"v2", 64));
    assert_eq!(client.response().1, new);
}

#[test]
fn a_resource_that_changes_all_the_time_is_an_error() {
    let body = pattern(1, 200);
    let mut client = Fixture::new();
    let mut request = client.start(get("/clock"));
    let mut version = 0u8;
    loop {
        version += 1;
        client.receive(&served(&request, &body, &[version], 64));
        let Some(next) = client.sent().pop() else { break };
        request = next;
    }
    assert_eq!(client.error(), "the resource changed during each of 4 transfers: try again later");
}

/// A request that changes something is not repeated because its response changed.
#[test]
fn a_changed_response_of_a_post_is_an_error() {
    let body = pattern(1, 200);
    let mut client = Fixture::new();
    let request = client.start(CoapRequest { method: Code::POST, ..put("/a", b"x") });
    let second = client.exchange(&served(&request, &body, b"v1", 64));
    assert!(second.payload.is_empty());
    client.receive(&served(&second, &body, b"v2", 64));
    assert!(client.error().starts_with("the resource changed"));
}

#[test]
fn blocks_that_were_not_requested_are_errors() {
    let body = pattern(1, 500);
    let check = |change: &dyn Fn(OwnedMessage) -> OwnedMessage, words: &str| {
        let mut client = Fixture::new();
        let request = client.start(get("/large"));
        let second = client.exchange(&served(&request, &body, b"v1", 64));
        client.receive(&change(served(&second, &body, b"v1", 64)));
        let error = client.error();
        assert!(error.contains(words), "{error}");
        assert_eq!(client.sent(), []);
    };
    let replaced = |mut message: OwnedMessage, value: Option<Vec<u8>>| {
        message.options.retain(|(number, _)| *number != OptionNumber::BLOCK2);
        message.options.extend(value.map(|value| (OptionNumber::BLOCK2, value)));
        message
    };
    check(
        &|answer| replaced(answer, Some(block(2, true, 64))),
        "the block at byte 128 instead of the one at 64",
    );
    check(&|answer| replaced(answer, Some(vec![0x1f])), "did not send the block at byte 64");
    check(&|answer| replaced(answer, None), "did not send the block at byte 64");
    check(&|answer| answer.body(b"short"), "a block of 64 bytes with 5 bytes");
    check(&|answer| answer.body(&[0; 65]), "a block of 64 bytes with 65 bytes");
}

#[test]
fn an_error_in_the_middle_is_the_response() {
    let mut client = Fixture::new();
    let request = client.start(get("/large"));
    let second = client.exchange(&served(&request, &pattern(1, 500), b"v1", 64));
    client.receive(&second.piggybacked(Code::NOT_FOUND).body(b"gone"));
    assert_eq!(client.response(), (Code::NOT_FOUND, b"gone".to_vec()));
}

#[test]
fn a_response_longer_than_the_maximum_is_an_error() {
    let config = CoapClientConfig { response_size_max: 100, ..CoapClientConfig::default() };
    let mut client = Fixture::with_config(config);
    let request = client.start(get("/large"));
    let second = client.exchange(&served(&request, &pattern(1, 500), b"v1", 64));
    client.receive(&served(&second, &pattern(1, 500), b"v1", 64));
    assert_eq!(client.error(), "the response has more than 100 bytes: raise the maximum");
    let request = client.start(get("/large"));
    client.receive(&request.piggybacked(Code::CONTENT).body(&[0; 101]));
    assert!(client.error().contains("more than 100 bytes"));
}

#[test]
fn a_request_body_is_sent_in_blocks() {
    let body = pattern(1, 2500);
    let mut client = Fixture::new();
    let mut request = client.start(put("/large-update", &body));
    assert_eq!(request.uint(OptionNumber::SIZE1), Some(2500));
    let mut received = Vec::new();
    for number in 0..2 {
        assert_eq!(request.block(OptionNumber::BLOCK1), Some((number, true, 1024)));
        received.extend_from_slice(&request.payload);
        let answer =
            request.piggybacked(Code::CONTINUE).with(OptionNumber::BLOCK1, &block(number, true, 1024));
        request = client.exchange(&answer);
    }
    assert_eq!(request.block(OptionNumber::BLOCK1), Some((2, false, 1024)));
    received.extend_from_slice(&request.payload);
    assert_eq!(received, body);
    client.receive(&request.piggybacked(Code::CHANGED).with(OptionNumber::BLOCK1, &block(2, false, 1024)));
    assert_eq!(client.response().0, Code::CHANGED);
}

/// RFC 7959 §2.9.1 (a smaller size in 2.31) and §2.9.3 (a smaller size in 4.13).
#[test]
fn the_server_can_ask_for_smaller_blocks() {
    let body = pattern(1, 300);
    let mut client = Fixture::new();
    let request = client.start(CoapRequest { block_size: BlockSize::at_most(128), ..put("/a", &body) });
    let next =
        client.exchange(&request.piggybacked(Code::CONTINUE).with(OptionNumber::BLOCK1, &block(0, true, 32)));
    assert_eq!(next.block(OptionNumber::BLOCK1), Some((4, true, 32)));
    assert_eq!(next.payload, body[128..160]);
    let refusal =
        next.piggybacked(Code::REQUEST_ENTITY_TOO_LARGE).with(OptionNumber::BLOCK1, &block(4, true, 16));
    let again = client.exchange(&refusal);
    assert_eq!(again.block(OptionNumber::BLOCK1), Some((0, true, 16)));
    assert_eq!(again.payload, body[..16]);
    client.receive(&again.piggybacked(Code::REQUEST_ENTITY_TOO_LARGE));
    assert_eq!(client.response().0, Code::REQUEST_ENTITY_TOO_LARGE);
}

#[test]
fn a_server_that_lost_the_first_blocks_gets_them_again() {
    let body = pattern(1, 100);
    let mut client = Fixture::new();
    let small = CoapRequest { block_size: BlockSize::at_most(64), ..put("/a", &body) };
    let request = client.start(small);
    let second =
        client.exchange(&request.piggybacked(Code::CONTINUE).with(OptionNumber::BLOCK1, &block(0, true, 64)));
    let again = client.exchange(&second.piggybacked(Code::REQUEST_ENTITY_INCOMPLETE));
    assert_eq!(again.block(OptionNumber::BLOCK1), Some((0, true, 64)));
}

#[test]
fn a_refusal_in_the_middle_of_a_request_body_ends_it() {
    let mut client = Fixture::new();
    let request = client.start(put("/a", &pattern(1, 5000)));
    client.receive(&request.piggybacked(Code::NOT_FOUND));
    assert_eq!(client.response().0, Code::NOT_FOUND);
    assert_eq!(client.sent(), []);
    let request = client.start(put("/a", &pattern(1, 5000)));
    client.receive(&request.piggybacked(Code::CONTINUE).with(OptionNumber::BLOCK1, &block(3, true, 1024)));
    assert!(client.error().contains("the block at byte 3072 instead of the one at 0"));
}

/// RFC 7959 §3.3: blocks in both directions.
#[test]
fn a_long_body_gets_a_long_response() {
    let (body, answer) = (pattern(1, 100), pattern(2, 100));
    let mut client = Fixture::new();
    let small = CoapRequest { method: Code::POST, block_size: BlockSize::at_most(64), ..put("/a", &body) };
    let first = client.start(small);
    let second =
        client.exchange(&first.piggybacked(Code::CONTINUE).with(OptionNumber::BLOCK1, &block(0, true, 64)));
    let response = second
        .piggybacked(Code::CHANGED)
        .with(OptionNumber::BLOCK2, &block(0, true, 64))
        .with(OptionNumber::BLOCK1, &block(1, false, 64))
        .body(&answer[..64]);
    let third = client.exchange(&response);
    assert_eq!(third.block(OptionNumber::BLOCK2), Some((1, false, 64)));
    assert_eq!((third.block(OptionNumber::BLOCK1), &third.payload[..]), (None, &[][..]));
    client.receive(
        &third
            .piggybacked(Code::CHANGED)
            .with(OptionNumber::BLOCK2, &block(1, false, 64))
            .body(&answer[64..]),
    );
    assert_eq!(client.response(), (Code::CHANGED, answer));
}
