//! The sockets of one interpreter thread, and their part in its event loop.
//!
//! ```text
//!  before a wait:  arm what scripts wait for ─▶ turns ─▶ events? queue them, do not wait
//!                                                        none?   arm the waiter
//!  after a wait:   turn, if the waiter has woken the thread ─▶ queue the events
//!  on its turn:    a queued event ─▶ Channel::notify, or a listener's script ─▶ the last one? turns, for a while
//! ```
//!
//! Nothing here is borrowed while Tcl runs a script, since the script may call any function again.

mod accept_trace;
mod blocking;
mod delayed;
mod entries;
mod event_loop;

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stilling_engine::driver::choice::DriverKind;
use stilling_engine::driver::{Destination, ReceivedDatagram, Wait};
use stilling_engine::{Clock, Time, Token};

pub(crate) use self::entries::{AcceptedConnection, ShardListener, ShardSocket, SocketChannel};

use self::accept_trace::AcceptCounts;
use self::delayed::DelayedListeners;
use crate::driver_choice;
use crate::lookup::LookupInbox;
use crate::poll_policy::PollPolicy;
use crate::shard::{self, SocketEvent, SocketShard};
use crate::slab::{Slab, SlabKey};
use crate::stages::{self, Stage};
use crate::stream::Stream;
use crate::tcl::{self, EventSource, EventSourceGuard};
use crate::trace;
use crate::waiter::WaitRegistration;

/// Shards of one thread; a [`ShardSocket`] has a byte for their number. All crowded: the last one fills up.
const SHARDS_MAX: usize = 256;

struct ThreadShard {
    shard: Box<dyn SocketShard>,
    /// `None` after the thread's end.
    wait: Option<WaitRegistration>,
    /// The channels of its listeners, by the shard's numbers.
    listeners: Vec<Option<SlabKey>>,
    /// What the trace has reported.
    traced: AcceptCounts,
}

pub(crate) struct ThreadSockets {
    kind: DriverKind,
    shards: RefCell<Vec<ThreadShard>>,
    /// The shard that takes new sockets and has all listeners.
    open_shard: Cell<usize>,
    channels: RefCell<Slab<SocketChannel>>,
    /// Channels whose interest may have changed, without duplicates.
    changed: RefCell<Vec<SlabKey>>,
    delayed: DelayedListeners,
    /// The outcome of [`detach`](Self::detach), when it is known. `Some(None)`: no descriptor could be created, and the
    /// socket is closed.
    detached: RefCell<Option<Option<OwnedFd>>>,
    /// Taken and returned by [`turn`](Self::turn).
    events: RefCell<Vec<SocketEvent>>,
    /// Created by the first look-up.
    lookups: OnceCell<Arc<LookupInbox>>,
    /// Events of channels in Tcl's queue.
    queued: Cell<usize>,
    poll_policy: PollPolicy,
    clock: Clock,
    /// The registration as an event source; `None` after the thread's end.
    source: Cell<Option<EventSourceGuard<ThreadSockets>>>,
    is_ending: Cell<bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<ThreadSockets>>> = const { RefCell::new(None) };
}

impl ThreadSockets {
    /// The sockets of the current thread; created by the first call.
    pub(crate) fn get() -> io::Result<Rc<Self>> {
        if let Some(sockets) = Self::current() {
            return Ok(sockets);
        }
        let sockets = Rc::new(ThreadSockets {
            kind: driver_choice::selected()?,
            shards: RefCell::default(),
            open_shard: Cell::new(0),
            channels: RefCell::default(),
            changed: RefCell::default(),
            delayed: DelayedListeners::default(),
            detached: RefCell::default(),
            events: RefCell::default(),
            lookups: OnceCell::new(),
            queued: Cell::new(0),
            poll_policy: PollPolicy::new(),
            clock: Clock::real(),
            source: Cell::new(Some(EventSourceGuard::new())),
            is_ending: Cell::new(false),
        });
        sockets.add_shard()?;
        tcl::start_notifier()?;
        CURRENT.with_borrow_mut(|current| *current = Some(Rc::clone(&sockets)));
        tcl::on_thread_exit(|| {
            // Channels that Tcl closes later still use the sockets.
            if let Some(sockets) = Self::current() {
                sockets.end_thread();
            }
        });
        Ok(sockets)
    }

