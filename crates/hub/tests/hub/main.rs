//! Behaviour of the hub, step by step on a simulated disk.
#![cfg(not(stilling_planted))]

mod allocation_free;
mod api_requests;
mod catch_ups;
mod clients;
mod closed_streams;
mod consumers;
mod costs;
mod crash_runs;
mod dedup;
mod disk_errors;
mod durable;
mod fan_out;
mod feeds;
#[path = "../fixture/mod.rs"]
mod fixture;
mod fixture_requests;
mod full_shards;
mod gates;
mod hung_disks;
mod jetstream;
mod loss_tracking;
mod parked;
mod publish_subscribe;
mod slow_shards;
mod statuses;
mod streams;
mod turn_shares;

use stilling_probe::allocations::CountingAllocator;

/// Counts per thread, and so per test: see [`released`].
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
