//! Where the time of a server's event loop goes: scripts, sockets, waiting.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use super::TclBench;
use super::http::{HTTPD, PATH, TCLLIB_HTTPD};
use super::peers::{OWN, TclPeer, TclServer};
use crate::bench::figures::{self, PageSection};
use crate::bench::load::HttpLoad;
use crate::bench::targets::BenchTarget;
use crate::{XtaskResult, tree};

pub(super) const TITLE: &str = "Time of scripts and of sockets";

const WRAPPER: &str = "xtask/src/bench/tcl/stages.tcl";

const ECHO: TclServer = TclServer { script: "xtask/src/bench/tcl/echo.tcl", arguments: &[] };

/// Stages of a script that copies nothing by `stilling::fcopy`.
const STAGES: [&str; 5] = ["script", "turn", "receive", "send", "wait"];

/// Row 3.29: most time in all stages, as a part of the elapsed time: each moment belongs to one stage at most. The two are
/// read a moment apart.
const ACCOUNTED_MAX: f64 = 1.001;

/// A server, and what loads it.
struct StagedLoad {
    server: TclServer<'static>,
    load: Load,
    requests: usize,
}

#[derive(Clone, Copy)]
enum Load {
    /// Exchanges on this many connections.
    Exchanges(u32),
    /// `ab` with this many connections.
    Ab(u32),
}

const LOADS: [StagedLoad; 4] = [
    StagedLoad { server: ECHO, load: Load::Exchanges(1), requests: 200_000 },
    StagedLoad { server: ECHO, load: Load::Exchanges(200), requests: 500_000 },
    StagedLoad { server: HTTPD, load: Load::Ab(300), requests: 50_000 },
    StagedLoad { server: TCLLIB_HTTPD, load: Load::Ab(300), requests: 10_000 },
];

impl StagedLoad {
    fn name(&self) -> String {
        let script = self.server.script.rsplit('/').next().unwrap_or_default();
        match self.load {
            Load::Exchanges(1) => format!("{script}, one client"),
            Load::Exchanges(connections) => format!("{script}, {connections} clients"),
            Load::Ab(connections) => format!("{script}, ab -c {connections}"),
        }
    }
}

/// Nanoseconds in each of [`STAGES`] so far, at a moment.
struct StageReading {
    at: Instant,
    nanoseconds: [f64; STAGES.len()],
}

impl StageReading {
    fn read(control: SocketAddr) -> XtaskResult<StageReading> {
        let mut text = String::new();
        TcpStream::connect(control)?.read_to_string(&mut text)?;
        let nanoseconds = parse_stages(&text).ok_or_else(|| format!("the server printed {text:?}"))?;
        Ok(StageReading { at: Instant::now(), nanoseconds })
    }
}

fn parse_stages(text: &str) -> Option<[f64; STAGES.len()]> {
    let mut nanoseconds = [0.0; STAGES.len()];
    for (stage, nanoseconds) in STAGES.iter().zip(&mut nanoseconds) {
        let line = text.lines().find_map(|line| line.strip_prefix(stage)?.strip_prefix(' '))?;
        *nanoseconds = line.rsplit(' ').next()?.parse().ok()?;
    }
    Some(nanoseconds)
}

/// Nanoseconds of one load.
struct StageTimes {
    elapsed: f64,
    stages: [f64; STAGES.len()],
    requests: f64,
}

impl StageTimes {
    fn between(before: &StageReading, after: &StageReading, requests: usize) -> StageTimes {
        let mut stages = after.nanoseconds;
        for (after, before) in stages.iter_mut().zip(before.nanoseconds) {
            *after -= before;
        }
        StageTimes { elapsed: (after.at - before.at).as_nanos() as f64, stages, requests: requests as f64 }
    }

    /// The part of the time in any stage.
    fn accounted(&self) -> f64 {
        self.stages.iter().sum::<f64>() / self.elapsed
    }

    fn row(&self, name: String, peer: TclPeer) -> Vec<String> {
        let [script, turn, receive, send, _] = self.stages;
        let percent = |nanoseconds: f64| format!("{:.1} %", nanoseconds * 100.0 / self.elapsed);
        let each = |nanoseconds: f64| figures::two_places(nanoseconds / 1e3 / self.requests);
        let mut row = vec![name, peer.name().to_owned()];
        row.extend(self.stages.map(percent));
        row.push(percent(self.elapsed - self.stages.iter().sum::<f64>()));
        row.extend([each(script), each(turn + receive + send)]);
        row
    }
}

impl TclBench {
    /// Row 3.29.
    pub(super) fn stages(&self) -> XtaskResult<PageSection> {
        let mut table = figures::table(
            "load | server | script | turn | receive | send | wait | none | script µs each | sockets µs each",
        );
        for load in &LOADS {
            if load.server.script == TCLLIB_HTTPD.script && self.programs.package_version("httpd").is_none() {
                continue;
            }
            for peer in self.available(&OWN) {
                let times = self.measure_stages(load, peer)?;
                let what = format!("row 3.29, all stages ÷ elapsed time, {}: {}", peer.name(), load.name());
                self.add_target(BenchTarget::at_most(what, ACCOUNTED_MAX, Some(times.accounted()), "×"));
                let row = times.row(load.name(), peer);
                println!("{TITLE}: {}", row.join(", "));
                table.push(row);
            }
        }
        let description = "The stages of `stilling::stats -stages on` during one load, as parts of its time; each moment belongs to \
             one stage at most. *script* is the time of scripts that sockets call and of Tcl's own work for them, *turn* that of \
             collecting events, accepting and closing, *receive* and *send* that of system calls for reads and writes, *wait* that of \
             waiting for events. *none* is the rest: timers, among them the one by which Tcl calls a script again for input that it \
             has buffered (`httpd.tcl` reads one line per call). *Each* is the time divided by the exchanges or requests, *sockets* \
             the sum of turn, receive and send. Measuring takes some time itself (about 2 % for `echo.tcl`)."
            .to_owned();
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }

    fn measure_stages(&self, staged: &StagedLoad, peer: TclPeer) -> XtaskResult<StageTimes> {
        // Free in this program's own namespace, until the server takes it.
        let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let (port, script) = (control.port().to_string(), tree::root().join(staged.server.script));
        let script = script.display().to_string();
        let arguments = [&[port.as_str(), &script], staged.server.arguments].concat();
        let server = self.programs.start(peer, TclServer { script: WRAPPER, arguments: &arguments })?;
        let requests = self.quick_or_full(staged.requests);
        let before = StageReading::read(control)?;
        let failures = match staged.load {
            Load::Exchanges(connections) => {
                let connections = format!("--connections={connections}");
                let options = ["exchange".to_owned(), connections, format!("--count={requests}")];
                self.programs.load(&server, &options)?.0.failures
            }
            Load::Ab(connections) => {
                let load = HttpLoad::Ab { requests: requests as u64, connections, keep: false };
                let sample = load.measure(&server, PATH, &self.environment())?;
                sample.failures + sample.refused
            }
        };
        let after = StageReading::read(control)?;
        if failures > 0 {
            return Err(format!("{failures} failures of {}, {}", peer.name(), staged.name()).into());
        }
        Ok(StageTimes::between(&before, &after, requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_read_by_name() {
        let text = "script 3 300\nturn 1 10\nreceive 2 20\nsend 2 30\ncopy 0 0\nwait 1 40\n";
        assert_eq!(parse_stages(text), Some([300.0, 10.0, 20.0, 30.0, 40.0]));
        assert_eq!(parse_stages("script 3 300\n"), None);
    }
}
