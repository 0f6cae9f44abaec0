//! Parking: a connection that publishes to a full stream waits until the stream has room or refuses; one with API
//! requests beyond a turn's budget waits for the next turn.

use super::{Hub, RequestOrigin, ShardSenders};
use crate::limits::UNPARKED_PER_TURN;
use crate::publication_batch::{ClientId, HubRequest};
use crate::storage::Storage;
use crate::time::Now;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    /// Processes a request, or parks its connection if that is not possible now. Returns whether the request was
    /// processed or parked.
    pub(super) fn process_or_park(
        &mut self,
        origin: RequestOrigin,
        request: &HubRequest<'_>,
        now: Now,
    ) -> bool {
        let RequestOrigin { client, client_options, position } = origin;
        if matches!(request, HubRequest::Disconnect) && self.parked.note_disconnect(client) {
            // Nothing more is sent to the client; its parked publications are stored when there is room.
            self.disconnect(client);
            return true;
        }
        if self.parked.is_behind(client, request) {
            return self.parked.push((client, client_options), request, position);
        }
        let Err(stalled) = self.process_request(origin, request, now) else { return true };
        let is_parked = self.parked.park((client, client_options), request, position, stalled);
        if is_parked {
            self.fan_out.pause(client);
        }
        is_parked
    }

    /// Continues parked connections, as far as their streams, the API and the shards have room.
    pub(super) fn unpark(&mut self, now: Now) {
        for queue in self.parked.queues_of_turn() {
            // Each connection has one turn; connections that wait for a shard do not block the others.
            for _ in 0..self.parked.waiting(queue).min(UNPARKED_PER_TURN) {
                if !self.unpark_first(queue, now) {
                    break;
                }
            }
            if self.parked.ends_turn_at(queue) {
                break;
            }
        }
    }

    fn unpark_first(&mut self, queue: usize, now: Now) -> bool {
        let Some((client, mut requests)) = self.parked.take_first(queue) else { return false };
        while let Some((client_options, request, position)) = requests.next() {
            let stalled_in = if !self.delivery().finish_unsent() || !self.parked.has_turn() {
                Some((queue, true))
            } else {
                let stalled = self
                    .process_request(RequestOrigin { client, client_options, position }, &request, now)
                    .err();
                stalled.map(|stalled| match self.parked.queue(stalled) {
                    Some(other) => (other, other == queue),
                    // Waits for a shard; the others in the queue may continue.
                    None => (queue, false),
                })
            };
            if let Some((other, is_same)) = stalled_in {
                self.parked.put_back(client, requests, (other, is_same));
                return !is_same;
            }
            self.parked.note_processed(requests.advance());
        }
        if requests.has_disconnected() {
            // Its publications may have created consumers since.
            self.disconnect(client);
        }
        self.fan_out.resume(client);
        true
    }

    pub(super) fn disconnect(&mut self, client: ClientId) {
        self.catch_ups.remove(client);
        self.clients.disconnect(client, &mut self.consumers.table, &mut self.router);
    }
}
