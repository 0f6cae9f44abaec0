//! Scenarios: loads and the servers that receive them.

use super::load::CollectLoad;
use super::peers::{CollectPeer, StorageKind};

/// One table of the section.
pub(super) struct Scenario {
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) load: CollectLoad,
    pub(super) seconds: u32,
    pub(super) peers: &'static [CollectPeer],
    /// Measured in one round only.
    pub(super) once: bool,
    /// The project's targets, besides that nothing fails. Empty: only reported.
    pub(super) targets_wanted: &'static [PeerTarget],
}

/// A target of Stilling on each of its drivers.
pub(super) enum PeerTarget {
    /// Most server CPU per message, as a multiple of this peer's.
    CpuTimes(CollectPeer, f64),
    /// Least messages per second, as a multiple of this peer's.
    RateTimes(CollectPeer, f64),
    /// Least messages per second.
    Rate(f64),
    /// Most milliseconds of the slowest send.
    SendMs(f64),
}

/// Four publishers with 256 unacknowledged messages in flight each.
pub(super) const ACKNOWLEDGED: CollectLoad = CollectLoad {
    clients: 4,
    size: 4096,
    window: 256,
    seconds: 4,
    confirmed: true,
    per_message: false,
    subscribers: 0,
    storage: StorageKind::Disk,
    backlog: 0,
};

/// Without a stream, with one subscriber.
const CORE: CollectLoad =
    CollectLoad { confirmed: false, subscribers: 1, storage: StorageKind::Nothing, ..ACKNOWLEDGED };

/// The same with a stream in memory, on servers with streams.
const IN_MEMORY: CollectLoad = CollectLoad { storage: StorageKind::Memory, ..CORE };

pub(super) const CURVE: &str = "Rate by message size";

/// In bytes.
pub(super) const CURVE_SIZES: [u32; 6] = [128, 512, 1024, 4096, 16_384, 65_536];

pub(super) const BACKLOG: &str = "Rate by backlog of the stream";

/// Messages already in the stream.
pub(super) const BACKLOGS: [u64; 3] = [0, 100_000, 1_000_000];

/// Row 0.5: least rate with the longest backlog, as a part of the rate of an empty stream.
pub(super) const BACKLOG_RATE_MIN: f64 = 0.8;

pub(super) const BACKLOG_LOAD: CollectLoad = CollectLoad { size: 1024, seconds: 1, ..ACKNOWLEDGED };

pub(super) const UNCONFIRMED_TITLE: &str = "Unconfirmed beside confirmed";

/// Row 0.28: most milliseconds of the slowest send of a flood; BBQ reported 5.03 s, and 3.81 s in the mean.
const SEND_MS_MAX: f64 = 1000.0;

/// Row 0.24 requires ten times the 1,071 messages per second that BBQ reported; the target for a connection per message
/// is this, with or without waiting for acknowledgements.
const PER_MESSAGE_RATE: f64 = 15_000.0;

const STILLING: [CollectPeer; 2] = [CollectPeer::StillingUring, CollectPeer::StillingPoll];

const DELIVERING: [CollectPeer; 4] =
    [CollectPeer::StillingUring, CollectPeer::StillingPoll, CollectPeer::NatsCore, CollectPeer::Bare];

const ON_DISK: [CollectPeer; 7] = [
    CollectPeer::StillingUring,
    CollectPeer::StillingPoll,
    CollectPeer::JetStream,
    CollectPeer::JetStreamAlways,
    CollectPeer::RedisEverySecond,
    CollectPeer::RedisAlways,
    CollectPeer::Bare,
];

const BBQ: [CollectPeer; 6] = [
    CollectPeer::StillingUring,
    CollectPeer::StillingPoll,
    CollectPeer::JetStream,
    CollectPeer::JetStreamAlways,
    CollectPeer::RedisEverySecond,
    CollectPeer::Bare,
];

/// Servers that accept messages without acknowledging them.
const UNCONFIRMED: [CollectPeer; 5] = [
    CollectPeer::StillingUring,
    CollectPeer::StillingPoll,
    CollectPeer::JetStream,
    CollectPeer::Rsyslog,
    CollectPeer::Bare,
];

/// Common values of the scenarios.
const USUAL_LOAD: Scenario = Scenario {
    title: "",
    description: "",
    load: ACKNOWLEDGED,
    seconds: 4,
    peers: &ON_DISK,
    once: false,
    targets_wanted: &[],
};

/// A long run of Stilling alone, which looks for failures.
const MINUTE_LOAD: Scenario = Scenario { seconds: 60, once: true, peers: &STILLING, ..USUAL_LOAD };

