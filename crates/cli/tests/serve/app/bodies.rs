//! Bodies of any length, in both directions, in bounded memory, with interruptions of the client at any time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::{before_fakes, get, lives, number, pattern, ready};
use crate::support::{DriverUnderTest, HANG_TIMEOUT, ServerUnderTest};

on_both_drivers! {
    bodies_arrive_whole_however_long_and_however_framed,
    huge_bodies_pass_in_bounded_memory,
    a_slow_client_gets_everything,
    many_slow_clients_cost_little_memory,
    a_client_that_goes_away_frees_its_slot,
    an_answer_before_the_end_of_the_body_is_the_answer,
    a_slow_upload_holds_no_slot_before_its_first_buffer_is_full,
    an_upload_that_trickles_loses_its_slot_when_it_is_below_the_least_rate,
    a_body_longer_than_allowed_is_refused_before_a_process_sees_it,
}

const HUGE: usize = 100_000_000;
/// Maximum growth of the server meanwhile: a few pieces per connection and the allocator's reserve.
const GROWTH_MAX: u64 = 24 << 20;

const LARGE: &str = "--max-body-size 1000000000";

pub(super) fn stream(server: &ServerUnderTest) -> TcpStream {
    let stream = TcpStream::connect(server.address()).expect("the server accepts connections");
    stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    stream.set_write_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    stream
}

/// Sends a body of the pattern in pieces, chunked or with a length.
fn upload(stream: &mut TcpStream, size: usize, piece: usize, chunked: bool) {
    let framing = match chunked {
        true => "Transfer-Encoding: chunked".to_owned(),
        false => format!("Content-Length: {size}"),
    };
    write!(stream, "POST /count HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{framing}\r\n\r\n")
        .expect("it is taken");
    // After 251 pieces the pattern repeats at the same position.
    let block: Vec<u8> = pattern(0, 251 * piece).collect();
    for start in (0..size).step_by(piece) {
        let at = start % (251 * piece);
        let bytes = &block[at..at + piece.min(size - start)];
        if chunked {
            write!(stream, "{:x}\r\n", bytes.len()).expect("it is taken");
        }
        stream.write_all(bytes).expect("it is taken");
        if chunked {
            stream.write_all(b"\r\n").expect("it is taken");
        }
    }
    if chunked {
        stream.write_all(b"0\r\n\r\n").expect("it is taken");
    }
}

fn text(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[track_caller]
fn check_upload(server: &ServerUnderTest, size: usize, piece: usize, chunked: bool) {
    let mut stream = stream(server);
    upload(&mut stream, size, piece, chunked);
    let answer = text(stream);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(&format!("\r\n\r\n{size} good")),
        "{size} in pieces of {piece}: {answer}"
    );
}

/// Receives a body of the pattern to the end of the connection; returns its size.
fn download(mut stream: TcpStream, path: &str) -> usize {
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("it is taken");
    let mut bytes = vec![0; 1 << 16];
    let block: Vec<u8> = pattern(0, 251 + bytes.len()).collect();
    let (mut head, mut total) = (Vec::new(), None);
    loop {
        let count = stream.read(&mut bytes).expect("a piece");
        if count == 0 {
            return total.expect("the head is complete");
        }
        let mut piece = &bytes[..count];
        if total.is_none() {
            head.extend_from_slice(piece);
            let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            total = Some(0);
            piece = &piece[piece.len() - (head.len() - end - 4)..];
        }
        let total = total.as_mut().expect("it was just set");
        let at = *total % 251;
        assert!(piece == &block[at..at + piece.len()], "a wrong byte behind {total}");
        *total += piece.len();
    }
}

fn bodies_arrive_whole_however_long_and_however_framed(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, LARGE);
    for chunked in [false, true] {
        for size in [1, 1000, 65_535, 65_536, 65_537, 200_000, 1_000_000] {
            check_upload(&server, size, 8192, chunked);
            check_upload(&server, size, 70_001, chunked);
        }
    }
    drop(watcher);
    server.finish();
}

/// Peak of the server's memory so far, in bytes.
fn peak(server: &ServerUnderTest) -> u64 {
    let status = std::fs::read_to_string(server.proc("status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells the peak");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

fn huge_bodies_pass_in_bounded_memory(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, LARGE);
    check_upload(&server, 1_000_000, 8192, false);
    assert_eq!(download(stream(&server), "/sized/1000000"), 1_000_000);
    let before = peak(&server);
    check_upload(&server, HUGE, 8192, false);
    check_upload(&server, HUGE, 70_001, true);
    assert_eq!(download(stream(&server), &format!("/sized/{HUGE}")), HUGE);
    assert_eq!(download(stream(&server), &format!("/chunked/{HUGE}")), HUGE);
    let grown = peak(&server) - before;
    assert!(grown < GROWTH_MAX, "the server has grown by {grown} bytes");
    drop(watcher);
    server.finish();
}

fn a_slow_client_gets_everything(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "--processes 2 --send-buffer 32768");
    let mut slow = server.connect();
    slow.shrink_receive_buffer(32 * 1024);
    slow.send(super::last("/sized/1000000"));
    slow.wait_for_bytes();
    // The other process still answers all other requests.
    let mut peer = server.connect();
    for _ in 0..20 {
        assert_eq!(peer.ask(get("/pid")).status, 200);
    }
    let answer = slow.head();
    assert_eq!(answer.field("Content-Length"), Some("1000000"));
    assert!(slow.rest().into_iter().eq(pattern(0, 1_000_000)));
    drop((peer, watcher));
    server.finish();
}

