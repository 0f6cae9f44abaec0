//! Publishers that retry, subscribers that listen, a disk that fails, and the power that goes: what each was told is
//! compared with what is there afterwards.
//!
//! Every message has an id of its publisher and number. A publisher sends again what was not acknowledged, under the same
//! id, also in the next life. At the end:
//! - **durable**: what was acknowledged is in the stream, under the sequence that was told;
//! - **seen**: what a subscriber saw is in the stream;
//! - **order**: what a publisher sent first in a life stands first, and stands there once;
//! - **answers in order**: what is answered when it is processed (PING, publications to memory) is answered in the order in
//!   which its connection asked, whether or not the connection is parked meanwhile;
//! - **resumed**: no publisher is parked in the end;
//! - **subscriptions**: one gets what its connection publishes between its SUB and its UNSUB, each message once, and nothing
//!   of before or after;
//! - **nothing invented**: what is in the stream was sent;
//! - **answered once**: each publication has at most one answer in a life, and exactly one when the disk works to its end;
//! - **ledger**: taken + duplicates + refused = all that came in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stilling_hub::limits::DELIVERIES_SIZE;
use stilling_hub::{Client, Door, Loss, Request};
use stilling_journal::disk::simulated::{Faults, INPUT_OUTPUT, NO_SPACE, SimulatedDisk};
use stilling_journal::{From, Log, Read};
use stilling_ring::SplitMix64;

use super::{ABLE, Ask, Rig, SEGMENTS, Told, client, publish_with};

/// How often things have happened.
#[derive(Default, Clone, Copy)]
pub(crate) struct Story {
    pub(crate) acknowledged: u64,
    pub(crate) seen: u64,
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
    pub(crate) crashes: u64,
    pub(crate) frozen: u64,
    pub(crate) unanswered: u64,
    pub(crate) parked: u64,
    pub(crate) queued: u64,
}

/// Publisher and number.
type Name = (u64, u64);

const PUBLISHERS: u64 = 3;
const SUBSCRIBER: Client = Client { shard: 1, token: 99 };
/// They get long messages, so that others find their shards full.
const CROWD: [Client; 2] = [Client { shard: 0, token: 98 }, Client { shard: 1, token: 98 }];
/// It subscribes to [`JOINED`] for one message at a time, where another connection of its shard is subscribed always.
const JOINER: Client = Client { shard: 1, token: 97 };
const JOINED: &str = "joined";
/// Bytes that may wait for a shard, in one life or another.
const QUEUE_SIZES: [usize; 3] = [0, 2 * DELIVERIES_SIZE, 8 * DELIVERIES_SIZE];

/// What is known outside, over all lives.
#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<Name, u64>,
    seen: BTreeSet<Name>,
    sent: BTreeSet<Name>,
    /// What each publisher has not had an acknowledgement for.
    open: BTreeMap<u64, BTreeSet<u64>>,
    next: [u64; PUBLISHERS as usize],
    /// Which of the publications of this life each was first.
    first_asked: BTreeMap<Name, u64>,
    /// What was in the stream when this life began.
    kept: u64,
}

/// Lives three times. Returns what happened, or which promise was broken.
pub(crate) fn live(seed: u64) -> Result<Story, String> {
    let mut random = SplitMix64::new(seed);
    let (mut story, mut known) = (Story::default(), Known::default());
    let mut disk = SimulatedDisk::recording();
    for life in 0..3 {
        if life > 0 {
            disk.record();
        }
        known.first_asked.clear();
        disk = one_life(&disk, &mut random, &mut known, &mut story)?;
        check(&disk, &known)?;
        story.crashes += 1;
    }
    Ok(story)
}

