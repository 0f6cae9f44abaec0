//! One turn: carries out intents and turns readiness into events.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use stilling_ring::Time;

use super::datagrams::RECEIVE_BATCH;
use super::source::{ReadInterest, SourceFlags};
use super::{Poll, WAKE_TOKEN};
use crate::driver::accept::{AcceptFailure, has_waiting_connection};
use crate::driver::role::SourceRole;
use crate::driver::{DriverEvent, Wait};
use crate::limits::{ACCEPTS_PER_TURN, DATAGRAMS_PER_TURN};
use crate::token::Token;

type PollEvents = Vec<DriverEvent<OwnedFd>>;

impl Poll {
    /// Carries out shutdowns, closes and detaches; afterwards no closed source is used again.
    pub(super) fn process_closes(&mut self, events: &mut PollEvents) {
        for token in self.shutdowns.drain(..) {
            if let Some(source) = self.sources.get_mut(token) {
                // It fails on a dead connection; the next receive or send reports that.
                self.counters.system_calls += 1;
                let _ = rustix::net::shutdown(&source.fd, rustix::net::Shutdown::Write);
            }
        }
        for at in 0..self.closes.len() {
            self.close_now(self.closes[at], events);
        }
        self.closes.clear();
        for token in self.detaches.drain(..) {
            let Some(mut source) = self.sources.remove(token) else { continue };
            // Otherwise epoll would continue to report the open socket.
            source.unwatch(self.poll.registry());
            events.push(DriverEvent::Detached { token, socket: Ok(source.fd) });
        }
    }

    pub(super) fn close_now(&mut self, token: Token, events: &mut PollEvents) {
        let Some(mut source) = self.sources.remove(token) else { return };
        // Closing ends the registration, unless there are other descriptors of the socket: another process's after a
        // hand-over, or other shards'.
        if matches!(source.role, SourceRole::Listener | SourceRole::Datagram)
            || source.source_flags.has(SourceFlags::SHARED)
        {
            source.unwatch(self.poll.registry());
        }
        self.counters.system_calls += 1;
        drop(source);
        events.push(DriverEvent::Closed { token });
    }

    pub(super) fn resume_starved(&mut self, events: &mut PollEvents) {
        let waiting = self.starved.len();
        let mut resumed = 0;
        while resumed < waiting && self.buffers.free() > 0 {
            let token = self.starved[resumed];
            resumed += 1;
            if let Some(source) = self.sources.get_mut(token) {
                source.source_flags.clear(SourceFlags::STARVED);
                self.report_readiness(token, events);
            }
        }
        self.starved.drain(..resumed);
    }

    /// Reports events of sources that are known to be ready, and registers the others with epoll.
    pub(super) fn check_requested(&mut self, events: &mut PollEvents) {
        for (token, error) in self.failed_connects.drain(..) {
            if let Some(source) = self.sources.get_mut(token)
                && source.source_flags.has(SourceFlags::CONNECTING)
            {
                events.push(source.fail(token, error));
            }
        }
        for at in 0..self.requested.len() {
            let token = self.requested[at];
            let Some(source) = self.sources.get_mut(token) else { continue };
            source.source_flags.clear(SourceFlags::CHECK_REQUESTED);
            if source.role == SourceRole::Listener {
                self.check_listener(token, events);
                continue;
            }
            if source.source_flags.take(SourceFlags::CANCELLED) {
                events.push(DriverEvent::ReceiveCancelled { token });
            }
            self.report_readiness(token, events);
        }
        self.requested.clear();
    }

    fn check_listener(&mut self, token: Token, events: &mut PollEvents) {
        let Some(source) = self.sources.get_mut(token) else { return };
        if source.source_flags.take(SourceFlags::CANCELLED) {
            events.push(DriverEvent::AcceptStopped { listener: token, error: None, refused: 0 });
        }
        if source.read_interest == ReadInterest::Idle {
            // Otherwise new clients would end the waits of a shard that does not accept.
            source.unwatch(self.poll.registry());
        } else if let Err(error) = source.watch(self.poll.registry(), token) {
            source.read_interest = ReadInterest::Idle;
            events.push(DriverEvent::AcceptStopped { listener: token, error: Some(error), refused: 0 });
        }
    }

