//! Invalid bids, and bids of users without permission, on every protocol.

use serde_json::{Value, json};

use super::auctions::{AUCTION, post};
use super::{NatsServerFixture, RawNatsClient};
use crate::support::{DriverUnderTest, RawWebSocket};

on_both_drivers!(invalid_bids_change_nothing_on_any_protocol);

/// `root:x` may do everything, `ann:a` may bid on `lot1` only.
const USERS: &str = "--user root:password=x --user ann:password=a:publish=auction.lot1.bid:subscribe=>";
const ROOT: &str = "Authorization: Basic cm9vdDp4\r\n";
const ANN: &str = "Authorization: Basic YW5uOmE=\r\n";

/// The reason for a payload that is not a bid.
const BID_SHAPE: &str = r#"a bid is {"price":100,"bidder":"..."}"#;

fn parse(answer: &str) -> Value {
    serde_json::from_str(answer).unwrap_or_else(|error| panic!("{answer}: {error}"))
}

/// Row 2.19, bad input of issue 13: every protocol answers an invalid bid with the same reason, and the auction does not
/// change.
fn invalid_bids_change_nothing_on_any_protocol(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, &format!("{USERS} {AUCTION}"));
    let server = &fixture.server;
    for lot in ["lot1", "lot2"] {
        let open = post(server, &format!("auction.{lot}.open"), ROOT, r#"{"price":10}"#);
        assert_eq!(open.status, 200);
    }
    let mut nats = RawNatsClient::connect_unauthenticated(fixture.nats());
    nats.send(
        "CONNECT {\"verbose\":false,\"headers\":true,\"user\":\"ann\",\"pass\":\"a\"}\r\nSUB answers 1\r\n",
    );
    assert_eq!(nats.flush(), Vec::<String>::new());
    let mut socket = RawWebSocket::open(server.address(), "/subscribe/auction.%3E", ANN);
    assert!(socket.text().starts_with("{\"position\":"));
    let long = format!("{{\"price\":20,\"bidder\":\"{}\"}}", "b".repeat(5000));
    for (body, reason) in [
        ("hello", BID_SHAPE),
        ("", BID_SHAPE),
        ("{\"price\":20}", BID_SHAPE),
        ("[20]", BID_SHAPE),
        (r#"{"price":-20,"bidder":"ann"}"#, "the price is negative"),
        (r#"{"price":20.5,"bidder":"ann"}"#, "the price is not a whole number of the smallest unit"),
        (r#"{"price":"20","bidder":"ann"}"#, "the price is not a number"),
        (r#"{"price":99999999999999999999999,"bidder":"ann"}"#, "the price is higher than 9007199254740991"),
        (r#"{"price":20,"bidder":""}"#, "the bidder has no name, or one of more than 64 bytes"),
        (&long, "the message is longer than 4096 bytes"),
        (r#"{"price":10,"bidder":"ann"}"#, "the price is 10; 10 does not beat it"),
    ] {
        let over_http = post(server, "auction.lot1.bid", ANN, body);
        assert_eq!((over_http.status, over_http.text().trim_end()), (422, reason), "{body}");
        nats.send(format!("PUB auction.lot1.bid answers {}\r\n{body}\r\n", body.len()));
        let (_, over_nats) = (nats.line(), parse(&nats.line()));
        let expected = json!({"code": 422, "err_code": 20422, "description": reason});
        assert_eq!(over_nats["error"], expected, "{body}");
        let publication = json!({"publish": {"subject": "auction.lot1.bid", "text": body, "ref": 1}});
        socket.send_text(&publication.to_string());
        let expected = json!({"error": {"ref": 1, "code": 422, "reason": reason}});
        assert_eq!(parse(&socket.text()), expected, "{body}");
    }
    for subject in ["auction.lot2.bid", "auction.lot1.close", "auction.lot1.open"] {
        let body = r#"{"price":20,"bidder":"ann"}"#;
        assert_eq!(post(server, subject, ANN, body).status, 403, "{subject}");
        nats.send(format!("PUB {subject} answers {}\r\n{body}\r\n", body.len()));
        assert_eq!(nats.flush(), [format!("-ERR 'Permissions Violation for Publish to \"{subject}\"'")]);
        socket.send_text(&format!(r#"{{"publish":{{"subject":"{subject}","data":{body},"ref":2}}}}"#));
        assert!(socket.text().contains("\"ref\":2,\"code\":403"), "{subject}");
    }
    assert_eq!(post(server, "auction.lot3.bid", ROOT, r#"{"price":1,"bidder":"x"}"#).status, 422);
    let huge = "x".repeat(1024 * 1024 + 1);
    assert_eq!(post(server, "auction.lot1.bid", ANN, &huge).status, 413);
    // The auction accepts the next valid bid; its subscriber receives only this one.
    let good = post(server, "auction.lot1.bid", ANN, r#"{"price":11,"bidder":"ann"}"#);
    assert_eq!(good.text(), "{\"stream\":\"auction\",\"first\":3,\"last\":3}\n");
    assert!(socket.text().starts_with("{\"seq\":3,"));
    drop((nats, socket));
    fixture.server.finish();
}
