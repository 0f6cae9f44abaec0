//! A service that is repeatedly restarted under load, with a pool that grows and shrinks: each server takes over from
//! its predecessor, no request fails, and the last server is as small as the first ones.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::watch::{MEASURES, ResourceMeasure, ResourceSample};
use super::well_behaved::RequestTally;
use super::{SAMPLE_INTERVAL, SoakVerdict};
use crate::XtaskResult;
use crate::bench::load::{BenchEnvironment, HttpLoad};
use crate::bench::server::{BenchDriver, BenchServer};

/// Seconds between two hand-overs of a long soak.
const HAND_OVER_EVERY_S: f64 = 60.0;

/// Hand-overs of the shortest soak.
const HAND_OVERS_MIN: f64 = 6.0;

/// Seconds of one wave of slow requests, and of the rest after it: longer than the pool takes to shrink.
const WAVE_S: u32 = 3;

/// Options of the pool: few initial workers, a maximum, and removal after one idle second.
const OPTIONS: [&str; 12] = [
    "-A",
    "2",
    "-w",
    "2",
    "--free-threshold",
    "20",
    "--worker-limit",
    "60",
    "--shrink-after",
    "1",
    "--queue-target",
    "off",
];

/// Least growth of one server's threads between a rest and a wave.
const WORKERS_GROWN_MIN: f64 = 10.0;

pub(super) struct HandoverObservation {
    /// Last sample of each server before it was succeeded, at any point of a wave; of the last server, at the end.
    processes: Vec<ResourceSample>,
    /// Largest drop of one server's thread count after a wave.
    workers_grown: f64,
    ended_well: bool,
    pub(super) tally: Vec<RequestTally>,
    broken: Option<String>,
}

/// Time between replacements in a soak of `total_s` seconds.
fn every(total_s: f64) -> Duration {
    Duration::from_secs_f64(HAND_OVER_EVERY_S.min(total_s / HAND_OVERS_MIN))
}

pub(super) fn run(
    environment: &BenchEnvironment,
    driver: BenchDriver,
    total_s: f64,
    over: &AtomicBool,
) -> XtaskResult<HandoverObservation> {
    let control = environment.folder.join("control");
    let control = control.to_str().ok_or("the path of the temporary folder is not UTF-8")?;
    let options: Vec<&str> = OPTIONS.into_iter().chain(["--take-over", control]).collect();
    let first = BenchServer::stilling(&environment.binary, driver, &options)?;
    let (fast, slow) = (first.url("/test/fast"), first.url("/test/slow"));
    let process = Mutex::new(first.first_process());
    let workers_grown = Mutex::new(0.0_f64);
    let place_of = |name: &str| -> XtaskResult<BenchEnvironment> {
        let folder = environment.folder.join(name);
        std::fs::create_dir(&folder)?;
        Ok(BenchEnvironment { folder, ..environment.clone() })
    };
    let (closed, waves) = (place_of("closed")?, place_of("waves")?);
    let mut chain = ServerChain { processes: Vec::new(), ended_well: true };
    let (tally, broken) = std::thread::scope(|threads| {
        let fast = threads.spawn(|| fast_requests(&fast, &closed, over));
        let slow = threads.spawn(|| slow_waves(&slow, &waves, over));
        threads.spawn(|| watch_threads(&process, &workers_grown, over));
        let next = || BenchServer::stilling(&environment.binary, driver, &options);
        let last = chain.replace_until(first, &process, next, every(total_s), over);
        // The last server has no successor: no request may be in flight when it ends.
        let mut tally = super::joined(fast);
        tally.push(super::joined(slow));
        let broken = last.map(|server| chain.ended_well &= server.end()).err();
        (tally, broken.map(|error| error.to_string()))
    });
    let workers_grown = *workers_grown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(HandoverObservation {
        processes: chain.processes,
        workers_grown,
        ended_well: chain.ended_well,
        tally,
        broken,
    })
}

struct ServerChain {
    processes: Vec<ResourceSample>,
    ended_well: bool,
}

impl ServerChain {
    fn replace_until(
        &mut self,
        first: BenchServer,
        process: &Mutex<u32>,
        next: impl Fn() -> XtaskResult<BenchServer>,
        every: Duration,
        over: &AtomicBool,
    ) -> XtaskResult<BenchServer> {
        let mut server = first;
        let start = Instant::now();
        let mut due = every;
        loop {
            while !over.load(Relaxed) && start.elapsed() < due {
                std::thread::sleep(Duration::from_millis(100));
            }
            let last = ResourceSample::at(server.first_process(), start.elapsed().as_secs_f64());
            self.processes.push(last.ok_or("a server ended by itself")?);
            if over.load(Relaxed) {
                return Ok(server);
            }
            let successor = next()?;
            *process.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = successor.first_process();
            // It ends by itself, after completing pending requests.
            self.ended_well &= server.ends_by_itself();
            server = successor;
            due += every;
        }
    }
}

