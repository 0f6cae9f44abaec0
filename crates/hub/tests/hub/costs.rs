//! Costs of idle consumers and disconnecting clients for other clients, in steps, without any loss.

use std::collections::BTreeMap;

use stilling_hub::limits::{
    DEPARTED_CONSUMER_STEPS_PER_TURN, DEPARTED_MATCHES_PER_STEP, DEPARTED_REGISTRATIONS_EVERY_NS,
    DEPARTED_REGISTRATIONS_PER_TURN, FILTERS_COMPARED_PER_TURN,
};
use stilling_hub::{ClientId, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_ring::SplitMix64;
use stilling_wire::nats::{Filter, Subject, SubjectLimits};

use crate::consumers::{READER, WRITER, api_request, create, fill, rig, take};
use crate::fixture_requests::{publish, publish_for};
use crate::rig::{ABLE, ConnectionOutput, HubFixture, ShardRequest, client};

fn wide() -> HubFixture {
    HubFixture::configured(&SimulatedDisk::new(), (8, 1 << 20), (10_000, 0), |_| ()).0
}

fn subscribe_many(rig: &mut HubFixture, by: ClientId, filters: impl Iterator<Item = String>) {
    let filters: Vec<_> = filters.collect();
    let sids: Vec<_> = (0..filters.len()).map(|sid| sid.to_string()).collect();
    let subscribe = |(filter, sid): (&'_ String, &'_ String)| {
        rig.ask_all(
            by,
            &[ShardRequest::Subscribe { filter: filter.as_bytes(), queue: b"", sid: sid.as_bytes() }],
        );
    };
    filters.iter().zip(&sids).for_each(subscribe);
}

/// Makes a client the only member of `count` queue groups for a subject. Each is registered separately.
fn join_many(rig: &mut HubFixture, by: ClientId, count: usize, filter: &str) {
    for number in 0..count {
        let (queue, sid) = (format!("{}-{number}", by.token), format!("q{number}"));
        let (filter, queue, sid) = (filter.as_bytes(), queue.as_bytes(), sid.as_bytes());
        rig.ask_all(by, &[ShardRequest::Subscribe { filter, queue, sid }]);
    }
}

/// Invariant 7: a record does not visit followers that do not match it.
#[test]
fn an_idle_consumer_costs_nothing_for_a_record_that_it_does_not_want() {
    for stream in ["disk", "memory", "none"] {
        let mut rig = rig();
        rig.subscribe(READER, "push.*", "2");
        let filters: Vec<_> = (0..64).map(|number| format!("\"{stream}.k.{number}\"")).collect();
        for number in 0..100 {
            let config = format!(
                r#""deliver_subject":"push.{number}","deliver_policy":"new","filter_subjects":[{}]"#,
                filters.join(",")
            );
            create(&mut rig, stream, &config);
        }
        // Another consumer receives every record.
        create(&mut rig, stream, r#""deliver_subject":"push.all","deliver_policy":"new""#);
        rig.advance_time(100_000_000);
        rig.run_until_settled();
        let counters = rig.hub.counters();
        assert_eq!(counters.offered.get(), 0, "{stream}");
        fill(&mut rig, stream, 0..300);
        assert_eq!(counters.offered.get(), 300, "{stream}");
        assert_eq!(take(&mut rig).len(), 300, "{stream}");
        // Matching records arrive once each, although one consumer matches by one of 64 filters.
        rig.ask_all(WRITER, &[publish(&format!("{stream}.k.7"), "wanted")]);
        rig.run_until_settled();
        assert_eq!(counters.offered.get(), 300 + 101, "{stream}");
        let got = take(&mut rig);
        assert_eq!(got.len(), 101, "{stream}");
        assert!(got.iter().all(|record| *record == (301, "wanted".to_owned())), "{stream}");
    }
}

/// The position of an idle consumer advances: it is reported, and skipped records are not read again.
#[test]
fn an_idle_consumer_is_where_the_stream_is() {
    for stream in ["disk", "memory"] {
        let mut rig = rig();
        rig.subscribe(READER, "push", "2");
        let filter = format!("{stream}.wanted");
        let config = format!(r#""name":"c","deliver_subject":"push","filter_subject":"{filter}""#);
        create(&mut rig, stream, &config);
        rig.advance_time(100_000_000);
        fill(&mut rig, stream, 0..50);
        let answer = api_request(&mut rig, &format!("CONSUMER.INFO.{stream}.c"), "");
        assert!(answer.contains(r#""num_pending":0"#), "{stream}: {answer}");
        // Its subscriber leaves, and returns after a matching record.
        rig.ask_all(READER, &[ShardRequest::Unsubscribe { sid: b"2", after: None }]);
        rig.advance_time(100_000_000);
        rig.run_until_settled();
        let answer = api_request(&mut rig, &format!("CONSUMER.INFO.{stream}.c"), "");
        assert!(answer.contains(r#""num_pending":0"#), "{stream}: {answer}");
        rig.ask_all(WRITER, &[publish(&filter, "x")]);
        rig.run_until_settled();
        rig.subscribe(READER, "push", "3");
        rig.advance_time(100_000_000);
        assert_eq!(take(&mut rig), [(51, "x".to_owned())], "{stream}");
        assert_eq!(rig.hub.counters().streams[1].skipped_removed.get(), 0);
    }
}

/// Reading for consumers with many filters is bounded per turn, and ends.
#[test]
fn consumers_that_catch_up_with_many_filters_take_turns() {
    const CONSUMERS: usize = 100;
    let mut rig = rig();
    fill(&mut rig, "memory", 0..200);
    rig.ask_all(WRITER, &[publish("memory.k.63", "wanted")]);
    let filters: Vec<_> = (0..64).map(|number| format!("\"memory.k.{number}\"")).collect();
    for number in 0..CONSUMERS {
        let config = format!(
            r#""deliver_subject":"push.{number}","deliver_policy":"all","filter_subjects":[{}]"#,
            filters.join(",")
        );
        create(&mut rig, "memory", &config);
    }
    rig.subscribe(READER, "push.*", "2");
    rig.advance_time(100_000_000);
    let mut turns = 0;
    while turns == 0 || !rig.hub.is_quiet() {
        rig.turn();
        turns += 1;
    }
    let least = CONSUMERS * filters.len() * 200 / FILTERS_COMPARED_PER_TURN;
    assert!((least..2 * least).contains(&turns), "{turns} turns");
    assert_eq!(take(&mut rig), vec![(201, "wanted".to_owned()); CONSUMERS]);
}

/// Advances time until departed subscriptions may be removed. Returns the number of removals.
fn remove_until_pause(rig: &mut HubFixture) -> usize {
    let counters = rig.hub.counters();
    let before = counters.departed_steps.get();
    rig.advance_time(DEPARTED_REGISTRATIONS_EVERY_NS);
    rig.turn();
    let removed = counters.departed_steps.get() - before;
    assert!(removed <= DEPARTED_REGISTRATIONS_PER_TURN as u64, "{removed} in one turn");
    rig.advance_time(DEPARTED_REGISTRATIONS_EVERY_NS - 1);
    rig.turn();
    assert_eq!(counters.departed_steps.get() - before, removed, "more before their time");
    removed as usize
}

/// Invariant 7: a disconnect costs a few steps per turn, however many subscriptions the client and others have.
#[test]
fn a_client_with_very_many_subscriptions_leaves_in_short_turns() {
    let mut rig = wide();
    let [leaver, stays, next] = [(0, 1), (1, 2), (0, 3)].map(|(shard, token)| client(shard, token));
    for by in [leaver, stays] {
        subscribe_many(&mut rig, by, (0..5000).map(|number| format!("a.{number}")));
    }
    let counters = rig.hub.counters();
    rig.ask_all(leaver, &[HubRequest::Disconnect]);
    assert_eq!(counters.subscriptions(), 5000, "none of them counts any more");
    let mut turns = 0;
    while counters.departed_steps.get() < 5000 {
        assert_eq!(
            rig.hub.next_check_in().map(|span| span.as_nanos()),
            Some(DEPARTED_REGISTRATIONS_EVERY_NS.into())
        );
        assert!(remove_until_pause(&mut rig) > 0);
        // Meanwhile disconnected clients receive nothing, and new clients do not wait.
        rig.ask_all(WRITER, &[publish("a.1", "x")]);
        assert_eq!(
            (rig.received(leaver), rig.received(stays)),
            (String::new(), "MSG a.1 1 1\r\nx\r\n".to_owned())
        );
        turns += 1;
    }
    assert_eq!((remove_until_pause(&mut rig), rig.hub.next_check_in()), (0, None));
    let least = 5000 / DEPARTED_REGISTRATIONS_PER_TURN;
    assert!((least..least + 3).contains(&turns), "{turns} turns");
    rig.subscribe(next, "a.2", "1");
    rig.ask_all(WRITER, &[publish("a.2", "y")]);
    assert_eq!(rig.received(next), "MSG a.2 1 1\r\ny\r\n");
    assert_eq!(
        (rig.received(leaver), rig.received(stays)),
        (String::new(), "MSG a.2 2 1\r\ny\r\n".to_owned())
    );
}

/// Invariant 7: messages remove the departed subscriptions that they would have matched, a bounded number per turn, so
/// that messages to one subject do not match all of them until the periodic removal is done.
#[test]
fn messages_remove_subscriptions_that_they_would_have_matched() {
    let mut rig = wide();
    let [leaver, stays, next] = [1, 2, 3].map(|token| client(0, token));
    for by in [leaver, stays] {
        join_many(&mut rig, by, 300, "a.b");
    }
    rig.ask_all(leaver, &[HubRequest::Disconnect]);
    let counters = rig.hub.counters();
    let mut messages = 0;
    while counters.departed_steps.get() < 300 {
        let (before, matches) = (counters.departed_steps.get(), counters.departed_matches.get());
        rig.ask_all(WRITER, &[publish("a.b", "x"), publish("a.b", "x")]);
        let removed = counters.departed_steps.get() - before;
        let least = (DEPARTED_REGISTRATIONS_PER_TURN as u64).min(300 - before);
        let most = least + (counters.departed_matches.get() - matches) / DEPARTED_MATCHES_PER_STEP + 1;
        assert!((least..=most).contains(&removed), "{removed} in one turn");
        messages += 2;
        rig.turn();
    }
    // Their numbers are reused, and the rest of the removal does not affect the new owner.
    join_many(&mut rig, next, 60, "a.c");
    assert!(rig.hub.next_check_in().is_some(), "some are listed still");
    while rig.hub.next_check_in().is_some() {
        remove_until_pause(&mut rig);
    }
    assert_eq!((counters.departed_steps.get(), counters.subscriptions()), (300, 360));
    rig.received(next);
    rig.ask_all(WRITER, &[publish("a.c", "y")]);
    assert_eq!(rig.received(next).matches("MSG a.c").count(), 60);
    assert_eq!(rig.received(stays).matches("MSG a.b").count(), 300 * messages);
}

/// Invariant 7: also in a turn with many messages, matches with departed subscriptions are bounded by the number of
/// these.
#[test]
fn many_messages_in_one_turn_do_not_match_what_was_left_again_and_again() {
    const LEFT: usize = 5000;
    let mut rig = wide();
    let leaver = client(0, 1);
    join_many(&mut rig, leaver, LEFT, "a.b");
    rig.ask_all(leaver, &[HubRequest::Disconnect]);
    let counters = rig.hub.counters();
    // `DEPARTED_MATCHES_PER_STEP` messages that match only the last one remove it; reaching it takes ten times as many.
    let messages = 20 * DEPARTED_MATCHES_PER_STEP as usize;
    rig.ask_all(WRITER, &vec![publish("a.b", "x"); messages]);
    let departed_steps = LEFT as u64;
    assert_eq!(counters.departed_steps.get(), departed_steps);
    let (matches, most) = (counters.departed_matches.get(), departed_steps * DEPARTED_MATCHES_PER_STEP);
    assert!(
        (departed_steps..most).contains(&matches),
        "{matches} matches of {messages} messages with {LEFT}"
    );
}

/// Invariant 7: repeated subscribing and disconnecting leaves no backlog.
#[test]
fn new_subscriptions_remove_those_of_clients_that_have_left() {
    let mut rig = wide();
    let counters = rig.hub.counters();
    for life in 0..10_u64 {
        let by = client(0, 10 + life);
        subscribe_many(&mut rig, by, (0..1000).map(|number| format!("a.{life}.{number}")));
        rig.ask_all(by, &[HubRequest::Disconnect]);
        assert!(
            counters.departed_steps.get() >= 1000 * life,
            "{} of {life} lives are removed",
            counters.departed_steps.get()
        );
    }
}

/// Consumers and pull requests are removed in bounded steps as well.
#[test]
fn a_client_with_many_consumers_and_requests_leaves_in_short_turns() {
    let mut rig = rig();
    let leaver = client(1, 7);
    rig.subscribe(leaver, "pulled.*", "1");
    let counters = rig.hub.counters();
    for number in 0..900 {
        let config = format!(r#"{{"config":{{"ack_policy":"none","name":"c{number}"}}}}"#);
        rig.ask_all(leaver, &[publish_for("$JS.API.CONSUMER.CREATE.disk", &config, "")]);
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.disk.c{number}");
        for _ in 0..3 {
            rig.ask_all(leaver, &[publish_for(&subject, "", "pulled.1")]);
        }
        rig.turn();
    }
    assert_eq!(counters.consumers.get(), 900);
    rig.ask_all(leaver, &[HubRequest::Disconnect]);
    let (mut before, mut turns) = (counters.departed_steps.get(), 0);
    while !rig.hub.is_quiet() {
        rig.turn();
        let steps = counters.departed_steps.get() - before;
        assert!(steps <= DEPARTED_CONSUMER_STEPS_PER_TURN as u64, "{steps} steps in one turn");
        (before, turns) = (counters.departed_steps.get(), turns + 1);
    }
    assert!(turns > 4, "{turns}");
    for number in [0, 450, 899] {
        let answer = api_request(&mut rig, &format!("CONSUMER.INFO.disk.c{number}"), "");
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
fn received_counts(rig: &mut HubFixture) -> BTreeMap<(ClientId, String), usize> {
    rig.poll_shards();
    let mut all = BTreeMap::new();
    for (to, outputs) in std::mem::take(&mut rig.outputs) {
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
        let (mut random, mut rig) = (SplitMix64::new(seed), wide());
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
                        rig.ask_all(by, &[ShardRequest::Subscribe { filter, queue, sid }]);
                    }
                    clients.push((by, table));
                }
                1 if !clients.is_empty() => {
                    let (by, _) = clients.swap_remove(random.index(clients.len()));
                    rig.ask_all(by, &[HubRequest::Disconnect]);
                }
                2 if !clients.is_empty() => {
                    let at = random.index(clients.len());
                    let (by, table) = &mut clients[at];
                    if let Some((sid, _)) = table.pop_first() {
                        rig.ask_all(*by, &[ShardRequest::Unsubscribe { sid: sid.as_bytes(), after: None }]);
                    }
                }
                3 => rig.turn(),
                _ => {
                    let subject = SUBJECTS[random.index(SUBJECTS.len())];
                    rig.ask_all(WRITER, &[publish(subject, "x")]);
                    let mut got = received_counts(&mut rig);
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
            assert_eq!(rig.hub.counters().subscriptions(), count as u64);
            if step % 30 == 29 {
                rig.poll_shards();
                rig.check_registrations();
            }
        }
        for (by, _) in clients {
            rig.ask(by, ABLE, &[HubRequest::Disconnect]);
        }
        rig.check_registrations();
        while remove_until_pause(&mut rig) > 0 {}
        let departed_steps = rig.hub.counters().departed_steps.get();
        rig.turn();
        assert_eq!(
            (rig.hub.counters().departed_steps.get(), rig.hub.counters().subscriptions()),
            (departed_steps, 0)
        );
    }
    assert!(delivered > 10_000, "{delivered}");
}
