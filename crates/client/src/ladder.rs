//! When to try again: the ladder of the Broadcast Burst Queue, jitter, and a retry budget.
//!
//! Each failure is a step to the right, each success a step back to the left, until the values are those that were
//! configured. So a flooded server hears less and less from everybody, and recovers.
//!
//! ```text
//!             ◄── success                                      failure ──►
//!   rung          0     1     2     3     4     5     6     7
//!   attempts      8     7     6     5     4     3     2     1
//!   wait        0.1   0.2   0.4   0.8   1.6   3.2   6.4    10  seconds
//! ```
//!
//! Two things on top keep many clients from being a flood of their own: each wait is cut by up to half at random
//! ([`Random`]), so that they do not come back in step; and no more messages are sent again than a share of those that
//! are sent first ([`Budget`]).
//!
//! All of it is plain state; time is an argument and randomness has a seed.

use std::time::{Duration, Instant};

use stilling_ring::SplitMix64;

/// The two ends of the ladder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LadderConfig {
    /// How often a message is tried while all is well; default 8.
    pub attempts: u32,
    /// How often it is tried at least; default 1.
    pub attempts_min: u32,
    /// How long to wait after the first failure; default 100 ms.
    pub wait: Duration,
    /// The longest wait; default 10 s.
    pub wait_max: Duration,
    /// By how much a failure lengthens the wait; default 2.
    pub factor: u32,
}

impl Default for LadderConfig {
    fn default() -> LadderConfig {
        LadderConfig {
            attempts: 8,
            attempts_min: 1,
            wait: Duration::from_millis(100),
            wait_max: Duration::from_secs(10),
            factor: 2,
        }
    }
}

/// Where somebody stands on the ladder.
///
/// ```
/// use stilling_client::{Ladder, LadderConfig};
///
/// let mut ladder = Ladder::new(LadderConfig::default());
/// ladder.failed();
/// ladder.failed();
/// assert_eq!((ladder.attempts(), ladder.wait().as_millis()), (6, 400));
/// ladder.succeeded();
/// assert_eq!((ladder.attempts(), ladder.wait().as_millis()), (7, 200));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ladder {
    config: LadderConfig,
    rung: u32,
}

impl Ladder {
    /// At rest, with the configured values. Bounds that contradict each other give way: at least one attempt, no wait
    /// longer than the longest, a factor of at least one.
    #[must_use]
    pub fn new(config: LadderConfig) -> Ladder {
        let attempts_min = config.attempts_min.max(1);
        let config = LadderConfig {
            attempts_min,
            attempts: config.attempts.max(attempts_min),
            wait: config.wait.min(config.wait_max),
            factor: config.factor.max(1),
            ..config
        };
        Ladder { config, rung: 0 }
    }

    /// Something was not delivered in the expected time.
    pub fn failed(&mut self) {
        let is_last_wait = self.wait() == self.config.wait_max || self.config.factor == 1;
        if self.attempts() > self.config.attempts_min || !is_last_wait {
            self.rung += 1;
        }
    }

    /// Something was delivered.
    pub fn succeeded(&mut self) {
        self.rung = self.rung.saturating_sub(1);
    }

    /// How often a message is tried now.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.config.attempts.saturating_sub(self.rung).max(self.config.attempts_min)
    }

    /// How long to wait now after a failure.
    #[must_use]
    pub fn wait(&self) -> Duration {
        let factor = self.config.factor.checked_pow(self.rung);
        let wait = factor.and_then(|factor| self.config.wait.checked_mul(factor));
        wait.map_or(self.config.wait_max, |wait| wait.min(self.config.wait_max))
    }

    /// How many steps it is away from the configured values.
    #[must_use]
    pub fn rung(&self) -> u32 {
        self.rung
    }
}

/// A sequence of numbers without a pattern; the same seed gives the same sequence. Good for waiting, not for secrets.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0.bits()
    }

    /// A wait between half of `wait` and all of it.
    pub fn jitter(&mut self, wait: Duration) -> Duration {
        let half = u64::try_from(wait.as_nanos() / 2).unwrap_or(u64::MAX);
        wait.saturating_sub(Duration::from_nanos(self.draw() % half.saturating_add(1)))
    }
}

/// How much may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetConfig {
    /// Messages sent again per hundred sent first; default 20.
    pub percent: u32,
    /// Messages that may be sent again per second in any case, so that what is left after a failure gets out although
    /// nothing new comes; default 10.
    pub per_second: u32,
    /// Most messages sent again at once: what was saved up beyond it is lost. Default 256; never less than may be with the
    /// server without its answer, for so many one lost connection leaves behind.
    pub burst: u32,
}

impl Default for BudgetConfig {
    fn default() -> BudgetConfig {
        BudgetConfig { percent: 20, per_second: 10, burst: 256 }
    }
}

/// A bucket of permissions to send again: full at the start, filled by what is sent first, by time and by answers to what
/// a lost connection had left, emptied by what is sent again. Empty: a message waits for the next permission; it is not dropped.
///
/// So a server that is well again gets all that is left in a few round trips, twice as much with each, and one that takes
/// connections and answers nothing gets one burst and then what time gives.
#[derive(Clone, Debug)]
pub struct Budget {
    config: BudgetConfig,
    /// In millionths.
    level: u64,
    filled: Instant,
}

/// A permission in the unit of the level. Per second and microsecond it fills by one.
const PERMISSION: u64 = 1_000_000;

