//! Auctions: bids over NATS and HTTP, and their state after a crash.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;

use serde_json::Value;
use stilling::gate::{AuctionGate, Gate, GateRecord, UnixNanos};
use stilling_journal::disk::file::FileDisk;
use stilling_journal::{Log, LogConfig, ReadOutcome, StartAt};
use stilling_probe::TestResponse;

use super::{NatsServerFixture, RawNatsClient};
use crate::support::{DriverUnderTest, ServerUnderTest};

on_both_drivers!(
    bids_pass_the_gate_over_nats_and_http,
    a_killed_auction_goes_on_with_the_state_of_its_records,
    an_auction_without_a_disk_has_a_gate,
);

pub(crate) const AUCTION: &str = "--stream auction=auction.>:disk:gate=auction";

/// Acknowledged bids of a bidder before the server is killed.
const BIDS_BEFORE_KILL: usize = 60;

pub(crate) fn post(server: &ServerUnderTest, subject: &str, fields: &str, body: &str) -> TestResponse {
    let size = body.len();
    server.connect().ask(format!(
        "POST /publish/{subject} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Connection: close\r\nContent-Length: {size}\r\n\r\n{body}"
    ))
}

/// The answer to a publication.
fn publish(client: &mut RawNatsClient, subject: &str, payload: &str) -> String {
    client.send(format!("PUB {subject} answers.x {}\r\n{payload}\r\n", payload.len()));
    let line = client.line();
    assert!(line.starts_with("MSG answers.x "), "{line}");
    client.line()
}

