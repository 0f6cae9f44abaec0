//! The session of a connection of any protocol, and its mail.

use std::io;

use stilling_engine::{CloseReason, Io, Session};
use stilling_wire::nats::server_operation_len;
use stilling_workers::{JobPosition, JobResult};

use super::ShardService;
use crate::http::{HttpSession, JobOutcome, ProtocolSwitch};
use crate::hub::HubMail;
use crate::nats::NatsSession;
use crate::protocol::CustomConnection;
use crate::sse::SseSession;
use crate::syslog::SyslogSession;
use crate::upstream::{ConnectionCommand, RequestId, UpstreamConnection, UpstreamEvent};
use crate::websocket::{WebSocketPurpose, WebSocketSession, frame_len};

/// The session of a connection: with a client, or with a worker process.
#[derive(Debug)]
pub struct ShardSession(pub(super) SessionKind);

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all sessions are HTTP's")]
pub(super) enum SessionKind {
    Http(HttpSession),
    Upstream(Box<UpstreamConnection>),
    Nats(NatsSession),
    Syslog(SyslogSession),
    Custom(CustomConnection),
    Sse(SseSession),
    WebSocket(WebSocketSession),
}

// Other protocols cost an idle HTTP client nothing, and are accepted without an allocation.
const _: () =
    assert!(size_of::<ShardSession>() == size_of::<HttpSession>(), "a session is larger than HTTP's");

/// Mail for a connection of the shard.
pub struct ShardMail(pub(super) MailKind);

pub(super) enum MailKind {
    /// The outcome of the job that was queued at that position.
    Job(JobPosition, JobResult<JobOutcome>),
    /// An event of a request to a worker process, for its client.
    UpstreamEvent(RequestId, UpstreamEvent),
    UpstreamCommand(ConnectionCommand),
    Hub(HubMail),
}

/// Calls a method that all sessions have, with the protocol's context as its last argument.
macro_rules! on_session {
    ($session:expr, $service:expr, $name:ident($($argument:expr),*)) => {
        match &mut $session.0 {
            SessionKind::Http(session) => session.$name($($argument,)* &mut $service.http()),
            SessionKind::Upstream(session) => {
                let pool = session.pool();
                session.$name($($argument,)* &mut $service.upstream(pool))
            }
            SessionKind::Nats(session) => session.$name($($argument,)* &mut $service.nats()),
            SessionKind::Syslog(session) => session.$name($($argument,)* &mut $service.syslog()),
            SessionKind::Custom(session) => session.$name($($argument,)* &mut $service.custom()),
            SessionKind::Sse(session) => session.$name($($argument,)* &mut $service.sse()),
            SessionKind::WebSocket(session) => session.$name($($argument,)* &mut $service.websocket()),
        }
    };
}

impl ShardSession {
    pub(super) fn into_http(self) -> Option<HttpSession> {
        match self.0 {
            SessionKind::Http(session) => Some(session),
            SessionKind::Upstream(_)
            | SessionKind::Nats(_)
            | SessionKind::Syslog(_)
            | SessionKind::Custom(_)
            | SessionKind::Sse(_)
            | SessionKind::WebSocket(_) => None,
        }
    }

    /// Continues the connection in another protocol if the HTTP session has switched to it. Returns whether it has.
    fn switch_protocol(&mut self, io: &mut Io<'_>, service: &mut ShardService) -> bool {
        let SessionKind::Http(session) = &mut self.0 else { return false };
        let Some(switch) = session.take_switch() else { return false };
        self.0 = match switch {
            ProtocolSwitch::Sse(request) => {
                SessionKind::Sse(SseSession::open(&request, io, &mut service.sse()))
            }
            ProtocolSwitch::WebSocket { request, access, may_publish } => {
                let purpose = WebSocketPurpose::Subscriber { request, access, may_publish };
                SessionKind::WebSocket(WebSocketSession::open(&purpose, io, &mut service.websocket()))
            }
            ProtocolSwitch::Nats { listener, peer } => {
                let mut session = NatsSession::over_websocket(listener.into(), peer);
                session.opened(io, &mut service.nats());
                SessionKind::Nats(session)
            }
            ProtocolSwitch::Echo => {
                let purpose = WebSocketPurpose::Echo;
                SessionKind::WebSocket(WebSocketSession::open(&purpose, io, &mut service.websocket()))
            }
        };
        true
    }
}

