//! Effects of this crate's planted bugs, in builds that have them. One test, because the choice is process-wide.
#![cfg(all(stilling_planted, not(loom)))]

use stilling_ring::{Wake, planted};

#[test]
fn the_lost_wake_drops_every_eighth_and_only_when_chosen() {
    let ran = |count: usize| {
        let wake = Wake::new(|| ());
        (0..count)
            .filter(|_| {
                wake.set_parked();
                wake.notify()
            })
            .count()
    };
    assert_eq!(ran(32), 32);
    planted::choose(Some("lost wake"));
    assert_eq!(ran(32), 28);
    planted::choose(Some("another"));
    assert_eq!(ran(32), 32);
    planted::choose(None);
    assert_eq!(ran(32), 32);
}
