//! `stilling bench broadcast` on the real server: every delivered byte is right, alone, over a stream, and with bytes
//! that differ between subscribers.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::NatsServerFixture;
use crate::support::{DriverUnderTest, HANG_TIMEOUT, binary, eventually};

on_both_drivers! {
    every_subscriber_receives_every_byte,
    messages_of_streams_reach_every_subscriber,
    a_hundred_shards_share_the_bounds_of_feeds,
    a_broadcast_adds_no_threads,
}

fn run(to: &NatsServerFixture, options: &str) -> Value {
    let mut command: Command = binary();
    command.args(["bench", "broadcast", &to.nats().to_string(), "--json"]).args(options.split_whitespace());
    command.args(["--timeout", &HANG_TIMEOUT.as_secs().to_string()]).stdin(Stdio::null());
    let outcome = command.output().expect("the binary runs");
    let (out, said) = (String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
    assert_eq!((outcome.status.code(), &*said), (Some(0), ""), "{options}: {out}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{options}: {error}: {out}"))
}

/// Checks a run: all messages, each to `receivers` subscribers, without any failure.
#[track_caller]
fn check(to: &NatsServerFixture, options: &str, messages: u64, receivers: u64) {
    let report = run(to, &format!("-n {messages} {options}"));
    assert_eq!(report["messages"], messages, "{options}: {report}");
    assert_eq!(report["deliveries"], messages * receivers, "{options}: {report}");
    assert_eq!((&report["failures_total"], &report["evidence"]), (&0.into(), &serde_json::json!({})));
    assert!(report["latency"]["p99_us"].as_f64() > Some(0.0), "{options}: {report}");
}

/// Rows 2.4 and 2.18: a broadcast reaches every subscriber once and in order.
fn every_subscriber_receives_every_byte(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    check(&fixture, "--subscribers 20", 20_000, 20);
    check(&fixture, "--subscribers 20 --window 1", 200, 20);
    check(&fixture, "--subscribers 20 --window 64 --size 4096", 2000, 20);
    check(&fixture, "--subscribers 20 --distinct-sids", 5000, 20);
    check(&fixture, "--subscribers 5 --publishers 3", 5000, 5);
    check(&fixture, "--subjects 50", 5000, 1);
    let pid = fixture.server.pid().as_raw_nonzero();
    let report = run(&fixture, &format!("-n 1000 --subscribers 5 --pid {pid}"));
    assert!(report["server_cpu_s"].is_number(), "{report}");
    fixture.server.finish();
}

/// With a hundredth of the memory for feeds each, all shards deliver every byte.
fn a_hundred_shards_share_the_bounds_of_feeds(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "-A 100");
    // Some ten in each shard: most shards have a feed.
    let mut sharers: Vec<_> = (0..1000).map(|_| fixture.client()).collect();
    for sharer in &mut sharers {
        sharer.send("SUB feed 1\r\n");
        sharer.flush();
    }
    let payload = "x".repeat(4000);
    let mut publisher = fixture.client();
    for _ in 0..20 {
        publisher.send(format!("PUB feed 4000\r\n{payload}\r\n"));
    }
    publisher.flush();
    for sharer in &mut sharers {
        let lines = sharer.lines(40);
        assert!(lines.chunks(2).all(|message| message[0] == "MSG feed 1 4000" && message[1] == payload));
    }
    let metrics = fixture.server.watch().fetch();
    assert!(metrics.value("hub_feeds") > 10 && metrics.value("hub_feed_subscriptions") > 100, "{metrics:?}");
    drop((sharers, publisher));
    fixture.server.finish();
}

/// Row 2.15: the deliveries of a stream have the order in which its log stores the messages.
fn messages_of_streams_reach_every_subscriber(driver: DriverUnderTest) {
    let fixture =
        NatsServerFixture::start(driver, "--stream events=events.>:disk --stream plain=plain.>:memory");
    for subject in ["events.all", "plain.all"] {
        check(&fixture, &format!("--subject {subject} --subscribers 20 --window 256"), 5000, 20);
    }
    assert_eq!(fixture.records("events", 1).1, 4999);
    fixture.server.finish();
}

/// Row 2.16: the threads of a server are those of docs/operating.md, and neither subscribers nor messages add any.
fn a_broadcast_adds_no_threads(driver: DriverUnderTest) {
    let options = "--accept-threads 2 --worker-threads 2 --hub-thread dedicated \
                   --stream events=events.>:disk --stream plain=plain.>:memory";
    let fixture = NatsServerFixture::start(driver, options);
    // The thread that opens the streams ends.
    check(&fixture, "--subject events.all --subscribers 1", 1, 1);
    let expected = [
        "hub",
        "journal",
        "journal-build",
        "listen-watch",
        "log",
        "replay",
        "shard-1",
        "stilling",
        "volumes",
        "worker-0",
        "worker-1",
    ];
    let threads = || {
        let directory = format!("/proc/{}/task", fixture.server.pid().as_raw_nonzero());
        let tasks = fs::read_dir(directory).expect("the server runs");
        // A thread may end meanwhile.
        let names = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let mut names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
        names.sort();
        names
    };
    eventually("the streams are open", || (threads() == expected).then_some(()));
    for subject in ["events.all", "plain.all"] {
        check(&fixture, &format!("--subject {subject} --subscribers 50 --window 256"), 2000, 50);
        assert_eq!(threads(), expected);
    }
    let page = include_str!("../../../../../docs/operating.md");
    for name in expected {
        let name = name.trim_end_matches(|end: char| end == '-' || end.is_ascii_digit());
        assert!(page.contains(&format!("`{name}")), "{name} is not on the page");
    }
    fixture.server.finish();
}
