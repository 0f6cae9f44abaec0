//! System calls of the I/O threads under mixed load, traced by strace: none blocks except the one wait of a turn.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tempfile::TempDir;

use crate::nats::{RawNatsClient, address};
use crate::support::{DriverUnderTest, ServerUnderTest, Tool, binary};

on_both_drivers!(an_io_thread_makes_no_blocking_call);

/// Calls that never block: they change tables of the kernel or read a value.
const NEVER_BLOCK: [&str; 23] = [
    "brk",
    "clock_gettime",
    "close",
    "epoll_ctl",
    "eventfd2",
    "fcntl",
    "getpeername",
    "getpid",
    "getrandom",
    "getsockname",
    "getsockopt",
    "gettid",
    "ioctl",
    "io_uring_register",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "rt_sigprocmask",
    "sched_yield",
    "setsockopt",
    "shutdown",
];

/// glibc reads this setting once per process, when a thread other than the first shrinks its heap for the first time:
/// here the shard that frees the text of an answer to `GET /metrics`, which leaves more than 128 KiB free at the end of
/// its heap (`heap_trim`, `shrink_heap`, `check_may_shrink_heap`, which keeps the answer). The kernel answers from
/// memory, and no request, message or datagram frees so much.
const HEAP_SETTING: &str = "/proc/sys/vm/overcommit_memory";

const WAITS: [&str; 3] = ["io_uring_enter", "epoll_wait", "epoll_pwait2"];

/// Calls on descriptors that return at once if the descriptor is nonblocking, or the call's flags say so.
const ON_DESCRIPTORS: [&str; 12] = [
    "accept4", "read", "readv", "recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "write",
    "writev", "ppoll",
];

/// Rows 0.9, 0.13 and 4.2: between its first wait and the end of the server, an I/O thread reads, writes and accepts on
/// nonblocking descriptors only, waits for events in one place, and takes no lock that another thread holds. Other
/// threads access files, and all threads exist from the start.
fn an_io_thread_makes_no_blocking_call(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let server = traced(driver, &folder, &trace);
    let nonblocking = descriptors(&server);
    load(&server);
    let open = descriptors(&server);
    // An io_uring reads and writes its sockets itself; all other descriptors are like those of the poll driver.
    if driver == DriverUnderTest::Poll {
        for (descriptor, (kind, is_nonblocking)) in nonblocking.iter().chain(&open) {
            assert!(*is_nonblocking, "{descriptor} {kind} is blocking");
        }
    }
    server.finish();

    let text = std::fs::read_to_string(&trace).expect("strace wrote its trace");
    let (mut waits, mut blocking, mut counts) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    let mut of_heap = BTreeMap::new();
    // The process's first thread is an I/O thread. Other threads have its name until they have set their own.
    let first = text.lines().next().and_then(number).expect("the trace begins with the first thread");
    for line in text.lines().take_while(|line| !line.contains("--- SIGTERM")) {
        let Some((thread, call, arguments)) = parts(line) else { continue };
        assert!(
            waits.len() < 2 || !call.starts_with("clone"),
            "a thread is started behind the start: {line}"
        );
        if !(thread.starts_with("shard-") || number(line) == Some(first)) {
            continue;
        }
        if WAITS.contains(&call) {
            *waits.entry(thread).or_insert(0) += 1;
        } else if waits.contains_key(thread) {
            *counts.entry(call).or_insert(0) += 1;
            let is_wake = call == "futex" && arguments.contains("FUTEX_WAKE");
            let is_nonblocking = ON_DESCRIPTORS.contains(&call)
                && (driver == DriverUnderTest::Poll
                    || arguments.contains("MSG_DONTWAIT")
                    || is_eventfd(call, arguments));
            if arguments.contains(HEAP_SETTING) {
                *of_heap.entry(call).or_insert(0) += 1;
            } else if !(is_wake || is_nonblocking || NEVER_BLOCK.contains(&call)) {
                blocking.push(line);
            }
        }
    }
    assert!(waits.len() == 2 && waits.values().all(|count| *count > 10), "both threads had work: {waits:?}");
    assert_eq!(blocking, [""; 0], "calls that may block");
    assert!(of_heap.values().all(|count| *count == 1), "the heap setting is read once: {of_heap:?}");
    assert!(
        driver != DriverUnderTest::Poll || counts.contains_key("accept4"),
        "the load was traced: {counts:?}"
    );
}

