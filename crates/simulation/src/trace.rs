//! Trace of a run: a running hash of all events, and on request their text.
//!
//! Two runs of one seed have equal hashes. The text costs time and memory and is recorded only on request.

use stilling_ring::{SplitMix64, Time};

/// Lines of text recorded per run; when full, the oldest line is dropped, because failures show at the end.
pub const LINES_MAX: usize = 50_000;

/// Hash and optional text of a run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: u64,
    lines: Option<std::collections::VecDeque<String>>,
}

impl Trace {
    pub(crate) fn record_text(&mut self) {
        self.lines.get_or_insert_default();
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.as_mut().map(|lines| lines.drain(..).collect()).unwrap_or_default()
    }

    /// Records that `actor` (a shard's number, a peer's key) did or received `what`, concerning `subject`.
    pub(crate) fn note(
        &mut self,
        now: Time,
        actor: &str,
        number: u64,
        what: &str,
        subject: u64,
        detail: u64,
    ) {
        for word in [now.as_nanos(), number, hash_bytes(what.as_bytes()), subject, detail] {
            self.hash = SplitMix64::mix(self.hash.rotate_left(5) ^ word);
        }
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            let (index, generation) = (subject as u32, subject >> 32);
            let nanos = now.as_nanos();
            let (ms, rest) = (nanos / 1_000_000, nanos % 1_000_000);
            lines.push_back(format!(
                "{ms:>6}.{rest:06} ms  {actor} {number:<4} {what:<18} {index}.{generation}  {detail}"
            ));
        }
    }
}

/// Hashes bytes for the trace, eight at a time: every byte of every run is hashed here.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut hash = bytes.len() as u64;
    for word in words.iter().chain([&last]) {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_order_length_and_every_byte() {
        let texts: [&[u8]; 8] =
            [b"", b"\0", b"\0\0", b"abcdefgh", b"abcdefgh\0", b"bacdefgh", b"abcdefghi", b"iabcdefgh"];
        let hashes: std::collections::BTreeSet<u64> = texts.iter().map(|text| hash_bytes(text)).collect();
        assert_eq!(hashes.len(), texts.len());
        let mut one = Trace::default();
        let mut other = Trace::default();
        one.note(Time::ZERO, "shard", 0, "a", 1, 2);
        one.note(Time::ZERO, "shard", 0, "b", 1, 2);
        other.note(Time::ZERO, "shard", 0, "b", 1, 2);
        other.note(Time::ZERO, "shard", 0, "a", 1, 2);
        assert_ne!(one.hash(), other.hash());
    }

    #[test]
    fn text_is_recorded_only_on_request() {
        let mut trace = Trace::default();
        trace.note(Time::ZERO, "shard", 0, "unseen", 0, 0);
        trace.record_text();
        trace.note(Time::from_nanos(1_000_002), "shard", 1, "received", 3 << 32 | 7, 57);
        let lines = trace.take_lines();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("1.000002 ms") && lines[0].contains("7.3  57"), "{lines:?}");
    }
}
