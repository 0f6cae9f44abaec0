//! Publishers that retry, subscribers, disk faults and power failures: the output to each client is compared with the
//! records that remain.
//!
//! Every message has an id of its publisher and number. A publisher repeats unacknowledged messages under the same id,
//! also in the next run. In the end:
//!
//! - **durable**: acknowledged messages are in the stream, under the acknowledged sequence;
//! - **visible**: records received by a subscriber are in the stream;
//! - **order**: the messages of a publisher in one run are in the order of sending, each once;
//! - **answers in order**: requests answered when processed (PING, publications to memory) are answered in the order of
//!   their connection, parked or not;
//! - **resumed**: no publisher stays parked;
//! - **subscriptions**: a subscription receives what its connection publishes between its SUB and its UNSUB, each
//!   message once, and nothing else;
//! - **nothing invented**: every record was sent;
//! - **answered once**: each publication has at most one answer per run, and exactly one if the disk does not fail;
//! - **ledger**: stored + duplicates + refused = all publications.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stilling_hub::limits::DELIVERY_BATCH_SIZE;
use stilling_hub::{ClientId, HubRequest, Ingress, Loss};
use stilling_journal::disk::simulated::{DiskFaults, EIO, ENOSPC, SimulatedDisk};
use stilling_journal::{Log, ReadOutcome, StartAt};
use stilling_ring::SplitMix64;

use super::{ABLE, ConnectionOutput, HubFixture, SEGMENTS, ShardRequest, client, publish_with};

#[derive(Default, Clone, Copy)]
pub(crate) struct RunCounts {
    pub(crate) acknowledged: u64,
    pub(crate) received_records: u64,
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
    pub(crate) crashes: u64,
    pub(crate) frozen: u64,
    pub(crate) unanswered: u64,
    pub(crate) parked: u64,
    pub(crate) queued: u64,
}

type MessageName = (u64, u64);

const PUBLISHERS: u64 = 3;
const SUBSCRIBER: ClientId = ClientId { shard: 1, token: 99 };
/// Connections that receive long messages, so that others find their shards full.
const CROWD: [ClientId; 2] = [ClientId { shard: 0, token: 98 }, ClientId { shard: 1, token: 98 }];
/// Subscribes to [`JOINED`] for one message at a time, beside a permanent subscription of another connection of its
/// shard.
const JOINER: ClientId = ClientId { shard: 1, token: 97 };
const JOINED: &str = "joined";
/// Maximum bytes that may wait for a shard, one per run.
const QUEUE_SIZES: [usize; 3] = [0, 2 * DELIVERY_BATCH_SIZE, 8 * DELIVERY_BATCH_SIZE];

/// State known to clients, over all runs.
#[derive(Default)]
struct ExpectedState {
    acknowledged: BTreeMap<MessageName, u64>,
    received_records: BTreeSet<MessageName>,
    sent: BTreeSet<MessageName>,
    open: BTreeMap<u64, BTreeSet<u64>>,
    next: [u64; PUBLISHERS as usize],
    /// Position of each message's first attempt among the publications of this run.
    first_asked: BTreeMap<MessageName, u64>,
    /// Last sequence in the stream at the start of this run.
    kept: u64,
}

/// Simulates three runs. Returns the counts, or the violated property.
pub(crate) fn simulate_runs(seed: u64) -> Result<RunCounts, String> {
    let mut random = SplitMix64::new(seed);
    let (mut counts, mut expected) = (RunCounts::default(), ExpectedState::default());
    let mut disk = SimulatedDisk::recording();
    for hub_run in 0..3 {
        if hub_run > 0 {
            disk.record();
        }
        expected.first_asked.clear();
        disk = simulate_run(&disk, &mut random, &mut expected, &mut counts)?;
        check(&disk, &expected)?;
        counts.crashes += 1;
    }
    Ok(counts)
}

