//! Every maximum of the NATS sessions, with its unit and what happens when it is reached.

use std::time::Duration;

/// Bytes that may wait for a client to read them. More: it is a slow consumer, and its connection is closed behind
/// `-ERR 'Slow Consumer'`; from 15/16 on also if what it has read meanwhile is less than a sixteenth. When what waits for all
/// clients of a shard fills `--max-output-held`, connections with the most waiting are closed likewise. It is filled in blocks
/// of up to four times the bytes in them, so a connection is safe from others while its part is at most a quarter of
/// `--max-output-held` divided by the number of connections for which something waits. A client that publishes is read on while
/// less than half of it waits and that half of `--max-output-held` is not nearly taken, so that one may publish some 100,000
/// messages before it reads the first acknowledgement; beyond, it is not read until it, or others, have read. One that reads
/// nothing for the whole write timeout is closed.
pub(crate) const PENDING_MAX: usize = 16 * 1024 * 1024;

/// How long a connection may take to say who it is, where that has to be said. Then it is closed.
pub(crate) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a connection that is silent is asked whether it lives.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(120);

/// How long the other deadlines of a connection rest whose output is held up. The write timeout goes on.
pub(crate) const HELD_UP_LOOK: Duration = Duration::from_secs(1);

/// Questions that may be unanswered. One more is due: the connection is closed.
pub(crate) const PINGS_MAX: u8 = 2;

/// Bytes for the beginnings of long messages, per shard, that may wait for their ends. Full: the connections that need more are
/// not read until there is room again, but for one at a time.
pub(crate) const ASSEMBLY_MAX: usize = 64 * 1024 * 1024;

/// Bytes that a long message takes of it at first, and that there has to be room for before more of it is read. What it takes
/// doubles with what has come: who announces much and sends little holds little.
pub(crate) const ASSEMBLY_STEP: usize = 64 * 1024;

/// How long the one that goes on although there is no room may take. If there is still no room then, its connection is closed,
/// and the next one goes on.
pub(crate) const ASSEMBLY_BEYOND_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a message that comes in pieces may take. Then its connection is closed.
pub(crate) const ASSEMBLY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection rests that found no room for a long message.
pub(crate) const ASSEMBLY_RETRY: Duration = Duration::from_millis(20);
