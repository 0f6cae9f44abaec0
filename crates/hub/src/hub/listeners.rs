//! Subscriptions come and go, and each stream knows whether filters are subscribed to that its subjects match.

use stilling_wire::nats::encode_err;

use super::{Hub, Outlets};
use crate::intake::{Client, Traits};
use crate::storage::Storage;
use crate::subscriptions::{Removed, Streams, TooMany, overlap};

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Adds a subscription, or says why it does not.
    pub(super) fn subscribe(
        &mut self,
        client: Client,
        traits: Traits,
        filter: &[u8],
        queue: &[u8],
        sid: &[u8],
    ) {
        self.make_subscription_room(filter);
        match self.subscriptions.add(&mut self.interest, client, traits, (filter, queue, sid)) {
            Ok(Some(id)) => self.add_listener(id, filter),
            Ok(None) => {}
            Err(too_many) => {
                let out = &mut self.outs[client.shard as usize];
                out.bytes(client.token, |out| encode_err(out, "maximum subscriptions exceeded"));
                if too_many == TooMany::OfClient {
                    out.close(client.token);
                }
            }
        }
    }

    /// Ends a subscription, at once or after so many messages.
    pub(super) fn unsubscribe(&mut self, client: Client, sid: &[u8], after: Option<u32>) {
        let Some(id) = self.subscriptions.find(client, sid) else { return };
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        match after {
            Some(after) if subscription.delivered < u64::from(after) => subscription.ends_after = Some(after),
            _ => self.forget(id),
        }
    }

    /// Removes a subscription.
    pub(super) fn forget(&mut self, id: u32) {
        if let Some(removed) = self.subscriptions.remove(&mut self.interest, id) {
            self.remove_listener(&removed);
        }
    }

    /// A filter has come that streams may have subjects for.
    pub(super) fn add_listener(&mut self, id: u32, filter: &[u8]) {
        let mut concerned = Streams::None;
        for (number, stream) in (0..).zip(&mut self.streams) {
            if stream.config.subjects.iter().any(|subject| overlap(subject.as_bytes(), filter)) {
                stream.listeners += 1;
                concerned = if concerned == Streams::None { Streams::One(number) } else { Streams::Many };
            }
        }
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.streams = concerned;
        }
    }

    /// It has gone. Returns what that cost, in subscriptions.
    pub(super) fn remove_listener(&mut self, removed: &Removed) -> usize {
        let is_concerned =
            |subjects: &[String]| subjects.iter().any(|subject| overlap(subject.as_bytes(), &removed.filter));
        match removed.streams {
            Streams::None => 1,
            Streams::One(number) => {
                self.streams[number as usize].listeners -= 1;
                1
            }
            Streams::Many => {
                let streams = self.streams.iter_mut();
                for stream in streams.filter(|stream| is_concerned(&stream.config.subjects)) {
                    stream.listeners -= 1;
                }
                1 + self.streams.len() / STREAMS_PER_SUBSCRIPTION
            }
        }
    }
}

/// Streams that are compared with a filter in the time in which a subscription is removed.
const STREAMS_PER_SUBSCRIPTION: usize = 16;
