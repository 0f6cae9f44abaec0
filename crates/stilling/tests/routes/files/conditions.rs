//! Conditional requests and ranges (RFC 9110 §13, §14).

use std::fs::File;
use std::time::{Duration, SystemTime};

use stilling::DriverChoice;

use super::Site;
use crate::support::{TestResponse, get};

on_both_drivers!(
    an_unchanged_file_is_not_sent_again,
    a_range_is_sent_as_partial_content,
    a_range_of_a_changed_file_is_sent_whole
);

impl Site {
    #[track_caller]
    fn ask(&self, path: &str, fields: &str) -> TestResponse {
        let request = get(path).replace("\r\n\r\n", &format!("\r\n{fields}\r\n"));
        let mut peer = self.server.connect();
        let answer = peer.ask(request);
        assert!(peer.is_silent(), "{fields}: more than its length");
        answer
    }

    /// Sets the modification time of `ten`, a file of ten bytes.
    fn date_ten(&self, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let file = File::options().write(true).open(self.public().join("ten")).expect("a file");
        file.set_modified(time).expect("a file of ours");
    }
}

const DATED: u64 = 1_000_000_000;
const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";
const THEN: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
const AFTER: &str = "Sun, 09 Sep 2001 01:46:41 GMT";

fn an_unchanged_file_is_not_sent_again(driver: DriverChoice) {
    let site = Site::new(driver);
    site.date_ten(DATED);
    let first = site.ask("/files/ten", "");
    assert_eq!(first.field("Last-Modified"), Some(THEN));
    let tag = first.field("ETag").expect("a file has a tag").to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
    for (fields, status) in [
        (format!("If-None-Match: {tag}\r\n"), 304),
        (format!("If-None-Match: W/{tag}\r\n"), 304),
        (format!("If-None-Match: \"a\", {tag}\r\n"), 304),
        ("If-None-Match: *\r\n".to_owned(), 304),
        ("If-None-Match: \"a\"\r\n".to_owned(), 200),
        (format!("If-None-Match: {}\r\n", tag.trim_matches('"')), 200),
        (format!("If-Modified-Since: {BEFORE}\r\n"), 200),
        (format!("If-Modified-Since: {THEN}\r\n"), 304),
        (format!("If-Modified-Since: {AFTER}\r\n"), 304),
        ("If-Modified-Since: yesterday\r\n".to_owned(), 200),
        // With both fields the tag counts.
        (format!("If-None-Match: \"a\"\r\nIf-Modified-Since: {AFTER}\r\n"), 200),
        (format!("If-None-Match: {tag}\r\nIf-Modified-Since: {BEFORE}\r\n"), 304),
        (format!("If-Match: {tag}\r\n"), 200),
        ("If-Match: *\r\n".to_owned(), 200),
        ("If-Match: \"a\"\r\n".to_owned(), 412),
        // RFC 9110 §13.1.1: strong comparison.
        (format!("If-Match: W/{tag}\r\n"), 412),
        (format!("If-Unmodified-Since: {BEFORE}\r\n"), 412),
        (format!("If-Unmodified-Since: {THEN}\r\n"), 200),
    ] {
        let answer = site.ask("/files/ten", &fields);
        assert_eq!(answer.status, status, "{fields}");
        if status == 304 {
            assert_eq!(answer.field("ETag"), Some(tag.as_str()));
            assert_eq!((answer.field("Last-Modified"), answer.body.len()), (Some(THEN), 0));
        }
    }
    // Another state has another tag, whether or not its length is the same.
    site.date_ten(DATED + 1);
    let later = site.ask("/files/ten", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((later.status, later.text()), (200, "0123456789"));
    assert_ne!(later.field("ETag"), Some(tag.as_str()));
    site.server.finish();
}

fn a_range_is_sent_as_partial_content(driver: DriverChoice) {
    let site = Site::new(driver);
    for (range, status, body, content_range) in [
        ("bytes=0-0", 206, "0", Some("bytes 0-0/10")),
        ("bytes=2-5", 206, "2345", Some("bytes 2-5/10")),
        ("bytes=7-", 206, "789", Some("bytes 7-9/10")),
        ("bytes=-3", 206, "789", Some("bytes 7-9/10")),
        ("bytes=-99", 206, "0123456789", Some("bytes 0-9/10")),
        ("bytes=8-99", 206, "89", Some("bytes 8-9/10")),
        ("bytes=10-", 416, "416 Range Not Satisfiable\n", Some("bytes */10")),
        ("bytes=-0", 416, "416 Range Not Satisfiable\n", Some("bytes */10")),
        // Ranges that §14.2 allows a server to ignore.
        ("bytes=0-1,3-4", 200, "0123456789", None),
        ("bytes=5-2", 200, "0123456789", None),
        ("lines=0-1", 200, "0123456789", None),
        ("bytes=a-b", 200, "0123456789", None),
    ] {
        let answer = site.ask("/files/ten", &format!("Range: {range}\r\n"));
        assert_eq!((answer.status, answer.text()), (status, body), "{range}");
        assert_eq!(answer.field("Content-Range"), content_range, "{range}");
    }
    assert_eq!(site.ask("/files/empty.txt", "Range: bytes=0-\r\n").status, 416);
    // Longer than a piece, and not from the beginning.
    let part = site.ask("/files/big.bin", "Range: bytes=100001-250000\r\n");
    assert!(part.status == 206 && part.body == crate::support::pattern(300_000)[100_001..=250_000]);
    site.server.finish();
}

/// RFC 9110 §13.1.5.
fn a_range_of_a_changed_file_is_sent_whole(driver: DriverChoice) {
    let site = Site::new(driver);
    site.date_ten(DATED);
    let tag = site.ask("/files/ten", "").field("ETag").expect("a file has a tag").to_owned();
    for (state, status) in [
        (tag.as_str(), 206),
        ("\"another\"", 200),
        (&format!("W/{tag}"), 200),
        (THEN, 206),
        (BEFORE, 200),
        (AFTER, 200),
        ("nonsense", 200),
    ] {
        let answer = site.ask("/files/ten", &format!("Range: bytes=0-0\r\nIf-Range: {state}\r\n"));
        assert_eq!(answer.status, status, "{state}");
    }
    // Conditions are evaluated before the range.
    let fields = format!("Range: bytes=0-0\r\nIf-None-Match: {tag}\r\n");
    assert_eq!(site.ask("/files/ten", &fields).status, 304);
    let fields = "Range: bytes=0-0\r\nIf-Match: \"another\"\r\n";
    assert_eq!(site.ask("/files/ten", fields).status, 412);
    site.server.finish();
}
