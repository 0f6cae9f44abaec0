//! Worker processes that speak frames: `fake_frames.py`, which behaves as the path selects, and the examples.

use std::path::Path;
use std::process::Command;

use super::{before, get, last, lives, number, ready};
use crate::coap_workers;
use crate::support::{DriverUnderTest, MetricsClient, ServerUnderTest, binary, eventually};

on_both_drivers! {
    the_examples_answer_over_http_and_coap,
    requests_and_bodies_arrive_whole,
    a_process_that_dies_costs_the_request_that_it_had,
    output_that_is_no_answer_costs_its_process_and_no_other_request,
    a_process_that_is_late_is_replaced,
    a_process_that_closes_its_streams_is_replaced,
    a_client_that_leaves_costs_no_process,
    a_program_that_does_not_start_or_is_not_ready_gets_no_request,
    a_body_that_cannot_be_held_is_refused,
    standard_error_goes_to_the_log_with_the_name_of_its_process,
}

pub(crate) fn fake_frames() -> String {
    format!("exec python3 -I -S '{}/tests/serve/app/fake_frames.py'", env!("CARGO_MANIFEST_DIR"))
}

/// A server before processes that speak frames, with further options, separated by blanks.
fn before_frames(
    driver: DriverUnderTest,
    command: &str,
    processes: u64,
    options: &str,
) -> (ServerUnderTest, MetricsClient) {
    let options = format!("--app-speaks frames --processes {processes} --coap 127.0.0.1:0 {options}");
    let server = before(driver, command, &options);
    let mut watcher = server.watch();
    watcher.until("all processes are ready", |metrics| ready(metrics) == processes);
    (server, watcher)
}

