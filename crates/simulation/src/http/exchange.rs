//! Requests of well-behaved clients, and the exact responses to them.
//!
//! The expected responses follow the specification and do not use the shipped encoder, which could otherwise hide its
//! own errors. `#` stands for one byte of the date, which is compared with the world's calendar; pages with varying
//! text are checked by their framing.

use super::test_routes::{self, ResponseTruncation};
use super::version::{DATE, RequestVersion};
use crate::SplitMix64;

pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A request and its acceptable responses.
#[derive(Clone, Debug)]
pub(super) struct ExpectedExchange {
    pub(super) request: Vec<u8>,
    /// Position at which the client waits for `100 Continue`.
    pub(super) pause_at: Option<usize>,
    pub(super) answers: Vec<ExpectedResponse>,
    /// How the ordinary response may be cut short.
    pub(super) truncation: ResponseTruncation,
}

#[derive(Clone, Debug)]
pub(super) struct ExpectedResponse {
    pub(super) text: ExpectedBytes,
    /// The server closes the connection after it.
    pub(super) closes: bool,
    /// Acceptable only from a draining server.
    pub(super) draining: bool,
    /// May arrive before the request is complete, from a server short of memory.
    pub(super) early: bool,
    /// Breaks off: the connection ends before the response is complete.
    breaks: bool,
}

