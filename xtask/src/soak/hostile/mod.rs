//! `cargo xtask soak hostile`: every kind of harmful client at once, beside a valid load that may not fail (row 5.5).
//!
//! ```text
//!  valid, kept connections      ████████████████████████    0 failed
//!  valid, a connection each     ████████████████████████    0 failed
//!  SYN flood, slowloris, resets,  ████████████████████
//!  never reading, oversize,       ████████████████████
//!  more connections than there are descriptors
//! ```
//!
//! Each kind has to show that it took place. Everything stays in a network namespace of this process's own; the sources of
//! the flood are addresses for benchmarks (RFC 2544), and their answers end in a pair of virtual interfaces there.

mod clients;
mod syn;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::Args;

use super::foes::Foes;
use super::{Verdict, conclude, joined, page, verdict_table};
use crate::Outcome;
use crate::bench::own::{Manner, Plan, Report, Step};
use crate::bench::server::{Driver, Server};
use crate::bench::{figures, isolation, monitor, taken};
use clients::Harm;
use syn::Network;

/// Open files that the server may have: fewer than the connections that are opened.
const DESCRIPTORS: u32 = 400;

/// The server's options: short timeouts, as for a server that is open to everybody.
const OPTIONS: [&str; 8] = [
    "--demo",
    "-A",
    "1",
    "--first-byte-timeout=1",
    "--head-timeout=2",
    "--write-timeout=2",
    "--queue-target",
    "off",
];

/// The valid load: requests per second on kept connections, and with a connection each.
const KEPT_RATE: f64 = 300.0;
const CLOSED_RATE: f64 = 20.0;

/// How long a valid client waits, in seconds: less than the harm lasts, or waiting for its end would be enough.
const PATIENCE_S: f64 = 5.0;

/// The valid load begins so much earlier than the harm, and ends so much later.
const LEAD: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(super) struct Hostile {
    /// How long the harm lasts on each driver
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(10..=3600))]
    seconds: u32,
    /// Write the judgements into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// All that was seen on one driver.
