//! Clients that exceed a deadline.

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer};

on_both_drivers!(
    thousands_of_slow_heads_end_on_time_without_harm,
    a_silent_client_is_sent_away,
    a_body_must_come_at_its_least_rate,
    an_idle_connection_ends,
);

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";

/// Row 4.35: slowloris. The deadline covers the whole head: single bytes do not extend it.
fn thousands_of_slow_heads_end_on_time_without_harm(driver: DriverUnderTest) {
    const CLIENTS: usize = 3000;
    let server = ServerUnderTest::start(driver, "--head-timeout 2");
    let mut watcher = server.watch();
    let mut honest = server.connect();
    let mut slow: Vec<TestPeer> = (0..CLIENTS).map(|_| server.connect()).collect();
    for peer in &mut slow {
        peer.send("GET /test/fast HTTP/1.1\r\nHost: a\r\nX: ");
    }
    let mut pass = 0;
    watcher.until("all slow clients are timed out", |metrics| {
        for peer in slow.iter_mut().skip(pass % 8).step_by(8) {
            peer.try_send("y");
        }
        pass += 1;
        assert_eq!(honest.ask(FAST).status, 200);
        metrics.answers(408) == CLIENTS as u64
    });
    for mut peer in slow {
        let answer = peer.read_until_closed();
        assert!(answer.starts_with(b"HTTP/1.1 408 Request Timeout\r\n"), "{}", answer.escape_ascii());
    }
    drop(honest);
    let metrics = watcher.until_alone();
    assert_eq!(metrics.closed("head_timeout"), CLIENTS as u64);
    drop(watcher);
    server.finish();
}

/// Row 4.35: a connection without a byte is closed without an answer.
fn a_silent_client_is_sent_away(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "--first-byte-timeout 0.2");
    let silent: Vec<TestPeer> = (0..10).map(|_| server.connect()).collect();
    for mut peer in silent {
        assert_eq!(peer.rest(), b"");
    }
    assert_eq!(server.finish().closed("first_byte_timeout"), 10);
}

/// Row 4.35: a body above the minimum rate may take long; a slower one is cut off.
fn a_body_must_come_at_its_least_rate(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "--body-timeout 0.3 --min-body-rate 10");
    let start = "POST /test/fast HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n";
    let (mut good, mut bad) = (server.connect(), server.connect());
    // 1000 bytes allow 100 seconds.
    good.send(format!("{start}{}", "g".repeat(1000)));
    bad.send(format!("{start}b"));
    let expect_timeout = |mut peer: TestPeer| {
        let answer = peer.answer();
        assert_eq!((answer.status, answer.field("Connection")), (408, Some("close")));
        assert_eq!(peer.rest(), b"");
    };
    expect_timeout(bad);
    let mut later = server.connect();
    later.send(start);
    expect_timeout(later);
    // Both later connections are closed, so the grace period of this one is over: only its rate keeps it open.
    assert_eq!(good.ask("g".repeat(1000)).status, 200);
    drop(good);
    assert_eq!(server.finish().closed("body_timeout"), 2);
}

/// Row 4.35: idle connections are closed.
fn an_idle_connection_ends(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "--idle-timeout 0.2");
    for _ in 0..3 {
        let mut peer = server.connect();
        assert_eq!(peer.ask(FAST).status, 200);
        assert_eq!(peer.ask(FAST).status, 200);
        assert_eq!(peer.rest(), b"");
    }
    assert_eq!(server.finish().closed("idle_timeout"), 3);
}
