//! Subscribers that never read, beside others that do: unread output costs the others nothing.

use std::io::Read;
use std::process::{Command, Stdio};

use stilling_probe::TestPeer;

use super::{NatsServerFixture, RawNatsClient};
use crate::support::DriverUnderTest;

on_both_drivers!(
    subscribers_that_never_read_cost_readers_nothing,
    a_slow_subscriber_receives_the_reason_for_its_disconnect,
);

const UNREAD: usize = 10;
/// Messages between two reads of the readers: together they exceed the guaranteed unsent bytes of a connection.
const ROUND: usize = 1000;
/// Rounds: the messages of all exceed the limit of a shard.
const ROUNDS: usize = 45;
const PAYLOAD_SIZE: usize = 128;

/// A subscriber to `load` with small buffers of its own.
fn subscriber(fixture: &NatsServerFixture) -> RawNatsClient {
    let mut client = RawNatsClient { peer: TestPeer::connect_with_small_buffer(fixture.nats()) };
    client.line();
    client.send("CONNECT {\"verbose\":false}\r\nSUB load 1\r\nPING\r\n");
    assert_eq!(client.line(), "PONG");
    client
}

fn subscribers_that_never_read_cost_readers_nothing(driver: DriverUnderTest) {
    for hub_thread in ["shard", "dedicated"] {
        let options = format!(
            "-A 1 --hub-thread {hub_thread} --send-buffer 8192 --max-output-held 4MiB --write-timeout 300"
        );
        let fixture = NatsServerFixture::start(driver, &options);
        let mut unread: Vec<RawNatsClient> = (0..UNREAD).map(|_| subscriber(&fixture)).collect();
        let mut readers = [subscriber(&fixture), subscriber(&fixture)];
        let mut publisher = fixture.client();
        let mut watcher = fixture.server.watch();
        for round in 0..ROUNDS {
            let payload = |at: usize| format!("{:0PAYLOAD_SIZE$}", round * ROUND + at);
            let text: String =
                (0..ROUND).map(|at| format!("PUB load {PAYLOAD_SIZE}\r\n{}\r\n", payload(at))).collect();
            publisher.send(text);
            for reader in &mut readers {
                for at in 0..ROUND {
                    assert_eq!(reader.line(), format!("MSG load 1 {PAYLOAD_SIZE}"));
                    assert_eq!(reader.line(), payload(at));
                }
            }
        }
        watcher.until("all that never read are disconnected", |metrics| {
            assert!(metrics.value("output_held_bytes") <= 4 << 20, "{metrics:?}");
            metrics.value("hub_slow_consumers_total") == UNREAD as u64
        });
        for reader in &mut readers {
            assert_eq!(reader.flush(), [""; 0]);
        }
        for client in &mut unread {
            let rest = client.rest();
            assert!(
                rest.ends_with("\r\n-ERR 'Slow Consumer'\r\n"),
                "{}",
                &rest[rest.len().saturating_sub(400)..]
            );
            assert_whole(&rest);
        }
        watcher.until("they are closed", |metrics| metrics.closed("slow_consumer") == UNREAD as u64);
        drop((readers, unread, publisher, watcher));
        let metrics = fixture.server.finish();
        assert_eq!(metrics.value("hub_slow_consumers_total"), UNREAD as u64);
    }
}

/// Checks that every message of `text` is whole and in order; only an error may be the last line.
fn assert_whole(text: &str) {
    let mut lines = text.split("\r\n");
    let mut number = 0;
    while let Some(head) = lines.next() {
        if head == "-ERR 'Slow Consumer'" {
            assert_eq!(lines.collect::<Vec<_>>(), [""]);
            return;
        }
        assert_eq!(head, format!("MSG load 1 {PAYLOAD_SIZE}"));
        assert_eq!(lines.next(), Some(&format!("{number:0PAYLOAD_SIZE$}")[..]));
        number += 1;
    }
    panic!("no error");
}

fn a_slow_subscriber_receives_the_reason_for_its_disconnect(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(
        driver,
        "-A 1 --send-buffer 8192 --max-output-held 1MiB --write-timeout 300",
    );
    let mut watcher = fixture.server.watch();
    let mut slow = Command::new(env!("CARGO_BIN_EXE_stilling"))
        .args(["sub", "-s", &fixture.nats().to_string(), "load", "--raw"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    watcher.until("it has subscribed", |metrics| metrics.value("hub_subscriptions") == 1);
    // Its output is not read, so it stops reading itself.
    let mut publisher = fixture.client();
    let message = format!("PUB load 100000\r\n{}\r\n", "x".repeat(100_000));
    watcher.until("it is disconnected", |metrics| {
        publisher.send(&message);
        assert_eq!(publisher.flush(), [""; 0]);
        metrics.value("hub_slow_consumers_total") == 1
    });
    let mut out = slow.stdout.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 65536];
        while out.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    let mut errors = slow.stderr.take().expect("it is piped");
    let mut received = String::new();
    while !received.contains('\n') {
        let mut bytes = [0; 1024];
        let count = errors.read(&mut bytes).expect("it says something");
        assert!(count > 0, "it ended: {received}");
        received += std::str::from_utf8(&bytes[..count]).expect("text");
    }
    assert_eq!(
        received.lines().next(),
        Some("stilling: waiting: the server closed the connection: slow consumer")
    );
    slow.kill().expect("it runs");
    slow.wait().expect("it ends");
    reader.join().expect("it reads to the end");
    drop((publisher, watcher));
    fixture.server.finish();
}
