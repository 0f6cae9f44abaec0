//! Memory of idle accepted connections, and whether all of them still answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::TclBench;
use super::peers::{OWN, TclPeer, TclServer};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::server::BenchServer;
use crate::bench::targets::BenchTarget;

pub(super) const TITLE: &str = "Idle connections";

const ECHO: TclServer = TclServer { script: "xtask/src/bench/tcl/echo.tcl", arguments: &["stats"] };

/// Connections that Tcl's own sockets can have: select(2) has 1,024 descriptors.
const SELECT_CONNECTIONS: usize = 900;

/// More connections than that.
const BEYOND_SELECT: usize = 1100;

/// Row 3.14: connections of the memory target, and most bytes of both pools for them.
const POOL_CONNECTIONS: usize = 10_000;

const POOL_BYTES_MAX: f64 = 774_472.0 + 1_800_516.0;

/// Most connections within the limit of open files of this process's children, with a reserve.
const FILE_CONNECTIONS: usize = 15_000;

/// Row 3.11: connections beyond the limit of open files.
const DIRECT_CONNECTIONS: usize = 60_000;

const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);

const STATS_TIMEOUT: Duration = Duration::from_secs(10);

const END: &str = "end\n";

/// What a server says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerStats {
    accepted: usize,
    /// Bytes of the pools of `iocp_stats`.
    pub(crate) general: Option<u64>,
    pub(crate) special: Option<u64>,
}

struct IdleFigures {
    peer: TclPeer,
    connections: usize,
    /// Growth of memory in bytes per connection; `None` if the server failed.
    idle_bytes: Option<f64>,
    answered_bytes: Option<f64>,
    stats: ServerStats,
    answered: usize,
}

