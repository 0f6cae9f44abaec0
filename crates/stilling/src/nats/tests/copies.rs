//! Copies of long payloads in user space, from the memory that the driver received into to the memory that it sends
//! from and the journal writes from.
//!
//! A copy is a change of the address between two of: received, in the hub's publication batch, delivered, sent. (The
//! way of an incomplete message from its receive buffer through the shard's store into a block is one change.)

use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Journal, JournalLimits, Log, LogConfig, Replay};

use super::recording::{RecordedRanges, RecordingDisk};
use super::*;
use crate::hub::testing::hub_with_storage;

/// As long as a receive buffer: only the first message of a burst begins in one.
const LONG: usize = 4096;

const BURST: usize = 14;

fn stream(durability: Durability) -> StreamConfig {
    StreamConfig {
        name: "kept".to_owned(),
        subjects: vec!["kept.>".to_owned()],
        durability,
        ..StreamConfig::default()
    }
}

/// A server with a stream for `kept.>` on a disk whose journal runs in the shard's turns.
fn with_disk_stream() -> NatsFixture {
    let recorder = Recorder::default();
    let disk = RecordingDisk { disk: SimulatedDisk::new(), recorder: recorder.clone() };
    let (log, _) = Log::open(disk, "kept", LogConfig::default()).expect("an empty disk");
    let (sources, wake) = (vec![log.source()], Arc::new(Wake::new(|| ())));
    let now = Instant::now();
    let (journal, worker) =
        Journal::stepped(vec![log], JournalLimits::default(), &wake, now).expect("one stream");
    let (replay, _) = Replay::stepped(sources, 1, wake);
    let storage = JournalStorage::new(journal, replay);
    let streams = vec![stream(Durability::Disk)];
    let mut fixture = NatsFixture::with_hub(hub_with_storage(streams, storage), recorder);
    fixture.shard.service().journal = Some((worker, now));
    fixture
}

/// The address of the byte at `offset` of all ranges in order.
fn address_at(ranges: &[Range<usize>], mut offset: usize) -> usize {
    for range in ranges {
        if offset < range.len() {
            return range.start + offset;
        }
        offset -= range.len();
    }
    panic!("{offset} bytes too few")
}

/// Publishes `count` messages in one write. Returns the number of copies of each payload: of its first byte or of its
/// last one, whichever has more.
fn copies(fixture: &mut NatsFixture, subject: &str, count: usize, size: usize) -> Vec<usize> {
    let mut subscriber = fixture.client(&format!("CONNECT {{}}\r\nSUB {subject} 1\r\nPING\r\n"));
    let mut publisher = fixture.client("CONNECT {}\r\nPING\r\n");
    let (recorder, service) = (fixture.recorder.clone(), fixture.shard.service());
    recorder.take();
    (service.published, service.shared, service.copied) = (BTreeMap::new(), BTreeMap::new(), 0);
    let (mut input, mut expected, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    let payloads: Vec<Vec<u8>> = (0..count).map(|number| format!("{number:0size$}").into_bytes()).collect();
    for payload in &payloads {
        input.extend_from_slice(format!("PUB {subject} {size}\r\n").as_bytes());
        expected.extend_from_slice(format!("MSG {subject} 1 {size}\r\n").as_bytes());
        offsets.push((input.len(), expected.len()));
        for all in [&mut input, &mut expected] {
            all.extend_from_slice(payload);
            all.extend_from_slice(b"\r\n");
        }
    }
    publisher.write_all(&input).expect("the buffers of the system take it");
    assert!(fixture.read(&mut subscriber, |text| text.len() >= expected.len()) == expected);
    let RecordedRanges { received, sent, written, incomplete_sends } = recorder.take();
    assert_eq!(incomplete_sends, 0, "the buffers of the system take it");
    // Without the publisher's +OK.
    let (subscribed, _) = *sent.last().expect("something was sent");
    let sent: Vec<_> =
        sent.into_iter().filter(|(token, _)| *token == subscribed).map(|(_, range)| range).collect();
    let service = fixture.shard.service();
    assert_eq!(service.copied, 0, "long payloads are delivered by reference");
    let copies_of = |(payload, (from, to)): (&Vec<u8>, (usize, usize))| {
        let copies_at = |at: usize| {
            let path = [
                address_at(&received, from + at),
                service.published[payload] + at,
                service.shared[payload] + at,
                address_at(&sent, to + at),
            ];
            let is_written = written.iter().any(|range| range.contains(&path[3]));
            assert_eq!(is_written, service.journal.is_some(), "the journal writes what is delivered");
            path.windows(2).filter(|pair| pair[0] != pair[1]).count()
        };
        copies_at(0).max(copies_at(size - 1))
    };
    payloads.iter().zip(offsets).map(copies_of).collect()
}

/// The first message of a burst begins in a small receive buffer; the others are received into a block.
fn burst(copies_of_first: usize) -> Vec<usize> {
    (0..BURST).map(|number| if number == 0 { copies_of_first } else { copies_of_first - 1 }).collect()
}

/// Design, section 4: a payload of a streaming connection is not copied, and one from a small receive buffer once.
#[test]
fn a_message_without_a_stream_is_copied_only_from_a_small_receive_buffer() {
    let mut fixture = NatsFixture::new();
    assert_eq!(copies(&mut fixture, "plain", BURST, LONG), burst(1));
    assert_eq!(copies(&mut fixture, "plain", 1, SHARED_MIN), [1]);
}

/// Design, section 4: a stream in memory copies each payload once, into its log.
#[test]
fn a_message_to_a_stream_in_memory_is_copied_once_more() {
    let mut fixture = NatsFixture::with_streams(vec![stream(Durability::Memory)]);
    assert_eq!(copies(&mut fixture, "kept.a", BURST, LONG), burst(2));
    assert_eq!(copies(&mut fixture, "kept.a", 1, SHARED_MIN), [2]);
}

/// Design, section 4: a stream on disk copies each payload once, into the batch that is written and delivered from.
#[test]
fn a_message_to_a_stream_on_disk_is_copied_once_more() {
    let mut fixture = with_disk_stream();
    assert_eq!(copies(&mut fixture, "kept.a", BURST, LONG), burst(2));
    assert_eq!(copies(&mut fixture, "kept.a", 1, SHARED_MIN), [2]);
}
