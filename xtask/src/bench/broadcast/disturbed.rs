//! Slow, joining and reconnecting subscribers: what they cost the others.

use super::BroadcastBench;
use super::clients::MeasuredClients;
use super::load::FanOutLoad;
use super::peers::BroadcastPeer;
use super::scenarios::at;
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::harness;
use crate::bench::sample::BenchSample;
use crate::bench::targets::BenchTarget;

pub(super) const TITLE: &str = "Slow, joining and reconnecting subscribers";

/// Most server CPU per delivery to the others, as a multiple of the undisturbed.
const CPU_TIMES_MAX: f64 = 1.1;

/// Least deliveries per second to the others, as a part of the undisturbed.
const RATE_PART_MIN: f64 = 0.9;

/// Megabytes that the server may hold for a slow subscriber, and once more for its allocator.
const SLOW_SUBSCRIBER_MB_MAX: f64 = 16.0;

/// Least joins or reconnects per second in each round, as a part of those requested.
const DISTURBANCE_PART_MIN: f64 = 0.9;

/// What the other subscribers do. The undisturbed run comes first in each round.
struct SubscriberDisturbance {
    name: &'static str,
    options: &'static [&'static str],
    kind: DisturbanceKind,
}

#[derive(Clone, Copy, PartialEq)]
enum DisturbanceKind {
    None,
    /// So many subscribers read slowly, or not at all.
    Slow(u32),
    /// So many subscriptions begin and end per second.
    Changes(u32),
}

const DISTURBANCES: [SubscriberDisturbance; 5] = [
    SubscriberDisturbance { name: "none", options: &[], kind: DisturbanceKind::None },
    SubscriberDisturbance { name: "1 stopped", options: &["--stopped=1"], kind: DisturbanceKind::Slow(1) },
    SubscriberDisturbance {
        name: "20 read 1 KiB/s",
        options: &["--trickling=20"],
        kind: DisturbanceKind::Slow(20),
    },
    SubscriberDisturbance {
        name: "10,000 SUB and UNSUB per second",
        options: &["--joins=10000"],
        kind: DisturbanceKind::Changes(10_000),
    },
    SubscriberDisturbance {
        name: "1,000 reconnects per second",
        options: &["--reconnects=1000"],
        kind: DisturbanceKind::Changes(1_000),
    },
];

/// Disturbances that SSE and WebSocket have, too: the first ones.
const SLOW_ONLY: usize = 3;

/// Rows of NATS clients.
const NATS_PEERS: [BroadcastPeer; 3] =
    [BroadcastPeer::StillingUring, BroadcastPeer::StillingPoll, BroadcastPeer::NatsServer];

/// Rows of clients over WebSocket and SSE.
const WEB_CLIENTS: [MeasuredClients; 4] = [
    MeasuredClients::web("stilling uring, binary", BroadcastPeer::StillingUring, "websocket"),
    MeasuredClients::web("stilling uring, SSE", BroadcastPeer::StillingUring, "sse"),
    MeasuredClients::web("stilling poll, binary", BroadcastPeer::StillingPoll, "websocket"),
    MeasuredClients::web("stilling poll, SSE", BroadcastPeer::StillingPoll, "sse"),
];

/// Clients with what disturbs them. The undisturbed run of clients precedes their others.
type DisturbedRun = (MeasuredClients, &'static SubscriberDisturbance);

fn runs() -> Vec<DisturbedRun> {
    let nats = NATS_PEERS.map(|peer| (MeasuredClients::usual(peer), &DISTURBANCES[..]));
    let web = WEB_CLIENTS.map(|clients| (clients, &DISTURBANCES[..SLOW_ONLY]));
    let all = nats.into_iter().chain(web);
    all.flat_map(|(clients, disturbances)| disturbances.iter().map(move |one| (clients, one))).collect()
}

/// Samples of a server with one disturbance, and without any in the same rounds.
struct DisturbedSeries<'a> {
    samples: &'a [BenchSample],
    undisturbed: &'a [BenchSample],
}

