//! Every maximum of what the doors of the hub have in common, with its unit and what happens when it is reached.

use std::time::Duration;

/// How long a publishing connection has to be silent, when the server drains, before it is taken to have said everything that
/// it had sent. The server ends no sooner.
pub(crate) const DRAIN_QUIET: Duration = Duration::from_millis(250);

/// How long one that is not silent is read on. Then it is told the end (NATS) and read as long again, until it has seen that;
/// what a syslog connection sends afterwards is lost. Time in which there is no room for what it says does not end it; that of
/// `--drain-timeout` does.
pub(crate) const DRAIN_READ_MAX: Duration = Duration::from_secs(2);
