//! The bounds of the engine, each with its unit and the effect of reaching it.

use std::time::Duration;

/// Receive buffers per shard. All lent out: receives wait (counted as starved) until one returns.
pub const RECEIVE_BUFFERS: u16 = 512;

/// Bytes per receive buffer. Full: a long read follows it.
pub const RECEIVE_BUFFER_SIZE: usize = 4096;

/// Bytes that a long read shows at once, including those held before. Longer input waits for the next receive. The
/// unconsumed rest must fit into a stash of input.
pub const LONG_READ_SIZE: usize = 64 * 1024;

/// Bytes per shared block, which long reads receive into. With less than a long read spare, the next block is filled;
/// longer byte strings are not copied into blocks.
pub const BLOCK_SIZE: usize = 256 * 1024;

/// Shared blocks per shard: 32 MiB, allocated on demand. All referenced: no long reads, only receive buffers, and
/// payloads are copied, until one is free.
pub const BLOCKS_MAX: usize = 128;

/// Shared blocks per shard kept for the next burst, beside the one being filled. More are released, one per interval,
/// when nothing refers to them.
pub const SPARE_BLOCKS_MAX: usize = 8;

/// Time between two releases of superfluous shared blocks.
pub const BLOCK_TRIM_INTERVAL: Duration = Duration::from_millis(50);

/// Shared blocks checked for references when a free one is needed. None of them free: another one is allocated, and the
/// next check continues with others.
pub const BLOCKS_CHECKED_MAX: usize = 8;

/// Bytes of the longest datagram that is received whole; the rest of the buffer holds its addresses. A longer one is
/// truncated and marked.
pub const DATAGRAM_SIZE_MAX: usize = RECEIVE_BUFFER_SIZE - 216;

/// Submission queue entries per ring. Full: the driver submits and continues.
pub const SUBMISSION_QUEUE_SIZE: u32 = 1024;

/// Completion queue entries per ring: more than twice what can be in flight for buffers and sends of one turn. Full:
/// the kernel keeps the rest and the driver drains until it has all (counted).
pub const COMPLETION_QUEUE_SIZE: u32 = 8192;

/// Slots of a ring's own descriptor table: the kernel's maximum. The system's limit of open files bounds each table as
/// well. Full: accepting pauses as when descriptors run out.
pub const DIRECT_DESCRIPTORS_MAX: u32 = 1 << 20;

/// Datagrams received from one socket in one turn. More stay in the socket's own queue.
pub const DATAGRAMS_PER_TURN: usize = 64;

/// Connections accepted from one listener in one turn of the `poll` driver. More stay in the backlog.
pub const ACCEPTS_PER_TURN: usize = 128;

/// Initial capacity of the lists that live for one turn, in entries. A turn with more grows its list once.
pub const TURN_LIST_CAPACITY: usize = 4096;

/// Listeners per shard: enough for a server of one shard to take over from a server of sixty. More: an error at start.
pub const LISTENERS_MAX: u32 = 64;

/// Bytes that one turn may send, from the shard's arena and from shared blocks. Full: the shard sends before it
/// continues.
pub const ARENA_SIZE: usize = 512 * 1024;

/// Bytes of one connection that may be unsent: held up, or sent in this turn. Full: `send` fails, and the session
/// yields until they are sent.
pub const SEND_MAX: usize = 64 * 1024;

/// Bytes of a shared range from which on it is sent in place. A shorter one is copied behind the private bytes before
/// it, which costs less.
pub const SHARED_MIN: usize = 1024;

/// Pieces of one send: private bytes and shared ranges in turn. (The system accepts 1024 per call.) Full: further
/// shared ranges of the turn are copied.
pub const PIECES_MAX: usize = 512;

/// Sends of several pieces that a ring submits at once. Full: the driver submits and continues.
pub const GATHERED_SENDS_MAX: usize = 256;

/// Pieces of all sends that a ring submits at once. Full: the driver submits and continues.
pub const GATHERED_PIECES_MAX: usize = 4 * PIECES_MAX;

/// Bytes per second of held-up output that a peer must receive, beside the write timeout, which starts when the output
/// is first held up: each byte received extends the remaining time by as much as this rate gives for it, up to the
/// write timeout. Slower: closed with `WriteTimeout`.
pub const WRITE_RATE_MIN: u64 = 1024;

/// Connections compared to find the one with the most output, which is disconnected: those of the largest block size,
/// the longest-held first. A connection that is not compared holds at most four times as much as the disconnected one.
pub const LARGEST_OUTPUTS_COMPARED: usize = 16;

/// Remaining bytes of a partly sent message that still go to a slow consumer, so that a last message can follow. More:
/// the connection is closed without it.
pub const LAST_MESSAGE_REST_MAX: usize = 1024 * 1024;

/// Bytes that a session may offer at once, and learn how many were sent. More are offered later.
pub const OFFER_MAX: usize = u16::MAX as usize;

/// Time between two rechecks of a listener by a shard that accepts anew. If its wake-up went to a process that has
/// exited, a connection waits that long at most.
pub const ACCEPT_RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Connections accepted but waiting for a slot, per listener of the shard: what its backlog gives before a pause takes
/// effect, and as much that arrives meanwhile. Full: closed at once (counted as refused).
pub const WAITING_ACCEPTS_MAX: usize = 8192;

/// Bytes that a closing connection may still receive and discard. Reached: closed at once.
pub const LINGER_BYTES_MAX: u32 = 256 * 1024;
