//! Valid clients of an echo server before and during a SYN flood, in network namespaces of this program's own.
//!
//! ```sh
//! cargo run --release -p stilling-bench --example syn_flood -- tclsh xtask/src/bench/tcl/flood.tcl socket2 10.77.0.1
//! ```
//!
//! The command starts a server on 10.77.0.1 that prints `listening http://ADDRESS`, returns each line, and prints a line
//! `flood began` when it notices the flood. The report is JSON.
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::error::Error;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddrV4;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde::Serialize;
use stilling_probe::line_client;
use stilling_probe::network::{TestNetwork, tcp_counter, unused_addresses};
use stilling_probe::syn_flood::SynGenerator;

/// Rounds of [`SynGenerator::flood`] per second.
const ROUNDS_PER_SECOND: u32 = 20;

/// Pause between two clients.
const CLIENT_PAUSE: Duration = Duration::from_millis(2);

/// Measures valid clients of a server before and during a SYN flood.
#[derive(Parser)]
struct FloodCli {
    /// Seconds without a flood, and of the flood of 5,000 segments per second
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=4))]
    seconds: u32,
    /// Command that starts the server
    #[arg(required = true, trailing_var_arg = true)]
    server: Vec<OsString>,
}

/// The clients of one phase.
#[derive(Debug, Serialize)]
struct ClientFigures {
    clients: usize,
    failures: usize,
    /// Time from the start of a connect to the answer; `null` if none was answered.
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    /// SYNs that the clients repeated; each takes a second.
    repeated_syns: u64,
    /// An error of a client.
    evidence: Option<String>,
}

#[derive(Debug, Serialize)]
struct FloodReport {
    quiet: ClientFigures,
    flood: ClientFigures,
    /// Time from the first segment until the server noticed; `null` if it did not while the flood lasted.
    detected_after_ms: Option<f64>,
}

/// The server; ends with this value.
struct FloodedServer {
    child: Child,
    address: SocketAddrV4,
    /// The times at which it noticed a flood.
    noticed: Receiver<Instant>,
}

impl Drop for FloodedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl FloodedServer {
    fn start(command: &[OsString]) -> Result<FloodedServer, Box<dyn Error>> {
        let (program, arguments) = command.split_first().ok_or("the command is empty")?;
        let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = lines.next().ok_or("the server printed nothing")??;
        let address = line.strip_prefix("listening http://").and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| format!("the server printed {line:?} first"))?;
        Ok(FloodedServer { child, address, noticed: watch(lines) })
    }
}

/// Clients one after another while `is_on`, in the clients' namespace.
fn connect_while(server: SocketAddrV4, is_on: impl Fn() -> bool) -> ClientFigures {
    let repeated_before = tcp_counter("TCPSynRetrans");
    let (mut spans, mut failures, mut evidence) = (Vec::new(), 0, None);
    while is_on() {
        match line_client::exchange(server.into(), "a line") {
            Ok(span) => spans.push(span),
            Err(error) => {
                failures += 1;
                evidence = Some(error.to_string());
            }
        }
        thread::sleep(CLIENT_PAUSE);
    }
    spans.sort();
    let at = |percent: usize| {
        let rank = (spans.len() * percent).div_ceil(100).max(1);
        spans.get(rank - 1).map(|span: &Duration| span.as_secs_f64() * 1e3)
    };
    ClientFigures {
        clients: spans.len() + failures,
        failures,
        p50_ms: at(50),
        p99_ms: at(99),
        max_ms: at(100),
        repeated_syns: tcp_counter("TCPSynRetrans") - repeated_before,
        evidence,
    }
}

/// Passes on when the server notices the flood.
fn watch(lines: Lines<BufReader<ChildStdout>>) -> Receiver<Instant> {
    let (sender, receiver) = mpsc::channel();
    // It ends with the server's output.
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if line.starts_with("flood began") && sender.send(Instant::now()).is_err() {
                break;
            }
        }
    });
    receiver
}

fn measure(network: &TestNetwork, cli: &FloodCli) -> Result<FloodReport, Box<dyn Error>> {
    let server = FloodedServer::start(&cli.server)?;
    let (address, noticed) = (server.address, &server.noticed);
    let span = Duration::from_secs(cli.seconds.into());
    let end = Instant::now() + span;
    let quiet = network.in_clients(|| connect_while(address, || Instant::now() < end));
    if noticed.try_recv().is_ok() {
        return Err("the server reported a flood without one".into());
    }
    let is_flood_on = AtomicBool::new(true);
    let begin = Instant::now();
    let flood = thread::scope(|scope| {
        scope.spawn(|| {
            network.enter_clients();
            SynGenerator::new(address, unused_addresses()).flood(cli.seconds * ROUNDS_PER_SECOND);
            is_flood_on.store(false, Ordering::Relaxed);
        });
        network.in_clients(|| connect_while(address, || is_flood_on.load(Ordering::Relaxed)))
    });
    let detected = noticed.try_recv().ok().map(|at| (at - begin).as_secs_f64() * 1e3);
    Ok(FloodReport { quiet, flood, detected_after_ms: detected })
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = FloodCli::parse();
    if let Some(network) = TestNetwork::enter_program()? {
        println!("{}", serde_json::to_string(&measure(&network, &cli)?)?);
    }
    Ok(())
}
