//! Writes responses: status line, fields, framing and short bodies.

use std::borrow::Cow;

use stilling_engine::Io;
use stilling_wire::http1::{HttpVersion, Method, Persistence, RequestHead, ResponseEncoder, Status};

use super::head_cache::{HEAD_SIZE_MAX, HeadKey};
use super::method_set::MethodSet;
use super::response::{Response, ResponseBody, TEXT};
use super::route::Route;
use super::shard::HttpContext;
use super::stream::{STREAM_COST, StreamFraming};
use crate::memory::MemoryReservation;

/// Bytes of output room that a connection needs before its next request is decoded: for a short response, or for the
/// head of a long one. A head longer than half of it is replaced by 500.
pub(super) const RESPONSE_ROOM_MIN: usize = 32 * 1024;

/// `Retry-After` of 503 responses, in seconds.
pub(super) const RETRY_AFTER: &str = "1";

/// What the request's head determines about the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseTerms {
    pub(super) route: Route,
    /// The request allows the connection to persist.
    pub(super) persistent: bool,
    /// The client is HTTP/1.0 and expects `Connection: keep-alive` if the connection persists.
    pub(super) keep_alive_10: bool,
    /// The request is HEAD: the response has no body.
    is_head: bool,
    /// The client speaks HTTP/1.1 and so understands chunks (RFC 9112 §7.1).
    accepts_chunked: bool,
}

impl ResponseTerms {
    pub(super) fn of(head: &RequestHead<'_>, route: Route) -> Self {
        ResponseTerms {
            route,
            persistent: head.persistent,
            keep_alive_10: head.http10_keep_alive,
            is_head: head.method == Method::Head,
            accepts_chunked: head.version == HttpVersion::Http11,
        }
    }

    pub(super) fn unreadable() -> Self {
        ResponseTerms {
            route: Route::Refused(Status::BadRequest),
            persistent: false,
            keep_alive_10: false,
            is_head: false,
            accepts_chunked: false,
        }
    }
}

/// Sends a short response without extra fields, with a head that is encoded once per second. Returns whether the
/// connection persists. `None`: not such a response; nothing was sent.
pub(super) fn send_with_cached_head(
    terms: &ResponseTerms,
    response: &Response,
    io: &mut Io<'_>,
    cx: &mut HttpContext<'_>,
) -> Option<bool> {
    let status = response.status;
    if !response.fields.is_empty() || is_interim(status) {
        return None;
    }
    let body = match &response.body {
        ResponseBody::Static(bytes) => bytes,
        ResponseBody::Bytes(bytes) => &bytes[..],
        ResponseBody::Stream(_) | ResponseBody::Delegate(_) => return None,
    };
    let content_type = match response.content_type {
        Some(Cow::Borrowed(text)) => Some(text),
        Some(Cow::Owned(_)) => return None,
        None => None,
    };
    let sent = if terms.is_head || forbids_body(status) { b"" } else { body };
    if sent.len() + HEAD_SIZE_MAX > io.spare_room() {
        return None;
    }
    let persistent = terms.persistent && !cx.http.is_draining();
    let key = HeadKey {
        status,
        connection: connection(persistent, terms.keep_alive_10),
        content_type,
        length: body.len() as u64,
        is_dated: is_dated(terms, persistent),
    };
    let now = io.now();
    let mut is_kept = true;
    let _ = io.send_with(|out| match cx.http.head(now, &key) {
        Some(head) => {
            out.extend_from_slice(head);
            out.extend_from_slice(sent);
        }
        None => is_kept = false,
    });
    is_kept.then(|| {
        cx.http.counters.count_response(status, response.is_refusal);
        persistent
    })
}

/// Row 4.16: the response of a demonstration handler that ends the connection has no `Date`, so that it has exactly 57 bytes.
fn is_dated(terms: &ResponseTerms, persistent: bool) -> bool {
    persistent || !terms.route.is_demo()
}

/// Sends a response with a short body. Returns whether the connection persists.
pub(super) fn send(
    terms: &ResponseTerms,
    status: Status,
    content_type: &str,
    body: &[u8],
    io: &mut Io<'_>,
    cx: &mut HttpContext<'_>,
) -> bool {
    debug_assert!(body.len() <= RESPONSE_ROOM_MIN / 2, "long bodies are sent by `send_head`");
    cx.http.counters.count_status(status);
    let persistent = terms.persistent && !cx.http.is_draining();
    let date = cx.http.date(io.now());
    let allowed = match terms.route {
        Route::MethodNotAllowed(methods) => methods,
        _ => MethodSet::default(),
    };
    let (list, allow);
    let extra: &[(&str, &str)] = match status {
        // RFC 9110 §15.5.6: the methods that the target supports.
        Status::MethodNotAllowed => {
            list = allowed.list();
            allow = [("Allow", list.as_str())];
            &allow
        }
        Status::ServiceUnavailable => &[("Retry-After", RETRY_AFTER)],
        Status::Ok => &[("Cache-Control", "no-store")],
        _ => &[],
    };
    let reply = ResponseEncoder {
        status,
        date: Some(date.as_bytes()),
        connection: connection(persistent, terms.keep_alive_10),
        content_length: Some(body.len() as u64),
        content_type: Some(content_type),
        extra,
    };
    let is_head = terms.is_head;
    let _ = io.send_with(|out| {
        let encoded = reply.encode(out);
        debug_assert!(encoded.is_ok());
        if !is_head {
            out.extend_from_slice(body);
        }
    });
    persistent
}

