//! Schedule of a soak: bursts, the warm window, the end window.

/// Seconds between two bursts of a long soak.
const BURST_EVERY_S: f64 = 3600.0;

/// Seconds of a burst, if the soak is long enough.
const BURST_S: f64 = 10.0;

/// Longest burst, as a part of the soak.
const BURST_PART: f64 = 1.0 / 12.0;

/// Start of the first burst, as a part of the soak: within the warm-up, because memory touched by a burst stays
/// resident.
const FIRST_BURST: f64 = 0.05;

/// The part of a soak that is warm-up.
const WARM: f64 = 0.25;

/// A time window, in seconds after the start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct SoakWindow {
    pub(super) from_s: f64,
    pub(super) to_s: f64,
}

impl SoakWindow {
    pub(super) fn contains(&self, at_s: f64) -> bool {
        (self.from_s..self.to_s).contains(&at_s)
    }
}

/// The bursts of a soak of `total_s` seconds: one in the warm-up, then one per hour but at least one.
pub(super) fn bursts(total_s: f64) -> Vec<SoakWindow> {
    let length = BURST_S.min(total_s * BURST_PART);
    let hours = (total_s * (1.0 - WARM) / BURST_EVERY_S).floor().max(1.0);
    // Evenly over the time after the warm-up, each near the middle of its share.
    let share = total_s * (1.0 - WARM) / hours;
    let later = (0..hours as u64).map(|hour| total_s * WARM + share * (hour as f64 + 0.4));
    std::iter::once(total_s * FIRST_BURST)
        .chain(later)
        .map(|from_s| SoakWindow { from_s, to_s: from_s + length })
        .collect()
}

/// Window right after the warm-up.
pub(super) fn warm(total_s: f64) -> SoakWindow {
    SoakWindow { from_s: total_s * WARM, to_s: total_s * (WARM + 0.2) }
}

pub(super) fn end(total_s: f64) -> SoakWindow {
    SoakWindow { from_s: total_s * 0.8, to_s: total_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_soak_has_a_burst_between_the_stretches_that_are_compared() {
        for minutes in [0.5, 1.0, 2.0, 10.0, 60.0, 600.0, 3000.0] {
            let total = minutes * 60.0;
            let bursts = bursts(total);
            assert!(bursts[0].to_s <= warm(total).from_s, "the first one belongs to the warm-up");
            let between = bursts
                .iter()
                .any(|burst| burst.from_s >= warm(total).to_s && burst.to_s <= end(total).from_s);
            assert!(between, "{minutes} minutes: {bursts:?}");
            assert!(bursts.windows(2).all(|two| two[0].to_s < two[1].from_s));
            assert!(bursts.iter().all(|burst| burst.to_s <= total && burst.to_s - burst.from_s <= BURST_S));
        }
    }

    #[test]
    fn long_soaks_have_a_burst_an_hour() {
        assert_eq!(bursts(600.0).len(), 2);
        let day = 24.0 * 3600.0;
        assert_eq!(bursts(day).len(), 1 + 18);
    }
}
