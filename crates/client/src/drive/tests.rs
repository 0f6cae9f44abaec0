//! The thread's turns, one by one: what happens when it is late, and when it falls.

use std::net::TcpListener;

use mio::Waker;
use stilling_probe::HANG;
use stilling_probe::nats::Talk;

use super::*;
use crate::entry::{Entry, Message};
use crate::outcome::{Counts, Outcome, Reason};
use crate::spool::Spool;
use crate::spool::memory::Memory;
use crate::ticket::{Slot, Teller, Ticket};

const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_millis(20);

/// The thread's whole state, on the test's own thread.
fn drive(url: &str, spool: Box<dyn Spool>) -> Drive {
    let config = Config {
        servers: vec![url.parse().expect("an address")],
        acknowledge_timeout: ACKNOWLEDGE_TIMEOUT,
        connect_timeout: HANG,
        ..Config::default()
    };
    let poll = Poll::new().expect("descriptors");
    let desk = Arc::new(Desk::new(Waker::new(poll.registry(), WAKER).expect("descriptors")));
    let link = Link::new(config.clone(), spool, 1, Instant::now());
    Drive::new(desk, link, poll, &config)
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("nats://{}", listener.local_addr().expect("it has an address"));
    (listener, url)
}

fn give(desk: &Desk, subject: &str) -> Ticket {
    let message = Message::new(subject.as_bytes(), b"", b"x");
    let mut entry = Entry::new(message, 1);
    let slot = Slot::default();
    entry.ticket = Some(Teller::new(slot.clone()));
    let mut state = desk.lock();
    state.submitted += 1;
    (state.held.0, state.held.1) = (state.held.0 + 1, state.held.1 + 1);
    state.intake.push_back(entry);
    Ticket::waiting(slot)
}

/// A process that was stopped, a callback that took its time: the server has answered meanwhile.
#[test]
fn a_thread_that_is_late_itself_calls_nobody_late() {
    let (listener, url) = listener();
    let server = std::thread::spawn(move || {
        let mut talk = Talk::accept(&listener);
        talk.greet();
        talk
    });
    let mut drive = drive(&url, Box::new(Memory::default()));
    let mut events = Events::with_capacity(EVENTS);
    while !drive.link.news().is_ready {
        assert!(drive.turn(&mut events));
    }
    let mut talk = server.join().expect("it lets it in");
    let ticket = give(&drive.desk, "events.a");
    assert!(drive.turn(&mut events), "it sends");
    while drive.link.deadline().is_some_and(|at| Instant::now() < at) {}
    let message = talk.published();
    talk.acknowledge(&message, 1, false);
    let connection = drive.connection.as_ref().expect("it is there");
    let Socket::Tcp(stream) = &connection.socket else { panic!("it is TCP") };
    while stream.peek(&mut [0]).is_err() {}
    // With another message on its way the turn has an end.
    let _next = give(&drive.desk, "events.a");
    assert!(drive.turn(&mut events));
    let Counts { delivered, connection_failures, retried, .. } = drive.desk.lock().counts();
    assert_eq!((delivered, connection_failures, retried), (1, 0, 0));
    assert!(matches!(ticket.outcome(), Some(Outcome::Delivered { sequence: 1, .. })));
}

/// A spool with a mistake in it.
#[derive(Default)]
struct Falling(Memory);

impl Spool for Falling {
    fn push(&mut self, entry: Entry) {
        self.0.push(entry);
    }

    fn commit(&mut self, unix_ns: u64) -> Vec<(Entry, Reason)> {
        self.0.commit(unix_ns)
    }

    fn pop(&mut self) -> Option<Entry> {
        // The third message is one too many.
        let entry = self.0.pop()?;
        assert!(entry.id < 3, "a mistake");
        Some(entry)
    }

    fn next_id(&self) -> u64 {
        self.0.next_id()
    }

    fn review(&mut self, keep: &mut dyn FnMut(&mut Entry) -> bool) -> Vec<Entry> {
        self.0.review(keep)
    }

    fn settled_below(&mut self, id: u64, now: Instant) {
        self.0.settled_below(id, now);
    }

    fn note_at(&self) -> Option<Instant> {
        None
    }

    fn note(&mut self, _unix_ns: u64) {}

    fn lost(&mut self) -> Vec<u64> {
        Vec::new()
    }

    fn close(&mut self, _unix_ns: u64) {}
}

#[test]
fn a_thread_that_panics_leaves_nobody_waiting_and_nothing_held() {
    let (listener, url) = listener();
    let drive = drive(&url, Box::<Falling>::default());
    let desk = Arc::clone(&drive.desk);
    // In the window, in the spool's hand and in the spool.
    let tickets: Vec<_> = (0..4).map(|_| give(&desk, "events.a")).collect();
    let thread = std::thread::spawn(move || drive.run());
    let mut talk = Talk::accept(&listener);
    talk.greet();
    assert!(thread.join().is_err(), "it panics");
    for ticket in tickets {
        assert_eq!(ticket.outcome(), Some(Outcome::Dropped(Reason::Closed)));
    }
    let state = desk.lock();
    let counts = state.counts();
    assert!(state.ended && counts.is_balanced(), "{counts:?}");
    assert_eq!((counts.held, counts.held_bytes, counts.dropped), (0, 0, 4));
}
