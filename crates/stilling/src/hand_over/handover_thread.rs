//! The hand-over thread: finishes a take-over, waits at the path for the next successor, and hands over to it.
//!
//! The thread holds a copy of every listener, so that it can send them without involving a shard. A copy keeps the
//! accept queue open, so the thread drops its copies when the server drains.
//!
//! Two processes that accept from one listener can miss wake-ups. With io_uring the kernel wakes only one waiter per
//! connection; if that process stops accepting or is killed before it accepts the connection, the others sleep although
//! the queue is not empty. The kernel even wakes the ring of a killed process for a while after its end. So while
//! another process has these listeners, and for `QUEUE_CHECK_SPAN` afterwards, the shards of both processes submit
//! their accepts anew from time to time, which checks the queue first.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use stilling_engine::net;

use super::app_readiness::AppReadiness;
use super::control_connection::{ControlConnection, Incoming, PeerProcess, timespec};
use super::control_socket::ControlSocket;
use super::error::HandOverError;
use super::limits::{
    ACCEPT_ERROR_PAUSE, APP_READY_CHECK_INTERVAL, APP_READY_TIMEOUT, CONFIRM_TIMEOUT,
    DESCRIPTORS_PER_MESSAGE, HELLO_TIMEOUT, LISTENERS_HANDED_OVER_MAX, OFFER_TIMEOUT, QUEUE_CHECK_SPAN,
    READY_TIMEOUT, TAKE_PATH_TIMEOUT,
};
use super::lock::StartLock;
use super::message::{HandoverMessage, REPLACED_REASON, VERSION};
use super::succession::{PredecessorDrain, PredecessorEvent, Succession};
use super::{HandedSockets, PreparedTakeOver, TakeOverConfig, exchange_memory};
use crate::lifecycle::{HandoverStage, Lifecycle, LifecyclePhase};
use crate::socket_file::SocketName;

/// Ends the thread's wait: after a change of the lifecycle, and when the shards have ended.
#[derive(Debug)]
pub(crate) struct HandoverWaker {
    descriptor: OwnedFd,
    ended: AtomicBool,
}

