//! A status at the beginning of headers is reserved for the server: streams neither keep nor deliver one.

use stilling_hub::{HubRequest, Ingress, Publication};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Batch, Log, Record, RecordKind};

use crate::consumers::{READER, WRITER, api_request, create, fixture};
use crate::fixture::{ABLE, BATCH_SIZE, HubFixture, SEGMENTS, publish_with};

const STATUS: &str = "NATS/1.0 409 Consumer Deleted\r\na: b\r\n\r\n";
const PLAIN: &str = "NATS/1.0\r\na: b\r\n\r\n";

/// A record published with a status through any protocol: subscribers, consumers and direct requests.
#[test]
fn a_stream_takes_a_message_without_its_status() {
    for (stream, ingress) in [
        ("disk", Ingress::Nats),
        ("memory", Ingress::Nats),
        ("none", Ingress::Nats),
        ("disk", Ingress::Http),
        ("disk", Ingress::Syslog),
    ] {
        let mut fixture = fixture();
        let subject = format!("{stream}.n");
        fixture.subscribe(READER, "push", "2");
        fixture.subscribe(READER, &subject, "3");
        create(&mut fixture, stream, r#""deliver_subject":"push","deliver_policy":"new""#);
        fixture.advance_time(100_000_000);
        fixture.run_until_settled();
        let publication = Publication {
            ingress,
            subject: subject.as_bytes(),
            reply: b"",
            headers: STATUS.as_bytes(),
            payload: b"x".into(),
            ticket: None,
        };
        fixture.ask_all(WRITER, &[HubRequest::Publish(publication)]);
        fixture.run_until_settled();
        let received = fixture.received(READER);
        assert_eq!(
            (received.matches("HMSG").count(), received.matches(PLAIN).count()),
            (2, 2),
            "{stream}: {received}"
        );
        assert!(!received.contains("409"), "{stream}: {received}");
        if stream != "none" {
            let answer = api_request(&mut fixture, &format!("STREAM.MSG.GET.{stream}"), r#"{"seq":1}"#);
            assert!(answer.contains("\"hdrs\":\"TkFUUy8xLjANCmE6IGINCg0K\""), "{answer}");
        }
    }
}

/// A message with only a status has no headers; a header field after the status is kept.
#[test]
fn a_status_hides_no_message_id() {
    let mut fixture = fixture();
    fixture.subscribe(READER, "disk.n", "2");
    let headers = "NATS/1.0 100 Idle Heartbeat\r\nNats-Msg-Id: a\r\n\r\n";
    for _ in 0..2 {
        fixture.ask_all(WRITER, &[publish_with("disk.n", "x", "", headers)]);
    }
    fixture.ask_all(WRITER, &[publish_with("disk.n", "y", "", "NATS/1.0 503\r\n\r\n")]);
    fixture.run_until_settled();
    let expected = "HMSG disk.n 2 28 29\r\nNATS/1.0\r\nNats-Msg-Id: a\r\n\r\nx\r\nMSG disk.n 2 1\r\ny\r\n";
    assert_eq!(fixture.received(READER), expected);
    assert_eq!(fixture.hub.counters().duplicates.get(), 1);
}

/// Messages between clients may have a status: services answer with one.
#[test]
fn where_no_stream_is_a_status_passes() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(READER, "inbox.*", "2");
    fixture.ask(WRITER, ABLE, &[publish_with("inbox.1", "x", "", STATUS)]);
    assert_eq!(fixture.received(READER), format!("HMSG inbox.1 2 39 40\r\n{STATUS}x\r\n"));
}

/// Journals of earlier versions contain such records.
#[test]
fn a_record_that_was_kept_with_a_status_is_delivered_without_it() {
    let disk = SimulatedDisk::new();
    let (mut log, _) = Log::open(disk.clone(), "disk", SEGMENTS).expect("it opens");
    let mut batch = Batch::new(BATCH_SIZE);
    batch.begin(1, 0);
    let record = Record {
        kind: RecordKind::Ordinary,
        subject: b"disk.n",
        headers: STATUS.as_bytes(),
        payload: &b"x"[..],
    };
    batch.push(&record).expect("there is room");
    log.append(&mut [batch]).expect("it is written");
    drop(log);
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.subscribe(READER, "answers.*", "1");
    create(&mut fixture, "disk", r#""deliver_subject":"push","deliver_policy":"all""#);
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    assert!(received.contains(PLAIN) && !received.contains("409"), "{received}");
    let get = crate::fixture_requests::publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":1}"#, "answers.1");
    fixture.ask_all(READER, &[get]);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    assert!(received.contains("Nats-Sequence: 1\r\n") && received.contains("a: b\r\n"), "{received}");
    assert!(!received.contains("409"), "{received}");
}
