//! A listener as a channel: one or more listening sockets on the same port, and the script for their connections.
//!
//! The shard accepts; connections wait here for their script. One event of the channel runs the script for one
//! connection, so connections and other events take turns.

mod listener_options;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use socket2::{Domain, SockRef, Socket, Type};

use crate::addresses::{Family, host_number, look_up};
use crate::dialect::Dialect;
use crate::floods::WatchedSockets;
use crate::read_ahead::ReceiveMode;
use crate::slab::SlabKey;
use crate::stream::{Stream, system_error};
use crate::tcl::{
    Channel, ChannelDriver, CloseDirection, DeleteGuard, Interest, Interp, OptionError, OptionList,
    ThreadAction, Value,
};
use crate::thread_sockets::{AcceptedConnection, ShardListener, SocketChannel, ThreadSockets};

/// Attempts to find a port that is free in all address families.
const PORT_ATTEMPTS: u32 = 10;

/// Options of the command for a listener.
#[derive(Debug, Default)]
pub(crate) struct ListenOptions {
    /// The local host; `None`: all addresses.
    pub(crate) host: Option<String>,
    pub(crate) port: i32,
    pub(crate) family: Family,
    /// Maximum length of the accept queue; `None`: the system's.
    pub(crate) backlog: Option<i32>,
    pub(crate) reuse_address: bool,
    pub(crate) reuse_port: bool,
}

/// Opens listening sockets on all addresses of a host, IPv4 first. The error is a text.
///
/// Port 0: the system chooses one for the first address; if it is in use in another family, all begin anew.
fn bind_all(options: &ListenOptions) -> Result<Vec<OwnedFd>, ListenError> {
    let mut attempt = 1;
    loop {
        match bind_once(options) {
            Err(Refusal::PortInUse) if attempt < PORT_ATTEMPTS => attempt += 1,
            Err(Refusal::PortInUse) => return Err(ListenError::System(libc::EADDRINUSE)),
            Err(Refusal::Failed(error)) => return Err(error),
            Ok(sockets) => return Ok(sockets),
        }
    }
}

/// Why no listener was opened.
pub(crate) enum ListenError {
    Text(String),
    System(i32),
}

enum Refusal {
    /// A port that the system chose is in use in another family.
    PortInUse,
    Failed(ListenError),
}

/// The steps of opening a listening socket; a failure in a later step says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListenStep {
    LookUp,
    Socket,
    Bind,
    Listen,
}

fn bind_once(options: &ListenOptions) -> Result<Vec<OwnedFd>, Refusal> {
    let addresses = look_up(options.host.as_deref(), options.port, options.family, true)
        .map_err(|error| Refusal::Failed(ListenError::Text(error.0)))?;
    let (mut sockets, mut chosen_port) = (Vec::new(), 0);
    let (mut furthest, mut first_error) = (ListenStep::LookUp, 0);
    for mut address in addresses {
        if options.port == 0 && chosen_port != 0 {
            address.set_port(chosen_port);
        }
        match bind_one(address, options) {
            Ok((socket, port)) => {
                chosen_port = port;
                sockets.push(socket);
            }
            Err((step, error)) => {
                let number = system_error(&error);
                if options.port == 0 && step >= ListenStep::Bind && number == libc::EADDRINUSE {
                    return Err(Refusal::PortInUse);
                }
                if furthest < step {
                    (furthest, first_error) = (step, number);
                }
            }
        }
    }
    if sockets.is_empty() { Err(Refusal::Failed(ListenError::System(first_error))) } else { Ok(sockets) }
}

