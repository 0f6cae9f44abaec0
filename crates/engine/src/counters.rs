//! Counters of a shard: written by its thread only, readable by all.
//!
//! A counter is a relaxed atomic that only its owner changes, so counting costs a plain load and store. Two counters
//! read together may be from slightly different moments.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::close_reason::CloseReason;
use crate::datagram_drop::DatagramDropReason;
use crate::driver::DriverCounters;

/// A number that one thread changes and all threads may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Counter(AtomicU64::new(0))
    }

    /// Adds `n`. Only the owning thread may call this.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value. Only the owning thread may call this.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Raises the value to `seen` if it is lower. Only the owning thread may call this.
    pub fn set_max(&self, seen: u64) {
        if seen > self.get() {
            self.set(seen);
        }
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The time that a stage has taken for a number of items: their mean is the quotient.
#[derive(Debug, Default)]
pub struct StageTime {
    /// Nanoseconds of all items together.
    pub nanos: Counter,
    /// The items.
    pub count: Counter,
}

impl StageTime {
    /// Adds items that took this time together. Only the owning thread may call this.
    pub fn add(&self, span: Duration, count: u64) {
        self.nanos.add(span.as_nanos() as u64);
        self.count.add(count);
    }
}

/// The counters of one shard.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct EngineCounters {
    /// Connections accepted from listeners.
    pub accepted: Counter,
    /// Outgoing connections.
    pub connected: Counter,
    /// Adopted connections.
    pub adopted: Counter,
    /// Connections open now.
    pub open: Counter,
    /// Maximum of connections open at once.
    pub open_max: Counter,
    /// Connections closed at once because descriptors ran out.
    pub refused_descriptors: Counter,
    /// Connections closed at once because the queue before the accept gate was full, or because all
    /// connections were being aborted.
    pub refused_full: Counter,
    /// Pauses of accepting because the capacity was reached, or because waiting connections have all descriptors, or by
    /// the owner of the listener.
    pub gate_closed: Counter,
    /// Pauses of accepting, or of receiving datagrams, after an error such as missing descriptors.
    pub accept_errors: Counter,
    /// Those of `accept_errors` for lack of descriptors.
    pub accept_errors_descriptors: Counter,
    /// Datagrams received.
    pub datagrams_received: Counter,
    /// Datagrams that the system dropped before they were received: full receive buffer, or a wrong checksum.
    pub datagrams_dropped_by_kernel: Counter,
    /// Datagrams that wait for a service that paces them, now.
    pub datagrams_waiting: Counter,
    /// Maximum of datagrams that waited at once.
    pub datagrams_waiting_max: Counter,
    /// Datagrams that a full ring dropped before the service got them.
    pub datagrams_shed: Counter,
    /// Time in the ring of datagrams that the service got from there.
    pub datagrams_waited: StageTime,
    /// Time of the service's calls for these datagrams.
    pub datagrams_served: StageTime,
    /// Time of passing datagrams to the system, of those for which the driver measures it.
    pub datagram_sends: StageTime,
    /// Datagrams that the service sent, dropped ones included.
    pub datagrams_sent: Counter,
    datagrams_dropped: [Counter; DatagramDropReason::ALL.len()],
    /// Bytes received.
    pub received_bytes: Counter,
    /// Bytes passed to the system for sending.
    pub sent_bytes: Counter,
    /// Sends that the system accepted only in part.
    pub blocked_sends: Counter,
    /// Idle connections that were parked.
    pub parked: Counter,
    /// Turns of the event loop.
    pub turns: Counter,
    /// Bytes of unfinished input held now.
    pub input_held: Counter,
    /// Bytes of unsent output held now.
    pub output_held: Counter,
    /// System calls of the driver: see [`DriverCounters::system_calls`](crate::driver::DriverCounters::system_calls).
    pub system_calls: Counter,
    /// Receives that waited for a free buffer.
    pub starved: Counter,
    /// Completions for a connection that was already closed, which is normal for armed operations.
    pub stale: Counter,
    /// Overflows of the completion queue in turns that sent something.
    pub overflows: Counter,
    closed: [Counter; CloseReason::ALL.len()],
}

impl EngineCounters {
    /// Connections closed for `reason`.
    pub fn closed(&self, reason: CloseReason) -> &Counter {
        &self.closed[reason as usize]
    }

    /// Connections closed for any reason.
    pub fn closed_total(&self) -> u64 {
        self.closed.iter().map(Counter::get).sum()
    }

    /// Datagrams not sent for `reason`.
    pub fn datagrams_dropped(&self, reason: DatagramDropReason) -> &Counter {
        &self.datagrams_dropped[reason as usize]
    }

    /// Datagrams not sent for any reason.
    pub fn datagrams_dropped_total(&self) -> u64 {
        self.datagrams_dropped.iter().map(Counter::get).sum()
    }

    /// Counts a datagram that had no open socket.
    pub(crate) fn count_datagram_without_socket(&self) {
        self.datagrams_sent.add(1);
        self.datagrams_dropped(DatagramDropReason::SocketClosed).add(1);
    }

    pub(crate) fn copy_driver_counters(&self, driver: &DriverCounters) {
        self.system_calls.set(driver.system_calls);
        self.starved.set(driver.starved);
        self.stale.set(driver.stale);
        self.overflows.set(driver.overflows);
        self.datagram_sends.nanos.set(driver.send_nanos);
        self.datagram_sends.count.set(driver.sends_timed);
    }
}
