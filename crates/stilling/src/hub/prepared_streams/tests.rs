//! Directories that are missing, cannot be opened yet, or are held by another server.

use stilling_hub::{ClientOptions, HubRequest, Ingress, Loss, Now, Publication, PublicationBatch};
use stilling_journal::{Batch, Record};
use stilling_ring::mailbox;

use super::super::limits::OPEN_CHECK_INTERVAL;
use super::super::runner::connect;
use super::super::stream_opener::{EventSender, OpeningEvent};
use super::*;
use crate::lifecycle::WallClock;

const KEY: HashKey = HashKey(1, 2);

fn folder_at(data: &Path) -> StreamFolder {
    StreamFolder::new(data.to_owned(), WriteMethodChoice::Auto, 1024)
}

fn open(data: &Path) -> PreparedStreams {
    PreparedStreams::open(HubConfig::default(), folder_at(data), UnixNanos::EPOCH).expect("it opens")
}

/// A hub that runs on the test's thread.
struct OpeningTestHub {
    hub: Hub<LazyJournal, MailboxSenders>,
    wake: Arc<Wake>,
    lifecycle: Arc<Lifecycle>,
    _ports: Vec<super::super::HubPort>,
}

impl OpeningTestHub {
    fn of(streams: PreparedStreams) -> Result<OpeningTestHub, ServeError> {
        let own = thread::current();
        let wakes = [Arc::new(Wake::new(|| ())), Arc::new(Wake::new(move || own.unpark()))];
        let opening_thread = OpeningThread::default();
        let opening = Arc::new(Wake::for_thread(&opening_thread));
        let lifecycle = Arc::new(Lifecycle::new(vec![opening], WallClock::System));
        lifecycle.begin_succession(crate::lifecycle::HandoverStage::PathTaken);
        let (ports, shard_senders, _shard_receivers) = connect(&wakes[..1], &wakes[1], HashKey(1, 2));
        let environment = HubEnvironment {
            wake: &wakes[1],
            lifecycle: &lifecycle,
            opening_thread: &opening_thread,
            report: |_| (),
        };
        let hub = streams.start(shard_senders, 1, (KEY, UnixNanos::EPOCH, Instant::now()), &environment)?;
        Ok(OpeningTestHub { hub, wake: Arc::clone(&wakes[1]), lifecycle, _ports: ports })
    }

    /// Publishes messages with these ids and waits until all are processed.
    fn publish(&mut self, ids: std::ops::Range<u32>) {
        let mut publication_batch = PublicationBatch::new();
        for id in ids {
            let headers = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
            let publication = Publication {
                ingress: Ingress::Nats,
                subject: b"events.a",
                reply: b"",
                headers: headers.as_bytes(),
                payload: b"y".into(),
                ticket: Some(1),
            };
            publication_batch.push(1, ClientOptions::default(), &HubRequest::Publish(publication));
        }
        let mut at = 0;
        while at < publication_batch.len() || !self.hub.is_drained() {
            self.hub.poll_storage(Now::simulated(1));
            at = self.hub.process_requests(0, &publication_batch, at, Now::simulated(1));
            self.hub.flush();
            self.wake.set_parked();
            if self.hub.is_quiet() && (at < publication_batch.len() || !self.hub.is_drained()) {
                thread::park();
            }
            self.wake.clear_parked();
        }
        self.hub.flush();
    }

    fn lost(&self) -> u64 {
        self.hub.counters().losses(Ingress::Nats, Loss::Hung)
    }

    fn last(&self) -> u64 {
        self.hub.counters().streams[0].visible.get()
    }
}

/// Writes records of another process to the stream `events`, with message ids from 0 on.
fn write_records(data: &Path, count: u64) {
    let disk = FileDisk::open_or_create(&data.join("events")).expect("a directory");
    let (mut log, _) = Log::open(disk, "events", LogConfig::default()).expect("it opens");
    let mut batch = Batch::new(256 * 1024);
    batch.begin(log.next(), 1);
    for id in 0..count {
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let record = Record { headers: headers.as_bytes(), ..Record::new(b"events.a", b"x") };
        batch.push(&record).expect("there is room");
    }
    log.append(std::slice::from_mut(&mut batch)).expect("it is written");
    log.close().expect("it is closed");
}

/// Row 2.15: a directory that is missing at the start is opened with its later contents: the stream continues after
/// its records and knows their message ids.
#[test]
fn a_directory_that_appears_with_records_is_continued() {
    let folder = tempfile::tempdir().expect("a directory");
    let data = folder.path().join("data");
    let mut test_hub = OpeningTestHub::of(open(&data)).expect("it starts");
    write_records(&data, 500);
    test_hub.publish(499..503);
    assert_eq!((test_hub.last(), test_hub.hub.counters().duplicates.get()), (503, 1));
    drop(test_hub);
    let StreamDirectories::Open { recoveries, .. } = open(&data).directories else { panic!("it is there") };
    assert_eq!(recoveries[0].next, 504);
}

