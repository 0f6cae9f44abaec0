//! Protocols of your own, beside those that the server speaks.
//!
//! A protocol is registered with the address of its listener ([`ServeConfig::protocols`](crate::ServeConfig::protocols)). Its
//! connections share the shards with all others and end with the server's drain. Their sessions may publish messages.
//!
//! - **Authentication** is the session's task: whatever it publishes is published, whoever sent it.
//! - **Time**: a connection that sends nothing for the idle timeout
//!   ([`ServeConfig::timeouts`](crate::ServeConfig::timeouts)) ends, unless its session sets deadlines of its own.
//! - **Panics**: a session that panics is discarded, and its connection closed with
//!   [`SessionPanicked`](CloseReason::SessionPanicked); the panic hook of the process reports it. (A program that is built with
//!   `panic = "abort"` ends.)
//! - **Hub**: with a protocol the server has a hub, and keeps its streams, also without listeners for NATS or syslog. A server
//!   whose sessions publish nothing needs no folder for streams if [`MessagingConfig::streams`](crate::settings::MessagingConfig::streams) is
//!   empty.
//!
//! ```
//! use std::net::IpAddr;
//! use std::sync::Arc;
//!
//! use stilling::ServeConfig;
//! use stilling::engine::Io;
//! use stilling::protocol::{CustomContext, CustomListener, CustomProtocol, CustomSession};
//!
//! /// Answers each byte with itself.
//! struct Echo;
//!
//! impl CustomProtocol for Echo {
//!     fn accept(&self, _: Option<IpAddr>) -> Box<dyn CustomSession> {
//!         Box::new(Echo)
//!     }
//! }
//!
//! impl CustomSession for Echo {
//!     fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut CustomContext<'_>) -> usize {
//!         let count = bytes.len().min(io.room());
//!         let _ = io.send(&bytes[..count]);
//!         if count < bytes.len() {
//!             io.call_again();
//!         }
//!         count
//!     }
//! }
//!
//! let listener = CustomListener { address: "127.0.0.1:7".parse().unwrap(), protocol: Arc::new(Echo) };
//! let config = ServeConfig { protocols: vec![listener], ..ServeConfig::default() };
//! # let _ = config;
//! ```

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_hub::{ClientOptions, HubRequest, Ingress, Publication};
use stilling_wire::nats::Subject;

use crate::hub::{HubHandle, RESERVED_SUBJECTS};
use crate::lifecycle::Lifecycle;

mod connection;

pub(crate) use connection::CustomConnection;

/// A protocol. It is shared by all shards.
pub trait CustomProtocol: Send + Sync {
    /// A session for a connection that was accepted from `peer`, if the system tells where it comes from.
    fn accept(&self, peer: Option<IpAddr>) -> Box<dyn CustomSession>;
}

/// A protocol with the address of its listener.
#[derive(Clone)]
pub struct CustomListener {
    /// Where it listens; port 0 takes a free port.
    pub address: SocketAddr,
    /// What is spoken there.
    pub protocol: Arc<dyn CustomProtocol>,
}

impl fmt::Debug for CustomListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// One connection. All methods but `received` have a default. They run on the shard's thread and must not block.
///
/// After a call in which the session finishes or aborts the connection only `closed` follows. A connection whose session asks for
/// its socket ([`Io::detach`]) is closed: nothing takes such sockets.
pub trait CustomSession {
    /// The connection is open. Its deadline is the idle timeout of the server, see [`deadline`](CustomSession::deadline).
    fn opened(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = (io, cx);
    }

    /// Bytes came: see [`Session::received`](stilling_engine::Session::received). Returns how many are consumed.
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut CustomContext<'_>) -> usize;

    /// The peer has finished sending. By default the connection finishes, too.
    fn ended(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = cx;
        io.finish(CloseReason::PeerClosed);
    }

    /// All output is with the system again, after it had been held up.
    fn flushed(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = (io, cx);
    }

    /// So many of the bytes that were [offered](Io::offer) are with the system, and more may be offered: see
    /// [`Session::taken`](stilling_engine::Session::taken).
    fn taken(&mut self, count: usize, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = (count, io, cx);
    }

    /// There may be room for a publication again, after [`PublishError::NoRoom`]; called once for however many of these. By
    /// default input is shown again.
    fn has_room(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = cx;
        io.resume();
    }

