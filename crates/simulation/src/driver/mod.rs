//! The `sim` driver: the driver contract over the simulated network.
//!
//! It delivers events as adversely as the contract allows: in any order, late, over several turns. Completions of
//! closed sources arise inside it, and it must filter them. It also checks the shard's side of the contract: a
//! violation panics.
//!
//! ```text
//!  intents ─▶ sources ─ readiness ─▶ completion ┬─▶ deliver ─▶ events
//!                                               └─▶ delayed (late, overflow, stale) ─▶ filter ─▶ events
//! ```
//!
//! One file per mechanism: `source` records what is armed and checks the contract, `readiness` turns the network's
//! state into completions, `delivery` delays them and filters stale ones, `buffers` lends memory.

mod buffers;
mod delivery;
mod readiness;
mod source;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stilling_engine::Token;
use stilling_engine::driver::{
    BufferId, Datagram, Destination, Driver, DriverCounters, DriverEvent, Gather, IncompleteSend, Outgoing,
    SourceKind, Wait, WakeHandle,
};
use stilling_engine::limits;
use stilling_ring::Time;

use crate::faults::NetworkFault;
use crate::network::{Address, Network, SimSocket, SocketKind};
use crate::trace::hash_bytes;
use buffers::SimBufferPool;
use delivery::DelayedCompletion;
use source::{ArmedRead, SimSource, SimSourceKind, SimSources};

/// Runs the world while a shard waits in its driver: advances time to the next event or the limit, whichever is first,
/// and runs what is due. Returns whether an event was due by the limit.
pub type WaitHook = Box<dyn FnMut(Option<Time>) -> io::Result<bool>>;

/// A driver over a simulated [`Network`]. See the [module page](self).
pub struct SimDriver {
    network: Network,
    number: u32,
    sources: SimSources,
    buffers: SimBufferPool,
    /// Slots to check in this turn.
    dirty: Vec<u32>,
    /// Slots with a receive waiting for a buffer.
    starved: Vec<u32>,
    shutdowns: Vec<Token>,
    delayed: Vec<DelayedCompletion>,
    /// Events of this turn until its completion queue overflows.
    queue_room: usize,
    completions: u64,
    turns: u64,
    wake: Arc<AtomicBool>,
    wait_hook: Option<WaitHook>,
    counters: DriverCounters,
}

impl SimDriver {
    /// Creates a driver with as many receive buffers as the real drivers have.
    #[must_use]
    pub fn new(network: &Network) -> Self {
        Self::with_buffers(network, limits::RECEIVE_BUFFERS)
    }

    /// Creates a driver with `buffers` receive buffers; a small number makes starved receives common.
    #[must_use]
    pub fn with_buffers(network: &Network, buffers: u16) -> Self {
        SimDriver {
            network: network.clone(),
            number: network.state().add_driver(),
            sources: SimSources::default(),
            buffers: SimBufferPool::new(buffers),
            dirty: Vec::new(),
            starved: Vec::new(),
            shutdowns: Vec::new(),
            delayed: Vec::new(),
            queue_room: usize::MAX,
            completions: 0,
            turns: 0,
            wake: Arc::new(AtomicBool::new(false)),
            wait_hook: None,
            counters: DriverCounters::default(),
        }
    }

    /// Sets the hook that runs the rest of the world while the shard waits. With a hook, the shard announces its wait
    /// and sleeps until it is woken, as in production, so a lost wake shows. Without one, a wait only advances the
    /// network.
    pub fn set_wait_hook(&mut self, wait_hook: WaitHook) {
        self.wait_hook = Some(wait_hook);
    }

    /// Whether the next turn has something to report or to check, so that a waiting shard must wake.
    #[must_use]
    pub fn has_pending_events(&self) -> bool {
        self.wake.load(Ordering::Acquire)
            || !self.dirty.is_empty()
            || self.network.state().is_dirty(self.number)
    }

    /// Tokens attached and not yet reported closed.
    #[must_use]
    pub fn tokens_in_use(&self) -> usize {
        self.sources.in_use()
    }