/// Row 2.15: while a directory cannot be made, publications are lost; afterwards none are.
#[test]
fn a_directory_that_cannot_be_made_is_tried_again() {
    let folder = tempfile::tempdir().expect("a directory");
    let data = folder.path().join("data");
    let mut test_hub = OpeningTestHub::of(open(&data)).expect("it starts");
    fs::write(&data, "in the way").expect("a file");
    test_hub.publish(0..3);
    assert_eq!((test_hub.lost(), test_hub.last()), (3, 0));
    fs::remove_file(&data).expect("it is ours");
    while test_hub.last() == 0 {
        test_hub.publish(0..1);
        thread::park_timeout(OPEN_CHECK_INTERVAL);
    }
    assert_eq!(test_hub.last(), 1);
}

/// Row 4.37: streams of another server are checked without a lock, and opened with their contents after the release.
/// Until then publications are refused if they are not to wait.
#[test]
fn held_streams_are_opened_when_they_are_released() {
    let folder = tempfile::tempdir().expect("a directory");
    write_records(folder.path(), 3);
    let predecessor = open(folder.path());
    let held = PreparedStreams::held_by_predecessor(HubConfig::default(), folder_at(folder.path()))
        .expect("it is readable");
    let mut test_hub = OpeningTestHub::of(held).expect("it starts");
    assert!(!test_hub.hub.storage_mut().is_open());
    test_hub.hub.storage_mut().refuse_until_open("it is not released");
    test_hub.publish(10..12);
    assert_eq!((test_hub.lost(), test_hub.last()), (2, 0));
    // More records than at the check.
    drop(predecessor);
    write_records(folder.path(), 2);
    test_hub.lifecycle.reach(crate::lifecycle::HandoverStage::Released);
    while test_hub.last() < 5 {
        assert!(!test_hub.hub.storage_mut().is_open() || test_hub.hub.storage_mut().has_opening_event());
        thread::park_timeout(OPEN_CHECK_INTERVAL);
        test_hub.hub.poll_storage(Now::simulated(1));
        test_hub.hub.flush();
    }
    test_hub.publish(2..4);
    assert_eq!((test_hub.last(), test_hub.hub.counters().duplicates.get()), (6, 1));
}

/// Row 4.37: a directory that cannot be written fails the hand-over before anything has changed.
#[test]
fn held_streams_that_cannot_be_written_are_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("file");
    fs::write(&file, "in the way").expect("our folder");
    let error = PreparedStreams::held_by_predecessor(HubConfig::default(), folder_at(&file))
        .err()
        .expect("it is refused");
    assert!(error.to_string().contains("Not a directory"), "{error}");
}

/// With an incomplete window, repeated messages would be stored again.
#[test]
fn an_unreadable_deduplication_window_prevents_the_start() {
    let folder = tempfile::tempdir().expect("a directory");
    write_records(folder.path(), 3);
    let opened = open(folder.path());
    let files = fs::read_dir(folder.path().join("events")).expect("it is there");
    for file in files.map(|file| file.expect("a file").path()) {
        if file.extension().is_some_and(|extension| extension == "segment") {
            fs::remove_file(file).expect("it can be removed");
        }
    }
    let error = OpeningTestHub::of(opened).err().expect("it does not start");
    assert!(error.to_string().contains("cannot read") && error.to_string().contains("events"), "{error}");
}

/// An event is never dropped: it waits until the hub has taken those before it.
#[test]
fn an_event_waits_for_room() {
    const EVENTS: usize = 3;
    let (events, mut opened) = mailbox(1);
    let mut events = EventSender::new(events, Arc::new(Wake::new(|| ())));
    let mut sent = 0;
    let mut streams = Vec::new();
    while streams.len() < EVENTS {
        while sent < EVENTS && events.flush() {
            let failed = vec![(sent, "a reason".into())];
            events.send(OpeningEvent::Round { threads: None, opened: Vec::new(), failed });
            sent += 1;
        }
        match opened.pop() {
            Some(OpeningEvent::Round { failed, .. }) => {
                streams.extend(failed.iter().map(|&(stream, _)| stream));
            }
            Some(OpeningEvent::Absent(..)) => panic!("nothing is absent"),
            None => assert!(events.flush(), "there is room"),
        }
    }
    assert_eq!(streams, [0, 1, 2]);
}
