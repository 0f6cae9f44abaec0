//! Limits of the client, each with unit, default and effect when reached.

use std::time::{Duration, Instant};

/// Default number of messages sent and not yet answered. Reached: further messages wait in the spool.
pub const UNACKNOWLEDGED_DEFAULT: usize = 256;

/// Largest configurable number of unanswered messages; larger values are cut to this.
pub const UNACKNOWLEDGED_MAX: usize = 65_536;

/// Parked messages: no stream stores their subject, or their stream cannot store. More: further ones keep their slots
/// among the unanswered messages; when such messages occupy all slots, all other messages wait in the spool.
pub const PARKED_MAX: usize = 1024;

/// Part of the spool size, as a divisor, that parked messages may cost. More: as for [`PARKED_MAX`]; a single message
/// may always be parked. A spool on disk frees its space in order, so a parked message keeps the space of the messages
/// that pass it: the same bound applies to their bytes, and the disk may hold that much more than the spool size. More:
/// the parked message is dropped and reported; until then new messages wait.
pub const PARKED_SPOOL_DIVISOR: u64 = 4;

/// Messages that may pass a parked message in a spool on disk, unless the bound on bytes is reached first. After a
/// crash as many may be sent again. More: the parked message is dropped and reported.
pub const PARKED_PASSED_MAX: u64 = 65_536;

/// Default size of the spool in bytes. Full: `OverflowPolicy` applies.
pub const SPOOL_SIZE_DEFAULT: u64 = 64 * 1024 * 1024;

/// Bytes that a message in memory costs in addition to its subject, headers and payload.
pub const MESSAGE_OVERHEAD: u64 = 128;

/// Longest message in bytes in a spool on disk, with subject and headers. Longer: it is dropped and reported. One batch
/// of this size is kept in memory.
pub const SPOOLED_MESSAGE_SIZE_MAX: usize = 2 * 1024 * 1024;

/// Bytes of a spool on disk that are cached in memory. More: they are read from disk when they are due.
pub const SPOOL_CACHE_SIZE: u64 = 4 * 1024 * 1024;

/// Smallest and largest segment of a spool on disk in bytes; between them a segment is an eighth of the spool size. The
/// disk may hold two segments more than the spool size, plus what [`PARKED_SPOOL_DIVISOR`] allows.
pub const SPOOL_SEGMENT_SIZES: (u64, u64) = (1024 * 1024, 64 * 1024 * 1024);

/// Completed messages after which a spool on disk writes a checkpoint. As many may be sent again after a crash; the
/// server recognises them as duplicates.
pub const CHECKPOINT_INTERVAL: u64 = 1024;

/// Delay after the last completed message until a spool on disk writes a checkpoint.
pub const CHECKPOINT_DELAY: Duration = Duration::from_millis(100);

/// Bytes of output that the socket has not accepted yet. More: further messages wait in the spool.
pub const OUTPUT_SIZE: usize = 256 * 1024;

/// Longest answer to a publisher in bytes, headers included. Longer: the connection is closed.
pub const ANSWER_SIZE_MAX: u32 = 64 * 1024;

/// Bytes per read from a socket.
pub const READ_SIZE: usize = 64 * 1024;

/// Reads from a publisher's socket per turn.
pub const READS_PER_TURN: usize = 16;

/// Reads from a subscriber's or requester's socket after the caller's deadline, for data that arrived before it.
/// Reached: the call returns nothing, and the next call continues there.
pub const READS_AFTER_DEADLINE_MAX: usize = 16;

/// One-way messages written between two PINGs that confirm what the server has read.
pub const ONE_WAY_BATCH: u64 = 64;

/// Failures kept until they are fetched. More: the oldest one is discarded and counted.
pub const FAILURES_MAX: usize = 1024;

/// Servers of a publisher or subscriber. More are refused.
pub const SERVERS_MAX: usize = 64;

/// Longest `Retry-After` hint that is obeyed; a longer one is cut to this.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Bytes of a server's text quoted in an error; the rest is left out.
pub const QUOTED_TEXT_SIZE_MAX: usize = 256;

/// Heartbeat interval of a stream follower. Without one for [`HEARTBEATS_MISSED_MAX`] intervals, the follower requests
/// a new consumer from its current position.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// Heartbeat intervals without a heartbeat after which a follower requests a new consumer.
pub const HEARTBEATS_MISSED_MAX: u32 = 3;

/// Time for which a server keeps the consumer of a follower that has disconnected.
pub const INACTIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time span; a longer one, such as [`Duration::MAX`], is cut to this.
pub const SPAN_MAX: Duration = Duration::from_secs(365 * 86_400);

pub(crate) fn deadline(now: Instant, span: Duration) -> Instant {
    now + span.min(SPAN_MAX)
}