impl Session for ShardSession {
    type Service = ShardService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut ShardService) {
        match &mut self.0 {
            SessionKind::Http(session) => session.opened(io, &mut service.http()),
            SessionKind::Upstream(session) => {
                let pool = session.pool();
                session.opened(io, &mut service.upstream(pool));
            }
            SessionKind::Nats(session) => session.opened(io, &mut service.nats()),
            SessionKind::Syslog(session) => session.opened(io, &mut service.syslog()),
            SessionKind::Custom(session) => session.opened(io, &mut service.custom()),
            // An HTTP session has switched to them.
            SessionKind::Sse(_) | SessionKind::WebSocket(_) => {}
        }
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut ShardService) -> usize {
        let consumed = on_session!(self, service, received(bytes, io));
        if self.switch_protocol(io, service) && !io.is_finishing() {
            let rest = &bytes[consumed..];
            return consumed + on_session!(self, service, received(rest, io));
        }
        consumed
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut ShardService) {
        on_session!(self, service, ended(io));
    }

    fn flushed(&mut self, io: &mut Io<'_>, service: &mut ShardService) {
        on_session!(self, service, flushed(io));
    }

    fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, service: &mut ShardService) {
        match &mut self.0 {
            SessionKind::Http(session) => session.offer_sent(count, io, &mut service.http()),
            SessionKind::Custom(session) => session.offer_sent(count, io, &mut service.custom()),
            // These sessions offer nothing.
            SessionKind::Upstream(_)
            | SessionKind::Nats(_)
            | SessionKind::Syslog(_)
            | SessionKind::Sse(_) => {}
            SessionKind::WebSocket(session) => session.offer_sent(count, io, &mut service.websocket()),
        }
    }

    fn delivered(&mut self, mail: ShardMail, io: &mut Io<'_>, service: &mut ShardService) {
        match (&mut self.0, mail.0) {
            (SessionKind::Http(session), MailKind::Job(position, outcome)) => {
                session.job_done(position, outcome, io, &mut service.http());
            }
            (SessionKind::Http(session), MailKind::UpstreamEvent(id, event)) => {
                session.upstream_event(id, event, io, &mut service.http());
            }
            (SessionKind::Http(session), MailKind::Hub(mail)) => {
                session.hub_mail(mail, io, &mut service.http());
            }
            (SessionKind::Upstream(session), MailKind::UpstreamCommand(command)) => {
                let pool = session.pool();
                session.handle_command(command, io, &mut service.upstream(pool));
            }
            (SessionKind::Nats(session), MailKind::Hub(mail)) => {
                session.delivered(mail, io, &mut service.nats());
            }
            (SessionKind::Syslog(session), MailKind::Hub(mail)) => {
                session.delivered(mail, io, &mut service.syslog());
            }
            (SessionKind::Sse(session), MailKind::Hub(mail)) => {
                session.delivered(mail, io, &mut service.sse());
            }
            (SessionKind::WebSocket(session), MailKind::Hub(mail)) => {
                session.delivered(mail, io, &mut service.websocket());
            }
            (SessionKind::Custom(session), MailKind::Hub(HubMail::Room)) => {
                session.room_available(io, &mut service.custom());
            }
            (SessionKind::Http(_), MailKind::UpstreamCommand(_))
            | (
                SessionKind::Upstream(_),
                MailKind::Job(..) | MailKind::UpstreamEvent(..) | MailKind::Hub(_),
            )
            | (SessionKind::Custom(_), MailKind::Hub(HubMail::Delivery))
            | (
                SessionKind::Nats(_)
                | SessionKind::Syslog(_)
                | SessionKind::Custom(_)
                | SessionKind::Sse(_)
                | SessionKind::WebSocket(_),
                MailKind::Job(..) | MailKind::UpstreamEvent(..) | MailKind::UpstreamCommand(_),
            ) => {}
        }
    }

    fn deadline(&mut self, io: &mut Io<'_>, service: &mut ShardService) {
        on_session!(self, service, deadline(io));
    }

    fn draining(&mut self, io: &mut Io<'_>, service: &mut ShardService) {
        on_session!(self, service, draining(io));
    }

    fn connect_failed(&mut self, error: &io::Error, _: &mut ShardService) {
        if let SessionKind::Upstream(session) = &mut self.0 {
            session.connect_failed(error);
        }
    }

    fn send_error(&mut self, nothing_sent: bool) -> bool {
        match &mut self.0 {
            SessionKind::Upstream(session) => session.send_error(nothing_sent),
            SessionKind::Http(_)
            | SessionKind::Nats(_)
            | SessionKind::Syslog(_)
            | SessionKind::Custom(_)
            | SessionKind::Sse(_)
            | SessionKind::WebSocket(_) => false,
        }
    }

    fn message_len(&self, bytes: &[u8]) -> Option<usize> {
        match self.0 {
            SessionKind::Nats(ref session) if !session.is_over_websocket() => server_operation_len(bytes),
            SessionKind::Nats(_) | SessionKind::WebSocket(_) => frame_len(bytes),
            SessionKind::Http(_)
            | SessionKind::Upstream(_)
            | SessionKind::Syslog(_)
            | SessionKind::Custom(_)
            | SessionKind::Sse(_) => None,
        }
    }

    fn slow_consumer(&mut self, service: &mut ShardService) -> &'static [u8] {
        match &mut self.0 {
            SessionKind::Nats(session) => session.slow_consumer(&mut service.nats()),
            SessionKind::WebSocket(session) => session.slow_consumer(&mut service.websocket()),
            SessionKind::Custom(session) => {
                session.slow_consumer(&mut service.custom());
                b""
            }
            SessionKind::Sse(session) => {
                session.slow_consumer(&mut service.sse());
                b""
            }
            SessionKind::Http(_) | SessionKind::Upstream(_) | SessionKind::Syslog(_) => b"",
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut ShardService) {
        on_session!(self, service, closed(reason));
    }
}
