//! What one shard knows of its exchanges with processes: who waits, which connections are kept, what failed and what
//! comes of that.
//!
//! ```text
//!   client ─ ask ─► waiting ─ its turn ─► kept connection ─┬─► talking ─► connection kept
//!                     ▲                   new connection ──┘      │ trouble
//!                     └─ back to its place ◄─ resting ◄───────────┤
//!                                          502, 503, 504 ◄────────┘
//! ```
//!
//! What goes wrong is held against the process only as far as it is the process's fault, since a process that is
//! killed takes all its other requests with it. A client that has gone, or an answer that stops in the middle, costs
//! the connection to the process and nothing else.
//!
//! A request is sent a second time only when the first went over a kept connection that turned out to be dead before
//! anything came back, and only if that is safe: nothing of it had been taken, or its method is idempotent.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use stilling_engine::{NO_PLACE, Token};
use stilling_ring::Time;
use stilling_workers::processes::{Called, Claim, Entrance, Line, Pass, Ticket};

use super::answer::{Heard, Refusal, Said};
use super::exchange::{Exchange, Trouble};
use super::limits::{DEATH_PATIENCE, KEPT_IDLE_MAX, REFUSING_MAX, REFUSING_PAUSE};
use super::question::Question;
use super::session::AppSession;

/// The name of an exchange within its shard, which no other exchange of the shard has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeId {
    place: u32,
    generation: u32,
}

/// What one connection of the shard says to another.
pub(crate) enum Mail {
    /// To a client, about this exchange of it.
    Said(ExchangeId, Said),
    /// To a connection to a process: an exchange for it lies at the desk.
    Begin,
    /// To one that has this exchange: the client says something.
    Heard(ExchangeId, Heard),
    /// The client of this exchange has gone.
    Gone(ExchangeId),
    /// It is still there: has the process had its time?
    Look(ExchangeId),
    /// It is not needed any more, if it has nothing to do.
    Close,
}

/// Where an exchange is.
enum Stage {
    Waiting(Ticket, Box<Question>),
    Resting(Box<Exchange>, Rest),
    /// Between two of the others, for a moment.
    Moving,
    /// With a connection that is being made, until then.
    Dialing(Time),
    /// With this connection.
    Talking(Token),
}

/// What an exchange rests for.
enum Rest {
    /// To try to connect again at that time.
    Refused(Time),
    /// For another shard to close a connection.
    NoLine(Claim),
    /// To be repeated, unless its process is found dead until then.
    Repeat(Time),
}

struct Entry {
    client: Token,
    stage: Stage,
}

#[derive(Default)]
struct Place {
    generation: u32,
    entry: Option<Entry>,
}

/// A connection that waits for its next exchange.
struct IdleConnection {
    token: Token,
    life: u64,
    since: Time,
}

pub(crate) struct Desk {
    entrance: Entrance<ExchangeId>,
    addresses: Vec<PathBuf>,
    timeout: Duration,
    places: Vec<Place>,
    free: Vec<u32>,
    /// By process; the one used last is the last.
    kept: Vec<Vec<IdleConnection>>,
    /// Exchanges for kept connections that have not heard of it.
    handed: Vec<(Token, Box<Exchange>)>,
    /// Exchanges that rest.
    resting: Vec<ExchangeId>,
    /// Exchanges whose connections are being made, and some that were.
    dialing: Vec<ExchangeId>,
    /// Slots that are not used again before the process is known to have survived, or that time has come.
    mourning: Vec<(Pass, Time)>,
    failed: Vec<(Box<Exchange>, Trouble)>,
    #[allow(clippy::vec_box, reason = "a session has its box for life")]
    dials: Vec<Box<AppSession>>,
    mail: VecDeque<(Token, Mail)>,
}

impl Desk {
    pub(super) fn new(entrance: Entrance<ExchangeId>, addresses: Vec<PathBuf>, timeout: Duration) -> Desk {
        Desk {
            kept: addresses.iter().map(|_| Vec::new()).collect(),
            entrance,
            addresses,
            timeout,
            places: Vec::new(),
            free: Vec::new(),
            handed: Vec::new(),
            resting: Vec::new(),
            dialing: Vec::new(),
            mourning: Vec::new(),
            failed: Vec::new(),
            dials: Vec::new(),
            mail: VecDeque::new(),
        }
    }

