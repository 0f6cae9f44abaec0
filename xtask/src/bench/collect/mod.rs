//! `cargo xtask bench collect`: one-way messages to Stilling on both drivers, beside nats-server, Redis and rsyslog.
//!
//! Every server gets the same messages from the same generator, which checks every acknowledgement and accounts for every
//! message. Each round starts each server anew in a folder of its own on the same file system, which grows from nothing
//! and is removed afterwards: files that are written over, or that a warm server has already laid out, would flatter.

mod curves;
mod load;
mod loss;
mod peers;
mod scenarios;
pub(crate) mod tools;

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use clap::Args;

#[cfg(test)]
pub(crate) use loss::Found;
pub(crate) use loss::{Demands, VICTIMS, kill};
pub(crate) use peers::{Keeps, Peer};

use super::figures::{self, Section, Series};
use super::load::Sample;
use super::page::{PAGE, with_section};
use super::targets::{self, Target};
use super::{idle, isolation, machine};
use crate::steps::{cargo, run};
use crate::{Outcome, packages, tree};
use load::Load;
use scenarios::{SCENARIOS, Scenario, Wanted};

/// The section of the page that this command writes.
pub(super) const TITLE: &str = "Collect: one-way messages";

#[derive(Args)]
pub(super) struct Arguments {
    /// Rounds of each load on each server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A second of each load and few kills: shows that it works, not how well
    #[arg(long)]
    quick: bool,
    /// Only the scenarios whose titles contain this; repeatable
    #[arg(long, value_name = "WORD", conflicts_with = "write")]
    only: Vec<String>,
    /// Write the section into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// Where servers are started and what they are made of.
pub(crate) struct Place {
    /// On the file system that is measured.
    pub(crate) folder: PathBuf,
    /// The `stilling` command.
    pub(crate) stilling: PathBuf,
    /// Whether it speaks NATS.
    pub(crate) collects: bool,
    pub(crate) nats_server: PathBuf,
    /// Whether nats-server can sync before it acknowledges.
    pub(crate) syncs_always: bool,
}

impl Place {
    /// Builds and finds everything; to be called where there is a network.
    pub(crate) fn prepare() -> Outcome {
        packages::install(&packages::FOR_BENCH_COLLECT)?;
        tools::install_nats_server()?;
        run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))
    }

    /// The place, in a folder that is gone with the guard.
    pub(crate) fn find() -> Outcome<(tempfile::TempDir, Place)> {
        let target = tree::target();
        fs::create_dir_all(&target)?;
        // Not where the system keeps its temporary files: that may be memory.
        let folder = tempfile::tempdir_in(target.canonicalize()?)?;
        let stilling = super::taken(&tree::target().join("release/stilling"), folder.path())?;
        let nats_server = tools::nats_server();
        let place = Place {
            folder: folder.path().to_owned(),
            collects: tools::collects(&stilling),
            stilling,
            syncs_always: tools::syncs_always(&nats_server),
            nats_server,
        };
        Ok((folder, place))
    }
}

struct Bench {
    place: Place,
    rounds: u32,
    quick: bool,
    targets: RefCell<Vec<Target>>,
}

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        if !isolation::is_inside() {
            Place::prepare()?;
        }
        isolation::enter()?;
        idle::raise_descriptors();
        let (_guard, place) = Place::find()?;
        let bench = Bench { place, rounds: self.rounds, quick: self.quick, targets: RefCell::default() };
        let is_wanted =
            |title: &str| self.only.is_empty() || self.only.iter().any(|word| title.contains(word.as_str()));
        let mut parts = Vec::new();
        for scenario in SCENARIOS.iter().filter(|scenario| is_wanted(scenario.title)) {
            parts.push(bench.measure(scenario)?);
        }
        if is_wanted(scenarios::UNWAITED) {
            parts.push(bench.unwaited()?);
        }
        if is_wanted(scenarios::BACKLOG) {
            parts.push(bench.backlog()?);
        }
        if is_wanted(scenarios::CURVE) {
            parts.push(bench.curve()?);
        }
        if is_wanted(loss::TITLE) {
            parts.push(bench.loss()?);
        }
        // One rank below the section.
        let parts: Vec<String> = std::iter::once(targets::section(&bench.targets.borrow()))
            .chain(parts)
            .map(|part| format!("#{}", part.text()))
            .collect();
        let text = format!("## {TITLE}\n\n{}\n{}", bench.introduction(), parts.join("\n"));
        println!("\n{text}");
        if !self.write {
            return Ok(());
        }
        let page = fs::read_to_string(tree::root().join(PAGE))?;
        tree::write(PAGE, &with_section(&page, TITLE, &text))
    }
}

