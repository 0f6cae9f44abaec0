//! Retry policy: a stepwise backoff as in BBQ (Broadcast Burst Queue, one of the two systems that Stilling is measured
//! against), jitter and a retry budget.
//!
//! Each failure moves one step to the right, each success one step back to the left, down to the configured values. All
//! clients together thus reduce the load on an overloaded server until it recovers.
//!
//! ```text
//!             ◄── success                                      failure ──►
//!   exponent      0     1     2     3     4     5     6     7
//!   attempts      8     7     6     5     4     3     2     1
//!   wait        0.1   0.2   0.4   0.8   1.6   3.2   6.4    10  seconds
//! ```
//!
//! Two additions prevent bursts of retries from many clients: each wait is shortened by a random part of up to half
//! ([`JitterRng`]), so that clients do not retry in step; and retries are limited to a share of first sends
//! ([`RetryBudget`]).
//!
//! All of it is plain state: time is an argument, and random numbers have a seed.

use std::time::{Duration, Instant};

use stilling_ring::SplitMix64;

/// The bounds of a [`RetryBackoff`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackoffConfig {
    /// Attempts per message without failures; default 8.
    pub attempts: u32,
    /// Minimum attempts per message; default 1.
    pub attempts_min: u32,
    /// Wait after the first failure; default 100 ms.
    pub wait: Duration,
    /// The longest wait; default 10 s.
    pub wait_max: Duration,
    /// Factor by which a failure lengthens the wait; default 2.
    pub factor: u32,
}

impl Default for BackoffConfig {
    fn default() -> BackoffConfig {
        BackoffConfig {
            attempts: 8,
            attempts_min: 1,
            wait: Duration::from_millis(100),
            wait_max: Duration::from_secs(10),
            factor: 2,
        }
    }
}

/// The current position between the bounds of a [`BackoffConfig`].
///
/// ```
/// use stilling_client::{BackoffConfig, RetryBackoff};
///
/// let mut backoff = RetryBackoff::new(BackoffConfig::default());
/// backoff.record_failure();
/// backoff.record_failure();
/// assert_eq!((backoff.attempts(), backoff.wait().as_millis()), (6, 400));
/// backoff.record_success();
/// assert_eq!((backoff.attempts(), backoff.wait().as_millis()), (7, 200));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetryBackoff {
    config: BackoffConfig,
    exponent: u32,
}

impl RetryBackoff {
    /// A backoff with the configured values. Contradictory bounds are corrected: at least one attempt, no wait above
    /// the longest, a factor of at least one.
    #[must_use]
    pub fn new(config: BackoffConfig) -> RetryBackoff {
        let attempts_min = config.attempts_min.max(1);
        let config = BackoffConfig {
            attempts_min,
            attempts: config.attempts.max(attempts_min),
            wait: config.wait.min(config.wait_max),
            factor: config.factor.max(1),
            ..config
        };
        RetryBackoff { config, exponent: 0 }
    }

    /// Records a delivery that failed or was late.
    pub fn record_failure(&mut self) {
        let is_last_wait = self.wait() == self.config.wait_max || self.config.factor == 1;
        if self.attempts() > self.config.attempts_min || !is_last_wait {
            self.exponent += 1;
        }
    }

    /// Records a delivery.
    pub fn record_success(&mut self) {
        self.exponent = self.exponent.saturating_sub(1);
    }

    /// Current number of attempts per message.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.config.attempts.saturating_sub(self.exponent).max(self.config.attempts_min)
    }

    /// Current wait after a failure.
    #[must_use]
    pub fn wait(&self) -> Duration {
        let factor = self.config.factor.checked_pow(self.exponent);
        let wait = factor.and_then(|factor| self.config.wait.checked_mul(factor));
        wait.map_or(self.config.wait_max, |wait| wait.min(self.config.wait_max))
    }

    /// Number of steps away from the configured values.
    #[must_use]
    pub fn exponent(&self) -> u32 {
        self.exponent
    }
}

