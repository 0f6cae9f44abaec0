//! Real lines and their parsed form.

use super::super::check::parsed;
use super::super::{Priority, SyslogFormat, SyslogRecord, parse};

/// `priority format time | host | app | procid | msgid | data | message`; `-` marks an absent part.
fn describe(record: &SyslogRecord<'_>) -> String {
    let shown = |part: Option<&[u8]>| part.map_or("-".to_owned(), |part| part.escape_ascii().to_string());
    let given = if record.has_priority { "" } else { "?" };
    format!(
        "{}{given} {:?} {} | {} | {} | {} | {} | {} | {}",
        record.priority.number(),
        record.format,
        shown(record.timestamp),
        shown(record.host),
        shown(record.app),
        shown(record.procid),
        shown(record.msgid),
        shown(record.structured_data),
        record.message.escape_ascii(),
    )
}

#[track_caller]
fn check_all(table: &[(&str, &str)]) {
    for (line, expected) in table {
        let expected = expected.replace('"', "\\\"").replace('\'', "\\'");
        assert_eq!(describe(&parse(line.as_bytes())), expected, "{line:?}");
        parsed(line.as_bytes());
        for end in ["\n", "\r\n", "\0", "\n\0"] {
            assert_eq!(parse(format!("{line}{end}").as_bytes()), parse(line.as_bytes()), "{line:?}");
        }
        for length in 0..line.len() {
            parsed(&line.as_bytes()[..length]);
        }
    }
}

/// As sent by `logger` of util-linux: to a host, in each format, and to the local socket.
#[test]
fn logger_in_all_its_modes_is_understood() {
    check_all(&[
        (
            "<13>1 2026-11-21T23:20:08.882172+00:00 vm root - - [timeQuality tzKnown=\"1\" isSynced=\"0\"] hello world",
            "13 Ietf 2026-11-21T23:20:08.882172+00:00 | vm | root | - | - | \
             [timeQuality tzKnown=\"1\" isSynced=\"0\"] | hello world",
        ),
        (
            "<13>Nov 21 23:20:08 root: hello world",
            "13 Bsd Nov 21 23:20:08 | - | root | - | - | - | hello world",
        ),
        (
            "<13>Nov 21 23:20:08 vm root: hello world",
            "13 Bsd Nov 21 23:20:08 | vm | root | - | - | - | hello world",
        ),
        ("<13>1 - vm root - - - hello world", "13 Ietf - | vm | root | - | - | - | hello world"),
        (
            "<13>1 2026-11-21T23:20:09.018956+00:00 vm root - - - hello world",
            "13 Ietf 2026-11-21T23:20:09.018956+00:00 | vm | root | - | - | - | hello world",
        ),
        (
            "<13>1 2026-11-21T23:20:09.044211+00:00 vm tag 1706 - [timeQuality tzKnown=\"1\" isSynced=\"0\"] hello",
            "13 Ietf 2026-11-21T23:20:09.044211+00:00 | vm | tag | 1706 | - | \
             [timeQuality tzKnown=\"1\" isSynced=\"0\"] | hello",
        ),
        (
            "<13>Nov 21 23:20:09 tag[1711]: hello world",
            "13 Bsd Nov 21 23:20:09 | - | tag | 1711 | - | - | hello world",
        ),
        (
            "<13>1 2026-11-21T23:20:09.127058+00:00 vm root - M1 [timeQuality tzKnown=\"1\" isSynced=\"0\"]\
             [zoo@123 tiger=\"hungry\"] hello",
            "13 Ietf 2026-11-21T23:20:09.127058+00:00 | vm | root | - | M1 | \
             [timeQuality tzKnown=\"1\" isSynced=\"0\"][zoo@123 tiger=\"hungry\"] | hello",
        ),
        (
            "<131>Nov 21 23:20:09 root: hello world",
            "131 Bsd Nov 21 23:20:09 | - | root | - | - | - | hello world",
        ),
    ]);
}

