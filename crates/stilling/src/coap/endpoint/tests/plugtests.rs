//! The cases of the ETSI CoAP plugtests that concern a server, one test per case, named by it.

use super::*;

const TEXT: &[u8] = b"welcome to the plugtest";

/// Sends a non-confirmable request and returns its answer.
fn ask_non(fixture: &mut Fixture, code: Code, uri: &str, payload: &[u8]) -> Received {
    let answer = fixture.send(&client(1), &request(NON, code, 40, uri, &[], payload)).expect("an answer");
    assert_eq!((answer.kind, &answer.token[..]), (NON, &[0, 40][..]));
    answer
}

/// A pending confirmable request that takes longer than a piggybacked answer may.
fn start_slow_request(fixture: &mut Fixture, id: MessageId, token: Token) {
    let context = RequestContext {
        key: ExchangeKey { path: client(1), id, token },
        kind: CON,
        block1: None,
        block2: None,
        observe: None,
        no_response: Default::default(),
        size: 20,
    };
    let until = fixture.now.after(Duration::from_secs(3));
    let _ = fixture.shard.exchange.pending.insert(context, AwaitedAnswer::Demo(until), None, fixture.now);
}

/// Proceeds to the empty acknowledgement and the separate response of a slow request.
fn separate_response(fixture: &mut Fixture, id: MessageId) -> Received {
    let sent = fixture.advance();
    let empty = &sent[0].1;
    assert_eq!((empty.kind, empty.code, empty.id), (MessageType::Acknowledgement, Code::EMPTY, id));
    let (path, response) = fixture.advance().remove(0);
    assert_eq!((path, response.kind, response.code), (client(1), CON, Code::CONTENT));
    assert_eq!(response.payload, b"separate");
    response
}

fn text_options(name: OptionNumber, values: &[&str]) -> Vec<(OptionNumber, Vec<u8>)> {
    values.iter().map(|value| (name, value.as_bytes().to_vec())).collect()
}

fn values(answer: &Received, number: OptionNumber) -> Vec<&[u8]> {
    answer.options.iter().filter(|(of, _)| *of == number).map(|(_, value)| &value[..]).collect()
}

#[test]
fn td_coap_core_01_get_confirmable() {
    let answer = Fixture::new().ask(&client(1), Code::GET, "test", &[], b"");
    assert_eq!((answer.code, &answer.payload[..]), (Code::CONTENT, TEXT));
    assert_eq!(answer.value(OptionNumber::CONTENT_FORMAT), Some(&[][..]), "text");
}

#[test]
fn td_coap_core_02_delete_confirmable() {
    assert_eq!(Fixture::new().ask(&client(1), Code::DELETE, "test", &[], b"").code, Code::DELETED);
}

#[test]
fn td_coap_core_03_put_confirmable() {
    assert_eq!(Fixture::new().ask(&client(1), Code::PUT, "test", &[], b"x").code, Code::CHANGED);
}

#[test]
fn td_coap_core_04_post_confirmable() {
    assert_eq!(Fixture::new().ask(&client(1), Code::POST, "test", &[], b"x").code, Code::CREATED);
}

#[test]
fn td_coap_core_05_get_non_confirmable() {
    let answer = ask_non(&mut Fixture::new(), Code::GET, "test", b"");
    assert_eq!((answer.code, &answer.payload[..]), (Code::CONTENT, TEXT));
}

#[test]
fn td_coap_core_06_delete_non_confirmable() {
    assert_eq!(ask_non(&mut Fixture::new(), Code::DELETE, "test", b"").code, Code::DELETED);
}

#[test]
fn td_coap_core_07_put_non_confirmable() {
    assert_eq!(ask_non(&mut Fixture::new(), Code::PUT, "test", b"x").code, Code::CHANGED);
}

#[test]
fn td_coap_core_08_post_non_confirmable() {
    assert_eq!(ask_non(&mut Fixture::new(), Code::POST, "test", b"x").code, Code::CREATED);
}

