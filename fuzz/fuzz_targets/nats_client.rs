//! Arbitrary bytes in arbitrary pieces yield the same operations for linear work, and the naive decoder agrees. The
//! first byte is the number of following bytes that are split offsets; the rest is input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::nats::check::{client_oracle, client_splits, subject_oracle};
use stilling_wire::nats::{Headers, NatsLimits, SubjectLimits};

const SMALL: NatsLimits = NatsLimits {
    control_line_size_max: 48,
    payload_size_max: 40,
    whole_size_max: 24,
    subject: SubjectLimits { size_max: 8, tokens_max: 3 },
};

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, rest)) = bytes.split_first() else { return };
    let Some((cuts, input)) = rest.split_at_checked(usize::from(count % 8)) else { return };
    let cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut)).collect();
    let each: Vec<usize> = (0..input.len()).collect();
    for limits in [NatsLimits::default(), SMALL] {
        client_splits(&limits, input, &cuts);
        client_splits(&limits, input, &each);
        client_oracle(&limits, input);
        let (filter, subject) = input.split_at(input.len() / 2);
        subject_oracle(&limits.subject, filter, subject);
    }
    if let Ok(headers) = Headers::parse(input) {
        assert!(headers.iter().count() <= input.len());
    }
});
