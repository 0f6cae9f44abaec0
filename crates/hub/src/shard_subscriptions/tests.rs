//! Changes that a shard reports to the hub, and deliveries of messages to its subscriptions.

use std::collections::BTreeSet;

use super::*;
use crate::deliveries::{DeliveryBatch, DeliveryItem};
use crate::limits::{DELIVERY_BATCH_SIZE, STALE_MATCHES_PER_STEP};
use crate::message::OutboundMessage;
use crate::publication_batch::InterestChange;
use crate::routed_batch::{MarkTarget, RoutedBatch};

const ALICE: u64 = 1;
const BOB: u64 = 2;

struct TableFixture {
    table: ShardSubscriptions,
    routed_batch: RoutedBatch,
    messages: u64,
}

impl TableFixture {
    fn new() -> TableFixture {
        let table = ShardSubscriptions::new(HashKey(1, 2), 100);
        TableFixture { table, routed_batch: RoutedBatch::new(), messages: 0 }
    }

    fn subscribe(&mut self, token: u64, filter: &str, sid: &str) -> Vec<String> {
        let subscription = (filter.as_bytes(), &b""[..], sid.as_bytes());
        self.table.subscribe(token, ClientOptions::default(), subscription).expect("there is room");
        self.sent_to_hub()
    }

    fn unsubscribe(&mut self, token: u64, sid: &str, after: Option<u32>) -> Vec<String> {
        self.table.unsubscribe(token, sid.as_bytes(), after);
        self.sent_to_hub()
    }

    fn sent_to_hub(&mut self) -> Vec<String> {
        let mut publication_batch = PublicationBatch::new();
        self.table.push_changes(&mut publication_batch);
        (0..publication_batch.len())
            .filter_map(|at| publication_batch.get(at))
            .map(|(token, _, request)| {
                let change = match request {
                    HubRequest::Disconnect => return format!("{token} disconnects"),
                    HubRequest::Interest(change) => change,
                    other => panic!("{other:?}"),
                };
                match change {
                    InterestChange::Register { id, filter, queue } => {
                        let text = [filter, queue].map(String::from_utf8_lossy).concat();
                        format!("{token} registers {text} as {}", id.number)
                    }
                    InterestChange::Share { id, .. } => format!("{token} shares {}", id.number),
                    InterestChange::Unshare { id } => format!("{token} alone has {}", id.number),
                    InterestChange::Unregister { id, after, is_shared } => {
                        let owner = if is_shared { "all".to_owned() } else { token.to_string() };
                        let after = after.map_or(String::new(), |after| format!(" after {after}"));
                        format!("{owner} ends {}{after}", id.number)
                    }
                    InterestChange::Sync => "sync".to_owned(),
                }
            })
            .collect()
    }

    fn id(&self, number: u32) -> RegistrationId {
        let serial = self.table.registered[number as usize].as_ref().map_or(0, |of| of.serial);
        RegistrationId { number, serial }
    }

    /// Routes a message for which the hub has processed `processed` requests.
    fn route(&mut self, number: u32, processed: u64, excluded: Option<u64>, payload: &[u8]) {
        self.messages += 1;
        let message = OutboundMessage {
            subject: b"a",
            reply: b"",
            headers: b"",
            payload: payload.into(),
            position: None,
        };
        self.routed_batch.message((self.messages, processed), excluded, &message, self.id(number));
    }

    fn received(&mut self) -> Vec<String> {
        let (mut received, mut deliveries, mut is_all) = (Vec::new(), DeliveryBatch::new(), false);
        while !is_all {
            is_all = self.table.expand(&mut self.routed_batch, &mut deliveries);
            while deliveries.advance().is_some() {
                match deliveries.current().expect("there is one") {
                    item @ (DeliveryItem::Bytes(..)
                    | DeliveryItem::Feed(_)
                    | DeliveryItem::FeedWithSid(_)) => {
                        let mut bytes = Vec::new();
                        match item {
                            DeliveryItem::Bytes(first, _) => bytes.extend_from_slice(first),
                            DeliveryItem::Feed(messages) => bytes.extend_from_slice(messages.bytes()),
                            DeliveryItem::FeedWithSid(messages) => messages.append_to(&mut bytes),
                            _ => {}
                        }
                        let text = String::from_utf8_lossy(&bytes).into_owned();
                        let mut sids = text.split("MSG a ");
                        received.extend(sids.next().filter(|text| !text.is_empty()).map(str::to_owned));
                        received
                            .extend(sids.map(|line| line.split(' ').next().unwrap_or_default().to_owned()));
                    }
                    other => received.push(format!("{other:?}")),
                }
            }
            deliveries.clear();
        }
        self.routed_batch.clear();
        received
    }

