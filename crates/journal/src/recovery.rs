//! Opening a directory: determines its segments, their valid content and the damage.
//!
//! Every block of the last segment is read, since only there a write can have been in progress. Of the other segments
//! only the header is read: the header of the next one records the end of their valid content. Damage inside them is
//! found by readers and by [`inspect`](crate::inspect). A segment is also read completely if its own header or the next
//! one's is damaged, or if a segment between them is missing.
//!
//! Nothing is changed on disk here.

use std::sync::Arc;

use stilling_ring::planted;

use crate::disk::{DirectoryEntry, Disk, DiskFile};
use crate::finding::{Finding, Findings, OpenError};
use crate::format::record::RECORD_HEADER_SIZE;
use crate::format::segment::{FirstBlock, SegmentHeader, first_of, read};
use crate::format::snapshot;
use crate::limits::{BLOCK_SIZE, SEQUENCE_MAX};
use crate::scan::{ExpectedSegment, ReadError, ScannedRange, SegmentAnalysis, analyze_segment, scan};
use crate::segments::{PreviousSegment, Segment};
use crate::unsynced_tail::UnsyncedTail;

/// The result of opening a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovery {
    /// All deviations from what was written.
    pub findings: Findings,
    /// The first stored sequence; the next one if there is none.
    pub first: u64,
    /// The last valid sequence; 0 if there never was one.
    pub last: u64,
    /// The sequence of the next record. It lies beyond the sequences that a torn write may have used.
    pub next: u64,
    /// Start of the de-duplication window when the last segment was created.
    pub deduplicate_from: u64,
    /// Number of segments.
    pub segments: usize,
    /// Creation time of the stream, Unix time in nanoseconds; 0 if no segment has it. If all segments predate this
    /// field: the creation time of the oldest one.
    pub created_ns: u64,
}

#[derive(Debug, Default)]
pub(crate) struct DirectorySurvey {
    pub(crate) recovery: Recovery,
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Files that are removed when the next segment is created.
    pub(crate) unfinished: Vec<String>,
    /// The last segment and the size to which it can be truncated, if only preallocated space follows.
    pub(crate) cut: Option<(String, u64)>,
    /// The valid part of the last segment that may not be durable.
    pub(crate) unsynced: Option<UnsyncedTail>,
    pub(crate) stream_id: Option<u64>,
    pub(crate) epoch: u64,
    pub(crate) chain: u32,
    /// Whether the last segment was closed, so that nothing can be missing after it.
    pub(crate) is_ended: bool,
}

struct SegmentFile {
    entry: DirectoryEntry,
    first: u64,
    header: Option<SegmentHeader>,
}

impl SegmentFile {
    fn expected(&self, stream_id: Option<u64>) -> ExpectedSegment {
        let header = self.header.as_ref();
        ExpectedSegment {
            first: self.first,
            stream_id: stream_id.or(header.map(|header| header.stream_id)),
            epoch: header.map(|header| header.epoch),
            chain: header.map(|header| header.chain).filter(|chain| *chain != 0),
            size: header.map(|header| header.size),
        }
    }
}

/// Surveys a stream's directory; `stream` is its name, if the files must belong to that stream.
///
/// # Errors
/// [`OpenError::Disk`] if the directory or a file in it cannot be opened or read, [`OpenError::Version`]. Bytes that
/// cannot be read are never treated as blank, torn or damaged.
pub(crate) fn survey<D: Disk>(disk: &D, stream: Option<&str>) -> Result<DirectorySurvey, OpenError> {
    let mut survey = DirectorySurvey::default();
    let files = find_segment_files(disk, stream, &mut survey.recovery.findings)?;
    let stream_id = files
        .iter()
        .rev()
        .find_map(|segment_file| segment_file.header.as_ref())
        .map(|header| header.stream_id);
    let all: Vec<u64> = files.iter().map(|segment_file| segment_file.first).collect();
    let (files, without_batch) = survey.separate_unreadable(disk, files, stream_id)?;
    let mut last: Option<(ExpectedSegment, SegmentAnalysis)> = None;
    if let Some(segment_file) = files.last() {
        let (expected, scanned_ranges) = scan_segment_file(disk, segment_file, stream_id)?;
        let analysis = analyze_segment(&scanned_ranges, segment_file.entry.size, &expected, 0);
        let name = &segment_file.entry.name;
        survey.cut = blank_behind(&scanned_ranges).map(|end| (name.clone(), end));
        survey.unsynced =
            analysis.unsynced.map(|start| UnsyncedTail { file: name.clone(), start, end: analysis.end });
        survey.stream_id = expected.stream_id;
        last = Some((expected, analysis));
    }
    for at in 0..files.len() {
        survey.add_segment(disk, &files, at, &mut last)?;
    }
    survey.finish(&files);
    survey.report_missing_first(files.first(), &all);
    for (segment_file, written) in without_batch {
        survey.report_foreign(&segment_file, written);
    }
    Ok(survey)
}

