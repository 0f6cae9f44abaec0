//! What a source is to a driver: a socket that the shard gave it, or one that it accepts from.

use super::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Listener,
    Stream,
    Pipe,
    Datagram,
}

impl From<Kind> for Role {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Stream => Role::Stream,
            Kind::Pipe => Role::Pipe,
            Kind::Datagram => Role::Datagram,
        }
    }
}