    /// Reports the events that the shard waits for on a source, as far as its flags show readiness.
    fn report_readiness(&mut self, token: Token, events: &mut PollEvents) {
        let Some(source) = self.sources.get_mut(token) else { return };
        if source.source_flags.has(SourceFlags::CONNECTING) {
            if !source.source_flags.has(SourceFlags::WRITABLE) {
                return self.watch(token, events);
            }
            source.source_flags.clear(SourceFlags::CONNECTING);
            let outcome = rustix::net::sockopt::socket_error(&source.fd).and_then(|outcome| outcome);
            match outcome {
                Ok(()) => events.push(DriverEvent::Connected { token }),
                Err(error) => return events.push(source.fail(token, error)),
            }
        }
        if source.source_flags.has(SourceFlags::WRITE_INTEREST)
            && source.source_flags.has(SourceFlags::WRITABLE)
        {
            source.source_flags.clear(SourceFlags::WRITE_INTEREST);
            events.push(DriverEvent::Writable { token });
        }
        if source.source_flags.has(SourceFlags::READABLE) {
            self.read(token, events);
        }
        let Some(source) = self.sources.get_mut(token) else { return };
        let waits_to_read =
            source.read_interest != ReadInterest::Idle && !source.source_flags.has(SourceFlags::READABLE);
        if waits_to_read || source.source_flags.has(SourceFlags::WRITE_INTEREST) {
            self.watch(token, events);
        }
    }

    /// Registers the source with epoll. A failure ends the connection, because its events would never come.
    fn watch(&mut self, token: Token, events: &mut PollEvents) {
        let Some(source) = self.sources.get_mut(token) else { return };
        self.counters.system_calls += u64::from(!source.source_flags.has(SourceFlags::WATCHED));
        if let Err(error) = source.watch(self.poll.registry(), token) {
            events.push(source.fail(token, error));
        }
    }

    /// Carries out the shard's read interest, if the system confirms the readiness.
    fn read(&mut self, token: Token, events: &mut PollEvents) {
        let Some(source) = self.sources.get_mut(token) else { return };
        match (source.read_interest, source.role) {
            (ReadInterest::Idle, _) => {}
            (ReadInterest::Accept, _) => self.accept_from(token, events),
            (ReadInterest::Receive, SourceRole::Datagram) => self.receive_datagrams(token, events),
            (ReadInterest::Receive, _) => self.receive_from(token, events),
            (ReadInterest::Readable, _) => {
                self.counters.system_calls += 1;
                if source.is_readable_now() {
                    source.read_interest = ReadInterest::Idle;
                    events.push(DriverEvent::Readable { token });
                }
            }
        }
    }

    fn receive_from(&mut self, token: Token, events: &mut PollEvents) {
        let Some(buffer) = self.buffers.take() else { return self.mark_starved(token) };
        let Some(source) = self.sources.get_mut(token) else { return self.buffers.release(buffer) };
        self.counters.system_calls += 1;
        match source.receive(self.buffers.bytes_mut(buffer)) {
            Ok(len) if len > 0 => {
                source.read_interest = ReadInterest::Idle;
                events.push(DriverEvent::Received { token, buffer, len: len as u32 });
                return;
            }
            Ok(_) => {
                source.read_interest = ReadInterest::Idle;
                events.push(DriverEvent::Ended { token });
            }
            Err(Errno::AGAIN) => {}
            Err(error) => events.push(source.fail(token, error)),
        }
        self.buffers.release(buffer);
    }

    fn mark_starved(&mut self, token: Token) {
        if let Some(source) = self.sources.get_mut(token)
            && !source.source_flags.has(SourceFlags::STARVED)
        {
            source.source_flags.set(SourceFlags::STARVED);
            self.starved.push(token);
            self.counters.starved += 1;
        }
    }

