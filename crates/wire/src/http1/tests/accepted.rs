//! Accepted requests and their parsed form.

use super::{check, check_all};

/// Row 4.15: pipelined and persistent connections; one call per small request.
#[test]
fn plain_requests_are_decoded() {
    check_all(&[
        ("", ""),
        (
            "GET /test/fast HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n",
            "GET /test/fast 1.1 host=127.0.0.1:9000 keep",
        ),
        (
            "GET / HTTP/1.1\r\nHost:a\r\n\r\nGET /b HTTP/1.1\r\nHost:a\r\n\r\n",
            "GET / 1.1 host=a keep; GET /b 1.1 host=a keep",
        ),
        ("GET / HTTP/1.1\r\nHost:a\r\n\r\nGE", "GET / 1.1 host=a keep; wait 2"),
        ("GET / HTTP/1.0\r\n\r\n", "GET / 1.0 close"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / 1.1 host= keep"),
        ("GET / HTTP/1.1\r\nHost: \t a \t \r\n\r\n", "GET / 1.1 host=a keep"),
        ("GET / HTTP/1.1\r\nhOsT: a\r\n\r\n", "GET / 1.1 host=a keep"),
        ("GET / HTTP/1.1\r\nA: b\r\nHost: a\r\nB: \x7e\u{fc}\r\n\r\n", "GET / 1.1 host=a keep"),
        ("GET / HTTP/1.1\r\nHost: a\r\n!#$%&'*+-.^_`|~09azAZ: x\r\n\r\n", "GET / 1.1 host=a keep"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\tb\t\tc\r\n\r\n", "GET / 1.1 host=a keep"),
    ]);
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    check_all(&[
        ("\r", "wait 1"),
        ("\r\n", ""),
        ("\r\n\r\n\r\n", ""),
        ("\r\n\r", "wait 1"),
        ("\r\nGET / HTTP/1.0\r\n\r\n", "GET / 1.0 close"),
        ("\r\n\r\nGET / HTTP/1.0\r\n\r\n\r\nGET /b HTTP/1.0\r\n\r\n", "GET / 1.0 close; GET /b 1.0 close"),
    ]);
    check("\r\n".repeat(8) + "GET / HTTP/1.0\r\n\r\n", "GET / 1.0 close");
    check("\r\n".repeat(9), "400 EmptyLines @16");
}

#[test]
fn methods_are_case_sensitive_tokens() {
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"] {
        check(format!("{method} / HTTP/1.0\r\n\r\n"), &format!("{method} / 1.0 close"));
    }
    for method in ["get", "Get", "PURGE", "M-SEARCH", "!#$%&'*+-.^_`|~", "GETT", "G", "BREW2"] {
        let shown = method.escape_default();
        check(format!("{method} / HTTP/1.0\r\n\r\n"), &format!("{shown} / 1.0 close"));
    }
    let step = |bytes| super::RequestDecoder::default().decode(&super::LIMITS, bytes).unwrap().event;
    let super::RequestEvent::Head(head) = step(b"get / HTTP/1.0\r\n\r\n") else {
        panic!("the request is complete")
    };
    assert_eq!(head.method, crate::http1::Method::Other(b"get"));
}

#[test]
fn each_target_form_is_cut_into_its_parts() {
    check_all(&[
        ("GET /?a=b?c HTTP/1.0\r\n\r\n", "GET / ?a=b?c 1.0 close"),
        ("GET /a? HTTP/1.0\r\n\r\n", "GET /a ? 1.0 close"),
        ("GET //a/../b HTTP/1.0\r\n\r\n", "GET //a/../b 1.0 close"),
        ("GET /%00%zz HTTP/1.0\r\n\r\n", "GET /%00%zz 1.0 close"),
        ("GET /\"<>\\^`{|}~ HTTP/1.0\r\n\r\n", "GET /\\\"<>\\\\^`{|}~ 1.0 close"),
        ("GET http://b/c?d HTTP/1.1\r\nHost: b\r\n\r\n", "GET /c ?d 1.1 host=b keep"),
        ("GET http://b/c?d HTTP/1.1\r\nHost: a\r\n\r\n", "GET /c ?d 1.1 host=b keep"),
        ("GET http://b:80 HTTP/1.1\r\nHost: a\r\n\r\n", "GET / 1.1 host=b:80 keep"),
        ("GET HTTPS://b?x/y HTTP/1.1\r\nHost: a\r\n\r\n", "GET / ?x/y 1.1 host=b keep"),
        ("GET http://[::1]:9/ HTTP/1.0\r\n\r\n", "GET / 1.0 host=[::1]:9 close"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * 1.1 host=a keep"),
        ("OPTIONS /x HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS /x 1.1 host=a keep"),
        ("OPTIONS http://b HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * 1.1 host=b keep"),
        ("OPTIONS http://b? HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS / ? 1.1 host=b keep"),
        ("CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n", "CONNECT  1.1 host=b:443 keep"),
        ("CONNECT [::1]:443 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT  1.1 host=[::1]:443 keep"),
    ]);
}

#[test]
fn only_the_major_version_must_be_ours() {
    for minor in 1..=9 {
        check(format!("GET / HTTP/1.{minor}\r\nHost: a\r\n\r\n"), "GET / 1.1 host=a keep");
    }
}

/// Row 4.40: the form without a version is answered, and closes.
#[test]
fn get_without_a_version_is_a_request() {
    check_all(&[
        ("GET /test/fast\r\n\r\n", "GET /test/fast absent close"),
        ("GET /test/fast \r\n\r\n", "GET /test/fast absent close"),
        ("\r\nGET /a?b\r\n\r\n", "GET /a ?b absent close"),
        ("GET /a\r\n\r\nGET /b\r\n\r\n", "GET /a absent close; GET /b absent close"),
        ("GET /a\r\n", "wait 8"),
        ("GET /a\r\n\r", "wait 9"),
        ("GET http://b/a\r\n\r\n", "GET /a absent host=b close"),
    ]);
}

/// Row 4.15: persistence follows RFC 9112 §9.3.
#[test]
fn persistence_follows_the_version_and_the_connection_field() {
    let check = |version, connection, expected| {
        let bytes = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
        check(bytes, &format!("GET / {version} host=a {expected}"));
    };
    check("1.1", "", "keep");
    check("1.1", "Connection: close\r\n", "close");
    check("1.1", "Connection: CLOSE\r\n", "close");
    check("1.1", "cOnNeCtIoN: a, close ,b\r\n", "close");
    check("1.1", "Connection: closed\r\n", "keep");
    check("1.1", "Connection:\r\n", "keep");
    check("1.1", "Connection: ,,\r\n", "keep");
    check("1.1", "Connection: keep-alive\r\n", "keep");
    check("1.1", "Connection: keep-alive, close\r\n", "close");
    check("1.1", "Connection: keep-alive\r\nConnection: close\r\n", "close");
    check("1.0", "", "close");
    check("1.0", "Connection: Keep-Alive\r\n", "keep say-so");
    check("1.0", "Connection: keep-alive\r\nConnection: close\r\n", "close");
    check("1.0", "Keep-Alive: timeout=5\r\n", "close");
}

#[test]
fn upgrades_and_expectations_count_only_where_they_may() {
    check_all(&[
        (
            "GET / HTTP/1.1\r\nHost:a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            "GET / 1.1 host=a keep upgrade=websocket",
        ),
        (
            "GET / HTTP/1.1\r\nHost:a\r\nUpgrade: websocket\r\nConnection: keep-alive, upgrade\r\n\r\n",
            "GET / 1.1 host=a keep upgrade=websocket",
        ),
        ("GET / HTTP/1.1\r\nHost:a\r\nUpgrade: websocket\r\n\r\n", "GET / 1.1 host=a keep"),
        ("GET / HTTP/1.1\r\nHost:a\r\nConnection: upgrade\r\n\r\n", "GET / 1.1 host=a keep"),
        (
            "GET / HTTP/1.0\r\nHost:a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            "GET / 1.0 host=a close",
        ),
        (
            "PUT / HTTP/1.1\r\nHost:a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
            "PUT / 1.1 host=a sized=1 keep expect; body x; end",
        ),
        (
            "PUT / HTTP/1.1\r\nHost:a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n",
            "PUT / 1.1 host=a sized=1 keep expect; wait 0",
        ),
        (
            "PUT / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
            "PUT / 1.0 sized=1 close; body x; end",
        ),
        ("GET / HTTP/1.1\r\nHost:a\r\nExpect: 100-continue\r\n\r\n", "GET / 1.1 host=a keep"),
    ]);
}

#[test]
fn every_kind_of_host_is_understood() {
    for host in [
        "a",
        "a.b-c_d~",
        "127.0.0.1",
        "[::1]",
        "[fe80::1]:80",
        "a:",
        "a:65535",
        "a%20b",
        "!$&'()*+,;=",
        "[v1.x:y]",
    ] {
        check(
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            &format!("GET / 1.1 host={} keep", host.escape_default()),
        );
    }
}
