//! Recent rates and peaks: samples of the counters, taken once a second by the first shard to turn.
//!
//! Only a busy server takes samples: after a second without changes no shard is woken for the next one.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use stilling_ring::Time;

/// Interval of samples in a busy server.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Span over which rates are computed.
const WINDOW: Duration = Duration::from_secs(10);

/// Kept samples: those of the window, the one before it, and one that is being written. Full: the oldest is
/// overwritten.
const SAMPLE_SLOTS: usize = 13;

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterTotals {
    /// HTTP requests answered.
    pub(crate) requests: u64,
    /// Messages received by the hub.
    pub(crate) messages: u64,
    /// Messages sent to subscriptions.
    pub(crate) delivered: u64,
    /// Connections, requests and messages refused, shed or lost.
    pub(crate) refused: u64,
    /// Jobs that left the workers' queue.
    pub(crate) jobs: u64,
    /// Nanoseconds that they waited there.
    pub(crate) waited_ns: u64,
    /// Messages that gates accepted and rejected.
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
}

const TOTALS_LEN: usize = 8;

/// What the server counts per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Received,
    Delivered,
    Judged,
    Accepted,
    Rejected,
}

impl Flow {
    pub(crate) const ALL: [Flow; 5] =
        [Flow::Received, Flow::Delivered, Flow::Judged, Flow::Accepted, Flow::Rejected];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Flow::Received => "received",
            Flow::Delivered => "delivered",
            Flow::Judged => "judged",
            Flow::Accepted => "accepted",
            Flow::Rejected => "rejected",
        }
    }
}

/// Rates of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FlowRates {
    /// Per second, over the seconds in which the flow was not idle.
    pub(crate) mean: f64,
    /// In the best second.
    pub(crate) peak: u64,
}

impl CounterTotals {
    fn values(&self) -> [u64; TOTALS_LEN] {
        let CounterTotals { requests, messages, delivered, refused, jobs, waited_ns, accepted, rejected } =
            *self;
        [requests, messages, delivered, refused, jobs, waited_ns, accepted, rejected]
    }

    fn of(values: [u64; TOTALS_LEN]) -> CounterTotals {
        let [requests, messages, delivered, refused, jobs, waited_ns, accepted, rejected] = values;
        CounterTotals { requests, messages, delivered, refused, jobs, waited_ns, accepted, rejected }
    }

    fn of_flow(&self, flow: Flow) -> u64 {
        match flow {
            Flow::Received => self.messages,
            Flow::Delivered => self.delivered,
            Flow::Judged => self.accepted + self.rejected,
            Flow::Accepted => self.accepted,
            Flow::Rejected => self.rejected,
        }
    }
}

/// Counts over a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateWindow {
    pub(crate) span: Duration,
    pub(crate) delta: CounterTotals,
}

impl RateWindow {
    /// A count per second. A span below one second counts as one second.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.span.as_secs_f64().max(1.0)
    }

    /// Mean wait of jobs; `None` without jobs.
    pub(crate) fn mean_wait(&self) -> Option<Duration> {
        self.delta.waited_ns.checked_div(self.delta.jobs).map(Duration::from_nanos)
    }
}

/// The samples of one server; shared by its shards.
#[derive(Debug, Default)]
pub struct Rates {
    /// Time of the first turn of any shard plus one nanosecond; 0: none yet.
    started: AtomicU64,
    due: AtomicU64,
    sample_count: AtomicUsize,
    /// Nothing had changed when the last sample was due.
    is_idle: AtomicBool,
    samples: [RateSample; SAMPLE_SLOTS],
    /// Written with each sample.
    flows: [FlowMeter; Flow::ALL.len()],
}

#[derive(Debug, Default)]
struct FlowMeter {
    peak: AtomicU64,
    /// Sum of the samples, and nanoseconds in which something was counted.
    count: AtomicU64,
    busy_ns: AtomicU64,
}

impl FlowMeter {
    /// Adds what was counted in a span of at least a second.
    fn add(&self, count: u64, span: Duration) {
        if count == 0 {
            return;
        }
        let per_second = (count as f64 / span.as_secs_f64()).round() as u64;
        self.peak.fetch_max(per_second, Ordering::Relaxed);
        self.count.fetch_add(count, Ordering::Relaxed);
        self.busy_ns.fetch_add(span.as_nanos() as u64, Ordering::Relaxed);
    }

