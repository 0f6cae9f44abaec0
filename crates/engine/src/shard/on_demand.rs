//! On-demand connections: the owner of the shard receives and sends by itself, directly from and into its own memory,
//! and the shard reports readiness only.
//!
//! ```text
//!  Io::receive_on_demand ─▶ Io::await_readable ─▶ driver ─▶ Session::readable ─▶ Shard::receive_now
//!                           Io::await_writable ─▶ driver ─▶ Session::writable ─▶ Shard::send_now
//! ```
//!
//! The shard never receives from such a connection by itself, and holds no input or output of it. No park, write or
//! linger timer applies to it, and the end or a failure of its peer does not close it: the owner finds both when it
//! receives or sends.
//!
//! **An ignored wait stays armed** in the driver, and its event is dropped; to cancel it would cost more than to drop
//! one event. A wait that is requested again meanwhile uses the armed one. An event may also be outdated, because the
//! owner has received or sent since the wait was armed: the shard then checks whether there is still something to
//! receive, or arms the wait again. So a session is never called for bytes that are already received.

use std::io;
use std::net::SocketAddr;

use stilling_ring::planted;

use super::Shard;
use super::connection::{CloseIntent, Connection, ConnectionState, ReadState};
use super::io::Io;
use super::session::{Service, Session};
use super::slots::ShardSlot;
use crate::driver::{Driver, ReceivedDatagram};
use crate::token::Token;

/// What an on-demand connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readiness(u8);

impl Readiness {
    /// The connection is on-demand.
    const ON_DEMAND: u8 = 1;
    /// A call of `readable` is requested.
    const WANTS_READABLE: u8 = 2;
    /// A call of `writable` is requested.
    const WANTS_WRITABLE: u8 = 4;
    /// The driver has a wait for writability armed.
    const WRITABLE_ARMED: u8 = 8;
    /// The owner has received since the wait for readability was armed.
    const RECEIVED: u8 = 16;
    /// A send of the owner stopped short since the wait for writability was armed.
    const BLOCKED: u8 = 32;
    /// Its connect has no timeout.
    const CONNECTS_WITHOUT_TIMEOUT: u8 = 64;

    fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u8) {
        self.0 |= flag;
    }

    /// Clears a flag. Returns whether it was set.
    fn take(&mut self, flag: u8) -> bool {
        let was_set = self.has(flag);
        self.0 &= !flag;
        was_set
    }

    pub(super) fn is_on_demand(self) -> bool {
        self.has(Readiness::ON_DEMAND)
    }

    pub(super) fn connect_without_timeout(&mut self) {
        self.set(Readiness::CONNECTS_WITHOUT_TIMEOUT);
    }

    pub(super) fn connects_without_timeout(self) -> bool {
        self.has(Readiness::CONNECTS_WITHOUT_TIMEOUT)
    }
}

