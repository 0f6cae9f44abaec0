//! Parked connections: a connection that publishes to a full stream waits, with its requests in order, while other
//! connections continue. A connection with an API request beyond the turn's budget waits the same way.
//!
//! ```text
//!   a publication finds its stream full ─▶ its connection is parked and paused; its later requests wait behind it
//!   the stream has room, or refuses     ─▶ the requests are processed; after the last one the connection is resumed
//!   the connection disconnects          ─▶ nothing is sent to it any more; its publications keep their place
//! ```
//!
//! Requests are copied when parked, so a stream that waits for a disk holds neither publication batches nor blocks.

use std::collections::{HashMap, VecDeque};

use stilling_ring::planted;

use crate::hash_key::HashKey;
use crate::limits::{
    PARKED_BARRIERS_MAX, PARKED_PER_CLIENT_SIZE_MAX, PARKED_REQUEST_SIZE, PARKED_SIZE_MAX, UNPARKED_PER_TURN,
    UNPARKED_SIZE_PER_TURN,
};
use crate::publication_batch::{ClientId, ClientOptions, HubRequest, Publication, PublicationBatch};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StallReason {
    Stream(usize),
    /// The API's budget of this turn is used up.
    Api,
    /// The queue of a shard is over its bound.
    Shard,
}

#[derive(Debug, Default)]
struct ParkedRequests {
    /// All of one connection, payloads copied.
    publication_batch: PublicationBatch,
    /// Number of the shard's requests before each one.
    positions: Vec<u64>,
    queue: usize,
    next: usize,
    /// Cost of the unprocessed requests in bytes.
    size: usize,
    /// Cost of all requests in the batch in bytes.
    held: usize,
    /// Barriers parked without room.
    barriers: usize,
    has_disconnected: bool,
}

impl ParkedRequests {
    /// Returns whether a request is parked although there is no room, and counts it: such requests are small and few
    /// per connection.
    fn is_exempt_from_limit(&mut self, request: &HubRequest<'_>) -> bool {
        match request {
            HubRequest::CloseAfterAcks | HubRequest::Disconnect => true,
            HubRequest::Barrier if self.barriers < PARKED_BARRIERS_MAX => {
                self.barriers += 1;
                true
            }
            _ => false,
        }
    }

    /// Frees the memory of processed requests once they are at least half.
    fn free_processed(&mut self) {
        if self.size > self.held / 2 {
            return;
        }
        let mut left = PublicationBatch::growing();
        for (token, client_options, request) in (self.next..).map_while(|at| self.publication_batch.get(at)) {
            left.push(token, client_options, &request);
        }
        self.positions.drain(..self.next);
        self.positions.shrink_to_fit();
        (self.publication_batch, self.next, self.held) = (left, 0, self.size);
    }
}

#[derive(Debug)]
pub(crate) struct ParkedClients {
    requests: HashMap<ClientId, ParkedRequests, HashKey>,
    /// Connections that wait for each stream, and in the last queue for the API; the longest-waiting one is in front.
    queues: Vec<VecDeque<ClientId>>,
    /// Cost of all requests, and of those in each queue.
    size: usize,
    sizes: Vec<usize>,
    parked: u64,
    turn: TurnBudget,
    /// First queue of the next turn if a turn's budget does not suffice for all queues.
    first_queue: usize,
}

/// Parked requests processed in a turn of the hub.
#[derive(Clone, Copy, Debug, Default)]
struct TurnBudget {
    requests: usize,
    size: usize,
    /// A request was deferred because the budget was used up.
    is_exhausted: bool,
}

fn cost(request: &HubRequest<'_>) -> usize {
    PARKED_REQUEST_SIZE
        + match request {
            HubRequest::Publish(Publication { subject, reply, headers, payload, .. }) => {
                subject.len() + reply.len() + headers.len() + payload.len()
            }
            HubRequest::LossReport(lost) => lost.subject.len(),
            HubRequest::Interest(_)
            | HubRequest::CatchUp(_)
            | HubRequest::Barrier
            | HubRequest::MarkReached { .. }
            | HubRequest::CancelPulls
            | HubRequest::CloseAfterAcks
            | HubRequest::Disconnect => 0,
        }
}

