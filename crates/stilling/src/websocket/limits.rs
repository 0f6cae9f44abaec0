//! Bounds of the WebSocket sessions, with unit and behaviour at the bound.

use std::time::Duration;

/// Bytes that may wait for a client to read them; records of a stream stop waiting at `SLOW_OUTPUT_SIZE`. More: it is a
/// slow consumer, and its connection is closed with 4008.
/// As for NATS, the clients with the most waiting bytes are closed likewise when those of all clients of a shard fill
/// `--max-output-held`.
pub(crate) const PENDING_MAX: usize = 16 * 1024 * 1024;

/// Bytes of a message to the echo. More: the connection is closed with 1009.
pub(crate) const ECHO_MESSAGE_SIZE_MAX: u32 = 16 * 1024 * 1024;

/// Bytes of memory of messages to the echo that are incomplete or wait for their clients to read, per shard. Full: the connection
/// that needs more is closed with 1013.
pub(crate) const ECHO_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of a subscriber's message beyond twice the longest payload, which covers base64 and most escapes. More: the
/// connection is closed with 1009.
pub(crate) const ENVELOPE_SIZE_MAX: u32 = 16 * 1024;

/// Bytes of memory of subscribers' incomplete messages, per shard. Full: the connection that needs more is closed with 1013.
pub(crate) const ASSEMBLY_MAX: usize = 64 * 1024 * 1024;

/// Bytes of memory for one whole message that a shard keeps. Larger memory is freed after use.
pub(crate) const SCRATCH_KEPT_MAX: usize = 256 * 1024;

/// Maximum time to receive an incomplete message while its client is read. Then its connection is closed with 1008.
pub(crate) const ASSEMBLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of pings to a silent connection.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum unanswered pings. When another is due, the connection is closed with 1008 instead.
pub(crate) const PINGS_MAX: u8 = 2;

/// Publications without an answer, per connection. Full: it is not read until one is answered.
pub(crate) const PUBLICATIONS_MAX: usize = 1024;

/// Bytes of an answer to a publication. A longer reason is cut.
pub(crate) const ANSWER_SIZE_MAX: usize = 1024;

/// Bytes of the reference of a publication. A longer one is an error.
pub(crate) const REFERENCE_SIZE_MAX: usize = 128;
