//! `cargo xtask bench sockets`: live connections held by one server process beyond its limit of open files, and the
//! cost of each.
//!
//! Server and generator both run under the limit and keep their sockets in the descriptor tables of their rings. The
//! generator opens all connections, then sends one request over each, checks every response and holds them all; memory
//! is read before, right after the responses, and after the server has parked them.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;

use super::figures::{self, PageSection};
use super::server::BenchServer;
use super::{copy_binary, enter_namespace, harness, machine, monitor};
use crate::XtaskResult;
use crate::steps::{cargo, command_text, run};

/// Rest of the connections before the last reading: longer than a server takes to park one.
const SETTLE_TIME: Duration = Duration::from_secs(8);

/// Connections per source address: fewer than the system has ephemeral ports for one.
const CONNECTIONS_PER_SOURCE: u32 = 5000;

#[derive(Args)]
pub(super) struct SocketsArguments {
    /// Connections open at once
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Limit of open files of the server, and of the generator
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(200..))]
    open_files: u32,
    /// Rings of the server, and of the generator; each holds as many sockets as the limit of open files
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    rings: u32,
    /// Write the section into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

struct SocketUsage {
    /// Bytes of the server's memory.
    user: u64,
    /// Bytes of the kernel's slabs, of the whole machine.
    slab: u64,
    /// Open connections of the server, including that of this reading.
    open: u64,
    descriptors: usize,
}

impl SocketsArguments {
    pub(super) fn run(self) -> XtaskResult {
        enter_namespace(|| run(&mut cargo(["build", "--release", "-p", "stilling-cli"])))?;
        let folder = tempfile::tempdir()?;
        let binary = copy_binary("stilling", folder.path())?;
        let section = self.measure(&binary)?;
        harness::publish(&section.title, &section.text(), self.write)
    }

    /// Measures, and checks that all connections were held and answered.
    fn measure(&self, binary: &Path) -> XtaskResult<PageSection> {
        let server = self.server(binary);
        let server = BenchServer::announcing_address("stilling uring", command_text(&server), server)?;
        let before = read_usage(&server)?;
        let mut holder = SocketHolder::start(self.load(binary, &server), self.count)?;
        let answered = read_usage(&server)?;
        std::thread::sleep(SETTLE_TIME);
        let parked = read_usage(&server)?;
        let report = holder.finish(self.count)?;
        for read_usage in [&answered, &parked] {
            if read_usage.open <= u64::from(self.count) {
                return Err(format!(
                    "the server had only {} connections, its watcher's included",
                    read_usage.open
                )
                .into());
            }
        }
        println!("{report}");
        let commands = [&server.command, &holder.command]
            .map(|command| command.replace(&binary.display().to_string(), "stilling"));
        Ok(PageSection {
            title: title(self.count),
            description: self.description(&commands),
            table: self.table(&before, &answered, &parked),
        })
    }

    /// A program under the limit of open files.
    fn limited(&self, binary: &Path) -> Command {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={0}:{0}", self.open_files)).arg(binary);
        command
    }

