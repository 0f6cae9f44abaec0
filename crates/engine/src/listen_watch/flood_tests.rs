//! Tests of the detector: floods, bursts, loss, and histories that must not stick.

use proptest::prelude::*;

use super::*;
use crate::limits::LISTEN_SAMPLE_INTERVAL;

/// Samples at regular intervals.
struct Feed {
    detector: SynFloodDetector,
    now: Time,
    has_cookies: bool,
    changes: Vec<FloodChange>,
}

impl Feed {
    fn new() -> Feed {
        Feed { detector: SynFloodDetector::new(), now: Time::ZERO, has_cookies: true, changes: Vec::new() }
    }

    fn sample_after(&mut self, interval: Duration, counts: SynCounts) -> Option<FloodChange> {
        self.now = self.now.after(interval);
        let change = self.detector.sample(SynSample { at: self.now, counts, has_cookies: self.has_cookies });
        self.changes.extend(change);
        change
    }

    fn sample(&mut self, counts: SynCounts) -> Option<FloodChange> {
        self.sample_after(LISTEN_SAMPLE_INTERVAL, counts)
    }

    /// Number of samples with these counts up to the one that changes the state.
    fn samples_until_change(&mut self, counts: SynCounts) -> usize {
        (1..10_000).find(|_| self.sample(counts).is_some()).expect("the state changes")
    }

    fn is_flooded(&self) -> bool {
        self.detector.flood_since().is_some()
    }
}

fn cookies(sent: u64, returned: u64) -> SynCounts {
    SynCounts { cookies_sent: sent, cookies_returned: returned, ..SynCounts::default() }
}

fn drops(dropped: u64, overflows: u64) -> SynCounts {
    SynCounts { listen_drops: dropped + overflows, listen_overflows: overflows, ..SynCounts::default() }
}

const NOTHING: SynCounts = SynCounts {
    cookies_sent: 0,
    cookies_returned: 0,
    cookies_failed: 0,
    listen_overflows: 0,
    listen_drops: 0,
    queue_full_cookies: 0,
    queue_full_drops: 0,
};

/// Row 3.9: detected within 8 samples, two seconds, with valid clients among the flood; ended some time after it.
#[test]
fn a_flood_is_detected_within_eight_samples_and_ends_after_it() {
    for (sent, returned) in [(100, 0), (5000, 0), (5000, 2000), (1_000_000, 10)] {
        let mut feed = Feed::new();
        let samples = feed.samples_until_change(cookies(sent, returned));
        assert!(samples <= 7, "{samples}");
        assert!(matches!(feed.changes[0], FloodChange::Began { unanswered } if unanswered >= 64));
        for _ in 0..100 {
            assert_eq!(feed.sample(cookies(sent, returned)), None);
        }
        let samples = feed.samples_until_change(NOTHING);
        assert!((20..=32).contains(&samples), "5 to 8 seconds: {samples}");
        assert!(matches!(feed.changes[1], FloodChange::Ended { lasted } if lasted.as_secs() >= 25));
        assert!(!feed.is_flooded());
    }
}

/// Row 3.9: clients that complete their handshakes are no flood: not by cookies, however many and with round trips up
/// to 750 ms, and not when the accept queue overflows.
#[test]
fn a_burst_of_connects_is_no_flood() {
    for delay in 0..=3 {
        for burst in [64, 2000, 1_000_000] {
            let mut feed = Feed::new();
            for at in 0..60 {
                let sent = if at < 8 { burst } else { 0 };
                let returned = if (delay..8 + delay).contains(&at) { burst } else { 0 };
                let counts = SynCounts {
                    listen_overflows: burst,
                    listen_drops: burst,
                    queue_full_cookies: burst,
                    ..cookies(sent, returned)
                };
                feed.sample(counts);
            }
            assert_eq!(feed.changes, [], "round trip of {delay} samples, {burst} per sample");
        }
    }
}

/// Some packet loss delays cookies; a few half-open connections of a port scan are no flood.
#[test]
fn loss_and_scans_are_no_flood() {
    let mut feed = Feed::new();
    for at in 0..400_u64 {
        feed.sample(cookies(1000, 800));
        feed.sample(cookies(1000 + at % 7, 800));
    }
    for _ in 0..100 {
        feed.sample(cookies(4, 0));
        feed.sample(NOTHING);
    }
    for _ in 0..100 {
        feed.sample(SynCounts { cookies_failed: 1_000_000, ..NOTHING });
    }
    assert_eq!(feed.changes, []);
}

/// Without cookies, drops in every sample are a flood; repeated requests of a burst, drops beside overflows, and drops
/// for other reasons while cookies are on are none.
#[test]
fn drops_are_evidence_only_without_cookies() {
    let mut feed = Feed::new();
    for _ in 0..50 {
        feed.sample(drops(10_000, 0));
    }
    feed.has_cookies = false;
    for at in 0..50 {
        feed.sample(drops(if at % 4 < 3 { 10_000 } else { 0 }, 0));
    }
    for _ in 0..50 {
        feed.sample(drops(10_000, 5));
    }
    assert_eq!(feed.changes, []);
    let samples = feed.samples_until_change(drops(1000, 0));
    assert!(samples <= 8, "{samples}");
    assert!(feed.is_flooded());
    feed.samples_until_change(NOTHING);
    assert!(!feed.is_flooded());
}