impl DirectorySurvey {
    /// Separates files with neither a readable header nor a batch: those without any content are removed when the next
    /// segment is created; the others are returned with the number of bytes in them.
    #[expect(clippy::type_complexity)]
    fn separate_unreadable<D: Disk>(
        &mut self,
        disk: &D,
        files: Vec<SegmentFile>,
        stream_id: Option<u64>,
    ) -> Result<(Vec<SegmentFile>, Vec<(SegmentFile, u64)>), OpenError> {
        let (mut segments, mut without_batch) = (Vec::new(), Vec::new());
        for segment_file in files {
            if segment_file.header.is_some() {
                segments.push(segment_file);
                continue;
            }
            let (_, scanned_ranges) = scan_segment_file(disk, &segment_file, stream_id)?;
            match scanned_ranges[..] {
                [] | [ScannedRange::Other { written: 0, .. }] => {
                    let file = segment_file.entry.name.clone();
                    self.recovery.findings.add(Finding::Unfinished { file: file.clone() });
                    self.unfinished.push(file);
                }
                [ScannedRange::Other { written, .. }] => without_batch.push((segment_file, written)),
                _ => segments.push(segment_file),
            }
        }
        Ok((segments, without_batch))
    }

    /// Reports a file with the name of a segment and foreign content. It is left unchanged, and if it could have been
    /// the newest segment, its sequences are not used again.
    fn report_foreign(&mut self, segment_file: &SegmentFile, written: u64) {
        let file = segment_file.entry.name.clone();
        if segment_file.first <= self.recovery.last {
            let reason = "it contains no batch, and other segments have its sequences";
            return self.recovery.findings.add(Finding::Foreign { file, reason });
        }
        let highest = (segment_file.first + written / RECORD_HEADER_SIZE as u64).min(SEQUENCE_MAX - 1);
        self.recovery.findings.add(Finding::Header { file: file.clone() });
        self.recovery.findings.add(Finding::Torn {
            file,
            offset: 0,
            sequences: (segment_file.first, highest),
        });
        self.recovery.next = self.recovery.next.max(highest + 1);
    }

    /// Determines the valid content of a file that has a next one.
    fn analyze_followed<D: Disk>(
        &mut self,
        disk: &D,
        segment_file: &SegmentFile,
        next: &SegmentFile,
    ) -> Result<(ExpectedSegment, SegmentAnalysis), OpenError> {
        let follows = next.header.as_ref().filter(|header| header.previous_first == segment_file.first);
        // The next file's header determines it. The file is truncated when the next one is created, but a crash may
        // undo that: blank space and the bytes of a failed write then follow the end.
        if let (Some(header), Some(own)) = (follows, &segment_file.header) {
            let size = segment_file.entry.size;
            let analysis = SegmentAnalysis {
                last: header.previous_last.max(segment_file.first - 1),
                end: if header.previous_end == 0 { size } else { header.previous_end.min(size) },
                newest_ns: header.created_ns,
                epoch: own.epoch,
                ..SegmentAnalysis::default()
            };
            return Ok((segment_file.expected(self.stream_id), analysis));
        }
        let (expected, scanned_ranges) = scan_segment_file(disk, segment_file, self.stream_id)?;
        let known = follows.map_or(0, |header| header.previous_last);
        let expected = ExpectedSegment { size: None, ..expected };
        let mut analysis = analyze_segment(&scanned_ranges, segment_file.entry.size, &expected, known);
        analysis.last = analysis.last.min(next.first - 1);
        self.report_damage(&segment_file.entry.name, &analysis, false);
        Ok((expected, analysis))
    }

