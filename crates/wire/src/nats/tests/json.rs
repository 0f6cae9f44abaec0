//! JSON and JetStream subjects: `CONNECT`, `INFO`, acknowledgements.

use super::super::{AckSubject, Connect, Info, NatsFault, PubAck, PubAckError, PubAckResponse};

#[test]
fn what_a_client_leaves_out_is_as_in_nats_server() {
    for json in ["{}", "{\"verbose\":null,\"headers\":null,\"user\":null,\"protocol\":null,\"else\":[1,{}]}"]
    {
        let options = Connect::parse(json.as_bytes()).unwrap();
        assert_eq!(options, Connect::default(), "{json}");
        assert!(
            options.verbose && options.pedantic && options.echo && !options.headers && !options.no_responders
        );
    }
}

/// Options as sent by `nats-py`, `nats.go` and `async-nats`.
#[test]
fn the_options_of_real_clients_are_read() {
    let python = br#"{"echo": true, "lang": "python3", "pedantic": false, "protocol": 1, "verbose": false, "version": "2.9.0", "headers": true, "no_responders": true, "user": "a", "pass": "b\u0022"}"#;
    let options = Connect::parse(python).unwrap();
    assert!(
        !options.verbose && !options.pedantic && options.echo && options.headers && options.no_responders
    );
    assert_eq!((options.user.as_deref(), options.pass.as_deref()), (Some("a"), Some("b\"")));
    assert_eq!((options.lang.as_deref(), options.version.as_deref()), (Some("python3"), Some("2.9.0")));
    assert_eq!(options.protocol, 1);
    let go = br#"{"verbose":false,"pedantic":false,"tls_required":false,"name":"","lang":"go","version":"1.31.0","protocol":1,"echo":true,"headers":true,"no_responders":true,"auth_token":"t"}"#;
    let options = Connect::parse(go).unwrap();
    assert_eq!((options.name.as_deref(), options.auth_token.as_deref()), (Some(""), Some("t")));
}

#[test]
fn options_that_are_no_object_of_the_right_types_end_the_connection() {
    for json in [
        "",
        "x",
        "[]",
        "[true,true]",
        "null",
        "{",
        "{}x",
        "{\"verbose\":1}",
        "{\"verbose\":\"true\"}",
        "{\"user\":5}",
        "{\"protocol\":\"1\"}",
        "{\"verbose\":true,\"verbose\":true}",
        "{\"name\":\"\\x\"}",
    ] {
        let error = Connect::parse(json.as_bytes()).unwrap_err();
        assert_eq!(
            (error.fault(), error.text(), error.closes()),
            (NatsFault::Json, "Parser Error", true),
            "{json}"
        );
        assert!(error.offset() as usize <= json.len(), "{json}");
    }
    assert!(Connect::parse(b"{\"name\":\"\xff\"}").is_err());
    assert!(Connect::parse(format!("{{\"a\":{}", "[".repeat(4000)).as_bytes()).is_err());
}

#[test]
fn connect_and_info_round_trip() {
    let options = Connect {
        verbose: false,
        headers: true,
        user: Some("\u{fc}\"\n".into()),
        protocol: 1,
        ..Connect::default()
    };
    let mut out = Vec::new();
    options.encode(&mut out);
    let json = out.strip_prefix(b"CONNECT ").unwrap().strip_suffix(b"\r\n").unwrap();
    assert!(!json.contains(&b'\n'));
    assert_eq!(Connect::parse(json).unwrap(), options);

    let info = Info {
        server_id: "S1".into(),
        version: "2.10.0".into(),
        proto: 1,
        host: "127.0.0.1".into(),
        port: 4222,
        headers: true,
        max_payload: 1_048_576,
        auth_required: true,
        client_id: Some(7),
        connect_urls: vec!["127.0.0.1:4222".to_owned()],
        ..Info::default()
    };
    out.clear();
    info.encode(&mut out);
    let json = out.strip_prefix(b"INFO ").unwrap().strip_suffix(b"\r\n").unwrap();
    assert_eq!(Info::parse(json).unwrap(), info);
    assert!(!json.windows(12).any(|part| part == b"tls_required"), "what is false is left out");
    let sparse =
        Info::parse(b"{\"server_id\":null,\"port\":null,\"connect_urls\":null,\"cluster\":\"c\"}").unwrap();
    assert_eq!(sparse, Info::default());
}

