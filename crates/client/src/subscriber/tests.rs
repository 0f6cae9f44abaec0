//! A follower whose caller looks rarely, and one whose stream is not to be had: with a hand-played server, and with deadlines
//! that are moved instead of waited for.

use std::net::TcpListener;

use stilling_probe::HANG;
use stilling_probe::nats::{Said, Talk};

use super::*;

/// A follower of what is new in `events`, and the server's end of its connection.
fn connected() -> (Subscriber, Talk) {
    let (mut follower, listener) = follower();
    let talk = let_in(&mut follower, &listener);
    (follower, talk)
}

/// A follower of what is new in `events`, and its server.
fn follower() -> (Subscriber, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("nats://{}", listener.local_addr().expect("it has an address"));
    let follower = Subscriber::new(SubscriberConfig {
        servers: vec![url.parse().expect("an address")],
        stream: Some(StreamPlace { stream: "events".to_owned(), from: From::New }),
        ladder: LadderConfig { wait: 10 * HANG, wait_max: 10 * HANG, ..LadderConfig::default() },
        connect_timeout: HANG,
        answer_timeout: HANG,
        ..SubscriberConfig::default()
    })
    .expect("it can work");
    (follower, listener)
}

fn let_in(follower: &mut Subscriber, listener: &TcpListener) -> Talk {
    let talk = std::thread::scope(|scope| {
        let greeting = scope.spawn(|| {
            let mut talk = Talk::accept(listener);
            talk.greet();
            talk
        });
        assert_eq!(follower.next_event(HANG), Ok(Some(Event::Connected)));
        greeting.join()
    });
    talk.expect("it lets the follower in")
}

impl Subscriber {
    /// Its caller looks again when something has come, and after all that it waits for should have.
    fn looks_late(&mut self) -> Result<Option<Event>, SubscribeError> {
        self.line.as_ref().expect("it is connected").wait_for_input(HANG);
        let (Wish::Due(at) | Wish::Asked(at) | Wish::Uttered(at) | Wish::Granted(at)) = &mut self.wish;
        *at = Instant::now();
        self.next_event(Duration::ZERO)
    }
}

const STATE: &[u8] = br#"{"state":{"first_seq":1,"last_seq":9}}"#;

