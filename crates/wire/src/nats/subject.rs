//! Subjects and filters: validation and matching.
//!
//! ```text
//!   subject   orders.eu.new      tokens between dots, none empty
//!   filter    orders.*.new       `*` matches any one token
//!             orders.>           `>`, at the end only, matches one token or more
//! ```
//!
//! A `*` or `>` next to other bytes of its token is an ordinary byte. Stricter than nats-server, which accepts any byte
//! except blanks: a subject is UTF-8 without control bytes, because it is also used in JSON, addresses and logs; and a
//! published or reply subject has no wildcards. The only exception is JetStream's consumer create request: its
//! subject ends with the requested filter.

use core::fmt;

use super::limits::SubjectLimits;
use crate::swar;

const DOT: u8 = b'.';

/// `$JS.API.CONSUMER.CREATE.<stream>.<name>.<filter>`, as sent by nats.go and others.
const CONSUMER_CREATE_PREFIX: &[u8] = b"$JS.API.CONSUMER.CREATE.";

/// The broken rule of a subject or filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectFault {
    /// Empty, or a dot at an end or next to another.
    EmptyToken,
    /// A blank, another control byte, or invalid UTF-8.
    InvalidByte,
    /// A wildcard in a published subject.
    Wildcard,
    /// `>` is not the last token.
    FullWildcardNotLast,
    /// Longer than [`SubjectLimits::size_max`].
    TooLong,
    /// More tokens than [`SubjectLimits::tokens_max`].
    TooManyTokens,
}

/// An invalid subject or filter, with the offset of the first wrong byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSubject {
    /// The broken rule.
    pub fault: SubjectFault,
    /// Bytes from the start.
    pub offset: usize,
}

/// `empty token at byte 4 of the subject`
impl fmt::Display for BadSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = match self.fault {
            SubjectFault::EmptyToken => "empty token",
            SubjectFault::InvalidByte => "blank, control byte or invalid UTF-8",
            SubjectFault::Wildcard => "wildcard",
            SubjectFault::FullWildcardNotLast => "'>' before the last token",
            SubjectFault::TooLong => "too many bytes",
            SubjectFault::TooManyTokens => "too many tokens",
        };
        write!(f, "{fault} at byte {} of the subject", self.offset)
    }
}

impl core::error::Error for BadSubject {}

/// A valid subject to publish to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject<'a>(&'a [u8]);

/// A valid filter to subscribe to: a subject that may have wildcards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Filter<'a>(&'a [u8]);

impl<'a> Subject<'a> {
    /// Validates a subject.
    ///
    /// # Errors
    /// The bytes are not a valid subject.
    #[inline]
    pub fn parse(bytes: &'a [u8], limits: &SubjectLimits) -> Result<Self, BadSubject> {
        scan::<false>(bytes, limits).map(|()| Self(bytes))
    }

    /// Validates a published subject, which may end with a filter if it is a JetStream consumer create request.
    pub(crate) fn parse_published(bytes: &'a [u8], limits: &SubjectLimits) -> Result<Self, BadSubject> {
        if bytes.starts_with(CONSUMER_CREATE_PREFIX) {
            return scan::<true>(bytes, limits).map(|()| Self(bytes));
        }
        Self::parse(bytes, limits)
    }

