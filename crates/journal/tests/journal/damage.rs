//! Damaged bytes: flipped bits, truncated files, noise. Every stream opens, and all damage is reported and costs only
//! its batch.

use crate::support::{LogContent, batch, content, open};
use proptest::prelude::*;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::inspect::Inspection;
use stilling_journal::{Finding, GapCause, Log, LogConfig, Recovery};

const SEGMENT_SIZE: u64 = 1 << 20;
/// Bytes of the journal that is damaged.
const SIZE: usize = 65_536;

/// A stream of one segment of 64 KiB, closed cleanly: two or three records in each batch but the last, which is empty.
fn journal() -> (SimulatedDisk, String, LogContent) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    for length in [1, 2, 3, 1, 1, 2, 1, 1, 1, 1] {
        let count = log.next() % 2 + 2;
        let batch = batch(1, log.next(), count, (length * 4096 - 64) / count as usize - 30);
        log.append(&mut [batch]).expect("nothing fails");
    }
    let whole = content(&log.source());
    log.close().expect("nothing fails");
    let (name, bytes) = disk.files().remove(0);
    assert_eq!(bytes.len(), SIZE);
    (disk, name, whole)
}

fn open_and_read(disk: &SimulatedDisk) -> (Recovery, LogContent) {
    let (log, recovery) = open(disk, SEGMENT_SIZE);
    (recovery, content(&log.source()))
}

/// Checks that all records read are those written, and that recovery and reader report all missing ones.
fn check_recovered(whole: &LogContent, (recovery, read): &(Recovery, LogContent), what: &str) {
    let missing: Vec<u64> = whole
        .records
        .iter()
        .filter(|record| read.records.binary_search_by_key(&record.0, |record| record.0).is_err())
        .map(|record| record.0)
        .collect();
    for record in &read.records {
        assert_eq!(whole.records.get(record.0 as usize - 1), Some(record), "{what}");
    }
    for sequence in missing {
        let is_told = recovery.findings.entries.iter().any(|finding| match finding {
            Finding::Damage { lost: Some((first, last)), .. } => (*first..=*last).contains(&sequence),
            Finding::Torn { sequences: (first, last), .. } => (*first..=*last).contains(&sequence),
            _ => false,
        });
        assert!(is_told, "{what}: {sequence} is not there: {}", recovery.findings);
        assert!(recovery.next > sequence, "{what}: {sequence} would be used again");
    }
}

/// "Every single-bit flip of a 64 KiB journal: all detected, damage confined, start succeeds."
#[test]
fn every_flipped_bit_is_reported_and_costs_at_most_its_batch() {
    let (disk, name, whole) = journal();
    assert!(open_and_read(&disk).0.findings.is_empty());
    let threads = 2;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (name, whole) = (&name, &whole);
            let disk = SimulatedDisk::with_files(disk.files());
            scope.spawn(move || {
                for bit in (thread..SIZE * 8).step_by(threads) {
                    let flip = |bytes: &mut Vec<u8>| bytes[bit / 8] ^= 1 << (bit % 8);
                    disk.change(name, flip);
                    let (log, recovery) = open(&disk, SEGMENT_SIZE);
                    assert!(!recovery.findings.is_empty(), "bit {bit} goes unseen");
                    let lost: u64 = recovery.findings.entries.iter().map(lost_by).sum();
                    assert!(lost <= 3, "bit {bit} costs {lost} records: {}", recovery.findings);
                    // Reading everything takes longer than finding the damage: every seventh bit covers each byte.
                    if bit % 7 == 0 {
                        let looked = (recovery, content(&log.source()));
                        check_recovered(whole, &looked, &format!("bit {bit}"));
                        assert!(
                            looked.1.records.len() as u64 + lost == whole.records.len() as u64,
                            "bit {bit}"
                        );
                    }
                    drop(log);
                    disk.change(name, flip);
                }
            });
        }
    });
}

