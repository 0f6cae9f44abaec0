//! Routes added by the world, and their exact responses: echoes, long responses, streams, a response that breaks off.
//!
//! As in [`exchange`](super::exchange), the expected bytes follow the specification and do not use the shipped encoder.

use std::io::{self, Read};
use std::sync::LazyLock;

use stilling::http::{Method, Request, Response, Routes};

use super::version::{DATE, RequestVersion};

/// The body of `/own/long`: longer than a session may send at once.
static LONG: LazyLock<Vec<u8>> = LazyLock::new(|| text_of(70_000));

/// Sizes of a source's reads: at most a piece (32 KiB) each, one of them exactly a piece.
const SIZED: &[usize] = &[1, 30_000, 5000, 32_768, 10_000];
const OPEN: &[usize] = &[1, 700, 32_768, 7, 12_000];
const BROKEN: &[usize] = &[900, 32_768, 3];

const KIND: &str = "application/octet-stream";

/// Letters only, so never the date placeholder `#`; neighbouring bytes differ.
fn text_of(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| b'a' + ((at.wrapping_mul(0x9e37_79b9) >> 13) % 26) as u8).collect()
}

/// A source that returns its text in the given steps and fails at the end if `fails` is set.
struct ChunkedSource {
    text: io::Cursor<Vec<u8>>,
    steps: std::slice::Iter<'static, usize>,
    fails: bool,
}

impl ChunkedSource {
    fn new(steps: &'static [usize], fails: bool) -> Self {
        ChunkedSource { text: io::Cursor::new(text_of(steps.iter().sum())), steps: steps.iter(), fails }
    }
}

impl Read for ChunkedSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.steps.next() {
            Some(step) => {
                let end = (*step).min(into.len());
                self.text.read(&mut into[..end])
            }
            None if self.fails => Err(io::Error::other("the source breaks")),
            None => self.text.read(into),
        }
    }
}

pub(super) fn routes() -> Routes {
    fn echo(request: &Request<'_>) -> Response {
        Response::bytes(KIND, request.body())
    }
    let sized =
        || Response::stream_sized(KIND, SIZED.iter().sum::<usize>() as u64, ChunkedSource::new(SIZED, false));
    Routes::new()
        .inline(Method::Post, "/own/echo", echo)
        .worker(Method::Post, "/own/work", echo)
        .inline(Method::Get, "/own/long", |_| Response::bytes(KIND, &LONG[..]))
        .worker(Method::Get, "/own/sized", move |_| sized())
        .inline(Method::Get, "/own/sized-here", move |_| sized())
        .worker(Method::Get, "/own/open", |_| Response::stream(KIND, ChunkedSource::new(OPEN, false)))
        .worker(Method::Get, "/own/broken", |_| Response::stream(KIND, ChunkedSource::new(BROKEN, true)))
}

/// Paths requested with `GET`.
pub(super) const PATHS: [&str; 5] =
    ["/own/long", "/own/sized", "/own/sized-here", "/own/open", "/own/broken"];

/// When a response may be cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseTruncation {
    /// Only complete.
    Whole,
    /// May be cut short by a server short of memory.
    Long,
    /// May also be cut short when workers are late.
    Streamed,
    /// Always cut short.
    Broken,
}

impl ResponseTruncation {
    pub(super) fn of(path: &str) -> ResponseTruncation {
        match path {
            "/own/long" => ResponseTruncation::Long,
            "/own/sized" | "/own/sized-here" | "/own/open" => ResponseTruncation::Streamed,
            "/own/broken" => ResponseTruncation::Broken,
            _ => ResponseTruncation::Whole,
        }
    }
}

/// Whether a worker runs before the response begins, so that the response may be 503.
pub(super) fn is_for_workers(path: &str) -> bool {
    matches!(path, "/own/work" | "/own/sized" | "/own/open" | "/own/broken")
}

/// The response, or the longest part of it that may arrive; and whether the connection is kept.
pub(super) fn text(
    path: &str,
    is_head: bool,
    version: RequestVersion,
    kept: bool,
    body: &[u8],
) -> (Vec<u8>, bool) {
    let takes_chunks = matches!(version, RequestVersion::OneOne | RequestVersion::OneOneClose);
    let (content, steps) = match path {
        "/own/long" => (LONG.clone(), None),
        "/own/sized" | "/own/sized-here" => (text_of(SIZED.iter().sum()), None),
        "/own/open" => (text_of(OPEN.iter().sum()), Some(OPEN)),
        "/own/broken" => (text_of(BROKEN.iter().sum()), Some(BROKEN)),
        _ => (body.to_vec(), None),
    };
    // RFC 9112 §6.3: the end of the connection ends a body without other framing.
    let kept = kept && (steps.is_none() || takes_chunks);
    let connection = match (kept, version) {
        (false, _) => "Connection: close\r\n",
        (true, RequestVersion::OneKeepAlive) => "Connection: keep-alive\r\n",
        (true, _) => "",
    };
    let framing = match steps {
        None => format!("Content-Length: {}\r\n", content.len()),
        Some(_) if takes_chunks => "Transfer-Encoding: chunked\r\n".to_owned(),
        Some(_) => String::new(),
    };
    let head =
        format!("HTTP/1.1 200 OK\r\nDate: {DATE}\r\n{connection}Content-Type: {KIND}\r\n{framing}\r\n");
    let mut text = head.into_bytes();
    match steps {
        _ if is_head => {}
        Some(steps) if takes_chunks => {
            let mut rest = &content[..];
            for step in steps {
                let (chunk, behind) = rest.split_at(*step);
                text.extend(format!("{step:08x}\r\n").as_bytes());
                text.extend(chunk);
                text.extend(b"\r\n");
                rest = behind;
            }
            if path != "/own/broken" {
                text.extend(b"0\r\n\r\n");
            }
        }
        _ => text.extend(content),
    }
    (text, kept)
}
