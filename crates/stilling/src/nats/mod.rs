//! The NATS client protocol: one session per connection, between the codec and the hub.

mod assembly;
pub(crate) mod limits;
mod session;
mod shard;
mod users;

pub(crate) use session::NatsSession;
pub(crate) use shard::{NatsContext, NatsShard};
pub(crate) use users::{UserAccess, Users};

#[cfg(test)]
mod tests;
