//! The publisher's thread: drives the link with a socket and a clock.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::{Events, Poll, Token};

use crate::address::ServerUrl;
use crate::config::{OverflowPolicy, PublisherConfig, SpoolMode};
use crate::connection_error::ConnectionError;
use crate::limits::{READ_SIZE, READS_PER_TURN};
use crate::link::PublisherLink;
use crate::shared::SharedState;
use crate::socket::{PublisherSocket, connect_error, resolve};

/// Poll events per turn; more follow in the next turn.
const EVENTS: usize = 8;
pub(crate) const WAKER: Token = Token(0);
const SOCKET: Token = Token(1);

pub(crate) struct PublisherThread {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) link: PublisherLink,
    pub(crate) poll: Poll,
    pub(crate) overflow: OverflowPolicy,
    pub(crate) spool_size: u64,
    /// Held messages are in a spool on disk and survive the end of this thread.
    is_retained: bool,
    connection: Option<ThreadConnection>,
    buffer: Vec<u8>,
}

/// A connection and its readiness, which is kept between turns because polling is edge-triggered.
struct ThreadConnection {
    socket: PublisherSocket,
    server: ServerUrl,
    fallback_addresses: std::vec::IntoIter<SocketAddr>,
    is_connected: bool,
    is_readable: bool,
    is_writable: bool,
}

