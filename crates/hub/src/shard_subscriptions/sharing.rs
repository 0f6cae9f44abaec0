//! The subscriptions of feeds: joining, leaving, and messages for them.

use stilling_wire::nats::Msg;

use super::feeds::{Encoding, Feed, FeedPosition, NoBlock};
use super::{ShardSubscriptions, Sharing};
use crate::deliveries::DeliveryBatch;
use crate::message::OutboundMessage;
use crate::routed_batch::MessageEntry;

/// Members of a feed of which one must be connected for its registration to stay.
const MEMBERS_COMPARED: usize = 16;

/// The delivery batch is full, or no memory is free for a feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoRoom;

impl From<NoBlock> for NoRoom {
    fn from(_: NoBlock) -> NoRoom {
        NoRoom
    }
}

impl ShardSubscriptions {
    /// Appends the current message to the feeds of a registration that do not have it yet. Returns whether a connected
    /// client reads one of them.
    pub(super) fn append_to_feeds(
        &mut self,
        number: u32,
        &MessageEntry { excluded, processed, .. }: &MessageEntry,
        message: &OutboundMessage<'_>,
        into: &mut DeliveryBatch,
    ) -> Result<bool, NoRoom> {
        let (mut at, mut has_sharer) = (0, false);
        while let Some(feed) = self.feed_at(number, at) {
            let is_appended = self.feeds.get(feed).is_some_and(|feed| feed.last_message() == self.messages);
            if !is_appended {
                if into.is_full() {
                    return Err(NoRoom);
                }
                self.make_later_members_private(feed, processed, into);
                self.append_to_feed(feed, excluded, message, into)?;
            }
            has_sharer |= self.has_connected_member(feed);
            // A feed whose members all became private is no longer in the list.
            at += usize::from(self.feed_at(number, at) == Some(feed));
        }
        Ok(has_sharer)
    }

    /// Makes members private whose SUB the hub had not processed when it sent a message, which is parked for long.
    fn make_later_members_private(&mut self, number: u32, processed: u64, into: &mut DeliveryBatch) {
        let Some(feed) = self.feeds.get(number).filter(|feed| processed < feed.newest_from()) else { return };
        let is_later = |slot: &&u32| {
            self.subscriptions[**slot as usize].as_ref().is_some_and(|later| processed < later.from)
        };
        let later: Vec<u32> = feed.members().iter().filter(is_later).copied().collect();
        for slot in later {
            if let Some(subscription) = &self.subscriptions[slot as usize] {
                let owner = &mut self.owners[subscription.owner as usize];
                self.feeds.hand_out(subscription.token, owner, into);
            }
            self.make_private(slot);
        }
    }

    fn feed_at(&self, number: u32, at: usize) -> Option<u32> {
        self.registered[number as usize].as_ref()?.members.feeds().get(at).copied()
    }

    fn has_connected_member(&self, feed: u32) -> bool {
        let members = self.feeds.get(feed).map_or(&[][..], Feed::members);
        // The first few suffice: the others are as likely to be connected, and disconnected ones are removed soon.
        let mut first = members.iter().take(MEMBERS_COMPARED);
        first.any(|&slot| self.get(slot).is_some()) || members.len() > MEMBERS_COMPARED
    }

    fn append_to_feed(
        &mut self,
        number: u32,
        excluded: Option<u64>,
        message: &OutboundMessage<'_>,
        into: &mut DeliveryBatch,
    ) -> Result<(), NoRoom> {
        let Some(feed) = self.feeds.get(number) else { return Ok(()) };
        let &OutboundMessage { subject, reply, headers, payload, position } = message;
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let parts = match &feed.encoding {
            Encoding::Nats { sid, supports_headers } => {
                let headers = if *supports_headers { headers } else { b"" };
                let reply = (!reply.is_empty()).then_some(reply);
                Msg { subject, sid: sid.bytes(), reply, headers, payload: payload.bytes() }
                    .encode_line(&mut line);
                [line.as_slice(), headers, payload.bytes(), b"\r\n"]
            }
            Encoding::Format { format, stream } => {
                let has_id = position.is_some_and(|position| *stream == Some(position.stream));
                format.encode(&mut line, message, has_id);
                [line.as_slice(), b"", b"", b""]
            }
        };
        let appended = self.append_parts(number, parts, excluded, into);
        self.line = line;
        appended
    }

    fn append_parts(
        &mut self,
        number: u32,
        parts: [&[u8]; 4],
        excluded: Option<u64>,
        into: &mut DeliveryBatch,
    ) -> Result<(), NoRoom> {
        let size = parts.iter().map(|part| part.len()).sum();
        if self.feeds.get(number).is_some_and(|feed| !feed.has_room_for(size)) {
            self.hand_out_feed(number, into);
        }
        if self.feeds.open(number, size)? {
            self.set_positions(number);
        }
        let range = self.feeds.append(number, self.messages, parts);
        into.count_feed(range.len());
        let is_excluded = excluded.is_some_and(|token| self.skip(number, token, range.clone(), into));
        // Members that have disconnected count until they are removed.
        let count = self.feeds.get(number).map_or(0, |feed| feed.members().len());
        let count = count.saturating_sub(usize::from(is_excluded)) as u64;
        self.delivered += count;
        if let Some(Encoding::Format { format, .. }) = self.feeds.get(number).map(|feed| &feed.encoding) {
            match format.is_sse() {
                true => self.delivered_sse += count,
                false => self.delivered_websocket += count,
            }
        }
        Ok(())
    }

