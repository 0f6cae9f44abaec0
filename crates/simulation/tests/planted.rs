//! Planted bugs are found, and without one nothing is found: this shows that the simulator detects bugs. Needs
//! `RUSTFLAGS="--cfg stilling_planted"`.
#![cfg(stilling_planted)]

use std::panic;

use stilling_ring::planted;
use stilling_simulation::streams::{broadcast, succession};
use stilling_simulation::{
    FaultRates, SeedFailure, SplitMix64, coap, echo, http, migration, on_demand, sharing, streams, unread,
};

/// Seeds within which a bug must be found.
const SEEDS: u64 = 1000;

/// Planted bugs that show in a world without a disk and a hub.
const BUGS: [&str; 7] = [
    "stale generation",
    "double-freed buffer",
    "lost completion",
    "lost wake",
    "double answer",
    "lost job",
    "stale mail",
];

/// Bugs of the driver. The echo world shows them too: it has no server that could hide them.
const IN_THE_DRIVER: [&str; 3] = ["stale generation", "double-freed buffer", "lost completion"];

/// Bugs that show where connections migrate between shards, including those of the driver.
const IN_MIGRATION: [&str; 4] = ["stale generation", "double-freed buffer", "lost completion", "lost unread"];

/// Bugs that show where the owner of a shard waits for readiness and moves its listener, including those of the driver. (It uses no receive
/// buffers.)
const ON_DEMAND: [&str; 4] =
    ["stale generation", "lost completion", "lost readable", "accepts dropped at detach"];

/// A bug that shows when unread output fills the store.
const UNREAD: &str = "a full store closes the requesting connection";

/// Bugs that show with output from shared blocks and with unsolicited datagrams.
const IN_SHARING: [&str; 4] = ["early reuse", "early block release", "range sent twice", "previous peer"];

/// Bugs that show with streams on disk.
const ON_DISK: [&str; 15] = [
    "early watermark",
    "unsynced directory",
    "missing sync",
    "unsynced tail",
    "unsynced acknowledgement",
    "lost retry",
    "lost window",
    "unsynced duplicate",
    "double acknowledgement",
    "early visibility",
    "unread block",
    "unlisted directory",
    "unreported damage",
    "unreported segment",
    "unbuilt payload",
];

/// Bugs that show with subscribers that resume.
const IN_BROADCAST: [&str; 7] = [
    "early feed reuse",
    "late resume",
    "lost hand-over",
    "early delivery",
    "missing sync",
    "early rejection",
    "unsynced snapshot",
];

/// Bugs that show in hot restarts; "lost window" (of message ids) also shows in the streams world.
const IN_HAND_OVERS: [&str; 4] = ["early opening", "early release", "dropped wait", "lost window"];

/// Bugs that show where datagrams are lost and repeated, and resources change.
const IN_COAP: [&str; 4] =
    ["previous peer", "executed duplicate", "block of another ETag", "repeated message id"];

type World = fn(u64) -> Option<SeedFailure>;

fn echo_world(seed: u64) -> Option<SeedFailure> {
    echo::run(seed, FaultRates::draw(&mut SplitMix64::new(seed))).err()
}

fn migration_world(seed: u64) -> Option<SeedFailure> {
    migration::run(seed, FaultRates::draw(&mut SplitMix64::new(seed))).err()
}

fn on_demand_world(seed: u64) -> Option<SeedFailure> {
    on_demand::run(seed, FaultRates::draw(&mut SplitMix64::new(seed))).err()
}

fn unread_world(seed: u64) -> Option<SeedFailure> {
    unread::run(seed).err()
}

fn sharing_world(seed: u64) -> Option<SeedFailure> {
    sharing::run(seed).err()
}

fn http_world(seed: u64) -> Option<SeedFailure> {
    http::run(seed, &http::HttpWorldOptions::default()).err()
}

fn streams_world(seed: u64) -> Option<SeedFailure> {
    streams::run(seed, &streams::StreamsOptions::default()).err()
}

fn broadcast_world(seed: u64) -> Option<SeedFailure> {
    broadcast::run(seed, false).err()
}

fn succession_world(seed: u64) -> Option<SeedFailure> {
    succession::run(seed, false).err()
}

fn coap_world(seed: u64) -> Option<SeedFailure> {
    coap::run(seed, false).err()
}

fn first_failure(bug: Option<&'static str>, world: World) -> Option<SeedFailure> {
    planted::choose(bug);
    (0..SEEDS).find_map(world)
}

/// One test, because the chosen bug is global to the process.
#[test]
fn every_planted_bug_is_found_and_no_other() {
    // Failures show in the results of the worlds; thousands of panic messages would hide them.
    panic::set_hook(Box::new(|_| ()));
    let found = |bug, world| first_failure(Some(bug), world).is_some();
    let seen_in_http = BUGS.map(|bug| (bug, found(bug, http_world)));
    let seen_in_echo = IN_THE_DRIVER.map(|bug| (bug, found(bug, echo_world)));
    let seen_in_migration = IN_MIGRATION.map(|bug| (bug, found(bug, migration_world)));
    let seen_on_demand = ON_DEMAND.map(|bug| (bug, found(bug, on_demand_world)));
    let seen_unread = found(UNREAD, unread_world);
    let seen_in_sharing = IN_SHARING.map(|bug| (bug, found(bug, sharing_world)));
    let seen_on_disk = ON_DISK.map(|bug| (bug, found(bug, streams_world)));
    let seen_in_hand_overs = IN_HAND_OVERS.map(|bug| (bug, found(bug, succession_world)));
    let seen_in_broadcast = IN_BROADCAST.map(|bug| (bug, found(bug, broadcast_world)));
    let seen_in_coap = IN_COAP.map(|bug| (bug, found(bug, coap_world)));
    let worlds: [World; 10] = [
        http_world,
        echo_world,
        migration_world,
        on_demand_world,
        unread_world,
        sharing_world,
        streams_world,
        succession_world,
        broadcast_world,
        coap_world,
    ];
    let without = worlds.map(|world| first_failure(None, world));
    let _ = panic::take_hook();
    assert_eq!(seen_in_http, BUGS.map(|bug| (bug, true)));
    assert_eq!(seen_in_echo, IN_THE_DRIVER.map(|bug| (bug, true)));
    assert_eq!(seen_in_migration, IN_MIGRATION.map(|bug| (bug, true)));
    assert_eq!(seen_on_demand, ON_DEMAND.map(|bug| (bug, true)));
    assert!(seen_unread, "{UNREAD}");
    assert_eq!(seen_in_sharing, IN_SHARING.map(|bug| (bug, true)));
    assert_eq!(seen_on_disk, ON_DISK.map(|bug| (bug, true)));
    assert_eq!(seen_in_hand_overs, IN_HAND_OVERS.map(|bug| (bug, true)));
    assert_eq!(seen_in_broadcast, IN_BROADCAST.map(|bug| (bug, true)));
    assert_eq!(seen_in_coap, IN_COAP.map(|bug| (bug, true)));
    assert_eq!(without, [const { None }; 10]);
}
