//! With arbitrary client operations in any order, and arbitrary disk behaviour, the hub follows the protocol, its
//! counters add up, and nothing grows beyond its bounds. The input is a script, read by `fixture`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[expect(dead_code, reason = "its other items are for the tests")]
#[path = "../../crates/hub/tests/fixture/mod.rs"]
mod fixture;

fuzz_target!(|script: &[u8]| {
    fixture::clients::run_script(script);
});