    fn answer(&mut self, processed: u64) {
        self.routed_batch.processed(processed);
        assert_eq!(self.received(), Vec::<String>::new());
    }
}

/// Design, section 4: for each filter and shard the hub knows none, one or many; only these transitions leave the
/// shard.
#[test]
fn only_the_first_and_the_second_connection_are_reported_to_the_hub() {
    let mut shard = TableFixture::new();
    assert_eq!(shard.subscribe(ALICE, "a", "1"), ["1 registers a as 0"]);
    assert_eq!(shard.subscribe(ALICE, "a", "2"), ["sync"], "it is the same connection");
    assert_eq!(shard.subscribe(BOB, "a", "1"), ["1 shares 0"]);
    for token in 10..20 {
        assert_eq!(shard.subscribe(token, "a", "1"), ["sync"]);
    }
    for token in 10..20 {
        assert_eq!(shard.unsubscribe(token, "1", None), [""; 0]);
    }
    assert_eq!(shard.unsubscribe(ALICE, "1", None), [""; 0]);
    assert_eq!(shard.unsubscribe(ALICE, "2", None), ["2 alone has 0"]);
    assert_eq!(shard.unsubscribe(BOB, "1", None), ["2 ends 0"]);
    assert_eq!(shard.subscribe(BOB, "b", "1"), ["2 registers b as 1"], "the sid is free");
    shard.answer(100);
    assert_eq!((shard.table.len(), shard.table.ended.len(), shard.table.filters.len()), (1, 0, 1));
}

#[test]
fn a_filter_that_returns_before_the_answer_is_reported_again() {
    let mut shard = TableFixture::new();
    shard.subscribe(ALICE, "a", "1");
    assert_eq!(shard.unsubscribe(ALICE, "1", None), ["1 ends 0", "sync"]);
    assert_eq!(shard.subscribe(ALICE, "a", "1"), ["1 registers a as 0"]);
    // Messages between the two requests are delivered at most once.
    shard.route(0, 0, None, b"x");
    assert_eq!(shard.received(), [""; 0], "before the first SUB was processed nothing was sent");
    shard.answer(3);
    shard.route(0, 4, None, b"x");
    assert_eq!((shard.received(), shard.table.len()), (vec!["1".to_owned()], 1));
}

/// Design, section 4: a subscription receives only messages after its SUB and before its UNSUB.
#[test]
fn a_subscription_gets_what_was_published_between_its_sub_and_its_unsub() {
    let mut shard = TableFixture::new();
    let mut publication_batch = PublicationBatch::new();
    shard.subscribe(ALICE, "a", "old");
    shard.table.push(&mut publication_batch, BOB, ClientOptions::default(), &HubRequest::Barrier);
    shard.subscribe(BOB, "a", "new");
    // It shares the filter from the third request on.
    for (processed, expected) in
        [(1, &["old"][..]), (2, &["old"]), (3, &["old", "new"]), (9, &["old", "new"])]
    {
        shard.route(0, processed, None, b"x");
        assert_eq!(shard.received(), expected, "{processed}");
    }
    for _ in 3..10 {
        shard.table.push(&mut publication_batch, BOB, ClientOptions::default(), &HubRequest::Barrier);
    }
    shard.unsubscribe(BOB, "new", None);
    for (processed, expected) in [(9, &["old", "new"][..]), (11, &["old"])] {
        shard.route(0, processed, None, b"x");
        assert_eq!(shard.received(), expected, "{processed}");
    }
    shard.answer(11);
    assert_eq!((shard.table.ended.len(), shard.table.subscriptions.iter().flatten().count()), (0, 1));
}

