//! What a directory holds, for people: which segments there are, what is in them, and whether all of it is as it was
//! written. Reads only and takes no lock, so it may look at a stream that is in use.
//!
//! Then it sees what was written when it looked. A write that is under way may look torn, or, where one look came by
//! before the write and the next one behind it, like damage; a second look later does not find the same there:
//! [`Findings::confirm`].

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
    /// The last sequence that counts; below the first if there is none.
    pub last: u64,
    /// Bytes of the file.
    pub size: u64,
    /// When it was made, Unix time in nanoseconds; 0 if its header cannot be read.
    pub created_ns: u64,
    /// The time of its newest record as far as it is known without reading it: of an older segment, when the next one was
    /// made.
    pub newest_ns: u64,
}

/// A directory that is only looked at.
#[derive(Debug)]
pub struct Inspection<D: Disk> {
    source: LogSource<D>,
    findings: Findings,
    shared: Arc<SharedLog>,
    is_ended: bool,
}

/// A stream that another process writes, looked at without its lock: for a successor that checks format and permissions and
/// reads ahead before it opens the stream with [`Log::open`](crate::Log::open). Nothing on disk changes.
#[derive(Debug)]
pub struct Preview<D: Disk> {
    source: LogSource<D>,
    recovery: Recovery,
}

impl<D: Disk> Preview<D> {
    /// Looks at the stream `name` in `disk`.
    ///
    /// # Errors
    /// Those of [`Log::open`](crate::Log::open) but the lock's.
    pub fn of(disk: D, name: &str) -> Result<Preview<D>, OpenError> {
        let survey = survey(&disk, Some(name))?;
        let shared = Arc::new(SharedLog::new(survey.segments, survey.recovery.last, 0));
        Ok(Preview { source: LogSource::new(disk, shared), recovery: survey.recovery })
    }

    /// What was found. While the other process writes, its last batch may look torn.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Reads what was there when this was made, up to [`Recovery::last`]. A segment that retention removes meanwhile fails
    /// with `NotFound`.
    #[must_use]
    pub fn source(&self) -> LogSource<D> {
        self.source.clone()
    }
}

/// What `verify` found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyReport {
    /// Everything that is not as it was written.
    pub findings: Findings,
    /// Records that are there.
    pub records: u64,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// Files that were looked at.
    pub segments: usize,
}

impl VerifyReport {
    /// Whether every byte that counts is what was written.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        !self.findings.entries.iter().any(Finding::is_damage)
    }

    /// Acknowledged records that are gone.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.findings.entries.iter().map(Finding::lost).sum()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = match (self.is_intact(), self.lost()) {
            (true, _) => "all of it is what was written",
            (false, 0) => "it is damaged; nothing is lost that had been acknowledged for certain",
            (false, _) => "it is damaged",
        };
        let VerifyReport { records, bytes, segments, .. } = self;
        write!(f, "{records} records, {bytes} bytes in {segments} segments: {report}")?;
        match self.lost() {
            0 => writeln!(f)?,
            lost => writeln!(f, "; {lost} acknowledged records are lost")?,
        }
        self.findings.fmt(f)
    }
}

impl<D: Disk> Inspection<D> {
    /// Looks at the stream in `disk`.
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

    /// The segments, the oldest first.
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

    /// Whether whoever wrote last ended the stream, so that nothing can be missing at its end. It is not while it is
    /// written, nor after a crash; that costs nothing.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// What the first look found; damage inside older segments only [`verify`](Inspection::verify) finds.
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
        let place = || format!("{}/{}", disk.place(), segment.name);
        let file = disk.open(&segment.name).map_err(|source| OpenError::Disk { place: place(), source })?;
        // Only the last one has to be as long as it was made.
        let size = segment.expected.size.filter(|_| next.is_none());
        let mut expected = ExpectedSegment { size, ..segment.expected };
        let mut scanned_ranges = scan(&file, segment.size(), &mut expected)
            .map_err(|error| error.at_opening(&disk.place(), &segment.name))?;
        let previous = next.and_then(|next| next.previous).filter(|previous| previous.first == segment.first);
        if let Some(previous) = previous {
            // What a crash had cut off was not written over; it is no part of the stream.
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
        // What a start has cut off since still counts: it may have been acknowledged.
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
