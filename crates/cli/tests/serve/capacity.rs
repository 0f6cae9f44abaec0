//! More connections than the capacity.

use std::thread;

use rustix::process::{Resource, Rlimit, Signal, prlimit};

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, Tool, binary, eventually};

on_every_driver!(a_connection_at_capacity_waits_for_a_slot, a_crowd_passes_through_few_places);

/// Effects of the limit of open files on ordinary connections; see `direct_descriptors.rs` for direct ones.
mod open_files {
    use super::{
        a_connection_without_a_descriptor_at_the_end_is_counted, few_descriptors_mean_less_capacity,
        running_out_of_descriptors_is_survived,
    };

    on_both_drivers!(
        few_descriptors_mean_less_capacity,
        running_out_of_descriptors_is_survived,
        a_connection_without_a_descriptor_at_the_end_is_counted,
    );
}

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";
const FAST_CLOSE: &str = "GET /test/fast HTTP/1.0\r\n\r\n";

/// Row 4.9: connections beyond the capacity wait in the backlog; a freed slot goes to the next one.
fn a_connection_at_capacity_waits_for_a_slot(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 1 -C 4");
    let mut watcher = server.watch();
    let mut inside: Vec<TestPeer> = (0..3).map(|_| server.connect()).collect();
    for peer in &mut inside {
        assert_eq!(peer.ask(FAST).status, 200);
    }
    assert_eq!(watcher.fetch().value("accept_pauses_total"), 1);
    let mut fifth = server.connect();
    fifth.send(FAST);
    for _ in 0..100 {
        assert_eq!(inside[0].ask(FAST).status, 200);
        assert_eq!(watcher.fetch().value("connections"), 4);
        assert!(fifth.is_silent());
    }
    inside.pop();
    assert_eq!(fifth.answer().status, 200);
    drop((inside, fifth));
    let metrics = watcher.until_alone();
    assert_eq!(metrics.value("connections_max"), 4);
    drop(watcher);
    server.finish();
}

/// Row 4.9: every connection in the backlog is served.
fn a_crowd_passes_through_few_places(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 1 -C 2 -w 2 -D 1");
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for path in ["fast", "slow"].repeat(10) {
                    let mut peer = server.connect();
                    peer.send(format!("GET /test/{path} HTTP/1.0\r\n\r\n"));
                    assert_eq!(peer.rest().len(), 57);
                }
            });
        }
    });
    let metrics = server.finish();
    assert_eq!((metrics.value("accepted_total"), metrics.closed("done")), (400, 400));
    assert!(metrics.value("connections_max") <= 2 && metrics.value("accept_pauses_total") > 0, "{metrics:?}");
}

fn limited(descriptors: u32, driver: DriverUnderTest) -> std::process::Command {
    let limit = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
    let mut command = Tool::new("bash", "-c").arg(limit).arg(binary().get_program()).into_command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--accept-threads", "1"]).args(driver.options());
    command
}

/// Row 3.27: the server reads the limit of open files at the start, reports it, and keeps it.
fn few_descriptors_mean_less_capacity(driver: DriverUnderTest) {
    let server = ServerUnderTest::spawn(limited(100, driver));
    let banner = server.banner_line("shards 1, worker threads 1, capacity ");
    let capacity = banner.strip_suffix(" connections per shard (limited by open files)");
    let capacity: usize =
        capacity.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{banner}"));
    assert!((10..100).contains(&capacity), "{banner}");
    let crowd: Vec<TestPeer> = (0..100).map(|_| server.connect()).collect();
    thread::scope(|scope| {
        for mut peer in crowd {
            scope.spawn(move || {
                peer.send(FAST_CLOSE);
                assert_eq!(peer.rest().len(), 57);
            });
        }
    });
    let metrics = server.finish();
    assert_eq!((metrics.value("accept_errors_total"), metrics.value("refused_total")), (0, 0));
    assert!(metrics.value("connections_max") <= capacity as u64);

    let outcome = limited(40, driver).output().expect("bash runs");
    assert_eq!(outcome.status.code(), Some(1));
    let stderr_text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(
        stderr_text.contains("the limit of 40 open files leaves no room")
            && stderr_text.contains("ulimit -n"),
        "{stderr_text}"
    );
}