#[test]
fn td_coap_core_09_get_separate() {
    let mut fixture = Fixture::new();
    start_slow_request(&mut fixture, 9, Token::EMPTY);
    let response = separate_response(&mut fixture, 9);
    fixture.acknowledge(&client(1), response.id);
    assert_eq!(fixture.shard.next_deadline(fixture.now), None, "nothing is sent again");
}

#[test]
fn td_coap_core_10_get_with_token() {
    let mut fixture = Fixture::new();
    for size in 1..=8_u8 {
        let token: Vec<u8> = (1..=size).collect();
        let mut get = vec![0x40 | size, 1, 0, size];
        get.extend_from_slice(&token);
        get.extend_from_slice(b"\xb4test");
        let answer = fixture.send(&client(1), &get).expect("an answer");
        assert_eq!((answer.code, answer.token), (Code::CONTENT, token));
    }
}

#[test]
fn td_coap_core_11_get_separate_with_token() {
    let mut fixture = Fixture::new();
    start_slow_request(&mut fixture, 9, Token::new(b"token").expect("a short token"));
    assert_eq!(separate_response(&mut fixture, 9).token, b"token");
}

#[test]
fn td_coap_core_12_get_without_token() {
    let answer = Fixture::new().send(&client(1), b"\x40\x01\x00\x01\xb4test").expect("an answer");
    assert_eq!((answer.code, &answer.token[..], answer.id), (Code::CONTENT, &b""[..], 1));
}

#[test]
fn td_coap_core_13_several_uri_path_options() {
    let answer = Fixture::new().ask(&client(1), Code::GET, "seg1/seg2/seg3", &[], b"");
    assert_eq!((answer.code, &answer.payload[..]), (Code::CONTENT, &b"seg1/seg2/seg3"[..]));
}

#[test]
fn td_coap_core_14_several_uri_query_options() {
    let query = text_options(OptionNumber::URI_QUERY, &["first=1", "second=2", "third=3"]);
    let answer = Fixture::new().ask(&client(1), Code::GET, "query", &query, b"");
    assert_eq!((answer.code, &answer.payload[..]), (Code::CONTENT, &b"first=1&second=2&third=3"[..]));
}

/// The piggybacked answer is lost: the client repeats its request.
#[test]
fn td_coap_core_15_lossy_piggybacked() {
    let mut fixture = Fixture::new();
    let get = request(CON, Code::GET, 15, "test", &[], b"");
    let lost = fixture.send(&client(1), &get);
    assert!(lost.is_some());
    fixture.now = fixture.now.after(Duration::from_secs(3));
    assert_eq!(fixture.send(&client(1), &get), lost);
    assert_eq!(fixture.counters.datagrams(DatagramClass::Duplicate), 1);
}

/// The separate response and later its acknowledgement are lost: the server repeats the response.
#[test]
fn td_coap_core_16_lossy_separate() {
    let mut fixture = Fixture::new();
    start_slow_request(&mut fixture, 16, Token::EMPTY);
    let lost = separate_response(&mut fixture, 16);
    let again = fixture.advance();
    assert_eq!(again[0].1, lost, "the same message");
    assert_eq!(fixture.advance()[0].1, lost, "its acknowledgement was lost");
    fixture.acknowledge(&client(1), lost.id);
    assert_eq!(fixture.shard.next_deadline(fixture.now), None);
}

#[test]
fn td_coap_core_17_separate_non_confirmable() {
    let mut fixture = Fixture::new();
    let get = request(NON, Code::GET, 17, "separate", &[], b"");
    assert_eq!(fixture.send(&client(1), &get), None);
    let (path, response) = fixture.advance().remove(0);
    assert_eq!((path, response.kind, &response.token[..]), (client(1), NON, &[0, 17][..]));
    assert_eq!((response.code, &response.payload[..]), (Code::CONTENT, &b"separate"[..]));
}

#[test]
fn td_coap_core_18_location_path() {
    let answer = Fixture::new().ask(&client(1), Code::POST, "test", &[], b"x");
    assert_eq!(answer.code, Code::CREATED);
    let expected = [&b"location1"[..], b"location2", b"location3"];
    assert_eq!(values(&answer, OptionNumber::LOCATION_PATH), expected);
}

