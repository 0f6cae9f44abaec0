//! Every bound of the way to a worker process and back, with its unit and what happens when it is reached.

use std::time::Duration;

/// How long a process may take to answer, by default. Reached: 504, and the process is killed if it hangs. Also how
/// long it may pause within a response. Reached: the response is cut off.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a request's body that may use all of the memory for requests that wait. Further bytes may use half of it,
/// so that long uploads leave room for other requests.
pub const FIRST_BODY_MAX: usize = 64 * 1024;
/// Bytes of a request's body that are received before the request gets into the queue, as long as half of the memory
/// for requests that wait is free. Reached: the rest continues piece by piece while the slot is held.
pub const BODY_HELD_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a response that are read from the process before its client takes them, as long as half of the memory for
/// responses is free. Reached: the rest continues piece by piece while the slot is held.
pub const ANSWER_HELD_MAX: usize = 8 * 1024 * 1024;
/// Divisor of the memory for requests, and of that for responses: one part of so many is reserved from long bodies
/// for others.
pub const MEMORY_RESERVE_DIVISOR: usize = 2;
/// Bytes per second, on average, that a client must send or take while its request has a slot and the process waits
/// for it, after the grace time of bodies, unless the minimum rate of bodies is higher. Slower: 408, or the response
/// is cut off.
pub const SLOT_RATE_MIN: u64 = 32 * 1024;
/// Bytes of body in one piece of a long request or response. Of a body that is not held as a whole, two are under way
/// in each direction: one is received while the other is sent.
pub const PIECE_SIZE_MAX: usize = 48 * 1024;
/// Bytes of the head of a process's response. Reached: 502.
pub const APP_HEAD_SIZE_MAX: u32 = 16 * 1024;
/// Field lines of the head of a process's response. Reached: 502.
pub const APP_HEADERS_MAX: u16 = 100;
/// Fields that `Connection` may name in a request to a process, or in its response, besides `close` and `keep-alive`.
/// More: the request is answered 400, the response becomes 502.
pub const NOMINATED_MAX: usize = 32;
/// Interim responses (1xx) of a process before its final one. Reached: 502.
pub const INTERIM_MAX: u32 = 16;
/// How long a response of unknown length may pause before its buffered part is passed on.
pub const FLUSH_DELAY: Duration = Duration::from_millis(5);
/// How old a kept connection to a process may be for a request that must not be sent twice. Reached: a new
/// connection, because the process may close the old one at that very moment.
pub const IDLE_REUSE_MAX: Duration = Duration::from_secs(1);
/// How long the slot of a lost connection stays unused, so that the death of the process can be detected first.
pub const DEATH_DETECTION_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a running process may refuse connections. Reached: 502, and it is killed.
pub const CONNECT_REFUSED_MAX: Duration = Duration::from_secs(1);
/// How long a request that timed out keeps its slot of a process that is not killed for it, unless the process sends
/// or closes something before. Reached: the next request gets the slot, and may wait inside the process.
pub const OVERDUE_SLOT_MAX: Duration = Duration::from_secs(60);
/// How often a client that waits for a worker or a process is checked. If it has reset the connection, its position
/// in the queue is freed, or the connection to the process is half-closed.
pub const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two attempts to connect to a process that refuses.
pub const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(5);
/// Buffers for requests and responses that a shard keeps for reuse. More are freed.
pub const SPARE_BUFFERS_MAX: usize = 64;
/// Capacity in bytes up to which a buffer is kept. A larger one is freed.
pub const SPARE_SIZE_MAX: usize = 16 * 1024;
/// How often the shutdown of the processes checks whether to kill them at once.
pub const SHUTDOWN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Folders of dead servers that a starting server checks and removes. More are left to the next start.
pub const STALE_FOLDERS_MAX: usize = 1000;
