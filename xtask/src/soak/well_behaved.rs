//! Well-behaved clients and their results: none of their requests may fail.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::schedule::SoakWindow;
use crate::bench::load::{BenchEnvironment, HttpLoad};
use crate::bench::sample::BenchSample;
use crate::bench::server::BenchServer;

/// Seconds per run of a generator; the next run follows.
const SEGMENT_S: u32 = 10;

/// Requests per run of `ab`: some seconds.
const SEGMENT_REQUESTS: u64 = 100_000;

/// Results of clients of one kind over all of their runs.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct RequestTally {
    pub(super) name: String,
    pub(super) requests: u64,
    pub(super) failures: u64,
    pub(super) refused: u64,
    /// Errors of runs without figures.
    pub(super) broken: BTreeSet<String>,
    /// 99th percentiles of the runs, and the longest time of all.
    pub(super) p99s_ms: Vec<f64>,
    pub(super) max_ms: f64,
    pub(super) took_s: f64,
}

impl RequestTally {
    pub(super) fn new(name: impl Into<String>) -> RequestTally {
        RequestTally { name: name.into(), ..RequestTally::default() }
    }

    /// Whether there were requests and all got a valid response.
    pub(super) fn is_good(&self) -> bool {
        self.requests > 0 && self.failures == 0 && self.refused == 0 && self.broken.is_empty()
    }

    pub(super) fn rate(&self) -> f64 {
        if self.took_s > 0.0 { self.requests as f64 / self.took_s } else { 0.0 }
    }

    fn add(&mut self, sample: &BenchSample) {
        self.requests += sample.requests;
        self.failures += sample.failures;
        self.refused += sample.refused;
        self.p99s_ms.extend(sample.p99_ms);
        self.max_ms = self.max_ms.max(sample.max_ms.unwrap_or(0.0));
        self.took_s += sample.took_s;
    }

    fn run(&mut self, load: &HttpLoad, server: &BenchServer, path: &str, environment: &BenchEnvironment) {
        self.run_at(load, &server.url(path), environment);
    }

    /// Runs a generator once against the server at `url`.
    pub(super) fn run_at(&mut self, load: &HttpLoad, url: &str, environment: &BenchEnvironment) {
        match load.run(url, environment) {
            Ok(sample) => self.add(&sample),
            Err(error) => {
                self.broken.insert(error.to_string());
                // Pauses, so that a missing server is not tried in a busy loop.
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

/// Slow requests over 100 connections, a connection each: the load of row 4.27.
pub(super) fn slow(server: &BenchServer, environment: &BenchEnvironment, over: &AtomicBool) -> RequestTally {
    let mut tally = RequestTally::new("slow, c=100 (stilling bench)");
    let load = HttpLoad::Own { seconds: SEGMENT_S, connections: 100, close: true, pipeline: 1 };
    while !over.load(Relaxed) {
        tally.run(&load, server, "/test/slow", environment);
    }
    tally
}

/// Fast requests over 100 connections, a connection each and kept, alternately: the load of row 4.28 and its kept form.
pub(super) fn fast(
    server: &BenchServer,
    environment: &BenchEnvironment,
    over: &AtomicBool,
) -> [RequestTally; 2] {
    let mut tally =
        [RequestTally::new("fast, c=100 (ab)"), RequestTally::new("fast, keep-alive, c=100 (wrk)")];
    let loads = [
        HttpLoad::Ab { requests: SEGMENT_REQUESTS, connections: 100, keep: false },
        HttpLoad::Wrk { seconds: SEGMENT_S, connections: 100, pipelined: false },
    ];
    let mut turn = 0;
    while !over.load(Relaxed) {
        tally[turn % 2].run(&loads[turn % 2], server, "/test/fast", environment);
        turn += 1;
    }
    tally
}

/// Nine times as many additional slow clients in each burst: ten times as many in total.
pub(super) fn bursts(
    server: &BenchServer,
    environment: &BenchEnvironment,
    bursts: &[SoakWindow],
    start: Instant,
    over: &AtomicBool,
) -> RequestTally {
    let mut tally = RequestTally::new("slow, 900 more in bursts (stilling bench)");
    for burst in bursts {
        while start.elapsed().as_secs_f64() < burst.from_s {
            if over.load(Relaxed) {
                return tally;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let seconds = (burst.to_s - burst.from_s).ceil().max(1.0) as u32;
        let load = HttpLoad::Own { seconds, connections: 900, close: true, pipeline: 1 };
        tally.run(&load, server, "/test/slow", environment);
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_or_one_broken_run_is_not_good_and_neither_is_silence() {
        let sample = BenchSample { requests: 10, took_s: 2.0, max_ms: Some(3.0), ..BenchSample::default() };
        let mut tally = RequestTally::new("some");
        assert!(!tally.is_good());
        tally.add(&sample);
        tally.add(&BenchSample { max_ms: Some(2.0), ..sample.clone() });
        assert!(tally.is_good());
        assert_eq!((tally.requests, tally.rate(), tally.max_ms), (20, 5.0, 3.0));
        let with = |change: fn(&mut RequestTally)| {
            let mut tally = tally.clone();
            change(&mut tally);
            tally.is_good()
        };
        assert!(!with(|tally| tally.failures = 1) && !with(|tally| tally.refused = 1));
        assert!(!with(|tally| tally.broken.extend(["gone".to_owned()])));
    }
}
