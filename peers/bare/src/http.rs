//! Answers every GET with an empty 200: one read, a search for blank lines, one write.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use memchr::memmem::Finder;

use crate::PeerResult;
use crate::net::{self, PeerConnection, PeerService};

/// Seconds after which a connection is accepted without data: Stilling's own value.
const DEFER_ACCEPT_SECONDS: u32 = 1;

const BLANK_LINE: &[u8] = b"\r\n\r\n";
const CONNECTION: &[u8] = b"connection:";

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const OK_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
/// For an HTTP/1.0 client that requests a persistent connection.
const OK_KEEP_ALIVE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n";

/// Serves with `threads` threads, each with its own listener on the same port.
pub(crate) fn run(address: SocketAddr, threads: usize) -> PeerResult {
    let first = net::listen(address, Some(DEFER_ACCEPT_SECONDS))?;
    let address = first.local_addr()?;
    let mut listeners = vec![first];
    for _ in 1..threads {
        listeners.push(net::listen(address, Some(DEFER_ACCEPT_SECONDS))?);
    }
    net::announce("http", &listeners[0])?;
    let (sender, ended) = mpsc::channel();
    for listener in listeners {
        let sender = sender.clone();
        thread::spawn(move || sender.send(net::serve(&listener, &mut HttpService::new())));
    }
    ended.recv()??;
    Ok(())
}

struct HttpService {
    blank_line: Finder<'static>,
    /// The answers to the requests of one read.
    answers: Vec<u8>,
}

impl HttpService {
    fn new() -> HttpService {
        HttpService { blank_line: Finder::new(BLANK_LINE), answers: Vec::new() }
    }
}

impl PeerService for HttpService {
    fn receive(&mut self, connection: &mut PeerConnection, input: &[u8]) -> Option<usize> {
        self.answers.clear();
        let (mut consumed, mut closes) = (0, false);
        while !closes && let Some(size) = self.blank_line.find(&input[consumed..]) {
            let answer = answer(&input[consumed..consumed + size])?;
            self.answers.extend_from_slice(answer);
            consumed += size + BLANK_LINE.len();
            closes = answer == OK_CLOSE;
        }
        connection.send(&self.answers).ok()?;
        (!closes).then_some(consumed)
    }
}

/// Returns the answer to a request with this head; `None`: not a GET of HTTP/1.1 or 1.0.
fn answer(head: &[u8]) -> Option<&'static [u8]> {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let request = lines.next().filter(|request| request.starts_with(b"GET "))?;
    let option = lines.find_map(connection_option).unwrap_or_default();
    if request.ends_with(b" HTTP/1.1") {
        Some(if option.eq_ignore_ascii_case(b"close") { OK_CLOSE } else { OK })
    } else if request.ends_with(b" HTTP/1.0") {
        Some(if option.eq_ignore_ascii_case(b"keep-alive") { OK_KEEP_ALIVE } else { OK_CLOSE })
    } else {
        None
    }
}

fn connection_option(line: &[u8]) -> Option<&[u8]> {
    let (name, value) = line.split_at_checked(CONNECTION.len())?;
    if name.eq_ignore_ascii_case(CONNECTION) { Some(value.trim_ascii()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_the_connection_as_requested() {
        let check = |head: &str, expected: Option<&[u8]>| {
            assert_eq!(answer(head.as_bytes()), expected, "{head:?}");
        };
        check("GET / HTTP/1.1\r\nHost: a", Some(OK));
        check("GET / HTTP/1.1\r\nHost: a\r\nconnection:  Close ", Some(OK_CLOSE));
        check("GET / HTTP/1.1\r\nConnection: keep-alive", Some(OK));
        check("GET / HTTP/1.0", Some(OK_CLOSE));
        check("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: a", Some(OK_KEEP_ALIVE));
        for head in ["", "GET", "GET / HTTP/2", "POST / HTTP/1.1\r\nHost: a", "\r\nGET / HTTP/1.1"] {
            check(head, None);
        }
    }
}
