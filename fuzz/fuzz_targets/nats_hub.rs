//! With arbitrary client operations in any order, and arbitrary disk behaviour, the hub follows the protocol, its
//! counters add up, and nothing grows beyond its bounds. The input is a script, read by `rig`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[expect(dead_code, reason = "its other plays are for the tests")]
#[path = "../../crates/hub/tests/rig/mod.rs"]
mod rig;

fuzz_target!(|script: &[u8]| {
    rig::clients::play(script);
});