/// A queue member receives what the hub sent before its end was processed, since no other member gets it.
#[test]
fn a_member_of_a_queue_that_ends_loses_nothing_that_is_under_way() {
    let mut shard = TableFixture::new();
    for (token, sid) in [(ALICE, "1"), (BOB, "2")] {
        let subscription = (&b"a"[..], &b"q"[..], sid.as_bytes());
        shard.table.subscribe(token, ClientOptions::default(), subscription).expect("there is room");
    }
    assert_eq!(shard.sent_to_hub(), ["1 registers aq as 0", "2 registers aq as 1"]);
    assert_eq!(shard.unsubscribe(ALICE, "1", None), ["1 ends 0", "sync"]);
    shard.route(0, 2, None, b"x");
    shard.route(1, 2, None, b"x");
    assert_eq!(shard.received(), ["1", "2"]);
    assert_eq!(shard.unsubscribe(BOB, "2", Some(2)), ["2 ends 1 after 2"]);
    shard.answer(4);
    shard.route(1, 5, None, b"x");
    assert_eq!(shard.received(), ["2"]);
    assert!(shard.table.is_empty() && !shard.table.has_client(BOB), "it has got both");
    assert_eq!(shard.sent_to_hub(), ["2 ends 1"]);
}

#[test]
fn the_limit_of_the_only_subscription_is_counted_by_the_hub_and_that_of_others_by_the_shard() {
    let mut shard = TableFixture::new();
    shard.subscribe(ALICE, "a", "1");
    assert_eq!(shard.unsubscribe(ALICE, "1", Some(1)), ["1 ends 0 after 1"]);
    // Other connections have a separate registration, which does not end with it.
    assert_eq!(shard.subscribe(BOB, "a", "2"), ["2 registers a as 1"]);
    assert_eq!(shard.subscribe(ALICE, "a", "3"), ["2 shares 1"]);
    assert_eq!(shard.unsubscribe(ALICE, "3", Some(2)), [""; 0], "the shard counts");
    for expected in [&["1", "2", "3"][..], &["2", "3"], &["2"]] {
        shard.route(1, 9, None, b"x");
        if expected.len() == 3 {
            shard.route(0, 9, None, b"x");
        }
        let mut received = shard.received();
        received.sort();
        assert_eq!(received, expected);
    }
    assert_eq!(shard.sent_to_hub(), ["1 ends 0", "2 alone has 1"]);
    assert_eq!(shard.table.len(), 1);
}

#[test]
fn a_connection_that_has_left_gets_nothing_at_once_and_is_removed_in_steps() {
    let mut shard = TableFixture::new();
    let count = 3 * STALE_REGISTRATIONS_PER_TURN;
    for number in 0..count {
        shard.subscribe(ALICE, &format!("f{number}"), &number.to_string());
    }
    shard.subscribe(ALICE, "a", "a");
    shard.subscribe(BOB, "a", "b");
    let number = count as u32;
    shard.table.disconnect(ALICE);
    assert_eq!((shard.table.len(), shard.table.has_client(ALICE)), (1, false), "at once");
    shard.route(number, 9999, None, b"x");
    assert_eq!(shard.received(), ["b"]);
    let mut turns = 0;
    // Registrations of the connection alone end in the hub with it; the one matched by the message is removed.
    assert_eq!(shard.sent_to_hub(), ["1 disconnects".to_owned(), format!("2 alone has {number}")]);
    while shard.table.has_removals() {
        let before = shard.table.stale_count;
        shard.table.remove_some();
        assert!(before - shard.table.stale_count <= STALE_REGISTRATIONS_PER_TURN);
        turns += 1;
    }
    assert!(turns >= 3, "{turns}");
    assert_eq!(shard.sent_to_hub(), [""; 0]);
    assert_eq!(shard.table.filters.len(), 1);
    shard.table.disconnect(BOB);
    while shard.table.has_removals() {
        shard.table.remove_some();
    }
    assert_eq!(shard.sent_to_hub(), ["2 disconnects"]);
    let table = &shard.table;
    assert_eq!(
        (table.subscriptions.len(), table.registered.len()),
        (table.free.len(), table.free_registered.len())
    );
    assert_eq!((table.owners.len(), table.filters.len()), (table.free_owners.len(), 0));
}

