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

use super::channel::{Channel, Incoming, Process, timespec};
use super::door::Door;
use super::error::HandOverError;
use super::limits::{
    APP_READY_LOOK, APP_READY_TIMEOUT, CONFIRM_TIMEOUT, DESCRIPTORS_PER_MESSAGE, HELLO_TIMEOUT,
    LISTENERS_HANDED_MAX, LOOK_AGAIN_FOR, MOVE_TIMEOUT, OFFER_TIMEOUT, READY_TIMEOUT, REST,
};
use super::lock::StartLock;
use super::message::{Message, SUCCEEDED, VERSION};
use super::succession::{PredecessorEvent, Retirement, Succession};
use super::{TakeOver, Waiting};
use crate::lifecycle::{Lifecycle, Phase, Stage};
use crate::socket_file::SocketName;

/// Ends the porter's wait: when the server's life changes, and when it is over.
#[derive(Debug)]
pub(crate) struct Bell {
    descriptor: OwnedFd,
    over: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> Result<Bell, HandOverError> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(HandOverError::system("make an event for the hand-over"))?;
        Ok(Bell { descriptor, over: AtomicBool::new(false) })
    }

    /// Has the porter look at the lifecycle. Safe in a signal handler.
    pub(crate) fn ring(&self) {
        // The counter can only be full when it has been rung already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// All shards have ended: the porter leaves whatever it is doing.
    pub(crate) fn ring_the_end(&self) {
        self.over.store(true, Ordering::Release);
        self.ring();
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// Something is to be read from the channel that was waited for.
    Channel,
    /// Somebody knocks, and nobody else is being served.
    Knock,
    /// The bell has rung.
    Bell,
    /// The time has come.
    Deadline,
}

/// Who has something to say.
struct Ready {
    bell: bool,
    door: bool,
    old: bool,
    channel: bool,
}

/// Who answers behind this server.
pub(crate) struct Crew {
    /// Whether somebody could answer a request now.
    pub(crate) is_ready: Box<dyn Fn() -> bool + Send>,
    /// How long the first one may take to become ready.
    pub(crate) start_timeout: Duration,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("start_timeout", &self.start_timeout).finish_non_exhaustive()
    }
}

/// The sockets of a server, as far as they change hands.
#[derive(Debug)]
pub(crate) struct Held {
    /// A copy of each listener, and of each internet datagram socket.
    pub(crate) listeners: Vec<OwnedFd>,
    /// How those listen that do not yet.
    pub(crate) options: ListenOptions,
    /// The names of Unix datagram sockets.
    pub(crate) sockets: Vec<SocketName>,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Porter {
    config: TakeOver,
    /// Held until this server is at the path; before the door, which needs it to remove its file.
    lock: Option<StartLock>,
    door: Door,
    bell: Arc<Bell>,
    lifecycle: Arc<Lifecycle>,
    succession: Succession,
    held: Held,
    /// How many shards are to begin before the server counts as ready.
    shards: usize,
    /// Who is to be ready before that.
    crew: Option<Crew>,
    /// The old server: before `taken` the one to take over from, afterwards one that has not gone yet.
    old: Option<Channel>,
    /// When the shards are to be told again to look into the queues, while there is an old server or a successor.
    look_again: Instant,
}

impl Porter {
    /// The porter of a server that holds these listeners.
    pub(crate) fn new(
        waiting: Waiting,
        lifecycle: Arc<Lifecycle>,
        held: Held,
        shards: usize,
        crew: Option<Crew>,
    ) -> Porter {
        let Waiting { config, old, lock, door, bell } = waiting;
        let look_again = Instant::now();
        lifecycle.accompany(old.is_some());
        let succession = Succession::new(Arc::clone(&lifecycle));
        Porter { config, door, bell, lifecycle, succession, held, shards, crew, lock, old, look_again }
    }

    /// What ends it.
    pub(crate) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Keeps the door until the server ends or has been succeeded.
    ///
    /// # Errors
    /// The take-over failed: the server must not go on, because the old one does.
    pub(crate) fn keep(self) -> Result<(), HandOverError> {
        match self.keep_to_the_end() {
            // Whoever ended this server wanted that.
            Err(HandOverError::Ending) => Ok(()),
            outcome => outcome,
        }
    }

