//! Tests of failing sources: the client sees the failure, the connection has a close reason, the server goes on.

use std::io::{self, Read};

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling::http::{Method, Request, Response, Routes};

use crate::support::{HttpTestServer, get};

on_both_drivers!(
    a_source_that_fails_at_the_start_is_a_500,
    a_source_that_fails_in_the_middle_ends_the_connection,
    a_failed_response_is_reported_to_its_client,
);

/// Returns this many bytes, then ends as configured.
struct FailingSource {
    left: usize,
    how: SourceEnd,
}

#[derive(Clone, Copy, Debug)]
enum SourceEnd {
    Fails,
    Panics,
    /// It ends before the announced length.
    Ends,
}

impl Read for FailingSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return match self.how {
                SourceEnd::Fails => Err(io::Error::other("the demonstration of a failing source")),
                SourceEnd::Panics => panic!("the demonstration of a panic in a source"),
                SourceEnd::Ends => Ok(0),
            };
        }
        let count = self.left.min(into.len());
        into[..count].fill(b'e');
        self.left -= count;
        Ok(count)
    }
}

const ANNOUNCED: u64 = 10_000_000;

fn routes(left: usize) -> Routes {
    let answer = move |request: &Request<'_>| {
        let how = match request.param("how").as_deref() {
            Some("fails") => SourceEnd::Fails,
            Some("panics") => SourceEnd::Panics,
            _ => SourceEnd::Ends,
        };
        let source = FailingSource { left, how };
        match request.param("framing").as_deref() {
            Some("sized") => Response::stream_sized("a/b", ANNOUNCED, source),
            _ => Response::stream("a/b", source),
        }
    };
    Routes::new()
        .worker(Method::Get, "/job/{framing}/{how}", answer)
        .inline(Method::Get, "/in/{framing}/{how}", answer)
        .inline(Method::Get, "/good", |_| "good")
}

/// An unsized source that ends has not failed.
const FAILURE_PATHS: [&str; 5] = ["sized/fails", "sized/panics", "sized/ends", "open/fails", "open/panics"];

/// A failure before anything was sent is a status.
fn a_source_that_fails_at_the_start_is_a_500(driver: DriverChoice) {
    for workers in [0, 2] {
        let server = HttpTestServer::with(driver, routes(0), |config| config.worker_threads = workers);
        let mut peer = server.connect();
        for failure_path in FAILURE_PATHS {
            let answer = peer.ask(get(&format!("/job/{failure_path}")));
            assert_eq!(
                (answer.status, answer.text()),
                (500, "500 Internal Server Error\n"),
                "{failure_path}"
            );
            assert_eq!(peer.ask(get("/good")).text(), "good", "{failure_path}");
        }
        drop(peer);
        server.finish();
    }
}

fn a_source_that_fails_in_the_middle_ends_the_connection(driver: DriverChoice) {
    for (workers, route) in [(0, "job"), (0, "in"), (2, "job"), (2, "in")] {
        // With one shard the counter shows the close reason of each connection in turn.
        let server = HttpTestServer::with(driver, routes(200_000), |config| {
            (config.shards, config.worker_threads) = (1, workers);
        });
        for (number, failure_path) in (1..).zip(FAILURE_PATHS) {
            let mut peer = server.connect();
            peer.send(get(&format!("/{route}/{failure_path}")) + &get("/good"));
            let head = peer.head();
            assert_eq!(head.status, 200, "{failure_path}");
            let body = peer.read_until_closed();
            let text = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
            assert!(
                !text(b"0\r\n\r\n") && !text(b"HTTP/"),
                "{failure_path}: what was cut off looks complete"
            );
            assert!(body.len() <= 201_000, "{failure_path}: {} bytes", body.len());
            server.until_closed(CloseReason::ResponseAborted, number);
        }
        assert_eq!(server.connect().ask(get("/good")).text(), "good");
        server.finish();
    }
}

/// curl reports a failure with either framing: 18 is a partial file.
fn a_failed_response_is_reported_to_its_client(driver: DriverChoice) {
    let server = HttpTestServer::start(driver, routes(200_000));
    for failure_path in FAILURE_PATHS {
        let outcome = std::process::Command::new("curl")
            .args(["--silent", "--max-time", "60", "--output", "/dev/null"])
            .arg(server.url(&format!("/job/{failure_path}")))
            .output()
            .expect("curl is installed");
        assert_eq!(outcome.status.code(), Some(18), "{failure_path}: {outcome:?}");
    }
    server.finish();
}