/// Rows 3.27, 4.37: connections that wait at the end without a descriptor are rejected and counted.
fn a_connection_without_a_descriptor_at_the_end_is_counted(driver: DriverUnderTest) {
    const CROWD: usize = 150;
    let server = ServerUnderTest::spawn(limited(100, driver));
    let banner = server.banner_line("shards 1, worker threads 1, capacity ");
    let capacity = banner.split(' ').next().and_then(|number| number.parse().ok());
    let capacity: usize = capacity.unwrap_or_else(|| panic!("{banner}"));
    let mut inside: Vec<TestPeer> = (0..capacity).map(|_| server.connect()).collect();
    for peer in &mut inside {
        assert_eq!(peer.ask(FAST).status, 200);
    }
    let mut crowd: Vec<TestPeer> = (0..CROWD).map(|_| server.connect()).collect();
    for peer in &mut crowd {
        peer.send(FAST_CLOSE);
    }
    server.signal(Signal::TERM);
    let answered =
        crowd.into_iter().map(|mut peer| u64::from(!peer.read_until_closed().is_empty())).sum::<u64>();
    let metrics = server.expect_clean_end();
    let refused = metrics.value("refused_total{reason=\"descriptors\"}");
    assert!(answered > 0 && refused > 0, "{metrics:?}");
    assert_eq!(answered + refused, CROWD as u64, "{metrics:?}");
}

/// Rows 3.27, 4.34: `EMFILE` is survived and counted; with descriptors again, accepting continues.
fn running_out_of_descriptors_is_survived(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 1 -C 30");
    let mut watcher = server.watch();
    let mut inside = server.connect();
    assert_eq!(inside.ask(FAST).status, 200);
    // The limit applies to descriptor numbers, and inherited descriptors may have high ones.
    let taken = std::fs::read_dir(server.proc("fd")).expect("the server runs");
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u64>().ok();
    let taken: Vec<u64> = taken.filter_map(|entry| number(entry.ok()?)).collect();
    let few = (0..).filter(|number| !taken.contains(number)).nth(6).expect("numbers do not end");
    // io_uring's accept uses the limit at the time when it was armed: a closed gate disarms it.
    let full: Vec<TestPeer> = (0..28).map(|_| server.connect()).collect();
    watcher.until("the gate is closed", |metrics| metrics.value("accept_pauses_total") == 1);
    let limit = Rlimit { current: Some(few), maximum: Some(20_000) };
    let before =
        prlimit(Some(server.pid()), Resource::Nofile, limit).expect("a process can be given a lower limit");
    drop(full);
    watcher.until("there are places again", |metrics| metrics.value("connections") == 2);
    let mut crowd: Vec<TestPeer> = (0..50).map(|_| server.connect()).collect();
    for peer in &mut crowd {
        peer.try_send(FAST);
    }
    let metrics = watcher.until("descriptors run out", |metrics| {
        assert_eq!(inside.ask(FAST).status, 200);
        metrics.value("accept_errors_total") >= 3
    });
    let refused = metrics.value("refused_total{reason=\"descriptors\"}");
    assert!(refused > 0 && metrics.value("connections") < 20, "{metrics:?}");
    prlimit(Some(server.pid()), Resource::Nofile, before).expect("the limit of a process can be raised");
    // Every client gets an answer, or an immediate end.
    let mut answered = 0;
    for peer in crowd {
        let mut peer = peer;
        peer.half_close();
        answered += u64::from(!peer.read_until_closed().is_empty());
    }
    let sent_away = watcher.fetch().value("refused_total{reason=\"descriptors\"}");
    assert_eq!(answered + sent_away, 50, "{answered} answered, {sent_away} sent away");
    assert!(answered > 0);
    eventually("a new client is served", || {
        let mut late = TestPeer::try_connect(server.address()).ok()?;
        late.try_send(FAST_CLOSE);
        (late.read_until_closed().len() == 57).then_some(())
    });
    drop(inside);
    watcher.until_alone();
    drop(watcher);
    server.finish();
}
