//! Retention removes old records by bytes, count and age; the newest segment and records needed by a snapshot stay.

use std::io;
use std::sync::{Arc, Mutex};

use crate::support::{XorShift64, batch, content, content_from, open, time_of};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};
use stilling_journal::disk::{DirectoryEntry, WriteMethod};
use stilling_journal::{
    Disk, Finding, Gap, GapCause, LockError, Log, LogConfig, LogRetention, ReadOutcome, RemovedSegments,
    StartAt,
};

const SEGMENT_SIZE: u64 = 16_384;

/// Ten segments of three batches with two records each: the segment at `n` begins with `6n + 1`.
fn ten_segments() -> (SimulatedDisk, Log<SimulatedDisk>) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    for _ in 0..30 {
        let batch = batch(1, log.next(), 2, 1000);
        log.append(&mut [batch]).expect("nothing fails");
    }
    assert_eq!(disk.files().len(), 10);
    (disk, log)
}

#[track_caller]
fn check(retention: LogRetention, now_ns: u64, keep_from: u64, segments_left: usize) {
    let (disk, mut log) = ten_segments();
    let removed = log.retain(&retention, now_ns, keep_from).expect("the disk works");
    assert_eq!(disk.files().len(), segments_left);
    let gone = 10 - segments_left;
    assert_eq!(removed, RemovedSegments { segments: gone, bytes: gone as u64 * SEGMENT_SIZE });
    assert_eq!(log.bytes(), segments_left as u64 * SEGMENT_SIZE);
    let first = 6 * gone as u64 + 1;
    assert_eq!(log.source().first(), Some(first));
    let read = content_from(&log.source(), StartAt::Sequence(1));
    let gaps: &[_] = if gone > 0 { &[(1, first - 1, GapCause::Removed)] } else { &[] };
    assert_eq!(read.gaps, gaps);
    assert_eq!(read.records.len() as u64, 61 - first);
    // The remaining segments open without findings.
    drop(log);
    let (log, recovery) = open(&disk, SEGMENT_SIZE);
    assert!(recovery.findings.is_empty() && recovery.first == first, "{}", recovery.findings);
    assert_eq!(content(&log.source()).records.len() as u64, 61 - first);
}

#[test]
fn whole_segments_are_removed_by_bytes_count_and_age() {
    let all = LogRetention::default();
    let far = u64::MAX;
    check(all, far, far, 10);
    check(LogRetention { bytes_max: Some(5 * SEGMENT_SIZE), ..all }, 0, far, 5);
    check(LogRetention { bytes_max: Some(5 * SEGMENT_SIZE - 1), ..all }, 0, far, 4);
    check(LogRetention { bytes_max: Some(0), ..all }, 0, far, 1);
    check(LogRetention { records: Some(12), ..all }, 0, far, 2);
    check(LogRetention { records: Some(13), ..all }, 0, far, 3);
    check(LogRetention { records: Some(0), ..all }, 0, far, 1);
    // The newest batch of the segment at `n` has the time of `6n + 5`.
    check(LogRetention { age_ns: Some(1000), ..all }, time_of(17) + 1000, far, 8);
    check(LogRetention { age_ns: Some(1000), ..all }, time_of(17) + 1001, far, 7);
    check(LogRetention { age_ns: Some(0), ..all }, far, far, 1);
}

/// "Retention never trims past the last snapshot."
#[test]
fn retention_keeps_what_a_snapshot_needs() {
    let none = LogRetention { bytes_max: Some(0), ..LogRetention::default() };
    check(none, 0, 1, 10);
    check(none, 0, 18, 10 - 2);
    check(none, 0, 19, 10 - 3);
}

#[test]
fn a_reader_in_a_removed_segment_finishes_it() {
    let (_, mut log) = ten_segments();
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    assert!(matches!(reader.read(), Ok(ReadOutcome::Batch(_))));
    log.retain(&LogRetention { records: Some(6), ..LogRetention::default() }, 0, u64::MAX)
        .expect("the disk works");
    for _ in 0..2 {
        assert!(matches!(reader.read(), Ok(ReadOutcome::Batch(_))));
    }
    assert!(matches!(
        reader.read(),
        Ok(ReadOutcome::Gap(Gap { first: 7, last: 54, cause: GapCause::Removed }))
    ));
    assert!(matches!(reader.read(), Ok(ReadOutcome::Batch(_))));
}

