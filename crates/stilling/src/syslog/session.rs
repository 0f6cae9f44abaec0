//! A syslog connection: messages in, nothing out.
//!
//! Without room on the way to the hub it is not read, and TCP slows its sender down: none of its messages is shed.

use std::net::IpAddr;

use stilling_engine::limits::RECEIVE_BUFFER_SIZE;
use stilling_engine::{CloseReason, Io};
use stilling_hub::Loss;
use stilling_ring::Time;
use stilling_wire::syslog::{Framer, Truncation};

use super::limits::{IDLE_TIMEOUT, MESSAGE_SIZE_MAX};
use super::shard::SyslogContext;
use crate::hub::HubMail;
use crate::hub::quiet_wait::QuietWait;

/// An incomplete message and one further receive must fit into the shard's largest block.
const _: () = assert!(MESSAGE_SIZE_MAX as usize + RECEIVE_BUFFER_SIZE <= 64 * 1024);

#[derive(Debug)]
pub(crate) struct SyslogSession {
    framer: Framer,
    /// Bytes received and not consumed.
    unconsumed: usize,
    source: Option<IpAddr>,
    last_input: Time,
    /// The connection waits for room in the port, and has not been read since the last input.
    waits_for_room: bool,
    /// The server drains: the connection is read until it is silent, because the protocol has no message for that.
    drain_wait: Option<QuietWait>,
    /// The reason to close after the remaining input.
    ending: Option<CloseReason>,
    is_counted: bool,
}

impl SyslogSession {
    pub(crate) fn new(source: Option<IpAddr>) -> SyslogSession {
        SyslogSession {
            framer: Framer::default(),
            unconsumed: 0,
            source,
            last_input: Time::ZERO,
            waits_for_room: false,
            drain_wait: None,
            ending: None,
            is_counted: false,
        }
    }

    pub(crate) fn opened(&mut self, io: &mut Io<'_>, cx: &mut SyslogContext<'_>) {
        let now = io.now();
        self.last_input = now;
        let Some(hub) = cx.hub.as_deref_mut() else {
            // A successor has the hub; the client's next connection reaches it.
            return io.abort(CloseReason::Drained);
        };
        self.is_counted = true;
        hub.publisher_connections += 1;
        if !cx.syslog.admits(self.source) {
            cx.syslog.count(Loss::Forbidden);
            hub.counters.unauthorized.add(1);
            return io.abort(CloseReason::Forbidden);
        }
        io.set_deadline(Some(now.after(IDLE_TIMEOUT)));
        if cx.lifecycle.is_draining() {
            // The other connections may have been notified already.
            self.draining(io, cx);
        }
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut SyslogContext<'_>) -> usize {
        self.last_input = io.now();
        let token = io.token();
        let mut consumed = 0;
        loop {
            let Some(hub) = cx.hub.as_deref_mut() else { return bytes.len() };
            if !hub.port.has_room_for(token) {
                if !std::mem::replace(&mut self.waits_for_room, true) {
                    hub.port.wait(token);
                }
                io.pause();
                self.unconsumed = bytes.len() - consumed;
                return consumed;
            }
            let limits = cx.syslog.limits;
            let step = self.framer.decode(&limits, &bytes[consumed..]);
            consumed += step.consumed;
            let frame = match (step.frame, self.ending) {
                (Some(frame), _) => frame,
                (None, None) => {
                    self.unconsumed = bytes.len() - consumed;
                    return consumed;
                }
                (None, Some(reason)) => {
                    let rest = &bytes[consumed..];
                    let has_begun = self.framer.has_begun(rest.len());
                    let frame = self.framer.finish(&limits, rest);
                    if let Some(frame) = frame {
                        cx.syslog.publish(&mut hub.port, token, frame.message);
                    }
                    // An unterminated line at drain: the rest of it is unknown.
                    let is_whole =
                        reason == CloseReason::PeerClosed && frame.is_some_and(|frame| frame.cut.is_none());
                    if has_begun && !is_whole {
                        cx.syslog.count(Loss::Truncated);
                    }
                    self.unconsumed = 0;
                    io.finish(reason);
                    return bytes.len();
                }
            };
            if frame.cut == Some(Truncation::TooLong) {
                cx.syslog.count(Loss::TooLarge);
            }
            cx.syslog.publish(&mut hub.port, token, frame.message);
        }
    }

    /// An unterminated message is still published: its bytes are passed to `received` once more.
    pub(crate) fn ended(&mut self, io: &mut Io<'_>, _: &mut SyslogContext<'_>) {
        self.ending = Some(CloseReason::PeerClosed);
        io.call_again();
    }

    pub(crate) fn flushed(&mut self, _: &mut Io<'_>, _: &mut SyslogContext<'_>) {}

    pub(crate) fn delivered(&mut self, mail: HubMail, io: &mut Io<'_>, _: &mut SyslogContext<'_>) {
        if mail == HubMail::Room {
            self.waits_for_room = false;
            // The connection was not read meanwhile.
            if let Some(wait) = &mut self.drain_wait {
                wait.extend(self.last_input, io.now());
            }
            io.resume();
        }
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, _: &mut SyslogContext<'_>) {
        if let Some(wait) = self.drain_wait {
            return self.continue_draining(wait, io);
        }
        let due = self.last_input.after(IDLE_TIMEOUT);
        if io.now() < due || self.waits_for_room {
            let later = if self.waits_for_room { io.now().after(IDLE_TIMEOUT) } else { due };
            return io.set_deadline(Some(later));
        }
        io.finish(CloseReason::IdleTimeout);
    }

    /// Publishes input that was sent before the peer could notice the drain. A peer that checks its connection before
    /// it sends more sees the end of output.
    pub(crate) fn draining(&mut self, io: &mut Io<'_>, _: &mut SyslogContext<'_>) {
        if self.ending.is_none() && self.drain_wait.is_none() {
            io.end_output();
            self.last_input = io.now();
            let wait = QuietWait::begin(io.now());
            self.drain_wait = Some(wait);
            io.set_deadline(Some(wait.check_after(io.now())));
        }
    }

    /// Reads on until the peer is silent; then an incomplete message is published, too.
    fn continue_draining(&mut self, wait: QuietWait, io: &mut Io<'_>) {
        if let Some(at) = wait.next_check(io.now(), self.last_input, self.waits_for_room) {
            return io.set_deadline(Some(at));
        }
        self.ending = Some(CloseReason::Drained);
        io.call_again();
    }

    /// Counts an incomplete message of a failed or idle connection as lost.
    pub(crate) fn closed(&mut self, _: CloseReason, cx: &mut SyslogContext<'_>) {
        let Some(hub) = cx.hub.as_deref_mut() else { return };
        if self.is_counted {
            hub.publisher_connections = hub.publisher_connections.saturating_sub(1);
        }
        if self.framer.has_begun(self.unconsumed) {
            cx.syslog.count(Loss::Truncated);
        }
    }
}
