//! Decisions of a writer, their order, and the batches handed to the journal.

use stilling_journal::{IdleBatches, JournalAnswer, LogRetention, StreamIndex};

use super::*;
use crate::limits::OPEN_REFERENCES_NS_MAX;

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const NOW: Now = Now { unix_ns: UnixNanos::from_nanos(5), steady_ns: SteadyNanos::from_nanos(7) };

fn at(nanos: u64) -> SteadyNanos {
    SteadyNanos::from_nanos(nanos)
}

#[derive(Default)]
struct IdleJournal {
    free: Vec<Batch>,
    appended: Vec<Batch>,
}

impl Storage for IdleJournal {
    fn batch(&mut self, _: StreamIndex) -> Option<Batch> {
        let at = self.free.iter_mut().rposition(Batch::reset)?;
        Some(self.free.swap_remove(at))
    }

    fn idle(&self, _: StreamIndex) -> IdleBatches {
        let is_free = self.free.iter().any(|batch| !batch.is_shared());
        if is_free { IdleBatches::Free } else { IdleBatches::Shared }
    }

    fn return_batch(&mut self, _: StreamIndex, batch: Batch) {
        self.free.push(batch);
    }

    fn append(&mut self, _: StreamIndex, batch: Batch, _: u64) {
        self.appended.push(batch);
    }

    fn retain(&mut self, _: StreamIndex, _: LogRetention, _: UnixNanos, _: u64) -> bool {
        false
    }

    fn read(&mut self, _: ReadRequest) -> bool {
        false
    }

    fn publish(&mut self) {}

    fn next_answer(&mut self) -> Option<(JournalAnswer, Option<Batch>)> {
        None
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        None
    }

    fn has_answer(&self) -> bool {
        false
    }

    fn is_quiet(&self) -> bool {
        true
    }
}

fn batches(count: usize) -> IdleJournal {
    IdleJournal { free: (0..count).map(|_| Batch::new(4096)).collect(), appended: Vec::new() }
}

fn writer(durability: Durability) -> StreamWriter {
    let config = StreamConfig { durability, message_size_max: 2000, ..StreamConfig::default() };
    let limits = WriterLimits { batches_max: 2, memory_batch_size: 4096 };
    StreamWriter::new((3, config), HashKey(1, 2), ResumePoint::default(), limits)
}

fn record<'a>(payload: impl Into<Payload<'a>>) -> Record<'a, Payload<'a>> {
    Record::new(b"events.a", b"").with_payload(payload.into())
}

fn publication<'a>(headers: &'a str, payload: &'a [u8]) -> Publication<'a> {
    let headers = headers.as_bytes();
    Publication {
        ingress: Ingress::Nats,
        subject: b"events.a",
        reply: b"",
        headers,
        payload: payload.into(),
        ticket: None,
    }
}

fn store(writer: &mut StreamWriter, storage: &mut IdleJournal, headers: &str) -> StoreDecision {
    let publication = publication(headers, b"x");
    let decision = writer.decide(&publication, NOW);
    if let StoreDecision::Accept(id) = decision {
        let record = Record { headers: publication.headers, ..record(b"x") };
        writer.apply(&record, id, storage, NOW).expect("there is room");
    }
    decision
}

/// A rejected message changes nothing: its id is not remembered, and it gets no sequence.
#[test]
fn ids_are_checked_before_conditions_and_noted_on_apply() {
    let (mut writer, mut storage) = (writer(Durability::None), IdleJournal::default());
    let wrong = "NATS/1.0\r\nNats-Msg-Id: q\r\nNats-Expected-Last-Sequence: 7\r\n\r\n";
    let right = "NATS/1.0\r\nNats-Msg-Id: q\r\nNats-Expected-Last-Sequence: 0\r\n\r\n";
    let refusal = RefusalReason::WrongLastSequence { stream: 3, last: 0 };
    assert_eq!(store(&mut writer, &mut storage, wrong), StoreDecision::Reject(refusal));
    assert_eq!((writer.next, writer.dedup.len()), (1, 0));
    assert!(matches!(store(&mut writer, &mut storage, right), StoreDecision::Accept(Some(_))));
    assert_eq!((writer.next, writer.visible, writer.dedup.len()), (2, 1, 1));
    for again in [right, wrong] {
        assert_eq!(store(&mut writer, &mut storage, again), StoreDecision::Duplicate(1));
    }
    for (headers, refusal) in [
        ("NATS/1.0\r\nNats-Expected-Stream: other\r\n\r\n", RefusalReason::WrongStream { stream: 3 }),
        ("NATS/1.0\r\nNats-Rollup: all\r\n\r\n", RefusalReason::UnknownCondition { stream: 3 }),
    ] {
        assert_eq!(store(&mut writer, &mut storage, headers), StoreDecision::Reject(refusal));
    }
    let own = "NATS/1.0\r\nNats-Expected-Stream: events\r\n\r\n";
    assert_eq!(store(&mut writer, &mut storage, own), StoreDecision::Accept(None));
}

