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
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
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
    let counts = series.iter().flat_map(|series| &series.samples).any(|sample| sample.instructions.is_some());
    let counted = counts.then_some("server instructions per request");
    let head = ["server", "requests/s", "server CPU s per million", "context switches per thousand"];
    let head = head.into_iter().chain(counted);
    let head = head.chain(["p50 ms", "p99 ms", "p99.9 ms", "failures"]);
    let mut table = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for Series { server, samples } in series {
        let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
        let known = |of: fn(&Sample) -> Option<f64>| spread_of_known(samples.iter().map(of));
        let mut row = vec![
            (*server).to_owned(),
            spread(&all(|sample| sample.rate), thousands),
            spread(&all(|sample| sample.cpu_s), two_places),
            known(|sample| sample.switches),
        ];
        if counts {
            let all: Option<Vec<_>> = samples.iter().map(|sample| sample.instructions).collect();
            row.push(all.map_or_else(unknown, |all| spread(&all, thousands)));
        }
        row.extend([
            known(|sample| sample.p50_ms),
            known(|sample| sample.p99_ms),
            known(|sample| sample.p999_ms),
            samples.iter().map(|sample| sample.failures + sample.refused).sum::<u64>().to_string(),
        ]);
        table.push(row);
    }
    for (above, below) in [
        ("stilling poll", "stilling uring"),
        ("stilling uring", "nginx"),
        ("stilling poll", "nginx"),
        ("stilling uring", "hyper"),
        ("stilling uring", "nginx, upstream keepalive"),
        ("stilling poll", "nginx, upstream keepalive"),
    ] {
        if !series.iter().any(|series| series.server == above)
            || !series.iter().any(|series| series.server == below)
        {
            continue;
        }
        let shown = |of| {
            ratio(series, above, below, of).map_or_else(unknown, |ratio| format!("×{}", two_places(ratio)))
        };
        let mut row = vec![
            format!("{above} ÷ {below}"),
            shown(|sample: &Sample| Some(sample.rate)),
            shown(|sample| Some(sample.cpu_s)),
            shown(|sample| sample.switches),
        ];
        if counts {
            row.push(shown(|sample| sample.instructions));
        }
        row.extend([
            shown(|sample| sample.p50_ms),
            shown(|sample| sample.p99_ms),
            shown(|sample| sample.p999_ms),
        ]);
        row.push(String::new());
        table.push(row);
    }
    table
}

/// The median of the ratios within each round; nothing if one of the figures was not measured.
pub(super) fn ratio(
    series: &[Series],
    above: &str,
    below: &str,
    of: fn(&Sample) -> Option<f64>,
) -> Option<f64> {
    let find = |name: &str| series.iter().find(|series| series.server == name);
    let (above, below) = (find(above)?, find(below)?);
    let rounds = above.samples.iter().zip(&below.samples);
    let ratios: Option<Vec<_>> = rounds.map(|(above, below)| Some(of(above)? / of(below)?)).collect();
    ratios.map(median)
}

/// The spread of latencies; if one of them was not measured, none is shown.
pub(super) fn spread_of_known(values: impl Iterator<Item = Option<f64>>) -> String {
    values.collect::<Option<Vec<_>>>().map_or_else(unknown, |values| spread(&values, two_places))
}

/// What stands for a figure that was not measured.
pub(crate) fn unknown() -> String {
    "–".to_owned()
}

/// A whole number with its thousands apart.
pub(crate) fn thousands(value: f64) -> String {
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
pub(crate) fn two_places(value: f64) -> String {
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
        assert_eq!(table[1][3..7], ["–", "–", "–", "–"]);
        assert_eq!(table[0].len(), 8);
    }

    #[test]
    fn instructions_have_a_column_where_they_are_counted() {
        let series = |server, instructions| Series {
            server,
            samples: vec![Sample { rate: 1.0, cpu_s: 1.0, instructions, ..Sample::default() }],
        };
        let table = compared(&[series("stilling uring", Some(9000.0)), series("nginx", Some(18_000.0))]);
        assert_eq!(
            [0, 1, 3].map(|row| table[row][4].as_str()),
            ["server instructions per request", "9,000", "×0.50"]
        );
        assert!(table.iter().all(|row| row.len() == table[0].len()));
        let table = compared(&[series("stilling uring", Some(9000.0)), series("nginx", None)]);
        assert_eq!((table[2][4].as_str(), table[3][4].as_str()), ("–", "–"));
    }

    #[test]
    fn a_section_is_a_markdown_table() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        let section =
            Section { title: "T".into(), words: "Words.".into(), table: vec![row("a", "b"), row("1", "2")] };
        assert_eq!(section.text(), "## T\n\nWords.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
