//! The journal as the hub sees it: opened at the start, with the first record, or after a predecessor's release.

use std::collections::VecDeque;
use std::sync::Arc;

use stilling_hub::{JournalStorage, Storage, StreamOpening, UnixNanos};
use stilling_journal::{
    Batch, Chunk, IdleBatches, JournalAnswer, LogRetention, ReadRequest, Snapshot, StreamIndex,
};
use stilling_ring::Receiver;

use super::stream_opener::{DeferredOpening, OpenedStream, OpeningEvent};

/// Maps the hub's stream numbers to the journal's threads, which know only the streams on disk. Streams that are
/// opened together share threads: one group, unless some are opened later.
pub(crate) struct LazyJournal {
    state: JournalState,
    /// The hub's number of each stream on disk.
    hub_numbers: Vec<usize>,
    /// Where each open stream is written, by the hub's number.
    locations: Vec<Option<StreamLocation>>,
    groups: Vec<JournalGroup>,
    /// Openings that the hub has not received yet.
    openings: VecDeque<(StreamIndex, StreamOpening)>,
}

/// The group of a stream, and its number in the group.
#[derive(Clone, Copy, Debug)]
struct StreamLocation {
    group: usize,
    number: StreamIndex,
}

/// Streams that were opened together.
struct JournalGroup {
    threads: JournalStorage,
    /// The hub's number of each.
    hub_numbers: Vec<StreamIndex>,
}

pub(super) enum JournalState {
    Open,
    /// The first record creates the directory.
    Absent(DeferredOpening),
    OpeningStreams(Receiver<OpeningEvent>),
    /// The opening thread has panicked, or could not be started.
    OpeningFailed,
}

impl LazyJournal {
    /// A journal for the streams with the numbers `hub_numbers`, of `streams` streams in total.
    pub(super) fn new(state: JournalState, hub_numbers: Vec<usize>, streams: usize) -> LazyJournal {
        let locations = vec![None; streams];
        LazyJournal { state, hub_numbers, locations, groups: Vec::new(), openings: VecDeque::new() }
    }

    /// Adds threads that write and read these streams, which are numbered as on disk.
    pub(super) fn add(&mut self, threads: JournalStorage, on_disk: &[usize]) {
        let group = self.groups.len();
        let hub_numbers: Vec<StreamIndex> = on_disk.iter().map(|&at| self.number_in_hub(at)).collect();
        for (number, &stream) in hub_numbers.iter().enumerate() {
            if let Some(location) = self.locations.get_mut(stream as usize) {
                *location = Some(StreamLocation { group, number: number as StreamIndex });
            }
        }
        self.groups.push(JournalGroup { threads, hub_numbers });
    }

    fn number_in_hub(&self, on_disk: usize) -> StreamIndex {
        self.hub_numbers.get(on_disk).map_or(0, |&number| number as StreamIndex)
    }

    /// The threads of an open stream, and its number there.
    fn threads_of(&mut self, stream: StreamIndex) -> Option<(&mut JournalStorage, StreamIndex)> {
        let location = (*self.locations.get(stream as usize)?)?;
        Some((&mut self.groups.get_mut(location.group)?.threads, location.number))
    }

    /// Whether there is an opening event that the hub has not received.
    pub(crate) fn has_opening_event(&self) -> bool {
        let has_event = match &self.state {
            JournalState::OpeningStreams(events) => !events.is_empty() || events.is_closed(),
            JournalState::Open | JournalState::Absent(_) | JournalState::OpeningFailed => false,
        };
        has_event || !self.openings.is_empty()
    }