/// One life, up to the crash: returns what the disk has then.
fn one_life(
    disk: &SimulatedDisk,
    random: &mut SplitMix64,
    known: &mut Known,
    story: &mut Story,
) -> Result<SimulatedDisk, String> {
    let batches = 2 + random.below(4) as usize;
    let room = 1 + random.below(4) as usize;
    let queue_size = QUEUE_SIZES[random.below(3) as usize];
    let (mut rig, recovery) = Rig::with_queues(disk, (batches, room), queue_size, (8, 0), |_| ());
    let next_at_start = recovery.next;
    known.kept = next_at_start - 1;
    let _ = rig.ask(SUBSCRIBER, ABLE, &[subscribe("disk.>", "1")]);
    for member in CROWD {
        let _ = rig.ask(member, ABLE, &[subscribe("crowd", "1"), subscribe(JOINED, "2")]);
    }
    for publisher in 0..PUBLISHERS {
        let inboxes = [format!("inbox.{publisher}.>"), format!("order.{publisher}.>")];
        let _ = rig.ask(who(publisher), ABLE, &[subscribe(&inboxes[0], "1"), subscribe(&inboxes[1], "2")]);
    }
    let mut life = Life::default();
    let is_crowded = random.below(4) == 0;
    let fails_at = (random.below(3) == 0).then(|| random.below(60));
    for step in 0..40 + random.below(60) {
        if fails_at == Some(step) {
            let error = if random.below(2) == 0 { INPUT_OUTPUT } else { NO_SPACE };
            disk.fail(Faults { writes: Some((random.below(3) as u32, error)), ..Faults::default() });
        }
        match random.below(11) {
            0..5 => life.publish(&mut rig, random, known),
            5 => life.ask_in_order(&mut rig, random),
            6 | 7 => {
                rig.hub.storage_mut().write();
            }
            8 if is_crowded => life.crowd(&mut rig, story),
            8 => rig.turn(),
            9 => life.join(&mut rig),
            _ => life.listen(&mut rig, known, story)?,
        }
    }
    let is_quiet = random.below(2) == 0;
    if is_quiet {
        settle(&mut rig, &mut life, known, story)?;
        if !life.waits.is_empty() || !life.in_order.iter().all(VecDeque::is_empty) {
            return Err(format!("never answered: {:?}, {:?}", life.waits, life.in_order));
        }
        if !life.joined.is_empty() {
            return Err(format!("subscriptions did not get their messages: {:?}", life.joined));
        }
        if !life.paused.is_empty() {
            return Err(format!("never resumed: {:?}", life.paused));
        }
        let counters = rig.hub.counters();
        let lost: u64 = Loss::ALL.iter().map(|loss| counters.losses(Door::Nats, *loss)).sum();
        let (came, duplicates) = (counters.messages.get(), counters.duplicates.get());
        let stored =
            counters.streams[0].visible.get() + 1 - next_at_start + counters.streams[1].visible.get();
        let asked = life.asked;
        if came != asked + life.plain || asked != stored + duplicates + lost {
            return Err(format!(
                "the ledger: {asked} asked, {came} came, {stored} stored, {duplicates} duplicates, {lost} lost"
            ));
        }
    }
    story.unanswered += life.waits.len() as u64;
    story.duplicates += rig.hub.counters().duplicates.get();
    story.frozen += rig.hub.counters().streams[0].frozen.get();
    story.parked += rig.hub.counters().parked_requests.get();
    drop(rig);
    // The power goes between the last thing that the hub was told and now.
    let history = disk.history();
    let point = history.at(history.points() - 1);
    let share = random.below(17);
    Ok(point.disk(|_| random.below(16) < share))
}

#[derive(Default)]
struct Life {
    /// Publications that have not been answered in this life.
    waits: BTreeSet<(Name, u64)>,
    asked: u64,
    answers: u64,
    /// Messages that no stream takes.
    plain: u64,
    joins: u64,
    /// Subscriptions of [`JOINER`] that have not got their messages.
    joined: BTreeSet<u64>,
    /// What each publisher has asked that is answered when it is processed.
    in_order: [VecDeque<InOrder>; PUBLISHERS as usize],
    /// Publishers that know that they are parked: they ask nothing more.
    paused: BTreeSet<u64>,
}

/// What is answered when it is processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InOrder {
    Ping,
    /// A publication to the stream in memory.
    Stored(u64),
}

impl Life {
    /// Sends a message that fills a piece of each shard.
    fn crowd(&mut self, rig: &mut Rig, story: &mut Story) {
        let payload = "x".repeat(DELIVERIES_SIZE);
        self.plain += rig.ask(CROWD[0], ABLE, &[publish_with("crowd", &payload, "", "")]) as u64;
        story.queued += u64::from(rig.hub.counters().queued.get() > 0);
    }

