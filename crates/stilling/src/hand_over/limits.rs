//! Every bound of a hand-over in one place, with its unit and what happens when it is reached.
//!
//! Each step waits for the other process for at most the time that its name tells. Whoever waits in vain says
//! so, and the old server goes on: until the last word has come, it has never stopped.

use std::time::Duration;

/// Bytes of the longest message. A longer one is cut by the system, which is noticed: the hand-over fails.
pub const MESSAGE_SIZE_MAX: usize = 512;

/// Bytes of the longest reason in a refusal. A longer one is cut.
pub const REASON_SIZE_MAX: usize = 400;

/// Descriptors that travel with one message; the system allows 253. More take several messages.
pub const DESCRIPTORS_PER_MESSAGE: usize = 64;

/// Listeners that one server hands over or receives. More: the hand-over is refused.
pub const LISTENERS_HANDED_MAX: usize = 4096;

/// Bytes of the control socket's path: what an address has room for, less the ending of the name under which
/// a successor waits. Longer: an error at start.
pub const PATH_SIZE_MAX: usize = 100;

/// Successors that may wait to be heard. More wait in their connect, up to `HELLO_TIMEOUT`.
pub const CONTROL_BACKLOG: i32 = 16;

/// For a successor to be let in and to say what it wants. Then it is refused.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// For the old server to hand out its listeners. Then the successor gives up.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// For the successor to accept on all of them: its memory, drivers and threads. Then it is refused.
pub const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// For the first worker process of a successor to become ready, if its own timeout (`--app-start-timeout`) is not
/// shorter; within `READY_TIMEOUT`. Then the hand-over fails.
pub const APP_READY_TIMEOUT: Duration = Duration::from_secs(50);

/// Between two looks whether a worker process has become ready.
pub const APP_READY_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// For the old server to confirm. Then the successor gives up.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// For the successor to move in at the path. Then it is refused, and the old server moves back.
pub const MOVE_TIMEOUT: Duration = Duration::from_secs(10);

/// For the addresses of an old server that has just ended to become free. Then the address is in use.
pub const ADDRESS_FREE_TIMEOUT: Duration = Duration::from_secs(3);

/// Between two looks whether an address has become free.
pub const ADDRESS_FREE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long the shards look into their listeners' queues from time to time (`ACCEPT_RECHECK_INTERVAL`) after another
/// process has had a hand in them: long enough for the system to have cleared away what is left of it.
pub const QUEUE_CHECK_SPAN: Duration = Duration::from_secs(10);

/// How long a server waits for another one that holds the path's lock. Then one that finds nobody to succeed ends; one
/// that takes its path back does so without the lock, since whoever holds it that long removes nothing.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two tries to take the lock.
pub const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Before the porter tries again to let somebody in, after the system refused that.
pub const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(100);
