//! A client of a server that returns each line: connects, exchanges one line, closes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::HANG_TIMEOUT;

/// Connects, exchanges one line and closes. Returns the time from the start of the connect to the answer.
///
/// # Errors
/// The system's error, `TimedOut` or `WouldBlock` after [`HANG_TIMEOUT`], or `InvalidData` if the answer is another one.
pub fn exchange(server: SocketAddr, line: &str) -> io::Result<Duration> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect_timeout(&server, HANG_TIMEOUT)?;
    stream.set_read_timeout(Some(HANG_TIMEOUT))?;
    let line = format!("{line}\n");
    stream.write_all(line.as_bytes())?;
    let mut answer = vec![0; line.len()];
    stream.read_exact(&mut answer)?;
    if answer != line.as_bytes() {
        return Err(io::Error::new(ErrorKind::InvalidData, answer.escape_ascii().to_string()));
    }
    Ok(begin.elapsed())
}