fn bind_one(address: SocketAddr, options: &ListenOptions) -> Result<(OwnedFd, u16), (ListenStep, io::Error)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)
        .map_err(|error| (ListenStep::Socket, error))?;
    // Without it the bind fails where it matters.
    let _ = socket.set_reuse_address(options.reuse_address);
    if options.reuse_port {
        let _ = socket.set_reuse_port(true);
    }
    if address.is_ipv6() {
        let _ = socket.set_only_v6(true);
    }
    socket.bind(&address.into()).map_err(|error| (ListenStep::Bind, error))?;
    let listened = socket
        .local_addr()
        .and_then(|bound| socket.listen(options.backlog.unwrap_or(libc::SOMAXCONN)).map(|()| bound))
        .and_then(|bound| socket.set_nonblocking(true).map(|()| bound));
    let bound = listened.map_err(|error| (ListenStep::Listen, error))?;
    let port = bound.as_socket().map_or(0, |address| address.port());
    Ok((socket.into(), port))
}

/// The script for accepted connections, until its interpreter is deleted.
struct AcceptScript {
    script: Value,
    interp: Cell<Option<Interp>>,
}

pub(crate) struct Listener {
    dialect: Dialect,
    sockets: RefCell<Rc<ThreadSockets>>,
    key: Cell<Option<SlabKey>>,
    channel: Cell<Option<Channel>>,
    listening: RefCell<Vec<ShardListener>>,
    /// Kept from thread to thread; dropped before the sockets are closed.
    watched: RefCell<WatchedSockets>,
    /// Listening sockets between two threads.
    moving: RefCell<Vec<OwnedFd>>,
    accept_script: Rc<AcceptScript>,
    delete_guard: RefCell<Option<DeleteGuard>>,
    /// Connections that wait for their script, oldest first.
    accepted: RefCell<VecDeque<AcceptedConnection>>,
    is_event_queued: Cell<bool>,
    is_closing: Cell<bool>,
    backlog: Cell<i32>,
    /// Options of its connections.
    receive_mode: Cell<ReceiveMode>,
    send_cap: Cell<u16>,
}

impl Listener {
    /// Opens a listener and its channel.
    pub(crate) fn open(
        dialect: Dialect,
        sockets: &Rc<ThreadSockets>,
        interp: Interp,
        script: Value,
        options: &ListenOptions,
    ) -> Result<Channel, ListenError> {
        let descriptors = bind_all(options)?;
        let accept_script = Rc::new(AcceptScript { script, interp: Cell::new(Some(interp)) });
        let listener = Rc::new(Listener {
            dialect,
            sockets: RefCell::new(Rc::clone(sockets)),
            key: Cell::new(None),
            channel: Cell::new(None),
            listening: RefCell::default(),
            watched: RefCell::default(),
            moving: RefCell::new(descriptors),
            accept_script: Rc::clone(&accept_script),
            delete_guard: RefCell::default(),
            accepted: RefCell::default(),
            is_event_queued: Cell::new(false),
            is_closing: Cell::new(false),
            backlog: Cell::new(options.backlog.unwrap_or(libc::SOMAXCONN)),
            receive_mode: Cell::default(),
            send_cap: Cell::new(dialect.send_cap()),
        });
        listener.enter(sockets).map_err(|error| ListenError::System(system_error(&error)))?;
        listener.start_watch();
        let weak = Rc::downgrade(&listener);
        let guard = interp.on_delete(move || {
            accept_script.interp.set(None);
            if let Some(guard) = weak.upgrade().and_then(|listener| listener.delete_guard.take()) {
                guard.forget();
            }
        });
        listener.delete_guard.replace(Some(guard));
        let name = dialect.next_channel_name();
        let channel = Channel::create(dialect.listener_type(), &name, Rc::clone(&listener), Interest::NONE);
        listener.channel.set(Some(channel));
        Ok(channel)
    }

    fn sockets(&self) -> Rc<ThreadSockets> {
        Rc::clone(&self.sockets.borrow())
    }

    pub(crate) fn key(&self) -> SlabKey {
        self.key.get().expect("set when the listener enters a thread")
    }

