//! The de-duplication window: recognised message ids, their time, and the rebuild after a restart.

use stilling_hub::limits::{DEDUP_TIME_NS, DISK_STALL_TIMEOUT_NS};
use stilling_hub::{ClientId, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::fixture::{HubFixture, publish_with};
use crate::fixture_requests::publish;

const ALICE: ClientId = ClientId { shard: 0, token: 1 };

const HOUR_NS: u64 = 3_600_000_000_000;

/// More records than an earlier limit of the window.
const MANY: u64 = 100_001;

fn headers(id: &str) -> String {
    format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n")
}

fn is_duplicate(fixture: &mut HubFixture, subject: &str, id: &str) -> bool {
    let before = fixture.hub.counters().duplicates.get();
    fixture.ask_all(ALICE, &[publish_with(subject, "x", "", &headers(id))]);
    fixture.run_until_settled();
    fixture.hub.counters().duplicates.get() > before
}

/// Publishes at least `count` messages without ids.
fn publish_many(fixture: &mut HubFixture, subject: &str, count: u64) {
    let requests: Vec<HubRequest<'_>> = (0..500).map(|_| publish(subject, "x")).collect();
    for _ in 0..count.div_ceil(500) {
        fixture.ask_all(ALICE, &requests);
        fixture.run_until_settled();
    }
}

/// Row 0.14: a client retries after seconds, in which a burst may bring any number of messages.
#[test]
fn an_id_is_known_however_many_messages_without_one_come_after_it() {
    for subject in ["disk.a", "memory.a", "none.a"] {
        let mut fixture = HubFixture::new();
        assert!(!is_duplicate(&mut fixture, subject, "q"));
        publish_many(&mut fixture, subject, MANY);
        assert!(is_duplicate(&mut fixture, subject, "q"), "{subject}");
        fixture.advance_time(DEDUP_TIME_NS - 1);
        assert!(is_duplicate(&mut fixture, subject, "q"), "{subject}: within the time");
    }
}

/// The time starts with the stored message; duplicates do not extend it.
#[test]
fn an_id_expires_by_the_monotonic_clock() {
    for (what, set_back_ns) in [("as it was", 0), ("set back", HOUR_NS)] {
        let mut fixture = HubFixture::new();
        for subject in ["disk.a", "memory.a"] {
            assert!(!is_duplicate(&mut fixture, subject, "q"));
        }
        fixture.set_back_ns = set_back_ns;
        fixture.advance_time(DEDUP_TIME_NS - 1);
        assert!(is_duplicate(&mut fixture, "disk.a", "q"), "the calendar is {what}");
        fixture.advance_time(1);
        for subject in ["disk.a", "memory.a"] {
            assert!(!is_duplicate(&mut fixture, subject, "q"), "the calendar is {what}: its time is over");
        }
        assert_eq!(fixture.hub.counters().streams[0].last.get(), 2);
        assert_eq!(fixture.hub.counters().streams[0].ids.get(), 1);
    }
}

#[test]
fn a_calendar_that_is_set_forward_forgets_nothing() {
    let mut fixture = HubFixture::new();
    fixture.set_back_ns = HOUR_NS;
    assert!(!is_duplicate(&mut fixture, "disk.a", "q"));
    fixture.set_back_ns = 0;
    assert!(is_duplicate(&mut fixture, "disk.a", "q"));
}

/// Without other work the hub wakes up to free expired ids, then sleeps.
#[test]
fn memory_of_expired_ids_is_freed_without_further_messages() {
    let mut fixture = HubFixture::new();
    assert!(!is_duplicate(&mut fixture, "memory.a", "q"));
    let span = fixture.hub.next_check_in().expect("an id will expire");
    assert!(u128::from(DEDUP_TIME_NS) >= span.as_nanos() && span.as_nanos() > 0, "{span:?}");
    fixture.advance_time(DEDUP_TIME_NS);
    fixture.turn();
    assert_eq!((fixture.hub.next_check_in(), fixture.hub.counters().streams[1].ids.get()), (None, 0));
}

/// Row 0.14: the window is the same after a crash, over many segments, for any downtime and any change of the calendar.
#[test]
fn the_window_is_rebuilt_after_a_crash_from_the_first_id_on() {
    for (what, later_ns, set_back_ns) in
        [("at once", 0, 0), ("an hour later", HOUR_NS, 0), ("with the calendar set back", 0, HOUR_NS)]
    {
        let disk = SimulatedDisk::new();
        let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
        assert!(!is_duplicate(&mut fixture, "disk.a", "old"));
        publish_many(&mut fixture, "disk.a", 20_000);
        fixture.advance_time(DEDUP_TIME_NS);
        assert!(!is_duplicate(&mut fixture, "disk.a", "early"));
        publish_many(&mut fixture, "disk.a", MANY);
        fixture.advance_time(DEDUP_TIME_NS / 2);
        assert!(!is_duplicate(&mut fixture, "disk.a", "late"));
        let (now_ns, last) = (fixture.now_ns, fixture.hub.counters().streams[0].last.get());
        // A crash leaves no clean end of the log.
        let crashed = SimulatedDisk::with_files(disk.files());
        drop(fixture);
        let (mut fixture, recovery) = HubFixture::on(&crashed, 8, 1 << 20);
        assert!((20_002..last).contains(&recovery.deduplicate_from), "{what}: {recovery:?}");
        (fixture.now_ns, fixture.set_back_ns) = (now_ns + later_ns, set_back_ns);
        for (id, expected) in [("old", false), ("early", true), ("late", true)] {
            assert_eq!(is_duplicate(&mut fixture, "disk.a", id), expected, "{what}: {id}");
        }
        // "early" was half the time older than "late"; its batch may have been open for as long as the stall timeout of
        // the disk.
        fixture.advance_time(DEDUP_TIME_NS / 2 + DISK_STALL_TIMEOUT_NS);
        for (id, expected) in [("early", false), ("late", true)] {
            assert_eq!(is_duplicate(&mut fixture, "disk.a", id), expected, "{what}, later: {id}");
        }
        fixture.advance_time(DEDUP_TIME_NS / 2 + DEDUP_TIME_NS / 64);
        assert!(!is_duplicate(&mut fixture, "disk.a", "late"), "{what}: its time is over");
    }
}