fn lost_by(finding: &Finding) -> u64 {
    match finding {
        Finding::Damage { lost: Some((first, last)), .. } => last - first + 1,
        _ => 0,
    }
}

/// "Every truncation": the cut is reported at any position, and everything before it is read.
#[test]
fn every_truncation_is_reported_and_costs_what_is_behind_it() {
    let (disk, name, whole) = journal();
    let bytes = disk.files().remove(0).1;
    for size in 0..SIZE {
        disk.put(&name, bytes[..size].to_vec());
        let looked = open_and_read(&disk);
        assert!(!looked.0.findings.is_empty(), "cut to {size} goes unseen");
        if size >= 8192 {
            check_recovered(&whole, &looked, &format!("cut to {size}"));
        }
        let kept = bytes_of(&whole, &looked.1);
        assert!(kept + 3 * 4096 + 4096 >= size.saturating_sub(8192), "cut to {size}: {kept} bytes are left");
    }
}

fn bytes_of(whole: &LogContent, read: &LogContent) -> usize {
    read.records.iter().map(|record| whole.records[record.0 as usize - 1].1.len()).sum()
}

/// Damage in older segments does not slow down a start; readers report it.
#[test]
fn damage_in_an_older_segment_is_reported_by_readers_and_by_verify() {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 16_384);
    for _ in 0..20 {
        let batch = batch(1, log.next(), 2, 1500);
        log.append(&mut [batch]).expect("nothing fails");
    }
    drop(log);
    let name = disk.files()[2].0.clone();
    disk.change(&name, |bytes| bytes[5000] ^= 1);
    let (log, recovery) = open(&disk, 16_384);
    assert!(recovery.findings.is_empty());
    let first: u64 = name[..20].parse().expect("digits");
    assert_eq!(content(&log.source()).gaps, [(first, first + 1, GapCause::Damaged)]);
    let verdict = Inspection::of(disk.clone()).expect("it opens").verify().expect("it can be read");
    assert_eq!(verdict.records, 38);
    let reported = verdict.to_string();
    assert!(
        reported.contains(&format!("records {first} to {} are lost", first + 1)) && reported.contains(&name),
        "{reported}"
    );
}

