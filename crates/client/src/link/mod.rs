//! The publisher's connection as a state machine without socket and clock: what comes in is told, what is to happen is
//! asked. Time is an argument, so that every failure can be played in a test to the millisecond.
//!
//! ```text
//!             ┌────────────────────── failure: the ladder's wait, the next server ─────────────────────┐
//!             ▼                                                                                        │
//!   Waiting ──► Connecting ──► Greeting (INFO, CONNECT, PING, PONG) ──► Ready ──► (lame duck: drain) ──┘
//!
//!   spool ─► window ─► output ─► server ─► answer ─► settled: delivered | dropped
//!              ▲                     │
//!              └── due again ◄───────┘  lost, late, not now
//! ```
//!
//! A message leaves the window only by an answer, or with a reason. After a failure all that is unanswered is sent again,
//! in its order and under its old `Nats-Msg-Id`, as fast as the budget allows.

mod answer;
mod pump;
mod settle;
mod window;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use stilling_wire::nats::{Limits, PING, PONG, ServerDecoder, ServerEvent, encode_sub};

use crate::address::Server;
use crate::config::{Config, Keep, Mode};
use crate::entry::Entry;
use crate::handshake::{Greeting, Handshake, Introduction};
use crate::identity::Inbox;
use crate::ladder::{Budget, BudgetConfig, Ladder, Random};
use crate::limits::{ANSWER_SIZE_MAX, OUTPUT_SIZE, UNACKNOWLEDGED_MAX};
use crate::outcome::{Counts, Failure, Outcome, Reason};
use crate::spool::Spool;
use crate::trouble::Trouble;
pub(crate) use settle::News;
use window::{Cause, Stage, Window};

/// The subscription that takes the answers.
const ANSWERS: &[u8] = b"1";

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Order {
    /// Close the connection, if there is one.
    pub(crate) close: bool,
    /// Then connect to this one.
    pub(crate) connect: Option<Server>,
}

/// Where the connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting { until: Instant },
    Connecting { deadline: Instant },
    Greeting { deadline: Instant, handshake: Handshake },
    Ready { greeting: Greeting },
}

/// What belongs to one connection and goes with it.
#[derive(Debug, Default)]
struct Talk {
    out: Vec<u8>,
    /// Bytes of `out` that the socket has.
    taken: usize,
    /// Bytes of output in all, those before `out` included.
    written: u64,
    input: Vec<u8>,
    decoder: ServerDecoder,
    /// For each PING without its PONG, the token before which everything had been written.
    barriers: VecDeque<u64>,
    /// The token up to which the last barrier goes.
    barred: u64,
    /// When the oldest PING without its PONG was written.
    pinged: Option<Instant>,
    /// Until when a lame duck's answers are waited for.
    drain_until: Option<Instant>,
}

impl Talk {
    fn handed(&self) -> u64 {
        self.written - (self.out.len() - self.taken) as u64
    }

    fn ping(&mut self, now: Instant, token: u64) {
        self.out.extend_from_slice(PING);
        self.written += PING.len() as u64;
        self.barriers.push_back(token);
        self.barred = token;
        self.pinged.get_or_insert(now);
    }
}

/// The publisher's connection.
pub(crate) struct Link {
    config: Config,
    limits: Limits,
    unacknowledged: usize,
    inbox: Inbox,
    ladder: Ladder,
    budget: Budget,
    random: Random,
    spool: Box<dyn Spool>,
    window: Window,
    state: State,
    talk: Talk,
    /// When the server was heard last.
    heard: Instant,
    /// Which of the servers is next.
    server: usize,
    /// Connections that have failed.
    rounds: u64,
    close: bool,
    /// Something has failed, so that some messages may have been tried often enough.
    review_due: bool,
    /// Nothing is sent before.
    resume_at: Option<Instant>,
    /// When there may be something to send again.
    pump_at: Option<Instant>,
    /// When the first message has waited too long for its stream.
    unwanted_at: Option<Instant>,
    /// When the oldest answer is due.
    answer_at: Option<Instant>,
    reply: Vec<u8>,
    trouble: Option<Trouble>,
    counts: Counts,
    /// Messages that are no longer held, and what they counted.
    released: (u64, u64),
    failures: Vec<Failure>,
}

