//! Clients that publish during hand-overs and notice nothing but reconnects.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{HANG_TIMEOUT, TestPeer, binary, eventually};

/// Maximum unacknowledged messages of a NATS publisher.
const WINDOW: u64 = 16;

const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Interval between messages of a sender without answers.
const PACE: Duration = Duration::from_millis(2);

pub(super) fn stored(data: &Path, stream: &str) -> BTreeMap<String, u32> {
    let mut command = binary();
    command.args(["journal", "cat"]).arg(data.join(stream));
    let outcome = command.output().expect("the binary starts");
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    let mut found = BTreeMap::new();
    for line in String::from_utf8_lossy(&outcome.stdout).lines() {
        let word = line.rsplit(' ').next().expect("a line has a word");
        *found.entry(word.to_owned()).or_insert(0) += 1;
    }
    found
}

/// Checks that exactly these messages are stored, each once: `count` per name, numbered from 0.
#[track_caller]
pub(super) fn expect_stored_once(data: &Path, sent: &[(&str, u64)]) {
    let mut found = stored(data, "events");
    for (name, count) in sent {
        assert!(*count > 0, "{name} has sent nothing");
        let is_missing = |number: &u64| found.get(&format!("{name}-{number}")) != Some(&1);
        let wrong: Vec<u64> = (0..*count).filter(is_missing).collect();
        assert!(
            wrong.is_empty(),
            "of {count} of {name}, not stored once: {} {:?}",
            wrong.len(),
            wrong.first()
        );
        found.retain(|word, _| !word.starts_with(&format!("{name}-")));
    }
    assert!(found.is_empty(), "nobody has sent {:?}", found.first_key_value());
}

/// Publishes over NATS with message ids until `done`. Unacknowledged messages of an ended connection are sent again
/// over the next one. Returns the number of acknowledged messages: all published ones.
pub(super) fn nats(to: SocketAddr, name: &str, done: &AtomicBool) -> u64 {
    LoadPublisher::new(to, name).run(done)
}

/// A NATS publisher to the stream `events`.
pub(super) struct LoadPublisher<'a> {
    to: SocketAddr,
    name: &'a str,
    survives_outages: bool,
    /// Counter of refusals; without it none is allowed.
    refusals: Option<&'a AtomicU64>,
    next: u64,
    pending: Vec<u64>,
}

impl<'a> LoadPublisher<'a> {
    pub(super) fn new(to: SocketAddr, name: &'a str) -> LoadPublisher<'a> {
        LoadPublisher { to, name, survives_outages: false, refusals: None, next: 0, pending: Vec::new() }
    }

    pub(super) fn surviving_outages(self) -> LoadPublisher<'a> {
        LoadPublisher { survives_outages: true, ..self }
    }

    /// Counts retryable refusals, and publishes the refused messages again.
    pub(super) fn counting_refusals(self, refusals: &'a AtomicU64) -> LoadPublisher<'a> {
        LoadPublisher { refusals: Some(refusals), ..self }
    }

    /// Publishes until `done`, and returns the number of acknowledged messages: all.
    pub(super) fn run(mut self, done: &AtomicBool) -> u64 {
        loop {
            let stream = if self.survives_outages {
                eventually("a server listens", || TcpStream::connect_timeout(&self.to, HANG_TIMEOUT).ok())
            } else {
                TcpStream::connect_timeout(&self.to, HANG_TIMEOUT).expect("a server listens")
            };
            stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes a timeout");
            let mut writer = stream.try_clone().expect("a descriptor");
            // A connection may end in any way; a server without an answer is an error.
            match self.publish(BufReader::new(stream), &mut writer, done) {
                Ok(()) => return self.next,
                Err(error) => {
                    assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "{}: no answer", self.name);
                }
            }
        }
    }

    /// A publication, with its number in reply subject, id and payload.
    fn message(&self, number: u64) -> String {
        let name = self.name;
        let (headers, payload) =
            (format!("NATS/1.0\r\nNats-Msg-Id: {name}-{number}\r\n\r\n"), format!("{name}-{number}"));
        let (size, total) = (headers.len(), headers.len() + payload.len());
        format!("HPUB events.{name} in.{name}.{number} {size} {total}\r\n{headers}{payload}\r\n")
    }

