//! Every maximum of the NATS sessions, with its unit and what happens when it is reached.

use std::time::Duration;

/// Bytes that may wait for a client to read them, as long as half of `--max-output-held` is free; else as many as for
/// anybody. More: it is a slow consumer, and its connection is closed. A client that publishes is read on while less than
/// half of it waits, so that one may publish some 100,000 messages before it reads the first acknowledgement; beyond, it is
/// not read until it reads. One that reads nothing for the whole write timeout is closed.
pub(crate) const PENDING_MAX: usize = 16 * 1024 * 1024;

/// How long a connection may take to say who it is, where that has to be said. Then it is closed.
pub(crate) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a connection that is silent is asked whether it lives.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(120);

/// Questions that may be unanswered. One more is due: the connection is closed.
pub(crate) const PINGS_MAX: u8 = 2;

/// Bytes of long messages, per shard, that may wait for their ends. Full: the connections with further ones are not read.
pub(crate) const ASSEMBLY_MAX: usize = 64 * 1024 * 1024;

/// How long a message that comes in pieces may take. Then its connection is closed.
pub(crate) const ASSEMBLY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection rests that found no room for a long message.
pub(crate) const ASSEMBLY_RETRY: Duration = Duration::from_millis(20);