    /// Publishes before a SUB, between it and its UNSUB, and afterwards.
    fn join(&mut self, rig: &mut Rig) {
        let number = self.joins;
        self.joins += 1;
        let sid = number.to_string();
        let mut publish = |rig: &mut Rig, text: &str| {
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
        let _ = rig.ask(JOINER, ABLE, &[Ask::Unsubscribe { sid: sid.as_bytes(), after: None }]);
        publish(rig, "after");
    }

    /// Checks what [`JOINER`] was sent.
    fn hear_joined(&mut self, rig: &mut Rig) -> Result<(), String> {
        let text = rig.heard(JOINER);
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

    /// Has a publisher say PING, or publish to the stream in memory.
    fn ask_in_order(&mut self, rig: &mut Rig, random: &mut SplitMix64) {
        let publisher = random.below(PUBLISHERS);
        if self.paused.contains(&publisher) {
            return;
        }
        let reply = format!("order.{publisher}.{}", self.asked);
        let (request, kind) = match random.below(2) {
            0 => (Request::Barrier, InOrder::Ping),
            _ => (publish_with("memory.x", "x", &reply, ""), InOrder::Stored(self.asked)),
        };
        if rig.ask(who(publisher), ABLE, &[request]) == 1 {
            self.in_order[publisher as usize].push_back(kind);
            self.asked += u64::from(kind != InOrder::Ping);
        }
    }

    /// Checks an answer of this kind.
    fn answered_in_order(&mut self, publisher: u64, kind: InOrder) -> Result<(), String> {
        let first = self.in_order[publisher as usize].pop_front();
        if first == Some(kind) {
            return Ok(());
        }
        Err(format!("publisher {publisher} was answered {kind:?} before {first:?}"))
    }

    fn publish(&mut self, rig: &mut Rig, random: &mut SplitMix64, known: &mut Known) {
        let publisher = random.below(PUBLISHERS);
        if self.paused.contains(&publisher) {
            return;
        }
        let open = known.open.entry(publisher).or_default();
        // In order: what is sent again goes before what is new.
        let again = open.first().copied().filter(|_| random.below(3) == 0);
        let number = again.unwrap_or_else(|| {
            let next = &mut known.next[publisher as usize];
            *next += 1;
            *next
        });
        let name = (publisher, number);
        let subject = format!("disk.{publisher}");
        let payload = format!("{publisher}/{number}/{}", "x".repeat(random.below(3000) as usize));
        let reply = format!("inbox.{publisher}.{number}.{}", self.asked);
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {publisher}/{number}\r\n\r\n");
        let done = rig.ask(who(publisher), ABLE, &[publish_with(&subject, &payload, &reply, &headers)]);
        if done == 1 {
            open.insert(number);
            known.sent.insert(name);
            known.first_asked.entry(name).or_insert(self.asked);
            self.waits.insert((name, self.asked));
            self.asked += 1;
        } else if again.is_none() {
            known.next[publisher as usize] -= 1;
        }
    }

    /// Takes what everybody was told.
    fn listen(&mut self, rig: &mut Rig, known: &mut Known, story: &mut Story) -> Result<(), String> {
        for member in CROWD {
            let _ = rig.heard(member);
        }
        self.hear_joined(rig)?;
        for publisher in 0..PUBLISHERS {
            let text = rig.heard(who(publisher));
            let mut lines = text.split("\r\n");
            while let Some(line) = lines.next() {
                if line == "PONG" {
                    self.answered_in_order(publisher, InOrder::Ping)?;
                }
                if let Some(rest) = line.strip_prefix("MSG order.") {
                    let asked = rest.split([' ', '.']).nth(1).and_then(|word| word.parse().ok());
                    self.answered_in_order(publisher, InOrder::Stored(asked.unwrap_or(0)))?;
                }
                let Some(rest) = line.strip_prefix("MSG inbox.") else { continue };
                let mut words = rest.split([' ', '.']).map(|word| word.parse().unwrap_or(0));
                let name = (words.next().unwrap_or(0), words.next().unwrap_or(0));
                let asked = words.next().unwrap_or(0);
                let json = lines.next().unwrap_or_default();
                if !self.waits.remove(&(name, asked)) {
                    return Err(format!("{name:?} was answered twice: {json}"));
                }
                self.answers += 1;
                if json.contains("error") {
                    story.refused += 1;
                    continue;
                }
                let sequence = number_behind(json, "\"seq\":");
                story.acknowledged += 1;
                known.open.entry(name.0).or_default().remove(&name.1);
                if let Some(before) = known.acknowledged.insert(name, sequence)
                    && before != sequence
                {
                    return Err(format!("{name:?} was acknowledged as {before} and as {sequence}"));
                }
            }
        }
        for (client, told) in &rig.told {
            let has_changed = match told {
                Told::Pause => self.paused.insert(client.token),
                Told::Resume => self.paused.remove(&client.token),
                _ => true,
            };
            if !has_changed {
                return Err(format!("{client:?} was told twice: {told:?}"));
            }
        }
        rig.told.retain(|(_, told)| !matches!(told, Told::Pause | Told::Resume));
        // None of these was asked for.
        match rig.told.first() {
            Some((client, Told::Verdict(ticket, verdict))) => {
                return Err(format!("{client:?} got a verdict: {ticket} {verdict:?}"));
            }
            Some((client, Told::Mark(mark))) => return Err(format!("{client:?} got a mark: {mark}")),
            Some((client, Told::TooMany)) => return Err(format!("{client:?} has too many subscriptions")),
            Some((client, Told::Close)) => return Err(format!("{client:?} was to be closed")),
            Some((_, Told::Text(_) | Told::Pause | Told::Resume)) | None => {}
        }
        let text = rig.heard(SUBSCRIBER);
        let mut lines = text.split("\r\n");
        while let Some(line) = lines.next() {
            // Headers follow the line, an empty line, then the payload.
            if line.starts_with("HMSG disk.") {
                let payload = lines.nth(3).unwrap_or_default();
                known.seen.insert(name_of(payload));
                story.seen += 1;
            }
        }
        Ok(())
    }
}

fn settle(rig: &mut Rig, life: &mut Life, known: &mut Known, story: &mut Story) -> Result<(), String> {
    for _ in 0..200 {
        rig.settle();
        life.listen(rig, known, story)?;
        let is_answered = life.waits.is_empty() && life.in_order.iter().all(VecDeque::is_empty);
        if is_answered && life.paused.is_empty() && life.joined.is_empty() && rig.hub.is_settled() {
            break;
        }
    }
    Ok(())
}

/// Compares what is in the stream with what is known outside.
fn check(disk: &SimulatedDisk, known: &Known) -> Result<(), String> {
    // A disk of its own: looking must change nothing.
    let copy = SimulatedDisk::with_files(disk.files());
    let (log, _) = Log::open(copy, "disk", SEGMENTS).map_err(|error| error.to_string())?;
    let mut reader = log.source().read_from(From::Sequence(1));
    let mut there: BTreeMap<Name, u64> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    loop {
        match reader.read().map_err(|error| error.to_string())? {
            Read::End => break,
            Read::Gap { .. } => {}
            Read::Batch(batch) => {
                for (sequence, record) in batch.records {
                    let name = name_of(std::str::from_utf8(record.payload).unwrap_or_default());
                    if !known.sent.contains(&name) {
                        return Err(format!("{name:?} was never sent"));
                    }
                    if let Some(first) = there.insert(name, sequence) {
                        return Err(format!("{name:?} is there as {first} and as {sequence}"));
                    }
                    // What is kept of earlier lives has been checked.
                    if sequence > known.kept {
                        let asked = known.first_asked.get(&name).copied().unwrap_or(0);
                        if let Some(before) = last.insert(name.0, asked)
                            && before >= asked
                        {
                            return Err(format!("{name:?} stands behind what was sent after it"));
                        }
                    }
                }
            }
        }
    }
    for (name, sequence) in &known.acknowledged {
        if there.get(name) != Some(sequence) {
            return Err(format!(
                "{name:?} was acknowledged as {sequence}, and is there as {:?}",
                there.get(name)
            ));
        }
    }
    if let Some(lost) = known.seen.iter().find(|name| !there.contains_key(name)) {
        return Err(format!("{lost:?} was seen and is not there"));
    }
    Ok(())
}

fn who(publisher: u64) -> Client {
    client((publisher % 2) as u32, publisher)
}

fn subscribe<'a>(filter: &'a str, sid: &'a str) -> Ask<'a> {
    Ask::Subscribe { filter: filter.as_bytes(), queue: b"", sid: sid.as_bytes() }
}

fn name_of(payload: &str) -> Name {
    let mut words = payload.split('/').map(|word| word.parse().unwrap_or(u64::MAX));
    (words.next().unwrap_or(u64::MAX), words.next().unwrap_or(u64::MAX))
}

fn number_behind(text: &str, what: &str) -> u64 {
    let at = text.find(what).map_or(0, |at| at + what.len());
    text[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}
