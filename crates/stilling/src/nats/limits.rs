//! Bounds of the NATS sessions, with unit and behaviour at the bound.

use std::time::Duration;

/// Bytes that may wait for a client to read them. More: it is a slow consumer, and its connection is closed after
/// `-ERR 'Slow Consumer'`; from 15/16 on also if the bytes read meanwhile are less than a sixteenth.
///
/// When the waiting bytes of all clients of a shard fill `--max-output-held`, the connections with the most are closed
/// likewise. They occupy blocks of up to four times their size, so a connection cannot be closed because of others
/// while it has at most a quarter of `--max-output-held` divided by the number of connections with waiting output.
///
/// A publishing client is read while less than half of this maximum waits for it and half of `--max-output-held` is
/// not nearly used: some 100,000 messages before it reads the first acknowledgement. Beyond, it is not read until it
/// or other clients have read. A client that reads nothing for the whole write timeout is disconnected.
pub(crate) const PENDING_MAX: usize = 16 * 1024 * 1024;

/// How long a connection may take to authenticate, if that is required. Then it is closed.
pub(crate) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of PINGs to a silent connection.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(120);

/// Interval of checks of a connection with blocked output. Until the output is sent it gets no PINGs; the write timeout
/// applies.
pub(crate) const BLOCKED_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum unanswered PINGs. When another is due, the connection is closed instead.
pub(crate) const PINGS_MAX: u8 = 2;

/// Bytes of incomplete long messages, per shard. Full: the connections that need more are not read until there is
/// room again, except one at a time.
pub(crate) const ASSEMBLY_MAX: usize = 64 * 1024 * 1024;

/// Bytes of memory that a long message gets at first, and that must be free before more of it is read. Its memory
/// doubles with the received bytes: a client that announces much and sends little occupies little.
pub(crate) const ASSEMBLY_STEP: usize = 64 * 1024;

/// Maximum time for the one connection that may exceed `ASSEMBLY_MAX` to complete its message. If there is still no
/// room then, it is closed, and the next connection may exceed it.
pub(crate) const ASSEMBLY_OVER_LIMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time to receive a long message, or the rest of a protocol line over WebSocket. Then its connection is closed.
/// Time in which the server does not read the connection does not count.
pub(crate) const ASSEMBLY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection pauses that found no room for a long message.
pub(crate) const ASSEMBLY_RETRY: Duration = Duration::from_millis(20);

/// Bytes of a WebSocket message that carries protocol lines, all fragments together. Its payload is decoded as it
/// arrives, so it costs no memory. More: the connection is closed with 1009.
pub(crate) const WEBSOCKET_MESSAGE_SIZE_MAX: u32 = u32::MAX;

/// Bytes of input from a WebSocket that are decoded at a time, and of the shard's memory for their unmasked payload.
/// More input is decoded in steps.
pub(crate) const FRAME_STEP: usize = 64 * 1024;

/// Unmasked bytes that wait for the rest of their protocol line or for room in the hub, per connection over WebSocket,
/// beside those of one step. More: its next frames are not decoded before the session has consumed them.
pub(crate) const UNDECODED_MAX: usize = 64 * 1024;

/// Bytes of memory for such bytes, per shard, beside `--max-input-held`. Full: a connection that needs more for an
/// incomplete protocol line is closed with 1013. Connections that wait for room in the hub stay open: their frames are
/// not decoded meanwhile, and each may exceed this maximum by the rest of one step.
pub(crate) const UNDECODED_SHARD_MAX: usize = 64 * 1024 * 1024;
