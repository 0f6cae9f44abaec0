//! The single writer: takes what shards hand in, one request after the other, and says what goes out.
//!
//! ```text
//!   intakes ─▶ take ─▶ route ─┬─▶ plain: subscriptions ─────────────────────────▶ deliveries
//!                             └─▶ stream ─▶ batch ─▶ storage ─▶ turn ─▶ release ─▶ deliveries
//!                                 (refused, duplicate, expected: verdicts)   records to subscriptions, then verdicts
//! ```
//!
//! Passive: whoever runs it says what time it is, and carries intakes and deliveries. It never waits. When it cannot go
//! on, because a shard has all the deliveries it may have or no batch is free, [`take`](Hub::take) stops in the middle of an
//! intake; calling it again later goes on there.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stilling_journal::{Answer, Batch, Kind, Record};
use stilling_ring::planted;
use stilling_wire::nats::{NO_RESPONDERS, PONG, strip_status};

use self::api::PendingRead;
use self::departures::Departure;
use self::roster::Consumers;
use self::unsent::{Unsent, Visible};
use crate::counters::Counters;
use crate::deliveries::{Deliveries, Refusal, Verdict};
use crate::intake::{Client, Door, Intake, Publication, Request, Traits};
use crate::interest::Interest;
use crate::key::HashKey;
use crate::ledger::{Ledger, Loss};
use crate::limits::{
    BATCHES_PER_STREAM_MAX, LEFT_PER_TURN, LEFT_SUBSCRIPTIONS_PER_TURN, SEAL_SIZE,
    SUBSCRIPTIONS_PER_CLIENT_MAX,
};
use crate::stall::WriterStalls;
use crate::storage::{Opening, Storage};
use crate::stream::{Durability, Promise, PromisedTo, Promises, Stream, StreamConfig};
use crate::subscriptions::{STREAMS, Subscriptions, checked};

mod api;
mod consumers;
mod departures;
mod farewells;
mod followers;
mod listeners;
mod losses;
mod opening;
mod pulls;
mod roster;
mod sending;
mod storing;
mod timers;
mod unsent;

pub use opening::{Recovered, Resumed};
pub use sending::describe;

pub use crate::time::{Now, SteadyNanos, UnixNanos};

/// Carries deliveries to shards.
pub trait Outlets {
    /// Takes full deliveries for a shard and puts empty ones in their place. Returns whether there were empty ones.
    fn swap(&mut self, shard: usize, deliveries: &mut Deliveries) -> bool;
}

/// How a hub behaves.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The streams; their numbers are their places.
    pub streams: Vec<StreamConfig>,
    /// Subscriptions of one connection.
    pub subscriptions_per_client_max: usize,
    /// Bytes of a batch of a stream in memory.
    pub memory_batch_size: usize,
}

impl Default for HubConfig {
    fn default() -> Self {
        HubConfig {
            streams: vec![StreamConfig::default()],
            subscriptions_per_client_max: SUBSCRIPTIONS_PER_CLIENT_MAX,
            memory_batch_size: 2 * 1024 * 1024,
        }
    }
}

