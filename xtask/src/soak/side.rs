//! Side servers beside the main server, each for features that the main server does not use, with a moderate load of
//! its own: worker processes, direct descriptors.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::watch::ResourceSample;
use super::well_behaved::RequestTally;
use crate::XtaskResult;
use crate::bench::load::{BenchEnvironment, HttpLoad};
use crate::bench::server::{BenchDriver, BenchServer};
use crate::bench::stilling_before_node;

const SEGMENT_REQUESTS: u64 = 5_000;

/// Options for two worker processes, each replaced after 20,000 requests. No request is refused while it waits for a
/// process.
const APP_OPTIONS: [&str; 8] =
    ["--processes", "2", "--app-concurrency", "8", "--app-requests-max", "20000", "--queue-target", "off"];

const DIRECT_OPTIONS: [&str; 3] = ["-C", "1000", "--direct-descriptors"];

/// A server with the path requested from it.
pub(super) struct SideServer {
    name: &'static str,
    server: BenchServer,
    path: &'static str,
    environment: BenchEnvironment,
}

pub(super) struct SideObservation {
    pub(super) name: &'static str,
    pub(super) before: ResourceSample,
    pub(super) resource_samples: Vec<ResourceSample>,
    pub(super) after: Option<ResourceSample>,
    pub(super) tally: [RequestTally; 2],
    pub(super) ended_well: bool,
}

/// The side servers of a soak on this driver.
pub(super) fn all(environment: &BenchEnvironment, driver: BenchDriver) -> XtaskResult<Vec<SideServer>> {
    let place_of = |name: &str| -> XtaskResult<BenchEnvironment> {
        let folder = environment.folder.join(name);
        std::fs::create_dir(&folder)?;
        Ok(BenchEnvironment { folder, ..environment.clone() })
    };
    let (app, direct) = (place_of("app")?, place_of("direct")?);
    let mut sides = vec![SideServer {
        name: "--app",
        server: stilling_before_node(&app, driver, &APP_OPTIONS)?,
        path: "/",
        environment: app,
    }];
    if driver == BenchDriver::Uring {
        sides.push(SideServer {
            name: "--direct-descriptors",
            server: BenchServer::stilling(&direct.binary, driver, &DIRECT_OPTIONS)?,
            path: "/test/fast",
            environment: direct,
        });
    }
    Ok(sides)
}

impl SideServer {
    /// Sends requests until `over` while sampling the server, then ends it.
    pub(super) fn run(self, start: Instant, total_s: f64, over: &AtomicBool) -> XtaskResult<SideObservation> {
        let process = self.server.first_process();
        let before = ResourceSample::at(process, 0.0).ok_or("a side server ended before the load began")?;
        let (resource_samples, tally) = std::thread::scope(|threads| {
            let load = threads.spawn(|| self.load(over));
            let resource_samples = super::sample_until(process, start, total_s, false);
            (resource_samples, super::joined(load))
        });
        let after = super::wait_for_release(process, start, &before);
        let ended_well = self.server.end();
        Ok(SideObservation { name: self.name, before, resource_samples, after, tally, ended_well })
    }

    /// Runs requests with a connection each and on keep-alive connections, alternately.
    fn load(&self, over: &AtomicBool) -> [RequestTally; 2] {
        let name = |kept: &str| format!("{}, c=20{kept} (ab)", self.name);
        let mut tally = [RequestTally::new(name("")), RequestTally::new(name(", keep-alive"))];
        let loads =
            [false, true].map(|keep| HttpLoad::Ab { requests: SEGMENT_REQUESTS, connections: 20, keep });
        let url = self.server.url(self.path);
        let mut turn = 0;
        while !over.load(Relaxed) {
            tally[turn % 2].run_at(&loads[turn % 2], &url, &self.environment);
            turn += 1;
        }
        tally
    }
}
