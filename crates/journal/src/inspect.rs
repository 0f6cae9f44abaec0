//! Inspection of a directory for operators: its segments, their content and their integrity. Reads only and takes no
//! lock, so it may inspect a stream that is in use.
//!
//! A stream in use changes between the reads: a write in progress may look torn or damaged. A second inspection does
//! not confirm such a finding: [`Findings::confirm`].

use std::fmt;
use std::sync::Arc;

use crate::disk::Disk;
use crate::finding::{Finding, Findings, OpenError};
use crate::reader::{LogSource, Reader, StartAt};
use crate::recovery::{Recovery, survey};
use crate::scan::{ExpectedSegment, ScannedRange, analyze_segment, scan};
use crate::segments::{Segment, SharedLog};

/// One segment, as `ls` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// The file.
    pub file: String,
    /// The first sequence.
    pub first: u64,
    /// The last valid sequence; below the first if there is none.
    pub last: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Creation time, Unix time in nanoseconds; 0 if its header cannot be read.
    pub created_ns: u64,
    /// The time of its newest record as far as known without reading it: for an older segment, the creation time of the
    /// next one.
    pub newest_ns: u64,
}

/// A directory opened for inspection.
#[derive(Debug)]
pub struct Inspection<D: Disk> {
    source: LogSource<D>,
    findings: Findings,
    shared: Arc<SharedLog>,
    is_ended: bool,
}

/// A stream that another process writes, opened without its lock: for a successor that checks format and permissions
/// and reads ahead before it opens the stream with [`Log::open`](crate::Log::open). Changes nothing on disk.
#[derive(Debug)]
pub struct StreamPreview<D: Disk> {
    source: LogSource<D>,
    recovery: Recovery,
}

impl<D: Disk> StreamPreview<D> {
    /// Reads the state of the stream `name` in `disk`.
    ///
    /// # Errors
    /// Those of [`Log::open`](crate::Log::open) except the lock's.
    pub fn of(disk: D, name: &str) -> Result<StreamPreview<D>, OpenError> {
        let survey = survey(&disk, Some(name))?;
        let shared = Arc::new(SharedLog::new(survey.segments, survey.recovery.last, 0));
        Ok(StreamPreview { source: LogSource::new(disk, shared), recovery: survey.recovery })
    }

    /// The findings and sequences. While the other process writes, its last batch may look torn.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Reads the records present when this was created, up to [`Recovery::last`]. A segment that retention removes
    /// meanwhile fails with `NotFound`.
    #[must_use]
    pub fn source(&self) -> LogSource<D> {
        self.source.clone()
    }
}

/// The result of `verify`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyReport {
    /// All deviations from what was written.
    pub findings: Findings,
    /// Number of readable records.
    pub records: u64,
    /// Bytes checked.
    pub bytes: u64,
    /// Files checked.
    pub segments: usize,
}

impl VerifyReport {
    /// Whether no part of the stream is damaged.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        !self.findings.entries.iter().any(Finding::is_damage)
    }

    /// Acknowledged records that are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.findings.entries.iter().map(Finding::lost).sum()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = match (self.is_intact(), self.lost()) {
            (true, _) => "intact",
            (false, 0) => "damaged; no record is lost that was certainly acknowledged",
            (false, _) => "damaged",
        };
        let VerifyReport { records, bytes, segments, .. } = self;
        let plural = |is_one: bool| if is_one { "" } else { "s" };
        let (of_records, of_segments) = (plural(*records == 1), plural(*segments == 1));
        write!(f, "{records} record{of_records}, {bytes} bytes ")?;
        write!(f, "in {segments} segment{of_segments}: {report}")?;
        match self.lost() {
            0 => writeln!(f)?,
            1 => writeln!(f, "; 1 acknowledged record is lost")?,
            lost => writeln!(f, "; {lost} acknowledged records are lost")?,
        }
        self.findings.fmt(f)
    }
}

