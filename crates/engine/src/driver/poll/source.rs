//! A source's state in the driver: its descriptor, the shard's interest, and the cached readiness.
//!
//! Readiness is edge-triggered: epoll reports it once, when it begins. Three bits cache it until a system call shows
//! that it has ended:
//!
//! - `READABLE`: a receive may return something. Cleared by "would block" and by a short receive.
//! - `WRITABLE`: a send may succeed. Cleared by "would block" and by a short send.
//! - `READ_CLOSED`: an end or a failure can be received, and no further edge follows; a short receive then does not
//!   clear `READABLE`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::driver::immediate_datagram::{recv_from, send_to};
use crate::driver::peer::is_readable;
use crate::driver::role::SourceRole;
use crate::driver::{DriverEvent, ReceivedDatagram};
use crate::token::Token;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadInterest {
    Idle,
    Receive,
    Readable,
    Accept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceFlags(u16);

impl SourceFlags {
    pub(super) const READABLE: SourceFlags = SourceFlags(1);
    pub(super) const WRITABLE: SourceFlags = SourceFlags(2);
    pub(super) const READ_CLOSED: SourceFlags = SourceFlags(4);
    /// Registered with epoll.
    pub(super) const WATCHED: SourceFlags = SourceFlags(8);
    pub(super) const WRITE_INTEREST: SourceFlags = SourceFlags(16);
    pub(super) const CONNECTING: SourceFlags = SourceFlags(32);
    pub(super) const CHECK_REQUESTED: SourceFlags = SourceFlags(64);
    /// An operation was cancelled; the next turn has to report it.
    pub(super) const CANCELLED: SourceFlags = SourceFlags(128);
    pub(super) const STARVED: SourceFlags = SourceFlags(256);
    pub(super) const CLOSING: SourceFlags = SourceFlags(512);
    /// A datagram socket with a fixed peer: errors may end a batch early.
    pub(super) const CONNECTED: SourceFlags = SourceFlags(1024);
    pub(super) const REPORTS_LOCAL: SourceFlags = SourceFlags(2048);
    /// Other descriptors of the socket may outlive this one.
    pub(super) const SHARED: SourceFlags = SourceFlags(4096);

    pub(super) fn has(self, flag: SourceFlags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(super) fn set(&mut self, flag: SourceFlags) {
        self.0 |= flag.0;
    }

    pub(super) fn clear(&mut self, flag: SourceFlags) {
        self.0 &= !flag.0;
    }

    pub(super) fn take(&mut self, flag: SourceFlags) -> bool {
        let was_set = self.has(flag);
        self.clear(flag);
        was_set
    }
}

#[derive(Debug)]
pub(super) struct PollSource {
    pub(super) fd: OwnedFd,
    pub(super) generation: u32,
    pub(super) source_flags: SourceFlags,
    pub(super) role: SourceRole,
    pub(super) read_interest: ReadInterest,
}

const _: () = assert!(size_of::<Option<PollSource>>() <= 16);
// A token is passed through epoll as mio's token.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

impl PollSource {
    /// Registers this source with epoll for all edges. If it is ready already, epoll reports that at once.
    pub(super) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        if !self.source_flags.has(SourceFlags::WATCHED) {
            registry.register(&mut SourceFd(&self.fd.as_raw_fd()), mio_token(token), self.interest())?;
            self.source_flags.set(SourceFlags::WATCHED);
        }
        Ok(())
    }

    /// Makes epoll report the current readiness again, for work that is postponed to the next turn.
    pub(super) fn watch_again(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        if !self.source_flags.has(SourceFlags::WATCHED) {
            return self.watch(registry, token);
        }
        registry.reregister(&mut SourceFd(&self.fd.as_raw_fd()), mio_token(token), self.interest())
    }

    pub(super) fn unwatch(&mut self, registry: &Registry) {
        if self.source_flags.take(SourceFlags::WATCHED) {
            // It fails only if the source is not registered.
            let _ = registry.deregister(&mut SourceFd(&self.fd.as_raw_fd()));
        }
    }

    /// The event of a failed source; no armed operation yields another event.
    pub(super) fn fail(&mut self, token: Token, error: impl Into<io::Error>) -> DriverEvent<OwnedFd> {
        self.read_interest = ReadInterest::Idle;
        for flag in [SourceFlags::WRITE_INTEREST, SourceFlags::CONNECTING, SourceFlags::CANCELLED] {
            self.source_flags.clear(flag);
        }
        DriverEvent::Failed { token, error: error.into() }
    }

    fn interest(&self) -> Interest {
        match self.role {
            SourceRole::Listener => Interest::READABLE,
            SourceRole::Stream | SourceRole::Pipe | SourceRole::Datagram => {
                Interest::READABLE | Interest::WRITABLE
            }
        }
    }

    pub(super) fn record_readiness(&mut self, event: &mio::event::Event) {
        let (closed, failed) = (event.is_read_closed(), event.is_error());
        if closed || failed {
            self.source_flags.set(SourceFlags::READ_CLOSED);
        }
        if closed || failed || event.is_readable() {
            self.source_flags.set(SourceFlags::READABLE);
        }
        if failed || event.is_writable() || event.is_write_closed() {
            self.source_flags.set(SourceFlags::WRITABLE);
        }
    }

    /// Receives without waiting, and updates the readable bit. Not for datagrams.
    ///
    /// A short receive means that the source is drained. (An exception is a Unix peer that passes descriptors: its
    /// later bytes then wait until it sends again.)
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let size = into.len();
        let outcome = loop {
            let outcome = match self.role {
                SourceRole::Pipe => rustix::io::read(&self.fd, &mut *into),
                _ => rustix::net::recv(&self.fd, &mut *into, rustix::net::RecvFlags::DONTWAIT)
                    .map(|(received, _)| received),
            };
            if outcome != Err(Errno::INTR) {
                break outcome;
            }
        };
        match outcome {
            Ok(0) if size > 0 => self.source_flags.set(END_OF_STREAM),
            Ok(received) if received < size && !self.source_flags.has(SourceFlags::READ_CLOSED) => {
                self.source_flags.clear(SourceFlags::READABLE);
            }
            Err(Errno::AGAIN) => self.source_flags.clear(END_OF_STREAM),
            _ => {}
        }
        outcome
    }

    /// Sends without waiting, and updates the writable bit. Not for datagrams.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let outcome = loop {
            let outcome = match self.role {
                SourceRole::Pipe => rustix::io::write(&self.fd, bytes),
                _ => rustix::net::send(&self.fd, bytes, flags),
            };
            if outcome != Err(Errno::INTR) {
                break outcome;
            }
        };
        if matches!(outcome, Ok(sent) if sent < bytes.len()) || outcome == Err(Errno::AGAIN) {
            self.source_flags.clear(SourceFlags::WRITABLE);
        }
        outcome
    }

    /// Receives a datagram without waiting, and updates the readable bit: only "would block" means that there is no more.
    pub(super) fn receive_datagram(&mut self, into: &mut [u8]) -> Result<ReceivedDatagram, Errno> {
        let outcome = recv_from(&self.fd, into);
        if outcome == Err(Errno::AGAIN) {
            self.source_flags.clear(END_OF_STREAM);
        }
        outcome
    }

    /// Sends a datagram without waiting, and updates the writable bit.
    pub(super) fn send_datagram(&mut self, bytes: &[u8], to: Option<SocketAddr>) -> Result<(), Errno> {
        let outcome = send_to(&self.fd, bytes, to);
        if outcome == Err(Errno::AGAIN) {
            self.source_flags.clear(SourceFlags::WRITABLE);
        }
        outcome
    }

    /// Asks the system whether there is something to receive; updates the readable bit.
    pub(super) fn is_readable_now(&mut self) -> bool {
        let ready = is_readable(&self.fd);
        if !ready {
            self.source_flags.clear(END_OF_STREAM);
        }
        ready
    }
}

