//! A request for a process. Its head is rewritten directly from the receive buffer.

use std::io::Write;
use std::net::IpAddr;
use std::ops::Range;

use stilling_ring::Time;
use stilling_wire::frames;
use stilling_wire::http1::{BodyLength, HttpVersion, Method, RequestHead};

use super::hop_by_hop::HopByHopFields;
use super::limits::{BODY_HELD_MAX, FIRST_BODY_MAX, MEMORY_RESERVE_DIVISOR, PIECE_SIZE_MAX};
use super::request_table::PoolIndex;
use super::session_state::{PoolSessions, RequestSession, STATE_FIELD, is_state_field};
use crate::memory::MemoryReservation;

/// A request, kept until a process has it.
#[derive(Debug)]
pub(crate) struct UpstreamRequest {
    /// The pool that answers it.
    pub(super) pool: PoolIndex,
    /// Request line and fields, without framing and without the empty line.
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// The length of the whole body.
    pub(super) length: BodyLength,
    /// More of the body follows; the pool requests it.
    pub(super) has_more: bool,
    pub(super) is_head: bool,
    /// May be sent twice (RFC 9110 §9.2.2).
    pub(super) is_idempotent: bool,
    pub(super) accepts_chunked: bool,
    /// The number of its frame, if it has been put into one.
    pub(super) number: Option<u32>,
    pub(super) session: RequestSession,
    /// The part of the head with the state of the session.
    state_field: Range<usize>,
    /// Memory for head and body.
    reservation: MemoryReservation,
}

impl UpstreamRequest {
    /// Rewrites the head of an HTTP request into `out`, a buffer with any content. `peer`: the client's address, if
    /// known.
    pub(crate) fn new(
        pool: PoolIndex,
        head: &RequestHead<'_>,
        peer: Option<IpAddr>,
        mut out: Vec<u8>,
        reservation: MemoryReservation,
    ) -> Box<UpstreamRequest> {
        out.clear();
        write_head(head, peer, &mut out);
        Box::new(UpstreamRequest {
            pool,
            head: out,
            body: Vec::new(),
            length: head.body,
            has_more: head.body != BodyLength::None,
            is_head: head.method == Method::Head,
            is_idempotent: matches!(
                head.method,
                Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options | Method::Trace
            ),
            accepts_chunked: head.version == HttpVersion::Http11,
            number: None,
            session: RequestSession::default(),
            state_field: 0..0,
            reservation,
        })
    }

    /// A complete request of another protocol than HTTP. `head`: request line and fields, without framing and without
    /// the empty line. The response is not framed as chunks.
    pub(crate) fn translated(
        pool: PoolIndex,
        head: Vec<u8>,
        body: Vec<u8>,
        is_idempotent: bool,
        reservation: MemoryReservation,
    ) -> Box<UpstreamRequest> {
        let length = match body.len() {
            0 => BodyLength::None,
            size => BodyLength::Sized(size as u64),
        };
        Box::new(UpstreamRequest {
            pool,
            head,
            body,
            length,
            has_more: false,
            is_head: false,
            is_idempotent,
            accepts_chunked: false,
            number: None,
            session: RequestSession::default(),
            state_field: 0..0,
            reservation,
        })
    }

    /// Sets the session of the request. Without it, its state is none.
    pub(crate) fn set_session(&mut self, session: RequestSession) {
        self.session = session;
    }

    /// Replaces the state of the session in the head. Returns false if it must be called again in the next turn,
    /// because another shard has the sessions.
    pub(super) fn attach_session_state(&mut self, sessions: Option<&PoolSessions>, now: Time) -> bool {
        let Some(sessions) = sessions else { return true };
        let Some(state) = sessions.state(&mut self.session, now) else { return false };
        self.set_state_field(state.as_deref());
        true
    }

    fn set_state_field(&mut self, state: Option<&[u8]>) {
        let mut field = Vec::new();
        if let Some(state) = state {
            for part in [STATE_FIELD.as_bytes(), b": ", state, b"\r\n"] {
                field.extend_from_slice(part);
            }
        }
        if self.state_field.is_empty() && !field.is_empty() {
            // Behind the request line.
            let prefix = if self.number.is_some() { frames::PREFIX_SIZE } else { 0 };
            let line_end = self.head[prefix..].iter().position(|byte| *byte == b'\n');
            let line_end = line_end.map_or(prefix, |at| prefix + at + 1);
            self.state_field = line_end..line_end;
        }
        let start = self.state_field.start;
        let end = start + field.len();
        self.head.splice(std::mem::replace(&mut self.state_field, start..end), field);
        if let Some(number) = self.number {
            self.head.drain(..frames::PREFIX_SIZE);
            self.put_prefix(number);
        }
    }

