//! The log of an auction: disks that hang or fail, ends under load, retention, and slow work in the same thread.

use std::collections::BTreeSet;
use std::thread;

use stilling_journal::disk::file::FileDisk;
use stilling_journal::inspect::Inspection;

use super::auctions::{AUCTION, AuctionContents, bid_until_gone, post, read_auction};
use super::{NatsServerFixture, RawNatsClient};
use crate::support::{DiskFault, DriverUnderTest, Metrics, TestPeer, eventually};

on_both_drivers!(
    bids_behind_a_hung_disk_wait_and_nothing_else_does,
    a_failed_sync_reveals_no_bid_that_was_judged_before,
    the_log_of_an_ended_auction_is_the_sequence_of_acknowledged_bids,
    retention_keeps_the_state_of_a_killed_auction,
    slow_work_in_the_shards_leaves_bids_durable,
);

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";

fn bid(client: &mut RawNatsClient, price: u64) {
    client.send(bid_command(price));
}

fn bid_command(price: u64) -> String {
    let body = format!("{{\"price\":{price},\"bidder\":\"ann\"}}");
    format!("PUB auction.lot1.bid answers.{price} {}\r\n{body}\r\n", body.len())
}

/// The subject and the text of the next answer.
fn answer(client: &mut RawNatsClient) -> (String, String) {
    let head = client.line();
    let subject = head.split(' ').nth(1).unwrap_or_else(|| panic!("{head}")).to_owned();
    (subject, client.line())
}

/// Messages that the gate has accepted and rejected.
fn judged(metrics: &Metrics) -> (u64, u64) {
    let total = |verdict: &str| metrics.value(&format!("hub_stream_{verdict}_total{{stream=\"auction\"}}"));
    (total("accepted"), total("rejected"))
}

