//! `stilling pub` and `stilling sub` against a fake server: output, exit status, and state after a kill.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use stilling_probe::eventually;
use stilling_probe::nats::{FakeNatsServer, InjectedFault};

/// `EX_TEMPFAIL`: messages wait and are not lost.
const EXIT_SPOOLED: Option<i32> = Some(75);

fn stilling(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(arguments: &str) -> (Option<i32>, String, String) {
    ended(stilling(arguments).output().expect("the binary runs"))
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn fed(arguments: &str, input: &str) -> (Option<i32>, String, String) {
    let mut child = stilling(arguments).stdin(Stdio::piped()).spawn().expect("the binary starts");
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    ended(child.wait_with_output().expect("it ends"))
}

#[test]
fn a_published_message_prints_its_stream_and_sequence() {
    let server = FakeNatsServer::start();
    let (status, out, errors) = run(&format!("pub -s {} events.door open", server.url()));
    assert_eq!((status, out.as_str(), errors.as_str()), (Some(0), "events 1\n", ""));
    server.fail([InjectedFault::LoseAcknowledgement]);
    let (status, out, _) = run(&format!("pub -s {} events.door again", server.url()));
    assert_eq!((status, out.as_str()), (Some(0), "events 2 (duplicate)\n"));
    assert_eq!(
        server.records().iter().map(|record| &record.payload[..]).collect::<Vec<_>>(),
        [&b"open"[..], b"again"]
    );
}

/// Row 0.32: the printed figures match the server's records.
#[test]
fn many_messages_print_a_summary() {
    let server = FakeNatsServer::start();
    for mode in ["confirmed", "no-wait"] {
        let (status, out, errors) =
            run(&format!("pub -s {} -t 60 -m {mode} -n 300 --size 100 events.door", server.url()));
        assert_eq!(status, Some(0), "{errors}");
        assert!(out.contains("messages              300\ndelivered             300 ("), "{out}");
        assert!(out.contains("dropped               0\nwaiting               0\n"), "{out}");
    }
    assert_eq!(server.records().len(), 600);
    let (status, out, _) = run(&format!("pub -s {} -t 60 -m one-way -n 300 --json plain.a x", server.url()));
    let figures: serde_json::Value = serde_json::from_str(&out).expect("it is JSON");
    assert_eq!((status, figures["delivered"].as_u64()), (Some(0), Some(300)));
}

#[test]
fn lines_are_messages_and_come_out_as_they_went_in() {
    let server = FakeNatsServer::start();
    let url = server.url();
    let (status, _, errors) =
        fed(&format!("pub -s {url} --lines -H Kind:test events.lines"), "one\n{\"n\":2}\n\nlast");
    assert_eq!(status, Some(0), "{errors}");
    let (status, out, _) = run(&format!("sub -s {url} --stream events events.> -n 4 --raw"));
    assert_eq!((status, out.as_str()), (Some(0), "one\n{\"n\":2}\n\nlast\n"));
    let (status, out, _) = run(&format!("sub -s {url} --stream events --from 2 events.> -n 1 --json"));
    let message: serde_json::Value = serde_json::from_str(&out).expect("it is JSON");
    assert_eq!((status, &message["data"]["n"], &message["seq"]), (Some(0), &2.into(), &2.into()));
    let (_, out, _) = run(&format!("sub -s {url} --stream events --from 4 events.> -n 1"));
    assert_eq!(out, "events 4 2023-11-14T22:13:20.000Z events.lines: last\n");
    let (status, _, _) = fed(&format!("pub -s {url} events.whole -"), "a\nb\n");
    assert_eq!((status, server.records()[4].payload.as_slice()), (Some(0), &b"a\nb\n"[..]));
}

#[test]
fn errors_include_a_remedy() {
    let check = |arguments: &str, status: i32, words: &str| {
        let (code, _, errors) = run(arguments);
        assert_eq!(code, Some(status), "{arguments}: {errors}");
        assert!(errors.contains(words), "{arguments}: {errors}");
    };
    check("pub", 64, "required");
    check("pub -s http://h events.a", 64, "an address begins with nats://");
    check(
        "pub -s nats://127.0.0.1:1 events.a x -t 0.1",
        1,
        "no server listens at nats://127.0.0.1:1: start it",
    );
    // The wait is reported before it ends.
    check("pub -s nats://127.0.0.1:1 events.a x -t 3", 1, "waiting: no server listens at nats://127.0.0.1:1");
    check("pub --spool here -m one-way events.a x", 64, "one-way messages are not kept");
    check("sub --from yesterday --stream events events.>", 64, "a span back such as 10m");
    check("sub --from 7 events.>", 64, "--stream");
    check("sub events..a", 64, "empty token");
    let server = FakeNatsServer::start();
    check(&format!("pub -s {} nobody.keeps x -t 60", server.url()), 1, "no stream stores this subject");
    check(&format!("pub -s {} events..a x", server.url()), 64, "empty token");
    check(&format!("sub -s {} --stream other events.>", server.url()), 1, "stream not found");
    check(
        &format!("sub -s {} --stream events events.> -n 1 -t 0.1", server.url()),
        1,
        "0 of 1 messages arrived",
    );
}

/// Row 0.31: the subscriber starts before the message is published.
#[test]
fn messages_published_to_a_subscriber_are_printed() {
    let server = FakeNatsServer::start();
    let mut listener =
        stilling(&format!("sub -s {} -n 1 plain.>", server.url())).spawn().expect("the binary starts");
    let printed = listener.stdout.take().expect("it is piped");
    while listener.try_wait().expect("it is ours").is_none() {
        let (status, ..) = run(&format!("pub -s {} -m one-way plain.a hello", server.url()));
        assert_eq!(status, Some(0));
    }
    let lines: Vec<String> = BufReader::new(printed).lines().map(|line| line.expect("it is text")).collect();
    assert_eq!(lines, ["plain.a: hello"]);
}

#[test]
fn a_spool_keeps_what_the_next_call_delivers() {
    let directory = tempfile::tempdir().expect("a directory");
    let spool = directory.path().join("spool");
    let spool = spool.display();
    for number in 0..3 {
        let (status, _, errors) =
            run(&format!("pub -s nats://127.0.0.1:1 --spool {spool} -t 0 events.a {number}"));
        assert_eq!(status, EXIT_SPOOLED, "{errors}");
        let count = if number == 0 {
            "1 message waits in".to_owned()
        } else {
            format!("{} messages wait in", number + 1)
        };
        assert!(errors.contains(&count), "{errors}");
    }
    let server = FakeNatsServer::start();
    let (status, out, _) = run(&format!("pub -s {} -t 60 --spool {spool} --json", server.url()));
    let figures: serde_json::Value = serde_json::from_str(&out).expect("it is JSON");
    assert_eq!((status, &figures["recovered"], &figures["delivered"]), (Some(0), &3.into(), &3.into()));
    let payloads: Vec<_> = server.records().into_iter().map(|record| record.payload).collect();
    assert_eq!(payloads, [b"0", b"1", b"2"]);
    let (status, out, _) = run(&format!("pub -s {} --spool {spool}", server.url()));
    assert_eq!((status, out.as_str()), (Some(0), "no messages\n"));
}

/// A publisher that reads numbered lines until it is killed.
struct FedPublisher {
    child: Child,
    feeder: Option<std::thread::JoinHandle<()>>,
}

impl FedPublisher {
    fn start(arguments: &str, run: u32) -> FedPublisher {
        let mut child = stilling(arguments).stdin(Stdio::piped()).spawn().expect("the binary starts");
        let mut input = child.stdin.take().expect("it is piped");
        let feeder = std::thread::spawn(move || {
            let mut number = 0;
            while writeln!(input, "{run} {number}").is_ok() {
                number += 1;
            }
        });
        FedPublisher { child, feeder: Some(feeder) }
    }

    fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
        self.feeder.take().expect("it is started once").join().expect("it only writes");
    }
}

/// Row 0.4: a publisher that is killed at any moment leaves a spool from which the next one continues: of each
/// process's messages a prefix arrives without a gap, each once and in order, and no lock remains.
#[test]
fn a_killed_publisher_leaves_no_gap_no_double_and_no_lock() {
    const LIVES: u32 = 12;
    let directory = tempfile::tempdir().expect("a directory");
    let (server, spool) = (FakeNatsServer::start(), directory.path().join("spool"));
    let arguments =
        format!("pub -s {} --spool {} --spool-size 1000000 --lines events.a", server.url(), spool.display());
    for life in 0..LIVES {
        let publisher = FedPublisher::start(&arguments, life);
        // A different moment in each round.
        let wanted = 1 + (life as usize * 37) % 200;
        let mark = format!("{life} ");
        let of_this_life =
            || server.records().iter().filter(|record| record.payload.starts_with(mark.as_bytes())).count();
        eventually("it delivers", || (of_this_life() >= wanted).then_some(()));
        if life % 3 == 1 {
            server.disconnect_all();
        }
        publisher.kill();
    }
    let (status, out, errors) =
        run(&format!("pub -s {} -t 60 --spool {} --json", server.url(), spool.display()));
    assert_eq!(status, Some(0), "{out}{errors}");
    let mut next = vec![0_u64; LIVES as usize];
    let mut last_life = 0;
    for record in server.records() {
        let text = String::from_utf8(record.payload).expect("it is text");
        let (life, number) = text.split_once(' ').expect("two numbers");
        let life: usize = life.parse().expect("a number");
        assert_eq!(number, next[life].to_string(), "of life {life}");
        next[life] += 1;
        assert!(life >= last_life, "the order stays");
        last_life = life;
    }
    assert!(next.iter().all(|count| *count > 0), "{next:?}");
}
