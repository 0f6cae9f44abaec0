//! Limits of the message generators, with their units and the behavior when reached.

use std::time::Duration;

/// Maximum publishing connections of one run. More: an error at start.
pub const CLIENTS_MAX: u16 = 4096;

/// Maximum publishing threads of one run. More: an error at start.
pub const THREADS_MAX: u16 = 1024;

/// Maximum subscribers of one run, each with a thread. More: an error at start.
pub const SUBSCRIBERS_MAX: u16 = 64;

/// Maximum messages in flight on one connection. More: an error at start.
pub const WINDOW_MAX: u32 = 65_536;

/// Minimum bytes of a payload: the identification of the message. Less: an error at start.
pub const SIZE_MIN: u32 = 16;

/// Maximum bytes of a payload. More: an error at start.
pub const SIZE_MAX: u32 = 1024 * 1024;

/// Bytes collected for one write; the last message may exceed it.
pub(super) const WRITE_SIZE: usize = 256 * 1024;

/// Maximum bytes of one read.
pub(super) const READ_SIZE: usize = 256 * 1024;

/// Maximum messages of a client ahead of the slowest subscriber. Reached: the client waits, so that the server need
/// neither buffer without limit nor drop messages.
pub(super) const LAG_MAX: u64 = 4096;
/// Maximum bytes of payload of all clients ahead of the slowest subscriber. Reached: the clients wait.
pub(super) const LAG_SIZE_MAX: u64 = 4 * 1024 * 1024;

/// Connection attempts for one message. All fail: the message fails.
pub(super) const CONNECT_ATTEMPTS: u32 = 3;

/// Pause after a refused connection.
pub(super) const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Failed messages reported individually. More are only counted.
pub const FAILURE_RECORDS_MAX: usize = 100;

/// Maximum time of one wait for sockets before the clock is checked.
pub(super) const POLL_SPAN: Duration = Duration::from_millis(50);

/// Maximum time of a request about a stream. Longer: it counts as unanswered.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Interval of requests for the server's figures while the run waits for them.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum bytes of a server's page of figures. The rest is not read.
pub(super) const PAGE_SIZE_MAX: u64 = 4 * 1024 * 1024;

/// Maximum bytes of one answer of Redis. Longer: a protocol failure of the connection.
pub(super) const REDIS_ANSWER_SIZE_MAX: usize = 512;