impl Link {
    pub(crate) fn new(config: Config, spool: Box<dyn Spool>, seed: u64, now: Instant) -> Link {
        let limits =
            Limits { payload_size_max: ANSWER_SIZE_MAX, whole_size_max: u32::MAX, ..Limits::for_client() };
        let unacknowledged = config.unacknowledged.clamp(1, UNACKNOWLEDGED_MAX);
        // What one lost connection leaves behind goes at once.
        let window = u32::try_from(unacknowledged).unwrap_or(u32::MAX);
        let budget = BudgetConfig { burst: config.budget.burst.max(window), ..config.budget };
        Link {
            limits,
            unacknowledged,
            inbox: Inbox::new(),
            ladder: Ladder::new(config.ladder),
            budget: Budget::new(budget, now),
            random: Random::new(seed),
            spool,
            window: Window::default(),
            state: State::Waiting { until: now },
            talk: Talk::default(),
            heard: now,
            server: 0,
            rounds: 0,
            close: false,
            review_due: false,
            resume_at: None,
            pump_at: None,
            unwanted_at: None,
            answer_at: None,
            reply: Vec::new(),
            trouble: None,
            counts: Counts::default(),
            released: (0, 0),
            failures: Vec::new(),
            config,
        }
    }

    /// Takes a message that a caller gave. It is safe after the next turn.
    pub(crate) fn submit(&mut self, mut entry: Entry) {
        entry.round = self.rounds;
        self.spool.push(entry);
    }

    /// Makes safe what is new.
    pub(crate) fn commit(&mut self, unix_ns: u64) {
        for (entry, reason) in self.spool.commit(unix_ns) {
            self.drop_entry(entry, reason);
        }
    }

    /// Drops the oldest message that is not with the server, and says what it counted; nothing if there is none.
    pub(crate) fn drop_oldest(&mut self) -> Option<u64> {
        let entry = self.spool.pop()?;
        let cost = entry.cost;
        self.window.skip(cost);
        self.drop_entry(entry, Reason::SpoolFull);
        Some(cost)
    }

    /// What is late: all that had come until `now` has been told. Who has slept himself, or has not looked, judges nobody.
    pub(crate) fn judge(&mut self, now: Instant) {
        match self.state {
            State::Connecting { deadline } if now >= deadline => {
                let server = self.server_name();
                self.lost(now, Trouble::ConnectTimeout { server });
            }
            State::Greeting { deadline, .. } if now >= deadline => {
                let server = self.server_name();
                self.lost(now, Trouble::GreetingTimeout { server });
            }
            State::Ready { .. } => self.watch(now),
            State::Waiting { .. } | State::Connecting { .. } | State::Greeting { .. } => {}
        }
    }

    /// Makes safe what is new, does what is due and writes what can be sent.
    pub(crate) fn turn(&mut self, now: Instant, unix_ns: u64) -> Order {
        self.commit(unix_ns);
        let mut connect = None;
        match self.state {
            State::Waiting { until } if now >= until => {
                connect = self.config.servers.get(self.server).cloned();
                self.state = State::Connecting { deadline: now + self.config.connect_timeout };
            }
            State::Ready { .. } if self.talk.drain_until.is_some() => self.leave_drained(now),
            State::Waiting { .. }
            | State::Connecting { .. }
            | State::Greeting { .. }
            | State::Ready { .. } => {}
        }
        if std::mem::take(&mut self.review_due) {
            self.review();
        }
        if let State::Ready { greeting } = self.state {
            self.pump(now, greeting);
            if self.drop_unwanted(now) {
                // They may have stood in the way.
                self.pump(now, greeting);
            }
        }
        for cost in self.spool.lost() {
            self.count_drop(cost, String::new(), String::new(), Reason::SpoolDamaged);
        }
        self.spool.settled_below(self.window.low().min(self.spool.next_id()), now);
        if self.spool.note_at().is_some_and(|at| now >= at) {
            self.spool.note(unix_ns);
        }
        Order { close: std::mem::take(&mut self.close), connect }
    }

