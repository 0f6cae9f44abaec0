//! Compares addresses to listen on.

use std::net::SocketAddr;

/// Whether one connection could match both: the same port, and the same host or one of them unspecified.
pub(crate) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let all = |address: SocketAddr| address.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || all(one) || all(other))
}