/// Sends a status with its reason as text. Returns whether the connection persists.
pub(super) fn send_status(
    terms: &ResponseTerms,
    status: Status,
    io: &mut Io<'_>,
    cx: &mut HttpContext<'_>,
) -> bool {
    let line = &status.line()["HTTP/1.1 ".len()..];
    let mut body = [0; 64];
    let len = line.len() - 1;
    body[..len - 1].copy_from_slice(&line[..len - 1]);
    body[len - 1] = b'\n';
    send(terms, status, TEXT, &body[..len], io, cx)
}

/// Sends the head of a handler's response and decides the framing of its body. Returns whether the connection
/// persists, and the body that the caller has to send. A streamed body consumes `reservation`.
pub(super) fn send_head(
    terms: &ResponseTerms,
    response: Response,
    reservation: &mut Option<MemoryReservation>,
    io: &mut Io<'_>,
    cx: &mut HttpContext<'_>,
) -> (bool, ResponseBody) {
    let length = response.length();
    let Response { status, content_type, fields, body, is_refusal } = response;
    let has_body = !terms.is_head && !forbids_body(status);
    // RFC 9112 §6.3: without a length and without chunks the body ends with the connection.
    let framed = length.is_some() || terms.accepts_chunked;
    let persistent = terms.persistent && framed && !cx.http.is_draining();
    let own = fields.iter().map(|(name, value)| (&**name, &**value));
    let framing =
        if length.is_none() && terms.accepts_chunked { StreamFraming::Chunked } else { StreamFraming::Plain };
    // RFC 9112 §6.1: not where the status forbids a body, whatever the method.
    let chunks = (framing == StreamFraming::Chunked && !forbids_body(status))
        .then_some(("Transfer-Encoding", "chunked"));
    let retry = (status == Status::ServiceUnavailable && !own.clone().any(|(name, _)| is_retry_after(name)))
        .then_some(("Retry-After", RETRY_AFTER));
    let mut few = [("", ""); STACK_FIELDS_MAX];
    let many: Vec<(&str, &str)>;
    let all = own.chain(chunks).chain(retry);
    let count = all.clone().count();
    let extra = if let Some(few) = few.get_mut(..count) {
        few.iter_mut().zip(all).for_each(|(slot, field)| *slot = field);
        &*few
    } else {
        many = all.collect();
        &many[..]
    };
    let date = cx.http.date(io.now());
    let reply = ResponseEncoder {
        status,
        date: is_dated(terms, persistent).then_some(date.as_bytes()),
        connection: connection(persistent, terms.keep_alive_10),
        content_length: length.filter(|_| status != Status::NotModified),
        content_type: content_type.as_deref(),
        extra,
    };
    let size: usize = extra.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    let size = size + content_type.as_deref().map_or(0, str::len);
    let breaks_framing = is_interim(status) || fields.iter().any(|(name, _)| is_server_field(name));
    let mut written = false;
    if size <= RESPONSE_ROOM_MIN / 2 && !breaks_framing {
        let _ = io.send_with(|out| written = reply.encode(out).is_ok());
    }
    if !written {
        let persistent = send_status(terms, Status::InternalServerError, io, cx);
        return (persistent, ResponseBody::Static(b""));
    }
    cx.http.counters.count_response(status, is_refusal);
    let body = if has_body { begin_body(body, framing, reservation) } else { ResponseBody::Static(b"") };
    (persistent, body)
}

#[inline]
fn begin_body(
    body: ResponseBody,
    framing: StreamFraming,
    reservation: &mut Option<MemoryReservation>,
) -> ResponseBody {
    match body {
        ResponseBody::Stream(mut stream) => {
            stream.set_framing(framing, reservation.take());
            ResponseBody::Stream(stream)
        }
        body => body,
    }
}

/// Bytes that a response adds to those held for clients: 0 if it can be sent at once.
pub(super) fn cost(terms: &ResponseTerms, response: &Response, room: usize) -> usize {
    match &response.body {
        _ if terms.is_head || forbids_body(response.status) => 0,
        // The head may need half of `RESPONSE_ROOM_MIN`.
        ResponseBody::Bytes(bytes) if bytes.len() + RESPONSE_ROOM_MIN / 2 > room => bytes.len(),
        ResponseBody::Stream(_) => STREAM_COST,
        ResponseBody::Bytes(_) | ResponseBody::Static(_) | ResponseBody::Delegate(_) => 0,
    }
}

/// Fields of a response, including the server's own, up to which encoding does not allocate.
const STACK_FIELDS_MAX: usize = 12;

fn is_retry_after(name: &str) -> bool {
    name.eq_ignore_ascii_case("retry-after")
}

/// RFC 9110 §15.2: after an interim response the client goes on waiting for the final one.
fn is_interim(status: Status) -> bool {
    status.code() < 200
}

/// Fields that frame the message or must not appear twice.
fn is_server_field(name: &str) -> bool {
    ["content-length", "content-type", "transfer-encoding", "connection", "date"]
        .iter()
        .any(|own| name.eq_ignore_ascii_case(own))
}

/// RFC 9112 §6.3: these have no body, whatever the fields say.
fn forbids_body(status: Status) -> bool {
    status.forbids_length() || status == Status::NotModified
}

fn connection(persistent: bool, keep_alive_10: bool) -> Persistence {
    match (persistent, keep_alive_10) {
        (false, _) => Persistence::Close,
        (true, true) => Persistence::Http10KeepAlive,
        (true, false) => Persistence::Implicit,
    }
}
