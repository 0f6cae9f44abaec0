//! Limits of the CoAP generator, with their units and the behavior when reached.

use std::time::Duration;

/// Maximum source ports in use at a time; the system has some 28,000. More: an error at start.
pub const COAP_SOCKETS_MAX: u16 = 16_384;

/// Maximum requests in flight per source port. More: an error at start.
pub const COAP_WINDOW_MAX: u16 = 1024;

/// Maximum different requests of a run, whose bodies are held. More: an error at start.
pub const COAP_VARIANTS_MAX: u32 = 4096;

/// Maximum bytes of an expected body. Longer: an error at start.
pub const COAP_BODY_SIZE_MAX: usize = 1024 * 1024;

/// Maximum requests whose executions are counted: the numbers that the resource of `stilling serve` counts.
pub const COAP_EXECUTIONS_MAX: u64 = 1 << 20;

/// Message ids of a source port. Used up: the endpoint continues with a new source port.
pub(super) const IDS_PER_PORT: u32 = 65_536;

/// Ids that an endpoint keeps for the blocks of requests in flight. Fewer left: it starts no request before it has a new
/// source port.
pub(super) const IDS_RESERVED: u32 = 8192;

/// Datagrams per sendmmsg(2) and recvmmsg(2). More: a further call.
pub(super) const DATAGRAMS_PER_CALL: usize = 64;

/// Bytes of a received datagram. Longer: cut off, and thus a failure.
pub(super) const DATAGRAM_SIZE_MAX: usize = 2048;

/// Bytes of a request. Longer: an error at start.
pub(super) const REQUEST_SIZE_MAX: usize = 1024;

/// Receive buffer requested per socket in bytes; the system may grant less.
pub(super) const RECEIVE_BUFFER: usize = 1024 * 1024;

/// First wait for an acknowledgement, doubled by each further one (RFC 7252 §4.8).
pub(super) const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Retransmissions of a confirmable message (RFC 7252 §4.8). More: the request fails, or counts as
/// lost if loss is injected.
pub(super) const MAX_RETRANSMIT: u32 = 4;

/// Time between two checks of all timers.
pub(super) const TIMER_TICK: Duration = Duration::from_millis(10);

/// Maximum time of one wait for sockets, closed loop.
pub(super) const POLL_SPAN: Duration = Duration::from_millis(10);

/// The same with a rate, whose requests are late by as much.
pub(super) const PACED_POLL_SPAN: Duration = Duration::from_millis(1);

/// Maximum events of one wait. Further ones come with the next.
pub(super) const EVENTS_MAX: usize = 1024;