/// When all connections of a filter disconnect before any is removed, the hub is notified that none remains.
#[test]
fn a_filter_whose_connections_have_all_left_ends_in_the_hub() {
    let mut shard = TableFixture::new();
    shard.subscribe(ALICE, "a", "1");
    assert_eq!(shard.subscribe(BOB, "a", "1"), ["1 shares 0"]);
    shard.table.disconnect(ALICE);
    shard.table.disconnect(BOB);
    shard.table.remove_some();
    assert_eq!(shard.sent_to_hub(), ["1 disconnects", "2 disconnects", "all ends 0"]);
    assert!(!shard.table.has_removals() && shard.table.filters.is_empty());
}

/// The shard applies `no_echo` when several connections are subscribed.
#[test]
fn a_shared_message_without_echo_goes_to_the_others() {
    let mut shard = TableFixture::new();
    shard.subscribe(ALICE, "a", "1");
    shard.subscribe(BOB, "a", "2");
    shard.route(0, 9, Some(ALICE), b"x");
    assert_eq!(shard.received(), ["2"]);
}

#[test]
fn a_connection_has_as_many_subscriptions_and_tokens_as_it_may() {
    let mut shard = TableFixture::new();
    for sid in 0..100 {
        shard.subscribe(ALICE, "a", &sid.to_string());
    }
    let full = shard.table.subscribe(ALICE, ClientOptions::default(), (b"a", b"", b"100"));
    assert_eq!((full, shard.table.len()), (Err(SubscriptionLimit::PerClient), 100));
    shard.unsubscribe(ALICE, "7", None);
    shard.unsubscribe(ALICE, "8", None);
    shard.subscribe(ALICE, "a", "101");
    assert_eq!(shard.subscribe(ALICE, "b", "101"), [""; 0]);
    shard.subscribe(ALICE, "b", "102");
    assert_eq!(shard.table.len(), 100, "a sid that is in use is left as it is");
    let long = vec!["a"; 1000].join(".");
    let mut wide = ShardSubscriptions::new(HashKey(1, 2), usize::MAX);
    let mut add = |sid: usize| {
        wide.subscribe(BOB, ClientOptions::default(), (long.as_bytes(), b"", sid.to_string().as_bytes()))
    };
    let most = FILTER_TOKENS_PER_CLIENT_MAX / 1000;
    for sid in 0..most {
        assert_eq!(add(sid), Ok(()));
    }
    assert_eq!(add(most), Err(SubscriptionLimit::PerClient));
}

/// A message to very many subscriptions is expanded in parts while subscriptions come and go.
#[test]
fn a_message_to_very_many_resumes_where_it_stopped() {
    let mut shard = TableFixture::new();
    for token in 0..300 {
        shard.subscribe(1000 + token, "a", &token.to_string());
    }
    // Enough lines to fill several delivery batches.
    let subject = format!("a {}", "x".repeat(3000));
    let message = OutboundMessage {
        subject: subject.as_bytes(),
        reply: b"",
        headers: b"",
        payload: b"x".as_slice().into(),
        position: None,
    };
    shard.routed_batch.message((1, shard.table.progress.requests()), None, &message, shard.id(0));
    let (mut received, mut deliveries, mut pieces) = (BTreeSet::new(), DeliveryBatch::new(), 0);
    loop {
        let is_all = shard.table.expand(&mut shard.routed_batch, &mut deliveries);
        assert!(deliveries.size() < DELIVERY_BATCH_SIZE + 4000);
        while let Some(token) = deliveries.advance() {
            assert!(received.insert(token), "{token} got it twice");
        }
        deliveries.clear();
        if is_all {
            break;
        }
        // The oldest and the latest subscription end, and a new one must not get the message.
        shard.table.unsubscribe(1000 + pieces, pieces.to_string().as_bytes(), None);
        shard.table.disconnect(1299 - pieces);
        shard.subscribe(5000 + pieces, "a", "1");
        pieces += 1;
    }
    assert!(pieces > 2, "{pieces}");
    let expected: BTreeSet<_> = (1000..1300).filter(|token| *token < 1300 - pieces).collect();
    assert!(received.is_superset(&expected), "{:?}", expected.difference(&received));
    assert!(received.iter().all(|token| *token < 1300), "none that came later");
}

