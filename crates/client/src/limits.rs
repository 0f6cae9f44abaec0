//! Every bound of the client, with its unit, its default and what happens when it is reached.

use std::time::{Duration, Instant};

/// Messages that may be with the server without its answer, unless told otherwise. Reached: the next ones wait in the spool.
pub const UNACKNOWLEDGED_DEFAULT: usize = 256;

/// Most messages without an answer that can be asked for; more is cut to this.
pub const UNACKNOWLEDGED_MAX: usize = 65_536;

/// Messages that wait aside because there is no stream for them or theirs stores nothing. More: the next ones keep their places
/// among those without an answer, and when they fill them, all others wait in the spool.
pub const REJECTED_MAX: usize = 1024;

/// The part of the spool's bytes that those messages may count: one in so many. More: as above; one alone may always wait. In a
/// spool on disk, where the oldest message keeps the room of all behind it, as much may pass one of them: so much more may lie
/// there than the spool holds. More: that one is dropped, and told; what comes waits until it is done with.
pub const REJECTED_SPOOL_DIVISOR: u64 = 4;

/// Messages that may pass one of those in a spool on disk, if they do not count too much before: as many may be sent once more
/// after a crash. More: it is dropped, and told.
pub const REJECTED_PASSED_MAX: u64 = 65_536;

/// Bytes that the spool holds unless told otherwise. Full: what `OverflowPolicy` says.
pub const SPOOL_SIZE_DEFAULT: u64 = 64 * 1024 * 1024;

/// Bytes that a message counts in a spool in memory beside its subject, headers and payload.
pub const MESSAGE_OVERHEAD: u64 = 128;

/// Longest message in bytes that a spool on disk takes, with subject and headers. Longer: it is dropped and told. One batch of
/// this size is kept in memory.
pub const SPOOLED_MESSAGE_SIZE_MAX: usize = 2 * 1024 * 1024;

/// Bytes of a spool on disk that are also in memory, so that they need not be read again. More are read when their turn comes.
pub const SPOOL_CACHE_SIZE: u64 = 4 * 1024 * 1024;

/// Smallest and largest segment of a spool on disk in bytes; an eighth of the spool's size between them. On disk there may be
/// two segments more than the spool holds, and what [`REJECTED_SPOOL_DIVISOR`] says.
pub const SPOOL_SEGMENT_SIZES: (u64, u64) = (1024 * 1024, 64 * 1024 * 1024);

/// Messages that may be done with before a spool on disk notes it. As many may be sent once more after a crash; the server
/// recognises them.
pub const CHECKPOINT_INTERVAL: u64 = 1024;

/// After so long without another message done with, a spool on disk notes where it is.
pub const CHECKPOINT_DELAY: Duration = Duration::from_millis(100);

/// Bytes of output that are made ready before the socket has taken the ones before; more messages wait in the spool.
pub const OUTPUT_SIZE: usize = 256 * 1024;

/// Bytes of an answer to a publisher, headers included. A longer one: the connection is given up.
pub const ANSWER_SIZE_MAX: u32 = 64 * 1024;

/// Bytes that are read from a socket at once.
pub const READ_SIZE: usize = 64 * 1024;

/// Reads from a publisher's socket before it looks at its messages again.
pub const READS_PER_TURN: usize = 16;

/// Reads from a subscriber's or requester's socket after its caller's time is over, for what had come before. More that is not
/// for the caller: it is told that nothing has come, and the next look goes on there.
pub const READS_AFTER_DEADLINE_MAX: usize = 16;

/// One-way messages that are written before the server is asked whether it has come so far.
pub const ONE_WAY_BATCH: u64 = 64;

/// Failures that are kept until somebody asks for them. More: the oldest one goes and is counted.
pub const FAILURES_MAX: usize = 1024;

/// Servers that a publisher or subscriber may be given. More are refused.
pub const SERVERS_MAX: usize = 64;

/// Longest hint of a server to come back later that is obeyed; a longer one counts as this.
pub const HINT_MAX: Duration = Duration::from_secs(300);

/// Longest evidence in bytes that is quoted from a server; the rest is left out.
pub const QUOTED_TEXT_SIZE_MAX: usize = 256;

/// A follower's interval of heartbeats. Without one for [`HEARTBEATS_MISSED_MAX`] of them, it asks anew from where it is.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// Heartbeats that a follower lets go by.
pub const HEARTBEATS_MISSED_MAX: u32 = 3;

/// How long a server keeps a follower's place after the follower has gone.
pub const INACTIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest span that is waited for; a longer one, such as [`Duration::MAX`], counts as this.
pub const SPAN_MAX: Duration = Duration::from_secs(365 * 86_400);

/// The end of a span that begins now, cut to [`SPAN_MAX`].
pub(crate) fn deadline(now: Instant, span: Duration) -> Instant {
    now + span.min(SPAN_MAX)
}
