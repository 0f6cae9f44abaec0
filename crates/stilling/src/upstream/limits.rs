//! All bounds on requests to worker processes and their responses, with unit and what happens when they are reached.

use std::time::Duration;

/// Maximum number of pools of worker processes. More: rejected as invalid settings.
pub const POOLS_MAX: usize = 64;
/// Longest name of a pool in bytes. Longer: rejected as an invalid setting.
pub const POOL_NAME_SIZE_MAX: usize = 32;

/// How long a process may take to answer, by default. Reached: 504, and the process is killed if it hangs. Also the
/// maximum pause within a response. Reached: the response is cut off.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Time without requests after which a client loses its own process, by default. Reached: another client may get it.
pub const AFFINITY_IDLE: Duration = Duration::from_secs(60);
/// Longest time without requests for which a client may keep its own process. More: rejected as an invalid setting.
pub const AFFINITY_IDLE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of a request's body that may use all of the memory for requests that wait. Further bytes may use half of it,
/// so that long uploads leave room for other requests.
pub const FIRST_BODY_MAX: usize = 64 * 1024;
/// Bytes of a request's body that are received before the request gets into the queue, as long as half of the memory
/// for requests that wait is free. Reached: the rest continues piece by piece while the slot is held.
pub const BODY_HELD_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a response that are read from the process before its client takes them, as long as half of the memory for
/// responses is free. Reached: the rest continues piece by piece while the slot is held.
pub const RESPONSE_HELD_MAX: usize = 8 * 1024 * 1024;
/// Divisor of the memory for requests, and of that for responses: long bodies use at most this fraction, and the rest
/// stays free for others.
pub const MEMORY_RESERVE_DIVISOR: usize = 2;
/// Minimum average rate, in bytes per second, at which a client must send or receive while its request has a slot and
/// the process waits for the client. It applies after the grace time of bodies; a higher minimum rate of bodies takes
/// precedence. Slower: 408, or the response is cut off.
pub const SLOT_RATE_MIN: u64 = 32 * 1024;
/// Bytes of body in one piece of a long request or response. A body that is forwarded piece by piece occupies two: one
/// is received while the other is sent.
pub const PIECE_SIZE_MAX: usize = 48 * 1024;
/// Bytes of the head of a process's response. Reached: 502.
pub const APP_HEAD_SIZE_MAX: u32 = 16 * 1024;
/// Field lines of the head of a process's response. Reached: 502.
pub const APP_HEADERS_MAX: u16 = 100;
/// Fields that `Connection` may name in a request or in a process's response, besides `close` and `keep-alive`.
/// More: the request is answered 400, the response becomes 502.
pub const CONNECTION_OPTIONS_MAX: usize = 32;
/// Interim responses (1xx) of a process before its final one. Reached: 502.
pub const INTERIM_MAX: u32 = 16;
/// How long a response of unknown length may pause before its buffered part is passed on.
pub const FLUSH_DELAY: Duration = Duration::from_millis(5);
/// How long a connection to a process may be idle for a request that must not be sent twice. Reached: a new connection,
/// because the process may be closing the idle one.
pub const IDLE_REUSE_MAX: Duration = Duration::from_secs(1);
/// How long the slot of a lost connection stays unused, so that an exit of the process is detected first.
pub const EXIT_DETECTION_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a running process may refuse connections. Reached: 502, and it is killed.
pub const CONNECT_REFUSED_MAX: Duration = Duration::from_secs(1);
/// How long a request that timed out keeps its slot, if the process is not killed and neither responds nor closes the
/// connection. Reached: the next request gets the slot, and may wait inside the process.
pub const OVERDUE_SLOT_MAX: Duration = Duration::from_secs(60);
/// How often the connection of a client that waits for a worker or a process is checked. If it was reset, the request
/// leaves the queue, or the connection to the process is half-closed.
pub const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two attempts to connect to a process that refuses.
pub const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(5);
/// Spare buffers for requests and responses in a shard. More are freed.
pub const SPARE_BUFFERS_MAX: usize = 64;
/// Capacity in bytes up to which a buffer is reused. A larger one is freed.
pub const SPARE_SIZE_MAX: usize = 16 * 1024;
/// How often the shutdown of the processes checks whether to kill them at once.
pub const SHUTDOWN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Directories of dead servers that a server checks and removes when it starts. More remain until the next start.
pub const STALE_DIRECTORIES_MAX: usize = 1000;
