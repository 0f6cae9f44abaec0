//! External record of every stream: what publishers sent and learned, and what subscribers received.
//!
//! The checks, for every subscriber and each epoch of its stream:
//!
//! - **gap equation**: between its start and its last position, each record of its filter was delivered once, in order,
//!   or lies in a reported gap; a gap reported as removed or damaged has no record that is still stored;
//! - **durable**: a record of a disk stream that was acknowledged or received is stored after each crash, unless
//!   retention removed it or its segment was damaged;
//! - **time**: a record has one time, live, after a catch-up and on the disk; a subscription from a time misses no record
//!   of it or after it;
//! - **gate**: a rejected message is never received or stored; stored prices rise; a close is the last record of its lot
//!   and names the highest bid; a rejection reveals no price or close that is not durable and no price below what the
//!   records before it say, also after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Log, LogConfig, ReadOutcome, RecordKind, StartAt};

use super::lots::LotRecords;
use super::message::{
    CloseRecord, KnownLots, LOTS, LotCommand, LotMessage, ON_DISK, STREAMS, SentMessage, is_gated, matches,
    name_of,
};
use crate::streams::message::MessageName;
use crate::streams::wire::number_of;

/// An epoch of a stream: streams on disk have one, a memory stream one per run of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EpochKey {
    pub(super) stream: usize,
    /// The run, or 0 on disk.
    run: u32,
}

impl EpochKey {
    pub(super) fn new(stream: usize, run: u32) -> EpochKey {
        EpochKey { stream, run: if stream < ON_DISK { 0 } else { run } }
    }

    pub(super) fn is_on_disk(self) -> bool {
        self.stream < ON_DISK
    }
}

/// Sequences that a subscriber passed without a record.
#[derive(Clone, Debug)]
pub(super) struct PassedRange {
    pub(super) key: EpochKey,
    pub(super) filter: String,
    pub(super) first: u64,
    pub(super) last: u64,
    /// Reported as removed or damaged, or before the first record of a subscription from the oldest one.
    pub(super) is_removed: bool,
    /// The subscriber asked for records from this time on.
    pub(super) starts_ns: Option<u64>,
    /// The subscriber.
    pub(super) by: usize,
}

/// What a disk has of a stream.
#[derive(Debug)]
struct StoredStream {
    first: u64,
    records: BTreeMap<u64, MessageName>,
    /// In nanoseconds since 1970.
    times: BTreeMap<u64, u64>,
}

/// What one NATS connection received of a filter: consecutive records, whose sequences it does not know.
#[derive(Clone, Debug)]
pub(super) struct NatsRun {
    pub(super) key: EpochKey,
    /// `None`: what all its subscriptions received, in the order of the records.
    pub(super) filter: Option<String>,
    pub(super) names: Vec<MessageName>,
}

#[derive(Debug, Default)]
struct EpochRecords {
    /// The epoch's number, once received.
    value: Option<u64>,
    /// Acknowledged or received records.
    proven: BTreeMap<u64, MessageName>,
    sequences: BTreeMap<MessageName, u64>,
    /// Times of records, in nanoseconds since 1970.
    times: BTreeMap<u64, u64>,
    /// Prices of the lots in rejections, on disk until the next audit.
    revealed: [Option<u64>; LOTS],
    /// Lots that rejections called closed, on disk until the next audit.
    revealed_closes: [bool; LOTS],
    /// The received record of a close.
    close: Option<CloseRecord>,
}

#[derive(Debug)]
struct Attempts {
    message: SentMessage,
    /// First and last run in which it was sent.
    runs: (u32, u32),
    /// Lowest price that its lot may have when it is judged.
    floor: Option<u64>,
    /// Its lot was known to be closed when it was sent.
    is_late: bool,
}

