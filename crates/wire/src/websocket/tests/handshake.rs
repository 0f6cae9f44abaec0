//! The opening handshake of both sides.

use crate::http1::{
    AnsweredMethod, HttpLimits, RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent,
};
use crate::http1::{RequestHead, Status};
use crate::websocket::{ClientHandshake, HandshakeFault, HandshakeResponseFault, UpgradeRequest};

const LINE: &str = "GET /chat HTTP/1.1\r\nHost: server.example.com\r\n";
const FIELDS: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const VERSION: &str = "Sec-WebSocket-Version: 13\r\n";

fn with_head<T>(text: &str, use_head: impl FnOnce(&RequestHead<'_>) -> T) -> T {
    let step = RequestDecoder::default().decode(&HttpLimits::default(), text.as_bytes()).expect("valid HTTP");
    let RequestEvent::Head(head) = step.event else { panic!("the request is complete: {text}") };
    use_head(&head)
}

#[track_caller]
fn check(parts: &[&str], expected: Result<(), HandshakeFault>) {
    let text = parts.concat() + "\r\n";
    let checked = with_head(&text, |head| UpgradeRequest::check(head).map(|_| ()));
    assert_eq!(checked, expected, "{text}");
}

/// RFC 6455 §1.3 and §4.2.2.
#[test]
fn the_example_of_the_rfc_is_accepted() {
    let text = [LINE, FIELDS, KEY, "Sec-WebSocket-Protocol: chat, superchat\r\n", VERSION, "\r\n"].concat();
    let (accept, response) = with_head(&text, |head| {
        let upgrade = UpgradeRequest::check(head).expect("a valid handshake");
        assert_eq!(
            upgrade.choose_protocol(&["superchat", "chat"]),
            Some("chat"),
            "the client's preference counts"
        );
        assert_eq!(upgrade.choose_protocol(&["Chat"]), None);
        let mut response = Vec::new();
        upgrade.encode_response(&mut response, Some("chat"), None).expect("a good name");
        (upgrade.accept_value(), response)
    });
    assert_eq!(accept.as_str(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let expected = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n";
    assert_eq!(str::from_utf8(&response), Ok(expected));
}

#[test]
fn fields_as_browsers_and_proxies_write_them() {
    for fields in [
        FIELDS,
        "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
        "connection: upgrade\r\nupgrade: WebSocket\r\n",
        "Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: h2c, websocket\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
    ] {
        check(&[LINE, fields, KEY, VERSION], Ok(()));
    }
    let extensions = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let text = [LINE, FIELDS, KEY, VERSION, extensions, "\r\n"].concat();
    let response = with_head(&text, |head| {
        let mut response = Vec::new();
        let upgrade = UpgradeRequest::check(head).expect("extensions are only offered");
        assert_eq!(upgrade.choose_protocol(&["chat"]), None);
        upgrade.encode_response(&mut response, None, None).expect("no name");
        String::from_utf8(response).expect("ASCII")
    });
    assert!(!response.contains("Extensions") && !response.contains("Protocol:"), "{response}");
}

#[test]
fn handshakes_that_are_refused() {
    let post = LINE.replace("GET", "POST");
    let old = LINE.replace("1.1", "1.0");
    check(&[&post, FIELDS, KEY, VERSION], Err(HandshakeFault::Method));
    check(&[&old, FIELDS, KEY, VERSION], Err(HandshakeFault::HttpVersion));
    check(&[LINE, FIELDS, KEY, VERSION, "Content-Length: 1\r\n"], Err(HandshakeFault::Body));
    for fields in [
        "",
        "Upgrade: websocket\r\n",
        "Connection: Upgrade\r\n",
        "Upgrade: websocket\r\nConnection: keep-alive\r\n",
        "Upgrade: h2c\r\nConnection: Upgrade\r\n",
        "Upgrade: websockets\r\nConnection: Upgrade\r\n",
    ] {
        check(&[LINE, fields, KEY, VERSION], Err(HandshakeFault::Upgrade));
    }
    for version in
        ["", "Sec-WebSocket-Version: 8\r\n", "Sec-WebSocket-Version: 13, 8\r\n", &VERSION.repeat(2)]
    {
        check(&[LINE, FIELDS, KEY, version], Err(HandshakeFault::Version));
    }
    for key in [
        "",
        "AAAA",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZSE",
        "dGhlIHNhbXBsZSBub25jZSE=",
        "?GhlIHNhbXBsZSBub25jZQ==",
    ] {
        let field = format!("Sec-WebSocket-Key: {key}\r\n");
        check(&[LINE, FIELDS, &field, VERSION], Err(HandshakeFault::Key));
    }
    check(&[LINE, FIELDS, KEY, KEY, VERSION], Err(HandshakeFault::Key));
    check(&[LINE, FIELDS, VERSION], Err(HandshakeFault::Key));
}

/// RFC 6455 §4.2.2, RFC 9110 §15.5.22: the response names the supported version and protocol.
#[test]
fn a_refusal_has_the_fields_of_its_status() {
    assert_eq!(HandshakeFault::Version.status(), Status::UpgradeRequired);
    assert!(HandshakeFault::Version.fields().contains(&("Sec-WebSocket-Version", "13")));
    assert!(HandshakeFault::Upgrade.fields().contains(&("Upgrade", "websocket")));
    assert_eq!(HandshakeFault::Method.fields(), [("Allow", "GET")]);
    assert_eq!(HandshakeFault::Key.fields(), []);
    let text = HandshakeFault::Version.to_string();
    assert_eq!(text, "426 Upgrade Required: expected the field `Sec-WebSocket-Version: 13`");
}

const CLIENT: ClientHandshake<'_> = ClientHandshake {
    host: "server.example.com",
    target: "/chat",
    nonce: *b"the sample nonce",
    protocols: &["chat", "superchat"],
    extra: &[("Authorization", "Basic YTpi")],
};

#[track_caller]
fn check_response(text: &str, expected: Result<Option<&str>, HandshakeResponseFault>) {
    let mut decoder = ResponseDecoder::default();
    let step =
        decoder.decode(&HttpLimits::default(), AnsweredMethod::Other, text.as_bytes()).expect("valid HTTP");
    let ResponseEvent::Head(head) = step.event else { panic!("the response is complete") };
    assert_eq!(CLIENT.check_response(&head), expected, "{text}");
    assert_eq!(step.consumed, text.len());
}

#[test]
fn a_client_and_a_server_agree() {
    let mut request = Vec::new();
    CLIENT.encode(&mut request);
    let text = String::from_utf8(request).expect("ASCII");
    assert!(
        text.contains("\r\nSec-WebSocket-Protocol: chat, superchat\r\nAuthorization: Basic YTpi\r\n\r\n"),
        "{text}"
    );
    for protocol in [None, Some("superchat")] {
        let response = with_head(&text, |head| {
            let mut response = Vec::new();
            UpgradeRequest::check(head)
                .expect("valid")
                .encode_response(&mut response, protocol, None)
                .expect("good");
            String::from_utf8(response).expect("ASCII")
        });
        check_response(&response, Ok(protocol));
        let wrong = [
            ("s3pP", "s3pQ", HandshakeResponseFault::Accept),
            ("Upgrade: websocket\r\n", "", HandshakeResponseFault::Upgrade),
            ("Connection: Upgrade", "Connection: keep-alive", HandshakeResponseFault::Upgrade),
            ("Connection:", "Sec-WebSocket-Extensions: x\r\nConnection:", HandshakeResponseFault::Extension),
            ("HTTP/1.1 101", "HTTP/1.1 200", HandshakeResponseFault::Status(200)),
        ];
        for (from, to, fault) in wrong {
            let end = if matches!(fault, HandshakeResponseFault::Status(_)) {
                "Content-Length: 0\r\n\r\n"
            } else {
                "\r\n"
            };
            let text = response.replacen(from, to, 1);
            let text = format!("{}{end}", text.strip_suffix("\r\n").expect("an empty line"));
            check_response(&text, Err(fault));
        }
    }
    let other = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: other\r\n\r\n";
    check_response(other, Err(HandshakeResponseFault::Protocol));
}
