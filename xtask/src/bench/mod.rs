//! `cargo xtask bench http`: Stilling on both drivers beside nginx, in one run with interleaved rounds, on
//! whatever machine this is. Servers and generators share its cores, so only figures of the same run compare.

mod figures;
mod idle;
mod load;
mod machine;
mod server;
mod slow;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::Outcome;
use crate::packages;
use crate::steps::{cargo, run};
use crate::tree;
use figures::{Section, Series};
use load::Load;
use server::{Driver, Server};

/// Connections of the idle measurement: so many that what is shared does not count.
const IDLE_CONNECTIONS: usize = 10_000;

/// The page.
const PAGE: &str = "docs/benchmarks.md";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The HTTP server beside nginx
    Http(Http),
}

#[derive(Args)]
struct Http {
    /// Rounds of each load on each server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A tenth of the load: shows that it works, not how fast
    #[arg(long)]
    quick: bool,
    /// Write docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// What all measurements share.
struct Bench {
    binary: PathBuf,
    folder: tempfile::TempDir,
    rounds: u32,
    quick: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Outcome {
        let What::Http(arguments) = self.what;
        packages::install(&packages::FOR_BENCH)?;
        run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))?;
        idle::raise_descriptors();
        let bench = Bench {
            binary: tree::target().join("release/stilling"),
            folder: tempfile::tempdir()?,
            rounds: arguments.rounds,
            quick: arguments.quick,
        };
        // nginx gives its workers to another user, who has to reach their files.
        run(std::process::Command::new("chmod").arg("755").arg(bench.folder.path()))?;
        let mut page = bench.introduction(&arguments);
        for measure in [Bench::throughput, Bench::memory, Bench::known_figures, Bench::slow_beside_fast] {
            for section in measure(&bench)? {
                let text = section.text();
                println!("\n{text}");
                page += &format!("\n{text}");
            }
        }
        if arguments.write { tree::write(PAGE, &page) } else { Ok(()) }
    }
}

impl Bench {
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// So many, or a tenth of it.
    fn many(&self, full: u64) -> u64 {
        if self.quick { full / 10 } else { full }
    }

    fn stilling(&self, driver: Driver, options: &[&str]) -> Outcome<Server> {
        Server::stilling(&self.binary, driver, options)
    }

    fn introduction(&self, arguments: &Http) -> String {
        let quick = if arguments.quick { " --quick" } else { "" };
        let command = format!("cargo xtask bench http --rounds {}{quick} --write", arguments.rounds);
        let lines: String = machine::describe().iter().map(|line| format!("- {line}\n")).collect();
        println!("{lines}");
        format!(
            "# Benchmarks\n\n\
             Every figure on this page comes from one run of `{command}`, which writes it. Servers and load \
             generators share the machine's cores and talk over loopback: figures of one run compare with each \
             other, and with nothing else. Rounds are interleaved (each server in turn, then again); a cell has \
             the median and, in brackets, the least and the greatest. A ratio is the median of the ratios within \
             each round; a dash stands for what the generator does not measure soundly. Before a server is measured, one answer and {batch} pipelined ones are checked to be empty 200s; \
             failures are requests without an answer, with a broken one, or with one that is not 2xx.\n\n\
             {lines}",
            batch = load::PIPELINE
        )
    }

    /// The three servers, each with all of its defaults.
    fn contenders(&self) -> Outcome<Vec<Server>> {
        Ok(vec![
            self.stilling(Driver::Uring, &[])?,
            self.stilling(Driver::Poll, &[])?,
            Server::nginx(self.folder(), machine::cores(), None)?,
        ])
    }

    /// Requests per second and what they cost the server.
    fn throughput(&self) -> Outcome<Vec<Section>> {
        let servers = self.contenders()?;
        let seconds = if self.quick { 1 } else { 4 };
        let wrk = |pipelined| Load::Wrk { seconds, connections: 64, pipelined };
        let ab = |requests, keep| Load::Ab { requests: self.many(requests), connections: 100, keep };
        let loads = [
            ("A connection per request", ab(150_000, false)),
            ("Kept connections (ab)", ab(450_000, true)),
            ("Kept connections (wrk)", wrk(false)),
            ("Kept connections, 16 requests at once", wrk(true)),
        ];
        let mut sections = Vec::new();
        for (title, load) in loads {
            let mut series: Vec<_> =
                servers.iter().map(|server| Series { server: server.name, samples: Vec::new() }).collect();
            for round in 0..self.rounds {
                for (server, series) in servers.iter().zip(&mut series) {
                    let sample = load.measure(server, "/test/fast", self.folder())?;
                    println!("{title}, round {round}, {}: {:.0} requests/s", server.name, sample.rate);
                    series.samples.push(sample);
                }
            }
            let words = format!("`{}`", load.shown("/test/fast"));
            sections.push(Section { title: title.to_owned(), words, table: figures::compared(&series) });
        }
        let commands: Vec<_> = servers.iter().map(|server| format!("`{}`", server.command)).collect();
        sections[0].words += &format!("\n\nThe servers: {}.", commands.join(", "));
        Ok(sections)
    }

    /// What a server occupies at the start, and what an idle connection adds.
    fn memory(&self) -> Outcome<Vec<Section>> {
        let connections = IDLE_CONNECTIONS;
        let head = [
            "server",
            "at the start",
            "warm, without connections",
            "bytes per connection",
            "bytes, just answered",
        ];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        for server in self.contenders()? {
            let idle = idle::measure(&server, connections, self.folder())?;
            table.push(vec![
                server.name.to_owned(),
                figures::mebibytes(idle.at_start),
                figures::mebibytes(idle.before),
                figures::thousands(idle.per_connection()),
                figures::thousands(idle.per_fresh_connection()),
            ]);
        }
        let words = format!(
            "User memory (`Pss` of all processes of a server) with its default capacity: at the start, after \
             `{}`, and with {} connections that were each answered once and then rested for 7 s. The kernel's \
             own memory for sockets, about the same for all, is not in it. nginx makes room for all connections when \
             it starts, so a part of theirs stands in its first column.",
            Load::Ab { requests: 20_000, connections: 100, keep: true }.shown("/test/fast"),
            figures::thousands(connections as f64)
        );
        Ok(vec![Section { title: "Memory".to_owned(), words, table }])
    }
}