impl HandoverWaker {
    pub(super) fn new() -> Result<HandoverWaker, HandOverError> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(HandOverError::system("create an eventfd for the hand-over"))?;
        Ok(HandoverWaker { descriptor, ended: AtomicBool::new(false) })
    }

    /// Makes the thread check the lifecycle. Safe in a signal handler.
    pub(crate) fn wake(&self) {
        // A full counter means that a wake is pending already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// All shards have ended: the thread ends at its next wait.
    pub(crate) fn wake_to_end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    fn clear_wake(&self) {
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum HandoverEvent {
    /// The awaited connection is readable.
    Readable,
    /// A successor connects, and no other is being served.
    ConnectRequest,
    Woken,
    Deadline,
}

struct ReadyDescriptors {
    waker: bool,
    control_socket: bool,
    predecessor: bool,
    connection: bool,
}

#[derive(Debug)]
pub(crate) struct HandoverThread {
    config: TakeOverConfig,
    /// Held until this server is at the path. Dropped before `control_socket`, which takes the same lock to remove
    /// its file.
    lock: Option<StartLock>,
    control_socket: ControlSocket,
    waker: Arc<HandoverWaker>,
    lifecycle: Arc<Lifecycle>,
    succession: Succession,
    handed: HandedSockets,
    /// Shards that must accept before the server is ready.
    shards: usize,
    /// Must be ready before the shards accept beside a predecessor.
    app_readiness: Option<AppReadiness>,
    /// The predecessor: before `taken` the server to take over from, afterwards a server that is still ending.
    predecessor: Option<ControlConnection>,
    /// Time of the next queue check, while a predecessor or successor has the same listeners.
    next_queue_check: Instant,
}

impl HandoverThread {
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

    pub(crate) fn waker(&self) -> Arc<HandoverWaker> {
        Arc::clone(&self.waker)
    }

    /// Serves hand-overs until the server ends or has been succeeded.
    ///
    /// # Errors
    /// The take-over failed: this server must end, because the predecessor goes on.
    pub(crate) fn run(self) -> Result<(), HandOverError> {
        match self.run_to_end() {
            // An end on request is no error.
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
            Err(fatal @ (HandOverError::PredecessorContinues(_) | HandOverError::Ending)) => Err(fatal),
            Err(error) => {
                self.report(&format!("hand-over: no successor can reach this server: {error}"));
                Ok(())
            }
            Ok(Some(successor)) => {
                self.drain_after_hand_over(successor);
                Ok(())
            }
            Ok(None) => {
                self.end_without_successor();
                Ok(())
            }
        }
    }

    /// Waits for the predecessor to release the streams although this server ends: publications still wait for them.
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

    /// Waits for successors. Returns the successor that has taken over, or `None` when the server ends.
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

    /// Waits for the first worker process, then lets the shards accept: until then the predecessor answers faster. If
    /// the predecessor ends meanwhile, the shards accept at once and hold the requests.
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
        self.succession.begin_overlap();
        Ok(())
    }

    /// Whether the predecessor still waits for this server. A later receive reports its end again.
    fn predecessor_waits(&self) -> Result<bool, HandOverError> {
        let Some(predecessor) = &self.predecessor else { return Ok(false) };
        match predecessor.try_receive("nothing")? {
            Incoming::Nothing => Ok(true),
            Incoming::Ended => Ok(false),
            Incoming::Received(HandoverMessage::Refused(reason), _) => Err(HandOverError::Refused(reason)),
            Incoming::Received(other, _) => Err(unexpected("nothing", &other)),
        }
    }

    /// Sends the predecessor the reason for which this server ends, and returns the reason.
    fn refuse_predecessor(&self, reason: HandOverError) -> HandOverError {
        if let Some(predecessor) = &self.predecessor {
            // The predecessor may have ended.
            let _ = predecessor.send(
                &HandoverMessage::Refused(reason.to_string()),
                &[],
                Instant::now() + TAKE_PATH_TIMEOUT,
            );
        }
        reason
    }

    fn await_shards(&mut self) -> Result<(), HandOverError> {
        while self.lifecycle.accepting_shards() < self.shards {
            self.check_running()?;
            self.wait_for_wake();
        }
        self.check_running()
    }

    fn take_over(&mut self) -> Result<(), HandOverError> {
        const YOURS: &str = "yours";
        let predecessor = self.predecessor.take().expect("the caller has checked");
        let process = predecessor.check_peer()?;
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        // If the send fails, the predecessor has ended, and the receive below reports that.
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
                self.report(&format!("{process} ended during the hand-over: taking over without it"));
                return Ok(());
            }
        };
        self.check_running()?;
        self.claim_path()?;
        // Before `taken`: a predecessor without streams closes its sockets at once, and a path with a closed socket
        // refuses senders.
        self.take_socket_paths();
        let _ = predecessor.send(&HandoverMessage::PathTaken, &[], Instant::now() + TAKE_PATH_TIMEOUT);
        self.report(&format!("took over from {process}"));
        self.predecessor = Some(predecessor);
        Ok(())
    }

    /// Takes the path, then listens on the addresses that the predecessor did not have. In this order: if the system
    /// refuses the path, no connection has arrived yet that would be lost.
    fn claim_path(&mut self) -> Result<(), HandOverError> {
        self.control_socket.claim_path()?;
        self.lock = None;
        for listener in &self.handed.listeners {
            if net::is_datagram_socket(listener).unwrap_or(false) {
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

    /// Moves the paths of Unix datagram sockets to this server. The predecessor still reads what it received before.
    fn take_socket_paths(&mut self) {
        for socket in &mut self.handed.sockets {
            if let Err(error) = socket.take_path() {
                let path = socket.path().display();
                (self.config.report)(&format!("hand-over: cannot take {path}: {error}"));
            }
        }
    }

    /// Handles the predecessor's `released`, or its end.
    fn release_from_predecessor(&mut self, event: PredecessorEvent, has_successor: bool) {
        self.succession.receive(event);
        if !has_successor {
            self.forget_predecessor();
        }
    }

    /// Removes the predecessor's remaining files. Not during a hand-over: the successor may replace them at any
    /// moment.
    fn forget_predecessor(&mut self) {
        if self.succession.is_over() {
            self.handed.sockets.iter_mut().for_each(SocketName::forget_predecessor);
        }
    }

    /// Serves one connecting successor. Returns it if it has taken over.
    ///
    /// # Errors
    /// This server must not continue: it is ending, or its predecessor continues.
    fn serve_successor(&mut self) -> Result<Option<ControlConnection>, HandOverError> {
        let successor = match self.control_socket.accept() {
            Ok(Some(successor)) => successor,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.report(&format!("hand-over: {error}"));
                self.pause_after_error();
                return Ok(None);
            }
        };
        let mut path_granted = false;
        let failure = match self.hand_over(&successor, &mut path_granted) {
            Ok(process) => {
                self.report(&format!("handed over to {process}: draining"));
                return Ok(Some(successor));
            }
            Err(HandOverError::Ending) => {
                self.yield_to_successor(successor, path_granted);
                return Err(HandOverError::Ending);
            }
            Err(failure) => failure,
        };
        let continues = !matches!(failure, HandOverError::PredecessorContinues(_));
        if path_granted && continues {
            self.retake_path();
            self.handed.sockets.iter().for_each(SocketName::restore);
        }
        let refusal = HandoverMessage::Refused(failure.to_string());
        let _ = successor.send(&refusal, &[], Instant::now() + TAKE_PATH_TIMEOUT);
        drop(successor);
        if !continues {
            return Err(failure);
        }
        self.forget_predecessor();
        self.lifecycle.set_listeners_shared(self.predecessor.is_some());
        self.report(&format!("hand-over failed, this server continues: {failure}"));
        self.lifecycle.request_queue_check();
        Ok(None)
    }

    /// This server ends during a hand-over. It closes the connection without a refusal: after a refusal the successor
    /// would end too, whereas the end of the connection lets it go on alone.
    fn yield_to_successor(&mut self, successor: ControlConnection, path_granted: bool) {
        self.report("this server ends during a hand-over: its successor continues alone");
        if path_granted {
            self.control_socket.keep_file();
        } else {
            self.control_socket.remove_files();
        }
        // Last: when the successor sees the end of the connection, the path must be free or already its own.
        drop(successor);
    }

    /// Runs all steps with one successor. Sets `path_granted` once the successor may have taken the path.
    fn hand_over(
        &mut self,
        successor: &ControlConnection,
        path_granted: &mut bool,
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
        successor.send(&HandoverMessage::PathGranted, &[], Instant::now() + TAKE_PATH_TIMEOUT)?;
        *path_granted = true;
        match self.expect(successor, "taken", TAKE_PATH_TIMEOUT)? {
            HandoverMessage::PathTaken => {}
            other => return Err(unexpected("taken", &other)),
        }
        // The last chance to continue if the successor has ended since.
        match successor.try_receive("nothing")? {
            Incoming::Nothing => Ok(process),
            Incoming::Ended => Err(HandOverError::SuccessorEnded),
            Incoming::Received(other, _) => Err(unexpected("nothing", &other)),
        }
    }

    fn offer(&self, successor: &ControlConnection) -> Result<(), HandOverError> {
        if self.handed.listeners.len() > LISTENERS_HANDED_OVER_MAX {
            return Err(HandOverError::TooManyListeners(self.handed.listeners.len()));
        }
        let deadline = Instant::now() + OFFER_TIMEOUT;
        for chunk in self.handed.listeners.chunks(DESCRIPTORS_PER_MESSAGE) {
            let descriptors: Vec<BorrowedFd<'_>> = chunk.iter().map(AsFd::as_fd).collect();
            successor.send(&HandoverMessage::Listeners { count: chunk.len() }, &descriptors, deadline)?;
        }
        successor.send(&HandoverMessage::End { total: self.handed.listeners.len() }, &[], deadline)
    }

    /// Takes the path back from a successor that has failed but may still rename its socket. Removes its pending
    /// socket first, so that nothing changes after the check.
    fn retake_path(&mut self) {
        self.control_socket.remove_pending_path();
        // A failed successor removes its socket file under the same lock.
        let _lock = StartLock::acquire(self.control_socket.path());
        if self.control_socket.holds_path() {
            return;
        }
        let control_socket = ControlSocket::bind_pending(self.control_socket.path())
            .and_then(|control_socket| control_socket.claim_path().map(|()| control_socket));
        match control_socket {
            Ok(control_socket) => self.control_socket = control_socket,
            Err(error) => self.report(&format!("hand-over: no successor can reach this server: {error}")),
        }
    }

    /// Drains the server. `successor` stays open: its close notifies the successor of the end of this process.
    fn drain_after_hand_over(mut self, successor: ControlConnection) {
        self.handed.listeners.clear();
        let mut predecessor_drain = PredecessorDrain::begin(Arc::clone(&self.lifecycle));
        self.refuse_late_successors();
        loop {
            // Read first: when the shards have ended, they have released everything.
            let is_over = self.waker.is_over();
            if predecessor_drain.poll_released() {
                self.report_lost_exchanges(exchange_memory::send(&self.handed.exchanges, &successor));
                // The successor may have ended.
                let _ = successor.send(&HandoverMessage::Released, &[], Instant::now() + TAKE_PATH_TIMEOUT);
            }
            if is_over {
                return;
            }
            self.wait_for_wake_or_predecessor(true);
        }
    }

    /// Waits for a wake or for the predecessor, which may still have the streams that this server is to release.
    fn wait_for_wake_or_predecessor(&mut self, has_successor: bool) {
        // A control socket that was shut down is always readable.
        let is_old = self.poll(false, None, None).is_ok_and(|ready| ready.predecessor);
        self.waker.clear_wake();
        if is_old && self.receive_from_predecessor(has_successor).is_err() {
            // The predecessor continues after all. This server has been succeeded and ends in any case.
            self.predecessor = None;
        }
    }

    /// Refuses successors that connected before the path changed hands.
    fn refuse_late_successors(&self) {
        self.control_socket.close();
        while let Ok(Some(late)) = self.control_socket.accept() {
            // The peer may have left.
            let _ = late.send(
                &HandoverMessage::Refused(REPLACED_REASON.to_owned()),
                &[],
                Instant::now() + TAKE_PATH_TIMEOUT,
            );
        }
    }

    fn expect(
        &mut self,
        successor: &ControlConnection,
        expected: &'static str,
        timeout: Duration,
    ) -> Result<HandoverMessage, HandOverError> {
        match self.await_message(successor, expected, Instant::now() + timeout, timeout)? {
            Incoming::Received(message, _) => Ok(message),
            Incoming::Ended | Incoming::Nothing => Err(HandOverError::PeerEnded { expected }),
        }
    }

    /// Waits for a message, and meanwhile does the thread's other work. A refusal is an error. The server's own drain
    /// does not end a hand-over.
    fn await_message(
        &mut self,
        connection: &ControlConnection,
        expected: &'static str,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Incoming, HandOverError> {
        loop {
            match connection.try_receive(expected)? {
                Incoming::Received(HandoverMessage::Refused(reason), _) => {
                    return Err(HandOverError::Refused(reason));
                }
                Incoming::Nothing => {}
                incoming => return Ok(incoming),
            }
            if self.waker.is_over() {
                return Err(HandOverError::Ending);
            }
            if self.wait(Some(connection), Some(deadline))? == HandoverEvent::Deadline {
                return Err(HandOverError::TimedOut { expected, after: timeout });
            }
        }
    }

    /// Waits for an event. Meanwhile handles a predecessor that has not ended, and refuses further successors while
    /// `connection` is being served.
    fn wait(
        &mut self,
        connection: Option<&ControlConnection>,
        deadline: Option<Instant>,
    ) -> Result<HandoverEvent, HandOverError> {
        loop {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(HandoverEvent::Deadline);
            }
            // Another process has these listeners too, and may hang at any moment.
            let is_shared = self.predecessor.is_some() || connection.is_some();
            if is_shared && now >= self.next_queue_check {
                self.lifecycle.request_queue_check();
                self.next_queue_check = now + QUEUE_CHECK_SPAN / 2;
            }
            let until = [deadline, is_shared.then_some(self.next_queue_check)].into_iter().flatten().min();
            let ReadyDescriptors { waker, control_socket, predecessor, connection: is_readable } =
                self.poll(true, connection, until)?;
            if waker {
                self.waker.clear_wake();
            }
            if predecessor {
                self.receive_from_predecessor(connection.is_some())?;
            }
            // Before the control socket: if the connection reports its end, the next successor can be served.
            if is_readable {
                return Ok(HandoverEvent::Readable);
            }
            match connection {
                Some(_) if control_socket => self.refuse_second_successor(),
                None if control_socket => return Ok(HandoverEvent::ConnectRequest),
                _ => {}
            }
            if waker {
                return Ok(HandoverEvent::Woken);
            }
        }
    }

    /// Waits for the waker, the predecessor, `connection` and, if `with_control_socket`, the control socket.
    fn poll(
        &self,
        with_control_socket: bool,
        connection: Option<&ControlConnection>,
        until: Option<Instant>,
    ) -> Result<ReadyDescriptors, HandOverError> {
        let mut descriptors = vec![PollFd::from_borrowed_fd(self.waker.descriptor.as_fd(), PollFlags::IN)];
        descriptors.extend(
            with_control_socket.then(|| PollFd::from_borrowed_fd(self.control_socket.as_fd(), PollFlags::IN)),
        );
        descriptors.extend(
            self.predecessor
                .as_ref()
                .map(|predecessor| PollFd::from_borrowed_fd(predecessor.as_fd(), PollFlags::IN)),
        );
        descriptors
            .extend(connection.map(|connection| PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)));
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(HandOverError::system("wait for a successor")(error)),
        }
        let mut ready = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty());
        let mut next = || ready.next().unwrap_or(false);
        let (waker, control_socket) = (next(), with_control_socket && next());
        let predecessor = self.predecessor.is_some() && next();
        Ok(ReadyDescriptors {
            waker,
            control_socket,
            predecessor,
            connection: connection.is_some() && next(),
        })
    }

    /// Handles the end of the predecessor, or its message. Fails if the predecessor goes on.
    fn receive_from_predecessor(&mut self, has_successor: bool) -> Result<(), HandOverError> {
        let Some(predecessor) = &self.predecessor else { return Ok(()) };
        match predecessor.try_receive("nothing") {
            Ok(Incoming::Nothing) => Ok(()),
            Ok(Incoming::Received(HandoverMessage::Released, _)) => {
                self.release_from_predecessor(PredecessorEvent::Released, has_successor);
                // The predecessor has closed its listeners: nothing else reads their queues.
                self.lifecycle.set_listeners_shared(has_successor);
                Ok(())
            }
            Ok(Incoming::Received(HandoverMessage::Exchanges { size }, memory)) => {
                self.report_lost_exchanges(exchange_memory::receive(&self.handed.exchanges, memory, size));
                Ok(())
            }
            // The predecessor did not receive `taken` in time and goes on.
            Ok(Incoming::Received(HandoverMessage::Refused(reason), _)) => {
                Err(HandOverError::PredecessorContinues(reason))
            }
            // No other message is expected: the same as its end.
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
        match self.control_socket.accept() {
            Ok(Some(another)) => {
                let reason = "another server is taking over now".to_owned();
                // The peer may have left.
                let _ =
                    another.send(&HandoverMessage::Refused(reason), &[], Instant::now() + TAKE_PATH_TIMEOUT);
            }
            Ok(None) => {}
            Err(_) => self.pause_after_error(),
        }
    }

    /// Pauses after a failed accept: the socket stays readable, and retrying at once would use a whole core.
    fn pause_after_error(&self) {
        std::thread::sleep(ACCEPT_ERROR_PAUSE);
    }

    fn wait_for_wake(&self) {
        self.wait_for_wake_until(None);
    }

    fn wait_for_wake_until(&self, deadline: Option<Instant>) {
        let waker = PollFd::from_borrowed_fd(self.waker.descriptor.as_fd(), PollFlags::IN);
        let timeout = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        // An interrupted wait counts as a wake.
        let _ = poll(&mut [waker], timeout.as_ref());
        self.waker.clear_wake();
    }

    fn check_running(&self) -> Result<(), HandOverError> {
        let is_running = self.lifecycle.phase() == LifecyclePhase::Running && !self.waker.is_over();
        if is_running { Ok(()) } else { Err(HandOverError::Ending) }
    }

    fn report_lost_exchanges(&self, outcome: Result<(), HandOverError>) {
        if let Err(error) = outcome {
            self.report(&format!("hand-over: requests over CoAP may be executed twice: {error}"));
        }
    }

    fn report(&self, line: &str) {
        (self.config.report)(line);
    }
}

fn unexpected(expected: &'static str, got: &HandoverMessage) -> HandOverError {
    HandOverError::Unexpected { expected, got: format!("`{got}`") }
}
