//! Checks shared by the property tests and the fuzz targets. Each function panics when a check fails.

use super::{Framer, Priority, SyslogFormat, SyslogLimits, Truncation, parse};

/// Exclusive bound of the unconsumed bytes while a count is incomplete.
const COUNT_BYTES: u32 = 12;

/// A frame returned by a framer.
pub type FrameObservation = (Vec<u8>, Option<Truncation>);

/// Returns every message in `bytes` arriving in pieces that end at `cuts`, then ending, and the number of scanned
/// bytes.
pub fn frames(limits: &SyslogLimits, bytes: &[u8], cuts: &[usize]) -> (Vec<FrameObservation>, u64) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([bytes.len()]).collect();
    ends.sort_unstable();
    ends.dedup();
    let (mut framer, mut start, mut seen, mut work) = (Framer::default(), 0, Vec::new(), 0);
    for end in ends {
        loop {
            let step = framer.decode_counting(limits, &bytes[start..end], &mut work);
            start += step.consumed;
            assert!(start <= end, "more consumed than given");
            let Some(frame) = step.frame else { break };
            assert!(!frame.message.is_empty() && frame.message.len() <= limits.message_size_max as usize);
            seen.push((frame.message.to_vec(), frame.cut));
        }
        // An incomplete count waits too.
        let most = limits.message_size_max.max(COUNT_BYTES);
        assert!(end - start < most as usize, "unconsumed input exceeds the message limit");
    }
    let last = framer.finish(limits, &bytes[start..]);
    seen.extend(last.map(|frame| (frame.message.to_vec(), frame.cut)));
    (seen, work)
}

/// Checks that every split of the bytes yields the same messages, for linear work. Returns the messages.
pub fn frame_splits(limits: &SyslogLimits, bytes: &[u8], cuts: &[usize]) -> Vec<FrameObservation> {
    let (whole, _) = frames(limits, bytes, &[]);
    let (pieces, work) = frames(limits, bytes, cuts);
    assert_eq!(pieces, whole, "cut at {cuts:?}: {:?}", bytes.escape_ascii().to_string());
    // Every byte once; a count of at most eleven bytes again with each piece and message.
    let bound = bytes.len() + 11 * (cuts.len() + 1 + pieces.len());
    assert!(work <= bound as u64, "{work} bytes scanned, {bound} allowed");
    whole
}

/// Checks that the parsed parts lie in the input, in its order, and that no part of the message is lost.
pub fn parsed(bytes: &[u8]) {
    let record = parse(bytes);
    let shown = bytes.escape_ascii().to_string();
    let mut at = bytes.as_ptr_range().start;
    let end = bytes.as_ptr_range().end;
    let parts = [
        record.timestamp,
        record.host,
        record.app,
        record.procid,
        record.msgid,
        record.structured_data,
        Some(record.message),
    ];
    for part in parts.into_iter().flatten() {
        let range = part.as_ptr_range();
        if !part.is_empty() {
            assert!(at <= range.start && range.end <= end, "{shown}: {record:?}");
            at = range.end;
        }
    }
    let text = bytes.iter().rposition(|byte| !b"\r\n\0".contains(byte)).map_or(0, |last| last + 1);
    assert!(bytes[..text].ends_with(record.message), "{shown}: {record:?}");
    for word in parts.iter().take(5).flatten() {
        assert!(!word.is_empty() && !word.iter().any(|byte| b"\r\n\0".contains(byte)), "{shown}: {record:?}");
    }
    let is_recognised = record.timestamp.is_some() || record.format == SyslogFormat::Ietf;
    assert_eq!(record.format == SyslogFormat::Plain, !is_recognised, "{shown}: {record:?}");
    if !record.has_priority {
        assert_eq!((record.priority, record.message), (Priority::DEFAULT, &bytes[..text]), "{shown}");
    }
    assert!(record.priority.facility() < 24 && record.priority.severity() < 8);
}