/// Runs fast requests with a connection each and on keep-alive connections, alternately: `ab` counts every failure.
fn fast_requests(url: &str, environment: &BenchEnvironment, over: &AtomicBool) -> Vec<RequestTally> {
    let mut tally = [
        RequestTally::new("hand-overs: fast, c=20 (ab)"),
        RequestTally::new("hand-overs: fast, keep-alive, c=20 (ab)"),
    ];
    let loads = [false, true].map(|keep| HttpLoad::Ab { requests: 10_000, connections: 20, keep });
    let mut turn = 0;
    while !over.load(Relaxed) {
        tally[turn % 2].run_at(&loads[turn % 2], url, environment);
        turn += 1;
    }
    tally.to_vec()
}

/// Runs slow requests in waves, with rests in which the pool shrinks.
fn slow_waves(url: &str, environment: &BenchEnvironment, over: &AtomicBool) -> RequestTally {
    let mut tally = RequestTally::new("hand-overs: slow, c=60 in waves (stilling bench)");
    let load = HttpLoad::Own { seconds: WAVE_S, connections: 60, close: true, pipeline: 1 };
    while !over.load(Relaxed) {
        tally.run_at(&load, url, environment);
        let rest = Instant::now() + Duration::from_secs(WAVE_S.into());
        while !over.load(Relaxed) && Instant::now() < rest {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    tally
}

/// Records the largest drop of a server's thread count.
fn watch_threads(process: &Mutex<u32>, workers_grown: &Mutex<f64>, over: &AtomicBool) {
    let (mut of, mut most) = (0, 0.0_f64);
    while !over.load(Relaxed) {
        let now = *process.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if now != of {
            (of, most) = (now, 0.0);
        }
        if let Some(look) = ResourceSample::at(now, 0.0) {
            most = most.max(look.threads);
            let mut workers_grown = workers_grown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *workers_grown = workers_grown.max(most - look.threads);
        }
        std::thread::sleep(SAMPLE_INTERVAL);
    }
}

impl HandoverObservation {
    pub(super) fn verdicts(&self) -> Vec<SoakVerdict> {
        let hand_overs = self.processes.len().saturating_sub(1);
        let broken = self.broken.as_ref().map(|detail| format!("; {detail}")).unwrap_or_default();
        let mut verdicts = vec![
            SoakVerdict {
                what: "servers take over from each other".to_owned(),
                limit: format!("≥ {} hand-overs, all ended well", HAND_OVERS_MIN - 2.0),
                holds: hand_overs as f64 >= HAND_OVERS_MIN - 2.0 && self.broken.is_none() && self.ended_well,
                measured: format!(
                    "{hand_overs} hand-overs; all ended {}{broken}",
                    if self.ended_well { "well" } else { "**not** well" }
                ),
            },
            SoakVerdict {
                what: "the pool grows and shrinks".to_owned(),
                limit: format!("≥ {WORKERS_GROWN_MIN} threads"),
                holds: self.workers_grown >= WORKERS_GROWN_MIN,
                measured: format!("{} threads started and ended in one server", self.workers_grown),
            },
        ];
        // The last samples fall into different parts of a wave, so the smallest ones of each half are compared.
        let half = self.processes.len() / 2;
        let least = |processes: &[ResourceSample], of: fn(&ResourceSample) -> f64| {
            processes.iter().map(of).fold(f64::NAN, f64::min)
        };
        for measure in levels() {
            let (early, late) =
                (least(&self.processes[..half], measure.of), least(&self.processes[half..], measure.of));
            verdicts.push(SoakVerdict {
                what: format!("level over all servers: {}", measure.name),
                limit: format!("≤ {} with the last ones", measure.format_value(measure.bound(early))),
                holds: measure.is_level(early, late),
                measured: format!(
                    "{} with the first ones, {} with the last ones",
                    measure.format_value(early),
                    measure.format_value(late)
                ),
            });
        }
        verdicts
    }
}

/// Measures that must stay level: all but the thread count, which follows the waves.
fn levels() -> impl Iterator<Item = &'static ResourceMeasure> {
    MEASURES.iter().filter(|measure| measure.name != "threads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_soak_has_hand_overs_and_a_long_one_one_a_minute() {
        assert_eq!(every(60.0), Duration::from_secs(10));
        assert_eq!(every(600.0), Duration::from_secs(60));
        assert_eq!(every(36_000.0), Duration::from_secs(60));
    }

    #[test]
    fn a_chain_that_breaks_or_grows_or_never_grows_its_pool_does_not_hold() {
        let look = |resident: f64| ResourceSample {
            resident,
            descriptors: 30.0,
            threads: 8.0,
            ..ResourceSample::default()
        };
        let good = || HandoverObservation {
            processes: (0..6).map(|_| look(50e6)).collect(),
            workers_grown: 40.0,
            ended_well: true,
            tally: Vec::new(),
            broken: None,
        };
        let broken = |change: fn(&mut HandoverObservation)| {
            let mut succession = good();
            change(&mut succession);
            succession.verdicts().iter().filter(|verdict| !verdict.holds).count()
        };
        assert_eq!(broken(|_| ()), 0);
        assert_eq!(broken(|seen| seen.broken = Some("refused".to_owned())), 1);
        assert_eq!(broken(|seen| seen.ended_well = false), 1);
        assert_eq!(broken(|seen| seen.workers_grown = 0.0), 1);
        assert_eq!(broken(|seen| seen.processes[3..].iter_mut().for_each(|look| look.resident = 90e6)), 1);
        assert_eq!(broken(|seen| seen.processes.clear()), 1 + levels().count());
    }
}
