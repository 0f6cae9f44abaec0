//! Tests of served files: types, lengths, every byte.

use std::process::Command;

use stilling::DriverChoice;

use super::Site;
use crate::support::{get, pattern};

on_both_drivers!(
    files_have_their_types_and_bytes,
    a_folder_answers_with_its_index,
    a_head_request_reads_nothing,
    a_large_file_reaches_curl_whole,
    curl_resumes_a_download,
);

fn files_have_their_types_and_bytes(driver: DriverChoice) {
    let site = Site::new(driver);
    for (name, kind) in [
        ("style.css", "text/css; charset=utf-8"),
        ("code.js", "text/javascript; charset=utf-8"),
        ("picture.png", "image/png"),
        ("DATA.JSON", "application/json"),
        ("nothing.known-of", "application/octet-stream"),
        ("no_extension", "application/octet-stream"),
    ] {
        std::fs::write(site.public().join(name), name).expect("a file");
        let answer = site.server.connect().ask(get(&format!("/files/{name}")));
        assert_eq!((answer.status, answer.field("Content-Type"), answer.text()), (200, Some(kind), name));
        assert_eq!(answer.field("Accept-Ranges"), Some("bytes"));
        assert!(answer.field("ETag").is_some() && answer.field("Last-Modified").is_some());
    }
    let mut peer = site.server.connect();
    for (path, body) in [
        ("/files/sub/a%20b+%C3%A4.txt", &b"blank"[..]),
        ("/files/empty.txt", b""),
        ("/files/ten?query=1", b"0123456789"),
        ("/files/big.bin", &pattern(300_000)),
        ("/files/bare/file", b"bare"),
    ] {
        let answer = peer.ask(get(path));
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.field("Content-Length"), Some(body.len().to_string().as_str()), "{path}");
        assert!(answer.body == body, "{path}");
    }
    let post = peer.ask("POST /files/ten HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((post.status, post.field("Allow")), (405, Some("GET, HEAD")));
    drop(peer);
    site.server.finish();
}

fn a_folder_answers_with_its_index(driver: DriverChoice) {
    let site = Site::new(driver);
    let mut peer = site.server.connect();
    for (path, status, body) in [
        ("/files/", 200, "<p>front</p>"),
        ("/files/index.html", 200, "<p>front</p>"),
        ("/files/sub/", 200, "<p>sub</p>"),
        // Without the slash, relative links of its page would resolve to another folder.
        ("/files/sub", 301, "301 Moved Permanently\n"),
        ("/files/bare/", 404, "404 Not Found\n"),
        ("/files/none/", 404, "404 Not Found\n"),
        ("/files/%ff", 404, "404 Not Found\n"),
        ("/files/%ff/", 404, "404 Not Found\n"),
        ("/files", 301, "301 Moved Permanently\n"),
    ] {
        let answer = peer.ask(get(path));
        assert_eq!((answer.status, answer.text()), (status, body), "{path}");
        if status == 301 {
            assert_eq!(answer.field("Location"), Some(&*format!("{path}/")));
        }
    }
    drop(peer);
    site.server.finish();
}

fn a_head_request_reads_nothing(driver: DriverChoice) {
    let site = Site::new(driver);
    let mut peer = site.server.connect();
    for (path, length) in [("/files/big.bin", "300000"), ("/files/ten", "10"), ("/files/empty.txt", "0")] {
        peer.send(get(path).replace("GET", "HEAD"));
        let head = peer.head();
        assert_eq!((head.status, head.field("Content-Length")), (200, Some(length)), "{path}");
        // RFC 9110 §14.2: ranges are for GET.
        peer.send(get(path).replace("GET", "HEAD").replace("\r\n\r\n", "\r\nRange: bytes=0-0\r\n\r\n"));
        let head = peer.head();
        assert_eq!((head.status, head.field("Content-Length")), (200, Some(length)), "{path}");
    }
    assert!(peer.is_silent());
    drop(peer);
    site.server.finish();
}

fn curl(arguments: &[&str], url: &str, to: &std::path::Path) {
    let outcome = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--max-time", "120"])
        .args(arguments)
        .arg("--output")
        .arg(to)
        .arg(url)
        .output()
        .expect("curl is installed");
    assert!(outcome.status.success(), "{arguments:?}: {outcome:?}");
}

fn a_large_file_reaches_curl_whole(driver: DriverChoice) {
    const LARGE: usize = 100_000_000;
    let site = Site::new(driver);
    let bytes = pattern(LARGE);
    std::fs::write(site.public().join("large"), &bytes).expect("room for a large file");
    let copy = site.outside().join("copy");
    curl(&[], &site.server.url("/files/large"), &copy);
    assert!(std::fs::read(&copy).expect("curl has written it") == bytes, "the copy is another");
    site.server.finish();
}

fn curl_resumes_a_download(driver: DriverChoice) {
    let site = Site::new(driver);
    let bytes = pattern(300_000);
    let copy = site.outside().join("copy");
    for have in [1, 100_000, 299_999] {
        std::fs::write(&copy, &bytes[..have]).expect("a file");
        curl(&["--continue-at", "-"], &site.server.url("/files/big.bin"), &copy);
        assert!(std::fs::read(&copy).expect("curl has written it") == bytes, "{have} bytes before");
    }
    site.server.finish();
}
