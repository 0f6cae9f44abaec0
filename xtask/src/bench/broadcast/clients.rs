//! The clients of a load: the server, and the protocol that the subscribers use.

use super::peers::{BroadcastPeer, BroadcastStream, RunningPeer};
use crate::bench::harness::NamedServer;

/// A server with the protocol of its subscribers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MeasuredClients {
    /// Name in the tables.
    pub(super) name: &'static str,
    pub(super) peer: BroadcastPeer,
    /// The generator's protocol.
    pub(super) protocol: &'static str,
    pub(super) stream: BroadcastStream,
    /// Subscribers use the address for WebSocket and SSE, and publishers NATS.
    is_web: bool,
}

impl NamedServer for MeasuredClients {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl MeasuredClients {
    /// Clients of a server without streams, in the protocol of the server's name.
    pub(super) fn usual(peer: BroadcastPeer) -> MeasuredClients {
        let (name, protocol) = (peer.name(), peer.protocol());
        MeasuredClients { name, peer, protocol, stream: BroadcastStream::None, is_web: false }
    }

    /// NATS clients of a stream.
    pub(super) const fn of_stream(name: &'static str, peer: BroadcastPeer) -> MeasuredClients {
        let stream = BroadcastStream::BenchInMemory;
        MeasuredClients { name, peer, protocol: "nats", stream, is_web: false }
    }

    /// Clients over WebSocket or SSE, of a stream if the server is Stilling.
    pub(super) const fn web(
        name: &'static str,
        peer: BroadcastPeer,
        protocol: &'static str,
    ) -> MeasuredClients {
        let stream = match peer {
            BroadcastPeer::StillingUring | BroadcastPeer::StillingPoll => BroadcastStream::BenchInMemory,
            _ => BroadcastStream::None,
        };
        let is_web = !matches!(peer, BroadcastPeer::Centrifugo);
        MeasuredClients { name, peer, protocol, stream, is_web }
    }

    /// The generator's options for a started server.
    pub(super) fn addresses(&self, running: &RunningPeer) -> Vec<String> {
        let publishers = running.server.address;
        let subscribers = if self.is_web { running.web } else { publishers };
        let mut options = vec![subscribers.to_string(), format!("--protocol={}", self.protocol)];
        options.extend(self.is_web.then(|| format!("--publish-to={publishers}")));
        options
    }
}
