//! Clients that use the protocol correctly, in all its variants, and check every byte they receive.
//!
//! A connection damaged by the network is retried with the unanswered requests, as a browser does. Any other failure is
//! the server's fault and ends the world.

use std::io::ErrorKind;
use std::time::Duration;

use stilling_ring::Time;

use super::exchange::{CONTINUE, ExchangeBody, ExpectedExchange, ExpectedResponse, ResponseMatch};
use super::test_routes::{self, ResponseTruncation};
use super::version::RequestVersion;
use super::{CALENDAR_START, HttpClientContext};
use crate::SplitMix64;
use crate::network::{PeerKey, SimPeer};

/// Behaviour of a well-behaved client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WellBehavedStyle {
    /// One request after the other on one connection.
    Sequential,
    /// All requests at once.
    Pipelined,
    /// A connection per request.
    ClosePerRequest,
    /// HTTP/1.0, with and without keep-alive.
    OldVersion,
    /// `GET /test/fast` without a version.
    Versionless,
    /// Bodies, sized and chunked.
    Bodies,
    /// `Expect: 100-continue`.
    Expecting,
    /// Slow work, some of it panicking.
    SlowWork,
    /// Ends its sending direction after the last request.
    HalfClosing,
    /// Byte by byte, within the timeouts.
    Trickling,
    /// Long responses, streams and echoes, pipelined.
    OwnRoutes,
}

impl WellBehavedStyle {
    /// All styles.
    pub const ALL: [WellBehavedStyle; 11] = [
        WellBehavedStyle::Sequential,
        WellBehavedStyle::Pipelined,
        WellBehavedStyle::ClosePerRequest,
        WellBehavedStyle::OldVersion,
        WellBehavedStyle::Versionless,
        WellBehavedStyle::Bodies,
        WellBehavedStyle::Expecting,
        WellBehavedStyle::SlowWork,
        WellBehavedStyle::HalfClosing,
        WellBehavedStyle::Trickling,
        WellBehavedStyle::OwnRoutes,
    ];

    fn exchange(self, random: &mut SplitMix64) -> ExpectedExchange {
        const QUICK: [(&str, &str); 9] = [
            ("GET", "/test/fast"),
            ("GET", "/test/fast"),
            ("HEAD", "/test/fast"),
            ("GET", "/livez"),
            ("HEAD", "/livez"),
            ("GET", "/readyz"),
            ("GET", "/nothing/here"),
            ("PUT", "/livez"),
            ("GET", "/metrics"),
        ];
        let (method, path) = match self {
            WellBehavedStyle::Versionless => ("GET", "/test/fast"),
            WellBehavedStyle::OwnRoutes if random.chance(600) => {
                ("GET", test_routes::PATHS[random.index(test_routes::PATHS.len())])
            }
            WellBehavedStyle::OwnRoutes if random.chance(100) => ("HEAD", "/own/sized"),
            WellBehavedStyle::OwnRoutes | WellBehavedStyle::Bodies | WellBehavedStyle::Expecting
                if random.chance(300) =>
            {
                ("POST", "/own/echo")
            }
            WellBehavedStyle::OwnRoutes | WellBehavedStyle::Bodies | WellBehavedStyle::Expecting
                if random.chance(300) =>
            {
                ("POST", "/own/work")
            }
            WellBehavedStyle::OldVersion | WellBehavedStyle::ClosePerRequest if random.chance(100) => {
                ("GET", test_routes::PATHS[random.index(test_routes::PATHS.len())])
            }
            WellBehavedStyle::Bodies | WellBehavedStyle::Expecting if random.chance(300) => {
                ("POST", "/test/slow")
            }
            WellBehavedStyle::Bodies | WellBehavedStyle::Expecting => ("POST", "/test/fast"),
            // The end of the body is the end of the received bytes, while earlier responses fill the shard's output.
            WellBehavedStyle::Pipelined if random.chance(150) => ("POST", "/test/fast"),
            WellBehavedStyle::SlowWork if random.chance(100) => ("GET", "/test/panic"),
            WellBehavedStyle::SlowWork => ("GET", "/test/slow"),
            _ if random.chance(200) => ("GET", "/test/slow"),
            _ => QUICK[random.index(QUICK.len())],
        };
        let version = match self {
            WellBehavedStyle::Versionless => RequestVersion::None,
            WellBehavedStyle::ClosePerRequest => RequestVersion::OneOneClose,
            WellBehavedStyle::OldVersion if random.chance(500) => RequestVersion::One,
            WellBehavedStyle::OldVersion => RequestVersion::OneKeepAlive,
            _ if random.chance(50) => RequestVersion::OneOneClose,
            _ => RequestVersion::OneOne,
        };
        let body = match self {
            WellBehavedStyle::Bodies if random.chance(500) => ExchangeBody::Chunked,
            WellBehavedStyle::Bodies => ExchangeBody::Sized,
            WellBehavedStyle::Expecting => ExchangeBody::Expected,
            _ if method == "POST" => ExchangeBody::Sized,
            _ => ExchangeBody::None,
        };
        ExpectedExchange::new(method, path, version, body, random)
    }
}

