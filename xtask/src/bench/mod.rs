//! `cargo xtask bench http`: Stilling on both drivers beside nginx, in one run with interleaved rounds. Servers and
//! generators share the machine's cores, so only figures of the same run are comparable.

mod app;
mod broadcast;
mod coap;
pub(crate) mod collect;
mod fairness;
pub(crate) mod figures;
mod flood;
mod handwritten;
mod harness;
pub(crate) mod idle;
mod idle_consumers;
mod instructions;
pub(crate) mod isolation;
mod journal;
pub(crate) mod load;
pub(crate) mod load_generator;
pub(crate) mod machine;
pub(crate) mod monitor;
pub(crate) mod overload;
pub(crate) mod page;
mod programs;
mod refusals;
pub(crate) mod sample;
pub(crate) mod server;
mod slow;
mod sockets;
mod targets;
pub(crate) mod tcl;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

pub(crate) use app::stilling_before_node;
pub(crate) use broadcast::DisturbanceFigures;
pub(crate) use harness::enter_namespace;
pub(crate) use programs::copy_binary;

use crate::XtaskResult;
use crate::packages;
use crate::steps::{cargo, run};
use crate::tree;
use figures::{PageSection, Series};
use harness::BenchOptions;
use load::{BenchEnvironment, HttpLoad};
use page::PAGE;
use sample::BenchSample;
use server::{BenchDriver, BenchServer};
use targets::{BenchTarget, BenchTargets};

/// Titles of the loads on fast requests, in their order.
const LOAD_TITLES: [&str; 7] = [
    "A connection per request (ab)",
    "A connection per request (stilling bench)",
    "Keep-alive connections (ab)",
    "Keep-alive connections (wrk)",
    "Keep-alive connections (stilling bench)",
    "Keep-alive connections, 16 requests at once (wrk)",
    "Keep-alive connections, 16 requests at once (stilling bench)",
];

const MEMORY_TITLE: &str = "Memory";

/// Connections of the idle measurement: so many that shared memory is negligible.
const IDLE_CONNECTIONS: usize = 10_000;

/// Most bytes of user memory per idle connection.
const IDLE_BYTES_MAX: f64 = 256.0;

/// Most megabytes of user memory of a server at its start.
const START_MB_MAX: f64 = 20.0;

/// Most cost of a request on `poll`, as a multiple of its cost on `uring`.
const POLL_FACTOR_MAX: f64 = 1.3;

/// Most cost of a request to an ordinary inline route, as a multiple of the cost of one to `/test/fast`.
const INLINE_FACTOR_MAX: f64 = 1.1;

/// Row 0.12: most context switches per request, as a multiple of those of the peer built like server-demo.
const SWITCHES_FACTOR_MAX: f64 = 1.0;

/// Packages of the peer with versions shown on the page.
const PEER_LIBRARIES: [&str; 3] = ["hyper", "hyper-util", "tokio"];

#[derive(Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// The HTTP server beside nginx and hyper
    Http(HttpBenchArguments),
    /// Tens of thousands of live connections in one process, beyond its limit of open files
    Sockets(sockets::SocketsArguments),
    /// Worker processes behind the server, beside the same behind nginx
    App(app::AppBenchArguments),
    /// One-way messages beside nats-server, Redis and rsyslog
    Collect(collect::CollectBenchArguments),
    /// Messages to many subscribers beside nats-server, Redis and mosquitto
    Broadcast(broadcast::BroadcastBenchArguments),
    /// CoAP requests beside libcoap's server and Californium
    Coap(coap::CoapBenchArguments),
    /// Tcl programs on the extension beside Tcl's own sockets
    Tcl(tcl::TclBenchArguments),
    /// A well-behaved publisher and subscriber beside hostile clients
    Fairness(fairness::FairnessArguments),
    /// The first message after a silence to ordered consumers of NATS clients, beside nats-server
    IdleConsumers(idle_consumers::IdleConsumersArguments),
    /// The journal alone: each write method on this disk
    Journal(journal::JournalBenchArguments),
}

