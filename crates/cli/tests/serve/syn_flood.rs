//! A SYN flood in a network of the test's own: the server notices it, and valid clients are served.

use std::fs::File;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use stilling_probe::network::{SERVER, TestNetwork, tcp_counter, unused_addresses};
use stilling_probe::syn_flood::SynGenerator;

use crate::support::{DriverUnderTest, MetricsClient, ServerUnderTest, TestPeer, binary, eventually};

on_both_drivers!(valid_clients_are_served_during_a_flood);

/// Backlog that the system grants at the start.
const BACKLOG: u64 = 128;

/// Backlog that it grants later.
const BACKLOG_MAX: u64 = 1024;

/// Valid clients one after another, and in parallel.
const CLIENTS_IN_ORDER: usize = 100;
const PARALLEL_THREADS: usize = 10;
const CLIENTS_PER_THREAD: usize = 10;
const CLIENTS: usize = CLIENTS_IN_ORDER + PARALLEL_THREADS * CLIENTS_PER_THREAD;

/// Segments of the flood per valid client.
const SEGMENTS_PER_CLIENT: u32 = 50;

fn start(driver: DriverUnderTest, log: &Path) -> ServerUnderTest {
    let mut command: Command = binary();
    command.args(["serve", "--listen", &format!("{SERVER}:0"), "--accept-threads", "2"]);
    command.args(driver.options()).stderr(File::create(log).expect("a file"));
    ServerUnderTest::spawn(command)
}

/// Connects, gets an answer and reads to the end. Returns the time it took.
fn request(server: SocketAddr) -> Duration {
    let begin = Instant::now();
    let mut peer = TestPeer::connect(server);
    let answer = peer.ask("GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(answer.status, 200);
    let span = begin.elapsed();
    peer.rest();
    span
}

/// Rows 3.7, 3.9, 3.10: during a flood from addresses that no host has every valid client is served, without a repeated
/// SYN; the flood is reported in the log, in the metrics and on `/status`, and takes no slot of the server.
fn valid_clients_are_served_during_a_flood(driver: DriverUnderTest) {
    let name = format!("syn_flood::on_{}::valid_clients_are_served_during_a_flood", driver.name());
    let Some(network) = TestNetwork::enter(&name) else { return };
    network.set_server_parameter("net/core/somaxconn", BACKLOG);
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let server = start(driver, &log);
    let SocketAddr::V4(address) = server.address() else { panic!("it listens on an IPv4 address") };
    let mut watcher = server.watch();
    let before = watcher.until("the watch runs", |metrics| metrics.value("listen_samples_total") >= 2);
    assert_eq!((before.value("syn_flood"), before.value("syn_floods_total")), (0, 0));

    let (spans, repeated) = network.in_clients(|| flood_and_connect(address, &mut watcher));
    let metrics = watcher.until_alone();
    assert_eq!(repeated, 0, "valid clients repeated SYNs");
    assert_eq!(spans.len(), CLIENTS);
    report(driver, spans);
    // The watcher is the only other connection.
    assert_eq!((metrics.value("accepted_total"), metrics.value("connections")), (CLIENTS as u64 + 1, 1));
    watcher.until("valid clients returned SYN cookies", |metrics| {
        metrics.value("syn_cookies_total{event=\"returned\"}") > 0
    });

    // The flood is on for some time yet: the backlog follows what the system grants now.
    network.set_server_parameter("net/core/somaxconn", BACKLOG_MAX);
    watcher.until("the backlog is raised", |metrics| metrics.value("listen_backlog") == BACKLOG_MAX);
    watcher.until("the flood has ended", |metrics| metrics.value("syn_flood") == 0);
    drop(watcher);
    let last = server.finish();
    assert_eq!(last.value("syn_floods_total"), 1);
    check_log(&log, address);
}

/// Floods the server until it has noticed, and goes on while valid clients connect. Returns the times of the clients, and
/// the number of SYNs that they repeated.
fn flood_and_connect(address: SocketAddrV4, watcher: &mut MetricsClient) -> (Vec<Duration>, u64) {
    let repeated = tcp_counter("TCPSynRetrans");
    let mut generator = SynGenerator::new(address, unused_addresses());
    let mut rounds = 0;
    let metrics = eventually("the server notices the flood", || {
        if rounds < 32 {
            generator.send(250);
            rounds += 1;
            thread::sleep(Duration::from_millis(50));
        }
        let metrics = watcher.fetch();
        (metrics.value("syn_flood") == 1).then_some(metrics)
    });
    assert_eq!((metrics.value("accepted_total"), metrics.value("connections")), (1, 1), "no slot is taken");
    assert!(watcher.page("/status").contains("role=alert>SYN flood, detected "));

    let mut spans: Vec<Duration> = Vec::new();
    for _ in 0..CLIENTS_IN_ORDER {
        generator.send(SEGMENTS_PER_CLIENT);
        spans.push(request(address.into()));
    }
    let generator = Mutex::new(generator);
    thread::scope(|scope| {
        let client = || {
            let requests = (0..CLIENTS_PER_THREAD).map(|_| {
                generator.lock().expect("no other thread panicked").send(SEGMENTS_PER_CLIENT);
                request(address.into())
            });
            requests.collect::<Vec<Duration>>()
        };
        let threads: Vec<_> = (0..PARALLEL_THREADS).map(|_| scope.spawn(client)).collect();
        spans.extend(threads.into_iter().flat_map(|thread| thread.join().expect("its clients are served")));
    });
    (spans, tcp_counter("TCPSynRetrans") - repeated)
}

/// Prints the percentiles of valid clients. That no SYN was repeated bounds them: a repetition takes a second.
#[allow(clippy::print_stdout, reason = "the output of a test")]
fn report(driver: DriverUnderTest, mut spans: Vec<Duration>) {
    spans.sort();
    let of = |percent: usize| spans[(spans.len() * percent).div_ceil(100) - 1];
    println!(
        "measured: {CLIENTS} valid clients during a flood on {}: p50 {:?}, p99 {:?}, max {:?}",
        driver.name(),
        of(50),
        of(99),
        of(100)
    );
}

fn check_log(log: &Path, address: SocketAddrV4) {
    let text = std::fs::read_to_string(log).expect("the server wrote its log");
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!((count("SYN flood: "), count("the SYN flood has ended; it lasted ")), (1, 1), "{text}");
    assert_eq!(count(&format!("backlog of http://{address} raised from 128 to 256")), 1, "{text}");
    assert_eq!(count(" raised from "), 3, "{text}");
}
