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

use socket2::{Domain, Socket, Type};
use stilling_engine::limits::LISTENERS_MAX;

use crate::addresses::{Family, host_number, look_up};
use crate::dialect::Dialect;
use crate::floods::WatchedSockets;
use crate::loaded_interps;
use crate::read_ahead::ReceiveMode;
use crate::slab::SlabKey;
use crate::stream::Stream;
use crate::system_errors::{lacks_descriptors, system_error};
use crate::tcl::{
    Channel, ChannelDriver, CloseDirection, DeleteGuard, Interest, Interp, OptionError, OptionList,
    ThreadAction, Value,
};
use crate::thread_sockets::{AcceptedConnection, ShardListener, SocketChannel, ThreadSockets};
use crate::trace::{self, TraceEvent};

/// Connections of one listener that wait for their script. More wait in the backlog: the listener stops accepting until
/// half of them are gone. A ring accepts all of its backlog before it stops, so on `uring` and `direct` those come in
/// addition, once per stop: at most as many as `-backlog` permits and as arrive during the stop.
const ACCEPTED_WAITING_MAX: usize = 512;

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

/// Opens listening sockets on all addresses of a host, IPv4 first.
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

impl ListenError {
    /// The shard does not take the sockets.
    fn of_shard(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::QuotaExceeded => {
                ListenError::Text(format!("a thread has at most {LISTENERS_MAX} listening sockets"))
            }
            _ => ListenError::System(system_error(error)),
        }
    }
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
        .map_err(|error| Refusal::Failed(ListenError::Text(error.text())))?;
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

/// The script for accepted connections, and its interpreter as long as that exists.
struct AcceptScript {
    script: Value,
    interp: Rc<Cell<Option<Interp>>>,
    /// Dropped with the script, in its thread.
    delete_guard: Option<DeleteGuard>,
}

impl AcceptScript {
    fn new(interp: Interp, script: Value) -> Self {
        let live = Rc::new(Cell::new(Some(interp)));
        let deleted = Rc::clone(&live);
        let delete_guard = interp.on_delete(move || deleted.set(None));
        AcceptScript { script, interp: live, delete_guard: Some(delete_guard) }
    }
}

impl Drop for AcceptScript {
    fn drop(&mut self) {
        if self.interp.get().is_none()
            && let Some(guard) = self.delete_guard.take()
        {
            guard.forget();
        }
    }
}

