//! The NATS client protocol in the house: one session per connection, between the codec and the hub.

mod assembly;
pub(crate) mod limits;
mod session;
mod users;

pub(crate) use session::NatsSession;
pub(crate) use users::{Access, Users};
