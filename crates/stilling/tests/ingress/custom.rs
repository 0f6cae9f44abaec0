//! Tests of custom protocols, each added by one module and one registration.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use stilling::DriverChoice;
use stilling::engine::{CloseReason, Io};
use stilling::hand_over::TakeOverConfig;
use stilling::protocol::{CustomContext, CustomListener, CustomProtocol, CustomSession, PublishError};

use crate::support::{HubTestServer, NatsSubscriber, TestPeer, any_port, eventually, records};

on_both_drivers![
    lines_are_published_and_answered,
    lines_are_stored_without_other_listeners_for_messages,
    invalid_publications_are_answered_with_a_reason,
    refusals_of_a_stream_are_counted,
    publications_wait_for_room_in_their_order,
    a_connection_waits_for_room_once_at_a_time,
    a_silent_connection_meets_its_deadline,
    the_first_deadline_is_the_idle_timeout,
    an_offered_response_continues_after_a_partial_send,
    a_panic_ends_its_connection_only,
    a_connection_whose_session_asks_for_the_socket_is_closed,
    the_drain_ends_its_connections,
    the_drain_is_reported_once_and_not_to_finished_connections,
    input_before_the_end_is_published,
    a_client_that_does_not_read_does_not_delay_a_hand_over,
];

/// Bytes of the longest response.
const ANSWER_MAX: usize = 64;

/// More messages than there is room for on the way to the hub.
const MESSAGES: usize = 40_000;

/// A protocol with sessions from this function.
struct SessionFactory<F>(F);

impl<S: CustomSession + 'static, F: Fn() -> S + Send + Sync> CustomProtocol for SessionFactory<F> {
    fn accept(&self, _: Option<IpAddr>) -> Box<dyn CustomSession> {
        Box::new((self.0)())
    }
}

/// A listener with sessions from this function.
fn listener<S: CustomSession + 'static>(session: impl Fn() -> S + Send + Sync + 'static) -> CustomListener {
    CustomListener { address: any_port(), protocol: Arc::new(SessionFactory(session)) }
}

/// Callbacks that the sessions received.
#[derive(Default)]
struct SessionCounts {
    opened: AtomicU32,
    stalls: AtomicU32,
    rooms: AtomicU32,
    drains: AtomicU32,
}

/// Answers each `SUBJECT PAYLOAD\n` with `ok\n` or the error.
struct LineSession;

impl CustomSession for LineSession {
    fn opened(&mut self, io: &mut Io<'_>, _: &mut CustomContext<'_>) {
        let deadline = io.now().after(Duration::from_millis(500));
        io.set_deadline(Some(deadline));
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut CustomContext<'_>) -> usize {
        io.set_deadline(None);
        let mut consumed = 0;
        while let Some(end) = bytes[consumed..].iter().position(|&byte| byte == b'\n') {
            if io.room() < ANSWER_MAX {
                io.call_again();
                return consumed;
            }
            let line = &bytes[consumed..consumed + end];
            let blank = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
            let (subject, payload) = (&line[..blank], line.get(blank + 1..).unwrap_or_default());
            let answer = match cx.publish(subject, payload, io) {
                Ok(()) => "ok\n".to_owned(),
                Err(PublishError::NoRoom) => {
                    io.pause();
                    return consumed;
                }
                Err(error) => format!("{error}\n"),
            };
            io.send(answer.as_bytes()).expect("there is room");
            consumed += end + 1;
        }
        consumed
    }
}

fn start(driver: DriverChoice) -> HubTestServer {
    HubTestServer::with(driver, |config| config.protocols = vec![listener(|| LineSession)])
}

fn lines_are_published_and_answered(driver: DriverChoice) {
    let hub_server = start(driver);
    let mut subscriber = hub_server.subscribe("lines.>");
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    peer.send("lines.a hello\nlines.b");
    assert_eq!(peer.read_exactly(3), b"ok\n");
    peer.send(" world\n");
    assert_eq!(peer.read_exactly(3), b"ok\n");
    assert_eq!(subscriber.next(), ("lines.a".to_owned(), "hello".to_owned()));
    assert_eq!(subscriber.next(), ("lines.b".to_owned(), "world".to_owned()));
    drop((peer, subscriber));
    hub_server.finish();
}

/// A server with a custom protocol as the only publisher has a hub and streams.
fn lines_are_stored_without_other_listeners_for_messages(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        config.hub.nats.clear();
        config.protocols = vec![listener(|| LineSession)];
    });
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    peer.send("events.a hello\n");
    assert_eq!(peer.read_exactly(3), b"ok\n");
    drop(peer);
    let data = hub_server.data();
    let (_, _folder) = hub_server.keep();
    let stored: Vec<_> = records(&data).into_iter().map(|(_, subject, text)| (subject, text)).collect();
    assert_eq!(stored, [("events.a".to_owned(), "hello".to_owned())]);
}

