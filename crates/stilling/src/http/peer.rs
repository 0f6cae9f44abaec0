//! The client of a connection, as handlers and worker processes see it.

use std::net::IpAddr;

use stilling_engine::Token;

use super::session::HttpSession;
use super::shard::HttpContext;

/// The client of a connection.
#[derive(Debug)]
pub(super) struct HttpPeer {
    address: IpAddr,
    /// The connection, once it has sent a request to a worker process.
    pub(super) upstream_client: Option<Token>,
}

impl HttpPeer {
    pub(super) fn new(address: IpAddr) -> Box<HttpPeer> {
        Box::new(HttpPeer { address, upstream_client: None })
    }
}

impl HttpSession {
    /// The client's address, if worker processes or handlers need it.
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        self.peer.as_ref().map(|peer| peer.address)
    }

    /// The connection makes no more requests to worker processes.
    pub(super) fn leave_upstream(&self, cx: &mut HttpContext<'_>) {
        if let Some(client) = self.peer.as_ref().and_then(|peer| peer.upstream_client)
            && let Some(upstream) = &mut cx.upstream
        {
            upstream.client_left(client.into());
        }
    }
}