/// Rows 2.8, 2.19, issue 13: every bid passes the gate; accepted ones reach all subscribers, rejected ones only answer
/// their bidders, on both protocols.
fn bids_pass_the_gate_over_nats_and_http(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, AUCTION);
    let server = &fixture.server;
    let (mut ann, mut observer) = (fixture.client(), fixture.client());
    ann.send("SUB answers.x 1\r\n");
    observer.send("SUB auction.> 1\r\n");
    assert_eq!((ann.flush(), observer.flush()), (vec![], vec![]));
    let open = publish(&mut ann, "auction.lot1.open", r#"{"price":100,"title":"a chair"}"#);
    assert_eq!(open, r#"{"stream":"auction","seq":1}"#);
    let low = publish(&mut ann, "auction.lot1.bid", r#"{"price":100,"bidder":"ann"}"#);
    assert!(low.contains(r#""description":"the price is 100; 100 does not beat it""#), "{low}");
    assert!(low.contains(r#""code":422,"err_code":20422"#), "{low}");
    let accepted = post(server, "auction.lot1.bid", "", r#"{"price":120,"bidder":"bo"}"#);
    assert_eq!(
        (accepted.status, accepted.text()),
        (200, "{\"stream\":\"auction\",\"first\":2,\"last\":2}\n")
    );
    for (subject, body, reason) in [
        ("auction.lot1.bid", r#"{"price":110,"bidder":"cy"}"#, "the price is 120; 110 does not beat it"),
        ("auction.lot2.bid", r#"{"price":110,"bidder":"cy"}"#, "there is no auction lot2"),
        ("auction.lot1.bid", "hello", "a bid is {\"price\":100,\"bidder\":\"...\"}"),
        ("auction.lot1.bid", r#"{"price":-5,"bidder":"cy"}"#, "the price is negative"),
        (
            "auction.lot1.bid",
            r#"{"price":1e99,"bidder":"cy"}"#,
            "the price is not a whole number of the smallest unit",
        ),
        ("auction.lot1.sell", "{}", "the subject is not NAME.AUCTION.open, .bid or .close"),
    ] {
        let refused = post(server, subject, "", body);
        assert_eq!((refused.status, refused.text().trim_end()), (422, reason), "{subject} {body}");
    }
    // A bid that is sent again is known, also when its price has been beaten.
    let id = "Nats-Msg-Id: b1\r\n";
    let bid = r#"{"price":130,"bidder":"bo"}"#;
    assert_eq!(post(server, "auction.lot1.bid", id, bid).status, 200);
    let again = post(server, "auction.lot1.bid", id, bid);
    assert!(again.status == 200 && again.text().contains("\"duplicate\":true"), "{again:?}");
    let closed = post(server, "auction.lot1.close", "", "{}");
    assert_eq!(closed.status, 200);
    let late = publish(&mut ann, "auction.lot1.bid", r#"{"price":999,"bidder":"ann"}"#);
    assert!(late.contains("lot1 was closed at 130"), "{late}");
    let seen: Vec<String> = observer.flush().into_iter().filter(|line| line.starts_with('{')).collect();
    assert_eq!(
        seen,
        [
            r#"{"price":100,"title":"a chair"}"#,
            r#"{"price":120,"bidder":"bo"}"#,
            bid,
            r#"{"price":130,"bidder":"bo","bids":2}"#,
        ]
    );
    let metrics =
        server.watch().until("all is counted", |metrics| metrics.value("hub_stream_rejected_total") == 8);
    assert_eq!(metrics.value("hub_queue_length"), 0);
    drop((ann, observer));
    fixture.server.finish();
}

/// A bidder that raises by one until its server is gone. Returns the acknowledged bids with their sequences, and the
/// highest price that a rejection has revealed.
pub(crate) fn bid_until_gone(
    server: SocketAddr,
    name: &str,
    known: &dyn Fn(usize),
) -> (Vec<(u64, u64)>, u64) {
    let (mut acknowledged, mut revealed, mut price) = (Vec::new(), 0, 1_u64);
    let mut stream = TcpStream::connect(server).expect("it listens");
    let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
    let hello = format!("CONNECT {{\"verbose\":false}}\r\nSUB answers.{name} 1\r\n");
    let mut request = hello;
    loop {
        let bid = format!("{{\"price\":{price},\"bidder\":\"{name}\"}}");
        request += &format!("PUB auction.lot1.bid answers.{name} {}\r\n{bid}\r\n", bid.len());
        if stream.write_all(request.as_bytes()).is_err() {
            break;
        }
        request.clear();
        let Some(answer) = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with('{')) else {
            break;
        };
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        match answer["error"]["description"].as_str() {
            None => acknowledged.push((price, answer["seq"].as_u64().expect("a sequence"))),
            Some(reason) => {
                let current = reason.strip_prefix("the price is ").and_then(|rest| rest.split(';').next());
                let current = current.unwrap_or_else(|| panic!("{reason}"));
                revealed = current.parse().expect("a price");
            }
        }
        price = price.max(revealed) + 1;
        known(acknowledged.len());
    }
    (acknowledged, revealed)
}

/// The contents of an auction's directory.
pub(crate) struct AuctionContents {
    /// Price and sequence of each record.
    pub(crate) prices: Vec<(u64, u64)>,
    /// The state that they produce.
    pub(crate) state: Vec<u8>,
    /// The state of a snapshot after the last record, as a clean end writes it.
    pub(crate) snapshot: Option<Vec<u8>>,
}

pub(crate) fn read_auction(data: &Path) -> AuctionContents {
    let disk = FileDisk::open_or_create(&data.join("streams/auction")).expect("the folder");
    let (log, _) = Log::open(disk, "auction", LogConfig::default()).expect("the stream");
    let (mut gate, mut prices, mut state) = (AuctionGate::new(), Vec::new(), Vec::new());
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    loop {
        match reader.read().expect("it can be read") {
            ReadOutcome::Batch(batch) => {
                let time = UnixNanos::from_nanos(batch.time_ns);
                for (sequence, record) in batch.records {
                    let subject = std::str::from_utf8(record.subject).expect("text");
                    let (headers, payload) = (record.headers, record.payload);
                    gate.apply(&GateRecord { sequence, time, subject, headers, payload });
                    let body: Value = serde_json::from_slice(payload).expect("JSON");
                    prices.push((body["price"].as_u64().expect("a price"), sequence));
                }
            }
            ReadOutcome::Gap(gap) => assert_eq!(gap.cause, stilling_journal::GapCause::Torn),
            ReadOutcome::End => break,
        }
    }
    gate.snapshot(&mut state);
    let found = log.find_snapshot("auction").expect("it can be read");
    let of_last = found.usable.filter(|snapshot| snapshot.sequence + 1 == log.next());
    AuctionContents { prices, state, snapshot: of_last.map(|snapshot| snapshot.state) }
}

/// Rows 2.1, 2.15, issue 13: "after kill -9 the state is exactly what the journal says (snapshot + replay, bit for bit)":
/// no acknowledged bid is lost, no revealed price is undone, and each stored bid beats the one before.
fn a_killed_auction_goes_on_with_the_state_of_its_records(driver: DriverUnderTest) {
    let mut fixture = NatsServerFixture::start(driver, AUCTION);
    let open = post(&fixture.server, "auction.lot1.open", "", r#"{"price":0}"#);
    assert_eq!(open.status, 200);
    let (mut all, mut revealed) = (Vec::new(), 0);
    for round in 0..3 {
        let address = fixture.nats();
        let (told, counts) = std::sync::mpsc::channel();
        let bidders: Vec<_> = (0..3)
            .map(|number| {
                let told = told.clone();
                thread::spawn(move || {
                    bid_until_gone(address, &format!("b{number}"), &|count| {
                        // The test has seen enough.
                        let _ = told.send(count);
                    })
                })
            })
            .collect();
        counts.iter().find(|count| *count >= BIDS_BEFORE_KILL).expect("bids are accepted");
        fixture = fixture.crash(driver, AUCTION);
        for bidder in bidders {
            let (acknowledged, price) = bidder.join().expect("it ends with its server");
            all.extend(acknowledged);
            revealed = revealed.max(price);
        }
        let refused =
            post(&fixture.server, "auction.lot1.bid", "", r#"{"price":0,"bidder":"x"}"#).into_text();
        let price = refused.strip_prefix("the price is ").and_then(|rest| rest.split(';').next());
        let price: u64 = price.unwrap_or_else(|| panic!("{refused}")).parse().expect("a price");
        let highest = all.iter().map(|(price, _)| *price).max().expect("bids");
        assert!(price >= highest.max(revealed), "round {round}: {price} {highest} {revealed}");
    }
    let NatsServerFixture { server, data } = fixture;
    server.finish();
    let AuctionContents { prices, state, snapshot } = read_auction(data.path());
    assert_eq!(snapshot, Some(state), "the state of the server is that of its records, bit for bit");
    assert!(prices.is_sorted_by(|one, next| one.0 < next.0), "each bid beats the one before");
    for bid in all {
        assert!(prices.contains(&bid), "{bid:?} was acknowledged");
    }
}

/// A gate works on streams of every kind; an unknown one is an error that names those that exist.
fn an_auction_without_a_disk_has_a_gate(driver: DriverUnderTest) {
    for kind in ["memory", "none"] {
        let fixture =
            NatsServerFixture::start(driver, &format!("--stream auction=auction.>:{kind}:gate=auction"));
        assert_eq!(post(&fixture.server, "auction.a.open", "", r#"{"price":1}"#).status, 200);
        assert_eq!(post(&fixture.server, "auction.a.bid", "", r#"{"price":1,"bidder":"b"}"#).status, 422);
        assert_eq!(post(&fixture.server, "auction.a.bid", "", r#"{"price":2,"bidder":"b"}"#).status, 200);
        fixture.server.finish();
    }
    let refused = crate::support::binary()
        .args(["check", "--stream", "auction=auction.>:disk:gate=acution"])
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("there is no gate `acution`; there are accept-all, auction"), "{said}");
}
