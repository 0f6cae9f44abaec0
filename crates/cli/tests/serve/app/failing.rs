//! Processes that do not start, exit, hang, or send invalid responses.

use super::{before, before_fakes, get, last, lives, number, ready};
use crate::support::DriverUnderTest;

on_both_drivers! {
    a_program_that_does_not_start_is_seen_and_tried_ever_more_rarely,
    a_process_that_dies_costs_the_request_that_it_had,
    a_process_that_hangs_is_killed_and_its_request_answered_504,
    a_slow_request_costs_the_others_of_its_process_nothing,
    what_is_no_answer_is_answered_502,
    an_answer_that_breaks_off_ends_the_connection,
    a_kept_connection_closed_by_the_process_costs_nothing,
}

/// Row 1.24: the server is not ready and reports it, and waiting requests are answered in time.
fn a_program_that_does_not_start_is_seen_and_tried_ever_more_rarely(driver: DriverUnderTest) {
    for command in ["exec /nonexistent/program", "exit 7"] {
        let server = before(driver, command, "--processes 2 --queue-timeout 0.2");
        let mut watcher = server.watch();
        let metrics = watcher.until("both were tried again", |metrics| lives(metrics, "exited") >= 6);
        assert_eq!((ready(&metrics), lives(&metrics, "killed")), (0, 0));
        watcher.until("both wait for long", |metrics| {
            metrics.sum("app_processes", "state=\"backing_off\"") == 2
                && metrics.exact("app_backoff_seconds{pool=\"app\"}") >= 0.4
        });
        let mut peer = server.connect();
        let answer = peer.ask(get("/readyz"));
        assert_eq!(answer.status, 503);
        let text = answer.text();
        assert!(text.starts_with("not ready: 0 of 2 worker processes\napp: 0 of 2 ready"), "{text}");
        let answer = peer.ask(get("/pid"));
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
        assert_eq!(peer.ask(get("/livez")).status, 200);
        drop((peer, watcher));
        assert_eq!(server.finish().jobs("expired"), 1);
    }
}

/// Row 1.24: the crash of one worker loses at most one request.
fn a_process_that_dies_costs_the_request_that_it_had(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--processes 1");
    let mut waiting: Vec<_> = (0..5).map(|_| server.connect()).collect();
    let mut peer = server.connect();
    let before = number(&mut peer, "/pid");
    peer.send(get("/die"));
    for peer in &mut waiting {
        peer.send(get("/pid"));
    }
    let answer = peer.answer();
    assert_eq!((answer.status, answer.text()), (502, "502 Bad Gateway\n"));
    for peer in &mut waiting {
        let answer = peer.answer();
        assert_eq!(answer.status, 200, "who waited did not lose anything");
    }
    assert_ne!(number(&mut peer, "/pid"), before);
    let metrics = watcher.until("it is ready again", |metrics| ready(metrics) == 1);
    assert_eq!((lives(&metrics, "exited"), lives(&metrics, "started")), (1, 2));
    drop((waiting, peer, watcher));
    assert_eq!(server.finish().answers(502), 1);
}

/// Row 4.26: a hung process is killed at its deadline.
fn a_process_that_hangs_is_killed_and_its_request_answered_504(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--processes 2 --app-timeout 0.3");
    let mut peer = server.connect();
    for _ in 0..2 {
        let answer = peer.ask(get("/hang"));
        assert_eq!((answer.status, answer.text()), (504, "504 Gateway Timeout\n"));
        assert_eq!(answer.field("Connection"), None, "the client's connection goes on");
    }
    let metrics = watcher
        .until("two others are ready", |metrics| lives(metrics, "started") == 4 && ready(metrics) == 2);
    assert_eq!((lives(&metrics, "killed"), lives(&metrics, "exited")), (2, 0));
    assert_eq!(peer.ask(get("/interim")).status, 200);
    // A response that begins and never ends is late as well, but its status is already sent; the process stays.
    peer.send(get("/endless"));
    let answer = peer.head();
    assert_eq!((answer.status, answer.field("Connection")), (200, None));
    let rest = peer.read_until_closed();
    assert!(rest.starts_with(b"0000000") && !rest.ends_with(b"0\r\n\r\n"), "{}", rest.escape_ascii());
    drop(watcher);
    let metrics = server.finish();
    assert_eq!((lives(&metrics, "killed"), lives(&metrics, "exited")), (2, 0));
    assert_eq!((metrics.answers(504), metrics.closed("response_aborted")), (2, 1));
}

/// Row 1.24: a process that answers other requests does not hang.
fn a_slow_request_costs_the_others_of_its_process_nothing(driver: DriverUnderTest) {
    // Little is held for slow readers, so the slow one keeps its slot.
    let options = "--app-concurrency 3 --app-timeout 1 --send-buffer 32768 --max-answers-held 150000";
    let (server, mut watcher) = before_fakes(driver, options);
    let [mut other, mut slow, mut peer] = [server.connect(), server.connect(), server.connect()];
    // The client reads slowly, not the process.
    other.shrink_receive_buffer(32 * 1024);
    other.send(last("/sized/1000000"));
    other.wait_for_bytes();
    let before = number(&mut peer, "/pid");
    assert_eq!(slow.ask(get("/hang")).status, 504);
    let (_, body) = (other.head(), other.rest());
    assert!(body.into_iter().eq(super::pattern(0, 1_000_000)));
    assert_eq!(number(&mut peer, "/pid"), before, "the process lives");
    let metrics = watcher.fetch();
    assert_eq!((lives(&metrics, "killed"), lives(&metrics, "started")), (0, 1));
    drop((slow, peer, watcher));
    server.finish();
}

fn what_is_no_answer_is_answered_502(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "");
    let mut peer = server.connect();
    for (round, word) in
        ["garbage", "upgrade", "large-head", "many-fields", "nothing"].into_iter().enumerate()
    {
        assert_eq!(peer.ask(get(&format!("/{word}"))).status, 502, "{word}");
        assert_eq!(peer.ask(get("/pid")).status, 200);
        assert_eq!(watcher.fetch().answers(502), round as u64 + 1);
    }
    let metrics = watcher.fetch();
    assert_eq!((lives(&metrics, "exited"), lives(&metrics, "killed")), (0, 0), "it lives on");
    drop((peer, watcher));
    server.finish();
}

fn an_answer_that_breaks_off_ends_the_connection(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "");
    let mut peer = server.connect();
    peer.send(get("/half"));
    let answer = peer.head();
    assert_eq!((answer.status, answer.field("Content-Length")), (200, Some("1000000")));
    let body = peer.read_until_closed();
    assert!(body.len() <= 200_000, "no byte is made up");
    assert!(body.iter().copied().eq(super::pattern(0, body.len())));
    drop(watcher);
    assert_eq!(server.finish().closed("response_aborted"), 1);
}

/// A process that closes a kept connection just before the next request causes no loss.
fn a_kept_connection_closed_by_the_process_costs_nothing(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "");
    let mut peer = server.connect();
    for _ in 0..20 {
        // The response has no `Connection: close`, but the process closes.
        assert_eq!(peer.ask(get("/once")).status, 200);
        assert_eq!(peer.ask(get("/pid")).status, 200);
    }
    drop((peer, watcher));
    server.finish();
}