    /// The bytes of a translated request, for tests.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        (&self.head, &self.body)
    }

    /// Reserves memory for the head; returns false if all requests together would hold more than `max` bytes.
    pub(crate) fn hold_head(&mut self, max: usize) -> bool {
        self.reservation.grow(self.head.len(), max)
    }

    /// Adds a piece of the body; returns false if all requests together would hold more than `max` bytes.
    pub(crate) fn push(&mut self, piece: &[u8], max: usize) -> bool {
        let has_room = self.reservation.grow(piece.len(), max);
        if has_room {
            self.body.extend_from_slice(piece);
        }
        has_room
    }

    pub(crate) fn end_body(&mut self) {
        self.has_more = false;
    }

    /// Whether more of the body may be buffered before the request is queued. `max`: bytes that all requests may hold.
    pub(crate) fn may_grow(&self, max: usize) -> bool {
        let is_long = self.body.len() >= FIRST_BODY_MAX;
        let has_room = || self.reservation.has_room(PIECE_SIZE_MAX, max / MEMORY_RESERVE_DIVISOR);
        !is_long || self.body.len() < BODY_HELD_MAX && has_room()
    }

    /// Puts the request, with closed head, into a frame. Called once.
    pub(super) fn put_into_frame(&mut self, number: u32) {
        self.put_prefix(number);
        self.number = Some(number);
    }

    fn put_prefix(&mut self, number: u32) {
        let size = self.head.len() + self.body.len();
        let prefix = frames::prefix(size, number).expect("a body is held whole: some BODY_HELD_MAX bytes");
        self.head.splice(0..0, prefix);
    }

    /// Whether the body is as long as one may be that is received before the request is queued.
    pub(crate) fn is_full(&self) -> bool {
        self.body.len() >= BODY_HELD_MAX
    }

    /// Appends the framing and the empty line to the head, and frames the body's beginning. Called once.
    pub(super) fn close_head(&mut self) {
        let length = match self.length {
            // A complete chunked body gets a length: some programs cannot read chunks.
            BodyLength::Chunked if !self.has_more => Some(self.body.len() as u64),
            BodyLength::Chunked => None,
            BodyLength::Sized(length) => Some(length),
            BodyLength::None => {
                // RFC 9110 §8.6: a method that anticipates content sends `Content-Length: 0`.
                let may_have =
                    [b"POST", &b"PUT "[..], b"PATC"].iter().any(|name| self.head.starts_with(name));
                if may_have {
                    self.head.extend_from_slice(b"Content-Length: 0\r\n");
                }
                return self.head.extend_from_slice(b"\r\n");
            }
        };
        // Writing to memory does not fail.
        let _ = match length {
            Some(length) => write!(self.head, "Content-Length: {length}\r\n\r\n"),
            None => write!(self.head, "Transfer-Encoding: chunked\r\n\r\n"),
        };
        if length.is_none() && !self.body.is_empty() {
            let _ = write!(self.head, "{:x}\r\n", self.body.len());
            self.body.extend_from_slice(b"\r\n");
        }
    }
}

fn write_head(head: &RequestHead<'_>, peer: Option<IpAddr>, out: &mut Vec<u8>) {
    let push = |out: &mut Vec<u8>, parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    push(out, &[head.method.as_bytes(), b" ", head.target.path]);
    if let Some(query) = head.target.query {
        push(out, &[b"?", query]);
    }
    // RFC 9112 §3.2: the target in origin form, the authority in Host.
    push(out, &[b" HTTP/1.1\r\nHost: ", head.host.unwrap_or_default(), b"\r\n"]);
    let hop_by_hop = HopByHopFields::of(head.headers());
    for (name, value) in head.headers() {
        if !is_dropped(name) && !hop_by_hop.contains(name) {
            push(out, &[name, b": ", value, b"\r\n"]);
        }
    }
    if let Some(peer) = peer {
        // Writing to memory does not fail.
        let _ = write!(out, "X-Forwarded-For: {}\r\n", peer.to_canonical());
    }
    out.extend_from_slice(b"X-Forwarded-Proto: http\r\n");
    if let Some(host) = head.host {
        push(out, &[b"X-Forwarded-Host: ", host, b"\r\n"]);
    }
    // RFC 9110 §7.6.3.
    out.extend_from_slice(b"Via: ");
    for (name, value) in head.headers() {
        if name.eq_ignore_ascii_case(b"via") && !hop_by_hop.contains(name) {
            push(out, &[value, b", "]);
        }
    }
    out.extend_from_slice(if head.version == HttpVersion::Http11 {
        b"1.1 stilling\r\n"
    } else {
        b"1.0 stilling\r\n"
    });
}

