//! Crashes and damage of the spool: no committed, uncompleted message is lost, none is delivered twice in one run, no
//! foreign one appears, and the order holds.

use stilling_journal::disk::simulated::{DiskFaults, EIO, ENOSPC, SimulatedDisk};

use super::*;

fn open(disk: &SimulatedDisk) -> OpenedSpool<SimulatedDisk> {
    DiskSpool::open(disk.clone(), 8 * 1024 * 1024).expect("any bytes can be opened")
}

fn entry(number: u64, size: usize) -> SpoolEntry {
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize(8 + size, number as u8);
    let message = OutgoingMessage::new(b"a.b", b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n", &payload);
    let cost = cost(&message);
    SpoolEntry::new(message, cost)
}

fn number(entry: &SpoolEntry) -> u64 {
    let payload = entry.message.payload();
    assert!(payload[8..].iter().all(|byte| *byte == payload[0]), "it is what was given");
    assert_eq!((entry.message.subject(), entry.message.id().as_str()), (&b"a.b"[..], "x"));
    u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"))
}

fn push(spool: &mut DiskSpool<SimulatedDisk>, numbers: std::ops::Range<u64>, size: usize) {
    for number in numbers {
        spool.push(entry(number, size));
    }
    assert!(spool.commit(1).is_empty());
}

fn pop_all(spool: &mut DiskSpool<SimulatedDisk>) -> Vec<u64> {
    std::iter::from_fn(|| spool.pop()).map(|entry| number(&entry)).collect()
}

#[test]
fn what_was_not_settled_is_there_again_after_a_crash() {
    let disk = SimulatedDisk::new();
    let mut spool = open(&disk).spool;
    push(&mut spool, 0..10, 100);
    let ids: Vec<u64> = (0..6).map(|_| spool.pop().expect("there are ten").id).collect();
    spool.release_below(ids[4], Instant::now());
    assert!(spool.checkpoint_at().is_some());
    spool.checkpoint(2);
    drop(spool);
    let again = open(&disk);
    assert!(again.findings.is_empty(), "{}", again.findings);
    assert_eq!((again.messages, again.bytes), (6, 6 * BLOCK));
    let mut spool = again.spool;
    assert_eq!(pop_all(&mut spool), [4, 5, 6, 7, 8, 9]);
    push(&mut spool, 10..12, 100);
    assert_eq!(pop_all(&mut spool), [10, 11]);
    spool.release_below(u64::MAX, Instant::now());
    spool.close(3);
    let last = open(&disk);
    assert_eq!((last.messages, last.bytes), (0, 0));
}

/// A checkpoint that triggers a checkpoint would never end.
#[test]
fn when_all_is_settled_and_noted_nothing_is_to_be_done() {
    let mut spool = open(&SimulatedDisk::new()).spool;
    push(&mut spool, 0..3, 10);
    pop_all(&mut spool);
    spool.release_below(u64::MAX, Instant::now());
    spool.checkpoint(2);
    spool.release_below(u64::MAX, Instant::now());
    assert_eq!(spool.checkpoint_at(), None);
}

#[test]
fn what_does_not_fit_the_cache_is_read_when_its_turn_comes() {
    let disk = SimulatedDisk::new();
    let mut spool = open(&disk).spool;
    let size = 300_000;
    let slot = crate::ticket::OutcomeSlot::default();
    for number in 0..30 {
        let mut entry = entry(number, size);
        entry.ticket = (number == 29).then(|| crate::ticket::OutcomeSender::new(slot.clone()));
        spool.push(entry);
        if number % 4 == 0 {
            assert!(spool.commit(1).is_empty());
        }
    }
    assert!(spool.commit(1).is_empty());
    assert!(spool.cache.len() < 20, "the cache is bounded");
    assert_eq!(
        slot.outcome(),
        Some(PublishOutcome::Queued),
        "a caller behind so many messages stops waiting"
    );
    let first: Vec<u64> = (0..25).map(|_| number(&spool.pop().expect("thirty"))).collect();
    push(&mut spool, 30..32, size);
    let rest = pop_all(&mut spool);
    assert_eq!(first.into_iter().chain(rest).collect::<Vec<_>>(), (0..32).collect::<Vec<_>>());
    assert!(spool.lost().is_empty());
}

#[test]
fn settled_segments_go_and_a_message_that_no_batch_takes_is_refused() {
    let disk = SimulatedDisk::new();
    let mut spool = open(&disk).spool;
    for round in 0..20 {
        push(&mut spool, round * 4..round * 4 + 4, 200_000);
        assert_eq!(pop_all(&mut spool).len(), 4);
        spool.release_below(u64::MAX, Instant::now());
        spool.checkpoint(2);
    }
    let size: usize = disk.files().iter().map(|(_, content)| content.len()).sum();
    assert!(size <= 3 * 1024 * 1024, "{size} bytes for nothing");
    spool.push(entry(1, 3 * 1024 * 1024));
    spool.push(entry(2, 10));
    let refused = spool.commit(1);
    assert!(matches!(refused[..], [(_, DropReason::TooLarge { .. })]));
    assert_eq!(pop_all(&mut spool), [2]);
}

/// Power failures at every point, with every set of unsynced writes: committed messages remain.
#[test]
fn a_crash_at_any_point_forgets_nothing_that_was_committed() {
    let disk = SimulatedDisk::recording();
    let mut spool = open(&disk).spool;
    let start = disk.history().points();
    // At each point of the history: messages committed, and messages that may be missing because a checkpoint had
    // begun.
    let mut guarantees = vec![(start, 0, 0)];
    let mut guarantee = |committed, settled| guarantees.push((disk.history().points(), committed, settled));
    push(&mut spool, 0..3, 100);
    guarantee(3, 0);
    push(&mut spool, 3..5, 5000);
    guarantee(5, 0);
    let third = (0..3).filter_map(|_| spool.pop()).last().expect("five").id;
    spool.release_below(third, Instant::now());
    guarantee(5, 2);
    spool.checkpoint(1);
    push(&mut spool, 5..9, 10);
    guarantee(9, 2);
    spool.close(1);
    let history = disk.history();
    for point in start..history.points() {
        let (committed, settled) = guarantees
            .iter()
            .take_while(|(at, ..)| *at <= point)
            .last()
            .map(|(_, committed, settled)| (*committed, *settled))
            .expect("the first one is before all");
        let crash = history.at(point);
        for choice in 0..3 {
            let after = crash.disk(|at| choice == 1 || (choice == 2 && at % 2 == 0));
            let mut again = open(&after).spool;
            let found = pop_all(&mut again);
            assert!(found.is_sorted(), "point {point}: {found:?}");
            let expected: Vec<u64> = (settled..committed).collect();
            let missing: Vec<_> = expected.iter().filter(|number| !found.contains(number)).collect();
            assert!(missing.is_empty(), "point {point}, choice {choice}: {missing:?} of {found:?}");
            push(&mut again, 100..101, 10);
            assert_eq!(pop_all(&mut again), [100], "it goes on");
        }
    }
}

fn damaged() -> (SimulatedDisk, String, Vec<u8>) {
    let disk = SimulatedDisk::new();
    let mut spool = open(&disk).spool;
    for number in 0..10 {
        push(&mut spool, number..number + 1, 100);
        if number == 5 {
            let fifth = (0..5).filter_map(|_| spool.pop()).last().expect("six").id;
            spool.release_below(fifth, Instant::now());
            spool.checkpoint(1);
        }
    }
    // As after a kill: the file is not truncated to its content.
    drop(spool);
    let (name, mut bytes) = disk.files().remove(0);
    let end = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    bytes.truncate(end.next_multiple_of(4096));
    (disk, name, bytes)
}

fn check_damaged(disk: &SimulatedDisk, least: usize, what: &dyn Fn() -> String) {
    let opened = open(disk);
    let (messages, findings) = (opened.messages, opened.findings);
    let mut spool = opened.spool;
    let found = pop_all(&mut spool);
    assert!(found.is_sorted() && found.iter().all(|number| *number < 10), "{}: {found:?}", what());
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{}: twice", what());
    assert_eq!(messages, (found.len() + spool.lost().len()) as u64, "{}", what());
    let wanted = (4..10).filter(|number| found.contains(number)).count();
    assert!(wanted >= least, "{}: {found:?} and {findings}", what());
}

#[test]
fn a_spool_that_was_cut_anywhere_opens_with_what_is_before_the_cut() {
    let (disk, name, bytes) = damaged();
    for size in (0..=bytes.len()).step_by(7).chain([bytes.len()]) {
        disk.put(&name, bytes[..size].to_vec());
        // One block of header, one batch per block; the checkpoint is the seventh batch.
        let batches = (size / 4096).saturating_sub(1);
        let messages = if batches >= 7 { batches - 1 } else { batches };
        check_damaged(&disk, messages.saturating_sub(4), &|| format!("cut to {size}"));
    }
}

/// Every changed byte: at most the message of its batch is lost, and a damaged checkpoint only causes duplicates.
#[test]
fn a_flipped_bit_anywhere_costs_at_most_one_message() {
    let (disk, name, bytes) = damaged();
    disk.put(&name, bytes.clone());
    let blank = |at: usize| bytes[at] == 0 && !at.is_multiple_of(64);
    for at in (0..bytes.len()).filter(|at| !blank(*at)) {
        disk.change(&name, |bytes| bytes[at] ^= 1 << (at % 8));
        check_damaged(&disk, 5, &|| format!("byte {at}"));
        disk.change(&name, |bytes| bytes[at] ^= 1 << (at % 8));
    }
}

#[test]
fn a_disk_that_fails_refuses_what_is_not_safe_and_delivers_what_is() {
    let disk = SimulatedDisk::new();
    let mut spool = open(&disk).spool;
    push(&mut spool, 0..2, 10);
    disk.fail(stilling_journal::disk::simulated::DiskFaults { writes: Some((0, 5)), ..Default::default() });
    spool.push(entry(2, 10));
    spool.push(entry(3, 10));
    let refused = spool.commit(1);
    assert_eq!(refused.len(), 2);
    assert!(refused.iter().all(|(_, reason)| matches!(reason, DropReason::SpoolFailed(_))));
    assert_eq!(pop_all(&mut spool), [0, 1]);
}

/// An unreadable disk loses no message: opening fails, and an open spool retries.
#[test]
fn messages_that_cannot_be_read_now_are_not_lost() {
    let disk = SimulatedDisk::new();
    let mut spool = open(&disk).spool;
    push(&mut spool, 0..40, 100_000);
    drop(spool);
    let fail = |after| disk.fail(DiskFaults { reads: Some((after, 2, EIO)), ..DiskFaults::default() });
    let mut failed = 0;
    for after in 0..30 {
        fail(after);
        match DiskSpool::open(disk.clone(), 8 * 1024 * 1024) {
            Ok(opened) => assert_eq!(opened.messages, 40, "after {after} reads"),
            Err(error) => {
                assert!(error.to_string().starts_with("cannot read"), "{error}");
                failed += 1;
            }
        }
        disk.fail(DiskFaults::default());
        let mut spool = open(&disk).spool;
        fail(after);
        let mut numbers = Vec::new();
        for _ in 0..3 {
            numbers.extend(pop_all(&mut spool));
        }
        disk.fail(DiskFaults::default());
        assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "after {after} reads");
        assert!(spool.lost().is_empty());
    }
    assert!(failed >= 6, "{failed} openings failed");
}