/// Floods in quick succession are reported less and less often, and forgotten after a calm minute.
#[test]
fn the_state_does_not_flap() {
    let mut feed = Feed::new();
    let mut quiet = Vec::new();
    for _ in 0..6 {
        feed.samples_until_change(cookies(1000, 0));
        quiet.push(feed.samples_until_change(NOTHING) as u64 / 4);
    }
    assert_eq!(quiet.first(), Some(&7));
    assert!(quiet.windows(2).all(|pair| pair[0] < pair[1] || pair[1] >= 60), "{quiet:?}");
    assert!(quiet.iter().all(|seconds| *seconds <= 63), "{quiet:?}");
    for _ in 0..4 * 60 {
        feed.sample(NOTHING);
    }
    feed.samples_until_change(cookies(1000, 0));
    assert_eq!(feed.samples_until_change(NOTHING) / 4, 7);
}

/// A thread that samples late sees the same.
#[test]
fn late_samples_neither_hide_nor_invent_a_flood() {
    for interval in [1, 3, 60] {
        let interval = Duration::from_secs(interval);
        let mut feed = Feed::new();
        for _ in 0..20 {
            feed.sample_after(interval, cookies(5000, 5000));
        }
        assert_eq!(feed.changes, []);
        let samples = (1..8).find(|_| feed.sample_after(interval, cookies(5000, 0)).is_some());
        assert!(samples.is_some(), "{interval:?}");
    }
}

/// Samples without evidence that end any flood: the window, and the longest quiet time.
const CALM_SAMPLES: usize = FLOOD_WINDOW_SAMPLES + 1 + 4 * 60;

/// All sequences of six samples of seven kinds: each ends in the normal state after a bounded calm, changes alternate,
/// and none without unanswered requests begins a flood.
#[test]
fn no_short_history_sticks() {
    let kinds = [
        NOTHING,
        cookies(100, 0),
        cookies(100, 100),
        cookies(0, 100),
        SynCounts { cookies_failed: 100, ..NOTHING },
        drops(0, 100),
        drops(100, 0),
    ];
    for mut number in 0..7_usize.pow(6) {
        let mut feed = Feed::new();
        let mut sent = 0;
        for _ in 0..6 {
            let counts = kinds[number % 7];
            sent += counts.cookies_sent;
            number /= 7;
            feed.sample(counts);
        }
        let calm = if feed.is_flooded() || sent > 0 { CALM_SAMPLES } else { 0 };
        for _ in 0..calm {
            feed.sample(NOTHING);
        }
        assert!(!feed.is_flooded());
        assert_alternating(&feed.changes);
        assert!(feed.changes.is_empty() || sent >= 100);
    }
}

#[track_caller]
fn assert_alternating(changes: &[FloodChange]) {
    for (at, change) in changes.iter().enumerate() {
        assert_eq!(matches!(change, FloodChange::Began { .. }), at % 2 == 0, "{changes:?}");
    }
}

fn counts() -> impl Strategy<Value = SynCounts> {
    let count = || prop_oneof![Just(0_u64), 1_u64..100, 0_u64..1_000_000, Just(u64::MAX)];
    (count(), count(), count(), count(), count()).prop_map(|(sent, returned, failed, overflows, drops)| {
        SynCounts {
            cookies_sent: sent,
            cookies_returned: returned,
            cookies_failed: failed,
            listen_overflows: overflows,
            listen_drops: drops,
            ..NOTHING
        }
    })
}

proptest! {
    /// Any history with any intervals ends in the normal state after a bounded calm.
    #[test]
    fn no_history_sticks(
        history in prop::collection::vec((0_u64..5000, any::<bool>(), counts()), 0..300),
    ) {
        let mut feed = Feed::new();
        for (millis, has_cookies, counts) in history {
            feed.has_cookies = has_cookies;
            feed.sample_after(Duration::from_millis(millis), counts);
        }
        for _ in 0..CALM_SAMPLES {
            feed.sample(NOTHING);
        }
        prop_assert!(!feed.is_flooded());
        assert_alternating(&feed.changes);
    }

    /// Clients that return every cookie within three samples never begin a flood.
    #[test]
    fn returned_cookies_are_no_flood(
        bursts in prop::collection::vec(0_u64..100_000, 1..200),
        delay in 0_usize..4,
    ) {
        let mut feed = Feed::new();
        for at in 0..bursts.len() + delay {
            let sent = bursts.get(at).copied().unwrap_or(0);
            let returned = at.checked_sub(delay).map_or(0, |before| bursts[before]);
            feed.sample(cookies(sent, returned));
        }
        prop_assert_eq!(&feed.changes, &[]);
    }
}