    /// Sets the positions of a feed's members at its open. Members whose connections read another open feed become
    /// private.
    fn set_positions(&mut self, number: u32) {
        let Some(feed) = self.feeds.get(number) else { return };
        for &slot in feed.members() {
            let Some(subscription) = &self.subscriptions[slot as usize] else { continue };
            let position = &mut self.owners[subscription.owner as usize].position;
            match position {
                Some(_) => self.conflicting.push(slot),
                None => *position = Some(FeedPosition { feed: number, slot, offset: 0 }),
            }
        }
        while let Some(slot) = self.conflicting.pop() {
            self.make_private(slot);
        }
    }

    /// Moves the position of a connection behind a message that it does not get back. Returns whether it reads the feed.
    fn skip(
        &mut self,
        number: u32,
        token: u64,
        range: std::ops::Range<usize>,
        into: &mut DeliveryBatch,
    ) -> bool {
        let Some(&owner) = self.clients.get(&token) else { return false };
        let owner = &mut self.owners[owner as usize];
        let Some(position) = owner.position.filter(|position| position.feed == number) else { return false };
        self.feeds.hand_out_before(range.start, token, owner, into);
        owner.position = Some(FeedPosition { offset: range.end, ..position });
        if let Some(subscription) = &mut self.subscriptions[position.slot as usize] {
            subscription.delivered = subscription.delivered.wrapping_sub(1);
        }
        true
    }

    /// Hands out what a connection has not been handed of the open feed that it reads, before another item for it.
    #[inline]
    pub(super) fn hand_out_to(&mut self, token: u64, into: &mut DeliveryBatch) {
        if self.feeds.has_open()
            && let Some(&owner) = self.clients.get(&token)
        {
            self.feeds.hand_out(token, &mut self.owners[owner as usize], into);
        }
    }

    /// Hands out an open feed to all its members, and closes it.
    fn hand_out_feed(&mut self, number: u32, into: &mut DeliveryBatch) {
        let Some(feed) = self.feeds.get(number) else { return };
        for &slot in feed.members() {
            let Some(subscription) = &self.subscriptions[slot as usize] else { continue };
            let owner = &mut self.owners[subscription.owner as usize];
            if owner.position.is_some_and(|position| position.feed == number) {
                if !owner.has_disconnected {
                    self.feeds.hand_out_before(usize::MAX, subscription.token, owner, into);
                }
                owner.position = None;
            }
        }
        self.feeds.close(number);
    }

    /// Hands out and closes all open feeds.
    pub(super) fn close_feeds(&mut self, into: &mut DeliveryBatch) {
        while let Some(number) = self.feeds.last_opened() {
            self.hand_out_feed(number, into);
        }
    }

    /// Counts the subscriptions in `joining`, which have received the current message, and moves them into feeds if
    /// enough of them receive the same bytes.
    pub(super) fn share_joining(&mut self, number: u32) {
        while let Some(slot) = self.joining.pop() {
            self.count_sharer(number, slot);
        }
    }

    fn count_sharer(&mut self, number: u32, slot: u32) {
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        let list = self.registered[number as usize].as_mut().and_then(|of| of.members.list_mut());
        let Some(list) = list else { return };
        let has_others = list.count_of(subscription.token) > 1;
        let has_end = subscription.ends_after.is_some() || subscription.until != u64::MAX;
        if has_others || has_end {
            subscription.sharing = Sharing::Private;
            return;
        }
        subscription.sharing = Sharing::Counted;
        let encoding = subscription.encoding();
        let sharers = list.count_sharer(encoding.clone());
        match sharers.feed {
            Some(feed) => self.join_feed(number, feed, slot),
            None if sharers.count >= self.sharers_min => {
                let feed = self.feeds.add(encoding.clone());
                list.add_feed(&encoding, feed);
                self.join_all(number, feed);
            }
            None => {}
        }
    }

    /// Moves all counted subscriptions with a new feed's encoding into it.
    fn join_all(&mut self, number: u32, feed: u32) {
        let (Some(registered), Some(of)) = (&self.registered[number as usize], self.feeds.get(feed)) else {
            return;
        };
        let is_sharer = |slot: &u32| {
            let subscription = self.subscriptions[*slot as usize].as_ref();
            subscription.is_some_and(|subscription| {
                subscription.sharing == Sharing::Counted && subscription.encoding() == of.encoding
            })
        };
        let slots: Vec<u32> = registered.members.from(0).map(|(_, slot)| slot).filter(is_sharer).collect();
        for slot in slots {
            self.join_feed(number, feed, slot);
        }
    }

