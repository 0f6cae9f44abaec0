//! Arbitrary bytes in arbitrary pieces yield the same deliveries for linear work, and no JSON or subject of a server
//! causes a panic. The first byte is the number of following bytes that are split offsets; the rest is input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::nats::check::server_splits;
use stilling_wire::nats::{AckSubject, Connect, Info, NatsLimits, PubAckResponse, SubjectLimits};

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
    for limits in [NatsLimits::for_client(), SMALL] {
        server_splits(&limits, input, &cuts);
        server_splits(&limits, input, &each);
    }
    let _ = (Connect::parse(input), Info::parse(input), PubAckResponse::parse(input));
    if let Some(subject) = AckSubject::parse(input) {
        let mut written = Vec::new();
        subject.encode(&mut written);
        assert_eq!(AckSubject::parse(&written), Some(subject));
    }
});
