//! Samples of a server from outside: resident memory, descriptors, threads; and whether they stay level.

use std::fs;

use super::schedule::SoakWindow;
use crate::bench::figures::median;

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct ResourceSample {
    pub(super) at_s: f64,
    pub(super) resident: f64,
    pub(super) descriptors: f64,
    pub(super) threads: f64,
}

#[derive(Clone, Copy)]
pub(super) struct ResourceMeasure {
    pub(super) name: &'static str,
    pub(super) of: fn(&ResourceSample) -> f64,
    /// Tolerance at the end over the value after the warm-up: a factor, and an absolute amount.
    pub(super) part: f64,
    pub(super) extra: f64,
    pub(super) unit: f64,
    pub(super) unit_name: &'static str,
}

const MIB: f64 = 1024.0 * 1024.0;

/// Resources that must stay level, each with its tolerance.
pub(super) const MEASURES: [ResourceMeasure; 3] = [
    ResourceMeasure {
        name: "resident memory",
        of: |look| look.resident,
        part: 0.05,
        extra: MIB,
        unit: MIB,
        unit_name: "MiB",
    },
    // The extra covers the clients' own fluctuation in open connections.
    ResourceMeasure {
        name: "descriptors",
        of: |look| look.descriptors,
        part: 0.05,
        extra: 32.0,
        unit: 1.0,
        unit_name: "",
    },
    ResourceMeasure {
        name: "threads",
        of: |look| look.threads,
        part: 0.0,
        extra: 2.0,
        unit: 1.0,
        unit_name: "",
    },
];

impl ResourceSample {
    /// Samples a process now; `None` if it has ended.
    pub(super) fn at(process: u32, at_s: f64) -> Option<ResourceSample> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count();
        Some(ResourceSample { at_s, descriptors: descriptors as f64, ..ResourceSample::parse(&status)? })
    }

    fn parse(status: &str) -> Option<ResourceSample> {
        let number = |label: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(label))?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        };
        Some(ResourceSample {
            resident: number("VmRSS:")? * 1024.0,
            threads: number("Threads:")?,
            ..ResourceSample::default()
        })
    }
}

impl ResourceMeasure {
    /// Median within a window.
    pub(super) fn median_in(&self, resource_samples: &[ResourceSample], stretch: SoakWindow) -> f64 {
        median(resource_samples.iter().filter(|look| stretch.contains(look.at_s)).map(self.of).collect())
    }

    /// Whether the value at the end is within the tolerance of the value after the warm-up. Less is always good.
    pub(super) fn is_level(&self, warm: f64, end: f64) -> bool {
        end <= self.bound(warm)
    }

    pub(super) fn bound(&self, warm: f64) -> f64 {
        warm * (1.0 + self.part) + self.extra
    }

    pub(super) fn format_value(&self, value: f64) -> String {
        let places = if self.unit > 1.0 { 1 } else { 0 };
        format!("{:.places$} {}", value / self.unit, self.unit_name).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_as_the_manual_says() {
        let status = "Name:\tstilling\nVmPeak:\t  900 kB\nVmRSS:\t     512 kB\nThreads:\t7\n";
        let expected = ResourceSample { resident: 524_288.0, threads: 7.0, ..ResourceSample::default() };
        assert_eq!(ResourceSample::parse(status), Some(expected));
        assert_eq!(ResourceSample::parse("Name:\tzombie\nThreads:\t1\n"), None);
    }

    #[test]
    fn level_is_within_the_tolerance_and_one_outlier_does_not_decide() {
        let look = |at_s: f64, threads: f64| ResourceSample { at_s, threads, ..ResourceSample::default() };
        let resource_samples =
            [look(0.0, 90.0), look(1.0, 5.0), look(2.0, 500.0), look(3.0, 6.0), look(4.0, 90.0)];
        let threads = MEASURES[2];
        assert_eq!(threads.median_in(&resource_samples, SoakWindow { from_s: 1.0, to_s: 4.0 }), 6.0);
        assert!(threads.is_level(5.0, 7.0) && !threads.is_level(5.0, 8.0) && threads.is_level(5.0, 1.0));
        let memory = MEASURES[0];
        assert!(memory.is_level(100.0 * MIB, 106.0 * MIB) && !memory.is_level(100.0 * MIB, 106.1 * MIB));
        assert!(!memory.is_level(f64::NAN, 1.0), "nothing seen is nothing proven");
        assert_eq!(
            (memory.format_value(1.5 * MIB), threads.format_value(7.0)),
            ("1.5 MiB".to_owned(), "7".to_owned())
        );
    }
}
