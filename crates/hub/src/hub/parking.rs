//! Requests whose stream is full: their connections are parked, and go on when the stream has room or refuses.

use super::{Hub, Outlets, Stalled};
use crate::intake::{Client, Request, Traits};
use crate::storage::Storage;
use crate::time::Now;

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Deals with a request, or parks its connection if a stream has no room for it. Returns whether it is taken.
    pub(super) fn deal_or_park(
        &mut self,
        client: Client,
        traits: Traits,
        request: &Request<'_>,
        now: Now,
    ) -> bool {
        if matches!(request, Request::Leave) && self.parked.note_left(client) {
            // Nothing is sent to it any more. What it has published was taken in, and is stored when there is room.
            self.leave(client);
            return true;
        }
        if self.parked.is_behind(client, request) {
            return self.parked.push(client, traits, request);
        }
        match self.deal(client, traits, request, now) {
            Ok(()) => true,
            Err(Stalled::Api | Stalled::Shard) => false,
            Err(Stalled::Stream(stream)) => {
                let is_parked = self.parked.park(client, traits, request, stream);
                if is_parked {
                    self.fan_out.pause(client);
                }
                is_parked
            }
        }
    }

    /// Goes on with parked connections, as far as their streams and the shards have room.
    pub(super) fn unpark(&mut self, now: Now) {
        let mut from = 0;
        while let Some(stream) = self.parked.next_stream(from) {
            if !self.unpark_first(stream, now) {
                from = stream + 1;
            }
        }
    }

    /// Goes on with the connection that has waited longest for a stream. Returns whether the next one may have its turn.
    fn unpark_first(&mut self, stream: usize, now: Now) -> bool {
        let Some((client, mut requests)) = self.parked.take_first(stream) else { return false };
        while let Some((traits, request)) = requests.next() {
            let full = if !self.delivery().finish_begun() {
                Some(stream)
            } else {
                match self.deal(client, traits, &request, now) {
                    Ok(()) => None,
                    Err(Stalled::Stream(other)) => Some(other),
                    Err(Stalled::Api | Stalled::Shard) => Some(stream),
                }
            };
            if let Some(other) = full {
                let is_same = other == stream;
                self.parked.put_back(client, requests, (other, is_same));
                return !is_same;
            }
            requests.advance();
        }
        if requests.has_left() {
            // Its publications may have asked for consumers since.
            self.leave(client);
        }
        self.fan_out.resume(client);
        true
    }

    /// A connection is gone.
    fn leave(&mut self, client: Client) {
        self.clients.leave(client, &mut self.consumers.table, &mut self.router);
    }
}
