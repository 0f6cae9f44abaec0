//! A shard: one thread's listeners, connections, buffers, timers and counters. It shares nothing,
//! never blocks but in its driver, and takes no lock.
//!
//! One turn, top to bottom:
//!
//! ```text
//!  send this turn's output, wait ──► driver.turn
//!  what was not taken            ──► stash, wait for writability     (turn.rs)
//!  events                        ──► sessions               (turn.rs, input.rs)
//!  mail from other threads       ──► sessions
//!  deadlines                     ──► sessions                        (closing.rs)
//!  the service's own turn        ──► connects, drain, …              (commands.rs)
//! ```
//!
//! Sessions only note what they want (`Io`); `pump` (pump.rs) looks at one connection's notes and
//! does the next thing, until there is nothing left to do for it now.

mod between_turns;
mod closing;
mod commands;
mod connection;
mod datagram_io;
mod datagrams;
mod detach;
mod gate;
mod input;
mod input_blocks;
mod io;
mod listener;
mod output;
mod pump;
mod session;
mod slots;
mod slow_consumer;
mod turn;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stilling_ring::{Clock, Time, Wake};

pub use self::datagram_io::{DatagramIo, DatagramPath};
pub use self::io::{Io, OutputFull};
pub use self::session::{NO_FREE_SLOT, Recipient, Service, Session, ShardControl};

use self::detach::DetachHandler;
use self::input_blocks::InputBlocks;
use self::listener::ShardListener;
use self::output::Output;
use self::session::ShardCommand;
use self::slots::ShardSlots;
use crate::close_reason::CloseReason;
use crate::counters::EngineCounters;
use crate::driver::{Driver, DriverEvent, IncompleteSend};
use crate::limits::{BLOCK_SIZE, LISTENERS_MAX, TURN_LIST_CAPACITY};
use crate::store::StashStore;
use crate::timer_wheel::TimerWheel;
use crate::token::Token;

/// The bounds and timeouts of a shard.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Connections open at once. Reached: accepting pauses until one closes.
    pub capacity: u32,
    /// Places beyond the capacity that only connects may take. Reached: a connect fails.
    pub reserved_connects: u32,
    /// Bytes of unfinished input held for all connections together. Full: the connection that
    /// needed more is closed with `InputFull`.
    pub input_bytes_max: usize,
    /// Bytes of unsent output held for all connections together. Full: the connections that hold most are closed with
    /// `SlowConsumer` until there is room. The bytes are those of blocks, which are up to four times as long as what they hold
    /// (at least 256 bytes): a connection with `n` others that hold output loses nothing while it holds no more than a quarter
    /// of an `n + 1`th part of these bytes.
    pub output_bytes_max: usize,
    /// How long a receive stays armed before the connection is parked.
    pub park_after: Duration,
    /// How long held-up output may make no progress; see also [`WRITE_RATE_MIN`](crate::limits::WRITE_RATE_MIN).
    pub write_timeout: Duration,
    /// The same for connections that the service has made.
    pub connect_write_timeout: Duration,
    /// How long a closing connection discards input.
    pub linger_timeout: Duration,
    /// How long a connect may take.
    pub connect_timeout: Duration,
    /// How long accepting rests after it failed, unless a connection closes before.
    pub accept_retry: Duration,
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
        }
    }
}

