//! Subscriptions over SSE to streams that have lost records.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::Value;
use stilling_journal::disk::file::FileDisk;
use stilling_journal::inspect::Inspection;

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer};

on_both_drivers!(a_gap_names_exactly_the_missing_records);

/// Records of each of two subjects: odd sequences are of `events.a`, even ones of `events.b`.
const RECORDS: u64 = 600;

/// `reader` may read `events.a` only; `Basic` of `reader:r` and `root:x`.
const READER: &str = "Authorization: Basic cmVhZGVyOnI=\r\n";
const ROOT: &str = "Authorization: Basic cm9vdDp4\r\n";

fn start(driver: DriverUnderTest, data: &std::path::Path) -> ServerUnderTest {
    let users = "--user root:password=x --user reader:password=r:subscribe=events.a";
    let stream = "--stream events=events.>:disk:retention-bytes=1MiB";
    let options = format!("{users} {stream} --nats 127.0.0.1:0 --data {}", data.display());
    ServerUnderTest::start(driver, &options)
}

fn subscribe(server: &ServerUnderTest, path: &str) -> TestPeer {
    let mut peer = TestPeer::connect(server.address());
    peer.send(format!("GET /subscribe/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{READER}\r\n"));
    peer
}

/// A subscriber that resumes after retention and damage receives
/// every record of its filter once and in order, except those of the gaps, and no record that its user may not read. Each
/// publication is a batch of its own, so the damaged gap is one record.
fn a_gap_names_exactly_the_missing_records(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(driver, folder.path());
    let mut publisher = server.connect();
    for sequence in 1..=2 * RECORDS {
        let subject = if sequence % 2 == 1 { "events.a" } else { "events.b" };
        let (secret, text) = (sequence % 2 == 0, "x".repeat(4000));
        let body = format!("{{\"secret\":{secret},\"number\":{sequence},\"text\":\"{text}\"}}");
        let size = body.len();
        let request = format!(
            "POST /publish/{subject} HTTP/1.1\r\nHost: 127.0.0.1\r\n{ROOT}Content-Length: {size}\r\n\r\n{body}"
        );
        assert_eq!(publisher.ask(request).status, 200);
    }
    drop(publisher);
    wait_for_removal(&server, 10);
    server.finish();
    let stream = folder.path().join("events");
    let disk = FileDisk::existing(&stream).expect("the folder");
    let first_before = Inspection::of(disk).expect("it can be read").list()[0].first;
    let damaged = damage(&stream);
    let server = start(driver, folder.path());
    let refused = subscribe(&server, "events.*?from=3").answer();
    assert_eq!(refused.status, 403, "{refused:?}");
    let mut peer = subscribe(&server, "events.a?from=3");
    assert_eq!(peer.head().status, 200);
    let (mut next, mut delivered, mut removed, mut damages) = (3, 0, Vec::new(), Vec::new());
    loop {
        let line = event_line(&mut peer);
        let Some(data) = line.strip_prefix("data: ") else {
            if line.starts_with("id: ") && next > 2 * RECORDS - 1 {
                break;
            }
            continue;
        };
        let object: Value = serde_json::from_str(data).expect("JSON");
        if let Some(gap) = object.get("gap") {
            let bound = |name: &str| gap[name].as_u64().expect("a sequence");
            let (first, last) = (bound("first"), bound("last"));
            assert!((next - 1..=next).contains(&first) && last >= first, "{gap} at {next}");
            match gap["cause"].as_str() {
                Some("removed") if damages.is_empty() => removed.push((first, last)),
                Some("damaged") => damages.push((first, last)),
                _ => panic!("{gap} at {next}"),
            }
            // The next odd sequence behind it.
            next = last + 1 + last % 2;
        } else {
            assert_eq!((object["seq"].as_u64(), object["data"]["number"].as_u64()), (Some(next), Some(next)));
            assert_eq!(object["data"]["secret"], false);
            assert_eq!(object["subject"], "events.a");
            (next, delivered) = (next + 2, delivered + 1);
        }
    }
    assert_eq!(damages, [(damaged, damaged)]);
    // Retention may continue while the subscriber reads.
    let last_removed = removed.last().expect("a gap of removed records").1;
    let kept = first_before..=wait_for_removal(&server, last_removed);
    assert!(removed.iter().all(|(_, last)| kept.contains(&(last + 1))), "{removed:?}, kept {kept:?}");
    assert!(next == 2 * RECORDS + 1 && delivered > 20, "{delivered} records, then {next}");
    let removed: u64 = removed.iter().map(|(first, last)| last - first + 1).sum();
    server.watch().until("all are counted", |metrics| {
        metrics.value("hub_stream_skipped_total{stream=\"events\",reason=\"removed\"}") == removed
            && metrics.value("hub_stream_skipped_total{stream=\"events\",reason=\"damaged\"}") == 1
    });
    drop(peer);
    server.finish();
}

/// Waits until retention has removed the records up to `last`. Returns the first sequence that it has kept.
fn wait_for_removal(server: &ServerUnderTest, last: u64) -> u64 {
    let first = "hub_stream_first_sequence{stream=\"events\"}";
    server.watch().until("records are removed", |metrics| metrics.value(first) > last).value(first)
}

/// The next line of an event stream.
fn event_line(peer: &mut TestPeer) -> String {
    let bytes =
        std::iter::repeat_with(|| peer.read_exactly(1)[0]).take_while(|byte| *byte != b'\n').collect();
    String::from_utf8(bytes).expect("a line is text")
}

/// Begin of a payload of `events.a`, up to its sequence.
const PAYLOAD_BEGIN: &[u8] = b"{\"secret\":false,\"number\":";

/// Changes a byte of a record of `events.a` in the last segment but one, which retention keeps. Returns its sequence.
fn damage(stream: &std::path::Path) -> u64 {
    let entries = fs::read_dir(stream).expect("a folder").flatten().map(|entry| entry.path());
    let mut segments: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "segment")).collect();
    segments.sort();
    let segment = &segments[segments.len() - 2];
    let bytes = fs::read(segment).expect("a segment");
    let middle = bytes.len() / 2;
    let payload = bytes[middle..].windows(PAYLOAD_BEGIN.len()).position(|window| window == PAYLOAD_BEGIN);
    let number = middle + payload.expect("a record of events.a") + PAYLOAD_BEGIN.len();
    let digits = bytes[number..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sequence = std::str::from_utf8(&bytes[number..number + digits]).expect("digits");
    let in_text = number + digits + 100;
    assert_eq!(bytes[in_text], b'x');
    let file = OpenOptions::new().write(true).open(segment).expect("it can be opened");
    file.write_all_at(b"y", in_text as u64).expect("it can be written");
    sequence.parse().expect("a sequence")
}
