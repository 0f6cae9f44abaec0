//! The porter: one thread beside the shards that finishes a take-over, waits at the path for the next
//! successor, and hands over to it.
//!
//! It holds a copy of every listener, so that it can hand them out without asking a shard. A copy keeps the
//! queue open, so the porter lets go of its copies when the server drains.
//!
//! Two processes that wait on one listener hazard each other's wake-ups: io_uring has the kernel wake only one
//! of those who wait for a connection, and when that one stops accepting, or is killed, before it has taken
//! the connection, the others sleep on beside a queue that is not empty. A killed process's ring is even woken
//! for a while after the process has gone. So as long as there is another one, and for a while after it has gone, the
//! shards of both accept anew from time to time, which looks into the queue first.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use stilling_engine::net::{self, ListenOptions};

use super::channel::{ControlConnection, Incoming, PeerProcess, timespec};
use super::control_socket::ControlSocket;
use super::error::HandOverError;
use super::limits::{
    ACCEPT_ERROR_PAUSE, APP_READY_CHECK_INTERVAL, APP_READY_TIMEOUT, CONFIRM_TIMEOUT,
    DESCRIPTORS_PER_MESSAGE, HELLO_TIMEOUT, LISTENERS_HANDED_MAX, MOVE_TIMEOUT, OFFER_TIMEOUT,
    QUEUE_CHECK_SPAN, READY_TIMEOUT,
};
use super::lock::StartLock;
use super::message::{HandoverMessage, SUCCEEDED, VERSION};
use super::succession::{PredecessorEvent, Retirement, Succession};
use super::{PreparedTakeOver, TakeOverConfig};
use crate::lifecycle::{HandoverStage, Lifecycle, LifecyclePhase};
use crate::socket_file::SocketName;

/// Ends the porter's wait: when the server's life changes, and when it is over.
#[derive(Debug)]
pub(crate) struct HandoverWaker {
    descriptor: OwnedFd,
    over: AtomicBool,
}

impl HandoverWaker {
    pub(super) fn new() -> Result<HandoverWaker, HandOverError> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(HandOverError::system("make an event for the hand-over"))?;
        Ok(HandoverWaker { descriptor, over: AtomicBool::new(false) })
    }

    /// Has the porter look at the lifecycle. Safe in a signal handler.
    pub(crate) fn wake(&self) {
        // The counter can only be full when it has been rung already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// All shards have ended: the porter leaves whatever it is doing.
    pub(crate) fn wake_to_end(&self) {
        self.over.store(true, Ordering::Release);
        self.wake();
    }

    fn clear_wake(&self) {
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
enum HandoverEvent {
    /// Something is to be read from the channel that was waited for.
    Readable,
    /// Somebody knocks, and nobody else is being served.
    ConnectRequest,
    /// The bell has rung.
    Woken,
    /// The time has come.
    Deadline,
}

/// Who has something to say.
struct ReadyDescriptors {
    waker: bool,
    control_socket: bool,
    predecessor: bool,
    channel: bool,
}

/// Who answers behind this server.
pub(crate) struct AppReadiness {
    /// Whether somebody could answer a request now.
    pub(crate) is_ready: Box<dyn Fn() -> bool + Send>,
    /// How long the first one may take to become ready.
    pub(crate) start_timeout: Duration,
}

impl std::fmt::Debug for AppReadiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("start_timeout", &self.start_timeout).finish_non_exhaustive()
    }
}