#[derive(Args)]
struct HttpBenchArguments {
    #[command(flatten)]
    options: BenchOptions,
    /// Only this part; repeatable
    #[arg(long, value_enum, conflicts_with = "write")]
    only: Vec<HttpPart>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HttpPart {
    /// Requests per second and their cost
    Throughput,
    /// Memory at the start and per idle connection
    Memory,
    /// The measurements of server-demo's report
    Known,
    /// Time from a malformed request to the end of its connection
    Refusals,
    /// Slow requests beside fast ones
    Slow,
    /// Up to ten times the capacity and back
    Overload,
    /// Overload with fast requests, up to the generator's limit
    Flood,
}

type MeasurePart = fn(&HttpBench) -> XtaskResult<Vec<PageSection>>;

const PARTS: [(HttpPart, MeasurePart); 7] = [
    (HttpPart::Throughput, HttpBench::throughput),
    (HttpPart::Memory, HttpBench::memory),
    (HttpPart::Known, HttpBench::reference_figures),
    (HttpPart::Refusals, HttpBench::refusals),
    (HttpPart::Slow, HttpBench::slow_beside_fast),
    (HttpPart::Overload, HttpBench::overload),
    (HttpPart::Flood, HttpBench::flood),
];

struct HttpBench {
    options: BenchOptions,
    environment: BenchEnvironment,
    peer: PathBuf,
    /// The peer that does only the I/O.
    bare: PathBuf,
    /// The example with an inline route.
    inline_route: PathBuf,
    targets: BenchTargets,
}

impl BenchArguments {
    pub(crate) fn run(self) -> XtaskResult {
        match self.what {
            BenchCommand::Http(arguments) => arguments.run(),
            BenchCommand::Sockets(arguments) => arguments.run(),
            BenchCommand::App(arguments) => arguments.run(),
            BenchCommand::Collect(arguments) => arguments.run(),
            BenchCommand::Broadcast(arguments) => arguments.run(),
            BenchCommand::Coap(arguments) => arguments.run(),
            BenchCommand::Tcl(arguments) => arguments.run(),
            BenchCommand::Fairness(arguments) => arguments.run(),
            BenchCommand::IdleConsumers(arguments) => arguments.run(),
            BenchCommand::Journal(arguments) => arguments.run(),
        }
    }
}

impl HttpBenchArguments {
    fn run(self) -> XtaskResult {
        let HttpBenchArguments { options, only } = self;
        enter_namespace(|| {
            packages::install(&packages::FOR_BENCH)?;
            run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))?;
            run(&mut cargo(["build", "--release", "-p", "stilling-peer-hyper", "-p", "stilling-peer-bare"]))?;
            run(&mut cargo(["build", "--release", "-p", "stilling", "--example", "constant"]))
        })?;
        let folder = tempfile::tempdir()?;
        let bench = HttpBench {
            options,
            environment: BenchEnvironment::of(folder.path())?,
            peer: copy_binary("stilling-peer-hyper", folder.path())?,
            bare: copy_binary("stilling-peer-bare", folder.path())?,
            inline_route: copy_binary("examples/constant", folder.path())?,
            targets: BenchTargets::default(),
        };
        let introduction = bench.introduction()?;
        let mut sections = String::new();
        for (part, measure) in PARTS {
            if !only.is_empty() && !only.contains(&part) {
                continue;
            }
            for section in measure(&bench)? {
                let text = section.text();
                println!("\n{text}");
                sections += &format!("\n{text}");
            }
        }
        let verdicts = bench.targets.section().text();
        println!("\n{verdicts}");
        if !bench.options.write {
            return Ok(());
        }
        let page = format!("{introduction}\n{verdicts}{sections}");
        let former = std::fs::read_to_string(tree::root().join(PAGE)).unwrap_or_default();
        tree::write(PAGE, &(page + &handwritten::preserved_sections(&former)))
    }
}

impl HttpBench {
    fn folder(&self) -> &Path {
        &self.environment.folder
    }

    fn binary(&self) -> &Path {
        &self.environment.binary
    }

    fn add_target(&self, target: BenchTarget) {
        self.targets.add_target(target);
    }

