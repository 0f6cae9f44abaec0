//! Expansion of routed batches into delivery batches for the shard's connections.

use stilling_ring::planted;
use stilling_wire::nats::{Msg, encode_err};

use super::record_subscription::RecordSubscription;
use super::sharing::NoRoom;
use super::{NO_OWNER, ShardSubscriptions, Sharing, Subscription};
use crate::deliveries::{DeliveryBatch, MessageBody};
use crate::encoding::EncodingClass;
use crate::message::OutboundMessage;
use crate::publication_batch::RegistrationId;
use crate::resume::SubscriptionNotice;
use crate::routed_batch::{MarkTarget, MessageEntry, RoutedBatch, RoutedEntry};

impl ShardSubscriptions {
    /// Expands a routed batch until the delivery batch is full or nothing remains. Returns whether nothing remains.
    pub fn expand(&mut self, routed_batch: &mut RoutedBatch, into: &mut DeliveryBatch) -> bool {
        self.stale_matches.begin_expansion();
        let is_done = loop {
            let Some(entry) = routed_batch.next() else { break true };
            if into.is_full() {
                break false;
            }
            match entry {
                RoutedEntry::Message(entry) => {
                    let is_done = self.expand_message(routed_batch, &entry, into);
                    if !self.stale_matches.is_empty() {
                        self.remove_stale_matches();
                    }
                    if !is_done {
                        break false;
                    }
                }
                RoutedEntry::Bytes { to, start, end } => {
                    self.hand_out_to(to, into);
                    into.bytes(to, |out| out.extend_from_slice(routed_batch.part(start, end)));
                }
                RoutedEntry::PublishOutcome { to, ticket, outcome } => {
                    self.hand_out_to(to, into);
                    into.outcome(to, ticket, outcome);
                }
                RoutedEntry::Rejection { to, ticket, stream, start, end } => {
                    self.hand_out_to(to, into);
                    into.rejection(to, (ticket, stream), routed_batch.part(start, end));
                }
                RoutedEntry::Mark { to, mark } => match self.mark_target(to) {
                    Some(token) => {
                        self.hand_out_to(token, into);
                        into.mark(token, mark);
                    }
                    None => self.unanswerable_marks.push(mark),
                },
                RoutedEntry::Refused(id) => {
                    if !self.expand_refusal(routed_batch, id, into) {
                        break false;
                    }
                }
                RoutedEntry::Record { to, message } => {
                    self.hand_out_to(to, into);
                    self.expand_record(to, &routed_batch.record_parts(message), into);
                }
                RoutedEntry::Notice { to, notice } => {
                    self.hand_out_to(to, into);
                    self.expand_notice(to, notice, into);
                }
                RoutedEntry::Processed(processed) => self.synced(processed),
                RoutedEntry::Pause { to } => into.pause(to),
                RoutedEntry::Resume { to } => into.resume(to),
                RoutedEntry::Close { to } => {
                    self.hand_out_to(to, into);
                    into.close(to);
                }
            }
            routed_batch.advance();
        };
        self.close_feeds(into);
        while let Some(slot) = self.finished.pop() {
            self.remove(slot);
        }
        while let Some(number) = self.without_subscriber.pop() {
            self.detach(number);
        }
        is_done
    }

    /// Takes a mark that no connection can answer. The caller reports it as reached after it has [pushed the
    /// changes](Self::push_changes), so that the hub does not send to the registration again.
    pub fn next_unanswerable_mark(&mut self) -> Option<u64> {
        self.unanswerable_marks.pop()
    }

    fn mark_target(&mut self, to: MarkTarget) -> Option<u64> {
        match to {
            MarkTarget::Connection(token) => Some(token),
            MarkTarget::Registration(id) => {
                let registered = self.registered.get(id.number as usize)?.as_ref()?;
                if registered.serial != id.serial {
                    return None;
                }
                let in_feeds = registered.members.feeds().iter().filter_map(|&feed| self.feeds.get(feed));
                let in_feeds = in_feeds.flat_map(|feed| feed.members().iter().copied());
                let slots = registered.members.from(0).map(|(_, slot)| slot).chain(in_feeds);
                let mut members = slots.filter_map(|slot| self.get(slot));
                let token = members.next().map(|subscription| subscription.token);
                if token.is_none() {
                    self.without_subscriber.push(id.number);
                }
                token
            }
        }
    }

