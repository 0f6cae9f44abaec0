//! What is sent to whom.

use super::load::Load;
use super::peers::{Keeps, Peer};

/// One table of the section.
pub(super) struct Scenario {
    pub(super) title: &'static str,
    pub(super) words: &'static str,
    pub(super) load: Load,
    pub(super) seconds: u32,
    pub(super) peers: &'static [Peer],
    /// One round of it.
    pub(super) once: bool,
    /// What the project wants of it, beside that nothing fails. Empty: it is only told.
    pub(super) wanted: &'static [Wanted],
}

/// Something that is wanted of Stilling on each of its drivers.
pub(super) enum Wanted {
    /// At most so many times the server CPU per message that this one uses.
    CpuTimes(Peer, f64),
    /// At least so many times as many messages per second as this one takes.
    RateTimes(Peer, f64),
    /// At least so many messages per second.
    Rate(f64),
    /// At most so many milliseconds for the slowest send.
    SendMs(f64),
}

/// Four publishers that wait for acknowledgements with 256 messages in flight each.
pub(super) const ACKNOWLEDGED: Load = Load {
    clients: 4,
    size: 4096,
    window: 256,
    seconds: 4,
    confirmed: true,
    per_message: false,
    subscribers: 0,
    keeps: Keeps::Disk,
    backlog: 0,
};

/// Without a stream, read along by one subscriber.
const CORE: Load = Load { confirmed: false, subscribers: 1, keeps: Keeps::Nothing, ..ACKNOWLEDGED };

/// The same with a stream in memory, where a server has streams.
const IN_MEMORY: Load = Load { keeps: Keeps::Memory, ..CORE };

/// The title of the rate against the size.
pub(super) const CURVE: &str = "Against the size of the messages";

/// Bytes of the messages there.
pub(super) const CURVE_SIZES: [u32; 6] = [128, 512, 1024, 4096, 16_384, 65_536];

/// The title of the rate against the messages that lie in the stream already.
pub(super) const BACKLOG: &str = "Against the backlog of the stream";

/// Messages that lie in the stream there.
pub(super) const BACKLOGS: [u64; 3] = [0, 100_000, 1_000_000];

/// Row 0.5: the part of the rate of an empty stream that the longest backlog leaves.
pub(super) const BACKLOG_RATE_MIN: f64 = 0.8;

/// The load there.
pub(super) const ONTO_BACKLOG: Load = Load { size: 1024, seconds: 1, ..ACKNOWLEDGED };

/// The title of sending without waiting beside confirmed sending.
pub(super) const UNWAITED: &str = "Without waiting beside confirmed";

/// Row 0.28: milliseconds of the slowest send of a flood; BBQ reported 5.03 s, and 3.81 s in the mean.
const SEND_MS_MAX: f64 = 1000.0;

/// Row 0.24 wants ten times the 1,071 messages per second that BBQ reported; the goal for a connection per message is
/// this, whether or not the client waits for acknowledgements.
const PER_MESSAGE_RATE: f64 = 15_000.0;

const STILLING: [Peer; 2] = [Peer::StillingUring, Peer::StillingPoll];

/// Servers that deliver to a subscriber.
const DELIVERING: [Peer; 4] = [Peer::StillingUring, Peer::StillingPoll, Peer::NatsCore, Peer::Bare];

const ON_DISK: [Peer; 7] = [
    Peer::StillingUring,
    Peer::StillingPoll,
    Peer::JetStream,
    Peer::JetStreamAlways,
    Peer::RedisEverySecond,
    Peer::RedisAlways,
    Peer::Bare,
];

const BBQ: [Peer; 6] = [
    Peer::StillingUring,
    Peer::StillingPoll,
    Peer::JetStream,
    Peer::JetStreamAlways,
    Peer::RedisEverySecond,
    Peer::Bare,
];

/// Who takes messages without saying that they arrived.
const UNCONFIRMED: [Peer; 5] =
    [Peer::StillingUring, Peer::StillingPoll, Peer::JetStream, Peer::Rsyslog, Peer::Bare];

/// What most of them have.
const USUAL: Scenario = Scenario {
    title: "",
    words: "",
    load: ACKNOWLEDGED,
    seconds: 4,
    peers: &ON_DISK,
    once: false,
    wanted: &[],
};

/// A long time of Stilling alone: what is looked for is failures.
const A_MINUTE: Scenario = Scenario { seconds: 60, once: true, peers: &STILLING, ..USUAL };

