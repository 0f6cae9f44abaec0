//! Bounds of the packet log, with unit and behaviour at the bound.

use std::time::Duration;

/// Bytes of a buffer between a shard and the thread of the packet log. Full: it is passed on, and another one begins.
pub(crate) const BUFFER_SIZE: usize = 64 * 1024;

/// Buffers per shard. All are full or being written: datagrams are dropped from the log, and counted.
pub(crate) const BUFFERS_PER_SHARD: usize = 32;

/// Buffers of a shard that wait for the thread before they are full. More: the next one is filled first.
pub(crate) const UNFILLED_BUFFERS_MAX: u64 = 4;

/// Interval of attempts to pass on a buffer that is not full.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// Pause after an error until a new file is tried. Datagrams of this time are dropped from the log, and counted.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum wait for the last datagrams at the end of the server.
pub(crate) const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);