impl PublisherThread {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        link: PublisherLink,
        poll: Poll,
        config: &PublisherConfig,
    ) -> PublisherThread {
        let (overflow, spool_size) = (config.overflow, config.spool_size);
        let is_retained = matches!(config.spool_mode, SpoolMode::Directory(_));
        let buffer = vec![0; READ_SIZE];
        PublisherThread { shared, link, poll, overflow, spool_size, is_retained, connection: None, buffer }
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        while self.turn(&mut events) {}
        self.connection = None;
        self.link.close(Instant::now(), unix_ns());
        self.shared.apply_update(self.link.take_update());
    }

    /// Performs one turn. Returns false after the last one.
    fn turn(&mut self, events: &mut Events) -> bool {
        if !self.collect_submissions() {
            return false;
        }
        // The thread may have been suspended, or in a slow callback: data that has arrived is processed before any
        // timeout.
        let now = Instant::now();
        if self.link.deadline().is_some_and(|at| now >= at) && self.drain_input(events) {
            self.link.check_timeouts(now);
        }
        let commands = self.link.turn(Instant::now(), unix_ns());
        if commands.close {
            self.connection = None;
        }
        if let Some(server) = commands.connect {
            self.connect(server);
        }
        self.write();
        self.shared.apply_update(self.link.take_update());
        let is_busy = self.connection.as_ref().is_some_and(|connection| connection.is_readable);
        let timeout = if is_busy || !self.shared.prepare_sleep() {
            Some(Duration::ZERO)
        } else {
            self.link.deadline().map(|at| at.saturating_duration_since(Instant::now()))
        };
        // An interrupted wait counts as a short one. Other errors would repeat at once: the pause prevents a busy loop,
        // and the link's deadlines still apply.
        if let Err(error) = self.poll_socket(events, timeout)
            && error.kind() != ErrorKind::Interrupted
        {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        self.shared.set_awake();
        self.process_input();
        true
    }

    fn poll_socket(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        self.poll.poll(events, timeout)?;
        if let Some(connection) = &mut self.connection {
            for event in events.iter().filter(|event| event.token() == SOCKET) {
                connection.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                connection.is_writable |= event.is_writable() || event.is_write_closed() || event.is_error();
            }
        }
        Ok(())
    }

    /// Passes received data to the link. Returns false if there may be more.
    fn process_input(&mut self) -> bool {
        self.finish_connecting();
        self.read();
        !self.connection.as_ref().is_some_and(|connection| connection.is_connected && connection.is_readable)
    }

    fn drain_input(&mut self, events: &mut Events) -> bool {
        // If polling fails, no input can be awaited: the timeouts apply.
        match self.poll_socket(events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => false,
            _ => self.process_input(),
        }
    }

    /// Passes submitted messages to the link. Returns false if the publisher is closed.
    fn collect_submissions(&mut self) -> bool {
        let (entries, held, stop) = {
            let mut state = self.shared.lock();
            (std::mem::take(&mut state.submissions), state.held.1, state.stop)
        };
        for entry in entries {
            self.link.submit(entry);
        }
        if self.overflow == OverflowPolicy::DropOldest && held > self.spool_size {
            self.link.commit(unix_ns());
            let mut excess = held.saturating_sub(self.spool_size);
            while excess > 0
                && let Some(cost) = self.link.drop_oldest()
            {
                excess = excess.saturating_sub(cost);
            }
        }
        !stop
    }

    fn connect(&mut self, server: ServerUrl) {
        let addresses = match resolve(&server) {
            Ok(addresses) => addresses,
            Err(connection_error) => return self.link.closed(Instant::now(), connection_error),
        };
        let mut fallback_addresses = addresses.into_iter();
        let first = fallback_addresses.next();
        if let Err(error) = self.open(&server, first, fallback_addresses) {
            self.link.closed(Instant::now(), connect_error(&server, &error));
        }
    }

    fn open(
        &mut self,
        server: &ServerUrl,
        address: Option<SocketAddr>,
        fallback_addresses: std::vec::IntoIter<SocketAddr>,
    ) -> io::Result<()> {
        let mut socket = PublisherSocket::connect(server, address)?;
        socket.register(self.poll.registry(), SOCKET)?;
        self.connection = Some(ThreadConnection {
            socket,
            server: server.clone(),
            fallback_addresses,
            is_connected: false,
            is_readable: false,
            is_writable: false,
        });
        Ok(())
    }

    fn finish_connecting(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if connection.is_connected || !(connection.is_writable || connection.is_readable) {
            return;
        }
        match connection.socket.is_connected() {
            Ok(true) => {
                connection.is_connected = true;
                self.link.connected(Instant::now());
            }
            Ok(false) => {}
            Err(error) => self.try_next_address(error),
        }
    }

    fn try_next_address(&mut self, mut error: io::Error) {
        let Some(ThreadConnection { server, mut fallback_addresses, .. }) = self.connection.take() else {
            return;
        };
        while let Some(address) = fallback_addresses.next() {
            match self.open(&server, Some(address), fallback_addresses.clone()) {
                Ok(()) => return,
                Err(other) => error = other,
            }
        }
        self.link.closed(Instant::now(), connect_error(&server, &error));
    }

    fn read(&mut self) {
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connection.as_mut().filter(|it| it.is_connected && it.is_readable)
            else {
                return;
            };
            match connection.socket.read(&mut self.buffer) {
                Ok(0) => return self.end(ConnectionError::Closed),
                Ok(count) => self.link.received(Instant::now(), &self.buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => connection.is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.end(ConnectionError::from_io(&error)),
            }
        }
    }

    fn write(&mut self) {
        while let Some(connection) = self.connection.as_mut().filter(|it| it.is_connected && it.is_writable)
            && !self.link.output().is_empty()
        {
            match connection.socket.write(self.link.output()) {
                Ok(count) => self.link.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => connection.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // The server's last message is a better reason than the write error.
                    connection.is_readable = true;
                    self.read();
                    if self.connection.is_some() {
                        self.end(ConnectionError::from_io(&error));
                    }
                    return;
                }
            }
        }
    }

    fn end(&mut self, connection_error: ConnectionError) {
        self.connection = None;
        self.link.closed(Instant::now(), connection_error);
    }
}

impl Drop for PublisherThread {
    /// Runs on a panic, too: waiting callers are notified, and further messages are refused.
    fn drop(&mut self) {
        self.shared.end(self.is_retained);
    }
}

/// Nanoseconds since 1970, as the journal counts time.
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
