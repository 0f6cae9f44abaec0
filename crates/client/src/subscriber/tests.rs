//! Rarely polled followers and refused streams, with a scripted server and with deadlines that are moved instead of
//! waited for.

use std::net::TcpListener;

use stilling_probe::HANG_TIMEOUT;
use stilling_probe::nats::{ReceivedOperation, ScriptedServer};

use super::*;

fn connected() -> (Subscriber, ScriptedServer) {
    let (mut follower, listener) = follower();
    let scripted = accept_follower(&mut follower, &listener);
    (follower, scripted)
}

fn follower() -> (Subscriber, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("nats://{}", listener.local_addr().expect("it has an address"));
    let follower = Subscriber::new(SubscriberConfig {
        servers: vec![url.parse().expect("an address")],
        stream: Some(FollowedStream { stream: "events".to_owned(), from: FollowStart::New }),
        backoff: BackoffConfig {
            wait: 10 * HANG_TIMEOUT,
            wait_max: 10 * HANG_TIMEOUT,
            ..BackoffConfig::default()
        },
        connect_timeout: HANG_TIMEOUT,
        answer_timeout: HANG_TIMEOUT,
        ..SubscriberConfig::default()
    })
    .expect("it can work");
    (follower, listener)
}

fn accept_follower(follower: &mut Subscriber, listener: &TcpListener) -> ScriptedServer {
    let scripted = std::thread::scope(|scope| {
        let greeting = scope.spawn(|| {
            let mut scripted = ScriptedServer::accept(listener);
            scripted.complete_handshake();
            scripted
        });
        assert_eq!(follower.next_event(HANG_TIMEOUT), Ok(Some(SubscriberEvent::Connected)));
        greeting.join()
    });
    scripted.expect("it lets the follower in")
}

impl Subscriber {
    /// Polls after data has arrived and all deadlines have passed.
    fn poll_after_deadlines(&mut self) -> Result<Option<SubscriberEvent>, SubscribeError> {
        self.connection.as_ref().expect("it is connected").wait_for_input(HANG_TIMEOUT);
        let (ConsumerPhase::Due(at)
        | ConsumerPhase::InfoRequested(at)
        | ConsumerPhase::CreateRequested(at)
        | ConsumerPhase::Active(at)) = &mut self.phase;
        *at = Instant::now();
        self.next_event(Duration::ZERO)
    }
}

const STATE: &[u8] = br#"{"state":{"first_seq":1,"last_seq":9}}"#;

#[test]
fn what_has_come_is_read_before_anything_is_late() {
    let (mut follower, mut scripted) = connected();
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    let info_request = scripted.published();
    assert_eq!(info_request.subject, "$JS.API.STREAM.INFO.events");
    scripted.deliver(&info_request.reply, "1", "", "", STATE);
    assert_eq!(follower.poll_after_deadlines(), Ok(None), "it wishes for a consumer");
    let ReceivedOperation::Sub { sid, .. } = scripted.next_operation() else { panic!("it subscribes first") };
    let create_request = scripted.published();
    scripted.deliver(&create_request.reply, "1", "", "", br#"{"name":"c"}"#);
    assert_eq!(follower.poll_after_deadlines(), Ok(None), "it has its consumer");
    for sequence in 10..15_u64 {
        let place = format!("$JS.ACK.events.c.1.{sequence}.{}.1.0", sequence - 9);
        scripted.deliver("events.a", &sid, &place, "", b"x");
        let event = follower.poll_after_deadlines();
        assert!(
            matches!(&event, Ok(Some(SubscriberEvent::Message(message))) if message.payload == b"x"),
            "{event:?}"
        );
    }
}

#[test]
fn one_look_takes_all_that_has_come_and_is_not_for_the_caller() {
    let (mut follower, mut scripted) = connected();
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    let info_request = scripted.published();
    let nobodys = "PING\r\nMSG x 77 1\r\nx\r\n".repeat(100);
    scripted.send_bytes(
        [nobodys.as_bytes(), &stilling_probe::nats::delivery(&info_request.reply, "1", "", "", STATE)]
            .concat(),
    );
    assert_eq!(follower.poll_after_deadlines(), Ok(None));
    assert!(matches!(follower.phase, ConsumerPhase::CreateRequested(_)), "{:?}", follower.phase);
}

/// With unrelated messages or without any: each call reads at most 1 MiB.
#[test]
fn a_server_that_sends_without_a_pause_does_not_extend_a_look() {
    let check = |noise: &str| {
        let (mut follower, mut scripted) = connected();
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let info_request = info_reply_subject(&mut scripted);
        let answer = stilling_probe::nats::delivery(&info_request, "1", "", "", STATE);
        let least = 4;
        let noise = noise.repeat((least << 20) / noise.len() + 1);
        let mut looks = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| scripted.send_bytes([noise.as_bytes(), &answer].concat()));
            while matches!(follower.phase, ConsumerPhase::InfoRequested(_)) {
                assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
                looks += 1;
            }
        });
        assert!(looks >= least, "{looks}");
    };
    check(&format!("MSG x 77 1000\r\n{}\r\n", "x".repeat(1000)));
    check(&"+OK\r\n".repeat(20));
}

