//! A source's state in the driver: its handle, its generation, and its operations in flight.

use std::os::fd::{AsRawFd, RawFd};

use super::handle::Handle;
use crate::driver::role::SourceRole;
use crate::token::Token;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ArmedOps(u16);

impl ArmedOps {
    pub(super) const RECEIVE: ArmedOps = ArmedOps(1);
    pub(super) const READABLE: ArmedOps = ArmedOps(2);
    pub(super) const WRITABLE: ArmedOps = ArmedOps(4);
    pub(super) const CONNECT: ArmedOps = ArmedOps(8);
    pub(super) const ACCEPT: ArmedOps = ArmedOps(16);
    pub(super) const CLOSE: ArmedOps = ArmedOps(32);
    /// A close that follows a complete send; cancelled if the send stops short.
    pub(super) const LINKED_CLOSE: ArmedOps = ArmedOps(64);
    /// The shutdown of a direct descriptor. Its close waits for it.
    pub(super) const SHUTDOWN: ArmedOps = ArmedOps(128);
    /// The creation of an ordinary descriptor for a slot that is detached.
    pub(super) const INSTALL: ArmedOps = ArmedOps(256);
    /// Not an operation: the multishot poll for writability has found room, and is being cancelled.
    pub(super) const WAIT_ENDS: ArmedOps = ArmedOps(1 << 10);
    /// Not an operation: the armed accept is for one connection, or is being cancelled to be replaced by such a one.
    pub(super) const ONE_ACCEPT: ArmedOps = ArmedOps(1 << 11);
    /// Not an operation: its datagrams report their local address.
    pub(super) const REPORTS_LOCAL: ArmedOps = ArmedOps(1 << 12);
    /// Not an operation: the requested receive waits for a buffer.
    pub(super) const WAITING: ArmedOps = ArmedOps(1 << 13);
    /// Not an operation: the requested receive found no buffer, which is counted.
    pub(super) const STARVED: ArmedOps = ArmedOps(1 << 14);
    /// Not an operation: `Failed` was reported, so armed operations yield no more events.
    pub(super) const FAILED: ArmedOps = ArmedOps(1 << 15);

    pub(super) fn has(self, what: ArmedOps) -> bool {
        self.0 & what.0 != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptRequest {
    /// No; if an accept is still armed, it is being cancelled and its stop will be reported.
    No,
    Yes,
    /// It was paused and is to resume after its stop is reported.
    Resume,
}

#[derive(Debug)]
pub(super) struct UringSource {
    pub(super) handle: Handle,
    pub(super) generation: u32,
    pub(super) role: SourceRole,
    pub(super) armed: ArmedOps,
    /// Operations in flight; the source is free when it is closed and this is 0.
    pub(super) in_flight: u8,
    /// `close` was called: only `Closed` may follow.
    pub(super) closing: bool,
    /// `detach` was called, or the receive of a datagram socket is cancelled: nothing may be armed any more.
    pub(super) detaching: bool,
    /// The next receive probably finds bytes, so it is tried before waiting.
    pub(super) expects_data: bool,
    pub(super) accepting: AcceptRequest,
}

const _: () = assert!(size_of::<UringSource>() <= 16);

impl UringSource {
    const FREE: UringSource = UringSource {
        handle: Handle::FREE,
        generation: 0,
        role: SourceRole::Stream,
        armed: ArmedOps(0),
        in_flight: 0,
        closing: false,
        detaching: false,
        expects_data: false,
        accepting: AcceptRequest::No,
    };

    pub(super) fn arm(&mut self, what: ArmedOps) {
        debug_assert!(!self.armed.has(what), "armed twice: {what:?} on {self:?}");
        self.armed.0 |= what.0;
        self.in_flight += 1;
    }

    pub(super) fn disarm(&mut self, what: ArmedOps) {
        debug_assert!(self.armed.has(what), "not armed: {what:?} on {self:?}");
        self.armed.0 &= !what.0;
        self.in_flight -= 1;
    }

    /// Sets a flag that is not an operation. Returns whether it was clear.
    pub(super) fn set_mark(&mut self, what: ArmedOps) -> bool {
        let known = self.armed.has(what);
        self.armed.0 |= what.0;
        !known
    }

    pub(super) fn clear_mark(&mut self, what: ArmedOps) {
        self.armed.0 &= !what.0;
    }

    /// Clears the mark of a receive that waits for a buffer. Returns whether it was set.
    pub(super) fn clear_waiting(&mut self) -> bool {
        let waited = self.armed.has(ArmedOps::WAITING);
        self.clear_mark(ArmedOps::WAITING);
        waited
    }
}

#[derive(Debug, Default)]
pub(super) struct UringSources(Vec<UringSource>);

impl UringSources {
    pub(super) fn insert(&mut self, token: Token, handle: Handle, role: SourceRole, expects_data: bool) {
        let index = token.index() as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || UringSource::FREE);
        }
        debug_assert_eq!(self.0[index].handle, Handle::FREE, "{token:?}: attached twice");
        self.0[index] =
            UringSource { handle, generation: token.generation(), role, expects_data, ..UringSource::FREE };
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve(count.saturating_sub(self.0.len()));
    }

    /// The source, unless the token is stale or was never attached.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut UringSource> {
        let source = self.0.get_mut(token.index() as usize)?;
        (source.handle != Handle::FREE && source.generation == token.generation()).then_some(source)
    }

    pub(super) fn free(&mut self, token: Token) {
        self.0[token.index() as usize] = UringSource::FREE;
    }

    /// Ordinary descriptors without a submitted close.
    pub(super) fn open_descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.0
            .iter()
            .filter(|source| !source.armed.has(ArmedOps(ArmedOps::CLOSE.0 | ArmedOps::LINKED_CLOSE.0)))
            .filter_map(|source| Some(source.handle.descriptor()?.as_raw_fd()))
    }
}
