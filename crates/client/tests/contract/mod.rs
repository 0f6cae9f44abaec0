//! Guarantees of publisher and subscriber with any server that has the stream `events` of the subjects `events.>`. Each
//! check takes the server's address and uses subjects of its own, so that all may run against one server concurrently
//! and repeatedly.

use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use stilling_client::{
    FollowStart, FollowedStream, PublishMode, PublishOutcome, Publisher, PublisherConfig, Requester,
    RequesterError, ServerUrl, SpoolMode, Subscriber, SubscriberConfig, SubscriberEvent,
};
use stilling_probe::HANG_TIMEOUT;

pub(crate) fn config(address: &str) -> PublisherConfig {
    PublisherConfig { servers: vec![address.parse().expect("an address")], ..PublisherConfig::default() }
}

/// A subject of the stream that no earlier run has used.
fn own_subject(name: &str) -> String {
    static RUN: LazyLock<u128> = LazyLock::new(|| UNIX_EPOCH.elapsed().map_or(0, |span| span.as_nanos()));
    format!("events.{name}.{}", *RUN)
}

fn server(address: &str) -> ServerUrl {
    address.parse().expect("an address")
}

pub(crate) fn follower(address: &str, filter: &str, from: FollowStart) -> Subscriber {
    let stream = Some(FollowedStream { stream: "events".to_owned(), from });
    let config = SubscriberConfig {
        servers: vec![server(address)],
        filter: filter.to_owned(),
        stream,
        ..Default::default()
    };
    Subscriber::new(config).expect("it can work")
}

/// A subscriber after the server has processed its subscription.
pub(crate) fn listener(address: &str, filter: &str) -> Subscriber {
    let config =
        SubscriberConfig { servers: vec![server(address)], filter: filter.to_owned(), ..Default::default() };
    let mut subscriber = Subscriber::new(config).expect("it can work");
    assert_eq!(subscriber.next_event(HANG_TIMEOUT), Ok(Some(SubscriberEvent::Connected)));
    subscriber
}

#[track_caller]
pub(crate) fn next(subscriber: &mut Subscriber) -> stilling_client::ReceivedMessage {
    for _ in 0..100 {
        match subscriber.next_event(HANG_TIMEOUT).expect("it goes on") {
            Some(SubscriberEvent::Message(message)) => return message,
            Some(_) => {}
            None => break,
        }
    }
    panic!("no message came")
}