#[test]
fn td_coap_core_19_location_query() {
    let answer = Fixture::new().ask(&client(1), Code::POST, "location-query", &[], b"x");
    assert_eq!(answer.code, Code::CREATED);
    assert_eq!(values(&answer, OptionNumber::LOCATION_QUERY), [&b"first=1"[..], b"second=2"]);
}

#[test]
fn td_coap_core_20_accept() {
    let mut fixture = Fixture::new();
    for (accept, format, body) in [(vec![], vec![], &b"text"[..]), (vec![41], vec![41], b"<text/>")] {
        let option = [(OptionNumber::ACCEPT, accept)];
        let answer = fixture.ask(&client(1), Code::GET, "multi-format", &option, b"");
        assert_eq!((answer.code, &answer.payload[..]), (Code::CONTENT, body));
        assert_eq!(answer.value(OptionNumber::CONTENT_FORMAT), Some(&format[..]));
    }
    let json = [(OptionNumber::ACCEPT, vec![50])];
    let answer = fixture.ask(&client(1), Code::GET, "multi-format", &json, b"");
    assert_eq!(answer.code, Code::NOT_ACCEPTABLE);
}

#[test]
fn td_coap_core_21_etag() {
    let mut fixture = Fixture::new();
    let first = fixture.ask(&client(1), Code::GET, "validate", &[], b"");
    let known = [(OptionNumber::ETAG, first.value(OptionNumber::ETAG).expect("it has one").to_vec())];
    let valid = fixture.ask(&client(1), Code::GET, "validate", &known, b"");
    assert_eq!((valid.code, valid.payload.len()), (Code::VALID, 0));
    assert_eq!(valid.value(OptionNumber::ETAG), Some(&known[0].1[..]));
    assert_eq!(fixture.ask(&client(2), Code::PUT, "validate", &[], b"new").code, Code::CHANGED);
    let changed = fixture.ask(&client(1), Code::GET, "validate", &known, b"");
    assert_eq!((changed.code, &changed.payload[..]), (Code::CONTENT, &b"new"[..]));
    assert_ne!(changed.value(OptionNumber::ETAG), Some(&known[0].1[..]));
}

#[test]
fn td_coap_core_22_if_match() {
    let mut fixture = Fixture::new();
    let first = fixture.ask(&client(1), Code::GET, "validate", &[], b"");
    let tag = [(OptionNumber::IF_MATCH, first.value(OptionNumber::ETAG).expect("it has one").to_vec())];
    assert_eq!(fixture.ask(&client(1), Code::PUT, "validate", &tag, b"one").code, Code::CHANGED);
    assert_eq!(fixture.ask(&client(1), Code::PUT, "validate", &tag, b"two").code, Code::PRECONDITION_FAILED);
    assert_eq!(fixture.ask(&client(1), Code::GET, "validate", &[], b"").payload, b"one");
}

#[test]
fn td_coap_core_23_if_none_match() {
    let mut fixture = Fixture::new();
    let absent = [(OptionNumber::IF_NONE_MATCH, Vec::new())];
    assert_eq!(fixture.ask(&client(1), Code::PUT, "create1", &absent, b"one").code, Code::CREATED);
    assert_eq!(fixture.ask(&client(1), Code::PUT, "create1", &absent, b"2").code, Code::PRECONDITION_FAILED);
    assert_eq!(fixture.ask(&client(1), Code::GET, "create1", &[], b"").payload, b"one");
    assert_eq!(fixture.ask(&client(1), Code::DELETE, "create1", &[], b"").code, Code::DELETED);
    assert_eq!(fixture.ask(&client(1), Code::PUT, "create1", &absent, b"two").code, Code::CREATED);
}

/// The paths of links in link format.
fn paths(answer: Received) -> Vec<String> {
    assert_eq!(answer.code, Code::CONTENT);
    assert_eq!(answer.value(OptionNumber::CONTENT_FORMAT), Some(&[40][..]));
    let text = String::from_utf8(answer.payload).expect("it is text");
    let path = |link: &str| link.split_once('>').expect("a link").0.trim_start_matches('<').to_owned();
    text.split(',').filter(|link| !link.is_empty()).map(path).collect()
}