    fn publish(
        &mut self,
        mut reader: BufReader<TcpStream>,
        writer: &mut TcpStream,
        done: &AtomicBool,
    ) -> std::io::Result<()> {
        let name = self.name;
        let mut line = || {
            let mut line = String::new();
            match reader.read_line(&mut line)? {
                0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
                _ => Ok::<String, std::io::Error>(line.trim_end().to_owned()),
            }
        };
        line()?;
        writer.write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\nPING\r\n")?;
        while line()? != "PONG" {}
        writer.write_all(format!("SUB in.{name}.* 1\r\n").as_bytes())?;
        let again: String = self.pending.iter().map(|number| self.message(*number)).collect();
        writer.write_all(again.as_bytes())?;
        loop {
            let is_done = done.load(Ordering::Acquire);
            let end = self.next + WINDOW - self.pending.len() as u64;
            let more: Vec<u64> = (self.next..end).filter(|_| !is_done).collect();
            self.next += more.len() as u64;
            self.pending.extend(&more);
            // PINGs in between, without waiting for their answers.
            let text: String = more.into_iter().map(|number| self.message(number) + "PING\r\n").collect();
            writer.write_all(text.as_bytes())?;
            if self.pending.is_empty() {
                return Ok(());
            }
            let head = line()?;
            if head == "PING" {
                writer.write_all(b"PONG\r\n")?;
            }
            let Some(place) = head.strip_prefix("MSG ") else {
                assert!(!head.starts_with("-ERR"), "{name}: {head}");
                continue;
            };
            let answer = line()?;
            let number = place.split([' ', '.']).nth(2).and_then(|number| number.parse().ok());
            let number: u64 = number.expect("the reply subject ends with a number");
            if let Some(refusals) = self.refusals.filter(|_| answer.contains("\"error\"")) {
                let is_retryable = answer.contains("\"code\":503") && answer.contains("\"err_code\":10023");
                assert!(is_retryable, "{name}: {answer}");
                refusals.fetch_add(1, Ordering::AcqRel);
                thread::park_timeout(RETRY_PAUSE);
                writer.write_all(self.message(number).as_bytes())?;
                continue;
            }
            assert!(answer.contains("\"seq\":") && !answer.contains("\"error\""), "{name}: {answer}");
            self.pending.retain(|other| *other != number);
            thread::park_timeout(Duration::from_micros(200));
        }
    }
}

/// Publishes over HTTP, with a connection per message: none may fail. Returns the number of messages.
pub(super) fn http(to: SocketAddr, name: &str, done: &AtomicBool) -> u64 {
    let mut next = 0;
    while !done.load(Ordering::Acquire) {
        let body = format!("{name}-{next}");
        let head = format!("POST /publish/events.{name} HTTP/1.1\r\nHost: a\r\nNats-Msg-Id: {body}\r\n");
        let request = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        let answer = TestPeer::connect(to).ask(request);
        assert_eq!(answer.status, 200, "{name}-{next}: {}", answer.text());
        next += 1;
    }
    next
}

/// Sends requests that need no hub, with a connection each: none may fail.
pub(super) fn requests(to: SocketAddr, done: &AtomicBool) -> u64 {
    let mut count = 0;
    while !done.load(Ordering::Acquire) {
        assert_eq!(TestPeer::connect(to).ask(super::FAST).status, 200);
        count += 1;
        thread::park_timeout(PACE);
    }
    count
}

pub(super) fn udp(to: SocketAddr, name: &str, done: &AtomicBool) -> u64 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    until(done, |number| {
        socket.send_to(format!("<13>host app: {name}-{number}").as_bytes(), to).expect("it is sent");
    })
}

pub(super) fn unix(to: &Path, name: &str, done: &AtomicBool) -> u64 {
    let socket = UnixDatagram::unbound().expect("a socket");
    until(done, |number| {
        socket.send_to(format!("<13>app: {name}-{number}").as_bytes(), to).expect("a server reads there");
    })
}

/// Sends syslog to a Unix socket as the C library does: connected, and connected again after an error.
pub(super) fn connected_unix(to: &Path, name: &str, done: &AtomicBool) -> u64 {
    let connect = || {
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.connect(to).expect("a server reads there");
        socket
    };
    let mut socket = connect();
    until(done, |number| {
        let text = format!("<13>app: {name}-{number}");
        if socket.send(text.as_bytes()).is_err() {
            socket = connect();
            socket.send(text.as_bytes()).expect("a server reads there");
        }
    })
}

/// Sends syslog over TCP, and connects again when the server has closed its side.
pub(super) fn tcp(to: SocketAddr, name: &str, done: &AtomicBool) -> u64 {
    let mut stream: Option<TcpStream> = None;
    let count = until(done, |number| {
        let is_over = stream.as_mut().is_none_or(|stream| {
            stream.set_nonblocking(true).expect("a socket takes options");
            let is_over = matches!(stream.read(&mut [0]), Ok(0));
            stream.set_nonblocking(false).expect("a socket takes options");
            is_over
        });
        if is_over {
            stream = Some(TcpStream::connect_timeout(&to, HANG_TIMEOUT).expect("a server listens"));
        }
        let stream = stream.as_mut().expect("just connected");
        stream.write_all(format!("<13>host app: {name}-{number}\n").as_bytes()).expect("it is sent");
    });
    if let Some(mut stream) = stream {
        stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
        let _ = stream.read(&mut [0]);
    }
    count
}

fn until(done: &AtomicBool, mut send: impl FnMut(u64)) -> u64 {
    let mut count = 0;
    while !done.load(Ordering::Acquire) {
        send(count);
        count += 1;
        thread::park_timeout(PACE);
    }
    count
}