/// A connected subscriber answers a mark; without one the mark counts as reached.
#[test]
fn a_mark_goes_to_a_connection_that_is_subscribed() {
    let mut shard = TableFixture::new();
    shard.subscribe(ALICE, "a", "1");
    shard.subscribe(BOB, "a", "1");
    shard.table.disconnect(ALICE);
    shard.routed_batch.mark(MarkTarget::Registration(shard.id(0)), 7);
    assert_eq!(shard.received(), ["Mark(7)"]);
    shard.table.disconnect(BOB);
    shard.routed_batch.mark(MarkTarget::Registration(shard.id(0)), 8);
    assert_eq!(shard.received(), [""; 0]);
    assert_eq!(shard.sent_to_hub(), ["1 disconnects", "2 disconnects", "all ends 0"], "before the answer");
    let table = &mut shard.table;
    assert_eq!((table.next_unanswerable_mark(), table.next_unanswerable_mark()), (Some(8), None));
}

/// A stale filter must stop counting in the hub without waiting for the removal of ten thousand others.
#[test]
fn a_shared_filter_ends_with_the_first_message_after_its_connections_have_left() {
    let mut shard = TableFixture::new();
    for number in 0..50 {
        shard.subscribe(ALICE, &format!("f{number}"), &number.to_string());
    }
    shard.subscribe(BOB, "a", "1");
    shard.subscribe(3, "a", "1");
    let id = shard.id(50);
    for token in [ALICE, BOB, 3] {
        shard.table.disconnect(token);
    }
    assert_eq!(shard.sent_to_hub(), ["1 disconnects", "2 disconnects", "3 disconnects"]);
    shard.route(50, 999, None, b"x");
    assert_eq!((shard.received(), shard.sent_to_hub()), (vec![], vec!["all ends 50".to_owned()]));
    // The registration stays until its subscriptions are removed; a new subscription gets its own.
    let sent_to_hub = shard.subscribe(4, "a", "1");
    let number = sent_to_hub[0].strip_prefix("4 registers a as ").and_then(|number| number.parse().ok());
    let number = number.unwrap_or_else(|| panic!("{sent_to_hub:?}"));
    while shard.table.has_removals() {
        shard.table.remove_some();
    }
    assert_eq!(shard.sent_to_hub(), [""; 0]);
    let message = OutboundMessage {
        subject: b"a",
        reply: b"",
        headers: b"",
        payload: b"x".as_slice().into(),
        position: None,
    };
    shard.routed_batch.message((99, 999), None, &message, id);
    shard.route(number, 999, None, b"x");
    assert_eq!((shard.received(), shard.table.registrations()), (vec!["1".to_owned()], 1));
}

/// After all its connections have disconnected, a shared filter is registered again by new subscriptions.
#[test]
fn a_filter_that_is_left_and_comes_back_is_registered_behind_the_leave() {
    let mut shard = TableFixture::new();
    shard.subscribe(ALICE, "a", "1");
    shard.subscribe(ALICE, "a", "2");
    shard.table.disconnect(ALICE);
    // One of the two is removed with it.
    assert_eq!(shard.subscribe(BOB, "a", "1"), ["1 disconnects", "0 shares 0"]);
    while shard.table.has_removals() {
        shard.table.remove_some();
    }
    assert_eq!(shard.sent_to_hub(), ["2 alone has 0"]);
    shard.table.disconnect(BOB);
    assert_eq!(shard.subscribe(ALICE, "a", "1"), ["2 disconnects", "1 registers a as 0"]);
}

