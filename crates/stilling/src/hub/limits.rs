//! Every maximum of what the doors of the hub have in common, with its unit and what happens when it is reached.

use std::time::Duration;

/// How long a publishing connection has to be silent, when the server drains, before it is taken to have said everything that
/// it had sent. The server ends no sooner.
pub(crate) const DRAIN_QUIET: Duration = Duration::from_millis(250);

/// How long one that is not silent is read on. Then it is told the end (NATS) and read as long again, until it has seen that;
/// what a syslog connection sends afterwards is lost. Time in which there is no room for what it says does not end it; that of
/// `--drain-timeout` does.
pub(crate) const DRAIN_READ_MAX: Duration = Duration::from_secs(2);

/// How long requests that need the hub wait for it in a server that has taken over from another one. Then the hub begins
/// without the streams on disk, and what is for those is refused with a retryable error until they are open.
pub(crate) const HUB_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a server that was released by its predecessor retries the locks of its streams before it reports them: the
/// system may take a moment to release those of a process that was killed.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Opened streams wait at most this long for those that are still locked, so that one thread writes them all. Then they are
/// used, and what is for the others is refused with a retryable error until they are open.
pub(crate) const LOCK_GRACE: Duration = Duration::from_secs(1);

/// Between two looks whether the predecessor has released the streams, and between two tries within `LOCK_WAIT`.
pub(crate) const OPEN_LOOK: Duration = Duration::from_millis(20);

/// Between two later tries to open the streams.
pub(crate) const OPEN_RETRY: Duration = Duration::from_secs(1);

/// Between two looks at a hub that comes to its end beside the shard that ran it.
pub(crate) const CLOSE_LOOK: Duration = Duration::from_millis(2);

/// Between two looks of a draining shard at what still publishes.
pub(crate) const PART_LOOK: Duration = Duration::from_millis(5);

/// Datagrams that are read from the queue of a UDP socket before it is closed for good. More: lost with the socket.
pub(crate) const UDP_LEFT_MAX: usize = 65_536;

/// Orders for records that may be unanswered. Full: the hub asks again in a later turn.
pub(crate) const READ_ORDERS_MAX: usize = 64;

/// How often a shard removes subscriptions of connections that have left, at least.
pub(crate) const LEFT_LOOK: Duration =
    Duration::from_nanos(stilling_hub::limits::DEPARTED_REGISTRATIONS_EVERY_NS);
