//! A worker process behind a server: answers each HTTP/1.1 GET on a Unix socket after a time of sleep, one at a time.
//! The body is the target of the request, repeated to a given size, so that another request's answer is recognised.
//!
//! A thread per connection waits for requests; the work of all connections takes turns, as in a process with one thread.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use memchr::memmem;

/// Bytes of an incomplete request head. More: the connection closes.
const HEAD_SIZE_MAX: usize = 16 * 1024;

const BLANK_LINE: &[u8] = b"\r\n\r\n";

pub(crate) fn run(socket: &Path, work: Duration, size: usize) -> crate::PeerResult {
    // A socket file of an earlier process is in the way.
    let _ = fs::remove_file(socket);
    let turn: Arc<Mutex<()>> = Arc::default();
    for stream in UnixListener::bind(socket)?.incoming() {
        let (stream, turn) = (stream?, Arc::clone(&turn));
        thread::spawn(move || serve(stream, &turn, work, size));
    }
    Ok(())
}

fn serve(mut stream: UnixStream, turn: &Mutex<()>, work: Duration, size: usize) {
    let mut input = [0; HEAD_SIZE_MAX];
    let mut filled = 0;
    while let Ok(read @ 1..) = stream.read(&mut input[filled..]) {
        filled += read;
        while let Some(end) = memmem::find(&input[..filled], BLANK_LINE) {
            if !work.is_zero() {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                thread::sleep(work);
            }
            if stream.write_all(&answer(&input[..end], size)).is_err() {
                return;
            }
            let consumed = end + BLANK_LINE.len();
            input.copy_within(consumed..filled, 0);
            filled -= consumed;
        }
    }
}

fn answer(head: &[u8], size: usize) -> Vec<u8> {
    let target = head.split(|byte| *byte == b' ').nth(1).filter(|target| !target.is_empty()).unwrap_or(b"/");
    let start = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {size}\r\n\r\n");
    let mut answer = Vec::with_capacity(start.len() + size);
    answer.extend_from_slice(start.as_bytes());
    answer.extend(target.iter().cycle().take(size));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_depends_on_the_target() {
        let text = |head: &[u8]| String::from_utf8(answer(head, 5)).expect("it is text");
        assert!(text(b"GET /ab HTTP/1.1").ends_with("Content-Length: 5\r\n\r\n/ab/a"));
        assert!(text(b"").ends_with("\r\n\r\n/////"));
    }

    #[test]
    fn requests_in_parts_and_several_at_once_are_answered() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let peer = thread::spawn(move || serve(server, &Mutex::default(), Duration::from_millis(1), 3));
        client.write_all(b"GET / HTTP/1.1\r\n").expect("it is open");
        client.write_all(b"\r\nGET / HTTP/1.1\r\n\r\n").expect("it is open");
        let expected = answer(b"GET / HTTP/1.1", 3).repeat(2);
        let mut answers = vec![0; expected.len()];
        client.read_exact(&mut answers).expect("two answers");
        assert_eq!(answers, expected);
        drop(client);
        peer.join().expect("it ends with its connection");
    }
}