/// Rate per thousand of slow requests that end their connection with a stray empty line behind them, as some clients
/// send after a body (RFC 9112 §2.2). Only slow requests: a line that arrives after the request was received, but
/// before the response is sent in the same turn, may destroy the response, as with any server that does not linger.
const STRAY_RATE: u16 = 300;

#[derive(Debug)]
pub(super) struct WellBehaved {
    pub(super) style: WellBehavedStyle,
    plan: Vec<ExpectedExchange>,
    answered: usize,
    /// Exchange being sent, and bytes of it already sent.
    sending: (usize, usize),
    /// `100 Continue` was received for the exchange being sent.
    continued: bool,
    /// Start of the exchange awaiting its response.
    since: Time,
    peer: Option<SimPeer>,
    inbox: Vec<u8>,
    ending: bool,
    shut: bool,
    /// An empty line is still to be sent after a request that ends the connection.
    strays: bool,
    wake_at: Option<Time>,
    /// Sends requests one by one, because a response that broke off may have destroyed earlier ones.
    avoids_pipelining: bool,
}

enum ClientProgress {
    /// More may be possible now.
    Continue,
    /// Waits for the network or its own timer.
    Wait,
}

impl WellBehaved {
    pub(super) fn new(style: WellBehavedStyle, start: Time, random: &mut SplitMix64) -> Self {
        let longest = match style {
            WellBehavedStyle::Trickling => 2,
            WellBehavedStyle::OwnRoutes => 5,
            _ => 12,
        };
        let plan = (0..random.between(1, longest)).map(|_| style.exchange(random)).collect();
        WellBehaved {
            style,
            plan,
            answered: 0,
            sending: (0, 0),
            continued: false,
            since: start,
            peer: None,
            inbox: Vec::new(),
            ending: false,
            shut: false,
            strays: false,
            wake_at: Some(start),
            avoids_pipelining: false,
        }
    }

    pub(super) fn key(&self) -> Option<PeerKey> {
        self.peer.as_ref().map(SimPeer::key)
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wake_at
    }

    pub(super) fn is_done(&self) -> bool {
        self.peer.is_none() && self.answered == self.plan.len()
    }

    pub(super) fn step(&mut self, context: &mut HttpClientContext<'_>) -> Result<(), String> {
        if self.wake_at.is_some_and(|at| context.now < at) && self.peer.is_none() {
            return Ok(());
        }
        self.wake_at = self.wake_at.filter(|at| context.now < *at);
        while !self.is_done() {
            if self.peer.is_none() {
                self.dial(context);
            }
            match self.continue_sending(context)? {
                ClientProgress::Continue => {}
                ClientProgress::Wait => break,
            }
        }
        Ok(())
    }

    fn dial(&mut self, context: &HttpClientContext<'_>) {
        self.peer = Some(context.network.connect(context.address.clone(), None));
        self.sending = (self.answered, 0);
        (self.continued, self.ending, self.shut, self.strays) = (false, false, false, false);
        self.since = context.now;
        self.inbox.clear();
    }

