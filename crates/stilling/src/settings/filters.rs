//! Relations of filters: a subject belongs to one stream, so filters of two streams must not overlap.

use stilling_wire::nats::{Filter, SubjectLimits, is_wildcard};

/// Subjects of the server itself: the JetStream API, its events, and inboxes for replies.
pub(super) const RESERVED: [&str; 3] = ["$JS.>", "$SYS.>", "_INBOX.>"];

/// Parses a filter. Returns the error as text.
pub(super) fn filter(text: &str) -> Result<Filter<'_>, String> {
    Filter::parse(text.as_bytes(), &SubjectLimits::default())
        .map_err(|error| format!("`{text}` is not a valid subject or filter: {error}"))
}

/// Whether some subject matches both.
pub(super) fn overlap(one: Filter<'_>, other: Filter<'_>) -> bool {
    let (mut one, mut other) = (one.tokens(), other.tokens());
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some(b">"), Some(_)) | (Some(_), Some(b">")) => return true,
            (Some(one), Some(other)) if one == other || is_wildcard(one) || is_wildcard(other) => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stilling_wire::nats::Subject;

    use super::*;

    fn overlaps(one: &str, other: &str) -> bool {
        let (one, other) = (filter(one).expect("a filter"), filter(other).expect("a filter"));
        assert_eq!(overlap(one, other), overlap(other, one), "{one} {other}: overlap is symmetric");
        overlap(one, other)
    }

    #[test]
    fn filters_overlap_when_a_subject_fits_both() {
        for (one, other, expected) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a", "a.b", false),
            ("a.>", "a", false),
            ("a.>", "a.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "b.>", false),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("*.b", "a.*", true),
            ("*.b", "a.c", false),
            ("*", ">", true),
            ("*.*.c", "a.>", true),
            ("*.*.c", "a.b.>", true),
            ("a.*.c", "*.b.d", false),
            ("aa.>", "a.>", false),
        ] {
            assert_eq!(overlaps(one, other), expected, "{one} {other}");
        }
    }

    fn tokens(letters: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
        proptest::collection::vec(proptest::sample::select(letters), 1..4)
    }

    proptest! {
        /// Oracle: all subjects of up to four tokens over the letters of the filters and one more.
        #[test]
        fn overlap_agrees_with_trying_all_subjects(
            one in tokens(&["a", "b", "*"]), one_tail: bool,
            other in tokens(&["a", "b", "*"]), other_tail: bool,
        ) {
            let text = |tokens: &[&str], tail| format!("{}{}", tokens.join("."), if tail { ".>" } else { "" });
            let (one, other) = (text(&one, one_tail), text(&other, other_tail));
            let (one, other) = (filter(&one).expect("a filter"), filter(&other).expect("a filter"));
            let mut subjects: Vec<String> = vec![String::new()];
            let mut found = false;
            for _ in 0..4 {
                subjects = subjects
                    .iter()
                    .flat_map(|head| ["a", "b", "c"].map(|token| format!("{head}.{token}")))
                    .collect();
                found |= subjects.iter().any(|text| {
                    let subject = Subject::parse(&text.as_bytes()[1..], &SubjectLimits::default());
                    let subject = subject.expect("a subject");
                    one.matches(subject) && other.matches(subject)
                });
            }
            prop_assert_eq!(overlap(one, other), found, "{} {}", one, other);
        }
    }
}
