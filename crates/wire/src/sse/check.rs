//! Checks shared by the property tests and the fuzz target: one input, every way to split it, and a naive decoder as the
//! oracle. Each function panics when a check fails.

use std::borrow::Cow;

use super::{SseDecoder, SseEventTooLong, SseLimits};

/// One decoder result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseObservation {
    /// The fields with names and values; comments have an empty name.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// The data.
    pub data: Option<Vec<u8>>,
}

/// Returns all events of a stream that arrives in pieces that end at `cuts`, whether it failed, and the number of
/// searched bytes.
pub fn decode(limits: &SseLimits, bytes: &[u8], cuts: &[usize]) -> (Vec<SseObservation>, bool, u64) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([bytes.len()]).collect();
    ends.sort_unstable();
    let (mut decoder, mut start, mut seen, mut work) = (SseDecoder::default(), 0, Vec::new(), 0);
    for end in ends {
        loop {
            let Ok(step) = decoder.decode_counting(limits, &bytes[start..end], &mut work) else {
                assert_eq!(decoder.decode(limits, b"data\n\n"), Err(SseEventTooLong), "an error lasts");
                return (seen, true, work);
            };
            start += step.consumed;
            assert!(start <= end, "more consumed than given");
            let Some(event) = step.event else { break };
            let fields = event.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            seen.push(SseObservation { fields, data: event.data().map(Cow::into_owned) });
        }
        let waits_most = limits.event_size_max as usize;
        assert!(end - start <= waits_most.max(2), "unconsumed input exceeds the limit of an event");
    }
    (seen, false, work)
}

/// Checks that every split yields the same events for linear work, and that a naive decoder agrees. Returns the events.
pub fn splits(limits: &SseLimits, bytes: &[u8], cuts: &[usize]) -> Vec<SseObservation> {
    let escaped = bytes.escape_ascii().to_string();
    let (whole, failed, _) = decode(limits, bytes, &[]);
    let (pieces, pieces_failed, work) = decode(limits, bytes, cuts);
    assert_eq!((&pieces, pieces_failed), (&whole, failed), "cut at {cuts:?}: {escaped}");
    assert!(work <= bytes.len() as u64, "{work} bytes searched: {escaped}");
    let all = naive(bytes);
    assert_eq!(whole.as_slice(), &all[..whole.len()], "{escaped}");
    assert!(failed || whole.len() == all.len(), "the oracle has more: {escaped}");
    whole
}

/// Decodes the whole stream with line ends made equal.
fn naive(bytes: &[u8]) -> Vec<SseObservation> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let (mut text, mut before) = (Vec::new(), 0);
    for &byte in bytes {
        match byte {
            b'\n' if before == b'\r' => {}
            b'\r' => text.push(b'\n'),
            byte => text.push(byte),
        }
        before = byte;
    }
    let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    // The last line has no end.
    lines.pop();
    let (mut events, mut fields) = (Vec::new(), Vec::new());
    for line in lines {
        if !line.is_empty() {
            let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
            let value = line.get(colon + 1..).unwrap_or_default();
            fields.push((line[..colon].to_vec(), value.strip_prefix(b" ").unwrap_or(value).to_vec()));
        } else if !fields.is_empty() {
            let fields: Vec<(Vec<u8>, Vec<u8>)> = core::mem::take(&mut fields);
            let data: Vec<&[u8]> =
                fields.iter().filter(|(name, _)| name == b"data").map(|(_, value)| &value[..]).collect();
            let data = (!data.is_empty()).then(|| data.join(&b'\n'));
            events.push(SseObservation { fields, data });
        }
    }
    events
}