    /// Parses the subject at `from` of `input` up to a blank and returns its end, if it is ASCII without `*` and `>`,
    /// and the input is long enough to be read in eight-byte words up to the blank. `None`: use the general parser.
    #[inline(always)]
    pub(crate) fn parse_fast_path(
        input: &'a [u8],
        from: usize,
        limits: &SubjectLimits,
    ) -> Option<(Self, usize)> {
        let (mut at, mut token_start, mut tokens) = (from, from, 1);
        while at - from <= usize::from(limits.size_max) {
            let word = input.get(at..)?.first_chunk::<8>()?;
            let mut marks = marks(u64::from_le_bytes(*word));
            while marks != 0 {
                let mark = at + (marks.trailing_zeros() / 8) as usize;
                match input[mark] {
                    DOT if mark > token_start => {
                        token_start = mark + 1;
                        tokens += 1;
                    }
                    b' ' if mark > token_start => {
                        let is_short =
                            mark - from <= usize::from(limits.size_max) && tokens <= limits.tokens_max;
                        return is_short.then_some((Self(&input[from..mark]), mark));
                    }
                    other if CLASSES[other as usize] == PLAIN => {}
                    _ => return None,
                }
                marks &= marks - 1;
            }
            at += 8;
        }
        None
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &'a str {
        text(self.0)
    }

    /// Returns the tokens.
    #[must_use]
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens { rest: Some(self.0) }
    }
}

impl<'a> Filter<'a> {
    /// Validates a filter.
    ///
    /// # Errors
    /// The bytes are not a valid filter.
    #[inline]
    pub fn parse(bytes: &'a [u8], limits: &SubjectLimits) -> Result<Self, BadSubject> {
        scan::<true>(bytes, limits).map(|()| Self(bytes))
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &'a str {
        text(self.0)
    }

    /// Returns the tokens, including wildcards.
    #[must_use]
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens { rest: Some(self.0) }
    }

    /// Returns the single matching subject of a filter without wildcards.
    #[must_use]
    pub fn literal(&self) -> Option<Subject<'a>> {
        (!self.tokens().any(is_wildcard)).then_some(Subject(self.0))
    }

    /// Whether the filter matches the subject.
    ///
    /// ```
    /// use stilling_wire::nats::{Filter, Subject, SubjectLimits};
    ///
    /// let limits = SubjectLimits::default();
    /// let filter = Filter::parse(b"orders.*.>", &limits)?;
    /// assert!(filter.matches(Subject::parse(b"orders.eu.new.1", &limits)?));
    /// assert!(!filter.matches(Subject::parse(b"orders.eu", &limits)?));
    /// # Ok::<(), stilling_wire::nats::BadSubject>(())
    /// ```
    #[must_use]
    pub fn matches(&self, subject: Subject<'_>) -> bool {
        let mut tokens = subject.tokens();
        for wanted in self.tokens() {
            match (wanted, tokens.next()) {
                (_, None) => return false,
                (b">", Some(_)) => return true,
                (b"*", Some(_)) => {}
                (wanted, Some(token)) if wanted == token => {}
                _ => return false,
            }
        }
        tokens.next().is_none()
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Filter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The tokens of a valid subject or filter, in order.
#[derive(Clone, Debug)]
pub struct Tokens<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest?;
        // Tokens are a few bytes long; a word-wise search would cost more to set up.
        match rest.iter().position(|&byte| byte == DOT) {
            Some(dot) => {
                self.rest = Some(&rest[dot + 1..]);
                Some(&rest[..dot])
            }
            None => {
                self.rest = None;
                Some(rest)
            }
        }
    }
}

impl core::iter::FusedIterator for Tokens<'_> {}

/// Whether a token is a wildcard.
#[must_use]
pub fn is_wildcard(token: &[u8]) -> bool {
    matches!(token, b"*" | b">")
}

/// Validated bytes are UTF-8.
fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap_or_default()
}

/// Byte classes of the subject scanner.
const PLAIN: u8 = 0;
const SEPARATOR: u8 = 1;
const WILDCARD: u8 = 2;
const NON_ASCII: u8 = 3;
const INVALID: u8 = 4;

const CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [PLAIN; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            0..=b' ' | 0x7f => INVALID,
            DOT => SEPARATOR,
            b'*' | b'>' => WILDCARD,
            0x80.. => NON_ASCII,
            _ => PLAIN,
        };
        byte += 1;
    }
    table
}