/// One shard. Made on the thread that turns it.
pub struct Shard<D: Driver, V: Service> {
    driver: D,
    service: V,
    config: ShardConfig,
    clock: Clock,
    now: Time,
    slots: ShardSlots<V::Session>,
    wheel: TimerWheel,
    held_input: StashStore,
    /// Where a long read puts what it finds, behind what was held of it.
    blocks: InputBlocks,
    held_output: StashStore,
    output: Output,
    stops: Vec<IncompleteSend>,
    events: Vec<DriverEvent<D::Socket, D::Accepted>>,
    /// Events before this one are dispatched.
    dispatched: usize,
    /// Connections to look at when this turn's output has gone, and those being looked at.
    to_revisit: Vec<Token>,
    revisiting: Vec<Token>,
    /// Connections that are not read until others' output has gone, each once.
    input_blocked: Vec<Token>,
    /// Counts turns, wrapping.
    turn_number: u32,
    /// The last turn did something, so the driver may have intents that it has not carried out.
    has_acted: bool,
    /// The wake is parked: somebody waits outside of `turn`.
    parked: bool,
    expired: Vec<u32>,
    commands: Vec<ShardCommand<V>>,
    listeners: Vec<ShardListener>,
    /// The datagram sockets that were received from in this turn, a bit each.
    received_from: u64,
    /// The datagram sockets that are closed when this turn's output has gone, a bit each.
    sockets_to_close: u64,
    /// Until then the queues of listeners are looked into from time to time.
    recheck_until: Time,
    /// Accepted, but all slots are taken.
    waiting: VecDeque<(u32, D::Accepted)>,
    /// Who is given the connections that leave with their socket open.
    detach_handler: Option<DetachHandler<V, D::Socket>>,
    /// Sockets that the service has its shard adopt, in the order of their orders.
    adopted: VecDeque<D::Socket>,
    /// When the service wants its turn at the latest.
    service_deadline: Option<Time>,
    /// The first slot whose session has not been told yet that the server drains.
    drain_notify_from: Option<usize>,
    /// All connections are being closed for this reason, also those that are still to come.
    aborting: Option<CloseReason>,
    wake: Arc<Wake>,
    counters: Arc<EngineCounters>,
    is_stopping: bool,
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// A shard on `driver`. `wake` must be made from the driver's wake handle; other threads notify
    /// it after they have put mail where the service finds it.
    pub fn new(
        mut driver: D,
        service: V,
        config: ShardConfig,
        clock: Clock,
        wake: Arc<Wake>,
        counters: Arc<EngineCounters>,
    ) -> Self {
        let now = clock.now();
        let places = config.capacity.saturating_add(config.reserved_connects);
        let sources = places as usize + LISTENERS_MAX as usize;
        driver.reserve(sources);
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
            stops: Vec::with_capacity(TURN_LIST_CAPACITY),
            events: Vec::with_capacity(TURN_LIST_CAPACITY),
            dispatched: 0,
            to_revisit: Vec::with_capacity(TURN_LIST_CAPACITY),
            input_blocked: Vec::with_capacity(TURN_LIST_CAPACITY),
            revisiting: Vec::with_capacity(TURN_LIST_CAPACITY),
            turn_number: 0,
            has_acted: true,
            parked: false,
            expired: Vec::with_capacity(TURN_LIST_CAPACITY),
            commands: Vec::new(),
            listeners: Vec::new(),
            received_from: 0,
            sockets_to_close: 0,
            recheck_until: now,
            waiting: VecDeque::new(),
            detach_handler: None,
            adopted: VecDeque::new(),
            service_deadline: None,
            drain_notify_from: None,
            aborting: None,
            wake,
            counters,
            is_stopping: false,
        }
    }

    /// Turns until the service asks to stop.
    pub fn run(&mut self) -> std::io::Result<()> {
        while !self.is_stopping {
            self.turn(true)?;
        }
        Ok(())
    }

    /// Whether the service has asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.is_stopping
    }

    /// The service, for the embedder's own bookkeeping between turns.
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
    pub fn open(&self) -> u32 {
        self.slots.open()
    }

    /// When the shard wants a turn at the latest; `None`: when something happens.
    pub fn next_deadline(&self) -> Option<Time> {
        [self.wheel.next(), self.service_deadline, self.blocks.next_trim()].into_iter().flatten().min()
    }

    /// Checks what must hold between turns, and says what does not. For the simulator.
    pub fn audit(&self) -> Result<(), String> {
        for at in 0..self.slots.used_slots() {
            let Some(token) = self.slots.token_at(at) else { continue };
            let connection = &self.slots.peek(token).expect("a tenant").connection;
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
    pub fn held(&self) -> (usize, usize) {
        (self.held_input.used(), self.held_output.used())
    }
}
