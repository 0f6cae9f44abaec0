//! Custom protocols, beside those that the server implements.
//!
//! A protocol is registered with the address of its listener
//! ([`ServeConfig::protocols`](crate::ServeConfig::protocols)). Its connections share the shards with all others and
//! end with the server's drain. Their sessions may publish messages.
//!
//! - **Authentication** is the session's task: the server stores and forwards whatever the session publishes.
//! - **Time**: a connection that sends nothing for the idle timeout
//!   ([`ServeConfig::timeouts`](crate::ServeConfig::timeouts)) is closed, unless its session sets deadlines of its own.
//! - **Panics**: a session that panics is discarded, and its connection closed with
//!   [`SessionPanicked`](CloseReason::SessionPanicked); the panic hook of the process reports it. (A program built
//!   with `panic = "abort"` ends.)
//! - **Hub**: a custom protocol enables the hub and its streams, also without listeners for NATS or syslog. If the
//!   sessions publish nothing, leave [`MessagingConfig::streams`](crate::settings::MessagingConfig::streams) empty:
//!   then the server needs no folder for streams.
//!
//! ```
//! use std::net::IpAddr;
//! use std::sync::Arc;
//!
//! use stilling::ServeConfig;
//! use stilling::engine::Io;
//! use stilling::protocol::{CustomContext, CustomListener, CustomProtocol, CustomSession};
//!
//! /// Sends every byte back.
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

/// A protocol, shared by all shards.
pub trait CustomProtocol: Send + Sync {
    /// Creates the session of a connection that was accepted from `peer`, if the system reports the address.
    fn accept(&self, peer: Option<IpAddr>) -> Box<dyn CustomSession>;
}

/// A protocol with the address of its listener.
#[derive(Clone)]
pub struct CustomListener {
    /// The address to listen on; port 0: the system chooses a free port.
    pub address: SocketAddr,
    /// The protocol of its connections.
    pub protocol: Arc<dyn CustomProtocol>,
}

impl fmt::Debug for CustomListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The session of one connection. All methods but `received` have a default. They run on the shard's thread and must
/// not block.
///
/// After a call in which the session finishes or aborts the connection, only `closed` follows. [`Io::detach`] closes
/// the connection: detached sockets of custom protocols have no receiver.
pub trait CustomSession {
    /// The connection is open. Its deadline is the idle timeout of the server, see
    /// [`deadline`](CustomSession::deadline).
    fn opened(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = (io, cx);
    }

    /// Handles received bytes: see [`Session::received`](stilling_engine::Session::received). Returns how many are
    /// consumed.
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut CustomContext<'_>) -> usize;

    /// The peer has finished sending. By default the connection finishes, too.
    fn ended(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = cx;
        io.finish(CloseReason::PeerClosed);
    }

    /// All output has been sent, after it had been blocked.
    fn flushed(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = (io, cx);
    }

    /// `count` of the bytes that were [offered](Io::offer) have been sent, and more may be offered: see
    /// [`Session::offer_sent`](stilling_engine::Session::offer_sent).
    fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = (count, io, cx);
    }

    /// A publication may succeed again after [`PublishError::NoRoom`]; called once for any number of these errors. By
    /// default reading resumes.
    fn room_available(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = cx;
        io.resume();
    }

    /// The deadline has passed. By default the connection is aborted.
    ///
    /// Until the session sets or clears the deadline ([`Io::set_deadline`]), it is the idle timeout of the server
    /// ([`ServeConfig::timeouts`](crate::ServeConfig::timeouts)), counted from the last call of `received`; time in
    /// which the session waits for room does not count. While output is blocked the write timeout applies instead.
    fn deadline(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = cx;
        io.abort(CloseReason::IdleTimeout);
    }

    /// The server drains: called once, unless the connection has finished. By default [it finishes when its peer is
    /// silent](CustomContext::finish_when_quiet). An override must finish the connection itself: shutdown and hot
    /// restart wait for it, up to the drain timeout.
    fn draining(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let _ = io;
        cx.finish_when_quiet();
    }

    /// The connection is closed. This is the last call; it is omitted after a panic of the session.
    fn closed(&mut self, reason: CloseReason) {
        let _ = reason;
    }
}

/// The parts of its shard that a session of a custom protocol sees.
pub struct CustomContext<'a> {
    hub: Option<&'a mut HubHandle>,
    lifecycle: &'a Lifecycle,
    idle_timeout: Duration,
    awaits_room: bool,
    finishes_when_quiet: bool,
}

/// Why a message was not published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishError {
    /// A successor has taken over the hub (hot restart). The next connection of the client reaches it.
    NoHub,
    /// The subject has wildcards, empty tokens or blanks, is too long, or is reserved.
    InvalidSubject,
    /// The message is longer than any stream accepts.
    TooLarge,
    /// The shard's queue to the hub is full. The session should [pause](Io::pause) and try again when
    /// [`room_available`](CustomSession::room_available) is called.
    NoRoom,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PublishError::NoHub => "another server has taken over",
            PublishError::InvalidSubject => "invalid or reserved subject",
            PublishError::TooLarge => "the message is too long",
            PublishError::NoRoom => "no room for the message now: try again later",
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

    /// Finishes the connection when its peer has sent nothing for 250 ms, or after 2 s in total during which its input
    /// was read, so that the session receives everything sent before the peer could notice the drain. This replaces
    /// all other deadlines of the connection.
    pub fn finish_when_quiet(&mut self) {
        self.finishes_when_quiet = true;
    }

    /// Publishes a message without an acknowledgement. `Ok`: the message is queued for the hub, in the order of the
    /// calls, but not stored yet. Later failures appear only in the metrics: a message that its stream refuses counts
    /// in `stilling_hub_losses_total` under `custom`.
    ///
    /// # Errors
    /// See [`PublishError`]; the message was not published.
    pub fn publish(&mut self, subject: &[u8], payload: &[u8], io: &Io<'_>) -> Result<(), PublishError> {
        let hub = self.hub.as_deref_mut().ok_or(PublishError::NoHub)?;
        if Subject::parse(subject, &hub.limits.subject).is_err() || subject.starts_with(RESERVED_SUBJECTS) {
            return Err(PublishError::InvalidSubject);
        }
        if payload.len() > hub.limits.payload_size_max as usize {
            return Err(PublishError::TooLarge);
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

/// A listener for tests that open no connection.
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
