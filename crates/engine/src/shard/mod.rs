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
//!  deadlines                     ──► sessions                        (ends.rs)
//!  the service's own turn        ──► connects, drain, …              (orders.rs)
//! ```
//!
//! Sessions only note what they want (`Io`); `pump` (pump.rs) looks at one connection's notes and
//! does the next thing, until there is nothing left to do for it now.

mod between;
mod blocks;
mod connection;
mod datagram_io;
mod datagrams;
mod detach;
mod ends;
mod gate;
mod input;
mod io;
mod listener;
mod orders;
mod output;
mod pump;
mod session;
mod slots;
mod slow;
mod turn;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stilling_ring::{Clock, Time, Wake};

pub use self::datagram_io::{DatagramIo, DatagramPath};
pub use self::io::{Full, Io};
pub use self::session::{Control, NO_PLACE, Recipient, Service, Session};

use self::blocks::InputBlocks;
use self::detach::Taker;
use self::listener::Listener;
use self::output::Output;
use self::session::Order;
use self::slots::Slots;
use crate::close_reason::CloseReason;
use crate::counters::Counters;
use crate::driver::{Driver, Event, SendStop};
use crate::limits::{BLOCK_SIZE, LISTENERS_MAX, TURN_LIST};
use crate::store::Store;
use crate::token::Token;
use crate::wheel::Wheel;

/// The bounds and timeouts of a shard.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connections open at once. Reached: accepting pauses until one closes.
    pub capacity: u32,
    /// Places beyond the capacity that only connects may take. Reached: a connect fails.
    pub connects_kept: u32,
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
    /// How long held-up output may make no progress; see also [`HELD_RATE_MIN`](crate::limits::HELD_RATE_MIN).
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

impl Default for Config {
    fn default() -> Self {
        Config {
            capacity: 100_000,
            connects_kept: 0,
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
    config: Config,
    clock: Clock,
    now: Time,
    slots: Slots<V::Session>,
    wheel: Wheel,
    held_input: Store,
    /// Where a long read puts what it finds, behind what was held of it.
    blocks: InputBlocks,
    held_output: Store,
    output: Output,
    stops: Vec<SendStop>,
    events: Vec<Event<D::Socket, D::Accepted>>,
    /// Events before this one are dispatched.
    dispatched: usize,
    /// Connections to look at when this turn's output has gone, and those being looked at.
    to_revisit: Vec<Token>,
    looking: Vec<Token>,
    /// Connections that are not read until others' output has gone, each once.
    held_back: Vec<Token>,
    /// Counts turns, wrapping.
    turn_number: u32,
    /// The last turn did something, so the driver may have intents that it has not carried out.
    acted: bool,
    /// The wake is parked: somebody waits outside of `turn`.
    parked: bool,
    expired: Vec<u32>,
    orders: Vec<Order<V>>,
    listeners: Vec<Listener>,
    /// The datagram sockets that were received from in this turn, a bit each.
    received_from: u64,
    /// The datagram sockets that are closed when this turn's output has gone, a bit each.
    sockets_to_close: u64,
    /// Until then the queues of listeners are looked into from time to time.
    anew_until: Time,
    /// Accepted, but all slots are taken.
    waiting: VecDeque<(u32, D::Accepted)>,
    /// Who is given the connections that leave with their socket open.
    taker: Option<Taker<V, D::Socket>>,
    /// Sockets that the service has its shard adopt, in the order of their orders.
    adopted: VecDeque<D::Socket>,
    /// When the service wants its turn at the latest.
    service_deadline: Option<Time>,
    /// The first slot whose session has not been told yet that the server drains.
    untold_from: Option<usize>,
    /// All connections are being closed for this reason, also those that are still to come.
    aborting: Option<CloseReason>,
    wake: Arc<Wake>,
    counters: Arc<Counters>,
    is_over: bool,
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// A shard on `driver`. `wake` must be made from the driver's wake handle; other threads notify
    /// it after they have put mail where the service finds it.
    pub fn new(
        mut driver: D,
        service: V,
        config: Config,
        clock: Clock,
        wake: Arc<Wake>,
        counters: Arc<Counters>,
    ) -> Self {
        let now = clock.now();
        let places = config.capacity.saturating_add(config.connects_kept);
        let sources = places as usize + LISTENERS_MAX as usize;
        driver.reserve(sources);
        Shard {
            driver,
            service,
            now,
            slots: Slots::new(config.capacity, config.connects_kept),
            wheel: Wheel::new(now, sources),
            held_input: Store::new(config.input_bytes_max),
            blocks: InputBlocks::new(),
            held_output: Store::of_output(config.output_bytes_max),
            config,
            clock,
            output: Output::new(),
            stops: Vec::with_capacity(TURN_LIST),
            events: Vec::with_capacity(TURN_LIST),
            dispatched: 0,
            to_revisit: Vec::with_capacity(TURN_LIST),
            held_back: Vec::with_capacity(TURN_LIST),
            looking: Vec::with_capacity(TURN_LIST),
            turn_number: 0,
            acted: true,
            parked: false,
            expired: Vec::with_capacity(TURN_LIST),
            orders: Vec::new(),
            listeners: Vec::new(),
            received_from: 0,
            sockets_to_close: 0,
            anew_until: now,
            waiting: VecDeque::new(),
            taker: None,
            adopted: VecDeque::new(),
            service_deadline: None,
            untold_from: None,
            aborting: None,
            wake,
            counters,
            is_over: false,
        }
    }

    /// Turns until the service asks to stop.
    pub fn run(&mut self) -> std::io::Result<()> {
        while !self.is_over {
            self.turn(true)?;
        }
        Ok(())
    }

    /// Whether the service has asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.is_over
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
    pub fn counters(&self) -> &Arc<Counters> {
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
        for at in 0..self.slots.touched() {
            let Some(token) = self.slots.tenant(at) else { continue };
            let connection = &self.slots.peek(token).expect("a tenant").connection;
            if !connection.has_a_future() {
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
