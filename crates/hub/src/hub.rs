//! The single writer: processes the shards' requests one after the other and produces deliveries.
//!
//! ```text
//!   publication batches ─▶ process ─▶ route ─┬─▶ plain: subscriptions ────────────────────────────▶ routed batches
//!                                            └─▶ stream ─▶ batch ─▶ storage ─▶ poll ─▶ release ───▶ routed batches
//!                        (refused, duplicate, condition failed: outcomes)   records, then outcomes
//! ```
//!
//! The hub never waits. A connection that publishes to a full stream, or exceeds its share of the API in a turn, is
//! parked: its requests wait, and other connections continue. A shard that holds all its routed batches delays only its
//! own deliveries while its queue is within its bound. When a queue exceeds its bound or no more requests can be
//! parked, [`process_requests`](Hub::process_requests) stops in the middle of the publication batch; a later call
//! continues there.

use std::sync::Arc;

use stilling_wire::nats::{NO_RESPONDERS, PONG, strip_status};

use self::api::ApiState;
use self::storing::StoreTarget;
use crate::catch_ups::CatchUps;
use crate::clients::ClosingClients;
use crate::consumers::{ConsumerDelivery, Consumers};
use crate::counters::HubCounters;
use crate::fan_out::{FanOut, MessageSender, ShardSenders};
use crate::gate::GateRegistry;
use crate::hash_key::HashKey;
use crate::limits::SHARD_QUEUE_SIZE_MAX;
use crate::loss_tracking::LossTracker;
use crate::message::OutboundMessage;
use crate::parked::{ParkedClients, StallReason};
use crate::publication_batch::{
    ClientId, ClientOptions, HubRequest, InterestChange, Publication, PublicationBatch,
};
use crate::publish_outcome::PublishOutcome;
use crate::registrations::RegistrationsFull;
use crate::router::{Router, RouterWork};
use crate::storage::{Storage, StreamOpening};
use crate::stream::{Durability, ResumePoint, StreamConfig};
use crate::stream_writer::StreamWriter;
use crate::streams::StreamTable;
use crate::time::{Now, UnixNanos};

mod api;
mod catching_up;
mod markers;
mod open_streams;
mod parking;
mod release_batches;
mod sending;
mod storing;
mod timers;

pub use sending::describe;

/// Hub configuration.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Streams; a stream's number is its index.
    pub streams: Vec<StreamConfig>,
    /// Bytes of a memory stream's batch.
    pub memory_batch_size: usize,
    /// Bytes that may wait for a shard that holds all its routed batches ([`SHARD_QUEUE_SIZE_MAX`]).
    pub shard_queue_size_max: usize,
    /// Gates that streams may have.
    pub gates: GateRegistry,
}

impl Default for HubConfig {
    fn default() -> Self {
        HubConfig {
            streams: vec![StreamConfig::default()],
            memory_batch_size: 2 * 1024 * 1024,
            shard_queue_size_max: SHARD_QUEUE_SIZE_MAX,
            gates: GateRegistry::default(),
        }
    }
}

/// Single writer of all streams and subscriptions.
pub struct Hub<S: Storage, O: ShardSenders> {
    storage: S,
    fan_out: FanOut<O>,
    router: Router,
    streams: StreamTable,
    clients: ClosingClients,
    parked: ParkedClients,
    consumers: Consumers,
    catch_ups: CatchUps,
    api: ApiState,
    losses: LossTracker,
    counters: Arc<HubCounters>,
    totals: HubTotals,
    scratch: HubScratch,
}

#[derive(Clone, Copy, Debug)]
struct RequestOrigin {
    client: ClientId,
    client_options: ClientOptions,
    position: u64,
}

impl RequestOrigin {
    /// Returns the publisher of a message that is sent in the order of its shard's requests.
    fn publisher(self) -> MessageSender {
        let RequestOrigin { client, client_options, position } = self;
        MessageSender { client, no_echo: client_options.no_echo, position: Some(position) }
    }
}

