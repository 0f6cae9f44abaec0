//! The project's targets, and whether this run meets them. A missed target stays in the table.

use std::cell::RefCell;

use super::figures::{self, PageSection};

pub(super) const TITLE: &str = "Targets";

#[derive(Clone, PartialEq, Debug)]
pub(super) struct BenchTarget {
    what: String,
    bound: Bound,
    measured: Option<f64>,
    unit: Unit,
}

/// Suffix of figures; empty, or a × before them.
type Unit = &'static str;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Above(f64),
}

impl BenchTarget {
    /// A target met by values up to `bound`.
    pub(super) fn at_most(
        what: impl Into<String>,
        bound: f64,
        measured: Option<f64>,
        unit: Unit,
    ) -> BenchTarget {
        BenchTarget { what: what.into(), bound: Bound::AtMost(bound), measured, unit }
    }

    /// A target met by values from `bound` on.
    pub(super) fn at_least(
        what: impl Into<String>,
        bound: f64,
        measured: Option<f64>,
        unit: Unit,
    ) -> BenchTarget {
        BenchTarget { what: what.into(), bound: Bound::AtLeast(bound), measured, unit }
    }

    /// A target met by values greater than `bound`.
    pub(super) fn above(
        what: impl Into<String>,
        bound: f64,
        measured: Option<f64>,
        unit: Unit,
    ) -> BenchTarget {
        BenchTarget { what: what.into(), bound: Bound::Above(bound), measured, unit }
    }

    fn verdict(&self) -> &'static str {
        let holds = |measured| match self.bound {
            Bound::AtMost(bound) => measured <= bound,
            Bound::AtLeast(bound) => measured >= bound,
            Bound::Above(bound) => measured > bound,
        };
        match self.measured.map(holds) {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not measured",
        }
    }

    fn row(&self) -> Vec<String> {
        let format_bound = |value: f64| {
            let number =
                if value.abs() >= 100.0 { figures::thousands(value) } else { figures::two_places(value) };
            if self.unit == "×" {
                format!("×{number}")
            } else {
                format!("{number} {}", self.unit).trim().to_owned()
            }
        };
        let bound = match self.bound {
            Bound::AtMost(bound) => format!("≤ {}", format_bound(bound)),
            Bound::AtLeast(bound) => format!("≥ {}", format_bound(bound)),
            Bound::Above(bound) => format!("> {}", format_bound(bound)),
        };
        let measured = self.measured.map_or_else(figures::unknown, format_bound);
        vec![self.what.clone(), bound, measured, self.verdict().to_owned()]
    }
}

#[derive(Default)]
pub(super) struct BenchTargets(RefCell<Vec<BenchTarget>>);

impl BenchTargets {
    pub(super) fn add_target(&self, target: BenchTarget) {
        self.0.borrow_mut().push(target);
    }

    pub(super) fn section(&self) -> PageSection {
        section(&self.0.borrow())
    }
}

fn section(targets: &[BenchTarget]) -> PageSection {
    let missed = targets.iter().filter(|target| target.verdict() == "**missed**").count();
    let description = format!(
        "{} targets, {missed} missed. Ratios are medians of the ratios within each round.",
        targets.len()
    );
    let mut table = figures::table("target | wanted | measured | verdict");
    table.extend(targets.iter().map(BenchTarget::row));
    PageSection { title: TITLE.to_owned(), description, table }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_target_is_marked_and_an_unmeasured_one_is_not_met() {
        let row = |target: BenchTarget| target.row()[1..].join(" | ");
        assert_eq!(row(BenchTarget::at_most("a", 0.65, Some(0.65), "×")), "≤ ×0.65 | ×0.65 | met");
        assert_eq!(row(BenchTarget::at_most("a", 256.0, Some(300.0), "B")), "≤ 256 B | 300 B | **missed**");
        assert_eq!(
            row(BenchTarget::at_least("a", 90.0, Some(89.99), "%")),
            "≥ 90.00 % | 89.99 % | **missed**"
        );
        assert_eq!(row(BenchTarget::at_least("a", 90.0, None, "%")), "≥ 90.00 % | – | not measured");
        assert_eq!(row(BenchTarget::above("a", 1.0, Some(1.0), "×")), "> ×1.00 | ×1.00 | **missed**");
        assert_eq!(row(BenchTarget::above("a", 1.0, Some(1.1), "×")), "> ×1.00 | ×1.10 | met");
        let section = section(&[
            BenchTarget::at_most("a", 1.0, Some(2.0), ""),
            BenchTarget::at_most("b", 1.0, None, ""),
        ]);
        assert!(section.description.starts_with("2 targets, 1 missed."), "{}", section.description);
    }
}
