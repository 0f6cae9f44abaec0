//! Rejected input: the `-ERR`, whether the connection closes, fault and offset.

use super::{check, check_all};

#[test]
fn an_unknown_operation_is_rejected_at_its_first_wrong_byte() {
    check_all(&[
        ("GET / HTTP/1.1\r\n", "close Unknown Protocol Operation Operation @0"),
        ("\r\n", "close Unknown Protocol Operation Operation @0"),
        ("\n", "close Unknown Protocol Operation Operation @0"),
        (" PING\r\n", "close Unknown Protocol Operation Operation @0"),
        ("\tPING\r\n", "close Unknown Protocol Operation Operation @0"),
        ("\0", "close Unknown Protocol Operation Operation @0"),
        ("\x16\x03\x01\x02", "close Unknown Protocol Operation Operation @0"),
        ("\u{feff}PING\r\n", "close Unknown Protocol Operation Operation @0"),
        ("MSG a 1 5\r\n", "close Unknown Protocol Operation Operation @0"),
        ("INFO {}\r\n", "close Unknown Protocol Operation Operation @0"),
        ("+OK\r\n", "close Unknown Protocol Operation Operation @0"),
        ("-ERR 'x'\r\n", "close Unknown Protocol Operation Operation @0"),
        ("HMSG a 1 5 5\r\n", "close Unknown Protocol Operation Operation @1"),
        ("RS+ a\r\n", "close Unknown Protocol Operation Operation @0"),
        ("PUT a 1\r\n", "close Unknown Protocol Operation Operation @2"),
        ("PU\r\n", "close Unknown Protocol Operation Operation @2"),
        ("PU B a 1\r\n", "close Unknown Protocol Operation Operation @2"),
        ("PUBX a 1\r\n", "close Unknown Protocol Operation Operation @3"),
        ("PUB,a,1\r\n", "close Unknown Protocol Operation Operation @3"),
        ("PUB\0a 1\r\n", "close Unknown Protocol Operation Operation @3"),
        ("PUBa 1\r\n", "close Unknown Protocol Operation Operation @3"),
        ("HPUBB a 0 1\r\n", "close Unknown Protocol Operation Operation @4"),
        ("SUBSCRIBE a 1\r\n", "close Unknown Protocol Operation Operation @3"),
        ("SUB{} 1\r\n", "close Unknown Protocol Operation Operation @3"),
        ("UNSUBS 1\r\n", "close Unknown Protocol Operation Operation @5"),
        ("UNSUP 1\r\n", "close Unknown Protocol Operation Operation @4"),
        ("PINGX\r\n", "close Unknown Protocol Operation Operation @4"),
        ("PING{}\r\n", "close Unknown Protocol Operation Operation @4"),
        ("PON\n", "close Unknown Protocol Operation Operation @3"),
        ("PO\rNG\r\n", "close Unknown Protocol Operation Operation @2"),
        ("CONNEC\r\n", "close Unknown Protocol Operation Operation @6"),
        ("CONNECTED {}\r\n", "close Unknown Protocol Operation Operation @7"),
        ("CONNECT[]\r\n", "close Unknown Protocol Operation Operation @7"),
        ("PING\r\n\r\nPING\r\n", "PING; close Unknown Protocol Operation Operation @0"),
        ("QUIT\r\n", "close Unknown Protocol Operation Operation @0"),
    ]);
    for byte in (0..=255u8).filter(|byte| !b"PpHhSsUuCc".contains(byte)) {
        check([byte, b'I', b'N', b'G', b'\r', b'\n'], "close Unknown Protocol Operation Operation @0");
    }
}

#[test]
fn arguments_that_are_missing_or_too_many_end_the_connection() {
    check_all(&[
        ("PUB\r\n", "close Parser Error Arguments @3"),
        ("PUB \r\n", "close Parser Error Arguments @4"),
        ("PUB a\r\n", "close Parser Error Arguments @5"),
        ("PUB 5\r\nhello\r\n", "close Parser Error Arguments @5"),
        ("PUB a b 5 6\r\n", "close Parser Error Arguments @10"),
        ("PUB a b c 1\r\n", "close Parser Error Arguments @10"),
        ("HPUB\r\n", "close Parser Error Arguments @4"),
        ("HPUB a\r\n", "close Parser Error Arguments @6"),
        ("HPUB a 5\r\n", "close Parser Error Arguments @8"),
        ("HPUB a b 1 2 3\r\n", "close Parser Error Arguments @13"),
        ("SUB\r\n", "close Parser Error Arguments @3"),
        ("SUB a\r\n", "close Parser Error Arguments @5"),
        ("SUB a q 1 2\r\n", "close Parser Error Arguments @10"),
        ("SUB foo bar baz 90\r\n", "close Parser Error Arguments @16"),
        ("UNSUB\r\n", "close Parser Error Arguments @5"),
        ("UNSUB \t \r\n", "close Parser Error Arguments @8"),
        ("UNSUB 1 2 3\r\n", "close Parser Error Arguments @10"),
        ("PING 1\r\n", "close Parser Error Arguments @5"),
        ("PING\rX\r\n", "close Parser Error Arguments @4"),
        ("PING\r\r\n", "close Parser Error Arguments @4"),
        ("PONG me\r\n", "close Parser Error Arguments @5"),
    ]);
}