impl DisturbedSeries<'_> {
    fn times(&self, of: fn(&BenchSample) -> Option<f64>) -> Option<f64> {
        figures::ratio_of(self.samples, self.undisturbed, of)
    }

    fn growth_mb(&self) -> f64 {
        let mb =
            |samples: &[BenchSample]| figures::median(samples.iter().filter_map(super::memory_mb).collect());
        mb(self.samples) - mb(self.undisturbed)
    }

    /// Joins or reconnects per second of the slowest round; `None` if a round has no such figure.
    fn slowest_changes(&self) -> Option<f64> {
        let rates: Option<Vec<f64>> = self.samples.iter().map(|sample| sample.disturbances_per_s).collect();
        rates?.into_iter().min_by(f64::total_cmp)
    }

    /// What must hold for these clients beside this disturbance.
    fn targets(&self, clients: &str, disturbance: &SubscriberDisturbance) -> Vec<BenchTarget> {
        let name = format!("{clients}, {}", disturbance.name);
        let failures = self.samples.iter().map(|sample| sample.failures as f64).sum();
        let mut targets = Vec::new();
        match disturbance.kind {
            DisturbanceKind::None => {}
            DisturbanceKind::Slow(subscribers) => {
                let cpu = self.times(|sample| Some(sample.cpu_s));
                let what = format!("server CPU per delivery ÷ undisturbed, {name}");
                targets.push(BenchTarget::at_most(what, CPU_TIMES_MAX, cpu, "×"));
                let most = SLOW_SUBSCRIBER_MB_MAX * f64::from(subscribers + 1);
                let what = format!("memory beyond the undisturbed, {name}");
                targets.push(BenchTarget::at_most(what, most, Some(self.growth_mb()), "MB"));
            }
            DisturbanceKind::Changes(per_s) => {
                let rate = self.times(|sample| Some(sample.rate));
                let what = format!("deliveries/s ÷ undisturbed, {name}");
                targets.push(BenchTarget::at_least(what, RATE_PART_MIN, rate, "×"));
                let least = DISTURBANCE_PART_MIN * f64::from(per_s);
                let what = format!("disturbances/s, {name}");
                targets.push(BenchTarget::at_least(what, least, self.slowest_changes(), "/s"));
            }
        }
        targets.push(BenchTarget::at_most(format!("failures, {name}"), 0.0, Some(failures), ""));
        targets
    }
}