    /// Checks at the end of a world that everything was returned.
    ///
    /// # Panics
    /// If a buffer was never released or a source never closed.
    pub fn assert_drained(&self) {
        if let Some(token) = self.sources.any() {
            source::contract_violation(token, "it was never closed");
        }
        let lent = self.buffers.lent();
        assert!(lent == 0, "contract broken by the shard: {lent} receive buffers were never released");
    }

    fn register_source(&mut self, token: Token, socket: SimSocket, what: SimSourceKind) {
        self.note(what.name(), token, 0);
        let slot = self.sources.add(SimSource::new(token, socket, what));
        self.sources.set_owner(slot, self.number);
        self.mark(slot);
    }

    /// Schedules a check of a source in the next turn.
    fn mark(&mut self, slot: u32) {
        self.dirty.push(slot);
    }

    fn note(&self, what: &str, token: Token, detail: u64) {
        self.network.state().note("shard", self.number, what, token.bits(), detail);
    }

    fn send(&mut self, out: Outgoing<'_>) -> Result<(), (u32, Option<io::Error>)> {
        let turn = self.turns;
        let source = self.sources.live(out.token, "send on it");
        let stream = source.check_send(turn, out.to.is_some(), out.bytes.count());
        let bytes = concatenated(out.bytes);
        let what = source.socket_kind();
        let mut state = self.network.state();
        state.note("shard", self.number, "send", out.token.bits(), hash_bytes(&bytes));
        state.acted();
        let blocked = |sent, errno| match errno {
            libc::EAGAIN => Err((sent, None)),
            errno => Err((sent, Some(io::Error::from_raw_os_error(errno)))),
        };
        if !bytes.is_empty() && state.injects(NetworkFault::BlockedSend) {
            return Err((0, None));
        }
        if !stream {
            let to = out.to.expect("checked: a datagram has a destination");
            let sent = state.send_datagram(what.datagram(), out.from, to, &bytes);
            return sent.or_else(|errno| blocked(0, errno));
        }
        let limit = if bytes.len() > 1 && state.injects(NetworkFault::ShortSend) {
            state.random.between(1, bytes.len() as u64 - 1) as usize
        } else {
            bytes.len()
        };
        match state.write(what.end(), &bytes, limit) {
            Ok(taken) if taken == bytes.len() => Ok(()),
            Ok(taken) => Err((taken as u32, None)),
            Err(errno) => blocked(0, errno),
        }
    }

    fn send_all<'a>(
        &mut self,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        incomplete_sends: &mut Vec<IncompleteSend>,
    ) {
        for (position, out) in outgoing.enumerate() {
            match self.send(out) {
                Ok(()) if out.close => self.begin_close(out.token, "close it with a send"),
                Ok(()) => {}
                Err((sent, error)) => {
                    incomplete_sends.push(IncompleteSend { position: position as u32, sent, error });
                }
            }
        }
    }

    /// Advances time to the next event or the limit, whichever is first. Returns whether an event was due by the limit.
    fn advance_network(&mut self, limit: Option<Time>) -> bool {
        let next = self.network.next_event();
        let reached = next.filter(|next| limit.is_none_or(|limit| *next <= limit));
        if let Some(to) = reached.or(limit) {
            self.network.advance_to(to);
        }
        reached.is_some()
    }

    fn begin_close(&mut self, token: Token, what: &str) {
        self.note("close", token, 0);
        self.sources.live(token, what).closing = true;
        self.mark(token.index());
    }

    /// Applies shutdowns after the sends of the turn.
    fn apply_shutdowns(&mut self) {
        for token in std::mem::take(&mut self.shutdowns) {
            if let Some(source) = self.sources.of(token)
                && !source.is_released()
            {
                let end = source.socket_kind().end();
                self.network.state().shutdown(end);
                self.network.state().acted();
            }
        }
    }
}

