//! Clients that send requests and read no answers, or read slowly.

use std::thread;

use crate::support::{DriverUnderTest, ServerUnderTest};

on_every_driver!(
    a_client_that_never_reads_is_bounded_and_cut_off,
    a_slow_reader_gets_every_byte_in_order,
    resets_while_an_answer_is_held_up_cost_nothing,
);

/// Kernel buffer for answers: small, so that the server meets backpressure at once.
const TINY: usize = 2048;
const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

const DEAF: u64 = 8;
/// Maximum bytes held for one of them: one call's output, in a block of the next size.
const HELD_MAX: u64 = 64 * 1024;

/// Rows 4.35, 4.36: bytes held for them are bounded, others are served, then their timeout passes.
fn a_client_that_never_reads_is_bounded_and_cut_off(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, &format!("-A 1 --send-buffer {TINY} --write-timeout 1"));
    let mut watcher = server.watch();
    let mut honest = server.connect();
    thread::scope(|scope| {
        for _ in 0..DEAF {
            let mut peer = server.connect();
            peer.shrink_receive_buffer(TINY);
            scope.spawn(move || while peer.try_send(METRICS.repeat(100)) {});
        }
        watcher.until("all deaf clients are cut off", |metrics| {
            assert!(metrics.value("output_held_bytes") <= DEAF * HELD_MAX, "{metrics:?}");
            assert!(metrics.value("input_held_bytes") <= DEAF * HELD_MAX, "{metrics:?}");
            assert_eq!(honest.ask("GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
            metrics.closed("write_timeout") == DEAF
        });
    });
    drop(honest);
    watcher.until_alone();
    drop(watcher);
    let metrics = server.finish();
    assert!(metrics.value("blocked_sends_total") >= DEAF, "nobody met resistance: {metrics:?}");
}

/// Row 4.36: partial sends continue where they stopped.
fn a_slow_reader_gets_every_byte_in_order(driver: DriverUnderTest) {
    const ROUNDS: usize = 200;
    let server = ServerUnderTest::start(driver, &format!("-D 1 --send-buffer {TINY}"));
    let mut peer = server.connect();
    peer.shrink_receive_buffer(TINY);
    let round = [("GET /livez", 200), ("GET /nothing", 404), ("PUT /livez", 405), ("GET /test/fast", 200)];
    let one = round.map(|(line, _)| format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n")).concat();
    let mut sender = peer.clone_writer();
    thread::scope(|scope| {
        scope.spawn(move || sender.send(one.repeat(ROUNDS)));
        for at in 0..ROUNDS {
            for (line, status) in round {
                let answer = peer.answer();
                assert_eq!(answer.status, status, "answer {at} to {line}");
                assert_eq!(
                    answer.body.len(),
                    [6, 14, 23, 0][round.iter().position(|one| one.0 == line).unwrap()]
                );
            }
        }
    });
    assert!(peer.is_silent(), "more than was asked for");
    drop(peer);
    let metrics = server.finish();
    assert!(metrics.value("blocked_sends_total") > 0, "the reader was not slow: {metrics:?}");
}

/// Rows 4.34, 4.36: neither a signal nor an error of a dead connection ends the server.
fn resets_while_an_answer_is_held_up_cost_nothing(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, &format!("--send-buffer {TINY}"));
    let mut watcher = server.watch();
    for round in 1..=20 {
        let mut peer = server.connect();
        peer.shrink_receive_buffer(TINY);
        peer.send(METRICS.repeat(50));
        watcher.until("the answer is blocked", |metrics| metrics.value("output_held_bytes") > 0);
        peer.reset();
        watcher.until("the reset is noticed", |metrics| metrics.closed("peer_reset") == round);
    }
    watcher.until_alone();
    drop(watcher);
    server.finish();
}