    fn server(&self, binary: &Path) -> Command {
        let mut command = self.limited(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--direct-descriptors"]);
        // While tens of thousands of connections open, the first ones wait for their first request.
        command.args(["-A", &self.rings.to_string(), "--first-byte-timeout", "300", "--idle-timeout", "300"]);
        command
    }

    fn load(&self, binary: &Path, server: &BenchServer) -> Command {
        let (rings, count) = (self.rings.to_string(), self.count.to_string());
        let source = format!("127.0.1.1/{}", self.count.div_ceil(CONNECTIONS_PER_SOURCE));
        let hold = (SETTLE_TIME + SETTLE_TIME).as_secs().to_string();
        let mut command = self.limited(binary);
        command.args(["bench", "http", &server.url("/test/fast")]);
        command.args(["--direct-descriptors", "-c", &count, "-t", &rings, "--source", &source]);
        command.args(["--hold", &hold, "--timeout", "60"]);
        command
    }

    fn description(&self, [server, load]: &[String; 2]) -> String {
        let SocketsArguments { count, open_files, rings, .. } = self;
        format!(
            "One server process under a limit of {} open files (`prlimit --nofile`) holds {} live connections at \
             once: it keeps them in the descriptor tables of its {rings} rings (`--direct-descriptors`), and so does \
             the generator, under the same limit. All connections were opened first; then each carried one request, \
             and every answer was checked; all were still open when the generator closed them. Kernel memory is \
             the growth of the machine's slabs (`Slab` of `/proc/meminfo`) divided by the sockets, two for each \
             connection because both ends are on this machine; user memory is the growth of the server's `Pss`.\n\n\
             `cargo xtask bench sockets --count {count} --open-files {open_files} --rings {rings} --write`, which ran \
             `{server}` and `{load}`.\n\n{}",
            figures::thousands((*open_files).into()),
            figures::thousands((*count).into()),
            machine::listed([]).trim_end(),
        )
    }

    fn table(&self, before: &SocketUsage, answered: &SocketUsage, parked: &SocketUsage) -> Vec<Vec<String>> {
        let mut table = figures::table(
            "moment | connections | descriptors of the server | user bytes each | kernel bytes per socket",
        );
        let each = |bytes: u64, before: u64, ends: f64| (bytes as f64 - before as f64) / ends;
        let ends = f64::from(self.count);
        for (moment, read_usage) in [("before", before), ("all answered", answered), ("all parked", parked)] {
            let is_before = std::ptr::eq(read_usage, before);
            let figure = |value: f64| if is_before { figures::unknown() } else { figures::thousands(value) };
            table.push(vec![
                moment.to_owned(),
                figures::thousands((read_usage.open - 1) as f64),
                read_usage.descriptors.to_string(),
                figure(each(read_usage.user, before.user, ends)),
                figure(each(read_usage.slab, before.slab, 2.0 * ends)),
            ]);
        }
        table
    }
}

fn title(count: u32) -> String {
    format!("{} sockets", figures::thousands(count.into()))
}

fn read_usage(server: &BenchServer) -> XtaskResult<SocketUsage> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let slab =
        meminfo.lines().find_map(|line| line.strip_prefix("Slab:")?.trim().strip_suffix(" kB")?.parse().ok());
    let slab: u64 = slab.ok_or("/proc/meminfo has no `Slab`")?;
    Ok(SocketUsage {
        user: server.memory(),
        slab: slab * 1024,
        open: open(server)?,
        descriptors: server.descriptors()?,
    })
}

/// Open connections according to the server.
fn open(server: &BenchServer) -> XtaskResult<u64> {
    monitor::figure(server.address, "connections")
}

/// The running generator; dropping it ends it.
struct SocketHolder {
    child: Child,
    command: String,
}

impl SocketHolder {
    /// Starts the generator; returns when all connections have been answered and are held.
    fn start(mut command: Command, count: u32) -> XtaskResult<SocketHolder> {
        let command_line = command_text(&command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut holder = SocketHolder { child, command: command_line };
        let mut stderr_text = String::new();
        let mut stderr = BufReader::new(holder.child.stderr.take().expect("it is piped"));
        while stderr.read_line(&mut stderr_text)? > 0 {
            if stderr_text.ends_with(&format!("holding {count} connections\n")) {
                // Keeps reading, so that later output does not meet a closed pipe.
                std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::stderr()));
                return Ok(holder);
            }
        }
        Err(format!("`{}` did not hold {count} connections: {stderr_text}", holder.command).into())
    }

    /// Waits for its end, which must be a success with all connections still open.
    fn finish(&mut self, count: u32) -> XtaskResult<String> {
        let mut report = String::new();
        self.child.stdout.take().expect("it is piped").read_to_string(&mut report)?;
        let status = self.child.wait()?;
        let held =
            report.lines().find_map(|line| line.strip_prefix("held to the end")?.trim().parse::<u32>().ok());
        if !status.success() || held != Some(count) {
            return Err(format!("`{}` ended with {status}, {held:?} held:\n{report}", self.command).into());
        }
        Ok(report)
    }
}

impl Drop for SocketHolder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
