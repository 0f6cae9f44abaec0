//! Life cycle of the processes beside the server's own: replaced, drained with it, ended with it in every case.

use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{before, before_fakes, fake, get, lives, number, ready};
use crate::support::{DriverUnderTest, ServerUnderTest, binary, eventually};

on_both_drivers! {
    a_process_is_replaced_after_its_requests_without_effect_on_clients,
    a_process_that_uses_too_much_memory_is_replaced_without_effect_on_clients,
    a_drain_answers_what_is_under_way_and_then_ends_the_processes,
    a_server_that_is_killed_takes_its_processes_with_it,
    what_a_killed_server_leaves_behind_is_removed,
    a_stopped_guard_holds_up_no_end,
    a_process_that_will_not_end_holds_up_the_end_no_longer_than_allowed,
    a_death_is_noticed_where_the_server_inherits_that_children_are_ignored,
}

fn is_gone(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

fn is_stopped(server: &ServerUnderTest) -> bool {
    let stat = std::fs::read_to_string(server.proc("stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
}

/// Row 1.24: the guard of the processes, or else the next server, removes the folder with the sockets; folders of
/// running servers stay.
fn what_a_killed_server_leaves_behind_is_removed(driver: DriverUnderTest) {
    let runtime = tempfile::tempdir().expect("a folder");
    let start = || {
        let mut command = binary();
        command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--app", &fake()]);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        ServerUnderTest::spawn(command)
    };
    let folders = || std::fs::read_dir(runtime.path()).expect("our folder").count();
    let (living, killed) = (start(), start());
    assert_eq!(folders(), 2);
    assert_eq!(killed.connect().ask(get("/pid")).status, 200);
    killed.signal(Signal::KILL);
    killed.wait();
    eventually("its folder is removed", || (folders() == 1).then_some(()));
    // The guard may be killed together with the server. A stopped server does not replace it.
    let killed = start();
    let worker = number(&mut killed.connect(), "/pid");
    let group = guard(&killed);
    killed.signal(Signal::STOP);
    eventually("the server has stopped", || is_stopped(&killed).then_some(()));
    kill_process(group, Signal::KILL).expect("it lives");
    killed.signal(Signal::KILL);
    killed.wait();
    assert_eq!(folders(), 2);
    // Without a guard nothing ends the process, which would outlive the test.
    assert!(!is_gone(worker));
    kill_process_group(Pid::from_raw(worker).expect("a number"), Signal::KILL).expect("it lives");
    let next = start();
    assert_eq!(folders(), 2);
    for server in [living, next] {
        assert_eq!(server.connect().ask(get("/pid")).status, 200);
        server.finish();
    }
    assert_eq!(folders(), 0);
}

/// The shell that ends the processes if the server is killed.
fn guard(server: &ServerUnderTest) -> Pid {
    let is_guard = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("while read"))
    };
    let pid = eventually("the guard is started", || {
        let tasks = std::fs::read_dir(server.proc("task")).expect("the server runs");
        let children =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        let pids: Vec<i32> = children
            .flat_map(|pids| pids.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids.into_iter().find(is_guard)
    });
    Pid::from_raw(pid).expect("a number")
}

/// Row 4.17: the server ends although the guard of its processes is stopped, and so does the guard.
fn a_stopped_guard_holds_up_no_end(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "");
    let guard = guard(&server);
    kill_process(guard, Signal::STOP).expect("it lives");
    drop(watcher);
    server.finish();
    assert!(is_gone(guard.as_raw_nonzero().get()));
}

/// Row 1.24: with SIGCHLD ignored the kernel keeps no zombie.
fn a_death_is_noticed_where_the_server_inherits_that_children_are_ignored(driver: DriverUnderTest) {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]).arg(binary().get_program());
    command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--app", &fake()]);
    let server = ServerUnderTest::spawn(command);
    let mut watcher = server.watch();
    watcher.until("the process is ready", |metrics| ready(metrics) == 1);
    assert_eq!(server.connect().ask(get("/die")).status, 502);
    watcher.until("another one is", |metrics| lives(metrics, "started") == 2 && ready(metrics) == 1);
    assert_eq!(server.connect().ask(get("/pid")).status, 200);
    drop(watcher);
    server.finish();
}

fn a_process_is_replaced_after_its_requests_without_effect_on_clients(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--processes 2 --app-requests-max 10");
    let mut peers: Vec<_> = (0..4).map(|_| server.connect()).collect();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..15 {
        for peer in &mut peers {
            peer.send(get("/pid"));
        }
        for peer in &mut peers {
            let answer = peer.answer();
            assert_eq!(answer.status, 200);
            seen.insert(answer.into_text());
        }
    }
    let metrics = watcher.until("one has been replaced", |metrics| lives(metrics, "recycled") >= 1);
    eventually("the new one answers", || seen.insert(peers[0].ask(get("/pid")).into_text()).then_some(()));
    assert_eq!((lives(&metrics, "exited"), lives(&metrics, "killed")), (0, 0));
    drop((peers, watcher));
    server.finish();
}

