//! Faults: a server that dies, a subscriber that does not read, a folder that is not writable.

use std::fs;
use std::net::{SocketAddr, UdpSocket};

use super::{NatsServerFixture, RawNatsClient};
use crate::support::{DriverUnderTest, binary, eventually};

on_both_drivers! {
    what_was_acknowledged_is_there_after_a_crash,
    a_stream_keeps_its_creation_time,
    a_subscriber_that_never_reads_is_cut_off_and_disturbs_no_other,
    a_hub_on_a_thread_of_its_own_passes_the_same_checks,
    a_subscriber_that_reads_late_gets_everything,
    clients_that_send_everything_before_they_read_get_every_answer,
    messages_without_a_reply_are_not_answered,
    unfinished_long_messages_block_no_other_client,
    a_client_that_leaves_at_once_has_published_all_the_same,
    a_drain_acknowledges_publications_and_announces_lame_duck_mode,
    more_subscriptions_than_a_connection_may_have_are_refused,
    syslog_garbage_and_a_line_of_a_megabyte_do_no_harm,
}

/// Publishes `range` and waits for all acknowledgements; returns the sequences.
pub(super) fn publish(client: &mut RawNatsClient, subject: &str, range: std::ops::Range<u32>) -> Vec<u64> {
    let mut text = String::new();
    for number in range.clone() {
        let payload = number.to_string();
        text += &format!("PUB {subject} inbox.{number} {}\r\n{payload}\r\n", payload.len());
    }
    client.send(text);
    let mut sequences = Vec::new();
    for _ in range {
        let line = client.line();
        assert!(line.starts_with("MSG inbox."), "{line}");
        let json = client.line();
        let sequence = json.split("\"seq\":").nth(1).and_then(|rest| rest.trim_end_matches('}').parse().ok());
        sequences.push(sequence.unwrap_or_else(|| panic!("no sequence in {json}")));
    }
    sequences
}

fn replay(fixture: &NatsServerFixture, stream: &str, count: usize) -> Vec<String> {
    fixture.records(stream, count).0.into_iter().map(|(_, payload)| payload).collect()
}

/// Row 0.4; the simulation covers power loss, sectors and write orders.
fn what_was_acknowledged_is_there_after_a_crash(driver: DriverUnderTest) {
    let mut fixture = NatsServerFixture::start(driver, "");
    for life in 0..3 {
        let mut client = fixture.client();
        client.send("SUB inbox.* 1\r\n");
        let sequences = publish(&mut client, "events.a", life * 500..(life + 1) * 500);
        // A crash may cost sequences, never their order.
        assert!(sequences.is_sorted() && sequences[0] > u64::from(life) * 500, "{sequences:?}");
        // More messages, without waiting for their acknowledgements.
        client.send("PUB events.a 1\r\nx\r\n".repeat(100));
        fixture = fixture.crash(driver, "");
        let there = replay(&fixture, "events", (life as usize + 1) * 500);
        let numbers: Vec<u32> = there.iter().filter_map(|payload| payload.parse().ok()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        let expected: Vec<u32> = (0..numbers.len() as u32).collect();
        assert_eq!(numbers, expected);
    }
    fixture.server.finish();
}

/// Creation time of `events`, as the server reports it.
fn created(fixture: &NatsServerFixture) -> String {
    let mut client = fixture.client();
    client.send("SUB info 1\r\nPUB $JS.API.STREAM.INFO.events info 0\r\n\r\n");
    assert!(client.line().starts_with("MSG info 1 "));
    let json = client.line();
    let after = json.split("\"created\":\"").nth(1).and_then(|rest| rest.split('"').next());
    after.unwrap_or_else(|| panic!("no creation time in {json}")).to_owned()
}

/// Followers recognise a replaced data folder by it: it is the same before the first record, after it and after a
/// restart.
fn a_stream_keeps_its_creation_time(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let before = created(&fixture);
    let mut client = fixture.client();
    client.send("SUB inbox.* 1\r\n");
    publish(&mut client, "events.a", 0..1);
    assert_eq!(created(&fixture), before);
    let fixture = fixture.crash(driver, "");
    assert_eq!(created(&fixture), before);
    fixture.server.finish();
}

fn a_hub_on_a_thread_of_its_own_passes_the_same_checks(driver: DriverUnderTest) {
    for place in ["shard", "dedicated"] {
        let options = format!("--hub-thread {place} --stream keep=keep.>:memory --stream events=events.>");
        let fixture = NatsServerFixture::start(driver, &options);
        let mut clients: Vec<RawNatsClient> = (0..6).map(|_| fixture.client()).collect();
        let mut subscriber = fixture.client();
        subscriber.send("SUB events.> 9\r\n");
        subscriber.flush();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send("SUB inbox.* 1\r\n");
            let subject = if number % 2 == 0 { "events.a" } else { "keep.a" };
            assert_eq!(publish(client, subject, 0..300).len(), 300);
        }
        for _ in 0..900 {
            assert!(subscriber.line().starts_with("MSG events.a 9 "));
            subscriber.line();
        }
        drop((clients, subscriber));
        fixture.server.finish();
    }
}

