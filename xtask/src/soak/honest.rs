//! Clients that mean well, and what they met: nobody of them may fail.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::schedule::Stretch;
use crate::bench::load::{Load, Place};
use crate::bench::sample::Sample;
use crate::bench::server::Server;

/// Seconds of one run of a generator; then the next one starts.
const SEGMENT_S: u32 = 10;

/// Requests of one run of `ab`: some seconds.
const SEGMENT_REQUESTS: u64 = 100_000;

/// What clients of one kind met in all of their runs.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Met {
    pub(super) name: String,
    pub(super) requests: u64,
    pub(super) failures: u64,
    pub(super) refused: u64,
    /// Runs that came to no figures, and what was said then.
    pub(super) broken: BTreeSet<String>,
    /// The median of the runs' 99th percentiles, and the longest of all times.
    pub(super) p99s_ms: Vec<f64>,
    pub(super) max_ms: f64,
    pub(super) took_s: f64,
}

impl Met {
    pub(super) fn new(name: impl Into<String>) -> Met {
        Met { name: name.into(), ..Met::default() }
    }

    /// Whether everybody got a right answer, and somebody asked.
    pub(super) fn is_good(&self) -> bool {
        self.requests > 0 && self.failures == 0 && self.refused == 0 && self.broken.is_empty()
    }

    pub(super) fn rate(&self) -> f64 {
        if self.took_s > 0.0 { self.requests as f64 / self.took_s } else { 0.0 }
    }

    fn add(&mut self, sample: &Sample) {
        self.requests += sample.requests;
        self.failures += sample.failures;
        self.refused += sample.refused;
        self.p99s_ms.extend(sample.p99_ms);
        self.max_ms = self.max_ms.max(sample.max_ms.unwrap_or(0.0));
        self.took_s += sample.took_s;
    }

    fn run(&mut self, load: &Load, server: &Server, path: &str, place: &Place) {
        self.run_at(load, &server.url(path), place);
    }

    /// Runs a generator once against whoever is at the address.
    pub(super) fn run_at(&mut self, load: &Load, url: &str, place: &Place) {
        match load.run(url, place) {
            Ok(sample) => self.add(&sample),
            Err(error) => {
                self.broken.insert(error.to_string());
                // A server that is gone is not asked a thousand times.
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

/// Slow requests over 100 connections, a connection each: the load of row 4.27.
pub(super) fn slow(server: &Server, place: &Place, over: &AtomicBool) -> Met {
    let mut met = Met::new("slow, c=100 (stilling bench)");
    let load = Load::Own { seconds: SEGMENT_S, connections: 100, close: true, pipeline: 1 };
    while !over.load(Relaxed) {
        met.run(&load, server, "/test/slow", place);
    }
    met
}

/// Fast requests over 100 connections, a connection each and kept, in turn: the load of row 4.28 and its kept form.
pub(super) fn fast(server: &Server, place: &Place, over: &AtomicBool) -> [Met; 2] {
    let mut met = [Met::new("fast, c=100 (ab)"), Met::new("fast, kept, c=100 (wrk)")];
    let loads = [
        Load::Ab { requests: SEGMENT_REQUESTS, connections: 100, keep: false },
        Load::Wrk { seconds: SEGMENT_S, connections: 100, pipelined: false },
    ];
    let mut turn = 0;
    while !over.load(Relaxed) {
        met[turn % 2].run(&loads[turn % 2], server, "/test/fast", place);
        turn += 1;
    }
    met
}

/// Nine times as many slow clients more, in each burst: ten times as many in all.
pub(super) fn bursts(
    server: &Server,
    place: &Place,
    bursts: &[Stretch],
    start: Instant,
    over: &AtomicBool,
) -> Met {
    let mut met = Met::new("slow, 900 more in bursts (stilling bench)");
    for burst in bursts {
        while start.elapsed().as_secs_f64() < burst.from_s {
            if over.load(Relaxed) {
                return met;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let seconds = (burst.to_s - burst.from_s).ceil().max(1.0) as u32;
        let load = Load::Own { seconds, connections: 900, close: true, pipeline: 1 };
        met.run(&load, server, "/test/slow", place);
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_or_one_broken_run_is_not_good_and_neither_is_silence() {
        let sample = Sample { requests: 10, took_s: 2.0, max_ms: Some(3.0), ..Sample::default() };
        let mut met = Met::new("some");
        assert!(!met.is_good());
        met.add(&sample);
        met.add(&Sample { max_ms: Some(2.0), ..sample.clone() });
        assert!(met.is_good());
        assert_eq!((met.requests, met.rate(), met.max_ms), (20, 5.0, 3.0));
        let with = |change: fn(&mut Met)| {
            let mut met = met.clone();
            change(&mut met);
            met.is_good()
        };
        assert!(!with(|met| met.failures = 1) && !with(|met| met.refused = 1));
        assert!(!with(|met| met.broken.extend(["gone".to_owned()])));
    }
}
