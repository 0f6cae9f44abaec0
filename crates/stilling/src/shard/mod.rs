//! One shard of the server: the only place that knows all protocols.
//!
//! ```text
//!   accepted ─▶ Endpoint ─▶ ShardSession ─┬─▶ http      sees HttpContext:     HttpShard, hub, worker processes
//!   bytes    ───────────────▶             ├─▶ nats      sees NatsContext:     NatsShard, hub, life of the process
//!   mail     ◀ hub, workers, processes    ├─▶ syslog    sees SyslogContext:   SyslogShard, hub, life of the process
//!   datagram ─▶ Endpoint ─▶ syslog        ├─▶ custom    sees CustomContext:   hub, life of the process
//!                                         └─▶ upstream  sees UpstreamContext: the requests to worker processes
//! ```
//!
//! A protocol is a module beside this one. A new one adds a variant to [`Endpoint`] and to the session. Protocols of the
//! embedding program are registered at [`protocol`](crate::protocol), and change nothing here.

mod hub_turn;
mod service;

pub use service::{Endpoint, ShardHub, ShardMail, ShardService, ShardSession};