/// A disk that calls back after a file was removed, before the log has updated its list.
#[derive(Clone)]
struct CallbackDisk {
    disk: SimulatedDisk,
    on_removal: Arc<Mutex<Option<OnRemoval>>>,
}

type OnRemoval = Box<dyn FnMut() + Send>;

impl Disk for CallbackDisk {
    type File = <SimulatedDisk as Disk>::File;
    type Lock = <SimulatedDisk as Disk>::Lock;

    fn location(&self) -> String {
        self.disk.location()
    }

    fn write_method(&self) -> WriteMethod {
        self.disk.write_method()
    }

    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        self.disk.list()
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Self::File> {
        self.disk.create(name, size)
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        self.disk.open(name)
    }

    fn open_to_write(&self, name: &str) -> io::Result<Self::File> {
        self.disk.open_to_write(name)
    }

    fn size_of(&self, name: &str) -> io::Result<u64> {
        self.disk.size_of(name)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        self.disk.is_in_place()
    }

    fn truncate(&self, name: &str, size: u64) -> io::Result<()> {
        self.disk.truncate(name, size)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)?;
        if let Some(call) = self.on_removal.lock().expect("no panic").as_mut() {
            call();
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn sync_ancestors(&self) -> io::Result<()> {
        self.disk.sync_ancestors()
    }

    fn lock(&self) -> Result<Self::Lock, LockError> {
        self.disk.lock()
    }

    fn random_u64(&self) -> u64 {
        self.disk.random_u64()
    }
}

/// Row 0.14: a reader at a segment file that retention has just removed reports the exact range as removed, not as a
/// read error. A file missing for another reason is an error.
#[test]
fn a_reader_reports_a_gap_for_a_segment_removed_meanwhile() {
    let disk = CallbackDisk { disk: ten_segments().0, on_removal: Arc::default() };
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    let (source, met) = (log.source(), Arc::new(Mutex::new(Vec::new())));
    let note = Arc::clone(&met);
    *disk.on_removal.lock().expect("no panic") = Some(Box::new(move || {
        let first = source.first().expect("there is one");
        let read = match source.read_from(StartAt::Sequence(first)).read() {
            Ok(ReadOutcome::Gap(Gap { first, last, cause: GapCause::Removed })) => Ok((first, last)),
            other => Err(format!("{other:?}")),
        };
        note.lock().expect("no panic").push(read);
    }));
    log.retain(&LogRetention { records: Some(40), ..LogRetention::default() }, 0, u64::MAX)
        .expect("the disk works");
    let met = std::mem::take(&mut *met.lock().expect("no panic"));
    assert_eq!(met, [Ok((1, 6)), Ok((7, 12)), Ok((13, 18))]);
    let (name, _) = disk.disk.files().into_iter().min().expect("a segment");
    *disk.on_removal.lock().expect("no panic") = None;
    disk.remove(&name).expect("it is there");
    let error = log.source().read_from(StartAt::Sequence(19)).read().map(|_| ()).expect_err("it is missing");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

/// After a power failure at any point of a round of retention, the newest records remain without a hole.
#[test]
fn a_crash_during_retention_leaves_no_hole() {
    let (disk, log) = ten_segments();
    drop(log);
    let begin = disk.start_recording();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    log.retain(&LogRetention { records: Some(24), ..LogRetention::default() }, 0, u64::MAX)
        .expect("the disk works");
    let history = disk.history();
    let mut firsts = Vec::new();
    for at in begin..history.points() {
        let point = history.at(at);
        for set in 0..1_u32 << point.pending() {
            let (log, recovery) = open(&point.disk(|at| set >> at & 1 == 1), SEGMENT_SIZE);
            assert!(recovery.findings.is_empty(), "{}", recovery.findings);
            let read = content(&log.source());
            assert_eq!((read.gaps.len(), recovery.last), (0, 60));
            firsts.push(recovery.first);
        }
    }
    firsts.dedup();
    assert!(firsts.len() > 5 && firsts.last() == Some(&37), "{firsts:?}");
}

/// Invariant 6: nothing within the bound is removed, whatever is preallocated, over segment changes and restarts, clean
/// or not; and the files never take more than the bound and one segment.
#[test]
fn nothing_within_its_bound_is_removed() {
    const MIB: u64 = 1024 * 1024;
    const BLOCK: u64 = 4096;
    for bound in [MIB, 3 * MIB / 2, 2 * MIB, 5 * MIB, 8 * MIB] {
        let config = LogConfig::for_retention(Some(bound));
        let retention = LogRetention { bytes_max: Some(bound), ..LogRetention::default() };
        let disk = SimulatedDisk::new();
        let mut written: Vec<(u64, u64)> = Vec::new();
        let (mut has_removed, mut random) = (false, XorShift64(bound));
        for run in 0..24 {
            let (mut log, recovery) = Log::open(disk.clone(), "events", config).expect("it opens");
            assert!(recovery.findings.is_empty(), "{}", recovery.findings);
            for _ in 0..random.below(12) {
                let size = 1000 + random.below(bound / 40).min(200_000) as usize;
                let batch = batch(run, log.next(), 1, size);
                written.push((log.next(), batch.size() as u64));
                log.append(&mut [batch]).expect("nothing fails");
                let removed = log.retain(&retention, 0, u64::MAX).expect("nothing fails");
                has_removed |= removed.segments > 0;
                let first = log.source().first().expect("there are records");
                let kept: u64 = written.iter().filter(|(at, _)| *at >= first).map(|(_, size)| size).sum();
                let files = disk.files();
                let beside = files.len() as u64 * 2 * BLOCK;
                assert!(
                    first == 1 || kept + beside + config.segment_size >= bound,
                    "{kept} bytes are left of {bound}"
                );
                let taken: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                assert!(taken <= bound + config.segment_size + 2 * BLOCK, "{taken} bytes for {bound}");
            }
            if run % 3 > 0 {
                log.close().expect("nothing fails");
            }
        }
        assert!(has_removed, "{bound} bytes were never reached");
    }
}

/// The reported issue: two megabytes of a stream with a bound of 32, a restart, one more record.
#[test]
fn a_restart_removes_nothing_of_a_stream_within_its_bound() {
    let bound = 32 * 1024 * 1024;
    // As in the report: one segment is longer than the bound.
    let config = LogConfig::default();
    let retention = LogRetention { bytes_max: Some(bound), ..LogRetention::default() };
    let disk = SimulatedDisk::new();
    let (mut log, _) = Log::open(disk.clone(), "events", config).expect("it opens");
    for _ in 0..20 {
        let batch = batch(1, log.next(), 10, 10_000);
        log.append(&mut [batch]).expect("nothing fails");
    }
    log.close().expect("nothing fails");
    let (mut log, _) = Log::open(disk, "events", config).expect("it opens");
    let next = batch(2, log.next(), 1, 10);
    log.append(&mut [next]).expect("nothing fails");
    assert_eq!(log.retain(&retention, 0, u64::MAX).expect("nothing fails"), RemovedSegments::default());
    assert_eq!(content(&log.source()).records.len(), 201);
}

/// Bytes after the end of a sealed segment do not count: preallocated space, and bytes of a failed write that return
/// because a crash undid the cut.
#[test]
fn what_a_crash_brings_back_behind_a_sealed_segment_does_not_count() {
    let (disk, log) = ten_segments();
    drop(log);
    let written: u64 = disk.files().iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let retention = LogRetention { bytes_max: Some(written), ..LogRetention::default() };
    for (name, _) in &disk.files()[..9] {
        disk.change(name, |bytes| {
            bytes.resize(bytes.len() + 3 * 4096, 0);
            bytes.extend([7; 4096]);
        });
    }
    let (mut log, recovery) = open(&disk, SEGMENT_SIZE);
    assert!(recovery.findings.is_empty(), "{}", recovery.findings);
    assert_eq!(log.retain(&retention, 0, u64::MAX).expect("nothing fails"), RemovedSegments::default());
    assert_eq!(content(&log.source()).records.len(), 60);
    let tighter = LogRetention { bytes_max: Some(written - 1), ..LogRetention::default() };
    assert_eq!(log.retain(&tighter, 0, u64::MAX).expect("nothing fails").segments, 1);
}

/// A segment that cannot be removed is reported with its name, the stream continues, and the next round retries; a
/// missing one counts as removed.
#[test]
fn a_segment_that_cannot_be_removed_is_reported() {
    let (disk, mut log) = ten_segments();
    let retention = LogRetention { records: Some(12), ..LogRetention::default() };
    disk.fail(DiskFaults { remove: Some(EIO), ..DiskFaults::default() });
    let error = log.retain(&retention, 0, u64::MAX).expect_err("the disk fails").to_string();
    let (first, _) = disk.files().swap_remove(0);
    assert!(error.contains("cannot remove") && error.contains(&first) && error.contains("events"), "{error}");
    assert_eq!((disk.files().len(), log.source().first()), (10, Some(1)));
    disk.fail(DiskFaults::default());
    disk.remove(&first).expect("it is there");
    let removed = log.retain(&retention, 0, u64::MAX).expect("nothing fails");
    assert_eq!((removed.segments, disk.files().len(), log.frozen().is_none()), (8, 2, true));
}

/// A removal that could not be made durable is synced by the next round, also if that has nothing to remove, and
/// counted once.
#[test]
fn a_removal_that_could_not_be_synced_is_synced_later() {
    let (disk, log) = ten_segments();
    drop(log);
    disk.start_recording();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    let retention = LogRetention { records: Some(12), ..LogRetention::default() };
    disk.fail(DiskFaults { sync: Some(EIO), ..DiskFaults::default() });
    for _ in 0..2 {
        let error = log.retain(&retention, 0, u64::MAX).expect_err("the disk fails").to_string();
        assert!(error.contains("cannot sync") && error.contains("events"), "{error}");
        assert_eq!((disk.files().len(), log.source().first()), (9, Some(7)), "a hole could be left");
    }
    disk.fail(DiskFaults::default());
    let history = disk.history();
    assert_eq!(history.at(history.points() - 1).pending(), 1, "a crash may bring the segment back");
    let removed = log.retain(&LogRetention::default(), 0, u64::MAX).expect("nothing fails");
    assert_eq!(removed, RemovedSegments { segments: 1, bytes: SEGMENT_SIZE });
    let history = disk.history();
    assert_eq!(history.at(history.points() - 1).pending(), 0, "the removal is durable");
    assert_eq!(
        log.retain(&LogRetention::default(), 0, u64::MAX).expect("nothing fails"),
        RemovedSegments::default()
    );
    assert_eq!(disk.history().points(), history.points(), "nothing is left to sync");
}

/// The creation time of a stream is that of its first segment, or the one given to the first opening, and survives
/// retention and restarts.
#[test]
fn a_stream_keeps_its_creation_time() {
    let disk = SimulatedDisk::new();
    let config = |created_ns| LogConfig { segment_size: SEGMENT_SIZE, created_ns };
    let (mut log, recovery) = Log::open(disk.clone(), "events", config(77)).expect("it opens");
    assert_eq!((log.created_ns(), recovery.created_ns), (77, 0));
    for run in 0..3 {
        for _ in 0..30 {
            let batch = batch(1, log.next(), 2, 1000);
            log.append(&mut [batch]).expect("nothing fails");
        }
        let everything = LogRetention { records: Some(0), ..LogRetention::default() };
        assert!(log.retain(&everything, 0, u64::MAX).expect("nothing fails").segments > 0);
        log.close().expect("nothing fails");
        let recovery;
        (log, recovery) = Log::open(disk.clone(), "events", config(1000 + run)).expect("it opens");
        assert_eq!((log.created_ns(), recovery.created_ns), (77, 77));
    }
    let (mut log, _) = Log::open(SimulatedDisk::new(), "events", config(0)).expect("it opens");
    assert_eq!(log.created_ns(), 0);
    let first = batch(1, 1, 1, 10);
    log.append(&mut [first]).expect("nothing fails");
    assert_eq!(log.created_ns(), time_of(1));
}

/// A damaged header of the newest segment affects neither the stream's creation time nor its de-duplication window.
#[test]
fn a_damaged_newest_header_leaves_creation_time_and_window() {
    let disk = SimulatedDisk::new();
    let config = LogConfig { segment_size: SEGMENT_SIZE, created_ns: 77 };
    let (mut log, _) = Log::open(disk.clone(), "events", config).expect("it opens");
    for _ in 0..30 {
        log.deduplicate_from(log.next() / 2);
        let batch = batch(1, log.next(), 2, 1000);
        log.append(&mut [batch]).expect("nothing fails");
    }
    drop(log);
    let (newest, _) = disk.files().pop().expect("there are segments");
    disk.change(&newest, |bytes| bytes[50] ^= 1);
    let (log, recovery) = Log::open(disk, "events", config).expect("it opens");
    assert_eq!(recovery.findings.entries[..], [Finding::Header { file: newest }]);
    // The segment before the newest begins with 49.
    assert_eq!((recovery.created_ns, log.created_ns(), recovery.deduplicate_from), (77, 77, 24));
}