#[test]
fn a_stream_that_refuses_messages_gives_the_reason() {
    let mut writer = writer(Durability::Disk);
    let decided =
        |writer: &mut StreamWriter, size: usize| writer.decide(&publication("", &vec![b'x'; size]), NOW);
    assert_eq!(decided(&mut writer, 2000), StoreDecision::Accept(None));
    assert_eq!(decided(&mut writer, 2001), StoreDecision::Reject(RefusalReason::TooLarge { stream: 3 }));
    let frozen = Frozen { reason: "EIO".into(), kind: io::ErrorKind::Other };
    writer.freeze(frozen);
    assert_eq!(decided(&mut writer, 1), StoreDecision::Reject(RefusalReason::Frozen { stream: 3 }));
    writer.mark_closed("it is elsewhere".into());
    assert_eq!(decided(&mut writer, 1), StoreDecision::Reject(RefusalReason::Closed { stream: 3 }));
}

/// Batches go to the journal when full, or at the end of a turn in which the journal has none.
#[test]
fn records_are_batched_while_the_journal_writes_and_wait_without_a_batch() {
    let (mut writer, mut storage) = (writer(Durability::Disk), batches(8));
    let payload = [b'x'; 1500];
    let record = record(&payload);
    let mut sequences = Vec::new();
    for _ in 0..3 {
        sequences.push(writer.apply(&record, None, &mut storage, NOW).expect("there is room"));
        writer.flush(&mut storage);
    }
    // The first record is written alone; the other two share a batch, which fills meanwhile.
    assert_eq!((sequences, storage.appended.len(), writer.visible), (vec![1, 2, 3], 1, 0));
    assert!(!writer.is_drained() && writer.is_watched());
    assert_eq!(writer.apply(&record, None, &mut storage, NOW), Err(ApplyError::NoBatch), "it has two");
    let counts: Vec<u32> = storage.appended.iter().map(Batch::count).collect();
    assert_eq!((counts, storage.appended[1].first()), (vec![1, 2], 2), "the full one is handed over");
    let long = [b'x'; 4096];
    let release = writer.answered(None, 1);
    writer.end_release(release);
    let too_large = writer.apply(&self::record(&long), None, &mut storage, NOW);
    assert_eq!(too_large, Err(ApplyError::TooLarge));
    assert_eq!(writer.next, 4, "neither has got a sequence");
    assert_eq!(writer.apply(&record, None, &mut storage, NOW), Ok(4));
}

fn block(size: usize) -> (stilling_ring::BlockWriter, SharedBlock, Range<usize>) {
    let mut writer = stilling_ring::BlockWriter::new(8192);
    let range = writer.append(&vec![b'b'; size]).expect("there is room");
    let shared = writer.share();
    (writer, shared, range)
}

/// The open batch refers to blocks for a bounded time, however long the previous write takes.
#[test]
fn an_open_batch_releases_blocks_while_a_write_hangs() {
    let (mut writer, mut storage) = (writer(Durability::Disk), batches(8));
    let (mut owner, shared, range) = block(1500);
    writer.apply(&record(b"x"), None, &mut storage, NOW).expect("there is room");
    writer.flush(&mut storage);
    assert_eq!(writer.builds_in(), None);
    let referring = record(Payload::shared(&shared, range));
    writer.apply(&referring, None, &mut storage, NOW).expect("there is room");
    writer.flush(&mut storage);
    drop(shared);
    let due_ns = NOW.steady_ns.after(OPEN_REFERENCES_NS_MAX);
    assert_eq!(writer.builds_in(), Some(OPEN_REFERENCES_NS_MAX));
    writer.begin_turn(at(due_ns.as_nanos() - 1));
    assert!(writer.builds_in() == Some(1) && owner.is_shared(), "a later turn does not put it off");
    writer.begin_turn(due_ns);
    assert!(writer.builds_in().is_none() && owner.reset());
    let release = writer.answered(None, 1);
    writer.end_release(release);
    writer.flush(&mut storage);
    let payloads: Vec<_> = storage.appended[1].records().map(|(_, record)| record.payload.to_vec()).collect();
    assert_eq!(payloads, [vec![b'b'; 1500]]);
}