/// The hub.
pub struct Hub<S: Storage, O: Outlets> {
    storage: S,
    outlets: O,
    outs: Vec<Deliveries>,
    interest: Interest,
    subscriptions: Subscriptions,
    streams: Vec<Stream>,
    memory_batch_size: usize,
    release: Option<Release>,
    stalls: WriterStalls,
    /// Log lines that were not taken.
    notices: VecDeque<String>,
    /// Batches that one stream may have.
    batches_max: usize,
    ledger: Ledger,
    counters: Arc<Counters>,
    totals: Totals,
    /// Numbers messages, so that their bodies lie in each shard's deliveries once.
    message: u64,
    /// Who takes a subject; memory that is used again.
    found: Vec<u32>,
    members: Vec<(u32, u32)>,
    /// Subscriptions of clients that have left which the present message would have matched, and how many steps for such
    /// this turn may still do.
    left_matches: Vec<u32>,
    left_match_steps: usize,
    to: Vec<u32>,
    /// What there was no room for in the middle of it.
    unsent: VecDeque<Unsent>,
    /// The shard that had no room when something was put off for it in this turn.
    stalled: Option<usize>,
    scratch: Vec<u8>,
    ended: Vec<u32>,
    /// Connections that are to be closed, and how many streams still have promises for each.
    farewells: HashMap<Client, u32, HashKey>,
    consumers: Consumers,
    /// Those who wait for single records.
    reads: Vec<PendingRead>,
    /// There was no room to ask the storage for what one of them wants. There is when records have come.
    reads_full: bool,
    /// Numbers them, and whatever else needs a number of its own.
    reads_asked: u64,
    /// Bytes of questions and answers of the API in this turn, and whether one was put off because of them.
    api_size: usize,
    has_put_off: bool,
    /// As `found`, for what is sent in the middle of something else.
    found_again: Vec<u32>,
    /// Consumers that want a record; memory that is used again.
    followers: Vec<u32>,
    /// Headers without their status; memory that is used again.
    stripped: Vec<u8>,
    /// Filters that were compared with records of chunks in this turn.
    compared: usize,
    /// Clients that have left, and whose consumers are to be dealt with.
    departures: VecDeque<Departure>,
    /// Steps for clients that have left that this turn may still do.
    departure_steps: usize,
    /// When subscriptions of clients that have left are removed next.
    remove_at_ns: SteadyNanos,
    work: Work,
    key: HashKey,
    /// When the next round of retention is due, and the stream of the last one. The first is due at once: a server that never
    /// runs for long keeps its bound, too.
    retain_at_ns: SteadyNanos,
    retained: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    messages: u64,
    bytes: u64,
    delivered: u64,
    verdicts: u64,
    duplicates: u64,
    unheard: u64,
}

/// Steps that were done, whatever they were for.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Consumers to which a record was offered.
    offered: u64,
    /// Steps for clients that have left.
    left: u64,
    /// Matches of messages with subscriptions of clients that have left.
    left_matches: u64,
}

/// A durable batch, whose records and promises go out.
struct Release {
    stream: usize,
    batch: Option<Batch>,
    promises: Promises,
    next_record: u64,
    next_promise: usize,
    /// The promise of the next record that has one.
    next_sender: usize,
    /// Nothing beyond it was written.
    watermark: u64,
}

/// What is sent to subscriptions.
#[derive(Clone, Copy)]
struct Message<'a> {
    subject: &'a [u8],
    reply: &'a [u8],
    headers: &'a [u8],
    payload: &'a [u8],
}