/// The sockets of a server, as far as they change hands.
#[derive(Debug)]
pub(crate) struct HandedSockets {
    /// A copy of each listener, and of each internet datagram socket.
    pub(crate) listeners: Vec<OwnedFd>,
    /// How those listen that do not yet.
    pub(crate) options: ListenOptions,
    /// The names of Unix datagram sockets.
    pub(crate) sockets: Vec<SocketName>,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct HandoverThread {
    config: TakeOverConfig,
    /// Held until this server is at the path; before the door, which needs it to remove its file.
    lock: Option<StartLock>,
    control_socket: ControlSocket,
    waker: Arc<HandoverWaker>,
    lifecycle: Arc<Lifecycle>,
    succession: Succession,
    handed: HandedSockets,
    /// How many shards are to begin before the server counts as ready.
    shards: usize,
    /// Who is to be ready before that.
    app_readiness: Option<AppReadiness>,
    /// The old server: before `taken` the one to take over from, afterwards one that has not gone yet.
    predecessor: Option<ControlConnection>,
    /// When the shards are to be told again to look into the queues, while there is an old server or a successor.
    next_queue_check: Instant,
}

impl HandoverThread {
    /// The porter of a server that holds these listeners.
    pub(crate) fn new(
        prepared: PreparedTakeOver,
        lifecycle: Arc<Lifecycle>,
        handed: HandedSockets,
        shards: usize,
        app_readiness: Option<AppReadiness>,
    ) -> HandoverThread {
        let PreparedTakeOver { config, predecessor, lock, control_socket, waker } = prepared;
        let next_queue_check = Instant::now();
        lifecycle.set_listeners_shared(predecessor.is_some());
        let succession = Succession::new(Arc::clone(&lifecycle));
        HandoverThread {
            config,
            control_socket,
            waker,
            lifecycle,
            succession,
            handed,
            shards,
            app_readiness,
            lock,
            predecessor,
            next_queue_check,
        }
    }

    /// What ends it.
    pub(crate) fn waker(&self) -> Arc<HandoverWaker> {
        Arc::clone(&self.waker)
    }

    /// Keeps the door until the server ends or has been succeeded.
    ///
    /// # Errors
    /// The take-over failed: the server must not go on, because the old one does.
    pub(crate) fn run(self) -> Result<(), HandOverError> {
        match self.run_to_end() {
            // Whoever ended this server wanted that.
            Err(HandOverError::Ending) => Ok(()),
            outcome => outcome,
        }
    }

    fn run_to_end(mut self) -> Result<(), HandOverError> {
        if self.predecessor.is_some() {
            self.await_app()?;
        }
        self.await_shards()?;
        if self.predecessor.is_some() {
            self.take_over()?;
        }
        match self.await_successor() {
            Err(fatal @ (HandOverError::TakenBack(_) | HandOverError::Ending)) => Err(fatal),
            Err(error) => {
                self.report(&format!("hand-over: no successor can reach this server any more: {error}"));
                Ok(())
            }
            Ok(Some(successor)) => {
                self.retire(successor);
                Ok(())
            }
            Ok(None) => {
                self.end_without_successor();
                Ok(())
            }
        }
    }

    /// A server that ends while the one before it has not released the streams stores what waits for them, so it hears of
    /// the release until its own end.
    fn end_without_successor(&mut self) {
        if self.predecessor.is_none() {
            return;
        }
        self.handed.listeners.clear();
        self.control_socket.close();
        while self.predecessor.is_some()
            && !self.waker.is_over()
            && !self.lifecycle.has_reached(HandoverStage::Released)
        {
            self.wait_for_wake_or_predecessor(false);
        }
    }

    /// Waits for successors until one has taken over (it is returned) or the server ends.
    fn await_successor(&mut self) -> Result<Option<ControlConnection>, HandOverError> {
        while self.lifecycle.phase() == LifecyclePhase::Running && !self.waker.is_over() {
            if self.wait(None, None)? == HandoverEvent::ConnectRequest
                && let Some(successor) = self.serve_successor()?
            {
                return Ok(Some(successor));
            }
        }
        Ok(None)
    }

    /// Waits until somebody can answer, and has the shards accept: until then whoever comes is better off with the
    /// old server. If that ends meanwhile there is nobody else, and the shards hold who comes.
    fn await_app(&mut self) -> Result<(), HandOverError> {
        if let Some(app_readiness) = self.app_readiness.take() {
            let timeout = app_readiness.start_timeout.min(APP_READY_TIMEOUT);
            let deadline = Instant::now() + timeout;
            while !(app_readiness.is_ready)() && self.predecessor_waits()? {
                self.check_running()?;
                let now = Instant::now();
                if now >= deadline {
                    return Err(self.refuse_predecessor(HandOverError::AppNotReady { after: timeout }));
                }
                self.wait_for_wake_until(Some(deadline.min(now + APP_READY_CHECK_INTERVAL)));
            }
        }
        self.succession.serve_beside();
        Ok(())
    }