/// Fields that the server writes itself, or that a program must not see: `Proxy` becomes the CGI variable `HTTP_PROXY`,
/// which some programs use as their own proxy; `X-Forwarded-*`, `X-Real-IP` and `Forwarded` (RFC 7239) are unverified;
/// the state of a session is the server's; a name with `_` becomes the same CGI variable as the one with `-` (RFC 3875 §4.1.18).
fn is_dropped(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] = [b"host", b"proxy", b"via", b"forwarded", b"x-real-ip"];
    const PREFIX: &[u8] = b"x-forwarded-";
    name.contains(&b'_')
        || is_state_field(name)
        || NAMES.iter().any(|dropped| name.eq_ignore_ascii_case(dropped))
        || name.get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};

    use super::*;

    fn rewritten(fields: &str) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n");
        let step = RequestDecoder::default().decode(&HttpLimits::default(), request.as_bytes());
        let Ok(RequestEvent::Head(head)) = step.map(|step| step.event) else { panic!("{request:?}") };
        let peer = Some(IpAddr::from([192, 0, 2, 9]));
        let reservation = MemoryReservation::new(&Arc::default());
        let request = UpstreamRequest::new(PoolIndex(0), &head, peer, Vec::new(), reservation);
        String::from_utf8(request.head).expect("it is text")
    }

    /// Row 1.5: a request that is sent again has the state that the session has then, and nothing else changes.
    #[test]
    fn the_state_of_a_session_is_replaced() {
        let reservation = MemoryReservation::new(&Arc::default());
        let head = b"GET /a HTTP/1.1\r\nHost: a\r\n".to_vec();
        let mut request =
            UpstreamRequest::translated(PoolIndex(0), head, b"body".to_vec(), true, reservation);
        request.close_head();
        let field = |state: &str| format!("Stilling-Session-State: {state}\r\n");
        for state in [None, Some("first"), Some("1"), None, Some("longer than before"), None] {
            request.set_state_field(state.map(str::as_bytes));
            let line = state.map(field).unwrap_or_default();
            let expected = format!("GET /a HTTP/1.1\r\n{line}Host: a\r\nContent-Length: 4\r\n\r\n");
            assert_eq!(String::from_utf8_lossy(&request.head), expected);
        }
        // A frame whose length and number contain the byte of a line feed.
        request.put_into_frame(0x0a0a);
        let padding = "x".repeat(0x0a00);
        for state in [Some(padding.as_str()), None, Some("1")] {
            request.set_state_field(state.map(str::as_bytes));
            let line = state.map(field).unwrap_or_default();
            let head = format!("GET /a HTTP/1.1\r\n{line}Host: a\r\nContent-Length: 4\r\n\r\n");
            let prefix = frames::prefix(head.len() + "body".len(), 0x0a0a).expect("it is short");
            assert_eq!(request.head, [&prefix, head.as_bytes()].concat());
        }
    }

    /// Row 1.3.
    #[test]
    fn forwarding_fields_of_the_client_are_dropped() {
        let expected = "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 192.0.2.9\r\n\
                    X-Forwarded-Proto: http\r\nX-Forwarded-Host: shop.example\r\nVia: 1.1 stilling\r\n";
        assert_eq!(rewritten(""), expected);
        for claim in [
            "X-Forwarded-Proto: https",
            "x-forwarded-proto: https\r\nX-FORWARDED-PROTO: https",
            "X-Forwarded-Host: evil.example",
            "Connection: X-Forwarded-Proto, X-Forwarded-Host\r\nX-Forwarded-Proto: https",
            "Stilling-Session-State: injected",
            "stilling-session-STATE: injected",
            "Stilling_Session_State: injected",
            "Forwarded: for=192.0.2.1;proto=https;host=evil.example",
            "X_Forwarded_Proto: https\r\nX_Forwarded-For: 192.0.2.1",
            "Remote_User: admin",
            "X-Forwarded-For: 192.0.2.1",
            "x-forwarded-FOR: 192.0.2.1\r\nX_Forwarded_For: 192.0.2.1\r\nX-Forwarded_For: 192.0.2.1",
            "Connection: X-Forwarded-For\r\nX-Forwarded-For: 192.0.2.1",
            "X-Forwarded-Port: 443\r\nX-Forwarded-Prefix: /admin\r\nX-Forwarded-Server: evil.example",
            "X-Real-IP: 192.0.2.1\r\nX_Real_IP: 192.0.2.1\r\nx-real-ip: 192.0.2.1",
        ] {
            assert_eq!(rewritten(&format!("{claim}\r\n")), expected, "{claim}");
        }
    }
}
