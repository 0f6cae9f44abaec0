//! Connections opened, used for one exchange and closed: nothing grows with their number.

use std::time::Instant;

use super::super::{RELEASE_TIMEOUT, SAMPLE_INTERVAL, SoakVerdict};
use crate::XtaskResult;
use crate::bench::figures::{self, mebibytes};
use crate::bench::server::BenchServer;
use crate::bench::tcl::{StatsConnection, TclPeer, TclPrograms, TclServer, cycle_options};

const ECHO: TclServer = TclServer { script: "xtask/src/bench/tcl/echo.tcl", arguments: &["stats"] };

/// The part of the connections before the first reading: 1 / this.
const WARM_UP_PART: u64 = 10;

/// Most growth of resident memory per connection, in bytes. A leak has at least 16, the smallest block of the allocator.
const GROWTH_EACH_MAX: f64 = 1.0;

/// Growth of resident memory that is no leak, in bytes: some pages of the allocator and the script. It exceeds
/// [`GROWTH_EACH_MAX`] only in short runs, of which 20,000 connections still show a leak of 16 bytes each.
const GROWTH_NOISE: f64 = 256.0 * 1024.0;

/// What a server holds while only the connection that reads its statistics is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HeldResources {
    descriptors: usize,
    resident: u64,
    /// Bytes of both pools of `iocp_stats`.
    pools: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CycleFigures {
    connections: u64,
    completed: u64,
    failures: u64,
    rate_per_s: f64,
    before: HeldResources,
    warm: HeldResources,
    end: HeldResources,
}

/// The command of the generator, for descriptions.
pub(super) fn command(connections: u64) -> String {
    format!("tcp {} ADDRESS", cycle_options(connections).join(" "))
}

/// Runs all connections, the first tenth of them before the first reading.
pub(super) fn run(programs: &TclPrograms, peer: TclPeer, connections: u64) -> XtaskResult<CycleFigures> {
    let server = programs.start(peer, ECHO)?;
    let mut stats = StatsConnection::open(&server)?;
    let before = HeldResources::of(&server, &mut stats, None)?;
    let warm_up = connections / WARM_UP_PART;
    let (first, _) = programs.load(&server, &cycle_options(warm_up))?;
    let warm = HeldResources::of(&server, &mut stats, Some(before.descriptors))?;
    println!("{}: {} connections, {warm:?}", server.name, first.exchanges);
    let (second, _) = programs.load(&server, &cycle_options(connections - warm_up))?;
    let end = HeldResources::of(&server, &mut stats, Some(before.descriptors))?;
    println!("{}: {} connections, {end:?}", server.name, first.exchanges + second.exchanges);
    Ok(CycleFigures {
        connections,
        completed: first.exchanges + second.exchanges,
        failures: first.failures + second.failures,
        rate_per_s: second.rate_per_s,
        before,
        warm,
        end,
    })
}

impl HeldResources {
    /// Reads them once the server has this number of descriptors; after a time limit whatever it has.
    fn of(
        server: &BenchServer,
        stats: &mut StatsConnection,
        wanted: Option<usize>,
    ) -> XtaskResult<HeldResources> {
        let start = Instant::now();
        let pools = |stats: &mut StatsConnection| {
            stats.read().map(|read| read.general.unwrap_or(0) + read.special.unwrap_or(0))
        };
        // The server has accepted the connection of the statistics once it answers.
        pools(stats)?;
        while wanted.is_some_and(|wanted| server.descriptors().is_ok_and(|count| count != wanted))
            && start.elapsed() < RELEASE_TIMEOUT
        {
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        let pools = pools(stats)?;
        Ok(HeldResources { descriptors: server.descriptors()?, resident: server.resident(), pools })
    }
}

impl CycleFigures {
    pub(super) fn verdicts(&self) -> Vec<SoakVerdict> {
        let CycleFigures { before, warm, end, .. } = self;
        let judged = |what: &str, limit: String, holds: bool, measured: String| SoakVerdict {
            what: format!("connections: {what}"),
            limit,
            holds,
            measured,
        };
        let further = (self.connections - self.connections / WARM_UP_PART) as f64;
        let growth = end.resident as f64 - warm.resident as f64;
        let growth_max = (GROWTH_EACH_MAX * further).max(GROWTH_NOISE);
        let kibibytes = |bytes: f64| format!("{} KiB", figures::thousands(bytes / 1024.0));
        vec![
            judged(
                "exchanges with a wrong answer or none",
                "0".to_owned(),
                self.failures == 0 && self.completed == self.connections,
                format!(
                    "{} of {}; {}/s",
                    self.failures,
                    figures::thousands(self.completed as f64),
                    figures::thousands(self.rate_per_s)
                ),
            ),
            judged(
                "open descriptors",
                format!("= {}, as before the first", before.descriptors),
                [warm.descriptors, end.descriptors] == [before.descriptors; 2],
                format!("{} after a tenth, {} at the end", warm.descriptors, end.descriptors),
            ),
            judged(
                "bytes of both pools of `iocp_stats`",
                format!("= {}, as before the first", before.pools),
                [warm.pools, end.pools] == [before.pools; 2],
                format!("{} after a tenth, {} at the end", warm.pools, end.pools),
            ),
            judged(
                "growth of resident memory after a tenth",
                format!("≤ {}", kibibytes(growth_max)),
                growth <= growth_max && warm.resident > 0 && end.resident > 0,
                format!(
                    "{}, {:.2} bytes for each of {}; {} before, {} after a tenth, {} at the end",
                    kibibytes(growth),
                    growth / further,
                    figures::thousands(further),
                    mebibytes(before.resident),
                    mebibytes(warm.resident),
                    mebibytes(end.resident)
                ),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn figures_of(connections: u64) -> CycleFigures {
        let held = HeldResources { descriptors: 9, resident: 12 * MIB, pools: 400 };
        CycleFigures {
            connections,
            completed: connections,
            failures: 0,
            rate_per_s: 1.0,
            before: held,
            warm: held,
            end: held,
        }
    }

    fn missed(connections: u64, change: impl FnOnce(&mut CycleFigures)) -> Vec<String> {
        let mut figures = figures_of(connections);
        change(&mut figures);
        let missed = figures.verdicts().into_iter().filter(|verdict| !verdict.holds);
        missed.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn every_criterion_is_checked() {
        assert!(missed(1_000_000, |_| ()).is_empty());
        let exchanges = ["connections: exchanges with a wrong answer or none"];
        assert_eq!(missed(1_000_000, |found| found.failures = 1), exchanges);
        assert_eq!(missed(1_000_000, |found| found.completed -= 1), exchanges);
        let descriptors = ["connections: open descriptors"];
        assert_eq!(missed(1_000_000, |found| found.end.descriptors += 1), descriptors);
        assert_eq!(missed(1_000_000, |found| found.warm.descriptors += 1), descriptors);
        let pools = ["connections: bytes of both pools of `iocp_stats`"];
        assert_eq!(missed(1_000_000, |found| found.end.pools += 1), pools);
        let growth = ["connections: growth of resident memory after a tenth"];
        assert_eq!(missed(1_000_000, |found| found.end.resident += MIB), growth);
        assert_eq!(missed(1_000_000, |found| found.end.resident = 0), growth);
    }

    /// Also in a short run, a leak of the allocator's smallest block is found.
    #[test]
    fn a_leak_of_sixteen_bytes_each_is_found() {
        for connections in [20_000, 100_000, 1_000_000] {
            let leaked = (connections - connections / WARM_UP_PART) * 16;
            assert_eq!(missed(connections, |found| found.end.resident += leaked).len(), 1, "{connections}");
        }
    }
}
