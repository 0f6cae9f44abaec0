//! `GET /subscribe/<filter>`, `GET /nats` and the WebSocket echo: the head is checked, its response is sent, and the shard replaces
//! the HTTP session by one of the other protocol.
//!
//! ```text
//!   head ─▶ admit ─┬─▶ refused: 400, 401, 403, 406, 426, 503
//!                  ├─▶ 200 text/event-stream ─▶ ProtocolSwitch::Sse
//!                  └─▶ 101                   ─▶ ProtocolSwitch::WebSocket, ProtocolSwitch::Nats, ProtocolSwitch::Echo
//! ```

use std::borrow::Cow;
use std::net::IpAddr;

use stilling_engine::{CloseReason, Io};
use stilling_hub::{MessageFormat, StartFrom, UnixNanos};
use stilling_wire::http1::{BodyLength, Method, Persistence, RequestHead, ResponseEncoder, Status};
use stilling_wire::nats::Filter;
use stilling_wire::resume_position::{EventId, ResumePosition};
use stilling_wire::sse;
use stilling_wire::websocket::UpgradeRequest;

use super::accept::{self, MediaType};
use super::active_request::ActiveRequest;
use super::publish_admission::{PublishRejection, admit_nats, admit_reader, check_origin};
use super::response::Response;
use super::session::HttpSession;
use super::shard::HttpContext;
use crate::hub::{FilterStreams, HubHandle, RESERVED_SUBJECTS, SubscribeRequest};
use crate::sse::limits::RETRY_AFTER;
use crate::users::UserAccess;

pub(super) const SUBSCRIBE_PATH_PREFIX: &[u8] = b"/subscribe/";

pub(super) const NATS_PATH: &[u8] = b"/nats";

pub(super) const ECHO_PATH: &[u8] = b"/test/echo";

const EVENT_STREAM: MediaType = MediaType { kind: "text", subtype: "event-stream", version: "" };

const EVENT_STREAM_TYPE: &str = "text/event-stream";

/// The protocol that a connection continues in.
#[derive(Debug)]
pub(crate) enum ProtocolSwitch {
    Sse(SubscribeRequest),
    /// A subscriber that may also publish; `may_publish`: its listener accepts publications.
    WebSocket {
        request: SubscribeRequest,
        access: UserAccess,
        may_publish: bool,
    },
    /// The NATS client protocol in binary frames; `listener`: the index of its listener.
    Nats {
        listener: u16,
        peer: Option<IpAddr>,
    },
    Echo,
}

impl HttpSession {
    /// Takes the protocol that the connection continues in.
    pub(crate) fn take_switch(&mut self) -> Option<ProtocolSwitch> {
        match std::mem::replace(&mut self.active_request, ActiveRequest::Idle) {
            ActiveRequest::Switch(switch) => Some(*switch),
            other => {
                self.active_request = other;
                None
            }
        }
    }

