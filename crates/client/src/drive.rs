//! The publisher's thread: moves bytes and time between the socket and the link.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::{Events, Poll, Token};

use crate::address::Server;
use crate::config::{Config, Keep, Overflow};
use crate::desk::Desk;
use crate::limits::{READ_SIZE, READS_PER_TURN};
use crate::link::Link;
use crate::socket::{Socket, refused, resolve};
use crate::trouble::Trouble;

/// Events of a turn; more come with the next.
const EVENTS: usize = 8;
pub(crate) const WAKER: Token = Token(0);
const SOCKET: Token = Token(1);

/// Everything that the thread owns.
pub(crate) struct Drive {
    pub(crate) desk: Arc<Desk>,
    pub(crate) link: Link,
    pub(crate) poll: Poll,
    pub(crate) overflow: Overflow,
    pub(crate) spool_size: u64,
    /// What is held outlives this thread.
    is_kept: bool,
    connection: Option<Connection>,
    buffer: Vec<u8>,
}

/// A connection and what is known of it between two turns: the system tells news only once.
struct Connection {
    socket: Socket,
    server: Server,
    /// Other addresses of the server to be tried if this one does not work.
    others: std::vec::IntoIter<SocketAddr>,
    is_connected: bool,
    is_readable: bool,
    is_writable: bool,
}

impl Drive {
    pub(crate) fn new(desk: Arc<Desk>, link: Link, poll: Poll, config: &Config) -> Drive {
        let (overflow, spool_size) = (config.overflow, config.spool_size);
        let is_kept = matches!(config.keep, Keep::Directory(_));
        let buffer = vec![0; READ_SIZE];
        Drive { desk, link, poll, overflow, spool_size, is_kept, connection: None, buffer }
    }

    /// Runs until the publisher is closed.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        while self.turn(&mut events) {}
        self.connection = None;
        self.link.close(Instant::now(), unix_ns());
        self.desk.post(self.link.news());
    }

    /// One turn; false: it was the last.
    fn turn(&mut self, events: &mut Events) -> bool {
        if !self.take_in() {
            return false;
        }
        // This thread may have been stopped, or have been with its caller's own code: what came meanwhile counts first.
        let now = Instant::now();
        if self.link.deadline().is_some_and(|at| now >= at) && self.has_heard_all(events) {
            self.link.judge(now);
        }
        let order = self.link.turn(Instant::now(), unix_ns());
        if order.close {
            self.connection = None;
        }
        if let Some(server) = order.connect {
            self.connect(server);
        }
        self.write();
        self.desk.post(self.link.news());
        let is_busy = self.connection.as_ref().is_some_and(|connection| connection.is_readable);
        let timeout = if is_busy || !self.desk.sleep() {
            Some(Duration::ZERO)
        } else {
            self.link.deadline().map(|at| at.saturating_duration_since(Instant::now()))
        };
        // An interrupted wait is a short one. Any other error would come again at once: the pause keeps it from being a
        // busy loop, and the link's own deadlines go on.
        if let Err(error) = self.look(events, timeout)
            && error.kind() != ErrorKind::Interrupted
        {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        self.desk.awake();
        self.listen();
        true
    }

    /// Waits for news of the socket.
    fn look(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        self.poll.poll(events, timeout)?;
        if let Some(connection) = &mut self.connection {
            for event in events.iter().filter(|event| event.token() == SOCKET) {
                connection.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                connection.is_writable |= event.is_writable() || event.is_write_closed() || event.is_error();
            }
        }
        Ok(())
    }

    /// Tells the link what has come; false: there may be more.
    fn listen(&mut self) -> bool {
        self.finish_connecting();
        self.read();
        !self.connection.as_ref().is_some_and(|connection| connection.is_connected && connection.is_readable)
    }

    fn has_heard_all(&mut self, events: &mut Events) -> bool {
        // What cannot be asked for cannot be waited for either: the deadlines are all that there is then.
        match self.look(events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => false,
            _ => self.listen(),
        }
    }

    /// Takes what callers have given; false: the publisher is closed.
    fn take_in(&mut self) -> bool {
        let (entries, held, stop) = {
            let mut state = self.desk.lock();
            (std::mem::take(&mut state.intake), state.held.1, state.stop)
        };
        for entry in entries {
            self.link.submit(entry);
        }
        if self.overflow == Overflow::DropOldest && held > self.spool_size {
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

    fn connect(&mut self, server: Server) {
        let found = match resolve(&server) {
            Ok(found) => found,
            Err(trouble) => return self.link.closed(Instant::now(), trouble),
        };
        let mut others = found.into_iter();
        let first = others.next();
        if let Err(error) = self.open(&server, first, others) {
            self.link.closed(Instant::now(), refused(&server, &error));
        }
    }

    fn open(
        &mut self,
        server: &Server,
        address: Option<SocketAddr>,
        others: std::vec::IntoIter<SocketAddr>,
    ) -> io::Result<()> {
        let mut socket = Socket::connect(server, address)?;
        socket.register(self.poll.registry(), SOCKET)?;
        self.connection = Some(Connection {
            socket,
            server: server.clone(),
            others,
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
            Err(error) => self.next_address(error),
        }
    }

    /// An address of the server did not work; perhaps another one does.
    fn next_address(&mut self, mut error: io::Error) {
        let Some(Connection { server, mut others, .. }) = self.connection.take() else { return };
        while let Some(address) = others.next() {
            match self.open(&server, Some(address), others.clone()) {
                Ok(()) => return,
                Err(other) => error = other,
            }
        }
        self.link.closed(Instant::now(), refused(&server, &error));
    }

    fn read(&mut self) {
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connection.as_mut().filter(|it| it.is_connected && it.is_readable)
            else {
                return;
            };
            match connection.socket.read(&mut self.buffer) {
                Ok(0) => return self.end(Trouble::Closed),
                Ok(count) => self.link.received(Instant::now(), &self.buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => connection.is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.end(Trouble::broken(&error)),
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
                    // What the server said before it closed is the better reason.
                    connection.is_readable = true;
                    self.read();
                    if self.connection.is_some() {
                        self.end(Trouble::broken(&error));
                    }
                    return;
                }
            }
        }
    }

    fn end(&mut self, trouble: Trouble) {
        self.connection = None;
        self.link.closed(Instant::now(), trouble);
    }
}

impl Drop for Drive {
    /// Also when the thread panics: whoever waits hears that it has ended, and whoever sends is refused.
    fn drop(&mut self) {
        self.desk.end(self.is_kept);
    }
}

/// Now, as the journal counts.
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