/// The worker of ten lines, and the one in Rust.
fn the_examples_answer_over_http_and_coap(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let compiled = folder.path().join("worker");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-o"]).arg(&compiled).arg(examples.join("frames_worker.rs"));
    assert!(rustc.status().expect("rustc runs").success());
    let python = format!("exec python3 '{}'", examples.join("frames_worker.py").display());
    for command in [python, format!("exec '{}'", compiled.display())] {
        let (server, watcher) = before_frames(driver, &command, 1, "");
        let mut peer = server.connect();
        for _ in 0..3 {
            let answer = peer.ask("POST /a?b=c HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
            assert_eq!((answer.status, answer.text()), (200, "POST /a?b=c HTTP/1.1: body"));
            assert_eq!(coap_workers::ask(&server, "-m put -e text", "/x"), "PUT /x HTTP/1.1: text");
        }
        // A body of an answer to HEAD is dropped.
        peer.send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(peer.head().status, 200);
        assert_eq!(peer.ask(get("/")).text(), "GET / HTTP/1.1: ");
        drop((peer, watcher));
        let metrics = server.finish();
        assert_eq!((lives(&metrics, "started"), lives(&metrics, "killed")), (1, 0));
    }
}

/// Row 1.3: several shards share a process; chunked bodies get a length; long bodies pass in both directions.
fn requests_and_bodies_arrive_whole(driver: DriverUnderTest) {
    let (server, watcher) =
        before_frames(driver, &fake_frames(), 1, "--accept-threads 2 --max-body-size 10000000");
    let mut peers: Vec<_> = (0..8).map(|_| server.connect()).collect();
    let pid = number(&mut peers[0], "/pid");
    for _ in 0..5 {
        for peer in &mut peers {
            peer.send(get("/pid"));
        }
        for peer in &mut peers {
            assert_eq!(peer.answer().text(), pid.to_string());
        }
    }
    let peer = &mut peers[0];
    let echo = peer.ask("GET /echo HTTP/1.1\r\nHost: a\r\nProxy: x\r\nName: value\r\n\r\n").into_text();
    assert!(echo.contains("\r\nName: value\r\n") && !echo.contains("Proxy"), "{echo}");
    let body: Vec<u8> = super::pattern(0, 3_000_000).collect();
    peer.send(format!("PUT /put HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
    peer.send(&body);
    assert_eq!(peer.answer().text(), "3000000 good");
    peer.send(
        "PUT /put HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\0\x01\x02\r\n0\r\n\r\n",
    );
    assert_eq!(peer.answer().text(), "3 good");
    let (head, body) = super::ask_alone(&server, "/sized/3000000");
    assert!(head.contains("\r\nContent-Length: 3000000\r\n"), "{head}");
    assert!(body.into_iter().eq(super::pattern(0, 3_000_000)));
    drop((peers, watcher));
    let metrics = server.finish();
    assert_eq!((lives(&metrics, "started"), lives(&metrics, "killed")), (1, 0));
}

/// Row 1.24: the crash of a worker costs at most the request that it served, over HTTP and over CoAP.
fn a_process_that_dies_costs_the_request_that_it_had(driver: DriverUnderTest) {
    let (server, mut watcher) = before_frames(driver, &fake_frames(), 1, "");
    let mut waiting: Vec<_> = (0..5).map(|_| server.connect()).collect();
    let mut peer = server.connect();
    let before = number(&mut peer, "/pid");
    peer.send(get("/die"));
    for peer in &mut waiting {
        peer.send(get("/pid"));
    }
    assert_eq!(peer.answer().status, 502);
    for peer in &mut waiting {
        assert_eq!(peer.answer().status, 200);
    }
    assert_ne!(number(&mut peer, "/pid"), before);
    assert_eq!(coap_workers::code(&server, &["die"]), coap_workers::BAD_GATEWAY);
    assert_eq!(coap_workers::code(&server, &["pid"]), coap_workers::CONTENT);
    let metrics = watcher.until("it is ready again", |metrics| ready(metrics) == 1);
    assert_eq!((lives(&metrics, "exited"), lives(&metrics, "killed")), (2, 0));
    drop((waiting, peer, watcher));
    let metrics = server.finish();
    assert_eq!(metrics.answers(502), 1);
    assert_eq!(metrics.value("coap_worker_failures_total{reason=\"failed\"}"), 1);
}

/// Row 1.24: each wrong output is answered 502, its process is replaced, and others are not disturbed.
fn output_that_is_no_answer_costs_its_process_and_no_other_request(driver: DriverUnderTest) {
    let (server, mut watcher) = before_frames(driver, &fake_frames(), 2, "--accept-threads 1");
    let mut peer = server.connect();
    let wrong = ["print", "long", "no-http", "empty", "other-number", "lying", "half", "die"];
    for (round, word) in wrong.into_iter().enumerate() {
        let mut other = server.connect();
        other.send(get("/sleep/300"));
        assert_eq!(peer.ask(get(&format!("/{word}"))).status, 502, "{word}");
        assert_eq!(other.answer().status, 200, "{word}");
        let replaced = round as u64 + 1;
        let metrics = watcher.until(word, |metrics| {
            ready(metrics) == 2 && lives(metrics, "killed") + lives(metrics, "exited") == replaced
        });
        assert_eq!(metrics.answers(502), replaced);
    }
    let mut killed = lives(&watcher.fetch(), "killed");
    let mut until_killed = || {
        killed += 1;
        watcher.until("it is replaced", |metrics| ready(metrics) == 2 && lives(metrics, "killed") == killed);
    };
    assert_eq!(coap_workers::code(&server, &["print"]), coap_workers::BAD_GATEWAY);
    until_killed();
    // The first frame is valid; the process is replaced because of the second.
    assert_eq!(peer.ask(get("/twice")).text(), "one");
    until_killed();
    assert_eq!(peer.ask(get("/unasked")).status, 200);
    until_killed();
    assert_eq!(peer.ask(get("/pid")).status, 200);
    drop((peer, watcher));
    assert_eq!(server.finish().answers(502), wrong.len() as u64);
}

/// Row 4.26: an answer after the deadline answers no other request.
fn a_process_that_is_late_is_replaced(driver: DriverUnderTest) {
    let (server, mut watcher) = before_frames(driver, &fake_frames(), 1, "--app-timeout 0.5");
    let mut peer = server.connect();
    let before = number(&mut peer, "/pid");
    for path in ["/hang", "/sleep/600"] {
        assert_eq!(peer.ask(get(path)).status, 504);
        assert_ne!(number(&mut peer, "/pid"), before);
    }
    let metrics = watcher.until("it is ready", |metrics| ready(metrics) == 1);
    assert_eq!((lives(&metrics, "killed"), lives(&metrics, "started")), (2, 3));
    drop((peer, watcher));
    server.finish();
}

/// A request that the process has not received waits for another one, for a limited time.
fn a_process_that_closes_its_streams_is_replaced(driver: DriverUnderTest) {
    let closing = "import os, time; os.write(1, bytes(8)); os.close(0); os.close(1); time.sleep(1000)";
    let (server, mut watcher) = before_frames(driver, &format!("exec python3 -c '{closing}'"), 1, "");
    assert_eq!(server.connect().ask(get("/")).status, 502);
    watcher.until("it is replaced", |metrics| ready(metrics) == 1 && lives(metrics, "killed") == 1);
    drop(watcher);
    server.finish();
}

/// The process finishes the request of a client that has left; its answer is discarded, and the next one is right.
fn a_client_that_leaves_costs_no_process(driver: DriverUnderTest) {
    let (server, mut watcher) = before_frames(driver, &fake_frames(), 1, "--send-buffer 32768");
    let mut peer = server.connect();
    let pid = number(&mut peer, "/pid");
    let mut left = server.connect();
    left.send(get("/sleep/700"));
    watcher.until("the process has it", |metrics| metrics.sum("app_requests_now", "state=\"running\"") == 1);
    left.reset();
    watcher.until("it is abandoned", |metrics| metrics.value("app_requests_abandoned_total") == 1);
    assert_eq!(number(&mut peer, "/pid"), pid);
    // In the middle of a long answer.
    let mut left = server.connect();
    left.shrink_receive_buffer(32 * 1024);
    left.send(last("/sized/30000000"));
    left.wait_for_bytes();
    left.reset();
    assert_eq!(number(&mut peer, "/pid"), pid);
    drop((peer, watcher));
    let metrics = server.finish();
    assert_eq!((lives(&metrics, "killed"), lives(&metrics, "started")), (0, 1));
}

/// Row 1.24: a missing program, one that ends at once, and one that prints before it is ready.
fn a_program_that_does_not_start_or_is_not_ready_gets_no_request(driver: DriverUnderTest) {
    let ending =
        [("exec /nonexistent/program", "exited"), ("exit 7", "exited"), ("echo hello; sleep 9", "killed")];
    for (command, event) in ending {
        let options = "--app-speaks frames --processes 2 --queue-timeout 0.2";
        let server = before(driver, command, options);
        let mut watcher = server.watch();
        let metrics = watcher.until("both were tried again", |metrics| lives(metrics, event) >= 4);
        assert_eq!(
            (ready(&metrics), lives(&metrics, "exited") + lives(&metrics, "killed")),
            (0, lives(&metrics, event))
        );
        let mut peer = server.connect();
        assert_eq!(peer.ask(get("/readyz")).status, 503);
        assert_eq!(peer.ask(get("/pid")).status, 503);
        drop((peer, watcher));
        assert_eq!(server.finish().jobs("expired"), 1);
    }
}

/// A process gets a request only when its whole body has been received.
fn a_body_that_cannot_be_held_is_refused(driver: DriverUnderTest) {
    let (server, watcher) = before_frames(driver, &fake_frames(), 1, "--max-body-size 20000000");
    let mut peer = server.connect();
    peer.send("PUT /put HTTP/1.1\r\nHost: a\r\nContent-Length: 12000000\r\n\r\n");
    // The server may close before it has read all of it.
    let _ = peer.try_send(vec![b'x'; 12_000_000]);
    assert_eq!(peer.answer().status, 413);
    assert_eq!(server.connect().ask(get("/pid")).status, 200);
    drop((peer, watcher));
    let metrics = server.finish();
    assert_eq!((metrics.answers(413), lives(&metrics, "started")), (1, 1));
}

fn standard_error_goes_to_the_log_with_the_name_of_its_process(driver: DriverUnderTest) {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut server = binary();
    server.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--app-speaks", "frames"]);
    server.args(["--app", &fake_frames()]).stderr(log.reopen().expect("it is a file"));
    let server = ServerUnderTest::spawn(server);
    assert_eq!(server.connect().ask(get("/error")).status, 200);
    eventually("the line is in the log", || {
        let text = std::fs::read_to_string(log.path()).expect("it is text");
        text.lines().any(|line| line == "app 0: a line for the log").then_some(())
    });
    server.finish();
}
