//! Closed connections: what they had is removed some at a time, so that no turn of the hub is long because of them.
//!
//! ```text
//!   Leave ─▶ at once:    no subscription of the client counts
//!            each turn:  LEFT_PER_TURN steps: a consumer that waits for it, a consumer that it made
//!            each LEFT_SUBSCRIPTIONS_EVERY_NS, and with each message that meets them:
//!                        LEFT_SUBSCRIPTIONS_PER_TURN subscriptions
//! ```
//!
//! A client is named by its shard and token, which has a generation, so the next connection in the same slot is another
//! client from its first request on.

use super::{Hub, Outlets, SteadyNanos};
use crate::intake::Client;
use crate::limits::{LEFT_PER_TURN, LEFT_SUBSCRIPTIONS_EVERY_NS, LEFT_SUBSCRIPTIONS_PER_TURN};
use crate::storage::Storage;

/// A client that has left, and how far its consumers are dealt with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    client: Client,
    stage: Stage,
}

/// The kind of consumers that comes next, from this number on.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Consumers that wait for the client, or hold requests of it.
    Concerned(u32),
    /// Consumers that it made.
    Made(u32),
}

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// A connection is gone. Its subscriptions stop counting at once.
    pub(super) fn leave(&mut self, client: Client) {
        self.subscriptions.leave(client);
        if self.consumers.has_client(client) {
            self.departures.push_back(Departure { client, stage: Stage::Concerned(0) });
        }
        self.end_departures();
    }

    /// Begins a turn, in which as many steps may be done.
    pub(super) fn begin_departures(&mut self, now_ns: SteadyNanos) {
        self.departure_steps = LEFT_PER_TURN;
        self.end_departures();
        if self.subscriptions.has_left() && now_ns >= self.remove_at_ns {
            self.remove_at_ns = now_ns.saturating_add(LEFT_SUBSCRIPTIONS_EVERY_NS);
            let mut rest = LEFT_SUBSCRIPTIONS_PER_TURN;
            while rest > 0 && self.subscriptions.has_left() {
                rest = rest.saturating_sub(self.remove_left_subscription());
            }
        }
    }

    /// Takes apart the consumers of clients that have left, as far as this turn allows.
    fn end_departures(&mut self) {
        while self.departure_steps > 0
            && let Some(departure) = self.departures.pop_front()
        {
            let cost = self.depart(departure);
            self.departure_steps = self.departure_steps.saturating_sub(cost);
        }
    }

    /// Does one step for a client that has left. Returns false if no such client is left.
    pub(super) fn end_a_departure(&mut self) -> bool {
        let departure = self.departures.pop_front();
        departure.map(|departure| self.depart(departure)).is_some()
    }

    /// Does one step for a client that has left. Returns what that cost.
    fn depart(&mut self, departure: Departure) -> usize {
        self.work.left += 1;
        let Departure { client, stage } = departure;
        let (stage, cost) = match stage {
            Stage::Concerned(from) => match self.consumers.next_concerned(client, from) {
                Some(number) => {
                    let pulls = self.stop_waiting_for(client, number);
                    (Stage::Concerned(number + 1), 1 + pulls)
                }
                None => (Stage::Made(0), 1),
            },
            Stage::Made(from) => {
                let Some(number) = self.consumers.next_made(client, from) else { return 1 };
                self.consumers.note_left(number);
                (Stage::Made(number + 1), 1)
            }
        };
        self.departures.push_front(Departure { client, stage });
        cost
    }

    /// Removes a subscription of a client that has left. Returns what that cost, in subscriptions.
    pub(super) fn remove_left_subscription(&mut self) -> usize {
        let Some(removed) = self.subscriptions.remove_left(&mut self.interest) else { return 1 };
        self.work.left += 1;
        self.remove_listener(&removed)
    }

    /// Removes the subscriptions of clients that have left which a message has met, so that the next one does not meet them.
    pub(super) fn remove_met(&mut self) {
        while let Some(id) = self.met.pop() {
            if let Some(removed) = self.subscriptions.remove_one_left(&mut self.interest, id) {
                self.work.left += 1;
                self.remove_listener(&removed);
            }
        }
    }
}
