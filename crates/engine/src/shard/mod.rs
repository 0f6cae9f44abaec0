//! A shard: one thread's listeners, connections, buffers, timers and counters. It shares nothing, blocks only in its
//! driver, and takes no lock.
//!
//! One turn, top to bottom:
//!
//! ```text
//!  send this turn's output, wait ──► driver.turn
//!  unsent rest                   ──► stash, wait for writability     (turn.rs)
//!  events                        ──► sessions               (turn.rs, input.rs)
//!  mail from other threads       ──► sessions                        (turn.rs)
//!  deadlines                     ──► sessions                        (closing.rs)
//!  the service's own turn        ──► connects, drain, …              (commands.rs)
//! ```
//!
//! Sessions only record requests (`Io`); `run_steps` (steps.rs) carries them out for one connection, step by step.

mod between_turns;
mod closing;
mod commands;
mod connection;
mod datagram_io;
mod datagram_ring;
mod datagrams;
mod detach;
mod gate;
mod input;
mod input_blocks;
mod io;
mod listener;
mod on_demand;
mod output;
mod session;
mod slots;
mod slow_consumer;
mod steps;
mod turn;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stilling_ring::{Clock, Time, Wake};

pub use self::between_turns::ConnectError;
pub use self::datagram_io::{DatagramIo, DatagramPath, PassedDatagram};
pub use self::datagram_ring::DatagramDropPolicy;
pub use self::io::{Io, OutputFull};
pub use self::session::{NO_FREE_SLOT, Recipient, Service, Session, ShardControl};

use self::datagram_ring::DatagramRing;
use self::detach::DetachHandler;
use self::input_blocks::InputBlocks;
use self::listener::{ListenerSet, ShardListeners};
use self::output::Output;
use self::session::ShardCommand;
use self::slots::ShardSlots;
use crate::close_reason::CloseReason;
use crate::counters::EngineCounters;
use crate::driver::{Driver, DriverEvent, IncompleteSend};
use crate::limits::{BLOCK_SIZE, DATAGRAMS_SERVED_PER_TURN, LISTENERS_MAX, TURN_LIST_CAPACITY};
use crate::store::StashStore;
use crate::timer_wheel::TimerWheel;
use crate::token::Token;

/// The bounds and timeouts of a shard.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Connections open at once. Reached: accepting pauses until one closes.
    pub capacity: u32,
    /// Slots beyond the capacity that only outgoing connections may use. Reached: a connect fails.
    pub reserved_connects: u32,
    /// Bytes of unfinished input held for all connections together. Full: the connection that needs more is closed with
    /// `InputFull`.
    pub input_bytes_max: usize,
    /// Bytes of unsent output held for all connections together. Full: the connections that hold most are closed with
    /// `SlowConsumer` until there is room. Counted in blocks of at least 256 bytes, up to four times as long as their
    /// content: if `n` connections hold output, one that holds at most a quarter of an `n`th of these bytes is not
    /// closed.
    pub output_bytes_max: usize,
    /// Time without input after which a connection is parked: a wait for readability replaces its receive.
    pub park_after: Duration,
    /// Time that blocked output may be without progress; see also [`WRITE_RATE_MIN`](crate::limits::WRITE_RATE_MIN).
    pub write_timeout: Duration,
    /// The write timeout of outgoing connections.
    pub connect_write_timeout: Duration,
    /// Time that a closing connection discards input.
    pub linger_timeout: Duration,
    /// Time that a connect may take.
    pub connect_timeout: Duration,
    /// Pause of accepting after a failed accept, or until a connection closes.
    pub accept_retry: Duration,
    /// The datagram that is dropped when the ring of [`Shard::receive_paced_datagrams`] is full.
    pub datagram_drop: DatagramDropPolicy,
    /// Datagrams of paced sockets passed to the service in one turn.
    pub datagrams_served_per_turn: usize,
    /// Whether the service gets [`Service::datagram_passed`].
    pub reports_datagrams: bool,
}

impl Default for ShardConfig {
    fn default() -> Self {
        ShardConfig {
            capacity: 100_000,
            reserved_connects: 0,
            input_bytes_max: 32 * 1024 * 1024,
            output_bytes_max: 64 * 1024 * 1024,
            park_after: Duration::from_secs(5),
            write_timeout: Duration::from_secs(30),
            connect_write_timeout: Duration::from_secs(30),
            linger_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(10),
            accept_retry: Duration::from_millis(100),
            datagram_drop: DatagramDropPolicy::default(),
            datagrams_served_per_turn: DATAGRAMS_SERVED_PER_TURN,
            reports_datagrams: false,
        }
    }
}

