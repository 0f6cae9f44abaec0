//! Arbitrary bytes in arbitrary pieces are the same responses as in one piece. The first byte is the size of the pieces;
//! the rest follows the number of the request and of the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_wire::frames::FrameDecoder;
use stilling_wire::http1::{AnsweredMethod, HttpLimits, ResponseEvent};

const LIMITS: HttpLimits = HttpLimits { head_size_max: 96, headers_max: 4, body_size_max: u64::MAX };

/// The status and the body of each response, until the input ends or is wrong.
fn decode(input: &[u8], size: usize, answered: AnsweredMethod) -> (Vec<(u16, Vec<u8>)>, bool) {
    let mut decoder = FrameDecoder::new(0);
    let (mut stash, mut responses): (Vec<u8>, Vec<(u16, Vec<u8>)>) = (Vec::new(), Vec::new());
    for piece in input.chunks(size) {
        stash.extend_from_slice(piece);
        loop {
            let Ok(step) = decoder.decode(&LIMITS, answered, &stash) else { return (responses, false) };
            let needs_more = step.event == ResponseEvent::NeedMore;
            match step.event {
                ResponseEvent::Head(head) => responses.push((head.status, Vec::new())),
                ResponseEvent::Body(piece) => {
                    responses.last_mut().expect("a head precedes a body").1.extend_from_slice(piece);
                }
                _ => {}
            }
            stash.drain(..step.consumed);
            if needs_more {
                break;
            }
        }
    }
    (responses, true)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&size, input)) = bytes.split_first() else { return };
    for answered in [AnsweredMethod::Other, AnsweredMethod::Head] {
        let (whole, is_valid) = decode(input, input.len().max(1), answered);
        let (pieces, are_valid) = decode(input, usize::from(size).max(1), answered);
        assert_eq!(is_valid, are_valid);
        // In pieces, more of a response may have been decoded before the error.
        if is_valid {
            assert_eq!(whole, pieces);
        }
    }
});
