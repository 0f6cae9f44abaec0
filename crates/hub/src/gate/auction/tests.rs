//! Bids, reasons and snapshots of auctions.

use super::*;

const NOW: UnixNanos = UnixNanos::EPOCH;

fn judge(gate: &AuctionGate, subject: &str, payload: &str) -> Verdict {
    gate.judge(&GateMessage { subject, headers: b"", payload: payload.as_bytes() }, NOW)
}

/// Judges a message, and applies the records of an accepted one. Returns the reason of a rejection.
fn publish(gate: &mut AuctionGate, sequence: u64, subject: &str, payload: &str) -> Result<String, String> {
    let stored = match judge(gate, subject, payload) {
        Verdict::Accept => payload.to_owned(),
        Verdict::AcceptAs(records) => {
            let (own, payload) = records.iter().next().expect("one record");
            assert_eq!((own, records.len()), (subject.as_bytes(), 1));
            String::from_utf8(payload.to_vec()).expect("JSON")
        }
        Verdict::Reject(reason) => return Err(reason.to_string()),
    };
    let payload = stored.as_bytes();
    gate.apply(&GateRecord { sequence, time: NOW, subject, headers: b"", payload });
    Ok(stored)
}

fn snapshot(gate: &AuctionGate) -> Vec<u8> {
    let mut snapshot = Vec::new();
    gate.snapshot(&mut snapshot);
    snapshot
}

