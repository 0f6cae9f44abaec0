//! Decisions of a gate: the records to store, or the reason of a rejection.

use std::fmt::{self, Write};
use std::ops::Range;

use crate::limits::REJECT_REASON_SIZE_MAX;

/// Decision of a gate about a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Stores the message as it is.
    Accept,
    /// Stores these records instead of the message, consecutively in one batch: all or none. The acknowledgement names
    /// the last one, which also gets the headers of the message, hence its message id.
    AcceptAs(GateRecords),
    /// Stores nothing. The publisher gets the reason.
    Reject(RejectReason),
}

impl Verdict {
    /// Rejects the message with this reason; `format_args!` avoids an allocation.
    #[must_use]
    pub fn reject(reason: impl fmt::Display) -> Verdict {
        Verdict::Reject(RejectReason::new(reason))
    }
}

/// Reason of a rejection: text of at most [`REJECT_REASON_SIZE_MAX`] bytes, stored inline. Longer text is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RejectReason {
    size: u8,
    bytes: [u8; REJECT_REASON_SIZE_MAX],
}

// The length fits its field.
const _: () = assert!(REJECT_REASON_SIZE_MAX <= u8::MAX as usize);

impl RejectReason {
    /// Creates a reason from text. Control characters become blanks.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> RejectReason {
        let mut reason = RejectReason { size: 0, bytes: [0; REJECT_REASON_SIZE_MAX] };
        // Without room the rest is cut.
        let _ = write!(reason, "{text}");
        reason
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.size)]).unwrap_or_default()
    }
}

impl Write for RejectReason {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            let letter = if letter.is_control() { ' ' } else { letter };
            let start = usize::from(self.size);
            let end = start + letter.len_utf8();
            let Some(room) = self.bytes.get_mut(start..end) else { return Err(fmt::Error) };
            letter.encode_utf8(room);
            self.size = end as u8;
        }
        Ok(())
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejectReason({:?})", self.as_str())
    }
}

/// Records that a gate stores instead of a message, at most
/// [`GATE_RECORDS_MAX`](crate::limits::GATE_RECORDS_MAX). Their subjects belong to the stream of the message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GateRecords {
    bytes: Vec<u8>,
    ends: Vec<RecordEnds>,
}

/// Where a record's subject and payload end. The payload follows the subject, and the next record the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecordEnds {
    subject: usize,
    payload: usize,
}

impl GateRecords {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> GateRecords {
        GateRecords::default()
    }

    /// Appends a record.
    pub fn push(&mut self, subject: &str, payload: &[u8]) {
        self.bytes.extend_from_slice(subject.as_bytes());
        let subject_end = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.ends.push(RecordEnds { subject: subject_end, payload: self.bytes.len() });
    }

    /// Returns the list with a further record.
    #[must_use]
    pub fn with(mut self, subject: &str, payload: &[u8]) -> GateRecords {
        self.push(subject, payload);
        self
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the subjects and payloads in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |ends| {
            let part = |range: Range<usize>| &self.bytes[range];
            let record = (part(start..ends.subject), part(ends.subject..ends.payload));
            start = ends.payload;
            record
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters_and_has_no_control_characters() {
        assert_eq!(RejectReason::new("two\nlines\u{7f}").as_str(), "two lines ");
        assert_eq!(RejectReason::new(format_args!("{} of {}", 1, 2)).to_string(), "1 of 2");
        let long = "é".repeat(REJECT_REASON_SIZE_MAX);
        assert_eq!(RejectReason::new(&long).as_str(), &long[..REJECT_REASON_SIZE_MAX]);
        let odd = format!("x{long}");
        assert_eq!(RejectReason::new(&odd).as_str(), &odd[..REJECT_REASON_SIZE_MAX - 1]);
        assert_eq!(RejectReason::new("").as_str(), "");
    }

    #[test]
    fn records_are_returned_as_they_were_pushed() {
        let mut records = GateRecords::new().with("a.b", b"x").with("a.c", b"");
        assert!(!records.is_empty() && GateRecords::new().is_empty());
        records.push("", b"y");
        let all: Vec<(&[u8], &[u8])> = records.iter().collect();
        assert_eq!(all, [(&b"a.b"[..], &b"x"[..]), (b"a.c", b""), (b"", b"y")]);
        assert_eq!(records.len(), 3);
    }
}
