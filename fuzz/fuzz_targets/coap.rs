//! Arbitrary bytes are refused with the required reaction, or are a message whose parts lie in them and yield the same
//! bytes again, in every smaller buffer an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::coap::check::message;

fuzz_target!(|bytes: &[u8]| {
    message(bytes);
});