impl TclBench {
    pub(super) fn idle(&self) -> XtaskResult<PageSection> {
        let mut table = figures::table(
            "server | connections | bytes each, idle | bytes each, answered | general pool | special pool | answered",
        );
        for (peer, connections) in self.idle_cases() {
            // A server that does not hold them is a result, too.
            let figures = self.measure_idle(peer, connections).unwrap_or_else(|error| {
                println!("{TITLE}: {}, {connections} connections: {error}", peer.name());
                IdleFigures::failed(peer, connections)
            });
            self.judge_idle(&figures);
            println!("{TITLE}: {}", figures.row().join(", "));
            table.push(figures.row());
        }
        let limit = if self.aborts_beyond_select()? { "aborts" } else { "does not abort" };
        let description = format!(
            "Connections are accepted by `echo.tcl … stats` with `fileevent readable` and nothing else. Bytes are the growth \
             of the server's `Pss` divided by the connections; the pools are those of `iocp_stats`. Then each connection \
             carries one exchange. With {} connections, the server on `socket` {limit}. The limit of open files of each process \
             is the system's; *direct* keeps its sockets in the descriptor table of its ring.",
            figures::thousands(BEYOND_SELECT as f64)
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }

    fn idle_cases(&self) -> Vec<(TclPeer, usize)> {
        let mut cases = vec![(TclPeer::Stock, SELECT_CONNECTIONS)];
        for connections in [SELECT_CONNECTIONS, POOL_CONNECTIONS, FILE_CONNECTIONS] {
            cases.extend(OWN.map(|peer| (peer, connections)));
        }
        cases.push((TclPeer::Direct, DIRECT_CONNECTIONS));
        let available = self.available(&cases.iter().map(|(peer, _)| *peer).collect::<Vec<_>>());
        cases.retain(|(peer, _)| available.contains(peer));
        cases.into_iter().map(|(peer, connections)| (peer, self.quick_or_full(connections))).collect()
    }

    fn measure_idle(&self, peer: TclPeer, connections: usize) -> XtaskResult<IdleFigures> {
        let server = self.programs.start(peer, ECHO)?;
        let mut watcher = StatsConnection::open(&server)?;
        watcher.read()?;
        let before = server.memory();
        let mut held = self.programs.hold(server.address, connections)?;
        // The watcher is one of the accepted connections.
        let stats = watcher.wait_for(connections + 1)?;
        let idle = server.memory();
        let mut answered = 0;
        for process in &mut held {
            answered += process.exchange()?;
        }
        let after = server.memory();
        let each = |bytes: u64| Some((bytes as f64 - before as f64) / connections as f64);
        Ok(IdleFigures {
            peer,
            connections,
            idle_bytes: each(idle),
            answered_bytes: each(after),
            stats,
            answered,
        })
    }

    fn judge_idle(&self, figures: &IdleFigures) {
        if figures.peer == TclPeer::Stock {
            return;
        }
        let IdleFigures { connections, answered, .. } = *figures;
        let of = format!("{}, {} connections", figures.peer.name(), figures::thousands(connections as f64));
        if connections == self.quick_or_full(POOL_CONNECTIONS) {
            let ServerStats { general, special, .. } = figures.stats;
            let pools = general.zip(special).map(|(general, special)| (general + special) as f64);
            let what = format!("row 3.14, both pools: {of}");
            self.add_target(BenchTarget::at_most(what, POOL_BYTES_MAX, pools, "B"));
        }
        let what = format!("answered: {of}");
        self.add_target(BenchTarget::at_least(what, connections as f64, Some(answered as f64), ""));
    }

    /// Whether a server on Tcl's own sockets ends when it gets more connections than select(2) can have.
    fn aborts_beyond_select(&self) -> XtaskResult<bool> {
        let server = self.programs.start(TclPeer::Stock, ECHO)?;
        // Connections beyond the limit can break before they are all open.
        let held = self.programs.hold(server.address, BEYOND_SELECT);
        let start = Instant::now();
        while start.elapsed() < STATS_TIMEOUT {
            // A process that has ended has no memory.
            if server.memory() == 0 {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(held);
        Ok(false)
    }
}

impl IdleFigures {
    /// Figures of a server that did not hold its connections.
    fn failed(peer: TclPeer, connections: usize) -> IdleFigures {
        let stats = ServerStats { accepted: 0, general: None, special: None };
        IdleFigures { peer, connections, idle_bytes: None, answered_bytes: None, stats, answered: 0 }
    }

    fn row(&self) -> Vec<String> {
        let figure = |bytes: Option<f64>| bytes.map_or_else(figures::unknown, figures::thousands);
        let pool = |bytes: Option<u64>| figure(bytes.map(|bytes| bytes as f64));
        vec![
            self.peer.name().to_owned(),
            figures::thousands(self.connections as f64),
            figure(self.idle_bytes),
            figure(self.answered_bytes),
            pool(self.stats.general),
            pool(self.stats.special),
            figures::thousands(self.answered as f64),
        ]
    }
}

/// A connection that reads the server's statistics.
pub(crate) struct StatsConnection(TcpStream);

impl StatsConnection {
    pub(crate) fn open(server: &BenchServer) -> XtaskResult<StatsConnection> {
        let stream = TcpStream::connect(server.address)?;
        stream.set_read_timeout(Some(STATS_TIMEOUT))?;
        Ok(StatsConnection(stream))
    }

    pub(crate) fn read(&mut self) -> XtaskResult<ServerStats> {
        self.0.write_all(b"stats\n")?;
        let mut text = String::new();
        let mut buffer = [0; 1024];
        while !text.ends_with(END) {
            match self.0.read(&mut buffer)? {
                0 => return Err(format!("the server closed after {text:?}").into()),
                count => text += &String::from_utf8_lossy(&buffer[..count]),
            }
        }
        Ok(parse_stats(&text).ok_or_else(|| format!("the server printed {text:?}"))?)
    }

    /// Waits until the server has accepted that many connections.
    fn wait_for(&mut self, accepted: usize) -> XtaskResult<ServerStats> {
        let start = Instant::now();
        loop {
            let stats = self.read()?;
            if stats.accepted >= accepted {
                return Ok(stats);
            }
            if start.elapsed() > ACCEPT_TIMEOUT {
                return Err(format!("only {} of {accepted} connections were accepted", stats.accepted).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn parse_stats(text: &str) -> Option<ServerStats> {
    let figure = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    Some(ServerStats {
        accepted: figure("accepted ")? as usize,
        general: figure("General pool bytes in use:"),
        special: figure("Special pool bytes in use:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_with_and_without_pools() {
        let text = "accepted 7\nSockets open: 8\nGeneral pool bytes in use: 120\n\
                    Special pool bytes in use: 0\nend\n";
        let stats = ServerStats { accepted: 7, general: Some(120), special: Some(0) };
        assert_eq!(parse_stats(text), Some(stats));
        let stats = ServerStats { accepted: 7, general: None, special: None };
        assert_eq!(parse_stats("accepted 7\nend\n"), Some(stats));
        assert_eq!(parse_stats("end\n"), None);
    }
}
