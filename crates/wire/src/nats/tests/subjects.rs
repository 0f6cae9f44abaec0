//! Subjects, filters, and matching.

use proptest::prelude::*;

use super::super::check::subject_oracle;
use super::super::{Filter, Subject, SubjectFault, SubjectLimits};

const LIMITS: SubjectLimits = SubjectLimits { size_max: 24, tokens_max: 4 };

#[test]
fn a_filter_matches_its_wildcards() {
    for (filter, subject, is_match) in [
        ("a", "a", true),
        ("a", "b", false),
        ("a", "A", false),
        ("a", "a.b", false),
        ("a.b", "a", false),
        ("*", "a", true),
        ("*", "a.b", false),
        ("*.b", "a.b", true),
        ("a.*", "a.b", true),
        ("a.*", "a", false),
        ("a.*.c", "a.b.c", true),
        ("a.*.c", "a.b.d", false),
        (">", "a", true),
        (">", "a.b.c", true),
        ("a.>", "a", false),
        ("a.>", "a.b", true),
        ("a.>", "a.b.c", true),
        ("a.>", "b.a", false),
        ("*.>", "a", false),
        ("*.>", "a.b.c", true),
        ("a*", "ab", false),
        ("a*", "a*", true),
        ("a.b>", "a.b>", true),
        ("a.b>", "a.bc", false),
    ] {
        let parsed = Filter::parse(filter.as_bytes(), &LIMITS).unwrap();
        assert_eq!(
            parsed.matches(Subject::parse(subject.as_bytes(), &LIMITS).unwrap()),
            is_match,
            "{filter} {subject}"
        );
        subject_oracle(&LIMITS, filter.as_bytes(), subject.as_bytes());
    }
}

#[test]
fn an_invalid_subject_error_names_the_fault_and_its_position() {
    for (subject, fault, offset) in [
        ("", SubjectFault::EmptyToken, 0),
        (".", SubjectFault::EmptyToken, 0),
        ("a.", SubjectFault::EmptyToken, 2),
        ("a..b", SubjectFault::EmptyToken, 2),
        ("a b", SubjectFault::InvalidByte, 1),
        ("a\tb", SubjectFault::InvalidByte, 1),
        ("a.\r", SubjectFault::InvalidByte, 2),
        ("a.\n", SubjectFault::InvalidByte, 2),
        ("a.*", SubjectFault::Wildcard, 2),
        ("a.>", SubjectFault::Wildcard, 2),
        ("a.b.c.d.e", SubjectFault::TooManyTokens, 7),
        ("1234567890123456789012345", SubjectFault::TooLong, 24),
    ] {
        let bad = Subject::parse(subject.as_bytes(), &LIMITS).unwrap_err();
        assert_eq!((bad.fault, bad.offset), (fault, offset), "{subject:?}");
        assert!(bad.to_string().contains(&format!("at byte {offset} of the subject")));
    }
    let bad = Filter::parse(b"a.>.b", &LIMITS).unwrap_err();
    assert_eq!((bad.fault, bad.offset), (SubjectFault::FullWildcardNotLast, 2));
}

#[test]
fn a_filter_without_wildcards_is_a_subject() {
    let literal =
        |filter: &str| Filter::parse(filter.as_bytes(), &LIMITS).unwrap().literal().map(|s| s.to_string());
    assert_eq!(literal("a.b*.c"), Some("a.b*.c".to_owned()));
    assert_eq!(literal("a.*"), None);
    assert_eq!(literal("a.>"), None);
}

const TOKENS: &[&[u8]] = &[b"a", b"b", b"ab", b"*", b">", "\u{e9}".as_bytes()];
const ODD_TOKENS: &[&[u8]] = &[b"", b" ", b"a*", b"\xff", b"\x7f", b">>"];

/// Few different tokens, so that many pairs match, and every kind of invalid token.
fn tokens() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        8 => proptest::sample::select(TOKENS).prop_map(<[u8]>::to_vec),
        1 => proptest::sample::select(ODD_TOKENS).prop_map(<[u8]>::to_vec),
    ];
    proptest::collection::vec(token, 1..6).prop_map(|tokens| tokens.join(&b'.'))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_naive_validator_and_matcher_agree(filter in tokens(), subject in tokens()) {
        subject_oracle(&LIMITS, &filter, &subject);
    }

    #[test]
    fn any_bytes_are_validated_like_the_naive_validator(
        filter in proptest::collection::vec(any::<u8>(), 0..12),
        subject in proptest::collection::vec(any::<u8>(), 0..12),
    ) {
        subject_oracle(&LIMITS, &filter, &subject);
    }
}
