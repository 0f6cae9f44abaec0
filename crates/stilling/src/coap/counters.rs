//! What a shard's CoAP endpoint counts.

use stilling_engine::counters::{Counter, StageTime};

/// How a datagram is treated (row 1.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramClass {
    /// Not a CoAP message, or one that breaks a rule of its format.
    Malformed,
    /// A request that was received before: its reply is sent again.
    Duplicate,
    /// A request for a further block of an answer, or with a further block of a request.
    NextBlock,
    /// A request that repeats the registration of an observation.
    ObserveRefresh,
    /// Any other request.
    New,
    /// Not a request: an acknowledgement, a reset, a ping, an unexpected response.
    Control,
}

impl DatagramClass {
    /// All classes in numeric order.
    pub const ALL: [DatagramClass; 6] = [
        DatagramClass::Malformed,
        DatagramClass::Duplicate,
        DatagramClass::NextBlock,
        DatagramClass::ObserveRefresh,
        DatagramClass::New,
        DatagramClass::Control,
    ];

    /// Returns the name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DatagramClass::Malformed => "malformed",
            DatagramClass::Duplicate => "duplicate",
            DatagramClass::NextBlock => "next_block",
            DatagramClass::ObserveRefresh => "observe_refresh",
            DatagramClass::New => "new",
            DatagramClass::Control => "control",
        }
    }
}

/// Counters of a shard's CoAP endpoint.
#[derive(Debug, Default)]
pub struct CoapCounters {
    classes: [Counter; DatagramClass::ALL.len()],
    /// Exchanges forgotten before their lifetime, because the cache was full.
    pub exchanges_evicted: Counter,
    /// Exchanges remembered now.
    pub exchanges: Counter,
    /// Requests with an unknown critical option.
    pub bad_options: Counter,
    /// Answers that needed a message of their own, after an empty acknowledgement.
    pub separate_responses: Counter,
    /// Confirmable messages now that are not acknowledged.
    pub transmissions: Counter,
    /// Confirmable messages without an acknowledgement after all retransmissions.
    pub transmissions_timed_out: Counter,
    /// Messages sent as non-confirmable ones because there was no room for their clients among confirmable ones.
    pub transmissions_refused: Counter,
    /// Request bodies now of which blocks are still to come.
    pub assemblies: Counter,
    /// Requests now that wait for their answers.
    pub pending: Counter,
    /// Requests answered 5.03 because too many waited for their answers, or too many bodies were incomplete.
    pub refused_full: Counter,
    /// Replies to addresses that are not proved, beyond their limit and within the common budget.
    pub unproven_replies: Counter,
    /// Answers withheld from addresses that are not proved.
    pub amplification_limited: Counter,
    /// Requests answered 4.01 with an Echo value.
    pub echo_required: Counter,
    /// Observers now.
    pub observers: Counter,
    /// Observed resources now.
    pub observed_resources: Counter,
    /// Requests to observe that were answered without observation, because there was no room for their clients.
    pub observers_refused: Counter,
    /// Observers that ended by a reset.
    pub observers_reset: Counter,
    /// Observers that ended because a notification was not acknowledged.
    pub observers_gone: Counter,
    /// Non-confirmable notifications.
    pub notifications: Counter,
    /// Confirmable notifications.
    pub confirmable_notifications: Counter,
    /// States that were not stored for their observers: too long, or without room.
    pub states_dropped: Counter,
    /// Requests answered 5.04 because a stream did not return its newest record in time.
    pub states_late: Counter,
    /// Requests for the hub from addresses without access.
    pub bridge_forbidden: Counter,
    /// Time of requests from their hand-off to a worker to its answer.
    pub worker: StageTime,
    /// Requests forwarded to worker processes.
    pub forwarded: Counter,
    /// Requests answered 5.03 because no worker was free in time, or for this client, or the queue was full (row 1.6).
    pub no_worker: Counter,
    /// Requests answered 5.02: the worker died, or its response was not HTTP or incomplete.
    pub worker_failures: Counter,
    /// Requests answered 5.04.
    pub worker_timeouts: Counter,
    /// Requests answered 5.02 because the worker's response was larger than an answer may be.
    pub responses_too_large: Counter,
    /// New requests shed with 5.03.
    pub shed_unavailable: Counter,
    /// New requests shed with 4.29: the client had its share of the workers.
    pub shed_too_many: Counter,
    /// New requests shed without a reply.
    pub shed_silently: Counter,
    /// Pools of worker processes now of which new requests are shed.
    pub overloaded_pools: Counter,
}

impl CoapCounters {
    pub(super) fn count(&self, class: DatagramClass) {
        self.classes[class as usize].add(1);
    }

    /// Datagrams of a class.
    #[must_use]
    pub fn datagrams(&self, class: DatagramClass) -> u64 {
        self.classes[class as usize].get()
    }
}