/// Row 1.24: no request fails; the request that the process serves when it is found too large is answered.
fn a_process_that_uses_too_much_memory_is_replaced_without_effect_on_clients(driver: DriverUnderTest) {
    let options = "--processes 2 --app-concurrency 2 --app-memory-max 96MiB";
    let (server, mut watcher) = before_fakes(driver, options);
    let large = server.connect().ask(get("/grow/128")).into_text();
    let mut peers: Vec<_> = (0..4).map(|_| server.connect()).collect();
    eventually("the large one is replaced", || {
        peers.iter_mut().for_each(|peer| peer.send(get("/sleep/10")));
        let answers: Vec<_> = peers.iter_mut().map(|peer| peer.answer()).collect();
        assert!(answers.iter().all(|answer| answer.status == 200));
        answers.into_iter().all(|answer| answer.into_text() != large).then_some(())
    });
    let metrics = watcher.until("the new one is ready", |metrics| {
        lives(metrics, "recycled_memory") == 1 && lives(metrics, "started") == 3 && ready(metrics) == 2
    });
    let ends = ["recycled", "exited", "killed"].map(|event| lives(&metrics, event));
    assert_eq!(ends, [0, 0, 0]);
    drop((peers, watcher));
    server.finish();
}

/// Row 4.17: SIGTERM lets everything finish.
fn a_drain_answers_what_is_under_way_and_then_ends_the_processes(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--processes 2");
    let pid = number(&mut server.connect(), "/pid");
    let socket = std::fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
    let socket = String::from_utf8(socket).expect("a path is text");
    let socket =
        socket.split('\0').find(|word| word.ends_with(".sock")).expect("the socket is named").to_owned();
    assert!(Path::new(&socket).exists());
    let mut peer = server.connect();
    peer.send(get("/sleep/300"));
    watcher.until("it is asked", |metrics| metrics.value("jobs_running") == 1);
    drop(watcher);
    server.signal(Signal::TERM);
    let answer = peer.answer();
    assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
    drop(peer);
    let metrics = server.expect_clean_end();
    assert_eq!((lives(&metrics, "exited"), lives(&metrics, "killed")), (0, 0));
    assert!(is_gone(pid), "no process outlives the server");
    assert!(!Path::new(&socket).parent().expect("a folder").exists(), "nothing is left behind");
}

/// SIGKILL leaves the server no time for cleanup.
fn a_server_that_is_killed_takes_its_processes_with_it(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "--processes 2 --app-concurrency 2");
    let mut pids = std::collections::BTreeSet::new();
    let mut peers: Vec<_> = (0..4).map(|_| server.connect()).collect();
    while pids.len() < 2 {
        for peer in &mut peers {
            peer.send(get("/sleep/5"));
        }
        for peer in &mut peers {
            pids.insert(peer.answer().text().parse::<i32>().expect("a number"));
        }
    }
    server.signal(Signal::KILL);
    for pid in pids {
        eventually("it is gone, too", || is_gone(pid).then_some(()));
    }
    drop((peers, watcher));
}

fn a_process_that_will_not_end_holds_up_the_end_no_longer_than_allowed(driver: DriverUnderTest) {
    let script = "trap '' TERM; python3 -I -S -c 'import os, socket, sys\n\
        s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n\
        while True: s.accept()' {socket}; while :; do sleep 1000; done";
    let server = before(driver, script, "--app-stop-timeout 0.1");
    let mut watcher = server.watch();
    watcher.until("it is ready", |metrics| super::ready(metrics) == 1);
    drop(watcher);
    assert_eq!(lives(&server.finish(), "killed"), 1);

    // A second signal ends the wait.
    let server = before(driver, script, "--app-stop-timeout 3600");
    let mut watcher = server.watch();
    watcher.until("it is ready", |metrics| super::ready(metrics) == 1);
    drop(watcher);
    server.signal(Signal::TERM);
    let address = server.address();
    eventually("it has begun to end", || std::net::TcpStream::connect(address).is_err().then_some(()));
    let pid = server.pid();
    kill_process(Pid::from_raw(pid.as_raw_nonzero().get()).expect("a number"), Signal::TERM)
        .expect("it lives");
    assert_eq!(lives(&server.expect_clean_end(), "killed"), 1);
}
