//! What a directory holds, for people: which segments there are, what is in them, and whether all of it is as it was
//! written. Reads only and takes no lock, so it may look at a stream that is in use; the last write may be under way
//! then and look torn.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::disk::Disk;
use crate::finding::{Finding, Findings, OpenError};
use crate::reader::{From, GapCause, Read, Reader, Source};
use crate::recovery::survey;
use crate::segments::Shared;

/// One segment, as `ls` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
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
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listed { file, first, last, size, created_ns } = self;
        let (seconds, millis) = (created_ns / 1_000_000_000, created_ns / 1_000_000 % 1000);
        write!(f, "{file}  {size:>12}  {first}..{last}  {seconds}.{millis:03}")
    }
}

/// A directory that is only looked at.
#[derive(Debug)]
pub struct Inspection<D: Disk> {
    source: Source<D>,
    findings: Findings,
    shared: Arc<Shared>,
}

/// What `verify` found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Everything that is not as it was written.
    pub findings: Findings,
    /// Records that are there.
    pub records: u64,
    /// Bytes of their subjects, headers and payloads.
    pub bytes: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.findings.kept.iter().any(Finding::is_loss);
        let verdict = match (self.findings.is_empty(), lost) {
            (true, _) => "all of it is what was written",
            (false, false) => "nothing is lost that had been synced",
            (false, true) => "records are lost",
        };
        writeln!(f, "{} records, {} bytes: {verdict}", self.records, self.bytes)?;
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
        let shared = Arc::new(Shared::new(survey.segments, survey.recovery.last));
        let source = Source::new(disk, Arc::clone(&shared));
        Ok(Inspection { source, findings: survey.recovery.findings, shared })
    }

    /// The segments, the oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let list = self.shared.list();
        let listed = list.iter().map(|segment| Listed {
            file: segment.name.clone(),
            first: segment.first,
            last: segment.last(),
            size: segment.size(),
            created_ns: segment.created_ns,
        });
        listed.collect()
    }

    /// What the first look found; damage inside older segments only [`verify`](Inspection::verify) finds.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// A reader of the records, for `cat`.
    #[must_use]
    pub fn read_from(&self, from: From) -> Reader<D> {
        self.source.read_from(from)
    }

    /// Reads everything.
    ///
    /// # Errors
    /// The system's, if a file cannot be opened.
    pub fn verify(&self) -> io::Result<Verdict> {
        let mut verdict = Verdict { findings: self.findings.clone(), ..Verdict::default() };
        let mut reader = self.source.read_from(From::Sequence(self.source.first().unwrap_or(1)));
        loop {
            match reader.read()? {
                Read::End => return Ok(verdict),
                Read::Batch(batch) => {
                    for (_, record) in batch.records {
                        verdict.records += 1;
                        let parts = [record.subject, record.headers, record.payload];
                        verdict.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
                    }
                }
                Read::Gap { first, last, cause: GapCause::Damaged } if !self.is_told(first) => {
                    let file = reader.file().unwrap_or_default();
                    let lost = Some((first, last));
                    verdict.findings.add(Finding::Damage { file, offset: 0, length: 0, lost });
                }
                Read::Gap { .. } => {}
            }
        }
    }

    /// Whether the first look has told of the loss of `sequence`.
    fn is_told(&self, sequence: u64) -> bool {
        self.findings.kept.iter().any(|finding| match finding {
            Finding::Damage { lost: Some(lost), .. } | Finding::Missing { lost, .. } => {
                (lost.0..=lost.1).contains(&sequence)
            }
            _ => false,
        })
    }
}
