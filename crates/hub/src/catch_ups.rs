//! Subscriptions of single connections that read a stream from a position until they are up to date.
//!
//! ```text
//!   due ──▶ reading ──chunk──▶ sending ──whole chunk──▶ awaiting mark ──mark reached──▶ due
//!    │ ▲                          │ without room                                        │
//!    │ └── waiting ◀──────────────┘                        nothing more is visible ─────┴──▶ CaughtUp, removed
//!    └──without room, or the stream is not open─▶ waiting
//! ```
//!
//! The shard ignores live records of the stream until it gets the notice `CaughtUp` with the last visible sequence,
//! through the same queue as live records: each later record follows the notice, and the shard ignores those that the
//! catch-up has sent. Marks set the pace, as for consumers: a slow connection occupies one chunk.

use std::collections::{HashMap, VecDeque};

use stilling_journal::limits::CHUNK_SIZE;
use stilling_journal::{Chunk, Record, RecordKind};

use crate::hash_key::HashKey;
use crate::limits::{
    CATCH_UP_ATTEMPTS_PER_TURN, CATCH_UP_CHUNKS_SIZE_MAX, CATCH_UP_READS_MAX, CATCH_UP_RETRY_NS,
    CATCH_UPS_MAX, CHUNKS_PER_TURN, FILTERS_COMPARED_PER_TURN,
};
use crate::publication_batch::ClientId;
use crate::registrations::overlap;
use crate::resume::StartFrom;
use crate::time::SteadyNanos;

/// Distinguishes reader ids of catch-ups from those of consumers and single reads.
pub(crate) const CATCH_UP_BIT: u64 = 1 << 62;

/// Distinguishes marks of catch-ups from those of consumers.
const CATCH_UP_MARK: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct CatchUp {
    pub(crate) client: ClientId,
    pub(crate) stream: usize,
    filter: Box<[u8]>,
    pub(crate) from: StartFrom,
    /// Next sequence, once known.
    pub(crate) next: Option<u64>,
    /// Records removed before `next` are a gap for the subscriber.
    pub(crate) reports_removed: bool,
    /// The client has no id of the stream to resume from: it is told the start.
    pub(crate) reports_start: bool,
    pub(crate) state: CatchUpState,
    is_queued: bool,
    /// Least distance from the last visible record so far, in sequences, and since when.
    nearest: Option<(u64, SteadyNanos)>,
    /// The server cannot read or send for it since then.
    waits_since: Option<SteadyNanos>,
    /// Nanoseconds of ended waits since the distance was last compared: they are not the client's.
    waited_ns: u64,
    /// The client has read a chunk since the distance was last compared.
    has_read_chunk: bool,
}

#[derive(Debug, Default)]
pub(crate) enum CatchUpState {
    #[default]
    Due,
    /// A read is outstanding; the value is the last visible sequence at its start.
    Reading(u64),
    /// Chunk, number of its processed records, and the last visible sequence at the start of the read.
    Sending(Box<Chunk>, usize, u64),
    /// Waits until the connection has sent the messages and reports this mark.
    AwaitingMark(u64),
}

impl CatchUp {
    /// Returns whether a record is for the subscriber.
    pub(crate) fn wants(&self, record: &Record<'_>) -> bool {
        record.kind == RecordKind::Ordinary && overlap(&self.filter, record.subject)
    }

    /// Returns whether the client has read chunks for `time_ns` without coming nearer to the last visible record.
    pub(crate) fn has_stalled(&mut self, visible: u64, time_ns: u64, now_ns: SteadyNanos) -> bool {
        let Some(next) = self.next.filter(|_| std::mem::take(&mut self.has_read_chunk)) else { return false };
        let distance = visible.saturating_add(1).saturating_sub(next);
        let waited_ns = std::mem::take(&mut self.waited_ns);
        match &mut self.nearest {
            Some((nearest, since_ns)) if distance >= *nearest => {
                *since_ns = since_ns.after(waited_ns);
                now_ns >= since_ns.after(time_ns)
            }
            _ => {
                self.nearest = Some((distance, now_ns));
                false
            }
        }
    }
}