    /// Ends the subscriptions of a registration that the hub had no room for, and notifies their connections. Returns
    /// whether there was room for all.
    fn expand_refusal(
        &mut self,
        routed_batch: &mut RoutedBatch,
        id: RegistrationId,
        into: &mut DeliveryBatch,
    ) -> bool {
        let Some(Some(registered)) = self.registered.get(id.number as usize) else { return true };
        if registered.serial != id.serial {
            return true;
        }
        // It has received nothing, so none of its subscriptions reads a feed.
        for (age, slot) in registered.members.from(routed_batch.position.age) {
            if into.is_full() {
                routed_batch.position.age = age;
                return false;
            }
            let target = self
                .get(slot)
                .map(|subscription| (subscription.token, subscription.owner, subscription.records.is_some()));
            if let Some((token, owner, has_format)) = target {
                self.feeds.hand_out(token, &mut self.owners[owner as usize], &self.subscriptions, into);
                match has_format {
                    true => into.refuse(token),
                    false => into.bytes(token, |out| encode_err(out, "maximum subscriptions exceeded")),
                }
                self.finished.push(slot);
            }
        }
        true
    }

    /// Delivers a record to the subscription of a connection that catches up.
    fn expand_record(&mut self, to: u64, message: &OutboundMessage<'_>, into: &mut DeliveryBatch) {
        let Some(records) = self.record_subscription(to) else { return };
        into.bytes(to, |out| records.encode_alone(out, message));
        let format = records.format;
        self.delivered.add(1, Some(format));
    }

    fn expand_notice(&mut self, to: u64, notice: SubscriptionNotice, into: &mut DeliveryBatch) {
        let Some(records) = self.record_subscription(to) else { return };
        match notice {
            SubscriptionNotice::Refused => return into.refuse(to),
            SubscriptionNotice::Disconnected => return into.slow_consumer(to),
            SubscriptionNotice::CaughtUp { through, .. } => records.go_live(through),
            SubscriptionNotice::Started { .. }
            | SubscriptionNotice::Gap(_)
            | SubscriptionNotice::Skipped { .. }
            | SubscriptionNotice::Reset { .. } => {}
        }
        into.bytes(to, |out| records.format.encode_notice(out, &notice));
    }

    /// Returns the subscription of a connection over WebSocket or SSE.
    fn record_subscription(&mut self, token: u64) -> Option<&mut RecordSubscription> {
        let slot = self.record_slot(token)?;
        self.subscriptions[slot as usize].as_mut()?.records.as_mut()
    }

    /// Returns the slot of the only subscription of a connection over WebSocket or SSE.
    pub(super) fn record_slot(&self, token: u64) -> Option<u32> {
        let owner = *self.clients.get(&token)?;
        self.owners[owner as usize].sids.get(b"")
    }

    fn remove_stale_matches(&mut self) {
        while let Some(slot) = self.stale_matches.pop() {
            self.remove_if_stale(slot);
        }
    }

    /// Returns a subscription, unless it has ended or its connection has disconnected.
    pub(super) fn get(&self, slot: u32) -> Option<&Subscription> {
        let subscription = self.subscriptions[slot as usize].as_ref()?;
        let is_there =
            subscription.owner != NO_OWNER && !self.owners[subscription.owner as usize].has_disconnected;
        is_there.then_some(subscription)
    }

    /// Delivers a message to the remaining subscriptions. Returns whether there was room for all.
    fn expand_message(
        &mut self,
        routed_batch: &mut RoutedBatch,
        entry: &MessageEntry,
        into: &mut DeliveryBatch,
    ) -> bool {
        if !std::mem::replace(&mut routed_batch.position.is_begun, true) {
            self.messages += 1;
        }
        let mut position = routed_batch.position;
        let targets = routed_batch.targets(entry);
        let message = routed_batch.parts(entry);
        let is_done = loop {
            let Some(&target) = targets.get(position.target) else { break true };
            if let Some(age) = self.expand_to(target, position.age, entry, &message, into) {
                position.age = age;
                break false;
            }
            (position.target, position.age) = (position.target + 1, 0);
        };
        routed_batch.position = position;
        is_done
    }

