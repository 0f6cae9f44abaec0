//! Arbitrary bytes in arbitrary pieces yield the same events for linear work, and the naive decoder agrees; any bytes are
//! a message's payload, whose object is one event. The first byte is the number of following bytes that are split
//! offsets; the rest is input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::message_object::MessageObject;
use stilling_wire::resume_position::ResumePosition;
use stilling_wire::sse::check::{decode, splits};
use stilling_wire::sse::{SseLimits, encode_message};

const SMALL: SseLimits = SseLimits { event_size_max: 20 };

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, rest)) = bytes.split_first() else { return };
    let Some((cuts, input)) = rest.split_at_checked(usize::from(count % 8)) else { return };
    let cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut)).collect();
    let each: Vec<usize> = (0..input.len()).collect();
    for limits in [SseLimits::default(), SMALL] {
        splits(&limits, input, &cuts);
        splits(&limits, input, &each);
    }
    let mut sent = Vec::new();
    encode_message(&mut sent, 1, &MessageObject { sequence: 2, subject: "a", time_ns: 3, payload: input });
    let (events, failed, _) = decode(&SseLimits::default(), &sent, &[]);
    assert!(!failed && events.len() == 1 && events[0].fields.len() == 2);
    if let Ok(position) = ResumePosition::parse(input) {
        let mut text = Vec::new();
        position.encode(&mut text);
        assert_eq!(ResumePosition::parse(&text), Ok(position));
    }
});