pub(crate) struct Listener {
    dialect: Dialect,
    key: Cell<Option<SlabKey>>,
    channel: Cell<Option<Channel>>,
    listening: RefCell<Vec<ShardListener>>,
    /// Kept from thread to thread; dropped before the sockets are closed.
    watched: RefCell<WatchedSockets>,
    /// Listening sockets between two threads.
    moving: RefCell<Vec<OwnedFd>>,
    /// `None` after a move to another thread, until an interpreter of that thread gets its first connection.
    accept_script: RefCell<Option<AcceptScript>>,
    /// The script on its way to another thread.
    moved_script: RefCell<Option<Box<str>>>,
    /// Connections that wait for their script, oldest first.
    accepted: RefCell<VecDeque<AcceptedConnection>>,
    is_event_queued: Cell<bool>,
    is_closing: Cell<bool>,
    /// The script of the trace did not open it.
    is_traced: bool,
    /// It does not accept, because too many connections wait for their script.
    is_paused: Cell<bool>,
    backlog: Cell<i32>,
    /// The error of a move to another thread, until `-error` reports it.
    error: Cell<i32>,
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
        let listener = Rc::new(Listener {
            dialect,
            key: Cell::new(None),
            channel: Cell::new(None),
            listening: RefCell::default(),
            watched: RefCell::default(),
            moving: RefCell::new(descriptors),
            accept_script: RefCell::new(Some(AcceptScript::new(interp, script))),
            moved_script: RefCell::default(),
            accepted: RefCell::default(),
            is_event_queued: Cell::new(false),
            is_closing: Cell::new(false),
            is_traced: trace::may_trace_new_channel(),
            is_paused: Cell::new(false),
            error: Cell::new(0),
            backlog: Cell::new(options.backlog.unwrap_or(libc::SOMAXCONN)),
            receive_mode: Cell::default(),
            send_cap: Cell::new(dialect.send_cap()),
        });
        listener.enter(sockets).map_err(|error| ListenError::of_shard(&error))?;
        listener.start_watch();
        let name = dialect.next_channel_name();
        let channel = Channel::create(dialect.listener_type(), &name, Rc::clone(&listener), Interest::NONE);
        listener.channel.set(Some(channel));
        listener.trace(TraceEvent::Open, || listener.listening_text());
        Ok(channel)
    }

    fn trace(&self, event: TraceEvent, detail: impl FnOnce() -> String) {
        if trace::is_on() && self.is_traced {
            trace::record(event, self.channel.get(), detail);
        }
    }

    fn sockets(&self) -> Rc<ThreadSockets> {
        ThreadSockets::of_channel()
    }

    pub(crate) fn key(&self) -> SlabKey {
        self.key.get().expect("set when the listener enters a thread")
    }

    /// Adds the sockets to this thread's shard.
    fn enter(self: &Rc<Self>, sockets: &Rc<ThreadSockets>) -> io::Result<()> {
        let key = sockets.insert(SocketChannel::Listener(Rc::clone(self)));
        self.key.set(Some(key));
        crate::stats::socket_opened();
        self.is_paused.set(self.accepted.borrow().len() >= ACCEPTED_WAITING_MAX);
        for descriptor in self.moving.take() {
            match sockets.listen(descriptor, key, self.is_paused.get()) {
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

    /// No effect if the thread could not take over the listener.
    fn leave(&self) {
        let Some(key) = self.key.take() else { return };
        let sockets = self.sockets();
        sockets.close_listeners(&self.listening.take());
        sockets.remove(key);
        crate::stats::socket_closed();
    }

    /// Closes the connections that wait for their script.
    fn close_accepted(&self) {
        for connection in self.accepted.take() {
            crate::stats::socket_closed();
            if let AcceptedConnection::InShard(socket) = connection {
                self.sockets().close(socket);
            }
        }
    }

    /// The shard accepted a connection.
    pub(crate) fn accepted(&self, connection: AcceptedConnection) {
        self.accepted.borrow_mut().push_back(connection);
        crate::stats::socket_opened();
        if self.accepted.borrow().len() >= ACCEPTED_WAITING_MAX && !self.is_paused.replace(true) {
            self.sockets().pause_listeners(&self.listening.borrow());
        }
        self.queue_event();
    }

    /// Queues the event for the next connection, if one waits.
    pub(crate) fn queue_event(&self) {
        if !self.accepted.borrow().is_empty() && !self.is_event_queued.replace(true) {
            self.sockets().queue_event(self.key());
        }
    }

    /// The next connection and its script, for [`AcceptedChannel::run_script`].
    pub(crate) fn next_channel(&self) -> Option<AcceptedChannel> {
        self.is_event_queued.set(false);
        let connection = self.next_accepted()?;
        let sockets = self.sockets();
        let peer = match &connection {
            &AcceptedConnection::InShard(socket) => match sockets.peer_address(socket) {
                // With direct descriptors the query needs an ordinary one.
                Err(error) if lacks_descriptors(&error) => {
                    self.accepted.borrow_mut().push_front(connection);
                    sockets.retry_later(self.key(), socket);
                    return None;
                }
                outcome => outcome,
            },
            AcceptedConnection::Detached(descriptor) => stilling_engine::net::peer_addr(descriptor),
        };
        crate::stats::socket_closed();
        // The next one follows in the next cycle of the event loop, so timers and other sources take turns with it.
        sockets.interest_changed(self.key());
        let Ok(peer) = peer else {
            // The peer has gone already: the script never learns of it.
            self.trace(TraceEvent::AcceptDropped, || "the peer has gone".into());
            if let AcceptedConnection::InShard(socket) = connection {
                sockets.close(socket);
            }
            return None;
        };
        let stream = match connection {
            AcceptedConnection::InShard(socket) => Stream::accepted(self.dialect, &sockets, socket),
            AcceptedConnection::Detached(descriptor) => {
                match Stream::from_descriptor(self.dialect, &sockets, descriptor) {
                    Ok(stream) => stream,
                    Err(error) => {
                        let text = crate::tcl::error_text(system_error(&error));
                        self.trace(TraceEvent::AcceptDropped, || format!("from {peer}: {text}"));
                        return None;
                    }
                }
            }
        };
        stream.inherit(self.receive_mode.get(), self.send_cap.get(), self.is_traced);
        self.adopt_script();
        let accept_script = self.accept_script.borrow();
        let script = accept_script.as_ref().map(|script| (script.script.clone(), Rc::clone(&script.interp)));
        let channel = stream.into_channel();
        if self.is_traced {
            trace::record(TraceEvent::Accept, Some(channel), || {
                format!("from {peer} by {}", self.channel.get().map_or_else(String::new, Channel::name))
            });
        }
        Some(AcceptedChannel { channel, peer, script })
    }

    /// After a move, gives the script to the interpreter of this thread that knows the channel.
    fn adopt_script(&self) {
        if self.accept_script.borrow().is_some() {
            return;
        }
        let Some(interp) = self.channel.get().and_then(loaded_interps::find) else { return };
        if let Some(script) = self.moved_script.take() {
            self.accept_script.replace(Some(AcceptScript::new(interp, Value::text(&script))));
        }
    }

    /// Removes the oldest connection that waits; accepting goes on when half of the places are free.
    fn next_accepted(&self) -> Option<AcceptedConnection> {
        let connection = self.accepted.borrow_mut().pop_front();
        if self.is_paused.get() && self.accepted.borrow().len() <= ACCEPTED_WAITING_MAX / 2 {
            self.is_paused.set(false);
            self.sockets().resume_listeners(&self.listening.borrow());
        }
        connection
    }
}

/// A new channel, the address of its peer, and the listener's script with its interpreter.
pub(crate) struct AcceptedChannel {
    channel: Channel,
    peer: SocketAddr,
    script: Option<(Value, Rc<Cell<Option<Interp>>>)>,
}

impl AcceptedChannel {
    /// Runs the script. The listener may be closed or in another thread afterwards.
    pub(crate) fn run_script(self) {
        let AcceptedChannel { channel, peer, script } = self;
        let Some((script, live)) = script else { return channel.close() };
        let Some(interp) = live.get() else { return channel.close() };
        channel.register(Some(interp));
        // Keeps the channel until the end of this function, whatever the script does.
        channel.register(None);
        let port = peer.port().to_string();
        let script = script.with_words(&[&channel.name(), &host_number(peer), &port]);
        // The script may close the listener, which then does not learn that the interpreter is deleted.
        let _preserved = interp.preserve();
        let succeeded = interp.evaluate_in_background(&script);
        if !succeeded && !interp.is_deleted() {
            channel.unregister(Some(interp));
        }
        channel.unregister(None);
    }
}

impl ChannelDriver for Listener {
    fn begin_close(&self) {
        self.is_closing.set(true);
    }

    fn unclosed_channel(&self) -> Option<Channel> {
        self.channel.get().filter(|_| !self.is_closing.get())
    }

    fn close(self: Rc<Self>) -> Result<(), i32> {
        self.trace(TraceEvent::Close, || {
            format!("{} accepted connections had no script yet", self.accepted.borrow().len())
        });
        drop(self.watched.take());
        self.leave();
        self.close_accepted();
        self.channel.set(None);
        self.accept_script.take();
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
    fn watch(self: Rc<Self>, _: Interest) {}

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
    /// Moves the listening sockets to the shard that takes new sockets. The queue of connections is that of the sockets,
    /// so none is lost.
    pub(crate) fn change_shard(&self) {
        let sockets = self.sockets();
        for listening in self.listening.take() {
            // A new shard has room for the few listeners of a former one.
            let moved = sockets.detach_listener(listening);
            // It may be paused by connections that arrive before the detach.
            match moved.and_then(|descriptor| sockets.listen(descriptor, self.key(), self.is_paused.get())) {
                Ok(moved) => self.listening.borrow_mut().push(moved),
                Err(error) => self.trace_lost(system_error(&error)),
            }
        }
    }

    fn leave_thread(&self) {
        if self.key.get().is_none() {
            // The thread could not take over the sockets.
            return;
        }
        self.trace(TraceEvent::Leave, String::new);
        let sockets = self.sockets();
        let listening = self.listening.take();
        let descriptors = listening.into_iter().filter_map(|each| sockets.detach_listener(each).ok());
        self.moving.replace(descriptors.collect());
        // A detach runs turns, but no more connections arrive.
        let mut accepted = VecDeque::new();
        while let Some(connection) = self.next_accepted() {
            let descriptor = match connection {
                AcceptedConnection::InShard(socket) => sockets.detach(socket).ok(),
                AcceptedConnection::Detached(descriptor) => Some(descriptor),
            };
            match descriptor {
                Some(descriptor) => accepted.push_back(AcceptedConnection::Detached(descriptor)),
                None => {
                    self.trace(TraceEvent::AcceptDropped, || "lost in the move to another thread".into());
                    crate::stats::socket_closed();
                }
            }
        }
        self.accepted.replace(accepted);
        // Interpreters and values belong to their thread.
        if let Some(script) = self.accept_script.take() {
            self.moved_script.replace(Some(script.script.to_text().into()));
        }
        self.leave();
    }

    fn enter_thread(self: Rc<Self>) {
        if self.key.get().is_some() {
            // A new channel.
            return;
        }
        self.is_event_queued.set(false);
        match ThreadSockets::get().and_then(|sockets| self.enter(&sockets)) {
            Ok(()) => {
                self.trace(TraceEvent::Enter, String::new);
                self.queue_event();
            }
            Err(error) => self.on_lost(system_error(&error)),
        }
    }

    fn trace_lost(&self, error: i32) {
        self.trace(TraceEvent::Error, || format!("a socket was lost: {}", crate::tcl::error_text(error)));
    }

    /// The sockets could not be moved to another thread: `-error` and `-sockname` report that. Clients are not left
    /// waiting in the backlog.
    fn on_lost(&self, error: i32) {
        drop(self.watched.take());
        drop(self.moving.take());
        self.close_accepted();
        self.trace_lost(error);
        self.error.set(error);
    }
}