/// A confirmed message is in the stream when `send` returns, as its next record.
pub(crate) fn confirmed_messages_are_in_the_stream_in_order(address: &str) {
    let publisher = Publisher::new(config(address)).expect("it can work");
    let mut last = 0;
    for number in 0..20_u8 {
        match publisher.send(&own_subject("confirmed"), &[number]) {
            PublishOutcome::Delivered { stream, sequence, duplicate: false } if sequence > last => {
                assert_eq!(stream, "events");
                last = sequence;
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    let mut follower = follower(address, &own_subject("confirmed"), FollowStart::All);
    let payloads: Vec<u8> = (0..20).map(|_| next(&mut follower).payload[0]).collect();
    assert_eq!(payloads, (0..20).collect::<Vec<u8>>());
    let counts = publisher.close(HANG_TIMEOUT);
    assert!(counts.is_balanced() && counts.delivered == 20, "{counts:?}");
}

/// Row 0.32: the messages submitted, acknowledged and stored are the same.
pub(crate) fn many_messages_on_their_way_all_arrive_once(address: &str) {
    const COUNT: u64 = 5000;
    let publisher = Publisher::new(config(address)).expect("it can work");
    let tickets: Vec<_> =
        (0..COUNT).map(|number| publisher.submit(&own_subject("many"), &number.to_le_bytes())).collect();
    let counts = publisher.flush(HANG_TIMEOUT);
    assert!(counts.is_balanced(), "{counts:?}");
    assert_eq!((counts.delivered, counts.dropped, counts.held), (COUNT, 0, 0));
    assert!(tickets.iter().all(|ticket| matches!(ticket.outcome(), Some(PublishOutcome::Delivered { .. }))));
    let mut follower = follower(address, &own_subject("many"), FollowStart::All);
    for number in 0..COUNT {
        assert_eq!(next(&mut follower).payload, number.to_le_bytes());
    }
}

/// Row 0.18: messages sent without waiting arrive.
pub(crate) fn messages_sent_without_waiting_arrive(address: &str) {
    let publisher = Publisher::new(PublisherConfig { mode: PublishMode::NoWait, ..config(address) })
        .expect("it can work");
    for number in 0..500_u64 {
        assert_eq!(publisher.send(&own_subject("nowait"), &number.to_le_bytes()), PublishOutcome::Queued);
    }
    let counts = publisher.close(HANG_TIMEOUT);
    assert_eq!((counts.delivered, counts.held), (500, 0), "{counts:?}");
}

/// Row 0.3: one-way messages reach a subscriber.
pub(crate) fn one_way_messages_reach_a_listener(address: &str) {
    let mut listener = listener(address, "plain.>");
    let publisher = Publisher::new(PublisherConfig { mode: PublishMode::OneWay, ..config(address) })
        .expect("it can work");
    for number in 0..500_u64 {
        let headers: &[(&str, &str)] = if number % 2 == 0 { &[] } else { &[("Kind", "odd")] };
        assert_eq!(publisher.send_with("plain.a", headers, &number.to_le_bytes()), PublishOutcome::Queued);
    }
    let counts = publisher.close(HANG_TIMEOUT);
    assert_eq!((counts.delivered, counts.dropped), (500, 0), "{counts:?}");
    for number in 0..500_u64 {
        let message = next(&mut listener);
        assert_eq!(message.payload, number.to_le_bytes());
        assert_eq!(message.header("Kind"), (number % 2 == 1).then_some("odd"));
        assert_eq!((message.subject.as_str(), message.position), ("plain.a", None));
    }
}

pub(crate) fn a_stream_is_followed_from_any_place(address: &str) {
    let publisher = Publisher::new(config(address)).expect("it can work");
    let sequences: Vec<u64> = (0..10_u8)
        .map(|number| match publisher.send(&own_subject("places"), &[number]) {
            PublishOutcome::Delivered { sequence, .. } => sequence,
            other => panic!("{other:?}"),
        })
        .collect();
    let check = |from, first: usize| {
        let mut follower = follower(address, &own_subject("places"), from);
        for (number, sequence) in sequences.iter().enumerate().skip(first) {
            let message = next(&mut follower);
            let position = message.position.expect("it has one");
            assert_eq!((message.payload[0] as usize, position.sequence), (number, *sequence));
            assert!(position.stream == "events" && position.time_ns > 0);
        }
    };
    check(FollowStart::All, 0);
    check(FollowStart::Sequence(sequences[4]), 4);
    check(FollowStart::Time(UNIX_EPOCH), 0);
    let mut new = follower(address, &own_subject("places"), FollowStart::New);
    while !matches!(new.next_event(HANG_TIMEOUT), Ok(Some(SubscriberEvent::Connected))) {}
    // The request is sent with the next poll; messages published until it is accepted may or may not be received.
    let mut number = 100;
    let first = loop {
        number += 1;
        assert!(matches!(
            publisher.send(&own_subject("places"), &[number]),
            PublishOutcome::Delivered { .. }
        ));
        if let Some(SubscriberEvent::Message(message)) =
            new.next_event(Duration::from_millis(50)).expect("it goes on")
        {
            break message;
        }
    };
    assert!(first.payload[0] > 100, "only what is new");
}

pub(crate) fn a_large_message_arrives_whole(address: &str) {
    let payload: Vec<u8> = (0..1_000_000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let publisher = Publisher::new(config(address)).expect("it can work");
    let PublishOutcome::Delivered { sequence, .. } = publisher.send(&own_subject("large"), &payload) else {
        panic!("it is taken")
    };
    let message = next(&mut follower(address, &own_subject("large"), FollowStart::Sequence(sequence)));
    assert!(message.payload == payload);
    let too_large = publisher.send(&own_subject("large"), &vec![0; 1_100_000]);
    assert!(
        matches!(too_large, PublishOutcome::Dropped(stilling_client::DropReason::TooLarge { .. })),
        "{too_large:?}"
    );
}

pub(crate) fn a_subject_without_a_stream_is_named(address: &str) {
    let config = PublisherConfig {
        no_stream_timeout: Duration::from_millis(50),
        spool_mode: SpoolMode::Memory,
        ..config(address)
    };
    let publisher = Publisher::new(config).expect("it can work");
    let outcome = publisher.send("nobody.keeps.this", b"x");
    assert_eq!(outcome, PublishOutcome::Dropped(stilling_client::DropReason::NoStream));
}

/// A request gets its reply, and one without a subscriber fails at once.
pub(crate) fn a_request_gets_its_reply_or_no_responders(address: &str) {
    let mut requester = Requester::new(server(address), None);
    assert_eq!(requester.request("nobody.listens", b"?", HANG_TIMEOUT), Err(RequesterError::NoResponders));
    let mut responder = listener(address, "question.>");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let answers = Publisher::new(PublisherConfig { mode: PublishMode::OneWay, ..config(address) })
                .expect("it can work");
            for _ in 0..3 {
                let message = next(&mut responder);
                let _ = answers.send(message.reply.as_deref().expect("a reply"), &message.payload);
            }
            let _ = answers.close(HANG_TIMEOUT);
        });
        for text in ["a", "b", "c"] {
            let answer =
                requester.request("question.one", text.as_bytes(), HANG_TIMEOUT).expect("it is answered");
            assert_eq!(answer.payload, text.as_bytes());
        }
    });
}

/// The next publisher delivers the content of a spool's directory, once and in order.
pub(crate) fn what_a_publisher_leaves_in_its_directory_the_next_one_delivers(address: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let spool_mode = SpoolMode::Directory(directory.path().join("spool"));
    let nowhere = PublisherConfig {
        spool_mode: spool_mode.clone(),
        mode: PublishMode::NoWait,
        ..config("nats://127.0.0.1:1")
    };
    let publisher = Publisher::new(nowhere).expect("it can work");
    for number in 0..50_u64 {
        assert_eq!(publisher.send(&own_subject("left"), &number.to_le_bytes()), PublishOutcome::Queued);
    }
    let left = publisher.close(Duration::ZERO);
    assert_eq!((left.held, left.dropped), (50, 0), "{left:?}");
    let publisher = Publisher::new(PublisherConfig { spool_mode: spool_mode.clone(), ..config(address) })
        .expect("it can work");
    let counts = publisher.close(HANG_TIMEOUT);
    assert_eq!((counts.recovered, counts.delivered, counts.duplicates, counts.held), (50, 50, 0, 0));
    let counts = Publisher::new(PublisherConfig { spool_mode, ..config(address) })
        .expect("it can work")
        .close(HANG_TIMEOUT);
    assert_eq!(counts.recovered, 0, "nothing is left");
    let mut follower = follower(address, &own_subject("left"), FollowStart::All);
    for number in 0..50_u64 {
        assert_eq!(next(&mut follower).payload, number.to_le_bytes());
    }
}