/// RFC 5424 §6.5 and RFC 3164 §5.4.
#[test]
fn the_examples_of_the_standards_are_understood() {
    check_all(&[
        (
            "<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \u{feff}'su root' failed for lonvick",
            "34 Ietf 2003-10-11T22:14:15.003Z | mymachine.example.com | su | - | ID47 | - | \
             'su root' failed for lonvick",
        ),
        (
            "<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
            "165 Ietf 2003-08-24T05:14:15.000003-07:00 | 192.0.2.1 | myproc | 8710 | - | - | \
             %% It's time to make the do-nuts.",
        ),
        (
            "<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut=\"3\"]\
             [examplePriority@32473 class=\"high\"]",
            "165 Ietf 2003-10-11T22:14:15.003Z | mymachine.example.com | evntslog | - | ID47 | \
             [exampleSDID@32473 iut=\"3\"][examplePriority@32473 class=\"high\"] | ",
        ),
        (
            "<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
            "34 Bsd Oct 11 22:14:15 | mymachine | su | - | - | - | 'su root' failed for lonvick on /dev/pts/8",
        ),
        ("Use the BFG!", "13? Plain - | - | - | - | - | - | Use the BFG!"),
        (
            "<165>Aug 24 05:34:00 CST 1987 mymachine myproc[10]: %% It's time.",
            "165 Bsd Aug 24 05:34:00 | CST | - | - | - | - | 1987 mymachine myproc[10]: %% It's time.",
        ),
        (
            "<0>1990 Oct 22 10:52:01 TZ-6 scapegoat.dmz.example.org 10.1.2.3 sched[0]: That's All Folks!",
            "0 Bsd 1990 Oct 22 10:52:01 | TZ-6 | - | - | - | - | \
             scapegoat.dmz.example.org 10.1.2.3 sched[0]: That's All Folks!",
        ),
    ]);
}

#[test]
fn daemons_and_forwarders_are_understood() {
    check_all(&[
        (
            "<86>Oct  1 09:05:02 bsdhost sshd[914]: Accepted publickey for root from ::1 port 22",
            "86 Bsd Oct  1 09:05:02 | bsdhost | sshd | 914 | - | - | Accepted publickey for root from ::1 port 22",
        ),
        ("<6>Oct  1 09:05:02 kernel: ath0: up", "6 Bsd Oct  1 09:05:02 | - | kernel | - | - | - | ath0: up"),
        (
            "<13>Oct  1 09:05:02 bsdhost last message repeated 3 times",
            "13 Bsd Oct  1 09:05:02 | bsdhost | - | - | - | - | last message repeated 3 times",
        ),
        (
            "<30>2026-11-21T23:20:08.882172+00:00 vm systemd[1]: Started Session 4.",
            "30 Bsd 2026-11-21T23:20:08.882172+00:00 | vm | systemd | 1 | - | - | Started Session 4.",
        ),
        (
            "<78>Nov 21 23:20:01 vm CRON[1822]: (root) CMD (true)",
            "78 Bsd Nov 21 23:20:01 | vm | CRON | 1822 | - | - | (root) CMD (true)",
        ),
        (
            "<22>Nov 21 23:20:01 mail postfix/smtpd[12]: connect from a[1.2.3.4]",
            "22 Bsd Nov 21 23:20:01 | mail | postfix/smtpd | 12 | - | - | connect from a[1.2.3.4]",
        ),
        (
            "<86>Nov 21 23:20:01 vm sshd(pam_unix)[10025]: session opened",
            "86 Bsd Nov 21 23:20:01 | vm | sshd(pam_unix) | 10025 | - | - | session opened",
        ),
        (
            "<134>Nov 21 23:20:01 haproxy[6]: 127.0.0.1:5 [21/Nov/2026:23:20:01] in out/a 0/0/1 200",
            "134 Bsd Nov 21 23:20:01 | - | haproxy | 6 | - | - | 127.0.0.1:5 [21/Nov/2026:23:20:01] in out/a 0/0/1 200",
        ),
        (
            "<190>Nov 21 23:20:01 vm nginx: 1.2.3.4 - - \"GET / HTTP/1.1\" 200",
            "190 Bsd Nov 21 23:20:01 | vm | nginx | - | - | - | 1.2.3.4 - - \"GET / HTTP/1.1\" 200",
        ),
        (
            "<13>Nov 21 23:20:01 2001:db8::7 app: v6",
            "13 Bsd Nov 21 23:20:01 | 2001:db8::7 | app | - | - | - | v6",
        ),
        (
            "<13>Nov 21 23:20:01 host app[1] no colon",
            "13 Bsd Nov 21 23:20:01 | host | app | 1 | - | - | no colon",
        ),
        ("<13>Nov 21 23:20:01 host app:", "13 Bsd Nov 21 23:20:01 | host | app | - | - | - | "),
        ("<13>Nov 21 23:20:01 - app: x", "13 Bsd Nov 21 23:20:01 | - | app | - | - | - | x"),
        ("<13>Nov 21 23:20:01 host", "13 Bsd Nov 21 23:20:01 | host | - | - | - | - | "),
        ("<13>Nov 21 23:20:01", "13 Bsd Nov 21 23:20:01 | - | - | - | - | - | "),
        ("<13> Nov 21 23:20:01 host a: b", "13 Bsd Nov 21 23:20:01 | host | a | - | - | - | b"),
        ("<13>root: no time", "13 Plain - | - | root | - | - | - | no time"),
        ("<29>dhcpcd[88]: no time", "29 Plain - | - | dhcpcd | 88 | - | - | no time"),
    ]);
}

