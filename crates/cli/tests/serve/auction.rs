//! The page `/auction`: access to it, and what bidders see in a browser over restarts of the server.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::nats::{address as nats_address, own_address, records};
use crate::support::{Browser, BrowserPage, DriverUnderTest, ServerUnderTest, TestPeer};

on_both_drivers!(
    the_page_is_served_where_its_subscription_is,
    two_pages_bid_over_a_hot_restart_and_a_kill,
    a_rejected_bid_shows_the_reason_to_its_bidder_only,
    a_page_without_websockets_uses_events,
    a_gap_is_shown_with_its_range,
);

const STREAM: &str = "--stream auction=auction.>:disk:gate=auction";

/// A server with auctions that can be restarted in place.
struct AuctionServer {
    server: ServerUnderTest,
    folder: TempDir,
    options: String,
}

impl AuctionServer {
    fn start(driver: DriverUnderTest, stream: &str) -> AuctionServer {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name| folder.path().join(name).display().to_string();
        let common = format!("--take-over {} --data {} {stream}", path("control"), path("streams"));
        let host = own_address();
        let first = format!("{common} --nats {host}:0");
        let server = ServerUnderTest::listening(driver, &format!("{host}:0"), &first);
        let options = format!("{common} --nats {}", nats_address(&server));
        AuctionServer { server, folder, options }
    }

    fn at(&self) -> SocketAddr {
        self.server.address()
    }

    fn next(&self, driver: DriverUnderTest) -> ServerUnderTest {
        ServerUnderTest::listening(driver, &self.at().to_string(), &self.options)
    }

    fn hot_restart(self, driver: DriverUnderTest) -> AuctionServer {
        let next = self.next(driver);
        let AuctionServer { server, folder, options } = self;
        server.expect_clean_end();
        AuctionServer { server: next, folder, options }
    }

    /// Kills the server, and starts another one when `meanwhile` has returned.
    fn kill_and_restart(self, driver: DriverUnderTest, meanwhile: impl FnOnce()) -> AuctionServer {
        let AuctionServer { server, folder, options } = self;
        let at = server.address();
        drop(server);
        meanwhile();
        let server = ServerUnderTest::listening(driver, &at.to_string(), &options);
        AuctionServer { server, folder, options }
    }

    fn publish(&self, subject: &str, body: &str) -> u16 {
        publish(self.at(), subject, body)
    }

    fn page(&self, lot: &str) -> String {
        self.server.url(&format!("/auction#{lot}"))
    }

    /// All records of the stream, as sequence, price and bidder.
    fn journal(&self) -> Vec<(u64, Value)> {
        let nats = nats_address(&self.server);
        let (_, behind) = records(nats, "auction", 1);
        let (all, behind) = records(nats, "auction", behind as usize + 1);
        assert_eq!(behind, 0);
        all.into_iter()
            .map(|(sequence, body)| (sequence, serde_json::from_str(&body).expect("JSON")))
            .collect()
    }
}

fn publish(at: SocketAddr, subject: &str, body: &str) -> u16 {
    let size = body.len();
    let request =
        format!("POST /publish/{subject} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}");
    TestPeer::connect(at).ask(request).status
}

const LIVE: &str = "element('state').dataset.state === 'live'";

/// Opens the page of `lot` for a bidder, and waits until it is up to date.
fn bidder(browser: &mut Browser, auction: &AuctionServer, lot: &str, name: &str) -> BrowserPage {
    let page = browser.open(&auction.page(lot));
    browser.wait_until(&page, "document.readyState === 'complete' && typeof connection === 'object'");
    browser.wait_until(&page, LIVE);
    browser.evaluate(&page, &format!("element('bidder').value = '{name}'; render()"));
    page
}

fn status_of(request: &str, at: SocketAddr) -> u16 {
    TestPeer::connect(at).ask(request).status
}