/// One shard. Created on the thread that runs it.
pub struct Shard<D: Driver, V: Service> {
    driver: D,
    service: V,
    config: ShardConfig,
    clock: Clock,
    now: Time,
    slots: ShardSlots<V::Session>,
    wheel: TimerWheel,
    held_input: StashStore,
    /// Shared blocks for long reads.
    blocks: InputBlocks,
    held_output: StashStore,
    output: Output,
    incomplete_sends: Vec<IncompleteSend>,
    events: Vec<DriverEvent<D::Socket, D::Accepted>>,
    /// Number of dispatched events.
    dispatched: usize,
    /// Connections to revisit when this turn's output is sent, and those being revisited.
    to_revisit: Vec<Token>,
    revisiting: Vec<Token>,
    /// Connections that are not read until others' output is sent, without duplicates.
    input_blocked: Vec<Token>,
    /// Counts turns, wrapping.
    turn_number: u32,
    may_have_intents: bool,
    /// The wake is parked.
    parked: bool,
    expired: Vec<u32>,
    commands: Vec<ShardCommand<V>>,
    listeners: ShardListeners,
    /// Datagram sockets that received in this turn.
    received_from: ListenerSet,
    /// Datagrams of paced sockets.
    datagram_ring: DatagramRing,
    /// Datagrams of paced sockets received in this turn.
    paced_in_turn: usize,
    /// Turns in succession that only drained paced sockets.
    drain_turns: u32,
    /// Datagram sockets to close when the service got their datagrams in the ring.
    sockets_to_drain: ListenerSet,
    /// Datagram sockets to close when this turn's output is sent.
    sockets_to_close: ListenerSet,
    /// Until this time the queues of listeners are rechecked periodically.
    recheck_until: Time,
    /// Accepted connections without a free slot.
    waiting: VecDeque<(u32, D::Accepted)>,
    detach_handler: Option<DetachHandler<V, D::Socket>>,
    /// Released listening sockets with their former numbers, until the owner takes them.
    detached_listeners: Vec<(u32, D::Socket)>,
    /// Sockets to adopt, in the order of their commands.
    adopted: VecDeque<D::Socket>,
    /// Latest time of the service's next turn.
    service_deadline: Option<Time>,
    /// The first slot that has not been notified of the drain.
    drain_notify_from: Option<usize>,
    /// All connections, also later ones, are closed for this reason.
    aborting: Option<CloseReason>,
    wake: Arc<Wake>,
    counters: Arc<EngineCounters>,
    is_stopping: bool,
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// A shard on `driver`. `wake` must run the driver's wake handle; other threads notify it after they have queued
    /// mail for the service.
    pub fn new(
        mut driver: D,
        service: V,
        config: ShardConfig,
        clock: Clock,
        wake: Arc<Wake>,
        counters: Arc<EngineCounters>,
    ) -> Self {
        let now = clock.now();
        let slot_count = config.capacity.saturating_add(config.reserved_connects);
        let sources = slot_count as usize + LISTENERS_MAX as usize;
        driver.reserve(sources);
        let datagram_ring = DatagramRing::new(config.datagram_drop);
        Shard {
            driver,
            service,
            now,
            slots: ShardSlots::new(config.capacity, config.reserved_connects),
            wheel: TimerWheel::new(now, sources),
            held_input: StashStore::new(config.input_bytes_max),
            blocks: InputBlocks::new(),
            held_output: StashStore::for_output(config.output_bytes_max),
            config,
            clock,
            output: Output::new(),
            incomplete_sends: Vec::with_capacity(TURN_LIST_CAPACITY),
            events: Vec::with_capacity(TURN_LIST_CAPACITY),
            dispatched: 0,
            to_revisit: Vec::with_capacity(TURN_LIST_CAPACITY),
            input_blocked: Vec::with_capacity(TURN_LIST_CAPACITY),
            revisiting: Vec::with_capacity(TURN_LIST_CAPACITY),
            turn_number: 0,
            may_have_intents: true,
            parked: false,
            expired: Vec::with_capacity(TURN_LIST_CAPACITY),
            commands: Vec::new(),
            listeners: ShardListeners::default(),
            received_from: ListenerSet::default(),
            datagram_ring,
            paced_in_turn: 0,
            drain_turns: 0,
            sockets_to_drain: ListenerSet::default(),
            sockets_to_close: ListenerSet::default(),
            recheck_until: now,
            waiting: VecDeque::new(),
            detach_handler: None,
            detached_listeners: Vec::new(),
            adopted: VecDeque::new(),
            service_deadline: None,
            drain_notify_from: None,
            aborting: None,
            wake,
            counters,
            is_stopping: false,
        }
    }

    /// Runs turns until the service stops the shard.
    pub fn run(&mut self) -> std::io::Result<()> {
        while !self.is_stopping {
            self.turn(true)?;
        }
        Ok(())
    }

    /// Whether the service has stopped the shard.
    pub fn is_stopped(&self) -> bool {
        self.is_stopping
    }

    /// The service, for access between turns.
    pub fn service(&mut self) -> &mut V {
        &mut self.service
    }

    /// The driver, for foreign event loops and the simulator.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<EngineCounters> {
        &self.counters
    }

    /// Connections open now.
    pub fn open_connections(&self) -> u32 {
        self.slots.open()
    }

    /// Latest time of the next turn; `None`: on the next event.
    pub fn next_deadline(&self) -> Option<Time> {
        [self.wheel.next(), self.service_deadline, self.blocks.next_trim()].into_iter().flatten().min()
    }

    /// Checks that every connection has an event to wait for; the error names one that has none. For the simulator.
    pub fn audit(&self) -> Result<(), String> {
        for at in 0..self.slots.used_slots() {
            let Some(token) = self.slots.token_at(at) else { continue };
            let connection = &self.slots.peek(token).expect("a used slot").connection;
            if !connection.has_pending_event() {
                return Err(format!("{token:?} waits for nothing: {connection:?}"));
            }
        }
        Ok(())
    }

    /// Bytes of the blocks that long reads receive into.
    pub fn block_bytes(&self) -> usize {
        self.blocks.count() * BLOCK_SIZE
    }

    /// Bytes held in the stores: unfinished input, unsent output. Both 0 without connections.
    pub fn held_bytes(&self) -> (usize, usize) {
        (self.held_input.used(), self.held_output.used())
    }
}