#[test]
fn what_has_come_is_read_before_anything_is_late() {
    let (mut follower, mut talk) = connected();
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    let question = talk.published();
    assert_eq!(question.subject, "$JS.API.STREAM.INFO.events");
    talk.deliver(&question.reply, "1", "", "", STATE);
    assert_eq!(follower.looks_late(), Ok(None), "it wishes for a consumer");
    let Said::Sub { sid, .. } = talk.said() else { panic!("it subscribes first") };
    let wish = talk.published();
    talk.deliver(&wish.reply, "1", "", "", br#"{"name":"c"}"#);
    assert_eq!(follower.looks_late(), Ok(None), "it has its consumer");
    for sequence in 10..15_u64 {
        let place = format!("$JS.ACK.events.c.1.{sequence}.{}.1.0", sequence - 9);
        talk.deliver("events.a", &sid, &place, "", b"x");
        let event = follower.looks_late();
        assert!(matches!(&event, Ok(Some(Event::Message(message))) if message.payload == b"x"), "{event:?}");
    }
}

#[test]
fn one_look_takes_all_that_has_come_and_is_not_for_the_caller() {
    let (mut follower, mut talk) = connected();
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    let question = talk.published();
    let nobodys = "PING\r\nMSG x 77 1\r\nx\r\n".repeat(100);
    talk.say(
        [nobodys.as_bytes(), &stilling_probe::nats::delivery(&question.reply, "1", "", "", STATE)].concat(),
    );
    assert_eq!(follower.looks_late(), Ok(None));
    assert!(matches!(follower.wish, Wish::Uttered(_)), "{:?}", follower.wish);
}

/// Whether it sends messages that nobody wants, or no messages: each look reads no more than 1 MiB of it.
#[test]
fn a_server_that_sends_without_a_pause_does_not_extend_a_look() {
    let check = |noise: &str| {
        let (mut follower, mut talk) = connected();
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let question = question_of(&mut talk);
        let answer = stilling_probe::nats::delivery(&question, "1", "", "", STATE);
        let least = 4;
        let noise = noise.repeat((least << 20) / noise.len() + 1);
        let mut looks = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| talk.say([noise.as_bytes(), &answer].concat()));
            while matches!(follower.wish, Wish::Asked(_)) {
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
fn a_stream_that_is_not_there_is_asked_for_again_after_the_ladders_wait_and_over_the_same_connection() {
    let (mut follower, mut talk) = connected();
    for _ in 0..3 {
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let question = talk.published();
        assert_eq!(question.subject, "$JS.API.STREAM.INFO.events");
        let refusal = br#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
        talk.deliver(&question.reply, "1", "", "", refusal);
        let error = follower.next_event(HANG).expect_err("it cannot be followed");
        assert!(matches!(error, SubscribeError::Refused { error_code: 10059, .. }), "{error}");
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None), "it waits");
        assert!(matches!(follower.wish, Wish::Due(at) if at > Instant::now()), "{:?}", follower.wish);
        follower.wish = Wish::Due(Instant::now());
    }
    assert_eq!(follower.ladder.rung(), 3);
}

/// The connection breaks just when the follower has learned it: the next one tells.
#[test]
fn what_happened_to_the_stream_is_told_although_the_connection_breaks_over_it() {
    let check = |state: &str, event: Event| {
        let (mut follower, listener) = follower();
        let mut talk = let_in(&mut follower, &listener);
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let question = question_of(&mut talk);
        talk.deliver(&question, "1", "", "", STATE);
        assert_eq!(follower.looks_late(), Ok(None), "it wishes for a consumer");
        let consumer = Consumer::made(&mut follower, &mut talk);
        consumer.sends(&mut follower, &mut talk, 10, "");
        consumer.says(&mut talk, DELETED);
        assert_eq!(follower.looks_late(), Ok(None), "it asks again");
        assert_eq!(talk.published().subject, "$JS.API.CONSUMER.DELETE.events.c");
        let question = question_of(&mut talk);
        follower.line.as_ref().expect("it is connected").break_sending();
        talk.deliver(&question, "1", "", "", state.as_bytes());
        let broken = follower.looks_late();
        assert!(matches!(broken, Ok(Some(Event::Interrupted(_)))), "{broken:?}");
        follower.retry_at = Instant::now();
        let mut talk = let_in(&mut follower, &listener);
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let question = question_of(&mut talk);
        talk.deliver(&question, "1", "", "", state.as_bytes());
        assert_eq!(follower.looks_late(), Ok(Some(event)));
    };
    check(r#"{"state":{"first_seq":1,"last_seq":3}}"#, Event::Anew { last: 10 });
    check(
        r#"{"state":{"first_seq":13,"last_seq":20}}"#,
        Event::Missed { first: 11, last: 12, cause: MissedCause::Removed },
    );
}

const DELETED: &str = "NATS/1.0 409 Consumer Deleted\r\n\r\n";

/// A consumer that the hand-played server has made, and where it delivers to.
struct Consumer {
    deliver: String,
    sid: String,
}

impl Consumer {
    /// Grants the wish for a consumer behind sequence 9.
    fn made(follower: &mut Subscriber, talk: &mut Talk) -> Consumer {
        let Said::Sub { sid, filter } = talk.said() else { panic!("it subscribes first") };
        let wish = talk.published();
        talk.deliver(&wish.reply, "1", "", "", br#"{"name":"c"}"#);
        assert_eq!(follower.looks_late(), Ok(None), "it has its consumer");
        Consumer { deliver: filter, sid }
    }

    /// Delivers the record of a sequence, which the follower gets.
    fn sends(&self, follower: &mut Subscriber, talk: &mut Talk, sequence: u64, headers: &str) {
        let place = format!("$JS.ACK.events.c.1.{sequence}.{}.1.0", sequence - 9);
        talk.deliver("events.a", &self.sid, &place, headers, b"x");
        let event = follower.looks_late();
        assert!(matches!(&event, Ok(Some(Event::Message(message))) if message.payload == b"x"), "{event:?}");
    }

    fn says(&self, talk: &mut Talk, headers: &str) {
        talk.deliver(&self.deliver, &self.sid, "", headers, b"");
    }
}

/// A follower whose question about the stream is answered, so that it wishes for a consumer.
fn wishing() -> (Subscriber, Talk) {
    let (mut follower, mut talk) = connected();
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    let question = question_of(&mut talk);
    talk.deliver(&question, "1", "", "", STATE);
    assert_eq!(follower.looks_late(), Ok(None), "it wishes for a consumer");
    (follower, talk)
}

/// The status comes from the publisher, not from the server.
#[test]
fn a_message_of_the_stream_is_a_message_whatever_status_its_headers_begin_with() {
    let (mut follower, mut talk) = wishing();
    let consumer = Consumer::made(&mut follower, &mut talk);
    consumer.sends(&mut follower, &mut talk, 10, DELETED);
    let heartbeat = "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 99\r\n\r\n";
    consumer.sends(&mut follower, &mut talk, 11, heartbeat);
    // Nor is it one of the server's that is not sent to where those go.
    talk.deliver("events.a", &consumer.sid, "", DELETED, b"");
    consumer.sends(&mut follower, &mut talk, 12, "");
    assert!(matches!(follower.wish, Wish::Granted(_)), "{:?}", follower.wish);
    consumer.says(&mut talk, DELETED);
    assert_eq!(follower.looks_late(), Ok(None));
    assert!(matches!(follower.wish, Wish::Asked(_)), "the server's own word counts: {:?}", follower.wish);
}

/// A gap is as good as a message: the consumer that told it has moved the follower on.
#[test]
fn a_consumer_that_has_told_a_gap_is_replaced_at_once() {
    let (mut follower, mut talk) = wishing();
    let consumer = Consumer::made(&mut follower, &mut talk);
    let gap = "NATS/1.0 100 Idle Heartbeat\r\nStilling-Gap-First: 10\r\nStilling-Gap-Last: 12\r\nStilling-Gap-Cause: damaged\r\n\r\n";
    consumer.says(&mut talk, gap);
    let missed = Event::Missed { first: 10, last: 12, cause: MissedCause::Damaged };
    assert_eq!(follower.looks_late(), Ok(Some(missed)));
    consumer.says(&mut talk, DELETED);
    assert_eq!(follower.looks_late(), Ok(None));
    assert!(matches!(follower.wish, Wish::Asked(_)), "{:?}", follower.wish);
    assert_eq!(follower.ladder.rung(), 0);
}

/// However it comes that no consumer is any good, the server is not filled with them.
#[test]
fn a_consumer_that_has_brought_nothing_is_removed_and_the_next_one_waited_for() {
    let (mut follower, mut talk) = wishing();
    for attempt in 1..4 {
        let consumer = Consumer::made(&mut follower, &mut talk);
        consumer.says(&mut talk, DELETED);
        assert_eq!(follower.looks_late(), Ok(None));
        assert_eq!(talk.said(), Said::Unsub { sid: consumer.sid.clone() });
        assert_eq!(talk.published().subject, "$JS.API.CONSUMER.DELETE.events.c");
        assert!(matches!(follower.wish, Wish::Due(at) if at > Instant::now()), "{:?}", follower.wish);
        assert_eq!(follower.ladder.rung(), attempt);
        // What the one that was given up still delivers starts nothing.
        consumer.says(&mut talk, DELETED);
        talk.say("PING\r\n");
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        assert_eq!((talk.said(), follower.ladder.rung()), (Said::Pong, attempt));
        follower.wish = Wish::Due(Instant::now());
        assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
        let question = question_of(&mut talk);
        talk.deliver(&question, "1", "", "", STATE);
        assert_eq!(follower.looks_late(), Ok(None), "it wishes for a consumer");
    }
    // One that brings something makes up for it.
    let consumer = Consumer::made(&mut follower, &mut talk);
    consumer.sends(&mut follower, &mut talk, 10, "");
    assert_eq!(follower.ladder.rung(), 2);
}

#[test]
fn a_consumer_that_was_made_too_late_is_removed_when_its_name_is_known() {
    let (mut follower, mut talk) = wishing();
    let Said::Sub { sid, .. } = talk.said() else { panic!("it subscribes first") };
    let wish = talk.published();
    // A message overtakes the answer to the wish, and another one is missing: the follower wants a new consumer.
    for place in ["$JS.ACK.events.d.1.10.1.1.0", "$JS.ACK.events.d.1.12.3.1.0"] {
        talk.deliver("events.a", &sid, place, "", b"x");
    }
    assert!(matches!(follower.looks_late(), Ok(Some(Event::Message(_)))));
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    assert_eq!(question_of(&mut talk).rsplit('.').next(), Some(follower.sid.to_string().as_str()));
    talk.deliver(&wish.reply, "1", "", "", br#"{"name":"d"}"#);
    follower.line.as_ref().expect("it is connected").wait_for_input(HANG);
    assert_eq!(follower.next_event(Duration::ZERO), Ok(None));
    assert_eq!(talk.published().subject, "$JS.API.CONSUMER.DELETE.events.d");
}

/// Users may have been allowed to follow a stream before followers removed anything.
#[test]
fn a_follower_that_may_not_remove_its_consumer_goes_on() {
    let (mut follower, mut talk) = wishing();
    let consumer = Consumer::made(&mut follower, &mut talk);
    talk.say("-ERR 'Permissions Violation for Publish to \"$JS.API.CONSUMER.DELETE.events.c\"'\r\n");
    consumer.sends(&mut follower, &mut talk, 10, "");
}

/// Where the follower wants its question about the stream answered.
fn question_of(talk: &mut Talk) -> String {
    let question = talk.published();
    assert_eq!(question.subject, "$JS.API.STREAM.INFO.events");
    question.reply
}