#[test]
fn a_stream_waits_for_deliveries_that_refer_to_all_batches() {
    let (mut writer, mut storage) = (writer(Durability::Disk), batches(1));
    let shared = storage.free[0].share();
    let outcome = writer.apply(&record(b"x"), None, &mut storage, NOW);
    assert_eq!((outcome, writer.waits_for_references()), (Err(ApplyError::NoBatch), true));
    drop(shared);
    writer.begin_turn(NOW.steady_ns);
    assert!(!writer.waits_for_references());
    assert_eq!(writer.apply(&record(b"x"), None, &mut storage, NOW), Ok(1));
}

#[test]
fn what_is_not_on_disk_is_visible_at_once() {
    let mut storage = IdleJournal::default();
    for durability in [Durability::Memory, Durability::None] {
        let mut writer = writer(durability);
        let record = record(b"x");
        assert_eq!(writer.apply(&record, None, &mut storage, NOW), Ok(1));
        assert_eq!((writer.visible, writer.newest_ns, writer.is_drained()), (1, Some(NOW.unix_ns), true));
    }
    let long = [b'x'; 5000];
    let too_large = writer(Durability::Memory).apply(&record(&long), None, &mut storage, NOW);
    assert_eq!(too_large, Err(ApplyError::TooLarge));
}

/// Pending answers count as waiting messages, as do records without answers.
#[test]
fn messages_that_wait_for_the_disk_are_bounded() {
    let (mut writer, mut storage) = (writer(Durability::Disk), batches(1));
    writer.config.pending_max = 2;
    let to = AckTarget::Reply(0, 0);
    let ack = PendingAck { client: ALICE, sequence: 1, outcome: AckedOutcome::Stored, no_echo: false, to };
    assert!(writer.has_room_for(5, at(0)));
    store(&mut writer, &mut storage, "");
    writer.push_ack(ack, b"inbox");
    writer.push_ack(PendingAck { outcome: AckedOutcome::Duplicate, ..ack }, b"inbox");
    assert!(!writer.has_room_for(5, at(0)));
    writer.flush(&mut storage);
    let release = writer.answered(None, 1);
    writer.queue_release(release);
    assert!(!writer.has_room_for(5, at(0)), "they are not given yet");
    let release = writer.take_release().expect("it was queued");
    assert_eq!(release.acks.get(1).map(|ack| ack.outcome), Some(AckedOutcome::Duplicate));
    writer.end_release(release);
    assert!(writer.has_room_for(0, at(0)));
    assert!(!writer.has_room_for(REPLIES_SIZE_MAX + 1, at(0)));
    writer.wait("no space", io::ErrorKind::StorageFull, at(5));
    assert!(writer.has_room_for(0, at(4 + DISK_STALL_TIMEOUT_NS)));
    assert!(!writer.has_room_for(0, at(5 + DISK_STALL_TIMEOUT_NS)), "it has waited too long");
    writer.resume(at(6 + DISK_STALL_TIMEOUT_NS));
    assert!(writer.has_room_for(0, at(6 + DISK_STALL_TIMEOUT_NS)));
}

/// The answers of a connection keep their order while a release waits for room.
#[test]
fn what_is_answered_again_and_closed_comes_behind_a_release_that_waits() {
    let (mut writer, mut storage) = (writer(Durability::Disk), batches(8));
    let ack = |sequence, outcome| PendingAck {
        client: ALICE,
        sequence,
        outcome,
        no_echo: false,
        to: AckTarget::Ticket(0),
    };
    assert!(!writer.push_close(ALICE, at(0)), "nothing is awaited");
    store(&mut writer, &mut storage, "");
    writer.push_ack(ack(1, AckedOutcome::Stored), b"");
    writer.flush(&mut storage);
    assert!(writer.is_pending(1));
    let release = writer.answered(None, 1);
    writer.queue_release(release);
    let release = writer.take_release().expect("it was queued");
    assert_eq!((writer.visible, writer.is_drained()), (1, true));
    writer.put_release_back(release);
    assert!(writer.is_pending(1) && !writer.is_drained(), "it is durable, and not acknowledged");
    writer.push_answer(ack(1, AckedOutcome::Duplicate), b"", "");
    store(&mut writer, &mut storage, "");
    writer.push_answer(ack(2, AckedOutcome::Duplicate), b"", "");
    assert!(writer.push_close(ALICE, at(0)));
    let first = writer.take_release().expect("it was put back");
    assert_eq!([first.acks.get(1), first.acks.get(2)], [Some(ack(1, AckedOutcome::Duplicate)), None]);
    writer.put_release_back(first);
    // The disk is overdue: the connection waits only for room.
    assert_eq!(writer.take_closing(), []);
    let first = writer.take_release().expect("it was put back");
    assert_eq!(first.acks.get(2), Some(PendingAck::close(ALICE)));
    writer.end_release(first);
    assert!(!writer.is_pending(1) && writer.is_pending(2));
    assert_eq!(writer.take_closing(), []);
}
