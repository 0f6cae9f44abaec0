//! Costs of idle consumers and disconnecting clients for other clients, in steps, without any loss.

use std::collections::BTreeMap;

use stilling_hub::limits::{
    DISCONNECTED_CONSUMER_STEPS_PER_TURN, FILTERS_COMPARED_PER_TURN, STALE_MATCHES_PER_STEP,
    STALE_REGISTRATIONS_EVERY_NS, STALE_REGISTRATIONS_PER_TURN,
};
use stilling_hub::{ClientId, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_ring::SplitMix64;
use stilling_wire::nats::{Filter, Subject, SubjectLimits};

use crate::consumers::{READER, WRITER, api_request, create, fill, fixture, take};
use crate::fixture::{ABLE, ConnectionOutput, HubFixture, ShardRequest, client};
use crate::fixture_requests::{publish, publish_for};

fn wide() -> HubFixture {
    HubFixture::configured(&SimulatedDisk::new(), (8, 1 << 20), (10_000, 0), |_| ()).0
}

fn subscribe_many(fixture: &mut HubFixture, by: ClientId, filters: impl Iterator<Item = String>) {
    let filters: Vec<_> = filters.collect();
    let sids: Vec<_> = (0..filters.len()).map(|sid| sid.to_string()).collect();
    let subscribe = |(filter, sid): (&'_ String, &'_ String)| {
        fixture.ask_all(
            by,
            &[ShardRequest::Subscribe {
                filter: filter.as_bytes(),
                queue: b"",
                sid: sid.as_bytes(),
                format: None,
            }],
        );
    };
    filters.iter().zip(&sids).for_each(subscribe);
}

/// Makes a client the only member of `count` queue groups for a subject. Each is registered separately.
fn join_many(fixture: &mut HubFixture, by: ClientId, count: usize, filter: &str) {
    for number in 0..count {
        let (queue, sid) = (format!("{}-{number}", by.token), format!("q{number}"));
        let (filter, queue, sid) = (filter.as_bytes(), queue.as_bytes(), sid.as_bytes());
        fixture.ask_all(by, &[ShardRequest::Subscribe { filter, queue, sid, format: None }]);
    }
}

/// Invariant 7: a record does not visit followers that do not match it.
#[test]
fn an_idle_consumer_costs_nothing_for_a_record_that_it_does_not_want() {
    for stream in ["disk", "memory", "none"] {
        let mut fixture = fixture();
        fixture.subscribe(READER, "push.*", "2");
        let filters: Vec<_> = (0..64).map(|number| format!("\"{stream}.k.{number}\"")).collect();
        for number in 0..100 {
            let config = format!(
                r#""deliver_subject":"push.{number}","deliver_policy":"new","filter_subjects":[{}]"#,
                filters.join(",")
            );
            create(&mut fixture, stream, &config);
        }
        // Another consumer receives every record.
        create(&mut fixture, stream, r#""deliver_subject":"push.all","deliver_policy":"new""#);
        fixture.advance_time(100_000_000);
        fixture.run_until_settled();
        let counters = fixture.hub.counters();
        assert_eq!(counters.offered.get(), 0, "{stream}");
        fill(&mut fixture, stream, 0..300);
        assert_eq!(counters.offered.get(), 300, "{stream}");
        assert_eq!(take(&mut fixture).len(), 300, "{stream}");
        // Matching records arrive once each, although one consumer matches by one of 64 filters.
        fixture.ask_all(WRITER, &[publish(&format!("{stream}.k.7"), "wanted")]);
        fixture.run_until_settled();
        assert_eq!(counters.offered.get(), 300 + 101, "{stream}");
        let got = take(&mut fixture);
        assert_eq!(got.len(), 101, "{stream}");
        assert!(got.iter().all(|record| *record == (301, "wanted".to_owned())), "{stream}");
    }
}

/// The position of an idle consumer advances: it is reported, and skipped records are not read again.
#[test]
fn an_idle_consumer_is_where_the_stream_is() {
    for stream in ["disk", "memory"] {
        let mut fixture = fixture();
        fixture.subscribe(READER, "push", "2");
        let filter = format!("{stream}.wanted");
        let config = format!(r#""name":"c","deliver_subject":"push","filter_subject":"{filter}""#);
        create(&mut fixture, stream, &config);
        fixture.advance_time(100_000_000);
        fill(&mut fixture, stream, 0..50);
        let answer = api_request(&mut fixture, &format!("CONSUMER.INFO.{stream}.c"), "");
        assert!(answer.contains(r#""num_pending":0"#), "{stream}: {answer}");
        // Its subscriber leaves, and returns after a matching record.
        fixture.ask_all(READER, &[ShardRequest::Unsubscribe { sid: b"2", after: None }]);
        fixture.advance_time(100_000_000);
        fixture.run_until_settled();
        let answer = api_request(&mut fixture, &format!("CONSUMER.INFO.{stream}.c"), "");
        assert!(answer.contains(r#""num_pending":0"#), "{stream}: {answer}");
        fixture.ask_all(WRITER, &[publish(&filter, "x")]);
        fixture.run_until_settled();
        fixture.subscribe(READER, "push", "3");
        fixture.advance_time(100_000_000);
        assert_eq!(take(&mut fixture), [(51, "x".to_owned())], "{stream}");
        assert_eq!(fixture.hub.counters().streams[1].skipped_removed.get(), 0);
    }
}

/// Reading for consumers with many filters is bounded per turn, and ends.
#[test]
fn consumers_that_catch_up_with_many_filters_take_turns() {
    const CONSUMERS: usize = 100;
    let mut fixture = fixture();
    fill(&mut fixture, "memory", 0..200);
    fixture.ask_all(WRITER, &[publish("memory.k.63", "wanted")]);
    let filters: Vec<_> = (0..64).map(|number| format!("\"memory.k.{number}\"")).collect();
    for number in 0..CONSUMERS {
        let config = format!(
            r#""deliver_subject":"push.{number}","deliver_policy":"all","filter_subjects":[{}]"#,
            filters.join(",")
        );
        create(&mut fixture, "memory", &config);
    }
    fixture.subscribe(READER, "push.*", "2");
    fixture.advance_time(100_000_000);
    let mut turns = 0;
    while turns == 0 || !fixture.hub.is_quiet() {
        fixture.turn();
        turns += 1;
    }
    let least = CONSUMERS * filters.len() * 200 / FILTERS_COMPARED_PER_TURN;
    assert!((least..2 * least).contains(&turns), "{turns} turns");
    assert_eq!(take(&mut fixture), vec![(201, "wanted".to_owned()); CONSUMERS]);
}

/// Advances time until stale subscriptions may be removed. Returns the number of removals.
fn remove_until_pause(fixture: &mut HubFixture) -> usize {
    let counters = fixture.hub.counters();
    let before = counters.cleanup_steps.get();
    fixture.advance_time(STALE_REGISTRATIONS_EVERY_NS);
    fixture.turn();
    let removed = counters.cleanup_steps.get() - before;
    assert!(removed <= STALE_REGISTRATIONS_PER_TURN as u64, "{removed} in one turn");
    fixture.advance_time(STALE_REGISTRATIONS_EVERY_NS - 1);
    fixture.turn();
    assert_eq!(counters.cleanup_steps.get() - before, removed, "more before their time");
    removed as usize
}

/// Invariant 7: a disconnect costs a few steps per turn, however many subscriptions the client and others have.
#[test]
fn a_client_with_very_many_subscriptions_leaves_in_short_turns() {
    let mut fixture = wide();
    let [disconnecting, connected, next] =
        [(0, 1), (1, 2), (0, 3)].map(|(shard, token)| client(shard, token));
    for by in [disconnecting, connected] {
        subscribe_many(&mut fixture, by, (0..5000).map(|number| format!("a.{number}")));
    }
    let counters = fixture.hub.counters();
    fixture.ask_all(disconnecting, &[HubRequest::Disconnect]);
    assert_eq!(counters.subscriptions(), 5000, "none of them counts any more");
    let mut turns = 0;
    while counters.cleanup_steps.get() < 5000 {
        assert_eq!(
            fixture.hub.next_check_in().map(|span| span.as_nanos()),
            Some(STALE_REGISTRATIONS_EVERY_NS.into())
        );
        assert!(remove_until_pause(&mut fixture) > 0);
        // Meanwhile disconnected clients receive nothing, and new clients do not wait.
        fixture.ask_all(WRITER, &[publish("a.1", "x")]);
        assert_eq!(
            (fixture.received(disconnecting), fixture.received(connected)),
            (String::new(), "MSG a.1 1 1\r\nx\r\n".to_owned())
        );
        turns += 1;
    }
    assert_eq!((remove_until_pause(&mut fixture), fixture.hub.next_check_in()), (0, None));
    let least = 5000 / STALE_REGISTRATIONS_PER_TURN;
    assert!((least..least + 3).contains(&turns), "{turns} turns");
    fixture.subscribe(next, "a.2", "1");
    fixture.ask_all(WRITER, &[publish("a.2", "y")]);
    assert_eq!(fixture.received(next), "MSG a.2 1 1\r\ny\r\n");
    assert_eq!(
        (fixture.received(disconnecting), fixture.received(connected)),
        (String::new(), "MSG a.2 2 1\r\ny\r\n".to_owned())
    );
}

/// Invariant 7: messages remove the stale subscriptions that they would have matched, a bounded number per turn, so
/// that messages to one subject do not match all of them until the periodic removal is done.
#[test]
fn messages_remove_subscriptions_that_they_would_have_matched() {
    let mut fixture = wide();
    let [disconnecting, connected, next] = [1, 2, 3].map(|token| client(0, token));
    for by in [disconnecting, connected] {
        join_many(&mut fixture, by, 300, "a.b");
    }
    fixture.ask_all(disconnecting, &[HubRequest::Disconnect]);
    let counters = fixture.hub.counters();
    let mut messages = 0;
    while counters.cleanup_steps.get() < 300 {
        let (before, matches) = (counters.cleanup_steps.get(), counters.stale_matches.get());
        fixture.ask_all(WRITER, &[publish("a.b", "x"), publish("a.b", "x")]);
        let removed = counters.cleanup_steps.get() - before;
        let least = (STALE_REGISTRATIONS_PER_TURN as u64).min(300 - before);
        let most = least + (counters.stale_matches.get() - matches) / STALE_MATCHES_PER_STEP + 1;
        assert!((least..=most).contains(&removed), "{removed} in one turn");
        messages += 2;
        fixture.turn();
    }
    // Their numbers are reused, and the rest of the removal does not affect the new owner.
    join_many(&mut fixture, next, 60, "a.c");
    assert!(fixture.hub.next_check_in().is_some(), "some are listed still");
    while fixture.hub.next_check_in().is_some() {
        remove_until_pause(&mut fixture);
    }
    assert_eq!((counters.cleanup_steps.get(), counters.subscriptions()), (300, 360));
    fixture.received(next);
    fixture.ask_all(WRITER, &[publish("a.c", "y")]);
    assert_eq!(fixture.received(next).matches("MSG a.c").count(), 60);
    assert_eq!(fixture.received(connected).matches("MSG a.b").count(), 300 * messages);
}

/// Invariant 7: also in a turn with many messages, matches with stale subscriptions are bounded by the number of
/// these.
#[test]
fn many_messages_in_one_turn_do_not_match_what_was_left_again_and_again() {
    const STALE: usize = 5000;
    let mut fixture = wide();
    let disconnecting = client(0, 1);
    join_many(&mut fixture, disconnecting, STALE, "a.b");
    fixture.ask_all(disconnecting, &[HubRequest::Disconnect]);
    let counters = fixture.hub.counters();
    // `STALE_MATCHES_PER_STEP` messages that match only the last one remove it; reaching it takes ten times as many.
    let messages = 20 * STALE_MATCHES_PER_STEP as usize;
    fixture.ask_all(WRITER, &vec![publish("a.b", "x"); messages]);
    let cleanup_steps = STALE as u64;
    assert_eq!(counters.cleanup_steps.get(), cleanup_steps);
    let (matches, most) = (counters.stale_matches.get(), cleanup_steps * STALE_MATCHES_PER_STEP);
    assert!(
        (cleanup_steps..most).contains(&matches),
        "{matches} matches of {messages} messages with {STALE}"
    );
}

/// Invariant 7: repeated subscribing and disconnecting leaves no backlog.
#[test]
fn new_subscriptions_remove_those_of_clients_that_have_left() {
    let mut fixture = wide();
    let counters = fixture.hub.counters();
    for life in 0..10_u64 {
        let by = client(0, 10 + life);
        subscribe_many(&mut fixture, by, (0..1000).map(|number| format!("a.{life}.{number}")));
        fixture.ask_all(by, &[HubRequest::Disconnect]);
        assert!(
            counters.cleanup_steps.get() >= 1000 * life,
            "{} of {life} lives are removed",
            counters.cleanup_steps.get()
        );
    }
}

/// Consumers and pull requests are removed in bounded steps as well.
#[test]
fn a_client_with_many_consumers_and_requests_leaves_in_short_turns() {
    let mut fixture = fixture();
    let disconnecting = client(1, 7);
    fixture.subscribe(disconnecting, "pulled.*", "1");
    let counters = fixture.hub.counters();
    for number in 0..900 {
        let config = format!(r#"{{"config":{{"ack_policy":"none","name":"c{number}"}}}}"#);
        fixture.ask_all(disconnecting, &[publish_for("$JS.API.CONSUMER.CREATE.disk", &config, "")]);
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.disk.c{number}");
        for _ in 0..3 {
            fixture.ask_all(disconnecting, &[publish_for(&subject, "", "pulled.1")]);
        }
        fixture.turn();
    }
    assert_eq!(counters.consumers.get(), 900);
    fixture.ask_all(disconnecting, &[HubRequest::Disconnect]);
    let (mut before, mut turns) = (counters.cleanup_steps.get(), 0);
    while !fixture.hub.is_quiet() {
        fixture.turn();
        let steps = counters.cleanup_steps.get() - before;
        assert!(steps <= DISCONNECTED_CONSUMER_STEPS_PER_TURN as u64, "{steps} steps in one turn");
        (before, turns) = (counters.cleanup_steps.get(), turns + 1);
    }
    assert!(turns > 4, "{turns}");
    for number in [0, 450, 899] {
        let answer = api_request(&mut fixture, &format!("CONSUMER.INFO.disk.c{number}"), "");
        assert!(answer.contains(r#""num_waiting":0"#), "{answer}");
    }
}

/// A client's subscriptions by sid: filter and queue.
type ClientSubscriptions = BTreeMap<String, (String, String)>;

fn takes(filter: &str, subject: &str) -> bool {
    let limits = SubjectLimits::default();
    let subject = Subject::parse(subject.as_bytes(), &limits).expect("a subject");
    Filter::parse(filter.as_bytes(), &limits).expect("a filter").matches(subject)
}

/// Returns the number of messages that each subscription received since the last call.
fn received_counts(fixture: &mut HubFixture) -> BTreeMap<(ClientId, String), usize> {
    fixture.poll_shards();
    let mut all = BTreeMap::new();
    for (to, outputs) in std::mem::take(&mut fixture.outputs) {
        let ConnectionOutput::Text(text) = outputs else { panic!("{outputs:?}") };
        for line in text.lines().filter(|line| line.starts_with("MSG ")) {
            let sid = line.split(' ').nth(2).expect("a sid").to_owned();
            *all.entry((to, sid)).or_default() += 1;
        }
    }
    all
}

/// A message goes to exactly the subscriptions that match by comparison, one per queue group, while clients connect,
/// disconnect, and are removed over several turns.
#[test]
fn the_tables_agree_with_comparing_every_filter() {
    const FILTERS: [&str; 8] = ["a.b", "a.*", "a.>", ">", "*.b", "b", "memory.a", "memory.>"];
    const SUBJECTS: [&str; 5] = ["a.b", "a.c.d", "b", "memory.a", "memory.b"];
    let mut delivered = 0;
    for seed in 0..20 {
        let (mut random, mut fixture) = (SplitMix64::new(seed), wide());
        let mut clients: Vec<(ClientId, ClientSubscriptions)> = Vec::new();
        for step in 0..150_u64 {
            match random.below(8) {
                0 => {
                    // Some have more subscriptions than one turn removes.
                    let by = client(random.below(2) as u32, 1000 + step);
                    let mut table = ClientSubscriptions::new();
                    for sid in 0..random.below(2) * 600 + 5 {
                        let filter = FILTERS[random.index(FILTERS.len())].to_owned();
                        let queue = ["", "", "q", "r"][random.index(4)].to_owned();
                        table.insert(sid.to_string(), (filter, queue));
                    }
                    for (sid, (filter, queue)) in &table {
                        let (filter, queue, sid) = (filter.as_bytes(), queue.as_bytes(), sid.as_bytes());
                        fixture.ask_all(by, &[ShardRequest::Subscribe { filter, queue, sid, format: None }]);
                    }
                    clients.push((by, table));
                }
                1 if !clients.is_empty() => {
                    let (by, _) = clients.swap_remove(random.index(clients.len()));
                    fixture.ask_all(by, &[HubRequest::Disconnect]);
                }
                2 if !clients.is_empty() => {
                    let at = random.index(clients.len());
                    let (by, table) = &mut clients[at];
                    if let Some((sid, _)) = table.pop_first() {
                        fixture
                            .ask_all(*by, &[ShardRequest::Unsubscribe { sid: sid.as_bytes(), after: None }]);
                    }
                }
                3 => fixture.turn(),
                _ => {
                    let subject = SUBJECTS[random.index(SUBJECTS.len())];
                    fixture.ask_all(WRITER, &[publish(subject, "x")]);
                    let mut got = received_counts(&mut fixture);
                    let mut queues: BTreeMap<&str, usize> = BTreeMap::new();
                    for (by, table) in &clients {
                        for (sid, (filter, queue)) in table {
                            let count = got.remove(&(*by, sid.clone())).unwrap_or(0);
                            delivered += count;
                            let expected = usize::from(takes(filter, subject));
                            if queue.is_empty() || expected == 0 {
                                assert_eq!(
                                    count, expected,
                                    "seed {seed}, step {step}: {by:?} {sid} {filter}"
                                );
                            } else {
                                *queues.entry(queue).or_default() += count;
                            }
                        }
                    }
                    assert!(queues.values().all(|count| *count == 1), "seed {seed}, step {step}: {queues:?}");
                    assert!(got.is_empty(), "seed {seed}, step {step}: {got:?}");
                }
            }
            let count: usize = clients.iter().map(|(_, table)| table.len()).sum();
            assert_eq!(fixture.hub.counters().subscriptions(), count as u64);
            if step % 30 == 29 {
                fixture.poll_shards();
                fixture.check_registrations();
            }
        }
        for (by, _) in clients {
            fixture.ask(by, ABLE, &[HubRequest::Disconnect]);
        }
        fixture.check_registrations();
        while remove_until_pause(&mut fixture) > 0 {}
        let cleanup_steps = fixture.hub.counters().cleanup_steps.get();
        fixture.turn();
        assert_eq!(
            (fixture.hub.counters().cleanup_steps.get(), fixture.hub.counters().subscriptions()),
            (cleanup_steps, 0)
        );
    }
    assert!(delivered > 10_000, "{delivered}");
}
