//! Subscriptions with feeds and without.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stilling_ring::BlockWriter;

use super::*;
use crate::deliveries::DeliveryItem;
use crate::encoding::MessageFormat;
use crate::hash_key::HashKey;
use crate::limits::{FEED_BLOCK_SIZE, FEED_BLOCK_SIZE_MIN, FEED_SHARERS_MIN};
use crate::message::RecordPosition;
use crate::publication_batch::{ClientOptions, HubRequest, InterestChange, PublicationBatch, RegistrationId};
use crate::publish_outcome::PublishOutcome;
use crate::resume::SubscriptionNotice;
use crate::routed_batch::{MarkTarget, RoutedBatch};
use crate::time::UnixNanos;

/// A shard's table with the part of the hub that concerns it: the registrations, and the number of processed
/// requests.
struct SharingFixture {
    table: ShardSubscriptions,
    registrations: BTreeMap<u32, (RegistrationId, Vec<u8>)>,
    processed: u64,
    pending: Vec<u64>,
    routed: RoutedBatch,
    message: u64,
    /// Bytes and marks per connection.
    output: BTreeMap<u64, Vec<u8>>,
    /// Addresses of feed ranges handed out.
    ranges: Vec<usize>,
    /// Ranges handed out to be copied with a sid.
    copies: usize,
}

impl SharingFixture {
    fn new(sharers_min: usize) -> SharingFixture {
        let mut table = ShardSubscriptions::new(HashKey(1, 2), 100);
        table.sharers_min = sharers_min;
        SharingFixture {
            table,
            registrations: BTreeMap::new(),
            processed: 0,
            pending: Vec::new(),
            routed: RoutedBatch::new(),
            message: 0,
            output: BTreeMap::new(),
            ranges: Vec::new(),
            copies: 0,
        }
    }

    fn subscribe(&mut self, token: u64, filter: &str, sid: &str, headers: bool) {
        let options = ClientOptions { headers, ..ClientOptions::default() };
        self.table
            .subscribe(token, options, (filter.as_bytes(), b"", sid.as_bytes()))
            .expect("there is room");
        self.report();
    }

    /// The hub processes the changes at once, but tells the shard only with the next message.
    fn report(&mut self) {
        let mut batch = PublicationBatch::new();
        self.table.push_changes(&mut batch);
        for at in 0..batch.len() {
            let Some((_, _, request)) = batch.get(at) else { continue };
            self.processed += 1;
            match request {
                HubRequest::Interest(
                    InterestChange::Register { id, filter, .. } | InterestChange::Share { id, filter },
                ) => {
                    self.registrations.insert(id.number, (id, filter.to_vec()));
                }
                HubRequest::Interest(InterestChange::Unregister { id, after: None, .. }) => {
                    self.registrations.remove(&id.number);
                }
                HubRequest::Interest(InterestChange::Sync) => self.pending.push(self.processed),
                _ => {}
            }
        }
    }

    /// Adds a subscription to stream 0 that has caught up.
    fn follow(&mut self, token: u64, filter: &str) {
        let format = MessageFormat::SseRaw;
        self.table.subscribe_in_format(token, filter.as_bytes(), format, Some(0)).expect("there is room");
        self.report();
        self.routed.notice(token, SubscriptionNotice::CaughtUp { epoch: 1, through: 0 });
    }

    fn publish(&mut self, subject: &str, excluded: Option<u64>, payload: &[u8]) {
        self.publish_record(subject, excluded, payload, None);
    }

    fn publish_record(
        &mut self,
        subject: &str,
        excluded: Option<u64>,
        payload: &[u8],
        sequence: Option<u64>,
    ) {
        self.message += 1;
        let headers = if self.message.is_multiple_of(3) { &b"NATS/1.0\r\nA: b\r\n\r\n"[..] } else { b"" };
        let message = OutboundMessage {
            subject: subject.as_bytes(),
            reply: b"",
            headers,
            payload: payload.into(),
            position: sequence.map(|sequence| RecordPosition {
                stream: 0,
                epoch: 1,
                sequence,
                time_ns: UnixNanos::EPOCH,
            }),
        };
        for (id, filter) in self.registrations.values() {
            let first = subject.split('.').next().unwrap_or_default();
            if filter == subject.as_bytes() || *filter == format!("{first}.*").into_bytes() {
                self.routed.message((self.message, self.processed), excluded, &message, *id);
            }
        }
    }

