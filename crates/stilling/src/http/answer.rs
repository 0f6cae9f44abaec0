//! How one request is to be answered: what its head said that matters when the answer is written.

use stilling_engine::Io;
use stilling_wire::http1::{Connection, Date, Method, OK_CLOSE, Reply, RequestHead, Status};

use super::route::Route;
use super::service::HttpService;

/// The most bytes that one answer may have. Longer: 500 instead.
pub(super) const ANSWER_SIZE_MAX: usize = 32 * 1024;

/// Seconds after which a shed client may try again.
const RETRY_AFTER: &str = "1";

/// A request that is being read or worked on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) route: Route,
    /// The connection may go on after the answer, as far as the request is concerned.
    pub(super) persistent: bool,
    /// An HTTP/1.0 client that must be told that the connection persists.
    keep_alive_10: bool,
    /// The answer has no body.
    is_head: bool,
}

impl Request {
    pub(super) fn of(head: &RequestHead<'_>, demo: bool) -> Self {
        Request {
            route: Route::of(head, demo),
            persistent: head.persistent,
            keep_alive_10: head.keep_alive_asked_10,
            is_head: head.method == Method::Head,
        }
    }

    /// The stand-in for a request that could not be read.
    pub(super) fn unreadable() -> Self {
        Request {
            route: Route::Refused(Status::BadRequest),
            persistent: false,
            keep_alive_10: false,
            is_head: false,
        }
    }
}

/// Sends the answer of the demo routes. Returns whether the connection persists.
pub(super) fn send_ok(request: &Request, io: &mut Io<'_, HttpService>) -> bool {
    io.service.counters.answers(Status::Ok).add(1);
    let persistent = request.persistent && !io.service.is_draining();
    // The caller has made sure that there is room.
    let _ = if persistent {
        let now = io.now();
        let ready = *io.service.ready_answer(now, request.keep_alive_10);
        io.send(ready.bytes())
    } else {
        io.send(OK_CLOSE)
    };
    persistent
}

/// Sends an answer with a body. Returns whether the connection persists.
pub(super) fn send(
    request: &Request,
    status: Status,
    content_type: &str,
    body: &[u8],
    io: &mut Io<'_, HttpService>,
) -> bool {
    if body.len() > ANSWER_SIZE_MAX / 2 {
        return send(request, Status::InternalServerError, TEXT, b"500: the page is too long\n", io);
    }
    io.service.counters.answers(status).add(1);
    let persistent = request.persistent && !io.service.is_draining();
    let date = io.service.date(io.now());
    let extra: &[(&str, &str)] = match status {
        // RFC 9110 §15.5.6: the methods that the target answers.
        Status::MethodNotAllowed => match request.route {
            Route::OtherMethods { post: true } => &[("Allow", "GET, HEAD, POST")],
            _ => &[("Allow", "GET, HEAD")],
        },
        Status::ServiceUnavailable => &[("Retry-After", RETRY_AFTER)],
        Status::Ok => &[("Cache-Control", "no-store")],
        _ => &[],
    };
    let reply = Reply {
        status,
        date: Some(date.as_bytes()),
        connection: connection(persistent, request.keep_alive_10),
        content_length: Some(body.len() as u64),
        content_type: Some(content_type),
        extra,
    };
    let is_head = request.is_head;
    // All fields are ours, so the encoder finds nothing to refuse; the caller has made room.
    let _ = io.send_with(|out| {
        let encoded = reply.encode(out);
        debug_assert!(encoded.is_ok());
        if !is_head {
            out.extend_from_slice(body);
        }
    });
    persistent
}

/// The media type of short explanations.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// Sends a status with a line of explanation. Returns whether the connection persists.
pub(super) fn send_status(request: &Request, status: Status, io: &mut Io<'_, HttpService>) -> bool {
    // "HTTP/1.1 404 Not Found\r\n": the code and reason make the body.
    let line = &status.line()["HTTP/1.1 ".len()..];
    let mut body = [0; 64];
    let len = line.len() - 1;
    body[..len - 1].copy_from_slice(&line[..len - 1]);
    body[len - 1] = b'\n';
    send(request, status, TEXT, &body[..len], io)
}

fn connection(persistent: bool, keep_alive_10: bool) -> Connection {
    match (persistent, keep_alive_10) {
        (false, _) => Connection::Close,
        (true, true) => Connection::KeepAlive10,
        (true, false) => Connection::Implicit,
    }
}

/// The answer of the demo routes on a kept connection, encoded once per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyAnswer {
    bytes: [u8; Self::SIZE_MAX],
    len: u8,
}

impl ReadyAnswer {
    const SIZE_MAX: usize = 128;

    pub(super) fn new(date: &Date, keep_alive_10: bool, scratch: &mut Vec<u8>) -> Self {
        scratch.clear();
        let reply = Reply {
            date: Some(date.as_bytes()),
            connection: connection(true, keep_alive_10),
            content_length: Some(0),
            ..Reply::new(Status::Ok)
        };
        let encoded = reply.encode(scratch);
        debug_assert!(encoded.is_ok());
        let mut bytes = [0; Self::SIZE_MAX];
        bytes[..scratch.len()].copy_from_slice(scratch);
        ReadyAnswer { bytes, len: scratch.len() as u8 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}