/// As `/subscribe/*`, and only where a stream has auctions.
fn the_page_is_served_where_its_subscription_is(driver: DriverUnderTest) {
    const GET: &str = "GET /auction HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let auction = AuctionServer::start(driver, STREAM);
    let answer = TestPeer::connect(auction.at()).ask(GET);
    assert_eq!((answer.status, answer.field("Cache-Control")), (200, Some("no-store")));
    let policy = answer.field("Content-Security-Policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    assert!(answer.into_text().contains("data-filter=\"auction.&gt;\""));
    for (request, expected) in [
        ("GET /auction?filter=auction.%3E HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200),
        ("GET /auction?filter=other.%3E HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
        ("GET /auction/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
        ("POST /auction HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n", 405),
        // Any site can let its name resolve to this address.
        ("GET /auction HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    ] {
        assert_eq!(status_of(request, auction.at()), expected, "{request}");
    }
    auction.server.finish();
    let plain = AuctionServer::start(driver, "--stream auction=auction.>");
    assert_eq!(status_of(GET, plain.at()), 404, "without the gate");
    plain.server.finish();
    let users = AuctionServer::start(driver, &format!("{STREAM} --user ann:password=x"));
    let answer = TestPeer::connect(users.at()).ask(GET);
    assert_eq!(answer.status, 401);
    assert!(answer.field("WWW-Authenticate").is_some_and(|field| field.starts_with("Basic")));
    users.server.finish();
}

/// Bids whenever another bidder leads, by the form. Notes the accepted bids.
const BOT: &str = "
    window.accepted = [];
    window.reloads = 0;
    const publishOnce = publishBid;
    publishBid = async (lot, bid) => {
      const outcome = await publishOnce(lot, bid);
      if (outcome.kind === 'accepted') accepted.push([outcome.sequence, bid.price, bid.bidder]);
      return outcome;
    };
    const clearOnce = clearLots;
    clearLots = () => { reloads += 1; clearOnce(); };
    window.bot = setInterval(() => {
      if (!isSending && chosenLot().bidder !== bidderName()) element('send').click();
    }, 20);
";

/// The shown lot as the page knows it.
const HISTORY: &str =
    "chosenLot().history.map(({ seq, price, bidder, gap }) => [seq, price, bidder ?? null, gap ?? null])";

/// Checks that a page shows what the journal has, that its accepted bids are there, and that it resumed without a gap.
fn expect_agreement(browser: &mut Browser, page: &BrowserPage, journal: &[(u64, Value)]) {
    let (last, newest) = journal.last().expect("bids");
    browser.wait_until(page, &format!("lastSequence >= {last}"));
    browser.wait_until(page, &format!("element('price').dataset.price === '{}'", newest["price"]));
    let entries =
        journal.iter().map(|(sequence, body)| json!([sequence, body["price"], body["bidder"], null]));
    // A page keeps the last 500.
    let expected: Vec<Value> = entries.skip(journal.len().saturating_sub(500)).collect();
    assert_eq!(browser.evaluate(page, HISTORY), Value::from(expected));
    let accepted = browser.evaluate(page, "accepted");
    for bid in accepted.as_array().expect("bids") {
        let of_journal = journal.iter().find(|(sequence, _)| bid[0] == *sequence);
        let (_, body) = of_journal.unwrap_or_else(|| panic!("{bid} was accepted and is lost"));
        assert_eq!((&body["price"], &body["bidder"]), (&bid[1], &bid[2]));
    }
    assert_eq!(browser.evaluate(page, "reloads"), 0, "it resumed each time");
    assert_eq!(browser.evaluate(page, "document.querySelectorAll('#notices > [data-kind=gap]').length"), 0);
}

/// Two pages bid against each other while the server is restarted and killed. Their prices agree with
/// the journal, and no accepted bid is lost.
fn two_pages_bid_over_a_hot_restart_and_a_kill(driver: DriverUnderTest) {
    let mut auction = AuctionServer::start(driver, STREAM);
    assert_eq!(auction.publish("auction.lot1.open", r#"{"price":100,"title":"A painting"}"#), 200);
    let mut browser = Browser::start();
    let pages = ["Ann", "Björn"].map(|name| bidder(&mut browser, &auction, "lot1", name));
    for page in &pages {
        browser.evaluate(page, BOT);
    }
    let more_bids = |browser: &mut Browser| {
        let counts = pages
            .each_ref()
            .map(|page| browser.evaluate(page, "accepted.length").as_u64().expect("a number"));
        for (page, count) in pages.iter().zip(counts) {
            browser.wait_until(page, &format!("accepted.length >= {}", count + 5));
            browser.wait_until(page, LIVE);
        }
    };
    more_bids(&mut browser);
    auction = auction.hot_restart(driver);
    more_bids(&mut browser);
    auction = auction.kill_and_restart(driver, || {
        for page in &pages {
            browser.wait_until(page, "element('state').dataset.state !== 'live'");
        }
    });
    more_bids(&mut browser);
    for page in &pages {
        browser.evaluate(page, "clearInterval(bot)");
        browser.wait_until(page, "!isSending");
    }
    let journal = auction.journal();
    for page in &pages {
        expect_agreement(&mut browser, page, &journal);
    }
    let prices: Vec<u64> = journal.iter().filter_map(|(_, body)| body["price"].as_u64()).collect();
    assert!(prices.is_sorted_by(|before, after| before < after), "each bid beats the price: {prices:?}");
    assert_eq!(auction.publish("auction.lot1.close", "{}"), 200);
    for page in &pages {
        browser.wait_until(
            page,
            "element('form').hidden && element('result').textContent.startsWith('Sold to ')",
        );
    }
    assert_eq!(browser.faults(), <[String; 0]>::default());
    drop(browser);
    auction.server.finish();
}

/// A rejection answers the bidder alone, next to the form.
fn a_rejected_bid_shows_the_reason_to_its_bidder_only(driver: DriverUnderTest) {
    let auction = AuctionServer::start(driver, STREAM);
    assert_eq!(auction.publish("auction.lot1.open", r#"{"price":700,"title":"<i>Clock</i>"}"#), 200);
    let mut browser = Browser::start();
    let [ann, ben] = ["Ann", "Ben"].map(|name| bidder(&mut browser, &auction, "lot1", name));
    assert_eq!(browser.evaluate(&ann, "element('lot-title').textContent"), "<i>Clock</i>");
    // The suggestion is the price and an increment.
    assert_eq!(browser.evaluate(&ann, "element('amount').value"), "720");
    browser.evaluate(
        &ann,
        "element('amount').value = '650'; element('amount').dispatchEvent(new Event('input')); element('send').click()",
    );
    browser.wait_until(&ann, "element('outcome').dataset.kind === 'rejected' && !isSending");
    let reason = browser.evaluate(&ann, "element('outcome').textContent");
    assert!(
        reason.as_str().is_some_and(|reason| reason.contains("650") && reason.contains("700")),
        "{reason}"
    );
    // After a rejection the suggestion is back.
    browser.evaluate(&ann, "element('send').click()");
    browser.wait_until(&ann, "element('outcome').dataset.kind === 'accepted'");
    browser.wait_until(
        &ben,
        "element('price').dataset.price === '720' && element('leader').textContent === 'Ann'",
    );
    assert_eq!(browser.evaluate(&ben, "element('outcome').textContent"), "");
    assert_eq!(browser.evaluate(&ben, "element('bids').children.length"), 2);
    assert_eq!(browser.faults(), <[String; 0]>::default());
    drop(browser);
    auction.server.finish();
}

/// Server-sent events are the fallback, also after a restart.
fn a_page_without_websockets_uses_events(driver: DriverUnderTest) {
    let auction = AuctionServer::start(driver, STREAM);
    assert_eq!(auction.publish("auction.lot1.open", r#"{"price":1,"title":"A"}"#), 200);
    let mut browser = Browser::start();
    let page = browser.open(&auction.server.url("/auction?transport=sse#lot1"));
    browser.wait_until(&page, "typeof connection === 'object' && connection.isLive");
    browser.wait_until(&page, "element('price').dataset.price === '1'");
    assert_eq!(auction.publish("auction.lot1.bid", r#"{"price":2,"bidder":"a"}"#), 200);
    browser.wait_until(&page, "element('price').dataset.price === '2'");
    let auction = auction.kill_and_restart(driver, || ());
    assert_eq!(auction.publish("auction.lot1.bid", r#"{"price":3,"bidder":"b"}"#), 200);
    browser.wait_until(&page, "element('price').dataset.price === '3'");
    assert_eq!(browser.evaluate(&page, "chosenLot().history.map(({ price }) => price)"), json!([1, 2, 3]));
    assert_eq!(browser.faults(), <[String; 0]>::default());
    drop(browser);
    auction.server.finish();
}

/// Row 2.18: a page that was away for longer than the stream's retention shows which records it missed.
fn a_gap_is_shown_with_its_range(driver: DriverUnderTest) {
    let stream = "--stream auction=auction.>:memory:retention-bytes=1MiB:gate=auction";
    let auction = AuctionServer::start(driver, stream);
    assert_eq!(auction.publish("auction.lot1.open", r#"{"price":1,"title":"A"}"#), 200);
    let mut browser = Browser::start();
    let page = bidder(&mut browser, &auction, "lot1", "Ann");
    // The page resumes after record 1.
    browser.evaluate(&page, "connection.close(); connection.isLive = false");
    let mut peer = TestPeer::connect(auction.at());
    for first in (2..1202).step_by(100) {
        let padding = "x".repeat(3900);
        let bid = |price| format!(r#"{{"price":{price},"bidder":"b","padding":"{padding}"}}"#) + "\n";
        let body: String = (first..first + 100).map(bid).collect();
        let head = "POST /publish/auction.lot1.bid HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson";
        let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert_eq!(peer.ask(request).status, 200);
    }
    browser.evaluate(&page, "connect()");
    browser.wait_until(&page, "element('price').dataset.price === '1201'");
    let notice = browser.evaluate(&page, "document.querySelector('#notices > [data-kind=gap]').textContent");
    let range = notice.as_str().and_then(|notice| notice.strip_prefix("Records 2 to "));
    let last = range.and_then(|range| range.split(' ').next()?.parse::<u64>().ok());
    let last = last.unwrap_or_else(|| panic!("{notice}"));
    // The history is longer than what the page keeps, unless the server keeps less.
    let first_kept = browser.evaluate(&page, "chosenLot().history.find(({ price }) => price > 1).seq");
    assert!(first_kept.as_u64() >= Some(last + 1), "{notice} {first_kept}");
    assert_eq!(browser.evaluate(&page, "chosenLot().history.at(-1).seq"), 1201);
    assert_eq!(browser.faults(), <[String; 0]>::default());
    drop(browser);
    auction.server.finish();
}
