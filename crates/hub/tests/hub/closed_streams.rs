//! A stream before its directory is open: requests to it get a retryable error, and waiting consumers get its records
//! after the opening.

use stilling_journal::disk::simulated::SimulatedDisk;

use crate::consumers::{READER, api_request, create, fill, take};
use crate::fixture::HubFixture;
use crate::fixture_requests::publish_for;

const REASON: &str = "the old server still has it";

fn disk_with_records() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fill(&mut fixture, "disk", 1..6);
    disk
}

#[test]
fn requests_to_a_closed_stream_get_a_retryable_error() {
    let (mut fixture, recovered) = HubFixture::unopened(&disk_with_records());
    fixture.subscribe(READER, "answers.*", "1");
    fixture.hub.mark_closed(0, REASON.into());
    let new = r#"{"config":{"ack_policy":"none","deliver_subject":"push"}}"#;
    for (subject, payload) in [
        ("STREAM.INFO.disk", ""),
        ("STREAM.CREATE.disk", r#"{"subjects":["disk.>"]}"#),
        ("STREAM.MSG.GET.disk", r#"{"seq":3}"#),
        ("CONSUMER.CREATE.disk", new),
        ("CONSUMER.INFO.disk.p", ""),
        ("CONSUMER.LIST.disk", ""),
        ("CONSUMER.NAMES.disk", ""),
    ] {
        let answer = api_request(&mut fixture, subject, payload);
        assert!(answer.contains(r#""code":503"#) && answer.contains(r#""err_code":10023"#), "{answer}");
        assert!(answer.contains(REASON) && !answer.contains("last_seq"), "{subject}: {answer}");
    }
    for subject in ["DIRECT.GET.disk", "CONSUMER.MSG.NEXT.disk.p"] {
        fixture.ask_all(READER, &[publish_for(&format!("$JS.API.{subject}"), r#"{"seq":3}"#, "answers.1")]);
        let received = fixture.received(READER);
        assert!(received.contains("NATS/1.0 503 the stream is not open yet: "), "{subject}: {received}");
    }
    let list = api_request(&mut fixture, "STREAM.LIST", "");
    assert!(list.contains(r#""missing":["disk"]"#) && list.contains(r#""total":1"#), "{list}");
    assert!(
        api_request(&mut fixture, "STREAM.INFO.memory", "").contains(r#""last_seq":0"#),
        "others are open"
    );
    assert!(api_request(&mut fixture, "STREAM.INFO.nobody", "").contains(r#""err_code":10059"#));

    fixture.hub.open(0, recovered);
    fixture.hub.storage_mut().read_requests_max = usize::MAX;
    assert!(api_request(&mut fixture, "STREAM.INFO.disk", "").contains(r#""last_seq":5"#));
    assert!(api_request(&mut fixture, "STREAM.MSG.GET.disk", r#"{"seq":3}"#).contains(r#""seq":3"#));
    assert!(!api_request(&mut fixture, "STREAM.LIST", "").contains("missing"));
}

/// Consumers created before the opening get the recovered records without waiting for the next one.
#[test]
fn consumers_get_what_the_opening_found() {
    let numbers: Vec<(u64, String)> = (1..6).map(|number| (number, number.to_string())).collect();
    for config in [r#""deliver_subject":"push""#, r#""name":"p""#] {
        let (mut fixture, recovered) = HubFixture::unopened(&disk_with_records());
        fixture.subscribe(READER, "answers.*", "1");
        fixture.subscribe(READER, "push", "2");
        create(&mut fixture, "disk", config);
        if config.contains("name") {
            let next = r#"{"batch":5,"expires":60000000000}"#;
            fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", next, "push")]);
        }
        fixture.run_until_settled();
        fixture.hub.mark_closed(0, REASON.into());
        assert_eq!(take(&mut fixture), []);
        fixture.hub.open(0, recovered);
        fixture.hub.storage_mut().read_requests_max = usize::MAX;
        assert_eq!(take(&mut fixture), numbers, "{config}");
    }
}