/// A pseudo-random sequence, determined by its seed. Suitable for jitter, not for secrets.
#[derive(Clone, Debug)]
pub struct JitterRng(SplitMix64);

impl JitterRng {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> JitterRng {
        JitterRng(SplitMix64::new(seed))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.bits()
    }

    /// A random wait between half of `wait` and `wait`.
    pub fn jitter(&mut self, wait: Duration) -> Duration {
        let half = u64::try_from(wait.as_nanos() / 2).unwrap_or(u64::MAX);
        wait.saturating_sub(Duration::from_nanos(self.next_u64() % half.saturating_add(1)))
    }
}

/// The rates of a [`RetryBudget`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryBudgetConfig {
    /// Retries per hundred first sends; default 20.
    pub percent: u32,
    /// Additional retries per second, so that retries continue without new messages; default 10.
    pub per_second: u32,
    /// Capacity of the budget: retries that may be sent at once. Default 256; at least the number of unanswered
    /// messages, because one lost connection leaves as many.
    pub burst: u32,
}

impl Default for RetryBudgetConfig {
    fn default() -> RetryBudgetConfig {
        RetryBudgetConfig { percent: 20, per_second: 10, burst: 256 }
    }
}

/// A token bucket for retries: full at the start, filled by first sends, by time and by refunds, drained by retries.
/// Empty: a message waits for the next token; it is not dropped.
///
/// Because of the refunds a recovered server receives all messages of a lost connection in a few round trips, twice as
/// many in each. A server that accepts connections and does not answer receives one burst and then the rate per second.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    config: RetryBudgetConfig,
    /// Millionths of a token.
    level: u64,
    filled: Instant,
}

/// One token in the unit of `level`: the rate per second is the fill per microsecond.
const TOKEN_UNITS: u64 = 1_000_000;

impl RetryBudget {
    /// A full bucket. Burst and rate per second are at least one, so that retries remain possible.
    #[must_use]
    pub fn new(config: RetryBudgetConfig, now: Instant) -> RetryBudget {
        let config =
            RetryBudgetConfig { burst: config.burst.max(1), per_second: config.per_second.max(1), ..config };
        RetryBudget { config, level: u64::from(config.burst) * TOKEN_UNITS, filled: now }
    }

    /// Records the first send of a message.
    pub fn record_first_send(&mut self) {
        self.fill(u64::from(self.config.percent) * (TOKEN_UNITS / 100));
    }

    /// Returns the token of a retry whose cause is over, and adds one more: another connection has answered the
    /// message, or its stream has accepted it.
    pub fn refund(&mut self) {
        self.fill(2 * TOKEN_UNITS);
    }

    /// Takes a token.
    ///
    /// # Errors
    /// The time of the next token, if the bucket is empty.
    pub fn try_acquire(&mut self, now: Instant) -> Result<(), Instant> {
        let per_second = u64::from(self.config.per_second);
        let micros =
            u64::try_from(now.saturating_duration_since(self.filled).as_micros()).unwrap_or(u64::MAX);
        if micros > 0 {
            self.fill(micros.saturating_mul(per_second));
            self.filled = now;
        }
        if let Some(level) = self.level.checked_sub(TOKEN_UNITS) {
            self.level = level;
            return Ok(());
        }
        let missing = (TOKEN_UNITS - self.level).div_ceil(per_second);
        Err(now + Duration::from_micros(missing))
    }

