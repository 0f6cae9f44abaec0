//! The bounds of the engine, each with its unit and the effect of reaching it.

use std::time::Duration;

/// Receive buffers per shard. All lent: receives wait (counted as starved) until one is released.
pub const RECEIVE_BUFFERS: u16 = 512;

/// Receive buffers that a ring begins with. The kernel uses all in turn, so each becomes resident. All lent: their number
/// doubles, up to [`RECEIVE_BUFFERS`].
pub const RECEIVE_BUFFERS_INITIAL: u16 = 64;

/// Bytes per receive buffer. Full: a long read follows.
pub const RECEIVE_BUFFER_SIZE: usize = 4096;

/// Bytes that a session is shown after a long read, stored ones included. Further input waits for the next receive. The
/// unconsumed rest must fit into a stash of input.
pub const LONG_READ_SIZE: usize = 64 * 1024;

/// Bytes per shared block, the target of long reads. Without room for a long read: the next block is used. Longer byte
/// strings are not copied into blocks.
pub const BLOCK_SIZE: usize = 256 * 1024;

/// Shared blocks per shard: 32 MiB, allocated on demand. All referenced: until one is free, reads use receive buffers
/// only, and payloads are copied.
pub const BLOCKS_MAX: usize = 128;

/// Unused shared blocks per shard kept for the next burst. More are released, one per [`BLOCK_TRIM_INTERVAL`].
pub const SPARE_BLOCKS_MAX: usize = 8;

/// Interval between releases of superfluous shared blocks.
pub const BLOCK_TRIM_INTERVAL: Duration = Duration::from_millis(50);

/// Shared blocks checked for references when a free one is needed. All referenced: one is allocated; the next check
/// starts after these.
pub const BLOCKS_CHECKED_MAX: usize = 8;

/// Longest datagram received whole, in bytes; the rest of the buffer holds its addresses. Longer: truncated and marked.
pub const DATAGRAM_SIZE_MAX: usize = RECEIVE_BUFFER_SIZE - 216;

/// Submission queue entries per ring. Full: the driver submits and continues.
pub const SUBMISSION_QUEUE_SIZE: u32 = 1024;

/// Completion queue entries per ring: more than twice the buffers and sends of one turn. Full: the kernel keeps the
/// rest, and the driver drains until it has all (counted).
pub const COMPLETION_QUEUE_SIZE: u32 = 8192;

/// Slots of a ring's own descriptor table: the kernel's maximum. The limit of open files also bounds each table. Full:
/// accepting pauses as when descriptors run out.
pub const DIRECT_DESCRIPTORS_MAX: u32 = 1 << 20;

/// Datagrams received from one socket in one turn. More stay in the socket's own queue.
pub const DATAGRAMS_PER_TURN: usize = 64;

/// Bytes of received datagrams per shard that wait for a service which paces them. Full: one is dropped and counted, by
/// the [`DatagramDropPolicy`](crate::DatagramDropPolicy).
pub const DATAGRAM_RING_SIZE: usize = 1024 * 1024;

/// The same as a number of datagrams.
pub const DATAGRAM_RING_ENTRIES: usize = 4096;

/// Default of [`ShardConfig::datagrams_served_per_turn`](crate::ShardConfig::datagrams_served_per_turn): datagrams of
/// paced sockets passed to the service in one turn. More wait in the ring.
pub const DATAGRAMS_SERVED_PER_TURN: usize = 64;

/// Datagrams of paced sockets in one turn that suggest that more are in the sockets: the shard drains them before it
/// serves any.
pub const DRAIN_BATCH_MIN: usize = 16;

/// Turns in succession that only drain paced sockets. Reached: the service gets datagrams although more may be in a
/// socket.
pub const DRAIN_TURNS_MAX: u32 = 32;

/// Connections accepted from one listener in one turn of the `poll` driver. More stay in the backlog.
pub const ACCEPTS_PER_TURN: usize = 128;

/// Initial capacity of the lists of one turn, in entries. Exceeded: the list grows and keeps its capacity.
pub const TURN_LIST_CAPACITY: usize = 4096;

