//! What the hub promises, step by step on a simulated disk.
#![cfg(not(stilling_planted))]

mod asking;
mod clients;
mod closed;
mod consumers;
mod costs;
mod dedup;
mod durable;
mod fan_out;
mod full_shards;
mod hung;
mod jetstream;
mod life;
mod losses;
mod parked;
mod plain;
mod questions;
mod released;
#[path = "../rig/mod.rs"]
mod rig;
mod shares;
mod slow_shards;
mod statuses;
mod streams;
mod trouble;

use stilling_probe::allocations::Counting;

/// Counts for each thread, and so for each test: see [`released`].
#[global_allocator]
static ALLOCATOR: Counting = Counting;
