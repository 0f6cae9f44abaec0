//! Bounds that the ingress protocols of the hub share, with unit and behaviour at the bound.

use std::time::Duration;

/// How long a publishing connection must be silent during a drain before its input counts as complete. The server
/// ends no sooner.
pub(crate) const DRAIN_QUIET: Duration = Duration::from_millis(250);

/// Maximum time for which a connection that keeps sending is read during a drain. Then the server ends the output of
/// a NATS connection and reads it for up to the same time again; later syslog input is lost. Time under backpressure
/// does not count, but `--drain-timeout` applies.
pub(crate) const DRAIN_READ_MAX: Duration = Duration::from_secs(2);

/// Maximum wait of requests for the hub in a server that has taken over. Then the hub begins without the streams on
/// disk, and publications to these are refused with a retryable error until they are open.
pub(crate) const HUB_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a server retries the locks of streams that its predecessor has released, before it reports them: the
/// system may take a moment to release the locks of a killed process.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Maximum time for which opened streams wait for streams that are still locked, so that one thread writes all of
/// them. Then the hub uses the opened ones, and refuses publications to the others with a retryable error until they
/// are open.
pub(crate) const LOCK_GRACE: Duration = Duration::from_secs(1);

/// Interval of checks for the predecessor's release, and of retries within `LOCK_WAIT`.
pub(crate) const OPEN_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of later tries to open the streams.
pub(crate) const OPEN_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of turns of a hub that finishes on its own thread after its shard has left.
pub(crate) const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Interval at which a draining shard checks whether the hub has received its last requests.
pub(crate) const RELEASE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum datagrams that are read from the queue of a UDP socket before its close. The rest is lost.
pub(crate) const UDP_FINAL_READS_MAX: usize = 65_536;

/// Unanswered read requests of the hub. Full: the hub tries again in a later turn.
pub(crate) const READ_REQUESTS_MAX: usize = 64;

/// Maximum interval at which a shard removes subscriptions of closed connections.
pub(crate) const REMOVAL_INTERVAL: Duration =
    Duration::from_nanos(stilling_hub::limits::STALE_REGISTRATIONS_EVERY_NS);

/// Bytes of blocked output from which a client over WebSocket or SSE is too slow for its stream: the stream's policy for
/// slow subscribers applies. `catch-up` and `skip` apply sooner while half of `--max-output-held` is used.
pub(crate) const SLOW_OUTPUT_SIZE: usize = 1024 * 1024;