/// A bidder with the price 10 in the log of `auction.lot1`.
fn with_one_bid(fixture: &NatsServerFixture) -> RawNatsClient {
    assert_eq!(post(&fixture.server, "auction.lot1.open", "", r#"{"price":1}"#).status, 200);
    let mut bidder = fixture.client();
    bidder.send("SUB answers.* 1\r\n");
    bid(&mut bidder, 10);
    assert_eq!(answer(&mut bidder).1, r#"{"stream":"auction","seq":2}"#);
    bidder
}

/// Row 2.5: while the disk hangs, bids are judged, and only the journal's thread waits for it; connections, other streams
/// and pages are served. Neither a bid nor what a rejection reveals of it precedes its sync. Row 2.15: an end of the
/// server meanwhile loses nothing.
fn bids_behind_a_hung_disk_wait_and_nothing_else_does(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, &format!("-A 2 {AUCTION} --stream mem=mem.>:memory"));
    let mut bidder = with_one_bid(&fixture);
    let mut observer = fixture.client();
    observer.send("SUB auction.> 1\r\nSUB mem.> 2\r\n");
    observer.flush();
    let disk = DiskFault::hang(&fixture.server);
    bid(&mut bidder, 20);
    disk.hangs();
    bid(&mut bidder, 15);
    bid(&mut bidder, 30);
    for number in 0..20 {
        observer.send(format!("PUB mem.a mem.ack 1\r\n{}\r\n", number % 10));
        assert_eq!(observer.line(), "MSG mem.a 2 mem.ack 1", "its own message");
        observer.line();
        assert_eq!(observer.line().split(' ').nth(1), Some("mem.ack"));
        observer.line();
        assert_eq!(fixture.server.connect().ask(FAST).status, 200);
    }
    let mut metrics = fixture.server.watch();
    metrics.until("all are judged", |metrics| judged(metrics) == (4, 1));
    drop(metrics);
    assert_eq!(disk.writing_threads(), ["journal"]);
    assert!(bidder.peer.is_silent() && observer.peer.is_silent());
    let NatsServerFixture { server, data } = fixture;
    server.signal(rustix::process::Signal::TERM);
    assert!(bidder.line().contains("\"ldm\":true"), "the server drains");
    assert!(bidder.peer.is_silent(), "its bids are not answered yet");
    drop(disk);
    assert_eq!(answer(&mut bidder), ("answers.20".to_owned(), r#"{"stream":"auction","seq":3}"#.to_owned()));
    let (subject, rejection) = answer(&mut bidder);
    assert!(subject == "answers.15" && rejection.contains("the price is 20; 15 does not beat it"));
    assert_eq!(answer(&mut bidder), ("answers.30".to_owned(), r#"{"stream":"auction","seq":4}"#.to_owned()));
    assert!(!bidder.rest().contains("MSG"));
    drop(observer);
    server.expect_clean_end();
    let AuctionContents { prices, state, snapshot } = read_auction(data.path());
    assert_eq!(prices, [(1, 1), (10, 2), (20, 3), (30, 4)]);
    assert_eq!(snapshot, Some(state));
}

/// A bid that never became durable is neither acknowledged nor revealed by
/// the rejection of another; after a restart the price is that of the log.
fn a_failed_sync_reveals_no_bid_that_was_judged_before(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, AUCTION);
    let mut bidder = with_one_bid(&fixture);
    let disk = DiskFault::fail(&fixture.server);
    // In one write: both are judged before the sync of the first one fails.
    bidder.send(bid_command(20) + &bid_command(15));
    let frozen = fixture
        .server
        .watch()
        .until("the stream is frozen", |metrics| metrics.value("hub_stream_frozen{stream=\"auction\"}") == 1);
    assert_eq!(judged(&frozen), (3, 1), "the opening, 10 and 20 are accepted, 15 is rejected");
    for _ in 0..2 {
        let (subject, answer) = answer(&mut bidder);
        assert!(answer.contains("\"error\"") && !answer.contains("20"), "{subject}: {answer}");
    }
    bid(&mut bidder, 40);
    assert!(answer(&mut bidder).1.contains("\"error\""));
    assert_eq!(judged(&fixture.server.watch().fetch()), (3, 1), "a frozen stream judges nothing");
    drop((disk, bidder));
    let fixture = fixture.crash(driver, AUCTION);
    let low = post(&fixture.server, "auction.lot1.bid", "", r#"{"price":10,"bidder":"bo"}"#);
    assert_eq!((low.status, low.text().trim_end()), (422, "the price is 10; 10 does not beat it"));
    let next = post(&fixture.server, "auction.lot1.bid", "", r#"{"price":15,"bidder":"bo"}"#);
    assert_eq!(next.status, 200, "{next:?}");
    let NatsServerFixture { server, data } = fixture;
    server.finish();
    let prices: Vec<u64> = read_auction(data.path()).prices.into_iter().map(|(price, _)| price).collect();
    assert_eq!(prices, [1, 10, 15]);
}

/// Row 2.15: under load until SIGTERM, the log has all acknowledged bids, in the order of their judgement, and subscribers
/// have received a beginning of it. Each bidder may have sent one more bid before it saw the end of its connection.
fn the_log_of_an_ended_auction_is_the_sequence_of_acknowledged_bids(driver: DriverUnderTest) {
    const BIDS: usize = 200;
    const BIDDERS: usize = 4;
    let fixture = NatsServerFixture::start(driver, AUCTION);
    assert_eq!(post(&fixture.server, "auction.lot1.open", "", r#"{"price":0}"#).status, 200);
    let mut observer = fixture.client();
    observer.send("SUB auction.> 1\r\n");
    observer.flush();
    let observer = thread::spawn(move || observer.rest());
    let (counts, counted) = std::sync::mpsc::channel();
    let address = fixture.nats();
    let bidders: Vec<_> = (0..BIDDERS)
        .map(|number| {
            let counts = counts.clone();
            thread::spawn(move || {
                bid_until_gone(address, &format!("b{number}"), &|count| {
                    // The test has seen enough.
                    let _ = counts.send(count);
                })
            })
        })
        .collect();
    counted.iter().find(|count| *count >= BIDS).expect("bids are accepted");
    let NatsServerFixture { server, data } = fixture;
    server.finish();
    let mut acknowledged = BTreeSet::from([(1, 0)]);
    for bidder in bidders {
        let (bids, _) = bidder.join().expect("it ends with its server");
        acknowledged.extend(bids.into_iter().map(|(price, sequence)| (sequence, price)));
    }
    let AuctionContents { prices, state, snapshot } = read_auction(data.path());
    let log: BTreeSet<_> = prices.iter().map(|(price, sequence)| (*sequence, *price)).collect();
    let unanswered: Vec<_> = log.difference(&acknowledged).collect();
    assert!(unanswered.len() <= BIDDERS, "{unanswered:?}");
    assert!(log.is_superset(&acknowledged), "an acknowledged bid is lost");
    assert_eq!(snapshot, Some(state));
    assert!(
        prices.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1),
        "each bid beats the one before"
    );
    let received = observer.join().expect("it ends with its server");
    let received: Vec<u64> = received
        .lines()
        .filter_map(|line| line.strip_prefix("{\"price\":")?.split(',').next()?.parse().ok())
        .collect();
    let expected: Vec<u64> = prices[1..].iter().map(|(price, _)| *price).collect();
    let count = received.len();
    assert!(count > BIDS && expected.starts_with(&received), "{count} of {}", expected.len());
}

/// Retention removes only what a snapshot includes, so a killed auction has
/// its price, its bidders and the ids of closed auctions although their records are gone.
fn retention_keeps_the_state_of_a_killed_auction(driver: DriverUnderTest) {
    const ROUNDS: u64 = 3;
    const BIDS: u64 = 16_000;
    let options = format!("{AUCTION}:retention-bytes=1MiB");
    let mut fixture = NatsServerFixture::start(driver, &options);
    for (lot, last) in [("lot0", "close"), ("lot1", "")] {
        assert_eq!(post(&fixture.server, &format!("auction.{lot}.open"), "", r#"{"price":0}"#).status, 200);
        if !last.is_empty() {
            assert_eq!(post(&fixture.server, &format!("auction.{lot}.{last}"), "", "{}").status, 200);
        }
    }
    let bidder = "b".repeat(64);
    for round in 0..ROUNDS {
        let mut client = fixture.client();
        client.send("SUB answers 1\r\n");
        let mut text = String::new();
        for number in 1..=BIDS {
            let body = format!("{{\"price\":{},\"bidder\":\"{bidder}\"}}", round * BIDS + number);
            let reply = if number == BIDS { "answers " } else { "" };
            text += &format!("PUB auction.lot1.bid {reply}{}\r\n{body}\r\n", body.len());
        }
        client.send(text);
        let last = answer(&mut client).1;
        assert!(last.contains("\"stream\":\"auction\",\"seq\":"), "{last}");
        let first = "hub_stream_first_sequence{stream=\"auction\"}";
        let watched = eventually("records are removed", || {
            // Retention runs with a message at the earliest.
            let low = post(&fixture.server, "auction.lot1.bid", "", r#"{"price":1,"bidder":"x"}"#);
            assert_eq!(low.status, 422);
            Some(fixture.server.watch().fetch()).filter(|metrics| metrics.value(first) > round * BIDS + 3)
        });
        let value = |name: &str| watched.value(&format!("hub_stream_{name}{{stream=\"auction\"}}"));
        assert!(
            value("first_sequence") <= value("gate_snapshot") + 1,
            "retention does not pass the snapshot"
        );
        drop(client);
        fixture = fixture.crash(driver, &options);
        let price = (round + 1) * BIDS;
        for (subject, body, reason) in [
            (
                "auction.lot1.bid",
                format!("{{\"price\":{price},\"bidder\":\"x\"}}"),
                format!("the price is {price}; {price} does not beat it"),
            ),
            (
                "auction.lot0.open",
                "{\"price\":1}".to_owned(),
                "lot0 was closed at 0; open another auction".to_owned(),
            ),
        ] {
            let refused = post(&fixture.server, subject, "", &body);
            assert_eq!((refused.status, refused.text().trim_end()), (422, reason.as_str()), "round {round}");
        }
    }
    let NatsServerFixture { server, data } = fixture;
    server.finish();
    let disk = FileDisk::existing(&data.path().join("streams/auction")).expect("the folder");
    let inspection = Inspection::of(disk).expect("it can be read");
    assert!(inspection.list().first().is_some_and(|segment| segment.first > 2), "the openings are gone");
}

/// Jobs run in the thread that may run the hub, and
/// acknowledged bids survive a kill.
fn slow_work_in_the_shards_leaves_bids_durable(driver: DriverUnderTest) {
    for hub in ["shard", "auto"] {
        let options = format!("-A 1 --worker-threads 0 --hub-thread {hub} {AUCTION}");
        let mut fixture = NatsServerFixture::start(driver, &options);
        assert_eq!(post(&fixture.server, "auction.lot1.open", "", r#"{"price":0}"#).status, 200);
        let address = fixture.server.address();
        let (mut acknowledged, mut price) = (Vec::new(), 0);
        for round in 0..2 {
            let slow: Vec<_> = (0..3)
                .map(|_| {
                    let mut peer = TestPeer::connect(fixture.server.address());
                    peer.send("GET /test/slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                    peer
                })
                .collect();
            let mut bidder = fixture.client();
            bidder.send("SUB answers.* 1\r\n");
            for _ in 0..20 {
                price += 1;
                bid(&mut bidder, price);
                let (subject, text) = answer(&mut bidder);
                assert!(text.starts_with("{\"stream\":\"auction\""), "{hub} {subject}: {text}");
                acknowledged.push(price);
            }
            let statuses: Vec<_> = slow.into_iter().map(|mut peer| peer.answer().status).collect();
            assert!(
                statuses.contains(&200) && statuses.iter().all(|status| [200, 503].contains(status)),
                "{hub}, round {round}: {statuses:?}"
            );
            if round == 0 {
                fixture = fixture.crash(driver, &options);
            }
        }
        assert_ne!(fixture.server.address(), address, "it was started again");
        let NatsServerFixture { server, data } = fixture;
        server.finish();
        let AuctionContents { prices, state, snapshot } = read_auction(data.path());
        let stored: Vec<u64> = prices[1..].iter().map(|(price, _)| *price).collect();
        assert_eq!((stored, snapshot), (acknowledged, Some(state)), "{hub}");
    }
}