/// All catch-ups; a reused number gets a new generation.
#[derive(Debug)]
pub(crate) struct CatchUps {
    slots: Vec<(u32, Option<CatchUp>)>,
    free: Vec<u32>,
    clients: HashMap<ClientId, u32, HashKey>,
    due: VecDeque<u32>,
    /// Those that wait for room in a shard or the opening of their stream.
    waiting: Vec<u32>,
    /// Those that wait for a read, with their generations, and the number of outstanding reads.
    without_read: VecDeque<(u32, u32)>,
    reads: usize,
    retried_ns: SteadyNanos,
    /// The begin of this turn.
    now_ns: SteadyNanos,
    marks: u32,
    /// Other readers use all reads of the storage.
    is_storage_full: bool,
    /// Bytes of the chunks in [`CatchUpState::Sending`].
    held_size: usize,
    /// Chunks that may still be read or sent in this turn.
    chunks_left: usize,
    /// Catch-ups that may still be tried in this turn.
    attempts_left: usize,
    /// Filters compared with records in this turn.
    pub(crate) compared: usize,
}

impl CatchUps {
    pub(crate) fn new(key: HashKey) -> CatchUps {
        CatchUps {
            slots: Vec::new(),
            free: Vec::new(),
            clients: HashMap::with_hasher(key),
            due: VecDeque::new(),
            waiting: Vec::new(),
            without_read: VecDeque::new(),
            reads: 0,
            retried_ns: SteadyNanos::START,
            now_ns: SteadyNanos::START,
            marks: 0,
            is_storage_full: false,
            held_size: 0,
            chunks_left: CHUNKS_PER_TURN,
            attempts_left: CATCH_UP_ATTEMPTS_PER_TURN,
            compared: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Begins a turn with a new budget.
    pub(crate) fn begin_turn(&mut self, now_ns: SteadyNanos) {
        self.now_ns = now_ns;
        (self.chunks_left, self.compared) = (CHUNKS_PER_TURN, 0);
        self.attempts_left = CATCH_UP_ATTEMPTS_PER_TURN;
    }

    /// Returns whether one can continue at once.
    pub(crate) fn can_resume(&self) -> bool {
        !self.due.is_empty()
    }

    /// Maximum nanoseconds until those that wait must be tried again.
    pub(crate) fn next_check_in(&self) -> Option<u64> {
        let is_any_waiting = !self.waiting.is_empty() || !self.without_read.is_empty();
        is_any_waiting.then_some(CATCH_UP_RETRY_NS)
    }

    /// Adds the catch-up of a client. Returns `false` without room.
    pub(crate) fn add(
        &mut self,
        client: ClientId,
        (stream, filter): (usize, &[u8]),
        from: StartFrom,
    ) -> bool {
        self.remove(client);
        if self.len() >= CATCH_UPS_MAX {
            return false;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        self.slots[number as usize].1 = Some(CatchUp {
            client,
            stream,
            filter: filter.into(),
            from,
            next: None,
            reports_removed: false,
            reports_start: !matches!(from, StartFrom::After { .. } | StartFrom::Behind { .. }),
            state: CatchUpState::Due,
            is_queued: false,
            nearest: None,
            waits_since: None,
            waited_ns: 0,
            has_read_chunk: false,
        });
        self.clients.insert(client, number);
        self.make_due(number);
        true
    }

    /// Removes the catch-up of a client that has disconnected.
    pub(crate) fn remove(&mut self, client: ClientId) {
        if let Some(number) = self.clients.remove(&client) {
            drop(self.take_held(number));
            let (generation, slot) = &mut self.slots[number as usize];
            (*generation, *slot) = (generation.wrapping_add(1), None);
            self.free.push(number);
            if self.clients.is_empty() {
                // Nothing else empties the queues without catch-ups.
                self.due.clear();
                self.waiting.clear();
                self.without_read.clear();
            } else if self.without_read.len() > 2 * self.clients.len() + CATCH_UP_READS_MAX {
                let slots = &self.slots;
                self.without_read.retain(|&(number, generation)| slots[number as usize].0 == generation);
            }
        }
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut CatchUp> {
        self.slots.get_mut(number as usize)?.1.as_mut()
    }

    /// Returns the reader id of a read.
    pub(crate) fn reader_id(&self, number: u32) -> u64 {
        let generation = self.slots[number as usize].0 & (u32::MAX >> 2);
        CATCH_UP_BIT | u64::from(generation) << 32 | u64::from(number)
    }

    pub(crate) fn by_reader_id(&self, reader_id: u64) -> Option<u32> {
        let number = reader_id as u32;
        let is_there = self.slots.get(number as usize).is_some_and(|(_, catch_up)| catch_up.is_some());
        (is_there && self.reader_id(number) == reader_id).then_some(number)
    }

    pub(crate) fn make_due(&mut self, number: u32) {
        if let Some(catch_up) = self.get_mut(number)
            && !std::mem::replace(&mut catch_up.is_queued, true)
        {
            self.due.push_back(number);
        }
    }

    /// Tries a catch-up again when a shard has room again or the stream is open, and regularly.
    pub(crate) fn wait(&mut self, number: u32) {
        let now_ns = self.now_ns;
        if let Some(catch_up) = self.get_mut(number)
            && !std::mem::replace(&mut catch_up.is_queued, true)
        {
            catch_up.waits_since = Some(now_ns);
            self.waiting.push(number);
        }
    }

    /// Returns whether there is room for a further chunk.
    pub(crate) fn may_hold(&self) -> bool {
        self.held_size + (self.reads + 1) * CHUNK_SIZE <= CATCH_UP_CHUNKS_SIZE_MAX
    }

    /// Returns whether a further disk read may begin.
    pub(crate) fn may_read(&self) -> bool {
        self.reads < CATCH_UP_READS_MAX
    }

    pub(crate) fn note_read(&mut self) {
        self.reads += 1;
    }

    /// Uses a chunk of this turn's budget.
    pub(crate) fn use_chunk(&mut self) {
        self.chunks_left = self.chunks_left.saturating_sub(1);
    }

    /// Keeps a chunk, of which `sent` records are processed, until its shard has room.
    pub(crate) fn hold(&mut self, number: u32, chunk: Box<Chunk>, sent: usize, visible: u64) {
        if let Some((_, Some(catch_up))) = self.slots.get_mut(number as usize) {
            self.held_size += chunk.size();
            catch_up.state = CatchUpState::Sending(chunk, sent, visible);
        }
    }

    /// Takes the held chunk with the values of [`hold`](Self::hold).
    pub(crate) fn take_held(&mut self, number: u32) -> Option<(Box<Chunk>, usize, u64)> {
        let state = &mut self.get_mut(number)?.state;
        if !matches!(state, CatchUpState::Sending(..)) {
            return None;
        }
        let CatchUpState::Sending(chunk, sent, visible) = std::mem::take(state) else { return None };
        self.held_size -= chunk.size();
        Some((chunk, sent, visible))
    }

    pub(crate) fn end_read(&mut self) {
        self.reads -= 1;
        self.is_storage_full = false;
    }

    /// Notes that the storage accepts no further read before one has ended.
    pub(crate) fn note_storage_full(&mut self) {
        self.is_storage_full = true;
    }

    /// Continues those that wait for a read, in order, as far as reads may begin.
    pub(crate) fn resume_readers(&mut self) {
        for _ in 0..CHUNKS_PER_TURN {
            if self.is_storage_full || !self.may_hold() || !self.may_read() {
                return;
            }
            self.resume_next_reader();
        }
    }

    /// Makes the next one that waits for a read due. Drops those that have left.
    fn resume_next_reader(&mut self) {
        while let Some((number, generation)) = self.without_read.pop_front() {
            if self.slots[number as usize].0 == generation {
                return self.due.push_back(number);
            }
        }
    }

    /// Tries a catch-up again when a read has ended, and regularly.
    pub(crate) fn wait_for_read(&mut self, number: u32) {
        if let Some((generation, Some(catch_up))) = self.slots.get_mut(number as usize)
            && !std::mem::replace(&mut catch_up.is_queued, true)
        {
            catch_up.waits_since = Some(self.now_ns);
            self.without_read.push_back((number, *generation));
        }
    }

    pub(crate) fn retry_all(&mut self) {
        self.due.extend(self.waiting.drain(..));
    }

    pub(crate) fn retry_if_due(&mut self, now_ns: SteadyNanos) {
        if now_ns >= self.retried_ns.after(CATCH_UP_RETRY_NS) {
            self.retried_ns = now_ns;
            self.retry_all();
            self.is_storage_full = false;
            self.resume_readers();
        }
    }

    /// Takes the next one to try within this turn's budgets.
    pub(crate) fn next_due(&mut self) -> Option<u32> {
        while self.chunks_left > 0 && self.attempts_left > 0 && self.compared < FILTERS_COMPARED_PER_TURN {
            let number = self.due.pop_front()?;
            self.attempts_left -= 1;
            let now_ns = self.now_ns;
            // It may be removed and its number reused.
            if let Some(catch_up) = self.get_mut(number)
                && std::mem::take(&mut catch_up.is_queued)
            {
                let waited_ns = catch_up.waits_since.take().map_or(0, |since_ns| now_ns.since(since_ns));
                catch_up.waited_ns = catch_up.waited_ns.saturating_add(waited_ns);
                return Some(number);
            }
        }
        None
    }

    /// Makes a catch-up wait for its connection. Returns the mark to send.
    pub(crate) fn await_mark(&mut self, number: u32) -> u64 {
        self.marks = self.marks.wrapping_add(1) & (u32::MAX >> 1);
        let mark = CATCH_UP_MARK | u64::from(self.marks) << 32 | u64::from(number);
        if let Some(catch_up) = self.get_mut(number) {
            catch_up.state = CatchUpState::AwaitingMark(mark);
        }
        mark
    }

    /// Handles a reached mark. Returns whether it is one of a catch-up.
    pub(crate) fn reached(&mut self, mark: u64) -> bool {
        if mark & CATCH_UP_MARK == 0 {
            return false;
        }
        let number = mark as u32;
        if let Some(catch_up) = self.get_mut(number)
            && matches!(catch_up.state, CatchUpState::AwaitingMark(awaited) if awaited == mark)
        {
            catch_up.state = CatchUpState::Due;
            catch_up.has_read_chunk = true;
            self.make_due(number);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use stilling_journal::{ReadRequest, StartAt};

    use super::*;

    const ALICE: ClientId = ClientId { shard: 0, token: 1 };
    const BOB: ClientId = ClientId { shard: 0, token: 2 };
    const BOB_WAITING: ClientId = ClientId { shard: 1, token: 2 };

    #[test]
    fn a_number_that_is_used_again_gets_neither_chunks_nor_marks_of_its_predecessor() {
        let mut all = CatchUps::new(HashKey(1, 2));
        assert!(all.add(ALICE, (0, b"a"), StartFrom::Sequence(1)));
        let number = all.next_due().expect("it is due");
        let (reader_id, mark) = (all.reader_id(number), all.await_mark(number));
        all.remove(ALICE);
        assert_eq!((all.by_reader_id(reader_id), all.len()), (None, 0));
        assert!(all.add(BOB, (0, b"a"), StartFrom::Sequence(1)));
        let next = all.next_due().expect("it is due");
        assert_eq!((next, all.by_reader_id(reader_id)), (number, None));
        let own = all.await_mark(next);
        assert!(all.reached(mark) && !all.can_resume(), "a mark of the predecessor");
        assert!(all.reached(own) && all.can_resume());
        assert!(!all.reached(7), "a consumer's mark");
    }

    /// The hub sleeps, and ends, although a catch-up that could continue has gone.
    #[test]
    fn the_last_one_leaves_no_work_behind() {
        let mut all = CatchUps::new(HashKey(1, 2));
        assert!(all.add(ALICE, (0, b"a"), StartFrom::New) && all.can_resume());
        all.remove(ALICE);
        assert!(!all.can_resume() && all.next_check_in().is_none());
        assert!(all.add(ALICE, (0, b"a"), StartFrom::New));
        let number = all.next_due().expect("it is due");
        all.wait(number);
        all.remove(ALICE);
        assert_eq!(all.next_check_in(), None);
    }

    /// Row 2.18: time in which the server cannot read does not count, and all other time does, also between waits.
    #[test]
    fn a_client_that_does_not_gain_stalls_although_it_waits_for_reads_meanwhile() {
        const SECOND: u64 = 1_000_000_000;
        let mut all = CatchUps::new(HashKey(1, 2));
        assert!(all.add(ALICE, (0, b"a"), StartFrom::Sequence(1)));
        let (mut now_ns, mut compared) = (SteadyNanos::START, Vec::new());
        for _ in 0..8 {
            // A wait of 9 seconds, and a second of the client's.
            all.begin_turn(now_ns);
            let number = all.next_due().expect("it is due");
            all.wait_for_read(number);
            now_ns = now_ns.after(9 * SECOND);
            all.begin_turn(now_ns);
            all.resume_readers();
            let number = all.next_due().expect("a read is free");
            now_ns = now_ns.after(SECOND);
            let catch_up = all.get_mut(number).expect("it is there");
            (catch_up.next, catch_up.has_read_chunk) = (Some(5), true);
            compared.push(catch_up.has_stalled(100, 3 * SECOND, now_ns));
            all.make_due(number);
        }
        assert_eq!(compared, [false, false, false, true, true, true, true, true]);
    }

    #[test]
    fn those_that_leave_take_no_turn_of_a_read_and_no_memory() {
        let client = |token| ClientId { shard: 0, token };
        let mut all = CatchUps::new(HashKey(1, 2));
        all.note_read();
        for token in 1..=4 {
            assert!(all.add(client(token), (0, b"a"), StartFrom::New));
            let number = all.next_due().expect("it is due");
            all.wait_for_read(number);
        }
        (1..=3).for_each(|token| all.remove(client(token)));
        all.end_read();
        all.resume_readers();
        let next = all.next_due().expect("the fourth");
        assert_eq!(all.get_mut(next).map(|catch_up| catch_up.client), Some(client(4)));
        for token in 5..1000 {
            assert!(all.add(client(token), (0, b"a"), StartFrom::New));
            all.begin_turn(SteadyNanos::START);
            let number = all.next_due().expect("it is due");
            all.wait_for_read(number);
            all.remove(client(token));
        }
        assert!(all.without_read.len() <= 2 + CATCH_UP_READS_MAX);
    }

    /// Takes the next catch-up and has it hold a chunk of eight times the usual size.
    fn hold_a_long_chunk(all: &mut CatchUps) -> u32 {
        let number = all.next_due().expect("it is due");
        let request = ReadRequest {
            reader_id: all.reader_id(number),
            stream: 0,
            from: StartAt::Sequence(1),
            records_max: 1,
        };
        let payload = vec![0; 8 * CHUNK_SIZE];
        let mut chunk = Chunk::empty(&request);
        let record =
            Record { kind: RecordKind::Ordinary, subject: b"a", headers: b"", payload: payload.as_slice() };
        chunk.push(1, 1, &record);
        all.hold(number, Box::new(chunk), 0, 1);
        number
    }

    /// Catch-ups of shards without room hold a bounded number of bytes; the others wait and continue in order.
    #[test]
    fn held_chunks_are_bounded_and_their_end_continues_the_next_read() {
        let client = |token| ClientId { shard: 0, token };
        let mut all = CatchUps::new(HashKey(1, 2));
        let mut held = Vec::new();
        while all.may_hold() {
            assert!(all.add(client(held.len() as u64), (0, b"a"), StartFrom::New));
            held.push(hold_a_long_chunk(&mut all));
        }
        assert!(all.held_size <= CATCH_UP_CHUNKS_SIZE_MAX + 9 * CHUNK_SIZE);
        assert!(all.add(BOB_WAITING, (0, b"a"), StartFrom::New));
        let waits = all.next_due().expect("it is due");
        all.wait_for_read(waits);
        assert!(!all.can_resume());
        assert!(all.take_held(held[0]).is_some() && all.may_hold());
        all.resume_readers();
        assert_eq!(all.next_due(), Some(waits));
        assert!(all.take_held(held[0]).is_none(), "it is taken");
        (1..held.len()).for_each(|token| all.remove(client(token as u64)));
        assert_eq!(all.held_size, 0, "those that leave hold nothing");
    }

    /// Catch-ups whose shard has no room leave the chunks of a turn to the others.
    #[test]
    fn failed_attempts_use_no_chunk_of_the_turn() {
        let client = |token| ClientId { shard: 0, token };
        let mut all = CatchUps::new(HashKey(1, 2));
        for token in 0..2 * CATCH_UP_ATTEMPTS_PER_TURN as u64 {
            assert!(all.add(client(token), (0, b"a"), StartFrom::New));
        }
        for _ in 0..CATCH_UP_ATTEMPTS_PER_TURN {
            let number = all.next_due().expect("more than chunks per turn");
            all.wait(number);
        }
        assert_eq!(all.next_due(), None, "a turn ends");
        all.begin_turn(SteadyNanos::START);
        for _ in 0..CHUNKS_PER_TURN {
            assert!(all.next_due().is_some());
            all.use_chunk();
        }
        assert_eq!(all.next_due(), None);
    }

    #[test]
    fn a_second_catch_up_of_a_client_replaces_the_first() {
        let mut all = CatchUps::new(HashKey(1, 2));
        assert!(all.add(ALICE, (0, b"a"), StartFrom::New));
        assert!(all.add(ALICE, (1, b"b"), StartFrom::New));
        assert_eq!(all.len(), 1);
        let number = all.next_due().expect("it is due");
        assert_eq!(all.get_mut(number).map(|one| one.stream), Some(1));
        assert_eq!(all.next_due(), None);
    }
}
