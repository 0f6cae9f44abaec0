//! Waiting for many sockets: epoll(7), level-triggered.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::error::BroadcastError;
use super::limits::EVENTS_MAX;

pub(super) struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

fn local(error: Errno) -> BroadcastError {
    BroadcastError::Local(error.into())
}

/// What a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Read,
    Write,
    ReadOrWrite,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
            Interest::ReadOrWrite => EventFlags::IN | EventFlags::OUT,
        }
    }
}

impl Poller {
    pub(super) fn new() -> Result<Poller, BroadcastError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(local)?;
        Ok(Poller { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Reports when the stream is readable.
    pub(super) fn add(&self, stream: &TcpStream, number: usize) -> Result<(), BroadcastError> {
        epoll::add(&self.epoll, stream, EventData::new_u64(number as u64), Interest::Read.flags())
            .map_err(local)
    }

    pub(super) fn set_interest(
        &self,
        stream: &TcpStream,
        number: usize,
        interest: Interest,
    ) -> Result<(), BroadcastError> {
        let data = EventData::new_u64(number as u64);
        epoll::modify(&self.epoll, stream, data, interest.flags()).map_err(local)
    }

    /// Reports nothing more about the stream.
    pub(super) fn remove(&self, stream: &TcpStream) -> Result<(), BroadcastError> {
        epoll::delete(&self.epoll, stream).map_err(local)
    }

    /// Waits, and appends the number of each ready stream to `ready`.
    pub(super) fn wait(&mut self, timeout: Duration, ready: &mut Vec<usize>) -> Result<(), BroadcastError> {
        let timeout =
            Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(local(error)),
        }
        ready.extend(self.events.drain(..).map(|event| {
            let data = event.data;
            data.u64() as usize
        }));
        Ok(())
    }
}