impl<D: Disk> Inspection<D> {
    /// Reads the state of the stream in `disk`.
    ///
    /// # Errors
    /// If the directory or a file cannot be read, or has another format.
    pub fn of(disk: D) -> Result<Inspection<D>, OpenError> {
        let survey = survey(&disk, None)?;
        let is_ended = survey.is_ended || survey.segments.is_empty();
        let shared = Arc::new(SharedLog::new(survey.segments, survey.recovery.last, 0));
        let source = LogSource::new(disk, Arc::clone(&shared));
        Ok(Inspection { source, findings: survey.recovery.findings, shared, is_ended })
    }

    /// The segments, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<SegmentInfo> {
        let list = self.shared.list();
        let segment_infos = list.iter().map(|segment| SegmentInfo {
            file: segment.name.clone(),
            first: segment.first,
            last: segment.last(),
            size: segment.size(),
            created_ns: segment.created_ns,
            newest_ns: segment.newest_ns(),
        });
        segment_infos.collect()
    }

    /// Whether the last writer closed the stream, so that nothing can be missing at its end. False while it is written,
    /// and after a crash; both are harmless.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// The findings of the opening; damage inside older segments is found only by [`verify`](Inspection::verify).
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// A reader of the records, for `cat`.
    #[must_use]
    pub fn read_from(&self, from: StartAt) -> Reader<D> {
        self.source.read_from(from)
    }

    /// Reads every byte, with the memory of one read and 64 bytes for each batch of a segment.
    ///
    /// # Errors
    /// [`OpenError::Disk`] if a file cannot be opened or read.
    pub fn verify(&self) -> Result<VerifyReport, OpenError> {
        let mut report = VerifyReport { findings: self.findings.clone(), ..VerifyReport::default() };
        let list = self.shared.list().clone();
        for (at, segment) in list.iter().enumerate() {
            self.verify_segment(segment, list.get(at + 1), &mut report)?;
        }
        Ok(report)
    }

    fn verify_segment(
        &self,
        segment: &Segment,
        next: Option<&Arc<Segment>>,
        report: &mut VerifyReport,
    ) -> Result<(), OpenError> {
        let disk = self.source.disk();
        let location = || format!("{}/{}", disk.location(), segment.name);
        let file =
            disk.open(&segment.name).map_err(|source| OpenError::Disk { location: location(), source })?;
        // Only the last segment must have its original size.
        let size = segment.expected.size.filter(|_| next.is_none());
        let mut expected = ExpectedSegment { size, ..segment.expected };
        let mut scanned_ranges = scan(&file, segment.size(), &mut expected)
            .map_err(|error| error.at_opening(&disk.location(), &segment.name))?;
        let previous = next.and_then(|next| next.previous).filter(|previous| previous.first == segment.first);
        if let Some(previous) = previous {
            // Batches that a crash cut off were not overwritten; they are not part of the stream.
            scanned_ranges.retain(|scanned_range| match scanned_range {
                ScannedRange::Batch { header, .. } => header.last() <= previous.last,
                ScannedRange::Other { .. } => true,
            });
        }
        let analysis = analyze_segment(
            &scanned_ranges,
            segment.size(),
            &expected,
            previous.map_or(0, |previous| previous.last),
        );
        let mut add = |finding| {
            if !report.findings.entries.contains(&finding) {
                report.findings.add(finding);
            }
        };
        for (offset, length, first, last) in analysis.damages {
            let lost = (first <= last).then_some((first, last));
            add(Finding::Damage { file: segment.name.clone(), offset, length, lost });
        }
        // A write that an opening has cut off is still reported: it may have been acknowledged.
        let cut_off = previous.zip(next).map(|(previous, next)| (previous.last + 1, next.first - 1));
        let torn = match next {
            None => analysis.torn.map(|(offset, highest)| (offset, (analysis.last + 1, highest))),
            Some(_) => cut_off.filter(|(first, last)| first <= last).map(|range| (analysis.end, range)),
        };
        if let Some((offset, sequences)) = torn {
            add(Finding::Torn { file: segment.name.clone(), offset, sequences });
        }
        report.records += analysis.records;
        report.bytes += segment.size();
        report.segments += 1;
        Ok(())
    }
}