/// A full disk refuses messages submitted meanwhile, with the reason, and none afterwards.
#[test]
fn a_spool_accepts_messages_again_when_the_disk_has_space() {
    let disk = SimulatedDisk::new();
    let mut spool = open(&disk).spool;
    for fault in [
        DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() },
        DiskFaults { writes: Some((0, ENOSPC)), ..DiskFaults::default() },
    ] {
        disk.fail(fault);
        let mut refused = Vec::new();
        for number in 100..140 {
            spool.push(entry(number, 100_000));
            refused.extend(spool.commit(1));
        }
        let is_reported = |(_, reason): &(SpoolEntry, DropReason)| matches!(reason, DropReason::SpoolFailed(text) if text.contains("No space"));
        assert!(!refused.is_empty() && refused.iter().all(is_reported));
        disk.fail(DiskFaults::default());
        let before = pop_all(&mut spool).len();
        assert_eq!(before + refused.len(), 40);
        push(&mut spool, 0..3, 100_000);
        assert_eq!(pop_all(&mut spool), [0, 1, 2]);
    }
    assert!(open_again(disk, spool).findings.is_empty());
}

fn open_again(disk: SimulatedDisk, spool: DiskSpool<SimulatedDisk>) -> OpenedSpool<SimulatedDisk> {
    drop(spool);
    open(&disk)
}
