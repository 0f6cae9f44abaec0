//! Every bound of the way to a worker process and back, with its unit and what happens when it is reached.

use std::time::Duration;

/// How long a process may take to answer, unless told otherwise. Reached: 504, and the process is killed if it hangs.
/// How long it may pause within an answer. Reached: the answer breaks off.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a request's body that may use all of the memory for requests that wait. What comes behind may use half of it,
/// so that long uploads leave room for other requests.
pub const FIRST_BODY_MAX: usize = 64 * 1024;
/// Bytes of a request's body that are received before the request asks for a slot, as long as half of the memory for
/// requests that wait is free. Reached: the rest goes on piece by piece while the slot is held.
pub const BODY_HELD_MAX: usize = 8 * 1024 * 1024;
/// Bytes of an answer that are taken from the process before its client takes them, as long as half of the memory for
/// answers is free. Reached: the rest goes on piece by piece while the slot is held.
pub const ANSWER_HELD_MAX: usize = 8 * 1024 * 1024;
/// Part of the memory for requests, and of that for answers, that long bodies leave to others: one divided by this.
pub const MEMORY_RESERVE_DIVISOR: usize = 2;
/// Bytes per second, on average, that a client sends or takes while its request has a slot and the process waits for it,
/// after the grace that bodies have, unless the least rate of bodies is higher. Slower: 408, or the answer breaks off.
pub const SLOT_RATE_MIN: u64 = 32 * 1024;
/// Bytes of body in one piece of one long request or answer. Of a body that is not held as a whole, two are under way in
/// each direction: one comes in while the other goes out.
pub const PIECE_SIZE_MAX: usize = 48 * 1024;
/// Bytes of the head of a process's answer. Reached: 502.
pub const APP_HEAD_SIZE_MAX: u32 = 16 * 1024;
/// Field lines of the head of a process's answer. Reached: 502.
pub const APP_HEADERS_MAX: u16 = 100;
/// Fields that `Connection` may name in a request to a process, or in its answer, besides `close` and `keep-alive`. More:
/// the request is answered 400, the answer 502.
pub const NOMINATED_MAX: usize = 32;
/// Interim answers (1xx) of a process before its answer. Reached: 502.
pub const INTERIM_MAX: u32 = 16;
/// How long an answer of unknown length may pause before what has come of it is passed on.
pub const FLUSH_DELAY: Duration = Duration::from_millis(5);
/// How old a kept connection to a process may be when a request goes over it that must not be sent twice. Reached: a
/// new connection, lest the process closes the old one in that very moment.
pub const IDLE_REUSE_MAX: Duration = Duration::from_secs(1);
/// How long the loss of a connection waits to be explained by the death of the process, before the slot is used again.
pub const DEATH_DETECTION_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a process that lives may refuse connections. Reached: 502, and it is killed.
pub const CONNECT_REFUSED_MAX: Duration = Duration::from_secs(1);
/// How long a request that was not answered in time keeps its slot of a process that is not killed for it, unless the
/// process says or closes something before. Reached: the next request has the slot, and may wait inside the process.
pub const OVERDUE_SLOT_MAX: Duration = Duration::from_secs(60);
/// How often a client that waits for a worker or a process is looked for. If it has reset the connection, its place in the
/// queue is freed, or the process is told that the answer is not wanted.
pub const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two attempts to connect to a process that refuses.
pub const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(5);
/// Buffers for requests and answers that a shard keeps for the next ones. More are given back to the system.
pub const SPARE_BUFFERS_MAX: usize = 64;
/// Capacity in bytes up to which a buffer is kept. A larger one is given back to the system.
pub const SPARE_SIZE_MAX: usize = 16 * 1024;
/// How often the end looks whether it should hurry.
pub const SHUTDOWN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Folders of dead servers that the next one looks at, and removes, at its start. More are left to the one after it.
pub const STALE_FOLDERS_MAX: usize = 1000;