#[derive(Debug)]
pub(super) struct BroadcastLedger {
    sent: [BTreeMap<MessageName, Attempts>; STREAMS.len()],
    epochs: BTreeMap<EpochKey, EpochRecords>,
    rejected: BTreeMap<(EpochKey, MessageName), String>,
    /// Durable or acknowledged prices of the lots in this run.
    floors: [[Option<u64>; LOTS]; STREAMS.len()],
    /// Lots whose close is durable or acknowledged in this run.
    closed: [[bool; LOTS]; STREAMS.len()],
    /// The message of each stream that closes a lot. There is at most one, because its record does not name it.
    closes: [Option<MessageName>; STREAMS.len()],
    /// Records that the last audit found, per disk.
    stored: [BTreeMap<u64, MessageName>; ON_DISK],
    /// Disks with a damaged segment, and the records that they lost.
    lost: [Option<BTreeSet<u64>>; ON_DISK],
    passed: Vec<PassedRange>,
    /// Silent ranges that an audit has compared, for the comparison at the end.
    silent: Vec<PassedRange>,
    nats_runs: Vec<NatsRun>,
    has_retention: [bool; STREAMS.len()],
    /// Slow subscribers may skip records.
    may_skip: bool,
    segment_size: u64,
    run: u32,
    pub(super) removals: u64,
    /// Acknowledged closes.
    pub(super) acknowledged_closes: u64,
}

/// The outcome of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Stored {
        sequence: u64,
        is_duplicate: bool,
    },
    Rejected(String),
    /// To be sent again.
    Refused,
}

impl fmt::Display for PassedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PassedRange { key, filter, first, last, is_removed, starts_ns, by } = self;
        let how = if *is_removed { "as removed or damaged" } else { "silently" };
        write!(
            f,
            "subscriber {by} of {filter} in {key:?} passed {first} to {last} {how} (starts at {starts_ns:?})"
        )
    }
}

impl BroadcastLedger {
    pub(super) fn new(
        has_retention: [bool; STREAMS.len()],
        may_skip: bool,
        segment_size: u64,
    ) -> BroadcastLedger {
        BroadcastLedger {
            sent: Default::default(),
            epochs: BTreeMap::new(),
            rejected: BTreeMap::new(),
            floors: Default::default(),
            closed: Default::default(),
            closes: Default::default(),
            stored: Default::default(),
            lost: Default::default(),
            passed: Vec::new(),
            silent: Vec::new(),
            nats_runs: Vec::new(),
            has_retention,
            may_skip,
            segment_size,
            run: 0,
            removals: 0,
            acknowledged_closes: 0,
        }
    }

    /// Begins a run of the server, after the audit of the disks.
    pub(super) fn begin_run(&mut self, run: u32) {
        self.run = run;
        self.floors[ON_DISK..].fill([None; LOTS]);
        self.closed[ON_DISK..].fill([false; LOTS]);
    }

    /// What the next messages to a stream are made for.
    pub(super) fn known_lots(&self, stream: usize) -> KnownLots {
        let floors = self.floors[stream];
        KnownLots {
            prices: floors.map(|floor| floor.unwrap_or(1)),
            may_close: floors.map(|floor| floor.is_some() && self.closes[stream].is_none()),
        }
    }

    /// Notes that a message is sent. `make` creates it for the first time.
    pub(super) fn send(
        &mut self,
        stream: usize,
        name: MessageName,
        make: impl FnOnce() -> SentMessage,
    ) -> &SentMessage {
        let (run, floors, closed) = (self.run, self.floors[stream], self.closed[stream]);
        let attempts = self.sent[stream].entry(name).or_insert_with(|| Attempts {
            message: make(),
            runs: (run, run),
            floor: None,
            is_late: false,
        });
        attempts.runs.1 = run;
        let lot = attempts.message.lot;
        attempts.floor = lot.and_then(|message| floors[message.lot]);
        attempts.is_late = lot.is_some_and(|message| closed[message.lot]);
        if lot.is_some_and(|message| message.command == LotCommand::Close) {
            self.closes[stream] = Some(name);
        }
        &attempts.message
    }

