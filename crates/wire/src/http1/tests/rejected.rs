//! Rejected requests: fault and offset. Most of them could make two parsers of one connection disagree about the end of
//! a request.

use super::{check, check_all};

#[test]
fn a_request_line_has_exactly_its_parts_and_single_spaces() {
    check_all(&[
        (" GET / HTTP/1.1\r\n", "400 Method @0"),
        ("\tGET / HTTP/1.1\r\n", "400 Method @0"),
        ("\nGET / HTTP/1.1\r\n", "400 Method @0"),
        ("\r\n\nGET / HTTP/1.1\r\n", "400 Method @0"),
        ("\rGET / HTTP/1.1\r\n", "400 LineEnd @1"),
        ("\r\n\rG", "400 LineEnd @3"),
        ("\r\n\r\r\n", "400 LineEnd @3"),
        ("GET\r\n", "400 Method @3"),
        ("GET\t/ HTTP/1.1\r\n", "400 Method @3"),
        ("GET: /\r\n", "400 Method @3"),
        ("G\0T /", "400 Method @1"),
        ("\x16\x03\x01", "400 Method @0"),
        ("GET  / HTTP/1.1\r\n", "400 TargetByte @4"),
        ("GET \r\n", "400 TargetByte @4"),
        ("GET \t/ HTTP/1.1\r\n", "400 TargetByte @4"),
        ("GET /  HTTP/1.1\r\n", "400 VersionByte @6"),
        ("GET /\tHTTP/1.1\r\n", "400 TargetByte @5"),
        ("GET / HTTP/1.1 \r\n", "400 VersionByte @14"),
        ("GET / HTTP/1.1\t\r\n", "400 VersionByte @14"),
        ("GET / HTTP/1.1x\r\n", "400 VersionByte @14"),
        ("GET / a HTTP/1.1\r\n", "400 VersionByte @6"),
        ("GET / HTTP/1.1\n", "400 VersionByte @14"),
        ("GET / HTTP/1.1\r\r\n", "400 LineEnd @15"),
        ("GET / HTTP/1.1\rHost: a\r\n", "400 LineEnd @15"),
        ("GET /\n", "400 TargetByte @5"),
        ("GET /#a HTTP/1.1\r\n", "400 TargetByte @5"),
        ("GET /\u{fc} HTTP/1.1\r\n", "400 TargetByte @5"),
        ("GET /\x7f HTTP/1.1\r\n", "400 TargetByte @5"),
    ]);
    for byte in (0..=0x20u8).filter(|b| !b" \r".contains(b)).chain([0x7f, 0x80, 0xff]) {
        let line = [b"GET /", &[byte][..], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        check(&line, "400 TargetByte @5");
    }
    for byte in b"\"(),/:;<=>?@[\\]{}\x7f\x80\xff\0\r\n\t" {
        let line = [b"GE", &[*byte][..], b"T / HTTP/1.1\r\n"].concat();
        check(&line, "400 Method @2");
    }
}

#[test]
fn a_version_is_exact_and_its_major_is_one() {
    check_all(&[
        ("GET / http/1.1\r\n", "400 VersionByte @6"),
        ("GET / Http/1.1\r\n", "400 VersionByte @7"),
        ("GET / HTTP/11\r\n", "400 VersionByte @12"),
        ("GET / HTTP/1\r\n", "400 VersionByte @12"),
        ("GET / HTTP/1.\r\n", "400 VersionByte @13"),
        ("GET / HTTP/1.x\r\n", "400 VersionByte @13"),
        ("GET / HTTP/x.1\r\n", "400 VersionByte @11"),
        ("GET / HTTP/1.10\r\n", "400 VersionByte @14"),
        ("GET / HTTP/01.1\r\n", "400 VersionByte @12"),
        ("GET / HTTP 1.1\r\n", "400 VersionByte @10"),
        ("GET / HTTPS/1.1\r\n", "400 VersionByte @10"),
        ("GET / HTTP/0.9\r\n", "505 VersionUnsupported @11"),
        ("GET / HTTP/2.0\r\n", "505 VersionUnsupported @11"),
        ("GET / HTTP/3.0\r\n", "505 VersionUnsupported @11"),
        ("GET / HTTP/9.9\r\n", "505 VersionUnsupported @11"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 VersionUnsupported @11"),
    ]);
}

/// Row 4.40: only `GET` may omit the version, and only the empty line may follow.
#[test]
fn a_request_without_version_has_nothing_else_either() {
    check_all(&[
        ("POST /a\r\n\r\n", "400 VersionAbsent @7"),
        ("HEAD /a \r\n\r\n", "400 VersionAbsent @8"),
        ("get /a\r\n\r\n", "400 VersionAbsent @6"),
        ("GETT /a\r\n\r\n", "400 VersionAbsent @7"),
        ("GET /a\r\nHost: a\r\n\r\n", "400 VersionAbsent @8"),
        ("GET /a\r\n \r\n", "400 VersionAbsent @8"),
        ("GET /a\r\n\n", "400 VersionAbsent @8"),
        ("GET /a\r\n\rx", "400 LineEnd @9"),
        ("GET /a\rx", "400 LineEnd @7"),
        ("GET /a\n\n", "400 TargetByte @6"),
        ("GET /a  \r\n\r\n", "400 VersionByte @7"),
        ("GET *\r\n\r\n", "400 TargetForm @4"),
    ]);
}

#[test]
fn a_target_has_the_form_its_method_demands() {
    for (method, target) in [
        ("GET", "*"),
        ("GET", "a"),
        ("GET", "a:80"),
        ("GET", "?a"),
        ("GET", "ftp://a/"),
        ("GET", "http:/a"),
        ("GET", "http:///a"),
        ("GET", "http://"),
        ("GET", "http://:80/"),
        ("GET", "http://u@a/"),
        ("GET", "http://u:p@a/"),
        ("GET", "http://a:b/"),
        ("GET", "http://a\\b/"),
        ("GET", "http://[::1/"),
        ("OPTIONS", "**"),
        ("OPTIONS", "*/"),
        ("CONNECT", "/"),
        ("CONNECT", "*"),
        ("CONNECT", "a"),
        ("CONNECT", "a:"),
        ("CONNECT", "a:b"),
        ("CONNECT", "http://a:1"),
        ("CONNECT", "a:1/"),
    ] {
        let at = method.len() + 1;
        check(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n"), &format!("400 TargetForm @{at}"));
    }
}

/// Each row continues a head; its field section begins at byte 25.
fn check_fields(table: &[(&str, &str)]) {
    for (fields, expected) in table {
        check(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}"), expected);
    }
}

#[test]
fn a_field_line_has_one_reading() {
    check_fields(&[
        ("A : b\r\n\r\n", "400 FieldName @26"),
        ("A\t: b\r\n\r\n", "400 FieldName @26"),
        (": b\r\n\r\n", "400 FieldName @25"),
        ("A\r\n\r\n", "400 FieldName @26"),
        ("A b: c\r\n\r\n", "400 FieldName @26"),
        ("A\0: b\r\n\r\n", "400 FieldName @26"),
        ("\u{fc}: b\r\n\r\n", "400 FieldName @25"),
        ("A(b): c\r\n\r\n", "400 FieldName @26"),
        ("\"A\": c\r\n\r\n", "400 FieldName @25"),
        (" A: b\r\n\r\n", "400 FieldFolded @25"),
        ("A: b\r\n c\r\n\r\n", "400 FieldFolded @31"),
        ("A: b\r\n\tc\r\n\r\n", "400 FieldFolded @31"),
        ("A: b\r\n \r\n\r\n", "400 FieldFolded @31"),
        ("A: b\n\r\n", "400 FieldValue @29"),
        ("A: b\n\n", "400 FieldValue @29"),
        ("A: b\r\n\n", "400 FieldName @31"),
        ("A: b\rc\r\n\r\n", "400 LineEnd @30"),
        ("A: b\r\r\n\r\n", "400 LineEnd @30"),
        ("A:\rContent-Length: 5\r\n\r\n", "400 LineEnd @28"),
        ("A:\n\r\n", "400 FieldValue @27"),
        ("A: b\r\n\rx", "400 LineEnd @32"),
        ("A: \0\r\n\r\n", "400 FieldValue @28"),
        ("\rA: b\r\n", "400 LineEnd @26"),
    ]);
    check("GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400 FieldFolded @16");
    check("GET / HTTP/1.1\r\n\tHost: a\r\n\r\n", "400 FieldFolded @16");
    for byte in (0..0x20u8).filter(|b| !b"\t\r".contains(b)).chain([0x7f]) {
        let head = [b"GET / HTTP/1.1\r\nA: b", &[byte][..], b"\r\nHost: a\r\n\r\n"].concat();
        check(&head, "400 FieldValue @20");
    }
    for byte in (0..=0x20u8).chain(*b"\"(),/;<=>?@[\\]{}\x7f\x80\xff") {
        let head = [b"GET / HTTP/1.1\r\nA", &[byte][..], b"B: c\r\nHost: a\r\n\r\n"].concat();
        check(&head, "400 FieldName @17");
    }
}

#[test]
fn there_is_exactly_one_valid_host() {
    check("GET / HTTP/1.1\r\n\r\n", "400 HostMissing @18");
    check("GET http://a/ HTTP/1.1\r\n\r\n", "400 HostMissing @26");
    check("GET / HTTP/1.7\r\nA: b\r\n\r\n", "400 HostMissing @24");
    check_fields(&[
        ("Host: a\r\n\r\n", "400 HostRepeated @30"),
        ("HOST:\r\n\r\n", "400 HostRepeated @30"),
        ("A: b\r\nhost: b\r\n\r\n", "400 HostRepeated @36"),
    ]);
    for host in [
        "a b", "a/b", "a@b", "a:b", "a:1:2", ":80", "[::1", "[]", "[g/]", "a%2", "a%zz", "\u{fc}", "a\\b",
        "a?b", "a#b", "[::1]x", "\"a\"", "<a>",
    ] {
        check(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), "400 HostInvalid @21");
    }
    check("GET / HTTP/1.0\r\nHost: a b\r\n\r\n", "400 HostInvalid @21");
}

#[test]
fn framing_has_one_reading() {
    for length in [
        "",
        "+5",
        "-5",
        "0x5",
        "5 5",
        "5, 5",
        "5,5",
        "5,",
        "five",
        "5.0",
        "5;a",
        "\"5\"",
        "18446744073709551616",
        "99999999999999999999999",
        "\u{665}",
    ] {
        check_fields(&[(&format!("Content-Length: {length}\r\n\r\n"), "400 ContentLength @40")]);
    }
    check_fields(&[
        ("Content-Length: 5\r\nContent-Length: 5\r\n\r\n", "400 ContentLengthRepeated @59"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "400 ContentLengthRepeated @59"),
        ("Content-Length: 0\r\ncontent-length: 0\r\n\r\n", "400 ContentLengthRepeated @59"),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "400 LengthConflict @62"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "400 LengthConflict @68"),
        ("Transfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n", "400 ContentLength @68"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "400 TransferEncoding @71"),
    ]);
    for coding in [
        "",
        ",",
        "chunked,",
        ",chunked",
        "chunked, chunked",
        "chunked, gzip",
        "gzip, chunked, gzip",
        "chunked;a=b",
        "\"chunked\"",
        "chun ked",
        "gzip,,chunked",
    ] {
        check_fields(&[(&format!("Transfer-Encoding: {coding}\r\n\r\n"), "400 TransferEncoding @43")]);
    }
    for coding in
        ["gzip", "identity", "xchunked", "chunkedx", "gzip, chunked", "gzip;q=1, chunked", "deflate , gzip"]
    {
        check_fields(&[(&format!("Transfer-Encoding: {coding}\r\n\r\n"), "501 TransferUnknown @43")]);
    }
    check("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "400 TransferVersion @34");
    check("PUT / HTTP/1.0\r\nTransfer-Encoding: gzip\r\n\r\n", "400 TransferVersion @34");
    for expectation in ["", "200-ok", "100-continue, 100-continue", "100-continue;a"] {
        check_fields(&[(&format!("Expect: {expectation}\r\n\r\n"), "417 Expectation @32")]);
    }
}

/// Row 4.32: a head may reach the limit but not exceed it; the rejection occurs at the byte that reaches it.
#[test]
fn heads_are_bounded_with_and_without_line_ends() {
    let head = |filler: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "b".repeat(filler));
    let room = 512 - head(0).len();
    check(head(room), "GET / 1.1 host=a keep");
    check(head(room + 1), "431 HeadSize @512");
    check("G".repeat(511), "wait 511");
    check("G".repeat(512), "414 LineSize @512");
    check(format!("GET /{}", "a".repeat(600)), "414 LineSize @512");
    check(format!("GET / HTTP/1.1\r\n{}", "a".repeat(600)), "431 HeadSize @512");
    check(format!("GET / HTTP/1.1\r\nA:{}", " ".repeat(600)), "431 HeadSize @512");
    let fields = |count| format!("GET / HTTP/1.0\r\n{}\r\n", "A: b\r\n".repeat(count));
    check(fields(8), "GET / 1.0 close");
    check(fields(9), "431 FieldCount @64");
}
