//! Arbitrary bytes in arbitrary pieces yield the same responses, and httparse agrees about the first head. The first
//! byte is the number of following bytes that are split offsets; the rest is input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::http1::check::{response_oracle, response_splits};
use stilling_wire::http1::{AnsweredMethod, HttpLimits};

const SMALL: HttpLimits = HttpLimits { head_size_max: 96, headers_max: 4, body_size_max: 64 };

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, rest)) = bytes.split_first() else { return };
    let Some((cuts, input)) = rest.split_at_checked(usize::from(count % 8)) else { return };
    let cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut)).collect();
    let each: Vec<usize> = (0..input.len()).collect();
    for limits in [HttpLimits::default(), SMALL] {
        for answered in [AnsweredMethod::Other, AnsweredMethod::Head] {
            response_splits(&limits, answered, input, &cuts);
            response_splits(&limits, answered, input, &each);
        }
        response_oracle(&limits, input);
    }
});
