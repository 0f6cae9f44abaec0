//! A slot of a process with what its thread keeps: the connection to the process and the memory to read into.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::SocketAddrUnix;
use stilling_workers::Seat;
use stilling_workers::processes::{Pass, ProcessSlot};

use super::limits::{KEPT_IDLE_MAX, RECEIVE_SIZE};
use super::link::Link;

pub(super) struct AppSlot {
    slot: ProcessSlot,
    address: SocketAddrUnix,
    pub(super) timeout: Duration,
    kept: Option<Kept>,
    pub(super) buffer: Box<[u8]>,
}

struct Kept {
    link: Link,
    life: u64,
    since: Instant,
}

impl AppSlot {
    pub(super) fn new(slot: ProcessSlot, path: &Path, timeout: Duration) -> io::Result<AppSlot> {
        let address = SocketAddrUnix::new(path)?;
        let buffer = vec![0; RECEIVE_SIZE].into_boxed_slice();
        Ok(AppSlot { slot, address, timeout, kept: None, buffer })
    }

    /// Permission to ask the process, once it takes requests. `None`: it takes none.
    pub(super) fn enter(&self, until: Instant) -> Option<Pass> {
        self.slot.enter(until)
    }

    /// A connection to the process: the kept one, if it is any good for this request, or a new one.
    pub(super) fn link(&mut self, pass: &Pass, is_idempotent: bool) -> io::Result<Link> {
        let kept = self.kept.take().filter(|kept| {
            kept.life == pass.life() && (is_idempotent || kept.since.elapsed() < KEPT_IDLE_MAX)
        });
        match kept {
            Some(Kept { link, .. }) => Ok(link),
            None => Link::connect(&self.address, self.timeout),
        }
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(&mut self, link: Link, pass: &Pass) {
        self.kept = Some(Kept { link, life: pass.life(), since: Instant::now() });
    }
}

impl Seat for AppSlot {
    fn wait(&mut self) {
        self.slot.wait();
    }

    fn is_ready(&self) -> bool {
        self.slot.is_ready()
    }
}
