//! Observation beyond the plugtests: slow and spoofed clients, full tables, several shards.

use std::collections::BTreeSet;

use super::super::super::limits::{CONFIRMABLE_EVERY, ECHO_LIFETIME, OBSERVERS_MAX};
use super::*;

/// Acknowledges the first notification, after a round trip of 20 ms.
fn observe_with_round_trip(fixture: &mut Fixture, path: &DatagramPath, id: MessageId) {
    assert!(fixture.observe(path, id, "obs-non").observe().is_some());
    fixture.change("obs-non", b"0");
    let first = fixture.transmit().remove(0).1;
    fixture.now = fixture.now.after(Duration::from_millis(20));
    fixture.acknowledge(path, first.id);
}

/// Issue row of observation: every tenth notification is confirmable, the others are not.
#[test]
fn every_tenth_notification_is_confirmable() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    observe_with_round_trip(&mut fixture, &me, 1);
    for number in 1..=3 * CONFIRMABLE_EVERY {
        fixture.now = fixture.now.after(Duration::from_millis(25));
        fixture.change("obs-non", number.to_string().as_bytes());
        let notification = fixture.transmit().remove(0).1;
        assert_eq!(notification.kind == CON, number % CONFIRMABLE_EVERY == 0, "{number}");
        assert_eq!(notification.payload, number.to_string().as_bytes());
        if notification.kind == CON {
            fixture.acknowledge(&me, notification.id);
        }
    }
    assert_eq!(fixture.counters.notifications.get(), u64::from(3 * (CONFIRMABLE_EVERY - 1)));
}

/// Observe × slow reader: a client that acknowledges late gets the newest state, however many there were.
#[test]
fn a_slow_observer_gets_the_newest_state_only() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    fixture.change("obs", b"first");
    let first = fixture.transmit().remove(0).1;
    for number in 0..1000 {
        fixture.change("obs", number.to_string().as_bytes());
        assert!(fixture.transmit().is_empty(), "one is in flight");
    }
    fixture.acknowledge(&me, first.id);
    let sent = fixture.transmit();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].1.payload, b"999");
}

/// A request that is so long that any answer fits proves no address: notifications could flood another.
#[test]
fn a_long_request_proves_no_address() {
    let mut fixture = Fixture::new();
    let register = (OptionNumber::OBSERVE, Vec::new());
    let padding = [b'x'; 1000];
    let datagram = request(CON, Code::GET, 1, "obs", &[register], &padding);
    let answer = fixture.send(&stranger(1), &datagram).expect("it is answered");
    assert_eq!((answer.code, answer.observe()), (Code::UNAUTHORIZED, None));
    assert_eq!(fixture.shard.exchange.observations.resources(), 0);
}

/// RFC 7641 §4.5.1: at most one non-confirmable notification per round trip, the newest state at its end.
#[test]
fn notifications_are_paced_by_the_round_trip() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    observe_with_round_trip(&mut fixture, &me, 1);
    let mut received = 0;
    let mut last = Vec::new();
    for number in 1..=100 {
        fixture.now = fixture.now.after(Duration::from_millis(1));
        fixture.change("obs-non", &[number]);
        for (_, notification) in fixture.transmit() {
            received += 1;
            last = notification.payload;
        }
    }
    assert!((4..=6).contains(&received), "{received} in 100 ms, with a round trip of 20 ms");
    if last != [100] {
        assert_eq!(fixture.advance()[0].1.payload, [100], "the newest one is not lost");
    }
}

/// RFC 7641 §4.5: a client is asked once a day whether it exists, even if nothing changes.
#[test]
fn a_confirmable_notification_is_sent_each_day() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    observe_with_round_trip(&mut fixture, &me, 1);
    fixture.now = fixture.now.after(Duration::from_secs(24 * 60 * 60));
    assert_eq!(fixture.transmit().remove(0).1.kind, CON);
}

/// Row 1.14: a registration under the same token is a refresh: the client keeps one entry.
#[test]
fn a_repeated_registration_is_a_refresh() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    let first = fixture.observe(&me, 1, "obs");
    let mut again = request(CON, Code::GET, 2, "obs", &[(OptionNumber::OBSERVE, Vec::new())], b"");
    again[4..6].copy_from_slice(&[0, 1]);
    let second = fixture.send(&me, &again).expect("an answer");
    assert!(second.observe().expect("it is registered").is_newer_than(first.observe().expect("it was")));
    assert_eq!(fixture.counters.datagrams(DatagramClass::ObserveRefresh), 1);
    fixture.change("obs", b"x");
    assert_eq!(fixture.transmit().len(), 1, "one observation");
}

/// A reset or an acknowledgement of another peer changes nothing.
#[test]
fn a_reset_by_another_peer_changes_nothing() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    fixture.change("obs", b"1");
    let first = fixture.transmit().remove(0).1;
    for other in [client(2), stranger(1), DatagramPath { socket: 1, ..me }] {
        fixture.reset(&other, first.id);
        fixture.acknowledge(&other, first.id);
    }
    fixture.change("obs", b"2");
    assert!(fixture.transmit().is_empty(), "the first one is still in flight");
    fixture.acknowledge(&me, first.id);
    assert_eq!(fixture.transmit().remove(0).1.payload, b"2");
}

