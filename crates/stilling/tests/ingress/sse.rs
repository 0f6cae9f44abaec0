//! Tests of `GET /subscribe/<filter>` over server-sent events.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling::settings::{
    Credential, Durability, Retention, Secret, SlowSubscribers, StreamConfig, UserConfig,
};

use crate::support::{HubTestServer, NatsSubscriber, TestPeer, eventually};

on_both_drivers!(
    messages_are_events_with_ids,
    a_subscriber_starts_where_it_asks_to,
    a_subscriber_resumes_before_its_first_event,
    a_subscriber_resumes_after_a_restart,
    removed_records_are_a_gap,
    a_position_that_does_not_exist_is_reset,
    subscribers_that_join_under_load_get_every_record_once,
    what_cannot_be_subscribed_says_why,
    only_permitted_users_subscribe,
    a_slow_subscriber_is_closed_and_others_are_not,
    a_slow_subscriber_catches_up,
    silence_is_broken_by_comments,
    curl_follows,
    the_end_of_the_server_ends_the_events,
);

/// An event as a client dispatches it, or one that only sets the id.
#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    id: Option<String>,
    name: Option<String>,
    data: Option<String>,
}

const HEARTBEAT: &str = ":\n";

struct EventSource {
    peer: TestPeer,
    /// Received bytes, and those of them that have been read.
    buffer: Vec<u8>,
    at: usize,
}

impl EventSource {
    #[track_caller]
    fn open(server: &HubTestServer, path: &str, fields: &str) -> EventSource {
        Self::on(server.connect(), path, fields)
    }

    #[track_caller]
    fn on(mut peer: TestPeer, path: &str, fields: &str) -> EventSource {
        peer.send(format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{fields}\r\n"
        ));
        let head = peer.head();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.field("Content-Type"), Some("text/event-stream"));
        assert_eq!(head.field("Cache-Control"), Some("no-store"));
        let mut events = EventSource { peer, buffer: Vec::new(), at: 0 };
        assert_eq!(events.block(), "retry: 1000\n");
        events
    }

    /// The lines up to the next empty one.
    #[track_caller]
    fn block(&mut self) -> String {
        let mut block = String::new();
        loop {
            let line = self.line();
            if line == "\n" {
                return block;
            }
            block += &line;
        }
    }

    #[track_caller]
    fn line(&mut self) -> String {
        loop {
            let rest = &self.buffer[self.at..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8(rest[..=end].to_vec()).expect("events are text");
                self.at += end + 1;
                return line;
            }
            self.buffer.drain(..self.at);
            self.at = 0;
            self.buffer.extend(self.peer.read_some());
        }
    }

    #[track_caller]
    fn next(&mut self) -> Event {
        let mut event = Event::default();
        let mut block = self.block();
        while block == HEARTBEAT {
            block = self.block();
        }
        for line in block.lines() {
            let (field, value) = line.split_once(": ").unwrap_or((line, ""));
            let place = match field {
                "id" => &mut event.id,
                "event" => &mut event.name,
                "data" => &mut event.data,
                other => panic!("a field {other:?}"),
            };
            match place {
                Some(text) => *text += &format!("\n{value}"),
                None => *place = Some(value.to_owned()),
            }
        }
        event
    }

    /// The id of the event before the first message of a subscription that begins in the past.
    #[track_caller]
    fn start(&mut self) -> String {
        self.caught_up()
    }

    /// The id of the event that ends the catch-up.
    #[track_caller]
    fn caught_up(&mut self) -> String {
        let event = self.next();
        assert!(event.data.is_none() && event.name.is_none(), "{event:?}");
        event.id.expect("an id")
    }

    /// The sequence of the next message.
    #[track_caller]
    fn sequence(&mut self) -> u64 {
        sequence(&self.next())
    }
}

#[track_caller]
fn sequence(event: &Event) -> u64 {
    let id = event.id.as_deref().unwrap_or_else(|| panic!("a message: {event:?}"));
    let (_, sequence) = id.split_once('-').expect("an id has two parts");
    assert!(event.data.is_some(), "a message: {event:?}");
    sequence.parse().expect("a sequence")
}

#[track_caller]
fn publish(server: &HubTestServer, subject: &str, payload: &str) {
    let size = payload.len();
    let request =
        format!("POST /publish/{subject} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{payload}");
    assert_eq!(server.connect().ask(request).status, 200);
}

