//! The engine of Stilling: shards, drivers, connections, timers, limits. It contains no protocol.
//!
//! A [`Shard`] is one thread's event loop over a [`Driver`](driver::Driver): io_uring, epoll, or a simulation. An
//! embedder provides a [`Service`] per shard and a [`Session`] per connection.
//!
//! Invariants: a shard waits for nothing but its driver; no request allocates memory; an idle connection owns no
//! buffer; every connection ends with one [`CloseReason`].

pub mod close_reason;
pub mod cores;
pub mod counters;
pub mod datagram_drop;
pub mod detached;
pub mod driver;
pub mod limits;
#[cfg(target_os = "linux")]
pub mod listen_watch;
pub mod net;
pub mod shard;
pub mod store;
pub mod timer_wheel;
pub mod token;

pub use close_reason::CloseReason;
pub use datagram_drop::DatagramDropReason;
pub use detached::{AdoptError, AdoptErrorKind, Detached};
pub use shard::{
    ConnectError, DatagramDropPolicy, DatagramIo, DatagramPath, Io, NO_FREE_SLOT, OutputFull, PassedDatagram,
    Recipient, Service, Session, Shard, ShardConfig, ShardControl,
};
pub use token::Token;

pub use stilling_ring::{BlockWriter, Clock, SharedBlock, Time, Wake};