    /// Delivers a message to the subscriptions of one registration from age `from` on. Returns the age of the first one
    /// without room.
    #[inline]
    fn expand_to(
        &mut self,
        RegistrationId { number, serial }: RegistrationId,
        from: u64,
        entry: &MessageEntry,
        message: &OutboundMessage<'_>,
        into: &mut DeliveryBatch,
    ) -> Option<u64> {
        let &MessageEntry { excluded, processed, .. } = entry;
        if self.registered.get(number as usize)?.as_ref()?.serial != serial {
            return None;
        }
        let has_disconnected = !self.disconnected.is_empty();
        let mut has_subscriber = from > 0 || !has_disconnected;
        if from == 0 {
            match self.append_to_feeds(number, entry, message, into) {
                Ok(has_sharer) => has_subscriber |= has_sharer,
                Err(NoRoom) => return Some(0),
            }
        }
        let registered = self.registered.get(number as usize)?.as_ref()?;
        let is_shareable = registered.members.is_shareable(self.sharers_min);
        let has_open_feed = self.feeds.has_open();
        for (age, slot) in registered.members.from(from) {
            if into.is_full() {
                self.joining.clear();
                return Some(age);
            }
            let Some(subscription) = self.subscriptions[slot as usize].as_mut() else { continue };
            if has_disconnected && subscription.owner != NO_OWNER {
                if self.owners[subscription.owner as usize].has_disconnected {
                    self.stale_matches.add(slot);
                    continue;
                }
                has_subscriber = true;
            }
            let is_next = match (&mut subscription.records, &message.position) {
                (Some(records), Some(position)) if records.stream == Some(position.stream) => {
                    records.advance(position.sequence)
                }
                _ => processed >= subscription.from || planted!("early subscription"),
            };
            if !is_next
                || processed >= subscription.until
                || excluded == Some(subscription.token)
                || subscription.is_satisfied()
                || subscription.received == self.messages
            {
                continue;
            }
            if has_open_feed {
                let token = subscription.token;
                let owner = match subscription.owner {
                    NO_OWNER => self.clients.get(&token).copied(),
                    owner => Some(owner),
                };
                if let Some(owner) = owner {
                    let owner = &mut self.owners[owner as usize];
                    self.feeds.hand_out(token, owner, &self.subscriptions, into);
                }
            }
            let Some(subscription) = self.subscriptions[slot as usize].as_mut() else { continue };
            let may_share = !subscription.records.as_ref().is_some_and(RecordSubscription::is_catching_up)
                || planted!("early feed");
            if is_shareable && subscription.sharing == Sharing::New && may_share {
                self.joining.push(slot);
            }
            match &subscription.records {
                None => encode(into, subscription, self.messages, message),
                Some(records) => records.encode(into, (subscription.token, self.messages), message),
            }
            self.delivered.add(1, subscription.records.as_ref().map(|records| records.format));
            subscription.delivered += 1;
            if subscription.is_satisfied() {
                self.finished.push(slot);
            }
        }
        if !has_subscriber {
            self.without_subscriber.push(number);
        }
        self.share_joining(number);
        None
    }
}

#[inline]
fn encode(into: &mut DeliveryBatch, to: &Subscription, number: u64, message: &OutboundMessage<'_>) {
    let &OutboundMessage { subject, reply, headers, payload, .. } = message;
    let has_headers = to.supports_headers && !headers.is_empty();
    let headers = if has_headers { headers } else { b"" };
    let reply = (!reply.is_empty()).then_some(reply);
    let line = Msg { subject, sid: to.sid.bytes(), reply, headers, payload: payload.bytes() };
    if let Some(range) = payload.block() {
        let line = |out: &mut Vec<u8>| {
            line.encode_line(out);
            out.extend_from_slice(headers);
        };
        into.shared_message(to.token, number, line, range);
    } else {
        into.message(
            to.token,
            MessageBody { message: number, class: EncodingClass::Nats { has_headers } },
            |out| line.encode_line(out),
            |out| {
                out.extend_from_slice(headers);
                out.extend_from_slice(payload.bytes());
                out.extend_from_slice(b"\r\n");
            },
        );
    }
}