    /// The sockets of the current thread, for one of its channels.
    pub(crate) fn of_channel() -> Rc<Self> {
        Self::current().expect("a thread has its sockets until Tcl has closed its channels")
    }

    /// Whether the thread is ending: Tcl writes what its channels have and closes them, without an event loop.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// Ends the participation in the event loop; sockets can still be used and closed.
    fn end_thread(&self) {
        self.is_ending.set(true);
        self.source.take();
        // Their scripts go while Tcl is there.
        self.remove_script_lookups();
        for entry in self.shards.borrow_mut().iter_mut() {
            entry.wait = None;
        }
    }

    fn remove_script_lookups(&self) {
        let lookups: Vec<SlabKey> = self
            .channels
            .borrow()
            .entries()
            .filter_map(|(key, channel)| matches!(channel, SocketChannel::Lookup(_)).then_some(key))
            .collect();
        lookups.into_iter().for_each(|key| self.remove(key));
    }

    fn add_shard(&self) -> io::Result<()> {
        if self.shards.borrow().len() == SHARDS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let mut shard = shard::create(self.kind, self.clock.clone())?;
        let waitable = shard.waitable()?;
        // SAFETY: the descriptor is the driver's, which lives as long as the shard.
        let wait = Some(WaitRegistration::new(unsafe { BorrowedFd::borrow_raw(waitable) })?);
        crate::stats::register(shard.counters());
        self.shards.borrow_mut().push(ThreadShard {
            shard,
            wait,
            listeners: Vec::new(),
            traced: AcceptCounts::default(),
        });
        Ok(())
    }

    /// The inbox of this thread's look-ups.
    pub(crate) fn lookup_inbox(&self) -> &Arc<LookupInbox> {
        self.lookups.get_or_init(|| {
            let wake = self.shards.borrow_mut()[0].shard.wake_handle();
            LookupInbox::new(wake)
        })
    }

    /// Passes finished look-ups to their channels. To be called after a turn, which takes the wake.
    fn dispatch_lookups(&self) {
        let Some(inbox) = self.lookups.get() else { return };
        for (key, outcome) in inbox.take() {
            match self.channel(key) {
                Some(SocketChannel::Stream(stream)) => stream.on_looked_up(outcome),
                Some(SocketChannel::Lookup(lookup)) => {
                    lookup.set_outcome(outcome);
                    self.queue_event(key);
                }
                Some(SocketChannel::Listener(_) | SocketChannel::Datagram(_)) | None => {}
            }
        }
    }