fn invalid_publications_are_answered_with_a_reason(driver: DriverChoice) {
    let hub_server = start(driver);
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    for subject in ["a.*", "a..b", "$JS.API.INFO"] {
        peer.send(format!("{subject} x\n"));
        let expected = b"invalid or reserved subject\n";
        assert_eq!(peer.read_exactly(expected.len()), expected, "{subject}");
    }
    drop(peer);
    hub_server.finish();
}

/// A message may still be refused after the hub has received it; the refusal is in the metrics and on the status
/// page.
fn refusals_of_a_stream_are_counted(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        config.hub.streams[1].message_size_max = 100;
        config.protocols = vec![listener(|| LineSession)];
    });
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    peer.send(format!("quick.a {}\n", "x".repeat(200)));
    assert_eq!(peer.read_exactly(3), b"ok\n");
    let metric = "stilling_hub_losses_total{ingress=\"custom\",reason=\"too_large\"}";
    eventually("the refusal is counted", || (hub_server.metric(metric) == 1).then_some(()));
    let page = hub_server.page("/status").into_text();
    let row = "messages by NATS, syslog, WebSocket, CoAP and custom protocols: refused, shed or lost<td>1";
    assert!(page.contains(row), "{page}");
    drop(peer);
    hub_server.finish();
}

/// A client that sends [`MESSAGES`] on a thread. Returns as soon as some of its input waits.
fn stalled(hub_server: &HubTestServer) -> (TestPeer, thread::JoinHandle<()>) {
    let peer = TestPeer::connect(hub_server.at("custom"));
    let mut text = String::new();
    for number in 0..MESSAGES {
        text += &format!("events.a {number:0100}\n");
    }
    let mut writing = peer.clone_writer();
    let writer = thread::spawn(move || writing.send(text));
    let is_output_blocked =
        || (hub_server.overview().engine(|counters| &counters.input_held) > 0).then_some(());
    eventually("its input is held", is_output_blocked);
    (peer, writer)
}

/// Checks that all messages are stored in order.
#[track_caller]
fn check_stored(data: &Path) {
    let stored: Vec<String> = records(data).into_iter().map(|(_, _, payload)| payload).collect();
    let expected: Vec<String> = (0..MESSAGES).map(|number| format!("{number:0100}")).collect();
    assert!(stored == expected, "{} messages are stored", stored.len());
}

fn publications_wait_for_room_in_their_order(driver: DriverChoice) {
    let hub_server = start(driver);
    let stalled_disk = hub_server.stall_disk();
    let (mut peer, writer) = stalled(&hub_server);
    let _hub = stalled_disk.end();
    assert_eq!(peer.read_exactly(3 * MESSAGES), b"ok\n".repeat(MESSAGES));
    writer.join().expect("all of it is read");
    drop(peer);
    let data = hub_server.data();
    let (_, _folder) = hub_server.keep();
    check_stored(&data);
}

/// Publishes each [`RetryingSession::SIZE`] bytes as a message, and retries without waiting for room.
struct RetryingSession(Arc<SessionCounts>);

impl RetryingSession {
    const SIZE: usize = 1000;
}

impl CustomSession for RetryingSession {
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut CustomContext<'_>) -> usize {
        let mut consumed = 0;
        for message in bytes.chunks_exact(RetryingSession::SIZE) {
            if cx.publish(b"events.a", message, io) == Err(PublishError::NoRoom) {
                self.0.stalls.fetch_add(1, Relaxed);
                for _ in 0..3 {
                    let _ = cx.publish(b"insisting", b"", io);
                }
                io.pause();
                return consumed;
            }
            consumed += message.len();
        }
        consumed
    }

    fn room_available(&mut self, io: &mut Io<'_>, _: &mut CustomContext<'_>) {
        self.0.rooms.fetch_add(1, Relaxed);
        io.resume();
    }
}