/// Simulates one run up to a crash. Returns the disk's contents after it.
fn simulate_run(
    disk: &SimulatedDisk,
    random: &mut SplitMix64,
    expected: &mut ExpectedState,
    counts: &mut RunCounts,
) -> Result<SimulatedDisk, String> {
    let batches = 2 + random.below(4) as usize;
    let room = 1 + random.below(4) as usize;
    let queue_size = QUEUE_SIZES[random.below(3) as usize];
    let (mut rig, recovery) = HubFixture::with_queues(disk, (batches, room), queue_size, (8, 0), |_| ());
    let next_at_start = recovery.next;
    expected.kept = next_at_start - 1;
    let _ = rig.ask(SUBSCRIBER, ABLE, &[subscribe("disk.>", "1")]);
    for member in CROWD {
        let _ = rig.ask(member, ABLE, &[subscribe("crowd", "1"), subscribe(JOINED, "2")]);
    }
    for publisher in 0..PUBLISHERS {
        let inboxes = [format!("inbox.{publisher}.>"), format!("order.{publisher}.>")];
        let _ = rig.ask(
            publisher_id(publisher),
            ABLE,
            &[subscribe(&inboxes[0], "1"), subscribe(&inboxes[1], "2")],
        );
    }
    let mut hub_run = HubRun::default();
    let is_crowded = random.below(4) == 0;
    let fails_at = (random.below(3) == 0).then(|| random.below(60));
    for step in 0..40 + random.below(60) {
        if fails_at == Some(step) {
            let error = if random.below(2) == 0 { EIO } else { ENOSPC };
            disk.fail(DiskFaults { writes: Some((random.below(3) as u32, error)), ..DiskFaults::default() });
        }
        match random.below(11) {
            0..5 => hub_run.publish(&mut rig, random, expected),
            5 => hub_run.send_ordered_request(&mut rig, random),
            6 | 7 => {
                rig.hub.storage_mut().write();
            }
            8 if is_crowded => hub_run.crowd(&mut rig, counts),
            8 => rig.turn(),
            9 => hub_run.join(&mut rig),
            _ => hub_run.receive_outputs(&mut rig, expected, counts)?,
        }
    }
    let is_quiet = random.below(2) == 0;
    if is_quiet {
        run_until_settled(&mut rig, &mut hub_run, expected, counts)?;
        if !hub_run.waits.is_empty() || !hub_run.ordered_replies.iter().all(VecDeque::is_empty) {
            return Err(format!("never answered: {:?}, {:?}", hub_run.waits, hub_run.ordered_replies));
        }
        if !hub_run.joined.is_empty() {
            return Err(format!("subscriptions did not get their messages: {:?}", hub_run.joined));
        }
        if !hub_run.paused.is_empty() {
            return Err(format!("never resumed: {:?}", hub_run.paused));
        }
        let counters = rig.hub.counters();
        let lost: u64 = Loss::ALL.iter().map(|loss| counters.losses(Ingress::Nats, *loss)).sum();
        let (came, duplicates) = (counters.messages.get(), counters.duplicates.get());
        let stored =
            counters.streams[0].visible.get() + 1 - next_at_start + counters.streams[1].visible.get();
        let sent_count = hub_run.sent_count;
        if came != sent_count + hub_run.plain || sent_count != stored + duplicates + lost {
            return Err(format!(
                "the ledger: {sent_count} asked, {came} came, {stored} stored, {duplicates} duplicates, {lost} lost"
            ));
        }
    }
    counts.unanswered += hub_run.waits.len() as u64;
    counts.duplicates += rig.hub.counters().duplicates.get();
    counts.frozen += rig.hub.counters().streams[0].frozen.get();
    counts.parked += rig.hub.counters().parked_requests.get();
    drop(rig);
    // The power fails between the last event that the hub observed and now.
    let history = disk.history();
    let point = history.at(history.points() - 1);
    let share = random.below(17);
    Ok(point.disk(|_| random.below(16) < share))
}