    /// Lines and marks per connection, without payloads' repeated bytes.
    fn received(&self) -> BTreeMap<u64, String> {
        let text =
            |output: &Vec<u8>| String::from_utf8_lossy(output).replace("xxxx", "").replace("\r\n", " ");
        self.output.iter().map(|(token, output)| (*token, text(output))).collect()
    }

    fn expand(&mut self) {
        for processed in std::mem::take(&mut self.pending) {
            self.routed.processed(processed);
        }
        let (mut deliveries, mut is_done) = (DeliveryBatch::new(), false);
        while !is_done {
            is_done = self.table.expand(&mut self.routed, &mut deliveries);
            deliveries.group();
            while let Some(to) = deliveries.advance() {
                let output = self.output.entry(to).or_default();
                match deliveries.current() {
                    Some(DeliveryItem::Bytes(first, second)) => output.extend([first, second].concat()),
                    Some(DeliveryItem::Message(line, payload, end)) => {
                        output.extend([line, payload.bytes(), end].concat());
                    }
                    Some(DeliveryItem::Feed(messages)) => {
                        output.extend_from_slice(messages.bytes());
                        self.ranges.push(messages.bytes().as_ptr() as usize);
                    }
                    Some(DeliveryItem::FeedWithSid(messages)) => {
                        messages.append_to(output);
                        self.copies += 1;
                    }
                    Some(DeliveryItem::Mark(mark)) => output.extend(format!("<{mark}>").bytes()),
                    Some(DeliveryItem::PublishOutcome { ticket, .. }) => {
                        output.extend(format!("<outcome {ticket}>").bytes());
                    }
                    Some(DeliveryItem::Rejection { ticket, .. }) => {
                        output.extend(format!("<rejection {ticket}>").bytes());
                    }
                    _ => {}
                }
            }
            deliveries.clear();
            self.report();
        }
        self.routed.clear();
    }
}

/// Row 2.4: the bytes of a message are there once for all subscriptions of a shard that receive the same.
#[test]
fn subscriptions_with_equal_bytes_share_one_copy() {
    for count in [20, 200] {
        let mut shard = SharingFixture::new(FEED_SHARERS_MIN);
        (0..count).for_each(|token| shard.subscribe(token, "a.b", "1", true));
        shard.publish("a.b", None, b"first");
        shard.expand();
        assert_eq!((shard.table.feeds.len(), shard.table.feeds.sharers()), (1, count as usize));
        assert!(shard.ranges.is_empty(), "the first message shows which subscriptions receive the same");
        let private_size = shard.output[&0].len();
        (0..10).for_each(|_| shard.publish("a.b", None, b"hello"));
        shard.expand();
        assert_eq!(shard.ranges.len(), count as usize, "one range per connection");
        shard.ranges.dedup();
        assert_eq!(shard.ranges.len(), 1, "of the same bytes");
        let first = shard.output[&0].clone();
        assert!(shard.output.values().all(|output| *output == first));
        assert!(first.ends_with(b"MSG a.b 1 5\r\nhello\r\n") || first.ends_with(b"hello\r\n"));
        let encoded_size = (first.len() - private_size) as u64;
        let feeds = &shard.table.feeds;
        assert_eq!((feeds.encoded_size(), feeds.sent_size()), (encoded_size, count * encoded_size));
        assert_eq!(feeds.held_size(), FEED_BLOCK_SIZE_MIN as u64);
    }
}