    /// Whether the old server still waits for this one. Its end is told again to whoever asks next.
    fn predecessor_waits(&self) -> Result<bool, HandOverError> {
        let Some(predecessor) = &self.predecessor else { return Ok(false) };
        match predecessor.receive_now("nothing")? {
            Incoming::Nothing => Ok(true),
            Incoming::Ended => Ok(false),
            Incoming::Received(HandoverMessage::Refused(reason), _) => Err(HandOverError::Refused(reason)),
            Incoming::Received(other, _) => Err(unexpected("nothing", &other)),
        }
    }

    /// Tells the old server why it is not to be.
    fn refuse_predecessor(&self, reason: HandOverError) -> HandOverError {
        if let Some(predecessor) = &self.predecessor {
            // One that has gone need not hear it.
            let _ = predecessor.send(
                &HandoverMessage::Refused(reason.to_string()),
                &[],
                Instant::now() + MOVE_TIMEOUT,
            );
        }
        reason
    }

    /// Waits until every shard accepts.
    fn await_shards(&mut self) -> Result<(), HandOverError> {
        while self.lifecycle.accepting_shards() < self.shards {
            self.check_running()?;
            self.wait_for_wake();
        }
        self.check_running()
    }

    /// Takes the old server's place.
    fn take_over(&mut self) -> Result<(), HandOverError> {
        const YOURS: &str = "yours";
        let predecessor = self.predecessor.take().expect("the caller has looked");
        let process = predecessor.check_peer()?;
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        // An old server that cannot be spoken to has gone: the next look tells.
        let _ = predecessor.send(&HandoverMessage::Ready, &[], deadline);
        match self.await_message(&predecessor, YOURS, deadline, CONFIRM_TIMEOUT)? {
            Incoming::Received(HandoverMessage::PathGranted, _) => {
                self.succession.receive(PredecessorEvent::PathGranted)
            }
            Incoming::Received(other, _) => return Err(unexpected(YOURS, &other)),
            Incoming::Ended | Incoming::Nothing => {
                self.succession.receive(PredecessorEvent::Ended);
                self.claim_path()?;
                self.take_socket_paths();
                self.release_from_predecessor(PredecessorEvent::Ended, false);
                self.lifecycle.set_listeners_shared(false);
                self.lifecycle.request_queue_check();
                self.report(&format!("{process} ended while it handed over: went on without it"));
                return Ok(());
            }
        };
        self.check_running()?;
        self.claim_path()?;
        // Before the old server may close its sockets, which it does at once if it has no streams to release: a path with a
        // closed socket refuses senders.
        self.take_socket_paths();
        let _ = predecessor.send(&HandoverMessage::PathTaken, &[], Instant::now() + MOVE_TIMEOUT);
        self.report(&format!("took over from {process}"));
        self.predecessor = Some(predecessor);
        Ok(())
    }

    /// This is the server now: takes the path, and listens on what it has opened besides. In this order: if the
    /// system refuses the path nobody has come yet who would be lost.
    fn claim_path(&mut self) -> Result<(), HandOverError> {
        self.control_socket.claim_path()?;
        self.lock = None;
        for listener in &self.handed.listeners {
            if net::is_datagrams(listener).unwrap_or(false) {
                continue;
            }
            let listens = net::is_listening(listener).and_then(|listens| {
                if listens { Ok(()) } else { net::start_listening(listener, &self.handed.options) }
            });
            let at = || net::local_addr(listener).map_or("a new address".to_owned(), |at| at.to_string());
            listens.map_err(|error| HandOverError::system(format!("listen on {}", at()))(error))?;
        }
        self.succession.path_taken();
        Ok(())
    }

    /// From now on senders to Unix datagram sockets reach this server. The old one reads what it was sent before.
    fn take_socket_paths(&mut self) {
        for socket in &mut self.handed.sockets {
            if let Err(error) = socket.take_path() {
                let path = socket.path().display();
                (self.config.report)(&format!("hand-over: senders do not reach {path}: {error}"));
            }
        }
    }

    /// The server before this one has released streams and datagram sockets, or has ended.
    fn release_from_predecessor(&mut self, event: PredecessorEvent, has_successor: bool) {
        self.succession.receive(event);
        if !has_successor {
            self.forget_predecessor();
        }
    }

    /// Removes what is left of the predecessor's files. A successor under way replaces them itself, at any moment.
    fn forget_predecessor(&mut self) {
        if self.succession.is_over() {
            self.handed.sockets.iter_mut().for_each(SocketName::forget_predecessor);
        }
    }