#[test]
fn a_missing_stream_is_requested_again_after_the_backoff_on_the_same_connection() {
    let (mut follower, mut scripted) = connected();
    for _ in 0..3 {
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let info_request = scripted.published();
        assert_eq!(info_request.subject, "$JS.API.STREAM.INFO.events");
        let refusal = br#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
        scripted.deliver(&info_request.reply, "1", "", "", refusal);
        let error = follower.next_event(HANG_TIMEOUT).expect_err("it cannot be followed");
        assert!(matches!(error, SubscribeError::Refused { error_code: 10059, .. }), "{error}");
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None), "it waits");
        assert!(
            matches!(follower.phase, ConsumerPhase::Due(at) if at > Instant::now()),
            "{:?}",
            follower.phase
        );
        follower.phase = ConsumerPhase::Due(Instant::now());
    }
    assert_eq!(follower.backoff.exponent(), 3);
}

/// The connection fails just after the follower has detected the change: it is reported on the next one.
#[test]
fn stream_events_are_reported_although_the_connection_breaks() {
    let check = |state: &str, event: SubscriberEvent| {
        let (mut follower, listener) = follower();
        let mut scripted = accept_follower(&mut follower, &listener);
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let info_request = info_reply_subject(&mut scripted);
        scripted.deliver(&info_request, "1", "", "", STATE);
        assert_eq!(follower.poll_after_deadlines(), Ok(None), "it wishes for a consumer");
        let consumer = TestConsumer::create(&mut follower, &mut scripted);
        consumer.deliver_message(&mut follower, &mut scripted, 10, "");
        consumer.deliver_control(&mut scripted, DELETED);
        assert_eq!(follower.poll_after_deadlines(), Ok(None), "it requests a consumer again");
        assert_eq!(scripted.published().subject, "$JS.API.CONSUMER.DELETE.events.c");
        let info_request = info_reply_subject(&mut scripted);
        follower.connection.as_ref().expect("it is connected").break_sending();
        scripted.deliver(&info_request, "1", "", "", state.as_bytes());
        let broken = follower.poll_after_deadlines();
        assert!(matches!(broken, Ok(Some(SubscriberEvent::Interrupted(_)))), "{broken:?}");
        follower.retry_at = Instant::now();
        let mut scripted = accept_follower(&mut follower, &listener);
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let info_request = info_reply_subject(&mut scripted);
        scripted.deliver(&info_request, "1", "", "", state.as_bytes());
        assert_eq!(follower.poll_after_deadlines(), Ok(Some(event)));
    };
    check(r#"{"state":{"first_seq":1,"last_seq":3}}"#, SubscriberEvent::Recreated { last: 10 });
    check(
        r#"{"state":{"first_seq":13,"last_seq":20}}"#,
        SubscriberEvent::Missed { first: 11, last: 12, cause: MissedCause::Removed },
    );
}

const DELETED: &str = "NATS/1.0 409 Consumer Deleted\r\n\r\n";

struct TestConsumer {
    deliver: String,
    sid: String,
}

impl TestConsumer {
    fn create(follower: &mut Subscriber, scripted: &mut ScriptedServer) -> TestConsumer {
        let ReceivedOperation::Sub { sid, filter } = scripted.next_operation() else {
            panic!("it subscribes first")
        };
        let create_request = scripted.published();
        scripted.deliver(&create_request.reply, "1", "", "", br#"{"name":"c"}"#);
        assert_eq!(follower.poll_after_deadlines(), Ok(None), "it has its consumer");
        TestConsumer { deliver: filter, sid }
    }

    fn deliver_message(
        &self,
        follower: &mut Subscriber,
        scripted: &mut ScriptedServer,
        sequence: u64,
        headers: &str,
    ) {
        let place = format!("$JS.ACK.events.c.1.{sequence}.{}.1.0", sequence - 9);
        scripted.deliver("events.a", &self.sid, &place, headers, b"x");
        let event = follower.poll_after_deadlines();
        assert!(
            matches!(&event, Ok(Some(SubscriberEvent::Message(message))) if message.payload == b"x"),
            "{event:?}"
        );
    }

    fn deliver_control(&self, scripted: &mut ScriptedServer, headers: &str) {
        scripted.deliver(&self.deliver, &self.sid, "", headers, b"");
    }
}

/// A follower with an answered request for the stream's state, so that it requests a consumer.
fn with_consumer_request() -> (Subscriber, ScriptedServer) {
    let (mut follower, mut scripted) = connected();
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    let info_request = info_reply_subject(&mut scripted);
    scripted.deliver(&info_request, "1", "", "", STATE);
    assert_eq!(follower.poll_after_deadlines(), Ok(None), "it wishes for a consumer");
    (follower, scripted)
}

/// The status comes from the publisher, not from the server.
#[test]
fn a_message_of_the_stream_is_a_message_whatever_status_its_headers_begin_with() {
    let (mut follower, mut scripted) = with_consumer_request();
    let consumer = TestConsumer::create(&mut follower, &mut scripted);
    consumer.deliver_message(&mut follower, &mut scripted, 10, DELETED);
    let heartbeat = "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 99\r\n\r\n";
    consumer.deliver_message(&mut follower, &mut scripted, 11, heartbeat);
    // Nor is it a control message if its subject is not the delivery subject.
    scripted.deliver("events.a", &consumer.sid, "", DELETED, b"");
    consumer.deliver_message(&mut follower, &mut scripted, 12, "");
    assert!(matches!(follower.phase, ConsumerPhase::Active(_)), "{:?}", follower.phase);
    consumer.deliver_control(&mut scripted, DELETED);
    assert_eq!(follower.poll_after_deadlines(), Ok(None));
    assert!(
        matches!(follower.phase, ConsumerPhase::InfoRequested(_)),
        "the server's own word counts: {:?}",
        follower.phase
    );
}

/// A gap report counts as progress: it advances the follower.
#[test]
fn a_consumer_that_reported_a_gap_is_replaced_at_once() {
    let (mut follower, mut scripted) = with_consumer_request();
    let consumer = TestConsumer::create(&mut follower, &mut scripted);
    let gap = "NATS/1.0 100 Idle Heartbeat\r\nStilling-Gap-First: 10\r\nStilling-Gap-Last: 12\r\nStilling-Gap-Cause: damaged\r\n\r\n";
    consumer.deliver_control(&mut scripted, gap);
    let missed = SubscriberEvent::Missed { first: 10, last: 12, cause: MissedCause::Damaged };
    assert_eq!(follower.poll_after_deadlines(), Ok(Some(missed)));
    consumer.deliver_control(&mut scripted, DELETED);
    assert_eq!(follower.poll_after_deadlines(), Ok(None));
    assert!(matches!(follower.phase, ConsumerPhase::InfoRequested(_)), "{:?}", follower.phase);
    assert_eq!(follower.backoff.exponent(), 0);
}

/// Unusable consumers are deleted from the server, whatever the reason.
#[test]
fn a_consumer_that_has_brought_nothing_is_removed_and_the_next_one_waited_for() {
    let (mut follower, mut scripted) = with_consumer_request();
    for attempt in 1..4 {
        let consumer = TestConsumer::create(&mut follower, &mut scripted);
        consumer.deliver_control(&mut scripted, DELETED);
        assert_eq!(follower.poll_after_deadlines(), Ok(None));
        assert_eq!(scripted.next_operation(), ReceivedOperation::Unsub { sid: consumer.sid.clone() });
        assert_eq!(scripted.published().subject, "$JS.API.CONSUMER.DELETE.events.c");
        assert!(
            matches!(follower.phase, ConsumerPhase::Due(at) if at > Instant::now()),
            "{:?}",
            follower.phase
        );
        assert_eq!(follower.backoff.exponent(), attempt);
        // Late deliveries of a replaced consumer have no effect.
        consumer.deliver_control(&mut scripted, DELETED);
        scripted.send_bytes("PING\r\n");
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        assert_eq!(
            (scripted.next_operation(), follower.backoff.exponent()),
            (ReceivedOperation::Pong, attempt)
        );
        follower.phase = ConsumerPhase::Due(Instant::now());
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let info_request = info_reply_subject(&mut scripted);
        scripted.deliver(&info_request, "1", "", "", STATE);
        assert_eq!(follower.poll_after_deadlines(), Ok(None), "it wishes for a consumer");
    }
    // A delivery restores one step of the backoff.
    let consumer = TestConsumer::create(&mut follower, &mut scripted);
    consumer.deliver_message(&mut follower, &mut scripted, 10, "");
    assert_eq!(follower.backoff.exponent(), 2);
}

#[test]
fn a_consumer_that_was_made_too_late_is_removed_when_its_name_is_known() {
    let (mut follower, mut scripted) = with_consumer_request();
    let ReceivedOperation::Sub { sid, .. } = scripted.next_operation() else { panic!("it subscribes first") };
    let create_request = scripted.published();
    // A message arrives before the reply to the consumer request, and another one is missing: the follower requests a
    // new consumer.
    for place in ["$JS.ACK.events.d.1.10.1.1.0", "$JS.ACK.events.d.1.12.3.1.0"] {
        scripted.deliver("events.a", &sid, place, "", b"x");
    }
    assert!(matches!(follower.poll_after_deadlines(), Ok(Some(SubscriberEvent::Message(_)))));
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    assert_eq!(info_reply_subject(&mut scripted).rsplit('.').next(), Some(follower.sid.to_string().as_str()));
    scripted.deliver(&create_request.reply, "1", "", "", br#"{"name":"d"}"#);
    follower.connection.as_ref().expect("it is connected").wait_for_input(HANG_TIMEOUT);
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    assert_eq!(scripted.published().subject, "$JS.API.CONSUMER.DELETE.events.d");
}

/// A user may have permission to follow a stream but not to delete consumers.
#[test]
fn a_follower_that_may_not_remove_its_consumer_continues() {
    let (mut follower, mut scripted) = with_consumer_request();
    let consumer = TestConsumer::create(&mut follower, &mut scripted);
    scripted
        .send_bytes("-ERR 'Permissions Violation for Publish to \"$JS.API.CONSUMER.DELETE.events.c\"'\r\n");
    consumer.deliver_message(&mut follower, &mut scripted, 10, "");
}

fn info_reply_subject(scripted: &mut ScriptedServer) -> String {
    let info_request = scripted.published();
    assert_eq!(info_request.subject, "$JS.API.STREAM.INFO.events");
    info_request.reply
}