/// Returns whether a request must stay in order with its connection's other requests. Reports about sent messages and
/// losses need no order, nor do subscription changes of the shard: a message carries its position among the shard's
/// requests.
fn is_ordered(request: &HubRequest<'_>) -> bool {
    match request {
        HubRequest::Interest(_)
        | HubRequest::CatchUp(_)
        | HubRequest::MarkReached { .. }
        | HubRequest::CancelPulls
        | HubRequest::LossReport(_) => false,
        HubRequest::Barrier => !planted!("overtaken publication"),
        HubRequest::Publish(_) | HubRequest::CloseAfterAcks | HubRequest::Disconnect => true,
    }
}

impl ParkedClients {
    pub(crate) fn new(key: HashKey, streams: usize) -> ParkedClients {
        ParkedClients {
            requests: HashMap::with_hasher(key),
            queues: (0..=streams).map(|_| VecDeque::new()).collect(),
            size: 0,
            sizes: vec![0; streams + 1],
            parked: 0,
            turn: TurnBudget::default(),
            first_queue: 0,
        }
    }

    pub(crate) fn begin_turn(&mut self) {
        self.turn = TurnBudget::default();
    }

    /// Returns whether a further request may be processed in this turn.
    pub(crate) fn has_turn(&mut self) -> bool {
        let TurnBudget { requests, size, .. } = self.turn;
        self.turn.is_exhausted |= requests >= UNPARKED_PER_TURN || size >= UNPARKED_SIZE_PER_TURN;
        !self.turn.is_exhausted
    }

    pub(crate) fn note_processed(&mut self, size: usize) {
        self.turn.requests += 1;
        self.turn.size += size;
    }

