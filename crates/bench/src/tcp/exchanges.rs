//! Exchanges in a closed loop: a message per connection in flight, on kept connections or on a new one for each.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::{Answer, EchoConnection};
use super::{FailureCount, TcpReport};
use crate::statistics::histogram;

/// Maximum bytes of a message: less than any send buffer, so that a send never waits.
pub const EXCHANGE_SIZE_MAX: usize = 4096;

/// Events of one wait.
const EVENTS_MAX: usize = 1024;

/// Maximum time of one wait.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Failures after which a run ends.
const FAILURES_MAX: u64 = 1000;

/// A run of exchanges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangePlan {
    /// Address of the server.
    pub to: SocketAddr,
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a message.
    pub size: usize,
    /// Whether each exchange has a connection of its own.
    pub close: bool,
    /// Number of exchanges that start.
    pub count: Option<u64>,
    /// Time during which exchanges start.
    pub span: Option<Duration>,
    /// Time for a connection, and for an answer.
    pub timeout: Duration,
}

/// Runs a plan. Without a count or a span it lasts ten seconds.
///
/// # Errors
/// If the plan contradicts itself or this side fails.
pub fn run(plan: &ExchangePlan) -> Result<TcpReport, String> {
    if plan.connections == 0 || plan.size == 0 || plan.size > EXCHANGE_SIZE_MAX {
        return Err(format!("at least one connection, and messages of 1 to {EXCHANGE_SIZE_MAX} bytes"));
    }
    let mut load = ExchangeLoad::new(*plan);
    if plan.connections == 1 {
        load.run_blocking();
    } else {
        load.run_polled()?;
    }
    Ok(load.report())
}

struct ExchangeLoad {
    plan: ExchangePlan,
    started: u64,
    completed: u64,
    failures: FailureCount,
    latencies: Histogram<u64>,
    begin: Instant,
    end: Option<Instant>,
    last: Instant,
    buffer: Vec<u8>,
}

impl ExchangeLoad {
    fn new(plan: ExchangePlan) -> ExchangeLoad {
        let begin = Instant::now();
        let span = plan.span.or_else(|| plan.count.is_none().then_some(Duration::from_secs(10)));
        ExchangeLoad {
            plan,
            started: 0,
            completed: 0,
            failures: FailureCount::default(),
            latencies: histogram(),
            begin,
            end: span.map(|span| begin + span),
            last: begin,
            // One byte more than an answer, to see bytes that nothing asked for.
            buffer: vec![0; plan.size + 1],
        }
    }

    fn may_start(&self) -> bool {
        self.plan.count.is_none_or(|count| self.started < count)
            && self.end.is_none_or(|end| Instant::now() < end)
            && self.failures.count < FAILURES_MAX
    }

    fn open(&self) -> Result<EchoConnection, String> {
        EchoConnection::open(self.plan.to, self.plan.size, self.plan.timeout)
    }

    fn next_number(&mut self) -> u64 {
        self.started += 1;
        self.started
    }

    fn complete(&mut self, started: Instant) {
        let now = Instant::now();
        self.completed += 1;
        self.last = now;
        self.latencies.saturating_record((now - started).as_nanos() as u64);
    }

    fn report(&self) -> TcpReport {
        let bytes = self.completed * self.plan.size as u64;
        let report = TcpReport::of(self.last - self.begin, self.completed, bytes, &self.latencies);
        TcpReport { failures: self.failures.count, evidence: self.failures.evidence.clone(), ..report }
    }

    /// One connection at a time, without waiting for events.
    fn run_blocking(&mut self) {
        let mut kept: Option<EchoConnection> = None;
        while self.may_start() {
            let connection = kept.take().map_or_else(|| self.open_blocking(), Ok);
            let mut connection = match connection {
                Ok(connection) => connection,
                Err(evidence) => {
                    self.failures.add(evidence);
                    continue;
                }
            };
            let start = if self.plan.close { connection.started } else { Instant::now() };
            let number = self.next_number();
            match connection.exchange(number, &mut self.buffer) {
                Ok(()) => {
                    self.complete(start);
                    kept = (!self.plan.close).then_some(connection);
                }
                Err(evidence) => self.failures.add(evidence),
            }
        }
    }

