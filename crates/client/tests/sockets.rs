//! Publishing over a Unix socket.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;

use stilling_client::{PublishOutcome, Publisher, PublisherConfig};

#[test]
fn a_unix_socket_is_as_good_as_any() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nats");
    let listener = UnixListener::bind(&path).expect("a socket can be there");
    let server = format!("unix://{}", path.display()).parse().expect("an address");
    let publisher = Publisher::new(PublisherConfig { servers: vec![server], ..PublisherConfig::default() })
        .expect("it can work");
    let ticket = publisher.submit("events.a", b"x");
    let (stream, _) = listener.accept().expect("it connects");
    let (mut out, mut lines) = (stream.try_clone().expect("a descriptor"), BufReader::new(stream).lines());
    let mut line = || lines.next().expect("a line").expect("it is text");
    write!(out, "INFO {}\r\n", stilling_probe::nats::INFO).expect("it listens");
    assert!(line().starts_with("CONNECT "));
    assert_eq!(line(), "PING");
    write!(out, "PONG\r\n").expect("it listens");
    assert!(line().starts_with("SUB _INBOX."));
    let publication = line();
    let reply = publication.split(' ').nth(2).expect("a reply").to_owned();
    let json = stilling_probe::nats::acknowledgement(1, false);
    write!(out, "MSG {reply} 1 {}\r\n{json}\r\n", json.len()).expect("it listens");
    let outcome = ticket.wait(stilling_probe::HANG_TIMEOUT);
    assert!(matches!(outcome, Some(PublishOutcome::Delivered { sequence: 1, .. })), "{outcome:?}");
}