/// Listeners and datagram sockets per shard; each costs some 50 bytes of tables, also if it is not used. More: an error.
pub const LISTENERS_MAX: u32 = 1024;

/// Bytes that one turn may send, from the shard's arena and from shared blocks. Full: the shard sends before it
/// continues.
pub const ARENA_SIZE: usize = 512 * 1024;

/// Unsent bytes of one connection, of this turn and of earlier ones. Full: `send` fails, and the session yields until
/// they are sent.
pub const SEND_MAX: usize = 64 * 1024;

/// Shortest shared range that is sent in place, in bytes. Copying a shorter one costs less.
pub const SHARED_MIN: usize = 1024;

/// Pieces of one send: private bytes and shared ranges, alternating. (The system accepts 1024 per call.) Full: further
/// shared ranges of the turn are copied.
pub const PIECES_MAX: usize = 512;

/// Sends of several pieces that a ring submits at once. Full: the driver submits and continues.
pub const GATHERED_SENDS_MAX: usize = 256;

/// Pieces of all sends that a ring submits at once. Full: the driver submits and continues.
pub const GATHERED_PIECES_MAX: usize = 4 * PIECES_MAX;

/// Minimum rate at which a peer must receive blocked output, in bytes per second. The write timeout starts when output
/// is first blocked; each received byte extends it by 1/1024 s, up to the whole timeout from then. Slower: closed with
/// `WriteTimeout`.
pub const WRITE_RATE_MIN: u64 = 1024;

/// Connections compared to select the slow consumer to disconnect: those with a block of the largest size, oldest block
/// first. A connection that is not compared holds at most four times as much as the disconnected one.
pub const LARGEST_OUTPUTS_COMPARED: usize = 16;

/// Longest rest of a partly sent message that is still sent to a slow consumer, in bytes, so that a last message can
/// follow it. Longer: the connection is closed without a last message.
pub const PARTIAL_MESSAGE_REST_MAX: usize = 1024 * 1024;

/// Bytes per offer of a session. More are offered later.
pub const OFFER_MAX: usize = u16::MAX as usize;

/// Interval of the rechecks of a listener after a hand-over: the longest time that a connection waits if its wake-up
/// went to a process that has exited.
pub const ACCEPT_RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Accepted connections that wait for a slot, per listener of the shard: two backlogs, one from before the pause and
/// one that arrives until it takes effect. Full: closed at once (counted as refused).
pub const WAITING_ACCEPTS_MAX: usize = 8192;

/// Bytes that a lingering connection may discard. Exceeded: closed at once.
pub const LINGER_BYTES_MAX: u32 = 256 * 1024;

/// Interval of the samples of all watched listeners: `/proc/net/netstat` and the accept queues.
pub const LISTEN_SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Samples in which a SYN flood must show.
pub const FLOOD_WINDOW_SAMPLES: usize = 12;

/// Time in which a client returns its SYN cookie: the longest round trip of a client that counts as real. Longer: the
/// cookie counts as unanswered.
pub const SYN_COOKIE_RETURN_TIME: Duration = Duration::from_millis(750);

/// Unanswered SYN cookies in the window that are a SYN flood. The system sends cookies only while the queue of half-open
/// connections is full.
pub const FLOOD_COOKIES_MIN: u64 = 64;

/// Dropped connection requests per sample that are a SYN flood if SYN cookies are off.
pub const FLOOD_DROPS_MIN: u64 = 16;

/// Samples in succession with so many drops. A client repeats a dropped request only after a second.
pub const FLOOD_WITHOUT_COOKIES_SAMPLES: usize = 6;

/// Time without signs of a SYN flood after which it has ended. Doubles with each flood that begins soon after another, up
/// to [`FLOOD_QUIET_MAX`].
pub const FLOOD_QUIET_MIN: Duration = Duration::from_secs(5);

/// Longest time without signs after which a SYN flood has ended. A flood that begins later than this after another is
/// a new one.
pub const FLOOD_QUIET_MAX: Duration = Duration::from_secs(60);

/// Time for which a raised backlog is kept after the last sign that it is needed.
pub const BACKLOG_LOWER_AFTER: Duration = Duration::from_secs(5);
