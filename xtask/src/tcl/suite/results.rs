//! The output of a test file (tcltest with `-verbose bpse`): which tests passed, which failed and how.

use std::collections::BTreeMap;

/// Constraint that tcltest gives for tests that `-match` leaves out.
const NOT_SELECTED: &str = "userSpecifiedNonMatch";

/// Lines of output shown of a file that did not end.
const LAST_LINES: usize = 40;

/// Results of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FileResults {
    pub(super) file: &'static str,
    /// How often a test of each name passed: loops use a name several times.
    passed: BTreeMap<String, u32>,
    /// Skipped tests by constraint, without those that were not selected.
    skipped: BTreeMap<String, u32>,
    failed: Vec<FailedTest>,
    /// End of the output, if the file did not run to its end.
    unfinished: Option<String>,
    pub(super) seconds: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FailedTest {
    pub(super) name: String,
    /// What tcltest printed of it.
    pub(super) output: String,
}

impl FileResults {
    /// Parses the output of a file that ended with success or not.
    pub(super) fn parse(file: &'static str, output: &str, success: bool) -> FileResults {
        let mut results = FileResults { file, ..FileResults::default() };
        let mut lines = output.lines();
        let mut totals = None;
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("++++ ").and_then(|rest| rest.strip_suffix(" PASSED")) {
                *results.passed.entry(name.to_owned()).or_default() += 1;
            } else if let Some((_, constraint)) =
                line.strip_prefix("++++ ").and_then(|rest| rest.split_once(" SKIPPED: "))
            {
                if constraint != NOT_SELECTED {
                    *results.skipped.entry(constraint.to_owned()).or_default() += 1;
                }
            } else if let Some(rest) = line.strip_prefix("==== ").filter(|rest| rest.ends_with(" FAILED")) {
                results.failed.push(failed_test(rest, line, &mut lines));
            } else if let Some(found) = parse_totals(line, file) {
                totals = Some(found);
            }
        }
        let problem = match totals {
            None => Some("no totals".to_owned()),
            Some(_) if !success => Some("the shell failed".to_owned()),
            Some(totals) if totals != results.counts() => {
                Some(format!("totals {totals:?} differ from the tests {:?}", results.counts()))
            }
            Some(_) => None,
        };
        results.unfinished = problem.map(|problem| format!("{problem}\n{}", last_lines(output)));
        results
    }

    pub(super) fn passed(&self) -> u32 {
        self.passed.values().sum()
    }

    pub(super) fn skipped(&self) -> u32 {
        self.skipped.values().sum()
    }

    pub(super) fn failed(&self) -> &[FailedTest] {
        &self.failed
    }

    pub(super) fn unfinished(&self) -> Option<&str> {
        self.unfinished.as_deref()
    }

    /// Tests that failed by a race of their own.
    pub(super) fn failed_by_race(&self) -> Vec<String> {
        self.failed.iter().filter(|test| is_known_race(test)).map(|test| test.name.clone()).collect()
    }

    /// Counts a failed test as passed, because it passed when it was repeated.
    pub(super) fn accept_repeated(&mut self, name: &str) {
        self.failed.retain(|test| test.name != name);
        *self.passed.entry(name.to_owned()).or_default() += 1;
    }

    /// Passed and failed tests.
    fn counts(&self) -> (u32, u32) {
        (self.passed(), self.failed.len() as u32)
    }

    /// Names of tests that passed in `other` more often than here.
    pub(super) fn passed_only_in(&self, other: &FileResults) -> Vec<String> {
        let here = |name: &str| self.passed.get(name).copied().unwrap_or(0);
        let names = other.passed.iter().filter(|(name, count)| here(name) < **count);
        names.map(|(name, _)| name.clone()).collect()
    }

    /// Skipped tests by constraint, as text.
    pub(super) fn constraints(&self) -> String {
        let counts = self.skipped.iter().map(|(constraint, count)| format!("{constraint} {count}"));
        counts.collect::<Vec<_>>().join(", ")
    }
}

/// Whether a test failed by a race of its own: `socket_*-13.1` releases a thread that ends by itself after the socket was
/// closed, and fails with any sockets if the thread is faster.
fn is_known_race(test: &FailedTest) -> bool {
    test.name.starts_with("socket_")
        && test.name.ends_with("-13.1")
        && test.output.contains("\" does not exist")
        && test.output.contains("\"thread::release $serverthread\"")
}