/// Publishes the numbers of a range as one body.
#[track_caller]
fn publish_numbers(server: &HubTestServer, subject: &str, numbers: std::ops::RangeInclusive<u64>) {
    let body: String = numbers.map(|number| format!("{number}\n")).collect();
    let size = body.len();
    let request = format!(
        "POST /publish/{subject} HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\n\
         Content-Length: {size}\r\n\r\n{body}"
    );
    assert_eq!(server.connect().ask(request).status, 200);
}

fn messages_are_events_with_ids(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut events = EventSource::open(&server, "/subscribe/events.%3E", "");
    let mut raw = EventSource::open(&server, "/subscribe/events.*?format=raw", "");
    let start = events.caught_up();
    assert!(start.ends_with("-0") && raw.caught_up() == start, "{start}");
    for (payload, object, lines) in [
        ("{\"price\":11}", "\"data\":{\"price\":11}", "{\"price\":11}"),
        ("two\nlines", "\"text\":\"two\\nlines\"", "two\nlines"),
        ("\"\u{e9}\"", "\"data\":\"\u{e9}\"", "\"\u{e9}\""),
    ] {
        publish(&server, "events.a", payload);
        let (event, raw_event) = (events.next(), raw.next());
        let data = event.data.as_deref().expect("a message");
        let number = sequence(&event);
        assert!(
            data.starts_with(&format!("{{\"seq\":{number},\"subject\":\"events.a\",\"time\":\"20")),
            "{data}"
        );
        assert!(data.ends_with(&format!("{object}}}")), "{data}");
        assert_eq!((raw_event.id, raw_event.data.as_deref()), (event.id, Some(lines)));
    }
    // Without a stream there is nothing to resume from.
    let mut plain = EventSource::open(&server, "/subscribe/news.*", "");
    eventually("it is subscribed", || (server.metric("stilling_hub_registrations") == 3).then_some(()));
    publish(&server, "news.eu", "1");
    let expected = Some("{\"subject\":\"news.eu\",\"data\":1}".to_owned());
    assert_eq!(plain.next(), Event { data: expected, ..Event::default() });
    // Filters of several streams get messages without ids.
    let mut all = EventSource::open(&server, "/subscribe/%3E", "");
    eventually("it is subscribed", || (server.metric("stilling_hub_registrations") == 4).then_some(()));
    publish(&server, "quick.x", "1");
    assert_eq!(all.next().id, None);
    eventually("they are counted", || {
        (server.metric("stilling_hub_subscribers{protocol=\"sse\"}") == 4).then_some(())
    });
    let page = server.page("/status").into_text();
    assert!(page.contains("<td>subscribers by SSE now<td>4"), "{page}");
    drop((events, raw, plain, all));
    eventually("they have gone", || {
        (server.metric("stilling_hub_subscribers{protocol=\"sse\"}") == 0).then_some(())
    });
    assert_eq!(server.metric("stilling_hub_subscribers_delivered_total{protocol=\"sse\"}"), 8);
    server.finish();
}

/// Row 2.18: a late subscriber starts at a sequence, at a time, or with the next message.
fn a_subscriber_starts_where_it_asks_to(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    for subject in ["events.a", "quick.a"] {
        publish_numbers(&server, subject, 1..=5);
    }
    for subject in ["events", "quick"] {
        for (from, first) in [
            ("?from=all", 1),
            ("?from=0", 1),
            ("?from=4", 4),
            ("?from=6", 6),
            ("?from=new", 6),
            ("", 6),
            ("?from=1999-12-31T23:59:59Z", 1),
            ("?from=2999-12-31T23:59:59Z", 6),
        ] {
            let mut events = EventSource::open(&server, &format!("/subscribe/{subject}.a{from}"), "");
            if first <= 5 {
                events.start();
            }
            for expected in first..=5 {
                assert_eq!(events.sequence(), expected, "{subject} {from}");
            }
            let epoch_and_last = events.caught_up();
            assert!(epoch_and_last.ends_with("-5"), "{subject} {from}: {epoch_and_last}");
        }
        // The filter applies to what is read, too.
        let mut events = EventSource::open(&server, &format!("/subscribe/{subject}.b?from=all"), "");
        assert!(events.start().ends_with("-0"));
        assert!(events.caught_up().ends_with("-5"));
    }
    server.finish();
}