impl Budget {
    /// A full bucket. A burst of none gives way to one; else nothing could ever be sent again.
    #[must_use]
    pub fn new(config: BudgetConfig, now: Instant) -> Budget {
        let config =
            BudgetConfig { burst: config.burst.max(1), per_second: config.per_second.max(1), ..config };
        Budget { config, level: u64::from(config.burst) * PERMISSION, filled: now }
    }

    /// A message was sent for the first time.
    pub fn sent_first(&mut self) {
        self.fill(u64::from(self.config.percent) * (PERMISSION / 100));
    }

    /// What a lost connection had left was answered over another one: its permission comes back, and one more.
    pub fn recovered(&mut self) {
        self.fill(2 * PERMISSION);
    }

    /// Takes a permission, or says when there will be one.
    ///
    /// # Errors
    /// The time at which to ask again.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let per_second = u64::from(self.config.per_second);
        let micros =
            u64::try_from(now.saturating_duration_since(self.filled).as_micros()).unwrap_or(u64::MAX);
        if micros > 0 {
            self.fill(micros.saturating_mul(per_second));
            self.filled = now;
        }
        if let Some(level) = self.level.checked_sub(PERMISSION) {
            self.level = level;
            return Ok(());
        }
        let missing = (PERMISSION - self.level).div_ceil(per_second);
        Err(now + Duration::from_micros(missing))
    }

    fn fill(&mut self, amount: u64) {
        let full = u64::from(self.config.burst) * PERMISSION;
        self.level = self.level.saturating_add(amount).min(full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 0.16: a failure lowers the attempts and lengthens the wait, a success moves both back to the original.
    #[test]
    fn the_ladder_is_climbed_and_descended_in_the_recorded_sequence() {
        let config = LadderConfig {
            attempts: 5,
            attempts_min: 1,
            wait: Duration::from_millis(100),
            wait_max: Duration::from_millis(2000),
            factor: 2,
        };
        let mut ladder = Ladder::new(config);
        let mut seen = Vec::new();
        for step in "FFFFFFFSSSFSSSSSSS".chars() {
            match step {
                'F' => ladder.failed(),
                _ => ladder.succeeded(),
            }
            seen.push((ladder.attempts(), ladder.wait().as_millis()));
        }
        let up = [(4, 200), (3, 400), (2, 800), (1, 1600), (1, 2000), (1, 2000), (1, 2000)];
        let down = [(1, 1600), (2, 800), (3, 400)];
        let again = [(2, 800), (3, 400), (4, 200), (5, 100), (5, 100), (5, 100), (5, 100), (5, 100)];
        let recorded: Vec<(u32, u128)> = up.into_iter().chain(down).chain(again).collect();
        assert_eq!(seen, recorded);
        assert_eq!(ladder, Ladder::new(config));
    }

    /// Row 0.6: both values stay between their bounds, whatever they are.
    #[test]
    fn no_configuration_leaves_the_ladder_without_an_attempt_or_a_bound() {
        let wild = [0, 1, 7, u32::MAX];
        let spans = [Duration::ZERO, Duration::from_millis(3), Duration::MAX];
        for (attempts, attempts_min, factor) in
            wild.iter().flat_map(|a| wild.iter().flat_map(move |b| wild.map(move |c| (*a, *b, c))))
        {
            for (wait, wait_max) in spans.iter().flat_map(|a| spans.map(move |b| (*a, b))) {
                let config = LadderConfig { attempts, attempts_min, wait, wait_max, factor };
                let mut ladder = Ladder::new(config);
                let rest = ladder.clone();
                for _ in 0..100 {
                    let before = (ladder.attempts(), ladder.wait());
                    ladder.failed();
                    assert!(ladder.attempts() >= 1 && ladder.attempts() <= before.0, "{config:?}");
                    assert!(ladder.wait() >= before.1 && ladder.wait() <= wait_max, "{config:?}");
                }
                for _ in 0..100 {
                    ladder.succeeded();
                }
                assert_eq!(ladder, rest, "{config:?}");
            }
        }
    }

    #[test]
    fn jitter_stays_between_half_and_whole_and_follows_its_seed() {
        let wait = Duration::from_millis(1000);
        let draw = |seed| {
            let mut random = Random::new(seed);
            std::array::from_fn::<Duration, 1000, _>(|_| random.jitter(wait))
        };
        let drawn = draw(7);
        assert!(drawn.iter().all(|one| (wait / 2..=wait).contains(one)));
        assert!(drawn.iter().any(|one| *one < wait * 6 / 10) && drawn.iter().any(|one| *one > wait * 9 / 10));
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
        assert_eq!(Random::new(1).jitter(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn no_more_is_sent_again_than_the_budget_allows() {
        let start = Instant::now();
        let mut budget = Budget::new(BudgetConfig { percent: 20, per_second: 10, burst: 4 }, start);
        let take_all = |budget: &mut Budget, now| std::iter::from_fn(|| budget.take(now).ok()).count();
        assert_eq!(take_all(&mut budget, start), 4);
        for _ in 0..10 {
            budget.sent_first();
        }
        assert_eq!(take_all(&mut budget, start), 2, "a fifth of ten");
        let next = budget.take(start).expect_err("it is empty");
        assert_eq!(next - start, Duration::from_millis(100));
        assert_eq!(budget.take(next), Ok(()));
        assert_eq!(
            take_all(&mut budget, next + Duration::from_secs(3600)),
            4,
            "no more than a burst is saved up"
        );
    }
}