    fn join_feed(&mut self, number: u32, feed: u32, slot: u32) {
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        let owner = &mut self.owners[subscription.owner as usize];
        if let Some(head) = self.feeds.get(feed).and_then(Feed::head) {
            if owner.position.is_some() {
                return self.make_private(slot);
            }
            owner.position = Some(FeedPosition { feed, slot, offset: head });
        }
        let index = self.feeds.join(feed, slot, subscription.from);
        subscription.sharing = Sharing::Member { feed, index };
        let count = self.feeds.get(feed).map_or(0, Feed::message_count);
        subscription.delivered = subscription.delivered.wrapping_sub(count);
        let list = self.registered[number as usize].as_mut().and_then(|of| of.members.list_mut());
        if let Some(list) = list {
            list.move_into_feed(subscription.age);
        }
    }

    /// Gives a subscription lines of its own from now on.
    pub(super) fn make_private(&mut self, slot: u32) {
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        let feed = match subscription.sharing {
            Sharing::Member { feed, .. } => self.feeds.get(feed),
            Sharing::New | Sharing::Counted | Sharing::Private => None,
        };
        let was_member = feed.is_some();
        if let Some(feed) = feed {
            // It becomes the latest in the list, which an interrupted expansion has not reached yet.
            self.age += 1;
            subscription.received = feed.last_message();
            subscription.delivered = subscription.delivered.wrapping_add(feed.message_count());
        }
        self.stop_sharing(slot);
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        subscription.sharing = Sharing::Private;
        if !was_member {
            return;
        }
        subscription.age = self.age;
        let number = subscription.registered;
        let list = self.registered[number as usize].as_mut().and_then(|of| of.members.list_mut());
        if let Some(list) = list {
            list.move_out_of_feed(self.age, slot);
        }
    }

    /// Removes a subscription from its feed, if it reads one, and no longer counts it. The caller moves it to the list
    /// of the others or drops it.
    pub(super) fn stop_sharing(&mut self, slot: u32) {
        let Some(subscription) = &self.subscriptions[slot as usize] else { return };
        let (encoding, of) = match subscription.sharing {
            Sharing::New | Sharing::Private => return,
            Sharing::Counted => (Some(subscription.encoding()), None),
            Sharing::Member { feed, .. } => {
                (self.feeds.get(feed).map(|feed| feed.encoding.clone()), Some(feed))
            }
        };
        let (number, owner) = (subscription.registered, subscription.owner);
        if let Sharing::Member { feed, index } = subscription.sharing {
            if let Some(owner) = self.owners.get_mut(owner as usize)
                && owner.position.is_some_and(|position| position.feed == feed)
            {
                owner.position = None;
            }
            if let Some(moved) = self.feeds.leave(feed, index)
                && let Some(moved) = &mut self.subscriptions[moved as usize]
            {
                moved.sharing = Sharing::Member { feed, index };
            }
        }
        let list = self.registered[number as usize].as_mut().and_then(|of| of.members.list_mut());
        if let (Some(list), Some(encoding)) = (list, encoding)
            && list.uncount_sharer(&encoding)
            && let Some(feed) = of
        {
            self.feeds.remove(feed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use stilling_ring::BlockWriter;

    use super::*;
    use crate::deliveries::{DeliveryItem, PublishOutcome};
    use crate::hash_key::HashKey;
    use crate::limits::{FEED_BLOCK_SIZE, FEED_SHARERS_MIN};
    use crate::publication_batch::{
        ClientOptions, HubRequest, InterestChange, PublicationBatch, RegistrationId,
    };
    use crate::routed_batch::{MarkTarget, RoutedBatch};

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

        fn publish(&mut self, subject: &str, excluded: Option<u64>, payload: &[u8]) {
            self.message += 1;
            let headers = if self.message.is_multiple_of(3) { &b"NATS/1.0\r\nA: b\r\n\r\n"[..] } else { b"" };
            let message = OutboundMessage {
                subject: subject.as_bytes(),
                reply: b"",
                headers,
                payload: payload.into(),
                position: None,
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
            (0..10).for_each(|_| shard.publish("a.b", None, b"hello"));
            shard.expand();
            assert_eq!(shard.ranges.len(), count as usize, "one range per connection");
            shard.ranges.dedup();
            assert_eq!(shard.ranges.len(), 1, "of the same bytes");
            let first = shard.output[&0].clone();
            assert!(shard.output.values().all(|output| *output == first));
            assert!(first.ends_with(b"MSG a.b 1 5\r\nhello\r\n") || first.ends_with(b"hello\r\n"));
        }
    }

    #[test]
    fn few_subscriptions_and_different_sids_share_nothing() {
        let mut shard = SharingFixture::new(FEED_SHARERS_MIN);
        (0..FEED_SHARERS_MIN as u64 - 1).for_each(|token| shard.subscribe(token, "a.b", "1", true));
        (20..40).for_each(|token| shard.subscribe(token, "a.b", &token.to_string(), true));
        for _ in 0..3 {
            shard.publish("a.b", None, b"hello");
            shard.expand();
        }
        assert_eq!((shard.table.feeds.len(), shard.ranges.len()), (0, 0));
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
}