/// Row 2.15: a client that has not received an event yet has the id before it, and a later one has none to be told.
fn a_subscriber_resumes_before_its_first_event(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    for subject in ["events.a", "quick.a"] {
        publish_numbers(&server, subject, 1..=5);
        for (from, first) in [("all", 1), ("4", 4), ("1999-12-31T23:59:59Z", 1), ("77-2", 1)] {
            let path = format!("/subscribe/{subject}?from={from}");
            let mut events = EventSource::open(&server, &path, "");
            if from == "77-2" {
                assert_eq!(events.next().name.as_deref(), Some("reset"));
            }
            let id = events.start();
            assert!(id.ends_with(&format!("-{}", first - 1)), "{path}: {id}");
            drop(events);
            let mut events = EventSource::open(&server, &path, &format!("Last-Event-ID: {id}\r\n"));
            for expected in first..=5 {
                assert_eq!(events.sequence(), expected, "{path}");
            }
            assert_eq!(events.caught_up().split('-').next(), id.split('-').next());
        }
        // Nothing follows that an early id would be for.
        let mut events = EventSource::open(&server, &format!("/subscribe/{subject}"), "");
        assert!(events.caught_up().ends_with("-5"));
    }
    server.finish();
}

/// Row 2.15: after a restart a client continues after the last event that it has seen.
fn a_subscriber_resumes_after_a_restart(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    publish_numbers(&server, "events.a", 1..=10);
    let mut events = EventSource::open(&server, "/subscribe/events.a?from=all", "");
    let mut last = events.start();
    for expected in 1..=7 {
        let event = events.next();
        assert_eq!(sequence(&event), expected);
        last = event.id.expect("an id");
    }
    drop(events);
    let (_, folder) = server.keep();
    let data = folder.path().join("streams");
    let server = HubTestServer::with(driver, |config| config.hub.data = data);
    publish_numbers(&server, "events.a", 11..=12);
    // The header has precedence over the position that the page was opened with.
    let field = format!("Last-Event-ID: {last}\r\n");
    let mut events = EventSource::open(&server, "/subscribe/events.a?from=all", &field);
    for expected in 8..=12 {
        assert_eq!(events.sequence(), expected);
    }
    assert_eq!(events.caught_up().split('-').next(), last.split('-').next(), "the epoch is the same");
    publish(&server, "events.a", "13");
    assert_eq!(events.sequence(), 13);
    drop(events);
    server.finish();
}

/// Rows 2.18 and 2.11: what retention has removed is named exactly.
fn removed_records_are_a_gap(driver: DriverChoice) {
    let server = HubTestServer::with(driver, |config| {
        config.hub.streams = vec![StreamConfig {
            durability: Durability::Memory,
            retention: Retention { bytes: 1 << 20, ..Retention::of(Durability::Memory) },
            ..StreamConfig::new("quick", ["quick.>"])
        }];
    });
    let payload = "x".repeat(900_000);
    for _ in 0..12 {
        publish(&server, "quick.a", &payload);
    }
    let first = server.metric("stilling_hub_stream_first_sequence{stream=\"quick\"}");
    assert!(first > 3, "{first}");
    let mut events = EventSource::open(&server, "/subscribe/quick.a?from=2", "");
    assert!(events.start().ends_with("-1"));
    let gap = events.next();
    assert_eq!(gap.name.as_deref(), Some("gap"));
    let expected = format!("{{\"gap\":{{\"first\":2,\"last\":{},\"cause\":\"removed\"}}}}", first - 1);
    assert_eq!(gap.data.as_deref(), Some(expected.as_str()));
    for expected in first..=12 {
        assert_eq!(events.sequence(), expected);
    }
    let mut oldest = EventSource::open(&server, "/subscribe/quick.a?from=all", "");
    let start = oldest.start();
    assert!(start.ends_with(&format!("-{}", first - 1)), "resuming from it reports no gap: {start}");
    assert_eq!(oldest.sequence(), first, "the oldest record is what was asked for");
    drop((events, oldest));
    server.finish();
}

fn a_position_that_does_not_exist_is_reset(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    publish_numbers(&server, "quick.a", 1..=3);
    let mut events = EventSource::open(&server, "/subscribe/quick.a", "");
    let position = events.caught_up();
    let (epoch, _) = position.split_once('-').expect("an id");
    for (from, cause, next) in [
        ("77-2".to_owned(), "epoch", 1),
        (format!("{epoch}-9"), "ahead", 4),
        ("9".to_owned(), "ahead", 4),
        (u64::MAX.to_string(), "ahead", 4),
        (format!("{epoch}-{}", u64::MAX), "ahead", 4),
    ] {
        let mut events = EventSource::open(&server, &format!("/subscribe/quick.a?from={from}"), "");
        let reset = events.next();
        assert_eq!(reset.name.as_deref(), Some("reset"), "{from}");
        let expected =
            format!("{{\"reset\":{{\"cause\":\"{cause}\",\"epoch\":\"{epoch}\",\"next\":{next}}}}}");
        assert_eq!(reset.data.as_deref(), Some(expected.as_str()), "{from}");
        if next <= 3 {
            assert_eq!(events.start(), format!("{epoch}-{}", next - 1));
        }
        for expected in next..=3 {
            assert_eq!(events.sequence(), expected);
        }
        assert_eq!(events.caught_up(), position);
    }
    drop(events);
    server.finish();
}

