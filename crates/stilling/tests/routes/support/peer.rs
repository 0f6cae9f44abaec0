//! A client without manners: one TCP connection, bytes in and bytes out.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
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
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body as text.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }
}

/// A connection to the server.
pub(crate) struct Peer {
    stream: TcpStream,
    /// Received, but not part of an answer that was taken.
    kept: Vec<u8>,
}

impl Peer {
    pub(crate) fn connect(address: SocketAddr) -> Peer {
        Self::over(TcpStream::connect_timeout(&address, HANG).expect("the server accepts connections"))
    }

    /// A connection for whose peer the system keeps few bytes: a server meets resistance at once.
    pub(crate) fn connect_small(address: SocketAddr) -> Peer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a buffer can be small");
        socket.connect(&address.into()).expect("the server accepts connections");
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Peer {
        stream.set_nodelay(true).expect("a socket takes options");
        stream.set_read_timeout(Some(HANG)).expect("a socket takes options");
        stream.set_write_timeout(Some(HANG)).expect("a socket takes options");
        Peer { stream, kept: Vec::new() }
    }

    /// Sends bytes.
    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes bytes");
    }

    /// Sends a request and takes its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request);
        self.answer()
    }

    /// Takes the next answer with its body, however it is framed.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
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
            answer.body = self.exactly(length);
        } else {
            answer.body = self.rest();
        }
        answer
    }

    /// Takes the next head; its body is left where it is.
    #[track_caller]
    pub(crate) fn head(&mut self) -> Answer {
        let head = String::from_utf8(self.until(b"\r\n\r\n")).expect("a head is text");
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        Answer { status: status.unwrap_or_else(|| panic!("a status line: {head:?}")), head, body: Vec::new() }
    }

    /// Takes the next chunk; `None` is the last one, whose empty trailer section is taken too.
    #[track_caller]
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = String::from_utf8(self.until(b"\r\n")).expect("a chunk's line is text");
        let size = usize::from_str_radix(line.trim_end(), 16).expect("a chunk's size");
        let chunk = self.exactly(size);
        assert_eq!(self.exactly(2), b"\r\n");
        (size > 0).then_some(chunk)
    }

    /// Takes bytes until they end in `end`.
    #[track_caller]
    fn until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut looked = 0;
        loop {
            let from: usize = looked;
            if let Some(at) = self.kept[from..].windows(end.len()).position(|window| window == end) {
                return self.kept.drain(..from + at + end.len()).collect();
            }
            looked = self.kept.len().saturating_sub(end.len());
            let seen = self.receive().expect("more of an answer");
            assert!(seen > 0, "closed too early, after {:?}", self.kept.escape_ascii().to_string());
        }
    }

    /// Takes so many bytes.
    #[track_caller]
    pub(crate) fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.kept.len() < count {
            let seen = self.receive().expect("the rest of the body");
            assert!(seen > 0, "closed after {} of {count} bytes", self.kept.len());
        }
        self.kept.drain(..count).collect()
    }

    /// Everything until the server closes in good order.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
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

    /// Ends this side's direction; the other stays.
    pub(crate) fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).expect("the connection is up");
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

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 16 * 1024];
        let count = loop {
            match self.stream.read(&mut bytes) {
                // A read with a timeout is not begun again by the system.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.kept.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}
