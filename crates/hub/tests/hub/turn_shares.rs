//! API requests of one connection delay neither the turns of others nor the reads of consumers.

use stilling_hub::limits::{API_DISK_READS_MAX, BATCHES_PER_STREAM_MAX, READS_PER_CLIENT_MAX};
use stilling_hub::{ClientId, Durability, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::consumers::{READER, WRITER, fill, fixture};
use crate::fixture::{ConnectionOutput, HubFixture, stream};
use crate::fixture_requests::{publish, publish_for};

/// Sends many requests, in the shard of [`OTHER`].
const REQUESTER: ClientId = ClientId { shard: 0, token: 11 };
const OTHER: ClientId = ClientId { shard: 0, token: 12 };

const WHOLE: &str = r#"{"seq":1,"next_by_subj":"memory.nothing"}"#;

/// Fills the memory stream with some 4 MiB.
fn fixture_with_large_memory_stream() -> HubFixture {
    let mut fixture = fixture();
    fixture.subscribe(REQUESTER, "asker.*", "1");
    fixture.subscribe(OTHER, "bystander.*", "1");
    let filling = "x".repeat(7000);
    for _ in 0..600 {
        fixture.ask_all(WRITER, &[publish("memory.n", &filling)]);
    }
    fixture.run_until_settled();
    fixture
}

/// Publishes as the other client to the memory stream, and expects the answer in the same turn.
fn publish_at_once(fixture: &mut HubFixture) {
    fixture.ask_all(OTHER, &[publish_for("memory.n", "x", "bystander.1"), HubRequest::Barrier]);
    let received = fixture.received(OTHER);
    assert!(
        received.contains(r#"{"stream":"memory","seq":"#) && received.ends_with("PONG\r\n"),
        "{received}"
    );
}

#[test]
fn a_connection_with_many_requests_waits_alone() {
    let mut fixture = fixture_with_large_memory_stream();
    let mut requests = vec![publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1"); 1500];
    requests.push(HubRequest::Barrier);
    fixture.ask_all(REQUESTER, &requests);
    assert_eq!(fixture.parked(), 1);
    let mut turns = 0;
    while fixture.parked() > 0 || !fixture.hub.is_quiet() {
        publish_at_once(&mut fixture);
        fixture.turn();
        turns += 1;
        assert!(turns < 2000, "it does not end");
    }
    assert!(turns > 10, "it waits for many turns: {turns}");
    let outputs = fixture.outputs(REQUESTER);
    assert_eq!((outputs.first(), outputs.last().is_some()), (Some(&ConnectionOutput::Pause), true));
    assert_eq!(outputs.iter().filter(|outputs| **outputs == ConnectionOutput::Resume).count(), 1);
    let text: String = outputs
        .iter()
        .map(|outputs| match outputs {
            ConnectionOutput::Text(text) => text.as_str(),
            _ => "",
        })
        .collect();
    assert_eq!(text.matches("NATS/1.0 ").count(), 1500, "each request is answered");
    assert!(text.matches("NATS/1.0 404 ").count() >= READS_PER_CLIENT_MAX, "{}", text.len());
    assert!(text.contains("PONG\r\n"));
}

/// Reads for requests of earlier turns do not reduce the budget of new requests.
#[test]
fn requests_are_answered_while_long_reads_run() {
    let mut fixture = fixture_with_large_memory_stream();
    let requests = vec![publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1"); READS_PER_CLIENT_MAX];
    fixture.ask_all(REQUESTER, &requests);
    while fixture.parked() > 0 {
        fixture.turn();
    }
    for turn in 0..30 {
        fixture.turn();
        assert!(!fixture.hub.is_quiet(), "the reads are not at their end after {turn} turns");
        fixture.ask_all(OTHER, &[publish_for("$JS.API.STREAM.NAMES", "", "bystander.1")]);
        let received = fixture.received(OTHER);
        assert!(received.contains("stream_names_response"), "turn {turn}: {received}");
    }
}

#[test]
fn open_reads_are_bounded_for_each_connection() {
    let mut fixture = fixture();
    fill(&mut fixture, "disk", 1..3);
    fixture.subscribe(OTHER, "bystander.*", "1");
    let api_request = publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":1}"#, "answers.1");
    fixture.ask_all(READER, &vec![api_request; READS_PER_CLIENT_MAX + 3]);
    assert_eq!(fixture.received(READER).matches("NATS/1.0 503 ").count(), 3);
    fixture.ask_all(OTHER, &[publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":2}"#, "bystander.1")]);
    for _ in 0..20 {
        fixture.run_until_settled();
    }
    assert!(fixture.received(OTHER).contains("Nats-Sequence: 2\r\n"));
    assert_eq!(fixture.received(READER).matches("Nats-Sequence: 1\r\n").count(), READS_PER_CLIENT_MAX);
}

/// A memory read continues without other events while all disk reads are outstanding.
#[test]
fn a_read_of_memory_continues_while_the_disk_reads_for_others() {
    let mut fixture = fixture_with_large_memory_stream();
    fill(&mut fixture, "disk", 1..3);
    let of_disk = publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":1}"#, "answers.1");
    fixture.ask_all(READER, &vec![of_disk; API_DISK_READS_MAX + 1]);
    assert!(fixture.hub.is_quiet(), "the disk reads as much as it may");
    fixture.ask_all(REQUESTER, &[publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1")]);
    let mut turns = 0;
    while !fixture.hub.is_quiet() {
        fixture.turn();
        turns += 1;
        assert!(turns < 100, "it does not end");
    }
    assert!(turns > 1, "it is more than a turn reads");
    assert!(fixture.received(REQUESTER).contains("NATS/1.0 404 "));
    assert_eq!(fixture.received(READER), "", "the disk has not read");
}

/// Requests for records do not use up the disk reads of consumers.
#[test]
fn a_consumer_reads_beside_record_requests() {
    let mut fixture = fixture();
    let filling = "x".repeat(7000);
    for _ in 0..400 {
        fixture.ask_all(WRITER, &[publish("disk.n", &filling)]);
        fixture.run_until_settled();
    }
    fixture.subscribe(REQUESTER, "asker.*", "1");
    fixture.hub.storage_mut().read_requests_max = 64;
    let whole = r#"{"seq":1,"next_by_subj":"disk.nothing"}"#;
    for token in 0..4 {
        let requester = ClientId { shard: 1, token: 100 + token };
        let api_request = publish_for("$JS.API.DIRECT.GET.disk", whole, "asker.1");
        fixture.ask_all(requester, &vec![api_request; READS_PER_CLIENT_MAX]);
    }
    fixture.turn();
    let config = r#"{"stream_name":"disk","config":{"ack_policy":"none","deliver_subject":"push"}}"#;
    fixture.subscribe(READER, "push", "2");
    fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.CREATE.disk", config, "answers.1")]);
    for _ in 0..64 {
        fixture.advance_time(10_000_000);
        // The disk is slow: one read per turn.
        fixture.hub.storage_mut().serve_read();
        fixture.turn();
    }
    let received = fixture.received(READER);
    assert!(
        received.contains("$JS.ACK.disk."),
        "the consumer gets its first records: {} bytes",
        received.len()
    );
}

/// A parked connection with a next request beyond the API's budget does not block those behind it.
#[test]
fn a_parked_connection_that_waits_for_the_api_does_not_hold_up_a_stream() {
    let batches = 2 * BATCHES_PER_STREAM_MAX;
    let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (batches, 1 << 20), |streams| {
        streams.push(stream("other", &["other.>"], Durability::Disk));
    });
    fixture.subscribe(REQUESTER, "asker.*", "1");
    fixture.subscribe(OTHER, "bystander.*", "1");
    let filling = "x".repeat(7000);
    for _ in 0..600 {
        fixture.ask_all(WRITER, &[publish("memory.n", &filling)]);
    }
    let mut requests = vec![publish("disk.n", &filling); BATCHES_PER_STREAM_MAX + 1];
    requests.extend(vec![publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1"); 1000]);
    fixture.ask_all(REQUESTER, &requests);
    fixture.ask_all(OTHER, &[publish("disk.n", &filling), HubRequest::Barrier]);
    assert_eq!(fixture.parked(), 2);
    fixture.hub.storage_mut().write();
    fixture.hub.storage_mut().write();
    fixture.turn();
    assert_eq!(fixture.received(OTHER), "PONG\r\n", "it goes on in the turn in which there is room");
    assert_eq!(fixture.parked(), 1);
    while !fixture.hub.is_quiet() {
        fixture.turn();
    }
    fixture.run_until_settled();
    assert_eq!(fixture.received(REQUESTER).matches("NATS/1.0 ").count(), 1000);
}