fn a_subscriber_that_never_reads_is_cut_off_and_disturbs_no_other(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut lazy =
        RawNatsClient { peer: stilling_probe::TestPeer::connect_with_small_buffer(fixture.nats()) };
    lazy.line();
    lazy.send("CONNECT {\"verbose\":false}\r\nSUB a 1\r\nPING\r\n");
    lazy.line();
    let mut busy = fixture.client();
    busy.send("SUB a 1\r\n");
    let payload = "x".repeat(100_000);
    for _ in 0..200 {
        busy.send(format!("PUB a 100000\r\n{payload}\r\n"));
        assert_eq!(busy.lines(2), ["MSG a 1 100000", &payload]);
    }
    let mut watcher = fixture.server.watch();
    watcher.until("it is cut off", |metrics| metrics.closed("slow_consumer") == 1);
    drop((lazy, busy, watcher));
    fixture.server.finish();
}

/// Row 0.8: output beyond the peer's and the kernel's buffers waits in the server.
fn a_subscriber_that_reads_late_gets_everything(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "--send-buffer 20000");
    let mut late =
        RawNatsClient { peer: stilling_probe::TestPeer::connect_with_small_buffer(fixture.nats()) };
    late.line();
    late.send("CONNECT {\"verbose\":false}\r\nSUB a 1\r\nPING\r\n");
    late.line();
    let mut busy = fixture.client();
    let payload = "x".repeat(100_000);
    for _ in 0..30 {
        busy.send(format!("PUB a 100000\r\n{payload}\r\n"));
    }
    assert_eq!(busy.flush(), [""; 0]);
    for _ in 0..30 {
        assert_eq!(late.lines(2), ["MSG a 1 100000", &payload]);
    }
    drop((late, busy));
    fixture.server.finish();
}

/// Row 0.3: a client without replies gets no byte, not even for stored messages. (The answer to its PING is the first
/// thing that it reads.)
fn messages_without_a_reply_are_not_answered(driver: DriverUnderTest) {
    const COUNT: usize = 50_000;
    let fixture = NatsServerFixture::start(driver, "--stream keep=keep.>:memory --stream events=events.>");
    let mut client = fixture.client();
    for subject in ["keep.a", "events.a", "plain.a"] {
        client.send(format!("PUB {subject} 1\r\nx\r\n").repeat(COUNT));
    }
    assert_eq!(client.flush(), [""; 0]);
    // The PONG shows that the messages are received, not yet that they are durable.
    fixture.server.watch().until("all are stored", |metrics| {
        metrics.value("hub_stream_visible_sequence{stream=\"events\"}") >= COUNT as u64
    });
    let (_, behind) = fixture.records("events", 1);
    assert_eq!(behind + 1, COUNT as u64);
    drop(client);
    fixture.server.finish();
}

