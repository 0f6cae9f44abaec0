//! Every bound of the engine in one place, with its unit and what happens when it is reached.

use std::time::Duration;

/// Receive buffers per shard. All lent out: receives wait (counted as starved) until one returns.
pub const RECEIVE_BUFFERS: u16 = 512;

/// Bytes per receive buffer. Full: a long read follows it.
pub const RECEIVE_BUFFER_SIZE: usize = 4096;

/// Bytes that a long read shows at once, with what was held before. More waits for the next receive. What is left of it
/// has to fit into a stash of input.
pub const LONG_READ_SIZE: usize = 64 * 1024;

/// Bytes per shared block, which long reads receive into. With less than a long read left the next block is filled; longer bytes
/// are not copied into blocks.
pub const BLOCK_SIZE: usize = 256 * 1024;

/// Shared blocks per shard: 32 MiB, allocated as they are needed. References to all exist: no long reads, only receive buffers,
/// and payloads are copied, until one is free.
pub const BLOCKS_MAX: usize = 128;

/// Shared blocks per shard that are kept for the next burst, beside the one that is being filled. More are released, one per
/// interval, when nothing refers to them.
pub const SPARE_BLOCKS_MAX: usize = 8;

/// Time between two releases of superfluous shared blocks.
pub const BLOCK_TRIM_INTERVAL: Duration = Duration::from_millis(50);

/// Shared blocks that are checked for references when a free one is needed. None of them is free: another one is allocated, and
/// the check goes on with others the next time.
pub const BLOCKS_CHECKED_MAX: usize = 8;

/// Bytes of the longest datagram that is received whole; the rest of the buffer holds its addresses.
/// A longer one is cut and marked.
pub const DATAGRAM_SIZE_MAX: usize = RECEIVE_BUFFER_SIZE - 216;

/// Submission queue entries per ring. Full: the driver submits and goes on.
pub const SUBMISSION_QUEUE_SIZE: u32 = 1024;

/// Completion queue entries per ring: more than twice what can be in flight for buffers and sends
/// of one turn. Full: the kernel keeps the rest and the driver drains until it has all (counted).
pub const COMPLETION_QUEUE_SIZE: u32 = 8192;

/// Slots of a ring's own descriptor table, at most: what the kernel allows. The system's limit of open files
/// bounds each table as well. Full: accepting pauses as when descriptors run out.
pub const DIRECT_DESCRIPTORS_MAX: u32 = 1 << 20;

/// Datagrams taken from one socket in one turn. More stay in the socket's own queue.
pub const DATAGRAMS_PER_TURN: usize = 64;

/// Connections one listener gives in one turn of the `poll` driver. More stay in the backlog.
pub const ACCEPTS_PER_TURN: usize = 128;

/// Entries for which the lists that live for one turn have room from the start. A turn with more makes
/// its list longer, once.
pub const TURN_LIST_CAPACITY: usize = 4096;

/// Listeners per shard: enough for a server of one shard to take over from one of sixty. More: an error at
/// start.
pub const LISTENERS_MAX: u32 = 64;

/// Bytes that one turn may send, from the shard's arena and from shared blocks. Full: the shard sends before it goes on.
pub const ARENA_SIZE: usize = 512 * 1024;

/// Bytes of one connection that may be unsent: held up, or said in this turn. Full: `send` refuses, the
/// session yields until they have gone.
pub const SEND_MAX: usize = 64 * 1024;

/// Bytes of a shared range from which on it is sent from where it lies. A shorter one is copied behind the private bytes
/// before it, which costs less.
pub const SHARED_MIN: usize = 1024;

/// Pieces of one send: private bytes and shared ranges in turn. (The system takes 1024 with one call.) Full: further shared
/// ranges of the turn are copied.
pub const PIECES_MAX: usize = 512;

/// Sends of several pieces that a ring submits at once. Full: the driver submits and goes on.
pub const GATHERED_SENDS_MAX: usize = 256;

/// Pieces of all sends that a ring submits at once. Full: the driver submits and goes on.
pub const GATHERED_PIECES_MAX: usize = 4 * PIECES_MAX;

/// Bytes per second that a peer has to take of held-up output, beside the write timeout, which starts when the output is first
/// held up: each byte taken extends the time that is left by as much as this rate gives for it, up to the write timeout. Slower:
/// closed with `WriteTimeout`.
pub const WRITE_RATE_MIN: u64 = 1024;

/// Connections compared when the one that holds most is to be disconnected: those of the largest block size, the longest-held
/// first. One that is not compared holds at most four times as much as the one that is disconnected.
pub const LARGEST_OUTPUTS_COMPARED: usize = 16;

/// Bytes of a message that the system has taken in part, which still go to a slow consumer, so that the last message can follow.
/// More: the connection is closed without it.
pub const LAST_MESSAGE_REST_MAX: usize = 1024 * 1024;

/// Bytes that a session may offer at once, to be told how many were taken. The others are offered later.
pub const OFFER_MAX: usize = u16::MAX as usize;

/// How often a shard that is told to accept anew does so. A connection whose wake-up went to somebody who is gone
/// waits that long at most.
pub const ACCEPT_RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Connections accepted but waiting for a slot, for each listener of the shard: what its backlog gives before a pause takes
/// effect, and as much that comes meanwhile. Full: closed at once (counted as refused).
pub const WAITING_ACCEPTS_MAX: usize = 8192;

/// Bytes that a closing connection may still receive and discard. Reached: closed at once.
pub const LINGER_BYTES_MAX: u32 = 256 * 1024;
