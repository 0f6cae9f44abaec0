//! Clients that send as fast as they can to a script that reads slowly, in each receive mode: what is received ahead is
//! bounded, and memory returns (rows 3.15, 3.23 and 3.24).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use super::super::{SAMPLE_INTERVAL, joined};
use super::firehose_verdicts::FirehoseFigures;
use crate::XtaskResult;
use crate::bench::server::BenchServer;
use crate::bench::tcl::{TclPeer, TclPrograms, TclServer};

/// Clients, each with one connection.
pub(super) const CLIENTS: usize = 100;

/// Bytes of one read of the script, and of the channel's buffer.
pub(super) const READ_SIZE: usize = 4096;

/// Time between two reads of a connection.
pub(super) const READ_INTERVAL_MS: u32 = 10;

/// Bytes of one send, and after how many the bytes repeat.
const SEND_SIZE: usize = 65_536;
const PATTERN_SIZE: u64 = 256;

/// Longest time of one send, after which the client looks at the clock.
const SEND_TIMEOUT: Duration = Duration::from_millis(200);

/// Time for the script to accept all clients, to read all bytes, and for an answer.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two looks at what decays.
const DECAY_INTERVAL: Duration = Duration::from_millis(50);

/// Time to wait for the end of a decay that is too slow.
const DECAY_TIMEOUT: Duration = Duration::from_secs(20);

/// A receive mode: the value of the option, and the most bytes of one connection that are received ahead of the script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FirehoseMode {
    pub(super) option: &'static str,
    pub(super) ahead_max: u64,
    /// Whether the number of receives at once changes.
    pub(super) has_bursts: bool,
}

/// Buffers of the mode `burst-detection` that wait for the script at most, each of [`BURST_BUFFER_SIZE`].
const BURST_BUFFERS_MAX: u64 = 30;

/// Bytes of a buffer in the mode `burst-detection` (docs/tcl/stilling.n).
const BURST_BUFFER_SIZE: u64 = 4096;

pub(super) const MODES: [FirehoseMode; 3] = [
    FirehoseMode { option: "zero-byte", ahead_max: 0, has_bursts: false },
    FirehoseMode { option: "flow-controlled", ahead_max: READ_SIZE as u64, has_bursts: false },
    FirehoseMode {
        option: "burst-detection 20 30",
        ahead_max: BURST_BUFFERS_MAX * BURST_BUFFER_SIZE,
        has_bursts: true,
    },
];

/// What the script reports of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ScriptStats {
    pub(super) open: u64,
    pub(super) received: u64,
    /// Reads with other bytes than were sent.
    pub(super) wrong: u64,
    /// Receives at once, of all connections.
    pub(super) outstanding: u64,
    /// Buffers that wait for the script.
    pub(super) pending: u64,
    /// Bytes that wait for the script, of all connections.
    pub(super) special: u64,
}

impl ScriptStats {
    /// Parses a dictionary of Tcl whose values are numbers.
    fn parse(line: &str) -> Option<ScriptStats> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let values: BTreeMap<&str, &str> = words.chunks_exact(2).map(|entry| (entry[0], entry[1])).collect();
        let figure = |key: &str| values.get(key)?.parse().ok();
        Some(ScriptStats {
            open: figure("open")?,
            received: figure("received")?,
            wrong: figure("wrong")?,
            outstanding: figure("outstanding")?,
            pending: figure("pending")?,
            special: figure("special")?,
        })
    }
}

/// The connection that controls the script.
struct ScriptControl(BufReader<TcpStream>);

impl ScriptControl {
    fn open(server: &BenchServer) -> XtaskResult<ScriptControl> {
        let stream = TcpStream::connect(server.address)?;
        stream.set_read_timeout(Some(SCRIPT_TIMEOUT))?;
        Ok(ScriptControl(BufReader::new(stream)))
    }

    fn send(&mut self, command: &str) -> XtaskResult {
        Ok(self.0.get_mut().write_all(format!("{command}\n").as_bytes())?)
    }

    fn request(&mut self, command: &str) -> XtaskResult<String> {
        self.send(command)?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line)
    }

    fn stats(&mut self) -> XtaskResult<ScriptStats> {
        let line = self.request("stats")?;
        Ok(ScriptStats::parse(&line).ok_or_else(|| format!("the script printed {line:?}"))?)
    }

    /// Waits until the statistics are as wanted.
    fn wait_for(&mut self, what: &str, is_wanted: impl Fn(&ScriptStats) -> bool) -> XtaskResult<ScriptStats> {
        let start = Instant::now();
        loop {
            let stats = self.stats()?;
            if is_wanted(&stats) {
                return Ok(stats);
            }
            if start.elapsed() > SCRIPT_TIMEOUT {
                return Err(format!("not in {SCRIPT_TIMEOUT:?}: {what}; {stats:?}").into());
            }
            std::thread::sleep(DECAY_INTERVAL);
        }
    }
}