fn concatenated(bytes: Gather<'_>) -> Cow<'_, [u8]> {
    match bytes {
        Gather::One(bytes) => Cow::Borrowed(bytes),
        Gather::Many(_) => Cow::Owned(bytes.slices().flatten().copied().collect()),
    }
}

impl std::fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDriver").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Driver for SimDriver {
    type Socket = SimSocket;
    type Accepted = SimSocket;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn listen(&mut self, token: Token, socket: SimSocket) -> io::Result<()> {
        self.register_source(token, socket, SimSourceKind::Listener { accepting: false, stopping: false });
        Ok(())
    }

    fn accept(&mut self, listener: Token) {
        self.note("accept", listener, 0);
        *self.sources.listener(listener, "accept on it").0 = true;
        self.mark(listener.index());
    }

    fn pause_accept(&mut self, listener: Token) {
        self.note("pause accept", listener, 0);
        let (accepting, stopping) = self.sources.listener(listener, "pause accepting on it");
        *stopping |= std::mem::take(accepting);
        self.mark(listener.index());
    }

    fn accept_now(&mut self, listener: Token) -> io::Result<Option<SimSocket>> {
        self.note("accept now", listener, 0);
        let number = self.sources.idle_listener(listener, "accept at once from it");
        let mut state = self.network.state();
        if state.injects(NetworkFault::NoDescriptor) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let end = state.take_connection(number);
        drop(state);
        Ok(end.map(|end| self.network.socket_of(end)))
    }

    fn refuse_one(&mut self, listener: Token) -> bool {
        self.note("refuse one", listener, 0);
        let number = self.sources.live(listener, "refuse one on it").socket_kind().listener();
        let mut state = self.network.state();
        let Some(end) = state.take_connection(number) else { return false };
        state.set_damaged(end);
        state.reset(end);
        true
    }

    fn attach(
        &mut self,
        token: Token,
        socket: SimSocket,
        kind: SourceKind,
        readable_now: bool,
    ) -> io::Result<()> {
        if kind == SourceKind::Stream && self.network.state().injects(NetworkFault::AttachFails) {
            let SocketKind::End(end) = socket.kind() else { return Err(io::ErrorKind::InvalidInput.into()) };
            self.network.state().set_damaged(end);
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let what = match kind {
            SourceKind::Stream => SimSourceKind::Stream { connecting: false },
            SourceKind::Pipe => SimSourceKind::Pipe,
            SourceKind::Datagram => SimSourceKind::Datagram,
        };
        self.register_source(token, socket, what);
        self.sources.live(token, "attach it").expects_data = readable_now;
        Ok(())
    }

    fn connect(&mut self, token: Token, to: &Destination) -> io::Result<()> {
        if self.network.state().injects(NetworkFault::ConnectFails) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let socket = match to {
            Destination::Tcp { to, from } => self.network.dial(Address::Tcp(*to), *from),
            Destination::Unix(path) => self.network.dial(Address::Unix(path.clone()), None),
        };
        self.register_source(token, socket, SimSourceKind::Stream { connecting: true });
        Ok(())
    }

    fn receive(&mut self, token: Token) {
        self.note("receive", token, 0);
        self.sources.live(token, "receive on it").arm(ArmedRead::Receive);
        self.mark(token.index());
    }

    fn await_readable(&mut self, token: Token) {
        self.note("readable?", token, 0);
        self.sources.live(token, "wait until it is readable").arm(ArmedRead::Readable);
        self.mark(token.index());
    }

    fn cancel_receive(&mut self, token: Token) {
        self.note("cancel receive", token, 0);
        let source = self.sources.live(token, "cancel its receive");
        source.cancelling = source.armed != ArmedRead::No;
        self.mark(token.index());
    }

    fn recv_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize> {
        let source = self.sources.live(token, "receive on it");
        source.check_recv_now();
        let end = source.socket_kind().end();
        let mut state = self.network.state();
        let most = into.len().min(state.arrived(end));
        let split = most > 1 && state.injects(NetworkFault::SplitReceive);
        let limit = if split { state.random.between(1, most as u64) as usize } else { into.len() };
        let result = state.read(end, &mut into[..limit]);
        let taken = result.map_or(0, |taken| hash_bytes(&into[..taken]));
        state.note("shard", self.number, "recv now", token.bits(), taken);
        result.map_err(io::Error::from_raw_os_error)
    }

    fn send_now(&mut self, token: Token, bytes: &[u8]) -> io::Result<usize> {
        let source = self.sources.live(token, "send on it");
        source.check_send_now();
        let end = source.socket_kind().end();
        let mut state = self.network.state();
        state.acted();
        if !bytes.is_empty() && state.injects(NetworkFault::BlockedSend) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let short = bytes.len() > 1 && state.injects(NetworkFault::ShortSend);
        let limit =
            if short { state.random.between(1, bytes.len() as u64 - 1) as usize } else { bytes.len() };
        let result = state.write(end, bytes, limit);
        let taken = result.map_or(0, |taken| hash_bytes(&bytes[..taken]));
        state.note("shard", self.number, "send now", token.bits(), taken);
        result.map_err(io::Error::from_raw_os_error)
    }

    fn is_readable(&mut self, token: Token) -> bool {
        let end = self.sources.live(token, "check it for input").socket_kind().end();
        self.network.state().is_readable(end)
    }

    fn is_hung_up(&mut self, token: Token) -> bool {
        let end = self.sources.live(token, "check its peer").socket_kind().end();
        self.network.state().is_hung_up(end)
    }

    fn has_no_unread_input(&mut self, token: Token) -> bool {
        let end = self.sources.live(token, "check it for unread bytes").socket_kind().end();
        !self.network.state().is_readable(end)
    }

    fn await_writable(&mut self, token: Token) {
        self.note("writable?", token, 0);
        self.sources.live(token, "wait until it is writable").arm_writable();
        self.mark(token.index());
    }

    fn shutdown(&mut self, token: Token) {
        self.note("shutdown", token, 0);
        self.sources.live(token, "shut it down").check_shutdown();
        self.shutdowns.push(token);
    }

    fn close(&mut self, token: Token) {
        self.begin_close(token, "close it");
    }

    fn detach(&mut self, token: Token) {
        self.note("detach", token, 0);
        self.sources.live(token, "detach it").begin_detach();
        self.mark(token.index());
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    fn datagram(&self, buffer: BufferId) -> Datagram<'_> {
        self.buffers.datagram(buffer)
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers.release(buffer);
        for slot in std::mem::take(&mut self.starved) {
            self.mark(slot);
        }
    }

    fn buffers_lent(&self) -> usize {
        self.buffers.lent()
    }

    fn turn<'a>(
        &mut self,
        now: Time,
        wait: Wait,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        incomplete_sends: &mut Vec<IncompleteSend>,
        events: &mut Vec<DriverEvent<SimSocket>>,
    ) -> io::Result<()> {
        if let Wait::Until(_) = wait {
            let behind = now < self.network.now();
            assert!(!behind, "contract broken by the shard: its time {now:?} is behind the network's");
        }
        self.turns += 1;
        self.counters.system_calls += 1;
        let (stops_before, events_before) = (incomplete_sends.len(), events.len());
        self.network.advance_to(now.max(self.network.now()));
        self.send_all(outgoing, incomplete_sends);
        self.apply_shutdowns();
        self.collect(events);
        while incomplete_sends.len() == stops_before && events.len() == events_before {
            let limit = match wait {
                Wait::No => break,
                Wait::Until(limit) => Some(limit),
                Wait::Forever => None,
            };
            let more = match &mut self.wait_hook {
                Some(wait_hook) => wait_hook(limit)?,
                None => self.advance_network(limit),
            };
            self.collect(events);
            // No event is scheduled by the limit: returns, so that another thread or the world can end the wait.
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn wake_handle(&self) -> WakeHandle {
        let wake = Arc::clone(&self.wake);
        WakeHandle::new(move || wake.store(true, Ordering::Release))
    }

    fn waitable(&mut self) -> Option<i32> {
        None
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }
}