    /// Puts a client's request into the queue, or before a process at once.
    ///
    /// # Errors
    /// It comes back: the queue is full.
    pub(crate) fn ask(
        &mut self,
        client: Token,
        mut question: Box<Question>,
        now: Time,
    ) -> Result<ExchangeId, Box<Question>> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let id = ExchangeId { place, generation: self.places[place as usize].generation };
        let Ok(ticket) = self.entrance.wait(now, id) else {
            self.free.push(place);
            return Err(question);
        };
        question.close_head();
        let stage = Stage::Waiting(ticket, question);
        self.places[place as usize].entry = Some(Entry { client, stage });
        self.serve(now);
        Ok(id)
    }

    /// How long a process may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether it still waits for a process to take it.
    pub(crate) fn is_waiting(&self, id: ExchangeId) -> bool {
        matches!(self.entry(id), Some(Entry { stage: Stage::Waiting(..), .. }))
    }

    /// A client that has waited for a while has looked around.
    pub(crate) fn look(&mut self, id: ExchangeId) {
        if let Some(Entry { stage: Stage::Talking(token), .. }) = self.entry(id) {
            self.mail.push_back((*token, Mail::Look(id)));
        }
    }

    /// The client wants no answer any more, because it has gone or has one; `is_late`: it has waited too long.
    pub(crate) fn abandon(&mut self, id: ExchangeId, is_late: bool) {
        match self.remove(id).map(|entry| entry.stage) {
            Some(Stage::Waiting(ticket, _)) => _ = self.entrance.withdraw(ticket, is_late),
            Some(Stage::Resting(exchange, rest)) => {
                self.resting.retain(|resting| *resting != id);
                // Its slot waits for the death of the process all the same.
                if let Rest::Repeat(until) = rest {
                    self.mourning.push((exchange.pass, until));
                }
            }
            Some(Stage::Talking(token)) => self.mail.push_back((token, Mail::Gone(id))),
            // Its connection finds nobody when it is made.
            Some(Stage::Dialing(_) | Stage::Moving) | None => {}
        }
    }

    /// A client's reply, for whoever has its exchange.
    pub(crate) fn tell_process(&mut self, id: ExchangeId, heard: Heard) {
        if let Some(Entry { stage: Stage::Talking(token), .. }) = self.entry(id) {
            self.mail.push_back((*token, Mail::Heard(id, heard)));
        }
    }

    pub(crate) fn tell_client(&mut self, client: Token, id: ExchangeId, said: Said) {
        self.mail.push_back((client, Mail::Said(id, said)));
    }

    /// The next piece of mail.
    pub(crate) fn next_mail(&mut self) -> Option<(Token, Mail)> {
        self.mail.pop_front()
    }

    /// Whether there is something to do: the last look before the shard sleeps.
    pub(crate) fn has_news(&self) -> bool {
        !self.mail.is_empty() || !self.failed.is_empty() || self.entrance.is_called()
    }

    /// Does what has become due, once per turn. Returns when to look again.
    pub(crate) fn turn(&mut self, now: Time) -> Option<Time> {
        for (exchange, trouble) in std::mem::take(&mut self.failed) {
            self.judge(exchange, trouble, now);
        }
        let is_called = self.entrance.heed();
        if !self.mourning.is_empty() {
            self.mourning.retain(|(pass, until)| now < *until && !pass.is_over());
        }
        if !self.resting.is_empty() {
            self.wake_up(now);
        }
        if !self.dialing.is_empty() {
            self.watch_dials(now);
        }
        if is_called {
            self.tidy();
            self.serve(now);
        }
        let dials = self.dialing.iter().filter_map(|id| match self.entry(*id)?.stage {
            Stage::Dialing(until) => Some(until),
            _ => None,
        });
        let rests = self.resting.iter().filter_map(|id| match &self.entry(*id)?.stage {
            Stage::Resting(_, Rest::Refused(at) | Rest::Repeat(at)) => Some(*at),
            Stage::Resting(exchange, Rest::NoLine(_)) => Some(exchange.until),
            _ => None,
        });
        rests.chain(dials).chain(self.mourning.iter().map(|(_, until)| *until)).min()
    }

    /// Connections to be made: to whom, and for which session.
    pub(crate) fn dials(&mut self) -> impl Iterator<Item = (PathBuf, Box<AppSession>)> + use<'_> {
        let addresses = &self.addresses;
        self.dials.drain(..).map(|session| (addresses[session.process].clone(), session))
    }

    /// An exchange has failed; what comes of it is judged at the end of the turn.
    pub(super) fn fail(&mut self, exchange: Box<Exchange>, trouble: Trouble) {
        self.failed.push((exchange, trouble));
    }

    /// The connection that was made for an exchange is open. False: the client has gone meanwhile.
    pub(super) fn is_connected(&mut self, id: ExchangeId, token: Token) -> bool {
        let entry = self.entry_mut(id);
        if let Some(entry) = entry {
            entry.stage = Stage::Talking(token);
            return true;
        }
        false
    }

    /// The exchange that was handed to this connection, unless its client has gone meanwhile.
    pub(super) fn take_handed(&mut self, token: Token) -> Option<Box<Exchange>> {
        let at = self.handed.iter().position(|(to, _)| *to == token)?;
        let (_, exchange) = self.handed.swap_remove(at);
        self.entry(exchange.id).is_some().then_some(exchange)
    }

    /// An exchange is over; its slot is free.
    pub(super) fn finish(&mut self, exchange: Box<Exchange>, now: Time) {
        self.remove(exchange.id);
        exchange.pass.leave(now);
        self.serve(now);
    }

    /// Keeps a connection for the next exchange. False: nobody has use for it.
    pub(super) fn keep(&mut self, process: usize, life: u64, token: Token, now: Time) -> bool {
        if let Some(exchange) = self.without_line(process, life) {
            self.hand(exchange, token);
            return true;
        }
        let is_good = self.entrance.life(process) == life && self.entrance.wanted(process) == 0;
        if is_good {
            self.kept[process].push(IdleConnection { token, life, since: now });
        }
        is_good
    }

    /// An exchange of this shard that has found no room for a connection to this life.
    fn without_line(&mut self, process: usize, life: u64) -> Option<Box<Exchange>> {
        let wants = |id: &ExchangeId| match &self.entry(*id)?.stage {
            Stage::Resting(exchange, Rest::NoLine(_)) => {
                // One that has met a dead connection waits for this one to be closed, and gets a new one.
                let fits = exchange.pass.process() == process && exchange.pass.life() == life;
                (fits && exchange.may_repeat).then_some(())
            }
            _ => None,
        };
        let at = self.resting.iter().position(|id| wants(id).is_some())?;
        let id = self.resting.swap_remove(at);
        match std::mem::replace(&mut self.entry_mut(id)?.stage, Stage::Moving) {
            Stage::Resting(exchange, _) => Some(exchange),
            _ => None,
        }
    }

    /// Gives an exchange to a connection that has nothing to do.
    fn hand(&mut self, exchange: Box<Exchange>, token: Token) {
        self.stage(exchange.id, Stage::Talking(token));
        self.handed.push((token, exchange));
        self.mail.push_back((token, Mail::Begin));
    }

    /// A kept connection is no more.
    pub(super) fn forget(&mut self, process: usize, token: Token) {
        self.kept[process].retain(|kept| kept.token != token);
    }

    /// Closes kept connections that nobody has use for, or that others have more use for.
    fn tidy(&mut self) {
        for (process, kept) in self.kept.iter_mut().enumerate() {
            if kept.is_empty() {
                continue;
            }
            let life = self.entrance.life(process);
            let mut wanted = self.entrance.wanted(process);
            kept.retain(|kept| {
                let stays = kept.life == life && wanted == 0;
                if !stays {
                    wanted = wanted.saturating_sub(1);
                    self.mail.push_back((kept.token, Mail::Close));
                }
                stays
            });
        }
    }

    /// Gives processes to those whose turn it is.
    pub(super) fn serve(&mut self, now: Time) {
        loop {
            let kept = &self.kept;
            let Some(called) = self.entrance.call(now, |process| !kept[process].is_empty()) else { return };
            match called {
                Called::Expired(id) => {
                    if let Some(entry) = self.remove(id) {
                        self.tell_client(entry.client, id, Said::Expired);
                    }
                }
                Called::In(pass, id) => {
                    let until = now.after(self.timeout);
                    let Some(entry) = self.entry_mut(id) else { continue };
                    match std::mem::replace(&mut entry.stage, Stage::Moving) {
                        Stage::Waiting(ticket, question) => {
                            let exchange = Exchange::new((id, entry.client), question, (ticket, pass), until);
                            self.connect(exchange, now);
                        }
                        stage => entry.stage = stage,
                    }
                }
            }
        }
    }

    /// Finds a connection for an exchange: a kept one that is any good for it, or a new one. One that has met a dead one
    /// gets a new one: others may be as dead.
    fn connect(&mut self, exchange: Box<Exchange>, now: Time) {
        let (process, life) = (exchange.pass.process(), exchange.pass.life());
        while let Some(kept) = self.kept[process].pop() {
            let is_young = now.since(kept.since) < KEPT_IDLE_MAX;
            let is_safe = exchange.question.is_idempotent || is_young;
            if kept.life == life && exchange.may_repeat && is_safe {
                return self.hand(exchange, kept.token);
            }
            self.mail.push_back((kept.token, Mail::Close));
        }
        match exchange.pass.line() {
            Some(line) => self.dial(exchange, line),
            None => {
                let claim = exchange.pass.claim();
                // Somebody may have closed one just before.
                match exchange.pass.line() {
                    Some(line) => self.dial(exchange, line),
                    None => self.rest(exchange, Rest::NoLine(claim)),
                }
            }
        }
    }

    fn dial(&mut self, exchange: Box<Exchange>, line: Line) {
        self.stage(exchange.id, Stage::Dialing(exchange.until));
        self.dialing.push(exchange.id);
        self.dials.push(AppSession::new(exchange, line));
    }

    fn rest(&mut self, exchange: Box<Exchange>, rest: Rest) {
        let id = exchange.id;
        self.stage(id, Stage::Resting(exchange, rest));
        self.resting.push(id);
    }

    /// Answers those whose time has passed while the connection for them was being made. What becomes of that finds that
    /// nobody waits.
    fn watch_dials(&mut self, now: Time) {
        for id in std::mem::take(&mut self.dialing) {
            match self.entry(id) {
                Some(Entry { stage: Stage::Dialing(until), client }) if now >= *until => {
                    let client = *client;
                    self.remove(id);
                    self.tell_client(client, id, Said::Refused(Refusal::Late));
                }
                Some(Entry { stage: Stage::Dialing(_), .. }) => self.dialing.push(id),
                _ => {}
            }
        }
    }

    /// Goes on with exchanges that have rested long enough.
    fn wake_up(&mut self, now: Time) {
        for id in std::mem::take(&mut self.resting) {
            let Some(entry) = self.entry_mut(id) else { continue };
            let Stage::Resting(exchange, rest) = std::mem::replace(&mut entry.stage, Stage::Moving) else {
                continue;
            };
            let is_over = exchange.pass.is_over();
            match rest {
                // A request that ends a process is not given to the next, whatever it waited for when that was seen.
                _ if is_over && exchange.was_taken => self.refuse(exchange, Refusal::Bad),
                _ if is_over => self.wait_again(exchange),
                Rest::NoLine(_) if now >= exchange.until => self.refuse(exchange, Refusal::Unavailable),
                Rest::Refused(at) | Rest::Repeat(at) if now < at => self.rest(exchange, rest),
                Rest::Refused(_) | Rest::Repeat(_) => self.connect(exchange, now),
                Rest::NoLine(claim) => match exchange.pass.line() {
                    Some(line) => self.dial(exchange, line),
                    None => self.rest(exchange, Rest::NoLine(claim)),
                },
            }
        }
    }

    /// Puts a request that no process has seen back to its old place.
    fn wait_again(&mut self, exchange: Box<Exchange>) {
        let Exchange { id, ticket, question, pass, .. } = *exchange;
        self.stage(id, Stage::Waiting(ticket, question));
        self.entrance.wait_again(ticket, id);
        pass.leave_unused();
    }

    /// Decides what comes of an exchange that has failed.
    fn judge(&mut self, mut exchange: Box<Exchange>, trouble: Trouble, now: Time) {
        if self.entry(exchange.id).is_none() {
            // Its client has gone, or has been told that it took too long.
            if let Trouble::Refused(kind) = trouble
                && now >= exchange.until
            {
                blame(&exchange, kind);
            }
            return;
        }
        let is_repeatable = exchange.may_repeat && exchange.is_repeatable();
        match trouble {
            Trouble::Refused(NO_PLACE) => {
                exchange.pass.say("the server has no place for a connection to it");
                self.refuse(exchange, Refusal::Unavailable);
            }
            Trouble::Refused(kind) => self.judge_refusal(exchange, kind, now),
            Trouble::Stale { nothing_sent: true } if is_repeatable => {
                exchange.may_repeat = false;
                self.connect(exchange, now);
            }
            Trouble::Stale { .. } if is_repeatable && exchange.question.is_idempotent => {
                (exchange.may_repeat, exchange.was_taken) = (false, true);
                self.rest(exchange, Rest::Repeat(now.after(DEATH_PATIENCE)));
            }
            Trouble::Late if !exchange.is_answered() => {
                self.say_late(&exchange);
                // Whether the request is slow or the process hangs is judged there.
                let _ = exchange.pass.be_late(now);
            }
            Trouble::Late => {
                exchange.pass.say("an answer stopped in the middle for too long; its connection is closed");
                self.refuse(exchange, Refusal::Late);
            }
            trouble @ (Trouble::Stale { .. } | Trouble::Lost(_) | Trouble::Garbage(_)) => {
                exchange.pass.say(&trouble.to_string());
                self.answer(&exchange, Refusal::Bad);
                // The next request must not go to a process that is half gone.
                self.mourning.push((exchange.pass, now.after(DEATH_PATIENCE)));
            }
        }
    }

    /// A process has died and nobody has noticed yet, or it lives and refuses connections. Nothing is lost so far.
    fn judge_refusal(&mut self, mut exchange: Box<Exchange>, kind: ErrorKind, now: Time) {
        let life = exchange.pass.life();
        let (_, since) = exchange.refusing.filter(|(of, _)| *of == life).unwrap_or((life, now));
        exchange.refusing = Some((life, since));
        let is_late = now >= exchange.until;
        if is_late || !is_deaf(kind) && now.since(since) >= REFUSING_MAX {
            blame(&exchange, kind);
            return self.refuse(exchange, if is_late { Refusal::Late } else { Refusal::Bad });
        }
        let again = now.after(REFUSING_PAUSE).min(exchange.until);
        self.rest(exchange, Rest::Refused(again));
    }

    /// There was no answer in time: its client hears so.
    pub(super) fn say_late(&mut self, exchange: &Exchange) {
        exchange.pass.say("a request was not answered in time");
        self.answer(exchange, Refusal::Late);
    }

    fn refuse(&mut self, exchange: Box<Exchange>, refusal: Refusal) {
        self.answer(&exchange, refusal);
    }

    fn answer(&mut self, exchange: &Exchange, refusal: Refusal) {
        self.remove(exchange.id);
        self.tell_client(exchange.client, exchange.id, exchange.refuse(refusal));
    }

    fn stage(&mut self, id: ExchangeId, stage: Stage) {
        if let Some(entry) = self.entry_mut(id) {
            entry.stage = stage;
        }
    }

    fn entry(&self, id: ExchangeId) -> Option<&Entry> {
        let place = self.places.get(id.place as usize)?;
        place.entry.as_ref().filter(|_| place.generation == id.generation)
    }

    fn entry_mut(&mut self, id: ExchangeId) -> Option<&mut Entry> {
        let place = self.places.get_mut(id.place as usize)?;
        place.entry.as_mut().filter(|_| place.generation == id.generation)
    }

    fn remove(&mut self, id: ExchangeId) -> Option<Entry> {
        let place =
            self.places.get_mut(id.place as usize).filter(|place| place.generation == id.generation)?;
        let entry = place.entry.take()?;
        // A place whose generations are used up is not used again: no two exchanges have the same name.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(id.place);
        }
        Some(entry)
    }
}

/// There has been no connection for too long: says so, and condemns the process if that is its fault.
fn blame(exchange: &Exchange, kind: ErrorKind) {
    if is_deaf(kind) {
        exchange.pass.say("accepts no connections");
    } else {
        exchange.pass.say(&Trouble::Refused(kind).to_string());
    }
    // Want of descriptors and the like are this side's fault.
    if is_deaf(kind) || matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound) {
        exchange.pass.condemn();
    }
}

/// Whether the process takes no connection: its queue of them is full, or one did not come up in time.
fn is_deaf(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
