//! The event loop of all programs: wait in epoll(7), read each readable connection once, let the program handle
//! it.
//!
//! Reads return available bytes. Writes block until the client has read, so a client that does not read blocks all
//! others of its thread, for at most [`WRITE_TIMEOUT`]; then its connection closes.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use stilling_engine::net::{ListenOptions, listen_tcp};

/// Bytes of an incomplete request or message. More: the connection closes.
const UNFINISHED_SIZE_MAX: usize = 72 * 1024;

/// Events per wait; further ones come with the next.
const EVENTS_MAX: usize = 256;

/// Longest time that a write waits for a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause of accepting when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The listener's event id, which is not a descriptor.
const LISTENER: u64 = u64::MAX;

/// A program's handling of its clients' bytes.
pub(crate) trait PeerService {
    /// Bytes of one read. The default is the best size measured with a prototype of the relay.
    const READ_SIZE: usize = 64 * 1024;

    fn greeting(&self) -> &'static [u8] {
        b""
    }

    /// Handles a connection's input from the first unconsumed byte. Returns the number of consumed bytes; `None` closes
    /// the connection.
    fn receive(&mut self, connection: &mut PeerConnection, input: &[u8]) -> Option<usize>;

    /// Forgets a closing connection.
    fn close(&mut self, _connection: &PeerConnection) {}
}

pub(crate) struct PeerConnection {
    pub(crate) stream: Arc<TcpStream>,
    /// The id of the client's last subscription; empty without one.
    pub(crate) sid: Vec<u8>,
    unfinished: Vec<u8>,
}

impl PeerConnection {
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&*self.stream).write_all(bytes)
    }
}

/// Listens with the options of Stilling's own listeners, which connections inherit: neither server calls setsockopt(2)
/// per connection.
pub(crate) fn listen(address: SocketAddr, defer_accept: Option<u32>) -> io::Result<TcpListener> {
    let options = ListenOptions { defer_accept, ..ListenOptions::default() };
    let listener = TcpListener::from(listen_tcp(address, &options)?);
    SockRef::from(&listener).set_write_timeout(Some(WRITE_TIMEOUT))?;
    Ok(listener)
}

pub(crate) fn announce(scheme: &str, listener: &TcpListener) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening {scheme}://{}", listener.local_addr()?)?;
    out.flush()
}

/// Serves all clients of a listener; returns only on an error of epoll.
pub(crate) fn serve<S: PeerService>(listener: &TcpListener, service: &mut S) -> io::Result<()> {
    let poller = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&poller, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let buffer = vec![0; UNFINISHED_SIZE_MAX + S::READ_SIZE];
    let mut event_loop = EventLoop { poller, connections: Vec::new(), buffer, service };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    loop {
        match epoll::wait(&event_loop.poller, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            let data = event.data;
            match data.u64() {
                LISTENER => event_loop.accept(listener),
                number => event_loop.handle_readable(number as usize),
            }
        }
    }
}

struct EventLoop<'s, S> {
    poller: OwnedFd,
    /// Indexed by descriptor.
    connections: Vec<Option<PeerConnection>>,
    /// One connection's input: its unconsumed bytes, then those of the last read.
    buffer: Vec<u8>,
    service: &'s mut S,
}

impl<S: PeerService> EventLoop<'_, S> {
    fn accept(&mut self, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.open(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Greets a client and reads available input; a connection that closes after that is not added to epoll.
    fn open(&mut self, stream: TcpStream) {
        let number = stream.as_raw_fd().cast_unsigned() as usize;
        let data = EventData::new_u64(number as u64);
        let mut connection =
            PeerConnection { stream: Arc::new(stream), sid: Vec::new(), unfinished: Vec::new() };
        let is_open = connection.send(self.service.greeting()).is_ok()
            && self.receive(&mut connection)
            && epoll::add(&self.poller, &*connection.stream, data, EventFlags::IN).is_ok();
        if !is_open {
            self.service.close(&connection);
            return;
        }
        if self.connections.len() <= number {
            self.connections.resize_with(number + 1, || None);
        }
        self.connections[number] = Some(connection);
    }

    fn handle_readable(&mut self, number: usize) {
        let Some(mut connection) = self.connections.get_mut(number).and_then(Option::take) else { return };
        if self.receive(&mut connection) {
            self.connections[number] = Some(connection);
            return;
        }
        // Pending answers keep the socket open, and epoll would continue to report it.
        let _ = epoll::delete(&self.poller, &*connection.stream);
        self.service.close(&connection);
    }

    /// Reads once; returns whether the connection stays open.
    fn receive(&mut self, connection: &mut PeerConnection) -> bool {
        let EventLoop { buffer, service, .. } = self;
        let kept = connection.unfinished.len();
        buffer[..kept].copy_from_slice(&connection.unfinished);
        let room = &mut buffer[kept..kept + S::READ_SIZE];
        let end = match recv(&*connection.stream, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((count, _)) => kept + count,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        let Some(consumed) = service.receive(connection, &buffer[..end]) else { return false };
        connection.unfinished.clear();
        connection.unfinished.extend_from_slice(&buffer[consumed..end]);
        connection.unfinished.len() <= UNFINISHED_SIZE_MAX
    }
}
