//! How one request is to be answered: what its head said that matters when the answer is written.

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

/// Bytes of room that a connection must have before its next request is looked at: for a short answer, or for
/// the head of a long one, which may take half of it. Longer: 500 instead.
pub(super) const RESPONSE_ROOM_MIN: usize = 32 * 1024;

/// Seconds after which a shed client may try again.
pub(super) const RETRY_AFTER: &str = "1";

/// On which terms a request is to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseTerms {
    pub(super) route: Route,
    /// The connection may go on after the answer, as far as the request is concerned.
    pub(super) persistent: bool,
    /// An HTTP/1.0 client that must be told that the connection persists.
    pub(super) keep_alive_10: bool,
    /// The answer has no body.
    is_head: bool,
    /// The client understands chunks (RFC 9112 §7.1): it speaks HTTP/1.1.
    accepts_chunked: bool,
}

impl ResponseTerms {
    pub(super) fn of(head: &RequestHead<'_>, route: Route) -> Self {
        ResponseTerms {
            route,
            persistent: head.persistent,
            keep_alive_10: head.keep_alive_asked_10,
            is_head: head.method == Method::Head,
            accepts_chunked: head.version == HttpVersion::Http11,
        }
    }

    /// The terms for a request that could not be read.
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

/// Sends a short answer without fields of its own, whose head is encoded once per second. Returns whether the connection
/// persists; `None`: it is another answer, and nothing was sent.
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
        is_dated: persistent || !terms.route.is_of_server_demo(),
    };
    let now = io.now();
    let mut is_kept = true;
    // There is room.
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

/// Sends an answer with a short body. Returns whether the connection persists.
pub(super) fn send(
    terms: &ResponseTerms,
    status: Status,
    content_type: &str,
    body: &[u8],
    io: &mut Io<'_>,
    cx: &mut HttpContext<'_>,
) -> bool {
    debug_assert!(body.len() <= RESPONSE_ROOM_MIN / 2, "what is long goes out by `send_head`");
    cx.http.counters.count_answer(status);
    let persistent = terms.persistent && !cx.http.is_draining();
    let date = cx.http.date(io.now());
    let allowed = match terms.route {
        Route::OtherMethods(methods) => methods,
        _ => MethodSet::default(),
    };
    let (list, allow);
    let extra: &[(&str, &str)] = match status {
        // RFC 9110 §15.5.6: the methods that the target answers.
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

/// Sends a status with a line of explanation. Returns whether the connection persists.
pub(super) fn send_status(
    terms: &ResponseTerms,
    status: Status,
    io: &mut Io<'_>,
    cx: &mut HttpContext<'_>,
) -> bool {
    // "HTTP/1.1 404 Not Found\r\n": the code and reason make the body.
    let line = &status.line()["HTTP/1.1 ".len()..];
    let mut body = [0; 64];
    let len = line.len() - 1;
    body[..len - 1].copy_from_slice(&line[..len - 1]);
    body[len - 1] = b'\n';
    send(terms, status, TEXT, &body[..len], io, cx)
}

/// Sends the head of a handler's answer and decides the framing of its body. Returns whether the
/// connection persists, and the body that is to follow. A streamed body takes what is `reservation` for it along.
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
    // RFC 9112 §6.3: without a length and without chunks only the connection's end tells the body's.
    let framed = length.is_some() || terms.accepts_chunked;
    let persistent = terms.persistent && framed && !cx.http.is_draining();
    let own = fields.iter().map(|(name, value)| (&**name, &**value));
    let framing =
        if length.is_none() && terms.accepts_chunked { StreamFraming::Chunked } else { StreamFraming::Plain };
    // RFC 9112 §6.1: not where there can be no body, whatever the method.
    let chunks = (framing == StreamFraming::Chunked && !forbids_body(status))
        .then_some(("Transfer-Encoding", "chunked"));
    let retry = (status == Status::ServiceUnavailable && !own.clone().any(|(name, _)| is_retry_after(name)))
        .then_some(("Retry-After", RETRY_AFTER));
    let mut few = [("", ""); STACK_FIELDS_MAX];
    let many: Vec<(&str, &str)>;
    let all = own.chain(chunks).chain(retry);
    let count = all.clone().count();
    let extra = if let Some(few) = few.get_mut(..count) {
        few.iter_mut().zip(all).for_each(|(place, field)| *place = field);
        &*few
    } else {
        many = all.collect();
        &many[..]
    };
    let date = cx.http.date(io.now());
    let reply = ResponseEncoder {
        status,
        date: Some(date.as_bytes()),
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
        // The caller has made room for a whole short answer.
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

/// The body that follows its head.
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

/// What an answer would count for among those that wait for their clients: nothing if it goes out at once.
pub(super) fn cost(terms: &ResponseTerms, response: &Response, room: usize) -> usize {
    match &response.body {
        _ if terms.is_head || forbids_body(response.status) => 0,
        // Its head takes some of the room.
        ResponseBody::Bytes(bytes) if bytes.len() + RESPONSE_ROOM_MIN / 2 > room => bytes.len(),
        ResponseBody::Stream(_) => STREAM_COST,
        ResponseBody::Bytes(_) | ResponseBody::Static(_) | ResponseBody::Delegate(_) => 0,
    }
}

/// Fields of an answer, the server's own among them, for which no memory has to be found.
const STACK_FIELDS_MAX: usize = 12;

fn is_retry_after(name: &str) -> bool {
    name.eq_ignore_ascii_case("retry-after")
}

/// RFC 9110 §15.2: the client would go on waiting for the final answer.
fn is_interim(status: Status) -> bool {
    status.code() < 200
}

/// Fields that frame the message, or that there must not be two of.
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
        (true, true) => Persistence::KeepAlive10,
        (true, false) => Persistence::Implicit,
    }
}
