//! Bounds that the ingress protocols of the hub share, with unit and behaviour at the bound.

use std::time::Duration;

/// How long a publishing connection must be silent during a drain before its input counts as complete. The server
/// ends no sooner.
pub(crate) const DRAIN_QUIET: Duration = Duration::from_millis(250);

/// Maximum time for which a connection that is not silent is read during a drain. A NATS connection is then notified
/// of the end and read for the same time again, until it has seen that; later syslog input is lost. Time without room
/// for its messages does not count, but `--drain-timeout` applies.
pub(crate) const DRAIN_READ_MAX: Duration = Duration::from_secs(2);

/// Maximum wait of requests for the hub in a server that has taken over. Then the hub begins without the streams on
/// disk, and publications to these are refused with a retryable error until they are open.
pub(crate) const HUB_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a server retries the locks of streams that its predecessor has released, before it reports them: the
/// system may take a moment to release the locks of a killed process.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Maximum wait of opened streams for streams that are still locked, so that one thread writes all of them. Then they
/// are used, and publications to the others are refused with a retryable error until they are open.
pub(crate) const LOCK_GRACE: Duration = Duration::from_secs(1);

/// Interval of checks for the predecessor's release, and of retries within `LOCK_WAIT`.
pub(crate) const OPEN_LOOK: Duration = Duration::from_millis(20);

/// Interval of later tries to open the streams.
pub(crate) const OPEN_RETRY: Duration = Duration::from_secs(1);

/// Interval of checks of a hub that finishes beside the shard that ran it.
pub(crate) const CLOSE_LOOK: Duration = Duration::from_millis(2);

/// Interval at which a draining shard checks the connections that still publish.
pub(crate) const PART_LOOK: Duration = Duration::from_millis(5);

/// Datagrams read from the queue of a UDP socket before it is closed. More: lost with the socket.
pub(crate) const UDP_LEFT_MAX: usize = 65_536;

/// Unanswered read orders of the hub. Full: the hub tries again in a later turn.
pub(crate) const READ_ORDERS_MAX: usize = 64;

/// Maximum interval at which a shard removes subscriptions of closed connections.
pub(crate) const LEFT_LOOK: Duration =
    Duration::from_nanos(stilling_hub::limits::DEPARTED_REGISTRATIONS_EVERY_NS);
