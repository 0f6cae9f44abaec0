//! Results of all files as a table, and the report of what went wrong.

use super::results::FileResults;

/// One file with the extension and with Tcl's own sockets.
pub(super) struct SuiteRow {
    ours: Option<FileResults>,
    stock: FileResults,
}

impl SuiteRow {
    pub(super) fn stock(stock: FileResults) -> SuiteRow {
        SuiteRow { ours: None, stock }
    }

    pub(super) fn compared(ours: FileResults, stock: FileResults) -> SuiteRow {
        SuiteRow { ours: Some(ours), stock }
    }

    /// Tests that pass with Tcl's sockets and not with the extension.
    fn lost(&self) -> Vec<String> {
        self.ours.as_ref().map(|ours| ours.passed_only_in(&self.stock)).unwrap_or_default()
    }

    /// Tests that fail only with the extension, and 1 if the file did not run to its end. Without the extension, all
    /// that fail.
    pub(super) fn findings(&self) -> usize {
        match &self.ours {
            Some(ours) => self.lost().len() + usize::from(ours.unfinished().is_some()),
            None => self.stock.failed().len() + usize::from(self.stock.unfinished().is_some()),
        }
    }

    /// The outputs of the tests that fail only with the extension; notes on those that fail with both.
    pub(super) fn report(&self) -> String {
        let Some(ours) = &self.ours else { return self.stock_report() };
        let file = ours.file;
        let lost = self.lost();
        let mut report = String::new();
        for test in ours.failed() {
            if lost.contains(&test.name) {
                report += &format!("\n{file}: fails only with the extension\n{}", test.output);
            } else {
                report += &format!("{file}: {} fails with Tcl's sockets, too\n", test.name);
            }
        }
        for name in lost.iter().filter(|name| !ours.failed().iter().any(|test| test.name == **name)) {
            report +=
                &format!("{file}: {name} passes with Tcl's sockets and does not run with the extension\n");
        }
        report + &unfinished(ours)
    }

    fn stock_report(&self) -> String {
        let outputs: String = self.stock.failed().iter().map(|test| format!("\n{}", test.output)).collect();
        outputs + &unfinished(&self.stock)
    }

    fn cells(&self) -> Vec<String> {
        let counts = |results: &FileResults| {
            let unfinished = if results.unfinished().is_some() { " (unfinished)" } else { "" };
            let failed = format!("{}{unfinished}", results.failed().len());
            vec![results.passed().to_string(), results.skipped().to_string(), failed]
        };
        let ours = self.ours.as_ref().map_or_else(|| vec!["–".to_owned(); 3], counts);
        let seconds = self.ours.as_ref().unwrap_or(&self.stock).seconds;
        let skipped = self.ours.as_ref().unwrap_or(&self.stock).constraints();
        let mut cells = vec![self.stock.file.to_owned()];
        cells.extend(ours);
        cells.extend(counts(&self.stock));
        cells.extend([format!("{seconds:.1}"), skipped]);
        cells
    }
}

fn unfinished(results: &FileResults) -> String {
    let unfinished = results.unfinished();
    unfinished.map_or_else(String::new, |text| format!("\n{} did not end properly: {text}\n", results.file))
}

const HEAD: [&str; 9] =
    ["file", "passed", "skipped", "failed", "Tcl's: passed", "skipped", "failed", "seconds", "skipped for"];

/// The table, with aligned columns and totals.
pub(super) fn text(rows: &[SuiteRow]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(SuiteRow::cells));
    let total = |of: fn(&SuiteRow) -> u32| rows.iter().map(of).sum::<u32>().to_string();
    lines.push(vec![
        "total".to_owned(),
        total(|row| row.ours.as_ref().map_or(0, FileResults::passed)),
        total(|row| row.ours.as_ref().map_or(0, FileResults::skipped)),
        total(|row| row.ours.as_ref().map_or(0, |ours| ours.failed().len() as u32)),
        total(|row| row.stock.passed()),
        total(|row| row.stock.skipped()),
        total(|row| row.stock.failed().len() as u32),
        String::new(),
        String::new(),
    ]);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let aligned = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(aligned).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(tests: &str, totals: &str) -> FileResults {
        FileResults::parse("s", &format!("{tests}s.test: {totals}\n"), true)
    }

    #[test]
    fn only_a_test_that_tcls_sockets_pass_is_a_finding() {
        let both = "==== s-1 title FAILED\nwhy\n==== s-1 FAILED\n";
        let stock = results(&format!("{both}++++ s-2 PASSED\n"), "Total 2 Passed 1 Skipped 0 Failed 1");
        let same = SuiteRow::compared(stock.clone(), stock.clone());
        assert_eq!((same.findings(), same.report().as_str()), (0, "s: s-1 fails with Tcl's sockets, too\n"));
        let ours = "==== s-2 title FAILED\nbecause\n==== s-2 FAILED\n";
        let ours = results(&format!("{both}{ours}"), "Total 2 Passed 0 Skipped 0 Failed 2");
        let worse = SuiteRow::compared(ours, stock.clone());
        assert_eq!(worse.findings(), 1);
        assert!(worse.report().contains("fails only with the extension\n==== s-2 title FAILED\nbecause\n"));
        let skipped = results("++++ s-2 SKIPPED: x\n", "Total 1 Passed 0 Skipped 1 Failed 0");
        let skipped = SuiteRow::compared(skipped, stock);
        assert_eq!(skipped.findings(), 1);
        assert!(skipped.report().contains("s-2 passes with Tcl's sockets and does not run"));
    }

    #[test]
    fn an_unfinished_file_is_a_finding_and_marked() {
        let stock = results("++++ s-1 PASSED\n", "Total 1 Passed 1 Skipped 0 Failed 0");
        let row = SuiteRow::compared(FileResults::parse("s", "++++ s-1 PASSED\n", false), stock);
        assert_eq!(row.findings(), 1);
        assert!(text(&[row]).contains("0 (unfinished)"));
    }
}