/// A payload may contain bytes that look like a batch. Without the stream's id they are never read as one, whatever is
/// damaged around them.
#[test]
fn a_payload_that_looks_like_a_batch_never_becomes_one() {
    let (other, _, _) = journal();
    let forged = other.files().remove(0).1;
    let disk = SimulatedDisk::new();
    // Another stream has another id; here the disk draws a second time.
    stilling_journal::Disk::random_u64(&disk);
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    let mut batch = stilling_journal::Batch::new(1 << 17);
    batch.begin(1, 1);
    // The payload begins 76 bytes into the batch, so the forged batches are at block boundaries of the file.
    batch.push(&stilling_journal::Record::new(b"", &forged[76..])).expect("it fits");
    log.append(&mut [batch]).expect("nothing fails");
    drop(log);
    let name = disk.files().remove(0).0;
    disk.change(&name, |bytes| bytes[4096] ^= 1);
    let (recovery, read) = open_and_read(&disk);
    assert_eq!(read.records, []);
    assert!(recovery.findings.to_string().contains("is incomplete"), "{}", recovery.findings);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// With any content of the directory the stream opens, is read to its end, and accepts records.
    #[test]
    fn a_stream_of_random_bytes_opens_and_continues(
        files in prop::collection::vec((1_u64..60, prop::collection::vec(any::<u8>(), 0..20_000)), 0..4),
        pieces in prop::collection::vec((0_usize..16, 0_usize..16), 0..40),
        holes in prop::collection::vec((0..SIZE, 1_usize..9000, any::<u8>()), 0..6),
        at in 0_usize..3,
    ) {
        let (disk, name, _) = journal();
        let whole = disk.files().remove(0).1;
        // Blocks of a real journal in another order, with holes of noise.
        let mut shuffled = whole.clone();
        for (from, to) in pieces {
            shuffled.copy_within(from * 4096..(from + 1) * 4096, to * 4096);
        }
        for (start, length, byte) in holes {
            let end = SIZE.min(start + length);
            shuffled[start..end].fill(byte);
        }
        let disk = SimulatedDisk::new();
        for (first, content) in files {
            disk.put(&format!("{first:020}.segment"), content);
        }
        match at {
            0 => disk.put(&name, shuffled),
            1 => disk.put("00000000000000000070.segment", shuffled),
            _ => disk.put(&name, whole),
        }
        let (mut log, recovery) = open(&disk, SEGMENT_SIZE);
        content(&log.source());
        let first = log.next();
        prop_assert_eq!(first, recovery.next);
        log.append(&mut [batch(2, first, 3, 100)]).expect("the disk works");
        drop(log);
        let (_, read) = open_and_read(&disk);
        let tail: Vec<_> = read.records.iter().rev().take(3).map(|record| record.0).collect();
        prop_assert_eq!(tail, [first + 2, first + 1, first]);
    }
    /// With intact checksums and wrong header fields the stream opens, is read to its end, and accepts records.
    #[test]
    fn a_stream_with_false_heads_opens_and_continues(
        lies in prop::collection::vec((0_usize..16, 0_usize..12, 0_usize..8, any::<u64>(), 0_u32..64), 1..12),
        second in prop::option::of((2_u64..40, 0_usize..16)),
    ) {
        let (disk, name, _) = journal();
        let mut bytes = disk.files().remove(0).1;
        for (block, field, how, noise, shift) in lies {
            let at = block * 4096 + 8 + field * 8;
            let word: &mut [u8; 8] = (&mut bytes[at..at + 8]).try_into().expect("eight bytes");
            let value = u64::from_le_bytes(*word);
            *word = match how {
                0 => 0,
                1 => value.wrapping_add(1),
                2 => value.wrapping_sub(1),
                3 => value ^ 1 << shift,
                4 => noise >> shift,
                5 => (1_u64 << 62) - noise % 3,
                6 => noise % 40,
                _ => u64::MAX,
            }
            .to_le_bytes();
        }
        let disk = SimulatedDisk::new();
        if let Some((first, from)) = second {
            // Another segment of the same stream, with some of the same batches.
            let mut other = bytes[..4096].to_vec();
            other.extend_from_slice(&bytes[from * 4096..]);
            other[32..40].copy_from_slice(&first.to_le_bytes());
            disk.put(&format!("{first:020}.segment"), repaired(other));
        }
        disk.put(&name, repaired(bytes));
        let Ok((mut log, recovery)) = Log::open(disk.clone(), "events", LogConfig { segment_size: SEGMENT_SIZE, ..LogConfig::default() }) else {
            // The version field was changed.
            return Ok(());
        };
        content(&log.source());
        let first = log.next();
        prop_assert_eq!(first, recovery.next);
        if first < (1 << 62) - 3 {
            match log.append(&mut [batch(2, first, 3, 100)]) {
                Ok(_) => {}
                // By its header the file belongs to another stream, and its name is that of the next segment.
                Err(frozen) if frozen.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
                Err(frozen) => panic!("{frozen}"),
            }
            drop(log);
            let (_, read) = open_and_read(&disk);
            let tail: Vec<_> = read.records.iter().rev().take(3).map(|record| record.0).collect();
            prop_assert_eq!(tail, [first + 2, first + 1, first]);
        }
        Inspection::of(disk).expect("it opens").verify().expect("it can be read");
    }
}

fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(4096) {
        if block.starts_with(b"STILLSEG") {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..]);
            block[12..16].copy_from_slice(&crc.to_le_bytes());
        } else if block.starts_with(b"STBA") {
            let crc = crc32c::crc32c(&block[8..64]);
            block[4..8].copy_from_slice(&crc.to_le_bytes());
        }
    }
    bytes
}