    fn open_blocking(&self) -> Result<EchoConnection, String> {
        let connection = self.open()?;
        let timeout = connection.stream.set_read_timeout(Some(self.plan.timeout));
        timeout.map(|()| connection).map_err(|error| format!("setsockopt: {error}"))
    }

    /// Many connections in one thread.
    fn run_polled(&mut self) -> Result<(), String> {
        let mut polled = PolledConnections::new(self.plan.connections)?;
        for slot in 0..self.plan.connections {
            self.start_in(&mut polled, slot, None)?;
        }
        // Counts from the first exchange with all connections open.
        while polled.in_flight > 0 {
            for slot in polled.wait()? {
                self.receive_in(&mut polled, slot)?;
            }
            if self.last.max(self.begin).elapsed() > self.plan.timeout {
                self.failures.add(format!("timeout of {} answers", polled.in_flight));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Starts an exchange on a kept connection or on a new one, if another may start.
    fn start_in(
        &mut self,
        polled: &mut PolledConnections,
        slot: usize,
        kept: Option<EchoConnection>,
    ) -> Result<(), String> {
        let mut kept = kept;
        while self.may_start() {
            let opened = match kept.take() {
                Some(connection) => Ok(connection),
                None => self.open().and_then(|connection| polled.add(connection, slot)),
            };
            let number = self.next_number();
            let sent = opened.and_then(|mut connection| {
                if !self.plan.close {
                    connection.started = Instant::now();
                }
                connection.send(number).map(|()| connection)
            });
            match sent {
                Ok(connection) => {
                    polled.slots[slot] = Some(connection);
                    polled.in_flight += 1;
                    return Ok(());
                }
                Err(evidence) => self.failures.add(evidence),
            }
        }
        Ok(())
    }

    fn receive_in(&mut self, polled: &mut PolledConnections, slot: usize) -> Result<(), String> {
        let Some(mut connection) = polled.slots[slot].take() else { return Ok(()) };
        let kept = match connection.receive(&mut self.buffer) {
            Ok(Answer::Partial) => {
                polled.slots[slot] = Some(connection);
                return Ok(());
            }
            Ok(Answer::Complete) => {
                self.complete(connection.started);
                (!self.plan.close).then_some(connection)
            }
            Err(evidence) => {
                self.failures.add(evidence);
                None
            }
        };
        polled.in_flight -= 1;
        self.start_in(polled, slot, kept)
    }
}

/// Connections under epoll(7). A closed one leaves it by itself.
struct PolledConnections {
    epoll: OwnedFd,
    events: Vec<Event>,
    slots: Vec<Option<EchoConnection>>,
    in_flight: usize,
}

impl PolledConnections {
    fn new(count: usize) -> Result<PolledConnections, String> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| format!("epoll: {error}"))?;
        let slots = std::iter::repeat_with(|| None).take(count).collect();
        Ok(PolledConnections { epoll, events: Vec::with_capacity(EVENTS_MAX), slots, in_flight: 0 })
    }

    fn add(&self, connection: EchoConnection, slot: usize) -> Result<EchoConnection, String> {
        connection.stream.set_nonblocking(true).map_err(|error| format!("fcntl: {error}"))?;
        epoll::add(&self.epoll, &connection.stream, EventData::new_u64(slot as u64), EventFlags::IN)
            .map_err(|error| format!("epoll: {error}"))?;
        Ok(connection)
    }

    /// Slots with input.
    fn wait(&mut self) -> Result<Vec<usize>, String> {
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&WAIT)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("epoll: {error}")),
        }
        let slot = |event: Event| {
            let data = event.data;
            data.u64() as usize
        };
        Ok(self.events.drain(..).map(slot).collect())
    }
}
