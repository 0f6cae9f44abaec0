//! API requests of one connection delay neither the turns of others nor the reads of consumers.

use stilling_hub::limits::{API_DISK_READS_MAX, BATCHES_PER_STREAM_MAX, READS_PER_CLIENT_MAX};
use stilling_hub::{ClientId, Durability, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::consumers::{READER, WRITER, fill, rig};
use crate::fixture_requests::{publish, publish_for};
use crate::rig::{ConnectionOutput, HubFixture, stream};

/// Sends many requests, in the shard of [`BYSTANDER`].
const ASKER: ClientId = ClientId { shard: 0, token: 11 };
const BYSTANDER: ClientId = ClientId { shard: 0, token: 12 };

const WHOLE: &str = r#"{"seq":1,"next_by_subj":"memory.nothing"}"#;

/// Fills the memory stream with some 4 MiB.
fn rig_with_much_in_memory() -> HubFixture {
    let mut rig = rig();
    rig.subscribe(ASKER, "asker.*", "1");
    rig.subscribe(BYSTANDER, "bystander.*", "1");
    let filling = "x".repeat(7000);
    for _ in 0..600 {
        rig.ask_all(WRITER, &[publish("memory.n", &filling)]);
    }
    rig.run_until_settled();
    rig
}

/// Publishes as the bystander to the memory stream, and expects the answer in the same turn.
fn publish_at_once(rig: &mut HubFixture) {
    rig.ask_all(BYSTANDER, &[publish_for("memory.n", "x", "bystander.1"), HubRequest::Barrier]);
    let received = rig.received(BYSTANDER);
    assert!(
        received.contains(r#"{"stream":"memory","seq":"#) && received.ends_with("PONG\r\n"),
        "{received}"
    );
}

#[test]
fn a_connection_with_many_requests_waits_alone() {
    let mut rig = rig_with_much_in_memory();
    let mut questions = vec![publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1"); 1500];
    questions.push(HubRequest::Barrier);
    rig.ask_all(ASKER, &questions);
    assert_eq!(rig.parked(), 1);
    let mut turns = 0;
    while rig.parked() > 0 || !rig.hub.is_quiet() {
        publish_at_once(&mut rig);
        rig.turn();
        turns += 1;
        assert!(turns < 2000, "it does not end");
    }
    assert!(turns > 10, "it waits for many turns: {turns}");
    let outputs = rig.outputs(ASKER);
    assert_eq!((outputs.first(), outputs.last().is_some()), (Some(&ConnectionOutput::Pause), true));
    assert_eq!(outputs.iter().filter(|outputs| **outputs == ConnectionOutput::Resume).count(), 1);
    let text: String = outputs
        .iter()
        .map(|outputs| match outputs {
            ConnectionOutput::Text(text) => text.as_str(),
            _ => "",
        })
        .collect();
    assert_eq!(text.matches("NATS/1.0 ").count(), 1500, "each question is answered");
    assert!(text.matches("NATS/1.0 404 ").count() >= READS_PER_CLIENT_MAX, "{}", text.len());
    assert!(text.contains("PONG\r\n"));
}

/// Reads for requests of earlier turns do not reduce the budget of new requests.
#[test]
fn requests_are_answered_while_long_reads_run() {
    let mut rig = rig_with_much_in_memory();
    let questions = vec![publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1"); READS_PER_CLIENT_MAX];
    rig.ask_all(ASKER, &questions);
    while rig.parked() > 0 {
        rig.turn();
    }
    for turn in 0..30 {
        rig.turn();
        assert!(!rig.hub.is_quiet(), "the reads are not at their end after {turn} turns");
        rig.ask_all(BYSTANDER, &[publish_for("$JS.API.STREAM.NAMES", "", "bystander.1")]);
        let received = rig.received(BYSTANDER);
        assert!(received.contains("stream_names_response"), "turn {turn}: {received}");
    }
}

#[test]
fn open_reads_are_bounded_for_each_connection() {
    let mut rig = rig();
    fill(&mut rig, "disk", 1..3);
    rig.subscribe(BYSTANDER, "bystander.*", "1");
    let api_request = publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":1}"#, "answers.1");
    rig.ask_all(READER, &vec![api_request; READS_PER_CLIENT_MAX + 3]);
    assert_eq!(rig.received(READER).matches("NATS/1.0 503 ").count(), 3);
    rig.ask_all(BYSTANDER, &[publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":2}"#, "bystander.1")]);
    for _ in 0..20 {
        rig.run_until_settled();
    }
    assert!(rig.received(BYSTANDER).contains("Nats-Sequence: 2\r\n"));
    assert_eq!(rig.received(READER).matches("Nats-Sequence: 1\r\n").count(), READS_PER_CLIENT_MAX);
}

/// A memory read continues without other events while all disk reads are outstanding.
#[test]
fn a_read_of_memory_goes_on_while_the_disk_reads_for_others() {
    let mut rig = rig_with_much_in_memory();
    fill(&mut rig, "disk", 1..3);
    let of_disk = publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":1}"#, "answers.1");
    rig.ask_all(READER, &vec![of_disk; API_DISK_READS_MAX + 1]);
    assert!(rig.hub.is_quiet(), "the disk reads as much as it may");
    rig.ask_all(ASKER, &[publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1")]);
    let mut turns = 0;
    while !rig.hub.is_quiet() {
        rig.turn();
        turns += 1;
        assert!(turns < 100, "it does not end");
    }
    assert!(turns > 1, "it is more than a turn reads");
    assert!(rig.received(ASKER).contains("NATS/1.0 404 "));
    assert_eq!(rig.received(READER), "", "the disk has not read");
}

/// Requests for records do not use up the disk reads of consumers.
#[test]
fn a_consumer_reads_beside_record_requests() {
    let mut rig = rig();
    let filling = "x".repeat(7000);
    for _ in 0..400 {
        rig.ask_all(WRITER, &[publish("disk.n", &filling)]);
        rig.run_until_settled();
    }
    rig.subscribe(ASKER, "asker.*", "1");
    rig.hub.storage_mut().orders_max = 64;
    let whole = r#"{"seq":1,"next_by_subj":"disk.nothing"}"#;
    for token in 0..4 {
        let asker = ClientId { shard: 1, token: 100 + token };
        let api_request = publish_for("$JS.API.DIRECT.GET.disk", whole, "asker.1");
        rig.ask_all(asker, &vec![api_request; READS_PER_CLIENT_MAX]);
    }
    rig.turn();
    let config = r#"{"stream_name":"disk","config":{"ack_policy":"none","deliver_subject":"push"}}"#;
    rig.subscribe(READER, "push", "2");
    rig.ask_all(READER, &[publish_for("$JS.API.CONSUMER.CREATE.disk", config, "answers.1")]);
    for _ in 0..64 {
        rig.advance_time(10_000_000);
        // The disk is slow: one read per turn.
        rig.hub.storage_mut().serve_read();
        rig.turn();
    }
    let received = rig.received(READER);
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
    let (mut rig, _) = HubFixture::changed(&SimulatedDisk::new(), (batches, 1 << 20), |streams| {
        streams.push(stream("other", &["other.>"], Durability::Disk));
    });
    rig.subscribe(ASKER, "asker.*", "1");
    rig.subscribe(BYSTANDER, "bystander.*", "1");
    let filling = "x".repeat(7000);
    for _ in 0..600 {
        rig.ask_all(WRITER, &[publish("memory.n", &filling)]);
    }
    let mut requests = vec![publish("disk.n", &filling); BATCHES_PER_STREAM_MAX + 1];
    requests.extend(vec![publish_for("$JS.API.DIRECT.GET.memory", WHOLE, "asker.1"); 1000]);
    rig.ask_all(ASKER, &requests);
    rig.ask_all(BYSTANDER, &[publish("disk.n", &filling), HubRequest::Barrier]);
    assert_eq!(rig.parked(), 2);
    rig.hub.storage_mut().write();
    rig.hub.storage_mut().write();
    rig.turn();
    assert_eq!(rig.received(BYSTANDER), "PONG\r\n", "it goes on in the turn in which there is room");
    assert_eq!(rig.parked(), 1);
    while !rig.hub.is_quiet() {
        rig.turn();
    }
    rig.run_until_settled();
    assert_eq!(rig.received(ASKER).matches("NATS/1.0 ").count(), 1000);
}
