//! TCP clients that never read, send oversize requests, or open more connections than the server has descriptors.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const UNREAD: usize = 20;

/// Silent connections at once, more than the server has descriptors.
const SILENT: usize = 700;

/// Time between two rounds of each kind.
const PAUSE: Duration = Duration::from_millis(20);

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of an oversize head, beyond the default of 16 KiB.
const HEAD: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct HostileCounts {
    /// Connections blocked for further requests because their responses are not read, or closed by the server.
    pub(super) unread: AtomicU64,
    /// Oversize requests answered with 413 or 431.
    pub(super) refused: AtomicU64,
    /// Silent connections open at once beyond the server's descriptors.
    pub(super) beyond_limits: AtomicU64,
}

impl HostileCounts {
    pub(super) fn never_read(&self, to: SocketAddr, over: &AtomicBool) {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {to}\r\n\r\n").repeat(50);
        let mut open: Vec<TcpStream> = Vec::new();
        while !over.load(Relaxed) {
            open.retain_mut(|stream| match stream.write(request.as_bytes()) {
                Ok(_) => true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                // The server has closed the full connection.
                Err(_) => {
                    self.unread.fetch_add(1, Relaxed);
                    false
                }
            });
            while open.len() < UNREAD {
                let Ok(stream) = TcpStream::connect(to) else { break };
                if stream.set_nonblocking(true).is_err() {
                    break;
                }
                open.push(stream);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends oversize heads and announces oversize bodies.
    pub(super) fn oversize(&self, to: SocketAddr, over: &AtomicBool) {
        let head = format!("GET /test/fast HTTP/1.1\r\nHost: {to}\r\nX: {}\r\n\r\n", "x".repeat(HEAD));
        let body = format!("POST /test/fast HTTP/1.1\r\nHost: {to}\r\nContent-Length: 99999999999\r\n\r\n");
        let mut turn = 0;
        while !over.load(Relaxed) {
            let request = [&head, &body][turn % 2];
            turn += 1;
            if let Ok(true) = is_refused(to, request) {
                self.refused.fetch_add(1, Relaxed);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Keeps more silent connections than the server has descriptors, and replaces those that it closes.
    pub(super) fn exhaust(&self, to: SocketAddr, over: &AtomicBool) {
        let mut open: Vec<TcpStream> = Vec::new();
        while !over.load(Relaxed) {
            open.retain_mut(|stream| {
                matches!(stream.read(&mut [0; 512]), Err(error) if error.kind() == ErrorKind::WouldBlock)
            });
            for _ in open.len()..SILENT {
                let Ok(stream) = TcpStream::connect(to) else { break };
                if stream.set_nonblocking(true).is_err() || over.load(Relaxed) {
                    break;
                }
                open.push(stream);
            }
            let beyond_limits = open.len().saturating_sub(super::DESCRIPTORS as usize);
            self.beyond_limits.fetch_max(beyond_limits as u64, Relaxed);
            std::thread::sleep(PAUSE);
        }
    }
}

/// Sends an oversize request; returns whether it is answered as such.
fn is_refused(to: SocketAddr, request: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    // The server may close before it has received the whole head.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    Ok([b"HTTP/1.1 413", b"HTTP/1.1 431"].contains(&&answer))
}
