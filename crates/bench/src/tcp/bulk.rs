//! Bulk data over one connection in one direction.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::TcpReport;
use crate::statistics::histogram;

/// Bytes after which the bulk data repeats.
pub const BULK_PATTERN_SIZE: usize = 256;

/// Bytes of one send and of one receive.
const CHUNK: usize = 256 * 1024;

/// Digits of a server's count of bytes.
const COUNT_SIZE_MAX: u64 = 32;

/// The bytes 0 to 255, again and again.
#[must_use]
pub fn bulk_pattern(size: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(size).collect()
}

/// Sends to a server that reads everything and then writes the number of its bytes, for a time.
///
/// # Errors
/// If the connection breaks.
pub fn send(to: SocketAddr, span: Duration, timeout: Duration) -> Result<TcpReport, String> {
    let mut stream = connect(to, timeout)?;
    let chunk = bulk_pattern(CHUNK);
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < span {
        stream.write_all(&chunk).map_err(|error| format!("send: {error}"))?;
        bytes += chunk.len() as u64;
    }
    stream.shutdown(Shutdown::Write).map_err(|error| format!("shutdown: {error}"))?;
    let mut answer = String::new();
    let read = stream.take(COUNT_SIZE_MAX).read_to_string(&mut answer);
    read.map_err(|error| format!("receive: {error}"))?;
    let mut report = TcpReport::of(start.elapsed(), 0, bytes, &histogram());
    if answer.trim().parse() != Ok(bytes) {
        report.failures = 1;
        report.evidence = Some(format!("the server counted {:?} of {bytes} bytes", answer.trim()));
    }
    Ok(report)
}

/// Receives from a server that writes the pattern, for a time.
///
/// # Errors
/// If the connection breaks.
pub fn receive(to: SocketAddr, span: Duration, timeout: Duration) -> Result<TcpReport, String> {
    let mut stream = connect(to, timeout)?;
    let expected = bulk_pattern(CHUNK + BULK_PATTERN_SIZE);
    let mut buffer = vec![0; CHUNK];
    let start = Instant::now();
    let mut bytes = 0;
    let mut evidence = None;
    while start.elapsed() < span && evidence.is_none() {
        match stream.read(&mut buffer) {
            Ok(0) => evidence = Some(format!("closed after {bytes} bytes")),
            Ok(count) => {
                let offset = bytes as usize % BULK_PATTERN_SIZE;
                if expected[offset..offset + count] != buffer[..count] {
                    evidence = Some(format!("wrong bytes after {bytes}"));
                }
                bytes += count as u64;
            }
            Err(error) => evidence = Some(format!("receive: {error}")),
        }
    }
    let report = TcpReport::of(start.elapsed(), 0, bytes, &histogram());
    Ok(TcpReport { failures: u64::from(evidence.is_some()), evidence, ..report })
}

fn connect(to: SocketAddr, timeout: Duration) -> Result<TcpStream, String> {
    let stream = TcpStream::connect_timeout(&to, timeout).map_err(|error| format!("connect: {error}"))?;
    let set = stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)));
    set.map(|()| stream).map_err(|error| format!("setsockopt: {error}"))
}