    fn rates(&self) -> FlowRates {
        let seconds = self.busy_ns.load(Ordering::Relaxed) as f64 / 1e9;
        let count = self.count.load(Ordering::Relaxed) as f64;
        FlowRates { mean: count / seconds.max(1.0), peak: self.peak.load(Ordering::Relaxed) }
    }
}

#[derive(Debug, Default)]
struct RateSample {
    /// Time of the sample plus one nanosecond; 0: none, or it is being written.
    at: AtomicU64,
    values: [AtomicU64; TOTALS_LEN],
}

impl RateSample {
    fn write(&self, at: Time, totals: &CounterTotals) {
        self.at.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (slot, value) in self.values.iter().zip(totals.values()) {
            slot.store(value, Ordering::Relaxed);
        }
        self.at.store(at.as_nanos() + 1, Ordering::Release);
    }

    fn read(&self) -> Option<(Time, CounterTotals)> {
        let at = self.at.load(Ordering::Acquire);
        let values = std::array::from_fn(|index| self.values[index].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (at > 0 && self.at.load(Ordering::Relaxed) == at)
            .then(|| (Time::from_nanos(at - 1), CounterTotals::of(values)))
    }
}

impl Rates {
    /// Takes a sample if one is due. Returns when the shard has to turn for the next; `None`: nothing has changed
    /// since the last.
    pub(crate) fn turn(&self, now: Time, totals: impl FnOnce() -> CounterTotals) -> Option<Time> {
        let due = self.due.load(Ordering::Relaxed);
        if now.as_nanos() < due {
            return Some(Time::from_nanos(due));
        }
        let next = now.after(SAMPLE_INTERVAL);
        // One shard takes the sample; the others check again when the next is due.
        if self.due.compare_exchange(due, next.as_nanos(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return Some(next);
        }
        let _ = self.started.compare_exchange(0, now.as_nanos() + 1, Ordering::Relaxed, Ordering::Relaxed);
        let totals = totals();
        let sample_count = self.sample_count.load(Ordering::Acquire);
        let last = sample_count.checked_sub(1).and_then(|last| self.samples[last % SAMPLE_SLOTS].read());
        if last.is_some_and(|(_, last)| last == totals) {
            self.is_idle.store(true, Ordering::Relaxed);
            return None;
        }
        let was_idle = self.is_idle.swap(false, Ordering::Relaxed);
        let first = (sample_count == 0).then(|| (now, CounterTotals::default()));
        if let Some((last_at, last)) = last.or(first) {
            // After an idle time everything was counted since a shard turned again.
            let span = if was_idle { SAMPLE_INTERVAL } else { now.since(last_at).max(SAMPLE_INTERVAL) };
            for (meter, flow) in self.flows.iter().zip(Flow::ALL) {
                meter.add(totals.of_flow(flow).saturating_sub(last.of_flow(flow)), span);
            }
        }
        self.samples[sample_count % SAMPLE_SLOTS].write(now, &totals);
        self.sample_count.store(sample_count.wrapping_add(1), Ordering::Release);
        Some(next)
    }

    /// Mean and peak of a flow since the start, up to the last sample.
    pub(crate) fn flow(&self, flow: Flow) -> FlowRates {
        self.flows[flow as usize].rates()
    }

    pub(crate) fn uptime(&self, now: Time) -> Duration {
        match self.started.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            started => now.since(Time::from_nanos(started - 1)),
        }
    }

