//! Accepted client input and the resulting events.

use super::super::{ClientDecoder, ClientEvent, NatsLimits};
use super::{LIMITS, check, check_all};

#[test]
fn every_operation_is_decoded() {
    check_all(&[
        ("CONNECT {}\r\n", "CONNECT {}"),
        (
            "CONNECT {\"verbose\":false, \"name\":\"a b\"} \r\n",
            "CONNECT {\\\"verbose\\\":false, \\\"name\\\":\\\"a b\\\"}",
        ),
        ("CONNECT{}\r\n", "CONNECT {}"),
        ("CONNECT \t {}\t\r\n", "CONNECT {}"),
        ("CONNECT\r\n", "CONNECT "),
        ("PING\r\n", "PING"),
        ("PONG\r\n", "PONG"),
        ("PUB a 5\r\nhello\r\n", "[a  None 0 5] hello"),
        ("PUB a 0\r\n\r\n", "[a  None 0 0] "),
        ("PUB a.b.c inbox.1 2\r\nhi\r\n", "[a.b.c  Some(\"inbox.1\") 0 2] hi"),
        ("PUB a 4\r\n\r\n\r\n\r\n", "[a  None 0 4] \\r\\n\\r\\n"),
        ("HPUB a 12 17\r\nNATS/1.0\r\n\r\nhello\r\n", "[a  None 12 17] NATS/1.0\\r\\n\\r\\nhello"),
        ("HPUB a b 12 12\r\nNATS/1.0\r\n\r\n\r\n", "[a  Some(\"b\") 12 12] NATS/1.0\\r\\n\\r\\n"),
        ("HPUB a 0 2\r\nhi\r\n", "[a  None 0 2] hi"),
        ("SUB a 1\r\n", "SUB a None 1"),
        ("SUB a.*.> q 9\r\n", "SUB a.*.> Some(\"q\") 9"),
        ("SUB > sid-of-some-length\r\n", "SUB > None sid-of-some-length"),
        ("UNSUB 1\r\n", "UNSUB 1 None"),
        ("UNSUB 1 5\r\n", "UNSUB 1 Some(5)"),
        ("UNSUB 1 0\r\n", "UNSUB 1 None"),
        ("UNSUB 1 999999999\r\n", "UNSUB 1 Some(999999999)"),
        ("", ""),
    ]);
}

/// nats.go and async-nats send such requests to create consumers.
#[test]
fn a_consumer_create_request_may_end_with_a_filter() {
    check_all(&[
        (
            "PUB $JS.API.CONSUMER.CREATE.s.n.a.> r 0\r\n\r\n",
            "[$JS.API.CONSUMER.CREATE.s.n.a.>  Some(\"r\") 0 0] ",
        ),
        ("PUB $JS.API.CONSUMER.CREATE.s.n.*.b 0\r\n\r\n", "[$JS.API.CONSUMER.CREATE.s.n.*.b  None 0 0] "),
        ("PUB $JS.API.CONSUMER.CREATE.s.n.> 0\r\n\r\n", "[$JS.API.CONSUMER.CREATE.s.n.>  None 0 0] "),
    ]);
}

#[test]
fn operations_have_no_case_and_blanks_may_be_tabs() {
    check_all(&[
        ("pub a 1\r\nx\r\n", "[a  None 0 1] x"),
        ("PuB a 1\r\nx\r\n", "[a  None 0 1] x"),
        ("hpub a 0 1\r\nx\r\n", "[a  None 0 1] x"),
        ("sub A 1\r\n", "SUB A None 1"),
        ("uNsUb 1\r\n", "UNSUB 1 None"),
        ("ping\r\n", "PING"),
        ("Pong\r\n", "PONG"),
        ("connect {}\r\n", "CONNECT {}"),
        ("PUB\ta\t1\r\nx\r\n", "[a  None 0 1] x"),
        ("PUB  a \t b  1\t \r\nx\r\n", "[a  Some(\"b\") 0 1] x"),
        ("SUB \t a   1 \r\n", "SUB a None 1"),
        ("PING \t\r\n", "PING"),
    ]);
}

#[test]
fn a_bare_lf_ends_a_line_of_a_manual_session() {
    check_all(&[
        ("PING\nPONG\n", "PING; PONG"),
        ("PUB a 1\nx\r\n", "[a  None 0 1] x"),
        ("SUB a 1\n", "SUB a None 1"),
        ("CONNECT {}\n", "CONNECT {}"),
    ]);
}

