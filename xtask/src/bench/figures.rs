//! From samples to the page: medians over rounds, ratios of rounds, tables.

use super::sample::BenchSample;

/// Name of `peers/bare` in the tables: the I/O of a job and nothing else.
pub(super) const BARE: &str = "bare";

/// A section of a page: a heading, text, a table.
pub(super) struct PageSection {
    pub(super) title: String,
    pub(super) description: String,
    pub(super) table: Vec<Vec<String>>,
}

impl PageSection {
    /// The section as Markdown; the first row is the head.
    pub(super) fn text(&self) -> String {
        let mut text = format!("## {}\n\n{}\n\n", self.title, self.description);
        for (at, row) in self.table.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if at == 0 {
                text += &format!("|{}|\n", vec!["---"; row.len()].join("|"));
            }
        }
        text
    }
}

/// A table with only a head: column names separated by ` | `.
pub(super) fn table(head: &str) -> Vec<Vec<String>> {
    vec![head.split(" | ").map(str::to_owned).collect()]
}

/// Samples of one server under one load, one per round.
pub(super) struct Series {
    pub(super) server: &'static str,
    pub(super) samples: Vec<BenchSample>,
}

/// Median; of an even number of values, the mean of the middle two. NaN without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Median with minimum and maximum, each formatted by `show`.
pub(super) fn spread(values: impl IntoIterator<Item = f64>, show: impl Fn(f64) -> String) -> String {
    let values: Vec<f64> = values.into_iter().collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let is_one = values.len() < 2;
    let middle = show(median(values));
    if is_one { middle } else { format!("{middle} ({} – {})", show(least), show(greatest)) }
}

/// Spread of figures; unknown if one of them was not measured.
pub(super) fn spread_of_measured(
    values: impl Iterator<Item = Option<f64>>,
    show: impl Fn(f64) -> String,
) -> String {
    values.collect::<Option<Vec<_>>>().map_or_else(unknown, |values| spread(values, show))
}

/// Formats a column's cell from the samples of one server.
type Cell = Box<dyn Fn(&[BenchSample]) -> String>;

pub(super) struct Column {
    head: &'static str,
    cell: Cell,
    /// Figure that ratios are computed from.
    ratio_of: Option<fn(&BenchSample) -> Option<f64>>,
}

impl Column {
    /// Column with the spread of a figure, each value formatted by `show`.
    pub(super) fn of(
        head: &'static str,
        of: fn(&BenchSample) -> Option<f64>,
        show: fn(f64) -> String,
    ) -> Column {
        let cell = move |samples: &[BenchSample]| spread_of_measured(samples.iter().map(of), show);
        Column { head, cell: Box::new(cell), ratio_of: Some(of) }
    }

    pub(super) fn sum(head: &'static str, of: fn(&BenchSample) -> u64) -> Column {
        let cell = move |samples: &[BenchSample]| samples.iter().map(of).sum::<u64>().to_string();
        Column { head, cell: Box::new(cell), ratio_of: None }
    }

    /// Column with the figure as a multiple of `below`'s: the median of the ratios within each round.
    fn ratio_column(
        head: &'static str,
        below: &[BenchSample],
        of: fn(&BenchSample) -> Option<f64>,
    ) -> Column {
        let below = below.to_vec();
        let cell = move |samples: &[BenchSample]| times(ratio_of(samples, &below, of));
        Column { head, cell: Box::new(cell), ratio_of: None }
    }

    /// The same column with another cell.
    pub(super) fn with_cell(self, cell: impl Fn(&[BenchSample]) -> String + 'static) -> Column {
        Column { cell: Box::new(cell), ..self }
    }
}

pub(super) fn latencies() -> [Column; 3] {
    [
        Column::of("p50 ms", |sample| sample.p50_ms, two_places),
        Column::of("p99 ms", |sample| sample.p99_ms, two_places),
        Column::of("p99.9 ms", |sample| sample.p999_ms, two_places),
    ]
}

/// Columns with rate and CPU as multiples of [`BARE`]; none if it is not in the series.
pub(super) fn over_bare(series: &[Series]) -> Vec<Column> {
    let Some(bare) = series.iter().find(|series| series.server == BARE) else { return Vec::new() };
    vec![
        Column::ratio_column("rate ÷ bare", &bare.samples, |sample| Some(sample.rate)),
        Column::ratio_column("CPU ÷ bare", &bare.samples, |sample| Some(sample.cpu_s)),
    ]
}

/// A table of servers under one load, followed by the ratios of the given pairs: medians of the ratios within each
/// round, because rounds differ more than servers.
pub(super) fn with_ratios(series: &[Series], columns: &[Column], pairs: &[(&str, &str)]) -> Vec<Vec<String>> {
    let head = std::iter::once("server").chain(columns.iter().map(|column| column.head));
    let mut table = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for Series { server, samples } in series {
        let cells = columns.iter().map(|column| (column.cell)(samples));
        table.push(std::iter::once((*server).to_owned()).chain(cells).collect());
    }
    let is_there = |name: &str| series.iter().any(|series| series.server == name);
    for &(above, below) in pairs {
        if is_there(above) && is_there(below) {
            let format_ratio = |of| times(ratio(series, above, below, of));
            let cells = columns.iter().map(|column| column.ratio_of.map_or_else(String::new, format_ratio));
            table.push(std::iter::once(format!("{above} ÷ {below}")).chain(cells).collect());
        }
    }
    table
}