#[derive(Debug, Default)]
struct HubScratch {
    matches: Vec<u32>,
    /// Registrations of the records of a gate.
    gate_found: Vec<u32>,
    stripped: Vec<u8>,
    /// Answer to a publisher; reused buffer.
    json: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct HubTotals {
    messages: u64,
    bytes: u64,
    publish_outcomes: u64,
    duplicates: u64,
    undelivered: u64,
    registrations_refused: u64,
}

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    /// Creates a hub for `shards` shards with streams that continue at `resumed`; a stream without a resume point
    /// starts empty.
    pub fn new(
        config: HubConfig,
        resumed: &[ResumePoint],
        (storage, shard_senders): (S, O),
        shards: usize,
        (key, started_ns): (HashKey, UnixNanos),
    ) -> Self {
        let filters = config.streams.iter().map(|stream| stream.subjects.clone());
        let router = Router::new(key, filters);
        let counters =
            Arc::new(HubCounters::new(config.streams.iter().map(|stream| stream.name.clone()), shards));
        let mut streams =
            StreamTable::new(config.streams, resumed, config.memory_batch_size, (key, started_ns));
        streams.set_gates(&config.gates);
        Hub {
            storage,
            fan_out: FanOut::new(shard_senders, shards, config.shard_queue_size_max),
            router,
            clients: ClosingClients::new(key),
            parked: ParkedClients::new(key, streams.len()),
            consumers: Consumers::new(key, streams.len()),
            catch_ups: CatchUps::new(key),
            api: ApiState::new(key),
            losses: LossTracker::new(streams.len()),
            streams,
            counters,
            totals: HubTotals::default(),
            scratch: HubScratch::default(),
        }
    }

    /// Returns the storage of the streams.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Returns the senders of routed batches to the shards.
    pub fn shard_senders_mut(&mut self) -> &mut O {
        self.fan_out.shard_senders_mut()
    }

    /// Returns whether the hub has no work until a request arrives, a shard returns a routed batch or the storage
    /// answers.
    pub fn is_quiet(&self) -> bool {
        // A shard that returned a batch during the turn does not wake the hub again for deliveries that were blocked
        // then.
        if self.fan_out.has_room_again() {
            return false;
        }
        if self.fan_out.has_unfinished() {
            return true;
        }
        let is_over = self.fan_out.is_any_over();
        // Reads for the API wait for shards over their bound; disk answers are still received.
        let has_work = if is_over {
            self.api.has_deferred() || self.storage.has_answer()
        } else {
            !self.api.is_quiet() || !self.storage.is_quiet() || self.streams.has_free_batch(&self.storage)
        };
        !has_work
            && !self.parked.is_exhausted()
            && !self.clients.has_cleanups()
            && !self.consumers.table.can_resume
            && !self.catch_ups.can_resume()
    }

    /// Returns whether deliveries for a shard could not be handed out.
    pub fn has_unsent(&self, shard: usize) -> bool {
        self.fan_out.has_batch_for(shard)
    }

    /// Returns the senders of routed batches to the shards.
    pub fn shard_senders(&self) -> &O {
        self.fan_out.shard_senders()
    }

    /// Returns whether everything processed is durable and all resulting deliveries have been handed out. Streams that
    /// wait for room on their disk do not count.
    pub fn is_drained(&self) -> bool {
        // A closed stream stores no marker. The unwritten records of a stream that waits for room are not acknowledged.
        let is_drained = |(number, stream): (usize, &StreamWriter)| {
            let is_marked = !self.losses.has_unmarked(number) || stream.closed.is_some();
            stream.is_drained() && is_marked || stream.waiting_since.is_some()
        };
        let has_unsent =
            self.fan_out.has_unfinished() || !self.streams.releasing().is_empty() || !self.parked.is_empty();
        !has_unsent && self.streams.iter().enumerate().all(is_drained)
    }

    /// Returns the hub's counters.
    pub fn counters(&self) -> Arc<HubCounters> {
        Arc::clone(&self.counters)
    }

    /// Processes the requests of a shard from index `from` on. Returns the index of the first unprocessed request; if
    /// that is not the end, call again when a routed batch has come back or the storage has answered.
    pub fn process_requests(
        &mut self,
        shard: usize,
        publication_batch: &PublicationBatch,
        from: usize,
        now: Now,
    ) -> usize {
        if !self.streams.releasing().is_empty() {
            // First the waiting releases, which free batches for parked connections.
            self.release_all(now.steady_ns);
            self.unpark(now);
        }
        let mut at = from;
        while let Some((token, client_options, request)) = publication_batch.get(at) {
            let client = ClientId { shard: shard as u32, token };
            let position = publication_batch.first() + at as u64;
            let origin = RequestOrigin { client, client_options, position };
            if !self.delivery().finish_unsent() || !self.process_or_park(origin, &request, now) {
                break;
            }
            at += 1;
            self.fan_out.set_processed(client.shard, position + 1);
        }
        at
    }