#[test]
fn routers_and_switches_are_understood() {
    check_all(&[
        (
            "<189>29: *Mar  1 18:46:11.123: %SYS-5-CONFIG_I: Configured from console by vty2 (10.34.195.36)",
            "189 Bsd Mar  1 18:46:11.123 | - | %SYS-5-CONFIG_I | - | - | - | \
             Configured from console by vty2 (10.34.195.36)",
        ),
        (
            "<187>000029: .Mar 11 18:46:11 UTC: %LINK-3-UPDOWN: Interface Gi0/1, changed state to up",
            "187 Bsd Mar 11 18:46:11 UTC | - | %LINK-3-UPDOWN | - | - | - | Interface Gi0/1, changed state to up",
        ),
        (
            "<189>: 2019 Mar  1 18:46:11 CEST: %ETHPORT-5-IF_UP: Interface up",
            "189 Bsd 2019 Mar  1 18:46:11 CEST | - | %ETHPORT-5-IF_UP | - | - | - | Interface up",
        ),
        (
            "<166>Mar 01 2019 18:46:11: %ASA-6-302013: Built outbound TCP connection",
            "166 Bsd Mar 01 2019 18:46:11 | - | %ASA-6-302013 | - | - | - | Built outbound TCP connection",
        ),
        (
            "<166>Mar 01 2019 18:46:11 fw1 : %ASA-6-302013: Built",
            "166 Bsd Mar 01 2019 18:46:11 | fw1 | - | - | - | - | : %ASA-6-302013: Built",
        ),
    ]);
}

#[test]
fn json_stays_json() {
    check_all(&[
        (
            "<134>Oct 30 16:05:54 opsaudit app: {\"user\": \"a\"}",
            "134 Bsd Oct 30 16:05:54 | opsaudit | app | - | - | - | {\"user\": \"a\"}",
        ),
        (
            "<134>Oct 30 16:05:54 opsaudit {\"user\":\"a\"}",
            "134 Bsd Oct 30 16:05:54 | opsaudit | - | - | - | - | {\"user\":\"a\"}",
        ),
        (
            "<134>Oct 30 16:05:54 {\"user\": \"a\"}",
            "134 Bsd Oct 30 16:05:54 | - | - | - | - | - | {\"user\": \"a\"}",
        ),
        ("<134>{\"user\": \"a\"}", "134 Plain - | - | - | - | - | - | {\"user\": \"a\"}"),
        ("{\"user\": \"a\"}", "13? Plain - | - | - | - | - | - | {\"user\": \"a\"}"),
        ("<13>@cee: {\"a\":1}", "13 Plain - | - | @cee | - | - | - | {\"a\":1}"),
        (
            "<13>1 2003-10-11T22:14:15Z h a - - - {\"a\":[1]}",
            "13 Ietf 2003-10-11T22:14:15Z | h | a | - | - | - | {\"a\":[1]}",
        ),
    ]);
}

#[test]
fn what_is_no_priority_is_a_part_of_the_message() {
    for line in [
        "", "<", "<>", "<>x", "<13", "<13 >x", "<-1>x", "<+1>x", "<192>x", "<999>x", "<0013>x", "<1a>x",
        " <13>x", "13>x",
    ] {
        check_all(&[(line, &format!("13? Plain - | - | - | - | - | - | {line}"))]);
    }
    check_all(&[
        ("<0>x", "0 Plain - | - | - | - | - | - | x"),
        ("<191>x", "191 Plain - | - | - | - | - | - | x"),
        ("<013>x", "13 Plain - | - | - | - | - | - | x"),
        ("<13>", "13 Plain - | - | - | - | - | - | "),
        ("<13><14>x", "13 Plain - | - | - | - | - | - | <14>x"),
    ]);
    assert_eq!((Priority::DEFAULT.facility(), Priority::DEFAULT.severity()), (1, 5));
    assert_eq!(Priority::new(192), None);
}

