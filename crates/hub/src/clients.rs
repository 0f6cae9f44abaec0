//! Connections that close after their acknowledgements, and clients that have disconnected.
//!
//! ```text
//!   CloseAfterAcks ─▶ closed when each stream has sent its pending answers, or is no longer waited for
//!   Disconnect     ─▶ at once:    no subscription of the client counts
//!                     each turn:  DISCONNECTED_CONSUMER_STEPS_PER_TURN steps, each for one consumer
//! ```
//!
//! A client is identified by its shard and token; the token has a generation, so the next connection in the same slot
//! is another client.

use std::collections::{HashMap, VecDeque};

use crate::consumers::ConsumerTable;
use crate::hash_key::HashKey;
use crate::limits::DISCONNECTED_CONSUMER_STEPS_PER_TURN;
use crate::publication_batch::ClientId;
use crate::router::Router;

#[derive(Debug)]
pub(crate) struct ClosingClients {
    /// Connections to close, with the number of streams that still have answers for them.
    closing: HashMap<ClientId, u32, HashKey>,
    /// Disconnected clients with consumers to handle.
    cleanups: VecDeque<DisconnectCleanup>,
    steps: usize,
    steps_done: u64,
}

#[derive(Clone, Copy, Debug)]
struct DisconnectCleanup {
    client: ClientId,
    stage: CleanupStage,
}

/// Next consumers to handle, by kind, from this number on.
#[derive(Clone, Copy, Debug)]
enum CleanupStage {
    /// Consumers that wait for the client, or hold its pull requests.
    Attached(u32),
    Owned(u32),
}

impl ClosingClients {
    pub(crate) fn new(key: HashKey) -> ClosingClients {
        ClosingClients {
            closing: HashMap::with_hasher(key),
            cleanups: VecDeque::new(),
            steps: DISCONNECTED_CONSUMER_STEPS_PER_TURN,
            steps_done: 0,
        }
    }

    /// Defers a connection's close until `streams` streams have answered. Returns whether to close it now.
    pub(crate) fn close_after(&mut self, client: ClientId, streams: u32) -> bool {
        if streams > 0 {
            self.closing.insert(client, streams);
        }
        streams == 0
    }

    /// Notes that a stream has answered a connection or is no longer waited for. Returns whether to close it now.
    pub(crate) fn note_answered(&mut self, client: ClientId) -> bool {
        let Some(streams) = self.closing.get_mut(&client) else { return false };
        *streams -= 1;
        let is_last = *streams == 0;
        if is_last {
            self.closing.remove(&client);
        }
        is_last
    }

    /// Handles a disconnect. The client's subscriptions stop counting at once.
    pub(crate) fn disconnect(
        &mut self,
        client: ClientId,
        consumers: &mut ConsumerTable,
        router: &mut Router,
    ) {
        self.closing.remove(&client);
        router.disconnect(client);
        if consumers.has_client(client) {
            self.cleanups.push_back(DisconnectCleanup { client, stage: CleanupStage::Attached(0) });
        }
        self.step_cleanups(consumers, router);
    }

    pub(crate) fn begin_turn(&mut self, consumers: &mut ConsumerTable, router: &mut Router) {
        self.steps = DISCONNECTED_CONSUMER_STEPS_PER_TURN;
        self.step_cleanups(consumers, router);
    }

    pub(crate) fn has_cleanups(&self) -> bool {
        !self.cleanups.is_empty()
    }

    pub(crate) fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// Handles the consumers of disconnected clients within this turn's budget.
    fn step_cleanups(&mut self, consumers: &mut ConsumerTable, router: &mut Router) {
        while self.steps > 0
            && let Some(cost) = self.step_cleanup(consumers, router)
        {
            self.steps = self.steps.saturating_sub(cost);
        }
    }

    /// Does one step for a disconnected client. Returns its cost, or `None` without such a client.
    pub(crate) fn step_cleanup(
        &mut self,
        consumers: &mut ConsumerTable,
        router: &mut Router,
    ) -> Option<usize> {
        let DisconnectCleanup { client, stage } = self.cleanups.pop_front()?;
        self.steps_done += 1;
        let (stage, cost) = match stage {
            CleanupStage::Attached(from) => match consumers.next_attached(client, from) {
                Some(number) => {
                    let pulls = consumers.stop_waiting_for(router, client, number);
                    (CleanupStage::Attached(number + 1), 1 + pulls)
                }
                None => (CleanupStage::Owned(0), 1),
            },
            CleanupStage::Owned(from) => {
                let Some(number) = consumers.next_owned(client, from) else { return Some(1) };
                consumers.mark_orphan(number);
                (CleanupStage::Owned(number + 1), 1)
            }
        };
        self.cleanups.push_front(DisconnectCleanup { client, stage });
        Some(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumers::ConsumerSpec;
    use crate::time::Now;

    const ALICE: ClientId = ClientId { shard: 0, token: 1 };
    const KEY: HashKey = HashKey(1, 2);

    #[test]
    fn a_connection_closes_when_the_last_stream_has_answered() {
        let mut clients = ClosingClients::new(KEY);
        assert!(clients.close_after(ALICE, 0), "nothing is awaited");
        assert!(!clients.note_answered(ALICE), "and it is closed once");
        assert!(!clients.close_after(ALICE, 2));
        assert!(!clients.note_answered(ALICE) && clients.note_answered(ALICE));
        assert!(!clients.note_answered(ALICE));
        assert!(!clients.close_after(ALICE, 1));
        let mut router = Router::new(KEY, std::iter::empty());
        clients.disconnect(ALICE, &mut ConsumerTable::new(KEY, 0), &mut router);
        assert!(!clients.note_answered(ALICE) && !clients.has_cleanups(), "it is gone");
    }

    #[test]
    fn the_consumers_of_a_client_that_has_left_are_dealt_with_over_several_turns() {
        let (mut clients, mut consumers) = (ClosingClients::new(KEY), ConsumerTable::new(KEY, 1));
        let mut router = Router::new(KEY, std::iter::empty());
        for name in 0..DISCONNECTED_CONSUMER_STEPS_PER_TURN + 10 {
            let spec = ConsumerSpec::of_everything(0, name);
            consumers.add(ALICE, spec, Now::simulated(0)).expect("there is room");
        }
        clients.disconnect(ALICE, &mut consumers, &mut router);
        assert!(clients.has_cleanups());
        assert_eq!(clients.steps_done(), DISCONNECTED_CONSUMER_STEPS_PER_TURN as u64);
        clients.begin_turn(&mut consumers, &mut router);
        assert!(!clients.has_cleanups());
        // One more step per kind, which finds no further consumer.
        assert_eq!(clients.steps_done(), DISCONNECTED_CONSUMER_STEPS_PER_TURN as u64 + 10 + 2);
        assert_eq!(consumers.first_orphan(), Some(0));
    }
}