    /// `full`, or a tenth of it with `--quick`.
    fn quick_or_full(&self, full: u64) -> u64 {
        if self.options.quick { full / 10 } else { full }
    }

    fn stilling(&self, driver: BenchDriver, options: &[&str]) -> XtaskResult<BenchServer> {
        BenchServer::stilling(self.binary(), driver, options)
    }

    fn hyper(&self, workers: u64, slow_ms: u64) -> XtaskResult<BenchServer> {
        BenchServer::hyper(&self.peer, workers, slow_ms)
    }

    fn introduction(&self) -> XtaskResult<String> {
        let lock = std::fs::read_to_string(tree::root().join("Cargo.lock"))?;
        let hyper = machine::locked(&lock, &PEER_LIBRARIES);
        let instructions = if self.environment.counts_instructions {
            "Instructions are those of the server, user and kernel."
        } else {
            "This machine has no hardware counters, so instructions per request are left out."
        };
        let command = self.options.command("http");
        let lines = machine::listed(machine::http_programs(&hyper));
        println!("{lines}");
        Ok(format!(
            "# Benchmarks\n\n\
             Every figure on this page, but for sections that name a command of their own, comes from one run of `{command}`, which writes it. Servers and load \
             generators share the machine's cores and talk over loopback: figures of one run compare with each \
             other, and with nothing else. Rounds are interleaved (each server in turn, then again); a cell has \
             the median and, in brackets, the minimum and the maximum. A ratio is the median of the ratios within \
             each round; a dash stands for what the generator does not measure soundly. Before a server is measured, one answer and {batch} pipelined ones are checked to be empty 200s; \
             failures are requests without an answer, with a broken one, or with one that is not 2xx. {instructions} \
             The peer on hyper is `peers/hyper` of this repository. *bare* is `peers/bare`: it does the I/O of the job and \
             nothing else, and the columns *÷ bare* are the rate and the CPU of a server divided by those of \
             *bare*.\n\n\
             {lines}",
            batch = server::PIPELINE
        ))
    }

    /// The servers, each with all defaults.
    fn contenders(&self) -> XtaskResult<Vec<BenchServer>> {
        Ok(vec![
            self.stilling(BenchDriver::Uring, &[])?,
            self.stilling(BenchDriver::Poll, &[])?,
            BenchServer::nginx(self.folder(), machine::cores(), None, None)?,
            self.hyper(machine::cores() as u64, 30)?,
        ])
    }

    fn throughput(&self) -> XtaskResult<Vec<PageSection>> {
        let mut servers: Vec<_> =
            self.contenders()?.into_iter().map(|server| (server, "/test/fast")).collect();
        // A program on the library, beside the demonstration and nginx's `return 200`.
        servers.push((BenchServer::inline_route(&self.inline_route, BenchDriver::Uring)?, server::CONSTANT));
        servers.push((BenchServer::bare(&self.bare, machine::cores())?, "/test/fast"));
        let seconds = if self.options.quick { 1 } else { 4 };
        let wrk = |pipelined| HttpLoad::Wrk { seconds, connections: 64, pipelined };
        let ab =
            |requests, keep| HttpLoad::Ab { requests: self.quick_or_full(requests), connections: 100, keep };
        let own = |close, pipeline| HttpLoad::Own { seconds, connections: 64, close, pipeline };
        let loads = [
            (ab(150_000, false), Some(0.65)),
            (own(true, 1), None),
            (ab(450_000, true), None),
            (wrk(false), Some(0.85)),
            (own(false, 1), None),
            (wrk(true), Some(0.10)),
            (own(false, server::PIPELINE), None),
        ];
        let mut sections = Vec::new();
        for (title, (load, cpu_factor_max)) in LOAD_TITLES.into_iter().zip(loads) {
            let series = harness::series(self.options.rounds, title, &servers, |(server, path)| {
                load.measure(server, path, &self.environment)
            })?;
            self.judge(title, &series, cpu_factor_max);
            let description = format!("`{}`", load.command_line("/test/fast"));
            sections.push(PageSection {
                title: title.to_owned(),
                description,
                table: figures::compared(&series),
            });
        }
        let commands: Vec<_> = servers.iter().map(|(server, _)| format!("`{}`", server.command)).collect();
        sections[0].description += &format!(
            "\n\nThe servers: {}. The inline route is `{}` of the example, the others' path is `/test/fast`. Context switches \
             (row 0.12) are those of all threads of a server, voluntary or not. server-demo itself is not available, only its report; the \
             peer on hyper has the same structure: an event loop per core, and threads for slow work.",
            commands.join(", "),
            server::CONSTANT
        );
        Ok(sections)
    }