/// A write of a counter to an eventfd blocks at a count of 2^64 - 2 only (eventfd(2)).
fn is_eventfd(call: &str, arguments: &str) -> bool {
    call == "write" && arguments.contains("<anon_inode:[eventfd]>")
}

fn number(line: &str) -> Option<u32> {
    line.split_once('<')?.0.trim().parse().ok()
}

/// The thread's name, the call and its arguments of a line such as `7<shard-0> read(5<socket:[9]>, …`.
fn parts(line: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = line.split_once('(')?;
    let (thread, call) = before.rsplit_once(' ')?;
    let (_, name) = thread.trim_end().split_once('<')?;
    // A call interrupted by another thread appears again when it returns: `<... read resumed>`.
    Some((name.trim_end_matches('>'), call, rest)).filter(|_| !line.contains(" resumed>"))
}

fn traced(driver: DriverUnderTest, folder: &TempDir, trace: &Path) -> ServerUnderTest {
    let tool = Tool::new("strace", "-D -f -q -y -Y -s 0").arg("-o").arg(trace).arg(binary().get_program());
    let mut command = tool.into_command();
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--nats",
        "127.0.0.1:0",
        "--syslog-tcp",
        "127.0.0.1:0",
    ]);
    command.args([
        "--accept-threads",
        "2",
        "--stream",
        "events=events.>",
        "--stream",
        "memory=memory.>:memory",
    ]);
    command.args(driver.options()).arg("--data").arg(folder.path().join("streams"));
    ServerUnderTest::spawn(command)
}

/// Fast and slow requests, status pages, and messages that are stored on disk, followed and read back.
fn load(server: &ServerUnderTest) {
    for _ in 0..20 {
        let mut peer = server.connect();
        for path in ["/test/fast", "/test/slow", "/status", "/metrics", "/readyz", "/no/such/path"] {
            let answer = peer.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(answer.status, if path.starts_with("/no") { 404 } else { 200 }, "{path}");
        }
        let answer =
            peer.ask("POST /publish/events.http HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(answer.status, 200);
    }
    let mut client = RawNatsClient::connect(address(server));
    client.send("SUB answer 1\r\nSUB events.> 2\r\n");
    for number in 0..50 {
        client.send(format!("PUB events.{number} answer 1\r\nx\r\nPUB memory.a 1\r\ny\r\n"));
    }
    // Fifty messages and fifty acknowledgements.
    client.lines(200);
    let question = r#"{"seq":1}"#;
    client.send(format!("PUB $JS.API.STREAM.MSG.GET.events answer {}\r\n{question}\r\n", question.len()));
    client.lines(2);
}

/// The sockets and event counters of a server: their kind, and whether they are nonblocking (`O_NONBLOCK` in
/// /proc/PID/fdinfo, proc(5)).
fn descriptors(server: &ServerUnderTest) -> BTreeMap<u32, (String, bool)> {
    let process = Path::new("/proc").join(server.pid().to_string());
    let entries = std::fs::read_dir(process.join("fd")).expect("the server's descriptors");
    let mut found = BTreeMap::new();
    for entry in entries.flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(kind) = std::fs::read_link(entry.path()) else { continue };
        let kind = kind.to_string_lossy().into_owned();
        let is_waited_for = ["socket:", "anon_inode:[eventfd]"].iter().any(|start| kind.starts_with(start));
        let Ok(info) = std::fs::read_to_string(process.join("fdinfo").join(number.to_string())) else {
            continue;
        };
        if is_waited_for {
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("its flags");
            let flags = u32::from_str_radix(flags.trim(), 8).expect("an octal number");
            found.insert(number, (kind, flags & 0o4000 != 0));
        }
    }
    let kinds: BTreeSet<_> = found.values().map(|(kind, _)| kind.split(':').next()).collect();
    assert!(!kinds.is_empty(), "a server has sockets");
    found
}
