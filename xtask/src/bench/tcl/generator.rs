//! The TCP generator of `stilling-bench`, run as a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;

use super::peers::TclPrograms;
use crate::XtaskResult;
use crate::bench::sample::BenchSample;
use crate::bench::server::BenchServer;
use crate::steps::report;

/// Connections of one process: fewer than its limit of open files, and than the ports of one address.
const HELD_PER_PROCESS: usize = 15_000;

/// The part of a report that the tables show.
#[derive(Debug, Deserialize)]
pub(crate) struct TcpLoadReport {
    elapsed_s: f64,
    pub(crate) exchanges: u64,
    pub(crate) rate_per_s: f64,
    pub(super) bytes: u64,
    pub(super) gigabits_per_s: f64,
    pub(crate) failures: u64,
    evidence: Option<String>,
    latency: LatencyFigures,
}

#[derive(Debug, Deserialize)]
struct LatencyFigures {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl TcpLoadReport {
    /// Exchanges as a sample; `cpu_s` is the CPU time of the server during the load.
    pub(super) fn sample(&self, cpu_s: f64) -> BenchSample {
        let ms = |us: f64| (self.exchanges > 0).then_some(us / 1e3);
        BenchSample {
            requests: self.exchanges,
            took_s: self.elapsed_s,
            rate: self.rate_per_s,
            p50_ms: ms(self.latency.p50_us),
            p99_ms: ms(self.latency.p99_us),
            p999_ms: ms(self.latency.p999_us),
            max_ms: ms(self.latency.max_us),
            failures: self.failures,
            cpu_s: cpu_s * 1e6 / self.exchanges.max(1) as f64,
            ..BenchSample::default()
        }
    }
}

impl TclPrograms {
    /// Puts a load on a server; returns the report and the CPU seconds of the server.
    pub(crate) fn load(&self, server: &BenchServer, options: &[String]) -> XtaskResult<(TcpLoadReport, f64)> {
        let mut command = Command::new(&self.generator);
        command.args(options).arg(server.address.to_string());
        let before = server.cpu_s();
        let report: TcpLoadReport = report(&mut command)?;
        let used = server.cpu_s() - before;
        if let Some(evidence) = &report.evidence {
            println!("{}: {} failures, the first: {evidence}", server.name, report.failures);
        }
        Ok((report, used))
    }

    /// Holds connections, in as many processes as they need.
    pub(super) fn hold(&self, to: SocketAddr, count: usize) -> XtaskResult<Vec<HoldingProcess>> {
        let mut processes = Vec::new();
        let mut left = count;
        while left > 0 {
            let part = left.min(HELD_PER_PROCESS);
            let source = Ipv4Addr::new(127, 0, 1, processes.len() as u8 + 1);
            let mut command = Command::new(&self.generator);
            command.args(["hold", "--connections", &part.to_string(), "--source", &source.to_string()]);
            processes.push(HoldingProcess::start(command.arg(to.to_string()), part)?);
            left -= part;
        }
        Ok(processes)
    }
}

/// A process with idle connections; dropping it ends it.
pub(super) struct HoldingProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    count: usize,
}

impl HoldingProcess {
    /// Returns once all connections are open.
    fn start(command: &mut Command, count: usize) -> XtaskResult<HoldingProcess> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut process = HoldingProcess { child, stdin, stdout, count };
        process.expect(&format!("holding {count}"))?;
        Ok(process)
    }

    /// One exchange on each connection.
    ///
    /// # Errors
    /// If one is not answered, or wrongly.
    pub(super) fn exchange(&mut self) -> XtaskResult<usize> {
        self.stdin.write_all(b"\n")?;
        self.expect(&format!("answered {}", self.count))?;
        Ok(self.count)
    }

    fn expect(&mut self, expected: &str) -> XtaskResult {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        if line.trim_end() == expected {
            Ok(())
        } else {
            Err(format!("the generator printed {line:?} instead of {expected:?}").into())
        }
    }
}

impl Drop for HoldingProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
