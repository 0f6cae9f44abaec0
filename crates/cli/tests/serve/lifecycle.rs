//! From the first connection to the last: threads, listeners, early clients, drain, the background.

use std::io::Read;
use std::net::SocketAddr;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, binary, eventually};

on_both_drivers!(
    threads_are_those_of_the_pool_and_the_listen_watch,
    the_kernel_spreads_connections_over_the_shards,
    a_fresh_server_is_small_whatever_its_capacity,
    a_client_that_comes_early_is_served,
    a_signal_at_the_start_reaches_every_shard,
    a_drain_finishes_what_has_begun,
    a_second_signal_cuts_the_drain_short,
    a_drain_ends_at_its_deadline,
    a_drain_ends_for_connections_that_waited_for_a_slot,
    a_drain_answers_connections_in_the_backlog,
    several_addresses_are_served_side_by_side,
    both_protocol_versions_share_a_port,
    a_daemon_leaves_its_parent_and_serves,
);

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";
const SLOW: &str = "GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n";
const LIVE: &str = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";

/// Rows 4.13, 3.9: A + W − 1 new threads, and the first one, which accepts too; beside them only the watch of listeners.
fn threads_are_those_of_the_pool_and_the_listen_watch(driver: DriverUnderTest) {
    for (shards, workers) in [(1, 0), (1, 1), (2, 3), (3, 10)] {
        let server = ServerUnderTest::start(driver, &format!("-A {shards} -w {workers}"));
        // Any shard answers, so all threads have been started.
        let mut watcher = server.watch();
        let names = || {
            let tasks = std::fs::read_dir(server.proc("task")).expect("the server runs");
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
            let mut names: Vec<String> = tasks.filter_map(|task| name(task.ok()?)).collect();
            names.sort();
            names
        };
        let mut expected: Vec<String> = (1..shards).map(|number| format!("shard-{number}\n")).collect();
        expected.extend((0..workers).map(|number| format!("worker-{number}\n")));
        expected.extend(["listen-watch\n".to_owned(), "stilling\n".to_owned()]);
        expected.sort();
        eventually("all threads have their names", || (names() == expected).then_some(()));
        assert_eq!(watcher.fetch().value("worker_threads"), workers);
        drop(watcher);
        server.finish();
    }
}

/// Row 4.7: slots for connections are reserved and not touched: a server with a capacity of a million connections per
/// shard starts with less than 20 MB of resident memory, like one with a small capacity.
fn a_fresh_server_is_small_whatever_its_capacity(driver: DriverUnderTest) {
    let resident = |options: &str| {
        let data = tempfile::tempdir().expect("a folder");
        let options =
            format!("{options} --nats 127.0.0.1:0 --data {}", data.path().join("streams").display());
        let server = ServerUnderTest::start(driver, &options);
        let mut watcher = server.watch();
        watcher.fetch();
        let status = std::fs::read_to_string(server.proc("status")).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of proc(5)");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
        drop(watcher);
        server.finish();
        kibibytes * 1024
    };
    let (few, many) = (resident("-C 100"), resident("-C 1000000"));
    assert!(few < 20_000_000 && many < 20_000_000, "{few} and {many} bytes");
    assert!(many < few + 1_000_000, "{few} and {many} bytes");
}

/// Row 4.1: each shard has a listener of its own, and none is preferred.
fn the_kernel_spreads_connections_over_the_shards(driver: DriverUnderTest) {
    const SHARDS: u64 = 4;
    const CONNECTIONS: u64 = 8000;
    let server = ServerUnderTest::start(driver, &format!("-A {SHARDS}"));
    for _ in 0..CONNECTIONS {
        let mut peer = server.connect();
        peer.send("GET /test/fast HTTP/1.0\r\n\r\n");
        assert_eq!(peer.rest().len(), 57);
    }
    let metrics = server.finish();
    let shard = |number| metrics.value(&format!("accepted_total{{shard=\"{number}\"}}"));
    let accepted: Vec<u64> = (0..SHARDS).map(shard).collect();
    assert_eq!(accepted.iter().sum::<u64>(), CONNECTIONS);
    let (most, least) = (accepted.iter().max().unwrap(), accepted.iter().min().unwrap());
    assert!(most * 10 < least * 13, "{accepted:?}");
}

