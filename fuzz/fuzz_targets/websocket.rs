//! Arbitrary bytes in arbitrary pieces yield the same messages for linear work, and the naive decoder agrees, in both
//! directions. The first byte is the number of following bytes that are split offsets; the rest is input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::websocket::check::{oracle, splits};
use stilling_wire::websocket::{WebSocketLimits, WebSocketRole};

const SMALL: WebSocketLimits = WebSocketLimits { message_size_max: 40, whole_size_max: 12 };

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, rest)) = bytes.split_first() else { return };
    let Some((cuts, input)) = rest.split_at_checked(usize::from(count % 8)) else { return };
    let cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut)).collect();
    let each: Vec<usize> = (0..input.len()).collect();
    for sender in [WebSocketRole::Client, WebSocketRole::Server] {
        for limits in [WebSocketLimits::default(), SMALL] {
            splits(sender, &limits, input, &cuts);
            splits(sender, &limits, input, &each);
            oracle(sender, &limits, input);
        }
    }
});
