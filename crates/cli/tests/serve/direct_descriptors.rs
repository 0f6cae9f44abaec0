//! Direct descriptors: more connections than open files, on both ends.

use std::process::Command;
use std::thread;

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, Tool, binary};

const OPEN_FILES_MAX: u32 = 500;

const CONNECTIONS: u64 = 3000;

/// Rings of either side: with `OPEN_FILES_MAX` slots each, and connections spread by chance, far more room than needed.
const RINGS: &str = "10";

fn limited(descriptors: u32) -> Command {
    let limit = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
    Tool::new("bash", "-c").arg(limit).arg(binary().get_program()).into_command()
}

/// Row 0.2: connections are not limited by the number of open files; all are answered, and all are held at once.
#[test]
fn more_connections_than_open_files_are_held_and_answered() {
    let mut command = limited(OPEN_FILES_MAX);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "-A", RINGS])
        .args(DriverUnderTest::UringDirect.options());
    // Many clients on a busy machine need time before their first request.
    command.args(["--first-byte-timeout", "60", "--head-timeout", "60"]);
    let server = ServerUnderTest::spawn(command);
    assert_eq!(server.banner_line("driver "), DriverUnderTest::UringDirect.name());
    let outcome = limited(OPEN_FILES_MAX)
        .args(["bench", "http", &server.url("/test/fast"), "--direct-descriptors", "--json"])
        .args(["--connections", &CONNECTIONS.to_string(), "--threads", RINGS, "--hold", "0.1"])
        .output()
        .expect("bash runs");
    let stderr_text = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{stderr_text}");
    assert!(stderr_text.contains(&format!("holding {CONNECTIONS} connections")), "{stderr_text}");
    let report: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON value");
    assert_eq!((&report["ok"], &report["held"]), (&CONNECTIONS.into(), &CONNECTIONS.into()), "{report}");
    assert_eq!((&report["driver"], &report["failures_total"]), (&"uring-direct".into(), &0.into()));
    let mut watcher = server.watch();
    watcher.until_alone();
    assert!(server.descriptors() < OPEN_FILES_MAX as usize);
    drop(watcher);
    let metrics = server.finish();
    assert!(metrics.value("accepted_total") >= CONNECTIONS, "{metrics:?}");
    let refused = metrics.value("refused_total{reason=\"descriptors\"}");
    assert_eq!((metrics.value("accept_errors_total"), refused), (0, 0));
}

/// Rows 0.2, 3.27: the server reads the limit of each ring at the start, reports it, and keeps it; more connections
/// wait in the backlog. All may arrive at the same moment: there are as many slots as clients.
#[test]
fn few_slots_mean_less_capacity_and_no_lost_connection() {
    let mut command = limited(100);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "-A", "1"])
        .args(DriverUnderTest::UringDirect.options());
    let server = ServerUnderTest::spawn(command);
    let banner = server.banner_line("shards 1, worker threads 1, capacity ");
    assert_eq!(banner, "36 connections per shard (limited by open files)");
    let crowd: Vec<TestPeer> = (0..100).map(|_| server.connect()).collect();
    thread::scope(|scope| {
        for mut peer in crowd {
            scope.spawn(move || {
                peer.send("GET /test/fast HTTP/1.0\r\n\r\n");
                assert_eq!(peer.rest().len(), 57);
            });
        }
    });
    let metrics = server.finish();
    assert_eq!((metrics.value("accepted_total"), metrics.closed("done")), (100, 100));
    assert!((1..=36).contains(&metrics.value("connections_max")), "{metrics:?}");
}

/// Row 0.2: direct descriptors on a driver without them are an error with its reason and a remedy.
#[test]
fn direct_descriptors_on_the_wrong_driver_are_an_error() {
    let check = |arguments: &str, advice: &str| {
        let mut command = binary();
        let outcome = command.args(arguments.split_whitespace()).output().expect("the binary runs");
        let stderr_text = String::from_utf8_lossy(&outcome.stderr).into_owned();
        assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
        let why = "direct descriptors are not available here: they are slots of an io_uring ring, which the driver \
                   poll does not have; ";
        assert_eq!(stderr_text, format!("stilling: {why}{advice}\n"));
    };
    let wrong = "--direct-descriptors --driver poll";
    check(&format!("serve --listen 127.0.0.1:0 {wrong}"), "serve without --direct-descriptors");
    check(&format!("bench http http://127.0.0.1:1/ {wrong}"), "load without --direct-descriptors");
}

/// Rows 0.2, 5.2: direct descriptors need more of the kernel than io_uring alone, so there is no fallback.
#[test]
fn direct_descriptors_without_io_uring_are_an_error() {
    let arguments = "-D -f -qq -o /dev/null -e trace=io_uring_setup -e inject=io_uring_setup:error=EPERM";
    let mut command = Tool::new("strace", arguments).arg(binary().get_program()).into_command();
    let outcome = command.args(["serve", "--listen", "127.0.0.1:0", "--direct-descriptors"]).output();
    let outcome = outcome.expect("strace runs; install it (`cargo xtask test` does)");
    let stderr_text = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
    assert!(
        stderr_text.starts_with("stilling: direct descriptors are not available here: Operation not perm"),
        "{stderr_text}"
    );
}
