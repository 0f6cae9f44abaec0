//! One message for very many subscriptions: what has no room waits, without loss or reordering.

use std::collections::BTreeMap;

use stilling_hub::limits::DELIVERY_BATCH_SIZE;
use stilling_hub::{ClientId, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::fixture::{ABLE, ConnectionOutput, HubFixture, client};
use crate::fixture_requests::{publish, publish_for};

const WRITER: ClientId = ClientId { shard: 1, token: 1 };
const CLIENTS: u64 = 200;
const EACH: usize = 8;
const PIECES: usize = 2;

/// Many connections, half of them in each shard, all subscribed to `subject`.
fn fixture(subject: &str) -> HubFixture {
    let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), 8, PIECES);
    for token in 0..CLIENTS {
        for sid in 0..EACH {
            fixture.subscribe(client((token % 2) as u32, 1000 + token), subject, &sid.to_string());
        }
    }
    fixture
}

/// Runs the hub until it sends nothing more. Returns the messages of each subscription in order, and the maximum bytes
/// that a shard expanded at once.
fn receive_all(fixture: &mut HubFixture) -> (BTreeMap<(ClientId, String), Vec<String>>, usize) {
    let (mut all, mut idle) = (BTreeMap::<_, Vec<String>>::new(), 0);
    while idle < 3 {
        fixture.turn();
        fixture.hub.storage_mut().write();
        fixture.hub.storage_mut().serve_read();
        fixture.poll_shards();
        let outputs = std::mem::take(&mut fixture.outputs);
        idle = if outputs.is_empty() { idle + 1 } else { 0 };
        for (client, outputs) in outputs {
            match outputs {
                ConnectionOutput::Text(text) => {
                    for message in text.split("MSG ").skip(1) {
                        let sid = message.split(' ').nth(1).expect("a sid").to_owned();
                        all.entry((client, sid)).or_default().push(message.to_owned());
                    }
                }
                ConnectionOutput::Mark(mark) => {
                    fixture.ask(client, ABLE, &[HubRequest::MarkReached { mark }]);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(fixture.hub.is_drained());
    (all, fixture.expanded_max)
}

/// Maximum bytes of a shard at once: a batch and one message.
fn most_expected(message: usize) -> usize {
    DELIVERY_BATCH_SIZE + message
}

/// Invariant 4: one message to many subscriptions takes no more memory at once than the shards' routed batches.
#[test]
fn a_message_to_very_many_is_handed_out_piece_by_piece_and_in_order() {
    let subject = format!("wide.{}", "x".repeat(2000));
    let mut fixture = fixture(&subject);
    let texts = ["1", "2", "3"];
    let mut done = 0;
    let mut all = BTreeMap::<_, Vec<String>>::new();
    while done < texts.len() {
        done += fixture.ask(WRITER, ABLE, &texts.map(|text| publish(&subject, text))[done..]);
        let (received, most) = receive_all(&mut fixture);
        assert!(most <= most_expected(subject.len() + 100), "{most} bytes at once");
        for (recipient, messages) in received {
            all.entry(recipient).or_default().extend(messages);
        }
    }
    assert_eq!(all.len(), CLIENTS as usize * EACH);
    for (recipient, messages) in all {
        let payloads: Vec<_> = messages.iter().filter_map(|message| message.lines().nth(1)).collect();
        assert_eq!(payloads, texts, "{recipient:?}");
    }
}

/// Many consumers may each send a record to many subscriptions within the same bound.
#[test]
fn a_record_for_many_consumers_with_many_listeners_is_handed_out_piece_by_piece() {
    const CONSUMERS: usize = 12;
    for stream in ["disk", "memory", "none"] {
        let mut fixture = fixture("push");
        for number in 0..CONSUMERS {
            let config = format!(
                r#"{{"stream_name":"{stream}","config":{{"ack_policy":"none","name":"c{number}","deliver_policy":"new","deliver_subject":"push"}}}}"#
            );
            let api_request = format!("$JS.API.CONSUMER.CREATE.{stream}");
            fixture.ask_all(WRITER, &[publish_for(&api_request, &config, "nobody.listens")]);
        }
        fixture.now_ns += 100_000_000;
        assert_eq!(receive_all(&mut fixture).0.len(), 0, "there is nothing yet");
        let subject = format!("{stream}.{}", "x".repeat(500));
        let mut sent = 0;
        let mut all = BTreeMap::<_, Vec<String>>::new();
        while sent < 3 {
            sent += fixture.ask(WRITER, ABLE, &[publish(&subject, &sent.to_string())]);
            let (received, most) = receive_all(&mut fixture);
            assert!(most <= most_expected(subject.len() + 200), "{stream}: {most} bytes at once");
            for (recipient, messages) in received {
                all.entry(recipient).or_default().extend(messages);
            }
        }
        assert_eq!(all.len(), CLIENTS as usize * EACH, "{stream}");
        for (recipient, messages) in all {
            let payloads: Vec<_> = messages.iter().filter_map(|message| message.lines().nth(1)).collect();
            let expected: Vec<_> = ["0", "1", "2"].iter().flat_map(|text| [*text; CONSUMERS]).collect();
            assert_eq!(payloads, expected, "{stream} {recipient:?}");
        }
    }
}

/// Invariant 4: statuses are bounded as well; one request may need hundreds.
#[test]
fn statuses_to_very_many_are_handed_out_piece_by_piece() {
    const PULLS: usize = 20;
    const STATUS_SIZE: usize = 83;
    let subject = format!("wide.{}", "x".repeat(2000));
    let mut fixture = fixture(&subject);
    let create = r#"{"stream_name":"disk","config":{"ack_policy":"none","name":"p"}}"#;
    fixture.ask_all(WRITER, &[publish_for("$JS.API.CONSUMER.CREATE.disk", create, "nobody")]);
    let ask =
        publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", r#"{"batch":5,"expires":9000000000}"#, &subject);
    for _ in 0..PULLS {
        fixture.ask_all(WRITER, &[ask]);
    }
    let (before, _) = receive_all(&mut fixture);
    assert!(before.is_empty());
    fixture.ask_all(WRITER, &[publish_for("$JS.API.CONSUMER.DELETE.disk.p", "", "nobody")]);
    let (mut all, most) = receive_all(&mut fixture);
    // A batch contains a status once for all subscriptions; here it counts for each.
    let shared = STATUS_SIZE * (DELIVERY_BATCH_SIZE / subject.len());
    assert!(most <= most_expected(subject.len() + 100 + shared), "{most} bytes at once");
    fixture.ask_all(WRITER, &[publish(&subject, "last")]);
    for (recipient, messages) in receive_all(&mut fixture).0 {
        all.entry(recipient).or_default().extend(messages);
    }
    assert_eq!(all.len(), CLIENTS as usize * EACH);
    for messages in all.values() {
        assert_eq!(messages.len(), PULLS + 1);
        assert!(messages[..PULLS].iter().all(|status| status.contains("409 Consumer Deleted")));
        assert!(messages[PULLS].contains("last"));
    }
}
