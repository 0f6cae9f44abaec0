//! Publishers on persistent connections: one thread, several non-blocking sockets, one wait for all of them.
//!
//! ```text
//!   turn:  read answers ─► settle ─► fill one write up to the window ─► write ───┐
//!     ▲                                                                          │
//!     └───────────────── poll(2): readable, or writable with pending output ◄────┘
//! ```
//!
//! A buffer is filled only after the previous one is written completely. Without acknowledgements, exactly the messages
//! of an unfinished buffer are in doubt when a connection breaks.

use std::io::{self, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ack_window::AckWindow;
use super::buffer::{ReceiveBuffer, would_block};
use super::client_codec::{ClientCodec, CodecEvent};
use super::codec;
use super::collect_run::CollectRun;
use super::connection::connect;
use super::limits::{CONNECT_ATTEMPTS, CONNECT_PAUSE, POLL_SPAN, WRITE_SIZE};
use super::tally::{CollectTally, MessageFailure};

const LAG_PAUSE: Duration = Duration::from_millis(1);

const WRITES_PER_TURN: u32 = 4;

/// Drives these clients from the first connect to the last acknowledgement.
pub(super) fn drive(run: &CollectRun, clients: Range<u16>) -> CollectTally {
    let mut tally = CollectTally::new();
    let mut publishers: Vec<_> = clients.map(|client| PublisherConnection::new(run, client)).collect();
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

fn wait(run: &CollectRun, publishers: &mut [PublisherConnection<'_>]) {
    let now = run.now();
    let mut span = POLL_SPAN;
    let mut awaited = Vec::with_capacity(publishers.len());
    for publisher in publishers.iter_mut().filter(|publisher| !publisher.done) {
        let poll_flags = publisher.poll_flags(now);
        span = span.min(publisher.poll_timeout(now));
        if let Some(stream) = &publisher.stream {
            awaited.push((PollFd::new(stream, poll_flags), &mut publisher.ready));
        }
    }
    let timeout = Timespec { tv_sec: 0, tv_nsec: span.subsec_nanos().into() };
    let (mut fds, flags): (Vec<_>, Vec<_>) = awaited.into_iter().unzip();
    // An interrupted wait only ends early.
    let _ = poll(&mut fds, Some(&timeout));
    for (fd, ready) in fds.iter().zip(flags) {
        let events = fd.revents();
        ready.read |= events.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP);
        ready.write |= events.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct SocketReadiness {
    read: bool,
    write: bool,
}

/// State of the barrier that ends an unacknowledged connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BarrierState {
    Unsent,
    Sent,
    Confirmed,
}

struct PublisherConnection<'r> {
    run: &'r CollectRun,
    client: u16,
    codec: Box<dyn ClientCodec>,
    stream: Option<TcpStream>,
    ready: SocketReadiness,
    input: ReceiveBuffer,
    output: Vec<u8>,
    written: usize,
    acks: AckWindow,
    budget: u64,
    barrier_state: BarrierState,
    pending_pongs: u32,
    /// Times of the last progress and of the next connection attempt, in nanoseconds after the start.
    last_progress: u64,
    retry_at: u64,
    attempts: u32,
    done: bool,
}

impl<'r> PublisherConnection<'r> {
    fn new(run: &'r CollectRun, client: u16) -> PublisherConnection<'r> {
        PublisherConnection {
            run,
            client,
            codec: codec::codec_for(run, client),
            stream: None,
            ready: SocketReadiness::default(),
            input: ReceiveBuffer::default(),
            output: Vec::with_capacity(WRITE_SIZE + 2 * run.pattern.size()),
            written: 0,
            acks: AckWindow::new(client, run.plan.window),
            budget: run.plan.share(client),
            barrier_state: BarrierState::Unsent,
            pending_pongs: 0,
            last_progress: 0,
            retry_at: 0,
            attempts: 0,
            done: false,
        }
    }

    /// Opens a connection. After the last failed attempt the message that needs it fails.
    fn open(&mut self, tally: &mut CollectTally) -> bool {
        let opened = connect(self.run.plan.to, self.run.plan.timeout).and_then(|stream| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                tally.connects += 1;
                self.stream = Some(stream);
                (self.attempts, self.pending_pongs, self.barrier_state) = (0, 0, BarrierState::Unsent);
                self.ready = SocketReadiness { read: true, write: true };
                self.input.clear();
                self.output.clear();
                self.written = 0;
                self.codec.begin(&mut self.output);
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

    fn last_error(&mut self, error: &io::Error, tally: &mut CollectTally) {
        if self.attempts < CONNECT_ATTEMPTS {
            return;
        }
        self.attempts = 0;
        let now = self.run.now();
        self.queue(now, tally);
        self.acks.fail_in_flight(MessageFailure::NotSent, error.raw_os_error(), || error.to_string(), tally);
    }

    fn queue(&mut self, now: u64, tally: &mut CollectTally) {
        self.run.lag_windows[usize::from(self.client)].send(self.acks.counter(), now);
        self.acks.send(now);
        self.budget -= 1;
        tally.queued += 1;
    }

    fn send_limit(&self) -> u64 {
        self.run.lag_windows[usize::from(self.client)].send_limit()
    }

    fn is_over(&self, now: u64) -> bool {
        self.budget == 0 || self.run.is_over(now)
    }

    fn may_publish(&self, now: u64) -> bool {
        !self.is_over(now) && self.acks.has_room() && self.acks.counter() < self.send_limit()
    }

    fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    fn poll_flags(&self, now: u64) -> PollFlags {
        let writes = self.has_output() || self.pending_pongs > 0 || self.may_publish(now);
        if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Maximum wait for the socket before another check is due.
    fn poll_timeout(&self, now: u64) -> Duration {
        if self.stream.is_none() {
            return Duration::from_nanos(self.retry_at.saturating_sub(now));
        }
        let is_blocked =
            !self.is_over(now) && self.acks.has_room() && self.acks.counter() >= self.send_limit();
        if is_blocked { LAG_PAUSE } else { POLL_SPAN }
    }

    fn turn(&mut self, tally: &mut CollectTally) {
        let now = self.run.now();
        if self.stream.is_none() {
            if self.is_over(now) {
                self.finish();
                return;
            }
            if now < self.retry_at {
                return;
            }
            self.retry_at = now + CONNECT_PAUSE.as_nanos() as u64;
            if !self.open(tally) {
                return;
            }
            self.last_progress = now;
        }
        if self.ready.read {
            self.ready.read = false;
            self.receive(tally);
        }
        if self.ready.write {
            self.send(tally);
        }
        self.check_finished(tally);
    }

    fn disconnect(
        &mut self,
        failure: MessageFailure,
        error: Option<i32>,
        detail: String,
        tally: &mut CollectTally,
    ) {
        self.stream = None;
        self.acks.fail_in_flight(failure, error, || detail.clone(), tally);
        if failure == MessageFailure::Protocol {
            tally.fault(failure, 1, || detail);
        }
    }

    fn receive(&mut self, tally: &mut CollectTally) {
        let Some(stream) = &mut self.stream else { return };
        match self.input.fill(stream) {
            Ok(0) => {
                return self.disconnect(
                    MessageFailure::Broken,
                    None,
                    "the server closed the connection".to_owned(),
                    tally,
                );
            }
            Ok(_) => {}
            Err(error) if would_block(&error) => return,
            Err(error) => {
                return self.disconnect(
                    MessageFailure::Broken,
                    error.raw_os_error(),
                    error.to_string(),
                    tally,
                );
            }
        }
        let now = self.run.now();
        self.last_progress = now;
        while let Some(event) = self.codec.next(&mut self.input) {
            match event {
                CodecEvent::Ack(ack) => self.acks.acknowledge(ack, now, tally),
                CodecEvent::Failed { counter, failure, detail } => {
                    self.acks.reject(counter, failure, || detail, tally);
                }
                CodecEvent::Unmatched { failure, detail } => tally.fault(failure, 1, || detail),
                CodecEvent::Ping => self.pending_pongs += 1,
                CodecEvent::Pong if self.barrier_state == BarrierState::Sent => {
                    self.barrier_state = BarrierState::Confirmed;
                }
                CodecEvent::Pong => {
                    tally.fault(MessageFailure::Protocol, 1, || "PONG without a PING".to_owned());
                }
                CodecEvent::Ignored => {}
                CodecEvent::ProtocolError(detail) => {
                    return self.disconnect(MessageFailure::Protocol, None, detail, tally);
                }
            }
        }
    }

    /// Fills the output up to the window, the lag limit and the size of one write.
    fn fill(&mut self, now: u64, tally: &mut CollectTally) {
        self.output.clear();
        self.written = 0;
        for _ in 0..std::mem::take(&mut self.pending_pongs) {
            self.codec.pong(&mut self.output);
        }
        // The timeout does not run while nothing is awaited; an open barrier is awaited.
        if self.acks.in_flight() == 0 && self.barrier_state != BarrierState::Sent {
            self.last_progress = now;
        }
        let end = self.send_limit();
        while self.output.len() < WRITE_SIZE
            && self.acks.has_room()
            && !self.is_over(now)
            && self.acks.counter() < end
        {
            let counter = self.acks.counter();
            self.queue(now, tally);
            self.codec.publish(counter, &mut self.output);
        }
        let sends_barrier =
            !self.run.plan.confirmed && self.barrier_state == BarrierState::Unsent && self.is_over(now);
        if sends_barrier {
            let is_known = self.codec.barrier(&mut self.output);
            self.barrier_state = if is_known { BarrierState::Sent } else { BarrierState::Confirmed };
        }
    }

    fn send(&mut self, tally: &mut CollectTally) {
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
                Err(error) if would_block(&error) => {
                    self.ready.write = false;
                    return;
                }
                Err(error) => {
                    // The server's last message explains more than a broken pipe.
                    self.receive(tally);
                    return self.disconnect(
                        MessageFailure::Broken,
                        error.raw_os_error(),
                        error.to_string(),
                        tally,
                    );
                }
            }
            // A queued message counts as in flight, so this write carried a part of one.
            let now = self.run.now();
            if self.acks.in_flight() > 0 {
                tally.write(now);
            }
            if !self.run.plan.confirmed {
                self.last_progress = now;
                if !self.has_output() {
                    self.acks.complete_sent(self.last_progress, tally);
                }
            }
        }
    }

    fn check_finished(&mut self, tally: &mut CollectTally) {
        let now = self.run.now();
        if self.stream.is_none() {
            return;
        }
        let is_settled = self.acks.in_flight() == 0 && !self.has_output();
        let is_answered = self.run.plan.confirmed || self.barrier_state == BarrierState::Confirmed;
        if self.is_over(now) && is_settled && is_answered {
            self.finish();
            return;
        }
        if Duration::from_nanos(now.saturating_sub(self.last_progress)) < self.run.plan.timeout {
            return;
        }
        let detail = format!("client {}: nothing for {:?}", self.client, self.run.plan.timeout);
        if is_settled {
            tally.fault(MessageFailure::Unacknowledged, 1, || detail.clone());
        }
        self.disconnect(MessageFailure::Unacknowledged, None, detail, tally);
        // A server that stays silent this long gets no further messages.
        self.budget = 0;
    }

    fn finish(&mut self) {
        self.run.lag_windows[usize::from(self.client)].finish();
        self.stream = None;
        self.done = true;
    }
}