    fn add_segment<D: Disk>(
        &mut self,
        disk: &D,
        files: &[SegmentFile],
        at: usize,
        last: &mut Option<(ExpectedSegment, SegmentAnalysis)>,
    ) -> Result<(), OpenError> {
        let segment_file = &files[at];
        let next = files.get(at + 1);
        let next_header = next.and_then(|next| next.header.as_ref());
        if segment_file.header.is_none() {
            self.recovery.findings.add(Finding::Header { file: segment_file.entry.name.clone() });
        }
        let (expected, analysis) = match next {
            Some(next) => self.analyze_followed(disk, segment_file, next)?,
            None => {
                let (expected, analysis) =
                    last.take().unwrap_or((segment_file.expected(None), SegmentAnalysis::default()));
                self.report_damage(&segment_file.entry.name, &analysis, true);
                (expected, analysis)
            }
        };
        if let Some(header) = next_header.filter(|header| header.previous_first != segment_file.first)
            && header.previous_last > analysis.last
        {
            let before = next.map(|next| next.entry.name.clone()).unwrap_or_default();
            let lost = (analysis.last + 1, header.previous_last);
            self.recovery.findings.add(Finding::Missing { before, lost });
        }
        self.epoch = self.epoch.max(analysis.epoch).max(expected.epoch.unwrap_or(0));
        if next.is_none() {
            self.chain = analysis.chain;
            self.is_ended = analysis.is_ended;
            let torn = analysis.torn.map_or(0, |(_, highest)| highest);
            self.recovery.last = analysis.last;
            self.recovery.next = analysis.last.max(torn).min(SEQUENCE_MAX - 1) + 1;
        }
        let (name, size) = (segment_file.entry.name.clone(), segment_file.entry.size);
        let mut segment = Segment::new(name, expected, size, analysis.last, analysis.end);
        if let Some(header) = &segment_file.header {
            segment.created_ns = header.created_ns;
            segment.previous = (header.previous_first > 0).then_some(PreviousSegment {
                first: header.previous_first,
                last: header.previous_last,
                end: header.previous_end,
            });
        }
        segment.grow(analysis.end, analysis.last, analysis.newest_ns.max(segment.created_ns));
        self.segments.push(Arc::new(segment));
        Ok(())
    }

    /// Checks the oldest segment's predecessor. If its file is gone, retention has removed it; if the file exists
    /// without content, its records are lost.
    fn report_missing_first(&mut self, oldest: Option<&SegmentFile>, all: &[u64]) {
        let Some(SegmentFile { entry, header: Some(header), .. }) = oldest else { return };
        let lost = (header.previous_first, header.previous_last);
        if all.contains(&lost.0) && lost.0 <= lost.1 {
            self.recovery.findings.add(Finding::Missing { before: entry.name.clone(), lost });
        }
    }

    fn report_damage(&mut self, file: &str, analysis: &SegmentAnalysis, is_last: bool) {
        for &(offset, length, first, last) in &analysis.damages {
            let lost = (first <= last).then_some((first, last));
            self.recovery.findings.add(Finding::Damage { file: file.to_owned(), offset, length, lost });
        }
        if let Some((offset, highest)) = analysis.torn.filter(|_| is_last) {
            let sequences = (analysis.last + 1, highest);
            self.recovery.findings.add(Finding::Torn { file: file.to_owned(), offset, sequences });
        }
    }