#[derive(Default)]
struct HubRun {
    /// Publications without an answer in this run.
    waits: BTreeSet<(MessageName, u64)>,
    sent_count: u64,
    answers: u64,
    plain: u64,
    joins: u64,
    /// Subscriptions of [`JOINER`] that have not received their messages.
    joined: BTreeSet<u64>,
    /// Outstanding requests of each publisher that are answered when processed.
    ordered_replies: [VecDeque<OrderedReply>; PUBLISHERS as usize],
    /// Publishers that have received a pause: they send nothing more.
    paused: BTreeSet<u64>,
}

/// A request that is answered when processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OrderedReply {
    Ping,
    Stored(u64),
}

impl HubRun {
    /// Sends a message that fills a routed batch of each shard.
    fn crowd(&mut self, rig: &mut HubFixture, counts: &mut RunCounts) {
        let payload = "x".repeat(DELIVERY_BATCH_SIZE);
        self.plain += rig.ask(CROWD[0], ABLE, &[publish_with("crowd", &payload, "", "")]) as u64;
        counts.queued += u64::from(rig.hub.counters().queued.get() > 0);
    }

    /// Publishes before a SUB, between it and its UNSUB, and afterwards.
    fn join(&mut self, rig: &mut HubFixture) {
        let number = self.joins;
        self.joins += 1;
        let sid = number.to_string();
        let mut publish = |rig: &mut HubFixture, text: &str| {
            let payload = format!("{text}/{number}");
            let done = rig.ask(JOINER, ABLE, &[publish_with(JOINED, &payload, "", "")]) as u64;
            self.plain += done;
            done == 1
        };
        publish(rig, "before");
        let _ = rig.ask(JOINER, ABLE, &[subscribe(JOINED, &sid)]);
        if publish(rig, "between") {
            self.joined.insert(number);
        }
        let _ = rig.ask(JOINER, ABLE, &[ShardRequest::Unsubscribe { sid: sid.as_bytes(), after: None }]);
        publish(rig, "after");
    }

    fn check_joined(&mut self, rig: &mut HubFixture) -> Result<(), String> {
        let text = rig.received(JOINER);
        let mut lines = text.split("\r\n");
        while let Some(line) = lines.next() {
            let Some(sid) = line.strip_prefix("MSG joined ").and_then(|rest| rest.split(' ').next()) else {
                continue;
            };
            let payload = lines.next().unwrap_or_default();
            let is_expected = payload == format!("between/{sid}");
            if !is_expected || !sid.parse().is_ok_and(|number: u64| self.joined.remove(&number)) {
                return Err(format!("the subscription {sid} got {payload}"));
            }
        }
        Ok(())
    }

    /// Sends PING, or a publication to the memory stream, from a publisher.
    fn send_ordered_request(&mut self, rig: &mut HubFixture, random: &mut SplitMix64) {
        let publisher = random.below(PUBLISHERS);
        if self.paused.contains(&publisher) {
            return;
        }
        let reply = format!("order.{publisher}.{}", self.sent_count);
        let (request, kind) = match random.below(2) {
            0 => (HubRequest::Barrier, OrderedReply::Ping),
            _ => (publish_with("memory.x", "x", &reply, ""), OrderedReply::Stored(self.sent_count)),
        };
        if rig.ask(publisher_id(publisher), ABLE, &[request]) == 1 {
            self.ordered_replies[publisher as usize].push_back(kind);
            self.sent_count += u64::from(kind != OrderedReply::Ping);
        }
    }

    fn check_ordered_reply(&mut self, publisher: u64, kind: OrderedReply) -> Result<(), String> {
        let first = self.ordered_replies[publisher as usize].pop_front();
        if first == Some(kind) {
            return Ok(());
        }
        Err(format!("publisher {publisher} was answered {kind:?} before {first:?}"))
    }

