//! Whole lives of the hub, cut off at any point: see [`world`](crate::rig::world).

use crate::rig::world::{Story, live};

/// "1,000 seeds of publishers, subscribers, crashes and disk faults with the ledger equation, order and durability as
/// checkers".
#[test]
fn a_thousand_lives_keep_every_promise() {
    let mut stories = Story::default();
    for seed in 0..1000 {
        match live(seed) {
            Ok(story) => stories.add(&story),
            Err(complaint) => panic!("seed {seed}: {complaint}"),
        }
    }
    // What was never tried proves nothing.
    let Story { acknowledged, seen, duplicates, refused, crashes, frozen, unanswered, parked, queued } =
        stories;
    for (what, count) in [
        ("acknowledged", acknowledged),
        ("seen", seen),
        ("duplicates", duplicates),
        ("refused", refused),
        ("crashes", crashes),
        ("frozen", frozen),
        ("unanswered", unanswered),
        ("parked", parked),
        ("queued", queued),
    ] {
        assert!(count > 100, "only {count} {what}");
    }
}

impl Story {
    fn add(&mut self, other: &Story) {
        self.acknowledged += other.acknowledged;
        self.seen += other.seen;
        self.duplicates += other.duplicates;
        self.refused += other.refused;
        self.crashes += other.crashes;
        self.frozen += other.frozen;
        self.unanswered += other.unanswered;
        self.parked += other.parked;
        self.queued += other.queued;
    }
}
