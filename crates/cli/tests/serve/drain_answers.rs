//! The last answer of a connection: closing with unread bytes resets the connection, and the reset overtakes the
//! answer.

use rustix::process::Signal;

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer};

on_every_driver!(
    stray_bytes_behind_the_last_request_cost_no_answer,
    a_drain_answers_slow_work_with_a_request_pipelined_behind_it,
    a_drain_waits_for_answers_that_are_held_up,
);

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";
const SLOW: &str = "GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n";
const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

/// Rows 4.16, 4.36: bytes that arrive while a worker has the request stay unread; the answer still arrives whole, then
/// the end, not a reset.
fn stray_bytes_behind_the_last_request_cost_no_answer(driver: DriverUnderTest) {
    let requests = [
        "GET /test/slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET /test/slow HTTP/1.0\r\n\r\n",
        "POST /test/slow HTTP/1.0\r\nContent-Length: 3\r\n\r\na=b",
        "GET /test/slow\r\n\r\n",
    ];
    let strays = ["\r\n".to_owned(), FAST.to_owned(), SLOW.repeat(500)];
    let all = requests.iter().flat_map(|request| strays.iter().map(move |stray| (request, stray)));
    let server = ServerUnderTest::start(driver, "-w 12 -D 1000");
    let mut watcher = server.watch();
    let mut peers: Vec<_> = all.map(|asked| (server.connect(), asked)).collect();
    for (peer, (request, _)) in &mut peers {
        peer.send(request);
    }
    let count = peers.len() as u64;
    watcher.until("all jobs run", |metrics| metrics.value("jobs_running") == count);
    for (peer, (_, stray)) in &mut peers {
        peer.send(stray);
    }
    for (peer, (request, stray)) in &mut peers {
        let answer = peer.rest();
        let shown = (request, &stray[..20.min(stray.len())]);
        assert_eq!(answer.len(), 57, "{shown:?}: {}", answer.escape_ascii());
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{shown:?}");
    }
    drop(peers);
    let metrics = watcher.until_alone();
    assert_eq!((metrics.jobs("done"), metrics.closed("done")), (count, count));
    drop(watcher);
    server.finish();
}

/// Row 4.37: the request in a worker is answered; the one pipelined behind it is not, and does no harm.
fn a_drain_answers_slow_work_with_a_request_pipelined_behind_it(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 1 -w 2 -D 1000");
    let mut watcher = server.watch();
    let mut idle = server.connect();
    assert_eq!(idle.ask(FAST).status, 200);
    // Once in one piece, once with the first request already in its worker.
    let (mut together, mut apart) = (server.connect(), server.connect());
    together.send(SLOW.to_owned() + FAST);
    apart.send(SLOW);
    watcher.until("both jobs run", |metrics| metrics.value("jobs_running") == 2);
    apart.send(FAST);
    server.signal(Signal::TERM);
    // The drain has begun.
    assert_eq!(idle.rest(), b"");
    for mut peer in [together, apart] {
        let answer = peer.answer();
        assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
        assert_eq!(peer.rest(), b"");
    }
    assert_eq!(server.expect_clean_end().jobs("done"), 2);
}

/// Reads answers until the connection ends in order; each must be whole. Returns their number.
fn whole_answers(peer: &mut TestPeer) -> usize {
    let mut bytes = peer.rest();
    let mut answers = 0;
    while !bytes.is_empty() {
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head") + 4;
        let text = String::from_utf8(bytes[..head].to_vec()).expect("a head is text");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).expect("a length");
        assert!(bytes.len() >= head + length, "answer {answers} is cut off");
        bytes.drain(..head + length);
        answers += 1;
    }
    answers
}

/// Rows 4.36, 4.37: a slow reader gets every started answer to its end.
fn a_drain_waits_for_answers_that_are_held_up(driver: DriverUnderTest) {
    // Kernel buffer for answers: small, so that the server meets backpressure at once.
    const TINY: usize = 2048;
    const ASKED: usize = 300;
    let server = ServerUnderTest::start(driver, &format!("-A 1 --send-buffer {TINY}"));
    let mut watcher = server.watch();
    let mut idle = server.connect();
    let mut peer = server.connect();
    peer.shrink_receive_buffer(TINY);
    peer.send(METRICS.repeat(ASKED));
    watcher.until("answers are blocked", |metrics| metrics.value("output_held_bytes") > 0);
    assert_eq!(idle.ask(FAST).status, 200);
    server.signal(Signal::TERM);
    // The drain has begun.
    assert_eq!(idle.rest(), b"");
    let answered = whole_answers(&mut peer);
    assert!((1..=ASKED).contains(&answered), "{answered} answers to {ASKED} requests");
    let metrics = server.expect_clean_end();
    assert_eq!((metrics.closed("write_timeout"), metrics.closed("drain_timeout")), (0, 0));
}