impl Bench {
    fn introduction(&self) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        let mut lines = machine::where_and_when();
        let said = |program: &str, arguments: &[&str]| machine::said(program, arguments);
        let nats = said(&self.place.nats_server.to_string_lossy(), &["-v"]);
        lines.extend([
            format!("nats-server: {}", nats.trim_start_matches("nats-server: ")),
            format!("Redis: {}", said("redis-server", &["-v"])),
            format!("rsyslog: {}", said("/usr/sbin/rsyslogd", &["-v"])),
        ]);
        let lines: String = lines.iter().map(|line| format!("- {line}\n")).collect();
        let without = if self.place.collects {
            ""
        } else {
            " This build of Stilling does not speak NATS, so it is not in the tables."
        };
        format!(
            "Many clients send messages that are kept. `stilling bench collect` is the client of every server: it writes \
             as many messages with one call as its window allows, checks each acknowledgement (stream, message, rising \
             sequence, none missing, none twice) and each delivered byte, and accounts for every message: sent = received \
             + every loss that the server's ledger names. A latency runs from the write that carried a message to the read \
             that brought its acknowledgement. A send (mean and max, row 0.28) is the caller's: until the acknowledgement or, \
             without waiting, until the system took the message. Server CPU is user and system time of all processes of the server, the \
             kernel's threads for io_uring among them; what the kernel does later on its own, such as writing back its page \
             cache, is nobody's and is left out. Context switches are those of all threads of the server, voluntary or \
             not. System calls are those of Stilling's drivers, which count them (`driver_enters` in \
             its metrics); those of its journal's thread are not among them, and the other servers do not tell. Failures are messages without the right acknowledgement, deliveries that \
             are missing, repeated or changed, and messages that are not accounted for. Servers and generator share the \
             cores. Each round starts each server anew with an empty folder on the same file system. \
             `cargo xtask bench collect --rounds {}{quick} --write` writes this section; rounds are interleaved as \
             above.{without}\n\n{lines}\nThe servers: {}.\n",
            self.rounds,
            peers::ALL
                .iter()
                .map(|peer| format!("*{}*: {}", peer.name(), peer.words()))
                .collect::<Vec<_>>()
                .join("; ")
        )
    }

    /// The peers that can take part.
    fn able(&self, peers: &[Peer]) -> Vec<Peer> {
        peers.iter().copied().filter(|peer| peer.is_able(&self.place)).collect()
    }

    fn measure(&self, scenario: &Scenario) -> Outcome<Section> {
        let peers = self.able(scenario.peers);
        let load = Load { seconds: if self.quick { 1 } else { scenario.seconds }, ..scenario.load };
        let mut series: Vec<_> =
            peers.iter().map(|peer| Series { server: peer.name(), samples: Vec::new() }).collect();
        let rounds = if scenario.once { 1 } else { self.rounds };
        for round in 0..rounds {
            for (peer, series) in peers.iter().zip(&mut series) {
                let sample = load.measure(*peer, &self.place)?;
                println!(
                    "{}, round {round}, {}: {:.0} messages/s, {:.2} s of CPU per million, {} failures",
                    scenario.title,
                    peer.name(),
                    sample.rate,
                    sample.cpu_s,
                    sample.failures
                );
                series.samples.push(sample);
            }
        }
        if !scenario.wanted.is_empty() {
            self.judge(scenario, &series);
        }
        let words = format!("`{}`{}", load.shown(), scenario.words);
        Ok(Section { title: scenario.title.to_owned(), words, table: compared(&series, load.size) })
    }

    /// Compares with what the project wants, on each driver, and wants no failure at all.
    fn judge(&self, scenario: &Scenario, series: &[Series]) {
        let mut targets = self.targets.borrow_mut();
        let title = scenario.title;
        for name in [Peer::StillingUring.name(), Peer::StillingPoll.name()] {
            let own = series.iter().find(|series| series.server == name);
            for wanted in scenario.wanted {
                targets.push(match wanted {
                    Wanted::CpuTimes(peer, most) => {
                        let ratio =
                            figures::ratio(series, name, peer.name(), |sample: &Sample| Some(sample.cpu_s));
                        let what = format!("server CPU, {name} ÷ {}: {title}", peer.name());
                        Target::at_most(what, *most, ratio, "×")
                    }
                    Wanted::RateTimes(peer, least) => {
                        let ratio =
                            figures::ratio(series, name, peer.name(), |sample: &Sample| Some(sample.rate));
                        let what = format!("messages/s, {name} ÷ {}: {title}", peer.name());
                        Target::at_least(what, *least, ratio, "×")
                    }
                    Wanted::Rate(least) => {
                        let rates = own.map(|own| own.samples.iter().map(|sample| sample.rate).collect());
                        let what = format!("messages/s, {name}: {title}");
                        Target::at_least(what, *least, rates.map(figures::median), "")
                    }
                    Wanted::SendMs(most) => {
                        let slowest = own.and_then(|own| slowest_send_ms(&own.samples));
                        Target::at_most(format!("slowest send, {name}: {title}"), *most, slowest, "ms")
                    }
                });
            }
            let failures = own.map(|own| own.samples.iter().map(|sample| sample.failures as f64).sum());
            targets.push(Target::at_most(format!("failures, {name}: {title}"), 0.0, failures, ""));
        }
    }
}