    /// Notes the outcome of a publication in a run of the server.
    pub(super) fn answer(
        &mut self,
        (stream, run): (usize, u32),
        name: MessageName,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let key = EpochKey::new(stream, run);
        match outcome {
            Outcome::Stored { sequence, is_duplicate } => {
                self.prove(key, *sequence, name)?;
                let attempts = &self.sent[stream][&name];
                let Some(message) = attempts.message.lot.filter(|_| is_gated(stream)) else {
                    return if is_gated(stream) { Err(format!("{name} was accepted")) } else { Ok(()) };
                };
                if !is_duplicate && attempts.is_late {
                    return Err(format!("{message:?} was accepted after the close"));
                }
                let is_wrong = |floor| match message.command {
                    LotCommand::Open => true,
                    LotCommand::Bid => message.price <= floor,
                    LotCommand::Close => false,
                };
                if !is_duplicate && attempts.floor.is_some_and(is_wrong) {
                    return Err(format!("{message:?} was accepted at the price {:?}", attempts.floor));
                }
                let is_close = message.command == LotCommand::Close;
                self.acknowledged_closes += u64::from(is_close && !is_duplicate);
                if run == self.run && is_close {
                    self.closed[stream][message.lot] = true;
                } else if run == self.run {
                    let floor = &mut self.floors[stream][message.lot];
                    *floor = (*floor).max(Some(message.price));
                }
                Ok(())
            }
            Outcome::Rejected(reason) => self.note_rejection(key, name, reason),
            Outcome::Refused => Ok(()),
        }
    }

    fn note_rejection(&mut self, key: EpochKey, name: MessageName, reason: &str) -> Result<(), String> {
        if !is_gated(key.stream) {
            return Err(format!("{name} was rejected: {reason}"));
        }
        let attempts = &self.sent[key.stream][&name];
        if let Some(LotMessage { lot, .. }) = attempts.message.lot {
            let revealed = revealed_price(reason);
            if revealed < attempts.floor {
                return Err(format!("{name} was rejected at the price {:?}: {reason}", attempts.floor));
            }
            let epoch = self.epochs.entry(key).or_default();
            epoch.revealed[lot] = epoch.revealed[lot].max(revealed);
            epoch.revealed_closes[lot] |= reason.contains("closed at ");
        }
        // Retention may have removed the record and its id before a restart.
        let may_be_forgotten =
            key.is_on_disk() && self.has_retention[key.stream] && attempts.runs.0 != attempts.runs.1;
        if may_be_forgotten {
            return Ok(());
        }
        if let Some(sequence) = self.epochs.get(&key).and_then(|epoch| epoch.sequences.get(&name)) {
            return Err(format!("{name}, stored at {sequence}, was rejected: {reason}"));
        }
        self.rejected.insert((key, name), reason.to_owned());
        Ok(())
    }

    /// Notes the number of an epoch that has reached a sequence.
    pub(super) fn note_epoch(&mut self, key: EpochKey, value: u64, sequence: u64) -> Result<(), String> {
        if key.is_on_disk() && sequence == 0 {
            // A stream without a durable record may be created again after a crash.
            return Ok(());
        }
        let used = self.epochs.iter().find(|(other, epoch)| {
            **other != key && other.stream == key.stream && epoch.value == Some(value)
        });
        if let Some((other, _)) = used {
            return Err(format!("the epoch {value} of {key:?} was the one of {other:?}"));
        }
        match self.epochs.entry(key).or_default().value.replace(value) {
            Some(before) if before != value => Err(format!("the epoch of {key:?} is {value} after {before}")),
            _ => Ok(()),
        }
    }

    /// Notes the time of a record. It is the same in each delivery and on the disk.
    pub(super) fn note_time(&mut self, key: EpochKey, sequence: u64, time_ns: u64) -> Result<(), String> {
        match self.epochs.entry(key).or_default().times.insert(sequence, time_ns) {
            Some(other) if other != time_ns => {
                Err(format!("the time of {sequence} of {key:?} is {time_ns} after {other}"))
            }
            _ => Ok(()),
        }
    }

