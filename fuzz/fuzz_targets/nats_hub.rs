//! Whatever clients of NATS say, in whatever order, and whatever the disk does meanwhile: the hub answers in the protocol,
//! its accounts add up, and nothing grows beyond its bounds. The input is a script; the rig that plays it says how it is read.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[expect(dead_code, reason = "its other plays are for the tests")]
#[path = "../../crates/hub/tests/rig/mod.rs"]
mod rig;

fuzz_target!(|script: &[u8]| {
    rig::clients::play(script);
});