/// The links that match a query, by path.
fn links(query: &[&str]) -> Vec<String> {
    let query = text_options(OptionNumber::URI_QUERY, query);
    paths(Fixture::new().ask(&client(1), Code::GET, ".well-known/core", &query, b""))
}

const BLOCK_LINKS: [&str; 4] = ["/large", "/large-update", "/large-create", "/large-post"];

#[test]
fn td_coap_link_01_all_links() {
    let all = links(&[]);
    assert!(["/test", "/separate", "/query", "/validate"].iter().all(|path| all.iter().any(|of| of == path)));
    assert!(BLOCK_LINKS.iter().all(|path| all.iter().any(|of| of == path)));
}

#[test]
fn td_coap_link_02_a_resource_type() {
    assert_eq!(links(&["rt=block"]), BLOCK_LINKS);
    assert_eq!(links(&["rt=bloc"]), [""; 0]);
}

#[test]
fn td_coap_link_03_any_resource_type() {
    let untyped = ["/multi-format", "/path", "/alternate"];
    let typed: Vec<String> =
        links(&[]).into_iter().filter(|path| !untyped.contains(&path.as_str())).collect();
    assert_eq!(links(&["rt=*"]), typed);
}

#[test]
fn td_coap_link_04_one_of_several_resource_types() {
    assert_eq!(links(&["rt=Type2"]), ["/link1", "/link2"]);
    assert_eq!(links(&["rt=Type1 Type2"]), [""; 0], "the value is a list");
}

#[test]
fn td_coap_link_05_a_prefix_of_interfaces() {
    assert_eq!(links(&["if=If*"]), ["/link1", "/link2"]);
    assert_eq!(links(&["if=foo"]), ["/link3"]);
}

#[test]
fn td_coap_link_06_any_size() {
    assert_eq!(links(&["sz=*"]), ["/large"]);
}

#[test]
fn td_coap_link_07_a_path() {
    assert_eq!(links(&["href=/link1"]), ["/link1"]);
}

#[test]
fn td_coap_link_08_a_prefix_of_paths() {
    assert_eq!(links(&["href=/link*"]), ["/link1", "/link2", "/link3"]);
    assert_eq!(links(&["href=/lar*", "sz=1700"]), ["/large"], "all conditions hold");
}

#[test]
fn td_coap_link_09_a_hierarchy() {
    assert!(links(&["ct=40"]) == ["/path"] && links(&["href=/path/*"]).is_empty());
    let mut fixture = Fixture::new();
    let below = paths(fixture.ask(&client(1), Code::GET, "path", &[], b""));
    assert_eq!(below, ["/path/sub1", "/path/sub2", "/path/sub3"]);
    for path in below {
        let uri = path.trim_start_matches('/');
        let answer = fixture.ask(&client(1), Code::GET, uri, &[], b"");
        assert_eq!((answer.code, &answer.payload[..]), (Code::CONTENT, uri.as_bytes()));
    }
}

#[test]
fn td_coap_link_10_an_alternate() {
    assert_eq!(links(&["anchor=/test", "rel=alternate"]), ["/alternate"]);
    let answer = Fixture::new().ask(&client(1), Code::GET, "alternate", &[], b"");
    assert_eq!((answer.code, &answer.payload[..]), (Code::CONTENT, TEXT));
}

/// RFC 6690 §4.1: a title is one value, although it has spaces.
#[test]
fn a_title_is_compared_as_a_whole() {
    assert_eq!(links(&["title=Default test resource"]), ["/test"]);
    assert_eq!(links(&["title=Default*"]), ["/test"]);
    assert_eq!(links(&["title=test"]), [""; 0]);
}

