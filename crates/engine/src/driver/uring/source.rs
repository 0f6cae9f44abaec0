//! What the driver knows of each source: where its file is, its generation, and what is in flight.

use std::os::fd::{AsRawFd, RawFd};

use super::handle::Handle;
use crate::driver::role::Role;
use crate::token::Token;

/// The set of operations in flight for a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Armed(u16);

impl Armed {
    pub(super) const RECEIVE: Armed = Armed(1);
    pub(super) const READABLE: Armed = Armed(2);
    pub(super) const WRITABLE: Armed = Armed(4);
    pub(super) const CONNECT: Armed = Armed(8);
    pub(super) const ACCEPT: Armed = Armed(16);
    pub(super) const CLOSE: Armed = Armed(32);
    /// A close that follows a complete send; cancelled if the send stops short.
    pub(super) const LINKED_CLOSE: Armed = Armed(64);
    /// The end of our direction of a direct descriptor. Its close comes after it.
    pub(super) const SHUTDOWN: Armed = Armed(128);
    /// The making of an ordinary descriptor for a slot that is left.
    pub(super) const INSTALL: Armed = Armed(256);
    /// Not an operation: its datagrams tell which local address they came to.
    pub(super) const TELLS_LOCAL: Armed = Armed(1 << 12);
    /// Not an operation: the receive asked for waits for a buffer.
    pub(super) const WAITING: Armed = Armed(1 << 13);
    /// Not an operation: the receive asked for has found no buffer, and that is counted.
    pub(super) const STARVED: Armed = Armed(1 << 14);
    /// Not an operation: it has failed, which answers everything that was armed.
    pub(super) const FAILED: Armed = Armed(1 << 15);

    pub(super) fn has(self, what: Armed) -> bool {
        self.0 & what.0 != 0
    }
}

/// Whether a listener is to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepting {
    /// No; an accept that is still armed is being taken back, which is to be answered.
    No,
    Yes,
    /// It was paused and is to go on, but the pause is still to be answered.
    Again,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) handle: Handle,
    pub(super) generation: u32,
    pub(super) role: Role,
    pub(super) armed: Armed,
    /// Operations in flight; the source is free when it is closed and this is 0.
    pub(super) in_flight: u8,
    /// `close` was asked for: no event but `Closed` may follow.
    pub(super) closing: bool,
    /// `detach` was asked for, or the receive of a datagram socket is cancelled: nothing may be armed any more.
    pub(super) detaching: bool,
    /// The next receive probably finds bytes, so it is tried before waiting.
    pub(super) expects_data: bool,
    /// Whether a listener is to accept.
    pub(super) accepting: Accepting,
}

const _: () = assert!(size_of::<Source>() <= 16);

impl Source {
    const FREE: Source = Source {
        handle: Handle::FREE,
        generation: 0,
        role: Role::Stream,
        armed: Armed(0),
        in_flight: 0,
        closing: false,
        detaching: false,
        expects_data: false,
        accepting: Accepting::No,
    };

    /// Notes that `what` is now in flight.
    pub(super) fn arm(&mut self, what: Armed) {
        debug_assert!(!self.armed.has(what), "armed twice: {what:?} on {self:?}");
        self.armed.0 |= what.0;
        self.in_flight += 1;
    }

    /// Notes that `what` is over.
    pub(super) fn disarm(&mut self, what: Armed) {
        debug_assert!(self.armed.has(what), "not armed: {what:?} on {self:?}");
        self.armed.0 &= !what.0;
        self.in_flight -= 1;
    }

    /// Remembers something that is no operation. True if it was not known.
    pub(super) fn mark(&mut self, what: Armed) -> bool {
        let known = self.armed.has(what);
        self.armed.0 |= what.0;
        !known
    }

    pub(super) fn unmark(&mut self, what: Armed) {
        self.armed.0 &= !what.0;
    }

    /// Notes that its receive does not wait for a buffer any more. True if it did.
    pub(super) fn stops_waiting(&mut self) -> bool {
        let waited = self.armed.has(Armed::WAITING);
        self.unmark(Armed::WAITING);
        waited
    }
}

/// The sources by index; grows as indices come into use.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<Source>);

impl Sources {
    pub(super) fn insert(&mut self, token: Token, handle: Handle, role: Role, expects_data: bool) {
        let index = token.index() as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || Source::FREE);
        }
        debug_assert_eq!(self.0[index].handle, Handle::FREE, "{token:?}: attached twice");
        self.0[index] = Source { handle, generation: token.generation(), role, expects_data, ..Source::FREE };
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve(count.saturating_sub(self.0.len()));
    }

    /// The source, unless the token is of a former tenant or was never attached.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Source> {
        let source = self.0.get_mut(token.index() as usize)?;
        (source.handle != Handle::FREE && source.generation == token.generation()).then_some(source)
    }

    pub(super) fn free(&mut self, token: Token) {
        self.0[token.index() as usize] = Source::FREE;
    }

    /// Ordinary descriptors that no close has given back, as far as closes have reached the kernel.
    pub(super) fn open_descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.0
            .iter()
            .filter(|source| !source.armed.has(Armed(Armed::CLOSE.0 | Armed::LINKED_CLOSE.0)))
            .filter_map(|source| Some(source.handle.descriptor()?.as_raw_fd()))
    }
}
