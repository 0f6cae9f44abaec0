//! Every bound of the generators of messages in one place, with its unit and what happens when it is reached.

use std::time::Duration;

/// Most publishing connections of one run. More: an error at start.
pub const CLIENTS_MAX: u16 = 4096;

/// Most publishing threads of one run. More: an error at start.
pub const THREADS_MAX: u16 = 1024;

/// Most subscribers of one run, each with a thread. More: an error at start.
pub const SUBSCRIBERS_MAX: u16 = 64;

/// Most messages in flight on one connection. More: an error at start.
pub const WINDOW_MAX: u32 = 65_536;

/// Bytes of the shortest payload: what tells one message from another. Less: an error at start.
pub const SIZE_MIN: u32 = 16;

/// Bytes of the longest payload. More: an error at start.
pub const SIZE_MAX: u32 = 1024 * 1024;

/// Bytes that are gathered for one write, but for the last message, which may go beyond.
pub(super) const WRITE_SIZE: usize = 256 * 1024;

/// Bytes that one read may bring.
pub(super) const READ_SIZE: usize = 256 * 1024;

/// How many messages a client may be ahead of the slowest subscriber. Reached: it waits, so that no server has to choose
/// between memory and loss.
pub(super) const LAG_MAX: u64 = 4096;
/// The same in bytes of payload, of all clients together.
pub(super) const LAG_SIZE_MAX: u64 = 4 * 1024 * 1024;

/// How often a connection is tried for one message before that message has failed.
pub(super) const CONNECT_ATTEMPTS: u32 = 3;

/// How long a client rests after a connection was refused.
pub(super) const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Failed messages that are told one by one. More are only counted.
pub const FAILURE_RECORDS_MAX: usize = 100;

/// How long one wait for sockets lasts before the clock is looked at.
pub(super) const POLL_SPAN: Duration = Duration::from_millis(50);

/// How long a question about a stream may take. Longer: it counts as not answered.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// How often the server's figures are asked for when they are waited for.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of a server's page of figures. More are not read.
pub(super) const PAGE_SIZE_MAX: u64 = 4 * 1024 * 1024;

/// Bytes of one answer of Redis that is understood. Longer: the connection is at fault.
pub(super) const REDIS_ANSWER_SIZE_MAX: usize = 512;