/// Row 4.26: when the limit of held bytes is reached, the server stops reading from the process until the client reads.
fn many_slow_clients_cost_little_memory(driver: DriverUnderTest) {
    const CLIENTS: usize = 12;
    const SIZE: usize = 20_000_000;
    let (server, watcher) = before_fakes(
        driver,
        "--app-concurrency 12 --send-buffer 32768 --max-answers-held 8388608 --body-timeout 100",
    );
    assert_eq!(download(stream(&server), "/sized/1000000"), 1_000_000);
    let before = peak(&server);
    let mut slow: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    for peer in &mut slow {
        peer.shrink_receive_buffer(32 * 1024);
        peer.send(super::last(&format!("/sized/{SIZE}")));
        peer.wait_for_bytes();
    }
    for mut peer in slow {
        peer.head();
        assert!(peer.rest().into_iter().eq(pattern(0, SIZE)));
    }
    let grown = peak(&server) - before;
    assert!(grown < GROWTH_MAX, "the server has grown by {grown} bytes");
    drop(watcher);
    server.finish();
}

/// Row 4.12: a disconnected client frees its slot.
fn a_client_that_goes_away_frees_its_slot(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, LARGE);
    let mut peer = server.connect();
    let pid = number(&mut peer, "/pid");
    for round in 0..3 {
        // In the middle of a response.
        let mut gone = server.connect();
        gone.send(get("/sized/50000000"));
        gone.wait_for_bytes();
        if round % 2 == 0 {
            gone.reset();
        } else {
            drop(gone);
        }
        assert_eq!(number(&mut peer, "/pid"), pid);
        // In the middle of a body.
        let mut gone = stream(&server);
        write!(gone, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
            .expect("it is taken");
        gone.write_all(&[0; 300_000]).expect("it is taken");
        if round % 2 == 0 {
            gone.shutdown(Shutdown::Write).expect("it is open");
        }
        drop(gone);
        assert_eq!(number(&mut peer, "/pid"), pid);
    }
    let metrics = watcher.until("nothing runs any more", |metrics| metrics.value("jobs_running") == 0);
    assert_eq!((lives(&metrics, "started"), ready(&metrics)), (1, 1), "the process had no part in it");
    drop((peer, watcher));
    server.finish();
}

fn an_answer_before_the_end_of_the_body_is_the_answer(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, LARGE);
    for size in [70_000, 5_000_000] {
        let mut client = stream(&server);
        write!(client, "POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n")
            .expect("it is taken");
        // The server need not read everything before it answers.
        let mut sending = client.try_clone().expect("a descriptor");
        let sender = std::thread::spawn(move || {
            let _ = sending.write_all(&vec![0; size]);
        });
        let mut head = [0; 30];
        client.read_exact(&mut head).expect("an answer");
        assert!(head.starts_with(b"HTTP/1.1 413 Content Too Large"), "{}", head.escape_ascii());
        drop(client);
        sender.join().expect("it does not panic");
    }
    let mut peer = server.connect();
    assert_eq!(peer.ask(get("/pid")).status, 200);
    drop((peer, watcher));
    server.finish();
}

/// The only process stays free for others during a slow upload.
fn a_slow_upload_holds_no_slot_before_its_first_buffer_is_full(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, LARGE);
    let mut slow = stream(&server);
    let sent = 60_000;
    write!(slow, "POST /count HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n")
        .expect("it is taken");
    let body: Vec<u8> = pattern(0, 100_000).collect();
    slow.write_all(&body[..sent]).expect("it is taken");
    watcher.until_received("all of that has come", |received| received >= sent as u64);
    let mut peer = server.connect();
    for _ in 0..5 {
        assert_eq!(peer.ask(get("/pid")).status, 200);
    }
    assert_eq!(watcher.fetch().value("jobs_running"), 0);
    slow.write_all(&body[sent..]).expect("it is taken");
    assert!(text(slow).ends_with("100000 good"));
    drop((peer, watcher));
    server.finish();
}

/// Row 4.26: the rate counts over the whole body, however many pieces the process reads.
fn an_upload_that_trickles_loses_its_slot_when_it_is_below_the_least_rate(driver: DriverUnderTest) {
    let options = format!("{LARGE} --max-requests-held 150000 --body-timeout 0.2 --min-body-rate 100000000");
    let (server, watcher) = before_fakes(driver, &options);
    let mut slow = stream(&server);
    write!(slow, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
        .expect("it is taken");
    slow.write_all(&[0; 65_536]).expect("it is taken");
    // Meanwhile no pause of the client reaches the body timeout.
    slow.set_read_timeout(Some(Duration::from_millis(10))).expect("a socket takes options");
    let mut head = [0; 12];
    let begun = Instant::now();
    let count = loop {
        assert!(begun.elapsed() < HANG_TIMEOUT, "it goes on for ever");
        // The server may have closed the connection.
        let _ = slow.write_all(b"x");
        match slow.read(&mut head) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => break other.expect("an answer"),
        }
    };
    assert_eq!(&head[..count], b"HTTP/1.1 408");
    // The slot is free while the client still lingers.
    let mut peer = server.connect();
    assert_eq!(peer.ask(get("/pid")).status, 200);
    drop((slow, peer, watcher));
    assert_eq!(server.finish().answers(408), 1);
}

fn a_body_longer_than_allowed_is_refused_before_a_process_sees_it(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "--max-body-size 100000");
    let mut peer = server.connect();
    assert_eq!(peer.ask("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n").status, 413);
    // The length of a chunked body is unknown at its start.
    let mut client = stream(&server);
    write!(client, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        .expect("it is taken");
    let chunk = [b"10000\r\n", &[0; 65_536][..], b"\r\n"].concat();
    for _ in 0..2 {
        // The server may have answered and closed the connection.
        let _ = client.write_all(&chunk);
    }
    let mut head = [0; 12];
    client.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 413");
    drop((client, watcher));
    server.finish();
}
