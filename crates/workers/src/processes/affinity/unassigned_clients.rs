//! The clients without a process, and their requests: each client's in a queue of its own, so that the requests of one
//! client cost others nothing.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use super::super::shard_queue::{AdmissionTicket, WaitingRequest};

/// The requests of one client that wait, the oldest first.
pub(super) type ClientQueue<Q> = BTreeMap<AdmissionTicket, WaitingRequest<Q>>;

/// Empty queues that are stored for the next clients. More are dropped.
const SPARE_QUEUES_MAX: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct UnassignedClients<C, Q> {
    /// None is empty.
    queues: HashMap<C, ClientQueue<Q>>,
    /// The clients in the order of their oldest requests.
    by_oldest: BTreeMap<AdmissionTicket, C>,
    /// Empty queues, whose memory the next clients use.
    spare: Vec<ClientQueue<Q>>,
}

impl<C, Q> UnassignedClients<C, Q> {
    pub(super) fn new() -> UnassignedClients<C, Q> {
        UnassignedClients { queues: HashMap::new(), by_oldest: BTreeMap::new(), spare: Vec::new() }
    }

    /// Requests of all clients.
    pub(super) fn requests(&self) -> usize {
        self.queues.values().map(BTreeMap::len).sum()
    }

    /// Stores an empty queue for a later client.
    pub(super) fn recycle(&mut self, queue: ClientQueue<Q>) {
        debug_assert!(queue.is_empty(), "its requests would be lost");
        if self.spare.len() < SPARE_QUEUES_MAX {
            self.spare.push(queue);
        }
    }
}

impl<C: Copy + Eq + Hash, Q> UnassignedClients<C, Q> {
    /// The client with the oldest request.
    pub(super) fn oldest(&self) -> Option<C> {
        self.by_oldest.first_key_value().map(|(_, client)| *client)
    }

    /// Requests of one client.
    pub(super) fn requests_of(&self, client: C) -> usize {
        self.queues.get(&client).map_or(0, BTreeMap::len)
    }

    pub(super) fn insert(&mut self, client: C, ticket: AdmissionTicket, waiting: WaitingRequest<Q>) {
        let spare = &mut self.spare;
        let queue = self.queues.entry(client).or_insert_with(|| spare.pop().unwrap_or_default());
        let former = oldest_of(queue);
        queue.insert(ticket, waiting);
        let oldest = oldest_of(queue);
        self.move_client(client, former, oldest);
    }

    /// Adds all requests of a queue, which is empty then.
    pub(super) fn append(&mut self, client: C, requests: &mut ClientQueue<Q>) {
        while let Some((ticket, waiting)) = requests.pop_first() {
            self.insert(client, ticket, waiting);
        }
    }

    pub(super) fn remove(&mut self, client: C, ticket: AdmissionTicket) -> Option<WaitingRequest<Q>> {
        let queue = self.queues.get_mut(&client)?;
        let former = oldest_of(queue);
        let waiting = queue.remove(&ticket)?;
        let oldest = oldest_of(queue);
        self.move_client(client, former, oldest);
        if oldest.is_none()
            && let Some(queue) = self.queues.remove(&client)
        {
            self.recycle(queue);
        }
        Some(waiting)
    }

    /// Removes a client with all its requests.
    pub(super) fn take(&mut self, client: C) -> ClientQueue<Q> {
        let queue = self.queues.remove(&client).unwrap_or_default();
        self.move_client(client, oldest_of(&queue), None);
        queue
    }

    /// The oldest request of a client is another.
    fn move_client(&mut self, client: C, former: Option<AdmissionTicket>, oldest: Option<AdmissionTicket>) {
        if former == oldest {
            return;
        }
        if let Some(former) = former {
            self.by_oldest.remove(&former);
        }
        if let Some(oldest) = oldest {
            self.by_oldest.insert(oldest, client);
        }
    }
}

fn oldest_of<Q>(queue: &ClientQueue<Q>) -> Option<AdmissionTicket> {
    queue.first_key_value().map(|(ticket, _)| *ticket)
}
