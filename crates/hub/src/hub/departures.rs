//! Clients that have left: what they had is removed some at a time, so that no turn of the hub is long because of them.
//! Messages and new subscriptions pay for removals beyond that in proportion to their own work.
//!
//! ```text
//!   Leave ─▶ at once:    no subscription of the client counts
//!            each turn:  LEFT_PER_TURN steps: a consumer that waits for it, a consumer that it made
//!                        LEFT_SUBSCRIPTIONS_PER_TURN subscriptions that messages would have matched, and one more
//!                        for each LEFT_MATCHES_PER_STEP such matches
//!            each LEFT_SUBSCRIPTIONS_EVERY_NS: LEFT_SUBSCRIPTIONS_PER_TURN subscriptions
//!            each new subscription: one
//! ```
//!
//! A client is named by its shard and token, which has a generation, so the next connection in the same slot is another
//! client from its first request on.

use super::{Hub, Outlets, SteadyNanos};
use crate::intake::Client;
use crate::limits::{
    LEFT_MATCHES_PER_STEP, LEFT_PER_TURN, LEFT_SUBSCRIPTIONS_EVERY_NS, LEFT_SUBSCRIPTIONS_PER_TURN,
};
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
        self.left_match_steps = LEFT_SUBSCRIPTIONS_PER_TURN;
        if self.subscriptions.has_left() && now_ns >= self.remove_at_ns {
            self.remove_at_ns = now_ns.saturating_add(LEFT_SUBSCRIPTIONS_EVERY_NS);
            self.remove_left_subscriptions(LEFT_SUBSCRIPTIONS_PER_TURN);
        }
    }

    /// Removes subscriptions of clients that have left until so many steps are done; the last removal may exceed them.
    fn remove_left_subscriptions(&mut self, steps: usize) {
        let mut rest = steps;
        while rest > 0 && self.subscriptions.has_left() {
            rest = rest.saturating_sub(self.examine_left_subscription());
        }
    }

    /// Removes the consumers of clients that have left, as far as this turn allows.
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

    /// Looks at the next subscription of a client that has left and removes it, unless it was removed already. Returns how
    /// many steps that took.
    fn examine_left_subscription(&mut self) -> usize {
        match self.subscriptions.examine_left(&mut self.interest) {
            Some(removed) => {
                self.work.left += 1;
                self.remove_listener(&removed)
            }
            None => 1,
        }
    }

    /// Prepares for a new subscription: removes one of a client that has left, so that subscriptions cannot be made and left
    /// faster than they are removed, and as many more as have to make room for this one.
    pub(super) fn make_subscription_room(&mut self, filter: &[u8]) {
        self.examine_left_subscription();
        while self.subscriptions.waits_for_left(filter) {
            self.examine_left_subscription();
        }
    }

    /// Notes that the present message would have matched a subscription of a client that has left. It is removed behind the
    /// message if the turn has steps for such; each [`LEFT_MATCHES_PER_STEP`] of them add a step, so that the time of these
    /// matches is bounded for each subscription, however many messages a turn has.
    pub(super) fn note_left_match(&mut self, id: u32) {
        self.work.left_matches += 1;
        if self.work.left_matches.is_multiple_of(LEFT_MATCHES_PER_STEP) {
            self.left_match_steps += 1;
        }
        if self.left_matches.len() < self.left_match_steps {
            self.left_matches.push(id);
        }
    }

    /// Removes the subscriptions of clients that have left which a message would have matched, so that the next message to its
    /// subject does not find them.
    pub(super) fn remove_left_matches(&mut self) {
        while let Some(id) = self.left_matches.pop() {
            if self.left_match_steps > 0
                && let Some(removed) = self.subscriptions.remove_if_left(&mut self.interest, id)
            {
                self.work.left += 1;
                let steps = self.remove_listener(&removed);
                self.left_match_steps = self.left_match_steps.saturating_sub(steps);
            }
        }
    }
}
