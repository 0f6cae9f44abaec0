//! The journal as the hub sees it: opened at the start, with the first record, or when a predecessor has released it.

use std::collections::VecDeque;
use std::sync::Arc;

use stilling_hub::{Opening, Recovered, Resumed, Storage, Threads, UnixNanos};
use stilling_journal::{Answer, Batch, Chunk, ReadOrder, Retention, StreamIndex};
use stilling_ring::Receiver;

use super::opened::{OpeningEvent, OpeningJob, begin_opening};

/// The journal's threads, which know only the streams on disk; the hub numbers all.
pub(crate) struct LazyJournal {
    pub(super) state: JournalState,
    /// The hub's number of each stream on disk.
    pub(super) of_hub: Vec<usize>,
    /// What the hub has not been told yet.
    pub(super) openings: VecDeque<(StreamIndex, Opening)>,
}

pub(super) enum JournalState {
    Open(Threads),
    /// The directory is made with the first record.
    Absent(OpeningJob),
    Opening(Receiver<OpeningEvent>),
    /// The opening thread has panicked, or could not be started.
    Dead,
}

impl LazyJournal {
    fn number_on_disk(&self, stream: StreamIndex) -> StreamIndex {
        self.of_hub.iter().position(|&number| number == stream as usize).unwrap_or(0) as StreamIndex
    }

    fn number_in_hub(&self, stream: StreamIndex) -> StreamIndex {
        self.of_hub.get(stream as usize).map_or(0, |&number| number as StreamIndex)
    }

    /// Whether an opening has come to something that the hub does not know.
    pub(crate) fn has_opening_news(&self) -> bool {
        let has_event = match &self.state {
            JournalState::Opening(events) => !events.is_empty() || events.is_closed(),
            JournalState::Open(_) | JournalState::Absent(_) | JournalState::Dead => false,
        };
        has_event || !self.openings.is_empty()
    }

    /// Whether the hub need not wait for an opening before it begins.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.state, JournalState::Opening(_))
    }

    /// Has the hub refuse what is for streams that are being opened, instead of waiting.
    pub(crate) fn refuse_until_open(&mut self, reason: &str) {
        if matches!(self.state, JournalState::Opening(_)) {
            self.fail(&reason.into());
        }
    }

    fn fail(&mut self, reason: &Arc<str>) {
        let failed = |&number: &usize| (number as StreamIndex, Opening::Failed(Arc::clone(reason)));
        self.openings.extend(self.of_hub.iter().map(failed));
    }

    fn begin_opening(&mut self) {
        if !matches!(self.state, JournalState::Absent(_)) {
            return;
        }
        let JournalState::Absent(job) = std::mem::replace(&mut self.state, JournalState::Dead) else {
            return;
        };
        match begin_opening(job, None) {
            Ok(events) => self.state = JournalState::Opening(events),
            Err(error) => self.fail(&format!("cannot start a thread: {error}").into()),
        }
    }

    fn receive_opening(&mut self) {
        let JournalState::Opening(events) = &mut self.state else { return };
        // Asked first: what is there afterwards is all there will be.
        let is_over = events.is_closed();
        match events.pop() {
            Some(OpeningEvent::Opened(threads, recovered)) => {
                self.state = JournalState::Open(*threads);
                let opened = self.of_hub.iter().zip(recovered);
                let opened = opened.map(|(&number, found)| (number as StreamIndex, Opening::Opened(found)));
                self.openings.extend(opened);
            }
            Some(OpeningEvent::Absent(job)) => {
                for (stream, &number) in job.streams.iter().zip(&self.of_hub) {
                    let resumed = Resumed { created_ns: job.created_ns, ..Resumed::default() };
                    let empty = Recovered::new(stream, job.key, resumed);
                    self.openings.push_back((number as StreamIndex, Opening::Opened(empty)));
                }
                self.state = JournalState::Absent(*job);
            }
            Some(OpeningEvent::Failed(reason)) => self.fail(&reason),
            None if is_over => {
                self.state = JournalState::Dead;
                self.fail(&"the thread that opens it has died of a panic".into());
            }
            None => {}
        }
    }
}

impl Storage for LazyJournal {
    fn batch(&mut self) -> Option<Batch> {
        self.begin_opening();
        match &mut self.state {
            // The hub has to know first where its streams go on.
            JournalState::Open(threads) if self.openings.is_empty() => threads.batch(),
            _ => None,
        }
    }

    fn give_back(&mut self, batch: Batch) {
        if let JournalState::Open(threads) = &mut self.state {
            threads.give_back(batch);
        }
    }

    fn append(&mut self, stream: StreamIndex, batch: Batch, deduplicate_from: u64) {
        let on_disk = self.number_on_disk(stream);
        if let JournalState::Open(threads) = &mut self.state {
            threads.append(on_disk, batch, deduplicate_from);
        }
    }

    fn retain(&mut self, stream: StreamIndex, retention: Retention, now_ns: UnixNanos) -> bool {
        let on_disk = self.number_on_disk(stream);
        match &mut self.state {
            JournalState::Open(threads) => threads.retain(on_disk, retention, now_ns),
            _ => false,
        }
    }

    fn read(&mut self, order: ReadOrder) -> bool {
        let stream = self.number_on_disk(order.stream);
        match &mut self.state {
            JournalState::Open(threads) => threads.read(ReadOrder { stream, ..order }),
            _ => false,
        }
    }

    fn publish(&mut self) {
        if let JournalState::Open(threads) = &mut self.state {
            threads.publish();
        }
    }

    fn next_answer(&mut self) -> Option<(Answer, Option<Batch>)> {
        let JournalState::Open(threads) = &mut self.state else { return None };
        let (mut answer, batch) = threads.next_answer()?;
        let (Answer::Durable { stream, .. }
        | Answer::Frozen { stream, .. }
        | Answer::Waiting { stream, .. }
        | Answer::WriteFailed { stream, .. }
        | Answer::Resumed { stream }
        | Answer::Retained { stream, .. }) = &mut answer;
        let number = *stream;
        *stream = self.number_in_hub(number);
        Some((answer, batch))
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        let JournalState::Open(threads) = &mut self.state else { return None };
        let mut chunk = threads.next_chunk()?;
        chunk.stream = self.number_in_hub(chunk.stream);
        Some(chunk)
    }

    fn next_opening(&mut self) -> Option<(StreamIndex, Opening)> {
        if self.openings.is_empty() {
            self.receive_opening();
        }
        self.openings.pop_front()
    }

    fn is_quiet(&self) -> bool {
        let is_quiet = match &self.state {
            JournalState::Open(threads) => threads.is_quiet(),
            JournalState::Opening(_) | JournalState::Absent(_) | JournalState::Dead => true,
        };
        is_quiet && !self.has_opening_news()
    }
}