/// Row 4.39: clients that connect before the event loop turns are served when it does.
fn a_client_that_comes_early_is_served(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1 --queue-target off");
    server.signal(Signal::STOP);
    let mut early: Vec<TestPeer> = (0..100).map(|_| server.connect()).collect();
    for (at, peer) in early.iter_mut().enumerate() {
        match at % 4 {
            0 => peer.send(FAST),
            1 => peer.send(SLOW.to_owned() + FAST),
            2 => peer.send(&FAST[..20]),
            _ => {}
        }
    }
    server.signal(Signal::CONT);
    for (at, peer) in early.iter_mut().enumerate() {
        match at % 4 {
            0 => {}
            1 => assert_eq!(peer.answer().status, 200),
            2 => peer.send(&FAST[20..]),
            _ => peer.send(FAST),
        }
        assert_eq!(peer.answer().status, 200);
    }
    drop(early);
    server.finish();
}

/// Row 4.37: the first answer proves that one shard turns; the others may not turn yet.
fn a_signal_at_the_start_reaches_every_shard(driver: DriverUnderTest) {
    for _ in 0..30 {
        let server = ServerUnderTest::start(driver, "-A 4");
        let mut peer = server.connect();
        assert_eq!(peer.ask(FAST).status, 200);
        drop(peer);
        server.finish();
    }
}

/// Row 4.37, first half: idle connections end, requests in flight are answered with `Connection: close`, readiness is
/// withdrawn, new connections are refused, and the exit is a success.
fn a_drain_finishes_what_has_begun(driver: DriverUnderTest) {
    for signal in [Signal::TERM, Signal::INT] {
        let server = ServerUnderTest::start(driver, "-w 1 -D 300");
        let mut watcher = server.watch();
        let mut idle = server.connect();
        assert_eq!(idle.ask(FAST).status, 200);
        let mut half = server.connect();
        half.send("GET /readyz HTTP/1.1\r\nHost: a\r\n");
        let mut slow = server.connect();
        slow.send(SLOW);
        watcher.until("the job runs", |metrics| metrics.value("jobs_running") == 1);
        server.signal(signal);
        assert_eq!(idle.rest(), b"");
        half.send("\r\n");
        let answer = half.answer();
        assert_eq!((answer.status, answer.field("Connection")), (503, Some("close")));
        assert_eq!(half.rest(), b"");
        let answer = slow.answer();
        assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
        assert_eq!(slow.rest(), b"");
        let address = server.address();
        let metrics = server.expect_clean_end();
        // The idle one and the watcher.
        assert_eq!((metrics.closed("drained"), metrics.closed("done")), (2, 2));
        assert!(TestPeer::try_connect(address).is_err(), "somebody listens still");
    }
}

/// Rows 4.9, 4.37: connections that arrived before the end are answered, also those in the backlog.
fn a_drain_answers_connections_in_the_backlog(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 1 -C 3 -w 1 -D 300");
    let mut watcher = server.watch();
    let mut inside: Vec<TestPeer> = (0..2).map(|_| server.connect()).collect();
    for peer in &mut inside {
        assert_eq!(peer.ask(FAST).status, 200);
    }
    inside[0].send(SLOW);
    let metrics = watcher.until("the job runs", |metrics| metrics.value("jobs_running") == 1);
    assert_eq!(metrics.value("accept_pauses_total"), 1);
    let mut waiting: Vec<TestPeer> = (0..20).map(|_| server.connect()).collect();
    for peer in &mut waiting {
        peer.send(FAST);
    }
    server.signal(Signal::TERM);
    assert_eq!(inside[0].answer().status, 200);
    for mut peer in waiting {
        let answer = peer.answer();
        assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
    }
    assert_eq!(server.expect_clean_end().value("refused_total"), 0);
}

/// Row 4.37: a second signal ends the drain at once.
fn a_second_signal_cuts_the_drain_short(driver: DriverUnderTest) {
    for (first, second) in
        [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::INT), (Signal::TERM, Signal::INT)]
    {
        let server = ServerUnderTest::start(driver, "-w 1 -D 60000");
        let mut watcher = server.watch();
        let mut slow = server.connect();
        slow.send(SLOW);
        watcher.until("the job runs", |metrics| metrics.value("jobs_running") == 1);
        let mut idle = server.connect();
        assert_eq!(idle.ask(FAST).status, 200);
        server.signal(first);
        // The drain has begun.
        assert_eq!(idle.rest(), b"");
        assert!(slow.is_silent());
        server.signal(second);
        assert_eq!(slow.read_until_closed(), b"");
        assert_eq!(server.expect_clean_end().closed("drain_timeout"), 1);
    }
}