/// Row 2.4: subscriptions whose sids differ have one encoding of a message, and each connection gets one copy of the run
/// with its sid.
#[test]
fn different_sids_of_one_size_share_one_encoding() {
    let mut shard = SharingFixture::new(FEED_SHARERS_MIN);
    let sid = |token: u64| format!("{}", 10 + token);
    (0..20).for_each(|token| shard.subscribe(token, "a.b", &sid(token), true));
    shard.publish("a.b", None, b"first");
    shard.expand();
    assert_eq!((shard.table.feeds.len(), shard.table.feeds.sharers()), (1, 20));
    (0..2).for_each(|_| shard.publish("a.b", None, b"hello"));
    shard.publish("a.b", Some(7), b"not to 7");
    (0..2).for_each(|_| shard.publish("a.b", None, b"bye"));
    shard.expand();
    assert_eq!((shard.ranges.len(), shard.copies), (0, 21), "one run per connection, two for the publisher");
    for (token, output) in &shard.output {
        let text = String::from_utf8_lossy(output);
        let payloads: Vec<&str> = text.lines().filter(|line| !line.contains([':', '/', ' '])).collect();
        let lines = text.lines().filter(|line| line.contains("MSG"));
        assert!(lines.clone().all(|line| line.split(' ').nth(2) == Some(&sid(*token))), "{text}");
        assert_eq!(lines.count(), if *token == 7 { 5 } else { 6 });
        assert!(payloads.contains(&"first") && payloads.contains(&"bye"), "{text}");
    }
    for token in 0..20 {
        shard.table.unsubscribe(token, sid(token).as_bytes(), None);
    }
    shard.report();
    shard.expand();
    shard.table.remove_some();
    assert_eq!((shard.table.feeds.len(), shard.table.feeds.sharers()), (0, 0));
}

/// Enough subscriptions with equal sids share their bytes; only those that came before there were enough keep copies.
#[test]
fn equal_sids_share_their_bytes_beside_different_ones() {
    let mut shard = SharingFixture::new(FEED_SHARERS_MIN);
    for token in 0..40 {
        let sid = if token % 2 == 0 { 7 } else { token % 10 };
        shard.subscribe(token, "a.b", &sid.to_string(), true);
        shard.publish("a.b", None, b"first");
        shard.expand();
    }
    assert_eq!((shard.table.feeds.len(), shard.table.feeds.sharers()), (2, 40));
    (shard.ranges, shard.copies) = (Vec::new(), 0);
    shard.output.clear();
    shard.publish("a.b", None, b"last");
    shard.expand();
    assert_eq!(shard.ranges.len() + shard.copies, 40);
    assert!(shard.ranges.len() > 20 - FEED_SHARERS_MIN, "{} share their bytes", shard.ranges.len());
    for (token, output) in &shard.output {
        let sid = if token % 2 == 0 { 7 } else { token % 10 };
        assert_eq!(String::from_utf8_lossy(output), format!("MSG a.b {sid} 4\r\nlast\r\n"));
    }
}

#[test]
fn few_subscriptions_share_nothing() {
    let mut shard = SharingFixture::new(FEED_SHARERS_MIN);
    (0..FEED_SHARERS_MIN as u64 - 1).for_each(|token| shard.subscribe(token, "a.b", "1", true));
    (20..24).for_each(|token| shard.subscribe(token, "a.b", &token.to_string(), true));
    // Too long for a placeholder.
    (30..50).for_each(|token| shard.subscribe(token, "a.b", &format!("{token:020}"), true));
    for _ in 0..3 {
        shard.publish("a.b", None, b"hello");
        shard.expand();
    }
    assert_eq!((shard.table.feeds.len(), shard.ranges.len(), shard.copies), (0, 0, 0));
    shard.subscribe(7, "a.b", "1", true);
    shard.publish("a.b", None, b"hello");
    shard.expand();
    assert_eq!((shard.table.feeds.len(), shard.table.feeds.sharers()), (1, FEED_SHARERS_MIN));
}