/// Row 0.3: a client may send everything before it reads any answer. Neither the client nor the server waits for the
/// other to read first, nor for another client on the same shard that does the same.
fn clients_that_send_everything_before_they_read_get_every_answer(driver: DriverUnderTest) {
    const COUNT: usize = 100_000;
    let options =
        "--accept-threads 1 --send-buffer 20000 --stream keep=keep.>:memory --stream events=events.>";
    let fixture = NatsServerFixture::start(driver, options);
    let mut clients = [(); 2].map(|()| RawNatsClient {
        peer: stilling_probe::TestPeer::connect_with_small_buffer(fixture.nats()),
    });
    for (number, client) in clients.iter_mut().enumerate() {
        client.line();
        // An answer for each line, and another one for each message.
        let inbox = format!("_INBOX.bRM2GmyGbnxTlWsrYJUAo{number}");
        client.send(format!("CONNECT {{\"verbose\":true}}\r\nSUB {inbox} 1\r\n"));
        assert_eq!(client.lines(2), ["+OK"; 2]);
        let line = |subject| format!("PUB {subject} {inbox} 1\r\nx\r\n");
        client.send(line("keep.a").repeat(COUNT / 2) + &line("events.a").repeat(COUNT / 2));
        client.send("PING\r\n");
    }
    for client in &mut clients {
        let (mut acknowledged, mut last, mut accepted, mut ponged) = ([0; 2], [0; 2], 0, false);
        while acknowledged != [COUNT / 2; 2] || accepted < COUNT || !ponged {
            match client.line() {
                line if line == "+OK" => accepted += 1,
                line if line == "PONG" => ponged = true,
                line => {
                    assert!(line.starts_with("MSG _INBOX."), "{line}");
                    let json = client.line();
                    let stream = usize::from(json.contains("\"stream\":\"events\""));
                    acknowledged[stream] += 1;
                    let sequence = json.split_once("\"seq\":").map(|(_, rest)| rest.trim_end_matches('}'));
                    let sequence: u64 = sequence.and_then(|text| text.parse().ok()).expect("a sequence");
                    assert!(sequence > last[stream], "{json} is not behind {}", last[stream]);
                    last[stream] = sequence;
                }
            }
        }
    }
    drop(clients);
    fixture.server.finish();
}

/// Row 0.8: memory for long messages is taken as they arrive, and a client with an unfinished message does not block
/// others.
fn unfinished_long_messages_block_no_other_client(driver: DriverUnderTest) {
    const SIZE: usize = 1 << 20;
    let payload = "x".repeat(SIZE);
    // With almost nothing sent the others have room; with almost everything sent they continue one after the other.
    for sent in [10_000, SIZE - 1000] {
        let fixture = NatsServerFixture::start(driver, "--accept-threads 1");
        let mut silent = Vec::new();
        for _ in 0..64 {
            let mut client = RawNatsClient::connect_unauthenticated(fixture.nats());
            client.send(format!("CONNECT {{\"verbose\":false}}\r\nPUB a {SIZE}\r\n{}", &payload[..sent]));
            silent.push(client);
        }
        let mut busy = fixture.client();
        busy.send("SUB a 1\r\n");
        for _ in 0..3 {
            busy.send(format!("PUB a {SIZE}\r\n{payload}\r\n"));
            assert_eq!(busy.line(), format!("MSG a 1 {SIZE}"));
            assert!(busy.line() == payload, "the message");
        }
        drop((silent, busy));
        fixture.server.finish();
    }
}

fn a_client_that_leaves_at_once_has_published_all_the_same(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    for number in 0..50 {
        let mut client = RawNatsClient::connect_unauthenticated(fixture.nats());
        client.send(format!("CONNECT {{\"verbose\":false}}\r\nPUB events.a 2\r\n{number:02}\r\n"));
        // The end of input is processed after everything sent before it.
        client.peer.half_close();
        client.rest();
    }
    let mut there = replay(&fixture, "events", 50);
    there.sort();
    let expected: Vec<String> = (0..50).map(|number| format!("{number:02}")).collect();
    assert_eq!(there, expected);
    fixture.server.finish();
}

fn a_drain_acknowledges_publications_and_announces_lame_duck_mode(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    client.send("SUB inbox.* 1\r\nPUB events.a inbox.1 1\r\nx\r\n");
    client.flush();
    fixture.server.signal(rustix::process::Signal::TERM);
    let rest = client.rest();
    assert!(rest.contains("\"ldm\":true"), "{rest}");
    fixture.server.expect_clean_end();
}

fn more_subscriptions_than_a_connection_may_have_are_refused(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    let all: String = (0..100_000).map(|sid| format!("SUB a.{sid} {sid}\r\n")).collect();
    client.peer.try_send(all);
    let rest = client.rest();
    assert!(rest.starts_with("-ERR 'maximum subscriptions exceeded'\r\n"), "{rest:.200}");
    assert_eq!(fixture.client().flush(), [""; 0]);
    fixture.server.finish();
}

