//! Slow work in worker threads, and quick responses that do not wait for it.
//!
//! ```sh
//! cargo run -p stilling --example slow_work
//! curl -N http://127.0.0.1:9000/count/5            # a line at a time
//! curl --data-binary @Cargo.lock http://127.0.0.1:9000/digest
//! curl http://127.0.0.1:9000/quick                 # at once, however many clients count
//! ```
//!
//! Two worker threads serve two clients at a time. Sixteen requests may wait; further ones are answered 503.

use std::error::Error;
use std::io::{self, Read};
use std::time::Duration;

use stilling::ServeConfig;
use stilling::http::{Method, Request, Response, Routes, Status};

struct SlowLines {
    next: u32,
    last: u32,
}

impl Read for SlowLines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.next > self.last {
            return Ok(0);
        }
        std::thread::sleep(Duration::from_millis(100));
        let line = format!("{}\n", self.next);
        self.next += 1;
        // The server's buffers are much longer than a line, so no line is truncated.
        let count = line.len().min(into.len());
        into[..count].copy_from_slice(&line.as_bytes()[..count]);
        Ok(count)
    }
}

/// Streams the lines: a body of unknown length is sent as it is read.
fn count(request: &Request<'_>) -> Result<Response, Status> {
    let last = request.param("to").and_then(|to| to.parse().ok()).ok_or(Status::BadRequest)?;
    Ok(Response::stream("text/plain; charset=utf-8", SlowLines { next: 1, last }))
}

/// An FNV-1a hash of the body.
fn digest(request: &Request<'_>) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}\n", request.body().iter().fold(0xcbf2_9ce4_8422_2325, step))
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:9000".to_owned()).parse()?;
    let routes = Routes::new()
        .worker(Method::Get, "/count/{to}", count)
        .worker(Method::Post, "/digest", digest)
        .inline(Method::Get, "/quick", |_| "quick\n");
    let config =
        ServeConfig { listen: vec![address], worker_threads: 2, queue_max: 16, ..ServeConfig::default() };
    Ok(stilling::serve(config, routes)?)
}
