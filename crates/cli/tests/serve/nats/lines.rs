//! Every malformed line, with its answer.

use stilling_probe::TestPeer;

use super::{NatsServerFixture, RawNatsClient};
use crate::support::DriverUnderTest;

on_both_drivers! {
    a_malformed_line_is_answered,
    an_unwanted_line_is_answered_and_the_connection_continues,
    a_publication_to_an_invalid_subject_is_dropped_and_counted,
    info_names_the_addresses_of_server_and_client,
    lines_of_all_allowed_forms_are_accepted,
    a_verbose_client_receives_ok_for_each_operation,
}

/// Lines that end the connection, with the error text.
const FATAL: &[(&str, &[&str])] = &[
    (
        "Unknown Protocol Operation",
        &[
            "HELLO\r\n",
            "GET / HTTP/1.1\r\n",
            "PUBX a 1\r\nx\r\n",
            "PU a 1\r\nx\r\n",
            "SUBS a 1\r\n",
            "UNSUBB 1\r\n",
            "PINGS\r\n",
            "PONGO\r\n",
            "PING\0\r\n",
            "CONNECTED {}\r\n",
            "MSG a 1 1\r\nx\r\n",
            "HMSG a 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
            "INFO {}\r\n",
            "+OK\r\n",
            "-ERR 'x'\r\n",
            "\r\n",
            " PING\r\n",
            "\0\r\n",
            "PUB a 1\r\nxx\r\n",
            "PUB a 1\r\nx\n\n",
            "PUB a 2\r\nx\r\n\r\n",
            "PUB a 0\r\nx\r\n",
            "{\"a\":1}\r\n",
            "\u{feff}PING\r\n",
        ],
    ),
    (
        "Parser Error",
        &[
            "PUB\r\n",
            "PUB a\r\n",
            "PUB a b c 1\r\nx\r\n",
            "PUB a x\r\n",
            "PUB a -1\r\n",
            "PUB a +1\r\n",
            "PUB a 1.0\r\n",
            "PUB a 0x1\r\n",
            "PUB a 1e3\r\n",
            "PUB a 1234567890\r\n",
            "PUB a 99999999999999999999\r\n",
            "PUB a \u{663}\r\n",
            "HPUB\r\n",
            "HPUB a\r\n",
            "HPUB a 12\r\n",
            "HPUB a b c 12 13\r\n",
            "HPUB a x 13\r\n",
            "HPUB a 12 x\r\n",
            "HPUB a 13 12\r\n",
            "HPUB a -1 12\r\n",
            "SUB\r\n",
            "SUB a\r\n",
            "SUB a b c d\r\n",
            "UNSUB\r\n",
            "UNSUB 1 2 3\r\n",
            "UNSUB 1 x\r\n",
            "UNSUB 1 -1\r\n",
            "PING x\r\n",
            "PONG x\r\n",
            "CONNECT\r\n",
            "CONNECT x\r\n",
            "CONNECT []\r\n",
            "CONNECT 1\r\n",
            "CONNECT \"x\"\r\n",
            "CONNECT {\r\n",
            "CONNECT {\"verbose\":1}\r\n",
            "CONNECT {\"user\":1}\r\n",
            "CONNECT {} {}\r\n",
            "PUB a\r1\r\nx\r\n",
        ],
    ),
    (
        "Maximum Payload Violation",
        &["PUB a 1048577\r\n", "PUB a 999999999\r\n", "HPUB a 12 1048577\r\n", "PUB a b 2000000\r\n"],
    ),
];