#[test]
fn what_is_no_header_is_a_part_of_the_message() {
    check_all(&[
        ("<13>1 2003-10-11 h a - - - x", "13 Plain - | - | - | - | - | - | 1 2003-10-11 h a - - - x"),
        ("<13>0 - h a - - - x", "13 Plain - | - | - | - | - | - | 0 - h a - - - x"),
        ("<13>1 - h a", "13 Plain - | - | - | - | - | - | 1 - h a"),
        ("<13>1 - h  a - - x", "13 Plain - | - | - | - | - | - | 1 - h  a - - x"),
        ("<13>Oct 32 22:14:15 h a: x", "13 Plain - | - | - | - | - | - | Oct 32 22:14:15 h a: x"),
        ("<13>Oct 11 24:14:15 h a: x", "13 Plain - | - | - | - | - | - | Oct 11 24:14:15 h a: x"),
        ("<13>Oct 11 22:14:15x", "13 Plain - | - | - | - | - | - | Oct 11 22:14:15x"),
        ("<13>Okt 11 22:14:15 h a: x", "13 Plain - | - | - | - | - | - | Okt 11 22:14:15 h a: x"),
        ("<13>http://a/b c", "13 Plain - | - | - | - | - | - | http://a/b c"),
    ]);
    let long = "a".repeat(256);
    let line = format!("<13>1 - {long} a - - - x");
    check_all(&[(&line, &format!("13 Plain - | - | - | - | - | - | 1 - {long} a - - - x"))]);
    let line = format!("<13>Oct 11 22:14:15 {long} x");
    check_all(&[(&line, &format!("13 Bsd Oct 11 22:14:15 | - | - | - | - | - | {long} x"))]);
}

/// RFC 5424 §6.3: escapes are skipped; malformed data stay in the message.
#[test]
fn structured_data_end_where_their_last_element_does() {
    let check = |rest: &str, data: Option<&str>, message: &str| {
        let line = format!("<13>1 - h a p m {rest}");
        let record = parse(line.as_bytes());
        assert_eq!(record.format, SyslogFormat::Ietf);
        assert_eq!(record.structured_data, data.map(str::as_bytes), "{rest}");
        assert_eq!(record.message, message.as_bytes(), "{rest}");
        parsed(line.as_bytes());
    };
    check("[a]", Some("[a]"), "");
    check("[a] x", Some("[a]"), "x");
    check("[a b=\"\"] x", Some("[a b=\"\"]"), "x");
    check(r#"[a b="\"\\\]" c="]"][d] x"#, Some(r#"[a b="\"\\\]" c="]"][d]"#), "x");
    check(r#"[a b="\n"]"#, Some(r#"[a b="\n"]"#), "");
    check("[a] [b] x", Some("[a]"), "[b] x");
    check("- [b] x", None, "[b] x");
    check("-", None, "");
    check("- ", None, "");
    check("-x", None, "-x");
    check("[] x", None, "[] x");
    check("[a b] x", None, "[a b] x");
    check("[a b=c] x", None, "[a b=c] x");
    check("[a b=\"c] x", None, "[a b=\"c] x");
    check("[a b=\"c\\", None, "[a b=\"c\\");
    check("[a]x", None, "[a]x");
    check("[a  b=\"c\"] x", None, "[a  b=\"c\"] x");
    check("hello", None, "hello");
    assert_eq!(parse(b"<13>1 - h a p m").msgid, Some(&b"m"[..]));
}

#[test]
fn bytes_that_are_no_text_are_handed_on() {
    let line = b"<13>Oct 11 22:14:15 h\xff a\xfe: \x00\x01\xff";
    let record = parse(line);
    assert_eq!((record.host, record.app), (Some(&b"h\xff"[..]), Some(&b"a\xfe"[..])));
    assert_eq!(record.message, b"\x00\x01\xff");
    parsed(line);
}