    fn publish(&mut self, rig: &mut HubFixture, random: &mut SplitMix64, expected: &mut ExpectedState) {
        let publisher = random.below(PUBLISHERS);
        if self.paused.contains(&publisher) {
            return;
        }
        let open = expected.open.entry(publisher).or_default();
        // In order: repeated messages go before new ones.
        let again = open.first().copied().filter(|_| random.below(3) == 0);
        let number = again.unwrap_or_else(|| {
            let next = &mut expected.next[publisher as usize];
            *next += 1;
            *next
        });
        let name = (publisher, number);
        let subject = format!("disk.{publisher}");
        let payload = format!("{publisher}/{number}/{}", "x".repeat(random.below(3000) as usize));
        let reply = format!("inbox.{publisher}.{number}.{}", self.sent_count);
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {publisher}/{number}\r\n\r\n");
        let done =
            rig.ask(publisher_id(publisher), ABLE, &[publish_with(&subject, &payload, &reply, &headers)]);
        if done == 1 {
            open.insert(number);
            expected.sent.insert(name);
            expected.first_asked.entry(name).or_insert(self.sent_count);
            self.waits.insert((name, self.sent_count));
            self.sent_count += 1;
        } else if again.is_none() {
            expected.next[publisher as usize] -= 1;
        }
    }

    fn receive_outputs(
        &mut self,
        rig: &mut HubFixture,
        expected: &mut ExpectedState,
        counts: &mut RunCounts,
    ) -> Result<(), String> {
        for member in CROWD {
            let _ = rig.received(member);
        }
        self.check_joined(rig)?;
        for publisher in 0..PUBLISHERS {
            let text = rig.received(publisher_id(publisher));
            let mut lines = text.split("\r\n");
            while let Some(line) = lines.next() {
                if line == "PONG" {
                    self.check_ordered_reply(publisher, OrderedReply::Ping)?;
                }
                if let Some(rest) = line.strip_prefix("MSG order.") {
                    let sent_count = rest.split([' ', '.']).nth(1).and_then(|word| word.parse().ok());
                    self.check_ordered_reply(publisher, OrderedReply::Stored(sent_count.unwrap_or(0)))?;
                }
                let Some(rest) = line.strip_prefix("MSG inbox.") else { continue };
                let mut words = rest.split([' ', '.']).map(|word| word.parse().unwrap_or(0));
                let name = (words.next().unwrap_or(0), words.next().unwrap_or(0));
                let sent_count = words.next().unwrap_or(0);
                let json = lines.next().unwrap_or_default();
                if !self.waits.remove(&(name, sent_count)) {
                    return Err(format!("{name:?} was answered twice: {json}"));
                }
                self.answers += 1;
                if json.contains("error") {
                    counts.refused += 1;
                    continue;
                }
                let sequence = number_behind(json, "\"seq\":");
                counts.acknowledged += 1;
                expected.open.entry(name.0).or_default().remove(&name.1);
                if let Some(before) = expected.acknowledged.insert(name, sequence)
                    && before != sequence
                {
                    return Err(format!("{name:?} was acknowledged as {before} and as {sequence}"));
                }
            }
        }
        for (client, outputs) in &rig.outputs {
            let has_changed = match outputs {
                ConnectionOutput::Pause => self.paused.insert(client.token),
                ConnectionOutput::Resume => self.paused.remove(&client.token),
                _ => true,
            };
            if !has_changed {
                return Err(format!("{client:?} was answered twice: {outputs:?}"));
            }
        }
        rig.outputs
            .retain(|(_, outputs)| !matches!(outputs, ConnectionOutput::Pause | ConnectionOutput::Resume));
        // No client requested any of these.
        match rig.outputs.first() {
            Some((client, ConnectionOutput::PublishOutcome(ticket, outcome))) => {
                return Err(format!("{client:?} got an outcome: {ticket} {outcome:?}"));
            }
            Some((client, ConnectionOutput::Mark(mark))) => {
                return Err(format!("{client:?} got a mark: {mark}"));
            }
            Some((client, ConnectionOutput::SubscriptionLimit)) => {
                return Err(format!("{client:?} has too many subscriptions"));
            }
            Some((client, ConnectionOutput::Close)) => return Err(format!("{client:?} was to be closed")),
            Some((_, ConnectionOutput::Text(_) | ConnectionOutput::Pause | ConnectionOutput::Resume))
            | None => {}
        }
        let text = rig.received(SUBSCRIBER);
        let mut lines = text.split("\r\n");
        while let Some(line) = lines.next() {
            // Headers follow the line, an empty line, then the payload.
            if line.starts_with("HMSG disk.") {
                let payload = lines.nth(3).unwrap_or_default();
                expected.received_records.insert(name_of(payload));
                counts.received_records += 1;
            }
        }
        Ok(())
    }
}

