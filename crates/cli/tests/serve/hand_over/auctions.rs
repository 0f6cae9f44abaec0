//! Streams with gates during hand-overs.

use super::*;
use crate::nats::auctions::{AUCTION, AuctionContents, post, read_auction};

on_both_drivers!(a_successor_continues_with_the_state_and_the_ids_of_its_predecessor);

/// The successor has the price, knows the ids of stored bids, and does not
/// know those of rejected ones.
fn a_successor_continues_with_the_state_and_the_ids_of_its_predecessor(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let common = format!("{AUCTION} --nats 127.0.0.1:0 --data {}", data.path().join("streams").display());
    let mut server = control_folder.start_first(driver, &common);
    let address = server.address();
    let bid = |server: &ServerUnderTest, id: &str, price: u64| {
        let body = format!("{{\"price\":{price},\"bidder\":\"b\"}}");
        let answer = post(server, "auction.lot1.bid", &format!("Nats-Msg-Id: {id}\r\n"), &body);
        (answer.status, answer.text().trim_end().to_owned())
    };
    assert_eq!(post(&server, "auction.lot1.open", "", r#"{"price":1}"#).status, 200);
    for round in 0..3_u64 {
        let price = 10 * (round + 1);
        let stored = format!("{{\"stream\":\"auction\",\"first\":{0},\"last\":{0}", 2 * round + 2);
        assert_eq!(bid(&server, &format!("good{round}"), price), (200, stored.clone() + "}"));
        let (status, reason) = bid(&server, &format!("low{round}"), price);
        assert_eq!((status, reason), (422, format!("the price is {price}; {price} does not beat it")));
        let next = control_folder.start_successor(driver, address, &common);
        server.expect_clean_end();
        server = next;
        let again = bid(&server, &format!("good{round}"), price);
        assert_eq!(again, (200, stored + ",\"duplicate\":true}"), "round {round}");
        // Its first attempt was rejected.
        let (status, answer) = bid(&server, &format!("low{round}"), price + 1);
        assert!(status == 200 && !answer.contains("duplicate"), "{answer}");
    }
    server.finish();
    let AuctionContents { prices, state, snapshot } = read_auction(data.path());
    assert_eq!((prices.len(), snapshot), (7, Some(state)));
}