    fn keep_to_the_end(mut self) -> Result<(), HandOverError> {
        if self.old.is_some() {
            self.await_crew()?;
        }
        self.await_shards()?;
        if self.old.is_some() {
            self.take_over()?;
        }
        match self.keep_the_door() {
            Err(fatal @ (HandOverError::TakenBack(_) | HandOverError::Ending)) => Err(fatal),
            Err(error) => {
                self.tell(&format!("hand-over: no successor can reach this server any more: {error}"));
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
        if self.old.is_none() {
            return;
        }
        self.held.listeners.clear();
        self.door.close();
        while self.old.is_some() && !self.bell.is_over() && !self.lifecycle.has_reached(Stage::Released) {
            self.wait_for_bell_or_old(false);
        }
    }

    /// Waits for successors until one has taken over (it is returned) or the server ends.
    fn keep_the_door(&mut self) -> Result<Option<Channel>, HandOverError> {
        while self.lifecycle.phase() == Phase::Running && !self.bell.is_over() {
            if self.wait(None, None)? == News::Knock
                && let Some(successor) = self.serve_successor()?
            {
                return Ok(Some(successor));
            }
        }
        Ok(None)
    }

    /// Waits until somebody can answer, and has the shards accept: until then whoever comes is better off with the
    /// old server. If that ends meanwhile there is nobody else, and the shards hold who comes.
    fn await_crew(&mut self) -> Result<(), HandOverError> {
        if let Some(crew) = self.crew.take() {
            let timeout = crew.start_timeout.min(APP_READY_TIMEOUT);
            let deadline = Instant::now() + timeout;
            while !(crew.is_ready)() && self.old_waits()? {
                self.check_life()?;
                let now = Instant::now();
                if now >= deadline {
                    return Err(self.call_off(HandOverError::AppNotReady { after: timeout }));
                }
                self.wait_for_bell_until(Some(deadline.min(now + APP_READY_LOOK)));
            }
        }
        self.succession.serve_beside();
        Ok(())
    }

    /// Whether the old server still waits for this one. Its end is told again to whoever asks next.
    fn old_waits(&self) -> Result<bool, HandOverError> {
        let Some(old) = &self.old else { return Ok(false) };
        match old.receive_now("nothing")? {
            Incoming::Nothing => Ok(true),
            Incoming::Ended => Ok(false),
            Incoming::Message(Message::Refused(reason), _) => Err(HandOverError::Refused(reason)),
            Incoming::Message(other, _) => Err(unexpected("nothing", &other)),
        }
    }

    /// Tells the old server why it is not to be.
    fn call_off(&self, reason: HandOverError) -> HandOverError {
        if let Some(old) = &self.old {
            // One that has gone need not hear it.
            let _ = old.send(&Message::Refused(reason.to_string()), &[], Instant::now() + MOVE_TIMEOUT);
        }
        reason
    }

    /// Waits until every shard accepts.
    fn await_shards(&mut self) -> Result<(), HandOverError> {
        while self.lifecycle.began() < self.shards {
            self.check_life()?;
            self.wait_for_bell();
        }
        self.check_life()
    }

    /// Takes the old server's place.
    fn take_over(&mut self) -> Result<(), HandOverError> {
        const YOURS: &str = "yours";
        let old = self.old.take().expect("the caller has looked");
        let process = old.check_peer()?;
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        // An old server that cannot be spoken to has gone: the next look tells.
        let _ = old.send(&Message::Ready, &[], deadline);
        match self.await_message(&old, YOURS, deadline, CONFIRM_TIMEOUT)? {
            Incoming::Message(Message::Yours, _) => self.succession.receive(PredecessorEvent::Yours),
            Incoming::Message(other, _) => return Err(unexpected(YOURS, &other)),
            Incoming::Ended | Incoming::Nothing => {
                self.succession.receive(PredecessorEvent::Ended);
                self.move_in()?;
                self.take_socket_paths();
                self.release_from_predecessor(PredecessorEvent::Ended, false);
                self.lifecycle.accompany(false);
                self.lifecycle.look_again();
                self.tell(&format!("{process} ended while it handed over: went on without it"));
                return Ok(());
            }
        };
        self.check_life()?;
        self.move_in()?;
        // Before the old server may close its sockets, which it does at once if it has no streams to release: a path with a
        // closed socket refuses senders.
        self.take_socket_paths();
        let _ = old.send(&Message::Taken, &[], Instant::now() + MOVE_TIMEOUT);
        self.tell(&format!("took over from {process}"));
        self.old = Some(old);
        Ok(())
    }

    /// This is the server now: takes the path, and listens on what it has opened besides. In this order: if the
    /// system refuses the path nobody has come yet who would be lost.
    fn move_in(&mut self) -> Result<(), HandOverError> {
        self.door.move_in()?;
        self.lock = None;
        for listener in &self.held.listeners {
            if net::is_datagrams(listener).unwrap_or(false) {
                continue;
            }
            let listens = net::is_listening(listener).and_then(|listens| {
                if listens { Ok(()) } else { net::begin_to_listen(listener, &self.held.options) }
            });
            let at = || net::local_addr(listener).map_or("a new address".to_owned(), |at| at.to_string());
            listens.map_err(|error| HandOverError::system(format!("listen on {}", at()))(error))?;
        }
        self.succession.taken();
        Ok(())
    }

    /// From now on senders to Unix datagram sockets reach this server. The old one reads what it was sent before.
    fn take_socket_paths(&mut self) {
        for socket in &mut self.held.sockets {
            if let Err(error) = socket.take_path() {
                let path = socket.path().display();
                (self.config.tell)(&format!("hand-over: senders do not reach {path}: {error}"));
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
            self.held.sockets.iter_mut().for_each(SocketName::forget_predecessor);
        }
    }

    /// Speaks with one that knocks. Returns it if it is the server from now on.
    ///
    /// # Errors
    /// This server must not go on: it ends, or the one before it does not.
    fn serve_successor(&mut self) -> Result<Option<Channel>, HandOverError> {
        let successor = match self.door.open() {
            Ok(Some(successor)) => successor,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.tell(&format!("hand-over: {error}"));
                self.rest();
                return Ok(None);
            }
        };
        let mut moved = false;
        let failure = match self.hand_over(&successor, &mut moved) {
            Ok(process) => {
                self.tell(&format!("handed over to {process}: draining"));
                return Ok(Some(successor));
            }
            Err(HandOverError::Ending) => {
                self.leave_to(successor, moved);
                return Err(HandOverError::Ending);
            }
            Err(failure) => failure,
        };
        let goes_on = !matches!(failure, HandOverError::TakenBack(_));
        if moved && goes_on {
            self.keep_the_path();
            self.held.sockets.iter().for_each(SocketName::restore);
        }
        let refusal = Message::Refused(failure.to_string());
        let _ = successor.send(&refusal, &[], Instant::now() + MOVE_TIMEOUT);
        drop(successor);
        if !goes_on {
            return Err(failure);
        }
        self.forget_predecessor();
        self.lifecycle.accompany(self.old.is_some());
        self.tell(&format!("hand-over failed, this server goes on: {failure}"));
        self.lifecycle.look_again();
        Ok(None)
    }

    /// This server ends while it is being succeeded. A refusal would have the successor end as well; the end of
    /// the connection without a word has it go on alone.
    fn leave_to(&mut self, successor: Channel, moved: bool) {
        self.tell("this server ends in the middle of a hand-over: its successor goes on alone");
        if moved {
            self.door.leave_file();
        } else {
            self.door.remove_files();
        }
        // Last: the path is free, or its own to take, when it hears that it is alone.
        drop(successor);
    }

    /// All steps with one successor. Notes in `moved` when that may have taken the path.
    fn hand_over(&mut self, successor: &Channel, moved: &mut bool) -> Result<Process, HandOverError> {
        let process = successor.check_peer()?;
        let version = match self.expect(successor, "hand-over", HELLO_TIMEOUT)? {
            Message::Hello { version } => version,
            other => return Err(unexpected("hand-over", &other)),
        };
        if version != VERSION {
            return Err(HandOverError::Version(version));
        }
        self.lifecycle.accompany(true);
        self.offer(successor)?;
        match self.expect(successor, "ready", READY_TIMEOUT)? {
            Message::Ready => {}
            other => return Err(unexpected("ready", &other)),
        }
        successor.send(&Message::Yours, &[], Instant::now() + MOVE_TIMEOUT)?;
        *moved = true;
        match self.expect(successor, "taken", MOVE_TIMEOUT)? {
            Message::Taken => {}
            other => return Err(unexpected("taken", &other)),
        }
        // It may have died since: then this is the last moment to go on instead.
        match successor.receive_now("nothing")? {
            Incoming::Nothing => Ok(process),
            Incoming::Ended => Err(HandOverError::Gone { expected: "nothing" }),
            Incoming::Message(other, _) => Err(unexpected("nothing", &other)),
        }
    }

    /// Hands out all listeners.
    fn offer(&self, successor: &Channel) -> Result<(), HandOverError> {
        if self.held.listeners.len() > LISTENERS_HANDED_MAX {
            return Err(HandOverError::TooMany(self.held.listeners.len()));
        }
        let deadline = Instant::now() + OFFER_TIMEOUT;
        for some in self.held.listeners.chunks(DESCRIPTORS_PER_MESSAGE) {
            let descriptors: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            successor.send(&Message::Listeners { count: some.len() }, &descriptors, deadline)?;
        }
        successor.send(&Message::End { total: self.held.listeners.len() }, &[], deadline)
    }

    /// The successor may take the path at any moment, or has, and is not to keep it. What it would rename is
    /// taken away first; so nothing changes any more after the look.
    fn keep_the_path(&mut self) {
        self.door.remove_next();
        // The one that goes may be about to remove what it finds there as its own.
        let _lock = StartLock::take_soon(self.door.path());
        if self.door.is_at_its_path() {
            return;
        }
        let door = Door::beside(self.door.path()).and_then(|door| door.move_in().map(|()| door));
        match door {
            Ok(door) => self.door = door,
            Err(error) => self.tell(&format!("hand-over: no successor can reach this server: {error}")),
        }
    }

    /// Has the shards drain. The successor sees by the end of the channel when this process has gone, so it stays
    /// open.
    fn retire(mut self, successor: Channel) {
        self.held.listeners.clear();
        let mut retirement = Retirement::begin(Arc::clone(&self.lifecycle));
        self.send_on();
        while !self.bell.is_over() {
            if retirement.releases() {
                // A successor that has gone need not hear it.
                let _ = successor.send(&Message::Released, &[], Instant::now() + MOVE_TIMEOUT);
            }
            self.wait_for_bell_or_old(true);
        }
        drop(successor);
    }

    /// While this server waits for its end, the one before it may still have the streams that this one is to release.
    fn wait_for_bell_or_old(&mut self, has_successor: bool) {
        // The closed door is always ready.
        let is_old = self.poll(false, None, None).is_ok_and(|ready| ready.old);
        self.bell.hush();
        if is_old && self.hear_old(has_successor).is_err() {
            // It goes on after all; this one has been succeeded and ends in any case.
            self.old = None;
        }
    }

    /// Whoever knocked before the path changed hands waits at this door: there is another one now.
    fn send_on(&self) {
        self.door.close();
        while let Ok(Some(late)) = self.door.open() {
            // One that has left already need not hear it.
            let _ = late.send(&Message::Refused(SUCCEEDED.to_owned()), &[], Instant::now() + MOVE_TIMEOUT);
        }
    }

    /// The next message of a successor.
    fn expect(
        &mut self,
        successor: &Channel,
        expected: &'static str,
        timeout: Duration,
    ) -> Result<Message, HandOverError> {
        match self.await_message(successor, expected, Instant::now() + timeout, timeout)? {
            Incoming::Message(message, _) => Ok(message),
            Incoming::Ended | Incoming::Nothing => Err(HandOverError::Gone { expected }),
        }
    }

    /// Waits for a message, and does meanwhile what else the porter has to do. A refusal is an error. Of the
    /// server's own drain a hand-over takes no notice: the successor is welcome all the more.
    fn await_message(
        &mut self,
        channel: &Channel,
        expected: &'static str,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Incoming, HandOverError> {
        loop {
            match channel.receive_now(expected)? {
                Incoming::Message(Message::Refused(reason), _) => return Err(HandOverError::Refused(reason)),
                Incoming::Nothing => {}
                incoming => return Ok(incoming),
            }
            if self.bell.is_over() {
                return Err(HandOverError::Ending);
            }
            if self.wait(Some(channel), Some(deadline))? == News::Deadline {
                return Err(HandOverError::Late { expected, after: timeout });
            }
        }
    }

    /// Waits for news. Meanwhile it looks after an old server that has not gone yet, and refuses whoever knocks
    /// while `channel` is being served.
    fn wait(&mut self, channel: Option<&Channel>, deadline: Option<Instant>) -> Result<News, HandOverError> {
        loop {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(News::Deadline);
            }
            // While another process has these listeners, too, and may hang at any moment.
            let is_shared = self.old.is_some() || channel.is_some();
            if is_shared && now >= self.look_again {
                self.lifecycle.look_again();
                self.look_again = now + LOOK_AGAIN_FOR / 2;
            }
            let until = [deadline, is_shared.then_some(self.look_again)].into_iter().flatten().min();
            let Ready { bell, door, old, channel: spoke } = self.poll(true, channel, until)?;
            if bell {
                self.bell.hush();
            }
            if old {
                self.hear_old(channel.is_some())?;
            }
            // First: its news may be that it is gone, and then the other one is welcome.
            if spoke {
                return Ok(News::Channel);
            }
            match channel {
                Some(_) if door => self.refuse_another(),
                None if door => return Ok(News::Knock),
                _ => {}
            }
            if bell {
                return Ok(News::Bell);
            }
        }
    }

    /// Waits for the bell, the old server and the channel, and `at_door`.
    fn poll(
        &self,
        at_door: bool,
        channel: Option<&Channel>,
        until: Option<Instant>,
    ) -> Result<Ready, HandOverError> {
        let mut asked = vec![PollFd::from_borrowed_fd(self.bell.descriptor.as_fd(), PollFlags::IN)];
        asked.extend(at_door.then(|| PollFd::from_borrowed_fd(self.door.as_fd(), PollFlags::IN)));
        asked.extend(self.old.as_ref().map(|old| PollFd::from_borrowed_fd(old.as_fd(), PollFlags::IN)));
        asked.extend(channel.map(|channel| PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)));
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        match poll(&mut asked, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(HandOverError::system("wait for a successor")(error)),
        }
        let mut ready = asked.iter().map(|one| !one.revents().is_empty());
        let mut next = || ready.next().unwrap_or(false);
        let (bell, door) = (next(), at_door && next());
        let old = self.old.is_some() && next();
        Ok(Ready { bell, door, old, channel: channel.is_some() && next() })
    }