    /// Handles a request for events or messages.
    pub(super) fn subscribe(&mut self, head: &RequestHead<'_>, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let wants_websocket = UpgradeRequest::is_requested(head);
        let is_closing = cx.http.is_draining();
        let Some(hub) = cx.hub.as_deref_mut().filter(|_| !is_closing) else {
            return self.refuse_for_now("the server ends: connect again", wants_websocket, io, cx);
        };
        if !hub.port.may_subscribe() {
            let reason = "too many subscriptions wait for the hub: connect again";
            return self.refuse_for_now(reason, wants_websocket, io, cx);
        }
        let admitted = admit_reader(head, hub, self.endpoint.subscribes)
            .and_then(|access| Ok((access, subscribe_request(head, hub, access, wants_websocket)?)));
        let (access, request) = match admitted {
            Ok(admitted) => admitted,
            Err(rejection) => {
                hub.counters.unauthorized.add(u64::from(rejection.status == Status::Unauthorized));
                return self.refuse_switch(head, rejection.into(), io, cx);
            }
        };
        if wants_websocket {
            let may_publish = self.endpoint.publishes;
            return self.upgrade(head, ProtocolSwitch::WebSocket { request, access, may_publish }, io, cx);
        }
        if accept::weight(head, &EVENT_STREAM).map_or_else(|| has_accept(head), |(weight, _)| weight == 0) {
            let reason = "this resource is an event stream (text/event-stream) or a WebSocket";
            return self.refuse_switch(
                head,
                PublishRejection::new(Status::NotAcceptable, reason).into(),
                io,
                cx,
            );
        }
        if head.method == Method::Head {
            let response = Response::bytes(EVENT_STREAM_TYPE, b"").with_header("Cache-Control", "no-store");
            return self.respond(response, io, cx);
        }
        cx.http.counters.count_status(Status::Ok);
        let date = cx.http.date(io.now());
        let response = ResponseEncoder {
            date: Some(date.as_bytes()),
            connection: Persistence::Close,
            content_type: Some(EVENT_STREAM_TYPE),
            // nginx passes the events on without waiting for more.
            extra: &[("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")],
            ..ResponseEncoder::new(Status::Ok)
        };
        let _ = io.send_with(|out| {
            let encoded = response.encode(out);
            debug_assert!(encoded.is_ok());
        });
        self.active_request = ActiveRequest::Switch(Box::new(ProtocolSwitch::Sse(request)));
    }

    /// Handles a request for the NATS client protocol over WebSocket. The client's CONNECT authenticates.
    pub(super) fn upgrade_to_nats(
        &mut self,
        head: &RequestHead<'_>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        let is_closing = cx.http.is_draining();
        let Some(hub) = cx.hub.as_deref_mut().filter(|_| !is_closing) else {
            return self.refuse_for_now("the server ends: connect again", true, io, cx);
        };
        if let Err(rejection) = admit_nats(head, hub, self.endpoint) {
            return self.refuse_switch(head, rejection.into(), io, cx);
        }
        let (listener, peer) = (self.listener, self.peer_address());
        self.upgrade(head, ProtocolSwitch::Nats { listener, peer }, io, cx);
    }

    /// Handles a request for the WebSocket echo.
    pub(super) fn echo(&mut self, head: &RequestHead<'_>, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Err(rejection) = check_origin(head) {
            return self.refuse_switch(head, rejection.into(), io, cx);
        }
        self.upgrade(head, ProtocolSwitch::Echo, io, cx);
    }

    fn upgrade(
        &mut self,
        head: &RequestHead<'_>,
        switch: ProtocolSwitch,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        let upgrade = match UpgradeRequest::check(head) {
            Ok(upgrade) => upgrade,
            Err(fault) => {
                let mut response =
                    Response::text(format!("{fault}\n")).with_status(fault.status()).into_refusal();
                for &(name, value) in fault.fields().iter().filter(|(name, _)| *name != "Connection") {
                    response = response.with_header(name, value);
                }
                return self.refuse_switch(head, response, io, cx);
            }
        };
        cx.http.counters.count_status(Status::SwitchingProtocols);
        let date = cx.http.date(io.now());
        let _ = io.send_with(|out| {
            let encoded = upgrade.encode_response(out, None, Some(&date));
            debug_assert!(encoded.is_ok());
        });
        self.active_request = ActiveRequest::Switch(Box::new(switch));
    }

    /// Answers a client that is to connect again soon, to the successor if there is one. A browser reconnects after the
    /// end of an event stream, but not after an error.
    fn refuse_for_now(
        &mut self,
        reason: &'static str,
        wants_websocket: bool,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        self.terms.persistent = false;
        let response = if wants_websocket {
            PublishRejection::new(Status::ServiceUnavailable, reason).into()
        } else {
            let mut body = Vec::new();
            sse::encode_retry(&mut body, RETRY_AFTER.as_millis() as u32);
            Response::bytes(EVENT_STREAM_TYPE, body).with_header("Cache-Control", "no-store")
        };
        self.respond(response, io, cx);
    }

    fn refuse_switch(
        &mut self,
        head: &RequestHead<'_>,
        response: Response,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        if head.body != BodyLength::None || head.upgrade.is_some() {
            // What follows may be a body, or frames of a client that did not wait.
            self.terms.persistent = false;
            io.finish_lingering(CloseReason::Done);
        }
        self.respond(response, io, cx);
    }
}