    /// When the next turn is due, if nothing comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let own = match self.state {
            State::Waiting { until } => Some(until),
            State::Connecting { deadline } | State::Greeting { deadline, .. } => Some(deadline),
            State::Ready { .. } => {
                let ping = match self.talk.pinged {
                    Some(pinged) => pinged + self.config.acknowledge_timeout,
                    None => self.heard + self.config.ping_interval,
                };
                let others = [self.answer_at, self.pump_at, self.unwanted_at, self.talk.drain_until];
                Some(others.into_iter().flatten().fold(ping, Instant::min))
            }
        };
        [own, self.spool.note_at()].into_iter().flatten().min()
    }

    /// The connection is there.
    pub(crate) fn connected(&mut self, now: Instant) {
        if let State::Connecting { deadline } = self.state {
            let first = self.window.iter().next().map(|(token, _)| token);
            let barred = first.unwrap_or(self.window.next_token());
            self.talk = Talk { barred, ..Talk::default() };
            self.heard = now;
            self.state = State::Greeting { deadline, handshake: Handshake::Silent };
        }
    }

    /// The connection is not there, or no longer.
    pub(crate) fn closed(&mut self, now: Instant, trouble: Trouble) {
        if !matches!(self.state, State::Waiting { .. }) {
            self.lost(now, trouble);
            // The driver has closed it already.
            self.close = false;
        }
    }

    /// What the server said.
    pub(crate) fn received(&mut self, now: Instant, bytes: &[u8]) {
        if !matches!(self.state, State::Greeting { .. } | State::Ready { .. }) {
            return;
        }
        self.heard = now;
        let mut input = std::mem::take(&mut self.talk.input);
        input.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let step = match self.talk.decoder.decode(&self.limits, &input[at..]) {
                Ok(step) => step,
                Err(error) => return self.lost(now, Trouble::Protocol(error.to_string())),
            };
            at += step.consumed;
            if step.event == ServerEvent::NeedMore {
                break;
            }
            if let Err(trouble) = self.hear(now, &step.event) {
                return self.lost(now, trouble);
            }
        }
        input.drain(..at);
        self.talk.input = input;
    }

    /// Bytes for the socket.
    pub(crate) fn output(&self) -> &[u8] {
        &self.talk.out[self.talk.taken..]
    }

    /// The socket has taken so many of them.
    pub(crate) fn sent(&mut self, count: usize) {
        self.talk.taken += count;
        if self.talk.taken >= self.talk.out.len() {
            self.talk.out.clear();
            self.talk.taken = 0;
        } else if self.talk.taken >= OUTPUT_SIZE {
            self.talk.out.drain(..self.talk.taken);
            self.talk.taken = 0;
        }
    }

    /// Ends the spool. Returns what it could not keep: those are dropped.
    pub(crate) fn close(&mut self, now: Instant, unix_ns: u64) {
        let is_kept = matches!(self.config.keep, Keep::Directory(_));
        self.commit(unix_ns);
        self.spool.settled_below(self.window.low().min(self.spool.next_id()), now);
        if is_kept {
            let answer = |entry: &mut Entry| entry.ticket.take().is_some_and(|it| it.tell(Outcome::Queued));
            for token in self.window.tokens() {
                self.window.get_mut(token).map(|flight| answer(&mut flight.entry));
            }
            let _ = self.spool.review(&mut |entry| {
                answer(entry);
                true
            });
            return self.spool.close(unix_ns);
        }
        for token in self.window.tokens() {
            self.drop_token(token, Reason::Closed);
        }
        while let Some(entry) = self.spool.pop() {
            self.drop_entry(entry, Reason::Closed);
        }
    }

    fn server_name(&self) -> String {
        self.config.servers.get(self.server).map(ToString::to_string).unwrap_or_default()
    }

    fn is_one_way(&self) -> bool {
        self.config.mode == Mode::OneWay
    }

    /// What the server said, one thing at a time.
    fn hear(&mut self, now: Instant, event: &ServerEvent<'_>) -> Result<(), Trouble> {
        match self.state {
            State::Greeting { deadline, mut handshake } => {
                let introduction = Introduction {
                    credentials: &self.config.servers[self.server].credentials,
                    name: self.config.name.as_deref(),
                    needs_headers: !self.is_one_way(),
                };
                let before = self.talk.out.len();
                let greeting = handshake.hear(event, &introduction, &mut self.talk.out)?;
                self.talk.written += (self.talk.out.len() - before) as u64;
                self.state = match greeting {
                    None => State::Greeting { deadline, handshake },
                    Some(greeting) => self.begin(greeting),
                };
                Ok(())
            }
            State::Ready { greeting } => self.hear_ready(now, event, greeting),
            State::Waiting { .. } | State::Connecting { .. } => Ok(()),
        }
    }

    /// The server has let us in.
    fn begin(&mut self, greeting: Greeting) -> State {
        self.counts.connected += 1;
        self.trouble = None;
        let before = self.talk.out.len();
        if !self.is_one_way() {
            encode_sub(&mut self.talk.out, &self.inbox.filter(), None, ANSWERS);
        }
        self.talk.written += (self.talk.out.len() - before) as u64;
        State::Ready { greeting }
    }

    fn hear_ready(
        &mut self,
        now: Instant,
        event: &ServerEvent<'_>,
        greeting: Greeting,
    ) -> Result<(), Trouble> {
        match event {
            ServerEvent::Message(delivery) => {
                match self.inbox.token(delivery.subject) {
                    Some(token) => self.answered(now, token, delivery.headers, delivery.payload),
                    None => self.counts.stray_answers += 1,
                }
                Ok(())
            }
            ServerEvent::Ping => {
                self.talk.out.extend_from_slice(PONG);
                self.talk.written += PONG.len() as u64;
                Ok(())
            }
            ServerEvent::Pong => {
                self.passed(now);
                Ok(())
            }
            ServerEvent::Info(json) => {
                // The server may tell news of itself at any time; only one kind matters here.
                let is_lame = stilling_wire::nats::Info::parse(json).is_ok_and(|info| info.ldm);
                if is_lame && self.talk.drain_until.is_none() {
                    self.talk.drain_until = Some(now + self.config.acknowledge_timeout);
                }
                Ok(())
            }
            ServerEvent::Err(text) => self.refused(text, greeting),
            ServerEvent::Ok | ServerEvent::NeedMore => Ok(()),
            // Everything within the limits comes whole.
            ServerEvent::MessageStart(_) | ServerEvent::Piece(_) | ServerEvent::MessageEnd => Ok(()),
        }
    }

    /// The connection has failed: all that is unanswered is due again, at a later time and perhaps elsewhere.
    fn lost(&mut self, now: Instant, trouble: Trouble) {
        self.ladder.failed();
        self.rounds += 1;
        self.counts.connection_failures += 1;
        self.trouble = Some(trouble);
        let handed = self.talk.handed();
        for token in self.window.tokens() {
            let Some(flight) = self.window.get_mut(token) else { continue };
            let was_unwanted = flight.entry.unwanted.take().is_some();
            let cause = match flight.stage {
                Stage::Sent { end, .. } if end <= handed && self.config.mode == Mode::OneWay => {
                    self.drop_token(token, Reason::Unsure);
                    continue;
                }
                Stage::Sent { end, .. } if end <= handed => Cause::Interrupted,
                // Over the next connection its stream may be there, and all that wait for it go as fast as it takes them.
                Stage::Sent { .. } | Stage::Due(..) if was_unwanted => Cause::Interrupted,
                // The socket did not have it whole, so the server has not seen it.
                Stage::Sent { cause, .. } | Stage::Due(_, cause) => cause,
            };
            self.window.set(token, Stage::Due(now, cause));
        }
        self.leave(now);
        self.review_due = true;
    }

    /// Leaves the connection, and tries again after the ladder's wait.
    fn leave(&mut self, now: Instant) {
        let wait = self.random.jitter(self.ladder.wait());
        self.state = State::Waiting { until: now + wait };
        self.talk = Talk::default();
        self.close = true;
        (self.answer_at, self.pump_at, self.unwanted_at) = (None, None, None);
        self.server = (self.server + 1) % self.config.servers.len().max(1);
    }

    /// A lame duck that has no more answers for us is left.
    fn leave_drained(&mut self, now: Instant) {
        let is_drained = self.window.iter().all(|(_, flight)| matches!(flight.stage, Stage::Due(..)));
        if is_drained && self.output().is_empty() {
            self.trouble = Some(Trouble::LameDuck);
            self.leave(now);
        }
    }

    /// What time alone brings: answers that are late, a server that is silent, a lame duck that does not come to an end.
    fn watch(&mut self, now: Instant) {
        if self.talk.drain_until.is_some_and(|until| now >= until) {
            return self.lost(now, Trouble::LameDuck);
        }
        match self.talk.pinged {
            Some(pinged) if now >= pinged + self.config.acknowledge_timeout => {
                return self.lost(now, Trouble::Hung);
            }
            None if now >= self.heard + self.config.ping_interval => {
                self.talk.ping(now, self.window.next_token());
            }
            _ => {}
        }
        if self.answer_at.is_some_and(|at| now >= at) {
            self.late(now);
        }
    }

    /// Messages whose answer has not come in time: the connection is dead if nothing else has come, and they alone are sent
    /// again if it lives.
    fn late(&mut self, now: Instant) {
        let timeout = self.config.acknowledge_timeout;
        let mut late = Vec::new();
        self.answer_at = None;
        for (token, flight) in self.window.iter() {
            let Stage::Sent { at, .. } = flight.stage else { continue };
            if now >= at + timeout {
                late.push((token, at));
            } else {
                self.answer_at = Some(self.answer_at.map_or(at + timeout, |first| first.min(at + timeout)));
            }
        }
        if late.iter().any(|(_, at)| self.heard <= *at) {
            return self.lost(now, Trouble::Hung);
        }
        if self.is_one_way() || late.is_empty() {
            return;
        }
        self.ladder.failed();
        self.pause(now, Duration::ZERO);
        for (token, _) in late {
            self.window.set(token, Stage::Due(now, Cause::Declined));
            if let Some(flight) = self.window.get_mut(token) {
                flight.entry.attempts += 1;
            }
        }
        self.review_due = true;
    }

    /// Sends nothing for the ladder's wait, or for as long as the server asks.
    fn pause(&mut self, now: Instant, hint: Duration) {
        let wait = self.random.jitter(self.ladder.wait()).max(hint);
        let until = now + wait;
        self.resume_at = Some(self.resume_at.map_or(until, |at| at.max(until)));
    }
}
