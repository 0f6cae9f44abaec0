//! A stream opens with arbitrary bytes in its directory, can be read to its end, and accepts a record that is read
//! back. The input is a list of edits of a small valid journal; the first byte selects whether the checksums of all
//! heads are repaired afterwards, so that the code behind the checksum is reached too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::inspect::Inspection;
use stilling_journal::{Batch, Gap, Log, LogConfig, OpenError, ReadOutcome, Record, StartAt};

const BLOCK: usize = 4096;
const CONFIG: LogConfig = LogConfig { segment_size: 5 * BLOCK as u64, created_ns: 1 };

fuzz_target!(|bytes: &[u8]| {
    let Some((&is_repaired, edits)) = bytes.split_first() else { return };
    let disk = journal();
    let names: Vec<String> = disk.files().into_iter().map(|(name, _)| name).collect();
    for edit in edits.chunks_exact(12) {
        let name = &names[usize::from(edit[0]) % names.len()];
        disk.change(name, |content| {
            let at = usize::from(edit[1]) % 6 * BLOCK + usize::from(edit[2]) * 8;
            let Some(place) = content.get_mut(at..at + 8) else { return };
            match edit[3] {
                0 => content.truncate(at),
                1 => place
                    .iter_mut()
                    .zip(&edit[4..])
                    .for_each(|(byte, change)| *byte = byte.wrapping_add(*change)),
                _ => place.copy_from_slice(&edit[4..]),
            }
        });
    }
    for name in names.iter().filter(|_| is_repaired.is_multiple_of(2)) {
        disk.change(name, |content| content.chunks_exact_mut(BLOCK).for_each(repair));
    }
    if !read_all(&disk) {
        return;
    }
    let (mut log, recovery) = Log::open(disk.clone(), "fuzzed", CONFIG).expect("it opened before");
    let mut batch = Batch::new(BLOCK);
    batch.begin(recovery.next, 9);
    batch.push(&Record::new(b"new", b"record")).expect("it fits");
    if log.append(&mut [batch]).is_ok() {
        let mut reader = log.source().read_from(StartAt::Sequence(recovery.next));
        let Ok(ReadOutcome::Batch(batch)) = reader.read() else { panic!("the new record is not there") };
        assert!(batch.records.eq([(recovery.next, Record::new(b"new", b"record"))]));
        drop(log);
        assert!(read_all(&disk));
    }
});

/// Opens and reads everything; false if the journal has another version.
fn read_all(disk: &SimulatedDisk) -> bool {
    let log = match Log::open(disk.clone(), "fuzzed", CONFIG) {
        Ok((log, _)) => log,
        Err(OpenError::Version { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    let mut next = 1;
    loop {
        match reader.read().expect("every file can be opened") {
            ReadOutcome::End => break,
            ReadOutcome::Gap(Gap { first, last, .. }) => {
                assert!(first == next && last >= first);
                next = last + 1;
            }
            ReadOutcome::Batch(batch) => {
                for (sequence, _) in batch.records {
                    assert_eq!(sequence, next);
                    next += 1;
                }
            }
        }
    }
    assert!(next == 1 || next == log.durable() + 1);
    Inspection::of(disk.clone()).expect("it opened").verify().expect("every file can be opened");
    true
}

/// Three segments, the last one not full.
fn journal() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let (mut log, _) = Log::open(disk.clone(), "fuzzed", CONFIG).expect("an empty directory opens");
    for _ in 0..10 {
        let mut batch = Batch::new(BLOCK);
        batch.begin(log.next(), 1);
        batch.push(&Record::new(b"a", b"payload")).expect("it fits");
        batch.push(&Record::new(b"b", b"")).expect("it fits");
        log.append(&mut [batch]).expect("the disk works");
    }
    disk
}

/// Repairs the checksum of a head, if the block begins with one.
fn repair(block: &mut [u8]) {
    if block.starts_with(b"STILLSEG") {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..]);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
    } else if block.starts_with(b"STBA") {
        let crc = crc32c::crc32c(&block[8..64]);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}