/// Row 2.19: only bids that beat the price of an open auction are stored; the others get a reason with the price.
#[test]
fn a_bid_beats_the_price_of_an_open_auction() {
    let mut gate = AuctionGate::new();
    let mut sequence = 0;
    let mut expect = |subject: &str, payload: &str, expected: Result<&str, &str>| {
        sequence += 1;
        let outcome = publish(&mut gate, sequence, subject, payload);
        assert_eq!(outcome.as_deref().map_err(String::as_str), expected, "{subject} {payload}");
    };
    let ann = r#"{"price":101,"bidder":"ann"}"#;
    let open = r#"{"price":100,"title":"a chair"}"#;
    expect("auction.lot1.bid", ann, Err("there is no auction lot1"));
    expect("auction.lot1.close", "{}", Err("there is no auction lot1"));
    expect("auction.lot1.open", open, Ok(open));
    expect("auction.lot1.open", open, Err("lot1 is already open; its price is 100"));
    let low = r#"{"price":100,"bidder":"bo"}"#;
    expect("auction.lot1.bid", low, Err("the price is 100; 100 does not beat it"));
    expect("auction.lot1.bid", ann, Ok(ann));
    expect("auction.lot1.bid", ann, Err("the price is 101; 101 does not beat it"));
    expect("auction.lot2.bid", ann, Err("there is no auction lot2"));
    expect("auction.lot1.close", "{}", Ok(r#"{"price":101,"bidder":"ann","bids":1}"#));
    expect("auction.lot1.bid", r#"{"price":200,"bidder":"bo"}"#, Err("lot1 was closed at 101"));
    expect("auction.lot1.close", "{}", Err("lot1 was already closed at 101"));
    expect("auction.lot1.open", open, Err("lot1 was closed at 101; open another auction"));
}

/// Row 2.19: bids that are not JSON, negative, huge, fractional or without a bidder.
#[test]
fn a_bid_that_is_none_is_rejected_with_what_is_wrong() {
    let mut gate = AuctionGate::new();
    publish(&mut gate, 1, "a.x.open", r#"{"price":0}"#).expect("it is new");
    let long = format!(r#"{{"price":1,"bidder":"{}"}}"#, "b".repeat(AUCTION_BIDDER_SIZE_MAX + 1));
    let longer = format!(r#"{{"price":1,"bidder":"b","more":"{}"}}"#, "m".repeat(AUCTION_BODY_SIZE_MAX));
    // Subscribers would receive it as text.
    let deep = format!(r#"{{"price":1,"bidder":"b","more":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    for (payload, expected) in [
        (&*deep, "a bid is {\"price\""),
        ("", "a bid is {\"price\""),
        ("7", "a bid is"),
        ("{\"price\":1}", "a bid is"),
        ("\u{0}\u{1}", "a bid is"),
        (r#"{"price":1,"price":2,"bidder":"b"}"#, "a bid is"),
        (r#"{"price":"1","bidder":"b"}"#, "the price is not a number"),
        (r#"{"price":null,"bidder":"b"}"#, "the price is not a number"),
        (r#"{"price":-1,"bidder":"b"}"#, "the price is negative"),
        (r#"{"price":1.5,"bidder":"b"}"#, "the price is not a whole number"),
        (r#"{"price":1e3,"bidder":"b"}"#, "the price is not a whole number"),
        (r#"{"price":9007199254740992,"bidder":"b"}"#, "the price is higher than 9007199254740991"),
        (r#"{"price":99999999999999999999999999,"bidder":"b"}"#, "the price is higher than"),
        (r#"{"price":1,"bidder":""}"#, "the bidder has no name"),
        (&long, "the bidder has no name, or one of more than 64 bytes"),
        (&longer, "the message is longer than 4096 bytes"),
    ] {
        let refused = publish(&mut gate, 2, "a.x.bid", payload).expect_err(payload);
        assert!(refused.starts_with(expected), "{payload}: {refused}");
    }
    let binary = b"{\"price\":1,\"bidder\":\"b\",\"more\":\"\xff\"}";
    let message = GateMessage { subject: "a.x.bid", headers: b"", payload: binary };
    assert!(matches!(gate.judge(&message, NOW), Verdict::Reject(_)), "subscribers would receive base64");
    assert!(
        publish(&mut gate, 2, "a.x.open", "[]")
            .is_err_and(|reason| reason.starts_with("an auction is opened"))
    );
    let name = "n".repeat(AUCTION_NAME_SIZE_MAX + 1);
    for (subject, expected) in [
        ("a", "the subject is not"),
        ("a.x", "the subject is not"),
        ("a.x.bids", "the subject is not"),
        ("a.b.x.bid", "the subject is not"),
        (&format!("a.{name}.bid"), "the name of the auction is longer than 64 bytes"),
    ] {
        let refused = publish(&mut gate, 2, subject, r#"{"price":1,"bidder":"b"}"#).expect_err(subject);
        assert!(refused.starts_with(expected), "{subject}: {refused}");
    }
    assert!(publish(&mut gate, 2, "a.x.bid", r#"{"price":9007199254740991,"bidder":"b\n"}"#).is_ok());
}

/// A snapshot contains the complete state, and equal states have equal snapshots.
#[test]
fn a_restored_gate_equals_the_one_before_bit_for_bit() {
    let mut gate = AuctionGate::new();
    for number in (0..50).rev() {
        let open = format!("a.lot{number}.open");
        publish(&mut gate, 1, &open, &format!(r#"{{"price":{number}}}"#)).expect("it is new");
    }
    for number in 0..50_u64 {
        let bid = format!(r#"{{"price":{},"bidder":"é{number}"}}"#, number + 1 + number % 7);
        publish(&mut gate, 2, &format!("a.lot{number}.bid"), &bid).expect("it is higher");
        if number % 3 == 0 {
            publish(&mut gate, 100 + number, &format!("a.lot{number}.close"), "{}").expect("it is open");
        }
    }
    let whole = snapshot(&gate);
    let mut restored = AuctionGate::new();
    restored.restore(&whole).expect("it is whole");
    assert_eq!((&restored, snapshot(&restored)), (&gate, whole.clone()));
    for size in 0..whole.len() {
        assert!(AuctionGate::new().restore(&whole[..size]).is_err(), "cut at {size}");
    }
    let (mut longer, mut other) = (whole.clone(), whole);
    longer.push(0);
    other[0] = 2;
    assert!(AuctionGate::new().restore(&longer).is_err() && AuctionGate::new().restore(&other).is_err());
    AuctionGate::new().restore(&snapshot(&AuctionGate::new())).expect("no auctions");
}

/// The number of auctions is bounded; those closed first make room.
#[test]
fn full_auctions_refuse_a_further_one_until_one_is_closed() {
    let mut gate = AuctionGate::new();
    for number in 0..AUCTIONS_MAX {
        publish(&mut gate, 1, &format!("a.{number}.open"), r#"{"price":1}"#).expect("there is room");
    }
    let refused = publish(&mut gate, 1, "a.new.open", r#"{"price":1}"#).expect_err("no room");
    assert_eq!(refused, "10000 auctions are open; close one first");
    publish(&mut gate, 8, "a.7.close", "{}").expect("it is open");
    publish(&mut gate, 9, "a.3.close", "{}").expect("it is open");
    publish(&mut gate, 10, "a.new.open", r#"{"price":1}"#).expect("7 makes room");
    assert_eq!(gate.auctions.len(), AUCTIONS_MAX);
    let refused = publish(&mut gate, 11, "a.7.bid", r#"{"price":2,"bidder":"b"}"#);
    assert_eq!(refused, Err("there is no auction 7".to_owned()));
    let refused = publish(&mut gate, 11, "a.3.bid", r#"{"price":2,"bidder":"b"}"#);
    assert_eq!(refused, Err("3 was closed at 1".to_owned()));
    let mut restored = AuctionGate::new();
    restored.restore(&snapshot(&gate)).expect("it is whole");
    for gate in [&mut gate, &mut restored] {
        publish(gate, 12, "a.next.open", r#"{"price":1}"#).expect("3 makes room");
        let refused = publish(gate, 13, "a.more.open", r#"{"price":1}"#).expect_err("no room");
        assert_eq!(refused, "10000 auctions are open; close one first");
    }
    assert_eq!(gate, restored);
}

/// A stream may contain records from before it had the gate.
#[test]
fn records_that_no_gate_judged_change_nothing() {
    let mut gate = AuctionGate::new();
    publish(&mut gate, 1, "a.x.open", r#"{"price":5}"#).expect("it is new");
    let before = gate.clone();
    for (subject, payload) in [
        ("a.x.bid", r#"{"price":5,"bidder":"b"}"#),
        ("a.x.bid", "no JSON"),
        ("a.y.close", "{}"),
        ("a.x.open", r#"{"price":1}"#),
        ("other", ""),
    ] {
        let payload = payload.as_bytes();
        gate.apply(&GateRecord { sequence: 2, time: NOW, subject, headers: b"", payload });
        assert_eq!(gate, before, "{subject}");
    }
}