pub(super) const SCENARIOS: [Scenario; 16] = [
    Scenario {
        title: "Acknowledged, 4 KB",
        wanted: &[
            Wanted::RateTimes(Peer::JetStreamAlways, 10.0),
            Wanted::RateTimes(Peer::RedisAlways, 8.0),
            Wanted::RateTimes(Peer::JetStream, 4.0),
            Wanted::CpuTimes(Peer::JetStream, 0.17),
        ],
        ..USUAL
    },
    Scenario {
        title: "Acknowledged, 128 bytes",
        load: Load { size: 128, ..ACKNOWLEDGED },
        wanted: &[Wanted::RateTimes(Peer::JetStream, 4.0), Wanted::CpuTimes(Peer::JetStream, 0.18)],
        ..USUAL
    },
    Scenario {
        title: "Acknowledged, 128 bytes, a stream in memory",
        load: Load { size: 128, keeps: Keeps::Memory, ..ACKNOWLEDGED },
        peers: &[Peer::StillingUring, Peer::StillingPoll, Peer::JetStream],
        wanted: &[Wanted::CpuTimes(Peer::JetStream, 0.45)],
        ..USUAL
    },
    Scenario {
        title: "Subjects alone with one subscriber, 128 bytes",
        words: ": a rate is that of messages that the subscriber got, each checked byte by byte; latencies run until it has \
                them, and publishers go no further ahead of it than 4,096 messages each, or 4 MiB together.",
        load: Load { size: 128, ..CORE },
        peers: &DELIVERING,
        wanted: &[Wanted::CpuTimes(Peer::NatsCore, 0.26)],
        ..USUAL
    },
    Scenario {
        title: "Subjects alone with one subscriber, 4 KB",
        load: CORE,
        peers: &DELIVERING,
        wanted: &[Wanted::CpuTimes(Peer::NatsCore, 0.68)],
        ..USUAL
    },
    Scenario {
        title: "A stream in memory with one subscriber, 128 bytes",
        words: ": Stilling keeps the messages in a stream in memory and delivers them; nats-server and bare only deliver \
                them.",
        load: Load { size: 128, ..IN_MEMORY },
        peers: &DELIVERING,
        wanted: &[Wanted::CpuTimes(Peer::NatsCore, 0.45)],
        ..USUAL
    },
    Scenario {
        title: "A stream in memory with one subscriber, 4 KB",
        load: IN_MEMORY,
        peers: &DELIVERING,
        wanted: &[Wanted::CpuTimes(Peer::NatsCore, 0.45)],
        ..USUAL
    },
    Scenario {
        title: "BBQ's test, confirmed, a connection per message",
        words: ": rows 0.23 to 0.33. BBQ reported 1,071 messages per second, 56 failed messages and 184 failed connections \
                on another, older machine.",
        load: Load { window: 1, per_message: true, ..ACKNOWLEDGED },
        peers: &BBQ,
        wanted: &[Wanted::Rate(PER_MESSAGE_RATE), Wanted::SendMs(SEND_MS_MAX)],
        ..USUAL
    },
    Scenario {
        title: "BBQ's test, without waiting, kept connections",
        words: ": a rate is that of messages that have arrived; rsyslog writes them as lines of a file, which is read and \
                checked afterwards.",
        load: Load { confirmed: false, ..ACKNOWLEDGED },
        peers: &UNCONFIRMED,
        wanted: &[Wanted::Rate(200_000.0), Wanted::SendMs(SEND_MS_MAX)],
        ..USUAL
    },
    Scenario {
        title: "BBQ's test, without waiting, a connection per message",
        load: Load { confirmed: false, window: 1, per_message: true, ..ACKNOWLEDGED },
        peers: &UNCONFIRMED,
        wanted: &[Wanted::Rate(PER_MESSAGE_RATE), Wanted::SendMs(SEND_MS_MAX)],
        ..USUAL
    },
    Scenario {
        title: "A minute of BBQ's test, confirmed, kept connections",
        words: ": rows 0.24 to 0.33, one round.",
        wanted: &[Wanted::Rate(200_000.0), Wanted::SendMs(SEND_MS_MAX)],
        ..A_MINUTE
    },
    Scenario {
        title: "A minute of BBQ's test, without waiting, kept connections",
        load: Load { confirmed: false, ..ACKNOWLEDGED },
        wanted: &[Wanted::Rate(200_000.0), Wanted::SendMs(SEND_MS_MAX)],
        ..A_MINUTE
    },
    Scenario {
        title: "A minute of BBQ's test, confirmed, a connection per message",
        load: Load { window: 1, per_message: true, ..ACKNOWLEDGED },
        wanted: &[Wanted::Rate(PER_MESSAGE_RATE), Wanted::SendMs(SEND_MS_MAX)],
        ..A_MINUTE
    },
    Scenario {
        title: "A minute of BBQ's test, without waiting, a connection per message",
        load: Load { confirmed: false, window: 1, per_message: true, ..ACKNOWLEDGED },
        wanted: &[Wanted::Rate(PER_MESSAGE_RATE), Wanted::SendMs(SEND_MS_MAX)],
        ..A_MINUTE
    },
    Scenario {
        title: "Fan-in of 64 connections, 512 bytes",
        load: Load { clients: 64, size: 512, window: 16, ..ACKNOWLEDGED },
        ..USUAL
    },
    Scenario {
        title: "One message at a time, 512 bytes",
        words: ": what a client waits that sends, waits and sends again.",
        load: Load { clients: 1, size: 512, window: 1, ..ACKNOWLEDGED },
        seconds: 2,
        ..USUAL
    },
];
