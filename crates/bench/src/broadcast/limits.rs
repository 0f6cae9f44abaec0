//! Limits of the broadcast generator, with their units and the behavior when reached.

use std::time::Duration;

/// Maximum subscribing connections of one run; the descriptor limit of the process is usually lower. More: an error at
/// start.
pub const BROADCAST_SUBSCRIBERS_MAX: u32 = 65_536;

/// Maximum publishing connections of one run. More: an error at start.
pub const BROADCAST_PUBLISHERS_MAX: u16 = 64;

/// Maximum messages of a publisher that not all subscribers have received. More: an error at start.
pub const BROADCAST_WINDOW_MAX: u32 = 65_536;

/// Minimum bytes of a payload: the identification of the message. Less: an error at start.
pub const BROADCAST_SIZE_MIN: u32 = 16;

/// Maximum bytes of a payload. More: an error at start.
pub const BROADCAST_SIZE_MAX: u32 = 65_536;

/// Maximum bytes of the expected deliveries of all messages within the windows. More: an error at start.
pub const EXPECTED_SIZE_MAX: u64 = 1 << 30;

/// Maximum bidding clients of one run. More: an error at start.
pub const THRASH_CLIENTS_MAX: u32 = 16_384;

/// Maximum bytes of one read.
pub(super) const READ_SIZE: usize = 256 * 1024;

/// Maximum bytes of an item that is no delivery, such as a greeting. Longer: a protocol failure of the connection.
pub(super) const CONTROL_SIZE_MAX: usize = 64 * 1024;

/// Maximum events of one wait. Further ones come with the next.
pub(super) const EVENTS_MAX: usize = 1024;

/// Maximum time of one wait for sockets before the clock is checked.
pub(super) const POLL_SPAN: Duration = Duration::from_millis(50);

/// The same for publishers with a rate, whose messages are late by as much.
pub(super) const PACED_POLL_SPAN: Duration = Duration::from_millis(1);

/// Pause after a refused connection.
pub(super) const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Ranges of missed messages remembered per subscriber, which tell a late message from a repeated one. More: a late
/// message of a further range counts as repeated.
pub(super) const MISSED_RANGES_MAX: usize = 64;

/// Bytes of unsent bids of one client. More: the client does not read until the server does.
pub(super) const UNSENT_BIDS_SIZE_MAX: usize = 256 * 1024;

/// Pause between two steps of the disturbing subscribers.
pub(super) const DISTURBANCE_TICK: Duration = Duration::from_millis(1);

/// Connections over which disturbing subscribers join and leave. Each has one subscription at a time.
pub(super) const JOINING_CONNECTIONS: u32 = 4;

/// Connections that were opened and have not subscribed yet. More: no further one is opened.
pub(super) const RECONNECTING_MAX: usize = 1024;

/// Bytes that a trickling subscriber reads per [`TRICKLE_SPAN`].
pub(super) const TRICKLE_SIZE: usize = 1024;

/// Time between two reads of a trickling subscriber.
pub(super) const TRICKLE_SPAN: Duration = Duration::from_secs(1);

/// Maximum disturbing subscribers of one kind. More: an error at start.
pub const DISTURBING_SUBSCRIBERS_MAX: u32 = 1024;

/// Maximum joins, and maximum reconnects, per second. More: an error at start.
pub const DISTURBANCES_PER_S_MAX: u32 = 100_000;

/// Bytes that a slow subscriber reads per second while messages are published.
pub(super) const SLOW_BYTES_PER_S: usize = 256 * 1024;

/// Longest life of a flapping subscriber's connection in milliseconds.
pub(super) const FLAP_OPEN_MS_MAX: u64 = 1000;

/// Longest pause in milliseconds before a resuming subscriber connects again.
pub(super) const FLAP_PAUSE_MS_MAX: u64 = 300;

/// Maximum bytes of an incomplete item of a resuming subscriber. More: a protocol failure.
pub(super) const RESUMED_ITEM_SIZE_MAX: usize = 1024 * 1024;

/// First subscribers that do not count in the server's memory of each, because the server allocates for them what all
/// share; at most half of all.
pub(super) const MEMORY_WARM_UP_SUBSCRIBERS: u32 = 500;
