//! The subscriptions of feeds: joining, leaving, and messages for them.

use stilling_ring::planted;
use stilling_wire::nats::Msg;

use super::feeds::{EncodedMessage, Encoding, Feed, FeedPosition, NoBlock};
use super::{ShardSubscriptions, Sharing};
use crate::deliveries::DeliveryBatch;
use crate::message::OutboundMessage;
use crate::routed_batch::MessageEntry;
use crate::short_bytes::SHORT_MAX;

/// Members of a feed of which one must be connected for its registration to stay.
const MEMBERS_COMPARED: usize = 16;

/// In place of sids.
const PLACEHOLDER: [u8; SHORT_MAX] = [b'0'; SHORT_MAX];

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
                self.feeds.hand_out(subscription.token, owner, &self.subscriptions, into);
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
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let encoded = match &feed.encoding {
            Encoding::Nats { sid, supports_headers } => {
                let encoded = encode_nats(message, sid.bytes(), *supports_headers, &mut line);
                EncodedMessage { sid_start: None, ..encoded }
            }
            Encoding::NatsOfSidSize { sid_size, supports_headers } => {
                encode_nats(message, &PLACEHOLDER[..*sid_size], *supports_headers, &mut line)
            }
            Encoding::Format { format, stream } => {
                let position = message.position.filter(|position| *stream == Some(position.stream));
                let sequence = position.map_or(0, |position| position.sequence);
                format.encode(&mut line, message, position.is_some());
                EncodedMessage { parts: [line.as_slice(), b"", b"", b""], sid_start: None, sequence }
            }
        };
        let appended = self.append_encoded(number, &encoded, excluded, into);
        self.line = line;
        appended
    }

    fn append_encoded(
        &mut self,
        number: u32,
        message: &EncodedMessage<'_>,
        excluded: Option<u64>,
        into: &mut DeliveryBatch,
    ) -> Result<(), NoRoom> {
        let size = message.parts.iter().map(|part| part.len()).sum();
        if self.feeds.get(number).is_some_and(|feed| !feed.has_room_for(size)) {
            self.hand_out_feed(number, into);
        }
        if self.feeds.open(number, size)? {
            self.set_positions(number);
        }
        let range = self.feeds.append(number, self.messages, message);
        into.count_feed(range.len());
        let is_excluded = excluded.is_some_and(|token| self.skip(number, token, range.clone(), into));
        // Members that have disconnected count until they are removed.
        let count = self.feeds.get(number).map_or(0, |feed| feed.members().len());
        let count = count.saturating_sub(usize::from(is_excluded)) as u64;
        let format = match self.feeds.get(number).map(|feed| &feed.encoding) {
            Some(Encoding::Format { format, .. }) => Some(*format),
            _ => None,
        };
        self.delivered.add(count, format);
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
        self.feeds.hand_out_before(range.start, (token, owner), &self.subscriptions, into);
        owner.position = Some(FeedPosition { offset: range.end as u32, ..position });
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
            self.feeds.hand_out(token, &mut self.owners[owner as usize], &self.subscriptions, into);
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
                    let to = (subscription.token, &mut *owner);
                    self.feeds.hand_out_before(usize::MAX, to, &self.subscriptions, into);
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
        let has_others = list.has_several_of(subscription.token);
        let has_end = subscription.ends_after.is_some() || subscription.until != u64::MAX;
        if has_others || has_end {
            subscription.sharing = Sharing::Private;
            return;
        }
        subscription.sharing = Sharing::Counted;
        for encoding in subscription.encodings() {
            list.count_sharer(encoding);
        }
        for encoding in subscription.encodings() {
            let sharers = list.sharers(&encoding);
            match sharers.feed {
                Some(feed) => return self.join_feed(number, feed, slot),
                None if sharers.count >= self.sharers_min && self.feeds.may_add() => {
                    let feed = self.feeds.add(encoding.clone());
                    list.add_feed(&encoding, feed);
                    return self.join_all(number, feed);
                }
                None => {}
            }
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
                subscription.sharing == Sharing::Counted
                    && subscription.encodings().any(|encoding| encoding == of.encoding)
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
            owner.position = Some(FeedPosition { feed, slot, offset: head as u32 });
        }
        let index = self.feeds.join(feed, slot, subscription.from);
        subscription.sharing = Sharing::Member { feed, index };
        let count = self.feeds.get(feed).map_or(0, Feed::message_count);
        subscription.delivered = subscription.delivered.wrapping_sub(count);
        let list = self.registered[number as usize].as_mut().and_then(|of| of.members.list_mut());
        let Some(list) = list else { return };
        list.move_into_feed(subscription.age);
        // It no longer counts for a feed with a placeholder.
        let Some(read) = self.feeds.get(feed).map(|feed| feed.encoding.clone()) else { return };
        let after = subscription.encodings().skip_while(|encoding| *encoding != read).skip(1);
        self.uncount(number, after);
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
            if let Some(records) = &mut subscription.records
                && !planted!("feed position ignored")
            {
                records.note_sent(feed.last_sequence());
            }
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

    /// Stops live records for the subscription of a connection whose client reads too slowly. Returns the sequence at
    /// which it has to catch up: everything before is in delivery batches. `None` if it catches up already or has no
    /// stream.
    ///
    /// Called between expansions, when no feed is open.
    pub fn fall_behind(&mut self, token: u64) -> Option<u64> {
        let slot = self.record_slot(token)?;
        self.subscriptions[slot as usize].as_ref()?.records.as_ref()?.last()?;
        self.make_private(slot);
        let subscription = self.subscriptions[slot as usize].as_mut()?;
        let records = subscription.records.as_mut()?;
        let last = records.last()?;
        records.stop_live();
        // It may share a feed again when it has caught up.
        subscription.sharing = Sharing::New;
        self.fallen_behind += 1;
        Some(last + if planted!("resumed late") { 2 } else { 1 })
    }

    /// Removes a subscription from its feed, if it reads one, and no longer counts it. The caller moves it to the list
    /// of the others or drops it.
    pub(super) fn stop_sharing(&mut self, slot: u32) {
        let Some(subscription) = &self.subscriptions[slot as usize] else { return };
        let read = match subscription.sharing {
            Sharing::New | Sharing::Private => return,
            Sharing::Counted => None,
            Sharing::Member { feed, .. } => self.feeds.get(feed).map(|feed| feed.encoding.clone()),
        };
        let (number, owner) = (subscription.registered, subscription.owner);
        let encodings = subscription.encodings();
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
        let mut is_after = false;
        let counted = encodings
            .take_while(|encoding| !std::mem::replace(&mut is_after, Some(encoding) == read.as_ref()));
        self.uncount(number, counted);
    }

    /// No longer counts a subscription for these encodings. A feed for which none counts ends.
    fn uncount(&mut self, number: u32, encodings: impl Iterator<Item = Encoding>) {
        let list = self.registered[number as usize].as_mut().and_then(|of| of.members.list_mut());
        let Some(list) = list else { return };
        for encoding in encodings {
            if let Some(unread) = list.uncount_sharer(&encoding) {
                self.feeds.remove(unread);
            }
        }
    }
}

/// Encodes a message for subscriptions with a sid.
fn encode_nats<'a>(
    message: &OutboundMessage<'a>,
    sid: &[u8],
    supports_headers: bool,
    line: &'a mut Vec<u8>,
) -> EncodedMessage<'a> {
    let &OutboundMessage { subject, reply, headers, payload, .. } = message;
    let headers = if supports_headers { headers } else { b"" };
    let reply = (!reply.is_empty()).then_some(reply);
    let msg = Msg { subject, sid, reply, headers, payload: payload.bytes() };
    msg.encode_line(line);
    let parts = [line.as_slice(), headers, payload.bytes(), b"\r\n"];
    EncodedMessage { parts, sid_start: Some(msg.sid_start()), sequence: 0 }
}

#[cfg(test)]
mod tests;
