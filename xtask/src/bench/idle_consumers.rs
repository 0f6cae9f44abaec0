//! `cargo xtask bench idle-consumers`: delay of the first message after a silence to the ordered consumers of clients
//! in four languages.
//!
//! All clients wait at the same time on three servers, each client a process that publishes the message and receives
//! it. A delivery that takes [`DELAY_MAX`] or longer, never arrives, or needs a new consumer is a miss.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::collect::{CollectPeer, CollectPrograms, StorageKind, tools};
use super::fairness::PairConnection;
use super::figures::{PageSection, spread, two_places};
use super::{harness, isolation, machine};
use crate::steps::{cargo, command_text, run};
use crate::{XtaskResult, go, node, python, tree};

pub(super) const TITLE: &str = "Idle consumers";

/// Most delay of a delivery.
const DELAY_MAX: Duration = Duration::from_millis(100);

/// Least seconds of a silence. Clients start one after the other, and each silence begins with its client's start: all
/// wait at the same time only if starting all of them takes less than a silence. It takes seconds, depending on the
/// machine; [`check_common_silence`] fails the run if it takes too long.
const SECONDS_MIN: u64 = 20;

/// The servers, the control last.
const PEERS: [CollectPeer; 3] =
    [CollectPeer::StillingUring, CollectPeer::StillingPoll, CollectPeer::JetStream];

/// The client on async-nats, an example of the command's crate.
const ASYNC_NATS: &str = "async_nats_idle";

#[derive(Args)]
pub(super) struct IdleConsumersArguments {
    /// Seconds of silence; at least twice as long as all clients take to start
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(SECONDS_MIN..=3600))]
    seconds: u64,
    /// Number of silences, one after the other, each with new servers and clients
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write the section into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConsumerClient {
    NatsPy,
    NatsGo,
    AsyncNats,
    NatsNode,
}

impl ConsumerClient {
    const ALL: [ConsumerClient; 4] =
        [ConsumerClient::NatsPy, ConsumerClient::NatsGo, ConsumerClient::AsyncNats, ConsumerClient::NatsNode];

    fn name(self) -> &'static str {
        match self {
            ConsumerClient::NatsPy => "nats.py",
            ConsumerClient::NatsGo => "nats.go",
            ConsumerClient::AsyncNats => "async-nats",
            ConsumerClient::NatsNode => "nats.js",
        }
    }

    /// Kinds of its ordered consumers.
    fn kinds(self) -> &'static [&'static str] {
        match self {
            ConsumerClient::NatsPy => &["push"],
            _ => &["push", "pull"],
        }
    }

    /// Its program, for an address and a silence.
    fn command(self, address: SocketAddr, seconds: u64) -> Command {
        let url = format!("nats://{address}");
        let mut command = match self {
            ConsumerClient::NatsPy => {
                let mut command = Command::new(python::NATS_PY.directory().join("bin/python"));
                command.arg(tree::root().join(python::NATS_CASES)).args([&url, "idle"]);
                command
            }
            ConsumerClient::NatsGo => {
                let mut command = Command::new(go::NATS_GO.directory().join("client"));
                command.args([&url, "idle"]);
                command
            }
            ConsumerClient::AsyncNats => {
                let mut command = Command::new(tree::target().join("release/examples").join(ASYNC_NATS));
                command.arg(url);
                command
            }
            ConsumerClient::NatsNode => {
                let mut command = Command::new("node");
                command.arg(node::NATS.directory().join("conformance.mjs")).args([&url, "idle"]);
                command
            }
        };
        command.arg(seconds.to_string());
        command
    }
}

/// Report of a client about one consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FirstDelivery {
    kind: String,
    delay: Duration,
    /// Whether the client had recreated the consumer.
    is_reset: bool,
}

impl FirstDelivery {
    /// Parses `KIND MICROSECONDS kept|reset`.
    fn parse(line: &str) -> Option<FirstDelivery> {
        let mut fields = line.split_whitespace();
        let (kind, delay) = (fields.next()?.to_owned(), Duration::from_micros(fields.next()?.parse().ok()?));
        let is_reset = match fields.next()? {
            "kept" => false,
            "reset" => true,
            _ => return None,
        };
        Some(FirstDelivery { kind, delay, is_reset })
    }
}

