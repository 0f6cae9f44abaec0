//! Publishers on kept connections: one thread, several sockets that do not wait, one wait for all of them.
//!
//! ```text
//!   turn:  read what came ─► settle ─► fill one write up to the window ─► write ─┐
//!     ▲                                                                          │
//!     └───────────────── poll(2): readable, or writable with something to say ◄──┘
//! ```
//!
//! A buffer is filled only when the one before has gone completely. So, without waiting for acknowledgements, exactly
//! the messages of an unfinished buffer are in doubt when a connection breaks.

use std::io::{self, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::acks::Acks;
use super::buffer::{Buffer, is_for_later};
use super::codec;
use super::connection::connect;
use super::limits::{CONNECT_ATTEMPTS, CONNECT_PAUSE, POLL_SPAN, WRITE_SIZE};
use super::shared::Run;
use super::speech::{Heard, Speech};
use super::tally::{Failure, Tally};

/// How long publishers rest that are as far ahead of their subscribers as they may be.
const LEAD_PAUSE: Duration = Duration::from_millis(1);

/// Writes of one client before the others have their turn.
const WRITES_PER_TURN: u32 = 4;

/// Drives these clients from their first connection to their last acknowledgement.
pub(super) fn drive(run: &Run, clients: Range<u16>) -> Tally {
    let mut tally = Tally::new();
    let mut publishers: Vec<_> = clients.map(|client| Publisher::new(run, client)).collect();
    for publisher in &mut publishers {
        publisher.open(&mut tally);
    }
    run.gate.wait();
    loop {
        for publisher in publishers.iter_mut().filter(|publisher| !publisher.done) {
            publisher.turn(&mut tally);
        }
        if publishers.iter().all(|publisher| publisher.done) {
            return tally;
        }
        wait(run, &mut publishers);
    }
}

/// Waits until a socket can be used, or a little while.
fn wait(run: &Run, publishers: &mut [Publisher<'_>]) {
    let now = run.now();
    let mut span = POLL_SPAN;
    let mut awaited = Vec::with_capacity(publishers.len());
    for publisher in publishers.iter_mut().filter(|publisher| !publisher.done) {
        let wants = publisher.wants(now);
        span = span.min(publisher.patience(now));
        if let Some(stream) = &publisher.stream {
            awaited.push((PollFd::new(stream, wants), &mut publisher.ready));
        }
    }
    let timeout = Timespec { tv_sec: 0, tv_nsec: span.subsec_nanos().into() };
    let (mut fds, flags): (Vec<_>, Vec<_>) = awaited.into_iter().unzip();
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, Some(&timeout));
    for (fd, ready) in fds.iter().zip(flags) {
        let told = fd.revents();
        ready.read |= told.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP);
        ready.write |= told.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP);
    }
}

/// What a socket can be used for.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    read: bool,
    write: bool,
}

/// The question at the end of a connection on which nothing is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    ToAsk,
    Asked,
    Answered,
}

struct Publisher<'r> {
    run: &'r Run,
    client: u16,
    speech: Box<dyn Speech>,
    stream: Option<TcpStream>,
    ready: Ready,
    input: Buffer,
    output: Vec<u8>,
    written: usize,
    acks: Acks,
    /// Messages that may still begin.
    budget: u64,
    question: Question,
    owed_pongs: u32,
    /// When anything last went on, and when a connection may be tried again, in nanoseconds after the start.
    moved: u64,
    rests_until: u64,
    attempts: u32,
    done: bool,
}

impl<'r> Publisher<'r> {
    fn new(run: &'r Run, client: u16) -> Publisher<'r> {
        Publisher {
            run,
            client,
            speech: codec::of(run, client),
            stream: None,
            ready: Ready::default(),
            input: Buffer::default(),
            output: Vec::with_capacity(WRITE_SIZE + 2 * run.pattern.size()),
            written: 0,
            acks: Acks::new(client, run.plan.window),
            budget: run.plan.share(client),
            question: Question::ToAsk,
            owed_pongs: 0,
            moved: 0,
            rests_until: 0,
            attempts: 0,
            done: false,
        }
    }

    /// Opens a connection. If none comes about, the message that needs it fails after the last attempt.
    fn open(&mut self, tally: &mut Tally) -> bool {
        let opened = connect(self.run.plan.to, self.run.plan.timeout).and_then(|stream| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                tally.connects += 1;
                self.stream = Some(stream);
                (self.attempts, self.owed_pongs, self.question) = (0, 0, Question::ToAsk);
                self.ready = Ready { read: true, write: true };
                self.input.clear();
                self.output.clear();
                self.written = 0;
                self.speech.begin(&mut self.output);
                true
            }
            Err(error) => {
                tally.connection_fails += 1;
                self.attempts += 1;
                self.last_error(&error, tally);
                false
            }
        }
    }

    fn last_error(&mut self, error: &io::Error, tally: &mut Tally) {
        if self.attempts < CONNECT_ATTEMPTS {
            return;
        }
        self.attempts = 0;
        let now = self.run.now();
        self.queue(now, tally);
        self.acks.give_up(Failure::NotSent, error.raw_os_error(), || error.to_string(), tally);
    }

    /// A message begins.
    fn queue(&mut self, now: u64, tally: &mut Tally) {
        self.run.leads[usize::from(self.client)].send(self.acks.counter(), now);
        self.acks.send(now);
        self.budget -= 1;
        tally.queued += 1;
    }

    fn lead(&self) -> u64 {
        self.run.leads[usize::from(self.client)].end()
    }

    /// No more messages begin.
    fn is_over(&self, now: u64) -> bool {
        self.budget == 0 || self.run.is_over(now)
    }

    fn may_publish(&self, now: u64) -> bool {
        !self.is_over(now) && self.acks.has_room() && self.acks.counter() < self.lead()
    }

    fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    fn wants(&self, now: u64) -> PollFlags {
        let writes = self.has_output() || self.owed_pongs > 0 || self.may_publish(now);
        if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// How long it may wait for its socket before it has to look at something else.
    fn patience(&self, now: u64) -> Duration {
        if self.stream.is_none() {
            return Duration::from_nanos(self.rests_until.saturating_sub(now));
        }
        let is_held = !self.is_over(now) && self.acks.has_room() && self.acks.counter() >= self.lead();
        if is_held { LEAD_PAUSE } else { POLL_SPAN }
    }

    fn turn(&mut self, tally: &mut Tally) {
        let now = self.run.now();
        if self.stream.is_none() {
            if self.is_over(now) {
                self.finish();
                return;
            }
            if now < self.rests_until {
                return;
            }
            self.rests_until = now + CONNECT_PAUSE.as_nanos() as u64;
            if !self.open(tally) {
                return;
            }
            self.moved = now;
        }
        if self.ready.read {
            self.ready.read = false;
            self.receive(tally);
        }
        if self.ready.write {
            self.send(tally);
        }
        self.look_at_the_end(tally);
    }

    /// The connection has ended, and with it all that was in flight.
    fn lose(&mut self, failure: Failure, error: Option<i32>, words: String, tally: &mut Tally) {
        self.stream = None;
        self.acks.give_up(failure, error, || words.clone(), tally);
        if failure == Failure::Protocol {
            tally.fault(failure, 1, || words);
        }
    }

    fn receive(&mut self, tally: &mut Tally) {
        let Some(stream) = &mut self.stream else { return };
        match self.input.fill(stream) {
            Ok(0) => {
                return self.lose(
                    Failure::Broken,
                    None,
                    "the server closed the connection".to_owned(),
                    tally,
                );
            }
            Ok(_) => {}
            Err(error) if is_for_later(&error) => return,
            Err(error) => return self.lose(Failure::Broken, error.raw_os_error(), error.to_string(), tally),
        }
        let now = self.run.now();
        self.moved = now;
        while let Some(heard) = self.speech.next(&mut self.input) {
            match heard {
                Heard::Ack(ack) => self.acks.settle(ack, now, tally),
                Heard::Bad { counter, failure, words } => {
                    self.acks.reject(counter, failure, || words, tally);
                }
                Heard::Stray { failure, words } => tally.fault(failure, 1, || words),
                Heard::Ping => self.owed_pongs += 1,
                Heard::Pong if self.question == Question::Asked => self.question = Question::Answered,
                Heard::Pong => tally.fault(Failure::Protocol, 1, || "PONG without a PING".to_owned()),
                Heard::Nothing => {}
                Heard::Fault(words) => return self.lose(Failure::Protocol, None, words, tally),
            }
        }
    }

    /// Fills the output as far as window, lead and one write go.
    fn fill(&mut self, now: u64, tally: &mut Tally) {
        self.output.clear();
        self.written = 0;
        for _ in 0..std::mem::take(&mut self.owed_pongs) {
            self.speech.pong(&mut self.output);
        }
        // Who has nothing to wait for is not kept waiting; the question at the end is something.
        if self.acks.in_flight() == 0 && self.question != Question::Asked {
            self.moved = now;
        }
        let end = self.lead();
        while self.output.len() < WRITE_SIZE
            && self.acks.has_room()
            && !self.is_over(now)
            && self.acks.counter() < end
        {
            let counter = self.acks.counter();
            self.queue(now, tally);
            self.speech.publish(counter, &mut self.output);
        }
        let asks = !self.run.plan.confirmed && self.question == Question::ToAsk && self.is_over(now);
        if asks {
            let is_known = self.speech.barrier(&mut self.output);
            self.question = if is_known { Question::Asked } else { Question::Answered };
        }
    }

    fn send(&mut self, tally: &mut Tally) {
        for _ in 0..WRITES_PER_TURN {
            if self.stream.is_some() && !self.has_output() {
                let now = self.run.now();
                self.fill(now, tally);
            }
            let Some(stream) = &mut self.stream else { return };
            if self.output.is_empty() {
                return;
            }
            match stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if is_for_later(&error) => {
                    self.ready.write = false;
                    return;
                }
                Err(error) => {
                    // What the server said last explains more than a broken pipe.
                    self.receive(tally);
                    return self.lose(Failure::Broken, error.raw_os_error(), error.to_string(), tally);
                }
            }
            // A message is in flight from before it is written.
            let now = self.run.now();
            if self.acks.in_flight() > 0 {
                tally.write(now);
            }
            if !self.run.plan.confirmed {
                self.moved = now;
                if !self.has_output() {
                    self.acks.taken(self.moved, tally);
                }
            }
        }
    }

    fn look_at_the_end(&mut self, tally: &mut Tally) {
        let now = self.run.now();
        if self.stream.is_none() {
            return;
        }
        let is_settled = self.acks.in_flight() == 0 && !self.has_output();
        let is_answered = self.run.plan.confirmed || self.question == Question::Answered;
        if self.is_over(now) && is_settled && is_answered {
            self.finish();
            return;
        }
        if Duration::from_nanos(now.saturating_sub(self.moved)) < self.run.plan.timeout {
            return;
        }
        let words = format!("client {}: nothing for {:?}", self.client, self.run.plan.timeout);
        if is_settled {
            tally.fault(Failure::Unacknowledged, 1, || words.clone());
        }
        self.lose(Failure::Unacknowledged, None, words, tally);
        // Who is silent for so long is not asked again.
        self.budget = 0;
    }

    fn finish(&mut self) {
        self.run.leads[usize::from(self.client)].finish();
        self.stream = None;
        self.done = true;
    }
}
