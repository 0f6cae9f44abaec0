//! Users and their permissions.

use super::{NatsServerFixture, RawNatsClient};
use crate::support::DriverUnderTest;

on_both_drivers! {
    clients_without_credentials_are_rejected,
    a_user_does_what_is_allowed_and_nothing_else,
}

const USERS: &str = "--user root:password=all --user sensor:password=s:publish=sensors.>:subscribe=_INBOX.> \
                     --user gauge:token=t0ken";

fn sign_in(fixture: &NatsServerFixture, connect: &str) -> RawNatsClient {
    let mut client = RawNatsClient::connect_unauthenticated(fixture.nats());
    client.send(format!("CONNECT {{\"verbose\":false,\"headers\":true,{connect}}}\r\nPING\r\n"));
    client
}

fn clients_without_credentials_are_rejected(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, USERS);
    for connect in [
        r#""user":"root""#,
        r#""user":"root","pass":"al""#,
        r#""user":"root","pass":"all ""#,
        r#""user":"nobody","pass":"all""#,
        r#""user":"gauge","pass":"t0ken""#,
        r#""auth_token":"all""#,
        r#""auth_token":"""#,
        r#""name":"x""#,
    ] {
        let mut client = sign_in(&fixture, connect);
        assert_eq!(client.line(), "-ERR 'Authorization Violation'", "{connect}");
        assert_eq!(client.rest(), "", "{connect}");
    }
    for before in ["PING\r\n", "SUB a 1\r\n", "PUB a 1\r\nx\r\n"] {
        let mut client = RawNatsClient::connect_unauthenticated(fixture.nats());
        client.send(before);
        assert_eq!(client.line(), "-ERR 'Authorization Violation'", "{before:?}");
    }
    for connect in [r#""user":"root","pass":"all""#, r#""auth_token":"t0ken""#] {
        assert_eq!(sign_in(&fixture, connect).line(), "PONG", "{connect}");
    }
    fixture.server.finish();
}

fn a_user_does_what_is_allowed_and_nothing_else(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, USERS);
    let mut all = sign_in(&fixture, r#""user":"root","pass":"all""#);
    all.send("SUB > 1\r\n");
    assert_eq!(all.line(), "PONG");
    all.flush();
    let mut sensor = sign_in(&fixture, r#""user":"sensor","pass":"s""#);
    assert_eq!(sensor.line(), "PONG");
    sensor.send("PUB sensors.a 1\r\nx\r\nPUB orders.a 1\r\ny\r\nSUB sensors.> 1\r\nSUB _INBOX.a.* 2\r\n");
    let expected = [
        "-ERR 'Permissions Violation for Publish to \"orders.a\"'",
        "-ERR 'Permissions Violation for Subscription \"sensors.>\"'",
    ];
    let responses = sensor.flush();
    assert_eq!(responses.len(), 2, "{responses:?}");
    assert_eq!(responses[0], expected[0]);
    assert!(responses[1].starts_with("-ERR 'Permissions Violation for Subscription"), "{responses:?}");
    // A long message in pieces is checked as well.
    let long = "z".repeat(200_000);
    sensor.send(format!("PUB orders.b 200000\r\n{long}\r\n"));
    assert_eq!(sensor.flush(), ["-ERR 'Permissions Violation for Publish to \"orders.b\"'"]);
    assert_eq!(all.flush(), ["MSG sensors.a 1 1", "x"]);
    drop((all, sensor));
    fixture.server.finish();
}
