//! Costs of a full de-duplication window: the longest turn while it fills, and a start with 1,000,000 ids on disk.
//!
//! `cargo run --release -p stilling-hub --example window -- FOLDER`
//!
//! `FOLDER` is created and removed; it should be on the disk to be measured. Records consist of their ids.
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::path::Path;
use std::time::{Duration, Instant};

use stilling_hub::{
    ClientOptions, Durability, HashKey, Hub, HubConfig, HubRequest, Ingress, JournalStorage, Now,
    Publication, PublicationBatch, RecoveredStream, ResumePoint, Retention, RoutedBatch, ShardSenders,
    StreamConfig, UnixNanos,
};
use stilling_journal::disk::file::FileDisk;
use stilling_journal::{Batch, Log, LogConfig, ReadOutcome, Record, StartAt};

const IDS: u64 = 1_000_000;
const KEY: HashKey = HashKey(1, 2);
const START_NS: u64 = 1_700_000_000_000_000_000;

/// Senders that discard everything at once.
struct DroppingSenders;

impl ShardSenders for DroppingSenders {
    fn swap(&mut self, _: usize, routed_batch: &mut RoutedBatch) -> bool {
        routed_batch.clear();
        true
    }
}

fn headers(number: u64) -> String {
    format!("NATS/1.0\r\nNats-Msg-Id: publisher-1-{number}\r\n\r\n")
}

fn stream(durability: Durability) -> StreamConfig {
    StreamConfig { durability, retention: Retention::of(durability), ..StreamConfig::default() }
}

/// Returns the longest of a million publications with ids, and the total time.
fn fill() -> (Duration, Duration) {
    let config = HubConfig { streams: vec![stream(Durability::None)], ..HubConfig::default() };
    let mut hub =
        Hub::new(config, &[], (JournalStorage::default(), DroppingSenders), 1, (KEY, UnixNanos::EPOCH));
    let (mut publication_batch, mut longest, begun) =
        (PublicationBatch::new(), Duration::ZERO, Instant::now());
    for number in 0..IDS {
        let headers = headers(number);
        publication_batch.clear();
        let message = Publication {
            ingress: Ingress::Nats,
            subject: b"events.a",
            reply: b"",
            headers: headers.as_bytes(),
            payload: b"".into(),
            ticket: None,
        };
        publication_batch.push(1, ClientOptions::default(), &HubRequest::Publish(message));
        let turn = Instant::now();
        assert_eq!(hub.process_requests(0, &publication_batch, 0, Now::simulated(1)), 1);
        longest = longest.max(turn.elapsed());
    }
    hub.flush();
    assert_eq!(hub.counters().streams[0].ids.get(), IDS);
    (longest, begun.elapsed())
}

fn open(folder: &Path) -> Log<FileDisk> {
    let disk = FileDisk::open_or_create(folder).expect("a folder");
    let config = LogConfig { created_ns: START_NS, ..LogConfig::default() };
    Log::open(disk, "events", config).expect("it opens").0
}

/// Writes a stream with a million ids within 100 seconds.
fn write(folder: &Path) {
    let mut log = open(folder);
    let mut batches = [Batch::new(256 * 1024)];
    let mut number = 0;
    while number < IDS {
        batches[0].begin(log.next(), START_NS + number * 100_000);
        while number < IDS {
            let headers = headers(number);
            let record = Record { headers: headers.as_bytes(), ..Record::new(b"events.a", b"") };
            if batches[0].push(&record).is_err() {
                break;
            }
            number += 1;
        }
        log.append(&mut batches).expect("it can be written");
    }
    log.close().expect("it can be ended");
}

fn main() {
    let (longest, all) = fill();
    println!("1,000,000 publications with ids: {all:?}, the longest {longest:?}");

    let folder = std::env::args().nth(1).expect("a folder to be made");
    let folder = Path::new(&folder);
    std::fs::create_dir(folder).expect("a folder that is not there yet");
    write(folder);
    let begun = Instant::now();
    let log = open(folder);
    let opened = begun.elapsed();
    let created_ns = UnixNanos::from_nanos(log.created_ns());
    let resumed = ResumePoint { first: 1, next: log.next(), created_ns };
    let mut recovered = RecoveredStream::new(&stream(Durability::Disk), KEY, resumed);
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    loop {
        match reader.read().expect("it can be read") {
            ReadOutcome::Batch(batch) => recovered.restore_ids(batch),
            ReadOutcome::Gap(gap) => panic!("{gap:?}"),
            ReadOutcome::End => break,
        }
    }
    let rebuilt = begun.elapsed();
    let config = HubConfig { streams: vec![stream(Durability::Disk)], ..HubConfig::default() };
    let mut hub =
        Hub::new(config, &[], (JournalStorage::default(), DroppingSenders), 1, (KEY, UnixNanos::EPOCH));
    hub.open(0, recovered);
    hub.flush();
    assert_eq!(hub.counters().streams[0].ids.get(), IDS);
    drop(log);
    std::fs::remove_dir_all(folder).expect("it was made here");
    println!("start with 1,000,000 ids: opening {opened:?}, with the window {rebuilt:?}");
}
