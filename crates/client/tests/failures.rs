//! Server failures over real sockets: publisher and subscriber recover from them, and every message is accounted for.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use stilling_client::{
    BackoffConfig, ConnectionError, DropReason, FollowStart, FollowedStream, OverflowPolicy, PublishMode,
    PublishOutcome, Publisher, PublisherConfig, Requester, RequesterError, SpoolMode, Subscriber,
    SubscriberConfig, SubscriberEvent,
};
use stilling_probe::nats::{FakeNatsServer, InjectedFault, ReceivedOperation, ScriptedServer};
use stilling_probe::{HANG_TIMEOUT, eventually};

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("nats://{}", listener.local_addr().expect("it has an address"));
    (listener, url)
}

/// Short waits, so that failures pass quickly.
fn config(url: &str) -> PublisherConfig {
    let wait = Duration::from_millis(2);
    PublisherConfig {
        servers: vec![url.parse().expect("an address")],
        backoff: BackoffConfig { wait, wait_max: 10 * wait, ..BackoffConfig::default() },
        send_timeout: HANG_TIMEOUT,
        acknowledge_timeout: HANG_TIMEOUT,
        connect_timeout: HANG_TIMEOUT,
        ..PublisherConfig::default()
    }
}

fn publisher(config: PublisherConfig) -> Publisher {
    Publisher::new(config).expect("it can work")
}

/// Sends on another thread; the test acts as the server.
fn sending(publisher: &std::sync::Arc<Publisher>, payload: &'static [u8]) -> mpsc::Receiver<PublishOutcome> {
    let (tell, reported) = mpsc::channel();
    let publisher = std::sync::Arc::clone(publisher);
    std::thread::spawn(move || tell.send(publisher.send("events.a", payload)));
    reported
}

fn outcome(reported: &mpsc::Receiver<PublishOutcome>) -> PublishOutcome {
    reported.recv_timeout(HANG_TIMEOUT).expect("send returns")
}

fn delivered(sequence: u64, duplicate: bool) -> PublishOutcome {
    PublishOutcome::Delivered { stream: "events".to_owned(), sequence, duplicate }
}

/// Row 0.31: first the publisher, then the server; the port does not listen in between.
#[test]
fn a_publisher_that_is_there_first_works_as_soon_as_its_server_is() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).expect("a port is free");
    let address = socket.local_addr().expect("it has an address").as_socket().expect("of the internet");
    let publisher = publisher(config(&format!("nats://{address}")));
    let ticket = publisher.submit("events.a", b"early");
    eventually("it is refused", || {
        publisher.connection_error().filter(|_| publisher.counts().connection_failures > 0)
    });
    assert!(
        matches!(publisher.connection_error(), Some(ConnectionError::Connect { .. })),
        "{:?}",
        publisher.connection_error()
    );
    socket.listen(16).expect("it can listen");
    let server = FakeNatsServer::at(socket.into(), Vec::new());
    eventually("it arrives", || (publisher.flush(HANG_TIMEOUT).held == 0).then_some(()));
    assert!(matches!(ticket.outcome(), Some(PublishOutcome::Delivered { .. } | PublishOutcome::Queued)));
    assert_eq!(publisher.send("events.a", b"late"), delivered(2, false));
    drop(publisher);
    assert_eq!(server.stop().len(), 2);
}

#[test]
fn a_reset_in_the_middle_of_a_message_costs_nothing() {
    let (listener, url) = listener();
    let publisher = std::sync::Arc::new(publisher(config(&url)));
    let reported = sending(&publisher, &[7; 100_000]);
    let mut scripted = ScriptedServer::accept(&listener);
    scripted.complete_handshake();
    scripted.reset_after(5000);
    let mut scripted = ScriptedServer::accept(&listener);
    scripted.complete_handshake();
    let message = scripted.published();
    assert_eq!(message.payload, [7; 100_000]);
    scripted.acknowledge(&message, 1, false);
    assert_eq!(outcome(&reported), delivered(1, false));
    assert_eq!(publisher.counts().connection_failures, 1);
}