    /// Whether the hub can begin without waiting for an opening.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.state, JournalState::OpeningStreams(_))
    }

    /// Refuses publications to streams that are being opened, instead of letting them wait.
    pub(crate) fn refuse_until_open(&mut self, reason: &str) {
        if matches!(self.state, JournalState::OpeningStreams(_)) {
            self.fail(&reason.into());
        }
    }

    fn fail(&mut self, reason: &Arc<str>) {
        for &number in &self.hub_numbers {
            if self.locations[number].is_none() {
                self.openings.push_back((number as StreamIndex, StreamOpening::Failed(Arc::clone(reason))));
            }
        }
    }

    fn begin_opening(&mut self) {
        if !matches!(self.state, JournalState::Absent(_)) {
            return;
        }
        let JournalState::Absent(begin) = std::mem::replace(&mut self.state, JournalState::OpeningFailed)
        else {
            return;
        };
        match begin() {
            Ok(events) => self.state = JournalState::OpeningStreams(events),
            Err(error) => self.fail(&format!("cannot start a thread: {error}").into()),
        }
    }

    fn receive_opening(&mut self) {
        let JournalState::OpeningStreams(events) = &mut self.state else { return };
        // Checked before the read: after the close nothing more arrives.
        let is_over = events.is_closed();
        match events.pop() {
            Some(OpeningEvent::Round { threads, opened, failed }) => {
                if let Some(threads) = threads {
                    let on_disk: Vec<usize> = opened.iter().map(|opened| opened.stream).collect();
                    self.add(*threads, &on_disk);
                }
                for OpenedStream { stream, recovered } in opened {
                    self.openings.push_back((self.number_in_hub(stream), StreamOpening::Opened(recovered)));
                }
                for (stream, reason) in failed {
                    self.openings.push_back((self.number_in_hub(stream), StreamOpening::Failed(reason)));
                }
                if self.hub_numbers.iter().all(|&number| self.locations[number].is_some()) {
                    self.state = JournalState::Open;
                }
            }
            Some(OpeningEvent::Absent(empty, begin)) => {
                for (&number, empty) in self.hub_numbers.iter().zip(empty) {
                    self.openings.push_back((number as StreamIndex, StreamOpening::Opened(empty)));
                }
                self.state = JournalState::Absent(begin);
            }
            None if is_over => {
                self.state = JournalState::OpeningFailed;
                self.fail(&"the thread that opens it has panicked".into());
            }
            None => {}
        }
    }
}

impl Storage for LazyJournal {
    fn batch(&mut self, stream: StreamIndex) -> Option<Batch> {
        self.begin_opening();
        // The hub first has to receive the positions of its streams.
        if !self.openings.is_empty() {
            return None;
        }
        let (threads, number) = self.threads_of(stream)?;
        threads.batch(number)
    }

    fn writer(&self, stream: StreamIndex) -> Option<usize> {
        let location = self.locations.get(stream as usize).copied().flatten();
        location.map(|location| location.group)
    }

    fn idle(&self, stream: StreamIndex) -> IdleBatches {
        let location = self.locations.get(stream as usize).copied().flatten();
        let group = location.and_then(|location| Some((self.groups.get(location.group)?, location.number)));
        group.map_or(IdleBatches::None, |(group, number)| group.threads.idle(number))
    }

    fn return_batch(&mut self, stream: StreamIndex, batch: Batch) {
        if let Some((threads, number)) = self.threads_of(stream) {
            threads.return_batch(number, batch);
        }
    }

    fn append(&mut self, stream: StreamIndex, batch: Batch, deduplicate_from: u64) {
        if let Some((threads, number)) = self.threads_of(stream) {
            threads.append(number, batch, deduplicate_from);
        }
    }

    fn retain(
        &mut self,
        stream: StreamIndex,
        retention: LogRetention,
        now_ns: UnixNanos,
        keep_from: u64,
    ) -> bool {
        let Some((threads, number)) = self.threads_of(stream) else { return false };
        threads.retain(number, retention, now_ns, keep_from)
    }

    fn write_snapshot(&mut self, stream: StreamIndex, snapshot: Snapshot) -> bool {
        let Some((threads, number)) = self.threads_of(stream) else { return false };
        threads.write_snapshot(number, snapshot)
    }

    fn read(&mut self, read_request: ReadRequest) -> bool {
        let Some((threads, stream)) = self.threads_of(read_request.stream) else { return false };
        threads.read(ReadRequest { stream, ..read_request })
    }

    fn publish(&mut self) {
        for group in &mut self.groups {
            group.threads.publish();
        }
    }

    fn next_answer(&mut self) -> Option<(JournalAnswer, Option<Batch>)> {
        for JournalGroup { threads, hub_numbers } in &mut self.groups {
            if let Some((answer, batch)) = threads.next_answer() {
                let number = hub_numbers.get(answer.stream() as usize).copied().unwrap_or(0);
                return Some((answer.with_stream(number), batch));
            }
        }
        None
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        for JournalGroup { threads, hub_numbers } in &mut self.groups {
            if let Some(mut chunk) = threads.next_chunk() {
                chunk.stream = hub_numbers.get(chunk.stream as usize).copied().unwrap_or(0);
                return Some(chunk);
            }
        }
        None
    }

    fn next_opening(&mut self) -> Option<(StreamIndex, StreamOpening)> {
        if self.openings.is_empty() {
            self.receive_opening();
        }
        self.openings.pop_front()
    }

    fn has_answer(&self) -> bool {
        self.groups.iter().any(|group| group.threads.has_answer()) || self.has_opening_event()
    }

    fn is_quiet(&self) -> bool {
        self.groups.iter().all(|group| group.threads.is_quiet()) && !self.has_opening_event()
    }
}
