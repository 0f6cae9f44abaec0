//! `cargo xtask bench app`: Stilling before worker processes (`--app`), beside nginx before the same program.
//!
//! It answers two questions, each with its own app behind the servers: what a request costs in the server before the
//! app (Node, which answers at once), and how an app behaves at five times its capacity (gunicorn, with few processes).

mod overload;
mod proxies;

use std::path::Path;

use clap::Args;

use super::figures::{self, PageSection};
use super::harness::{self, BenchOptions};
use super::load::{BenchEnvironment, HttpLoad};
use super::sample::BenchSample;
use super::server::{BenchDriver, BenchServer};
use super::targets::{BenchTarget, BenchTargets};
use super::{enter_namespace, machine};
use crate::steps::{cargo, run};
use crate::{XtaskResult, packages, python};
use proxies::{BackendApp, UpstreamReuse};

pub(super) const TITLE: &str = "Worker processes: `--app`";

/// Most CPU per request of the server before the app, as a part of nginx's.
const CPU_FACTOR_MAX: f64 = 0.8;

/// Connections of the clients, and of the server to the app.
const CONNECTIONS: u32 = 32;

#[derive(Args)]
pub(super) struct AppBenchArguments {
    #[command(flatten)]
    options: BenchOptions,
}

/// Stilling before the Node program, which is written into the folder of `environment`.
pub(crate) fn stilling_before_node(
    environment: &BenchEnvironment,
    driver: BenchDriver,
    options: &[&str],
) -> XtaskResult<BenchServer> {
    proxies::write_programs(&environment.folder)?;
    let command = format!("exec {}", proxies::node_command(&environment.folder));
    proxies::stilling(&environment.binary, driver, options, &command, "node answers.js")
}

struct AppBench {
    options: BenchOptions,
    environment: BenchEnvironment,
    targets: BenchTargets,
}

impl AppBenchArguments {
    pub(super) fn run(self) -> XtaskResult {
        enter_namespace(|| {
            packages::install(&packages::FOR_BENCH_APP)?;
            python::GUNICORN.install()?;
            run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))
        })?;
        let folder = tempfile::tempdir()?;
        let environment = BenchEnvironment::of(folder.path())?;
        proxies::write_programs(folder.path())?;
        let bench = AppBench { options: self.options, environment, targets: BenchTargets::default() };
        let mut parts = bench.cost()?;
        parts.push(bench.overload()?);
        let text = harness::of_parts(TITLE, &bench.introduction(), &bench.targets, parts);
        harness::publish(TITLE, &text, bench.options.write)
    }
}

impl AppBench {
    fn folder(&self) -> &Path {
        &self.environment.folder
    }

    fn introduction(&self) -> String {
        let lines = machine::listed([
            format!("nginx: {}", machine::short(&machine::command_output("/usr/sbin/nginx", &["-v"]))),
            format!("Node: {}", machine::command_output("node", &["-v"])),
            python::GUNICORN.version.replace("==", ": "),
        ]);
        format!(
            "A program that speaks HTTP/1.1 on a Unix socket, behind Stilling (`--app`) and behind nginx \
             (`proxy_pass`). Both pass on `Host` and set `X-Forwarded-For`, `-Proto` and `-Host`. \
             `{}` writes this section; rounds are interleaved as above.\n\n{lines}",
            self.options.command("app")
        )
    }

    /// CPU of the server before an app that answers at once.
    fn cost(&self) -> XtaskResult<Vec<PageSection>> {
        let app = BackendApp::node(self.folder())?;
        let servers = self.before_node(&app)?;
        let seconds = if self.options.quick { 1 } else { 4 };
        let load = |seconds, close| HttpLoad::Own { seconds, connections: CONNECTIONS, close, pipeline: 1 };
        for server in &servers {
            proxies::answers(server)?;
            // The programs behind compile themselves during the first requests.
            load(1, false).measure(server, "/", &self.environment)?;
        }
        let mut sections = Vec::new();
        for (title, close) in
            [("Keep-alive client connections", false), ("A client connection per request", true)]
        {
            let load = load(seconds, close);
            let series = harness::series(self.options.rounds, title, &servers, |server| {
                load.measure(server, "/", &self.environment)
            })?;
            for driver in [BenchDriver::Uring, BenchDriver::Poll] {
                for nginx in [UpstreamReuse::Kept, UpstreamReuse::Fresh] {
                    let cpu = |sample: &BenchSample| Some(sample.cpu_s);
                    let ratio = figures::ratio(&series, driver.name(), nginx.name(), cpu);
                    let what = format!("server CPU, {} ÷ {}: {title}", driver.name(), nginx.name());
                    self.targets.add_target(BenchTarget::at_most(what, CPU_FACTOR_MAX, ratio, "×"));
                }
            }
            let description = format!("`{}`", load.command_line("/"));
            sections.push(PageSection {
                title: title.to_owned(),
                description,
                table: figures::compared(&series),
            });
        }
        let commands: Vec<_> = servers.iter().map(|server| format!("`{}`", server.command)).collect();
        sections[0].description += &format!(
            "\n\nThe app is a Node program of ten lines that answers 18 bytes (`xtask/src/bench/app/answers.js`), one process. CPU is that of the server in front of it, with \
             all of its threads and processes, without the app. There are at most {CONNECTIONS} connections to the app at once, because there are so many \
             clients; *nginx* opens one for each request, its default, and the \
             others reuse them. \
             The servers, the app and the generator share the cores. The servers: {}.",
            commands.join(", ")
        );
        Ok(sections)
    }

    /// The compared servers before Node; nginx uses `app`, Stilling starts its own.
    fn before_node(&self, app: &BackendApp) -> XtaskResult<Vec<BenchServer>> {
        let concurrency = CONNECTIONS.to_string();
        let options = ["--app-concurrency", &concurrency];
        let command = format!("exec {}", proxies::node_command(self.folder()));
        let stilling = |driver| {
            proxies::stilling(&self.environment.binary, driver, &options, &command, "node answers.js")
        };
        Ok(vec![
            stilling(BenchDriver::Uring)?,
            stilling(BenchDriver::Poll)?,
            proxies::nginx(self.folder(), app, UpstreamReuse::Fresh)?,
            proxies::nginx(self.folder(), app, UpstreamReuse::Kept)?,
        ])
    }
}