    /// Speaks with one that knocks. Returns it if it is the server from now on.
    ///
    /// # Errors
    /// This server must not go on: it ends, or the one before it does not.
    fn serve_successor(&mut self) -> Result<Option<ControlConnection>, HandOverError> {
        let successor = match self.control_socket.open() {
            Ok(Some(successor)) => successor,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.report(&format!("hand-over: {error}"));
                self.pause_after_error();
                return Ok(None);
            }
        };
        let mut moved = false;
        let failure = match self.hand_over(&successor, &mut moved) {
            Ok(process) => {
                self.report(&format!("handed over to {process}: draining"));
                return Ok(Some(successor));
            }
            Err(HandOverError::Ending) => {
                self.yield_to_successor(successor, moved);
                return Err(HandOverError::Ending);
            }
            Err(failure) => failure,
        };
        let goes_on = !matches!(failure, HandOverError::TakenBack(_));
        if moved && goes_on {
            self.retake_path();
            self.handed.sockets.iter().for_each(SocketName::restore);
        }
        let refusal = HandoverMessage::Refused(failure.to_string());
        let _ = successor.send(&refusal, &[], Instant::now() + MOVE_TIMEOUT);
        drop(successor);
        if !goes_on {
            return Err(failure);
        }
        self.forget_predecessor();
        self.lifecycle.set_listeners_shared(self.predecessor.is_some());
        self.report(&format!("hand-over failed, this server goes on: {failure}"));
        self.lifecycle.request_queue_check();
        Ok(None)
    }

    /// This server ends while it is being succeeded. A refusal would have the successor end as well; the end of
    /// the connection without a word has it go on alone.
    fn yield_to_successor(&mut self, successor: ControlConnection, moved: bool) {
        self.report("this server ends in the middle of a hand-over: its successor goes on alone");
        if moved {
            self.control_socket.keep_file();
        } else {
            self.control_socket.remove_files();
        }
        // Last: the path is free, or its own to take, when it hears that it is alone.
        drop(successor);
    }

    /// All steps with one successor. Notes in `moved` when that may have taken the path.
    fn hand_over(
        &mut self,
        successor: &ControlConnection,
        moved: &mut bool,
    ) -> Result<PeerProcess, HandOverError> {
        let process = successor.check_peer()?;
        let version = match self.expect(successor, "hand-over", HELLO_TIMEOUT)? {
            HandoverMessage::Hello { version } => version,
            other => return Err(unexpected("hand-over", &other)),
        };
        if version != VERSION {
            return Err(HandOverError::Version(version));
        }
        self.lifecycle.set_listeners_shared(true);
        self.offer(successor)?;
        match self.expect(successor, "ready", READY_TIMEOUT)? {
            HandoverMessage::Ready => {}
            other => return Err(unexpected("ready", &other)),
        }
        successor.send(&HandoverMessage::PathGranted, &[], Instant::now() + MOVE_TIMEOUT)?;
        *moved = true;
        match self.expect(successor, "taken", MOVE_TIMEOUT)? {
            HandoverMessage::PathTaken => {}
            other => return Err(unexpected("taken", &other)),
        }
        // It may have died since: then this is the last moment to go on instead.
        match successor.receive_now("nothing")? {
            Incoming::Nothing => Ok(process),
            Incoming::Ended => Err(HandOverError::Gone { expected: "nothing" }),
            Incoming::Received(other, _) => Err(unexpected("nothing", &other)),
        }
    }

    /// Hands out all listeners.
    fn offer(&self, successor: &ControlConnection) -> Result<(), HandOverError> {
        if self.handed.listeners.len() > LISTENERS_HANDED_MAX {
            return Err(HandOverError::TooMany(self.handed.listeners.len()));
        }
        let deadline = Instant::now() + OFFER_TIMEOUT;
        for some in self.handed.listeners.chunks(DESCRIPTORS_PER_MESSAGE) {
            let descriptors: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            successor.send(&HandoverMessage::Listeners { count: some.len() }, &descriptors, deadline)?;
        }
        successor.send(&HandoverMessage::End { total: self.handed.listeners.len() }, &[], deadline)
    }

