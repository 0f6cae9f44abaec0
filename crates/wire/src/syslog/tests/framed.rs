//! Framing of messages on connections.

use super::super::check::{frame_splits, frames};
use super::super::{Framer, SyslogLimits, Truncation};

const LIMITS: SyslogLimits = SyslogLimits { message_size_max: 16 };

/// Expected rows: `message` or `message !TooLong`, one per frame.
#[track_caller]
fn check(bytes: impl AsRef<[u8]>, expected: &[&str]) {
    let bytes = bytes.as_ref();
    let each: Vec<usize> = (0..bytes.len()).collect();
    let seen = frame_splits(&LIMITS, bytes, &each);
    for &cut in &each {
        frame_splits(&LIMITS, bytes, &[cut]);
    }
    let described: Vec<String> = seen
        .iter()
        .map(|(message, cut)| {
            let cut = cut.map_or(String::new(), |cut| format!(" !{cut:?}"));
            format!("{}{cut}", message.escape_ascii())
        })
        .collect();
    assert_eq!(described, expected, "{}", bytes.escape_ascii());
}

#[test]
fn lines_end_with_lf_or_nul() {
    check("<13>a\n<13>b\n", &["<13>a", "<13>b"]);
    check("<13>a\0<13>b\0", &["<13>a", "<13>b"]);
    check("<13>a\r\n\r\n\n<13>b\r\n", &["<13>a\\r", "<13>b\\r"]);
    check("\n\0\r\n", &[]);
    check("", &[]);
    check("a\n5 <13>x\n", &["a", "5 <13>x"]);
    check("<13>unended", &["<13>unended"]);
}

#[test]
fn counted_messages_may_hold_line_ends() {
    check("5 <13>a5 <13>b", &["<13>a", "<13>b"]);
    check("7 <13>a\nb5 <13>c", &["<13>a\\nb", "<13>c"]);
    check("5 <13>a\n5 <13>b\n", &["<13>a", "<13>b"]);
    check("16 <13>012345678901\n", &["<13>012345678901"]);
    check("6 <13>a", &["<13>a !ConnectionEnded"]);
    check("5 <13>a12", &["<13>a", "12 !ConnectionEnded"]);
    // Only the first count must be followed by a priority.
    check("5 <13>a5 hello", &["<13>a", "hello"]);
}

/// A connection begins with a count only if a message follows it: a line may begin with a number.
#[test]
fn the_first_bytes_determine_the_framing_of_a_connection() {
    check("5 apples\n5 <13>\n", &["5 apples", "5 <13>"]);
    check("05 <13>a\n", &["05 <13>a"]);
    check("0 <13>a\n", &["0 <13>a"]);
    check("5\n<13>a\n", &["5", "<13>a"]);
    check("5<13>a\n", &["5<13>a"]);
    check("1234567890 <>\n", &["1234567890 <>"]);
    check("\n5 <13>a", &["<13>a"]);
    check("12", &["12"]);
    check("5 ", &["5 "]);
}

/// A framing error does not end the connection.
#[test]
fn a_missing_count_costs_a_line() {
    check("5 <13>a<13>lost\n5 <13>b", &["<13>a", "<13>lost !NoCount", "<13>b"]);
    check("4 <13>a5 <13>b\n5 <13>c", &["<13>", "a5 <13>b !NoCount", "<13>c"]);
    check("5 <13>a0 x\n5 <13>b", &["<13>a", "0 x !NoCount", "<13>b"]);
}

#[test]
fn a_message_beyond_the_limit_is_cut_and_its_rest_skipped() {
    check("<13>0123456789a\n<13>b\n", &["<13>0123456789a", "<13>b"]);
    check("<13>0123456789ab\n<13>b\n", &["<13>0123456789ab !TooLong", "<13>b"]);
    check(format!("<13>0123456789ab{}\n<13>b\n", "x".repeat(50)), &["<13>0123456789ab !TooLong", "<13>b"]);
    check(format!("<13>0123456789ab{}", "x".repeat(50)), &["<13>0123456789ab !TooLong"]);
    check("17 <13>0123456789abc5 <13>b", &["<13>0123456789ab !TooLong", "<13>b"]);
    check(format!("60 <13>0123456789ab{}5 <13>b", "\n".repeat(44)), &["<13>0123456789ab !TooLong", "<13>b"]);
    check("999999999 <13>0123456789abxxx", &["<13>0123456789ab !TooLong"]);
    let lost = "5 <13>a<13>0123456789abxxx\n5 <13>b";
    check(lost, &["<13>a", "<13>0123456789ab !TooLong", "<13>b"]);
}

/// A megabyte without an end, in single bytes: every byte is scanned once, and the unconsumed input is bounded.
#[test]
fn a_line_without_end_costs_linear_work() {
    let limits = SyslogLimits::default();
    let bytes = [&b"<13>"[..], &vec![b'x'; 1024 * 1024], b"\n<13>b\n"].concat();
    let mut framer = Framer::default();
    let (mut start, mut seen) = (0, Vec::new());
    for end in 1..=bytes.len() {
        loop {
            let step = framer.decode(&limits, &bytes[start..end]);
            start += step.consumed;
            let Some(frame) = step.frame else { break };
            seen.push((frame.message.len(), frame.cut));
        }
    }
    assert_eq!(seen, [(64 * 1024, Some(Truncation::TooLong)), (5, None)]);
    let each: Vec<usize> = (0..200_000).step_by(3).collect();
    let (_, work) = frames(&limits, &bytes, &each);
    assert!(work <= (bytes.len() + 22) as u64, "{work} bytes looked at for {}", bytes.len());
}