    /// Receives the storage's answers and releases what has become durable.
    pub fn poll_storage(&mut self, now: Now) {
        self.fan_out.begin_turn();
        self.api.begin_turn();
        self.parked.begin_turn();
        self.consumers.begin_turn();
        self.catch_ups.begin_turn(now.steady_ns);
        self.streams.begin_turn(now.steady_ns);
        if !self.delivery().finish_unsent() {
            return;
        }
        // Answers that were unread until now do not count as disk stall time.
        self.streams.stalls().observe(now.steady_ns);
        // After unfinished sends, which refer to registrations by number: removal frees numbers for reuse.
        self.clients.begin_turn(&mut self.consumers.table, &mut self.router);
        self.router.begin_turn(now.steady_ns);
        while let Some((number, opening)) = self.storage.next_opening() {
            self.streams.stalls().of(None).end();
            match opening {
                StreamOpening::Opened(recovered) => self.open(number as usize, recovered),
                StreamOpening::Failed(reason) => self.mark_closed(number as usize, reason),
            }
        }
        self.release_written(now.steady_ns);
        self.retain(now);
        while self.may_answer()
            && let Some(chunk) = self.storage.next_chunk()
        {
            self.api.is_full = false;
            let Some(chunk) = self.receive_catch_up_chunk(chunk) else { continue };
            let not_for_consumers = self.delivery().receive_chunk(chunk, now.steady_ns);
            if let Some(chunk) = not_for_consumers {
                self.answer_read(chunk);
            }
        }
        // Consumers read first.
        if !self.consumers.table.is_empty() {
            self.delivery().run_maintenance(now.steady_ns);
        }
        self.resume_reads();
        self.run_catch_ups(now.steady_ns);
        self.write_due_markers(now);
        self.unpark(now);
        self.check_disk_stalls(now.steady_ns);
    }

    /// Ends a turn: hands batches to the storage and routed batches to the shards.
    pub fn flush(&mut self) {
        self.streams.flush(&mut self.storage);
        self.storage.publish();
        self.fan_out.flush();
        self.publish_metrics();
    }

    /// Hands the states of gates that have changed since their last snapshots to the storage: called once, before the
    /// hub is dropped.
    pub fn write_final_snapshots(&mut self) {
        self.streams.write_final_snapshots(&mut self.storage);
        self.storage.publish();
    }

    fn publish_metrics(&mut self) {
        let HubTotals { messages, bytes, publish_outcomes, duplicates, undelivered, registrations_refused } =
            self.totals;
        let RouterWork { removed, stale_matches } = self.router.work();
        let counters = &*self.counters;
        for (gauge, value) in [
            (&counters.messages, messages),
            (&counters.bytes, bytes),
            (&counters.publish_outcomes, publish_outcomes),
            (&counters.duplicates, duplicates),
            (&counters.undelivered, undelivered),
            (&counters.registrations_refused, registrations_refused),
            (&counters.registrations, self.router.registrations() as u64),
            (&counters.parked, self.parked.len() as u64),
            (&counters.parked_requests, self.parked.total()),
            (&counters.queued, self.fan_out.waiting_size() as u64),
            (&counters.consumers, self.consumers.table.len() as u64),
            (&counters.catch_ups, self.catch_ups.len() as u64),
            (&counters.offered, self.consumers.offered()),
            (&counters.cleanup_steps, self.clients.steps_done() + removed),
            (&counters.stale_matches, stale_matches),
        ] {
            gauge.set(value);
        }
        counters.set_losses(self.losses.loss_counts());
        self.streams.publish_metrics(&counters.streams);
    }

    /// Returns whether records that were read may be sent to any shard.
    fn may_answer(&mut self) -> bool {
        self.delivery().finish_unsent() && !self.fan_out.is_any_over()
    }

