//! Subscriptions over SSE to streams that have lost records.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer};

on_both_drivers!(what_is_missing_is_named_and_the_rest_is_what_the_user_may_read);

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

/// Issue 13, lapped × filter × damaged segment × permission: a subscriber that comes back after retention and damage
/// gets every record of its filter, or a gap that names it, once and in order, and nothing that its user may not read.
fn what_is_missing_is_named_and_the_rest_is_what_the_user_may_read(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(driver, folder.path());
    let mut publisher = server.connect();
    for sequence in 1..=2 * RECORDS {
        let subject = if sequence % 2 == 1 { "events.a" } else { "events.b" };
        let body = format!("{{\"secret\":{},\"text\":\"{}\"}}", sequence % 2 == 0, "x".repeat(4000));
        let size = body.len();
        let request = format!(
            "POST /publish/{subject} HTTP/1.1\r\nHost: 127.0.0.1\r\n{ROOT}Content-Length: {size}\r\n\r\n{body}"
        );
        assert_eq!(publisher.ask(request).status, 200);
    }
    drop(publisher);
    server.watch().until("records are removed", |metrics| {
        metrics.value("hub_stream_first_sequence{stream=\"events\"}") > 10
    });
    server.finish();
    damage(&folder.path().join("events"));
    let server = start(driver, folder.path());
    let refused = subscribe(&server, "events.*?from=3").answer();
    assert_eq!(refused.status, 403, "{refused:?}");
    let mut peer = subscribe(&server, "events.a?from=3");
    assert_eq!(peer.head().status, 200);
    let (mut next, mut delivered, mut causes) = (3, 0, Vec::new());
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
            assert!((next - 1..=next).contains(&bound("first")), "{gap} at {next}");
            assert!(bound("last") >= bound("first"), "{gap}");
            causes.push(gap["cause"].as_str().expect("a cause").to_owned());
            // The next odd sequence behind it.
            next = bound("last") + 1 + bound("last") % 2;
        } else {
            assert_eq!((object["seq"].as_u64(), &object["data"]["secret"]), (Some(next), &false.into()));
            assert_eq!(object["subject"], "events.a");
            (next, delivered) = (next + 2, delivered + 1);
        }
    }
    // Retention may go on while the subscriber reads.
    causes.dedup();
    assert_eq!(causes, ["removed", "damaged"]);
    assert!(next == 2 * RECORDS + 1 && delivered > 20, "{delivered} records, then {next}");
    server.watch().until("they are counted", |metrics| {
        metrics.value("hub_stream_skipped_total{stream=\"events\",reason=\"removed\"}") > 0
            && metrics.value("hub_stream_skipped_total{stream=\"events\",reason=\"damaged\"}") > 0
    });
    drop(peer);
    server.finish();
}

/// The next line of an event stream.
fn event_line(peer: &mut TestPeer) -> String {
    let bytes =
        std::iter::repeat_with(|| peer.read_exactly(1)[0]).take_while(|byte| *byte != b'\n').collect();
    String::from_utf8(bytes).expect("a line is text")
}

/// Flips a bit in the middle of the last segment but one: retention keeps it.
fn damage(stream: &std::path::Path) {
    let entries = fs::read_dir(stream).expect("a folder").flatten().map(|entry| entry.path());
    let mut segments: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "segment")).collect();
    segments.sort();
    let segment = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&segments[segments.len() - 2])
        .expect("it can be opened");
    let at = segment.metadata().expect("its size").len() / 2;
    let mut byte = [0];
    segment.read_exact_at(&mut byte, at).expect("it is there");
    segment.write_all_at(&[byte[0] ^ 1], at).expect("it can be written");
}