#[test]
fn sizes_may_have_leading_zeros_and_nine_digits() {
    check_all(&[
        ("PUB a 000000005\r\nhello\r\n", "[a  None 0 5] hello"),
        ("UNSUB 1 007\r\n", "UNSUB 1 Some(7)"),
    ]);
}

#[test]
fn subjects_may_have_any_bytes_but_blanks_and_control_bytes() {
    check_all(&[
        ("PUB a*b.c>.d>e 0\r\n\r\n", "[a*b.c>.d>e  None 0 0] "),
        ("PUB $JS.API.INFO _INBOX.x 0\r\n\r\n", "[$JS.API.INFO  Some(\"_INBOX.x\") 0 0] "),
        ("PUB \u{fc}.\u{65e5} 0\r\n\r\n", "[\\xc3\\xbc.\\xe6\\x97\\xa5  None 0 0] "),
        ("PUB 1 2 0\r\n\r\n", "[1  Some(\"2\") 0 0] "),
        ("SUB *.*.a*.> 1\r\n", "SUB *.*.a*.> None 1"),
        ("SUB a q.* 1\r\n", "SUB a Some(\"q.*\") 1"),
    ]);
}

#[test]
fn many_operations_come_out_in_their_order() {
    check(
        "CONNECT {}\r\nPING\r\nSUB a 1\r\nPUB a 1\r\nx\r\nPUB b 2\r\nyz\r\nUNSUB 1\r\nPONG\r\nPU",
        "CONNECT {}; PING; SUB a None 1; [a  None 0 1] x; [b  None 0 2] yz; UNSUB 1 None; PONG; wait 2",
    );
}

/// An incomplete message waits while it is short, and starts at once when it is long.
#[test]
fn an_unfinished_message_waits_or_has_begun() {
    let short = "PUB a 50\r\n0123456789";
    check(short, "wait 20");
    let long = "PUB a 60\r\n0123456789";
    check(long, "begun [a  None 0 60] 0123456789");
    check("PUB a 60\r\n", "begun [a  None 0 60] ");
    check(format!("PUB a 60\r\n{}", "x".repeat(60)), &format!("begun [a  None 0 60] {}", "x".repeat(60)));
    check(format!("PUB a 60\r\n{}\r", "x".repeat(60)), &format!("begun [a  None 0 60] {}", "x".repeat(60)));
    check(format!("PUB a 60\r\n{}\r\n", "x".repeat(60)), &format!("[a  None 0 60] {}", "x".repeat(60)));
}

#[test]
fn an_empty_message_behind_a_long_line_is_one_too() {
    let blanks = " ".repeat(70);
    check(format!("PUB a{blanks}0\r\n"), "begun [a  None 0 0] ");
    check(format!("PUB a{blanks}0\r\n\r\nPING\r\n"), "[a  None 0 0] ; PING");
}

#[test]
fn a_message_that_is_there_is_one_step() {
    let (limits, mut decoder) =
        (NatsLimits { payload_size_max: 100_000, ..LIMITS }, ClientDecoder::default());
    let bytes = format!("PUB a 100000\r\n{}\r\nPING\r\n", "x".repeat(100_000));
    let step = decoder.decode(&limits, bytes.as_bytes()).unwrap();
    let ClientEvent::Publish(message) = step.event else { panic!("the message is there") };
    assert_eq!(message.payload.len(), 100_000);
    assert_eq!(step.consumed, bytes.len() - 6);
    assert!(decoder.is_idle() && !decoder.in_body());
}

#[test]
fn a_decoder_reports_its_position() {
    let mut decoder = ClientDecoder::default();
    assert!(decoder.is_idle() && !decoder.in_body());
    let mut feed = |bytes: &[u8]| {
        let step = decoder.decode(&LIMITS, bytes).unwrap();
        (step.consumed, decoder.is_idle(), decoder.in_body())
    };
    assert_eq!(feed(b""), (0, true, false));
    assert_eq!(feed(b"PU"), (0, false, false));
    assert_eq!(feed(b"PUB a 1\r\n"), (0, false, false));
    assert_eq!(feed(b"PUB a 1\r\nx\r\n"), (12, true, false));
    assert_eq!(feed(b"PUB a 100\r\n"), (11, false, true));
    assert_eq!(feed(&[b'x'; 100]), (100, false, true));
    assert_eq!(feed(b"\r"), (1, false, true));
    assert_eq!(feed(b"\n"), (1, true, false));
}