    /// The deadline has come. By default the connection is aborted.
    ///
    /// Until the session sets a deadline, or takes it away ([`Io::set_deadline`]), it is the idle timeout of the server
    /// ([`ServeConfig::timeouts`](crate::ServeConfig::timeouts)), counted from the last bytes that were shown; time in which the
    /// session waits for room does not count. While output is held up the write timeout counts instead.
    fn deadline(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = cx;
        io.abort(CloseReason::IdleTimeout);
    }

    /// The server drains: called once, unless the connection has finished. By default
    /// [it finishes when its peer is silent](CustomContext::finish_when_quiet). A session that does otherwise has to finish the
    /// connection itself. Until it does, the end of the server, and a hot restart, wait for it, up to the drain timeout.
    fn draining(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = io;
        cx.finish_when_quiet();
    }

    /// The connection is closed. Called once, last, but for sessions that panicked.
    fn closed(&mut self, reason: CloseReason) {
        let _ = reason;
    }
}

/// What a session of a custom protocol sees of its shard.
pub struct CustomContext<'a> {
    hub: Option<&'a mut HubHandle>,
    lifecycle: &'a Lifecycle,
    /// The idle timeout of the server.
    idle_timeout: Duration,
    /// The connection waits for room on the way to the hub.
    awaits_room: bool,
    /// The session has asked for an end of the connection when its peer is silent.
    finishes_when_quiet: bool,
}

/// Why a message was not published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishError {
    /// The hub is with another server that has taken over from this one (hot restart). The next connection of the client leads
    /// there.
    NoHub,
    /// The subject has wildcards, empty tokens or blanks, is too long, or is reserved.
    Subject,
    /// The message is longer than any stream takes.
    TooLong,
    /// There is no room on the way to the hub now. The session should [pause](Io::pause) and try again when
    /// [`has_room`](CustomSession::has_room) is called.
    NoRoom,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PublishError::NoHub => "another server has taken over",
            PublishError::Subject => "the subject cannot be published to",
            PublishError::TooLong => "the message is too long",
            PublishError::NoRoom => "there is no room for the message now",
        })
    }
}

impl std::error::Error for PublishError {}

impl<'a> CustomContext<'a> {
    pub(crate) fn new(
        hub: Option<&'a mut HubHandle>,
        lifecycle: &'a Lifecycle,
        idle_timeout: Duration,
    ) -> CustomContext<'a> {
        CustomContext { hub, lifecycle, idle_timeout, awaits_room: false, finishes_when_quiet: false }
    }

    /// Whether the server drains.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }

    /// Has the connection of a server that drains finish when its peer has sent nothing for 250 ms, or after 2 s of time in
    /// which its input could be shown; so that the session is shown what was sent before the peer could know. From now on the
    /// connection has no other deadline.
    pub fn finish_when_quiet(&mut self) {
        self.finishes_when_quiet = true;
    }

    /// Publishes a message, without an acknowledgement. `Ok`: it is handed to the hub, in the order of the calls, and not stored
    /// yet. What becomes of it later shows in the metrics only: a message that its stream refuses counts in
    /// `hub_losses{ingress="custom"}`.
    ///
    /// # Errors
    /// See [`PublishError`]; the message was not published.
    pub fn publish(&mut self, subject: &[u8], payload: &[u8], io: &Io<'_>) -> Result<(), PublishError> {
        let hub = self.hub.as_deref_mut().ok_or(PublishError::NoHub)?;
        if Subject::parse(subject, &hub.limits.subject).is_err() || subject.starts_with(RESERVED_SUBJECTS) {
            return Err(PublishError::Subject);
        }
        if payload.len() > hub.limits.payload_size_max as usize {
            return Err(PublishError::TooLong);
        }
        if !hub.port.has_room_for(io.token()) {
            if !std::mem::replace(&mut self.awaits_room, true) {
                hub.port.wait(io.token());
            }
            return Err(PublishError::NoRoom);
        }
        let publication = Publication {
            ingress: Ingress::Custom,
            subject,
            reply: b"",
            headers: b"",
            payload: payload.into(),
            ticket: None,
        };
        hub.port.push_request(io.token(), ClientOptions::default(), &HubRequest::Publish(publication));
        Ok(())
    }
}

/// A listener for tests that open nothing.
#[cfg(test)]
pub(crate) fn unopened_listener(address: SocketAddr) -> CustomListener {
    struct UnopenedProtocol;
    impl CustomProtocol for UnopenedProtocol {
        fn accept(&self, _: Option<IpAddr>) -> Box<dyn CustomSession> {
            unreachable!("nothing is opened")
        }
    }
    CustomListener { address, protocol: Arc::new(UnopenedProtocol) }
}