    /// Adds the sockets to this thread's shard.
    fn enter(self: &Rc<Self>, sockets: &Rc<ThreadSockets>) -> io::Result<()> {
        self.sockets.replace(Rc::clone(sockets));
        let key = sockets.insert(SocketChannel::Listener(Rc::clone(self)));
        self.key.set(Some(key));
        crate::stats::socket_opened();
        for descriptor in self.moving.take() {
            match sockets.listen(descriptor, key) {
                Ok(listening) => self.listening.borrow_mut().push(listening),
                Err(error) => {
                    self.leave();
                    return Err(error);
                }
            }
        }
        sockets.turn_until_done();
        Ok(())
    }

    /// Watches the sockets for SYN floods and full queues; a listener that cannot be watched serves all the same.
    fn start_watch(&self) {
        let (sockets, mut watched) = (self.sockets(), WatchedSockets::default());
        for &listening in self.listening.borrow().iter() {
            let mut added = Ok(());
            let found = sockets.with_listener(listening, &mut |descriptor| {
                added = watched.add(descriptor, self.backlog.get());
            });
            if found.and(added).is_err() {
                return;
            }
        }
        self.watched.replace(watched);
    }

    fn leave(&self) {
        let sockets = self.sockets();
        sockets.close_listeners(&self.listening.take());
        if let Some(key) = self.key.take() {
            sockets.remove(key);
            crate::stats::socket_closed();
        }
    }

    /// The shard accepted a connection.
    pub(crate) fn accepted(&self, connection: AcceptedConnection) {
        self.accepted.borrow_mut().push_back(connection);
        crate::stats::socket_opened();
        self.queue_event();
    }

    /// Queues the event for the next connection, if one waits.
    pub(crate) fn queue_event(&self) {
        if !self.accepted.borrow().is_empty() && !self.is_event_queued.replace(true) {
            self.sockets().queue_event(self.key());
        }
    }

    /// Runs the script for one connection.
    pub(crate) fn handle_event(self: &Rc<Self>) {
        self.is_event_queued.set(false);
        let Some(connection) = self.accepted.borrow_mut().pop_front() else { return };
        crate::stats::socket_closed();
        let sockets = self.sockets();
        // The next one follows in the next cycle of the event loop, so timers and other sources take turns with it.
        sockets.interest_changed(self.key());
        let stream = match connection {
            AcceptedConnection::InShard(socket) => {
                let Ok(peer) = sockets.peer_address(socket) else {
                    // The peer has gone already: the script never learns of it.
                    return sockets.close(socket);
                };
                Some((Stream::accepted(self.dialect, &sockets, socket), peer))
            }
            AcceptedConnection::Detached(descriptor) => {
                let peer = SockRef::from(&descriptor).peer_addr().ok().and_then(|peer| peer.as_socket());
                let stream = Stream::from_descriptor(self.dialect, &sockets, descriptor).ok();
                stream.zip(peer)
            }
        };
        if let Some((stream, peer)) = stream {
            stream.inherit(self.receive_mode.get(), self.send_cap.get());
            self.run_script(stream, peer);
        }
    }

    fn run_script(&self, stream: Rc<Stream>, peer: SocketAddr) {
        let accept_script = Rc::clone(&self.accept_script);
        let channel = stream.into_channel();
        let Some(interp) = accept_script.interp.get() else { return channel.close() };
        channel.register(Some(interp));
        // Keeps the channel until the end of this function, whatever the script does.
        channel.register(None);
        let port = peer.port().to_string();
        let script = accept_script.script.with_words(&[&channel.name(), &host_number(peer), &port]);
        let succeeded = interp.evaluate_in_background(&script);
        if !succeeded && accept_script.interp.get().is_some() {
            channel.unregister(Some(interp));
        }
        channel.unregister(None);
    }
}

impl ChannelDriver for Listener {
    fn begin_close(&self) {
        self.is_closing.set(true);
    }

    fn close(self: Rc<Self>) -> Result<(), i32> {
        drop(self.watched.take());
        self.leave();
        let sockets = self.sockets();
        for connection in self.accepted.take() {
            crate::stats::socket_closed();
            if let AcceptedConnection::InShard(socket) = connection {
                sockets.close(socket);
            }
        }
        self.channel.set(None);
        self.delete_guard.take();
        Ok(())
    }

