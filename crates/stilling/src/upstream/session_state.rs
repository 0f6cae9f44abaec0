//! Session state of requests: how a request names its session, and the fields that processes see.
//!
//! A process gets the state of the session as the field [`STATE_FIELD`] of the request, and replaces it with the same field
//! of its response; an empty value ends the session. The field is the server's: one from a client is dropped, and clients
//! never receive it.
//!
//! Over HTTP a session is a cookie with an id that the server makes when a process first stores a state; an id that the
//! server does not know names no session, so no client can choose one. Over CoAP the client chooses a name, which counts
//! for its address only.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use stilling_ring::Time;
use stilling_wire::http1::{Fields, ResponseHead};
use stilling_workers::sessions::{SessionKey, SessionLookup, SessionName, SessionPort, SessionUpdate};

/// The field of requests and responses with the state of the session.
pub(crate) const STATE_FIELD: &str = "Stilling-Session-State";
/// What the name of the cookie begins with; the pool's name follows.
const COOKIE_PREFIX: &str = "stilling-session-";
/// Digits of an id in a cookie.
const ID_DIGITS: usize = 32;

pub(crate) fn is_state_field(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(STATE_FIELD.as_bytes())
}

/// The session of a request.
#[derive(Debug, Default)]
pub(crate) struct RequestSession {
    key: Option<SessionKey>,
    /// The client's address, if known.
    peer: Option<IpAddr>,
    /// Whether the server makes the id of a new session, and the client gets it as a cookie.
    has_cookie: bool,
    /// Whether the process got a state.
    is_known: bool,
}

impl RequestSession {
    /// The session that the cookies of a request name.
    pub(crate) fn of_cookies(fields: Fields<'_>, cookie: &str, peer: Option<IpAddr>) -> RequestSession {
        let key = fields
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"cookie"))
            .flat_map(|(_, value)| value.split(|byte| *byte == b';'))
            .filter_map(|pair| pair.trim_ascii().strip_prefix(cookie.as_bytes())?.strip_prefix(b"="))
            .find_map(parse_id);
        RequestSession { key, peer, has_cookie: true, is_known: false }
    }

    /// The session of this name, or none.
    pub(crate) fn named(name: Option<SessionName>, peer: IpAddr) -> RequestSession {
        let key = name.map(|name| SessionKey::Name(peer, name));
        RequestSession { key, peer: Some(peer), has_cookie: false, is_known: false }
    }
}

/// An id in its one written form.
fn parse_id(text: &[u8]) -> Option<SessionKey> {
    if text.len() != ID_DIGITS || !text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    u128::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok().map(SessionKey::Id)
}

/// A new id; `None`: the system has no random bytes, which it always has after its start.
fn new_id() -> Option<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(u128::from_ne_bytes(bytes))
}

/// The sessions of a pool, as one shard sees them.
pub(crate) struct PoolSessions {
    port: SessionPort,
    /// The name of the cookie.
    cookie: Arc<str>,
}

impl PoolSessions {
    pub(super) fn new(port: SessionPort, pool: &str) -> PoolSessions {
        PoolSessions { port, cookie: format!("{COOKIE_PREFIX}{pool}").into() }
    }

    pub(super) fn cookie(&self) -> &Arc<str> {
        &self.cookie
    }

    /// The state of a request's session; `None`: the lookup must be repeated in the next turn.
    pub(super) fn state(&self, session: &mut RequestSession, now: Time) -> Option<Option<Arc<[u8]>>> {
        let state = match session.key.as_ref().map(|key| self.port.lookup(key, now)) {
            Some(SessionLookup::Busy) => return None,
            Some(SessionLookup::Found(state)) => Some(state),
            Some(SessionLookup::Unknown) | None => None,
        };
        session.is_known = state.is_some();
        Some(state)
    }

    /// Stores the state that a response has. Returns a field that tells the client of a new session, or of its end.
    pub(super) fn store(
        &mut self,
        session: &RequestSession,
        head: &ResponseHead<'_>,
        now: Time,
    ) -> Option<String> {
        let (_, state) = head.headers().find(|(name, _)| is_state_field(name))?;
        let is_end = state.is_empty();
        let key = match session.key {
            Some(key) if session.is_known || !session.has_cookie => key,
            _ if is_end => return None,
            _ if session.has_cookie => SessionKey::Id(new_id()?),
            // Over CoAP, without a name.
            _ => return None,
        };
        let is_new = !session.is_known && session.has_cookie;
        self.port.update(
            SessionUpdate {
                key,
                peer: session.peer,
                state: (!is_end).then(|| state.into()),
                may_create: is_new || !session.has_cookie,
            },
            now,
        );
        let mut field = String::new();
        let cookie = &self.cookie;
        // Writing to memory does not fail.
        let _ = match key {
            SessionKey::Id(_) if is_end => {
                write!(field, "Set-Cookie: {cookie}=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax\r\n")
            }
            SessionKey::Id(id) if is_new => {
                write!(field, "Set-Cookie: {cookie}={id:032x}; Path=/; HttpOnly; SameSite=Lax\r\n")
            }
            SessionKey::Id(_) | SessionKey::Name(..) => return None,
        };
        Some(field)
    }
}
