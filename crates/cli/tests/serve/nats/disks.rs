//! A full disk, a read-only folder, a journal of another version: acknowledged messages stay, messages that cannot be
//! stored are refused with the reason, and everything else continues.
//!
//! The small disk is a tmpfs in a mount namespace of its own (`unshare`, `nsenter`), so that it is really full.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use tempfile::TempDir;

use super::faults::publish;
use super::{RawNatsClient, address, records};
use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, Tool, binary, eventually};

on_both_drivers! {
    a_full_disk_makes_its_streams_wait_and_nothing_else,
    a_server_ends_although_its_disk_is_full,
    a_server_whose_disk_is_full_is_succeeded,
    a_folder_that_cannot_be_written_is_named_at_the_start,
}

/// A private file system, invisible outside; it ends with its namespace holder.
struct SmallDisk {
    namespace_holder: Child,
    folder: TempDir,
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.namespace_holder.kill();
        let _ = self.namespace_holder.wait();
    }
}

impl SmallDisk {
    fn new(size: &str) -> SmallDisk {
        let folder = tempfile::tempdir().expect("a folder");
        let script = r#"mount -t tmpfs -o "size=$1" none "$0" && echo mounted && exec cat"#;
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(folder.path()).arg(size);
        // It runs until its input ends, at the latest with this process.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut namespace_holder = command.spawn().expect("unshare runs");
        let mut output_text = String::new();
        BufReader::new(namespace_holder.stdout.take().expect("it is piped"))
            .read_line(&mut output_text)
            .expect("it speaks");
        assert_eq!(output_text, "mounted\n", "a user may mount in a namespace of their own");
        SmallDisk { namespace_holder, folder }
    }

    fn streams(&self) -> String {
        self.folder.path().join("streams").display().to_string()
    }

    fn enter(&self) -> Tool {
        let target = self.namespace_holder.id();
        Tool::new("nsenter", &format!("--user --mount --preserve-credentials --target {target}"))
    }

    fn remount(&self, options: &str) {
        self.enter()
            .arg("mount")
            .arg("-o")
            .arg(format!("remount,{options}"))
            .arg(self.folder.path())
            .output();
    }

    fn serve_command(&self, driver: DriverUnderTest) -> Command {
        let mut command = self.enter().into_command();
        command.arg(binary().get_program()).args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--nats",
            "127.0.0.1:0",
        ]);
        command.args(["--stream", "events=events.>", "--stream", "memory=memory.>:memory"]);
        command.args(driver.options()).args(["--data", &self.streams()]);
        command
    }

    fn serve(&self, driver: DriverUnderTest) -> ServerUnderTest {
        ServerUnderTest::spawn(self.serve_command(driver))
    }
}

/// Messages of 400,000 bytes: more than the small disk holds, less than a larger one.
const MESSAGES: usize = 300;

/// Publishes them one by one, each after the acknowledgement of the previous one. Returns their sequences.
fn publish_large(to: SocketAddr) -> Vec<u64> {
    let mut sequences = Vec::new();
    publish_large_into(to, |sequence| sequences.push(sequence));
    sequences
}

/// The same, with a callback for each acknowledged sequence.
fn publish_large_into(to: SocketAddr, mut acknowledged: impl FnMut(u64)) {
    let mut client = RawNatsClient::connect(to);
    client.send("SUB large 1\r\n");
    let zeros = "0".repeat(400_000 - 4);
    for number in 0..MESSAGES {
        client.send(format!("PUB events.a large 400000\r\n{zeros}{number:04}\r\n"));
        let line = client.line();
        assert!(line.starts_with("MSG large 1 "), "{line}");
        let json = client.line();
        let sequence = json.split("\"seq\":").nth(1).and_then(|rest| rest.trim_end_matches('}').parse().ok());
        acknowledged(sequence.unwrap_or_else(|| panic!("no sequence in {json}")));
    }
}