    /// Compares the figures of a load with the project's targets.
    fn judge(&self, title: &str, series: &[Series], cpu_factor_max: Option<f64>) {
        let p99 = |sample: &BenchSample| sample.p99_ms;
        let cpu = |sample: &BenchSample| Some(sample.cpu_s);
        for driver in [BenchDriver::Uring, BenchDriver::Poll] {
            if let Some(ratio) = figures::ratio(series, driver.name(), "nginx", p99) {
                let what = format!("p99, {} ÷ nginx: {title}", driver.option());
                self.add_target(BenchTarget::at_most(what, 1.0, Some(ratio), "×"));
            }
        }
        if let Some(bound) = cpu_factor_max {
            let ratio = figures::ratio(series, "stilling uring", "nginx", cpu);
            self.add_target(BenchTarget::at_most(
                format!("server CPU, uring ÷ nginx: {title}"),
                bound,
                ratio,
                "×",
            ));
            for name in [BenchDriver::Uring, BenchDriver::Poll].map(BenchDriver::name) {
                let ratio = figures::ratio(series, name, "hyper", |sample| sample.switches);
                let what = format!("context switches per request, {name} ÷ hyper: {title}");
                self.add_target(BenchTarget::at_most(what, SWITCHES_FACTOR_MAX, ratio, "×"));
            }
            let ratio = figures::ratio(series, "stilling uring, inline route", "stilling uring", cpu);
            let what = format!("server CPU, inline route ÷ /test/fast: {title}");
            self.add_target(BenchTarget::at_most(what, INLINE_FACTOR_MAX, ratio, "×"));
            let ratio = figures::ratio(series, "stilling poll", "stilling uring", cpu);
            self.add_target(BenchTarget::at_most(
                format!("server CPU, poll ÷ uring: {title}"),
                POLL_FACTOR_MAX,
                ratio,
                "×",
            ));
        }
    }

    fn memory(&self) -> XtaskResult<Vec<PageSection>> {
        let connections = IDLE_CONNECTIONS;
        let mut table = figures::table(
            "server | at the start | warm, without connections | bytes per connection | bytes, just answered",
        );
        for server in self.contenders()? {
            let idle = idle::measure(&server, connections, &self.environment)?;
            if server.name.starts_with("stilling") {
                let start_mb = idle.at_start as f64 / 1e6;
                let what = format!("memory at the start, {}", server.name);
                self.add_target(BenchTarget::at_most(what, START_MB_MAX, Some(start_mb), "MB"));
                let what = format!("memory per idle connection, {}", server.name);
                self.add_target(BenchTarget::at_most(what, IDLE_BYTES_MAX, Some(idle.per_connection()), "B"));
            }
            table.push(vec![
                server.name.to_owned(),
                figures::mebibytes(idle.at_start),
                figures::mebibytes(idle.before),
                figures::thousands(idle.per_connection()),
                figures::thousands(idle.per_fresh_connection()),
            ]);
        }
        let description = format!(
            "User memory (`Pss` of all processes of a server) with its default capacity: at the start, after \
             `{}`, and with {} connections that were each answered once and then idle for 7 s. The \
             kernel's memory for sockets, about the same for all, is not included. nginx allocates memory for all \
             connections when it starts, so part of it is in the first column.",
            HttpLoad::Ab { requests: 20_000, connections: 100, keep: true }.command_line("/test/fast"),
            figures::thousands(connections as f64)
        );
        Ok(vec![PageSection { title: MEMORY_TITLE.to_owned(), description, table }])
    }
}
