//! Parked connections: each waits alone and in order, others continue, and waiting requests are bounded.

use stilling_hub::limits::{
    BATCHES_PER_STREAM_MAX, DISK_CHECK_EVERY_NS, DISK_STALL_TIMEOUT_NS, PARKED_PER_CLIENT_SIZE_MAX,
    PARKED_SIZE_MAX, UNPARKED_PER_TURN,
};
use stilling_hub::{ClientId, Durability, HubRequest, Ingress, Loss};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};

use crate::fixture::{ABLE, ConnectionOutput, HubFixture, ShardRequest, client, stream};
use crate::fixture_requests::{publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const BOB: ClientId = ClientId { shard: 1, token: 2 };
const CAROL: ClientId = ClientId { shard: 0, token: 3 };

/// Two disk streams, `disk` and `other`, which can be full separately. Connections receive answers in their own
/// inboxes.
fn fixture() -> HubFixture {
    let batches = 2 * BATCHES_PER_STREAM_MAX;
    let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (batches, 1 << 20), |streams| {
        streams.push(stream("other", &["other.>"], Durability::Disk));
    });
    fixture.subscribe(ALICE, "alice.>", "1");
    fixture.subscribe(BOB, "bob.>", "1");
    fixture.subscribe(CAROL, "carol.>", "1");
    fixture
}

fn long() -> String {
    "x".repeat(6000)
}

/// One publication more than `disk` has room for, all with a reply subject.
fn one_too_many<'a>(payload: &'a str, reply: &'a str) -> Vec<HubRequest<'a>> {
    vec![publish_for("disk.a", payload, reply); BATCHES_PER_STREAM_MAX + 1]
}

/// Makes ALICE fill `disk`; her last publication is parked with the requests `behind`.
fn park_alice<'a>(fixture: &mut HubFixture, behind: &[impl Into<ShardRequest<'a>> + Copy]) {
    let payload = long();
    let mut requests: Vec<ShardRequest<'_>> =
        one_too_many(&payload, "alice.disk").into_iter().map(Into::into).collect();
    requests.extend(behind.iter().map(|&ask| ask.into()));
    assert_eq!(fixture.send_until_parked(ALICE, &requests), BATCHES_PER_STREAM_MAX);
    assert_eq!(fixture.outputs(ALICE), [ConnectionOutput::Pause]);
}

fn exceed_stall_timeout(fixture: &mut HubFixture) {
    for _ in 0..=DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS {
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.turn();
    }
}

/// Positions of `parts` in a text that contains each once.
fn places<const N: usize>(text: &str, parts: [&str; N]) -> [usize; N] {
    parts.map(|part| {
        assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
        text.find(part).expect("it is there")
    })
}