    /// Notes a record that a subscriber received. `subject`: if its format has one.
    pub(super) fn receive(
        &mut self,
        key: EpochKey,
        sequence: u64,
        (subject, payload): (Option<&str>, &[u8]),
    ) -> Result<MessageName, String> {
        let name = self.identify(key, (subject, payload))?;
        self.prove(key, sequence, name)?;
        if self.closes[key.stream] == Some(name) {
            let close = CloseRecord::of(payload);
            let before = std::mem::replace(&mut self.epochs.entry(key).or_default().close, close);
            if before.is_some() && before != close {
                return Err(format!("the close {name} is {close:?} after {before:?}"));
            }
        }
        Ok(name)
    }

    /// The message of a received payload, which must have been sent and not rejected.
    pub(super) fn identify(
        &self,
        key: EpochKey,
        (subject, payload): (Option<&str>, &[u8]),
    ) -> Result<MessageName, String> {
        let close = CloseRecord::of(payload).filter(|_| is_gated(key.stream));
        let name = match close {
            Some(_) => self.closes[key.stream],
            None => name_of(key.stream, payload),
        };
        let name =
            name.ok_or_else(|| format!("a message is damaged: {}", String::from_utf8_lossy(payload)))?;
        let Some(Attempts { message, .. }) = self.sent[key.stream].get(&name) else {
            return Err(format!("{name} was received but never sent"));
        };
        let is_right = match close {
            Some(close) => self.names_a_bid(key.stream, message, close),
            None => message.payload == payload,
        };
        if !is_right || subject.is_some_and(|subject| subject != message.subject) {
            return Err(format!("{name} was received on {subject:?} as another message than {message:?}"));
        }
        if let Some(reason) = self.rejected.get(&(key, name)) {
            return Err(format!("{name} is visible, but was rejected: {reason}"));
        }
        Ok(name)
    }

    /// Whether the record of a close names a bid for its lot at its price, or has no bids.
    fn names_a_bid(&self, stream: usize, message: &SentMessage, close: CloseRecord) -> bool {
        let lot = message.lot.map(|message| message.lot);
        let Some(name) = close.bid else { return close.bids == 0 };
        let bid = self.sent[stream].get(&name).and_then(|attempts| attempts.message.lot);
        close.bids > 0
            && bid.is_some_and(|bid| {
                bid.command == LotCommand::Bid && Some(bid.lot) == lot && bid.price == close.price
            })
    }