/// Lines that are refused without further effect, with the error text.
const UNWANTED: &[(&str, &[&str])] = &[
    (
        "Invalid Publish Subject",
        &[
            "PUB a..b 1\r\nx\r\n",
            "PUB .a 1\r\nx\r\n",
            "PUB a. 1\r\nx\r\n",
            "PUB . 1\r\nx\r\n",
            "PUB * 1\r\nx\r\n",
            "PUB a.* 1\r\nx\r\n",
            "PUB a.> 1\r\nx\r\n",
            "PUB > 1\r\nx\r\n",
            "PUB a b..c 1\r\nx\r\n",
            "PUB a b.* 1\r\nx\r\n",
            "PUB a .b 1\r\nx\r\n",
            "PUB a\0b 1\r\nx\r\n",
            "HPUB a..b 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
            "HPUB a.> 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        ],
    ),
    (
        "Invalid Subject",
        &[
            "SUB a..b 1\r\n",
            "SUB .a 1\r\n",
            "SUB a. 1\r\n",
            "SUB >.a 1\r\n",
            "SUB a.>.b 1\r\n",
            "SUB . 1\r\n",
            "SUB a..b queue 1\r\n",
            "SUB a\x01 1\r\n",
        ],
    ),
];

fn a_malformed_line_is_answered(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let (mut count, mut wrong) = (0, Vec::new());
    for (text, lines) in FATAL {
        for line in *lines {
            let mut client = fixture.client();
            client.send(line);
            let response = client.rest();
            if response != format!("-ERR '{text}'\r\n") {
                wrong.push((line, response));
            }
            count += 1;
        }
    }
    assert_eq!(wrong, [], "lines that were answered otherwise");
    // An unterminated line above the maximum length.
    let mut client = fixture.client();
    client.send(format!("PUB {}", "a".repeat(8000)));
    assert_eq!(client.line(), "-ERR 'Maximum Control Line Exceeded'");
    count += 1;
    assert!(count >= 65, "{count}");
    let mut client = fixture.client();
    assert_eq!(client.flush(), [""; 0]);
    drop(client);
    fixture.server.finish();
}

fn an_unwanted_line_is_answered_and_the_connection_continues(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    client.send("CONNECT {\"verbose\":false,\"pedantic\":true,\"headers\":true}\r\n");
    let long = format!("PUB {} 1\r\nx\r\n", "a".repeat(1025));
    let deep = format!("SUB {}b 1\r\n", "a.".repeat(64));
    let more = [("Invalid Publish Subject", long), ("Invalid Subject", deep)];
    let all = UNWANTED.iter().flat_map(|(text, lines)| lines.iter().map(|line| (*text, (*line).to_owned())));
    for (text, line) in all.chain(more) {
        client.send(&line);
        assert_eq!(client.flush(), [format!("-ERR '{text}'")], "{line:?}");
    }
    client.send("SUB a 1\r\nPUB a 1\r\nx\r\n");
    assert_eq!(client.flush(), ["MSG a 1 1", "x"]);
    drop(client);
    fixture.server.finish();
}

/// As in nats-server: the usual clients are not pedantic, and close for good after this error.
fn a_publication_to_an_invalid_subject_is_dropped_and_counted(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    client.send("SUB > 1\r\n");
    let (_, lines) = UNWANTED[0];
    let long = format!("PUB {} 1\r\nx\r\n", "a".repeat(1025));
    let deep = format!("PUB {}b 1\r\nx\r\n", "a.".repeat(64));
    for line in lines.iter().copied().chain([long.as_str(), deep.as_str()]) {
        client.send(line);
        assert_eq!(client.flush(), [""; 0], "{line:?}");
    }
    let invalid = lines.len() as u64 + 3;
    client.send("CONNECT {\"verbose\":true,\"pedantic\":false}\r\nPUB a..b 1\r\nx\r\n");
    assert_eq!(client.lines(2), ["+OK"; 2]);
    drop(client);
    assert_eq!(fixture.server.finish().value("hub_publications_invalid_total"), invalid);
}

/// Also in the INFO that announces a drain.
fn info_names_the_addresses_of_server_and_client(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut peer = TestPeer::connect(fixture.nats());
    let first = peer.line();
    fixture.server.signal(rustix::process::Signal::TERM);
    let last = peer.line();
    let expected = (fixture.nats().ip().to_string(), u64::from(fixture.nats().port()));
    for (line, ldm) in [(first, false), (last, true)] {
        let json = line.strip_prefix("INFO ").expect("a description");
        let info: serde_json::Value = serde_json::from_str(json).expect("JSON");
        let text = |field: &str| info[field].as_str().unwrap_or_default().to_owned();
        assert_eq!((text("host"), info["port"].as_u64().unwrap_or_default()), expected, "{line}");
        assert_eq!((text("client_ip").as_str(), text("go").is_empty()), ("127.0.0.1", false), "{line}");
        assert_eq!(info["ldm"].as_bool().unwrap_or_default(), ldm, "{line}");
    }
    drop(peer);
    fixture.server.expect_clean_end();
}

/// As in nats-server.
fn lines_of_all_allowed_forms_are_accepted(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    for line in [
        "sub a 1\r\n",
        "Sub a 1\r\n",
        "SUB\ta\t1\r\n",
        "SUB   a   1   \r\n",
        "SUB a 1\n",
        "UNSUB 77\r\n",
        "UNSUB 77 0\r\n",
        "PONG\r\n",
        "CONNECT{\"verbose\":false,\"headers\":true}\r\n",
        "CONNECT {\"verbose\":false,\"headers\":true,\"unheard\":[1]}\r\n",
    ] {
        client.send(line);
        assert_eq!(client.flush(), [""; 0], "{line:?}");
    }
    for line in ["PUB a 2\r\nhi\r\n", "pub a 2\r\nhi\r\n", "PUB  a\t2  \r\nhi\r\n", "PUB a 2\nhi\r\n"] {
        client.send(line);
        assert_eq!(client.flush(), ["MSG a 1 2", "hi"], "{line:?}");
    }
    client.send("PUB a 0\r\n\r\n");
    assert_eq!(client.flush(), ["MSG a 1 0", ""]);
    let whole = "x".repeat(1024 * 1024);
    client.send(format!("PUB a 1048576\r\n{whole}\r\n"));
    assert_eq!(client.flush(), ["MSG a 1 1048576", &whole]);
    // Byte for byte.
    for byte in "PUB a reply.b 5\r\nh\r\n\0!\r\n".bytes() {
        client.send([byte]);
    }
    assert_eq!(client.lines(3), ["MSG a 1 reply.b 5", "h", "\0!"]);
    drop(client);
    fixture.server.finish();
}

fn a_verbose_client_receives_ok_for_each_operation(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = RawNatsClient::connect_unauthenticated(fixture.nats());
    client.send("CONNECT {}\r\nSUB a 1\r\nUNSUB 1\r\nPUB a 1\r\nx\r\n");
    assert_eq!(client.lines(4), ["+OK"; 4]);
    assert_eq!(client.flush(), [""; 0]);
    drop(client);
    fixture.server.finish();
}
