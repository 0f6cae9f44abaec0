//! Counters and reports of a watch.

use std::net::SocketAddr;
use std::time::Duration;

use super::backlog::AcceptQueue;
use super::flood::SynCounts;
use crate::Time;
use crate::counters::Counter;

/// Counters of a watch, changed by its thread only; readable without a lock. Those of the system cover the network
/// namespace, with the listeners of other processes, since the watch began.
#[derive(Debug, Default)]
pub struct ListenWatchCounters {
    /// Samples taken.
    pub samples: Counter,
    /// SYN floods detected.
    pub floods: Counter,
    /// 1 while a SYN flood is on.
    pub is_flooded: Counter,
    /// SYN cookies sent.
    pub cookies_sent: Counter,
    /// Valid SYN cookies returned.
    pub cookies_returned: Counter,
    /// Invalid SYN cookies received.
    pub cookies_failed: Counter,
    /// Connection requests and connections dropped at a full accept queue.
    pub overflows: Counter,
    /// All connection requests and connections dropped by listeners.
    pub drops: Counter,
    /// Backlogs raised.
    pub raises: Counter,
    /// Raised backlogs lowered.
    pub lowers: Counter,
    /// [`Time::as_nanos`] of the detection of the present flood.
    pub(super) flood_since: Counter,
}

impl ListenWatchCounters {
    /// When the present flood was detected.
    pub fn flood_since(&self) -> Option<Time> {
        (self.is_flooded.get() > 0).then(|| Time::from_nanos(self.flood_since.get()))
    }

    pub(super) fn add(&self, counts: &SynCounts) {
        self.cookies_sent.add(counts.cookies_sent);
        self.cookies_returned.add(counts.cookies_returned);
        self.cookies_failed.add(counts.cookies_failed);
        self.overflows.add(counts.listen_overflows);
        self.drops.add(counts.listen_drops);
    }
}

/// Counters of one watched listener; readable without a lock.
#[derive(Debug)]
pub struct ListenerCounters {
    /// The listener's address.
    pub address: SocketAddr,
    /// The configured backlog.
    pub configured: Counter,
    /// The effective backlog at the last sample; 0 before the socket listens.
    pub backlog: Counter,
    /// Connections in the accept queue at the last sample.
    pub queue: Counter,
    /// Most connections in the accept queue at a sample.
    pub queue_max: Counter,
    /// Connection requests and connections that this listener dropped, modulo 2^32 between two samples.
    pub drops: Counter,
    /// How often its backlog was raised.
    pub raises: Counter,
    /// How often it was lowered.
    pub lowers: Counter,
}

impl ListenerCounters {
    pub(super) fn new(address: SocketAddr, configured: u32, queue: Option<AcceptQueue>) -> ListenerCounters {
        let counters = ListenerCounters {
            address,
            configured: Counter::new(),
            backlog: Counter::new(),
            queue: Counter::new(),
            queue_max: Counter::new(),
            drops: Counter::new(),
            raises: Counter::new(),
            lowers: Counter::new(),
        };
        counters.configured.set(u64::from(configured));
        counters.set_queue(queue.unwrap_or_default());
        counters
    }

    pub(super) fn set_queue(&self, queue: AcceptQueue) {
        self.backlog.set(u64::from(queue.max));
        self.queue.set(u64::from(queue.length));
        self.queue_max.set_max(u64::from(queue.length));
    }

    fn report(&self) -> ListenerReport {
        ListenerReport {
            address: self.address,
            configured: self.configured.get(),
            backlog: self.backlog.get(),
            queue: self.queue.get(),
            queue_max: self.queue_max.get(),
            drops: self.drops.get(),
            raises: self.raises.get(),
            lowers: self.lowers.get(),
        }
    }
}

/// A snapshot of a watch; see [`ListenWatchCounters`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenReport {
    /// Samples taken.
    pub samples: u64,
    /// SYN floods detected.
    pub floods: u64,
    /// When the present flood was detected; `None`: there is none.
    pub flood_since: Option<Time>,
    /// SYN cookies sent.
    pub cookies_sent: u64,
    /// Valid SYN cookies returned.
    pub cookies_returned: u64,
    /// Invalid SYN cookies received.
    pub cookies_failed: u64,
    /// Drops at a full accept queue.
    pub overflows: u64,
    /// All drops of listeners.
    pub drops: u64,
    /// Backlogs raised.
    pub raises: u64,
    /// Raised backlogs lowered.
    pub lowers: u64,
    /// The watched listeners, in the order of their registration.
    pub listeners: Vec<ListenerReport>,
}

impl ListenReport {
    pub(super) fn of<'a>(
        counters: &ListenWatchCounters,
        listeners: impl Iterator<Item = &'a ListenerCounters>,
    ) -> ListenReport {
        ListenReport {
            samples: counters.samples.get(),
            floods: counters.floods.get(),
            flood_since: counters.flood_since(),
            cookies_sent: counters.cookies_sent.get(),
            cookies_returned: counters.cookies_returned.get(),
            cookies_failed: counters.cookies_failed.get(),
            overflows: counters.overflows.get(),
            drops: counters.drops.get(),
            raises: counters.raises.get(),
            lowers: counters.lowers.get(),
            listeners: listeners.map(ListenerCounters::report).collect(),
        }
    }
}

/// A snapshot of one listener; see [`ListenerCounters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerReport {
    /// The listener's address.
    pub address: SocketAddr,
    /// The configured backlog.
    pub configured: u64,
    /// The effective backlog.
    pub backlog: u64,
    /// Connections in the accept queue.
    pub queue: u64,
    /// Most connections in the accept queue at a sample.
    pub queue_max: u64,
    /// Dropped connection requests and connections.
    pub drops: u64,
    /// How often the backlog was raised.
    pub raises: u64,
    /// How often it was lowered.
    pub lowers: u64,
}

/// A change that the watch has noticed or made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenEvent {
    /// A SYN flood was detected in the network namespace.
    FloodBegan {
        /// Number of the sample that showed it; see [`ListenWatchCounters::samples`].
        sample: u64,
        /// Connection requests within the last seconds that no client completed.
        unanswered: u64,
        /// Whether the system answers with SYN cookies; without them valid clients are dropped as well.
        has_cookies: bool,
    },
    /// There was no sign of the SYN flood for some time.
    FloodEnded {
        /// Number of the sample.
        sample: u64,
        /// Time from the detection to the last sign.
        lasted: Duration,
    },
    /// The watch raised the backlog of a listener.
    BacklogRaised(BacklogChange),
    /// The watch lowered a raised backlog.
    BacklogLowered(BacklogChange),
    /// The counters cannot be read: SYN floods are not detected, backlogs follow the accept queues only. At most once.
    CountersUnavailable {
        /// The system's error.
        error: String,
    },
}

/// A changed backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogChange {
    /// The listener's address.
    pub listener: SocketAddr,
    /// Effective backlog before.
    pub from: u32,
    /// Effective backlog now.
    pub to: u32,
}