    pub(crate) fn has_direct_descriptors(&self) -> bool {
        self.kind == DriverKind::UringDirect
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn insert(&self, channel: SocketChannel) -> SlabKey {
        self.channels.borrow_mut().insert(channel)
    }

    pub(crate) fn remove(&self, key: SlabKey) {
        // Dropped after the borrow: the last reference may close sockets.
        let removed = self.channels.borrow_mut().remove(key);
        drop(removed);
    }

    fn channel(&self, key: SlabKey) -> Option<SocketChannel> {
        self.channels.borrow().get(key).cloned()
    }

    /// Records that the interest of a channel may have changed.
    pub(crate) fn interest_changed(&self, key: SlabKey) {
        self.changed.borrow_mut().push(key);
    }

    /// Has a listener try again in a while, because descriptors have run out, which is counted.
    pub(crate) fn retry_later(&self, key: SlabKey, socket: ShardSocket) {
        self.with_shard(socket, |shard| {
            shard.counters().accept_errors.add(1);
            shard.counters().accept_errors_descriptors.add(1);
        });
        self.delayed.add(key, self.clock.now());
    }

    /// Queues a channel's event behind all other events of this thread.
    pub(crate) fn queue_event(&self, key: SlabKey) {
        self.queued.set(self.queued.get() + 1);
        EventSourceGuard::<ThreadSockets>::queue(key.to_bits());
    }

    /// Runs `act` on the shard of a socket. It must not call Tcl.
    fn with_shard<R>(&self, socket: ShardSocket, act: impl FnOnce(&mut dyn SocketShard) -> R) -> R {
        let mut shards = self.shards.borrow_mut();
        act(shards[socket.shard()].shard.as_mut())
    }

    /// Starts a connect.
    pub(crate) fn connect(&self, to: &Destination, key: SlabKey) -> io::Result<ShardSocket> {
        self.in_open_shard(|shard| shard.connect(to, key))
    }

    /// Adds a connected socket.
    pub(crate) fn attach(&self, descriptor: OwnedFd, key: SlabKey) -> io::Result<ShardSocket> {
        self.in_open_shard(|shard| shard.attach(descriptor, key))
    }

    /// Adds a datagram socket.
    pub(crate) fn attach_datagram_socket(
        &self,
        descriptor: OwnedFd,
        key: SlabKey,
    ) -> io::Result<ShardSocket> {
        self.in_open_shard(|shard| shard.attach_datagram_socket(descriptor, key))
    }

    /// Adds a socket to the shard that takes new ones.
    fn in_open_shard(
        &self,
        add: impl FnOnce(&mut dyn SocketShard) -> io::Result<Token>,
    ) -> io::Result<ShardSocket> {
        self.leave_crowded_shard();
        let shard = self.open_shard.get();
        let token = add(self.shards.borrow_mut()[shard].shard.as_mut())?;
        Ok(ShardSocket::new(shard, token))
    }

    pub(crate) fn assign(&self, socket: ShardSocket, key: SlabKey) {
        self.with_shard(socket, |shard| shard.assign(socket.token(), key));
    }

    /// Adds a listening socket; a paused one accepts after [`resume_listeners`](Self::resume_listeners).
    pub(crate) fn listen(
        &self,
        descriptor: OwnedFd,
        key: SlabKey,
        is_paused: bool,
    ) -> io::Result<ShardListener> {
        let shard = self.open_shard.get();
        let mut shards = self.shards.borrow_mut();
        let entry = &mut shards[shard];
        let number =
            if is_paused { entry.shard.listen_paused(descriptor) } else { entry.shard.listen(descriptor) }?;
        let index = number as usize;
        if index >= entry.listeners.len() {
            entry.listeners.resize(index + 1, None);
        }
        entry.listeners[index] = Some(key);
        Ok(ShardListener { shard: shard as u32, number })
    }

    /// With direct descriptors: when the shard that takes new sockets is nearly full, selects another one, or adds one,
    /// and moves all listeners there. Returns whether it did; turns must follow.
    fn leave_crowded_shard(&self) -> bool {
        if !self.has_direct_descriptors() {
            return false;
        }
        let is_crowded = |entry: &ThreadShard| entry.shard.is_crowded();
        if !is_crowded(&self.shards.borrow()[self.open_shard.get()]) {
            return false;
        }
        let with_room = self.shards.borrow().iter().position(|entry| !is_crowded(entry));
        let open_shard = match with_room {
            Some(shard) => shard,
            None if self.add_shard().is_ok() => self.shards.borrow().len() - 1,
            // The shard fills up, and then accepting pauses.
            None => return false,
        };
        self.open_shard.set(open_shard);
        let channels: Vec<_> = self.channels.borrow().values().cloned().collect();
        for channel in channels {
            if let SocketChannel::Listener(listener) = channel {
                listener.change_shard();
            }
        }
        true
    }

    /// Closes listening sockets at once.
    pub(crate) fn close_listeners(&self, listeners: &[ShardListener]) {
        for listener in listeners {
            let mut shards = self.shards.borrow_mut();
            let entry = &mut shards[listener.shard as usize];
            entry.shard.close_listener(listener.number);
            entry.listeners[listener.number as usize] = None;
        }
        self.turn_until_done();
    }

    /// Takes a listening socket out of its shard, without a new descriptor. Connections that the shard has accepted
    /// reach the listener before; one whose event is not dispatched yet still finds it by its key.
    pub(crate) fn detach_listener(&self, listener: ShardListener) -> io::Result<OwnedFd> {
        let entry = || RefMut::map(self.shards.borrow_mut(), |shards| &mut shards[listener.shard as usize]);
        if !entry().shard.detach_listener(listener.number) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        loop {
            self.turn_until_done();
            let descriptor = entry().shard.take_detached_listener(listener.number);
            if let Some(descriptor) = descriptor {
                return Ok(descriptor);
            }
            self.wait_for_event();
        }
    }

    /// Stops accepting; connections wait in the backlogs.
    pub(crate) fn pause_listeners(&self, listeners: &[ShardListener]) {
        for listener in listeners {
            self.shards.borrow_mut()[listener.shard as usize].shard.pause_listener(listener.number);
        }
    }

    pub(crate) fn resume_listeners(&self, listeners: &[ShardListener]) {
        for listener in listeners {
            self.shards.borrow_mut()[listener.shard as usize].shard.resume_listener(listener.number);
        }
    }

    pub(crate) fn with_listener(
        &self,
        listener: ShardListener,
        act: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> io::Result<()> {
        let mut shards = self.shards.borrow_mut();
        shards[listener.shard as usize].shard.with_listener(listener.number, act)
    }

    pub(crate) fn receive(&self, socket: ShardSocket, into: &mut [u8]) -> io::Result<usize> {
        let _stage = stages::enter(Stage::Receive);
        self.with_shard(socket, |shard| shard.receive(socket.token(), into))
    }

    pub(crate) fn send(&self, socket: ShardSocket, from: &[u8]) -> io::Result<usize> {
        let _stage = stages::enter(Stage::Send);
        self.with_shard(socket, |shard| shard.send(socket.token(), from))
    }

    pub(crate) fn receive_from(&self, socket: ShardSocket, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        let _stage = stages::enter(Stage::Receive);
        self.with_shard(socket, |shard| shard.receive_from(socket.token(), into))
    }

    pub(crate) fn send_to(
        &self,
        socket: ShardSocket,
        from: &[u8],
        to: Option<std::net::SocketAddr>,
    ) -> io::Result<()> {
        let _stage = stages::enter(Stage::Send);
        self.with_shard(socket, |shard| shard.send_to(socket.token(), from, to))
    }

    /// The socket's descriptor is given to others, for example to a child process.
    pub(crate) fn share_descriptor(&self, socket: ShardSocket) {
        self.with_shard(socket, |shard| shard.share_descriptor(socket.token()));
    }

    /// Calls `act` with the socket's descriptor, which may be temporary.
    pub(crate) fn with_descriptor<R>(
        &self,
        socket: ShardSocket,
        act: impl FnOnce(BorrowedFd<'_>) -> R,
    ) -> io::Result<R> {
        let (mut act, mut outcome) = (Some(act), None);
        self.with_shard(socket, |shard| {
            shard.with_descriptor(socket.token(), &mut |descriptor| {
                if let Some(act) = act.take() {
                    outcome = Some(act(descriptor));
                }
            })
        })?;
        outcome.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(crate) fn peer_address(&self, socket: ShardSocket) -> io::Result<std::net::SocketAddr> {
        self.with_shard(socket, |shard| shard.peer_address(socket.token()))
    }

    pub(crate) fn local_address(&self, socket: ShardSocket) -> io::Result<std::net::SocketAddr> {
        self.with_shard(socket, |shard| shard.local_address(socket.token()))
    }

    /// Closes a socket at once: its peer sees the end although the script may go on without its event loop.
    pub(crate) fn close(&self, socket: ShardSocket) {
        self.with_shard(socket, |shard| shard.close(socket.token()));
        self.turn_until_done();
    }

    /// Ends the sending direction of a socket, for which its driver needs no descriptor.
    pub(crate) fn end_output(&self, socket: ShardSocket) {
        self.with_shard(socket, |shard| shard.end_output(socket.token()));
        self.turn_until_done();
    }

    /// Takes a socket out of its shard.
    pub(crate) fn detach(&self, socket: ShardSocket) -> io::Result<OwnedFd> {
        self.turn_until_done();
        self.detached.take();
        if !self.with_shard(socket, |shard| shard.detach(socket.token())) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        loop {
            self.turn_until_done();
            match self.detached.take() {
                Some(descriptor) => return descriptor.ok_or_else(|| io::ErrorKind::NotConnected.into()),
                None => self.wait_for_event(),
            }
        }
    }

    /// Makes a later wait for writability ask the system.
    pub(crate) fn forget_writable(&self, socket: ShardSocket) {
        self.with_shard(socket, |shard| shard.forget_writable(socket.token()));
    }

    /// Carries out what was requested, and queues all events.
    pub(crate) fn turn_until_done(&self) {
        loop {
            self.turn();
            let mut shards = self.shards.borrow_mut();
            if shards.iter_mut().all(|entry| entry.shard.prepare_to_wait() != Wait::No) {
                return;
            }
        }
    }

    /// The same, but no longer than until there is an event for a script: what it requests comes first.
    fn turn_until_event(&self) {
        loop {
            self.turn();
            let mut shards = self.shards.borrow_mut();
            let is_done = shards.iter_mut().all(|entry| entry.shard.prepare_to_wait() != Wait::No);
            if is_done || self.queued.get() > 0 {
                return;
            }
        }
    }

    /// Runs turns until the system has no more events.
    pub(crate) fn turn_while_ready(&self) {
        loop {
            self.turn_until_done();
            if !self.poll_waitables(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                return;
            }
        }
    }

    /// Waits until the shards have events for the next turn. Requests must have been carried out. Runs no scripts.
    pub(crate) fn wait_for_event(&self) {
        // An interrupted wait is repeated by the caller.
        self.poll_waitables(None);
    }

    fn poll_waitables(&self, timeout: Option<&Timespec>) -> bool {
        let mut shards = self.shards.borrow_mut();
        let waitables = shards.iter_mut().filter_map(|entry| entry.shard.waitable().ok());
        let mut waiting: Vec<_> = waitables
            .map(|waitable| {
                // SAFETY: the descriptor is the driver's, which lives as long as the borrowed shard.
                let waitable = unsafe { BorrowedFd::borrow_raw(waitable) };
                PollFd::from_borrowed_fd(waitable, PollFlags::IN)
            })
            .collect();
        poll(&mut waiting, timeout).is_ok_and(|ready| ready > 0)
    }

    fn turn(&self) {
        let _stage = stages::enter(Stage::Turn);
        let count = self.shards.borrow().len();
        for index in 0..count {
            // A failure of the system call is permanent for the driver; its sockets report it when they are used.
            let _ = self.shards.borrow_mut()[index].shard.turn();
            self.dispatch_events(index);
        }
    }

    fn dispatch_events(&self, shard: usize) {
        let mut events = self.events.take();
        self.shards.borrow_mut()[shard].shard.take_events(&mut events);
        for event in events.drain(..) {
            self.dispatch(shard, event);
        }
        self.events.replace(events);
        self.dispatch_lookups();
        if trace::is_on() {
            self.trace_counts(shard);
        }
    }

    fn dispatch(&self, shard: usize, event: SocketEvent) {
        match event {
            SocketEvent::Accepted { listener, token } => {
                let socket = ShardSocket::new(shard, token);
                let key = {
                    let shards = self.shards.borrow();
                    shards[shard].listeners.get(listener as usize).copied().flatten()
                };
                match key.and_then(|key| self.channel(key)) {
                    Some(SocketChannel::Listener(listener)) => {
                        listener.accepted(AcceptedConnection::InShard(socket));
                    }
                    _ => self.with_shard(socket, |shard| shard.close(token)),
                }
            }
            SocketEvent::Detached { descriptor } => {
                self.detached.replace(Some(descriptor));
            }
            SocketEvent::Connected { socket } => self.with_stream(socket, Stream::on_connected),
            SocketEvent::ConnectFailed { socket, error } => {
                self.with_stream(socket, |stream| stream.on_connect_failed(error));
            }
            SocketEvent::Ready { socket, directions } => match self.channel(socket) {
                Some(SocketChannel::Stream(stream)) => stream.on_ready(directions),
                Some(SocketChannel::Datagram(socket)) => socket.on_ready(directions),
                Some(SocketChannel::Listener(_) | SocketChannel::Lookup(_)) | None => {}
            },
            SocketEvent::Broken { socket } => match self.channel(socket) {
                Some(SocketChannel::Stream(stream)) => stream.on_broken(),
                Some(SocketChannel::Datagram(socket)) => socket.on_broken(),
                Some(SocketChannel::Listener(_) | SocketChannel::Lookup(_)) | None => {}
            },
        }
    }

    fn with_stream(&self, key: SlabKey, act: impl FnOnce(&Stream)) {
        if let Some(SocketChannel::Stream(stream)) = self.channel(key) {
            act(&stream);
        }
    }
}
