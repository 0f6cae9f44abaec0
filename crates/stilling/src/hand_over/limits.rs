//! Bounds of a hand-over, with unit and behaviour at the bound.
//!
//! Each step waits for the other process for a bounded time. After a timeout the waiting side reports it and the
//! predecessor goes on: it has stopped nothing before it receives `taken`.

use std::time::Duration;

/// Bytes of the longest message. The system truncates a longer one, which is detected: the hand-over fails.
pub const MESSAGE_SIZE_MAX: usize = 512;

/// Bytes of the longest reason in a refusal. A longer one is truncated.
pub const REASON_SIZE_MAX: usize = 400;

/// Descriptors per message; the system allows 253. More take several messages.
pub const DESCRIPTORS_PER_MESSAGE: usize = 64;

/// Listeners that one server hands over or receives. More: the hand-over is refused.
pub const LISTENERS_HANDED_OVER_MAX: usize = 4096;

/// Bytes of the control socket's path: the room in a socket address, less the suffix of a pending successor. Longer:
/// an error at start.
pub const PATH_SIZE_MAX: usize = 100;

/// Backlog of the control socket. Further successors wait in their connect, up to `HELLO_TIMEOUT`.
pub const CONTROL_BACKLOG: i32 = 16;

/// Maximum time for a successor to be accepted and to send its request. Then it is refused.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the predecessor to send its listeners. Then the successor gives up.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the successor to accept on all listeners, including its memory, drivers and threads. Then it is
/// refused.
pub const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time for the first worker process of a successor to become ready, if `--app-start-timeout` is not shorter;
/// within `READY_TIMEOUT`. Then the hand-over fails.
pub const APP_READY_TIMEOUT: Duration = Duration::from_secs(50);

/// Interval of checks for a ready worker process.
pub const APP_READY_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum time for the predecessor to confirm. Then the successor gives up.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the successor to take the path. Then it is refused, and the predecessor takes the path back.
pub const TAKE_PATH_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the addresses of a predecessor that has just ended to become free. Then the address is in use.
pub const ADDRESS_FREE_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval of checks for a free address.
pub const ADDRESS_FREE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Span in which the shards check their listeners' queues from time to time (`ACCEPT_RECHECK_INTERVAL`) after another
/// process has used the listeners: long enough for the system to clean up after that process.
pub const QUEUE_CHECK_SPAN: Duration = Duration::from_secs(10);

/// Maximum wait for the path's lock. Then a server without a predecessor ends; a server that takes its path back does
/// so without the lock, because a process holds it only briefly to remove files.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Delay between two tries to take the lock.
pub const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Pause of the hand-over thread after the system refused to accept a successor.
pub const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(100);