/// Whether a byte is invalid in subjects, queue names and subscription ids.
pub(crate) const fn is_control(byte: u8) -> bool {
    CLASSES[byte as usize] == INVALID
}

/// Marks at least the lanes with a byte that is not plain.
#[inline(always)]
const fn marks(word: u64) -> u64 {
    // `.`, `*` and `>` differ in two bits; ':', the fourth such byte, is marked needlessly.
    let is_special = swar::equal(word & swar::splat(!0x14), b'*');
    // One more than 0x7f has the highest bit, as have all bytes above it.
    let is_high = (word | word.wrapping_add(swar::splat(1))) & swar::HIGH;
    swar::below(word, b' ' + 1) | is_special | is_high
}

struct SubjectScan<'a> {
    bytes: &'a [u8],
    tokens_max: u16,
    token_start: usize,
    tokens: u16,
    has_non_ascii: bool,
}

impl SubjectScan<'_> {
    /// Checks the byte at `at`. Bytes are checked in order; plain bytes may be skipped.
    #[inline(always)]
    fn check_byte<const FILTER: bool>(&mut self, at: usize) -> Result<(), BadSubject> {
        let bad = |fault| Err(BadSubject { fault, offset: at });
        match CLASSES[self.bytes[at] as usize] {
            SEPARATOR => {
                if at == self.token_start {
                    return bad(SubjectFault::EmptyToken);
                }
                self.tokens += 1;
                if self.tokens >= self.tokens_max {
                    return bad(SubjectFault::TooManyTokens);
                }
                self.token_start = at + 1;
            }
            WILDCARD if at == self.token_start && self.bytes.get(at + 1).is_none_or(|&next| next == DOT) => {
                if !FILTER {
                    return bad(SubjectFault::Wildcard);
                }
                if self.bytes[at] == b'>' && at + 1 != self.bytes.len() {
                    return bad(SubjectFault::FullWildcardNotLast);
                }
            }
            NON_ASCII => self.has_non_ascii = true,
            INVALID => return bad(SubjectFault::InvalidByte),
            _ => {}
        }
        Ok(())
    }
}

/// Validates in one pass, eight bytes at a time; reports the first wrong byte.
#[inline(always)]
fn scan<const FILTER: bool>(bytes: &[u8], limits: &SubjectLimits) -> Result<(), BadSubject> {
    let bad = |fault, offset| Err(BadSubject { fault, offset });
    if bytes.len() > usize::from(limits.size_max) {
        return bad(SubjectFault::TooLong, usize::from(limits.size_max));
    }
    let mut scan =
        SubjectScan { bytes, tokens_max: limits.tokens_max, token_start: 0, tokens: 0, has_non_ascii: false };
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let mut marks = marks(u64::from_le_bytes(*word));
        while marks != 0 {
            scan.check_byte::<FILTER>(at * 8 + (marks.trailing_zeros() / 8) as usize)?;
            marks &= marks - 1;
        }
    }
    for at in bytes.len() - rest.len()..bytes.len() {
        scan.check_byte::<FILTER>(at)?;
    }
    if scan.token_start == bytes.len() {
        return bad(SubjectFault::EmptyToken, bytes.len());
    }
    if scan.has_non_ascii
        && let Err(error) = core::str::from_utf8(bytes)
    {
        return bad(SubjectFault::InvalidByte, error.valid_up_to());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_is_not_plain_is_marked_wherever_it_stands() {
        for byte in (0..=255u8).filter(|&byte| CLASSES[byte as usize] != PLAIN) {
            for neighbour in 0..=255u8 {
                for at in 0..8 {
                    let mut word = [neighbour; 8];
                    word[at] = byte;
                    assert!(
                        marks(u64::from_le_bytes(word)) >> (at * 8 + 7) & 1 == 1,
                        "{byte:#x} in {neighbour:#x}"
                    );
                }
            }
        }
        assert_eq!(marks(u64::from_le_bytes(*b"events_A")), 0);
    }
}