/// RFC 7641 §4.1: without room a request is answered without observation, and counted. A client with many ports leaves
/// room for others.
#[test]
fn a_full_table_answers_without_observation() {
    let mut fixture = Fixture::new();
    let path = |address: u8, number: usize| DatagramPath {
        peer: ([127, 0, 0, address], 2000 + (number / 1000) as u16).into(),
        ..client(1)
    };
    let mut free = OBSERVERS_MAX;
    // Each client has as many as are free for others.
    for address in 1..=13 {
        let share = free.div_ceil(2);
        for number in 0..share {
            let answer = fixture.observe(&path(address, number), (number % 1000) as MessageId, "obs");
            assert!(answer.observe().is_some(), "{address}: {number}");
        }
        let answer = fixture.observe(&path(address, 60_000), 1, "obs");
        assert_eq!((answer.code, answer.observe()), (Code::CONTENT, None));
        free -= share;
    }
    assert_eq!((free, fixture.counters.observers_refused.get()), (0, 13));
    fixture.shard.publish_metrics(fixture.now);
    assert_eq!(fixture.counters.observers.get(), OBSERVERS_MAX as u64);
    // A refresh keeps its place.
    let mut again = request(CON, Code::GET, 5000, "obs", &[(OptionNumber::OBSERVE, Vec::new())], b"");
    again[4..6].copy_from_slice(&[0, 1]);
    assert!(fixture.send(&path(1, 0), &again).expect("an answer").observe().is_some());
}

/// Observe × spoofed source: an address that has not proved itself gets at most three times its bytes, and no
/// notification.
#[test]
fn a_spoofed_source_gets_no_notification() {
    for mut fixture in [Fixture::new(), Fixture::strict()] {
        let victim = stranger(1);
        let register = request(NON, Code::GET, 1, "obs", &[(OptionNumber::OBSERVE, Vec::new())], b"");
        let answer = fixture.send_raw(&victim, &register).expect("it fits");
        assert!(answer.len() <= 3 * register.len());
        let answer = Received::parse(&answer);
        assert_eq!((answer.code, answer.observe()), (Code::UNAUTHORIZED, None));
        fixture.change("obs", b"the first of two states");
        fixture.now = fixture.now.after(Duration::from_secs(60));
        assert!(fixture.transmit().is_empty());
        // With the Echo value the client has shown that it receives.
        let echo = answer.value(OptionNumber::ECHO).expect("4.01 has one").to_vec();
        let options = [(OptionNumber::OBSERVE, Vec::new()), (OptionNumber::ECHO, echo)];
        let proven = fixture.send(&victim, &request(CON, Code::GET, 2, "obs", &options, b""));
        assert!(proven.expect("an answer").observe().is_some());
        fixture.change("obs", b"the second of two states");
        assert_eq!(fixture.transmit().remove(0).0, victim);
    }
}

/// Observe × spoofed source: a deregistration from an address whose proof has expired may be spoofed, and does not end the
/// observation of its owner.
#[test]
fn a_spoofed_deregistration_ends_no_observation() {
    let (mut fixture, owner) = (Fixture::new(), stranger(1));
    let observe = |fixture: &mut Fixture, id, value: &[u8], echo: Option<&Vec<u8>>| {
        let mut options = vec![(OptionNumber::OBSERVE, value.to_vec())];
        options.extend(echo.map(|echo| (OptionNumber::ECHO, echo.clone())));
        let mut datagram = request(NON, Code::GET, id, "obs-non", &options, b"");
        datagram[4..6].copy_from_slice(&[7, 7]);
        fixture.send(&owner, &datagram).expect("an answer")
    };
    let echo_of = |answer: &Received| answer.value(OptionNumber::ECHO).expect("4.01 has one").to_vec();
    let required = observe(&mut fixture, 1, &[], None);
    let registered = observe(&mut fixture, 2, &[], Some(&echo_of(&required)));
    assert!(registered.observe().is_some());
    fixture.now = fixture.now.after(ECHO_LIFETIME * 2);
    observe(&mut fixture, 3, &[1], None);
    fixture.change("obs-non", b"still observed");
    let (path, notification) = fixture.transmit().remove(0);
    assert_eq!((path, &notification.payload[..]), (owner, &b"still observed"[..]));
    fixture.acknowledge(&owner, notification.id);
    // The owner receives at this address, and ends it.
    let required = observe(&mut fixture, 4, &[], None);
    observe(&mut fixture, 5, &[1], Some(&echo_of(&required)));
    fixture.shard.publish_metrics(fixture.now);
    assert_eq!(fixture.counters.observers.get(), 0);
}

