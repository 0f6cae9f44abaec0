//! One connection with at most one message in flight, which the server must send back.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A connection and the message that it waits for.
pub(super) struct EchoConnection {
    pub(super) stream: TcpStream,
    message: Vec<u8>,
    /// Bytes of the answer so far.
    received: usize,
    pub(super) started: Instant,
}

/// State of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Complete,
    Partial,
}

impl EchoConnection {
    pub(super) fn open(to: SocketAddr, size: usize, timeout: Duration) -> Result<EchoConnection, String> {
        let started = Instant::now();
        let stream = TcpStream::connect_timeout(&to, timeout).map_err(|error| format!("connect: {error}"))?;
        EchoConnection::with_stream(stream, size, started)
    }

    /// A connection on an open stream.
    pub(super) fn with_stream(
        stream: TcpStream,
        size: usize,
        started: Instant,
    ) -> Result<EchoConnection, String> {
        stream.set_nodelay(true).map_err(|error| format!("setsockopt: {error}"))?;
        Ok(EchoConnection { stream, message: vec![0; size], received: size, started })
    }

    /// Sends the message with this number.
    pub(super) fn send(&mut self, number: u64) -> Result<(), String> {
        fill(&mut self.message, number);
        self.received = 0;
        // At most `EXCHANGE_SIZE_MAX` bytes, which an empty send buffer takes.
        self.stream.write_all(&self.message).map_err(|error| format!("send: {error}"))
    }

    /// Reads what is there and compares it.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<Answer, String> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(format!("closed after {} bytes of an answer", self.received)),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Answer::Partial),
            Err(error) => return Err(format!("receive: {error}")),
        };
        let end = self.received + count;
        if self.message.get(self.received..end) != Some(&buffer[..count]) {
            return Err(format!("wrong bytes after {} of an answer", self.received));
        }
        self.received = end;
        Ok(if end == self.message.len() { Answer::Complete } else { Answer::Partial })
    }

    /// One whole exchange on a blocking stream.
    pub(super) fn exchange(&mut self, number: u64, buffer: &mut [u8]) -> Result<(), String> {
        self.send(number)?;
        loop {
            match self.receive(buffer)? {
                Answer::Complete => return Ok(()),
                Answer::Partial if self.received == 0 => return Err("timeout of an answer".to_owned()),
                Answer::Partial => {}
            }
        }
    }
}

/// Fills a message with bytes that no other message of the run has.
fn fill(message: &mut [u8], number: u64) {
    for (place, byte) in message.chunks_mut(8).zip(number..) {
        let bytes = byte.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        place.copy_from_slice(&bytes[..place.len()]);
    }
}
