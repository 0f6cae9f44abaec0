//! Properties over generated input, and a second parser on standard messages.

use proptest::prelude::*;
use syslog_loose::{ProcId, Protocol, Variant};

use super::super::check::{frame_splits, parsed};
use super::super::{SyslogFormat, SyslogLimits, parse};

const PIECES: &[&str] = &[
    "<13>",
    "<191>",
    "<192>",
    "1 ",
    "2003-10-11T22:14:15.003Z",
    "Oct 11 22:14:15",
    "Oct  1 2003 22:14:15.5",
    " ",
    "  ",
    "-",
    "- ",
    "host",
    "app",
    "[1]",
    "app[1]: ",
    ":",
    ": ",
    "[a b=\"c\"]",
    "[",
    "]",
    "\"",
    "\\",
    "=",
    "\u{feff}",
    "\u{fc}",
    "\n",
    "\r\n",
    "\0",
    "5 ",
    "5 <13>a",
    "16 <",
    "17 <13>",
    "29: ",
    "*",
    "UTC: ",
    "{}",
    "message",
    "%X-1-Y: ",
];

fn concatenated_pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        12 => proptest::sample::select(PIECES).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..4096usize, 0..12)
}

fn check_against_second(line: &str, format: SyslogFormat) -> Result<(), TestCaseError> {
    let ours = parse(line.as_bytes());
    let theirs = syslog_loose::parse_message_with_year(line, |_| 2020, Variant::Either);
    let text = |part: Option<&[u8]>| part.map(|part| String::from_utf8_lossy(part).into_owned());
    let owned = |part: Option<&str>| part.map(str::to_owned);
    let is_ietf = matches!(theirs.protocol, Protocol::RFC5424(_));
    prop_assert_eq!(ours.format, format, "{}", line);
    prop_assert_eq!(is_ietf, format == SyslogFormat::Ietf, "{}", line);
    prop_assert_eq!(theirs.facility.map(|facility| facility as u8), Some(ours.priority.facility()));
    prop_assert_eq!(theirs.severity.map(|severity| severity as u8), Some(ours.priority.severity()));
    prop_assert_eq!(theirs.timestamp.is_some(), ours.timestamp.is_some(), "{}", line);
    prop_assert_eq!(owned(theirs.hostname), text(ours.host), "{}", line);
    prop_assert_eq!(owned(theirs.appname), text(ours.app), "{}", line);
    let procid = theirs.procid.map(|procid| match procid {
        ProcId::PID(number) => number.to_string(),
        ProcId::Name(name) => name.to_owned(),
    });
    prop_assert_eq!(procid, text(ours.procid), "{}", line);
    prop_assert_eq!(owned(theirs.msgid), text(ours.msgid), "{}", line);
    let elements = ours.structured_data.map_or(0, |data| {
        // Generated values hold no brackets.
        data.iter().filter(|&&byte| byte == b'[').count()
    });
    prop_assert_eq!(theirs.structured_data.len(), elements, "{}", line);
    prop_assert_eq!(theirs.msg.as_bytes(), ours.message, "{}", line);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_of_any_bytes_holds_the_same_messages(bytes in concatenated_pieces(), cuts in cuts(), size_max in 1..40u32) {
        frame_splits(&SyslogLimits { message_size_max: size_max }, &bytes, &cuts);
        frame_splits(&SyslogLimits::default(), &bytes, &cuts);
    }

    #[test]
    fn decoded_ranges_are_inside_the_input(bytes in concatenated_pieces(), any in proptest::collection::vec(any::<u8>(), 0..80)) {
        parsed(&bytes);
        parsed(&any);
        parsed(&[b"<13>", &any[..]].concat());
    }

    #[test]
    fn a_second_parser_agrees_about_rfc_5424(
        priority in 0..=191u8,
        stamp in prop_oneof![
            Just("-".to_owned()),
            "20[0-9][0-9]-(0[1-9]|1[0-2])-[012][1-8]T[01][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]0[0-9]:[0-5][0-9])",
        ],
        words in proptest::collection::vec("-|[a-zA-Z][a-zA-Z0-9._/-]{0,20}[a-z]", 3),
        procid in "-|[1-9][0-9]{0,5}",
        data in prop_oneof![
            Just("-".to_owned()),
            "(\\[[a-z]{1,6}@[0-9]{1,4}( [a-z]{1,4}=\"[a-zA-Z0-9 .]{0,6}\"){1,2}\\]){1,2}",
        ],
        message in "([a-zA-Z{'(][!-~]{0,8}( [!-~]{1,8}){0,3})?",
    ) {
        let [host, app, msgid] = &words[..] else { unreachable!("three words were asked for") };
        let line = format!("<{priority}>1 {stamp} {host} {app} {procid} {msgid} {data} {message}");
        check_against_second(line.trim_end(), SyslogFormat::Ietf)?;
    }

    #[test]
    fn a_second_parser_agrees_about_rfc_3164(
        priority in 0..=191u8,
        stamp in "(Jan|Mar|Jul|Dec) ( [1-9]|[12][0-9]) ([0-9]{0}|20[0-2][0-9] )[01][0-9]:[0-5][0-9]:[0-5][0-9]",
        host in "[a-z0-9][a-zA-Z0-9.-]{0,20}[a-z]",
        app in "[a-z][a-zA-Z0-9_/.-]{0,20}",
        procid in proptest::option::of("[1-9][0-9]{0,5}"),
        message in "[a-zA-Z{'(][!-~]{0,8}( [!-~]{1,8}){0,3}",
    ) {
        let procid = procid.map_or(String::new(), |procid| format!("[{procid}]"));
        check_against_second(&format!("<{priority}>{stamp} {host} {app}{procid}: {message}"), SyslogFormat::Bsd)?;
    }
}
