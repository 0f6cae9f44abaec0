//! CoAP over UDP (RFC 7252): the endpoint of one shard, a state machine without I/O.
//!
//! ```text
//!   datagram ─▶ classify ─┬─▶ malformed ─────────────────────────────▶ nothing, or a reset
//!                         ├─▶ duplicate ◀── ExchangeCache ───────────▶ the same reply
//!                         ├─▶ next block ◀── BodyCache ──────────────▶ the block; Assemblies ─▶ 2.31
//!                         └─▶ new ─▶ resource ─┬─▶ Answer ───────────▶ reply, remembered
//!                                              ├─▶ Forwarding ─▶ CoapCall ─▶ worker processes
//!                                              └─▶ PendingExchanges ─▶ acknowledgement, later a reply,
//!                                                                      or Transmissions until it is acknowledged
//! ```
//!
//! Time is an argument. [`CoapShard::receive`] returns the reply to a datagram; everything else leaves by
//! [`CoapShard::poll_transmit`], and calls for worker processes by [`CoapShard::next_call`]. Each message names its whole path: peer, socket and local address.

mod answer;
mod assembly;
mod body_cache;
mod byte_ring;
mod call;
mod counters;
mod demo;
mod demo_observables;
mod endpoint;
mod exchange_cache;
mod exchanges;
mod execution_log;
mod forwarding;
mod handed_exchanges;
mod http_mapping;
pub(crate) mod limits;
mod notifying;
mod observations;
mod overload;
mod peers;
mod pending;
mod request;
mod transmissions;
mod unproven;

pub(crate) use call::CoapCall;
pub use counters::{CoapCounters, DatagramClass};
pub use endpoint::CoapEndpoint;
pub use unproven::UnprovenPeers;

pub(crate) use endpoint::{CoapSettings, CoapShard};
pub(crate) use handed_exchanges::ExchangeHandover;