struct Seen {
    driver: Driver,
    valid: [(&'static str, Report); 2],
    /// What shows that a kind of harm took place, and how often.
    harm: Vec<(&'static str, u64)>,
    ended_well: bool,
}

impl Hostile {
    pub(super) fn soak(&self) -> Outcome {
        if !isolation::is_inside() {
            return Err("a flood needs a network namespace of its own, hence root".into());
        }
        let network = Network::set_up()?;
        let folder = tempfile::tempdir()?;
        let binary = taken("stilling", folder.path())?;
        let mut verdicts = Vec::new();
        for driver in [Driver::Uring, Driver::Poll] {
            verdicts.extend(self.watched(&network, &binary, driver)?.verdicts());
        }
        print!("{}", verdict_table(&verdicts));
        if self.write {
            let words = format!(
                "Row 5.5. A valid load of {KEPT_RATE} requests/s on kept connections and {CLOSED_RATE}/s with a connection \
                 each, on `stilling serve {}` with {DESCRIPTORS} open files, beside all kinds of harm at once.",
                OPTIONS.join(" ")
            );
            let command = format!("cargo xtask soak hostile --seconds {} --write", self.seconds);
            page::Part { title: "Hostile clients beside valid ones".to_owned(), command, words }
                .write(&verdicts)?;
        }
        conclude(&verdicts)
    }

    fn watched(&self, network: &Network, binary: &Path, driver: Driver) -> Outcome<Seen> {
        let server = start(binary, driver)?;
        println!("`{}`", server.command);
        let (foes, harm, over) = (Foes::default(), Harm::default(), AtomicBool::new(false));
        let (address, url) = (server.address, server.url("/test/fast"));
        let before = network.counters()?;
        let (reports, flood) = std::thread::scope(|threads| {
            let valid = self.valid().map(|(name, plan)| {
                let url = &url;
                let run = move || plan.run(binary, url).map_err(|error| error.to_string());
                (name, threads.spawn(run))
            });
            std::thread::sleep(LEAD);
            threads.spawn(|| foes.reset(address, &over));
            threads.spawn(|| foes.trickle(address, &over));
            threads.spawn(|| harm.never_read(address, &over));
            threads.spawn(|| harm.oversize(address, &over));
            threads.spawn(|| harm.exhaust(address, &over));
            let flood = threads.spawn(|| network.flood(address, &over).map_err(|error| error.to_string()));
            std::thread::sleep(Duration::from_secs(self.seconds.into()));
            over.store(true, Relaxed);
            (valid.map(|(name, thread)| (name, joined(thread))), joined(flood))
        });
        let [(kept, kept_report), (closed, closed_report)] = reports;
        let valid = [(kept, kept_report?), (closed, closed_report?)];
        let counters = network.counters()?;
        let paused = monitor::figure(address, "accept_gate_closed_total")?;
        let count = |of: &std::sync::atomic::AtomicU64| of.load(Relaxed);
        let harm = vec![
            ("SYNs from sources that do not answer", flood?),
            ("SYN cookies sent for them", counters.cookies - before.cookies),
            ("slowloris: connections that the server ended", count(&foes.ended)),
            ("connections reset", count(&foes.resets)),
            ("connections full of answers that are never read", count(&harm.unread)),
            ("oversize heads and bodies refused", count(&harm.refused)),
            ("connections beyond the descriptors", count(&harm.beyond)),
            ("pauses of accepting for want of descriptors", paused),
        ];
        Ok(Seen { driver, valid, harm, ended_well: server.end() })
    }

    /// The valid load.
    fn valid(&self) -> [(&'static str, Plan); 2] {
        let seconds = f64::from(self.seconds) + 2.0 * LEAD.as_secs_f64();
        let steps = |rate| vec![Step { rate, seconds }];
        let plan = |connections, manner| Plan { connections, patience_s: PATIENCE_S, manner };
        [
            ("kept connections", plan(20, Manner::Steps(steps(KEPT_RATE)))),
            ("a connection each", plan(1000, Manner::Clients(steps(CLOSED_RATE)))),
        ]
    }
}

/// A server with few descriptors, in the network of the flood.
fn start(binary: &Path, driver: Driver) -> Outcome<Server> {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}")).arg(binary);
    command.env_remove(isolation::MARK);
    let listen = format!("{}:0", syn::SERVER);
    command.args(["serve", "--listen", &listen, "--driver", driver.option()]).args(OPTIONS);
    let words =
        format!("stilling serve --listen {listen} --driver {} {}", driver.option(), OPTIONS.join(" "));
    Server::announced(driver.option(), words, command)
}

impl Seen {
    fn verdicts(&self) -> Vec<Verdict> {
        let name = self.driver.option();
        let mut verdicts = Vec::new();
        let mut judge = |what: String, limit: &str, holds: bool, found: String| {
            verdicts.push(Verdict { what: format!("{name}: {what}"), limit: limit.to_owned(), holds, found });
        };
        for (load, report) in &self.valid {
            let due: u64 = report.steps.iter().map(|step| step.due).sum();
            let words: String =
                report.evidence.iter().map(|(kind, first)| format!("; {kind}: {first}")).collect();
            judge(
                format!("valid load failed or refused, {load}"),
                "0",
                due > 0 && report.ok == due && report.failures_total + report.shed == 0,
                format!(
                    "{} failed, {} refused, {} of {due} answered; p99 {} ms, longest {} ms{words}",
                    report.failures_total,
                    report.shed,
                    report.ok,
                    figures::two_places(report.latency.p99_us / 1e3),
                    figures::two_places(report.latency.max_us / 1e3)
                ),
            );
        }
        for (what, count) in &self.harm {
            judge(format!("took place: {what}"), "≥ 1", *count > 0, count.to_string());
        }
        let found = if self.ended_well { "status 0" } else { "it did not" };
        judge("the server ends when asked to".to_owned(), "status 0", self.ended_well, found.to_owned());
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::own::StepFigures;

    /// Row 5.5: one failure of the valid load is a miss, and so is harm that did not take place.
    #[test]
    fn one_failure_and_missing_harm_are_misses() {
        let report = Report {
            ok: 5,
            steps: vec![StepFigures { due: 5, ..StepFigures::default() }],
            ..Report::default()
        };
        let seen = |change: fn(&mut Seen)| -> Vec<String> {
            let mut seen = Seen {
                driver: Driver::Uring,
                valid: [("kept", report.clone()), ("closed", report.clone())],
                harm: vec![("resets", 1)],
                ended_well: true,
            };
            change(&mut seen);
            let missed = seen.verdicts().into_iter().filter(|verdict| !verdict.holds);
            missed.map(|verdict| verdict.what).collect()
        };
        assert!(seen(|_| ()).is_empty());
        assert_eq!(
            seen(|seen| seen.valid[0].1.failures_total = 1),
            ["uring: valid load failed or refused, kept"]
        );
        assert_eq!(seen(|seen| seen.valid[1].1.ok = 4), ["uring: valid load failed or refused, closed"]);
        assert_eq!(seen(|seen| seen.harm[0].1 = 0), ["uring: took place: resets"]);
    }
}