#[test]
fn a_lost_acknowledgement_makes_a_duplicate_and_no_second_record() {
    let server = FakeNatsServer::start();
    let publisher = publisher(config(&server.url()));
    server.fail([InjectedFault::LoseAcknowledgement]);
    assert_eq!(publisher.send("events.a", b"x"), delivered(1, true));
    assert_eq!(publisher.send("events.a", b"y"), delivered(2, false));
    let counts = publisher.close(HANG_TIMEOUT);
    assert_eq!((counts.delivered, counts.duplicates, counts.retried), (2, 1, 1));
    assert_eq!(server.stop().len(), 2);
}

#[test]
fn a_second_acknowledgement_is_counted_and_forgotten() {
    let (listener, url) = listener();
    let publisher = std::sync::Arc::new(publisher(config(&url)));
    let first = sending(&publisher, b"x");
    let mut scripted = ScriptedServer::accept(&listener);
    scripted.complete_handshake();
    let message = scripted.published();
    scripted.acknowledge(&message, 1, false);
    scripted.acknowledge(&message, 1, false);
    assert_eq!(outcome(&first), delivered(1, false));
    let second = sending(&publisher, b"y");
    let message = scripted.published();
    scripted.acknowledge(&message, 2, false);
    assert_eq!(outcome(&second), delivered(2, false));
    assert_eq!(publisher.counts().stray_answers, 1);
}

/// Row 0.27: the server's hint is obeyed, and nothing is lost.
#[test]
fn a_hint_is_obeyed_and_nothing_is_lost() {
    let server = FakeNatsServer::start();
    let publisher = publisher(config(&server.url()));
    server.fail([
        InjectedFault::RetryLater,
        InjectedFault::LoseAcknowledgement,
        InjectedFault::RetryLater,
        InjectedFault::Reset,
        InjectedFault::Reset,
    ]);
    let tickets: Vec<_> = (0..100_u8).map(|number| publisher.submit("events.a", &[number])).collect();
    let counts = publisher.flush(HANG_TIMEOUT);
    assert_eq!((counts.delivered, counts.dropped, counts.deferrals), (100, 0, 2), "{counts:?}");
    for ticket in &tickets {
        assert!(matches!(ticket.outcome(), Some(PublishOutcome::Delivered { .. } | PublishOutcome::Queued)));
    }
    let mut payloads: Vec<u8> = server.stop().iter().map(|record| record.payload[0]).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, (0..100).collect::<Vec<_>>(), "each once");
}

#[test]
fn a_server_that_hangs_is_left_and_the_message_sent_elsewhere() {
    let ((hung, hung_url), good) = (listener(), FakeNatsServer::start());
    let mut config = PublisherConfig {
        acknowledge_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(300),
        ..config(&hung_url)
    };
    config.servers.push(good.url().parse().expect("an address"));
    let publisher = std::sync::Arc::new(publisher(config));
    let reported = sending(&publisher, b"x");
    let mut scripted = ScriptedServer::accept(&hung);
    scripted.complete_handshake();
    // The server neither acknowledges it nor sends anything else.
    let message = scripted.published();
    assert!(matches!(outcome(&reported), PublishOutcome::Delivered { .. } | PublishOutcome::Queued));
    eventually("the other one has it", || good.records().first().cloned());
    assert_eq!(good.records()[0].id, message.id());
}

#[test]
fn an_accepted_connection_without_a_greeting_is_given_up() {
    let ((silent, url), good) = (listener(), FakeNatsServer::start());
    let mut config = PublisherConfig { connect_timeout: Duration::from_millis(300), ..config(&url) };
    config.servers.push(good.url().parse().expect("an address"));
    let publisher = publisher(config);
    assert!(matches!(
        publisher.send("events.a", b"x"),
        PublishOutcome::Delivered { .. } | PublishOutcome::Queued
    ));
    eventually("the other one has it", || good.records().first().cloned());
    drop(silent);
}

