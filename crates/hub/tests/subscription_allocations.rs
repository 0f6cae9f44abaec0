//! A crowd of subscribers of one filter costs no allocation for each, as measured by a counting allocator.

use stilling_hub::{ClientOptions, HashKey, MessageFormat, PublicationBatch, ShardSubscriptions};
use stilling_probe::allocations::{CountingAllocator, thread_allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SUBSCRIBERS: u64 = 10_000;

/// Allocations that may serve all subscribers: tables double, and each does it a few times.
const GROWTHS_MAX: u64 = 100;

fn allocations_of(mut subscribe: impl FnMut(&mut ShardSubscriptions, u64)) -> u64 {
    let mut table = ShardSubscriptions::new(HashKey(1, 2), 100);
    let mut batch = PublicationBatch::new();
    let before = thread_allocations();
    for token in 1..=SUBSCRIBERS {
        subscribe(&mut table, token);
        table.push_changes(&mut batch);
    }
    assert_eq!(table.len() as u64, SUBSCRIBERS);
    thread_allocations() - before
}

#[test]
fn a_subscriber_over_nats_costs_no_allocation() {
    let allocations = allocations_of(|table, token| {
        let subscription = (&b"bench"[..], &b""[..], &b"1"[..]);
        table.subscribe(token, ClientOptions::default(), subscription).expect("there is room");
    });
    assert!(allocations <= GROWTHS_MAX, "{allocations}");
}

#[test]
fn a_subscriber_over_websocket_or_sse_costs_no_allocation() {
    for format in [MessageFormat::WebSocketRaw, MessageFormat::SseRaw] {
        let allocations = allocations_of(|table, token| {
            table.subscribe_in_format(token, b"bench", format, Some(0)).expect("there is room");
        });
        assert!(allocations <= GROWTHS_MAX, "{format:?}: {allocations}");
    }
}