    /// The successor may take the path at any moment, or has, and is not to keep it. What it would rename is
    /// taken away first; so nothing changes any more after the look.
    fn retake_path(&mut self) {
        self.control_socket.remove_pending_path();
        // The one that goes may be about to remove what it finds there as its own.
        let _lock = StartLock::acquire(self.control_socket.path());
        if self.control_socket.holds_path() {
            return;
        }
        let control_socket = ControlSocket::beside(self.control_socket.path())
            .and_then(|control_socket| control_socket.claim_path().map(|()| control_socket));
        match control_socket {
            Ok(control_socket) => self.control_socket = control_socket,
            Err(error) => self.report(&format!("hand-over: no successor can reach this server: {error}")),
        }
    }

    /// Has the shards drain. The successor sees by the end of the channel when this process has gone, so it stays
    /// open.
    fn retire(mut self, successor: ControlConnection) {
        self.handed.listeners.clear();
        let mut retirement = Retirement::begin(Arc::clone(&self.lifecycle));
        self.refuse_late_successors();
        while !self.waker.is_over() {
            if retirement.releases() {
                // A successor that has gone need not hear it.
                let _ = successor.send(&HandoverMessage::Released, &[], Instant::now() + MOVE_TIMEOUT);
            }
            self.wait_for_wake_or_predecessor(true);
        }
        drop(successor);
    }

    /// While this server waits for its end, the one before it may still have the streams that this one is to release.
    fn wait_for_wake_or_predecessor(&mut self, has_successor: bool) {
        // The closed door is always ready.
        let is_old = self.poll(false, None, None).is_ok_and(|ready| ready.predecessor);
        self.waker.clear_wake();
        if is_old && self.receive_from_predecessor(has_successor).is_err() {
            // It goes on after all; this one has been succeeded and ends in any case.
            self.predecessor = None;
        }
    }

    /// Whoever knocked before the path changed hands waits at this door: there is another one now.
    fn refuse_late_successors(&self) {
        self.control_socket.close();
        while let Ok(Some(late)) = self.control_socket.open() {
            // One that has left already need not hear it.
            let _ = late.send(
                &HandoverMessage::Refused(SUCCEEDED.to_owned()),
                &[],
                Instant::now() + MOVE_TIMEOUT,
            );
        }
    }

    /// The next message of a successor.
    fn expect(
        &mut self,
        successor: &ControlConnection,
        expected: &'static str,
        timeout: Duration,
    ) -> Result<HandoverMessage, HandOverError> {
        match self.await_message(successor, expected, Instant::now() + timeout, timeout)? {
            Incoming::Received(message, _) => Ok(message),
            Incoming::Ended | Incoming::Nothing => Err(HandOverError::Gone { expected }),
        }
    }

    /// Waits for a message, and does meanwhile what else the porter has to do. A refusal is an error. Of the
    /// server's own drain a hand-over takes no notice: the successor is welcome all the more.
    fn await_message(
        &mut self,
        channel: &ControlConnection,
        expected: &'static str,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Incoming, HandOverError> {
        loop {
            match channel.receive_now(expected)? {
                Incoming::Received(HandoverMessage::Refused(reason), _) => {
                    return Err(HandOverError::Refused(reason));
                }
                Incoming::Nothing => {}
                incoming => return Ok(incoming),
            }
            if self.waker.is_over() {
                return Err(HandOverError::Ending);
            }
            if self.wait(Some(channel), Some(deadline))? == HandoverEvent::Deadline {
                return Err(HandOverError::Late { expected, after: timeout });
            }
        }
    }