/// One mode, with clients that send for a time.
pub(super) fn run(
    programs: &TclPrograms,
    peer: TclPeer,
    mode: FirehoseMode,
    span: Duration,
) -> XtaskResult<FirehoseFigures> {
    let script = TclServer { script: "xtask/src/soak/tcl/firehose.tcl", arguments: &[mode.option] };
    let server = programs.start(peer, script)?;
    let mut control = ScriptControl::open(&server)?;
    let port: u16 = control.request("port")?.trim().parse()?;
    let clients = connect_clients(port)?;
    let first = (CLIENTS * READ_SIZE) as u64;
    let idle = control.wait_for("all clients are connected and read", |stats| stats.received == first)?;
    let idle_resident = server.resident();
    let (mut most, end, sent) = flood(&clients, &mut control, span)?;
    let flooded_resident = server.peak_memory();
    control.request("drain")?;
    control.wait_for("all bytes are read", |stats| stats.received == sent)?;
    let drained_at = Instant::now();
    let decay = wait_for_decay(&mut control, &idle, &mut most)?;
    let decay_s = decay.map(|at| (at - drained_at).as_secs_f64());
    let returned_resident = server.resident();
    drop(clients);
    let closed = control.wait_for("all connections are closed", |stats| stats.open == 0)?;
    let closed_resident = server.resident();
    control.send("exit")?;
    Ok(FirehoseFigures {
        mode,
        span_s: span.as_secs_f64(),
        sent,
        read: end.received,
        waiting: sent - end.received,
        most,
        idle,
        closed,
        decay_s,
        idle_resident,
        flooded_resident,
        returned_resident,
        closed_resident,
        ended_well: server.ends_by_itself(),
    })
}

/// Connects, and sends a block on each connection.
fn connect_clients(port: u16) -> XtaskResult<Vec<TcpStream>> {
    let block = pattern(0, READ_SIZE);
    let connect = |_| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        stream.write_all(&block)?;
        Ok(stream)
    };
    (0..CLIENTS).map(connect).collect()
}

/// Sends on all connections for a time; returns the maxima of the script's figures, the figures at the end, and the bytes
/// sent since the connects.
fn flood(
    clients: &[TcpStream],
    control: &mut ScriptControl,
    span: Duration,
) -> XtaskResult<(ScriptStats, ScriptStats, u64)> {
    let until = Instant::now() + span;
    std::thread::scope(|threads| {
        let senders: Vec<_> =
            clients.iter().map(|client| threads.spawn(move || send_until(client, until))).collect();
        let mut most = ScriptStats::default();
        let mut minute = 0;
        let mut end = control.stats()?;
        while Instant::now() < until {
            std::thread::sleep(SAMPLE_INTERVAL.min(until.saturating_duration_since(Instant::now())));
            end = control.stats()?;
            most = most.max(&end);
            let elapsed_s = span.saturating_sub(until.saturating_duration_since(Instant::now())).as_secs();
            if elapsed_s / 60 > minute {
                minute = elapsed_s / 60;
                println!("minute {minute}: {end:?}");
            }
        }
        let mut sent = 0;
        for sender in senders {
            sent += joined(sender).map_err(|error| format!("a client cannot send: {error}"))?;
        }
        Ok((most, end, sent))
    })
}

/// Sends what the connection takes until the time is over; returns all bytes of the connection.
fn send_until(mut client: &TcpStream, until: Instant) -> std::io::Result<u64> {
    let bytes = pattern(0, SEND_SIZE + PATTERN_SIZE as usize);
    let mut sent = READ_SIZE as u64;
    while Instant::now() < until {
        let first = (sent % PATTERN_SIZE) as usize;
        match client.write(&bytes[first..first + SEND_SIZE]) {
            Ok(count) => sent += count as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// The bytes 0 to 255 again and again, from one of them on.
fn pattern(first: u8, size: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().skip(first.into()).take(size).collect()
}

/// Waits until what is outstanding is as before the load; `None`: it is not.
fn wait_for_decay(
    control: &mut ScriptControl,
    idle: &ScriptStats,
    most: &mut ScriptStats,
) -> XtaskResult<Option<Instant>> {
    let start = Instant::now();
    while start.elapsed() < DECAY_TIMEOUT {
        let stats = control.stats()?;
        *most = most.max(&stats);
        let is_idle = |of: fn(&ScriptStats) -> u64| of(&stats) <= of(idle);
        if is_idle(|stats| stats.outstanding)
            && is_idle(|stats| stats.pending)
            && is_idle(|stats| stats.special)
        {
            return Ok(Some(Instant::now()));
        }
        std::thread::sleep(DECAY_INTERVAL);
    }
    Ok(None)
}

impl ScriptStats {
    fn max(&self, other: &ScriptStats) -> ScriptStats {
        ScriptStats {
            open: self.open.max(other.open),
            received: self.received.max(other.received),
            wrong: self.wrong.max(other.wrong),
            outstanding: self.outstanding.max(other.outstanding),
            pending: self.pending.max(other.pending),
            special: self.special.max(other.special),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_reports_a_dictionary() {
        let line = "open 3 received 4000000000 wrong 0 outstanding 60 pending 9 special 36864\n";
        let stats = ScriptStats::parse(line).expect("it is complete");
        assert_eq!((stats.open, stats.received, stats.special), (3, 4_000_000_000, 36_864));
        assert_eq!(ScriptStats::parse("open 3"), None);
        let other = ScriptStats { open: 5, ..ScriptStats::default() };
        assert_eq!(stats.max(&other), ScriptStats { open: 5, ..stats });
    }

    #[test]
    fn bytes_continue_behind_a_partial_send() {
        assert_eq!(pattern(0, 300)[255..258], [255, 0, 1]);
        assert_eq!(pattern(7, 2), [7, 8]);
    }
}
