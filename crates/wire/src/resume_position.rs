//! The position from which a subscription resumes, as text: `Last-Event-ID` and the id of an event, `?from=` and
//! options like it.

use core::fmt;

use jiff::Timestamp;

/// Longest position in bytes. Reached: it is rejected.
pub const POSITION_SIZE_MAX: usize = 64;

/// The id of a message for its subscribers: the stream's epoch and the message's sequence, as `<epoch>-<sequence>`. A
/// stream that lost its sequences has another epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    /// The stream's epoch.
    pub epoch: u64,
    /// The message's sequence.
    pub sequence: u64,
}

impl EventId {
    /// Appends the text to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut buffer = itoa::Buffer::new();
        out.extend_from_slice(buffer.format(self.epoch).as_bytes());
        out.push(b'-');
        out.extend_from_slice(buffer.format(self.sequence).as_bytes());
    }

    /// Parses the text.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let dash = text.iter().position(|&byte| byte == b'-')?;
        Some(Self { epoch: number(&text[..dash])?, sequence: number(&text[dash + 1..])? })
    }
}

/// `3-17`
impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.sequence)
    }
}

/// Where a subscription starts.
///
/// ```
/// use stilling_wire::resume_position::{EventId, ResumePosition};
///
/// let id = EventId { epoch: 3, sequence: 17 };
/// assert_eq!(ResumePosition::parse(b"3-17"), Ok(ResumePosition::After(id)));
/// assert_eq!(ResumePosition::parse(b"17"), Ok(ResumePosition::Sequence(17)));
/// assert_eq!(ResumePosition::parse(b"2026-01-31T12:00:00Z"), Ok(ResumePosition::Time(1_769_860_800_000_000_000)));
/// assert_eq!(ResumePosition::parse(b"new"), Ok(ResumePosition::New));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumePosition {
    /// `<epoch>-<sequence>`: the first message after the one with this id, the last that the subscriber received.
    After(EventId),
    /// `<sequence>`: this message, or the next one that is stored.
    Sequence(u64),
    /// A time of RFC 3339, as Unix time in nanoseconds: the first message at or after it. Times before 1970 are 1970.
    Time(u64),
    /// `all`: the first stored message.
    All,
    /// `new`: messages published from now on.
    New,
}

/// A text that is none of the forms of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPosition;

impl fmt::Display for BadPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected an id such as 3-17, a sequence, a time such as 2026-01-31T12:00:00Z, all, or new",
        )
    }
}

impl core::error::Error for BadPosition {}

