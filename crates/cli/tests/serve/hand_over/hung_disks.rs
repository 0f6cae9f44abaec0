//! Hand-over of a server with a hung disk: strace holds the thread that writes the streams inside a system call.

use std::sync::atomic::AtomicU64;

use super::load::{self, LoadPublisher};
use super::*;
use crate::nats::{RawNatsClient, address as nats_address};
use crate::support::DiskFault;

on_both_drivers!(a_server_whose_disk_hangs_is_succeeded,);

/// Rows 4.37, 0.4: the successor of a server with a hung disk serves streams in memory and plain subjects, and refuses
/// messages for streams on disk with a retryable error; answers keep their order. When the disk answers, each
/// acknowledged message is stored once, and no refusal is final.
fn a_server_whose_disk_hangs_is_succeeded(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let streams = "--stream events=events.>:disk --stream other=other.>:disk --stream mem=mem.>:memory";
    let common = format!("-A 1 --drain-timeout 300 {streams} --data {}", data.path().display());
    let old = control_folder.start_first(driver, &format!("--nats 127.0.0.1:0 {common}"));
    let (http, nats) = (old.address(), nats_address(&old));
    let (done, refusals) = (AtomicBool::new(false), AtomicU64::new(0));
    let (new, sent) = thread::scope(|scope| {
        let (done, refusals) = (&done, &refusals);
        let start = |name| {
            let publisher = LoadPublisher::new(nats, name).counting_refusals(refusals);
            scope.spawn(move || publisher.run(done))
        };
        let before = start("n");
        old.watch().until("messages come", |metrics| metrics.value("hub_messages_total") > 20);
        let disk = DiskFault::hang(&old);
        disk.hangs();
        let own = "--nats 127.0.0.1:0 --listen 127.0.0.1:0";
        let new = control_folder.start_successor(driver, http, &format!("--nats {nats} {own} {common}"));
        let own = new.banner_lines("listening nats://")[1].parse().expect("an address");
        drop(eventually("the successor is the server", || TestPeer::try_connect(own).ok()));
        let mut client = RawNatsClient::connect(own);
        client.send("SUB answers.> 1\r\nSUB plain 2\r\n");
        let subjects = ["mem.a", "events.a", "mem.b", "other.a", "mem.c"];
        let publish = |client: &mut RawNatsClient| {
            let text =
                subjects.map(|subject| format!("PUB {subject} answers.{subject} 3\r\nh-0\r\nPING\r\n"));
            client.send(text.concat());
            // Per message: the head and the text of its answer, and a PONG.
            client.lines(3 * subjects.len())
        };
        let lines = publish(&mut client);
        assert!(lines.chunks(3).all(|of| of[0].starts_with("MSG answers.") && of[2] == "PONG"), "{lines:?}");
        let answers = lines.chunks(3).map(|of| &of[1]);
        for (answer, subject) in answers.zip(subjects) {
            if subject.starts_with("mem.") {
                assert!(answer.contains("\"seq\":"), "{subject}: {answer}");
            } else {
                let is_retryable = answer.contains("\"code\":503") && answer.contains("\"err_code\":10023");
                assert!(is_retryable && answer.contains("has not released it yet"), "{subject}: {answer}");
            }
        }
        client.send("PUB plain 1\r\ny\r\n");
        assert_eq!(client.lines(2), ["MSG plain 2 1", "y"]);
        let after = start("m");
        eventually("a publication is refused", || (refusals.load(Ordering::Acquire) > 0).then_some(()));
        drop(disk);
        old.expect_clean_end();
        let mut watcher = new.watch();
        let before_it = watcher.fetch().value("hub_messages_total");
        watcher.until("messages come", |metrics| metrics.value("hub_messages_total") > before_it + 100);
        // A PONG does not wait for the disk.
        let lines = publish(&mut client);
        let count = |wanted: &str| lines.iter().filter(|line| line.contains(wanted)).count();
        assert_eq!((count("\"seq\":"), count("PONG")), (subjects.len(), subjects.len()), "{lines:?}");
        drop((watcher, client));
        done.store(true, Ordering::Release);
        (
            new,
            [("n", before), ("m", after)]
                .map(|(name, thread)| (name, thread.join().expect("it does not fail"))),
        )
    });
    new.finish();
    let sent = [sent.as_slice(), &[("h", 1)]].concat();
    load::expect_stored_once(data.path(), &sent);
    assert_eq!(load::stored(data.path(), "other"), [("h-0".to_owned(), 1)].into());
}