pub(super) const SCENARIOS: [Scenario; 16] = [
    Scenario {
        title: "Acknowledged, 4 KB",
        targets_wanted: &[
            PeerTarget::RateTimes(CollectPeer::JetStreamAlways, 10.0),
            PeerTarget::RateTimes(CollectPeer::RedisAlways, 8.0),
            PeerTarget::RateTimes(CollectPeer::JetStream, 4.0),
            PeerTarget::CpuTimes(CollectPeer::JetStream, 0.17),
        ],
        ..USUAL_LOAD
    },
    Scenario {
        title: "Acknowledged, 128 bytes",
        load: CollectLoad { size: 128, ..ACKNOWLEDGED },
        targets_wanted: &[
            PeerTarget::RateTimes(CollectPeer::JetStream, 4.0),
            PeerTarget::CpuTimes(CollectPeer::JetStream, 0.18),
        ],
        ..USUAL_LOAD
    },
    Scenario {
        title: "Acknowledged, 128 bytes, a stream in memory",
        load: CollectLoad { size: 128, storage: StorageKind::Memory, ..ACKNOWLEDGED },
        peers: &[CollectPeer::StillingUring, CollectPeer::StillingPoll, CollectPeer::JetStream],
        targets_wanted: &[PeerTarget::CpuTimes(CollectPeer::JetStream, 0.45)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "Core NATS with one subscriber, 128 bytes",
        description: ": a rate is that of messages that the subscriber got, each checked byte by byte; latencies run until it has \
                them, and publishers go no further ahead of it than 4,096 messages each, or 4 MiB together.",
        load: CollectLoad { size: 128, ..CORE },
        peers: &DELIVERING,
        targets_wanted: &[PeerTarget::CpuTimes(CollectPeer::NatsCore, 0.26)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "Core NATS with one subscriber, 4 KB",
        load: CORE,
        peers: &DELIVERING,
        targets_wanted: &[PeerTarget::CpuTimes(CollectPeer::NatsCore, 0.68)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "A stream in memory with one subscriber, 128 bytes",
        description: ": Stilling keeps the messages in a stream in memory and delivers them; nats-server and bare only deliver \
                them.",
        load: CollectLoad { size: 128, ..IN_MEMORY },
        peers: &DELIVERING,
        targets_wanted: &[PeerTarget::CpuTimes(CollectPeer::NatsCore, 0.45)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "A stream in memory with one subscriber, 4 KB",
        load: IN_MEMORY,
        peers: &DELIVERING,
        targets_wanted: &[PeerTarget::CpuTimes(CollectPeer::NatsCore, 0.45)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "BBQ's test, confirmed, a connection per message",
        description: ": rows 0.23 to 0.33. BBQ, an older message collector whose test this is, reported 1,071 messages per second, 56 failed messages and 184 failed connections \
                on another, older machine.",
        load: CollectLoad { window: 1, per_message: true, ..ACKNOWLEDGED },
        peers: &BBQ,
        targets_wanted: &[PeerTarget::Rate(PER_MESSAGE_RATE), PeerTarget::SendMs(SEND_MS_MAX)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "BBQ's test, unconfirmed, persistent connections",
        description: ": a rate is that of messages that have arrived; rsyslog writes them as lines of a file, which is read and \
                checked afterwards.",
        load: CollectLoad { confirmed: false, ..ACKNOWLEDGED },
        peers: &UNCONFIRMED,
        targets_wanted: &[PeerTarget::Rate(200_000.0), PeerTarget::SendMs(SEND_MS_MAX)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "BBQ's test, unconfirmed, a connection per message",
        load: CollectLoad { confirmed: false, window: 1, per_message: true, ..ACKNOWLEDGED },
        peers: &UNCONFIRMED,
        targets_wanted: &[PeerTarget::Rate(PER_MESSAGE_RATE), PeerTarget::SendMs(SEND_MS_MAX)],
        ..USUAL_LOAD
    },
    Scenario {
        title: "A minute of BBQ's test, confirmed, persistent connections",
        description: ": rows 0.24 to 0.33, one round.",
        targets_wanted: &[PeerTarget::Rate(200_000.0), PeerTarget::SendMs(SEND_MS_MAX)],
        ..MINUTE_LOAD
    },
    Scenario {
        title: "A minute of BBQ's test, unconfirmed, persistent connections",
        load: CollectLoad { confirmed: false, ..ACKNOWLEDGED },
        targets_wanted: &[PeerTarget::Rate(200_000.0), PeerTarget::SendMs(SEND_MS_MAX)],
        ..MINUTE_LOAD
    },
    Scenario {
        title: "A minute of BBQ's test, confirmed, a connection per message",
        load: CollectLoad { window: 1, per_message: true, ..ACKNOWLEDGED },
        targets_wanted: &[PeerTarget::Rate(PER_MESSAGE_RATE), PeerTarget::SendMs(SEND_MS_MAX)],
        ..MINUTE_LOAD
    },
    Scenario {
        title: "A minute of BBQ's test, unconfirmed, a connection per message",
        load: CollectLoad { confirmed: false, window: 1, per_message: true, ..ACKNOWLEDGED },
        targets_wanted: &[PeerTarget::Rate(PER_MESSAGE_RATE), PeerTarget::SendMs(SEND_MS_MAX)],
        ..MINUTE_LOAD
    },
    Scenario {
        title: "Fan-in of 64 connections, 512 bytes",
        load: CollectLoad { clients: 64, size: 512, window: 16, ..ACKNOWLEDGED },
        ..USUAL_LOAD
    },
    Scenario {
        title: "One message at a time, 512 bytes",
        description: ": the wait of a client that sends a message after the \
             acknowledgement of the previous one.",
        load: CollectLoad { clients: 1, size: 512, window: 1, ..ACKNOWLEDGED },
        seconds: 2,
        ..USUAL_LOAD
    },
];