#[derive(Clone, Debug)]
pub(super) enum ExpectedBytes {
    /// These bytes, with `#` in the date.
    Exact(Vec<u8>),
    /// A page: this first line, then framing by `Content-Length`. The flag is true if the body is omitted.
    Page(&'static str, bool),
}

/// How far the received bytes match a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseMatch {
    Not,
    /// The bytes received so far match.
    SoFar,
    /// Complete, with this length.
    Whole(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangeBody {
    None,
    Sized,
    Chunked,
    /// Sized, and announced by `Expect: 100-continue`.
    Expected,
}

impl ExpectedExchange {
    /// A request for `path`, with the responses the specification requires.
    pub(super) fn new(
        method: &str,
        path: &str,
        version: RequestVersion,
        body: ExchangeBody,
        random: &mut SplitMix64,
    ) -> ExpectedExchange {
        let mut request = match version {
            RequestVersion::None => format!("{method} {path}\r\n"),
            RequestVersion::One | RequestVersion::OneKeepAlive => format!("{method} {path} HTTP/1.0\r\n"),
            RequestVersion::OneOne | RequestVersion::OneOneClose => {
                format!("{method} {path} HTTP/1.1\r\nHost: sim\r\n")
            }
        };
        match version {
            RequestVersion::OneKeepAlive => request.push_str("Connection: keep-alive\r\n"),
            RequestVersion::OneOneClose => request.push_str("Connection: close\r\n"),
            _ => {}
        }
        if version != RequestVersion::None && random.chance(300) {
            let padding = "x".repeat(random.between(1, 200) as usize);
            request.push_str(&format!("X-Padding: {padding}\r\n"));
        }
        let bytes: Vec<u8> = (0..random.between(1, 3000)).map(|_| random.bits() as u8).collect();
        match body {
            ExchangeBody::None => {}
            ExchangeBody::Sized => request.push_str(&format!("Content-Length: {}\r\n", bytes.len())),
            ExchangeBody::Expected => {
                request.push_str(&format!("Content-Length: {}\r\nExpect: 100-continue\r\n", bytes.len()));
            }
            ExchangeBody::Chunked => request.push_str("Transfer-Encoding: chunked\r\n"),
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        let pause_at = (body == ExchangeBody::Expected).then_some(request.len());
        match body {
            ExchangeBody::None => {}
            ExchangeBody::Sized | ExchangeBody::Expected => request.extend(&bytes),
            ExchangeBody::Chunked => push_chunks(&mut request, &bytes, random),
        }
        let body = if body == ExchangeBody::None { &[][..] } else { &bytes };
        let answers = if path.starts_with("/own/") {
            own_answers(method, path, version, body)
        } else {
            answers(method, path, version)
        };
        ExpectedExchange { request, pause_at, answers, truncation: ResponseTruncation::of(path) }
    }

    pub(super) fn closes(&self) -> bool {
        self.answers[0].closes
    }
}

fn push_chunks(request: &mut Vec<u8>, mut bytes: &[u8], random: &mut SplitMix64) {
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(random.between(1, bytes.len() as u64) as usize);
        request.extend(format!("{:x}\r\n", piece.len()).as_bytes());
        request.extend(piece);
        request.extend(b"\r\n");
        bytes = rest;
    }
    request.extend(b"0\r\n\r\n");
}

fn own_answers(method: &str, path: &str, version: RequestVersion, body: &[u8]) -> Vec<ExpectedResponse> {
    let is_head = method == "HEAD";
    let of = |kept, draining| {
        let (text, kept) = test_routes::text(path, is_head, version, kept, body);
        let breaks = ResponseTruncation::of(path) == ResponseTruncation::Broken;
        ExpectedResponse { text: ExpectedBytes::Exact(text), closes: !kept, draining, early: false, breaks }
    };
    let unavailable = |kept, early| ExpectedResponse {
        text: ExpectedStatus::Unavailable.text(is_head, version, kept),
        closes: !kept,
        draining: false,
        early,
        breaks: false,
    };
    let kept = !version.closes();
    // The server may lack memory for the request.
    let mut answers = vec![of(kept, false), of(false, true), unavailable(false, true)];
    if test_routes::is_for_workers(path) {
        answers.extend([unavailable(kept, false), unavailable(false, false)]);
    }
    answers
}

fn answers(method: &str, path: &str, version: RequestVersion) -> Vec<ExpectedResponse> {
    let kept = !version.closes();
    let of = |status: ExpectedStatus, kept, draining| ExpectedResponse {
        text: status.text(method == "HEAD", version, kept),
        closes: !kept,
        draining,
        early: false,
        breaks: false,
    };
    let statuses: &[ExpectedStatus] = match (method, path) {
        ("PUT", "/livez") => &[ExpectedStatus::NotAllowed],
        (_, "/test/fast") => &[ExpectedStatus::Demo],
        (_, "/test/slow") => &[ExpectedStatus::Demo, ExpectedStatus::Unavailable],
        (_, "/test/panic") => &[ExpectedStatus::Failed, ExpectedStatus::Unavailable],
        (_, "/livez") => &[ExpectedStatus::Alive],
        (_, "/readyz") => &[ExpectedStatus::Ready],
        (_, "/status" | "/metrics") => &[ExpectedStatus::Page],
        _ => &[ExpectedStatus::NotFound],
    };
    let mut answers: Vec<ExpectedResponse> = statuses.iter().map(|status| of(*status, kept, false)).collect();
    if statuses.contains(&ExpectedStatus::Unavailable) {
        // A worker is stuck: the server closes the connection.
        answers.push(of(ExpectedStatus::Unavailable, false, false));
    }
    for status in statuses {
        answers.push(of(*status, false, true));
    }
    if path == "/readyz" {
        answers.extend([
            of(ExpectedStatus::Unavailable, kept, true),
            of(ExpectedStatus::Unavailable, false, true),
        ]);
    }
    answers
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedStatus {
    Demo,
    Alive,
    Ready,
    Page,
    NotFound,
    NotAllowed,
    Failed,
    Unavailable,
}

impl ExpectedStatus {
    fn text(self, is_head: bool, version: RequestVersion, kept: bool) -> ExpectedBytes {
        let (status, extra, body) = match self {
            ExpectedStatus::Page => return ExpectedBytes::Page("HTTP/1.1 200 OK\r\n", is_head),
            // Row 4.16: the 57 bytes.
            ExpectedStatus::Demo if !kept => {
                return ExpectedBytes::Exact(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec(),
                );
            }
            ExpectedStatus::Demo => ("200 OK", "", ""),
            ExpectedStatus::Alive => ("200 OK", "Cache-Control: no-store\r\n", "alive\n"),
            ExpectedStatus::Ready => ("200 OK", "Cache-Control: no-store\r\n", "ready\n"),
            ExpectedStatus::NotFound => ("404 Not Found", "", "404 Not Found\n"),
            ExpectedStatus::NotAllowed => {
                ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "405 Method Not Allowed\n")
            }
            ExpectedStatus::Failed => ("500 Internal Server Error", "", "500 Internal Server Error\n"),
            ExpectedStatus::Unavailable => {
                ("503 Service Unavailable", "Retry-After: 1\r\n", "503 Service Unavailable\n")
            }
        };
        let connection = match (kept, version) {
            (false, _) => "Connection: close\r\n",
            (true, RequestVersion::OneKeepAlive) => "Connection: keep-alive\r\n",
            (true, _) => "",
        };
        let kind = if body.is_empty() { "" } else { "Content-Type: text/plain; charset=utf-8\r\n" };
        let length = body.len();
        let mut text = format!(
            "HTTP/1.1 {status}\r\nDate: {DATE}\r\n{connection}{kind}{extra}Content-Length: {length}\r\n\r\n"
        );
        if !is_head {
            text.push_str(body);
        }
        ExpectedBytes::Exact(text.into_bytes())
    }
}

impl ExpectedResponse {
    /// Compares received bytes with this response; `dates` are the acceptable dates.
    pub(super) fn compare(&self, inbox: &[u8], dates: &[[u8; 29]]) -> ResponseMatch {
        match &self.text {
            ExpectedBytes::Exact(text) if self.breaks => match compare_exactly(text, inbox, dates) {
                ResponseMatch::Whole(len) if len < inbox.len() => ResponseMatch::Not,
                ResponseMatch::Whole(_) => ResponseMatch::SoFar,
                other => other,
            },
            ExpectedBytes::Exact(text) => compare_exactly(text, inbox, dates),
            ExpectedBytes::Page(line, is_head) => compare_page(line, *is_head, self.closes, inbox),
        }
    }
}

fn compare_exactly(text: &[u8], inbox: &[u8], dates: &[[u8; 29]]) -> ResponseMatch {
    let len = text.len().min(inbox.len());
    let date = text.windows(DATE.len()).position(|window| window == DATE.as_bytes());
    let (before, behind) = date.map_or((len, len), |at| (at.min(len), (at + DATE.len()).min(len)));
    if text[..before] != inbox[..before] || text[behind..len] != inbox[behind..len] {
        return ResponseMatch::Not;
    }
    if behind - before == DATE.len() && !dates.iter().any(|date| inbox[before..behind] == *date) {
        return ResponseMatch::Not;
    }
    if inbox.len() < text.len() { ResponseMatch::SoFar } else { ResponseMatch::Whole(text.len()) }
}

fn compare_page(line: &str, is_head: bool, closes: bool, inbox: &[u8]) -> ResponseMatch {
    if !line.bytes().zip(inbox).all(|(expected, got)| expected == *got) {
        return ResponseMatch::Not;
    }
    let Some(end) = inbox.windows(4).position(|four| four == b"\r\n\r\n") else {
        return ResponseMatch::SoFar;
    };
    let Ok(head) = std::str::from_utf8(&inbox[..end]) else { return ResponseMatch::Not };
    let field = |name: &str| head.split("\r\n").find_map(|line| line.strip_prefix(name));
    let length = field("Content-Length: ").and_then(|text| text.parse::<usize>().ok());
    let Some(length) = length.filter(|length| *length > 0) else { return ResponseMatch::Not };
    if (field("Connection: ") == Some("close")) != closes {
        return ResponseMatch::Not;
    }
    let whole = end + 4 + if is_head { 0 } else { length };
    if inbox.len() < whole { ResponseMatch::SoFar } else { ResponseMatch::Whole(whole) }
}