/// Messages longer than a feed's memory, and more bytes than it holds.
#[test]
fn a_full_feed_continues_in_other_memory() {
    let mut shard = SharingFixture::new(2);
    (0..3).for_each(|token| shard.subscribe(token, "a.b", "1", true));
    let mut expected = 0;
    for size in [10, 100, FEED_BLOCK_SIZE / 3, FEED_BLOCK_SIZE / 2, 10, 2 * FEED_BLOCK_SIZE, 10] {
        let mut writer = BlockWriter::new(size);
        writer.append(&vec![b'x'; size]);
        shard.publish("a.b", None, writer.bytes(0..size));
        expected += size;
    }
    shard.expand();
    for output in shard.output.values() {
        assert_eq!(output.iter().filter(|byte| **byte == b'x').count(), expected);
    }
    assert!(!shard.table.feeds.has_open());
}

/// A shard whose output refers to all its feed memory continues in the next turn, where it was.
#[test]
fn without_memory_for_feeds_deliveries_wait_for_the_output() {
    const SHARDS: usize = 1000;
    const FILTERS: u64 = 3;
    let mut shard = SharingFixture::new(2);
    shard.table = ShardSubscriptions::new(HashKey(1, 2), 100).with_shards(SHARDS);
    shard.table.sharers_min = 2;
    let subject = |filter: u64| format!("a{filter}.b");
    for token in 0..4 * FILTERS {
        shard.subscribe(token, &subject(token % FILTERS), "1", true);
    }
    (0..FILTERS).for_each(|filter| shard.publish(&subject(filter), None, b"shares"));
    shard.expand();
    assert_eq!(shard.table.feeds.len(), FILTERS as usize);
    shard.output.clear();
    let payload = vec![b'x'; FEED_BLOCK_SIZE / 3];
    for number in 0..4 * FILTERS {
        let mut writer = BlockWriter::new(payload.len() + 8);
        let range = writer.append(&[format!("{number:8}").as_bytes(), &payload].concat());
        shard.publish(&subject(number % FILTERS), None, writer.bytes(range.expect("there is room")));
    }
    let (mut held, mut waits, mut is_done) = (Vec::new(), 0, false);
    while !is_done {
        let mut deliveries = DeliveryBatch::new();
        is_done = shard.table.expand(&mut shard.routed, &mut deliveries);
        deliveries.group();
        let mut is_empty = true;
        while let Some(to) = deliveries.advance() {
            is_empty = false;
            if let Some(DeliveryItem::Feed(messages)) = deliveries.current() {
                shard.output.entry(to).or_default().extend_from_slice(messages.bytes());
            }
        }
        held.push(deliveries);
        if is_empty && !is_done {
            // The turn ends: the kernel has the bytes, or they are copied.
            assert!(held.len() > 1, "a turn has room");
            held.clear();
            waits += 1;
        }
    }
    assert!(waits > 0, "the memory suffices for everything");
    for (token, output) in &shard.output {
        let numbers: Vec<u64> = output
            .windows(8)
            .filter(|eight| eight.is_ascii() && eight[7].is_ascii_digit() && eight.starts_with(b"      "))
            .filter_map(|eight| String::from_utf8_lossy(eight).trim().parse().ok())
            .collect();
        let expected: Vec<u64> = (0..4).map(|round| round * FILTERS + token % FILTERS).collect();
        assert_eq!(numbers, expected, "client {token}");
    }
    assert_eq!(shard.output.len(), 4 * FILTERS as usize);
}

