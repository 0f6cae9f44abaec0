//! SIGKILL of the server at random moments under load, two hundred times per test run: every acknowledged message
//! exists once, in order, at its acknowledged position, and no other message exists. `cargo xtask crash` does it more
//! often.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use stilling_bench::collect::crash::{self, CrashPlan, CrashReport, CrashTarget};
use stilling_bench::collect::{CollectError, JetStreamApi, ReplayedMessage};

const KILLS: u32 = 100;

/// Kills per driver with a small retention limit.
const KILLS_BOUNDED: u32 = 20;

const CLIENT_KILLS: usize = 6;

/// Messages given to a client before each kill.
const LINES: usize = 3000;

/// Kills of a client per driver while the server's descriptors and memory are watched.
const WATCHED_CLIENT_KILLS: u64 = 250;

/// Kills before the first measurement, after which all lasting resources are open or allocated.
const WARM_UP_KILLS: u64 = 50;

/// Kills of a server under one client with watched descriptors and memory.
const WATCHED_SERVER_KILLS: u64 = 20;

/// Bytes by which resident memory may grow between the measurements: less than a leak of one 64 KiB buffer per kill
/// (200 × 64 KiB = 12.5 MiB; 18 kills of a server, each with 1,000 messages of 1 KiB: 18 MiB).
const GROWTH_MAX: u64 = 8 << 20;

struct KillableServer {
    driver: &'static str,
    /// NATS address; port 0: chosen by the system.
    listen: SocketAddr,
    data: PathBuf,
    options: &'static [&'static str],
    child: Option<Child>,
    /// Kept open for later output; the output of a start fits into the pipe.
    out: Option<BufReader<ChildStdout>>,
    /// Status and last output of a process that exited by itself.
    last_output: Vec<String>,
}

