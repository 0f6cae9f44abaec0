//! Appended records are read back: over segments and runs, from any position, by readers beside the writer.

use crate::support::{batch, content, content_from, open, payload, time_of};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::inspect::Inspection;
use stilling_journal::{Disk, GapCause, Log, LogConfig, OpenError, ReadOutcome, StartAt};

/// Appends batches of one to five records of up to 9 KB until `until`, several with each call.
fn fill<D: Disk>(log: &mut Log<D>, run: u64, until: u64) {
    while log.next() < until {
        let mut next = log.next();
        let mut batches: Vec<_> = (0..next % 4 + 1)
            .map(|at| {
                let batch = batch(run, next, (next + at) % 5 + 1, (next * 911 % 9000) as usize);
                next = batch.next();
                batch
            })
            .collect();
        assert_eq!(log.append(&mut batches).expect("nothing fails"), next - 1);
        assert_eq!((log.durable(), log.next()), (next - 1, next));
    }
}

fn check_runs<D: Disk>(disk: &D, records: u64) {
    let mut ends = vec![1];
    for run in 0..4 {
        let (mut log, recovery) = open(disk, 100_000);
        assert!(recovery.findings.is_empty(), "{}", recovery.findings);
        assert_eq!(recovery.next, ends[run as usize]);
        let until = recovery.next + records;
        fill(&mut log, run, until);
        ends.push(log.next());
        let source = log.source();
        let read = content(&source);
        assert_eq!(read.gaps, []);
        assert_eq!(read.records.len() as u64, log.next() - 1);
        for (sequence, bytes) in &read.records {
            let run =
                ends.iter().rposition(|end| end <= sequence).expect("the first run begins with 1") as u64;
            assert!(bytes.starts_with(&payload(run, *sequence, 0)), "{sequence}");
        }
        for from in [2, 57, records, log.next() - 1] {
            let tail = content_from(&source, StartAt::Sequence(from));
            assert_eq!(tail.records, read.records[from as usize - 1..]);
            // A batch has the time of its first record.
            let tail = content_from(&source, StartAt::Time(time_of(from)));
            let first = tail.records.first().map_or(log.next(), |(sequence, _)| *sequence);
            assert!(first >= from && first < from + 5, "{from}: {first}");
        }
        assert!(content_from(&source, StartAt::Sequence(log.next())).records.is_empty());
        assert!(content_from(&source, StartAt::Time(time_of(log.next()))).records.is_empty());
        // Every other run ends without a clean close.
        if run % 2 == 0 {
            log.close().expect("nothing fails");
        }
    }
    let verdict = Inspection::of(disk.clone()).expect("it opens").verify().expect("it can be read");
    assert!(verdict.findings.is_empty(), "{verdict}");
    assert_eq!(verdict.records, ends[4] - 1);
}

/// Rows 2.12 and 2.15: order and times are preserved over segments and runs, with and without a clean close.
#[test]
fn what_was_appended_is_read_back_in_order() {
    check_runs(&SimulatedDisk::new(), 300);
}

/// Row 2.6: the same on a file system, with direct writes where supported and through the page cache.
#[cfg(target_os = "linux")]
#[test]
fn files_on_a_real_disk_pass_the_same_checks() {
    use stilling_journal::WriteMethod;
    use stilling_journal::disk::file::{FileDisk, FreshSpace};
    let directory = tempfile::tempdir().expect("a directory");
    let disk = FileDisk::open_or_create(&directory.path().join("a/b")).expect("it can be made");
    check_runs(&disk, 80);
    let buffered = WriteMethod::Buffered { reason: "a test".to_owned() };
    let disk = disk.directory("c").expect("it can be made").with(buffered, FreshSpace::Unzeroed);
    check_runs(&disk, 80);
    let disk = disk.directory("d").expect("it can be made");
    check_runs(&disk.clone().with(disk.method().clone(), FreshSpace::Unzeroed), 80);
}