#[test]
fn rejected_credentials_are_reported_and_retried() {
    let (listener, url) = listener();
    let url = url.replace("nats://", "nats://alice:wrong@");
    let spool_mode = SpoolMode::Attempts;
    let publisher = publisher(PublisherConfig { spool_mode, ..config(&url) });
    // Before the server sends INFO, so that all failures count for the message.
    let ticket = publisher.submit("events.a", b"x");
    for _ in 0..4 {
        let mut scripted = ScriptedServer::accept(&listener);
        scripted.send_bytes(format!("INFO {}\r\n", stilling_probe::nats::INFO));
        let ReceivedOperation::Connect(options) = scripted.next_operation() else {
            panic!("CONNECT comes first")
        };
        assert!(options.contains(r#""user":"alice","pass":"wrong""#), "{options}");
        scripted.send_bytes("-ERR 'Authorization Violation'\r\n");
        assert_eq!(scripted.next_operation(), ReceivedOperation::Ping);
        assert_eq!(scripted.next_operation(), ReceivedOperation::Closed);
    }
    let reported = ticket.wait(HANG_TIMEOUT);
    let Some(PublishOutcome::Dropped(DropReason::AttemptsExhausted {
        attempts: 4,
        connection_error: Some(connection_error),
    })) = reported
    else {
        panic!("it gives up: {reported:?}")
    };
    assert!(connection_error.to_string().contains("check user and password"), "{connection_error}");
}

/// Rows 0.4 and 0.7: a server that stops in the middle of a burst and restarts with its records.
#[test]
fn a_restart_in_the_middle_of_a_burst_loses_and_doubles_nothing() {
    let (listener, url) = listener();
    let other = listener.try_clone().expect("a descriptor");
    let mut server = FakeNatsServer::at(listener, Vec::new());
    let publisher = publisher(config(&url));
    for round in 0..5_u64 {
        for number in 0..500_u64 {
            let _ = publisher.submit("events.a", &(round * 500 + number).to_le_bytes());
        }
        let records = server.stop();
        server = FakeNatsServer::at(other.try_clone().expect("a descriptor"), records);
    }
    let counts = publisher.close(HANG_TIMEOUT);
    assert_eq!((counts.delivered, counts.dropped, counts.held), (2500, 0, 0), "{counts:?}");
    let records = server.stop();
    let numbers: Vec<u64> = records
        .iter()
        .map(|record| u64::from_le_bytes(record.payload[..].try_into().expect("eight bytes")))
        .collect();
    assert_eq!(numbers, (0..2500).collect::<Vec<_>>(), "each once and in order");
}

/// Row 0.14: a full spool follows its policy: the caller waits for room at most for its timeout, or the policy's
/// message is dropped and counted.
#[test]
fn a_full_spool_applies_its_policy() {
    let small = |overflow, mode| PublisherConfig {
        overflow,
        mode,
        spool_size: 10 * (100 + 8 + 128 + 80),
        send_timeout: Duration::from_millis(30),
        ..config("nats://127.0.0.1:1")
    };
    let payload = |number: u64| [&number.to_le_bytes()[..], &[0; 92]].concat();

    let newest = publisher(small(OverflowPolicy::DropNewest, PublishMode::NoWait));
    let outcomes: Vec<_> = (0..30).map(|number| newest.send("events.a", &payload(number))).collect();
    let dropped =
        outcomes.iter().filter(|one| **one == PublishOutcome::Dropped(DropReason::SpoolFull)).count() as u64;
    assert!((15..=25).contains(&dropped), "{dropped}");
    assert!(outcomes[..5].iter().all(|one| *one == PublishOutcome::Queued));
    let counts = newest.counts();
    assert!(counts.is_balanced() && counts.dropped == dropped && counts.held == 30 - dropped, "{counts:?}");

    let oldest = publisher(small(OverflowPolicy::DropOldest, PublishMode::NoWait));
    for number in 0..30 {
        assert_eq!(oldest.send("events.a", &payload(number)), PublishOutcome::Queued);
    }
    let counts = eventually("the old ones go", || Some(oldest.counts()).filter(|counts| counts.held <= 10));
    assert!(counts.is_balanced(), "{counts:?}");
    let reported: Vec<_> = oldest.failures().collect();
    assert_eq!(reported.len() as u64, counts.dropped);
    assert!(reported.iter().all(|failure| failure.reason == DropReason::SpoolFull));

    let waiting = publisher(small(OverflowPolicy::Wait, PublishMode::Confirmed));
    let tickets: Vec<_> = (0..12).map(|number| waiting.submit("events.a", &payload(number))).collect();
    assert_eq!(tickets[11].outcome(), Some(PublishOutcome::Dropped(DropReason::SpoolFull)));
    assert!(waiting.counts().is_balanced());
}

/// Row 0.18: failures are reported later, to a callback or on request.
#[test]
fn failures_are_reported_to_the_callback() {
    let (listener, url) = listener();
    let publisher = publisher(PublisherConfig { mode: PublishMode::NoWait, ..config(&url) });
    let (tell, reported) = mpsc::channel();
    publisher.on_failure(move |failure| {
        let _ = tell.send(failure.clone());
    });
    assert_eq!(publisher.send("events.a", b"x"), PublishOutcome::Queued);
    let mut scripted = ScriptedServer::accept(&listener);
    scripted.complete_handshake();
    let message = scripted.published();
    scripted.answer(
        &message,
        "",
        r#"{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum"}}"#,
    );
    let failure = reported.recv_timeout(HANG_TIMEOUT).expect("it is reported");
    assert_eq!((failure.subject.as_str(), failure.id.as_str()), ("events.a", message.id()));
    assert!(failure.reason.to_string().contains("message size exceeds maximum"), "{}", failure.reason);
    assert_eq!(publisher.failures().count(), 0);
}

/// A directory has one publisher; the error of the second one names the holder's process id.
#[test]
fn two_publishers_cannot_have_one_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let spool_mode = SpoolMode::Directory(directory.path().to_owned());
    let first = publisher(PublisherConfig { spool_mode: spool_mode.clone(), ..config("nats://127.0.0.1:1") });
    let second =
        Publisher::new(PublisherConfig { spool_mode: spool_mode.clone(), ..config("nats://127.0.0.1:1") });
    let error = second.expect_err("the directory is in use").to_string();
    assert!(error.contains("in use by"), "{error}");
    drop(first);
    drop(publisher(PublisherConfig { spool_mode, ..config("nats://127.0.0.1:1") }));
}

#[test]
fn a_disconnected_follower_resumes_at_its_position() {
    let server = FakeNatsServer::start();
    let publisher = publisher(config(&server.url()));
    let wait = Duration::from_millis(2);
    let mut follower = Subscriber::new(SubscriberConfig {
        servers: vec![server.url().parse().expect("an address")],
        filter: "events.>".to_owned(),
        stream: Some(FollowedStream { stream: "events".to_owned(), from: FollowStart::All }),
        backoff: BackoffConfig { wait, wait_max: wait, ..BackoffConfig::default() },
        ..SubscriberConfig::default()
    })
    .expect("it can work");
    let mut interrupted = 0;
    for number in 0..50_u8 {
        assert!(matches!(
            publisher.send("events.a", &[number]),
            PublishOutcome::Delivered { .. } | PublishOutcome::Queued
        ));
        let message = loop {
            match follower.next_event(HANG_TIMEOUT).expect("it goes on") {
                Some(SubscriberEvent::Message(message)) => break message,
                Some(SubscriberEvent::Interrupted(_)) => interrupted += 1,
                Some(SubscriberEvent::Connected) => {}
                Some(event) => panic!("nothing is missed: {event:?}"),
                None => panic!("{number} does not come"),
            }
        };
        assert_eq!(message.payload, [number]);
        if number % 10 == 5 {
            server.disconnect_all();
        }
    }
    assert_eq!(interrupted, 5);
}

#[test]
fn a_follower_that_misses_a_message_requests_it() {
    let (listener, url) = listener();
    let followed = FollowedStream { stream: "events".to_owned(), from: FollowStart::Sequence(3) };
    let mut follower = Subscriber::new(SubscriberConfig {
        servers: vec![url.parse().expect("an address")],
        stream: Some(followed),
        ..SubscriberConfig::default()
    })
    .expect("it can work");
    let (tell, reported) = mpsc::channel();
    std::thread::spawn(move || {
        while let Some(Ok(message)) = follower.next() {
            if tell.send(message.payload).is_err() {
                break;
            }
        }
    });
    let mut scripted = ScriptedServer::accept(&listener);
    scripted.complete_handshake();
    let consumer_request = |scripted: &mut ScriptedServer, first: u64| {
        let (mut deliver, mut sid) = (String::new(), String::new());
        let consumer_request = loop {
            match scripted.next_operation() {
                ReceivedOperation::Pub(asks) if asks.subject == "$JS.API.STREAM.INFO.events" => {
                    scripted.deliver(&asks.reply, "1", "", "", br#"{"state":{"first_seq":1,"last_seq":9}}"#);
                }
                ReceivedOperation::Pub(removal) if removal.subject == "$JS.API.CONSUMER.DELETE.events.c" => {}
                ReceivedOperation::Pub(consumer_request) => break consumer_request,
                ReceivedOperation::Sub { filter, sid: its } if filter.contains(".d.") => {
                    (deliver, sid) = (filter, its);
                }
                _ => {}
            }
        };
        let text = String::from_utf8(consumer_request.payload.clone()).expect("it is JSON");
        assert!(text.contains(&format!(r#""opt_start_seq":{first},"#)), "{text}");
        scripted.deliver(&consumer_request.reply, "1", "", "", br#"{"name":"c"}"#);
        (deliver, sid)
    };
    let ack = |sequence: u64, count: u64| format!("$JS.ACK.events.c.1.{sequence}.{count}.1.0");
    let (_, sid) = consumer_request(&mut scripted, 3);
    scripted.deliver("events.a", &sid, &ack(3, 1), "", b"3");
    scripted.deliver("events.a", &sid, &ack(5, 3), "", b"5");
    let (deliver, next) = consumer_request(&mut scripted, 4);
    scripted.deliver("events.a", &sid, &ack(6, 4), "", b"of the old one");
    scripted.deliver("events.a", &next, &ack(4, 1), "", b"4");
    scripted.deliver(
        &deliver,
        &next,
        "",
        "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\n\r\n",
        b"",
    );
    let (deliver, last) = consumer_request(&mut scripted, 5);
    scripted.deliver(&deliver, &last, "go.on", "NATS/1.0 100 FlowControl Request\r\n\r\n", b"");
    assert_eq!(scripted.published().subject, "go.on");
    scripted.deliver("events.a", &last, &ack(5, 1), "", b"5");
    for expected in [b"3", b"4", b"5"] {
        assert_eq!(reported.recv_timeout(HANG_TIMEOUT).expect("it comes"), expected);
    }
}

#[test]
fn a_callback_that_panics_is_called_no_more_and_the_publisher_continues() {
    let server = FakeNatsServer::start();
    let publisher = publisher(PublisherConfig { no_stream_timeout: Duration::ZERO, ..config(&server.url()) });
    let (tell, reported) = mpsc::channel();
    publisher.on_failure(move |failure| {
        let _ = tell.send(failure.subject.clone());
        panic!("a mistake of the caller's");
    });
    drop(publisher.submit("nobody.keeps.a", b"x"));
    assert_eq!(reported.recv_timeout(HANG_TIMEOUT).expect("it is called"), "nobody.keeps.a");
    assert_eq!(publisher.send("events.a", b"y"), delivered(1, false));
    drop(publisher.submit("nobody.keeps.b", b"x"));
    let counts = publisher.flush(HANG_TIMEOUT);
    assert_eq!((counts.delivered, counts.dropped, counts.held), (1, 2, 0));
    let kept: Vec<String> = publisher.failures().map(|failure| failure.subject).collect();
    assert_eq!(kept, ["nobody.keeps.b"]);
}

#[test]
fn spans_without_an_end_are_waited_for_and_panic_nowhere() {
    let server = FakeNatsServer::start();
    let most = Duration::MAX;
    let backoff = BackoffConfig { wait: most, wait_max: most, ..BackoffConfig::default() };
    let publisher = publisher(PublisherConfig {
        backoff,
        send_timeout: most,
        acknowledge_timeout: most,
        connect_timeout: most,
        no_stream_timeout: most,
        ping_interval: most,
        ..config(&server.url())
    });
    assert_eq!(publisher.send("events.a", b"x"), delivered(1, false));
    let mut follower = Subscriber::new(SubscriberConfig {
        servers: vec![server.url().parse().expect("an address")],
        stream: Some(FollowedStream { stream: "events".to_owned(), from: FollowStart::All }),
        backoff,
        connect_timeout: most,
        answer_timeout: most,
        ping_interval: most,
        ..SubscriberConfig::default()
    })
    .expect("it can work");
    assert_eq!(follower.next().expect("it goes on").expect("it can be followed").payload, b"x");
    let mut requester = Requester::new(server.url().parse().expect("an address"), None);
    assert_eq!(requester.request("nobody.listens", b"?", most), Err(RequesterError::NoResponders));
    assert_eq!(publisher.close(most).delivered, 1);
}

#[test]
fn a_question_without_an_answer_is_the_last_one_on_its_connection() {
    let (listener, url) = listener();
    let asking = std::thread::spawn(move || {
        let mut requester = Requester::new(url.parse().expect("an address"), None);
        let first = requester.request("a", b"1", Duration::from_millis(300));
        (first, requester.request("a", b"2", HANG_TIMEOUT))
    });
    let mut hung = ScriptedServer::accept(&listener);
    hung.complete_handshake();
    let mut scripted = ScriptedServer::accept(&listener);
    scripted.complete_handshake();
    let question = scripted.published();
    scripted.deliver(&question.reply, "1", "", "", b"answer");
    let (first, second) = asking.join().expect("it ends");
    assert!(matches!(first, Err(RequesterError::TimedOut)), "{first:?}");
    assert_eq!(second.expect("it is answered").payload, b"answer");
}

#[test]
fn a_header_that_cannot_be_sent_is_called_so() {
    let publisher = publisher(config("nats://127.0.0.1:1"));
    let outcome = publisher.send_with("events.a", &[("a name with\na line", "x")], b"");
    assert!(matches!(&outcome, PublishOutcome::Dropped(DropReason::InvalidHeader(_))), "{outcome:?}");
}

/// A server that returns with another stream of the same name: the new stream is followed from its beginning.
#[test]
fn a_follower_reports_a_recreated_stream_and_continues() {
    let (listener, url) = listener();
    let address = listener.local_addr().expect("it has one");
    let server = FakeNatsServer::at(listener, Vec::new());
    let publisher = publisher(config(&url));
    for number in 0..5 {
        assert!(matches!(publisher.send("events.a", &[number]), PublishOutcome::Delivered { .. }));
    }
    let wait = Duration::from_millis(2);
    let mut follower = Subscriber::new(SubscriberConfig {
        servers: vec![url.parse().expect("an address")],
        stream: Some(FollowedStream { stream: "events".to_owned(), from: FollowStart::All }),
        backoff: BackoffConfig { wait, wait_max: 10 * wait, ..BackoffConfig::default() },
        ..SubscriberConfig::default()
    })
    .expect("it can work");
    let mut next = || {
        loop {
            match follower.next_event(HANG_TIMEOUT).expect("it goes on") {
                Some(SubscriberEvent::Connected | SubscriberEvent::Interrupted(_)) => {}
                Some(event) => break event,
                None => panic!("nothing comes"),
            }
        }
    };
    for number in 0..5 {
        assert!(matches!(next(), SubscriberEvent::Message(message) if message.payload == [number]));
    }
    server.stop();
    let socket = TcpListener::bind(address).expect("the port is free again");
    let _server = FakeNatsServer::at(socket, Vec::new());
    assert_eq!(next(), SubscriberEvent::Recreated { last: 5 });
    assert!(matches!(publisher.send("events.a", b"new"), PublishOutcome::Delivered { sequence: 1, .. }));
    assert!(matches!(next(), SubscriberEvent::Message(message) if message.payload == b"new"));
}

#[test]
fn a_stream_that_is_not_there_is_named() {
    let server = FakeNatsServer::start();
    let followed = FollowedStream { stream: "other".to_owned(), from: FollowStart::All };
    let config = SubscriberConfig {
        servers: vec![server.url().parse().expect("an address")],
        stream: Some(followed),
        ..SubscriberConfig::default()
    };
    let error = Subscriber::new(config).expect("it can work").next().expect("an end").expect_err("no stream");
    assert!(error.to_string().contains("stream other cannot be followed: stream not found (404"), "{error}");
}