fn has_accept(head: &RequestHead<'_>) -> bool {
    head.header("Accept").is_some()
}

/// The subscription that a request describes.
fn subscribe_request(
    head: &RequestHead<'_>,
    hub: &HubHandle,
    access: UserAccess,
    is_websocket: bool,
) -> Result<SubscribeRequest, PublishRejection> {
    let reject = |reason: String| Err(PublishRejection::new(Status::BadRequest, reason));
    if head.body != BodyLength::None {
        return reject("a subscription has no body".to_owned());
    }
    let raw = head.target.path.strip_prefix(SUBSCRIBE_PATH_PREFIX).unwrap_or_default();
    let filter: Cow<'_, [u8]> = percent_encoding::percent_decode(raw).into();
    if let Err(error) = Filter::parse(&filter, &hub.limits.subject) {
        return reject(format!("invalid filter: {error}"));
    }
    if filter.starts_with(RESERVED_SUBJECTS) {
        return reject("reserved filter: $JS. is reserved for the hub's JetStream API".to_owned());
    }
    if !hub.users.may_subscribe(access, &filter) {
        let reason = "this user may not subscribe to this filter";
        return Err(PublishRejection::new(Status::Forbidden, reason));
    }
    let (mut format, mut from) = (None, None);
    for (name, value) in form_urlencoded::parse(head.target.query.unwrap_or_default()) {
        let place = match &*name {
            "format" => &mut format,
            "from" => &mut from,
            _ => return reject(format!("unknown parameter {name:?}; known are from and format")),
        };
        if place.replace(value).is_some() {
            return reject(format!("{name} is given twice"));
        }
    }
    let format = match (format.as_deref(), is_websocket) {
        (None | Some("json"), false) => MessageFormat::SseJson,
        (Some("raw"), false) => MessageFormat::SseRaw,
        (None | Some("json"), true) => MessageFormat::WebSocketJson,
        (Some("raw"), true) => MessageFormat::WebSocketRaw,
        (Some(other), _) => return reject(format!("unknown format {other:?}; known are json and raw")),
    };
    // The position of a reconnect is later than the one that the page was opened with.
    let position = match (head.header("Last-Event-ID").filter(|id| !is_websocket && !id.is_empty()), &from) {
        (Some(id), _) => Some(("Last-Event-ID", Cow::Borrowed(id))),
        (None, Some(from)) => Some(("from", Cow::Owned(from.as_bytes().to_vec()))),
        (None, None) => None,
    };
    let from = match position {
        None => None,
        Some((name, value)) => match ResumePosition::parse(&value) {
            Ok(position) => Some(start_from(position)),
            Err(error) => return reject(format!("invalid {name}: {error}")),
        },
    };
    let start = match (hub.streams.find(&filter), from) {
        (FilterStreams::One(stream), from) => Some((stream, from.unwrap_or(StartFrom::New))),
        (FilterStreams::None | FilterStreams::Several, None | Some(StartFrom::New)) => None,
        (FilterStreams::None, Some(_)) => {
            return reject("no stream has subjects of this filter: only new messages can be sent".to_owned());
        }
        (FilterStreams::Several, Some(_)) => {
            return reject(
                "several streams have subjects of this filter: a position needs a filter for one stream"
                    .to_owned(),
            );
        }
    };
    Ok(SubscribeRequest { filter: (&*filter).into(), format, start })
}

fn start_from(position: ResumePosition) -> StartFrom {
    match position {
        ResumePosition::New => StartFrom::New,
        ResumePosition::Sequence(sequence) => StartFrom::Sequence(sequence),
        ResumePosition::Time(time_ns) => StartFrom::Time(UnixNanos::from_nanos(time_ns)),
        ResumePosition::After(EventId { epoch, sequence }) => StartFrom::After { epoch, sequence },
        ResumePosition::All => StartFrom::Sequence(0),
    }
}
