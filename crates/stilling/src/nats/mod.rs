//! The NATS client protocol: one session per connection, between the codec and the hub.

mod assembly;
pub(crate) mod limits;
mod session;
mod shard;

pub(crate) use session::NatsSession;
pub(crate) use shard::{NatsContext, NatsShard};

#[cfg(test)]
mod tests;