    fn prove(&mut self, key: EpochKey, sequence: u64, name: MessageName) -> Result<(), String> {
        let epoch = self.epochs.entry(key).or_default();
        if let Some(other) = epoch.proven.insert(sequence, name).filter(|other| *other != name) {
            return Err(format!("{name} is at {sequence} of {key:?}, where {other} was"));
        }
        let runs = self.sent[key.stream].get(&name).map_or((0, 0), |attempts| attempts.runs);
        let may_be_forgotten = self.has_retention[key.stream] && runs.0 != runs.1;
        // The id of a lost record is lost with it.
        let lost = self.lost.get(key.stream).and_then(Option::as_ref);
        let is_lost = |at: u64| lost.is_some_and(|lost| lost.contains(&at));
        match epoch.sequences.insert(name, sequence) {
            Some(other)
                if other != sequence && !may_be_forgotten && !is_lost(other) && !is_lost(sequence) =>
            {
                Err(format!("{name} is at {other} and at {sequence} of {key:?}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn pass(&mut self, range: PassedRange) {
        self.passed.push(range);
    }

    pub(super) fn end_nats_run(&mut self, nats_run: NatsRun) {
        self.nats_runs.push(nats_run);
    }

    pub(super) fn may_skip(&self) -> bool {
        self.may_skip
    }

    /// Whether a consumer, which reports no gaps, may miss records of a stream.
    pub(super) fn may_lack_records(&self, stream: usize) -> bool {
        self.has_retention[stream] || self.is_damaged(stream)
    }

    /// Whether a segment of a stream has been damaged.
    pub(super) fn is_damaged(&self, stream: usize) -> bool {
        self.lost.get(stream).is_some_and(Option::is_some)
    }

    /// Notes which records of an audited disk are lost by damage. Returns their number.
    pub(super) fn lose(&mut self, stream: usize, damaged: &SimulatedDisk) -> Result<u64, String> {
        let left = self.read(stream, damaged)?.records;
        let before = std::mem::replace(&mut self.stored[stream], left);
        let left = &self.stored[stream];
        if let Some((sequence, name)) =
            left.iter().find(|(sequence, name)| before.get(sequence) != Some(name))
        {
            return Err(format!("{name} at {sequence} of {} was not there before", STREAMS[stream]));
        }
        let gone: BTreeMap<u64, MessageName> =
            before.into_iter().filter(|(sequence, _)| !left.contains_key(sequence)).collect();
        let count = gone.len() as u64;
        self.lost[stream].get_or_insert_default().extend(gone.keys());
        self.epochs.entry(EpochKey::new(stream, 0)).or_default().proven.extend(gone);
        Ok(count)
    }

    /// Last known record of a filter.
    pub(super) fn last_of(&self, key: EpochKey, filter: &str) -> Option<(u64, MessageName)> {
        let is_for = |&(_, name): &(&u64, &MessageName)| self.is_for(key.stream, filter, *name);
        let proven = self.epochs.get(&key)?.proven.iter().rev().find(is_for);
        proven.map(|(sequence, name)| (*sequence, *name))
    }

    /// Most bytes that a subscription with this filter is sent for the messages published so far, without `excluded`.
    pub(super) fn encoded_size_max(
        &self,
        stream: usize,
        filter: &str,
        excluded: impl Fn(MessageName) -> bool,
    ) -> usize {
        let sent = self.sent[stream].iter().filter(|(name, _)| !excluded(**name));
        let messages = sent.map(|(_, attempts)| &attempts.message);
        let messages = messages.filter(|message| matches(filter, &message.subject));
        messages.map(SentMessage::encoded_size_max).sum()
    }

    /// Messages of the acknowledged or received records of an epoch up to a sequence.
    pub(super) fn proven_until(&self, key: EpochKey, last: u64) -> BTreeSet<MessageName> {
        let proven = self.epochs.get(&key).map(|epoch| epoch.proven.range(..=last));
        proven.into_iter().flatten().map(|(_, name)| *name).collect()
    }

    fn is_for(&self, stream: usize, filter: &str, name: MessageName) -> bool {
        self.sent[stream].get(&name).is_some_and(|attempts| matches(filter, &attempts.message.subject))
    }

    /// Compares a disk with everything known about its stream.
    pub(super) fn audit(&mut self, stream: usize, disk: &SimulatedDisk) -> Result<(), String> {
        let StoredStream { first, records: stored, times } = self.read(stream, disk)?;
        let key = EpochKey::new(stream, 0);
        let in_stream = |why: String| format!("{}: {why}", STREAMS[stream]);
        for (sequence, time_ns) in times {
            self.note_time(key, sequence, time_ns).map_err(in_stream)?;
        }
        if first > 1 {
            self.removals += 1;
            if !self.has_retention[stream] {
                return Err(in_stream(format!("records before {first} are gone")));
            }
        }
        for (sequence, name) in &stored {
            if let Some(reason) = self.rejected.get(&(key, *name)) {
                return Err(in_stream(format!("{name} is stored at {sequence}, but was rejected: {reason}")));
            }
        }
        let epoch = self.epochs.entry(key).or_default();
        for (sequence, name) in epoch.proven.range(first..) {
            let found = stored.get(sequence);
            let is_lost = self.lost[stream].as_ref().is_some_and(|lost| lost.contains(sequence));
            if found != Some(name) && !is_lost {
                return Err(in_stream(format!("{name} at {sequence} was visible; stored is {found:?}")));
            }
        }
        self.stored[stream] = stored;
        self.check_prices(key)?;
        self.check_passed(Some(stream))?;
        self.check_nats_runs(Some(stream), first)
    }

    /// Compares what remains at the end of the world.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        for stream in 0..STREAMS.len() {
            self.check_passed(Some(stream))?;
            self.check_nats_runs(Some(stream), 1)?;
        }
        let keys: Vec<EpochKey> = self.epochs.keys().copied().filter(|key| !key.is_on_disk()).collect();
        keys.into_iter().try_for_each(|key| self.check_prices(key))?;
        for range in &self.silent {
            let proven = self.epochs.get(&range.key).map(|epoch| &epoch.proven);
            if let Some((sequence, name)) = proven.and_then(|records| self.first_in(range, records)) {
                return Err(format!("{range}: {name} is at {sequence}"));
            }
        }
        Ok(())
    }

    fn first_in(
        &self,
        range: &PassedRange,
        records: &BTreeMap<u64, MessageName>,
    ) -> Option<(u64, MessageName)> {
        let mut records = records.range(range.first..=range.last.max(range.first));
        let times = self.epochs.get(&range.key).map(|epoch| &epoch.times);
        let is_wanted = |sequence: &u64| {
            let time_ns = || times.and_then(|times| times.get(sequence)).copied();
            range.starts_ns.is_none_or(|starts_ns| time_ns().is_some_and(|time_ns| time_ns >= starts_ns))
        };
        records
            .find(|(sequence, name)| {
                is_wanted(sequence) && self.is_for(range.key.stream, &range.filter, **name)
            })
            .map(|(sequence, name)| (*sequence, *name))
    }

    /// Checks that passed ranges have no stored record, and keeps the silent ones.
    fn check_passed(&mut self, stream: Option<usize>) -> Result<(), String> {
        let is_of = |range: &mut PassedRange| stream.is_none_or(|stream| range.key.stream == stream);
        let ranges: Vec<PassedRange> = self.passed.extract_if(.., is_of).collect();
        for range in ranges {
            let stored = match range.key.is_on_disk() {
                true => Some(&self.stored[range.key.stream]),
                // What a memory stream without retention stored, it keeps.
                false if self.has_retention[range.key.stream] => None,
                false => self.epochs.get(&range.key).map(|epoch| &epoch.proven),
            };
            if let Some((sequence, name)) = stored.and_then(|stored| self.first_in(&range, stored)) {
                return Err(format!("{range}: {name} is at {sequence}"));
            }
            if !range.is_removed {
                self.silent.push(range);
            }
        }
        Ok(())
    }

    /// Checks that the messages of each NATS connection are consecutive records of its filter.
    fn check_nats_runs(&mut self, stream: Option<usize>, first_stored: u64) -> Result<(), String> {
        let is_of = |nats_run: &mut NatsRun| stream.is_none_or(|stream| nats_run.key.stream == stream);
        let nats_runs: Vec<NatsRun> = self.nats_runs.extract_if(.., is_of).collect();
        nats_runs.iter().try_for_each(|nats_run| self.check_nats_run(nats_run, first_stored))
    }

    fn check_nats_run(&self, nats_run: &NatsRun, first_stored: u64) -> Result<(), String> {
        let NatsRun { key, filter, names } = nats_run;
        let Some(epoch) = self.epochs.get(key) else { return Ok(()) };
        let mut known = epoch.proven.clone();
        if key.is_on_disk() {
            known.extend(self.stored[key.stream].iter());
        }
        let by_name: BTreeMap<MessageName, u64> =
            known.iter().map(|(sequence, name)| (*name, *sequence)).collect();
        let mut last: Option<u64> = None;
        for name in names {
            if let Some(reason) = self.rejected.get(&(*key, *name)) {
                return Err(format!("{name} was visible over NATS, but was rejected: {reason}"));
            }
            let Some(&sequence) = by_name.get(name) else {
                // Removed before it was audited, or its acknowledgement was lost with a memory stream.
                if key.is_on_disk() && first_stored == 1 {
                    return Err(format!("{name} was visible over NATS in {key:?}, but is not stored"));
                }
                last = None;
                continue;
            };
            if let Some(last) = last {
                if sequence < last || sequence == last && filter.is_some() {
                    return Err(format!("{name} at {sequence} of {key:?} came over NATS after {last}"));
                }
                if let Some(filter) = filter
                    && let Some((lost, name)) = known
                        .range(last + 1..sequence)
                        .find(|(_, name)| self.is_for(key.stream, filter, **name))
                {
                    return Err(format!(
                        "{name} at {lost} of {key:?} is missing on a NATS connection of {filter} between {last} and \
                         {sequence}"
                    ));
                }
            }
            last = Some(sequence);
        }
        Ok(())
    }

    /// Checks that prices rise until a close, that no more was revealed, and, on disk, sets what the next run begins with.
    fn check_prices(&mut self, key: EpochKey) -> Result<(), String> {
        if !is_gated(key.stream) {
            return Ok(());
        }
        let Some(mut epoch) = self.epochs.remove(&key) else { return Ok(()) };
        let checked = self.check_lots(key, &mut epoch);
        self.epochs.insert(key, epoch);
        checked
    }

    fn check_lots(&mut self, key: EpochKey, epoch: &mut EpochRecords) -> Result<(), String> {
        let mut records = epoch.proven.clone();
        if key.is_on_disk() {
            records.extend(self.stored[key.stream].iter());
        }
        let is_complete = key.is_on_disk() && !self.has_retention[key.stream];
        let mut lots = [LotRecords::default(); LOTS];
        for (sequence, name) in &records {
            let in_record = |why: String| format!("{name} at {sequence} of {key:?}: {why}");
            let message = self.sent[key.stream].get(name).and_then(|attempts| attempts.message.lot);
            let message = message.ok_or_else(|| in_record("it is no bid".to_owned()))?;
            let lot = &mut lots[message.lot];
            lot.add(message).map_err(in_record)?;
            if let Some(close) = epoch.close.filter(|_| message.command == LotCommand::Close) {
                lot.check_close(close, is_complete).map_err(in_record)?;
            }
        }
        let prices = lots.map(|lot| lot.price);
        let revealed = std::mem::take(&mut epoch.revealed);
        let revealed_closes = std::mem::take(&mut epoch.revealed_closes);
        // A bid stored in a memory stream may have lost its acknowledgement.
        if key.is_on_disk() {
            if let Some(lot) = (0..LOTS).find(|&lot| revealed[lot] > prices[lot]) {
                return Err(format!("{:?} was revealed; {:?} is durable", revealed[lot], prices[lot]));
            }
            let is_unknown = |&lot: &usize| revealed_closes[lot] && !lots[lot].is_closed;
            if let Some(lot) = (0..LOTS).find(is_unknown).filter(|_| !self.has_retention[key.stream]) {
                return Err(format!("the close of {lot} was revealed, and is not durable"));
            }
            self.floors[key.stream] = prices;
            self.closed[key.stream] = lots.map(|lot| lot.is_closed);
        }
        Ok(())
    }

    fn read(&self, stream: usize, disk: &SimulatedDisk) -> Result<StoredStream, String> {
        // A separate disk: reading must change nothing.
        let copy = SimulatedDisk::with_files(disk.files());
        let config = LogConfig { segment_size: self.segment_size, ..LogConfig::default() };
        let (log, recovery) = Log::open(copy, STREAMS[stream], config).map_err(|error| error.to_string())?;
        let key = EpochKey::new(stream, 0);
        let first = recovery.first.max(1);
        let mut stored = StoredStream { first, records: BTreeMap::new(), times: BTreeMap::new() };
        let mut reader = log.source().read_from(StartAt::Sequence(1));
        loop {
            match reader.read().map_err(|error| error.to_string())? {
                ReadOutcome::End => return Ok(stored),
                ReadOutcome::Gap(_) => {}
                ReadOutcome::Batch(batch) => {
                    for (sequence, record) in batch.records {
                        if record.kind == RecordKind::Ordinary {
                            let subject = std::str::from_utf8(record.subject).ok();
                            let name = self.identify(key, (subject, record.payload))?;
                            stored.records.insert(sequence, name);
                            stored.times.insert(sequence, batch.time_ns);
                        }
                    }
                }
            }
        }
    }
}

/// The price in the reason of a rejection.
fn revealed_price(reason: &str) -> Option<u64> {
    let text = reason.split_once("price is ").or(reason.split_once("closed at "))?.1;
    number_of(&format!("\"price\":{text}"), "price")
}
