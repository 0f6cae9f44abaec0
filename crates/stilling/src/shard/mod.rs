//! The service that a shard runs, with all protocols.
//!
//! ```text
//!   accepted ─▶ Endpoint ─▶ ShardSession ─┬─▶ http      sees HttpContext:     HttpShard, hub, worker processes
//!   bytes    ───────────────▶             ├─▶ nats      sees NatsContext:     NatsShard, hub, lifecycle
//!   mail     ◀ hub, workers, processes    ├─▶ syslog    sees SyslogContext:   SyslogShard, hub, lifecycle
//!   datagram ─▶ Endpoint ─▶ syslog        ├─▶ custom    sees CustomContext:   hub, lifecycle
//!                                         └─▶ upstream  sees UpstreamContext: UpstreamPool
//! ```
//!
//! Only this module imports all protocols; each is a module beside it. A new protocol adds a variant to [`Endpoint`]
//! and to the session. Protocols of the embedding program use [`protocol`](crate::protocol) and change nothing here.

mod hub_turn;
mod service;
#[cfg(test)]
pub(crate) mod testing;

pub use service::{Endpoint, ShardHub, ShardMail, ShardService, ShardSession};