fn a_connection_waits_for_room_once_at_a_time(driver: DriverChoice) {
    const COUNT: usize = 5000;
    let counts = Arc::<SessionCounts>::default();
    let of_sessions = Arc::clone(&counts);
    let hub_server = HubTestServer::with(driver, |config| {
        config.protocols = vec![listener(move || RetryingSession(Arc::clone(&of_sessions)))];
    });
    let stalled_disk = hub_server.stall_disk();
    let peer = TestPeer::connect(hub_server.at("custom"));
    let mut writing = peer.clone_writer();
    let writer = thread::spawn(move || writing.send(vec![b'x'; COUNT * RetryingSession::SIZE]));
    eventually("there is no room", || (counts.stalls.load(Relaxed) > 0).then_some(()));
    let _hub = stalled_disk.end();
    writer.join().expect("all of it is read");
    let all = || (hub_server.metric("stilling_hub_messages_total") >= COUNT as u64).then_some(());
    eventually("all messages are with the hub", all);
    drop(peer);
    hub_server.finish();
    let (stalls, rooms) = (counts.stalls.load(Relaxed), counts.rooms.load(Relaxed));
    assert!((1..=stalls).contains(&rooms), "{rooms} times room for {stalls} waits");
}

fn a_silent_connection_meets_its_deadline(driver: DriverChoice) {
    let hub_server = start(driver);
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    assert_eq!(peer.rest(), b"");
    let overview = hub_server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::IdleTimeout)), 1);
}

/// Discards all input and sets no deadline.
struct DiscardingSession;

impl CustomSession for DiscardingSession {
    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut CustomContext<'_>) -> usize {
        bytes.len()
    }
}

fn the_first_deadline_is_the_idle_timeout(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        config.timeouts.idle = Duration::from_millis(300);
        config.protocols = vec![listener(|| DiscardingSession)];
    });
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    peer.send("x");
    assert_eq!(peer.rest(), b"");
    let overview = hub_server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::IdleTimeout)), 1);
}

/// Offers a response of [`OfferingSession::SIZE`] bytes; the field counts the bytes that the system has taken.
struct OfferingSession(usize);

impl OfferingSession {
    const SIZE: usize = 1_000_000;

    fn offer(&self, io: &mut Io<'_>) {
        io.offer(&vec![b'o'; OfferingSession::SIZE - self.0]);
    }
}

impl CustomSession for OfferingSession {
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut CustomContext<'_>) -> usize {
        self.offer(io);
        bytes.len()
    }

    fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, _: &mut CustomContext<'_>) {
        self.0 += count;
        if self.0 < OfferingSession::SIZE {
            self.offer(io);
        } else {
            io.finish(CloseReason::Done);
        }
    }
}

fn an_offered_response_continues_after_a_partial_send(driver: DriverChoice) {
    let hub_server =
        HubTestServer::with(driver, |config| config.protocols = vec![listener(|| OfferingSession(0))]);
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    peer.send("x");
    let answer = peer.rest();
    assert_eq!((answer.len(), answer.iter().all(|&byte| byte == b'o')), (OfferingSession::SIZE, true));
    let overview = hub_server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::Done)), 1);
}

/// Panics at its first byte.
struct PanickingSession;

impl CustomSession for PanickingSession {
    fn received(&mut self, _: &[u8], _: &mut Io<'_>, _: &mut CustomContext<'_>) -> usize {
        panic!("the demonstration of a panic in a session")
    }
}

/// Panics instead of making a session.
fn no_session() -> PanickingSession {
    panic!("the demonstration of a panic in a protocol")
}

fn a_panic_ends_its_connection_only(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        config.protocols =
            vec![listener(|| LineSession), listener(|| PanickingSession), listener(no_session)];
    });
    let addresses = hub_server.all_at("custom");
    let mut other = TestPeer::connect(addresses[0]);
    other.send("lines.a x\n");
    assert_eq!(other.read_exactly(3), b"ok\n");
    for address in &addresses[1..] {
        let mut peer = TestPeer::connect(*address);
        // The connection may be closed already.
        let _ = peer.try_send("x");
        assert_eq!(peer.read_until_closed(), b"");
    }
    other.send("lines.a y\n");
    assert_eq!(other.read_exactly(3), b"ok\n");
    drop(other);
    let overview = hub_server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::SessionPanicked)), 2);
}

/// Detaches its socket.
struct DetachingSession;

impl CustomSession for DetachingSession {
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut CustomContext<'_>) -> usize {
        io.detach();
        bytes.len()
    }
}

fn a_connection_whose_session_asks_for_the_socket_is_closed(driver: DriverChoice) {
    let hub_server =
        HubTestServer::with(driver, |config| config.protocols = vec![listener(|| DetachingSession)]);
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    peer.send("x");
    assert_eq!(peer.rest(), b"");
    let overview = hub_server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::Detached)), 1);
}

fn the_drain_ends_its_connections(driver: DriverChoice) {
    let hub_server = start(driver);
    let mut peer = TestPeer::connect(hub_server.at("custom"));
    peer.send("lines.a x\n");
    assert_eq!(peer.read_exactly(3), b"ok\n");
    let server = thread::spawn(move || hub_server.finish());
    assert_eq!(peer.rest(), b"");
    drop(peer);
    let overview = server.join().expect("it ends well");
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::Drained)), 1);
}