/// Row 2.13: an idle stream writes nothing, not even a file.
#[test]
fn an_idle_stream_leaves_the_disk_alone() {
    let disk = SimulatedDisk::recording();
    let (log, _) = open(&disk, 100_000);
    log.close().expect("there is nothing to write");
    assert_eq!(disk.history().events(), []);
    let (mut log, _) = open(&disk, 100_000);
    log.append(&mut [batch(0, 1, 0, 0)]).expect("there is nothing to write");
    assert_eq!(disk.history().events(), []);
}

/// Row 2.14: the time of a batch precedes its records, however long the stream was idle before.
#[test]
fn a_time_precedes_every_record() {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 100_000);
    for first in [1, 3, 5] {
        log.append(&mut [batch(0, first, 2, 10)]).expect("nothing fails");
    }
    let mut reader = log.source().read_from(StartAt::Sequence(4));
    let Ok(ReadOutcome::Batch(batch)) = reader.read() else { panic!("a batch") };
    assert_eq!((batch.time_ns, batch.records.count()), (time_of(3), 1));
}

#[test]
fn a_reader_beside_the_writer_sees_what_is_durable_and_then_the_rest() {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 40_000);
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    let mut seen = 0;
    for first in (1..200).step_by(2) {
        assert!(matches!(reader.read(), Ok(ReadOutcome::End)));
        log.append(&mut [batch(0, first, 2, 3000)]).expect("nothing fails");
        let Ok(ReadOutcome::Batch(batch)) = reader.read() else { panic!("a batch") };
        seen += batch.records.count();
    }
    assert_eq!(seen, 200);
    assert!(reader.next_sequence() == 201 && log.source().first() == Some(1));
}

/// A batch larger than a segment gets a segment of its own size.
#[test]
fn a_batch_longer_than_a_segment_gets_one_of_its_own() {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 8192);
    for first in 1..4 {
        log.append(&mut [batch(0, first, 1, 200_000)]).expect("nothing fails");
    }
    assert_eq!(content(&log.source()).records.len(), 3);
    assert_eq!(disk.files().len(), 3);
}

/// "Two servers on one directory": the second is rejected, with the process id of the first.
#[test]
fn a_directory_has_one_writer() {
    let check = |first: Result<(), OpenError>| {
        let message = first.expect_err("it is held").to_string();
        let own = std::process::id().to_string();
        assert!(message.contains(&own) && message.contains("two servers"), "{message}");
    };
    let disk = SimulatedDisk::new();
    let (log, _) = open(&disk, 8192);
    check(Log::open(disk.clone(), "events", LogConfig::default()).map(|_| ()));
    drop(log);
    open(&disk, 8192);
    #[cfg(target_os = "linux")]
    {
        let directory = tempfile::tempdir().expect("a directory");
        let disk =
            stilling_journal::disk::file::FileDisk::open_or_create(directory.path()).expect("it can be made");
        let (log, _) = open(&disk, 8192);
        check(Log::open(disk.clone(), "events", LogConfig::default()).map(|_| ()));
        drop(log);
        open(&disk, 8192);
    }
}

/// "A journal of another version": rejected with advice, and unchanged.
#[test]
fn another_version_is_refused_with_a_clear_message() {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 8192);
    log.append(&mut [batch(0, 1, 1, 10)]).expect("nothing fails");
    drop(log);
    let file = disk.files()[0].0.clone();
    disk.change(&file, |bytes| {
        bytes[8] = 9;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..4096]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    });
    let error = Log::open(disk.clone(), "events", LogConfig::default()).expect_err("format 9");
    let message = error.to_string();
    assert!(message.contains("format 9") && message.contains(&file), "{message}");
}