/// A failed test: its first line has the name and a description, its last line only the name.
fn failed_test<'a>(rest: &str, first: &str, lines: &mut impl Iterator<Item = &'a str>) -> FailedTest {
    let name = rest.split(' ').next().unwrap_or_default().to_owned();
    let last = format!("==== {name} FAILED");
    let mut output = format!("{first}\n");
    if first != last {
        for line in lines {
            output += &format!("{line}\n");
            if line == last {
                break;
            }
        }
    }
    FailedTest { name, output }
}

/// Passed and failed tests of the last line: `socket.test: Total 173 Passed 158 Skipped 15 Failed 0`, with tabs.
fn parse_totals(line: &str, file: &str) -> Option<(u32, u32)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, figures) = words.split_first()?;
    if name.strip_suffix(".test:") != Some(file) {
        return None;
    }
    match figures {
        ["Total", _, "Passed", passed, "Skipped", _, "Failed", failed] => {
            Some((passed.parse().ok()?, failed.parse().ok()?))
        }
        _ => None,
    }
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "++++ s-1 PASSED\n++++ s-1 PASSED\n++++ s-2 SKIPPED: notRoot\n\
        ++++ s-3 SKIPPED: userSpecifiedNonMatch\n\n==== s-4 a title FAILED\n==== Contents of test case:\n\nbody\n\
        ---- Result was:\n1\n==== s-4 FAILED\n\n++++ s-5 PASSED\n\
        s.test:\tTotal\t6\tPassed\t3\tSkipped\t2\tFailed\t1\n";

    #[test]
    fn all_outcomes_are_counted() {
        let results = FileResults::parse("s", OUTPUT, true);
        assert_eq!((results.passed(), results.skipped(), results.failed().len()), (3, 1, 1));
        assert_eq!(results.unfinished(), None);
        assert_eq!(results.constraints(), "notRoot 1");
        let failed = &results.failed()[0];
        assert_eq!(failed.name, "s-4");
        assert!(failed.output.contains("\nbody\n") && failed.output.ends_with("==== s-4 FAILED\n"));
    }

    #[test]
    fn a_file_without_totals_or_with_others_is_unfinished() {
        let part = OUTPUT.split("s.test:").next().expect("a part");
        let unfinished = |output: &str, success| {
            let results = FileResults::parse("s", output, success);
            results.unfinished().map(|text| text.lines().next().unwrap_or_default().to_owned())
        };
        assert_eq!(unfinished(part, true).as_deref(), Some("no totals"));
        assert_eq!(unfinished(OUTPUT, false).as_deref(), Some("the shell failed"));
        let lost = OUTPUT.replace("++++ s-5 PASSED\n", "");
        assert_eq!(unfinished(&lost, true).as_deref(), Some("totals (3, 1) differ from the tests (2, 1)"));
    }

    #[test]
    fn a_race_of_a_test_is_known_by_its_error() {
        let results = |error: &str| {
            let test = format!("==== socket_inet-13.1 title FAILED\n{error}\n==== socket_inet-13.1 FAILED\n");
            FileResults::parse("s", &format!("{test}s.test: Total 1 Passed 0 Skipped 0 Failed 1\n"), true)
        };
        let race = "---- errorInfo: thread \"tid0x1\" does not exist\n    while executing\n\"thread::release $serverthread\"";
        let mut failed = results(race);
        assert_eq!(failed.failed_by_race(), ["socket_inet-13.1"]);
        failed.accept_repeated("socket_inet-13.1");
        assert_eq!((failed.passed(), failed.failed().len()), (1, 0));
        assert_eq!(results("---- Result was:\nhello 1").failed_by_race(), [""; 0]);
    }

    #[test]
    fn a_test_that_passed_more_often_elsewhere_is_named() {
        let stock = FileResults::parse("s", OUTPUT, true);
        let ours = FileResults::parse("s", &OUTPUT.replacen("++++ s-1 PASSED\n", "", 1), true);
        assert_eq!(ours.passed_only_in(&stock), ["s-1"]);
        assert_eq!(stock.passed_only_in(&ours), [""; 0]);
        let skipped = FileResults::parse("s", &OUTPUT.replace("s-5 PASSED", "s-5 SKIPPED: x"), true);
        assert_eq!(skipped.passed_only_in(&stock), ["s-5"]);
    }
}
