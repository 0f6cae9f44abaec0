//! A hub without a disk, with one shard, turned by the test.

use std::sync::Arc;

use stilling_engine::Token;
use stilling_hub::{
    ClientOptions, HashKey, Hub, HubConfig, HubRequest, Ingress, JournalStorage, Publication, StreamConfig,
    UnixNanos,
};
use stilling_ring::Wake;

use super::{HubPort, Runner, connect};

/// The connection that uses all room.
pub(crate) const GREEDY: u64 = 7;

/// The port of a hub's only shard, and the hub with its counters.
pub(crate) type TestHub = (HubPort, Runner<JournalStorage>, Arc<stilling_hub::HubCounters>);

/// The hub without streams.
pub(crate) fn hub_of_one_shard() -> TestHub {
    hub_with(Vec::new())
}

/// The same with streams. A stream on disk is always full, since there is no journal.
pub(crate) fn hub_with(streams: Vec<StreamConfig>) -> TestHub {
    hub_with_storage(streams, JournalStorage::default())
}

/// The same with a journal.
pub(crate) fn hub_with_storage(streams: Vec<StreamConfig>, storage: JournalStorage) -> TestHub {
    let wakes: Vec<_> = (0..2).map(|_| Arc::new(Wake::new(|| ()))).collect();
    let (mut ports, shard_senders, shard_receivers) = connect(&wakes[..1], &wakes[1], HashKey(1, 2));
    let config = HubConfig { streams, ..HubConfig::default() };
    let hub = Hub::new(config, &[], (storage, shard_senders), 1, (HashKey(1, 2), UnixNanos::EPOCH));
    let counters = hub.counters();
    let runner = Runner::new(hub, shard_receivers, None);
    let mut port = ports.pop().expect("one for each shard");
    port.set_counters(Arc::clone(&counters), 0);
    (port, runner, counters)
}

/// Publishes as much as there is room for, and waits for more.
pub(crate) fn fill(port: &mut HubPort) {
    let publication = Publication {
        ingress: Ingress::Nats,
        subject: b"a",
        reply: b"",
        headers: b"",
        payload: (&[b'x'; 10_000]).into(),
        ticket: None,
    };
    while port.has_room() {
        port.push_request(
            Token::from_bits(GREEDY),
            ClientOptions::default(),
            &HubRequest::Publish(publication),
        );
    }
    port.wait(Token::from_bits(GREEDY));
}
