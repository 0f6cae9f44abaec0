//! What a subscriber has received of its stream, and how it resumes.

use std::collections::BTreeSet;

use super::decode::{SubscriberInput, format_time};
use super::ledger::{BroadcastLedger, EpochKey, PassedRange};
use crate::streams::message::MessageName;

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartPosition {
    All,
    New,
    Sequence(u64),
    /// The first record of this time, in nanoseconds since 1970, or later.
    Time(u64),
}

/// The position of a subscriber, over all its connections.
#[derive(Debug)]
pub(super) struct SubscriberPosition {
    number: usize,
    stream: usize,
    filter: String,
    start: StartPosition,
    /// Epoch of the last record, as known to the client.
    epoch: Option<u64>,
    key: Option<EpochKey>,
    /// Last sequence received or reported as missing.
    last: Option<u64>,
    /// The last record or position received: the client resumes behind it.
    resumes_at: Option<u64>,
    /// Nothing has been received of a subscription from the oldest record, or from that of a time.
    is_before_first: bool,
    pub(super) delivered: u64,
    pub(super) missing: u64,
    pub(super) resets: u64,
    /// Gaps because it was slow.
    pub(super) skipped: u64,
    /// Gaps because records were damaged.
    pub(super) damaged: u64,
}

impl SubscriberPosition {
    pub(super) fn new(
        number: usize,
        (stream, filter): (usize, &str),
        start: StartPosition,
    ) -> SubscriberPosition {
        SubscriberPosition {
            number,
            stream,
            filter: filter.to_owned(),
            start,
            epoch: None,
            key: None,
            last: None,
            resumes_at: None,
            is_before_first: false,
            delivered: 0,
            missing: 0,
            resets: 0,
            skipped: 0,
            damaged: 0,
        }
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    pub(super) fn stream(&self) -> usize {
        self.stream
    }

    /// Messages received or passed.
    pub(super) fn passed(&self, ledger: &BroadcastLedger) -> BTreeSet<MessageName> {
        let position = self.key.zip(self.last);
        position.map_or_else(BTreeSet::new, |(key, last)| ledger.proven_until(key, last))
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Begins a connection. Returns the position to request: an id, if the client knows one.
    pub(super) fn connect(&mut self) -> String {
        match (self.epoch, self.resumes_at) {
            (Some(epoch), Some(sequence)) => {
                self.last = Some(sequence);
                format!("{epoch}-{sequence}")
            }
            _ => {
                self.restart(None);
                match self.start {
                    StartPosition::All => "all".to_owned(),
                    StartPosition::New => "new".to_owned(),
                    StartPosition::Sequence(sequence) => sequence.to_string(),
                    StartPosition::Time(time_ns) => format_time(time_ns),
                }
            }
        }
    }

    /// Begins at the start position, in an epoch or an unknown one.
    fn restart(&mut self, key: Option<EpochKey>) {
        (self.epoch, self.key, self.resumes_at) = (None, key, None);
        self.is_before_first = matches!(self.start, StartPosition::All | StartPosition::Time(_));
        self.last = match self.start {
            StartPosition::All | StartPosition::Time(_) => Some(0),
            StartPosition::New => None,
            StartPosition::Sequence(sequence) => Some(sequence.saturating_sub(1)),
        };
    }

    /// Begins a connection of a consumer, which knows no epochs: `key` is that of the connection. Returns the next
    /// sequence.
    pub(super) fn connect_consumer(&mut self, key: EpochKey) -> u64 {
        if self.key != Some(key) {
            self.restart(Some(key));
            self.last = Some(0);
        }
        self.last.unwrap_or(0) + 1
    }

    /// Whether everything known of its filter has been received or reported, in the epoch of its connection.
    pub(super) fn is_up_to_date(&self, key: EpochKey, ledger: &BroadcastLedger) -> bool {
        let last = self.last.filter(|_| self.key == Some(key));
        let known = ledger.last_of(key, &self.filter).map(|(sequence, _)| sequence);
        last.is_some() && last >= known
    }

    /// Handles a message or notice on a connection to an epoch.
    pub(super) fn receive(
        &mut self,
        input: SubscriberInput,
        key: EpochKey,
        ledger: &mut BroadcastLedger,
    ) -> Result<(), String> {
        match input {
            SubscriberInput::Record { epoch, sequence, subject, time_ns, payload } => {
                self.enter(epoch.map(|epoch| (epoch, sequence)), key, ledger)?;
                if self.epoch.is_none() {
                    return Err(format!("sequence {sequence} came before a start or position"));
                }
                self.advance(sequence, key, ledger)?;
                self.resumes_at = Some(sequence);
                self.delivered += 1;
                if let Some(time_ns) = time_ns {
                    ledger.note_time(key, sequence, time_ns)?;
                }
                ledger.receive(key, sequence, (subject.as_deref(), &payload)).map(drop)
            }
            SubscriberInput::Gap { first, last, cause } => {
                self.enter(None, key, ledger)?;
                if first > last {
                    return Err(format!("a gap from {first} to {last}"));
                }
                self.advance(first, key, ledger)?;
                match &*cause {
                    "removed" | "torn" => self.pass(key, (first, last), true, ledger),
                    "damaged" if ledger.is_damaged(self.stream) => {
                        self.damaged += 1;
                        self.pass(key, (first, last), true, ledger);
                    }
                    "slow" if ledger.may_skip() => self.skipped += 1,
                    _ => return Err(format!("a gap ({cause}) from {first} to {last}")),
                }
                self.missing += last - first + 1;
                self.last = Some(last);
                Ok(())
            }
            SubscriberInput::Reset { cause, epoch, next } => self.reset(&cause, (epoch, next), key, ledger),
            SubscriberInput::Position { epoch, sequence } => {
                self.enter(Some((epoch, sequence)), key, ledger)?;
                if self.last.is_some_and(|last| last > sequence) {
                    return Err(format!("the position is {sequence} after {:?}", self.last));
                }
                if let Some(last) = self.last.filter(|last| *last < sequence) {
                    self.pass(key, (last + 1, sequence), self.is_before_first, ledger);
                }
                // A start position before a time: the next records may be earlier.
                self.is_before_first &= matches!(self.start, StartPosition::Time(_));
                (self.last, self.resumes_at) = (Some(sequence), Some(sequence));
                Ok(())
            }
            SubscriberInput::Idle => Ok(()),
        }
    }

    /// Notes the epoch and sequence of a message or notice. A connection stays in the epoch that the client resumed in, unless it
    /// received a reset.
    fn enter(
        &mut self,
        position: Option<(u64, u64)>,
        key: EpochKey,
        ledger: &mut BroadcastLedger,
    ) -> Result<(), String> {
        if *self.key.get_or_insert(key) != key {
            return Err(format!("{:?} is continued in {key:?} without a reset", self.key));
        }
        let Some((epoch, sequence)) = position else { return Ok(()) };
        ledger.note_epoch(key, epoch, sequence)?;
        match self.epoch.replace(epoch) {
            Some(before) if before != epoch => Err(format!("the epoch is {epoch} after {before}")),
            _ => Ok(()),
        }
    }

    /// Moves to a sequence that must be behind the last one.
    fn advance(&mut self, sequence: u64, key: EpochKey, ledger: &mut BroadcastLedger) -> Result<(), String> {
        if let Some(last) = self.last {
            if sequence <= last {
                return Err(format!("{sequence} came after {last}"));
            }
            if sequence > last + 1 {
                self.pass(key, (last + 1, sequence - 1), self.is_before_first, ledger);
            }
        }
        self.is_before_first = false;
        self.last = Some(sequence);
        Ok(())
    }

    fn pass(&self, key: EpochKey, (first, last): (u64, u64), is_removed: bool, ledger: &mut BroadcastLedger) {
        let by = self.number;
        let starts_ns = match self.start {
            StartPosition::Time(time_ns) if self.is_before_first => Some(time_ns),
            _ => None,
        };
        ledger.pass(PassedRange { key, filter: self.filter.clone(), first, last, is_removed, starts_ns, by });
    }

    /// Handles a reset: another epoch of a memory stream, or a start position that the stream has not reached.
    fn reset(
        &mut self,
        cause: &str,
        (epoch, next): (u64, u64),
        key: EpochKey,
        ledger: &mut BroadcastLedger,
    ) -> Result<(), String> {
        let is_other_epoch = self.key.is_some_and(|own| own != key);
        let has_nothing = self.resumes_at.is_none_or(|sequence| sequence == 0);
        let is_expected = match cause {
            // A stream without a durable record is created again after a crash.
            "epoch" => is_other_epoch || key.is_on_disk() && has_nothing,
            "ahead" => matches!(self.start, StartPosition::Sequence(_)) && self.resumes_at.is_none(),
            _ => false,
        };
        if !is_expected {
            return Err(format!("a reset ({cause}) of {:?} behind {:?}", self.key, self.resumes_at));
        }
        self.resets += 1;
        ledger.note_epoch(key, epoch, next - 1)?;
        (self.epoch, self.key) = (Some(epoch), Some(key));
        (self.last, self.resumes_at) = (Some(next - 1), Some(next - 1));
        self.is_before_first = false;
        // An earlier start position is not meant for the new epoch.
        self.start = StartPosition::All;
        Ok(())
    }

    /// Handles a record of a consumer, which reports no gaps.
    pub(super) fn receive_from_consumer(
        &mut self,
        sequence: u64,
        (subject, payload): (&str, &[u8]),
        key: EpochKey,
        ledger: &mut BroadcastLedger,
    ) -> Result<(), String> {
        self.is_before_first = ledger.may_lack_records(self.stream);
        self.advance(sequence, key, ledger)?;
        self.delivered += 1;
        ledger.receive(key, sequence, (Some(subject), payload)).map(drop)
    }
}
