//! Requests that arrive in pieces, and clients that close their half early.

use crate::support::{DriverUnderTest, MetricsClient, ServerUnderTest, TestPeer};

on_both_drivers!(
    a_request_may_be_cut_at_every_byte_and_every_pair_of_bytes,
    a_request_may_come_byte_by_byte,
    a_client_that_closes_its_half_is_answered,
    half_a_request_at_end_of_input_is_answered_with_an_error,
);

/// Every form of a request; each is answered with one 200 and the end of the connection.
const FORMS: [&str; 6] = [
    "GET /test/fast HTTP/1.0\r\n\r\n",
    "GET /test/fast HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET /test/slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET /test/fast\r\n\r\n",
    "POST /test/fast HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody",
    "POST /test/fast HTTP/1.1\r\nHost:a\r\nConnection:close\r\nTransfer-Encoding:chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
];

/// Connections that send their pieces in step: the next pieces follow when the server has received all.
struct SplitRequestTest<'a> {
    server: &'a ServerUnderTest,
    watcher: MetricsClient,
    sent: u64,
}

impl<'a> SplitRequestTest<'a> {
    fn new(server: &'a ServerUnderTest) -> Self {
        SplitRequestTest { server, watcher: server.watch(), sent: 0 }
    }

    /// Each connection sends `request` cut at its own positions, then reads its answer.
    fn send_all(&mut self, request: &str, cuts: &[Vec<usize>]) {
        let mut peers: Vec<TestPeer> = cuts.iter().map(|_| self.server.connect()).collect();
        let rounds = cuts.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..=rounds {
            for (peer, cuts) in peers.iter_mut().zip(cuts) {
                let from = if round == 0 { 0 } else { cuts[round - 1] };
                let to = cuts.get(round).copied().unwrap_or(request.len());
                peer.send(&request[from..to]);
                self.sent += (to - from) as u64;
            }
            let sent = self.sent;
            self.watcher.until_received("the server has all pieces", |received| received == sent);
        }
        for (mut peer, cuts) in peers.into_iter().zip(cuts) {
            let answer = peer.rest();
            let shown = answer.escape_ascii();
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{request} cut at {cuts:?}: {shown}");
            assert_eq!(answer.len(), 57, "{request} cut at {cuts:?}: {shown}");
        }
    }
}

/// Row 4.33: the server receives the pieces one by one, because each is sent after the previous one has arrived.
fn a_request_may_be_cut_at_every_byte_and_every_pair_of_bytes(driver: DriverUnderTest) {
    // Up to 1,500 of them need a worker at once.
    let server = ServerUnderTest::start(driver, "-D 1 --queue-target off");
    let mut split_requests = SplitRequestTest::new(&server);
    for form in FORMS {
        let ones: Vec<_> = (1..form.len()).map(|at| vec![at]).collect();
        split_requests.send_all(form, &ones);
        let pairs = (1..form.len()).flat_map(|first| (first + 1..form.len()).map(move |at| vec![first, at]));
        let pairs: Vec<_> = pairs.collect();
        for some in pairs.chunks(1500) {
            split_requests.send_all(form, some);
        }
    }
    split_requests.watcher.until_alone();
    drop(split_requests);
    server.finish();
}

/// Row 4.33: the other extreme.
fn a_request_may_come_byte_by_byte(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1");
    let mut split_requests = SplitRequestTest::new(&server);
    for form in FORMS {
        split_requests.send_all(form, &[(1..form.len()).collect()]);
    }
    drop(split_requests);
    server.finish();
}

/// Row 4.33: a client may close its half after its requests; the answers still arrive.
fn a_client_that_closes_its_half_is_answered(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1 -D 20");
    let mut watcher = server.watch();
    for form in FORMS {
        let mut peer = server.connect();
        peer.send(form);
        peer.half_close();
        assert_eq!(peer.rest().len(), 57, "{form}");
    }
    // A persistent connection: all requests are answered, then it ends.
    for (path, done) in [("/test/fast", 0), ("/test/slow", 3)] {
        let before = watcher.fetch().jobs("done");
        let mut peer = server.connect();
        peer.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(3));
        peer.half_close();
        for _ in 0..3 {
            assert_eq!(peer.answer().status, 200, "{path}");
        }
        assert_eq!(peer.rest(), b"", "{path}");
        assert_eq!(watcher.fetch().jobs("done") - before, done, "{path}");
    }
    // The half closes while a worker has the request.
    let mut peer = server.connect();
    peer.send("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n");
    watcher.until("the job is there", |metrics| {
        metrics.value("jobs_running") + metrics.value("jobs_queued") > 0 || metrics.jobs("done") > 4
    });
    peer.half_close();
    assert_eq!(peer.answer().status, 200);
    assert_eq!(peer.rest(), b"");
    watcher.until_alone();
    drop(watcher);
    server.finish();
}

/// Row 4.33: the peer may still read, so it gets an error.
fn half_a_request_at_end_of_input_is_answered_with_an_error(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "");
    let mut halves = 0;
    for form in FORMS {
        for end in (1..form.len()).step_by(7) {
            let mut peer = server.connect();
            peer.send(&form[..end]);
            peer.half_close();
            let answer = peer.answer();
            assert_eq!((answer.status, answer.field("Connection")), (400, Some("close")), "{end} of {form}");
            assert_eq!(peer.rest(), b"", "{end} of {form}");
            halves += 1;
        }
    }
    // An end without a byte is no request.
    let mut peer = server.connect();
    peer.half_close();
    assert_eq!(peer.rest(), b"");
    let metrics = server.finish();
    assert_eq!((metrics.closed("protocol_error"), metrics.closed("peer_closed")), (halves, 1));
}
