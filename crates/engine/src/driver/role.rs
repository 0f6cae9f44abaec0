//! The role of a source in a driver: a listener, or a `SourceKind`.

use super::SourceKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceRole {
    Listener,
    Stream,
    Pipe,
    Datagram,
}

impl From<SourceKind> for SourceRole {
    fn from(kind: SourceKind) -> Self {
        match kind {
            SourceKind::Stream => SourceRole::Stream,
            SourceKind::Pipe => SourceRole::Pipe,
            SourceKind::Datagram => SourceRole::Datagram,
        }
    }
}