/// A publication that was parked before a SUB does not reach it, as without a feed.
#[test]
fn an_older_message_does_not_reach_members_that_came_later() {
    let mut shard = SharingFixture::new(2);
    (0..3).for_each(|token| shard.subscribe(token, "a.b", "1", true));
    let parked = shard.processed;
    (3..5).for_each(|token| shard.subscribe(token, "a.b", "1", true));
    for _ in 0..2 {
        shard.publish("a.b", None, b"new");
        shard.expand();
    }
    assert_eq!(shard.table.feeds.sharers(), 5);
    shard.publish("a.b", None, b"next");
    let processed = std::mem::replace(&mut shard.processed, parked);
    shard.publish("a.b", None, b"old");
    shard.processed = processed;
    shard.publish("a.b", None, b"last");
    shard.expand();
    for (token, output) in &shard.output {
        let text = String::from_utf8_lossy(output);
        let payloads: Vec<_> =
            text.lines().filter(|line| ["new", "next", "old", "last"].contains(line)).collect();
        let expected: &[&str] = match token {
            0..3 => &["new", "new", "next", "old", "last"],
            _ => &["new", "new", "next", "last"],
        };
        assert_eq!(payloads, expected, "connection {token}");
    }
}

/// Row 2.18: a subscription that has left its feed continues after the last record of the feed when its client is slow.
#[test]
fn a_member_that_became_private_falls_behind_after_its_last_record() {
    let mut shard = SharingFixture::new(2);
    (0..3).for_each(|token| shard.follow(token, "a.b"));
    let parked = shard.processed;
    shard.follow(3, "a.b");
    for sequence in 1..=5 {
        shard.publish_record("a.b", None, b"record", Some(sequence));
        shard.expand();
    }
    assert_eq!(shard.table.feeds.sharers(), 4);
    // Published before the last SUB, and parked; no stream stores it.
    let processed = std::mem::replace(&mut shard.processed, parked);
    shard.publish("a.b", None, b"old");
    shard.processed = processed;
    shard.expand();
    assert_eq!(shard.table.feeds.sharers(), 3);
    assert_eq!((shard.table.fall_behind(3), shard.table.fall_behind(0)), (Some(6), Some(6)));
}

/// After its last subscription a feed is removed.
#[test]
fn a_feed_ends_with_its_members() {
    let mut shard = SharingFixture::new(2);
    (0..4).for_each(|token| shard.subscribe(token, "a.b", "1", true));
    for _ in 0..2 {
        shard.publish("a.b", None, b"hello");
        shard.expand();
    }
    assert_eq!(shard.table.feeds.sharers(), 4);
    shard.table.unsubscribe(0, b"1", None);
    shard.table.disconnect(1);
    shard.table.unsubscribe(2, b"1", Some(3));
    shard.report();
    while shard.table.has_removals() {
        shard.table.remove_some();
    }
    assert_eq!(shard.table.feeds.sharers(), 1);
    shard.table.disconnect(3);
    shard.table.remove_some();
    assert_eq!((shard.table.feeds.len(), shard.table.feeds.sharers()), (0, 0));
}

