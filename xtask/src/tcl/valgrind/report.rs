//! A report of Valgrind's memcheck as XML (`--xml=yes`, protocol 4), and what in it concerns one shared library.

use std::fmt::Write;

/// Blocks of one allocation that may remain when a process ends: those of its threads and tables. The scripts repeat
/// everything more often, so that a block that each repetition keeps is found also if a copy of its address lies in
/// memory that Tcl has freed for reuse.
pub(super) const KEPT_BLOCKS_MAX: u64 = 8;

/// The library that memcheck puts in place of the allocator, which is the first in each stack of an allocation.
const ALLOCATOR: &str = "/vgpreload_";

/// Frames of a stack that are printed.
const FRAMES_SHOWN: usize = 12;

#[derive(Debug)]
pub(super) struct MemcheckReport {
    errors: Vec<MemcheckError>,
}

/// An error, or the blocks of one allocation that remain.
#[derive(Debug)]
struct MemcheckError {
    kind: String,
    text: String,
    bytes: u64,
    blocks: u64,
    /// The first stack of the error.
    frames: Vec<StackFrame>,
}

#[derive(Debug)]
struct StackFrame {
    object: String,
    function: String,
}

/// What a library has to account for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MemcheckVerdict {
    /// Invalid reads and writes, uses of uninitialised values, wrong frees and the like, wherever they are.
    pub(super) faults: usize,
    /// Bytes that nothing refers to, in blocks whose allocation passed through the library.
    pub(super) lost_bytes: u64,
    /// The same of all other blocks.
    pub(super) lost_elsewhere: u64,
    /// The most blocks of one allocation of the library itself that remain.
    pub(super) kept_most: u64,
    /// Descriptions of all that is not permitted.
    pub(super) findings: Vec<String>,
}

impl MemcheckReport {
    /// Parses a report; `None` if it is incomplete: the process was killed.
    pub(super) fn parse(xml: &str) -> Option<MemcheckReport> {
        xml.trim_end().strip_suffix("</valgrindoutput>")?;
        let is_finished = elements(xml, "status").any(|status| element(status, "state") == "FINISHED");
        let errors = elements(xml, "error").map(MemcheckError::parse).collect();
        is_finished.then_some(MemcheckReport { errors })
    }

    /// Judges the report for the library of this file name.
    pub(super) fn judge(&self, library: &str) -> MemcheckVerdict {
        let mut verdict = MemcheckVerdict::default();
        for error in &self.errors {
            let is_lost = matches!(error.kind.as_str(), "Leak_DefinitelyLost" | "Leak_IndirectlyLost");
            let is_finding = if !error.kind.starts_with("Leak_") {
                verdict.faults += 1;
                true
            } else if is_lost && error.passes_through(library) {
                verdict.lost_bytes += error.bytes;
                true
            } else if is_lost {
                verdict.lost_elsewhere += error.bytes;
                false
            } else if error.is_allocation_of(library) {
                verdict.kept_most = verdict.kept_most.max(error.blocks);
                error.blocks > KEPT_BLOCKS_MAX
            } else {
                false
            };
            if is_finding {
                verdict.findings.push(error.description());
            }
        }
        verdict
    }
}

impl MemcheckError {
    fn parse(xml: &str) -> MemcheckError {
        let stack = element(xml, "stack");
        let frames = elements(stack, "frame").map(|frame| StackFrame {
            object: unescaped(element(frame, "obj")),
            function: unescaped(element(frame, "fn")),
        });
        // Leaks have an `xwhat` with a text, other errors a plain `what`.
        let extended = element(xml, "xwhat");
        let text = if extended.is_empty() { element(xml, "what") } else { element(extended, "text") };
        let number = |name: &str| element(extended, name).parse().unwrap_or(0);
        MemcheckError {
            kind: element(xml, "kind").to_owned(),
            text: unescaped(text),
            bytes: number("leakedbytes"),
            blocks: number("leakedblocks"),
            frames: frames.collect(),
        }
    }

    fn passes_through(&self, library: &str) -> bool {
        self.frames.iter().any(|frame| frame.is_of(library))
    }

    /// Whether the library called the allocator itself.
    fn is_allocation_of(&self, library: &str) -> bool {
        let caller = self.frames.iter().find(|frame| !frame.object.contains(ALLOCATOR));
        caller.is_some_and(|frame| frame.is_of(library))
    }