fn run_until_settled(
    rig: &mut HubFixture,
    hub_run: &mut HubRun,
    expected: &mut ExpectedState,
    counts: &mut RunCounts,
) -> Result<(), String> {
    for _ in 0..200 {
        rig.run_until_settled();
        hub_run.receive_outputs(rig, expected, counts)?;
        let is_answered = hub_run.waits.is_empty() && hub_run.ordered_replies.iter().all(VecDeque::is_empty);
        if is_answered && hub_run.paused.is_empty() && hub_run.joined.is_empty() && rig.hub.is_settled() {
            break;
        }
    }
    Ok(())
}

/// Compares the stream with the state known to clients.
fn check(disk: &SimulatedDisk, expected: &ExpectedState) -> Result<(), String> {
    // A copy of the disk: the check must change nothing.
    let copy = SimulatedDisk::with_files(disk.files());
    let (log, _) = Log::open(copy, "disk", SEGMENTS).map_err(|error| error.to_string())?;
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    let mut there: BTreeMap<MessageName, u64> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    loop {
        match reader.read().map_err(|error| error.to_string())? {
            ReadOutcome::End => break,
            ReadOutcome::Gap { .. } => {}
            ReadOutcome::Batch(batch) => {
                for (sequence, record) in batch.records {
                    let name = name_of(std::str::from_utf8(record.payload).unwrap_or_default());
                    if !expected.sent.contains(&name) {
                        return Err(format!("{name:?} was never sent"));
                    }
                    if let Some(first) = there.insert(name, sequence) {
                        return Err(format!("{name:?} is there as {first} and as {sequence}"));
                    }
                    // Records of earlier runs have been checked.
                    if sequence > expected.kept {
                        let sent_count = expected.first_asked.get(&name).copied().unwrap_or(0);
                        if let Some(before) = last.insert(name.0, sent_count)
                            && before >= sent_count
                        {
                            return Err(format!("{name:?} stands behind what was sent after it"));
                        }
                    }
                }
            }
        }
    }
    for (name, sequence) in &expected.acknowledged {
        if there.get(name) != Some(sequence) {
            return Err(format!(
                "{name:?} was acknowledged as {sequence}, and is there as {:?}",
                there.get(name)
            ));
        }
    }
    if let Some(lost) = expected.received_records.iter().find(|name| !there.contains_key(name)) {
        return Err(format!("{lost:?} was seen and is not there"));
    }
    Ok(())
}

fn publisher_id(publisher: u64) -> ClientId {
    client((publisher % 2) as u32, publisher)
}

fn subscribe<'a>(filter: &'a str, sid: &'a str) -> ShardRequest<'a> {
    ShardRequest::Subscribe { filter: filter.as_bytes(), queue: b"", sid: sid.as_bytes() }
}

fn name_of(payload: &str) -> MessageName {
    let mut words = payload.split('/').map(|word| word.parse().unwrap_or(u64::MAX));
    (words.next().unwrap_or(u64::MAX), words.next().unwrap_or(u64::MAX))
}

fn number_behind(text: &str, what: &str) -> u64 {
    let at = text.find(what).map_or(0, |at| at + what.len());
    text[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}
