//! The cases of the ETSI CoAP plugtests about observation, one test per case, named by it.

use super::*;

/// The body of a demo resource that changes by itself.
const CHANGE: &[u8] = b"change ";

/// Proceeds to the next notification of the only observer.
fn next_notification(fixture: &mut Fixture) -> Received {
    let mut sent = fixture.advance();
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent.remove(0).1
}

/// Registers an observer and checks three notifications of one type.
fn observe_three_changes(uri: &str, is_confirmable: bool) {
    let (mut fixture, me) = (Fixture::new(), client(1));
    let answer = fixture.observe(&me, 1, uri);
    assert!(answer.payload.starts_with(CHANGE) && answer.value(OptionNumber::MAX_AGE).is_some());
    let mut last = answer.observe().expect("it is registered");
    for count in 0..4 {
        let notification = next_notification(&mut fixture);
        let sequence = notification.observe().expect("a notification");
        assert!(sequence.is_newer_than(last) && notification.payload.starts_with(CHANGE));
        assert_eq!((notification.code, &notification.token[..]), (Code::CONTENT, &[0, 1][..]));
        // The first one is confirmable in any case.
        assert_eq!(notification.kind == CON, is_confirmable || count == 0, "{count}");
        if notification.kind == CON {
            fixture.acknowledge(&me, notification.id);
        }
        last = sequence;
    }
}

#[test]
fn td_coap_obs_01_confirmable_notifications() {
    observe_three_changes("obs", true);
}

#[test]
fn td_coap_obs_02_non_confirmable_notifications() {
    observe_three_changes("obs-non", false);
}

/// In the first edition of the cases: the client answers a notification with a reset and gets no more.
#[test]
fn td_coap_obs_03_stop_observation() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    let notification = next_notification(&mut fixture);
    fixture.reset(&me, notification.id);
    fixture.now = fixture.now.after(Duration::from_secs(60));
    assert!(fixture.transmit().is_empty());
}

/// The server is restarted: the client registers again when the last state is older than its Max-Age.
#[test]
fn td_coap_obs_04_client_detects_deregistration() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    let before = fixture.observe(&me, 1, "obs");
    let max_age = before.value(OptionNumber::MAX_AGE).expect("the client waits for that time");
    assert_eq!(max_age, [10]);
    let mut restarted = Fixture { now: fixture.now.after(Duration::from_secs(15)), ..Fixture::new() };
    assert!(restarted.transmit().is_empty(), "it does not know the client");
    let after = restarted.observe(&me, 2, "obs");
    assert!(after.observe().expect("it is registered").is_newer_than(before.observe().expect("it was")));
    assert_eq!(next_notification(&mut restarted).token, [0, 2]);
}

#[test]
fn td_coap_obs_05_server_detects_a_client_that_is_off() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    for _ in 0..5 {
        assert_eq!(next_notification(&mut fixture).kind, CON);
    }
    fixture.now = fixture.now.after(Duration::from_secs(60));
    assert!(fixture.transmit().is_empty());
    assert_eq!(fixture.counters.observers_gone.get(), 1);
}

#[test]
fn td_coap_obs_06_reset_deregisters() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs-non");
    let first = next_notification(&mut fixture);
    fixture.acknowledge(&me, first.id);
    let second = next_notification(&mut fixture);
    assert_eq!(second.kind, NON);
    fixture.reset(&me, second.id);
    fixture.now = fixture.now.after(Duration::from_secs(60));
    assert!(fixture.transmit().is_empty());
    assert_eq!(fixture.counters.observers_reset.get(), 1);
}

#[test]
fn td_coap_obs_07_delete_cleans_the_observers() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    assert_eq!(fixture.ask(&client(2), Code::DELETE, "obs", &[], b"").code, Code::DELETED);
    let last = next_notification(&mut fixture);
    assert_eq!((last.code, last.observe(), &last.token[..]), (Code::NOT_FOUND, None, &[0, 1][..]));
    fixture.acknowledge(&me, last.id);
    assert_eq!(fixture.ask(&client(2), Code::PUT, "obs", &[], b"new").code, Code::CREATED);
    fixture.now = fixture.now.after(Duration::from_secs(60));
    assert!(fixture.transmit().is_empty());
}