    /// Returns the queues in the order of this turn; none if its budget is used up.
    pub(crate) fn queues_of_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, all) = (self.first_queue, self.queues.len());
        let count = if self.is_empty() || self.turn.is_exhausted { 0 } else { all };
        (0..count).map(move |at| (first + at) % all)
    }

    /// Returns whether the turn's budget is used up. The next turn then begins after `queue`.
    pub(crate) fn ends_turn_at(&mut self, queue: usize) -> bool {
        if self.turn.is_exhausted {
            self.first_queue = (queue + 1) % self.queues.len();
        }
        self.turn.is_exhausted
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn total(&self) -> u64 {
        self.parked
    }

    /// Returns whether a request must wait behind others of its connection.
    #[inline]
    pub(crate) fn is_behind(&self, client: ClientId, request: &HubRequest<'_>) -> bool {
        !self.is_empty() && self.requests.contains_key(&client) && is_ordered(request)
    }

    /// Parks a connection with a request that could not be processed; `position` is the number of its shard's requests
    /// before it. Returns `false` if there is no room, or if the request waits for a shard.
    #[must_use]
    pub(crate) fn park(
        &mut self,
        (client, client_options): (ClientId, ClientOptions),
        request: &HubRequest<'_>,
        position: u64,
        stalled: StallReason,
    ) -> bool {
        let has_room = |queue: &usize| self.has_room(*queue, cost(request));
        let Some(queue) = self.queue(stalled).filter(has_room) else { return false };
        let none = ParkedRequests {
            publication_batch: PublicationBatch::growing(),
            queue,
            ..ParkedRequests::default()
        };
        self.requests.insert(client, none);
        self.queues[queue].push_back(client);
        self.push((client, client_options), request, position)
    }

    /// Returns whether a queue has room for `size` bytes: as much as all queues leave free.
    fn has_room(&self, queue: usize, size: usize) -> bool {
        self.sizes[queue] + size <= PARKED_SIZE_MAX.saturating_sub(self.size)
    }

    /// Notes that a connection has disconnected: from now on only its publications count. Returns whether it is parked.
    pub(crate) fn note_disconnect(&mut self, client: ClientId) -> bool {
        let requests = self.requests.get_mut(&client);
        requests.map(|requests| requests.has_disconnected = true).is_some()
    }

    /// Parks a request behind the others of its connection. Returns whether there is room.
    #[must_use]
    pub(crate) fn push(
        &mut self,
        (client, client_options): (ClientId, ClientOptions),
        request: &HubRequest<'_>,
        position: u64,
    ) -> bool {
        let Some(queue) = self.requests.get(&client).map(|requests| requests.queue) else { return false };
        let cost = cost(request);
        let has_room = self.has_room(queue, cost);
        let Some(requests) = self.requests.get_mut(&client) else { return false };
        // A first request fits regardless of its size, if there is room in total.
        let is_full = requests.size > 0 && requests.size + cost > PARKED_PER_CLIENT_SIZE_MAX;
        let has_room = !is_full && has_room;
        if !has_room && !requests.is_exempt_from_limit(request) {
            return false;
        }
        let mut request = *request;
        if let HubRequest::Publish(publication) = &mut request {
            // Copied: a reference would pin its block as long as the stream waits.
            publication.payload = publication.payload.bytes().into();
        }
        requests.publication_batch.push(client.token, client_options, &request);
        requests.positions.push(position);
        requests.size += cost;
        requests.held += cost;
        self.size += cost;
        self.sizes[queue] += cost;
        self.parked += 1;
        true
    }

    pub(crate) fn waiting(&self, queue: usize) -> usize {
        self.queues[queue].len()
    }

    /// Takes the requests of the longest-waiting connection in a queue. The connection is not parked until they are
    /// [put back](Self::put_back).
    pub(crate) fn take_first(&mut self, queue: usize) -> Option<(ClientId, UnparkedRequests)> {
        let client = self.queues[queue].pop_front()?;
        let requests = self.requests.remove(&client)?;
        self.size -= requests.size;
        self.sizes[queue] -= requests.size;
        Some((client, UnparkedRequests(requests)))
    }

    /// Parks a connection again because its next request cannot be processed. It keeps its place if it waits for the
    /// same stream, not for a shard; connections that wait for the API take turns.
    pub(crate) fn put_back(
        &mut self,
        client: ClientId,
        UnparkedRequests(mut requests): UnparkedRequests,
        (queue, is_same): (usize, bool),
    ) {
        requests.free_processed();
        requests.queue = queue;
        self.size += requests.size;
        self.sizes[queue] += requests.size;
        self.requests.insert(client, requests);
        let is_of_api = queue + 1 == self.queues.len();
        let queue = &mut self.queues[queue];
        if is_same && !is_of_api { queue.push_front(client) } else { queue.push_back(client) }
    }

    /// Returns the queue for a stall reason; `None` for a shard: no connection is parked for one, and a parked
    /// connection stays in its queue.
    pub(crate) fn queue(&self, stalled: StallReason) -> Option<usize> {
        match stalled {
            StallReason::Stream(stream) => Some(stream),
            StallReason::Api => Some(self.queues.len() - 1),
            StallReason::Shard => None,
        }
    }

    /// Returns whether requests were deferred because the turn's budget was used up. They continue in the next turn
    /// without further events.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.turn.is_exhausted
    }

    #[cfg(test)]
    fn next_queue(&self, from: usize) -> Option<usize> {
        (from..self.queues.len()).find(|queue| !self.queues[*queue].is_empty())
    }
}

/// Requests of a connection that is being continued.
#[derive(Debug)]
pub(crate) struct UnparkedRequests(ParkedRequests);

impl UnparkedRequests {
    /// Returns the next request and the number of its shard's requests before it; after a disconnect, the next
    /// publication.
    pub(crate) fn next(&mut self) -> Option<(ClientOptions, HubRequest<'_>, u64)> {
        let ParkedRequests { publication_batch, positions, next, size, has_disconnected, .. } = &mut self.0;
        let is_obsolete =
            |request: &HubRequest<'_>| *has_disconnected && !matches!(request, HubRequest::Publish(_));
        while let Some((_, _, request)) =
            publication_batch.get(*next).filter(|(_, _, request)| is_obsolete(request))
        {
            *size -= cost(&request);
            *next += 1;
        }
        let position = *positions.get(*next)?;
        publication_batch.get(*next).map(|(_, client_options, request)| (client_options, request, position))
    }

    pub(crate) fn has_disconnected(&self) -> bool {
        self.0.has_disconnected
    }