/// Row 2.11: joins during a broadcast are safe: each subscriber gets consecutive sequences, from the first to the last.
fn subscribers_that_join_under_load_get_every_record_once(driver: DriverChoice) {
    const MESSAGES: u64 = 30_000;
    const SUBSCRIBERS: u64 = 12;
    for stream in ["events", "quick"] {
        let server = HubTestServer::start(driver);
        let nats = server.at("nats");
        let publisher = thread::spawn(move || {
            let mut peer = NatsSubscriber::at(nats, "unheard");
            for number in 0..MESSAGES {
                peer.publish(&format!("{stream}.a"), "", &number.to_string());
            }
            peer
        });
        let metric = format!("stilling_hub_stream_visible_sequence{{stream=\"{stream}\"}}");
        let mut readers = Vec::new();
        for number in 0..SUBSCRIBERS {
            let joins_at = number * MESSAGES / SUBSCRIBERS / 2;
            eventually("some are visible", || (server.metric(&metric) >= joins_at).then_some(()));
            let first = if number % 2 == 0 { 1 } else { joins_at.max(1) };
            let events = EventSource::open(&server, &format!("/subscribe/{stream}.%3E?from={first}"), "");
            readers.push(thread::spawn(move || {
                let mut events = events;
                let mut next = first;
                while next <= MESSAGES {
                    let event = events.next();
                    if event.data.is_some() {
                        assert_eq!((sequence(&event), event.name), (next, None));
                        next += 1;
                    }
                }
                events
            }));
        }
        let publisher = publisher.join().expect("it publishes");
        for reader in readers {
            drop(reader.join().expect("every record came once, in order"));
        }
        drop(publisher);
        assert_eq!(server.metric("stilling_hub_catch_ups"), 0);
        server.finish();
    }
}

fn what_cannot_be_subscribed_says_why(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    for (path, fields, status, part) in [
        ("/subscribe/", "", 400, "invalid filter"),
        ("/subscribe/a..b", "", 400, "invalid filter"),
        ("/subscribe/$JS.API.INFO", "", 400, "reserved"),
        ("/subscribe/events.a?from=yesterday", "", 400, "invalid from"),
        ("/subscribe/events.a", "Last-Event-ID: x\r\n", 400, "invalid Last-Event-ID"),
        ("/subscribe/events.a?form=json", "", 400, "unknown parameter \"form\""),
        ("/subscribe/events.a?format=xml", "", 400, "unknown format"),
        ("/subscribe/events.a?from=1&from=2", "", 400, "given twice"),
        ("/subscribe/news?from=1", "", 400, "no stream has subjects of this filter"),
        ("/subscribe/%3E?from=1", "", 400, "several streams"),
        ("/subscribe/events.a", "Accept: text/html\r\n", 406, "event stream"),
        ("/subscribe/events.a", "Origin: http://evil.example\r\n", 403, "cross-origin"),
        ("/subscribe/events.a", "Content-Length: 1\r\n", 400, "no body"),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}\r\n");
        let answer = server.connect().ask(request);
        assert!(answer.status == status && answer.text().contains(part), "{path} {fields}: {answer:?}");
    }
    let named = server.connect().ask("GET /subscribe/events.a HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(named.status == 403 && named.text().contains("DNS rebinding"), "{named:?}");
    let posted =
        server.connect().ask("POST /subscribe/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((posted.status, posted.field("Allow")), (405, Some("GET, HEAD")));
    let mut peer = server.connect();
    peer.send("HEAD /subscribe/events.a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert_eq!(peer.head().field("Content-Type"), Some("text/event-stream"));
    server.finish();
}

fn only_permitted_users_subscribe(driver: DriverChoice) {
    let password = |text| Credential::Password(Secret::new(text));
    let server = HubTestServer::with(driver, |config| {
        let reader =
            UserConfig { subscribe: vec!["events.a".into()], ..UserConfig::new("ann", password("p")) };
        config.hub.users = vec![reader];
    });
    let ask = |path: &str, fields: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: here.example\r\n{fields}\r\n");
        server.connect().ask(request)
    };
    let refused = ask("/subscribe/events.a", "");
    assert_eq!((refused.status, refused.field("WWW-Authenticate").is_some()), (401, true));
    // "ann:p" and "ann:x".
    assert_eq!(ask("/subscribe/events.a", "Authorization: Basic YW5uOng=\r\n").status, 401);
    assert_eq!(ask("/subscribe/events.*", "Authorization: Basic YW5uOnA=\r\n").status, 403);
    let events = EventSource::open(&server, "/subscribe/events.a", "Authorization: Basic YW5uOnA=\r\n");
    drop(events);
    assert_eq!(server.metric("stilling_hub_unauthorized_total"), 2);
    server.finish();
}

/// Row 2.18: a subscriber that does not read is closed if the stream says so; the others get everything.
fn a_slow_subscriber_is_closed_and_others_are_not(driver: DriverChoice) {
    let server = HubTestServer::with(driver, |config| {
        config.hub.streams[1].slow_subscribers = SlowSubscribers::Disconnect;
    });
    let mut slow = slow_subscriber_beside_another(&server);
    eventually("it is disconnected", || {
        (server.metric("stilling_hub_slow_consumers_total") == 1).then_some(())
    });
    slow.peer.read_until_closed();
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::SlowConsumer)), 1);
}