    /// The old server has gone, or has thought better of it: that is an error.
    fn hear_old(&mut self, has_successor: bool) -> Result<(), HandOverError> {
        let Some(old) = &self.old else { return Ok(()) };
        match old.receive_now("nothing") {
            Ok(Incoming::Nothing) => Ok(()),
            Ok(Incoming::Message(Message::Released, _)) => {
                self.release_from_predecessor(PredecessorEvent::Released, has_successor);
                // It has closed its listeners: nothing else reads their queues.
                self.lifecycle.accompany(has_successor);
                Ok(())
            }
            // It had not heard `taken` in time and goes on.
            Ok(Incoming::Message(Message::Refused(reason), _)) => Err(HandOverError::TakenBack(reason)),
            // Whatever else it says, it has nothing more to say.
            Ok(Incoming::Ended | Incoming::Message(..)) | Err(_) => {
                self.old = None;
                self.release_from_predecessor(PredecessorEvent::Ended, has_successor);
                self.lifecycle.accompany(has_successor);
                self.lifecycle.look_again();
                Ok(())
            }
        }
    }

    fn refuse_another(&self) {
        match self.door.open() {
            Ok(Some(another)) => {
                let reason = "another server is taking over at this moment".to_owned();
                // One that has left already need not hear it.
                let _ = another.send(&Message::Refused(reason), &[], Instant::now() + MOVE_TIMEOUT);
            }
            Ok(None) => {}
            Err(_) => self.rest(),
        }
    }

    /// Nobody can be let in, and knocking does not end by that: a pause, so that it does not cost a core.
    fn rest(&self) {
        std::thread::sleep(REST);
    }

    fn wait_for_bell(&self) {
        self.wait_for_bell_until(None);
    }

    fn wait_for_bell_until(&self, deadline: Option<Instant>) {
        let bell = PollFd::from_borrowed_fd(self.bell.descriptor.as_fd(), PollFlags::IN);
        let timeout = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        // An interruption is a reason to look as good as any.
        let _ = poll(&mut [bell], timeout.as_ref());
        self.bell.hush();
    }

    fn check_life(&self) -> Result<(), HandOverError> {
        let lives = self.lifecycle.phase() == Phase::Running && !self.bell.is_over();
        if lives { Ok(()) } else { Err(HandOverError::Ending) }
    }

    fn tell(&self, line: &str) {
        (self.config.tell)(line);
    }
}

fn unexpected(expected: &'static str, got: &Message) -> HandOverError {
    HandOverError::Unexpected { expected, got: format!("`{got}`") }
}