/// A full stream stops only its publisher. Another connection of the same shard gets answers meanwhile, for plain
/// subjects, a memory stream and another disk stream.
#[test]
fn a_full_stream_parks_only_its_publisher() {
    let mut fixture = fixture();
    park_alice(&mut fixture, &[HubRequest::Barrier]);
    fixture.ask_all(
        CAROL,
        &[
            publish("carol.plain", "to herself"),
            publish_for("memory.a", "x", "carol.memory"),
            publish_for("other.a", "x", "carol.other"),
            HubRequest::Barrier,
        ],
    );
    let received = fixture.received(CAROL);
    assert!(
        received.contains("to herself") && received.contains(r#"{"stream":"memory","seq":1}"#),
        "{received}"
    );
    assert!(received.ends_with("PONG\r\n"), "{received}");
    let waiting = &mut fixture.hub.storage_mut().waiting;
    let other = waiting.iter().position(|(stream, ..)| *stream == 3).expect("it was handed over");
    waiting.swap(0, other);
    fixture.hub.storage_mut().complete_write();
    fixture.turn();
    assert!(fixture.received(CAROL).contains(r#"{"stream":"other","seq":1}"#));
    assert_eq!((fixture.outputs(ALICE), fixture.parked()), (vec![], 1), "she waits");
    assert!(!fixture.hub.is_drained(), "what is parked is not forgotten at the end");
    // A further publisher of the full stream waits behind her, even in another shard.
    fixture.ask_all(BOB, &[publish_for("disk.a", &long(), "bob.disk")]);
    assert_eq!((fixture.outputs(BOB), fixture.parked()), (vec![ConnectionOutput::Pause], 2));
    fixture.hub.storage_mut().complete_write();
    fixture.turn();
    // There is room for one batch, which is too small for both.
    assert_eq!((fixture.parked(), fixture.outputs(ALICE).last()), (1, Some(&ConnectionOutput::Resume)));
    fixture.hub.storage_mut().complete_write();
    fixture.turn();
    assert_eq!((fixture.parked(), fixture.outputs(BOB)), (0, vec![ConnectionOutput::Resume]));
}

/// Requests behind a parked publication are processed after it, in order: PING, and publications unrelated to the full
/// stream. The connection's subscriptions receive what it published after them, and nothing earlier.
#[test]
fn later_requests_of_a_parked_connection_wait_in_order() {
    let mut fixture = fixture();
    let subscribe = ShardRequest::Subscribe { filter: b"news", queue: b"", sid: b"2", format: None };
    let early = publish("news", "before it");
    let behind = [
        early.into(),
        subscribe,
        publish("news", "first").into(),
        publish_for("memory.a", "x", "alice.memory").into(),
        HubRequest::Barrier.into(),
        publish("alice.last", "end").into(),
    ];
    park_alice(&mut fixture, &behind);
    fixture.turn();
    assert_eq!(fixture.outputs(ALICE), []);
    fixture.run_until_settled();
    let outputs = fixture.outputs(ALICE);
    assert_eq!(
        outputs.iter().filter(|outputs| **outputs == ConnectionOutput::Resume).count(),
        1,
        "{outputs:?}"
    );
    let text: String = outputs.iter().filter_map(|outputs| outputs.text()).collect();
    let [first, memory, pong, last] = places(&text, ["first", "alice.memory", "PONG", "end"]);
    assert!(first < memory && memory < pong && pong < last, "{text}");
    assert!(!text.contains("before it"), "{text}");
    assert_eq!(text.matches(r#"{"stream":"disk""#).count(), BATCHES_PER_STREAM_MAX + 1);
    assert!(fixture.hub.is_drained() && fixture.hub.is_quiet());
}

/// A consumer created after a publication was parked delivers its record to all current subscriptions: these must not
/// get the record twice.
#[test]
fn a_parked_publication_goes_to_consumers_whose_subscriptions_came_later() {
    let mut fixture = fixture();
    park_alice(&mut fixture, &[publish_for("memory.a", "kept", "alice.memory")]);
    let config = r#"{"config":{"ack_policy":"none","name":"c","deliver_subject":"push.c"}}"#;
    fixture.ask_all(CAROL, &[publish_for("$JS.API.CONSUMER.CREATE.memory.c", config, "carol.api")]);
    fixture.subscribe(CAROL, "push.c", "7");
    fixture.turn();
    let received = fixture.received(CAROL);
    assert!(received.contains(r#""name":"c""#) && !received.contains("kept"), "{received}");
    fixture.run_until_settled();
    let received = fixture.received(CAROL);
    assert!(
        received.contains("MSG memory.a 7 $JS.ACK.memory.c.1.1.1.") && received.contains("kept"),
        "{received}"
    );
    // Later subscriptions of its shard do not get the publication itself.
    assert!(!fixture.received(ALICE).contains("kept"));
}

/// A parked connection with a pending close is closed after its last answer.
#[test]
fn the_close_of_a_parked_connection_waits_for_its_answers() {
    let mut fixture = fixture();
    park_alice(&mut fixture, &[HubRequest::CloseAfterAcks]);
    fixture.hub.storage_mut().write();
    fixture.turn();
    let outputs = fixture.outputs(ALICE);
    assert!(
        outputs.contains(&ConnectionOutput::Resume) && !outputs.contains(&ConnectionOutput::Close),
        "one is not written: {outputs:?}"
    );
    fixture.run_until_settled();
    let outputs = fixture.outputs(ALICE);
    let answers = outputs.iter().filter_map(|outputs| outputs.text()).collect::<String>();
    assert_eq!(answers.matches(r#"{"stream":"disk""#).count(), BATCHES_PER_STREAM_MAX);
    assert_eq!(outputs.last(), Some(&ConnectionOutput::Close));
}

/// Publications before a disconnect are stored, the subscriptions end at once, and the shard is notified at the end
/// that the connection is not parked any more.
#[test]
fn a_parked_connection_that_leaves_has_stored_what_it_has_published() {
    let mut fixture = fixture();
    park_alice(&mut fixture, &[publish_for("memory.a", "last", "bob.memory"), HubRequest::Disconnect]);
    let counters = fixture.hub.counters();
    assert_eq!((counters.subscriptions(), counters.streams[1].last.get()), (2, 0));
    fixture.run_until_settled();
    assert_eq!((counters.subscriptions(), counters.streams[1].last.get()), (2, 1));
    assert_eq!(counters.streams[0].visible.get(), BATCHES_PER_STREAM_MAX as u64 + 1);
    assert_eq!(fixture.outputs(ALICE), [ConnectionOutput::Resume]);
    assert!(fixture.received(BOB).contains(r#"{"stream":"memory","seq":1}"#));
    assert!(fixture.hub.is_drained());
}

/// A connection that disconnects while parked receives no message of a queue group: neither before its stream has room,
/// nor by a subscription that waits behind its publication.
#[test]
fn queue_groups_pass_over_a_parked_connection_that_has_left() {
    let mut fixture = fixture();
    let member = |sid| ShardRequest::Subscribe { filter: b"work", queue: b"q", sid, format: None };
    fixture.ask_all(ALICE, &[member(b"2")]);
    fixture.ask_all(BOB, &[member(b"2")]);
    park_alice(&mut fixture, &[HubRequest::Barrier, publish_for("work", "hers", "bob.work")]);
    let work = vec![publish("work", "work"); 10];
    fixture.ask_all(CAROL, &work);
    let shared = fixture.received(BOB).matches("MSG work").count();
    assert!(shared > 0 && shared < work.len(), "she is a member while she is connected: {shared}");
    fixture.outputs(ALICE);
    fixture.ask_all(ALICE, &[HubRequest::Disconnect]);
    fixture.ask_all(CAROL, &work);
    assert_eq!(fixture.received(BOB).matches("MSG work").count(), work.len());
    assert_eq!(fixture.parked(), 1, "what she has published waits");
    fixture.run_until_settled();
    fixture.ask_all(CAROL, &work);
    let received = fixture.received(BOB);
    assert_eq!((received.matches("MSG work").count(), received.matches("hers").count()), (work.len() + 1, 1));
    assert_eq!((fixture.outputs(ALICE), fixture.parked()), (vec![ConnectionOutput::Resume], 0));
    assert_eq!(fixture.hub.counters().streams[0].visible.get(), BATCHES_PER_STREAM_MAX as u64 + 1);
    assert!(fixture.hub.is_drained() && fixture.hub.is_quiet());
}

/// A parked publication is refused when its disk counts as hung, before the PING behind it is answered.
#[test]
fn a_parked_publication_is_refused_when_its_disk_hangs() {
    let mut fixture = fixture();
    park_alice(&mut fixture, &[HubRequest::Barrier, publish_for("memory.a", "x", "alice.memory")]);
    assert!(fixture.hub.next_check_in().is_some_and(|span| span.as_nanos() <= DISK_CHECK_EVERY_NS.into()));
    assert!(fixture.hub.is_quiet());
    exceed_stall_timeout(&mut fixture);
    let outputs = fixture.outputs(ALICE);
    assert_eq!(outputs.last(), Some(&ConnectionOutput::Resume));
    let text: String = outputs.iter().filter_map(|outputs| outputs.text()).collect();
    let [refusal, pong, memory] = places(&text, [r#""err_code":10023"#, "PONG", "alice.memory"]);
    assert!(refusal < pong && pong < memory, "{text}");
    assert_eq!((fixture.hub.counters().losses(Ingress::Nats, Loss::Hung), fixture.parked()), (1, 0));
}

/// A parked publication is refused when its stream is frozen.
#[test]
fn a_parked_publication_is_refused_when_its_stream_freezes() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 2, 1 << 20);
    fixture.subscribe(ALICE, "alice.>", "1");
    let payload = long();
    let mut requests = vec![publish_for("disk.a", &payload, "alice.disk"); 4];
    requests.push(HubRequest::Barrier);
    assert_eq!(fixture.send_until_parked(ALICE, &requests), 2);
    disk.fail(DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() });
    fixture.run_until_settled();
    let received = fixture.received(ALICE);
    let (before, behind) = received.split_once("PONG\r\n").expect("it is answered");
    let refusals = |text: &str| text.matches(r#""err_code":10077"#).count();
    // The second batch is with the disk, and answered like every batch: regardless of PING.
    assert_eq!((refusals(before), refusals(behind)), (3, 1), "{received}");
    assert_eq!((fixture.hub.counters().losses(Ingress::Nats, Loss::Frozen), fixture.parked()), (4, 0));
    assert!(fixture.hub.is_drained());
}

/// Parked requests are bounded per connection and in total. Beyond that the shard waits and others continue; nothing is
/// lost.
#[test]
fn parked_messages_are_bounded_and_other_shards_continue() {
    let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), 2, 1 << 20);
    fixture.subscribe(BOB, "bob.>", "1");
    let payload = "x".repeat(7000);
    let requests = vec![publish("disk.a", &payload); PARKED_PER_CLIENT_SIZE_MAX / payload.len() + 10];
    let mut left = Vec::new();
    for token in 0..PARKED_SIZE_MAX.div_ceil(PARKED_PER_CLIENT_SIZE_MAX) as u64 + 2 {
        let publisher = ClientId { shard: 0, token: 100 + token };
        let taken = fixture.ask(publisher, ABLE, &requests);
        assert!(taken < requests.len(), "{token}: its share is full, or that of all");
        left.push((publisher, taken));
        fixture.ask_all(BOB, &[publish_for("memory.a", "x", "bob.memory"), HubRequest::Barrier]);
        let received = fixture.received(BOB);
        assert!(received.contains(&format!(r#"{{"stream":"memory","seq":{}}}"#, token + 1)), "{received}");
        assert!(received.ends_with("PONG\r\n"), "{received}");
    }
    let taken: usize = left.iter().map(|(_, taken)| taken).sum();
    let parked = (taken + left.len() - fixture.processed()) * payload.len();
    let most = PARKED_SIZE_MAX / 2;
    assert!(parked <= most && parked > most / 10 * 9, "{parked} bytes: a stream may have half");
    assert_eq!(left.last().map(|(_, taken)| *taken), Some(0), "there is no room for a further connection");
    let memory = left.len();
    while !left.is_empty() {
        fixture.run_until_settled();
        left.retain_mut(|(publisher, taken)| {
            *taken += fixture.ask(*publisher, ABLE, &requests[*taken..]);
            *taken < requests.len()
        });
    }
    fixture.run_until_settled();
    let counters = fixture.hub.counters();
    assert_eq!(counters.streams[0].visible.get() as usize, memory * requests.len());
    assert_eq!((fixture.parked(), fixture.processed()), (0, memory * (requests.len() + 1)));
    assert!(fixture.hub.is_drained());
}

/// However much is refused at once, a turn processes only its share, and the hub continues without events.
#[test]
fn a_turn_processes_a_share_of_what_is_parked() {
    let mut fixture = fixture();
    park_alice(&mut fixture, &vec![publish("disk.a", "x"); 3 * UNPARKED_PER_TURN]);
    fixture.subscribe(BOB, "bob.>", "1");
    let before = fixture.processed();
    let mut turns = 0;
    fixture.advance_time(DISK_CHECK_EVERY_NS);
    fixture.turn();
    while fixture.parked() > 0 {
        let processed = fixture.processed();
        if fixture.hub.is_quiet() {
            fixture.advance_time(DISK_CHECK_EVERY_NS);
        }
        fixture.turn();
        let now = fixture.processed() - processed;
        assert!(now <= UNPARKED_PER_TURN, "{now} in one turn");
        turns += usize::from(now > 0);
        assert!(fixture.parked() == 0 || now == 0 || !fixture.hub.is_quiet(), "it goes on by itself");
    }
    assert!(turns >= 3, "{turns} turns");
    assert_eq!(fixture.processed() - before, 3 * UNPARKED_PER_TURN + 1);
}

impl ConnectionOutput {
    fn text(&self) -> Option<&str> {
        match self {
            ConnectionOutput::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Design, section 5: a waiting stream delays only its own messages, and a shard only its own deliveries. A parked
/// connection of a full shard does not block connections parked behind it when its stream has room.
#[test]
fn a_parked_connection_whose_shard_is_full_lets_the_others_pass() {
    let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), BATCHES_PER_STREAM_MAX, 1);
    let (first, second, reader) = (client(0, 21), client(1, 22), client(0, 23));
    fixture.subscribe(reader, "noise", "1");
    fixture.poll_shards();
    let payload = long();
    let requests = vec![publish("disk.a", &payload); BATCHES_PER_STREAM_MAX + 1];
    assert_eq!(fixture.send_until_parked(first, &requests), BATCHES_PER_STREAM_MAX);
    assert_eq!(fixture.send_until_parked(second, &[publish("disk.b", "x")]), 0);
    fixture.poll_shards();
    fixture.outputs.clear();
    let noise = "z".repeat(300_000);
    while fixture.hub.counters().queued.get() == 0 {
        fixture.ask_all(client(1, 24), &[publish("noise", &noise)]);
    }
    fixture.hub.storage_mut().write();
    fixture.turn();
    assert_eq!((fixture.parked(), fixture.hub.counters().parked_requests.get()), (1, 2));
    // The first shard takes its batches.
    fixture.run_until_settled();
    for _ in 0..8 {
        fixture.poll_shards();
        fixture.run_until_settled();
    }
    assert_eq!((fixture.parked(), fixture.outputs(second)), (0, vec![ConnectionOutput::Resume]));
    assert_eq!(fixture.hub.counters().streams[0].visible.get(), BATCHES_PER_STREAM_MAX as u64 + 2);
}
