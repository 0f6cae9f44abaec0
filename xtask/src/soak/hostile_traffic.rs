//! Hostile clients: connections reset at every stage, and connections that send a byte now and then.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use socket2::SockRef;

const RESET_PAUSE: Duration = Duration::from_millis(10);

const TRICKLING: usize = 100;

/// Time between two bytes of each.
const TRICKLE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct HostileTraffic {
    pub(super) resets: AtomicU64,
    /// Connections with trickling bytes.
    pub(super) trickled: AtomicU64,
    /// Of these, connections closed by the server.
    pub(super) ended: AtomicU64,
    /// Attempts to connect that failed.
    pub(super) refused: AtomicU64,
}

/// Bytes sent before a reset: from nothing to more than the server ever reads.
fn opening_requests(host: SocketAddr) -> [String; 5] {
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    [
        String::new(),
        "GET /test/fast HTTP/1.1\r\nHost".to_owned(),
        ask("/test/slow"),
        ask("/test/fast").repeat(8),
        ask("/test/slow").repeat(3),
    ]
}

impl HostileTraffic {
    /// Resets connections at every stage until `over`.
    pub(super) fn reset(&self, to: SocketAddr, over: &AtomicBool) {
        let opening_requests = opening_requests(to);
        let mut turn = 0_u64;
        while !over.load(Relaxed) {
            turn += 1;
            if self.reset_one(to, &opening_requests[turn as usize % opening_requests.len()], turn).is_err() {
                self.refused.fetch_add(1, Relaxed);
            }
            std::thread::sleep(RESET_PAUSE);
        }
    }

    fn reset_one(&self, to: SocketAddr, opening: &str, turn: u64) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(to)?;
        stream.write_all(opening.as_bytes())?;
        if turn.is_multiple_of(3) {
            // Some connections are reset during processing, others before the server reads them.
            std::thread::sleep(Duration::from_millis(turn % 40));
        }
        // No lingering: the close is a reset.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        drop(stream);
        self.resets.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Keeps connections with heads that arrive byte by byte and never end, until `over`.
    pub(super) fn trickle(&self, to: SocketAddr, over: &AtomicBool) {
        let mut open: Vec<TcpStream> = Vec::new();
        while !over.load(Relaxed) {
            open.retain_mut(|stream| {
                let stays = send_byte(stream);
                self.ended.fetch_add(u64::from(!stays), Relaxed);
                stays
            });
            while open.len() < TRICKLING {
                match start_trickling(to) {
                    Ok(stream) => open.push(stream),
                    Err(_) => {
                        self.refused.fetch_add(1, Relaxed);
                        break;
                    }
                }
                self.trickled.fetch_add(1, Relaxed);
            }
            std::thread::sleep(TRICKLE_PAUSE);
        }
    }
}

fn start_trickling(to: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(b"GET /test/fast HTTP/1.1\r\nX: ")?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Sends another byte; false when the server has closed the connection.
fn send_byte(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 512];
    loop {
        match stream.read(&mut answer) {
            // A response before the close reports the timeout.
            Ok(count) if count > 0 => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            _ => return false,
        }
    }
    stream.write_all(b"x").is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_reset_is_not_an_orderly_close() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hostile_traffic = HostileTraffic::default();
        hostile_traffic.reset_one(listener.local_addr().unwrap(), "", 1).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(hostile_traffic.resets.load(Relaxed), 1);
    }

    #[test]
    fn a_trickling_connection_notices_that_it_was_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut foe = start_trickling(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert!(send_byte(&mut foe));
        let mut received = Vec::new();
        while !received.ends_with(b"X: x") {
            let mut piece = [0; 64];
            let count = server.read(&mut piece).unwrap();
            received.extend_from_slice(&piece[..count]);
        }
        drop(server);
        // The close may take a moment to arrive; until then another byte is sent.
        let mut bytes = 0;
        while send_byte(&mut foe) {
            bytes += 1;
            assert!(bytes < 10_000_000, "the end never came");
        }
    }
}
