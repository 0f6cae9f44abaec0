//! From samples to the page: medians over rounds, ratios of rounds, tables.

use super::load::Sample;

/// What a page is made of: a heading, words, a table.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) words: String,
    pub(super) table: Vec<Vec<String>>,
}

impl Section {
    /// The section as Markdown; the first row is the head.
    pub(super) fn text(&self) -> String {
        let mut text = format!("## {}\n\n{}\n\n", self.title, self.words);
        for (at, row) in self.table.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if at == 0 {
                text += &format!("|{}|\n", vec!["---"; row.len()].join("|"));
            }
        }
        text
    }
}

/// The samples of one server under one load, a sample per round.
pub(super) struct Series {
    pub(super) server: &'static str,
    pub(super) samples: Vec<Sample>,
}

/// The middle value; of an even number, the mean of the two in the middle. Nothing for nothing.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The median with the least and the greatest, each as `show` writes it.
pub(super) fn spread(values: &[f64], show: impl Fn(f64) -> String) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = show(median(values.to_vec()));
    if values.len() < 2 { middle } else { format!("{middle} ({} – {})", show(least), show(greatest)) }
}

/// A table of servers under one load, and below it the ratios of the first to the others and the second to
/// the first: medians of the ratios within each round, because rounds differ more than servers.
pub(super) fn compared(series: &[Series]) -> Vec<Vec<String>> {
    let head = ["server", "requests/s", "server CPU s per million", "p50 ms", "p99 ms", "failures"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for Series { server, samples } in series {
        let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
        let latency = |of: fn(&Sample) -> Option<f64>| spread_of_known(samples.iter().map(of));
        table.push(vec![
            (*server).to_owned(),
            spread(&all(|sample| sample.rate), thousands),
            spread(&all(|sample| sample.cpu_s), two_places),
            latency(|sample| sample.p50_ms),
            latency(|sample| sample.p99_ms),
            samples.iter().map(|sample| sample.failures + sample.refused).sum::<u64>().to_string(),
        ]);
    }
    for (above, below) in
        [("stilling poll", "stilling uring"), ("stilling uring", "nginx"), ("stilling poll", "nginx")]
    {
        let find = |name: &str| series.iter().find(|series| series.server == name);
        let (Some(above), Some(below)) = (find(above), find(below)) else { continue };
        let ratio = |of: fn(&Sample) -> Option<f64>| {
            let rounds = above.samples.iter().zip(&below.samples);
            let ratios: Option<Vec<_>> = rounds.map(|(above, below)| Some(of(above)? / of(below)?)).collect();
            ratios.map_or_else(unknown, |ratios| format!("×{}", two_places(median(ratios))))
        };
        table.push(vec![
            format!("{} ÷ {}", above.server, below.server),
            ratio(|sample| Some(sample.rate)),
            ratio(|sample| Some(sample.cpu_s)),
            ratio(|sample| sample.p50_ms),
            ratio(|sample| sample.p99_ms),
            String::new(),
        ]);
    }
    table
}

/// The spread of latencies; if one of them was not measured, none is shown.
pub(super) fn spread_of_known(values: impl Iterator<Item = Option<f64>>) -> String {
    values.collect::<Option<Vec<_>>>().map_or_else(unknown, |values| spread(&values, two_places))
}

/// What stands for a figure that was not measured.
pub(super) fn unknown() -> String {
    "–".to_owned()
}

/// A whole number with its thousands apart.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 && text != "0" { format!("-{text}") } else { text }
}

/// A number with two places.
pub(super) fn two_places(value: f64) -> String {
    format!("{value:.2}")
}

/// Bytes as mebibytes.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads_do_not_depend_on_order() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
        assert_eq!(spread(&[3.0, 1.0, 2.0], two_places), "2.00 (1.00 – 3.00)");
        assert_eq!(spread(&[3.0], two_places), "3.00");
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(-1000.0), "-1,000");
        assert_eq!(thousands(-0.2), "0");
        assert_eq!(mebibytes(3 * 512 * 1024), "1.5 MiB");
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let series = |server, rates: [f64; 3]| Series {
            server,
            samples: rates.map(|rate| Sample { rate, cpu_s: 1.0, ..Sample::default() }).to_vec(),
        };
        // The medians of the rates are 20 and 30, but in most rounds the first is twice the second.
        let table =
            compared(&[series("stilling uring", [10.0, 20.0, 60.0]), series("nginx", [5.0, 40.0, 30.0])]);
        assert_eq!(table.len(), 4);
        assert_eq!(table[3][..4], ["stilling uring ÷ nginx", "×2.00", "×1.00", "–"]);
        assert_eq!(table[1][3..5], ["–", "–"]);
    }

    #[test]
    fn a_section_is_a_markdown_table() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        let section =
            Section { title: "T".into(), words: "Words.".into(), table: vec![row("a", "b"), row("1", "2")] };
        assert_eq!(section.text(), "## T\n\nWords.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
