//! Servers beside the main one, each for what that one does not do, with a moderate load of its own: worker processes
//! behind it, connections that are no open files.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::honest::Met;
use super::watch::Look;
use crate::Outcome;
use crate::bench::load::{Load, Place};
use crate::bench::server::{Driver, Server};
use crate::bench::stilling_before_node;

/// Requests of one run of `ab`.
const SEGMENT_REQUESTS: u64 = 5_000;

/// The options before worker processes: two of them, which are replaced every so often.
/// None of these requests is to be refused while others wait for a process.
const APP_OPTIONS: [&str; 8] =
    ["--processes", "2", "--app-concurrency", "8", "--app-requests-max", "20000", "--queue-target", "off"];

const DIRECT_OPTIONS: [&str; 3] = ["-C", "1000", "--direct-descriptors"];

/// A server with what is asked of it.
pub(super) struct Side {
    name: &'static str,
    server: Server,
    path: &'static str,
    place: Place,
}

/// What was seen of it.
pub(super) struct SideSeen {
    pub(super) name: &'static str,
    pub(super) before: Look,
    pub(super) looks: Vec<Look>,
    pub(super) after: Option<Look>,
    pub(super) met: [Met; 2],
    pub(super) ended_well: bool,
}

/// The side servers of a soak on this driver.
pub(super) fn all(place: &Place, driver: Driver) -> Outcome<Vec<Side>> {
    let place_of = |name: &str| -> Outcome<Place> {
        let folder = place.folder.join(name);
        std::fs::create_dir(&folder)?;
        Ok(Place { folder, ..place.clone() })
    };
    let (app, direct) = (place_of("app")?, place_of("direct")?);
    let mut sides = vec![Side {
        name: "--app",
        server: stilling_before_node(&app, driver, &APP_OPTIONS)?,
        path: "/",
        place: app,
    }];
    if driver == Driver::Uring {
        sides.push(Side {
            name: "--direct-descriptors",
            server: Server::stilling(&direct.binary, driver, &DIRECT_OPTIONS)?,
            path: "/test/fast",
            place: direct,
        });
    }
    Ok(sides)
}

impl Side {
    /// Asks until `over`, and looks at the server all the while; then ends it.
    pub(super) fn run(self, start: Instant, total_s: f64, over: &AtomicBool) -> Outcome<SideSeen> {
        let process = self.server.first_process();
        let before = Look::at(process, 0.0).ok_or("a side server has gone before it began")?;
        let (looks, met) = std::thread::scope(|threads| {
            let load = threads.spawn(|| self.load(over));
            let looks = super::look_on(process, start, total_s, false);
            (looks, super::joined(load))
        });
        let after = super::everybody_gone(process, start, &before);
        let ended_well = self.server.end();
        Ok(SideSeen { name: self.name, before, looks, after, met, ended_well })
    }

    /// A connection each and kept ones, in turn.
    fn load(&self, over: &AtomicBool) -> [Met; 2] {
        let name = |kept: &str| format!("{}, c=20{kept} (ab)", self.name);
        let mut met = [Met::new(name("")), Met::new(name(", kept"))];
        let loads = [false, true].map(|keep| Load::Ab { requests: SEGMENT_REQUESTS, connections: 20, keep });
        let url = self.server.url(self.path);
        let mut turn = 0;
        while !over.load(Relaxed) {
            met[turn % 2].run_at(&loads[turn % 2], &url, &self.place);
            turn += 1;
        }
        met
    }
}