/// The flags set at the end of a stream.
const END_OF_STREAM: SourceFlags = SourceFlags(SourceFlags::READABLE.0 | SourceFlags::READ_CLOSED.0);

fn mio_token(token: Token) -> mio::Token {
    mio::Token(token.bits() as usize)
}

#[derive(Debug, Default)]
pub(super) struct PollSources(Vec<Option<PollSource>>);

impl PollSources {
    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve(count.saturating_sub(self.0.len()));
    }

    /// Rejects an index that is in use, because its descriptor would be lost.
    pub(super) fn insert(
        &mut self,
        token: Token,
        fd: OwnedFd,
        role: SourceRole,
    ) -> io::Result<&mut PollSource> {
        let index = token.index() as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        let slot = &mut self.0[index];
        if slot.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let generation = token.generation();
        Ok(slot.insert(PollSource {
            fd,
            generation,
            source_flags: SourceFlags::WRITABLE,
            role,
            read_interest: ReadInterest::Idle,
        }))
    }

    /// The source, unless the token is stale or was never attached.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut PollSource> {
        let source = self.0.get_mut(token.index() as usize)?.as_mut()?;
        (source.generation == token.generation()).then_some(source)
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<PollSource> {
        self.get_mut(token)?;
        self.0[token.index() as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 4.34: a stale token does not reach the next source in its slot.
    #[test]
    fn a_stale_token_finds_no_source() {
        let some_fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (former, current) = (Token::new(3, 1), Token::new(3, 2));
        let mut sources = PollSources::default();
        sources.insert(former, some_fd(), SourceRole::Stream).unwrap();
        assert!(sources.insert(current, some_fd(), SourceRole::Stream).is_err(), "the slot is in use");
        assert!(sources.remove(former).is_some());
        sources.insert(current, some_fd(), SourceRole::Stream).unwrap();
        assert!(sources.get_mut(former).is_none());
        assert!(sources.remove(former).is_none());
        assert!(sources.get_mut(current).is_some());
        assert!(sources.get_mut(Token::new(9, 2)).is_none());
    }
}