/// Finishes with a long response, and counts its callbacks.
struct FinishingSession(Arc<SessionCounts>);

impl CustomSession for FinishingSession {
    fn opened(&mut self, _: &mut Io<'_>, _: &mut CustomContext<'_>) {
        self.0.opened.fetch_add(1, Relaxed);
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut CustomContext<'_>) -> usize {
        io.send(&vec![b'x'; io.room()]).expect("there is room");
        io.finish(CloseReason::Done);
        bytes.len()
    }

    fn draining(&mut self, io: &mut Io<'_>, _: &mut CustomContext<'_>) {
        self.0.drains.fetch_add(1, Relaxed);
        io.finish(CloseReason::Drained);
    }
}

fn the_drain_is_reported_once_and_not_to_finished_connections(driver: DriverChoice) {
    let counts = Arc::<SessionCounts>::default();
    let of_sessions = Arc::clone(&counts);
    let hub_server = HubTestServer::with(driver, |config| {
        config.shards = 1;
        config.send_buffer = Some(4096);
        config.protocols = vec![listener(move || FinishingSession(Arc::clone(&of_sessions)))];
    });
    let mut unread = TestPeer::connect_with_small_buffer(hub_server.at("custom"));
    unread.send("x");
    let is_output_blocked =
        || (hub_server.overview().engine(|counters| &counters.output_held) > 0).then_some(());
    eventually("its output is blocked", is_output_blocked);
    let idle = TestPeer::connect(hub_server.at("custom"));
    eventually("both are open", || (counts.opened.load(Relaxed) == 2).then_some(()));
    let server = thread::spawn(move || hub_server.finish());
    eventually("the drain is reported", || (counts.drains.load(Relaxed) > 0).then_some(()));
    drop((unread, idle));
    server.join().expect("it ends well");
    assert_eq!(counts.drains.load(Relaxed), 1);
}

/// Row 4.9: the session receives input from before the end, even if it had to wait for room.
fn input_before_the_end_is_published(driver: DriverChoice) {
    let hub_server = start(driver);
    let stalled_disk = hub_server.stall_disk();
    let (mut peer, writer) = stalled(&hub_server);
    let data = hub_server.data();
    let mut observer = TestPeer::connect(hub_server.at("nats"));
    let server = thread::spawn(move || hub_server.keep());
    while !observer.line().contains("\"ldm\":true") {}
    drop(observer);
    let _hub = stalled_disk.end();
    assert_eq!(peer.read_exactly(3 * MESSAGES), b"ok\n".repeat(MESSAGES));
    assert_eq!(peer.rest(), b"");
    writer.join().expect("all of it is read");
    drop(peer);
    let (_, _folder) = server.join().expect("it ends well");
    check_stored(&data);
}

/// Responds without end.
struct FloodingSession;

impl CustomSession for FloodingSession {
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut CustomContext<'_>) -> usize {
        io.send(&vec![b'x'; io.room()]).expect("there is room");
        io.call_again();
        bytes.len()
    }
}

/// Row 4.37: streams change hands although a client of the predecessor reads nothing.
fn a_client_that_does_not_read_does_not_delay_a_hand_over(driver: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    let take_over = TakeOverConfig { path: folder.path().join("control"), report: |_| () };
    let old = HubTestServer::with(driver, |config| {
        config.shards = 1;
        config.take_over = Some(take_over.clone());
        config.protocols = vec![listener(|| FloodingSession)];
    });
    let mut unread = TestPeer::connect(old.at("custom"));
    unread.send("x");
    let is_output_blocked = || (old.overview().engine(|counters| &counters.output_held) > 0).then_some(());
    eventually("its output is blocked", is_output_blocked);
    let next = HubTestServer::with(driver, |config| {
        config.shards = 1;
        config.take_over = Some(take_over);
        config.listen = vec![old.at("http")];
        config.hub.data = old.data();
        config.hub.nats = vec![old.at("nats"), any_port()];
        config.protocols = vec![CustomListener { address: old.at("custom"), ..listener(|| FloodingSession) }];
    });
    // This address listens only after the take-over.
    let address = next.all_at("nats")[1];
    drop(eventually("the successor listens", || TestPeer::try_connect(address).ok()));
    let mut client = NatsSubscriber::at(address, "_INBOX.a");
    client.publish("events.a", "_INBOX.a", "x");
    // A late release of the streams would refuse the message.
    let (_, answer) = client.next();
    assert!(answer.contains("\"stream\":\"events\""), "{answer}");
    drop((unread, client));
    let (_, _folder) = old.keep();
    next.finish();
}