    /// Creation time and window come from the newest headers that have them: the newest segment's own header may be
    /// damaged.
    fn finish(&mut self, files: &[SegmentFile]) {
        let recovery = &mut self.recovery;
        recovery.segments = self.segments.len();
        recovery.next = recovery.next.max(1);
        recovery.first = self.segments.first().map_or(recovery.next, |segment| segment.first);
        let headers = || files.iter().filter_map(|segment_file| segment_file.header.as_ref());
        let of_stream = headers().rev().map(|header| header.stream_created_ns).find(|at| *at > 0);
        let of_oldest = || headers().map(|header| header.created_ns).find(|at| *at > 0);
        recovery.created_ns = of_stream.or_else(of_oldest).unwrap_or(0);
        recovery.deduplicate_from = headers().next_back().map_or(0, |header| header.deduplicate_from);
    }
}

fn find_segment_files<D: Disk>(
    disk: &D,
    stream: Option<&str>,
    findings: &mut Findings,
) -> Result<Vec<SegmentFile>, OpenError> {
    let cannot_read = |location: String| move |source| OpenError::Disk { location, source };
    let mut segment_files = Vec::new();
    let mut block = vec![0; BLOCK_SIZE];
    let entries = match disk.list() {
        Err(_) if planted!("unlisted directory") => Vec::new(),
        outcome => outcome.map_err(cannot_read(disk.location()))?,
    };
    for entry in entries {
        if snapshot::sequence_of(&entry.name).is_some() {
            continue;
        }
        let Some(first) = first_of(&entry.name) else {
            findings.add(Finding::Foreign { file: entry.name, reason: "its name is not that of a segment" });
            continue;
        };
        let location = || format!("{}/{}", disk.location(), entry.name);
        let file = disk.open(&entry.name).map_err(cannot_read(location()))?;
        let length = file
            .read_at(0, &mut block)
            .map_err(|source| ReadError { offset: 0, source }.at_opening(&disk.location(), &entry.name))?;
        let first_block = read(&block[..length]);
        let header = match first_block {
            FirstBlock::Header(header) => {
                let reason = if header.first != first {
                    Some("the first sequence in its header differs from its name")
                } else if stream.is_some_and(|stream| stream != header.name) {
                    Some("it belongs to a stream of another name")
                } else {
                    None
                };
                if let Some(reason) = reason {
                    findings.add(Finding::Foreign { file: entry.name, reason });
                    continue;
                }
                Some(header)
            }
            FirstBlock::Version(version) => {
                return Err(OpenError::Version { location: disk.location(), file: entry.name, version });
            }
            FirstBlock::Blank | FirstBlock::Damaged => None,
        };
        segment_files.push(SegmentFile { entry, first, header });
    }
    segment_files.sort_by_key(|segment_file| segment_file.first);
    let newest = segment_files.iter().rev().find_map(|segment_file| {
        Some((segment_file.header.as_ref()?.stream_id, segment_file.entry.name.clone()))
    });
    if let Some((stream_id, by)) = newest {
        segment_files.retain(|segment_file| {
            let is_own = segment_file.header.as_ref().is_none_or(|header| header.stream_id == stream_id);
            if !is_own {
                findings.add(Finding::Hidden { file: segment_file.entry.name.clone(), by: by.clone() });
            }
            is_own
        });
    }
    Ok(segment_files)
}

fn scan_segment_file<D: Disk>(
    disk: &D,
    segment_file: &SegmentFile,
    stream_id: Option<u64>,
) -> Result<(ExpectedSegment, Vec<ScannedRange>), OpenError> {
    let mut expected = segment_file.expected(stream_id);
    let name = &segment_file.entry.name;
    let location = format!("{}/{name}", disk.location());
    let file = disk.open(name).map_err(|source| OpenError::Disk { location, source })?;
    let scanned_ranges = scan(&file, segment_file.entry.size, &mut expected)
        .map_err(|error| error.at_opening(&disk.location(), name))?;
    Ok((expected, scanned_ranges))
}

fn blank_behind(scanned_ranges: &[ScannedRange]) -> Option<u64> {
    match scanned_ranges.last() {
        Some(ScannedRange::Other { offset, written: 0, .. }) => Some(*offset),
        _ => None,
    }
}