    /// Advances past the processed request. Returns its cost.
    pub(crate) fn advance(&mut self) -> usize {
        let cost = self.next().map_or(0, |(_, request, _)| cost(&request));
        self.0.next += 1;
        self.0.size -= cost;
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publication_batch::Ingress;

    const ALICE: ClientId = ClientId { shard: 0, token: 1 };
    const BOB: ClientId = ClientId { shard: 0, token: 2 };

    fn publication(payload: &[u8]) -> HubRequest<'_> {
        HubRequest::Publish(Publication {
            ingress: Ingress::Nats,
            subject: b"a",
            reply: b"",
            headers: b"",
            payload: payload.into(),
            ticket: None,
        })
    }

    #[test]
    fn requests_of_a_parked_connection_wait_in_order_and_others_do_not() {
        let mut parked = ParkedClients::new(HashKey(1, 2), 2);
        assert!(!parked.is_behind(ALICE, &HubRequest::Barrier) && parked.next_queue(0).is_none());
        assert!(parked.park(
            (ALICE, ClientOptions::default()),
            &publication(b"x"),
            0,
            StallReason::Stream(1)
        ));
        assert!(
            parked.is_behind(ALICE, &HubRequest::Barrier) && !parked.is_behind(BOB, &HubRequest::Barrier)
        );
        assert!(!parked.is_behind(ALICE, &HubRequest::MarkReached { mark: 1 }), "a report does not wait");
        assert!(parked.push((ALICE, ClientOptions::default()), &HubRequest::Barrier, 0));
        assert!(parked.park((BOB, ClientOptions::default()), &publication(b"y"), 0, StallReason::Stream(1)));
        assert_eq!((parked.next_queue(0), parked.next_queue(2), parked.len()), (Some(1), None, 2));
        let (client, mut requests) = parked.take_first(1).expect("one waits");
        assert_eq!(
            (client, requests.next().map(|(_, request, _)| request)),
            (ALICE, Some(publication(b"x")))
        );
        requests.advance();
        assert_eq!(requests.next().map(|(_, request, _)| request), Some(HubRequest::Barrier));
        parked.put_back(ALICE, requests, (1, true));
        let (client, mut requests) = parked.take_first(1).expect("it keeps its place");
        requests.advance();
        assert_eq!((client, requests.next().is_none()), (ALICE, true));
        let (client, requests) = parked.take_first(1).expect("the other one");
        parked.put_back(client, requests, (0, false));
        assert_eq!((parked.next_queue(0), parked.next_queue(1), parked.len()), (Some(0), None, 1));
        drop(parked.take_first(0));
        assert!(parked.is_empty() && parked.size == 0 && parked.total() == 3);
    }