/// Messages to a filter with very many stale subscriptions do not match all of them repeatedly.
#[test]
fn messages_remove_subscriptions_that_they_would_have_matched() {
    const STALE: usize = 5000;
    let mut shard = TableFixture::new();
    shard.table = ShardSubscriptions::new(HashKey(1, 2), STALE);
    shard.subscribe(BOB, "a", "b");
    for sid in 0..STALE {
        shard.subscribe(ALICE, "a", &sid.to_string());
    }
    shard.table.disconnect(ALICE);
    let mut messages = 0;
    while shard.table.stale_count > 0 {
        let (before, matches) = (shard.table.stale_count, shard.table.stale_matches.count());
        shard.route(0, 99_999, None, b"x");
        assert_eq!(shard.received(), ["b"]);
        let removed = before - shard.table.stale_count;
        let allowed = (shard.table.stale_matches.count() - matches) / STALE_MATCHES_PER_STEP + 1;
        let most = STALE_REGISTRATIONS_PER_TURN + allowed as usize;
        assert!((1..=most).contains(&removed), "{removed} with one message");
        messages += 1;
    }
    let (matches, most) = (shard.table.stale_matches.count(), STALE as u64 * STALE_MATCHES_PER_STEP);
    assert!(matches < most && messages > 10, "{matches} matches with {messages} messages");
    while shard.table.has_removals() {
        shard.table.remove_some();
    }
    assert_eq!((shard.table.len(), shard.table.subscriptions.len() - shard.table.free.len()), (1, 1));
    assert_eq!(shard.sent_to_hub().last().map(String::as_str), Some("2 alone has 0"));
}

/// When the hub has no room, the connections are notified and may retry.
#[test]
fn the_subscriptions_of_a_refused_registration_end() {
    let mut shard = TableFixture::new();
    shard.subscribe(ALICE, "a", "1");
    shard.subscribe(BOB, "a", "2");
    shard.subscribe(3, "a", "3");
    shard.table.disconnect(3);
    shard.sent_to_hub();
    let id = shard.id(0);
    shard.routed_batch.refused(id);
    assert_eq!(shard.received(), ["-ERR 'maximum subscriptions exceeded'\r\n"; 2]);
    assert_eq!(shard.sent_to_hub(), ["all ends 0"], "the hub may have had room for a part of them");
    while shard.table.has_removals() {
        shard.table.remove_some();
    }
    assert_eq!((shard.table.len(), shard.table.registrations(), shard.table.filters.len()), (0, 0, 0));
    assert_eq!(shard.subscribe(ALICE, "a", "1"), ["1 registers a as 0"]);
    // A late refusal does not concern the new registration.
    shard.routed_batch.refused(id);
    shard.received();
    assert_eq!(shard.table.len(), 1);
}

/// Ten thousand subscriptions that end at once are removed in short steps after the hub's answer.
#[test]
fn subscriptions_that_have_ended_are_removed_in_steps() {
    let mut shard = TableFixture::new();
    shard.table = ShardSubscriptions::new(HashKey(1, 2), 1000);
    shard.subscribe(BOB, "a", "b");
    for sid in 0..1000 {
        shard.subscribe(ALICE, "a", &sid.to_string());
    }
    for sid in 0..1000 {
        shard.unsubscribe(ALICE, &sid.to_string(), None);
    }
    assert_eq!((shard.table.ended.len(), shard.table.has_removals()), (1000, false));
    shard.answer(99_999);
    let mut turns = 0;
    while shard.table.has_removals() {
        let before = shard.table.ended.len();
        shard.table.remove_some();
        assert!(before - shard.table.ended.len() <= STALE_REGISTRATIONS_PER_TURN);
        turns += 1;
    }
    assert!(turns > 10 && shard.table.ended.is_empty(), "{turns} turns");
    // Repeated subscribing and unsubscribing leaves no backlog.
    for _ in 0..1000 {
        shard.subscribe(ALICE, "a", "1");
        shard.unsubscribe(ALICE, "1", None);
        shard.answer(99_999_999);
    }
    assert!(shard.table.ended.len() <= 1);
}