#[test]
fn td_coap_obs_08_another_format_cleans_the_observers() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    let json = [(OptionNumber::CONTENT_FORMAT, vec![50])];
    assert_eq!(fixture.ask(&client(2), Code::PUT, "obs", &json, b"{}").code, Code::CHANGED);
    let last = next_notification(&mut fixture);
    assert_eq!((last.code, last.observe()), (Code::NOT_ACCEPTABLE, None));
    fixture.acknowledge(&me, last.id);
    fixture.change("obs", b"text");
    fixture.now = fixture.now.after(Duration::from_secs(60));
    assert!(fixture.transmit().is_empty());
}

#[test]
fn td_coap_obs_09_update_of_the_observed_resource() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    fixture.change("obs", b"stored");
    let notification = fixture.transmit().remove(0).1;
    assert_eq!((&notification.payload[..], notification.code), (&b"stored"[..], Code::CONTENT));
}

#[test]
fn td_coap_obs_10_get_does_not_cancel() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 100, "obs");
    let plain = fixture.ask(&me, Code::GET, "obs", &[], b"");
    assert_eq!(plain.observe(), None);
    assert_eq!(next_notification(&mut fixture).token, [0, 100]);
}

/// The first transmissions of a notification and their acknowledgement are lost: the newest state is sent.
#[test]
fn td_coap_obs_11_lossy_confirmable_notifications() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    let lost = next_notification(&mut fixture);
    let again = next_notification(&mut fixture);
    assert_eq!(again.payload, lost.payload);
    fixture.change("obs", b"newer");
    let newest = next_notification(&mut fixture);
    assert_eq!((newest.kind, &newest.payload[..]), (CON, &b"newer"[..]));
    assert!(newest.observe().expect("one").is_newer_than(lost.observe().expect("one")));
    fixture.acknowledge(&me, newest.id);
    assert_eq!(
        next_notification(&mut fixture).payload,
        b"newer",
        "the next change, not sent again before it"
    );
}

#[test]
fn td_coap_obs_12_observe_1_deregisters() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    fixture.observe(&me, 1, "obs");
    let deregister = (OptionNumber::OBSERVE, vec![1]);
    let mut get = request(CON, Code::GET, 2, "obs", &[deregister], b"");
    // The token of the registration.
    get[4..6].copy_from_slice(&[0, 1]);
    let answer = fixture.send(&me, &get).expect("an answer");
    assert_eq!((answer.code, answer.observe()), (Code::CONTENT, None));
    fixture.now = fixture.now.after(Duration::from_secs(60));
    assert!(fixture.transmit().is_empty());
}

/// A notification has the first block; the client requests the others.
#[test]
fn td_coap_obs_13_large_states_in_blocks() {
    let (mut fixture, me) = (Fixture::new(), client(1));
    let answer = fixture.observe(&me, 100, "obs-large");
    assert_eq!(answer.block(OptionNumber::BLOCK2), BlockValue::new(0, true, BlockSize::MAX));
    let notification = next_notification(&mut fixture);
    assert!(notification.observe().is_some() && notification.payload.starts_with(CHANGE));
    let etag = notification.value(OptionNumber::ETAG).expect("blocks have one").to_vec();
    let mut body = notification.payload.clone();
    let second = block_option(OptionNumber::BLOCK2, 1, false, 1024);
    let rest = fixture.ask(&me, Code::GET, "obs-large", &[second], b"");
    assert_eq!((rest.observe(), rest.value(OptionNumber::ETAG)), (None, Some(&etag[..])));
    body.extend_from_slice(&rest.payload);
    assert_eq!(body.len(), 1700);
    assert!(!rest.block(OptionNumber::BLOCK2).expect("the last block").more);
}
