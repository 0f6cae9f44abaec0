//! Close time of a malformed request: from its last byte to the end of the stream at the client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::figures::{self, PageSection};
use super::harness;
use super::server::{BenchDriver, BenchServer, READY_TIMEOUT};
use super::targets::BenchTarget;
use super::{HttpBench, machine};
use crate::XtaskResult;

pub(super) const TITLE: &str = "Malformed requests";

/// Malformed requests per server and round.
const REQUESTS: u64 = 2000;

/// Row 4.14: most milliseconds from the last byte of a malformed request to the end of its connection.
const CLOSE_MS_MAX: f64 = 1.0;

/// Requests that Stilling and nginx reject, followed by a close of both.
const WRONG: [&str; 3] = [
    "hello\r\n\r\n",
    "GET /test/fast HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "POST /test/fast HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
];

struct CloseTimes {
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

impl CloseTimes {
    fn of(mut all_ms: Vec<f64>) -> CloseTimes {
        all_ms.sort_by(f64::total_cmp);
        let at = |part: f64| all_ms[((all_ms.len() - 1) as f64 * part).round() as usize];
        CloseTimes { p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
    }
}

/// Sends a request on a new connection; returns milliseconds from its last byte to the end of the stream.
///
/// # Errors
/// If there is no response, or its status is not 400.
fn close_time(address: SocketAddr, request: &str) -> XtaskResult<f64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(READY_TIMEOUT))?;
    let (start, last) = request.as_bytes().split_at(request.len() - 1);
    stream.write_all(start)?;
    let mut answer = Vec::with_capacity(1024);
    let begun = Instant::now();
    stream.write_all(last)?;
    stream.read_to_end(&mut answer)?;
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    if !answer.starts_with(b"HTTP/1.1 400 ") {
        let response = String::from_utf8_lossy(&answer);
        return Err(format!("{address} answers {request:?} with {response:?}").into());
    }
    Ok(took_ms)
}

impl HttpBench {
    /// Row 4.14: a malformed request is answered and its connection closed at once.
    pub(super) fn refusals(&self) -> XtaskResult<Vec<PageSection>> {
        let servers = [
            self.stilling(BenchDriver::Uring, &[])?,
            self.stilling(BenchDriver::Poll, &[])?,
            BenchServer::nginx(self.folder(), machine::cores(), None, None)?,
        ];
        let times = harness::run_rounds(self.options.rounds, &servers, |round, server| {
            let requests = WRONG.iter().cycle().take(self.quick_or_full(REQUESTS) as usize);
            let all: XtaskResult<Vec<f64>> =
                requests.map(|request| close_time(server.address, request)).collect();
            let close_times = CloseTimes::of(all?);
            println!("malformed requests, round {round}, {}: p50 {:.3} ms", server.name, close_times.p50_ms);
            Ok(close_times)
        })?;
        let mut table = figures::table("server | p50 ms | p99 ms | max ms");
        for (server, times) in servers.iter().zip(&times) {
            let all = |of: fn(&CloseTimes) -> f64| times.iter().map(of).collect::<Vec<_>>();
            let (p50, p99) = (all(|times| times.p50_ms), all(|times| times.p99_ms));
            if server.name.starts_with("stilling") {
                for (name, values) in [("median", &p50), ("p99", &p99)] {
                    let what = format!(
                        "last byte of a malformed request to end of connection, {name}, {}",
                        server.name
                    );
                    let measured = figures::median(values.clone());
                    self.add_target(BenchTarget::at_most(what, CLOSE_MS_MAX, Some(measured), "ms"));
                }
            }
            let format_spread = |values: Vec<f64>| figures::spread(values, |ms| format!("{ms:.3}"));
            let max = all(|times| times.max_ms);
            table.push(vec![
                server.name.to_owned(),
                format_spread(p50),
                format_spread(p99),
                format_spread(max),
            ]);
        }
        let description = format!(
            "Row 4.14: {} requests with three faults (no request line, two Host fields, a negative Content-Length), one \
             after another, each on a connection of its own. Times run from the write of the last byte to the end of \
             the stream at the client. Between them lies the answer of status 400.",
            figures::thousands(self.quick_or_full(REQUESTS) as f64)
        );
        Ok(vec![PageSection { title: TITLE.to_owned(), description, table }])
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn percentiles_are_computed_from_sorted_times() {
        let times = CloseTimes::of((0..=100).rev().map(f64::from).collect());
        assert_eq!((times.p50_ms, times.p99_ms, times.max_ms), (50.0, 99.0, 100.0));
    }

    /// Row 4.14: a server that answers at once and closes late is late.
    #[test]
    fn a_close_time_ends_with_the_connection_and_not_with_the_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let late = Duration::from_millis(50);
        let server = std::thread::spawn(move || {
            for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.write_all(answer.as_bytes()).expect("it is read");
                std::thread::sleep(late);
                let _ = stream.read(&mut [0; 64]);
            }
        });
        let took_ms = close_time(address, WRONG[0]).expect("it is refused");
        assert!(took_ms > late.as_secs_f64() * 1e3 / 2.0, "{took_ms} ms");
        assert!(close_time(address, WRONG[0]).is_err(), "200 is no refusal");
        server.join().expect("it does not panic");
    }
}
