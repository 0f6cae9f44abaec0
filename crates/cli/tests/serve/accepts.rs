//! System calls of the I/O thread per connection and first message, counted by strace.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::Signal;

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, Tool, binary};

on_both_drivers!(an_accept_and_its_first_message_share_system_calls);

const BURST: usize = 64;

const REQUEST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// The wait of a turn; a turn for timers costs one more.
const WAITS: [&str; 2] = ["epoll_wait", "epoll_pwait2"];

/// Row 0.10: a TCP connection with a message that arrives before the accept. `poll` accepts it, receives, sends and
/// closes: four calls, without registration, checks or waits in between. `uring` accepts, receives, sends and closes
/// through the ring: a burst costs fewer enters than it has connections.
fn an_accept_and_its_first_message_share_system_calls(driver: DriverUnderTest) {
    for connections in [1, BURST] {
        let calls = calls_of(driver, connections);
        let (waits, others): (Vec<_>, Vec<_>) =
            calls.iter().partition(|(call, _)| WAITS.contains(&call.as_str()));
        let sum = |calls: &[(&String, &usize)]| calls.iter().map(|(_, count)| **count).sum::<usize>();
        let shown = format!("{connections} connections: {calls:?}");
        match driver {
            DriverUnderTest::Poll => {
                let count = |names: &[&str]| names.iter().filter_map(|name| calls.get(*name)).sum::<usize>();
                assert_eq!(count(&["recvfrom", "recvmsg", "read", "readv"]), connections, "{shown}");
                assert_eq!(count(&["sendto", "sendmsg", "write", "writev"]), connections, "{shown}");
                assert_eq!(count(&["close"]), connections, "{shown}");
                assert_eq!(count(&["setsockopt", "shutdown"]), 0, "{shown}");
                // Only the listener is registered, and once per full turn.
                assert!(count(&["epoll_ctl"]) <= connections / 32, "{shown}");
                // A turn that accepts also checks the listener, and whether more connections wait, at powers of two.
                assert!(sum(&others) <= 4 * connections + 5 + connections / 8, "{shown}");
                assert!(sum(&waits) <= 8 + connections / 8, "{shown}");
            }
            DriverUnderTest::Uring | DriverUnderTest::UringDirect => {
                assert_eq!(sum(&waits), 0, "{shown}");
                assert!(sum(&others) <= 8 + connections / 8, "{shown}");
            }
        }
    }
}

/// System calls of the I/O thread while it serves connections that all arrive at once with their requests.
fn calls_of(driver: DriverUnderTest, connections: usize) -> BTreeMap<String, usize> {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let server = traced(driver, &trace);
    // Completes one-time work; the timers of this connection end with it.
    let warm = server.connect().ask(REQUEST);
    assert_eq!(warm.status, 200);
    server.signal(Signal::STOP);
    server.wait_until_stopped();
    let mut peers: Vec<TestPeer> = (0..connections).map(|_| server.connect()).collect();
    for peer in &mut peers {
        peer.send(REQUEST);
    }
    server.signal(Signal::CONT);
    for peer in &mut peers {
        assert_eq!(peer.answer().status, 200);
        assert_eq!(peer.rest(), b"");
    }
    server.finish();
    let text = std::fs::read_to_string(&trace).expect("strace wrote its trace");
    let burst = text.lines().skip_while(|line| !line.contains("--- SIGCONT"));
    let burst = burst.take_while(|line| !line.contains("--- SIGTERM"));
    let mut calls = BTreeMap::new();
    for line in burst.filter(|line| !line.contains(" resumed>") && !line.contains("restart_syscall(")) {
        let Some((before, _)) = line.split_once('(') else { continue };
        let Some((thread, call)) = before.rsplit_once(' ') else { continue };
        // With debug assertions std reads a descriptor's flags before it closes it.
        if call == "fcntl" {
            continue;
        }
        if thread.contains("<shard-") || thread.contains("<stilling>") {
            *calls.entry(call.to_owned()).or_insert(0) += 1;
        }
    }
    calls
}

fn traced(driver: DriverUnderTest, trace: &Path) -> ServerUnderTest {
    let tool = Tool::new("strace", "-D -f -q -Y -s 0").arg("-o").arg(trace).arg(binary().get_program());
    let mut command = tool.into_command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--accept-threads", "1"]).args(driver.options());
    ServerUnderTest::spawn(command)
}
