//! A raw test client for every server: one TCP connection, bytes in and bytes out, and just enough HTTP to parse a
//! response. It shares no code with the servers it tests.
//!
//! Waits end with a condition, not after a fixed time; [`HANG_TIMEOUT`] only limits them. Every method panics at the
//! caller's line when the server misbehaves.
//!
//! Also: [`allocations`], a counting allocator; [`line_client`], one exchange with an echo server; [`nats`], scripted and
//! fake NATS servers; [`network`], two network namespaces of a test's own; [`syn_flood`], connection requests without
//! clients.
#![deny(unsafe_code)]

pub mod allocations;

pub mod line_client;

pub mod nats;

pub mod network;

pub mod syn_flood;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

/// Time after which a wait counts as a hang.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls until `condition` returns a value, and returns it.
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(started.elapsed() < HANG_TIMEOUT, "timed out waiting for: {what}");
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// An HTTP response.
#[derive(Debug)]
pub struct TestResponse {
    /// The status code.
    pub status: u16,
    /// The head with its empty line.
    pub head: String,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl TestResponse {
    /// Returns the value of a field, if present.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the body as text.
    #[must_use]
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// Returns the body as owned text.
    #[must_use]
    #[track_caller]
    pub fn into_text(self) -> String {
        String::from_utf8(self.body).expect("the body is text")
    }
}

/// A connection to the server.
#[derive(Debug)]
pub struct TestPeer {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl TestPeer {
    /// Connects to `address`.
    #[track_caller]
    pub fn connect(address: SocketAddr) -> TestPeer {
        Self::try_connect(address).expect("the server accepts connections")
    }

    /// Connects to `address`.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_connect(address: SocketAddr) -> io::Result<TestPeer> {
        Self::from_stream(TcpStream::connect_timeout(&address, HANG_TIMEOUT)?)
    }

    /// Connects from the given source address.
    #[track_caller]
    pub fn connect_from(source: Ipv4Addr, address: SocketAddr) -> TestPeer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((source, 0)).into()).expect("all of 127.0.0.0/8 is ours");
        socket.connect(&address.into()).expect("the server accepts connections");
        Self::from_stream(socket.into()).expect("a socket takes options")
    }

    /// Connects with a small receive buffer, so that the server soon meets backpressure.
    #[track_caller]
    pub fn connect_with_small_buffer(address: SocketAddr) -> TestPeer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a buffer can be small");
        socket.connect(&address.into()).expect("the server accepts connections");
        Self::from_stream(socket.into()).expect("a socket takes options")
    }

    fn from_stream(stream: TcpStream) -> io::Result<TestPeer> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANG_TIMEOUT))?;
        stream.set_write_timeout(Some(HANG_TIMEOUT))?;
        Ok(TestPeer { stream, buffer: Vec::new() })
    }

    /// Sends bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server accepts bytes");
    }

    /// Sends bytes to a server that may have closed; false if it has.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a request and reads its response.
    #[track_caller]
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> TestResponse {
        self.send(request);
        self.answer()
    }

    /// Reads the next response with its body, in any framing.
    #[track_caller]
    pub fn answer(&mut self) -> TestResponse {
        let mut answer = self.head();
        let bodiless = answer.status < 200 || answer.status == 204 || answer.status == 304;
        if bodiless {
            return answer;
        }
        if answer.field("Transfer-Encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body.extend(chunk);
            }
        } else if let Some(length) = answer.field("Content-Length") {
            let length = length.parse().expect("a length");
            answer.body = self.read_exactly(length);
        } else {
            answer.body = self.rest();
        }
        answer
    }

    /// Reads the next head; leaves a body unread.
    #[track_caller]
    pub fn head(&mut self) -> TestResponse {
        let head = String::from_utf8(self.read_until(b"\r\n\r\n")).expect("a head is text");
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        TestResponse {
            status: status.unwrap_or_else(|| panic!("a status line: {head:?}")),
            head,
            body: Vec::new(),
        }
    }

    /// Reads the next chunk; `None` for the last chunk, together with its empty trailer section.
    #[track_caller]
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = String::from_utf8(self.read_until(b"\r\n")).expect("a chunk's line is text");
        let size = usize::from_str_radix(line.trim_end(), 16).expect("a chunk's size");
        let chunk = self.read_exactly(size);
        assert_eq!(self.read_exactly(2), b"\r\n");
        (size > 0).then_some(chunk)
    }

    /// Reads the next line, without its CR LF.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let line = String::from_utf8(self.read_until(b"\r\n")).expect("a line is text");
        line.trim_end_matches("\r\n").to_owned()
    }

    #[track_caller]
    fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut searched = 0;
        loop {
            let from: usize = searched;
            if let Some(at) = self.buffer[from..].windows(end.len()).position(|window| window == end) {
                return self.buffer.drain(..from + at + end.len()).collect();
            }
            searched = self.buffer.len().saturating_sub(end.len());
            let seen = self.receive().expect("more of an answer");
            assert!(
                seen > 0,
                "closed instead of an answer, after {:?}",
                self.buffer.escape_ascii().to_string()
            );
        }
    }

    /// Reads exactly `count` bytes.
    #[track_caller]
    pub fn read_exactly(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            let seen = self.receive().expect("the rest of the body");
            assert!(seen > 0, "closed after {} of {count} bytes", self.buffer.len());
        }
        self.buffer.drain(..count).collect()
    }

    /// Reads what has arrived, at least one byte.
    #[track_caller]
    pub fn read_some(&mut self) -> Vec<u8> {
        if self.buffer.is_empty() {
            assert!(self.receive().expect("more bytes") > 0, "closed instead of more bytes");
        }
        std::mem::take(&mut self.buffer)
    }

    /// Reads everything until the server closes cleanly.
    #[track_caller]
    pub fn rest(&mut self) -> Vec<u8> {
        while self.receive().expect("the end of the connection") > 0 {}
        std::mem::take(&mut self.buffer)
    }

    /// Reads everything until the server closes or resets the connection.
    pub fn read_until_closed(&mut self) -> Vec<u8> {
        while self.receive().is_ok_and(|count| count > 0) {}
        std::mem::take(&mut self.buffer)
    }

    /// Whether nothing has been received, not even the end.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket can be non-blocking");
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a socket can be blocking");
        self.buffer.is_empty() && seen.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits for input or the end of the connection.
    #[track_caller]
    pub fn wait_for_bytes(&self) {
        self.stream.peek(&mut [0]).expect("something comes");
    }

    /// Shuts down the sending direction.
    pub fn half_close(&self) {
        // Fails if the server has reset the connection.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Returns a second handle to the connection, for another thread to send with.
    #[must_use]
    #[track_caller]
    pub fn clone_writer(&self) -> TestPeer {
        TestPeer { stream: self.stream.try_clone().expect("a descriptor"), buffer: Vec::new() }
    }

    /// Resets the connection.
    pub fn reset(self) {
        SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("a socket can linger for nothing");
    }

    /// Limits the receive buffer; a small one causes backpressure in the server.
    pub fn shrink_receive_buffer(&self, bytes: usize) {
        SockRef::from(&self.stream).set_recv_buffer_size(bytes).expect("a buffer can be small");
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 16 * 1024];
        let count = loop {
            match self.stream.read(&mut bytes) {
                // The system does not restart a read with a timeout.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}