/// The slowest send of all rounds in milliseconds; nothing without a round, or if one was not timed.
fn slowest_send_ms(samples: &[Sample]) -> Option<f64> {
    let all: Option<Vec<f64>> = samples.iter().map(|sample| sample.max_ms).collect();
    all?.into_iter().reduce(f64::max)
}

/// A table of servers under one load, and below it ratios: medians of the ratios within each round.
fn compared(series: &[Series], size: u32) -> Vec<Vec<String>> {
    let head = [
        "server",
        "messages/s",
        "MB/s",
        "server CPU s per million",
        "context switches per thousand",
        "system calls per thousand",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "mean send ms",
        "max send ms",
        "failures",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for Series { server, samples } in series {
        let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
        let known = |of: fn(&Sample) -> Option<f64>| figures::spread_of_known(samples.iter().map(of));
        let rates = all(|sample| sample.rate);
        table.push(vec![
            (*server).to_owned(),
            figures::spread(&rates, figures::thousands),
            figures::thousands(figures::median(rates) * f64::from(size) / 1e6),
            figures::spread(&all(|sample| sample.cpu_s), figures::two_places),
            known(|sample| sample.switches),
            known(|sample| sample.system_calls),
            known(|sample| sample.p50_ms),
            known(|sample| sample.p99_ms),
            known(|sample| sample.p999_ms),
            known(|sample| sample.mean_ms),
            known(|sample| sample.max_ms),
            samples.iter().map(|sample| sample.failures).sum::<u64>().to_string(),
        ]);
    }
    let first = Peer::StillingUring.name();
    for below in series.iter().map(|series| series.server).filter(|server| *server != first) {
        let shown = |of| {
            let ratio = figures::ratio(series, first, below, of);
            ratio.map_or_else(figures::unknown, |ratio| format!("×{}", figures::two_places(ratio)))
        };
        if !series.iter().any(|series| series.server == first) {
            break;
        }
        let rate = shown(|sample: &Sample| Some(sample.rate));
        table.push(vec![
            format!("{first} ÷ {below}"),
            rate.clone(),
            rate,
            shown(|sample| Some(sample.cpu_s)),
            shown(|sample| sample.switches),
            shown(|sample| sample.system_calls),
            shown(|sample| sample.p50_ms),
            shown(|sample| sample.p99_ms),
            shown(|sample| sample.p999_ms),
            shown(|sample| sample.mean_ms),
            shown(|sample| sample.max_ms),
            String::new(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_stand_below_the_servers_that_were_there() {
        let series = |server, rate| Series {
            server,
            samples: vec![Sample { rate, cpu_s: 2.0, failures: 1, ..Sample::default() }],
        };
        let table = compared(&[series("stilling uring", 4000.0), series("JetStream", 1000.0)], 1000);
        assert_eq!(table[1][..4], ["stilling uring", "4,000", "4", "2.00"]);
        assert_eq!(table[3][..4], ["stilling uring ÷ JetStream", "×4.00", "×4.00", "×1.00"]);
        assert_eq!(table[1][11], "1");
        assert!(table.iter().all(|row| row.len() == table[0].len()));
        assert_eq!(compared(&[series("JetStream", 1.0), series("Redis", 1.0)], 1).len(), 3);
    }
}