/// The requests of sessions.
impl Io<'_> {
    /// Makes the connection on-demand, for good: the shard calls [`readable`](Session::readable) and
    /// [`writable`](Session::writable) instead of `received`, and the owner of the shard receives and sends with
    /// [`Shard::receive_now`](super::Shard::receive_now) and [`Shard::send_now`](super::Shard::send_now). To be called
    /// in [`opened`](Session::opened).
    ///
    /// The session does not send through `Io`: such output is not ordered with that of the owner. A deadline applies
    /// as ever; the timers of the shard do not. [`finish`](Io::finish) and [`abort`](Io::abort) close at once, as
    /// close(2) does.
    pub fn receive_on_demand(&mut self) {
        debug_assert_eq!(self.connection.reading, ReadState::Nothing, "a receive is armed already");
        self.connection.readiness.set(Readiness::ON_DEMAND);
    }

    /// Requests one call of [`readable`](Session::readable): when there is something to receive, an end or a failure,
    /// now or later. No effect while a call is requested already. For on-demand connections only.
    pub fn await_readable(&mut self) {
        debug_assert!(self.connection.readiness.is_on_demand(), "not an on-demand connection");
        let is_armed = self.connection.reading == ReadState::Parked;
        let was_ignored = !self.connection.readiness.has(Readiness::WANTS_READABLE);
        if planted!("lost readable") && is_armed && was_ignored {
            return;
        }
        self.connection.readiness.set(Readiness::WANTS_READABLE);
    }

    /// Cancels the request of [`await_readable`](Self::await_readable): no call follows.
    pub fn ignore_readable(&mut self) {
        self.connection.readiness.take(Readiness::WANTS_READABLE);
    }

    /// Requests one call of [`writable`](Session::writable): when bytes can be sent, or sending fails, now or later. No
    /// effect while a call is requested already. Independent of [`await_readable`](Self::await_readable). For on-demand
    /// connections only.
    pub fn await_writable(&mut self) {
        debug_assert!(self.connection.readiness.is_on_demand(), "not an on-demand connection");
        self.connection.readiness.set(Readiness::WANTS_WRITABLE);
    }

    /// Cancels the request of [`await_writable`](Self::await_writable): no call follows.
    pub fn ignore_writable(&mut self) {
        self.connection.readiness.take(Readiness::WANTS_WRITABLE);
    }

    /// Whether a call of [`readable`](Session::readable) is requested.
    pub fn awaits_readable(&self) -> bool {
        self.connection.readiness.has(Readiness::WANTS_READABLE)
    }

    /// Whether a call of [`writable`](Session::writable) is requested.
    pub fn awaits_writable(&self) -> bool {
        self.connection.readiness.has(Readiness::WANTS_WRITABLE)
    }
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// Receives at once from an on-demand connection into the caller's memory. `Ok(0)` is the end of the stream;
    /// `WouldBlock` means that no bytes are available. The end and errors do not close the connection.
    ///
    /// # Errors
    /// `NotConnected`: the connection is not open. `InvalidInput`: it is not on-demand. Else the system's error.
    pub fn receive_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize> {
        let connection = on_demand(self.slots.get(token))?;
        if connection.reading == ReadState::Parked {
            connection.readiness.set(Readiness::RECEIVED);
        }
        if !connection.input.is_empty() {
            // It was adopted with unread bytes.
            let unread = connection.input.bytes(&self.held_input);
            let count = unread.len().min(into.len());
            into[..count].copy_from_slice(&unread[..count]);
            connection.input.consume(&mut self.held_input, count);
            return Ok(count);
        }
        let received = self.driver.recv_now(token, into)?;
        self.counters.received_bytes.add(received as u64);
        Ok(received)
    }

    /// Sends at once on an on-demand connection from the caller's memory, as many bytes as the system accepts;
    /// `WouldBlock` means that it accepts none. Errors do not close the connection.
    ///
    /// # Errors
    /// As [`receive_now`](Self::receive_now).
    pub fn send_now(&mut self, token: Token, bytes: &[u8]) -> io::Result<usize> {
        let connection = on_demand(self.slots.get(token))?;
        let sent = self.driver.send_now(token, bytes);
        let count = *sent.as_ref().unwrap_or(&0);
        if count < bytes.len() && connection.readiness.has(Readiness::WRITABLE_ARMED) {
            connection.readiness.set(Readiness::BLOCKED);
        }
        self.counters.sent_bytes.add(count as u64);
        sent
    }

    /// Receives the next datagram of an [adopted datagram socket](Self::adopt_datagram_socket) at once into the caller's
    /// memory; `WouldBlock` means that there is none. Another error may be that of a datagram sent before, and datagrams
    /// may follow.
    ///
    /// # Errors
    /// As [`receive_now`](Self::receive_now). `Unsupported`: the driver does not have it.
    pub fn receive_from_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        let connection = on_demand(self.slots.get(token))?;
        if connection.reading == ReadState::Parked {
            connection.readiness.set(Readiness::RECEIVED);
        }
        let datagram = self.driver.recv_from_now(token, into)?;
        self.counters.received_bytes.add(datagram.len.min(into.len()) as u64);
        Ok(datagram)
    }

    /// Sends a datagram from an [adopted datagram socket](Self::adopt_datagram_socket) at once; `to` is `None` for the
    /// peer of a connected one. `WouldBlock` means that the system has no room for it.
    ///
    /// # Errors
    /// As [`receive_from_now`](Self::receive_from_now).
    pub fn send_to_now(&mut self, token: Token, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        let connection = on_demand(self.slots.get(token))?;
        let sent = self.driver.send_to_now(token, bytes, to);
        let is_blocked = sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if is_blocked && connection.readiness.has(Readiness::WRITABLE_ARMED) {
            connection.readiness.set(Readiness::BLOCKED);
        }
        if sent.is_ok() {
            self.counters.sent_bytes.add(bytes.len() as u64);
        }
        sent
    }

    /// Makes a later wait for writability of an on-demand connection ask the system, although no send has been rejected:
    /// for an owner that limits unsent bytes with `TCP_NOTSENT_LOWAT` (tcp(7)) and stops by itself.
    pub fn forget_writable(&mut self, token: Token) {
        if on_demand(self.slots.get(token)).is_ok() {
            self.driver.forget_writable(token);
        }
    }

    /// Arms the waits that an on-demand connection requests.
    pub(super) fn arm_waits(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let Connection { readiness, reading, input, .. } = &mut slot.connection;
        if readiness.has(Readiness::WANTS_READABLE) && !input.is_empty() {
            // A duplicate does no harm.
            self.to_revisit.push(token);
        } else if readiness.has(Readiness::WANTS_READABLE) && *reading == ReadState::Nothing {
            *reading = ReadState::Parked;
            readiness.take(Readiness::RECEIVED);
            self.driver.await_readable(token);
        }
        if readiness.has(Readiness::WANTS_WRITABLE) && !readiness.has(Readiness::WRITABLE_ARMED) {
            readiness.set(Readiness::WRITABLE_ARMED);
            readiness.take(Readiness::BLOCKED);
            self.driver.await_writable(token);
        }
    }

    /// The driver reports readability, or the connection was adopted with unread bytes.
    pub(super) fn on_demand_readable(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if !connection.is_callable() || !connection.readiness.has(Readiness::WANTS_READABLE) {
            return self.run_steps(token);
        }
        let may_be_outdated = connection.readiness.take(Readiness::RECEIVED) && connection.input.is_empty();
        if may_be_outdated && !self.driver.is_readable(token) {
            // Arms the wait again.
            return self.run_steps(token);
        }
        connection.readiness.take(Readiness::WANTS_READABLE);
        self.call(token, Session::readable);
    }

    pub(super) fn on_demand_writable(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let readiness = &mut slot.connection.readiness;
        readiness.take(Readiness::WRITABLE_ARMED);
        let is_outdated = readiness.take(Readiness::BLOCKED);
        if readiness.has(Readiness::WANTS_WRITABLE) && !is_outdated && slot.connection.is_callable() {
            slot.connection.readiness.take(Readiness::WANTS_WRITABLE);
            self.call(token, Session::writable);
        } else {
            self.run_steps(token);
        }
    }
}

impl Connection {
    /// Whether its session may be called for a wait.
    fn is_callable(&self) -> bool {
        self.state == ConnectionState::Open && self.finish == CloseIntent::No
    }
}

/// An open on-demand connection.
fn on_demand<S>(slot: Option<&mut ShardSlot<S>>) -> io::Result<&mut Connection> {
    match slot {
        Some(ShardSlot { connection, .. }) if connection.state == ConnectionState::Open => {
            match connection.readiness.is_on_demand() {
                true => Ok(connection),
                false => Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        Some(_) | None => Err(io::ErrorKind::NotConnected.into()),
    }
}