    /// Returns whether a publication waits for a shard: its immediate deliveries would add to a queue over its bound.
    /// Records of a disk stream are released later and wait then.
    fn waits_for_shard(
        &mut self,
        client: ClientId,
        reply: &[u8],
        to: Option<(Option<usize>, &[u32])>,
    ) -> bool {
        if !self.fan_out.is_any_over() {
            return false;
        }
        let Hub { fan_out, router, streams, consumers, .. } = self;
        if fan_out.is_over(client.shard) || fan_out.is_over_for_subject(router, reply, Some(client)) {
            return true;
        }
        match to {
            None => false,
            Some((Some(stream), _)) if streams[stream].config.durability == Durability::Disk => false,
            // Consumers may send it to any shard.
            Some((Some(stream), _)) if consumers.table.has_following(stream) => true,
            Some((_, matches)) => fan_out.is_over_for(router, matches, None),
        }
    }

    #[inline]
    fn delivery(&mut self) -> ConsumerDelivery<'_, S, O> {
        let Hub { consumers, storage, streams, router, fan_out, .. } = self;
        ConsumerDelivery { consumers, storage, streams, router, fan_out }
    }

    fn process_request(
        &mut self,
        origin: RequestOrigin,
        request: &HubRequest<'_>,
        now: Now,
    ) -> Result<(), StallReason> {
        let client = origin.client;
        match *request {
            HubRequest::Publish(publication) => self.publish(origin, &publication, now)?,
            HubRequest::Interest(change) => self.change_interest(client, change),
            HubRequest::Barrier => self.fan_out.bytes(client, |out| out.extend_from_slice(PONG)),
            HubRequest::MarkReached { mark } if self.catch_ups.reached(mark) => {}
            HubRequest::MarkReached { mark } => self.delivery().reached(mark, now.steady_ns),
            HubRequest::LossReport(lost) => self.record_loss(&lost, now),
            HubRequest::CancelPulls => self.delivery().end_pulls_of(client),
            HubRequest::CloseAfterAcks => self.close_after_answers(client, now),
            HubRequest::CatchUp(catch_up) => self.begin_catch_up(client, &catch_up),
            HubRequest::Disconnect => self.disconnect(client),
        }
        Ok(())
    }

    fn change_interest(&mut self, client: ClientId, change: InterestChange<'_>) {
        let (id, registered) = match change {
            InterestChange::Register { id, filter, queue } => {
                (id, self.router.register(client, id, (filter, queue)))
            }
            InterestChange::Share { id, filter } => (id, self.router.share(client, id, filter)),
            InterestChange::Sync => return self.fan_out.sync(client.shard),
            InterestChange::Unshare { id } => return self.router.unshare(client, id),
            InterestChange::Unregister { id, after, is_shared } => {
                return self.router.unregister(client, id, after, is_shared);
            }
        };
        if registered == Err(RegistrationsFull) {
            self.totals.registrations_refused += 1;
            self.fan_out.refuse_registration(client.shard, id);
        }
    }

    fn publish(
        &mut self,
        origin: RequestOrigin,
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), StallReason> {
        let RequestOrigin { client, client_options, .. } = origin;
        let &Publication { subject, reply, headers, payload, .. } = publication;
        if subject.starts_with(api::PREFIX) {
            if self.waits_for_shard(client, reply, None) {
                return Err(StallReason::Shard);
            }
            return self.handle_api_request(client, publication, now);
        }
        let mut matches = std::mem::take(&mut self.scratch.matches);
        let stream = self.router.route(client, subject, &mut matches);
        let outcome = match stream {
            _ if self.waits_for_shard(client, reply, Some((stream, &matches))) => Err(StallReason::Shard),
            Some(stream) => {
                let mut stripped = std::mem::take(&mut self.scratch.stripped);
                let headers = strip_status(headers, &mut stripped);
                let publication = Publication { headers, ..*publication };
                let outcome =
                    self.store_or_wait(origin, StoreTarget { stream, matches: &matches }, &publication, now);
                self.scratch.stripped = stripped;
                outcome
            }
            None => {
                let message = OutboundMessage { subject, reply, headers, payload, position: None };
                let count = self.send(&matches, Some(origin.publisher()), &message);
                if count == 0 {
                    self.totals.undelivered += 1;
                    if client_options.no_responders && client_options.headers {
                        self.send_status(reply, b"", NO_RESPONDERS);
                    }
                }
                self.send_outcome(
                    client,
                    publication.ticket,
                    PublishOutcome::Forwarded { subscriptions: count },
                );
                Ok(())
            }
        };
        self.scratch.matches = matches;
        if outcome.is_ok() {
            self.totals.messages += 1;
            self.totals.bytes += (headers.len() + payload.len()) as u64;
        }
        outcome
    }
}