    fn fill(&mut self, amount: u64) {
        let full = u64::from(self.config.burst) * TOKEN_UNITS;
        self.level = self.level.saturating_add(amount).min(full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 0.16: a failure lowers the attempts and lengthens the wait, a success moves both back to the configured
    /// values.
    #[test]
    fn backoff_rises_and_falls_in_the_recorded_sequence() {
        let config = BackoffConfig {
            attempts: 5,
            attempts_min: 1,
            wait: Duration::from_millis(100),
            wait_max: Duration::from_millis(2000),
            factor: 2,
        };
        let mut backoff = RetryBackoff::new(config);
        let mut seen = Vec::new();
        for step in "FFFFFFFSSSFSSSSSSS".chars() {
            match step {
                'F' => backoff.record_failure(),
                _ => backoff.record_success(),
            }
            seen.push((backoff.attempts(), backoff.wait().as_millis()));
        }
        let up = [(4, 200), (3, 400), (2, 800), (1, 1600), (1, 2000), (1, 2000), (1, 2000)];
        let down = [(1, 1600), (2, 800), (3, 400)];
        let again = [(2, 800), (3, 400), (4, 200), (5, 100), (5, 100), (5, 100), (5, 100), (5, 100)];
        let recorded: Vec<(u32, u128)> = up.into_iter().chain(down).chain(again).collect();
        assert_eq!(seen, recorded);
        assert_eq!(backoff, RetryBackoff::new(config));
    }

    /// Row 0.6: both values stay between their bounds for every configuration.
    #[test]
    fn every_backoff_configuration_has_an_attempt_and_a_bound() {
        let wild = [0, 1, 7, u32::MAX];
        let spans = [Duration::ZERO, Duration::from_millis(3), Duration::MAX];
        for (attempts, attempts_min, factor) in
            wild.iter().flat_map(|a| wild.iter().flat_map(move |b| wild.map(move |c| (*a, *b, c))))
        {
            for (wait, wait_max) in spans.iter().flat_map(|a| spans.map(move |b| (*a, b))) {
                let config = BackoffConfig { attempts, attempts_min, wait, wait_max, factor };
                let mut backoff = RetryBackoff::new(config);
                let rest = backoff.clone();
                for _ in 0..100 {
                    let before = (backoff.attempts(), backoff.wait());
                    backoff.record_failure();
                    assert!(backoff.attempts() >= 1 && backoff.attempts() <= before.0, "{config:?}");
                    assert!(backoff.wait() >= before.1 && backoff.wait() <= wait_max, "{config:?}");
                }
                for _ in 0..100 {
                    backoff.record_success();
                }
                assert_eq!(backoff, rest, "{config:?}");
            }
        }
    }

    #[test]
    fn jitter_stays_between_half_and_whole_and_follows_its_seed() {
        let wait = Duration::from_millis(1000);
        let next_u64 = |seed| {
            let mut random = JitterRng::new(seed);
            std::array::from_fn::<Duration, 1000, _>(|_| random.jitter(wait))
        };
        let jittered = next_u64(7);
        assert!(jittered.iter().all(|one| (wait / 2..=wait).contains(one)));
        assert!(
            jittered.iter().any(|one| *one < wait * 6 / 10)
                && jittered.iter().any(|one| *one > wait * 9 / 10)
        );
        assert_eq!(jittered, next_u64(7));
        assert_ne!(jittered, next_u64(8));
        assert_eq!(JitterRng::new(1).jitter(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn no_more_is_sent_again_than_the_budget_allows() {
        let start = Instant::now();
        let mut budget = RetryBudget::new(RetryBudgetConfig { percent: 20, per_second: 10, burst: 4 }, start);
        let acquire_all =
            |budget: &mut RetryBudget, now| std::iter::from_fn(|| budget.try_acquire(now).ok()).count();
        assert_eq!(acquire_all(&mut budget, start), 4);
        for _ in 0..10 {
            budget.record_first_send();
        }
        assert_eq!(acquire_all(&mut budget, start), 2, "a fifth of ten");
        let next = budget.try_acquire(start).expect_err("it is empty");
        assert_eq!(next - start, Duration::from_millis(100));
        assert_eq!(budget.try_acquire(next), Ok(()));
        assert_eq!(
            acquire_all(&mut budget, next + Duration::from_secs(3600)),
            4,
            "no more than a burst is saved up"
        );
    }
}