/// Malformed messages are counted, too long ones are cut and counted, and later ones are stored.
fn syslog_garbage_and_a_line_of_a_megabyte_do_no_harm(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "--syslog-udp 127.0.0.1:0 --syslog-tcp 127.0.0.1:0");
    let at = |name: &str| -> SocketAddr { fixture.server.banner_line(name).parse().expect("an address") };
    let (udp, tcp) = (at("listening syslog-udp://"), at("listening syslog-tcp://"));
    let mut listener = fixture.client();
    listener.send("SUB events.syslog.> 1\r\n");
    listener.flush();
    let mut busy = fixture.client();
    busy.send("SUB inbox.* 1\r\n");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for garbage in [&b"\0\x01\x7f"[..], b"", b"\n", b"<", b"<9999>x", "\u{feff}{\"".as_bytes(), &[b'['; 3000]]
    {
        sender.send_to(garbage, udp).expect("it is sent");
        let mut peer = stilling_probe::TestPeer::connect(tcp);
        peer.send(garbage);
        peer.half_close();
        assert!(peer.read_until_closed().is_empty(), "syslog answers nothing");
    }
    let mut long = stilling_probe::TestPeer::connect(tcp);
    long.send("<13>".to_owned() + &"x".repeat(1 << 20) + "\n<13>behind it\n");
    assert_eq!(publish(&mut busy, "events.a", 0..10).len(), 10);
    // Lines of one connection keep their order.
    let mut payloads = Vec::new();
    while payloads.last().is_none_or(|payload| payload != "<13>behind it") {
        let line = listener.line();
        assert!(line.starts_with("MSG events.syslog."), "{line}");
        payloads.push(listener.line());
    }
    let cut = payloads.iter().find(|payload| payload.starts_with("<13>xxx")).expect("its beginning is there");
    assert!(cut.len() < 100_000, "{}", cut.len());
    let mut watcher = fixture.server.watch();
    let losses = |reason: &str| format!("hub_losses_total{{ingress=\"syslog\",reason=\"{reason}\"}}");
    watcher.until("it is counted", |metrics| {
        metrics.value(&losses("too_large")) == 1 && metrics.value(&losses("malformed")) > 0
    });
    drop((busy, listener, long, watcher));
    fixture.server.finish();
}

#[test]
fn two_servers_cannot_have_one_folder() {
    let fixture = NatsServerFixture::start(DriverUnderTest::Poll, "");
    let mut client = fixture.client();
    client.send("SUB inbox.* 1\r\n");
    publish(&mut client, "events.a", 0..1);
    let data = fixture.data.path().join("streams");
    let mut second = binary();
    second.args(["serve", "--listen", "127.0.0.1:0", "--nats", "127.0.0.1:0", "--data"]).arg(&data);
    let outcome = second.output().expect("it runs");
    let stderr_text = String::from_utf8_lossy(&outcome.stderr);
    assert!(!outcome.status.success());
    assert!(stderr_text.contains("is in use by process"), "{stderr_text}");
    drop(client);
    fixture.server.finish();
}

/// The folder appears with the first record; where it cannot be created, the publisher gets the reason, and the server
/// keeps running.
#[test]
fn a_folder_that_cannot_be_made_freezes_its_streams() {
    let fixture = NatsServerFixture::start(DriverUnderTest::Poll, "");
    fs::write(fixture.data.path().join("streams"), "in the way").expect("a file");
    let mut client = fixture.client();
    client.send("SUB inbox 1\r\nPUB events.a inbox 1\r\nx\r\n");
    assert!(client.line().starts_with("MSG inbox 1 "));
    let json = client.line();
    assert!(json.contains("\"code\":503") && json.contains("cannot be created"), "{json}");
    client.send("SUB other 2\r\nPUB other 1\r\ny\r\n");
    assert_eq!(client.lines(2), ["MSG other 2 1", "y"]);
    drop(client);
    fixture.server.finish();
}

/// An error that is known at the start is reported at the start.
#[test]
fn a_folder_that_is_none_is_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "in the way").expect("a file");
    let mut server = binary();
    server.args(["serve", "--listen", "127.0.0.1:0", "--nats", "127.0.0.1:0", "--data"]).arg(&file);
    let outcome = server.output().expect("it runs");
    let stderr_text = String::from_utf8_lossy(&outcome.stderr);
    assert!(!outcome.status.success() && stderr_text.contains("is not a directory"), "{stderr_text}");
}

#[test]
fn nothing_is_on_disk_before_there_is_something_to_keep() {
    let fixture = NatsServerFixture::start(DriverUnderTest::Poll, "");
    let mut client = fixture.client();
    client.send("PUB other 1\r\nx\r\n");
    client.flush();
    let streams = fixture.data.path().join("streams");
    assert!(!streams.exists());
    client.send("PUB events.a 1\r\nx\r\n");
    eventually("the folder is there", || streams.join("events").exists().then_some(()));
    drop(client);
    fixture.server.finish();
}