    #[test]
    fn what_is_parked_is_bounded_for_each_connection_each_stream_and_all() {
        let mut parked = ParkedClients::new(HashKey(1, 2), 2);
        let long = vec![0; PARKED_PER_CLIENT_SIZE_MAX / 4];
        let park = |parked: &mut ParkedClients, token, stream| {
            let client = ClientId { shard: 0, token };
            parked.park(
                (client, ClientOptions::default()),
                &publication(&long),
                0,
                StallReason::Stream(stream),
            )
        };
        let count = (0..).take_while(|token| park(&mut parked, *token, 0)).count();
        let size = parked.size;
        assert!(
            size <= PARKED_SIZE_MAX / 2 + long.len() && size > PARKED_SIZE_MAX / 2 - long.len(),
            "{size}"
        );
        assert_eq!((parked.len(), parked.waiting(0)), (count, count));
        assert!(park(&mut parked, 1000, 1), "another stream has room");
        let first = ClientId { shard: 0, token: 0 };
        drop((parked.take_first(0), parked.take_first(0)));
        assert!(park(&mut parked, 0, 0));
        let push = |parked: &mut ParkedClients, request: &HubRequest<'_>| {
            parked.push((first, ClientOptions::default()), request, 0)
        };
        assert!(!push(&mut parked, &publication(&long)), "the stream has its share");
        assert!(push(&mut parked, &HubRequest::Barrier));
        for _ in 2..count {
            drop(parked.take_first(0));
        }
        let pushed = (0..10).take_while(|_| push(&mut parked, &publication(&long))).count();
        assert_eq!(pushed, 2, "it has its share");
    }

    #[test]
    fn of_a_parked_connection_that_has_left_only_publications_count() {
        let mut parked = ParkedClients::new(HashKey(1, 2), 1);
        assert!(!parked.note_disconnect(ALICE), "it is not parked");
        assert!(parked.park(
            (ALICE, ClientOptions::default()),
            &publication(b"x"),
            0,
            StallReason::Stream(0)
        ));
        for request in
            [HubRequest::Barrier, publication(b"y"), HubRequest::Barrier, HubRequest::CloseAfterAcks]
        {
            assert!(parked.push((ALICE, ClientOptions::default()), &request, 0));
        }
        assert!(parked.note_disconnect(ALICE) && !parked.note_disconnect(BOB));
        let (_, mut requests) = parked.take_first(0).expect("it is still parked");
        let mut left = Vec::new();
        while let Some((_, request, _)) = requests.next() {
            left.push(request == publication(b"x") || request == publication(b"y"));
            requests.advance();
        }
        assert_eq!((left, requests.has_disconnected()), (vec![true; 2], true));
    }

    #[test]
    fn the_end_of_a_parked_connection_needs_no_room() {
        let mut parked = ParkedClients::new(HashKey(1, 2), 1);
        let share = vec![0; PARKED_PER_CLIENT_SIZE_MAX - PARKED_REQUEST_SIZE - 1];
        assert!(parked.park(
            (ALICE, ClientOptions::default()),
            &publication(&share),
            0,
            StallReason::Stream(0)
        ));
        assert!(
            !parked.push((ALICE, ClientOptions::default()), &publication(b"x"), 0),
            "her share is used up"
        );
        for _ in 0..PARKED_BARRIERS_MAX {
            assert!(parked.push((ALICE, ClientOptions::default()), &HubRequest::Barrier, 0));
        }
        assert!(
            !parked.push((ALICE, ClientOptions::default()), &HubRequest::Barrier, 0),
            "the number of parked PINGs is bounded"
        );
        assert!(parked.push((ALICE, ClientOptions::default()), &HubRequest::CloseAfterAcks, 0));
        assert!(parked.push((ALICE, ClientOptions::default()), &HubRequest::Disconnect, 0));
    }

    #[test]
    fn processed_requests_do_not_count_and_their_memory_is_freed() {
        let mut parked = ParkedClients::new(HashKey(1, 2), 1);
        let long = [0; 1000];
        assert!(parked.park(
            (ALICE, ClientOptions::default()),
            &publication(&long),
            0,
            StallReason::Stream(0)
        ));
        for _ in 1..100 {
            assert!(parked.push((ALICE, ClientOptions::default()), &publication(&long), 0));
        }
        let all = parked.size;
        let (_, mut requests) = parked.take_first(0).expect("she waits");
        for _ in 0..60 {
            assert_eq!(requests.advance(), all / 100);
        }
        parked.put_back(ALICE, requests, (0, true));
        assert_eq!(parked.size, all / 100 * 40);
        let kept = &parked.requests[&ALICE];
        assert_eq!((kept.publication_batch.len(), kept.next, kept.held), (40, 0, parked.size));
    }

    #[test]
    fn a_parked_payload_keeps_no_block() {
        let mut writer = stilling_ring::BlockWriter::new(16);
        let range = writer.append(b"payload").expect("there is room");
        let mut parked = ParkedClients::new(HashKey(1, 2), 1);
        let payload = crate::payload::Payload::shared(writer.shared(), range);
        let HubRequest::Publish(publication) = publication(b"") else { unreachable!("it is one") };
        let shared = HubRequest::Publish(Publication { payload, ..publication });
        assert!(parked.park((ALICE, ClientOptions::default()), &shared, 0, StallReason::Stream(0)));
        assert!(writer.reset(), "nothing refers to the block");
        let (_, mut requests) = parked.take_first(0).expect("it waits");
        let Some((_, HubRequest::Publish(kept), _)) = requests.next() else { panic!("a message") };
        assert_eq!(kept.payload.bytes(), b"payload");
    }
}