    fn receive_datagrams(&mut self, token: Token, events: &mut PollEvents) {
        let Some(source) = self.sources.get_mut(token) else { return };
        let reports_local = source.source_flags.has(SourceFlags::REPORTS_LOCAL);
        let mut left = DATAGRAMS_PER_TURN;
        while left > 0 {
            let room = self.buffers.free();
            if room == 0 {
                return self.mark_starved(token);
            }
            let requested = left.min(room).min(RECEIVE_BATCH);
            self.counters.system_calls += 1;
            let fd = source.fd.as_fd();
            let outcome = self.datagrams.receive(fd, requested, reports_local, &mut self.buffers, |buffer| {
                events.push(DriverEvent::Datagram { token, buffer });
            });
            match outcome {
                Ok(received) => {
                    left -= received;
                    // On a connected socket an error ends a batch early: only "would block" means that it is drained.
                    if received < requested && !source.source_flags.has(SourceFlags::CONNECTED) {
                        source.source_flags.clear(SourceFlags::READABLE);
                        return;
                    }
                }
                Err(Errno::AGAIN) => {
                    source.source_flags.clear(SourceFlags::READABLE);
                    return;
                }
                Err(Errno::INTR) => {}
                Err(
                    error @ (Errno::BADF | Errno::NOTSOCK | Errno::INVAL | Errno::FAULT | Errno::OPNOTSUPP),
                ) => return events.push(source.fail(token, error)),
                // Any other error concerns one datagram, mostly a sent one: "port unreachable".
                Err(_) => left -= 1,
            }
        }
        if let Err(error) = source.watch_again(self.poll.registry(), token) {
            events.push(source.fail(token, error));
        }
    }

    fn accept_from(&mut self, listener: Token, events: &mut PollEvents) {
        let Some(source) = self.sources.get_mut(listener) else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.counters.system_calls += 1;
        // Another holder of the listener may have made it blocking.
        let mut stop = rustix::io::ioctl_fionbio(&source.fd, true).err().map(io::Error::from);
        for attempt in 1..=ACCEPTS_PER_TURN {
            if stop.is_some() {
                break;
            }
            self.counters.system_calls += 1;
            match rustix::net::accept_with(&source.fd, flags) {
                Ok(socket) => {
                    events.push(DriverEvent::Accepted { listener, socket });
                    // For an accept on an empty queue the system creates and discards a socket; a poll is cheaper.
                    if attempt.is_power_of_two() {
                        self.counters.system_calls += 1;
                        if !source.is_readable_now() {
                            return;
                        }
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(error) => match AcceptFailure::of(error) {
                    AcceptFailure::Transient => {}
                    AcceptFailure::NoDescriptor if !has_waiting_connection(&source.fd) => return,
                    AcceptFailure::NoDescriptor | AcceptFailure::Listener => {
                        stop = Some(error.into());
                        break;
                    }
                },
            }
        }
        if stop.is_none() {
            // There may be more: epoll reports the listener again in the next turn.
            self.counters.system_calls += 1;
            stop = source.watch_again(self.poll.registry(), listener).err();
        }
        if let Some(error) = stop {
            source.read_interest = ReadInterest::Idle;
            source.unwatch(self.poll.registry());
            events.push(DriverEvent::AcceptStopped { listener, error: Some(error), refused: 0 });
        }
    }

    /// Waits for edges. A signal ends a wait without an event.
    pub(super) fn await_edges(&mut self, now: Time, wait: Wait) -> io::Result<()> {
        // epoll counts milliseconds; mio rounds up, so that a wait never ends early.
        let timeout = match wait {
            Wait::No => Some(Duration::ZERO),
            Wait::Until(time) => Some(time.since(now)),
            Wait::Forever => None,
        };
        self.counters.system_calls += 1;
        match self.poll.poll(&mut self.edges, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            outcome => outcome,
        }
    }

    pub(super) fn process_edges(&mut self, events: &mut PollEvents) {
        // An empty list allocates nothing; the real one is restored below.
        let edges = std::mem::replace(&mut self.edges, mio::Events::with_capacity(0));
        for edge in &edges {
            if edge.token() == WAKE_TOKEN {
                events.push(DriverEvent::Woken);
                continue;
            }
            let token = Token::from_bits(edge.token().0 as u64);
            let Some(source) = self.sources.get_mut(token) else {
                self.counters.stale += 1;
                continue;
            };
            source.record_readiness(edge);
            match (source.role, source.read_interest) {
                (SourceRole::Listener, ReadInterest::Accept) => self.accept_from(token, events),
                (SourceRole::Listener, _) => {}
                (_, ReadInterest::Readable)
                    if !source.source_flags.has(SourceFlags::CONNECTING)
                        && source.source_flags.has(SourceFlags::READABLE) =>
                {
                    // epoll has just reported it: no check needed.
                    source.read_interest = ReadInterest::Idle;
                    events.push(DriverEvent::Readable { token });
                    self.report_readiness(token, events);
                }
                _ => self.report_readiness(token, events),
            }
        }
        self.edges = edges;
    }
}
