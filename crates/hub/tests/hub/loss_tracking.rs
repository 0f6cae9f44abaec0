//! Losses before the hub: counted, and marked in the stream of their subject.

use stilling_hub::limits::MARKER_EVERY_NS;
use stilling_hub::{ClientId, HubRequest, Ingress, Loss, LossReport, UnixNanos};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};
use stilling_journal::{ReadOutcome, RecordKind, StartAt};

use crate::fixture::HubFixture;
use crate::fixture_requests::{publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };

fn lost(subject: &str, count: u64, from_ns: u64, to_ns: u64) -> HubRequest<'_> {
    let (subject, loss) = (subject.as_bytes(), Loss::Shed);
    let [from_ns, to_ns] = [from_ns, to_ns].map(UnixNanos::from_nanos);
    HubRequest::LossReport(LossReport { ingress: Ingress::Syslog, subject, loss, count, from_ns, to_ns })
}

fn records(fixture: &mut HubFixture) -> Vec<(RecordKind, String, String)> {
    let mut reader = fixture.hub.storage_mut().logs[0].source().read_from(StartAt::Sequence(1));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut found = Vec::new();
    loop {
        match reader.read().expect("it can be read") {
            ReadOutcome::Batch(batch) => found.extend(
                batch.records.map(|(_, record)| (record.kind, text(record.subject), text(record.payload))),
            ),
            ReadOutcome::Gap { .. } => panic!("nothing is missing"),
            ReadOutcome::End => return found,
        }
    }
}

fn markers(fixture: &mut HubFixture) -> Vec<String> {
    let all = records(fixture).into_iter().filter(|(kind, ..)| *kind == RecordKind::Loss);
    all.map(|(_, subject, text)| format!("{subject} {text}")).collect()
}

/// Row 0.14: every loss is marked where the messages are missing.
#[test]
fn a_loss_is_marked_at_its_position() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "disk.>", "1");
    fixture.ask_all(
        ALICE,
        &[
            publish("disk.a", "before"),
            lost("disk.b", 7, 1_000_000_000, 3_500_000_000),
            publish("disk.a", "after"),
        ],
    );
    fixture.run_until_settled();
    let marker = r#"{"lost":7,"reason":"shed","from":"1970-01-01T00:00:01Z","to":"1970-01-01T00:00:03.5Z"}"#;
    let expected = [
        (RecordKind::Ordinary, "disk.a", "before"),
        (RecordKind::Loss, "disk.b", marker),
        (RecordKind::Ordinary, "disk.a", "after"),
    ];
    let expected = expected.map(|(kind, subject, text)| (kind, subject.to_owned(), text.to_owned()));
    assert_eq!(records(&mut fixture), expected);
    assert_eq!(
        fixture.received(ALICE),
        "MSG disk.a 1 6\r\nbefore\r\nMSG disk.a 1 5\r\nafter\r\n",
        "it is no message"
    );
    let counters = fixture.hub.counters();
    assert_eq!((counters.losses(Ingress::Syslog, Loss::Shed), counters.messages.get()), (7, 2));
    assert_eq!((counters.streams[0].last.get(), counters.streams[0].visible.get()), (3, 3));
}

#[test]
fn markers_come_once_a_second_with_the_sum() {
    let mut fixture = HubFixture::new();
    for number in 1..=100 {
        fixture.ask_all(ALICE, &[lost("disk.a", number, number, number + 1)]);
        fixture.advance_time(MARKER_EVERY_NS / 200);
    }
    fixture.run_until_settled();
    assert_eq!(markers(&mut fixture).len(), 1);
    assert!(!fixture.hub.is_drained(), "the sum is not marked yet");
    assert!(fixture.hub.next_check_in().is_some_and(|span| span.as_nanos() <= MARKER_EVERY_NS.into()));
    fixture.advance_time(MARKER_EVERY_NS / 2);
    fixture.run_until_settled();
    let all = markers(&mut fixture);
    assert!(all.len() == 2 && all[0].contains("\"lost\":1,") && all[1].contains("\"lost\":5049,"), "{all:?}");
    assert!(fixture.hub.is_drained() && fixture.hub.next_check_in().is_none());
    assert_eq!(fixture.hub.counters().losses(Ingress::Syslog, Loss::Shed), 5050);
}

#[test]
fn without_a_free_batch_a_marker_waits() {
    let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), 1, 1 << 20);
    fixture.ask_all(ALICE, &[publish("disk.a", "x")]);
    fixture.ask_all(ALICE, &[lost("disk.a", 3, 0, 0)]);
    fixture.turn();
    assert_eq!(markers(&mut fixture).len(), 0);
    assert_eq!(fixture.hub.counters().losses(Ingress::Syslog, Loss::Shed), 3, "it is counted at once");
    fixture.run_until_settled();
    assert_eq!(markers(&mut fixture).len(), 1);
    assert!(fixture.hub.is_drained());
}

#[test]
fn what_no_stream_keeps_is_counted_only() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.ask_all(ALICE, &[lost("none.a", 1, 0, 0), lost("elsewhere", 2, 0, 0), lost("", 3, 0, 0)]);
    fixture.ask_all(ALICE, &[lost("memory.a", 4, 0, 0)]);
    fixture.run_until_settled();
    let last = |fixture: &HubFixture| {
        [0, 1, 2].map(|number: usize| fixture.hub.counters().streams[number].last.get())
    };
    assert_eq!(last(&fixture), [0, 1, 0], "the one in memory is kept");
    disk.fail(DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() });
    fixture.ask_all(ALICE, &[publish("disk.a", "x")]);
    fixture.run_until_settled();
    fixture.advance_time(MARKER_EVERY_NS);
    fixture.ask_all(ALICE, &[lost("disk.a", 5, 0, 0)]);
    fixture.run_until_settled();
    assert!(fixture.hub.is_drained(), "a frozen stream is not waited for");
    assert_eq!(fixture.hub.counters().losses(Ingress::Syslog, Loss::Shed), 15);
}

/// A request for a message is not answered with a marker.
#[test]
fn a_marker_is_not_read_as_a_message() {
    for stream in ["disk", "memory"] {
        let subject = format!("{stream}.a");
        let mut fixture = HubFixture::new();
        fixture.subscribe(ALICE, "answers.*", "1");
        fixture.ask_all(ALICE, &[publish(&subject, "x")]);
        fixture.ask_all(ALICE, &[lost(&subject, 7, fixture.now_ns, fixture.now_ns)]);
        fixture.ask_all(ALICE, &[publish(&subject, "y")]);
        fixture.run_until_settled();
        let mut ask = |api_request: &str, payload: &str| {
            fixture.ask_all(
                ALICE,
                &[publish_for(&format!("$JS.API.{api_request}.{stream}"), payload, "answers.1")],
            );
            fixture.run_until_settled();
            fixture.received(ALICE)
        };
        assert!(ask("DIRECT.GET", r#"{"seq":1}"#).ends_with("\r\nx\r\n"));
        for (api_request, refusal) in
            [("DIRECT.GET", "NATS/1.0 404"), ("STREAM.MSG.GET", r#""err_code":10037"#)]
        {
            let received = ask(api_request, r#"{"seq":2}"#);
            assert!(received.contains(refusal), "{stream}: {received}");
        }
        let received = ask("DIRECT.GET", &format!(r#"{{"seq":2,"next_by_subj":"{subject}"}}"#));
        assert!(
            received.contains("Nats-Sequence: 3\r\n") && received.ends_with("\r\ny\r\n"),
            "{stream}: {received}"
        );
    }
}