    fn continue_sending(&mut self, context: &mut HttpClientContext<'_>) -> Result<ClientProgress, String> {
        let Some(peer) = &self.peer else { return Ok(ClientProgress::Wait) };
        match peer.connected() {
            Ok(true) => {}
            Ok(false) => return Ok(ClientProgress::Wait),
            Err(error) => return self.broken(&format!("it was refused: {error}"), context),
        }
        if let Err(error) = self.send(context) {
            return self.broken(&format!("a write failed: {error}"), context);
        }
        let mut into = [0; 2048];
        let Some(peer) = &mut self.peer else { return Ok(ClientProgress::Wait) };
        match peer.read(&mut into) {
            Ok(0) => self.ended(context),
            Ok(len) => {
                self.inbox.extend(&into[..len]);
                match self.take_answers(context) {
                    Ok(()) => Ok(ClientProgress::Continue),
                    // The server answers a request that the network cut short as far as it arrived.
                    Err(_) if self.peer.as_ref().is_some_and(SimPeer::is_damaged) => {
                        self.broken("the request was cut short", context)
                    }
                    Err(why) => Err(why),
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(ClientProgress::Wait),
            // Its request and the server's close may have crossed.
            Err(_) if self.ending => self.ended(context),
            Err(error) => self.broken(&format!("a read failed: {error}"), context),
        }
    }

    /// Index of the first exchange that may not be sent yet.
    fn send_until(&self) -> usize {
        if !self.is_pipelining() {
            return (self.answered + 1).min(self.plan.len());
        }
        let last = self.plan[self.answered..].iter().position(ExpectedExchange::closes);
        last.map_or(self.plan.len(), |last| self.answered + last + 1)
    }

    fn is_pipelining(&self) -> bool {
        !self.avoids_pipelining
            && matches!(
                self.style,
                WellBehavedStyle::Pipelined | WellBehavedStyle::HalfClosing | WellBehavedStyle::OwnRoutes
            )
    }

    fn send(&mut self, context: &mut HttpClientContext<'_>) -> std::io::Result<()> {
        let until = self.send_until();
        while self.sending.0 < until && self.wake_at.is_none() && !self.ending {
            let (number, from) = self.sending;
            let ExpectedExchange { request, pause_at, .. } = &self.plan[number];
            let mut to = request.len();
            if let Some(pause_at) = pause_at.filter(|_| !self.continued) {
                to = pause_at;
            }
            if self.style == WellBehavedStyle::Trickling {
                to = to.min(from + 1);
            } else if context.random.chance(100) {
                to = to.min(from + context.random.between(1, 100) as usize);
            }
            if from == to {
                break;
            }
            let Some(peer) = &mut self.peer else { break };
            let taken = match peer.write(&request[from..to]) {
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            self.sending.1 += taken;
            if self.sending.1 == request.len() {
                let requested = &self.plan[number];
                let is_slow = requested.request.windows(10).any(|part| part == b"/test/slow");
                self.strays = is_slow && requested.closes() && context.random.chance(STRAY_RATE);
                self.sending = (number + 1, 0);
                self.continued = false;
                if self.strays && context.random.chance(500) {
                    self.pause(context, 30);
                }
            }
            if self.style == WellBehavedStyle::Trickling {
                self.pause(context, 3);
            }
        }
        if self.strays && self.wake_at.is_none() {
            self.strays = false;
            // The line is not read, and a server that has already closed may refuse it.
            let _ = self.peer.as_mut().expect("it is sending").write(b"\r\n");
        }
        let all = self.sending.0 == self.plan.len();
        if self.style == WellBehavedStyle::HalfClosing && all && !std::mem::replace(&mut self.shut, true) {
            self.peer.as_mut().expect("it is sending").shutdown();
        }
        Ok(())
    }

    fn take_answers(&mut self, context: &mut HttpClientContext<'_>) -> Result<(), String> {
        while !self.inbox.is_empty() {
            if self.ending {
                return Err(self.failure_message("bytes after the last response"));
            }
            let Some(exchange) = self.plan.get(self.answered) else {
                return Err(self.failure_message("an unexpected response"));
            };
            let waits = exchange.pause_at.is_some() && self.sending.0 == self.answered && !self.continued;
            if waits && CONTINUE.starts_with(&self.inbox[..self.inbox.len().min(CONTINUE.len())]) {
                if self.inbox.len() < CONTINUE.len() {
                    return Ok(());
                }
                self.inbox.drain(..CONTINUE.len());
                self.continued = true;
                continue;
            }
            let dates = dates(self.since, context.now);
            let allowed = |answer: &&ExpectedResponse| context.draining || !answer.draining;
            let mut begun = false;
            let whole = exchange.answers.iter().filter(allowed).find_map(|answer| {
                if answer.early && !context.is_short_of_memory {
                    return None;
                }
                match answer.compare(&self.inbox, &dates) {
                    ResponseMatch::Whole(len) => Some((len, answer.closes, answer.early)),
                    ResponseMatch::SoFar => {
                        begun = true;
                        None
                    }
                    ResponseMatch::Not => None,
                }
            });
            let Some((len, closes, early)) = whole else {
                return if begun { Ok(()) } else { Err(self.failure_message("a wrong answer")) };
            };
            if self.sending.0 <= self.answered && !early {
                return Err(self.failure_message("an answer before the request was complete"));
            }
            self.inbox.drain(..len);
            self.answered += 1;
            context.answers += 1;
            self.ending = closes;
            if self.style == WellBehavedStyle::Sequential && context.random.chance(500) {
                self.pause(context, 100);
            }
            if !self.is_pipelining() {
                self.since = context.now;
            }
        }
        if self.answered == self.plan.len() && !self.ending && !self.shut {
            self.peer = None;
        }
        Ok(())
    }

    fn ended(&mut self, context: &mut HttpClientContext<'_>) -> Result<ClientProgress, String> {
        let expected = self.ending || (self.shut && self.answered == self.plan.len());
        if !expected {
            return self.broken("the end came too early", context);
        }
        self.peer = None;
        self.wake_at = Some(context.now);
        Ok(ClientProgress::Wait)
    }

    /// Handles the end of the connection: acceptable if the network damaged it or the server announced it.
    fn broken(&mut self, why: &str, context: &mut HttpClientContext<'_>) -> Result<ClientProgress, String> {
        let was_damaged = self.peer.as_ref().is_some_and(SimPeer::is_damaged);
        let requested = &self.plan[self.answered..self.plan.len().min(self.sending.0 + 1)];
        let has_sent = self.sending > (self.answered, 0);
        let breaks =
            requested.iter().position(|exchange| has_sent && may_break(exchange.truncation, context));
        if !was_damaged && !context.draining && !context.is_short_of_memory && breaks.is_none() {
            return Err(self.failure_message(why));
        }
        // After a response that breaks off, the server closes with later requests unread, which also counts as damage:
        // if this client still pipelined, it could retry for ever.
        let is_certain = breaks == Some(0) && requested[0].truncation == ResponseTruncation::Broken;
        if is_certain || (breaks.is_some() && !was_damaged) {
            self.avoids_pipelining = true;
        }
        if breaks == Some(0) && !was_damaged && !context.draining {
            // The received bytes are a valid beginning; a retry would bring no more.
            self.answered += 1;
            context.broken += 1;
        }
        self.peer = None;
        context.retries += 1;
        if context.draining {
            self.answered = self.plan.len();
        } else {
            self.pause(context, 50);
        }
        Ok(ClientProgress::Wait)
    }

    fn pause(&mut self, context: &mut HttpClientContext<'_>, longest_ms: u64) {
        let span = context.random.between(1, longest_ms * 1_000_000);
        self.wake_at = Some(context.now.after(Duration::from_nanos(span)));
    }

    pub(super) fn failure_message(&self, what: &str) -> String {
        let (style, number) = (self.style, self.answered);
        let of = self.plan.len();
        let requested = self.plan.get(number).map_or(&[][..], |exchange| &exchange.request);
        let requested = String::from_utf8_lossy(&requested[..requested.len().min(300)]).into_owned();
        let got = String::from_utf8_lossy(&self.inbox[..self.inbox.len().min(500)]).into_owned();
        format!(
            "{style:?} client, exchange {number} of {of}: {what}\n  sent:  {requested:?}\n  got:   {got:?}"
        )
    }
}

/// Whether a response with this fate may be cut short.
fn may_break(truncation: ResponseTruncation, context: &HttpClientContext<'_>) -> bool {
    match truncation {
        ResponseTruncation::Whole => false,
        ResponseTruncation::Long => context.is_short_of_memory,
        ResponseTruncation::Streamed => context.is_short_of_memory || context.has_workers,
        ResponseTruncation::Broken => true,
    }
}

/// Most staleness of a date in a response: the server's calendar interval.
const DATE_STALE_MAX: Duration = Duration::from_millis(100);

/// Acceptable dates of a response made between two points in time.
fn dates(from: Time, to: Time) -> Vec<[u8; 29]> {
    let from = Time::ZERO.after(from.since(Time::ZERO.after(DATE_STALE_MAX)));
    let second = |time: Time| CALENDAR_START + time.as_nanos() / 1_000_000_000;
    (second(from)..=second(to))
        .map(|second| *stilling_wire::http1::Date::from_unix_seconds(second).as_bytes())
        .collect()
}
