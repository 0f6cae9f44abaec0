//! A client without manners: one TCP connection, bytes in and bytes out.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::HANG;

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The head with its empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The value of a field, if the head has it.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("the body is text")
    }
}

/// A connection to the server.
pub(crate) struct Peer {
    stream: TcpStream,
    /// Received, but not part of an answer that was taken.
    kept: Vec<u8>,
}

impl Peer {
    /// A connection to `address`.
    pub(crate) fn connect(address: SocketAddr) -> Peer {
        Self::try_connect(address).expect("the server accepts connections")
    }

    /// A connection to `address`, if the system gives one.
    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Peer> {
        Self::over(TcpStream::connect_timeout(&address, HANG)?)
    }

    /// A connection from a source address of the caller's choice.
    #[track_caller]
    pub(crate) fn connect_from(source: Ipv4Addr, address: SocketAddr) -> Peer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((source, 0)).into()).expect("all of 127.0.0.0/8 is ours");
        socket.connect(&address.into()).expect("the server accepts connections");
        Self::over(socket.into()).expect("a socket takes options")
    }

    fn over(stream: TcpStream) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANG))?;
        stream.set_write_timeout(Some(HANG))?;
        Ok(Peer { stream, kept: Vec::new() })
    }

    /// Sends bytes.
    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes bytes");
    }

    /// Sends bytes to a server that may have closed already.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a request and takes its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request);
        self.answer()
    }

    /// Takes the next answer.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
        let mut answer = self.answer_to_head();
        let length = answer.field("Content-Length").map_or(0, |value| value.parse().expect("a length"));
        while self.kept.len() < length {
            assert!(self.receive().expect("the rest of the body") > 0, "the body is cut off: {answer:?}");
        }
        answer.body = self.kept.drain(..length).collect();
        answer
    }

    /// Takes the next answer, which has no body although it may tell a length.
    #[track_caller]
    pub(crate) fn answer_to_head(&mut self) -> Answer {
        let end = loop {
            if let Some(end) = self.kept.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            let seen = self.receive().expect("an answer");
            assert!(
                seen > 0,
                "closed instead of an answer, after {:?}",
                self.kept.escape_ascii().to_string()
            );
        };
        let head = String::from_utf8(self.kept.drain(..end).collect()).expect("a head is text");
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        Answer { status: status.unwrap_or_else(|| panic!("a status line: {head:?}")), head, body: Vec::new() }
    }

    /// Everything until the server closes.
    #[track_caller]
    pub(crate) fn rest(mut self) -> Vec<u8> {
        self.take_rest()
    }

    /// The same, and the connection stays in hand.
    #[track_caller]
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        while self.receive().expect("the end of the connection") > 0 {}
        std::mem::take(&mut self.kept)
    }

    /// What came until the server closed or reset the connection.
    pub(crate) fn whatever_comes(&mut self) -> Vec<u8> {
        while self.receive().is_ok_and(|count| count > 0) {}
        std::mem::take(&mut self.kept)
    }

    /// Whether nothing has come, not even the end.
    pub(crate) fn is_silent(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket can be non-blocking");
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a socket can be blocking");
        self.kept.is_empty() && seen.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits until something has come, be it the end.
    #[track_caller]
    pub(crate) fn wait_for_bytes(&self) {
        self.stream.peek(&mut [0]).expect("something comes");
    }

    /// Ends this side's direction; the other stays.
    pub(crate) fn half_close(&mut self) {
        // A server that has reset the connection leaves nothing to end.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The same connection for another thread to send on.
    pub(crate) fn another_hand(&self) -> Peer {
        Peer { stream: self.stream.try_clone().expect("a descriptor"), kept: Vec::new() }
    }

    /// Goes away with a reset.
    pub(crate) fn reset(self) {
        SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("a socket can linger for nothing");
    }

    /// Bytes that the kernel keeps for this side to read; small values make a server meet resistance.
    pub(crate) fn keep_little(&self, bytes: usize) {
        SockRef::from(&self.stream).set_recv_buffer_size(bytes).expect("a buffer can be small");
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 16 * 1024];
        let count = self.stream.read(&mut bytes)?;
        self.kept.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}
