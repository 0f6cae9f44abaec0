//! Server-sent events (WHATWG HTML, section 9.2): `GET /subscribe/<filter>` without an upgrade. The HTTP session sends
//! the head of the response; all that follows is the same for every subscriber of a filter.

pub(crate) mod limits;
mod session;

pub(crate) use session::{SseContext, SseSession};