/// Row 4.37: the drain ends at its timeout, whatever the clients do.
fn a_drain_ends_at_its_deadline(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1 -D 60000 --drain-timeout 0.2");
    let mut watcher = server.watch();
    let mut slow = server.connect();
    slow.send(SLOW);
    let mut half = server.connect();
    half.send(&FAST[..30]);
    watcher.until("the job runs", |metrics| metrics.value("jobs_running") == 1);
    watcher.until("half a head is in", |metrics| metrics.value("input_held_bytes") > 0);
    assert_eq!(server.finish().closed("drain_timeout"), 2);
    assert_eq!((slow.read_until_closed(), half.read_until_closed()), (Vec::new(), Vec::new()));
}

/// Rows 4.9, 4.37: connections that get a slot during the forced end are closed, too. The jobs would take ten minutes.
fn a_drain_ends_for_connections_that_waited_for_a_slot(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(
        driver,
        "-A 1 -C 3 -w 1 -D 600000 --work-timeout 3600 --queue-timeout 3600 --drain-timeout 0.3",
    );
    let mut watcher = server.watch();
    let mut crowd: Vec<TestPeer> = (0..8).map(|_| server.connect()).collect();
    for peer in &mut crowd {
        peer.send(SLOW);
    }
    watcher.until("two are inside", |metrics| {
        metrics.value("jobs_running") + metrics.value("jobs_queued") == 2
            && metrics.value("accept_pauses_total") > 0
    });
    let metrics = server.finish();
    assert!(metrics.closed("drain_timeout") >= 2, "{metrics:?}");
    assert_eq!(metrics.jobs("done"), 0);
    for mut peer in crowd {
        assert_eq!(peer.read_until_closed(), b"");
    }
}

/// Row 4.19: `--listen` may be repeated, with both versions of the protocol; port 0 takes a free one.
fn several_addresses_are_served_side_by_side(driver: DriverUnderTest) {
    let server =
        ServerUnderTest::listening(driver, "127.0.0.1:0", "--listen [::1]:0 --listen 127.0.0.2:0 -A 3");
    let addresses = server.addresses();
    assert_eq!(addresses.len(), 3);
    for address in addresses {
        assert_ne!(address.port(), 0);
        for _ in 0..20 {
            assert_eq!(TestPeer::connect(address).ask(FAST).status, 200, "{address}");
        }
    }
    assert_eq!(server.finish().value("accepted_total"), 60);
}

/// Row 4.19: `[::]` serves IPv4 as well.
fn both_protocol_versions_share_a_port(driver: DriverUnderTest) {
    let server = ServerUnderTest::listening(driver, "[::]:0", "");
    let port = server.address().port();
    for address in [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::new("::1".parse().unwrap(), port)] {
        assert_eq!(TestPeer::connect(address).ask(LIVE).text(), "alive\n", "{address}");
    }
    server.finish();
}

/// The process that listens on `address`, found by the socket's inode like in `ss`.
fn listener_of(address: SocketAddr) -> Option<Pid> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let port = format!("0100007F:{:04X}", address.port());
    let is_ours = |fields: &Vec<&str>| fields[1] == port && fields[3] == "0A";
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect());
    let socket = format!("socket:[{}]", fields.into_iter().find(is_ours)?[9]);
    let processes = std::fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let holds = |number: &i32| {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{number}/fd")) else { return false };
        let links = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok());
        links.into_iter().any(|link| link.to_str() == Some(&socket))
    };
    Pid::from_raw(numbers.find(holds)?)
}

/// Row 4.30: the starting process exits with success, its output ends, and another process serves.
fn a_daemon_leaves_its_parent_and_serves(driver: DriverUnderTest) {
    let mut parent = binary()
        .args(["serve", "--listen", "127.0.0.1:0", "--daemonize"])
        .args(driver.options())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut output_text = String::new();
    parent
        .stdout
        .take()
        .expect("it is piped")
        .read_to_string(&mut output_text)
        .expect("the banner, then the end");
    assert!(parent.wait().expect("the parent ends").success());
    let address = output_text.lines().find_map(|line| line.strip_prefix("listening http://"));
    let address: SocketAddr = address.expect("the banner tells an address").parse().expect("an address");
    let daemon = listener_of(address).expect("somebody listens");
    assert_ne!(daemon.as_raw_pid().cast_unsigned(), parent.id());
    let mut peer = TestPeer::connect(address);
    assert_eq!(peer.ask(FAST).status, 200);
    assert_eq!(peer.ask(SLOW).status, 200);
    kill_process(daemon, Signal::TERM).expect("the daemon takes signals");
    assert_eq!(peer.rest(), b"");
    eventually("the daemon is gone", || listener_of(address).is_none().then_some(()));
}
