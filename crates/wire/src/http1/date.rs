//! The value of the `Date` field. The caller supplies the time, once per second and shard.

use core::fmt::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

const DATE_SIZE: usize = 29;
/// Last second with a four-digit year.
const SECONDS_MAX: u64 = 253_402_300_799;

/// A formatted time such as `Sun, 06 Nov 1994 08:49:37 GMT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date([u8; DATE_SIZE]);

impl Date {
    /// Formats seconds since 1970-01-01 00:00:00 UTC; times after the year 9999 are clamped to its last second.
    #[must_use]
    pub fn from_unix_seconds(seconds: u64) -> Self {
        let time = UNIX_EPOCH + Duration::from_secs(seconds.min(SECONDS_MAX));
        let mut text = DateBuffer { bytes: *b"Thu, 01 Jan 1970 00:00:00 GMT", filled: 0 };
        // An IMF-fixdate always has 29 bytes, so the buffer cannot fill early.
        let written = write!(text, "{}", httpdate::HttpDate::from(time));
        debug_assert!(written.is_ok() && text.filled == DATE_SIZE);
        Self(text.bytes)
    }

    /// The 29 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; DATE_SIZE] {
        &self.0
    }
}

struct DateBuffer {
    bytes: [u8; DATE_SIZE],
    filled: usize,
}

impl Write for DateBuffer {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.filled + part.len();
        self.bytes.get_mut(self.filled..end).ok_or(fmt::Error)?.copy_from_slice(part.as_bytes());
        self.filled = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_an_imf_fixdate_at_both_ends_of_time() {
        let check = |seconds, text: &[u8; 29]| assert_eq!(Date::from_unix_seconds(seconds).as_bytes(), text);
        check(0, b"Thu, 01 Jan 1970 00:00:00 GMT");
        check(784_111_777, b"Sun, 06 Nov 1994 08:49:37 GMT");
        check(951_782_400, b"Tue, 29 Feb 2000 00:00:00 GMT");
        check(u64::MAX, b"Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