    fn description(&self) -> String {
        let mut text = format!("{}: {}", self.kind, self.text);
        for frame in self.frames.iter().take(FRAMES_SHOWN) {
            let object = frame.object.rsplit('/').next().unwrap_or_default();
            let _ = write!(text, "\n    {} ({object})", frame.function);
        }
        text
    }
}

impl StackFrame {
    fn is_of(&self, library: &str) -> bool {
        self.object.rsplit('/').next() == Some(library)
    }
}

/// The contents of all elements of this name, which do not contain one another.
fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(&open)?;
        let (content, behind) = behind.split_once(&close)?;
        rest = behind;
        Some(content)
    })
}

/// The content of the first element of this name, or nothing.
fn element<'a>(xml: &'a str, name: &str) -> &'a str {
    elements(xml, name).next().unwrap_or_default()
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "libfaults.so";

    /// A report of Valgrind 3.19 on the extension `faults.c`, without the frames of Tcl and the blocks of others.
    const SAMPLE: &str = include_str!("report_sample.xml");

    #[test]
    fn every_kind_of_fault_is_found() {
        let report = MemcheckReport::parse(SAMPLE).expect("it is complete");
        let verdict = report.judge(LIBRARY);
        assert_eq!(
            (verdict.faults, verdict.lost_bytes, verdict.kept_most, verdict.lost_elsewhere),
            (2, 16, 20, 0)
        );
        let heads: Vec<_> = verdict.findings.iter().filter_map(|text| text.lines().next()).collect();
        assert_eq!(
            heads,
            [
                "InvalidRead: Invalid read of size 4",
                "UninitCondition: Conditional jump or move depends on uninitialised value(s)",
                "Leak_DefinitelyLost: 16 bytes in 1 blocks are definitely lost in loss record 4 of 60",
                "Leak_StillReachable: 2,000 bytes in 20 blocks are still reachable in loss record 30 of 60",
            ]
        );
        assert!(verdict.findings[2].contains("\n    Faults_Init (libfaults.so)"), "{}", verdict.findings[2]);
    }

    /// Blocks of others are no findings, but faults are, wherever they are.
    #[test]
    fn another_library_has_no_blocks_in_it() {
        let verdict = MemcheckReport::parse(SAMPLE).expect("it is complete").judge("libother.so");
        assert_eq!((verdict.faults, verdict.lost_bytes, verdict.kept_most), (2, 0, 0));
        assert_eq!((verdict.lost_elsewhere, verdict.findings.len()), (16, 2));
        // The whole file name counts.
        assert_eq!(MemcheckReport::parse(SAMPLE).expect("it is complete").judge("faults.so").lost_bytes, 0);
    }

    #[test]
    fn blocks_that_remain_count_per_allocation_of_the_library_itself() {
        let few = SAMPLE.replace("<leakedblocks>20</leakedblocks>", "<leakedblocks>8</leakedblocks>");
        let verdict = MemcheckReport::parse(&few).expect("it is complete").judge(LIBRARY);
        assert_eq!((verdict.kept_most, verdict.findings.len()), (KEPT_BLOCKS_MAX, 3));
        let block = |object: &str| {
            format!(
                "<valgrindoutput><error><kind>Leak_PossiblyLost</kind><xwhat><text>t</text><leakedblocks>9</leakedblocks>\
                 </xwhat><stack><frame><obj>/a/vgpreload_memcheck-amd64-linux.so</obj></frame><frame><obj>{object}</obj>\
                 </frame><frame><obj>/a/{LIBRARY}</obj></frame></stack></error><status><state>FINISHED</state></status>\
                 </valgrindoutput>"
            )
        };
        let findings = |object: &str| {
            MemcheckReport::parse(&block(object)).expect("it is complete").judge(LIBRARY).findings.len()
        };
        assert_eq!(findings("/a/libtcl8.6.so"), 0, "Tcl allocated it");
        assert_eq!(findings(&format!("/a/{LIBRARY}")), 1);
    }

    #[test]
    fn a_report_that_breaks_off_is_no_report() {
        assert!(MemcheckReport::parse("").is_none());
        let cut = SAMPLE.rfind("</valgrindoutput>").expect("the end");
        assert!(MemcheckReport::parse(&SAMPLE[..cut]).is_none());
        assert!(MemcheckReport::parse(&SAMPLE.replace("FINISHED", "RUNNING")).is_none());
    }
}