impl CrashTarget for KillableServer {
    fn start(&mut self) -> Result<SocketAddr, CollectError> {
        let local = |error: std::io::Error| CollectError::Local(format!("the server: {error}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
        let listen = self.listen.to_string();
        command.args(["serve", "--verbose", "--nats", &listen, "--driver", self.driver, "--data"]);
        command.arg(&self.data).args(self.options).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(local)?;
        let out = child.stdout.take().ok_or_else(|| CollectError::Local("no output".to_owned()))?;
        self.child = Some(child);
        let out = self.out.insert(BufReader::new(out));
        let mut words = Vec::new();
        for line in out.lines() {
            let line = line.map_err(local)?;
            if let Some(address) = line.strip_prefix("listening nats://") {
                return address.parse().map_err(|error| CollectError::Local(format!("{line}: {error}")));
            }
            words.push(line);
        }
        self.last_output = words;
        // No server listens at this address, so the crash test checks whether the process runs.
        Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn kill(&mut self) -> Result<(), CollectError> {
        let local = |error: std::io::Error| CollectError::Local(format!("the server: {error}"));
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let ended: Option<ExitStatus> = child.try_wait().map_err(local)?;
        if let Some(status) = ended {
            return Err(CollectError::Server(format!(
                "it ended by itself: {status}: {:?}",
                self.last_output
            )));
        }
        child.kill().and_then(|()| child.wait()).map_err(local).map(|_| ())
    }
}

impl Drop for KillableServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl KillableServer {
    fn new(driver: &'static str, data: &Path, options: &'static [&'static str]) -> KillableServer {
        let (listen, data) = (SocketAddr::from(([127, 0, 0, 1], 0)), data.to_owned());
        KillableServer { driver, listen, data, options, child: None, out: None, last_output: Vec::new() }
    }
}

fn check(driver: &'static str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let seed = seed();
    println!("{driver}: {KILLS} kills, seed {seed}");
    let plan = CrashPlan { kills: KILLS, seed, ..plan(folder.path()) };
    judge(&mut KillableServer::new(driver, &data, &[]), &plan);
    verified(&data);
}

/// [`check`] with a limit that retention reaches, through the page cache.
fn check_bounded(driver: &'static str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let options = &["--stream", "events=events.>:disk:retention-bytes=2MiB", "--write-method", "buffered"];
    let plan = CrashPlan {
        kills: KILLS_BOUNDED,
        seed: seed(),
        size: 2048,
        retention_bytes: Some(2 << 20),
        stream_directory: Some(data.join("events")),
        direct: Some(false),
        descriptors_every: 1,
        ..plan(folder.path())
    };
    let report = judge(&mut KillableServer::new(driver, &data, options), &plan);
    assert!(
        report.acknowledged * 2048 < 3 << 20 || report.removed > 0,
        "retention has work to do: {report:?}"
    );
}

fn plan(folder: &Path) -> CrashPlan {
    let direct = crash::can_write_directly(folder).then_some(true);
    CrashPlan { timeout: Duration::from_secs(60), direct, ..CrashPlan::default() }
}

/// Different moments in every run; a failure prints the seed.
fn seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    u64::from(since.subsec_nanos()) ^ since.as_secs()
}

fn judge(target: &mut KillableServer, plan: &CrashPlan) -> CrashReport {
    let (driver, seed) = (target.driver, plan.seed);
    let report = crash::run(target, plan, |_| {});
    let report = report.unwrap_or_else(|error| panic!("{driver}, seed {seed}: {error}"));
    let accounts = serde_json::to_string_pretty(&report).expect("it is plain");
    println!("{accounts}");
    assert!(report.is_good(), "{driver}, seed {seed}: the server failed the crash test: {accounts}");
    assert_eq!(report.kills, plan.kills);
    report
}

/// After the last kill the journal is intact or ends with a torn write.
fn verified(data: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    let output = command.args(["journal", "verify"]).arg(data).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code().is_some_and(|code| code < 2), "{text}");
    assert!(!text.contains("are lost"), "{text}");
}

/// Row 0.4 and "SIGKILL at random points under load, 200 times in the test run: acknowledged messages lost, invented,
/// reordered: 0, 0, 0".
#[test]
fn what_uring_acknowledged_survives_a_hundred_kills() {
    check("uring");
}

/// The same without io_uring.
#[test]
fn what_poll_acknowledged_survives_a_hundred_kills() {
    check("poll");
}

/// Retention with a small limit removes only what it may, no descriptor stays open when segments come and go, and the
/// buffered method uses the page cache.
#[test]
fn retention_takes_no_more_than_its_bound_on_uring() {
    check_bounded("uring");
}

#[test]
fn retention_takes_no_more_than_its_bound_on_poll() {
    check_bounded("poll");
}

/// `stilling pub` with a spool; its input stays open, so that only a kill ends it.
fn publisher(server: SocketAddr, spool: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.args(["pub", "--server", &format!("nats://{server}"), "--timeout", "60", "--spool"]).arg(spool);
    command.stdout(Stdio::null());
    command
}

fn stored(server: SocketAddr) -> Vec<String> {
    let mut api = JetStreamApi::connect(server, Duration::from_secs(60)).expect("the server listens");
    let mut payloads = Vec::new();
    let each = |stored: &ReplayedMessage<'_>| {
        payloads.push(String::from_utf8_lossy(stored.payload).into_owned());
        Ok(())
    };
    api.replay("events", 1, each).expect("the stream can be read");
    payloads
}

/// Kills clients while they publish. After another client has delivered the rest, every spooled line is in the stream
/// once: of each client's lines a prefix, and none twice.
fn check_clients(driver: &'static str) {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, spool) = (folder.path().join("data"), folder.path().join("spool"));
    let mut server = KillableServer::new(driver, &data, &[]);
    let address = server.start().expect("the server starts");
    let mut wanted = 0;
    for round in 0..CLIENT_KILLS {
        let mut child = publisher(address, &spool)
            .args(["--lines", "events.lines"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let mut input = child.stdin.take().expect("it is piped");
        let lines: String = (0..LINES).map(|line| format!("{round}-{line}\n")).collect();
        let feeder = std::thread::spawn(move || {
            // The client may die before it has read everything.
            let _ = std::io::Write::write_all(&mut input, lines.as_bytes());
            input
        });
        // Between the first message and the last.
        wanted += 1 + round * LINES / CLIENT_KILLS;
        stilling_probe::eventually("so many are stored", || (stored(address).len() >= wanted).then_some(()));
        child.kill().and_then(|()| child.wait()).expect("it is killed");
        drop(feeder.join().expect("it does not panic"));
        let status = publisher(address, &spool).stdin(Stdio::null()).status().expect("the next client runs");
        assert!(status.success(), "round {round}: {status}");
        wanted = stored(address).len();
    }
    let all = stored(address);
    for round in 0..CLIENT_KILLS {
        let start = format!("{round}-");
        let mut numbers: Vec<usize> =
            all.iter().filter_map(|payload| payload.strip_prefix(&start)?.parse().ok()).collect();
        numbers.sort_unstable();
        let count = numbers.len();
        assert!(count > 0, "{driver}, round {round}: nothing is stored");
        assert!(
            numbers.into_iter().eq(0..count),
            "{driver}, round {round}: {count} are not the first, each once"
        );
    }
    server.kill().expect("it ran to the end");
}

/// Row 0.4: a killed client loses no spooled message, and none is stored twice.
#[test]
fn what_killed_clients_had_kept_is_stored_once_on_uring() {
    check_clients("uring");
}

#[test]
fn what_killed_clients_had_kept_is_stored_once_on_poll() {
    check_clients("poll");
}

#[derive(Clone, Copy, Debug)]
struct ProcessResources {
    descriptors: usize,
    resident: u64,
}

impl ProcessResources {
    fn by(process: u32) -> ProcessResources {
        let descriptors = crash::descriptors(process).expect("it runs");
        ProcessResources { descriptors, resident: crash::resident_bytes(process).expect("it runs") }
    }

    /// Waits until a process holds no more descriptors than before, and returns its resources at that time.
    #[track_caller]
    fn as_before(self, process: u32) -> ProcessResources {
        let what = format!("no more than {} descriptors are open", self.descriptors);
        stilling_probe::eventually(&what, || {
            Some(ProcessResources::by(process)).filter(|now| now.descriptors <= self.descriptors)
        })
    }

    #[track_caller]
    fn assert_no_growth(self, after: ProcessResources) {
        let growth = after.resident.saturating_sub(self.resident);
        println!("{self:?}, then {after:?}");
        assert!(growth <= GROWTH_MAX, "resident memory grew by {growth} bytes: {self:?}, then {after:?}");
    }
}

/// Kills clients of a running server, each while it sends a message.
fn check_leaks_of_killed_clients(driver: &'static str) {
    let folder = tempfile::tempdir().expect("a folder");
    // The server keeps no message ids, so that their number does not matter.
    let options = &["--stream", "events=events.>:disk:dedup-time=0"];
    let mut server = KillableServer::new(driver, &folder.path().join("data"), options);
    let address = server.start().expect("the server starts");
    let process = server.process().expect("it runs");
    let mut api = JetStreamApi::connect(address, Duration::from_secs(60)).expect("the server listens");
    let mut last = || api.stream_state("events").map_or(0, |state| state.last);
    let (mut rested, mut before) = (None, None);
    for kill in 0..WATCHED_CLIENT_KILLS {
        if kill == 1 {
            rested = Some(ProcessResources::by(process));
        }
        if kill == WARM_UP_KILLS {
            before = rested.map(|rested: ProcessResources| rested.as_before(process));
        }
        // The endless input guarantees that the kill interrupts a write.
        let yes = Command::new("yes").arg("x".repeat(1000)).stdout(Stdio::piped()).spawn();
        let mut yes = yes.expect("`yes` starts");
        let mut client = Command::new(env!("CARGO_BIN_EXE_stilling"));
        client.args(["pub", "--server", &format!("nats://{address}"), "--lines", "events.lines"]);
        let input = yes.stdout.take().expect("it is piped");
        let mut client = client.stdin(input).stdout(Stdio::null()).spawn().expect("the client starts");
        let start = last();
        stilling_probe::eventually("messages of this client are stored", || (last() > start).then_some(()));
        client.kill().and_then(|()| client.wait()).expect("it is killed");
        yes.kill().and_then(|()| yes.wait()).expect("it is killed");
    }
    let before = before.expect("the warm-up is over");
    before.assert_no_growth(before.as_before(process));
    server.kill().expect("it ran to the end");
}

/// Row 0.4: a killed client leaves neither a descriptor nor memory behind at the server.
#[test]
fn killed_clients_leave_nothing_open_at_the_server_on_uring() {
    check_leaks_of_killed_clients("uring");
}

#[test]
fn killed_clients_leave_nothing_open_at_the_server_on_poll() {
    check_leaks_of_killed_clients("poll");
}

/// Kills the server repeatedly under one client that keeps running.
fn check_leaks_of_killed_servers(driver: &'static str) {
    const EACH: u64 = 1000;
    let folder = tempfile::tempdir().expect("a folder");
    // An address of its own, so that no other test takes the port while the server is down.
    let [.., high, low] = std::process::id().to_be_bytes();
    let network = if driver == "uring" { 252 } else { 253 };
    let listen = SocketAddr::from(([127, network, high, low], 4222));
    let mut server = KillableServer::new(driver, &folder.path().join("data"), &[]);
    server.listen = listen;
    let address = server.start().expect("the server starts");
    let spool = folder.path().join("spool");
    let mut client = publisher(address, &spool)
        .args(["--lines", "events.lines"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the client starts");
    let mut input = client.stdin.take().expect("it is piped");
    let process = client.id();
    // Only the maximum counts: the spool's newest file is not always open.
    let mut before: Option<ProcessResources> = None;
    for kill in 0..WATCHED_SERVER_KILLS {
        if kill <= 2 {
            let now = ProcessResources::by(process);
            let most = before.map_or(0, |before| before.descriptors).max(now.descriptors);
            before = Some(ProcessResources { descriptors: most, ..now });
        }
        let lines: String = (0..EACH).map(|line| format!("{:01000}\n", kill * EACH + line)).collect();
        let feeder = std::thread::spawn(move || {
            std::io::Write::write_all(&mut input, lines.as_bytes()).expect("the client lives");
            input
        });
        let mut api = JetStreamApi::connect(address, Duration::from_secs(60)).expect("the server listens");
        // In the middle of the submitted messages.
        let some = kill * EACH + EACH / 2;
        stilling_probe::eventually("half of it is stored", || {
            (api.stream_state("events").ok()?.last >= some).then_some(())
        });
        if let Some(before) = before.as_mut().filter(|_| kill < 2) {
            before.descriptors = before.descriptors.max(ProcessResources::by(process).descriptors);
        }
        server.kill().expect("it ran until now");
        assert_eq!(server.start().expect("it starts again: no lock is left"), address);
        input = feeder.join().expect("it does not panic");
        let mut api = JetStreamApi::connect(address, Duration::from_secs(60)).expect("the server listens");
        stilling_probe::eventually("all of it is stored", || {
            (api.stream_state("events").ok()?.last >= (kill + 1) * EACH).then_some(())
        });
    }
    let before = before.expect("there were kills before");
    before.assert_no_growth(before.as_before(process));
    drop(input);
    assert!(client.wait().expect("it is a child").success(), "{driver}");
    let numbers: Vec<u64> =
        stored(address).iter().map(|payload| payload.parse().expect("a number")).collect();
    assert!(numbers.into_iter().eq(0..WATCHED_SERVER_KILLS * EACH), "{driver}: each line once, in order");
    server.kill().expect("it ran to the end");
}

/// Row 0.4: a client continues after kills of its server, leaks neither descriptors nor memory, and finds no stale
/// lock.
#[test]
fn a_client_outlives_killed_servers_and_holds_no_more_than_before_on_uring() {
    check_leaks_of_killed_servers("uring");
}

#[test]
fn a_client_outlives_killed_servers_and_holds_no_more_than_before_on_poll() {
    check_leaks_of_killed_servers("poll");
}

/// Row 2.6: the active segment bypasses the page cache where the volume allows it, unless the buffered method is
/// configured.
#[test]
fn segments_are_written_past_the_page_cache_where_that_works() {
    for (driver, options, wanted) in [
        ("uring", &[][..], None),
        ("poll", &[], None),
        ("uring", &["--write-method", "buffered"], Some(false)),
        ("poll", &["--write-method", "buffered"], Some(false)),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = wanted.unwrap_or_else(|| crash::can_write_directly(folder.path()));
        let mut server = KillableServer::new(driver, &folder.path().join("data"), options);
        let address = server.start().expect("the server starts");
        let process = server.process().expect("it runs");
        assert_eq!(crash::writes_directly(process), None, "{driver}: there is no segment yet");
        let mut client = publisher(address, &folder.path().join("spool"));
        assert!(client.args(["events.a", "x"]).status().expect("the client runs").success());
        assert_eq!(crash::writes_directly(process), Some(wanted), "{driver} {options:?}");
        server.kill().expect("it ran to the end");
    }
}
