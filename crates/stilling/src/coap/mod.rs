//! CoAP over UDP (RFC 7252): the endpoint of one shard, a state machine without I/O.
//!
//! ```text
//!   datagram ─▶ classify ─┬─▶ malformed ─────────────────────────────▶ nothing, or a reset
//!                         ├─▶ duplicate ◀── ExchangeCache ───────────▶ the same reply
//!                         ├─▶ next block ◀── BodyCache ──────────────▶ the block; Assemblies ─▶ 2.31
//!                         └─▶ new ─▶ route ─┬─▶ resource ─▶ Answer ───────▶ reply, remembered
//!                                           ├─▶ Forwarding ─▶ CoapCall ─▶ worker processes
//!                                           ├─▶ Bridge ─────▶ CoapCall ─▶ HubBridge ─▶ hub
//!                                           └─▶ PendingExchanges ─▶ acknowledgement, later a reply,
//!                                                                   or Transmissions until it is acknowledged
//!   state of a resource ─▶ Observations ─▶ notifications
//! ```
//!
//! Time is an argument. [`CoapShard::receive`] returns the reply to a datagram; everything else leaves by
//! [`CoapShard::poll_transmit`], and calls for worker processes and the hub by [`CoapShard::next_call`]. Each message
//! names its whole path: peer, socket and local address.

mod address_shares;
mod answer;
mod assembly;
mod body_cache;
mod bridge;
mod bridging;
mod byte_queue;
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
mod hub_bridge;
pub(crate) mod limits;
mod notifying;
mod observations;
mod overload;
mod peers;
mod pending;
mod request;
mod transmissions;
mod unproven;

pub(crate) use bridge::BridgeAccess;
pub(crate) use call::CoapCall;
pub use counters::{CoapCounters, DatagramClass};
pub use endpoint::CoapEndpoint;
pub use unproven::UnprovenPeers;

pub(crate) use endpoint::{CoapSettings, CoapShard};
pub(crate) use forwarding::ForwardingPool;
pub(crate) use handed_exchanges::ExchangeHandover;
pub(crate) use hub_bridge::HubBridge;
