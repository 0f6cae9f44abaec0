//! Bounds of the SSE sessions, with unit and behaviour at the bound.

use std::time::Duration;

/// Bytes that may wait for a client to read them; records of a stream stop waiting at `SLOW_OUTPUT_SIZE`. More: it is a
/// slow consumer, and its connection is closed. It resumes after the last event that it received. As for NATS, the clients with the most waiting bytes are closed likewise when
/// those of all clients of a shard fill `--max-output-held`.
pub(crate) const PENDING_MAX: usize = 16 * 1024 * 1024;

/// Time without an event after which a comment is sent: clients and proxies close silent connections.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Time after which a client reconnects, as the server requests.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
