//! During a drain, messages that publishers sent before they could see it are stored.

use std::thread;

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling::settings::MessagingConfig;
use stilling_journal::RecordKind;

use crate::support::{HubTestServer, TestPeer, any_port, eventually, records};

on_both_drivers!(
    a_client_that_never_stops_is_read_for_a_bounded_time,
    publications_before_the_end_are_stored,
    syslog_messages_before_the_end_are_stored,
);

const MESSAGES: usize = 1000;

/// A server with a full and stalled hub, so that it reads no connection until the disk resumes.
fn full(driver: DriverChoice) -> (HubTestServer, crate::support::StalledDisk, TestPeer) {
    let hub_server = HubTestServer::with(driver, |config| {
        config.shards = 1;
        config.hub = MessagingConfig { syslog_tcp: vec![any_port()], ..config.hub.clone() };
    });
    let stalled_disk = hub_server.stall_disk();
    let flood = TestPeer::connect(hub_server.at("nats"));
    let mut writer = flood.clone_writer();
    thread::spawn(move || {
        let message = format!("PUB events.flood 1000\r\n{}\r\n", "x".repeat(1000));
        // More than there is room for.
        writer.send(message.repeat(4000));
    });
    let bytes = || hub_server.overview().engine(|counters| &counters.received_bytes);
    let mut before = 0;
    eventually("nothing is read any more", || {
        let now = bytes();
        thread::park_timeout(std::time::Duration::from_millis(200));
        let is_idle = now > 0 && now == before;
        before = now;
        is_idle.then_some(())
    });
    (hub_server, stalled_disk, flood)
}

/// Ends the server, lets the hub resume once the drain is visible, and checks the stored messages of `subject`.
#[track_caller]
fn finish(
    full: (HubTestServer, crate::support::StalledDisk, TestPeer),
    mut peer: TestPeer,
    late: &str,
    subject: &str,
) {
    let (hub_server, stalled_disk, flood) = full;
    let data = hub_server.data();
    let mut observer = TestPeer::connect(hub_server.at("nats"));
    let server = thread::spawn(move || hub_server.keep());
    while !observer.line().contains("\"ldm\":true") {}
    drop(observer);
    // The client has not received the end yet.
    peer.send(late);
    drop(flood);
    let _open = stalled_disk.end();
    peer.read_until_closed();
    drop(peer);
    let _keep = server.join().expect("it ends well");
    let stored = records(&data);
    let stored: Vec<_> = stored
        .iter()
        .filter(|(kind, its, _)| *kind == RecordKind::Ordinary && its == subject)
        .map(|(_, _, text)| text.as_str())
        .collect();
    let expected: Vec<_> = (0..=MESSAGES).map(|number| format!("<13>{number:0100}")).collect();
    assert_eq!(stored.len(), expected.len());
    assert!(stored == expected, "in order, and each once");
}

/// Row 4.9: a client that publishes without waiting for acknowledgements loses nothing that it sent before the end.
fn publications_before_the_end_are_stored(driver: DriverChoice) {
    let full = full(driver);
    let mut peer = TestPeer::connect(full.0.at("nats"));
    let message = |number: usize| format!("PUB events.last 104\r\n<13>{number:0100}\r\n");
    peer.send((0..MESSAGES).map(message).collect::<String>());
    finish(full, peer, &message(MESSAGES), "events.last");
}

/// The same for a protocol without a message to its clients.
fn syslog_messages_before_the_end_are_stored(driver: DriverChoice) {
    let full = full(driver);
    let mut peer = TestPeer::connect(full.0.at("syslog-tcp"));
    let message = |number: usize| format!("<13>{number:0100}\n");
    peer.send((0..MESSAGES).map(message).collect::<String>());
    finish(full, peer, &message(MESSAGES), "events.syslog.user.notice");
}

/// A client that never stops sending is notified of the end long before the drain timeout.
fn a_client_that_never_stops_is_read_for_a_bounded_time(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        config.hub = MessagingConfig { syslog_tcp: vec![any_port()], ..config.hub.clone() };
    });
    let senders = [
        (hub_server.at("nats"), format!("PUB a 1000\r\n{}\r\n", "x".repeat(1000))),
        (hub_server.at("syslog-tcp"), format!("<13>{}\n", "x".repeat(1000))),
    ];
    let senders = senders.map(|(at, message)| {
        let mut peer = TestPeer::connect(at);
        peer.send(&message);
        thread::spawn(move || while peer.try_send(&message) {})
    });
    let bytes = || hub_server.overview().engine(|counters| &counters.received_bytes);
    eventually("both talk", || (bytes() > 1_000_000).then_some(()));
    let overview = hub_server.finish();
    for sender in senders {
        sender.join().expect("the connection ends");
    }
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::DrainTimeout)), 0);
}
