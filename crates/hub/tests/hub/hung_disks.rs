//! Hung disks: bounded waits of publications and connections, without effect on others.

use stilling_hub::limits::{BATCHES_PER_STREAM_MAX, DISK_CHECK_EVERY_NS, DISK_STALL_TIMEOUT_NS};
use stilling_hub::{ClientId, Durability, HubRequest, Ingress, Loss};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::fixture::{ConnectionOutput, HubFixture, stream};
use crate::fixture_requests::{publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const BOB: ClientId = ClientId { shard: 1, token: 2 };

/// The streams of a disk that never responds refuse in the end what they cannot take; everything else continues. Time
/// in which the process is stopped causes no refusals.
#[test]
fn a_disk_that_hangs_does_not_stop_everything_else_for_ever() {
    let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), 2, 1 << 20);
    fixture.subscribe(ALICE, "inbox.>", "1");
    let payload = "x".repeat(3000);
    let mut requests: Vec<_> = (0..12).map(|_| publish_for("disk.a", &payload, "inbox.1")).collect();
    requests.push(publish_for("memory.a", "other", "inbox.2"));
    requests.push(HubRequest::Barrier);
    let done = fixture.send_until_parked(ALICE, &requests);
    // An hour without a turn.
    for span_ns in [3_600_000_000_000, 1_000_000_000] {
        fixture.advance_time(span_ns);
        fixture.turn();
        assert_eq!((fixture.processed(), fixture.parked()), (done, 1), "it waits");
    }
    for _ in 0..DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS {
        assert!(
            fixture.hub.next_check_in().is_some_and(|span| span.as_nanos() <= DISK_CHECK_EVERY_NS.into())
        );
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.turn();
    }
    assert_eq!((fixture.processed(), fixture.parked()), (13, 0), "it goes on");
    let received = fixture.received(ALICE);
    let hung = (12 - done) as u64;
    assert_eq!(received.matches(r#""code":503,"err_code":10023"#).count() as u64, hung, "{received}");
    assert!(
        received.contains(r#"{"stream":"memory","seq":1}"#) && received.ends_with("PONG\r\n"),
        "{received}"
    );
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::Hung), hung);
    // The disk responds after all: outstanding batches are acknowledged, and the stream continues.
    fixture.run_until_settled();
    fixture.ask_all(ALICE, &[publish_for("disk.a", "afterwards", "inbox.3")]);
    fixture.run_until_settled();
    let received = fixture.received(ALICE);
    assert_eq!(received.matches(r#"{"stream":"disk""#).count(), done + 1, "{received}");
    assert!(received.contains(&format!(r#"{{"stream":"disk","seq":{}}}"#, done + 1)), "{received}");
}

/// Two disk streams, each with its own journal as after a hot restart. The disk of `disk` never responds; that of
/// `other` writes when [`write_other`] is called.
fn one_of_two_disks_hangs() -> HubFixture {
    let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (64, 1 << 20), |streams| {
        streams.push(stream("other", &["other.>"], Durability::Disk));
    });
    fixture.hub.storage_mut().has_separate_writers = true;
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.subscribe(BOB, "reply.>", "1");
    fixture
}

/// Publishes as BOB to the healthy stream and lets its disk write. Returns BOB's output.
fn write_other(fixture: &mut HubFixture) -> String {
    fixture.ask_all(BOB, &[publish_for("other.a", "x", "reply.1")]);
    fixture.turn();
    let waiting = &mut fixture.hub.storage_mut().waiting;
    let other = waiting.iter().position(|(stream, ..)| *stream == 3).expect("it was handed over");
    waiting.swap(0, other);
    fixture.hub.storage_mut().complete_write();
    fixture.turn();
    fixture.received(BOB)
}

fn one_journal_for_two_streams() -> HubFixture {
    let mut fixture = one_of_two_disks_hangs();
    fixture.hub.storage_mut().has_separate_writers = false;
    fixture
}

/// Advances time second by second, with a turn each, until a disk counts as hung.
fn exceed_stall_timeout(fixture: &mut HubFixture) {
    for _ in 0..=DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS {
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.turn();
    }
}

/// Row 2.5: one of two disks hangs. Publications to the other stream are always stored, and those to the hung one are
/// refused after the same time as without the other. Later requests of the same connection then continue.
#[test]
fn a_disk_that_hangs_beside_one_that_answers_is_given_up_in_bounded_time() {
    let mut fixture = one_of_two_disks_hangs();
    let payload = "x".repeat(6000);
    let mut requests: Vec<_> = (0..40).map(|_| publish_for("disk.a", &payload, "inbox.1")).collect();
    requests.push(publish_for("memory.a", "behind", "inbox.2"));
    let done = fixture.send_until_parked(ALICE, &requests);
    assert_eq!(done, BATCHES_PER_STREAM_MAX, "one record fits into a batch");
    let (mut seconds, hung) = (0, requests.len() - 1 - done);
    while fixture.parked() > 0 {
        assert!(seconds <= 1 + DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS, "it waits after {seconds} s");
        let received = write_other(&mut fixture);
        seconds += 1;
        assert!(received.contains(&format!(r#"{{"stream":"other","seq":{seconds}}}"#)), "{received}");
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.turn();
    }
    assert!(seconds >= DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS, "refused after {seconds} s");
    let received = fixture.received(ALICE);
    assert_eq!(received.matches(r#""code":503,"err_code":10023"#).count(), hung, "{received}");
    assert!(received.contains(r#"{"stream":"memory","seq":1}"#), "{received}");
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::Hung), hung as u64);
    let received = write_other(&mut fixture);
    assert!(
        received.contains(r#"{"stream":"other","seq":"#),
        "it is not refused with the hung one: {received}"
    );
}

/// Row 2.5: a closing connection with messages that wait for the hung disk keeps its slot no longer than the stall
/// timeout, and a later one waits only for the healthy disk.
#[test]
fn one_of_two_disks_that_hangs_does_not_hold_closing_connections() {
    let mut fixture = one_of_two_disks_hangs();
    fixture.ask_all(ALICE, &[publish_for("disk.a", "never written", "inbox.1"), HubRequest::CloseAfterAcks]);
    fixture.turn();
    for second in 0..DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS {
        assert!(
            !fixture.outputs(ALICE).contains(&ConnectionOutput::Close),
            "it is waited for, after {second} s"
        );
        write_other(&mut fixture);
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.turn();
    }
    assert!(fixture.outputs(ALICE).contains(&ConnectionOutput::Close));
    let carol = ClientId { shard: 0, token: 3 };
    fixture.subscribe(carol, "answers", "1");
    fixture.ask_all(carol, &[publish_for("other.a", "x", "answers"), HubRequest::CloseAfterAcks]);
    fixture.turn();
    assert!(!fixture.outputs(carol).contains(&ConnectionOutput::Close), "its own message is not written");
    write_other(&mut fixture);
    let outputs = fixture.outputs(carol);
    let is_answer = |outputs: &ConnectionOutput| matches!(outputs, ConnectionOutput::Text(text) if text.contains(r#"{"stream":"other""#));
    assert!(outputs.iter().any(is_answer) && outputs.last() == Some(&ConnectionOutput::Close), "{outputs:?}");
    // The disk responds after all, and no connection is closed twice.
    let waiting = fixture.hub.storage_mut().waiting.len();
    (0..waiting).for_each(|_| fixture.hub.storage_mut().complete_write());
    fixture.turn();
    assert!(
        !fixture.outputs(ALICE).contains(&ConnectionOutput::Close)
            && !fixture.outputs(carol).contains(&ConnectionOutput::Close)
    );
    assert!(fixture.hub.is_drained());
    assert_eq!(fixture.hub.counters().streams[0].pending.get(), 0);
}

/// Row 2.5: a stream with nothing to store while another disk hangs does not count as hung: a burst that fills its
/// batches waits, and a connection that closes after it gets its answers.
#[test]
fn a_disk_that_hangs_refuses_nothing_of_another_that_was_idle() {
    let mut fixture = one_of_two_disks_hangs();
    let payload = "x".repeat(6000);
    let to_hung: Vec<_> = (0..40).map(|_| publish_for("disk.a", &payload, "inbox.1")).collect();
    assert_eq!(fixture.send_until_parked(ALICE, &to_hung), BATCHES_PER_STREAM_MAX);
    exceed_stall_timeout(&mut fixture);
    assert_eq!((fixture.processed(), fixture.parked()), (to_hung.len(), 0), "the disk counts as hung");
    let refused = fixture.hub.counters().losses(Ingress::Nats, Loss::Hung);
    assert_eq!(refused as usize, to_hung.len() - BATCHES_PER_STREAM_MAX);
    let carol = ClientId { shard: 0, token: 3 };
    fixture.subscribe(carol, "answers", "1");
    let burst: Vec<_> = (0..40).map(|_| publish_for("other.a", &payload, "answers")).collect();
    assert_eq!(fixture.send_until_parked(carol, &burst), BATCHES_PER_STREAM_MAX, "the burst waits");
    while fixture.parked() > 0 {
        let waiting = &mut fixture.hub.storage_mut().waiting;
        let other = waiting.iter().position(|(stream, ..)| *stream == 3).expect("it was handed over");
        waiting.swap(0, other);
        fixture.hub.storage_mut().complete_write();
        fixture.turn();
    }
    fixture.ask_all(carol, &[HubRequest::CloseAfterAcks]);
    fixture.turn();
    assert!(!fixture.outputs(carol).contains(&ConnectionOutput::Close), "its messages are not written");
    while let Some(other) = fixture.hub.storage_mut().waiting.iter().position(|(stream, ..)| *stream == 3) {
        fixture.hub.storage_mut().waiting.swap(0, other);
        fixture.hub.storage_mut().complete_write();
        fixture.turn();
    }
    assert_eq!(fixture.outputs(carol).last(), Some(&ConnectionOutput::Close));
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::Hung), refused);
}

/// Connections that close while a disk hangs keep their slots no longer than the stall timeout, and later ones do not
/// wait.
#[test]
fn a_hung_disk_does_not_hold_closing_connections() {
    let mut fixture = HubFixture::new();
    fixture.ask_all(ALICE, &[publish("disk.a", "never written"), HubRequest::CloseAfterAcks]);
    fixture.turn();
    assert!(!fixture.outputs(ALICE).contains(&ConnectionOutput::Close), "it is waited for");
    for _ in 0..DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS {
        assert!(
            fixture.hub.next_check_in().is_some_and(|span| span.as_nanos() <= DISK_CHECK_EVERY_NS.into())
        );
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.turn();
    }
    assert!(fixture.outputs(ALICE).contains(&ConnectionOutput::Close));
    fixture.ask_all(BOB, &[HubRequest::CloseAfterAcks]);
    fixture.turn();
    assert!(fixture.outputs(BOB).contains(&ConnectionOutput::Close), "at once");
    // The disk responds after all, and no connection is closed twice.
    fixture.run_until_settled();
    assert_eq!((fixture.outputs(ALICE), fixture.outputs(BOB)), (Vec::new(), Vec::new()));
}

/// Row 2.5: the hub checks within a second after a write begins, also without other events.
#[test]
fn a_write_is_watched_from_its_beginning() {
    let mut fixture = HubFixture::new();
    assert_eq!(fixture.hub.next_check_in(), None);
    fixture.ask_all(ALICE, &[publish("disk.a", "x"), HubRequest::CloseAfterAcks]);
    assert!(fixture.hub.next_check_in().is_some_and(|span| span.as_nanos() <= DISK_CHECK_EVERY_NS.into()));
}

/// Row 2.5: a burst behind an overdue write is refused without another wait.
#[test]
fn a_burst_to_a_disk_that_hangs_is_refused_at_once() {
    let mut fixture = HubFixture::new();
    fixture.ask_all(ALICE, &[publish("disk.a", "never written")]);
    exceed_stall_timeout(&mut fixture);
    let payload = "x".repeat(6000);
    fixture.ask_all(ALICE, &vec![publish("disk.a", &payload); 40]);
    assert!(fixture.hub.counters().losses(Ingress::Nats, Loss::Hung) > 0);
}

/// Row 2.5: a burst to another stream of the same journal, which is overdue, is refused at once.
#[test]
fn a_burst_to_a_journal_that_hangs_is_refused_at_once() {
    let mut fixture = one_journal_for_two_streams();
    let payload = "x".repeat(6000);
    let to_hung = vec![publish("disk.a", &payload); BATCHES_PER_STREAM_MAX + 1];
    assert_eq!(fixture.send_until_parked(ALICE, &to_hung), BATCHES_PER_STREAM_MAX);
    exceed_stall_timeout(&mut fixture);
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::Hung), 1, "what was parked");
    fixture.ask_all(BOB, &vec![publish("other.a", &payload); BATCHES_PER_STREAM_MAX + 8]);
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::Hung), 1 + 8);
}

/// Rows 2.5, 0.14: a journal that has reported a full disk does not hang: a burst to another of its streams waits,
/// however old the report is.
#[test]
fn a_full_disk_is_no_disk_that_hangs() {
    let mut fixture = one_journal_for_two_streams();
    let payload = "x".repeat(6000);
    let to_full = vec![publish("disk.a", &payload); BATCHES_PER_STREAM_MAX + 1];
    assert_eq!(fixture.send_until_parked(ALICE, &to_full), BATCHES_PER_STREAM_MAX, "the last one waits");
    fixture.hub.storage_mut().report_full_disk(0);
    exceed_stall_timeout(&mut fixture);
    let to_other = vec![publish("other.a", &payload); BATCHES_PER_STREAM_MAX + 8];
    assert_eq!(fixture.parked(), 0, "what has no room is refused");
    assert_eq!(fixture.send_until_parked(BOB, &to_other), BATCHES_PER_STREAM_MAX, "the others wait");
    let counters = fixture.hub.counters();
    let losses = |loss| counters.losses(Ingress::Nats, loss);
    assert_eq!((losses(Loss::NoRoom), losses(Loss::Hung)), (1, 0));
}