/// A client of one shard changes what a client of another observes.
#[test]
fn observers_of_other_shards_are_notified() {
    let demo = DemoResources::default();
    let shard = || {
        let Fixture { shard, counters, now, next_id } = Fixture::new();
        let settings = CoapSettings { demo: demo.clone(), ..CoapSettings::default() };
        Fixture { shard: shard.with_settings(settings, now), counters, now, next_id }
    };
    let (mut one, mut other) = (shard(), shard());
    one.observe(&client(1), 1, "obs");
    other.change("obs", b"from elsewhere");
    assert!(
        one.shard.next_deadline(one.now).is_some_and(|at| at <= one.now.after(Duration::from_millis(100)))
    );
    assert_eq!(one.transmit().remove(0).1.payload, b"from elsewhere");
}

/// Several observations of a client: one confirmable notification is in flight (`NSTART`), the others follow.
#[test]
fn one_confirmable_notification_per_client_is_in_flight() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    for id in 1..=20 {
        fixture.observe(&me, id, "obs");
    }
    fixture.change("obs", b"x");
    let (mut tokens, mut ids) = (BTreeSet::new(), BTreeSet::new());
    while tokens.len() < 20 {
        for (_, notification) in fixture.advance() {
            fixture.acknowledge(&me, notification.id);
            // RFC 7252 §4.4: each has an id of its own, or clients ignore it.
            assert!(tokens.insert(notification.token) == ids.insert(notification.id));
        }
        assert!(fixture.now < Time::ZERO.after(Duration::from_secs(1100)));
    }
}

/// A restarted server continues the sequences, so that clients do not take its notifications for old ones.
#[test]
fn sequences_increase_over_a_restart() {
    let mut before = Fixture::new();
    before.shard = before.shard.with_clock_offset(Duration::from_secs(1_700_000_000));
    let old = before.observe(&client(1), 1, "obs").observe().expect("it is registered");
    // A second later, with a clock that begins again.
    let mut after = Fixture { now: Time::ZERO.after(Duration::from_secs(1)), ..Fixture::new() };
    after.shard = after.shard.with_clock_offset(Duration::from_secs(1_700_001_000));
    assert!(after.observe(&client(1), 1, "obs").observe().expect("it is registered").is_newer_than(old));
}

/// A state longer than a block costs no copy per observer: the stored answers of other clients stay, and each observer
/// reads all blocks of the newest state.
#[test]
fn observers_of_a_long_state_share_one_body() {
    const OBSERVERS: u16 = 400;
    let mut fixture = Fixture::new();
    let block = |number| [block_option(OptionNumber::BLOCK2, number, false, 1024)];
    let stored: Vec<_> = (0..200).map(|number| client(5000 + number)).collect();
    for path in &stored {
        assert_eq!(fixture.ask(path, Code::GET, "large", &[], b"").payload.len(), 1024);
    }
    let is_stored = |fixture: &Fixture, path: &DatagramPath| {
        // The cache key of GET /large.
        let key = [&[1, 0, 11, 0, 5][..], b"large"].concat();
        fixture.shard.exchange.bodies.find(path, &key, fixture.now).is_some()
    };
    let before: Vec<bool> = stored.iter().map(|path| is_stored(&fixture, path)).collect();
    assert!(before.iter().filter(|is_stored| **is_stored).count() > 150);

    for number in 0..OBSERVERS {
        assert!(fixture.observe(&client(1000 + number), 1, "obs-large").observe().is_some());
    }
    for round in 0..2_u8 {
        let state: Vec<u8> = (0..1024).map(|at| at as u8 ^ round).collect();
        fixture.change("obs-large", &[&state[..], &[round; 500]].concat());
        fixture.now = fixture.now.after(Duration::from_secs(4));
        let notifications = fixture.transmit();
        assert_eq!(notifications.len(), usize::from(OBSERVERS));
        for (path, notification) in &notifications {
            assert_eq!(notification.payload, state);
            let rest = fixture.ask(path, Code::GET, "obs-large", &block(1), b"");
            assert_eq!(rest.payload, [round; 500]);
            assert_eq!(rest.value(OptionNumber::ETAG), notification.value(OptionNumber::ETAG));
            fixture.acknowledge(path, notification.id);
        }
    }
    let after: Vec<bool> = stored.iter().map(|path| is_stored(&fixture, path)).collect();
    assert_eq!(after, before);
}

/// A client that has read a state in blocks before it observes does not get blocks of the older state.
#[test]
fn an_observer_gets_no_blocks_of_the_state_that_it_read_before() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.change("obs-large", &[1; 1500]);
    assert_eq!(fixture.ask(&me, Code::GET, "obs-large", &[], b"").payload, [1; 1024]);
    assert!(fixture.observe(&me, 100, "obs-large").observe().is_some());
    fixture.change("obs-large", &[2; 1500]);
    let notification = fixture.transmit().remove(0).1;
    let second = block_option(OptionNumber::BLOCK2, 1, false, 1024);
    let rest = fixture.ask(&me, Code::GET, "obs-large", &[second], b"");
    assert_eq!((rest.payload, notification.payload), (vec![2; 476], vec![2; 1024]));
}