/// A client with consumers that have received a message and wait for the next.
struct ClientProcess {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl ClientProcess {
    fn start(client: ConsumerClient, address: SocketAddr, seconds: u64) -> XtaskResult<ClientProcess> {
        let mut command = client.command(address, seconds);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("`{}`: {error}", command_text(&command)))?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut waiting = ClientProcess { child, lines };
        let mut line = String::new();
        waiting.lines.read_line(&mut line)?;
        match line.trim() {
            "waiting" => Ok(waiting),
            line => Err(format!("`{}` printed {line:?} first", command_text(&command)).into()),
        }
    }

    /// Waits until the program ends; a failed client has reported fewer consumers.
    fn deliveries(mut self) -> Vec<FirstDelivery> {
        let lines = self.lines.by_ref().lines().map_while(Result::ok);
        lines.filter_map(|line| FirstDelivery::parse(&line)).collect()
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Deliveries to the clients of one server.
struct DelayColumn {
    peer: CollectPeer,
    /// Per client in the order of [`ConsumerClient::ALL`]: the deliveries of all rounds.
    deliveries: Vec<Vec<FirstDelivery>>,
}

impl IdleConsumersArguments {
    pub(super) fn run(self) -> XtaskResult {
        if !isolation::is_in_namespace() {
            prepare()?;
        }
        isolation::enter_namespace()?;
        let (_guard, programs) = CollectPrograms::find()?;
        let mut columns =
            PEERS.map(|peer| DelayColumn { peer, deliveries: vec![Vec::new(); ConsumerClient::ALL.len()] });
        for round in 0..self.rounds {
            self.measure(&programs, round, &mut columns)?;
        }
        let (table, misses) = table(&columns, self.rounds as usize);
        let section =
            PageSection { title: TITLE.to_owned(), description: self.description(&programs), table }.text();
        harness::publish(TITLE, &section, self.write)?;
        if misses > 0 {
            return Err(format!("{misses} consumers missed their target").into());
        }
        Ok(())
    }

    fn measure(&self, programs: &CollectPrograms, round: u32, columns: &mut [DelayColumn]) -> XtaskResult {
        let mut running = Vec::new();
        let mut first_waits = None;
        for DelayColumn { peer, .. } in &*columns {
            let folder = programs.folder.join(format!("{}-{round}", peer.name()));
            fs::create_dir_all(&folder)?;
            let server = peer.start(programs, &folder, StorageKind::Disk)?.server;
            if *peer == CollectPeer::JetStream {
                make_stream(server.address)?;
            }
            let mut clients = Vec::new();
            for client in ConsumerClient::ALL {
                // One after the other, so that they do not all publish at the same time.
                let waiting = ClientProcess::start(client, server.address, self.seconds);
                clients
                    .push(waiting.map_err(|error| format!("{}, {}: {error}", peer.name(), client.name()))?);
                first_waits.get_or_insert_with(Instant::now);
            }
            running.push((server, clients));
        }
        let starts = first_waits.map_or(Duration::ZERO, |first| first.elapsed());
        check_common_silence(Duration::from_secs(self.seconds), starts)?;
        println!(
            "round {round}: {} clients wait {} s",
            PEERS.len() * ConsumerClient::ALL.len(),
            self.seconds
        );
        for (column, (_server, clients)) in columns.iter_mut().zip(running) {
            for (all, client) in column.deliveries.iter_mut().zip(clients) {
                all.extend(client.deliveries());
            }
        }
        Ok(())
    }

    fn description(&self, programs: &CollectPrograms) -> String {
        let lines = machine::listed([tools::nats_server_version(&programs.nats_server), versions()]);
        format!(
            "The delay of the first message after {seconds} seconds of silence, in milliseconds, from the call that publishes it \
             to its delivery by an ordered consumer with the client's default options; heartbeats come meanwhile. Each client \
             is a process that publishes and receives, all wait at the same time, and each consumer has received a message \
             before the silence. The target is less than {max} ms, for the consumer that existed before the silence. *{control}* \
             is the control, {}; Stilling is run as {}. A cell has the median over the rounds and, in brackets, the minimum and the maximum. \
             `cargo xtask bench idle-consumers --seconds {seconds} --rounds {rounds} --write` writes this section.\n\n{lines}",
            CollectPeer::JetStream.description(),
            CollectPeer::StillingUring.description(),
            seconds = self.seconds,
            rounds = self.rounds,
            max = DELAY_MAX.as_millis(),
            control = CollectPeer::JetStream.name(),
        )
    }
}

/// Checks that all clients wait at the same time for at least half of the `silence`; `starts` is the time between the
/// first and the last client's start of waiting.
fn check_common_silence(silence: Duration, starts: Duration) -> XtaskResult {
    if starts * 2 <= silence {
        return Ok(());
    }
    let (took, needed) = (starts.as_secs_f64(), (starts * 2).as_secs() + 1);
    Err(format!("the clients took {took:.1} s to start: use `--seconds {needed}` or more").into())
}

/// Builds and installs all programs; requires a network.
fn prepare() -> XtaskResult {
    tools::NATS_SERVER.install()?;
    python::NATS_PY.install()?;
    go::NATS_GO.build()?;
    node::NATS.install()?;
    // `CollectPrograms::find` copies it, although it is not used here.
    run(&mut cargo(["build", "--release", "-p", "stilling-peer-bare"]))?;
    run(&mut cargo(["build", "--release", "-p", "stilling-cli", "--bins", "--example", ASYNC_NATS]))
}

/// Creates the stream that Stilling has by its options.
fn make_stream(to: SocketAddr) -> XtaskResult {
    let mut connection = PairConnection::open(to)?;
    let config = r#"{"name":"events","subjects":["events.>"],"storage":"file"}"#;
    let request =
        format!("SUB made 1\r\nPUB $JS.API.STREAM.CREATE.events made {}\r\n{config}\r\n", config.len());
    connection.write.write_all(request.as_bytes())?;
    let answer = connection.next_message().ok_or("nats-server does not answer")?;
    let answer = String::from_utf8_lossy(&answer);
    if answer.contains("\"error\"") {
        Err(format!("nats-server makes no stream: {answer}").into())
    } else {
        Ok(())
    }
}

/// Versions of the clients, as pinned by their lock files and manifests.
fn versions() -> String {
    let read = |path: &Path| fs::read_to_string(tree::root().join(path)).unwrap_or_default();
    let manifest = read(&Path::new(go::NATS_GO.sources).join("go.mod"));
    let nats_go = manifest
        .lines()
        .find_map(|line| line.split_once("nats.go v"))
        .map_or("unknown", |(_, version)| version);
    let manifest: serde_json::Value =
        serde_json::from_str(&read(&Path::new(node::NATS.sources).join("package.json"))).unwrap_or_default();
    let nats_js = manifest["dependencies"]["@nats-io/jetstream"].as_str().unwrap_or("unknown");
    let async_nats = machine::locked(&read(Path::new("Cargo.lock")), &["async-nats"]);
    format!(
        "Clients: {}, nats.go {nats_go}, {async_nats}, @nats-io/jetstream {nats_js}",
        python::NATS_PY.version.replace("==", " ")
    )
}

/// The table of `rounds` rounds, and the number of consumers that missed the target, the control excepted.
fn table(columns: &[DelayColumn], rounds: usize) -> (Vec<Vec<String>>, usize) {
    let servers = columns.iter().map(|column| column.peer.name());
    let mut table = vec![["client", "consumer"].into_iter().chain(servers).map(str::to_owned).collect()];
    let mut misses = 0;
    for (at, client) in ConsumerClient::ALL.into_iter().enumerate() {
        for kind in client.kinds() {
            let mut row = vec![client.name().to_owned(), (*kind).to_owned()];
            for DelayColumn { peer, deliveries } in columns {
                let all: Vec<_> = deliveries[at].iter().filter(|delivery| delivery.kind == *kind).collect();
                let is_met = all.len() == rounds
                    && all.iter().all(|delivery| delivery.delay < DELAY_MAX && !delivery.is_reset);
                let is_miss = !is_met && *peer != CollectPeer::JetStream;
                misses += usize::from(is_miss);
                row.push(format!("{}{}", cell(&all, rounds), if is_miss { " **missed**" } else { "" }));
            }
            table.push(row);
        }
    }
    (table, misses)
}

fn cell(deliveries: &[&FirstDelivery], rounds: usize) -> String {
    if deliveries.is_empty() {
        return "not delivered".to_owned();
    }
    let delays = deliveries.iter().map(|delivery| delivery.delay.as_secs_f64() * 1e3);
    let mut cell = spread(delays, two_places);
    if deliveries.len() < rounds {
        cell += &format!(", {} of {rounds} not delivered", rounds - deliveries.len());
    }
    if deliveries.iter().any(|delivery| delivery.is_reset) {
        cell += ", consumer reset";
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(peer: CollectPeer, of_nats_py: Option<&str>) -> DelayColumn {
        let deliveries = ConsumerClient::ALL.map(|client| {
            let lines: Vec<String> = client.kinds().iter().map(|kind| format!("{kind} 1500 kept")).collect();
            let lines = if client == ConsumerClient::NatsPy {
                of_nats_py.map(str::to_owned).into_iter().collect()
            } else {
                lines
            };
            lines.iter().filter_map(|line| FirstDelivery::parse(line)).collect()
        });
        DelayColumn { peer, deliveries: deliveries.to_vec() }
    }

    #[test]
    fn late_missing_and_reset_are_misses_except_for_the_control() {
        for (line, expected_cell) in [
            (Some("push 99999 kept"), "100.00"),
            (Some("push 100000 kept"), "100.00 **missed**"),
            (Some("push 900 reset"), "0.90, consumer reset **missed**"),
            (None, "not delivered **missed**"),
        ] {
            let (rows, misses) =
                table(&[column(CollectPeer::StillingPoll, line), column(CollectPeer::JetStream, None)], 1);
            assert_eq!(rows[1], ["nats.py", "push", expected_cell, "not delivered"]);
            assert_eq!(misses, usize::from(expected_cell.contains("missed")), "{rows:?}");
            assert_eq!(rows[2..].iter().filter(|row| row[2] == "1.50").count(), 6, "{rows:?}");
        }
    }

    #[test]
    fn every_round_has_to_deliver_in_time() {
        let deliveries =
            |lines: &[&str]| lines.iter().filter_map(|line| FirstDelivery::parse(line)).collect::<Vec<_>>();
        for (lines, expected_cell) in [
            (&["push 1000 kept", "push 3000 kept", "push 2000 kept"][..], "2.00 (1.00 – 3.00)"),
            (&["push 1000 kept", "push 3000 kept"], "2.00 (1.00 – 3.00), 1 of 3 not delivered **missed**"),
            (&["push 1000 kept", "push 200000 kept", "push 2000 kept"], "2.00 (1.00 – 200.00) **missed**"),
        ] {
            let mut column = column(CollectPeer::StillingUring, None);
            column.deliveries[0] = deliveries(lines);
            let (rows, _) = table(&[column], 3);
            assert_eq!(rows[1][2], expected_cell);
        }
    }

    #[test]
    fn a_silence_has_to_be_twice_as_long_as_the_start_of_all_clients() {
        let check = |silence, starts| {
            check_common_silence(Duration::from_secs(silence), Duration::from_millis(starts))
        };
        assert!(check(20, 0).is_ok() && check(20, 10_000).is_ok());
        let error = check(20, 10_001).expect_err("less than half is common").to_string();
        assert!(error.contains("10.0 s") && error.contains("--seconds 21"), "{error}");
        assert!(check(21, 10_001).is_ok());
    }

    #[test]
    fn seconds_below_the_least_are_refused() {
        #[derive(clap::Parser)]
        struct TestCommandLine {
            #[command(flatten)]
            arguments: IdleConsumersArguments,
        }
        let parse = |seconds: u64| {
            let line = <TestCommandLine as clap::Parser>::try_parse_from([
                "x".to_owned(),
                format!("--seconds={seconds}"),
            ]);
            line.map(|line| line.arguments.seconds).ok()
        };
        assert_eq!((parse(SECONDS_MIN - 1), parse(SECONDS_MIN)), (None, Some(SECONDS_MIN)));
    }

    #[test]
    fn other_lines_report_no_delivery() {
        assert!(
            ["", "waiting", "push x kept", "push 5", "push 5 lost"]
                .iter()
                .all(|line| FirstDelivery::parse(line).is_none())
        );
    }
}