    /// Waits for news. Meanwhile it looks after an old server that has not gone yet, and refuses whoever knocks
    /// while `channel` is being served.
    fn wait(
        &mut self,
        channel: Option<&ControlConnection>,
        deadline: Option<Instant>,
    ) -> Result<HandoverEvent, HandOverError> {
        loop {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(HandoverEvent::Deadline);
            }
            // While another process has these listeners, too, and may hang at any moment.
            let is_shared = self.predecessor.is_some() || channel.is_some();
            if is_shared && now >= self.next_queue_check {
                self.lifecycle.request_queue_check();
                self.next_queue_check = now + QUEUE_CHECK_SPAN / 2;
            }
            let until = [deadline, is_shared.then_some(self.next_queue_check)].into_iter().flatten().min();
            let ReadyDescriptors { waker, control_socket, predecessor, channel: spoke } =
                self.poll(true, channel, until)?;
            if waker {
                self.waker.clear_wake();
            }
            if predecessor {
                self.receive_from_predecessor(channel.is_some())?;
            }
            // First: its news may be that it is gone, and then the other one is welcome.
            if spoke {
                return Ok(HandoverEvent::Readable);
            }
            match channel {
                Some(_) if control_socket => self.refuse_second_successor(),
                None if control_socket => return Ok(HandoverEvent::ConnectRequest),
                _ => {}
            }
            if waker {
                return Ok(HandoverEvent::Woken);
            }
        }
    }

    /// Waits for the bell, the old server and the channel, and `at_door`.
    fn poll(
        &self,
        at_door: bool,
        channel: Option<&ControlConnection>,
        until: Option<Instant>,
    ) -> Result<ReadyDescriptors, HandOverError> {
        let mut descriptors = vec![PollFd::from_borrowed_fd(self.waker.descriptor.as_fd(), PollFlags::IN)];
        descriptors
            .extend(at_door.then(|| PollFd::from_borrowed_fd(self.control_socket.as_fd(), PollFlags::IN)));
        descriptors.extend(
            self.predecessor
                .as_ref()
                .map(|predecessor| PollFd::from_borrowed_fd(predecessor.as_fd(), PollFlags::IN)),
        );
        descriptors.extend(channel.map(|channel| PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)));
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(HandOverError::system("wait for a successor")(error)),
        }
        let mut ready = descriptors.iter().map(|one| !one.revents().is_empty());
        let mut next = || ready.next().unwrap_or(false);
        let (waker, control_socket) = (next(), at_door && next());
        let predecessor = self.predecessor.is_some() && next();
        Ok(ReadyDescriptors { waker, control_socket, predecessor, channel: channel.is_some() && next() })
    }

    /// The old server has gone, or has thought better of it: that is an error.
    fn receive_from_predecessor(&mut self, has_successor: bool) -> Result<(), HandOverError> {
        let Some(predecessor) = &self.predecessor else { return Ok(()) };
        match predecessor.receive_now("nothing") {
            Ok(Incoming::Nothing) => Ok(()),
            Ok(Incoming::Received(HandoverMessage::Released, _)) => {
                self.release_from_predecessor(PredecessorEvent::Released, has_successor);
                // It has closed its listeners: nothing else reads their queues.
                self.lifecycle.set_listeners_shared(has_successor);
                Ok(())
            }
            // It had not heard `taken` in time and goes on.
            Ok(Incoming::Received(HandoverMessage::Refused(reason), _)) => {
                Err(HandOverError::TakenBack(reason))
            }
            // Whatever else it says, it has nothing more to say.
            Ok(Incoming::Ended | Incoming::Received(..)) | Err(_) => {
                self.predecessor = None;
                self.release_from_predecessor(PredecessorEvent::Ended, has_successor);
                self.lifecycle.set_listeners_shared(has_successor);
                self.lifecycle.request_queue_check();
                Ok(())
            }
        }
    }

    fn refuse_second_successor(&self) {
        match self.control_socket.open() {
            Ok(Some(another)) => {
                let reason = "another server is taking over at this moment".to_owned();
                // One that has left already need not hear it.
                let _ = another.send(&HandoverMessage::Refused(reason), &[], Instant::now() + MOVE_TIMEOUT);
            }
            Ok(None) => {}
            Err(_) => self.pause_after_error(),
        }
    }

    /// Nobody can be let in, and knocking does not end by that: a pause, so that it does not cost a core.
    fn pause_after_error(&self) {
        std::thread::sleep(ACCEPT_ERROR_PAUSE);
    }

    fn wait_for_wake(&self) {
        self.wait_for_wake_until(None);
    }

    fn wait_for_wake_until(&self, deadline: Option<Instant>) {
        let waker = PollFd::from_borrowed_fd(self.waker.descriptor.as_fd(), PollFlags::IN);
        let timeout = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        // An interruption is a reason to look as good as any.
        let _ = poll(&mut [waker], timeout.as_ref());
        self.waker.clear_wake();
    }

    fn check_running(&self) -> Result<(), HandOverError> {
        let lives = self.lifecycle.phase() == LifecyclePhase::Running && !self.waker.is_over();
        if lives { Ok(()) } else { Err(HandOverError::Ending) }
    }

    fn report(&self, line: &str) {
        (self.config.report)(line);
    }
}

fn unexpected(expected: &'static str, got: &HandoverMessage) -> HandOverError {
    HandOverError::Unexpected { expected, got: format!("`{got}`") }
}
