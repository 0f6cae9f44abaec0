//! Arbitrary bytes in arbitrary pieces yield the same messages for linear work, and their parsed parts lie in the
//! input. The first byte is the number of following bytes that are split offsets; the rest is input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::syslog::SyslogLimits;
use stilling_wire::syslog::check::{frame_splits, parsed};

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, rest)) = bytes.split_first() else { return };
    let Some((cuts, input)) = rest.split_at_checked(usize::from(count % 8)) else { return };
    let cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut)).collect();
    let each: Vec<usize> = (0..input.len()).collect();
    for limits in [SyslogLimits::default(), SyslogLimits { message_size_max: 24 }] {
        frame_splits(&limits, input, &each);
        for (message, _) in frame_splits(&limits, input, &cuts) {
            parsed(&message);
        }
    }
    parsed(input);
});
