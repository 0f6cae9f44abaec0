//! Every maximum of the NATS sessions, with its unit and what happens when it is reached.

use std::time::Duration;

/// Bytes that may wait for a client to read them. More: it is a slow consumer, and its connection is closed after
/// `-ERR 'Slow Consumer'`; from 15/16 on also if the bytes read meanwhile are less than a sixteenth. When the bytes
/// that wait for all clients of a shard fill `--max-output-held`, the connections with the most waiting are closed
/// likewise. That memory is filled in blocks of up to four times the bytes in them, so a connection is safe from
/// others while its part is at most a quarter of `--max-output-held` divided by the number of connections with
/// waiting output. A client that publishes is read on while less than half of this maximum waits for it and that half
/// of `--max-output-held` is not nearly used, so that it may publish some 100,000 messages before it reads the first
/// acknowledgement; beyond, it is not read until it, or others, have read. A client that reads nothing for the whole
/// write timeout is disconnected.
pub(crate) const PENDING_MAX: usize = 16 * 1024 * 1024;

/// How long a connection may take to authenticate, if that is required. Then it is closed.
pub(crate) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of PINGs to a silent connection.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(120);

/// How long the other deadlines of a connection are suspended while its output is blocked. The write timeout
/// continues.
pub(crate) const HELD_UP_LOOK: Duration = Duration::from_secs(1);

/// Unanswered PINGs. One more is due: the connection is closed.
pub(crate) const PINGS_MAX: u8 = 2;

/// Bytes of incomplete long messages, per shard. Full: the connections that need more are not read until there is
/// room again, except one at a time.
pub(crate) const ASSEMBLY_MAX: usize = 64 * 1024 * 1024;

/// Bytes that a long message takes at first, and that must be free before more of it is read. Its memory doubles with
/// the received bytes: a client that announces much and sends little holds little.
pub(crate) const ASSEMBLY_STEP: usize = 64 * 1024;

/// How long the connection that goes on without room may take. If there is still no room then, it is closed, and the
/// next one goes on.
pub(crate) const ASSEMBLY_BEYOND_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a message received in pieces may take. Then its connection is closed.
pub(crate) const ASSEMBLY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection pauses that found no room for a long message.
pub(crate) const ASSEMBLY_RETRY: Duration = Duration::from_millis(20);