#[test]
fn foreign_files_are_left_unchanged_and_reported() {
    let other = SimulatedDisk::new();
    let (mut log, _) =
        Log::open(other.clone(), "other", LogConfig { segment_size: 8192, ..LogConfig::default() })
            .expect("it opens");
    log.append(&mut [batch(0, 1, 1, 10)]).expect("nothing fails");
    drop(log);
    let disk = SimulatedDisk::with_files([("notes.txt".to_owned(), b"mine".to_vec())]);
    let foreign = other.files().remove(0);
    disk.put(&foreign.0, foreign.1.clone());
    let (mut log, recovery) = open(&disk, 8192);
    assert_eq!(recovery.findings.entries.len(), 2, "{}", recovery.findings);
    let reported = recovery.findings.to_string();
    assert!(reported.contains("notes.txt") && reported.contains("another name"), "{reported}");
    // The foreign file has the name of the first segment: the stream cannot continue, and does not overwrite it.
    let frozen = log.append(&mut [batch(0, 1, 1, 10)]).expect_err("the file is there");
    assert!(frozen.to_string().contains(&foreign.0), "{frozen}");
    assert!(disk.files().contains(&foreign));
}

#[test]
fn segments_missing_in_the_middle_are_reported_with_their_sequences() {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 40_000);
    fill(&mut log, 0, 100);
    let whole = content(&log.source());
    drop(log);
    let names: Vec<_> = disk.files().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() > 5);
    disk.remove(&names[2]).expect("it is there");
    disk.remove(&names[3]).expect("it is there");
    let (log, recovery) = open(&disk, 40_000);
    let (first, last): (u64, u64) =
        (names[2][..20].parse().unwrap(), names[4][..20].parse::<u64>().unwrap() - 1);
    assert_eq!(recovery.findings.entries.len(), 1, "{}", recovery.findings);
    assert!(recovery.findings.to_string().contains(&format!("records {first} to {last} are lost")));
    let read = content(&log.source());
    assert_eq!(read.gaps, [(first, last, GapCause::Damaged)]);
    assert_eq!(read.records.len() as u64, whole.records.len() as u64 - (last - first + 1));
}

/// Catching up costs in proportion to the records read: a reader does not scan a segment from its beginning each time.
#[test]
fn looking_for_a_sequence_reads_little_of_what_lies_before_it() {
    const LITTLE: u64 = 3 << 20;
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 64 << 20);
    while log.next() <= 10_000 {
        let batch = batch(0, log.next(), 10, 4000);
        log.append(&mut [batch]).expect("nothing fails");
    }
    let check = |log: &Log<SimulatedDisk>, sequence: u64, most: u64| {
        let before = disk.bytes_read();
        let mut reader = log.source().read_from(StartAt::Sequence(sequence));
        let Ok(ReadOutcome::Batch(batch)) = reader.read() else { panic!("it is durable") };
        assert_eq!(batch.records.clone().next().map(|record| record.0), Some(sequence));
        let read = disk.bytes_read() - before;
        assert!(read <= most, "{read} bytes for {sequence}");
    };
    for sequence in [1, 777, 5000, 9999] {
        check(&log, sequence, LITTLE);
    }
    // After a start the first reader scans the segment, and the others use its marks.
    drop(log);
    let (log, _) = open(&disk, 64 << 20);
    check(&log, 9999, 64 << 20);
    for sequence in [1, 777, 5000, 9999] {
        check(&log, sequence, LITTLE);
    }
}

/// A segment whose header is damaged has no known time: reading from a time does not begin behind earlier records of it.
#[test]
fn a_damaged_header_hides_no_earlier_record_from_a_reader_of_a_time() {
    let disk = SimulatedDisk::new();
    for run in 0..2 {
        let (mut log, _) = open(&disk, 65_536);
        log.append(&mut [batch(run, log.next(), 10, 100)]).expect("nothing fails");
        log.close().expect("nothing fails");
    }
    let segments = disk.files().into_iter().map(|(name, _)| name).filter(|name| name.ends_with(".segment"));
    let second = segments.max().expect("two segments");
    disk.change(&second, |content| content[40] ^= 1);
    let (log, _) = open(&disk, 65_536);
    let read = content_from(&log.source(), StartAt::Time(time_of(1)));
    let first = read.records.first().map(|(sequence, _)| *sequence);
    assert_eq!(first, Some(1), "{:?}", read.gaps);
}