#[test]
fn sizes_are_one_to_nine_digits() {
    check_all(&[
        ("PUB a x\r\n", "close Parser Error PayloadDigits @6"),
        ("PUB a -1\r\n", "close Parser Error PayloadDigits @6"),
        ("PUB a +1\r\n", "close Parser Error PayloadDigits @6"),
        ("PUB a 1x\r\n", "close Parser Error PayloadDigits @7"),
        ("PUB a 0x5\r\n", "close Parser Error PayloadDigits @7"),
        ("PUB a 1.5\r\n", "close Parser Error PayloadDigits @7"),
        ("PUB a 1,000\r\n", "close Parser Error PayloadDigits @7"),
        ("PUB a 5\r\r\n", "close Parser Error PayloadDigits @7"),
        ("PUB a 5\0\r\n", "close Parser Error PayloadDigits @7"),
        ("PUB a \u{661}\r\n", "close Parser Error PayloadDigits @6"),
        ("PUB a 1000000000\r\n", "close Parser Error PayloadDigits @15"),
        ("PUB a 18446744073709551621\r\n", "close Parser Error PayloadDigits @15"),
        ("PUB a 5x\r\nhello\r\n", "close Parser Error PayloadDigits @7"),
        ("PUB a 1000000005\r\nhello\r\n", "close Parser Error PayloadDigits @15"),
        ("HPUB a 0 5 x\r\nhello\r\n", "close Parser Error PayloadDigits @11"),
        ("PUB a b c\r\n", "close Parser Error PayloadDigits @8"),
        ("PUB a 5 b\r\n", "close Parser Error PayloadDigits @8"),
        ("HPUB a x 5\r\n", "close Parser Error HeaderDigits @7"),
        ("HPUB a -1 5\r\n", "close Parser Error HeaderDigits @7"),
        ("HPUB a b 5\r\n", "close Parser Error HeaderDigits @7"),
        ("HPUB a 5 x\r\n", "close Parser Error PayloadDigits @9"),
        ("HPUB a 1000000000 5\r\n", "close Parser Error HeaderDigits @16"),
        ("HPUB a 6 5\r\n", "close Parser Error HeaderSize @7"),
        ("HPUB a 6 5\r\nhello\r\n", "close Parser Error HeaderSize @7"),
        ("HPUB a b 6 5\r\n", "close Parser Error HeaderSize @9"),
        ("UNSUB 1 x\r\n", "close Parser Error CountDigits @8"),
        ("UNSUB 1 -1\r\n", "close Parser Error CountDigits @8"),
        ("UNSUB 1 1000000000\r\n", "close Parser Error CountDigits @17"),
        ("SUB a 1\x07\r\n", "close Parser Error Sid @7"),
        ("UNSUB \x7f\r\n", "close Parser Error Sid @6"),
    ]);
    let sid = "9".repeat(65);
    check(format!("SUB a {sid}\r\n"), "close Parser Error Sid @70");
    check(format!("UNSUB {sid}\r\n"), "close Parser Error Sid @70");
    check(format!("UNSUB {}\r\n", &sid[1..]), &format!("UNSUB {} None", &sid[1..]));
}

#[test]
fn a_message_beyond_the_limit_ends_the_connection() {
    check_all(&[
        ("PUB a 101\r\n", "close Maximum Payload Violation PayloadSize @6"),
        ("PUB a b 999999999\r\n", "close Maximum Payload Violation PayloadSize @8"),
        ("HPUB a 12 101\r\n", "close Maximum Payload Violation PayloadSize @10"),
        // The connection closes even though the invalid subject alone would not close it.
        ("PUB a..b 101\r\n", "close Maximum Payload Violation PayloadSize @9"),
    ]);
    check(format!("PUB a 100\r\n{}\r\n", "x".repeat(100)), &format!("[a  None 0 100] {}", "x".repeat(100)));
}

#[test]
fn a_line_beyond_the_limit_ends_the_connection() {
    let too_long = "close Maximum Control Line Exceeded ControlLineSize @160";
    check(format!("PUB {}", "a".repeat(156)), too_long);
    check(format!("PUB {} 5\r\n", "a".repeat(200)), too_long);
    check(format!("PING{}\r\n", " ".repeat(155)), too_long);
    check(format!("PING{}\r\n", " ".repeat(154)), "PING");
    check(format!("CONNECT {{{}}}\r\n", " ".repeat(200)), too_long);
    // An unknown operation is reported first.
    check(format!("PONK{}", " ".repeat(200)), "close Unknown Protocol Operation Operation @3");
}

