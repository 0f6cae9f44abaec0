//! Server operations, and those that a client rejects.

use super::check_served;

#[test]
fn server_operations_are_decoded() {
    for (bytes, expected) in [
        ("INFO {\"server_id\":\"a\"} \r\n", "INFO {\\\"server_id\\\":\\\"a\\\"}"),
        ("info{}\r\n", "INFO {}"),
        ("MSG a 1 5\r\nhello\r\n", "[a 1 None 0 5] hello"),
        ("MSG a 1 inbox.x 0\r\n\r\n", "[a 1 Some(\"inbox.x\") 0 0] "),
        ("msg\ta\t1\t1\nx\r\n", "[a 1 None 0 1] x"),
        ("HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", "[a 1 None 12 14] NATS/1.0\\r\\n\\r\\nhi"),
        ("HMSG a 1 r 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", "[a 1 Some(\"r\") 16 16] NATS/1.0 503\\r\\n\\r\\n"),
        ("+OK\r\n-ERR 'Stale Connection'\r\nPING\r\nPONG\r\n", "+OK; -ERR Stale Connection; PING; PONG"),
        ("-err\r\n", "-ERR "),
        ("-ERR it's\r\n", "-ERR it\\'s"),
        ("-ERR '\r\n", "-ERR \\'"),
        // A server's subjects are not validated.
        ("MSG a..b 1 0\r\n\r\n", "[a..b 1 None 0 0] "),
        ("MSG a 1 60\r\nhel", "begun [a 1 None 0 60] hel"),
        ("MSG a 1 20\r\nhel", "wait 15"),
    ] {
        check_served(bytes, expected);
    }
}

#[test]
fn what_no_server_sends_ends_the_connection() {
    for (bytes, expected) in [
        ("HTTP/1.1 200 OK\r\n", "close Unknown Protocol Operation Operation @1"),
        ("PUB a 1\r\n", "close Unknown Protocol Operation Operation @1"),
        ("+OKAY\r\n", "close Unknown Protocol Operation Operation @3"),
        ("+OK 1\r\n", "close Parser Error Arguments @4"),
        ("-ERROR\r\n", "close Unknown Protocol Operation Operation @4"),
        ("MSG a 1\r\n", "close Parser Error Arguments @7"),
        ("MSG a 1 r 1 1\r\n", "close Parser Error Arguments @12"),
        ("MSG a 1 x\r\n", "close Parser Error PayloadDigits @8"),
        ("MSG a 1 101\r\n", "close Maximum Payload Violation PayloadSize @8"),
        ("MSG a \x01 1\r\n", "close Parser Error Sid @6"),
        ("HMSG a 1 5\r\n", "close Parser Error Arguments @10"),
        ("HMSG a 1 6 5\r\n", "close Parser Error HeaderSize @9"),
        ("MSG a 1 1\r\nxy\r\n", "close Unknown Protocol Operation PayloadEnd @0"),
    ] {
        check_served(bytes, expected);
    }
}