#[test]
fn an_acknowledgement_subject_carries_the_message_position() {
    let subject = AckSubject {
        stream: "events",
        consumer: "c1",
        delivered: 1,
        stream_sequence: 22,
        consumer_sequence: 3,
        time_ns: 1_763_000_000_000_000_001,
        pending: 4,
    };
    let mut out = Vec::new();
    subject.encode(&mut out);
    assert_eq!(out, b"$JS.ACK.events.c1.1.22.3.1763000000000000001.4");
    assert_eq!(AckSubject::parse(&out), Some(subject));
    for long in [
        &b"$JS.ACK._.hash.events.c1.1.22.3.1763000000000000001.4"[..],
        b"$JS.ACK.hub.hash.events.c1.1.22.3.1763000000000000001.4.random",
    ] {
        assert_eq!(AckSubject::parse(long), Some(subject));
    }
    for bad in [
        &b""[..],
        b"$JS.ACK.",
        b"$JS.ACK.events.c1.1.22.3.4",
        b"$JS.ACK.events.c1.1.22.3.4.5.6",
        b"$JS.ACK.events.c1.1.22.3.4.-5",
        b"$JS.ACK.events.c1.1.22.3.4.+5",
        b"$JS.ACK.events.c1.1.22.3.4.",
        b"$JS.ACK..c1.1.22.3.4.5",
        b"$JS.ACK.events.c1.x.22.3.4.5",
        b"$JS.ACK.events.c1.1.22.3.4.18446744073709551616",
        b"$JS.API.events.c1.1.22.3.4.5",
        b"$JS.ACK.events.\xff.1.22.3.4.5",
    ] {
        assert_eq!(AckSubject::parse(bad), None, "{}", bad.escape_ascii());
    }
}

#[test]
fn an_acknowledgement_round_trips() {
    let mut out = Vec::new();
    let ack = PubAck { stream: "events".into(), sequence: u64::MAX, duplicate: false };
    ack.encode(&mut out);
    assert_eq!(out, b"{\"stream\":\"events\",\"seq\":18446744073709551615}");
    assert_eq!(PubAckResponse::parse(&out).unwrap(), PubAckResponse::Stored(ack));
    out.clear();
    let ack = PubAck { stream: "a\"\\\u{1}\u{1f}\u{fc}".into(), sequence: 1, duplicate: true };
    ack.encode(&mut out);
    assert_eq!(out, "{\"stream\":\"a\\\"\\\\\\u0001\\u001f\u{fc}\",\"seq\":1,\"duplicate\":true}".as_bytes());
    assert_eq!(PubAckResponse::parse(&out).unwrap(), PubAckResponse::Stored(ack));
    out.clear();
    let ack_error = PubAckError {
        stream: "events".into(),
        code: 400,
        error_code: 10_071,
        description: "wrong last sequence: 7".into(),
    };
    ack_error.encode(&mut out);
    assert_eq!(
        out,
        b"{\"error\":{\"code\":400,\"err_code\":10071,\"description\":\"wrong last sequence: 7\"},\
          \"stream\":\"events\",\"seq\":0}"
    );
    assert_eq!(PubAckResponse::parse(&out).unwrap(), PubAckResponse::Rejected(ack_error));
}

#[test]
fn an_answer_that_confirms_nothing_is_no_acknowledgement() {
    for json in [
        "",
        "{}",
        "+OK",
        "[]",
        "{\"stream\":\"a\"}",
        "{\"seq\":1}",
        "{\"stream\":\"a\",\"seq\":0}",
        "{\"seq\":-1}",
    ] {
        assert!(PubAckResponse::parse(json.as_bytes()).is_err(), "{json}");
    }
    let with_domain = b"{\"stream\":\"a\",\"domain\":\"hub\",\"seq\":3,\"batch\":\"x\"}";
    assert!(matches!(
        PubAckResponse::parse(with_domain),
        Ok(PubAckResponse::Stored(PubAck { sequence: 3, .. }))
    ));
}