    fn close_direction(&self, _: CloseDirection) -> Result<(), i32> {
        Err(libc::EINVAL)
    }

    fn input(&self, _: &mut [u8]) -> Result<usize, i32> {
        Err(libc::ENOTCONN)
    }

    fn output(&self, _: &[u8]) -> Result<usize, i32> {
        Err(libc::ENOTCONN)
    }

    fn set_option(&self, name: &str, value: &str) -> Result<(), OptionError> {
        self.set_listener_option(name, value)
    }

    fn get_option(
        &self,
        interp: Option<Interp>,
        name: Option<&str>,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        match name {
            Some(name) => self.append_option(interp, name, into),
            None => self.append_all_options(interp, into),
        }
    }

    /// A listener is neither readable nor writable for scripts.
    fn watch(&self, _: Interest) {}

    fn descriptor(&self) -> Option<RawFd> {
        let first = *self.listening.borrow().first()?;
        let mut found = None;
        let with = self.sockets().with_listener(first, &mut |descriptor| {
            found = Some(descriptor.as_fd().as_raw_fd());
        });
        with.ok().and(found)
    }

    fn set_blocking(&self, _: bool) -> Result<(), i32> {
        Ok(())
    }

    fn change_thread(self: Rc<Self>, action: ThreadAction) {
        match action {
            // Tcl takes a channel out of its thread before it closes it.
            ThreadAction::Remove if self.is_closing.get() => {}
            ThreadAction::Remove => self.leave_thread(),
            ThreadAction::Insert => self.enter_thread(),
        }
    }
}

impl Listener {
    /// Duplicates of the listening sockets; those that cannot be duplicated are left out.
    fn duplicate_sockets(&self) -> Vec<OwnedFd> {
        let (sockets, mut duplicates) = (self.sockets(), Vec::new());
        for &listening in self.listening.borrow().iter() {
            let _ = sockets.with_listener(listening, &mut |descriptor| {
                duplicates.extend(descriptor.try_clone_to_owned().ok());
            });
        }
        duplicates
    }

    /// Moves the listening sockets to the shard that takes new sockets. The queue of connections is that of the sockets,
    /// not of their descriptors, so none is lost.
    pub(crate) fn change_shard(&self) {
        let (sockets, former) = (self.sockets(), self.listening.take());
        let mut current = Vec::new();
        for listening in former {
            let mut duplicate = None;
            let _ = sockets.with_listener(listening, &mut |descriptor| {
                duplicate = descriptor.try_clone_to_owned().ok();
            });
            match duplicate.and_then(|duplicate| sockets.listen(duplicate, self.key()).ok()) {
                Some(moved) => {
                    sockets.close_listeners(&[listening]);
                    current.push(moved);
                }
                // It stays where it is.
                None => current.push(listening),
            }
        }
        self.listening.replace(current);
    }

    fn leave_thread(&self) {
        let sockets = self.sockets();
        self.moving.replace(self.duplicate_sockets());
        let accepted = self.accepted.take().into_iter().filter_map(|connection| match connection {
            AcceptedConnection::InShard(socket) => sockets.detach(socket).ok(),
            AcceptedConnection::Detached(descriptor) => Some(descriptor),
        });
        let accepted = accepted.map(AcceptedConnection::Detached).collect();
        self.accepted.replace(accepted);
        self.leave();
    }

    fn enter_thread(self: Rc<Self>) {
        if self.key.get().is_some() {
            // A new channel.
            return;
        }
        let Ok(sockets) = ThreadSockets::get() else { return };
        self.is_event_queued.set(false);
        // Without its sockets the listener accepts nothing, which `-sockname` reports.
        let _ = self.enter(&sockets);
        if self.key.get().is_some() {
            self.queue_event();
        }
    }
}