/// The request could not be dealt with now.
struct Stalled;

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// A hub for so many shards, whose streams go on where `resumed` says; a stream without an entry begins.
    pub fn new(
        config: HubConfig,
        resumed: &[Resumed],
        (storage, outlets): (S, O),
        shards: usize,
        (key, started_ns): (HashKey, UnixNanos),
    ) -> Self {
        let mut interest = Interest::new(key);
        for (number, stream) in (STREAMS..).zip(&config.streams) {
            for subject in &stream.subjects {
                if let Some(filter) = checked(subject.as_bytes()) {
                    interest.insert(filter, number);
                }
            }
        }
        let counters = Arc::new(Counters::new(config.streams.iter().map(|stream| stream.name.clone())));
        let streams = config.streams.into_iter().enumerate().map(|(number, stream)| {
            let mut resumed = resumed.get(number).copied().unwrap_or_default();
            if resumed.created_ns == 0 {
                resumed.created_ns = started_ns;
            }
            Stream::new(stream, key, resumed)
        });
        let streams: Vec<Stream> = streams.collect();
        let stalls = WriterStalls::new(streams.len());
        let on_disk = streams.iter().filter(|stream| stream.config.durability == Durability::Disk).count();
        let batches_max =
            if on_disk > 1 { (2 * BATCHES_PER_STREAM_MAX / on_disk).max(2) } else { usize::MAX };
        Hub {
            storage,
            outlets,
            outs: (0..shards).map(|_| Deliveries::new()).collect(),
            interest,
            subscriptions: Subscriptions::new(key, config.subscriptions_per_client_max),
            memory_batch_size: config.memory_batch_size,
            release: None,
            stalls,
            notices: VecDeque::new(),
            batches_max,
            ledger: Ledger::default(),
            counters,
            totals: Totals::default(),
            message: 0,
            found: Vec::new(),
            members: Vec::new(),
            left_matches: Vec::new(),
            left_match_steps: LEFT_SUBSCRIPTIONS_PER_TURN,
            to: Vec::new(),
            unsent: VecDeque::new(),
            stalled: None,
            scratch: Vec::new(),
            ended: Vec::new(),
            farewells: HashMap::with_hasher(key),
            consumers: Consumers::new(key, streams.len()),
            streams,
            reads: Vec::new(),
            reads_full: false,
            reads_asked: 0,
            api_size: 0,
            has_put_off: false,
            found_again: Vec::new(),
            followers: Vec::new(),
            stripped: Vec::new(),
            compared: 0,
            departures: VecDeque::new(),
            departure_steps: LEFT_PER_TURN,
            remove_at_ns: 0,
            work: Work::default(),
            key,
            retain_at_ns: 0,
            retained: 0,
        }
    }

    /// Where its streams are kept.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// What carries its deliveries.
    pub fn outlets_mut(&mut self) -> &mut O {
        &mut self.outlets
    }

    /// Whether nothing can be done before somebody asks for something, a shard gives deliveries back or the storage answers.
    pub fn is_quiet(&self) -> bool {
        // It waits for that shard, unless the shard had given a piece back by the end of the turn: nobody wakes the hub for
        // what was full and has gone out since.
        if let Some(shard) = self.stalled {
            return self.outs[shard].is_full();
        }
        let has_due = !self.reads_full && self.reads.iter().any(PendingRead::is_due);
        !self.has_put_off
            && self.departures.is_empty()
            && !self.consumers.go_on
            && !has_due
            && self.storage.is_quiet()
    }

    /// Whether there are deliveries for a shard that could not be handed out.
    pub fn has_unsent(&self, shard: usize) -> bool {
        !self.outs[shard].is_empty()
    }

    /// What carries its deliveries.
    pub fn outlets(&self) -> &O {
        &self.outlets
    }

    /// Whether all that was taken is durable, and all that follows from it has been handed out.
    pub fn is_settled(&self) -> bool {
        // No marker can be written to a stream that is not open. One that waits for room has acknowledged nothing of it.
        let is_settled = |stream: &Stream| {
            let is_empty = stream.is_settled() && (stream.lost.is_none() || stream.closed.is_some());
            is_empty || stream.waiting_since.is_some()
        };
        self.release.is_none() && !self.has_begun() && self.streams.iter().all(is_settled)
    }

    /// What it has done.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Deals with the requests of a shard from the place `from` on. Returns how far it came; if that is not the end, it
    /// has to be called again when deliveries have come back or the storage has answered.
    pub fn take(&mut self, shard: usize, intake: &Intake, from: usize, now: impl Into<Now>) -> usize {
        let now = now.into();
        let mut at = from;
        while let Some((token, traits, request)) = intake.get(at) {
            let client = Client { shard: shard as u32, token };
            if self.release.is_some() || !self.has_room() || self.deal(client, traits, &request, now).is_err()
            {
                break;
            }
            at += 1;
        }
        at
    }

    /// Takes what the storage says, and lets go what has become durable. Returns whether something is left to do that
    /// waits for deliveries to come back.
    pub fn absorb(&mut self, now: impl Into<Now>) -> bool {
        let now = now.into();
        self.stalled = None;
        (self.api_size, self.has_put_off, self.compared) = (0, false, 0);
        for stream in &mut self.streams {
            stream.dedup.sweep(now.steady_ns);
        }
        if !self.finish_begun() {
            return true;
        }
        if self.release.is_none() {
            // Otherwise answers of the storage lie unread, and their time does not count against the disk.
            self.stalls.observe(now.steady_ns);
        }
        // Behind what waited for room: that names subscriptions by their numbers, which may be used again.
        self.begin_departures(now.steady_ns);
        while let Some((number, opening)) = self.storage.next_opening() {
            self.stalls.of(None).end();
            match opening {
                Opening::Opened(recovered) => self.open(number as usize, recovered),
                Opening::Failed(reason) => self.keep_closed(number as usize, reason),
            }
        }
        loop {
            if let Some(release) = self.release.take()
                && let Some(unfinished) = self.go_on(release, now.steady_ns)
            {
                self.release = Some(unfinished);
                return true;
            }
            match self.storage.next_answer() {
                Some((answer, batch)) => {
                    self.stalls.of(self.storage.writer(answer.stream())).end();
                    self.release = self.answered(answer, batch, now.steady_ns);
                }
                None => break,
            }
        }
        self.retain(now);
        while self.has_room()
            && let Some(chunk) = self.storage.next_chunk()
        {
            self.reads_full = false;
            self.take_chunk(chunk, now.steady_ns);
        }
        self.look_further();
        if !self.consumers.is_empty() {
            self.look_after_consumers(now.steady_ns);
        }
        self.mark_losses(now);
        self.watch_disks(now.steady_ns);
        false
    }

    /// Ends a turn: hands batches to the storage and deliveries to their shards.
    pub fn flush(&mut self) {
        for number in 0..self.streams.len() {
            let stream = &mut self.streams[number];
            // While one is being written the next one gathers more: that is what makes commits cheap under load.
            if stream.open.as_ref().is_some_and(|batch| !batch.is_empty())
                && (stream.under_way.is_empty()
                    || stream.open.as_ref().is_some_and(|b| b.size() >= SEAL_SIZE))
                && let Some(batch) = stream.seal()
            {
                self.storage.append(number as u32, batch, stream.dedup.first(stream.next));
            }
        }
        self.storage.publish();
        for (shard, deliveries) in self.outs.iter_mut().enumerate() {
            if !deliveries.is_empty() {
                self.outlets.swap(shard, deliveries);
            }
        }
        self.tell();
    }

    fn tell(&mut self) {
        let Totals { messages, bytes, delivered, verdicts, duplicates, unheard } = self.totals;
        let counters = &*self.counters;
        for (figure, value) in [
            (&counters.messages, messages),
            (&counters.bytes, bytes),
            (&counters.delivered, delivered),
            (&counters.verdicts, verdicts),
            (&counters.duplicates, duplicates),
            (&counters.unheard, unheard),
            (&counters.subscriptions, self.subscriptions.len() as u64),
            (&counters.consumers, self.consumers.len() as u64),
            (&counters.offered, self.work.offered),
            (&counters.left, self.work.left),
            (&counters.left_matches, self.work.left_matches),
        ] {
            figure.set(value);
        }
        counters.set_losses(&self.ledger);
        for (stream, counters) in self.streams.iter_mut().zip(&counters.streams) {
            stream.publish_figures(counters);
        }
    }

    /// Whether every shard can be handed more, and nothing waits for that.
    fn has_room(&mut self) -> bool {
        if !self.finish_begun() {
            return false;
        }
        let Hub { outs, outlets, .. } = self;
        let has_none = |(shard, out): (usize, &mut Deliveries)| out.is_full() && !outlets.swap(shard, out);
        let full = outs.iter_mut().enumerate().position(has_none);
        self.stalled = full.or(self.stalled);
        full.is_none()
    }

    fn deal(
        &mut self,
        client: Client,
        traits: Traits,
        request: &Request<'_>,
        now: Now,
    ) -> Result<(), Stalled> {
        match *request {
            Request::Publish(publication) => self.publish(client, traits, &publication, now)?,
            Request::Subscribe { filter, queue, sid } => self.subscribe(client, traits, filter, queue, sid),
            Request::Unsubscribe { sid, after } => self.unsubscribe(client, sid, after),
            Request::Barrier => {
                let out = &mut self.outs[client.shard as usize];
                out.bytes(client.token, |out| out.extend_from_slice(PONG));
            }
            Request::Reached { mark } => self.reached(mark, now.steady_ns),
            Request::Lost(lost) => self.lose(&lost, now),
            Request::EndPulls => self.end_pulls_of(client),
            Request::Farewell => self.bid_farewell(client, now),
            Request::Leave => {
                self.farewells.remove(&client);
                self.leave(client);
            }
        }
        Ok(())
    }

    fn publish(
        &mut self,
        client: Client,
        traits: Traits,
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), Stalled> {
        let &Publication { subject, reply, headers, payload, .. } = publication;
        if subject.starts_with(api::PREFIX) {
            return self.ask_api(client, publication, now);
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        self.interest.find(subject, &mut found);
        let stream = found.iter().position(|&id| id >= STREAMS);
        let stream = stream.map(|at| (found.swap_remove(at) - STREAMS) as usize);
        let outcome = match stream {
            Some(stream) => {
                let mut stripped = std::mem::take(&mut self.stripped);
                let headers = strip_status(headers, &mut stripped);
                let publication = Publication { headers, ..*publication };
                let outcome = self.store_or_wait(client, traits, (stream, &mut found), &publication, now);
                self.stripped = stripped;
                outcome
            }
            None => {
                let message = Message { subject, reply, headers, payload };
                let count = self.send(&found, Some((client, traits)), &message);
                if count == 0 {
                    self.totals.unheard += 1;
                    if !reply.is_empty() && traits.no_responders && traits.headers {
                        found.clear();
                        self.interest.find(reply, &mut found);
                        let nobody =
                            Message { subject: reply, reply: b"", headers: NO_RESPONDERS, payload: b"" };
                        self.send(&found, None, &nobody);
                    }
                }
                self.give_verdict(client, publication.ticket, Verdict::Passed { subscriptions: count });
                Ok(())
            }
        };
        self.found = found;
        if outcome.is_ok() {
            self.totals.messages += 1;
            self.totals.bytes += (headers.len() + payload.len()) as u64;
        }
        outcome
    }

    /// What an answer of the storage lets go.
    fn answered(&mut self, answer: Answer, batch: Option<Batch>, now_ns: SteadyNanos) -> Option<Release> {
        let (stream, watermark, frozen) = match answer {
            Answer::Durable { stream, watermark } => (stream as usize, watermark, None),
            Answer::Frozen { stream, frozen, is_batch_lost: false, .. } if batch.is_none() => {
                self.streams[stream as usize].freeze(frozen);
                return None;
            }
            Answer::Frozen { stream, watermark, frozen, .. } => (stream as usize, watermark, Some(frozen)),
            Answer::Waiting { stream, reason, kind } => {
                self.streams[stream as usize].wait(&reason, kind, now_ns);
                return None;
            }
            Answer::WriteFailed { stream, reason } => {
                self.streams[stream as usize].health.write_failed(&reason);
                return None;
            }
            Answer::Resumed { stream } => {
                self.streams[stream as usize].resume(now_ns);
                return None;
            }
            Answer::Retained { stream, first, removed } => {
                let stream = &mut self.streams[stream as usize];
                stream.first = stream.first.max(first);
                stream.health.removed_before(stream.first);
                stream.health.retained(removed.as_ref().err());
                return None;
            }
        };
        let state = &mut self.streams[stream];
        let first = state.visible + 1;
        // A batch that does not come back has gone with whoever had it.
        let is_lost = batch.as_ref().map_or(frozen.is_some(), |batch| batch.next() - 1 > watermark);
        match frozen {
            Some(frozen) => state.freeze(frozen),
            // The next batch under way has been with the journal since now at the latest.
            None => state.end_stall(),
        }
        let promises = state.next_promises();
        if is_lost {
            for door in Door::ALL {
                self.ledger.add(door, Loss::Frozen, promises.records[door as usize]);
            }
        }
        Some(Release {
            stream,
            next_record: batch.as_ref().map_or(first, Batch::first),
            batch,
            promises,
            next_promise: 0,
            next_sender: 0,
            watermark,
        })
    }

    /// Sends what a durable batch has to subscriptions, then its verdicts. Returns what is left, if there was no room.
    fn go_on(&mut self, mut release: Release, now_ns: SteadyNanos) -> Option<Release> {
        let number = release.stream;
        let last = release.batch.as_ref().map_or(0, |batch| batch.next() - 1).min(release.watermark);
        // From here on: what is sent says how much comes behind it.
        self.streams[number].visible = self.streams[number].visible.max(release.watermark);
        if let Some(batch) = release.batch.as_ref().filter(|batch| batch.first() <= last) {
            self.streams[number].newest_ns = Some(batch.time_ns());
        }
        if let Some(batch) = &release.batch
            && (self.streams[number].listeners > 0 || self.consumers.has_following(number))
            && release.next_record <= last
        {
            let mut found = std::mem::take(&mut self.found);
            for (sequence, record) in batch.records() {
                if sequence < release.next_record {
                    continue;
                }
                if sequence > last || !self.has_room() {
                    break;
                }
                if record.kind == Kind::Ordinary {
                    found.clear();
                    self.interest.find(record.subject, &mut found);
                    let Record { subject, headers, payload, .. } = record;
                    let sender = release.promises.sender(sequence, &mut release.next_sender).copied();
                    let reply = match sender.map(|sender| sender.to) {
                        Some(PromisedTo::Reply(start, size)) => release.promises.reply(start, size),
                        _ => b"",
                    };
                    let from = sender.map(|Promise { client, no_echo, .. }| {
                        (client, Traits { no_echo, ..Traits::default() })
                    });
                    let mut stripped = std::mem::take(&mut self.stripped);
                    let headers = strip_status(headers, &mut stripped);
                    self.send(&found, from, &Message { subject, reply, headers, payload });
                    self.stripped = stripped;
                }
                // Consumers pass over what is not for them.
                let visible = Visible { stream: number, sequence, time_ns: batch.time_ns(), now_ns };
                self.follow(visible, &record);
                release.next_record = sequence + 1;
            }
            self.found = found;
            if release.next_record <= last {
                return Some(release);
            }
        }
        if release.batch.is_some() {
            self.consumers.note_offered(number, last);
        }
        while let Some(&promise) = release.promises.entries.get(release.next_promise) {
            if !self.has_room() {
                return Some(release);
            }
            release.next_promise += 1;
            let Promise { client, sequence, is_duplicate, to, .. } = promise;
            if to == PromisedTo::Farewell {
                self.end_farewell(client);
                continue;
            }
            let verdict = if sequence <= release.watermark {
                Verdict::Stored { stream: number as u32, sequence, duplicate: is_duplicate }
            } else {
                Verdict::Refused(Refusal::Frozen { stream: number as u32 })
            };
            match to {
                PromisedTo::Farewell => {}
                PromisedTo::Ticket(ticket) => self.answer(client, Some(ticket), b"", verdict),
                PromisedTo::Reply(start, size) => {
                    let reply = release.promises.reply(start, size);
                    self.answer(client, None, reply, verdict);
                    if planted!("double acknowledgement") && sequence.is_multiple_of(8) {
                        self.answer(client, None, reply, verdict);
                    }
                }
            }
        }
        self.streams[number].recycle(release.promises);
        if let Some(batch) = release.batch {
            self.storage.give_back(number as u32, batch);
        }
        None
    }
}