impl ResumePosition {
    /// Parses the text of an option or field, without percent-encoding.
    ///
    /// # Errors
    /// [`BadPosition`] if the text has none of the forms, or more than [`POSITION_SIZE_MAX`] bytes.
    pub fn parse(text: &[u8]) -> Result<Self, BadPosition> {
        if text.len() > POSITION_SIZE_MAX {
            return Err(BadPosition);
        }
        if let Some(sequence) = number(text) {
            return Ok(Self::Sequence(sequence));
        }
        if let Some(id) = EventId::parse(text) {
            return Ok(Self::After(id));
        }
        match text {
            b"all" => return Ok(Self::All),
            b"new" => return Ok(Self::New),
            _ => {}
        }
        let time = str::from_utf8(text).ok().and_then(|text| text.parse::<Timestamp>().ok());
        // The last time of the calendar, in the year 9999, exceeds 64 bits.
        let nanos = time.ok_or(BadPosition)?.as_nanosecond().max(0);
        Ok(Self::Time(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Appends the text to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::After(id) => id.encode(out),
            Self::Sequence(sequence) => {
                out.extend_from_slice(itoa::Buffer::new().format(*sequence).as_bytes());
            }
            Self::Time(nanos) => push_time(out, *nanos),
            Self::All => out.extend_from_slice(b"all"),
            Self::New => out.extend_from_slice(b"new"),
        }
    }
}

/// Appends a time in nanoseconds of Unix time in the form of RFC 3339, always with nine digits of fraction.
pub(crate) fn push_time(out: &mut Vec<u8>, nanos: u64) {
    const PRINTER: jiff::fmt::temporal::DateTimePrinter =
        jiff::fmt::temporal::DateTimePrinter::new().precision(Some(9));
    // Every u64 is a time before the year 2555.
    let time = Timestamp::from_nanosecond(nanos.into()).unwrap_or_default();
    let written = PRINTER.print_timestamp(&time, &mut *out);
    debug_assert!(written.is_ok(), "a vector accepts everything");
}

/// One to twenty digits that fit in 64 bits.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| str::from_utf8(text).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Row 2.18: a subscriber resumes by sequence, or from a time.
    #[test]
    fn every_form_is_read_and_nothing_else() {
        let after = |epoch, sequence| Ok(ResumePosition::After(EventId { epoch, sequence }));
        let table = [
            ("0", Ok(ResumePosition::Sequence(0))),
            ("18446744073709551615", Ok(ResumePosition::Sequence(u64::MAX))),
            ("18446744073709551616", Err(BadPosition)),
            ("007", Ok(ResumePosition::Sequence(7))),
            ("3-17", after(3, 17)),
            ("0-0", after(0, 0)),
            ("18446744073709551615-18446744073709551615", after(u64::MAX, u64::MAX)),
            ("3-", Err(BadPosition)),
            ("-17", Err(BadPosition)),
            ("+17", Err(BadPosition)),
            ("3-17-1", Err(BadPosition)),
            ("3 - 17", Err(BadPosition)),
            ("2026-01-31T12:00:00Z", Ok(ResumePosition::Time(1_769_860_800 * SECOND))),
            ("2026-01-31T12:00:00.5Z", Ok(ResumePosition::Time(1_769_860_800 * SECOND + SECOND / 2))),
            ("2026-01-31T14:00:00+02:00", Ok(ResumePosition::Time(1_769_860_800 * SECOND))),
            ("1969-12-31T23:59:59Z", Ok(ResumePosition::Time(0))),
            ("9999-01-01T00:00:00Z", Ok(ResumePosition::Time(u64::MAX))),
            ("2026-01-31", Err(BadPosition)),
            ("2026-01-31T12:00:00", Err(BadPosition)),
            ("2026-02-31T12:00:00Z", Err(BadPosition)),
            ("new", Ok(ResumePosition::New)),
            ("all", Ok(ResumePosition::All)),
            ("New", Err(BadPosition)),
            ("", Err(BadPosition)),
            ("\u{fc}", Err(BadPosition)),
        ];
        for (text, expected) in table {
            assert_eq!(ResumePosition::parse(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(ResumePosition::parse(&[b'0'; POSITION_SIZE_MAX + 1]), Err(BadPosition));
        assert_eq!(ResumePosition::parse(b"\xff"), Err(BadPosition));
    }

    #[test]
    fn times_have_nine_digits_of_fraction() {
        for (nanos, expected) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (1_769_860_800 * SECOND + 120, "2026-01-31T12:00:00.000000120Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            let mut out = Vec::new();
            push_time(&mut out, nanos);
            assert_eq!(str::from_utf8(&out), Ok(expected));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn positions_are_read_as_written(first: u64, second: u64) {
            let id = EventId { epoch: first, sequence: second };
            for position in [
                ResumePosition::After(id),
                ResumePosition::Sequence(first),
                ResumePosition::Time(second),
                ResumePosition::All,
                ResumePosition::New,
            ] {
                let mut text = Vec::new();
                position.encode(&mut text);
                prop_assert_eq!(ResumePosition::parse(&text), Ok(position));
            }
            prop_assert_eq!(EventId::parse(id.to_string().as_bytes()), Some(id));
        }

        #[test]
        fn any_bytes_are_read_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..70)) {
            let _ = ResumePosition::parse(&bytes);
        }
    }
}