/// Row 0.14: a stream on a full disk waits, others do not; with room it continues without a restart.
fn a_full_disk_makes_its_streams_wait_and_nothing_else(driver: DriverUnderTest) {
    let disk = SmallDisk::new("100m");
    let server = disk.serve(driver);
    let to = address(&server);
    let publisher = thread::spawn(move || publish_large(to));
    let ready = || server.connect().ask("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n");
    let refusal = eventually("the disk is full", || Some(ready()).filter(|answer| answer.status == 503));
    assert!(refusal.text().contains("the stream events is waiting for disk space"), "{refusal:?}");
    assert!(refusal.text().contains("No space left"), "{refusal:?}");
    // Waiting messages are not refused, nor are requests for readiness.
    let status = server.connect().ask("GET /status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!status.text().contains("<h2>Refused</h2>"), "{status:?}");
    // Streams in memory, plain subjects and readers continue.
    let mut client = RawNatsClient::connect(to);
    client.send("SUB inbox.* 1\r\nSUB other 2\r\n");
    assert_eq!(publish(&mut client, "memory.a", 0..10), (1..=10).collect::<Vec<_>>());
    client.send("PUB other 1\r\ny\r\n");
    assert_eq!(client.lines(2), ["MSG other 2 1", "y"]);
    assert_eq!(records(to, "events", 10).0.len(), 10);
    assert_eq!(server.connect().ask("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert!(!publisher.is_finished(), "what has no room is not acknowledged");
    disk.remount("size=200m");
    let sequences = publisher.join().expect("all are acknowledged");
    assert_eq!(sequences, (1..=MESSAGES as u64).collect::<Vec<_>>());
    assert_eq!(ready().status, 200);
    drop(client);
    server.finish();

    let server = disk.serve(driver);
    let (there, behind) = records(address(&server), "events", MESSAGES);
    let there: Vec<u64> = there.into_iter().map(|(at, _)| at).collect();
    assert_eq!((there, behind), (sequences, 0));
    server.finish();
}

/// Row 4.37: messages without room are not acknowledged, and do not prevent the server from ending.
fn a_server_ends_although_its_disk_is_full(driver: DriverUnderTest) {
    let disk = SmallDisk::new("100m");
    for hub_thread in ["shard", "dedicated"] {
        let mut command = disk.serve_command(driver);
        command.args(["--hub-thread", hub_thread]);
        let server = ServerUnderTest::spawn(command);
        let to = address(&server);
        // Its connection ends with the server.
        let publisher = thread::spawn(move || publish_large(to));
        let ready = || server.connect().ask("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n");
        eventually("the disk is full", || Some(ready()).filter(|answer| answer.status == 503));
        server.finish();
        assert!(publisher.join().is_err(), "not all are acknowledged");
    }
}

/// Rows 4.37, 0.4: the successor of a server with a full disk serves everything but its streams on disk, and those when
/// the old server has found room; each acknowledged message is stored once, in the order of the acknowledgements.
fn a_server_whose_disk_is_full_is_succeeded(driver: DriverUnderTest) {
    let disk = SmallDisk::new("100m");
    let control = tempfile::tempdir().expect("a folder");
    let command = || {
        let mut command = disk.serve_command(driver);
        command.args(["--drain-timeout", "300", "--take-over"]).arg(control.path().join("control"));
        command
    };
    let old = ServerUnderTest::spawn(command());
    let to = address(&old);
    let (acknowledged, sequences) = mpsc::channel();
    // Its connection ends with the old server.
    let publisher = thread::spawn(move || {
        publish_large_into(to, |sequence| acknowledged.send(sequence).expect("the test goes on"));
    });
    let ready = || old.connect().ask("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the disk is full", || Some(ready()).filter(|answer| answer.status == 503));
    let mut command = command();
    command.args(["--listen", "127.0.0.2:0"]);
    let new = ServerUnderTest::spawn(command);
    let own = new.addresses()[1];
    let publish = |subject: &str| {
        let head = format!("POST /publish/{subject} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\ny");
        TestPeer::try_connect(own).ok().map(|mut peer| peer.ask(head))
    };
    eventually("streams in memory work", || publish("memory.a").filter(|answer| answer.status == 200));
    let refusal = publish("events.b").expect("it listens");
    assert_eq!(refusal.status, 503);
    assert!(refusal.text().contains("the stream events"), "{}", refusal.text());
    disk.remount("size=200m");
    eventually("the stream is open", || publish("events.b").filter(|answer| answer.status == 200));
    old.expect_clean_end();
    assert!(publisher.join().is_err(), "its connection has ended");
    let acknowledged: Vec<u64> = sequences.into_iter().collect();
    assert!(acknowledged.len() > 10, "{acknowledged:?}");
    // The successor's message follows the acknowledged ones, perhaps after one with a lost acknowledgement.
    let (there, behind) = records(address(&new), "events", acknowledged.len() + 1);
    assert!(behind <= 1, "{behind} are behind");
    let large = |payload: &str| (payload.len() == 400_000).then(|| payload.parse().expect("a number"));
    let stored: Vec<(u64, Option<usize>)> = there.iter().map(|(at, payload)| (*at, large(payload))).collect();
    let expected: Vec<_> = acknowledged.iter().copied().zip((0..).map(Some)).collect();
    let (last, before) = stored.split_last().expect("there is one");
    assert_eq!(before, expected);
    let unacknowledged = (behind == 1).then_some(expected.len());
    assert_eq!(last.1, unacknowledged);
    new.finish();
}

fn a_folder_that_cannot_be_written_is_named_at_the_start(driver: DriverUnderTest) {
    let disk = SmallDisk::new("100m");
    let server = disk.serve(driver);
    let mut client = RawNatsClient::connect(address(&server));
    client.send("SUB inbox.* 1\r\n");
    publish(&mut client, "events.a", 0..1);
    drop(client);
    server.finish();
    disk.remount("ro");
    let outcome = disk.serve_command(driver).stdin(Stdio::null()).output().expect("it runs");
    let output_text = String::from_utf8_lossy(&outcome.stderr);
    assert!(!outcome.status.success(), "{output_text}");
    assert!(
        output_text.contains(&disk.streams()) && output_text.contains("Read-only file system"),
        "{output_text}"
    );
}

/// Writes another format version into a segment's header, as a later program would have done.
fn change_version(segment: &Path) {
    let file = fs::File::options().read(true).write(true).open(segment).expect("it is ours");
    let mut header = vec![0; 4096];
    file.read_exact_at(&mut header, 0).expect("it has a header");
    header[8] = 2;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..]);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&header, 0).expect("it is ours");
}

#[test]
fn a_journal_of_another_version_is_left_alone() {
    let fixture = super::NatsServerFixture::start(DriverUnderTest::Poll, "");
    let mut client = fixture.client();
    client.send("SUB inbox.* 1\r\n");
    publish(&mut client, "events.a", 0..3);
    drop(client);
    let super::NatsServerFixture { server, data } = fixture;
    server.finish();
    let streams = data.path().join("streams");
    let segment = streams.join("events").join("00000000000000000001.segment");
    change_version(&segment);
    let before = fs::read(&segment).expect("it is ours");
    let mut command = binary();
    command.args(["serve", "--listen", "127.0.0.1:0", "--nats", "127.0.0.1:0", "--data"]).arg(&streams);
    let outcome = command.stdin(Stdio::null()).output().expect("it runs");
    let output_text = String::from_utf8_lossy(&outcome.stderr);
    assert!(!outcome.status.success(), "{output_text}");
    assert!(output_text.contains("has format 2 and this program reads format 1"), "{output_text}");
    assert!(fs::read(&segment).expect("it is ours") == before, "it is as it was");
}
