//! Random names for publishers, messages and inboxes, and decimal numbers in subjects.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

/// An unpredictable number. The standard library seeds each hasher from the system's randomness.
pub(crate) fn random_seed() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(since.as_nanos());
    hasher.write_u32(std::process::id());
    hasher.finish()
}

pub(crate) fn random_name() -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut rest = u128::from(random_seed()) << 64 | u128::from(random_seed());
    let mut name = String::with_capacity(26);
    for _ in 0..26 {
        name.push(char::from(LETTERS[(rest % 32) as usize]));
        rest /= 32;
    }
    name
}

pub(crate) fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Parses decimal digits without a sign.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// The inbox of one connection: one wildcard subscription, and one token per request after the prefix.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    /// `_INBOX.<name>.`
    prefix: Vec<u8>,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { prefix: format!("_INBOX.{}.", random_name()).into_bytes() }
    }

    pub(crate) fn filter(&self) -> Vec<u8> {
        let mut filter = self.prefix.clone();
        filter.push(b'*');
        filter
    }

    /// Replaces the content of `out` with the reply subject for this token.
    pub(crate) fn subject(&self, token: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.prefix);
        push_number(out, token);
    }

    /// The token in a reply subject; `None` if it is not in this inbox.
    pub(crate) fn token(&self, subject: &[u8]) -> Option<u64> {
        number(subject.strip_prefix(&self.prefix[..])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_finds_its_question_and_nothing_else_does() {
        let (inbox, other) = (Inbox::new(), Inbox::new());
        let mut subject = Vec::new();
        for token in [0, 7, 10, u64::MAX] {
            inbox.subject(token, &mut subject);
            assert_eq!(inbox.token(&subject), Some(token));
            assert_eq!(other.token(&subject), None);
            subject.push(b'x');
            assert_eq!(inbox.token(&subject), None);
        }
        inbox.subject(u64::MAX, &mut subject);
        subject.push(b'0');
        assert_eq!(inbox.token(&subject), None, "no number of this size");
        assert_eq!(inbox.token(&inbox.prefix), None);
    }

    #[test]
    fn names_differ() {
        let names: std::collections::BTreeSet<String> = (0..1000).map(|_| random_name()).collect();
        assert_eq!(names.len(), 1000);
    }
}
