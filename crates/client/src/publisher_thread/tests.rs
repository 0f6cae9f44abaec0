//! Single turns of the thread: late turns and panics.

use std::net::TcpListener;

use mio::Waker;
use stilling_probe::HANG_TIMEOUT;
use stilling_probe::nats::ScriptedServer;

use super::*;
use crate::outcome::{DropReason, PublishOutcome, PublisherCounts};
use crate::spool::Spool;
use crate::spool::memory::MemorySpool;
use crate::spool_entry::{OutgoingMessage, SpoolEntry};
use crate::ticket::{OutcomeSender, OutcomeSlot, PublishTicket};

const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_millis(20);

fn publisher_thread(url: &str, spool: Box<dyn Spool>) -> PublisherThread {
    let config = PublisherConfig {
        servers: vec![url.parse().expect("an address")],
        acknowledge_timeout: ACKNOWLEDGE_TIMEOUT,
        connect_timeout: HANG_TIMEOUT,
        ..PublisherConfig::default()
    };
    let poll = Poll::new().expect("descriptors");
    let shared = Arc::new(SharedState::new(Waker::new(poll.registry(), WAKER).expect("descriptors")));
    let link = PublisherLink::new(config.clone(), spool, 1, Instant::now());
    PublisherThread::new(shared, link, poll, &config)
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("nats://{}", listener.local_addr().expect("it has an address"));
    (listener, url)
}

fn enqueue(shared: &SharedState, subject: &str) -> PublishTicket {
    let message = OutgoingMessage::new(subject.as_bytes(), b"", b"x");
    let mut entry = SpoolEntry::new(message, 1);
    let slot = OutcomeSlot::default();
    entry.ticket = Some(OutcomeSender::new(slot.clone()));
    let mut state = shared.lock();
    state.submitted += 1;
    (state.held.0, state.held.1) = (state.held.0 + 1, state.held.1 + 1);
    state.submissions.push_back(entry);
    PublishTicket::waiting(slot)
}

/// After a suspended process or a slow callback: the server has answered meanwhile.
#[test]
fn a_late_thread_does_not_cause_timeouts() {
    let (listener, url) = listener();
    let server = std::thread::spawn(move || {
        let mut scripted = ScriptedServer::accept(&listener);
        scripted.complete_handshake();
        scripted
    });
    let mut publisher_thread = publisher_thread(&url, Box::new(MemorySpool::default()));
    let mut events = Events::with_capacity(EVENTS);
    while !publisher_thread.link.take_update().is_ready {
        assert!(publisher_thread.turn(&mut events));
    }
    let mut scripted = server.join().expect("it lets it in");
    let ticket = enqueue(&publisher_thread.shared, "events.a");
    assert!(publisher_thread.turn(&mut events), "it sends");
    while publisher_thread.link.deadline().is_some_and(|at| Instant::now() < at) {}
    let message = scripted.published();
    scripted.acknowledge(&message, 1, false);
    let connection = publisher_thread.connection.as_ref().expect("it is there");
    let PublisherSocket::Tcp(stream) = &connection.socket else { panic!("it is TCP") };
    while stream.peek(&mut [0]).is_err() {}
    // With another message submitted the turn does not wait.
    let _next = enqueue(&publisher_thread.shared, "events.a");
    assert!(publisher_thread.turn(&mut events));
    let PublisherCounts { delivered, connection_failures, retried, .. } =
        publisher_thread.shared.lock().counts();
    assert_eq!((delivered, connection_failures, retried), (1, 0, 0));
    assert!(matches!(ticket.outcome(), Some(PublishOutcome::Delivered { sequence: 1, .. })));
}

#[derive(Default)]
struct PanickingSpool(MemorySpool);

impl Spool for PanickingSpool {
    fn push(&mut self, entry: SpoolEntry) {
        self.0.push(entry);
    }

    fn commit(&mut self, unix_ns: u64) -> Vec<(SpoolEntry, DropReason)> {
        self.0.commit(unix_ns)
    }

    fn pop(&mut self) -> Option<SpoolEntry> {
        // Panics at the third message.
        let entry = self.0.pop()?;
        assert!(entry.id < 3, "a mistake");
        Some(entry)
    }

    fn next_id(&self) -> u64 {
        self.0.next_id()
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&mut SpoolEntry) -> bool) -> Vec<SpoolEntry> {
        self.0.retain(keep)
    }

    fn release_below(&mut self, id: u64, now: Instant) {
        self.0.release_below(id, now);
    }

    fn checkpoint_at(&self) -> Option<Instant> {
        None
    }

    fn checkpoint(&mut self, _unix_ns: u64) {}

    fn lost(&mut self) -> Vec<u64> {
        Vec::new()
    }

    fn close(&mut self, _unix_ns: u64) {}
}

#[test]
fn a_thread_that_panics_wakes_all_waiters_and_releases_everything() {
    let (listener, url) = listener();
    let publisher_thread = publisher_thread(&url, Box::<PanickingSpool>::default());
    let shared = Arc::clone(&publisher_thread.shared);
    // In the window, taken from the spool, and in the spool.
    let tickets: Vec<_> = (0..4).map(|_| enqueue(&shared, "events.a")).collect();
    let thread = std::thread::spawn(move || publisher_thread.run());
    let mut scripted = ScriptedServer::accept(&listener);
    scripted.complete_handshake();
    assert!(thread.join().is_err(), "it panics");
    for ticket in tickets {
        assert_eq!(ticket.outcome(), Some(PublishOutcome::Dropped(DropReason::Closed)));
    }
    let state = shared.lock();
    let counts = state.counts();
    assert!(state.ended && counts.is_balanced(), "{counts:?}");
    assert_eq!((counts.held, counts.held_bytes, counts.dropped), (0, 0, 4));
}
