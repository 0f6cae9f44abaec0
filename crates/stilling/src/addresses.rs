//! Compares addresses to listen on.

use std::net::SocketAddr;

/// Whether a connection could be meant for both: the same port, and one of them stands for all hosts.
pub(crate) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let all = |address: SocketAddr| address.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || all(one) || all(other))
}