/// Row 2.18: a subscriber that does not read holds little memory, and then gets everything; the others have not waited.
fn a_slow_subscriber_catches_up(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut slow = slow_subscriber_beside_another(&server);
    assert_eq!(server.metric("stilling_hub_fallen_behind_total"), 1);
    let held = server.metric("stilling_output_held_bytes");
    assert!(held <= 4 << 20, "{held} bytes wait for it");
    let mut sequences = Vec::new();
    while sequences.len() < MESSAGES as usize {
        let event = slow.next();
        if event.data.is_some() {
            sequences.push(sequence(&event));
        }
    }
    assert_eq!(sequences, (1..=MESSAGES).collect::<Vec<_>>());
    publish(&server, "quick.a", "the last");
    while slow.next().data.as_deref() != Some("the last") {}
    drop(slow);
    assert_eq!(server.metric("stilling_hub_slow_consumers_total"), 0);
    server.finish();
}

/// Messages of a million bytes for a subscriber that does not read: within the retention of the stream.
const MESSAGES: u64 = 60;

/// A subscriber that has read nothing, beside one that has received all [`MESSAGES`].
fn slow_subscriber_beside_another(server: &HubTestServer) -> EventSource {
    let slow = TestPeer::connect_with_small_buffer(server.at("http"));
    let mut slow = EventSource::on(slow, "/subscribe/quick.a?format=raw", "");
    slow.caught_up();
    let mut quick = EventSource::open(server, "/subscribe/quick.a?format=raw", "");
    quick.caught_up();
    let (arrived, arrivals) = mpsc::channel();
    let reader = thread::spawn(move || {
        for expected in 1..=MESSAGES {
            let event = quick.next();
            assert_eq!((sequence(&event), event.data.map(|data| data.len())), (expected, Some(1_000_000)));
            arrived.send(()).expect("the publisher waits");
        }
        quick
    });
    let payload = "x".repeat(1_000_000);
    for _ in 0..MESSAGES {
        publish(server, "quick.a", &payload);
        arrivals.recv().expect("it arrives at the other");
    }
    drop(reader.join().expect("it got everything"));
    slow
}

fn curl_follows(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    publish_numbers(&server, "events.a", 1..=2);
    let url = server.url("/subscribe/events.a?from=all&format=raw");
    let mut curl = Command::new("curl")
        .args(["--no-buffer", "--silent", "--globoff", &url])
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl runs");
    let lines = BufReader::new(curl.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut data = lines.filter(|line| line.starts_with("data: "));
    for number in 1..=3 {
        if number == 3 {
            publish(&server, "events.a", "3");
        }
        assert_eq!(data.next(), Some(format!("data: {number}")));
    }
    curl.kill().expect("it runs");
    curl.wait().expect("it has ended");
    server.finish();
}

fn silence_is_broken_by_comments(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut events = EventSource::open(&server, "/subscribe/events.a", "");
    events.caught_up();
    let started = Instant::now();
    assert_eq!(events.block(), HEARTBEAT);
    assert!(started.elapsed() > Duration::from_secs(14), "{:?}", started.elapsed());
    drop(events);
    server.finish();
}

fn the_end_of_the_server_ends_the_events(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut events = EventSource::open(&server, "/subscribe/events.a", "");
    events.caught_up();
    let overview = server.finish();
    assert_eq!(events.peer.rest(), b"");
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::Drained)), 1);
}