/// A connection with several subscriptions to a filter reads a feed with at most one of them.
#[test]
fn a_second_subscription_of_a_connection_gets_lines_of_its_own() {
    let mut shard = SharingFixture::new(2);
    (0..3).for_each(|token| shard.subscribe(token, "a.b", "1", true));
    shard.subscribe(0, "a.b", "2", true);
    (0..3).for_each(|token| shard.subscribe(token, "a.*", "3", true));
    for number in 0..4 {
        shard.publish("a.b", None, number.to_string().as_bytes());
        shard.publish("a.b", None, b"next");
        shard.expand();
    }
    assert!(shard.table.feeds.len() > 0 && !shard.ranges.is_empty());
    for (token, output) in &shard.output {
        let text = String::from_utf8_lossy(output);
        let numbers: Vec<_> = text.lines().filter_map(|line| line.parse::<u32>().ok()).collect();
        let sids = if *token == 0 { 3 } else { 2 };
        let expected: Vec<_> = (0..4).flat_map(|number| vec![number; sids]).collect();
        assert_eq!(numbers, expected, "connection {token}");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Subscribe { token: u64, filter: usize, headers: bool },
    Unsubscribe { token: u64, filter: usize, after: Option<u32> },
    Disconnect { token: u64 },
    Publish { subject: usize, excluded: Option<u64>, size: usize },
    Bytes { token: u64 },
    Outcome { token: u64, is_rejection: bool },
    Mark { token: u64 },
    Expand,
    RemoveSome,
}

const FILTERS: [&str; 3] = ["a.b", "a.*", "a.c"];
const SUBJECTS: [&str; 2] = ["a.b", "a.c"];

/// One subscription per filter and connection: the order of several is not defined. Half of the connections have
/// equal sids.
fn sid(token: u64, filter: usize) -> String {
    format!("{filter}{}", token % 2)
}

fn operation() -> impl Strategy<Value = Operation> {
    let token = 1..7_u64;
    prop_oneof![
        4 => (token.clone(), 0..FILTERS.len(), any::<bool>())
            .prop_map(|(token, filter, headers)| Operation::Subscribe { token, filter, headers }),
        1 => (token.clone(), 0..FILTERS.len(), proptest::option::of(1..6_u32))
            .prop_map(|(token, filter, after)| Operation::Unsubscribe { token, filter, after }),
        1 => token.clone().prop_map(|token| Operation::Disconnect { token }),
        8 => (0..SUBJECTS.len(), proptest::option::of(token.clone()), prop_oneof![9 => 0..40_usize, 1 => 0..300_000_usize])
            .prop_map(|(subject, excluded, size)| Operation::Publish { subject, excluded, size }),
        1 => token.clone().prop_map(|token| Operation::Bytes { token }),
        1 => (token.clone(), any::<bool>())
            .prop_map(|(token, is_rejection)| Operation::Outcome { token, is_rejection }),
        1 => token.prop_map(|token| Operation::Mark { token }),
        3 => Just(Operation::Expand),
        1 => Just(Operation::RemoveSome),
    ]
}

fn run(shard: &mut SharingFixture, operations: &[Operation]) {
    for (number, operation) in operations.iter().enumerate() {
        match operation {
            &Operation::Subscribe { token, filter, headers } => {
                shard.subscribe(token, FILTERS[filter], &sid(token, filter), headers);
            }
            &Operation::Unsubscribe { token, filter, after } => {
                shard.table.unsubscribe(token, sid(token, filter).as_bytes(), after);
            }
            &Operation::Disconnect { token } => {
                shard.table.disconnect(token);
                // At once, so that the hub receives the same changes in both tables.
                while shard.table.has_removals() {
                    shard.table.remove_some();
                }
            }
            &Operation::Publish { subject, excluded, size } => {
                shard.publish(
                    SUBJECTS[subject],
                    excluded,
                    &[number.to_string().into_bytes(), vec![b'x'; size]].concat(),
                );
            }
            &Operation::Bytes { token } => {
                shard.routed.bytes(token, |out| out.extend(format!("PONG {number}\r\n").bytes()));
            }
            &Operation::Outcome { token, is_rejection: true } => {
                shard.routed.rejection(token, (number as u32, 0), b"no");
            }
            &Operation::Outcome { token, is_rejection: false } => {
                let outcome = PublishOutcome::Forwarded { subscriptions: 0 };
                shard.routed.outcome(token, number as u32, outcome);
            }
            &Operation::Mark { token } => {
                shard.routed.mark(MarkTarget::Connection(token), number as u64);
            }
            Operation::Expand => shard.expand(),
            Operation::RemoveSome => shard.table.remove_some(),
        }
        shard.report();
    }
    shard.expand();
}

proptest! {
    /// Design, section 4: whether subscriptions share a feed or not, each connection receives the same bytes in
    /// the order of the hub.
    #[test]
    fn a_connection_receives_the_same_with_feeds_and_without(
        operations in proptest::collection::vec(operation(), 0..120)
    ) {
        let mut with_feeds = SharingFixture::new(2);
        let mut without = SharingFixture::new(usize::MAX);
        run(&mut with_feeds, &operations);
        run(&mut without, &operations);
        prop_assert!(without.ranges.is_empty());
        prop_assert_eq!(with_feeds.received(), without.received());
        prop_assert_eq!(with_feeds.table.delivered, without.table.delivered);
    }
}