    /// Counts over the last ten seconds, or since the start if that is less.
    pub(crate) fn recent(&self, now: Time, totals: CounterTotals) -> RateWindow {
        let uptime = self.uptime(now);
        let begin = now.before(WINDOW);
        let samples = self.samples.iter().filter_map(RateSample::read);
        let before = samples.filter(|(at, _)| *at <= begin).max_by_key(|(at, _)| *at);
        let (span, earlier) = match before {
            Some((at, earlier)) => {
                let span = now.since(at);
                // Without a later sample, nothing was counted before the window began.
                let is_near = span < WINDOW + 2 * SAMPLE_INTERVAL;
                (if is_near { span } else { WINDOW }, earlier)
            }
            None => (uptime.min(WINDOW + 2 * SAMPLE_INTERVAL), CounterTotals::default()),
        };
        let pairs = totals.values().into_iter().zip(earlier.values());
        let mut delta = [0; TOTALS_LEN];
        delta.iter_mut().zip(pairs).for_each(|(to, (now, then))| *to = now.saturating_sub(then));
        RateWindow { span, delta: CounterTotals::of(delta) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO.after(Duration::from_millis(millis))
    }

    fn requests(requests: u64) -> CounterTotals {
        CounterTotals { requests, ..CounterTotals::default() }
    }

    #[test]
    fn a_steady_rate_is_measured_and_an_old_burst_ages_out() {
        let rates = Rates::default();
        // 30 requests per second for a minute, with turns in between.
        for millis in (0..60_000).step_by(100) {
            let _ = rates.turn(at(millis), || requests(millis * 30 / 1000));
        }
        let recent = rates.recent(at(60_000), requests(1800));
        assert_eq!(rates.uptime(at(60_000)), Duration::from_secs(60));
        let rate = recent.per_second(recent.delta.requests);
        assert!((rate - 30.0).abs() < 0.5, "{recent:?}");
        // The due sample still contains changes; afterwards none is due.
        assert_eq!(rates.turn(at(60_000), || requests(1800)), Some(at(61_000)));
        assert_eq!(rates.turn(at(60_500), || unreachable!("not due")), Some(at(61_000)));
        assert_eq!(rates.turn(at(61_000), || requests(1800)), None, "nothing was counted");
        let recent = rates.recent(at(3_600_000), requests(1800));
        assert_eq!(recent, RateWindow { span: WINDOW, delta: CounterTotals::default() });
        // A burst after an hour.
        assert_eq!(rates.turn(at(3_600_000), || requests(1900)), Some(at(3_601_000)));
        let recent = rates.recent(at(3_600_500), requests(2000));
        assert_eq!(recent, RateWindow { span: WINDOW, delta: requests(200) });
    }

    /// Row 2.17: the rates in and out, average and peak.
    #[test]
    fn the_peak_is_the_best_second_and_the_mean_does_not_count_idle_ones() {
        let rates = Rates::default();
        let bids = |accepted, rejected| CounterTotals {
            messages: accepted + rejected,
            delivered: 200 * accepted,
            accepted,
            rejected,
            ..CounterTotals::default()
        };
        assert_eq!(rates.turn(at(0), || bids(0, 0)), Some(at(1000)));
        assert_eq!(rates.turn(at(1000), || bids(10, 5)), Some(at(2000)));
        assert_eq!(rates.turn(at(2000), || bids(40, 65)), Some(at(3000)));
        let received = FlowRates { mean: 52.5, peak: 90 };
        assert_eq!(rates.flow(Flow::Received), received);
        assert_eq!(rates.flow(Flow::Judged), received);
        assert_eq!(rates.flow(Flow::Accepted), FlowRates { mean: 20.0, peak: 30 });
        assert_eq!(rates.flow(Flow::Rejected), FlowRates { mean: 32.5, peak: 60 });
        assert_eq!(rates.flow(Flow::Delivered), FlowRates { mean: 4000.0, peak: 6000 });
        assert_eq!(rates.turn(at(3000), || bids(40, 65)), None, "an idle server is not woken");
        assert_eq!(rates.flow(Flow::Received), received);
        // A burst after an hour, seen by the first turn; then a late sample.
        assert_eq!(rates.turn(at(3_600_000), || bids(240, 65)), Some(at(3_601_000)));
        assert_eq!(rates.flow(Flow::Accepted), FlowRates { mean: 80.0, peak: 200 });
        assert_eq!(rates.turn(at(3_601_500), || bids(540, 65)), Some(at(3_602_500)));
        assert_eq!(rates.flow(Flow::Accepted), FlowRates { mean: 120.0, peak: 200 });
    }

    #[test]
    fn rates_count_from_the_start_of_a_new_server() {
        let rates = Rates::default();
        assert_eq!(rates.turn(at(5000), || requests(0)), Some(at(6000)));
        let recent = rates.recent(at(7000), requests(10));
        assert_eq!(recent, RateWindow { span: Duration::from_secs(2), delta: requests(10) });
        assert!((recent.per_second(recent.delta.requests) - 5.0).abs() < 1e-9);
        assert_eq!(recent.mean_wait(), None);
        let waited =
            RateWindow { delta: CounterTotals { jobs: 4, waited_ns: 8_000_000, ..requests(0) }, ..recent };
        assert_eq!(waited.mean_wait(), Some(Duration::from_millis(2)));
    }
}