const HTTP_PAIRS: [(&str, &str); 6] = [
    ("stilling poll", "stilling uring"),
    ("stilling uring", "nginx"),
    ("stilling poll", "nginx"),
    ("stilling uring", "hyper"),
    ("stilling uring", "nginx, upstream keepalive"),
    ("stilling poll", "nginx, upstream keepalive"),
];

/// A table of HTTP servers under one load, with their ratios to [`BARE`] and those of [`HTTP_PAIRS`].
pub(super) fn compared(series: &[Series]) -> Vec<Vec<String>> {
    let mut columns = vec![
        Column::of("requests/s", |sample| Some(sample.rate), thousands),
        Column::of("server CPU s per million", |sample| Some(sample.cpu_s), two_places),
    ];
    columns.extend(over_bare(series));
    columns.push(Column::of("context switches per thousand", |sample| sample.switches, two_places));
    if series.iter().flat_map(|series| &series.samples).any(|sample| sample.instructions.is_some()) {
        let of = |sample: &BenchSample| sample.instructions;
        columns.push(Column::of("server instructions per request", of, thousands));
    }
    columns.extend(latencies());
    columns.push(Column::sum("failures", |sample| sample.failures + sample.refused));
    with_ratios(series, &columns, &HTTP_PAIRS)
}

/// Median of the ratios within each round; `None` if one of the figures was not measured.
pub(super) fn ratio_of(
    above: &[BenchSample],
    below: &[BenchSample],
    of: fn(&BenchSample) -> Option<f64>,
) -> Option<f64> {
    let rounds = above.iter().zip(below);
    let ratios: Option<Vec<_>> = rounds.map(|(above, below)| Some(of(above)? / of(below)?)).collect();
    ratios.map(median)
}

/// The same for two servers by name; `None` if one of them is missing.
pub(super) fn ratio(
    series: &[Series],
    above: &str,
    below: &str,
    of: fn(&BenchSample) -> Option<f64>,
) -> Option<f64> {
    let find = |name: &str| series.iter().find(|series| series.server == name);
    ratio_of(&find(above)?.samples, &find(below)?.samples, of)
}

pub(super) fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(unknown, |ratio| format!("×{}", two_places(ratio)))
}

/// Placeholder of a figure that was not measured.
pub(crate) fn unknown() -> String {
    "–".to_owned()
}

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

pub(crate) fn two_places(value: f64) -> String {
    format!("{value:.2}")
}

pub(crate) fn mebibytes(bytes: u64) -> String {
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
        assert_eq!(spread([3.0, 1.0, 2.0], two_places), "2.00 (1.00 – 3.00)");
        assert_eq!(spread([3.0], two_places), "3.00");
    }

    #[test]
    fn numbers_are_written_in_readable_form() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(-1000.0), "-1,000");
        assert_eq!(thousands(-0.2), "0");
        assert_eq!(mebibytes(3 * 512 * 1024), "1.5 MiB");
    }

    #[test]
    fn ratios_are_computed_within_rounds() {
        let series = |server, rates: [f64; 3]| Series {
            server,
            samples: rates.map(|rate| BenchSample { rate, cpu_s: 1.0, ..BenchSample::default() }).to_vec(),
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
            samples: vec![BenchSample { rate: 1.0, cpu_s: 1.0, instructions, ..BenchSample::default() }],
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
    fn rate_and_cpu_are_divided_by_those_of_bare_within_each_round() {
        let series = |server, figures: [(f64, f64); 3]| Series {
            server,
            samples: figures
                .map(|(rate, cpu_s)| BenchSample { rate, cpu_s, ..BenchSample::default() })
                .to_vec(),
        };
        let all = [
            series("stilling uring", [(10.0, 4.0), (20.0, 9.0), (90.0, 2.0)]),
            series("nginx", [(5.0, 8.0), (20.0, 9.0), (10.0, 4.0)]),
            // Divided medians would be ×0.25 and ×2.00 in the first row.
            series(BARE, [(20.0, 1.0), (80.0, 3.0), (100.0, 2.0)]),
        ];
        let table = compared(&all);
        let columns = |row: usize| [table[row][0].as_str(), &table[row][3], &table[row][4], &table[row][5]];
        assert_eq!(columns(0), ["server", "rate ÷ bare", "CPU ÷ bare", "context switches per thousand"]);
        assert_eq!(columns(1), ["stilling uring", "×0.50", "×3.00", "–"]);
        assert_eq!(columns(2), ["nginx", "×0.25", "×3.00", "–"]);
        assert_eq!(columns(3), [BARE, "×1.00", "×1.00", "–"]);
        assert_eq!(columns(4), ["stilling uring ÷ nginx", "", "", "–"]);
        assert!(table.iter().all(|row| row.len() == table[0].len()));
        assert_eq!(compared(&all[..2])[0].len(), table[0].len() - 2);
    }

    #[test]
    fn a_section_is_a_markdown_table() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        let section = PageSection {
            title: "T".into(),
            description: "Words.".into(),
            table: vec![row("a", "b"), row("1", "2")],
        };
        assert_eq!(section.text(), "## T\n\nWords.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