/// Reads a body from `number` on in blocks of `size` bytes; the first block may have been read before.
fn read_blocks(fixture: &mut Fixture, uri: &str, size: usize, mut body: Vec<u8>) -> Vec<u8> {
    loop {
        let number = (body.len() / size) as u32;
        let option = block_option(OptionNumber::BLOCK2, number, false, size);
        let answer = fixture.ask(&client(1), Code::GET, uri, &[option], b"");
        let block = answer.block(OptionNumber::BLOCK2).expect("it is a block");
        assert_eq!((answer.code, block.number(), block.size.bytes()), (Code::CONTENT, number, size));
        assert!(!block.more || answer.payload.len() == size);
        body.extend_from_slice(&answer.payload);
        if !block.more {
            return body;
        }
    }
}

/// Writes a body in blocks of `size` bytes and returns the last answer.
fn write_blocks(fixture: &mut Fixture, code: Code, uri: &str, size: usize, body: &[u8]) -> Received {
    let count = body.len().div_ceil(size);
    for (number, piece) in body.chunks(size).enumerate() {
        let option = [block_option(OptionNumber::BLOCK1, number as u32, number + 1 < count, size)];
        let answer = fixture.ask(&client(1), code, uri, &option, piece);
        assert_eq!(answer.value(OptionNumber::BLOCK1), Some(&option[0].1[..]));
        if number + 1 == count {
            return answer;
        }
        assert_eq!(answer.code, Code::CONTINUE);
    }
    panic!("the body is empty")
}

fn long_body() -> Vec<u8> {
    (0..1500_u32).map(|at| b'a' + (at % 26) as u8).collect()
}

#[test]
fn td_coap_block_01_get_with_early_negotiation() {
    assert_eq!(read_blocks(&mut Fixture::new(), "large", 64, Vec::new()).len(), 1700);
}

/// The server chooses its largest size; the client continues with a smaller one.
#[test]
fn td_coap_block_02_get_with_late_negotiation() {
    let mut fixture = Fixture::new();
    let first = fixture.ask(&client(1), Code::GET, "large", &[], b"");
    let block = first.block(OptionNumber::BLOCK2).expect("it is a block");
    assert_eq!((block.number(), block.more, block.size.bytes()), (0, true, 1024));
    let body = read_blocks(&mut fixture, "large", 64, first.payload);
    assert_eq!(body, read_blocks(&mut fixture, "large", 1024, Vec::new()));
}

#[test]
fn td_coap_block_03_put() {
    let mut fixture = Fixture::new();
    let body = long_body();
    assert_eq!(write_blocks(&mut fixture, Code::PUT, "large-update", 64, &body).code, Code::CHANGED);
    assert_eq!(read_blocks(&mut fixture, "large-update", 64, Vec::new()), body);
}

#[test]
fn td_coap_block_04_post_that_creates() {
    let mut fixture = Fixture::new();
    let body = long_body();
    let answer = write_blocks(&mut fixture, Code::POST, "large-create", 64, &body);
    assert_eq!(answer.code, Code::CREATED);
    assert_eq!(values(&answer, OptionNumber::LOCATION_PATH), [&b"large-create"[..], b"1"]);
    assert_eq!(read_blocks(&mut fixture, "large-create/1", 64, Vec::new()), body);
}

#[test]
fn td_coap_block_05_post_with_long_answer() {
    let mut fixture = Fixture::new();
    let body = long_body();
    let first = write_blocks(&mut fixture, Code::POST, "large-post", 64, &body);
    assert_eq!(first.code, Code::CHANGED);
    let mut received = first.payload.clone();
    let mut block = first.block(OptionNumber::BLOCK2).expect("it is a block");
    let size = block.size.bytes();
    while block.more {
        let option = [block_option(OptionNumber::BLOCK2, block.number() + 1, false, size)];
        let answer = fixture.ask(&client(1), Code::POST, "large-post", &option, b"");
        block = answer.block(OptionNumber::BLOCK2).expect("it is a block");
        received.extend_from_slice(&answer.payload);
    }
    assert_eq!(received, body.to_ascii_uppercase());
}

#[test]
fn td_coap_block_06_get_with_the_smallest_blocks() {
    assert_eq!(read_blocks(&mut Fixture::new(), "large", 16, Vec::new()).len(), 1700);
}
