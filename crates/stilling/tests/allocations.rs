//! A warm server allocates nothing for any kind of request, as measured by a counting allocator.
//!
//! It counts all threads except those that exclude themselves as clients. One test for both drivers, because two at
//! once would count each other.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use stilling::http::{Method, Response, Routes, Status, Timeouts};
use stilling::{DriverChoice, ServeConfig, Server};
use stilling_probe::allocations::{
    CountingAllocator, exclude_this_thread, process_allocations, run_until_allocation_free,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bound for answers that a test waits for.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections of a kind in one round, all open at once.
const CONNECTIONS: usize = 60;
const ROUNDS: usize = 3;
/// A new peak of concurrent work lets a list grow once.
const ATTEMPTS: usize = 20;

/// The requests of one connection, and the number of responses.
const KINDS: [(&str, &str, usize); 16] = [
    ("fast, closing", "GET /test/fast HTTP/1.0\r\n\r\n", 1),
    ("slow, closing", "GET /test/slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 1),
    ("fast, kept", "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("slow, kept", "GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    (
        "pipelined",
        "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\nGET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n\
         GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\nGET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n",
        4,
    ),
    ("a body", "POST /test/slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", 1),
    ("nothing there", "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("alive", "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("other methods", "DELETE /static HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("malformed, closing", "GET /test/fast HTTP/1.1\r\nHost: a b\r\n\r\n", 1),
    (
        "nothing to expect, closing",
        "POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
        1,
    ),
    ("too slow, closing", "POST /test/fast HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\nslow", 1),
    ("static route", "GET /static HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("static route, closing", "HEAD /static HTTP/1.0\r\n\r\n", 1),
    ("a placeholder and a query", "GET /by/name?a=b HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("a status of a route", "GET /empty HTTP/1.1\r\nHost: a\r\n\r\n", 1),
];

/// Routes with handlers that allocate nothing, so that only the server's allocations count.
fn routes() -> Routes {
    Routes::new()
        .inline(Method::Get, "/static", |_| "A text that does not change.\n")
        .inline(Method::Get, "/by/{what}", |request| {
            let (what, a) = (request.param("what"), request.query("a"));
            let as_sent = what.as_deref() == Some("name") && a.as_deref() == Some("b");
            if as_sent { Ok("both\n") } else { Err(Status::BadRequest) }
        })
        .inline(Method::Get, "/empty", |_| Response::new(Status::NoContent))
}

/// Reads until that many heads have arrived, with any bytes after the last.
fn read_answers(stream: &mut TcpStream, answers: usize) {
    let mut seen = Vec::new();
    let mut bytes = [0; 4096];
    while seen.windows(4).filter(|window| window == b"\r\n\r\n").count() < answers {
        let read = stream.read(&mut bytes).expect("an answer");
        assert!(read > 0, "closed after {}", seen.escape_ascii());
        seen.extend_from_slice(&bytes[..read]);
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    stream.set_nodelay(true).expect("a socket takes options");
    stream
}

/// All connections of a kind at once: requests in two pieces, so that unfinished input is held, then twice more on
/// persistent connections, then closed, half of them before their last response.
fn round(address: SocketAddr, kind: &str, request: &str, answers: usize) {
    let closes = kind.ends_with("closing");
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| connect(address)).collect();
    for _ in 0..if closes { 1 } else { 3 } {
        let (first, second) = request.as_bytes().split_at(10);
        for half in [first, second] {
            streams.iter_mut().for_each(|stream| stream.write_all(half).expect("the server reads"));
        }
        streams.iter_mut().for_each(|stream| read_answers(stream, answers));
    }
    for (at, mut stream) in streams.into_iter().enumerate() {
        if closes {
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
        } else if at % 2 == 0 {
            stream.write_all(request.as_bytes()).expect("the server reads");
        }
    }
}

fn a_warm_server_allocates_nothing_on(driver: DriverChoice) {
    let config = ServeConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        shards: 2,
        worker_threads: 2,
        slow_duration: Duration::from_millis(1),
        // Only for the slow body: all others arrive together with their heads.
        timeouts: Timeouts { body_grace: Duration::from_millis(50), ..Timeouts::default() },
        demo: true,
        driver,
        ..ServeConfig::default()
    };
    let server = Server::bind(config, routes()).expect("a free port and the driver");
    let address = server.addresses()[0];
    // Serves until the process ends.
    thread::spawn(move || server.run().map(drop));
    let client = thread::spawn(move || {
        exclude_this_thread();
        let cold = process_allocations();
        let mut scraper = connect(address);
        scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
        read_answers(&mut scraper, 1);
        assert!(process_allocations() > cold, "the page that allocates was not counted");
        for _ in 0..ROUNDS {
            KINDS.iter().for_each(|(kind, request, answers)| round(address, kind, request, *answers));
        }
        for (kind, request, answers) in KINDS {
            let settled = run_until_allocation_free(ATTEMPTS, || {
                (0..ROUNDS).for_each(|_| round(address, kind, request, answers));
            });
            if let Err(counts) = settled {
                panic!("{driver:?}, {kind}: {counts:?}");
            }
        }
    });
    client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// CoAP requests that no worker is needed for, each with the number of its replies. The message id is replaced.
const COAP_KINDS: [(&str, &[u8], usize); 7] = [
    ("a small answer", b"\x40\x01\0\0\xb4test", 1),
    ("a small answer, non-confirmable", b"\x50\x01\0\0\xb4test", 1),
    // Block 1 of 64 bytes; the first one is requested before.
    ("a next block", b"\x40\x01\0\0\xb5large\xc1\x12", 1),
    ("an unknown resource", b"\x40\x01\0\0\xb4none", 1),
    ("malformed", b"\x40\x01\0\0\xff", 1),
    ("malformed, ignored", b"\x80\x01\0\0\xb4test", 0),
    ("a ping", COAP_PING, 1),
];

const COAP_PING: &[u8] = b"\x40\0\0\0";

/// The first block of 64 bytes of a long answer.
const COAP_FIRST_BLOCK: &[u8] = b"\x40\x01\0\0\xb5large\xc1\x02";

struct CoapPeer {
    socket: UdpSocket,
    next_id: u16,
}

impl CoapPeer {
    fn new(address: SocketAddr) -> CoapPeer {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(address).expect("an address");
        socket.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        CoapPeer { socket, next_id: 0 }
    }

    /// Sends a message with a new id so many times, and receives a reply to each.
    fn ask(&mut self, message: &[u8], times: usize, replies: usize) {
        self.next_id = self.next_id.wrapping_add(1);
        let mut buffer = [0; 64];
        let message_with_id = &mut buffer[..message.len()];
        message_with_id.copy_from_slice(message);
        message_with_id[2..4].copy_from_slice(&self.next_id.to_be_bytes());
        for _ in 0..times {
            self.socket.send(message_with_id).expect("it is sent");
            for _ in 0..replies {
                self.socket.recv(&mut [0; 2048]).expect("a reply");
            }
        }
    }
}

fn a_warm_coap_server_allocates_nothing_on(driver: DriverChoice) {
    let config = ServeConfig {
        listen: Vec::new(),
        coap: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        shards: 2,
        driver,
        ..ServeConfig::default()
    };
    let server = Server::bind(config, Routes::new()).expect("a free port and the driver");
    let address = server.addresses()[0];
    thread::spawn(move || server.run().map(drop));
    let client = thread::spawn(move || {
        exclude_this_thread();
        for (kind, message, replies) in COAP_KINDS {
            // Each twice: the second one is a duplicate.
            let settled = run_until_allocation_free(ATTEMPTS, || {
                let mut peers: Vec<_> = (0..8).map(|_| CoapPeer::new(address)).collect();
                peers.iter_mut().for_each(|peer| peer.ask(COAP_FIRST_BLOCK, 1, 1));
                for _ in 0..200 {
                    for peer in &mut peers {
                        peer.ask(message, 2, replies);
                        // Otherwise a receive buffer may overflow.
                        peer.ask(COAP_PING, 1 - replies, 1);
                    }
                }
            });
            if let Err(counts) = settled {
                panic!("{driver:?}, {kind}: {counts:?}");
            }
        }
    });
    client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Row 4.6: no allocation per connection or request, in shards and workers, on either driver. Row 1.1: none per datagram
/// that needs no worker.
#[test]
fn a_warm_server_allocates_nothing() {
    for driver in [DriverChoice::Uring, DriverChoice::Poll] {
        a_warm_server_allocates_nothing_on(driver);
        a_warm_coap_server_allocates_nothing_on(driver);
    }
}
