//! Every maximum of the hub, with its unit, its default and what happens when it is reached.

/// Bytes of requests that a shard gathers before it begins the next intake. One message may make it longer.
pub const INTAKE_SIZE: usize = 256 * 1024;

/// Intakes of one shard. All with the hub: the shard's publishing connections are not read until one comes back.
pub const INTAKES: usize = 8;

/// Bytes of deliveries for one shard in one piece. One message to many subscriptions may make it longer.
pub const DELIVERIES_SIZE: usize = 256 * 1024;

/// Pieces of deliveries that may be with one shard. All there: the hub takes nothing more from anybody until one comes back.
pub const DELIVERIES: usize = 8;

/// Bytes of a batch from which on it is written although the one before is not durable yet.
pub const SEAL_SIZE: usize = 256 * 1024;

/// Answers that may wait for one batch, where each record has one, before duplicates of what is not durable wait in front of
/// the hub, with all that is behind them.
pub const PROMISES_MAX: usize = 100_000;

/// Subscriptions in all. More are refused with `-ERR 'maximum subscriptions exceeded'`.
pub const SUBSCRIPTIONS_MAX: usize = 1_000_000;

/// Subscriptions of one connection unless told otherwise. More are refused the same way, and the connection is closed.
pub const SUBSCRIPTIONS_PER_CLIENT_MAX: usize = 10_000;

/// Records behind the newest in which a stream recognises a message id unless told otherwise. Older ones are forgotten.
pub const DEDUPLICATION_WINDOW: u64 = 100_000;

/// Consumers in all. More are refused with an error object.
pub const CONSUMERS_MAX: usize = 10_000;

/// Bytes that a memory stream keeps unless told otherwise. Full: the oldest records go.
pub const MEMORY_STREAM_SIZE: u64 = 64 * 1024 * 1024;

/// Shortest time between two rounds of retention, in nanoseconds; each is for one stream. A stream is longer than it should be by
/// what comes meanwhile, and by a segment.
pub const RETAIN_EVERY_NS: u64 = 1_000_000_000;

/// How often a hub that has nothing else to do looks at records that may have become too old, in nanoseconds.
pub const AGES_EVERY_NS: u64 = 10_000_000_000;

/// Shortest time between two marker records of losses in one stream, in nanoseconds. What is lost meanwhile is in the next.
pub const MARKER_EVERY_NS: u64 = 1_000_000_000;