#[test]
fn a_payload_of_another_length_than_announced_ends_the_connection() {
    check_all(&[
        ("PUB a 5\r\nhello!\r\n", "close Unknown Protocol Operation PayloadEnd @0"),
        ("PUB a 5\r\nhello\n\n", "close Unknown Protocol Operation PayloadEnd @0"),
        ("PUB a 5\r\nhello\rPING\r\n", "close Unknown Protocol Operation PayloadEnd @1"),
        ("PUB a 6\r\nhello\r\nPING\r\n", "close Unknown Protocol Operation PayloadEnd @0"),
        ("PUB a 0\r\nPING\r\n", "close Unknown Protocol Operation PayloadEnd @0"),
        (
            "PUB a. 5\r\nhello!\r\n",
            "stay Invalid Publish Subject PublishSubject @6; \
          close Unknown Protocol Operation PayloadEnd @0",
        ),
        ("HPUB a 12 12\r\nNATS/1.0\r\n\r\nhello\r\n", "close Unknown Protocol Operation PayloadEnd @0"),
    ]);
    check(format!("PUB a 60\r\n{}", "x".repeat(61)), "close Unknown Protocol Operation PayloadEnd @0");
    check(format!("PUB a 60\r\n{}\r\r", "x".repeat(60)), "close Unknown Protocol Operation PayloadEnd @1");
}

/// The connection continues: the rejected message's payload is skipped and the next operation is decoded.
#[test]
fn a_bad_subject_costs_its_operation_alone() {
    check("PUB 1.2.3.4.5.6.7.8 0\r\n\r\n", "[1.2.3.4.5.6.7.8  None 0 0] ");
    check_all(&[
        ("PUB .a 4\r\nPING\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @4; PING"),
        ("PUB a. 4\r\nPING\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @6; PING"),
        ("PUB a..b 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @6; PING"),
        ("PUB . 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @4; PING"),
        ("PUB * 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @4; PING"),
        ("PUB a.* 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @6; PING"),
        ("PUB a.*.b 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @6; PING"),
        ("PUB a.> 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @6; PING"),
        (
            "PUB $JS.API.CONSUMER.CREATE.s.>.a 0\r\n\r\nPING\r\n",
            "stay Invalid Publish Subject PublishSubject @30; PING",
        ),
        (
            "PUB $JS.API.CONSUMER.INFO.s.* 0\r\n\r\nPING\r\n",
            "stay Invalid Publish Subject PublishSubject @28; PING",
        ),
        ("PUB a\x01b 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @5; PING"),
        ("PUB a\rb 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @5; PING"),
        ("PUB a\x0cb 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @5; PING"),
        ("PUB a\x7f 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @5; PING"),
        ("PUB 1.2.3.4.5.6.7.8.9 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @19; PING"),
        ("PUB a b. 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject ReplySubject @8; PING"),
        ("PUB a b.* 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject ReplySubject @8; PING"),
        ("PUB a > 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject ReplySubject @6; PING"),
        (
            "HPUB a..b 12 12\r\nNATS/1.0\r\n\r\n\r\nPING\r\n",
            "stay Invalid Publish Subject PublishSubject @7; PING",
        ),
        ("SUB .a 1\r\nPING\r\n", "stay Invalid Subject Filter @4; PING"),
        ("SUB foo. 90\r\nPING\r\n", "stay Invalid Subject Filter @8; PING"),
        ("SUB a..b 1\r\nPING\r\n", "stay Invalid Subject Filter @6; PING"),
        ("SUB >.a 1\r\nPING\r\n", "stay Invalid Subject Filter @4; PING"),
        ("SUB a.>.b 1\r\nPING\r\n", "stay Invalid Subject Filter @6; PING"),
        ("SUB >.> 1\r\nPING\r\n", "stay Invalid Subject Filter @4; PING"),
        ("SUB a.b\0 1\r\nPING\r\n", "stay Invalid Subject Filter @7; PING"),
        ("SUB 1.2.3.4.5.6.7.8.> 1\r\nPING\r\n", "stay Invalid Subject Filter @19; PING"),
        ("SUB a q\x1b 1\r\nPING\r\n", "stay Invalid Subject Queue @7; PING"),
    ]);
    check(b"PUB \xff 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @4; PING");
    check(b"PUB a\xc3 0\r\n\r\nPING\r\n", "stay Invalid Publish Subject PublishSubject @5; PING");
    check(b"SUB a.\xe6\x97 1\r\nPING\r\n", "stay Invalid Subject Filter @6; PING");
    let long = "a".repeat(41);
    check(format!("PUB {long} 0\r\n\r\nPING\r\n"), "stay Invalid Publish Subject PublishSubject @44; PING");
    check(format!("PUB a {long} 0\r\n\r\nPING\r\n"), "stay Invalid Publish Subject ReplySubject @46; PING");
    check(format!("SUB {long} 1\r\n"), "stay Invalid Subject Filter @44");
    check(format!("SUB a {long} 1\r\n"), "stay Invalid Subject Queue @46");
    check(format!("PUB {} 0\r\n\r\n", &long[1..]), &format!("[{}  None 0 0] ", &long[1..]));
    let body = "x".repeat(99);
    check(
        format!("PUB a..b 99\r\n{body}\r\nPING\r\n"),
        "stay Invalid Publish Subject PublishSubject @6; PING",
    );
}