impl BroadcastBench {
    pub(super) fn disturbed(&self) -> XtaskResult<PageSection> {
        let seconds = if self.options.quick { 2 } else { 5 };
        let load = FanOutLoad { seconds, ..at(200, 64, 2048) };
        let runs = runs();
        let found = harness::run_rounds(self.options.rounds, &runs, |round, (clients, disturbance)| {
            let load = FanOutLoad { further: disturbance.options, ..load };
            let sample = load.measure(clients, &self.programs)?;
            let (name, rate, failures) = (clients.name, sample.rate, sample.failures);
            let what = disturbance.name;
            println!("{TITLE}, round {round}, {name}, {what}: {rate:.0}/s, {failures} failures");
            Ok(sample)
        })?;
        let mut table = figures::table(
            "server | disturbance | deliveries/s | ÷ undisturbed | server CPU s per million | ÷ undisturbed | p99 ms | memory MB | disturbances/s | failures",
        );
        let mut undisturbed = 0;
        for (at, (clients, disturbance)) in runs.iter().enumerate() {
            if disturbance.options.is_empty() {
                undisturbed = at;
            }
            let series = DisturbedSeries { samples: &found[at], undisturbed: &found[undisturbed] };
            if clients.peer.is_stilling() {
                let targets = series.targets(clients.name, disturbance);
                targets.into_iter().for_each(|target| self.targets.add_target(target));
            }
            table.push(row(clients.name, disturbance, &series));
        }
        let description = format!(
            "`{}`, and further subscribers that the window does not wait for (`--stopped`, `--trickling`, `--joins`, \
             `--reconnects`). Deliveries are those to the 200 others, and so is the CPU per delivery; the further subscribers' \
             messages are verified, too. Rows without a protocol are of NATS clients. Slow subscribers use the protocol of the row. \
             A stream's slow subscribers over WebSocket and SSE stay connected and catch up (`slow-subscribers=catch-up`). \
             Otherwise a server disconnects a subscriber that holds too much of its memory. Joins use four \
             open connections; each reconnect is a connection that subscribes and closes; disturbances/s are these joins or \
             reconnects.",
            load.shown()
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }
}

fn row(clients: &str, disturbance: &SubscriberDisturbance, series: &DisturbedSeries<'_>) -> Vec<String> {
    let spread = |of: fn(&BenchSample) -> Option<f64>, show: fn(f64) -> String| {
        figures::spread_of_measured(series.samples.iter().map(of), show)
    };
    vec![
        clients.to_owned(),
        disturbance.name.to_owned(),
        spread(|sample| Some(sample.rate), figures::thousands),
        figures::times(series.times(|sample| Some(sample.rate))),
        spread(|sample| Some(sample.cpu_s), super::four_places),
        figures::times(series.times(|sample| Some(sample.cpu_s))),
        spread(|sample| sample.p99_ms, figures::two_places),
        spread(super::memory_mb, figures::thousands),
        spread(|sample| sample.disturbances_per_s, figures::thousands),
        series.samples.iter().map(|sample| sample.failures).sum::<u64>().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_and_protocol_is_measured_undisturbed_first() {
        let runs = runs();
        assert_eq!(runs.len(), NATS_PEERS.len() * DISTURBANCES.len() + WEB_CLIENTS.len() * SLOW_ONLY);
        let is_slow = |kind| matches!(kind, DisturbanceKind::Slow(_));
        assert!(DISTURBANCES[1..SLOW_ONLY].iter().all(|disturbance| is_slow(disturbance.kind)));
        for (at, (clients, _)) in runs.iter().enumerate() {
            let first = runs.iter().position(|(other, _)| other.name == clients.name);
            let first = first.expect("it is one of them");
            assert!(runs[first].1.options.is_empty());
            assert!(runs[first..=at].iter().all(|(other, _)| other.name == clients.name), "{}", clients.name);
        }
    }

    #[test]
    fn a_disturbance_is_compared_within_each_round() {
        let sample = |rate, memory| BenchSample { rate, memory: Some(memory), ..BenchSample::default() };
        let undisturbed = [sample(100.0, 7_000_000), sample(10.0, 8_000_000), sample(50.0, 9_000_000)];
        let samples = [sample(90.0, 17_000_000), sample(8.0, 18_000_000), sample(50.0, 19_000_000)];
        let series = DisturbedSeries { samples: &samples, undisturbed: &undisturbed };
        assert_eq!(series.times(|sample| Some(sample.rate)), Some(0.9));
        assert_eq!(series.growth_mb(), 10.0);
        let row = row("stilling poll", &DISTURBANCES[1], &series);
        assert_eq!(row[..4], ["stilling poll", "1 stopped", "50 (8 – 90)", "×0.90"]);
        assert_eq!(DISTURBANCES[0].options, [""; 0]);
    }

    /// A disturbance below its rate in one round proves nothing, and both kinds of slow subscribers may cost memory.
    #[test]
    fn a_disturbance_must_reach_its_rate_and_slow_subscribers_are_bounded() {
        let sample = |memory, disturbances_per_s| BenchSample {
            rate: 50.0,
            cpu_s: 2.0,
            memory: Some(memory),
            disturbances_per_s,
            failures: 1,
            ..BenchSample::default()
        };
        let undisturbed = [sample(10_000_000, None), sample(10_000_000, None)];
        let samples = [sample(50_000_000, Some(10_001.0)), sample(50_000_000, Some(8_999.0))];
        let series = DisturbedSeries { samples: &samples, undisturbed: &undisturbed };
        let [none, stopped, trickling, joins, reconnects] = &DISTURBANCES;
        let at_most = |what: &str, bound, measured, unit| BenchTarget::at_most(what, bound, measured, unit);
        let failures = |what: &str| at_most(what, 0.0, Some(2.0), "");
        assert_eq!(series.targets("a", none), [failures("failures, a, none")]);
        let slow = |name: &str, most| {
            [
                at_most(&format!("server CPU per delivery ÷ undisturbed, a, {name}"), 1.1, Some(1.0), "×"),
                at_most(&format!("memory beyond the undisturbed, a, {name}"), most, Some(40.0), "MB"),
                failures(&format!("failures, a, {name}")),
            ]
        };
        assert_eq!(series.targets("a", stopped), slow("1 stopped", 32.0));
        assert_eq!(series.targets("a", trickling), slow("20 read 1 KiB/s", 336.0));
        let changes = |series: &DisturbedSeries<'_>, of| series.targets("a", of)[1].clone();
        let rate = |name: &str, least, measured| {
            BenchTarget::at_least(format!("disturbances/s, a, {name}"), least, measured, "/s")
        };
        let name = "10,000 SUB and UNSUB per second";
        assert_eq!(changes(&series, joins), rate(name, 9_000.0, Some(8_999.0)));
        let missing = DisturbedSeries { samples: &undisturbed, ..series };
        assert_eq!(changes(&missing, reconnects), rate("1,000 reconnects per second", 900.0, None));
    }
}
