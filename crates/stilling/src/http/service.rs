//! What the HTTP sessions of one shard share: limits, the lane to the workers, the date, counters.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::driver::{Datagram, Destination};
use stilling_engine::{CloseReason, Control, DatagramIo, Io, Service, Session, Token};
use stilling_hub::Now;
use stilling_ring::Time;
use stilling_wire::http1::{Date, Limits};
use stilling_wire::nats::server_operation_len;
use stilling_workers::{Completed, Lane, Outcome, Position};

use super::counters::HttpCounters;
use super::heads::{HeadKey, Heads};
use super::response::Response;
use super::route::{Door, Serves, Way};
use super::routes::Routes;
use super::session::HttpSession;
use super::stream::Stream;
use crate::app::limits::{SPARE_BUFFERS_MAX, SPARE_SIZE_MAX};
use crate::app::{AppSession, Desk, ExchangeId, Mail as AppMail, Said};
use crate::hub::limits::{DRAIN_QUIET, DRAIN_READ_MAX, PART_LOOK};
use crate::hub::{HubDesk, HubMail};
use crate::lifecycle::{Lifecycle, Phase, Stage};
use crate::nats::NatsSession;
use crate::overview::Overview;
use crate::syslog::SyslogSession;

/// How long a client may take for what; see `docs/limits.md`.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// From the connection to its first byte.
    pub first_byte: Duration,
    /// From the first byte of a head to its last: for the whole head, however it trickles in.
    pub head: Duration,
    /// Before the rate of a body counts.
    pub body_grace: Duration,
    /// The least rate of a body after that, in bytes per second; also of a client that takes the long answer of a worker
    /// process, while it is waited for. A client that a process waits for has to keep to
    /// [`SLOT_RATE_MIN`](crate::app::limits::SLOT_RATE_MIN), if that is more.
    pub body_rate_min: u64,
    /// Between two requests of a kept connection.
    pub idle: Duration,
    /// For a job to be taken and done. Then 503, and the connection closes.
    pub work: Duration,
    /// For requests in flight when the server drains.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            first_byte: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body_grace: Duration::from_secs(10),
            body_rate_min: 1024,
            idle: Duration::from_secs(60),
            work: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}

/// How a shard's HTTP service behaves.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// What the decoder accepts.
    pub limits: Limits,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// How long slow work takes.
    pub slow_duration: Duration,
    /// Whether there are workers; without, slow work is answered like fast.
    pub has_workers: bool,
    /// How long a job may wait for a worker; then 503.
    pub queue_age_max: Duration,
    /// What is answered at each listener.
    pub doors: Vec<Door>,
    /// The address of each listener, as INFO names it to clients of NATS; it may be shorter than `doors`.
    pub addresses: Vec<SocketAddr>,
    /// What is answered beside the server's own pages.
    pub routes: Arc<Routes>,
    /// How long a client that a worker serves may take none of its bytes.
    pub write_timeout: Duration,
    /// Bytes of requests that may wait for their bodies or for workers, or be with workers; then 503.
    pub requests_held_max: usize,
    /// Bytes of handlers' answers that may wait for their clients; then 503.
    pub answers_held_max: usize,
    /// All but the server's own pages is answered by worker processes.
    pub has_app: bool,
}

/// How far the date may lag behind, so that not every request asks for the time.
const DATE_STALE_MAX: Duration = Duration::from_millis(50);

/// What a worker returns.
#[derive(Debug)]
pub struct JobOutcome(pub(super) Work);

/// What a worker has done.
#[derive(Debug)]
pub(super) enum Work {
    /// The demo routes' pretended work.
    Demo,
    /// A handler's answer.
    Answer(Box<Response>),
    /// The next piece of an answer.
    Piece(Box<Stream>),
    /// A connection was served that the shard does not have any more.
    Delegated,
}

/// The shared part of one shard's HTTP sessions.
pub struct HttpService {
    pub(super) config: HttpConfig,
    pub(super) lane: Lane<JobOutcome>,
    /// The way to the worker processes, if there are any.
    pub(crate) app: Option<Box<Desk>>,
    /// Connections to worker processes over which nobody waits for anything.
    app_leftovers_open: u32,
    pub(super) counters: Arc<HttpCounters>,
    pub(super) overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    /// When the drain that has begun here ends.
    drain_deadline: Option<Time>,
    /// Whoever had not finished by then has been cut off.
    cut_off: bool,
    date: Date,
    /// The second for which `date` was made.
    second: u64,
    /// When the calendar is to be asked again.
    date_until: Time,
    heads: Heads,
    /// Memory for short texts, kept so that nobody has to allocate any.
    pub(super) scratch: Vec<u8>,
    /// Buffers for requests to worker processes and their answers.
    spare: Vec<Vec<u8>>,
    /// The way to the hub, if there is one.
    pub(crate) hub: Option<Box<HubDesk>>,
    /// There was a hub, which a successor has now.
    pub(super) has_left_hub: bool,
    /// When the drain began here.
    drain_began: Time,
    /// Nothing publishes any more over connections of this shard.
    has_parted: bool,
    /// The datagram sockets are being closed.
    ends_datagrams: bool,
    /// Whose mail was handed out last.
    sender: u8,
}

impl HttpService {
    /// The service of one shard.
    pub fn new(
        config: HttpConfig,
        lane: Lane<JobOutcome>,
        counters: Arc<HttpCounters>,
        overview: Arc<Overview>,
        lifecycle: Arc<Lifecycle>,
    ) -> Self {
        let second = lifecycle.unix_seconds(Time::ZERO);
        let date = Date::from_unix_seconds(second);
        HttpService {
            config,
            lane,
            app: None,
            app_leftovers_open: 0,
            counters,
            overview,
            lifecycle,
            drain_deadline: None,
            cut_off: false,
            date,
            second,
            date_until: Time::ZERO,
            heads: Heads::new(),
            scratch: Vec::with_capacity(256),
            spare: Vec::new(),
            hub: None,
            has_left_hub: false,
            drain_began: Time::ZERO,
            has_parted: false,
            ends_datagrams: false,
            sender: 0,
        }
    }

    /// Has messages dealt with by the hub.
    pub fn with_hub(self, hub: Option<HubDesk>) -> Self {
        HttpService { hub: hub.map(Box::new), ..self }
    }

    /// Leaves the hub, as the end of the shard does: for worlds in which shards that have stopped are kept.
    pub fn leave_hub(&mut self) {
        self.hub = None;
    }

    /// Has requests answered by worker processes.
    pub(crate) fn with_app(self, app: Option<Desk>) -> Self {
        HttpService { app: app.map(Box::new), ..self }
    }

    /// How long a process may take.
    pub(crate) fn app_timeout(&self) -> Duration {
        self.app.as_ref().map_or(Duration::ZERO, |app| app.timeout())
    }

    /// Nobody waits for the answer to a request that a process may work on still.
    pub(crate) fn app_leftover_opened(&mut self) {
        self.counters.app_leftovers.add(1);
        self.app_leftovers_open += 1;
    }

    /// Its connection is closed.
    pub(crate) fn app_leftover_closed(&mut self) {
        self.app_leftovers_open -= 1;
    }

    /// Says something about its exchange to a client.
    pub(crate) fn tell_client(&mut self, client: Token, id: ExchangeId, said: Said) {
        if let Some(app) = &mut self.app {
            app.tell_client(client, id, said);
        }
    }

    /// A buffer that may have been used before.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a buffer for the next who needs one.
    pub(super) fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX && (1..=SPARE_SIZE_MAX).contains(&buffer.capacity()) {
            self.spare.push(buffer);
        }
    }

    /// Whether the end has been asked for. Answers say so at once, also those of a shard that has not
    /// begun its drain yet.
    pub(crate) fn is_draining(&self) -> bool {
        !self.is_ready()
    }

    /// The date now.
    pub(super) fn date(&mut self, now: Time) -> Date {
        self.refresh(now);
        self.date
    }

    /// An encoded head with the date now; `None`: it cannot be kept.
    pub(super) fn head(&mut self, now: Time, key: &HeadKey) -> Option<&[u8]> {
        self.refresh(now);
        self.heads.get(key, self.second, &self.date)
    }

    /// Whether the hub takes requests now; it does not while a predecessor still has the streams.
    pub(crate) fn hub_has_begun(&self) -> bool {
        self.lifecycle.hub_has_begun()
    }

    /// Whether the hub never begins, because this server ends without having become the server.
    pub(crate) fn hub_is_abandoned(&self) -> bool {
        self.lifecycle.hub_is_abandoned()
    }

    /// Whether the server is ready for more work.
    pub(super) fn is_ready(&self) -> bool {
        self.lifecycle.phase() == Phase::Running
    }

    fn refresh(&mut self, now: Time) {
        if now < self.date_until {
            return;
        }
        self.date_until = now.after(DATE_STALE_MAX);
        let second = self.lifecycle.unix_seconds(now);
        if second != self.second {
            self.second = second;
            self.date = Date::from_unix_seconds(second);
        }
    }

    /// Follows the process through its life: running, draining, gone.
    fn follow_lifecycle(&mut self, control: &mut Control<'_, Self>) -> Option<Time> {
        let phase = self.lifecycle.phase();
        if phase == Phase::Running {
            return None;
        }
        let Some(deadline) = self.drain_deadline else {
            self.drain_deadline = Some(control.now.after(self.config.timeouts.drain));
            self.drain_began = control.now;
            if self.lifecycle.is_alone() {
                control.empty_and_close_listeners();
            } else {
                control.stop_accepting();
            }
            control.drain();
            // The listeners' last connections come in with the next turn.
            return Some(control.now);
        };
        let again = self.part_with_hub(control, phase == Phase::Stopping || control.now >= deadline);
        let hub_is_done = self.hub.as_ref().is_none_or(|hub| hub.is_done());
        if control.is_empty() && (hub_is_done || phase == Phase::Stopping) {
            control.stop();
            return None;
        }
        // Nobody waits for what is left over, so the end does not either.
        if self.app_leftovers_open > 0 && control.has_at_most(self.app_leftovers_open) {
            if !std::mem::replace(&mut self.cut_off, true) {
                control.abort_all(CloseReason::Drained);
            }
            return None;
        }
        if control.now >= deadline || phase == Phase::Stopping {
            if !std::mem::replace(&mut self.cut_off, true) {
                control.abort_all(CloseReason::DrainTimeout);
            }
            return again;
        }
        again.into_iter().chain([deadline]).min()
    }

    /// Ends what publishes, and then the way to the hub, so that the streams and the datagram sockets are a successor's long
    /// before the last answer has left. Returns when to look again. Without a successor only the datagram sockets end here, with
    /// the listeners: the next server binds them anew.
    fn part_with_hub(&mut self, control: &mut Control<'_, Self>, is_late: bool) -> Option<Time> {
        let now = control.now;
        let is_handed_over = self.lifecycle.is_handed_over();
        let hub = self.hub.as_deref_mut()?;
        let quiet_at = hub.published.max(self.drain_began).after(DRAIN_QUIET);
        let end_at = self.drain_began.after(DRAIN_READ_MAX);
        let is_busy = is_handed_over && (hub.streaming > 0 || hub.publications > 0);
        // A request may be on its way to a connection that was accepted just now.
        let is_quiet = control.is_empty_but_for_datagrams() || now >= quiet_at.min(end_at);
        if !is_late && is_busy {
            // Connections leave the hub in calls of their own, some of them behind this one in a turn.
            return Some(now.after(DRAIN_QUIET));
        }
        if !is_late && is_handed_over && !is_quiet {
            return Some(quiet_at.min(end_at));
        }
        if is_handed_over {
            // Datagrams are read until all shards are so far: their sockets are read again when the streams are released.
            if !std::mem::replace(&mut self.has_parted, true) {
                self.lifecycle.shard_parted();
            }
            if !is_late && !self.lifecycle.all_have_parted() {
                return None;
            }
        }
        if !std::mem::replace(&mut self.ends_datagrams, true) {
            hub.end_unix_sockets();
            control.close_datagram_sockets();
            return Some(now);
        }
        if control.has_datagram_sockets() {
            return None;
        }
        let clock = &self.lifecycle;
        hub.read_unix_sockets(|| clock.unix_nanos(now));
        if clock.is_alone() && clock.has_reached(Stage::Released) {
            hub.read_udp_sockets(|| clock.unix_nanos(now));
        } else {
            // Another server reads the queues.
            hub.udp_sockets.clear();
        }
        if !is_handed_over {
            return None;
        }
        if !hub.has_handed_over() && !is_late {
            return Some(now.after(PART_LOOK));
        }
        self.has_left_hub = true;
        let at = Now { unix_ns: clock.unix_nanos(now), steady_ns: now.as_nanos() };
        if let Some(hub) = self.hub.take() {
            hub.leave(at);
        }
        Some(now)
    }
}

/// What a connection of the shard hears from elsewhere.
pub enum Mail {
    /// What a worker has made of the job that was queued at that position.
    Job(Position, Outcome<JobOutcome>),
    /// What a worker process, or its client, has said.
    App(AppNews),
    /// What the hub has to say.
    Hub(HubNews),
}

/// What the hub says to a connection of the shard.
pub struct HubNews(pub(super) HubMail);

/// What connections of the shard say to each other.
pub struct AppNews(pub(super) AppMail);

/// The session of a connection: with a client, or with a worker process.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are clients'")]
pub enum ShardSession {
    /// With a client.
    Client(HttpSession),
    /// With a worker process.
    App(AppConnection),
    /// With a client that speaks NATS.
    Nats(NatsConnection),
    /// With a sender of syslog.
    Syslog(SyslogConnection),
}

// Senders of messages cost an idle client of HTTP nothing, and are accepted without an allocation of their own.
const _: () =
    assert!(size_of::<ShardSession>() == size_of::<HttpSession>(), "a session is larger than HTTP's");

/// The session of a sender of syslog.
#[derive(Debug)]
pub struct SyslogConnection(SyslogSession);

/// The session of a client that speaks NATS.
#[derive(Debug)]
pub struct NatsConnection(NatsSession);

/// The session of a connection to a worker process.
#[derive(Debug)]
pub struct AppConnection(Box<AppSession>);

impl ShardSession {
    /// The client's.
    pub(super) fn into_client(self) -> Option<HttpSession> {
        match self {
            ShardSession::Client(session) => Some(session),
            ShardSession::App(_) | ShardSession::Nats(_) | ShardSession::Syslog(_) => None,
        }
    }
}

macro_rules! either {
    ($session:expr, $name:ident($($argument:expr),*)) => {
        match $session {
            ShardSession::Client(session) => session.$name($($argument),*),
            ShardSession::App(AppConnection(session)) => session.$name($($argument),*),
            ShardSession::Nats(NatsConnection(session)) => session.$name($($argument),*),
            ShardSession::Syslog(SyslogConnection(session)) => session.$name($($argument),*),
        }
    };
}

impl Session for ShardSession {
    type Service = HttpService;

    fn opened(&mut self, io: &mut Io<'_, HttpService>) {
        either!(self, opened(io));
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_, HttpService>) -> usize {
        either!(self, received(bytes, io))
    }

    fn ended(&mut self, io: &mut Io<'_, HttpService>) {
        either!(self, ended(io));
    }

    fn flushed(&mut self, io: &mut Io<'_, HttpService>) {
        either!(self, flushed(io));
    }

    fn taken(&mut self, count: usize, io: &mut Io<'_, HttpService>) {
        if let ShardSession::Client(session) = self {
            session.taken(count, io);
        }
    }

    fn delivered(&mut self, mail: Mail, io: &mut Io<'_, HttpService>) {
        match (self, mail) {
            (ShardSession::Client(session), mail) => session.delivered(mail, io),
            (ShardSession::App(AppConnection(session)), Mail::App(AppNews(mail))) => {
                session.delivered(mail, io);
            }
            (ShardSession::Nats(NatsConnection(session)), Mail::Hub(HubNews(mail))) => {
                session.delivered(mail, io);
            }
            (ShardSession::Syslog(SyslogConnection(session)), Mail::Hub(HubNews(mail))) => {
                session.delivered(mail, io);
            }
            (ShardSession::App(_), Mail::Job(..) | Mail::Hub(_))
            | (ShardSession::Nats(_) | ShardSession::Syslog(_), Mail::Job(..) | Mail::App(_)) => {}
        }
    }

    fn deadline(&mut self, io: &mut Io<'_, HttpService>) {
        either!(self, deadline(io));
    }

    fn draining(&mut self, io: &mut Io<'_, HttpService>) {
        either!(self, draining(io));
    }

    fn refused(&mut self, error: &io::Error, _: &mut HttpService) {
        if let ShardSession::App(AppConnection(session)) = self {
            session.refused(error);
        }
    }

    fn unsendable(&mut self, nothing_sent: bool) -> bool {
        match self {
            ShardSession::Client(_) | ShardSession::Nats(_) | ShardSession::Syslog(_) => false,
            ShardSession::App(AppConnection(session)) => session.unsendable(nothing_sent),
        }
    }

    fn message_len(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            ShardSession::Nats(_) => server_operation_len(bytes),
            ShardSession::Client(_) | ShardSession::App(_) | ShardSession::Syslog(_) => None,
        }
    }

    fn slow_consumer(&mut self, service: &mut HttpService) -> &'static [u8] {
        match self {
            ShardSession::Nats(NatsConnection(session)) => session.slow_consumer(service),
            ShardSession::Client(_) | ShardSession::App(_) | ShardSession::Syslog(_) => b"",
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut HttpService) {
        either!(self, closed(reason, service));
    }
}

impl HttpService {
    fn next_of_app(&mut self) -> Option<(Token, Mail)> {
        let (token, mail) = self.app.as_mut()?.next_mail()?;
        Some((token, Mail::App(AppNews(mail))))
    }

    /// The address of a listener, if it is known.
    pub(crate) fn listener_address(&self, listener: u16) -> Option<SocketAddr> {
        self.config.addresses.get(usize::from(listener)).copied()
    }

    fn next_of_hub(&mut self) -> Option<(Token, Mail)> {
        let (token, mail) = self.hub.as_mut()?.next_mail()?;
        Some((token, Mail::Hub(HubNews(mail))))
    }

    fn next_of_workers(&mut self) -> Option<(Token, Mail)> {
        let Completed { ticket, position, outcome } = self.lane.next_result()?;
        Some((Token::from_bits(ticket), Mail::Job(position, outcome)))
    }
}

/// Who has mail for the sessions of a shard: worker processes, the hub, worker threads.
const SENDERS: u8 = 3;

impl Service for HttpService {
    type Session = ShardSession;
    type Mail = Mail;

    fn accepted(&mut self, listener: u32) -> ShardSession {
        self.accepted_from(listener, || None)
    }

    fn accepted_from(&mut self, listener: u32, peer: impl FnOnce() -> Option<IpAddr>) -> ShardSession {
        let door = self.config.doors[listener as usize];
        match door.serves {
            Serves::Nats => return ShardSession::Nats(NatsConnection(NatsSession::new(listener, peer()))),
            Serves::Syslog(_) => {
                return ShardSession::Syslog(SyslogConnection(SyslogSession::new(peer())));
            }
            Serves::Everything | Serves::Routes | Serves::Pages => {}
        }
        let mut session = HttpSession::new(door);
        if self.config.has_app || self.config.routes.wants_peers() {
            session.comes_from(peer());
        }
        ShardSession::Client(session)
    }

    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        let source = match self.config.doors[io.socket() as usize].serves {
            Serves::Syslog(Way::Unix) => None,
            _ => Some(datagram.from.ip()),
        };
        let (clock, now) = (&self.lifecycle, io.now());
        if let Some(hub) = &mut self.hub {
            hub.take_syslog_datagram(datagram, source, || clock.unix_nanos(now));
        }
    }

    fn next_mail(&mut self) -> Option<(Token, Mail)> {
        // One after the other: each may have more than a turn takes.
        for _ in 0..SENDERS {
            self.sender = (self.sender + 1) % SENDERS;
            let mail = match self.sender {
                0 => self.next_of_app(),
                1 => self.next_of_hub(),
                _ => self.next_of_workers(),
            };
            if mail.is_some() {
                return mail;
            }
        }
        None
    }

    fn has_mail(&self) -> bool {
        self.lane.has_result()
            || self.app.as_ref().is_some_and(|app| app.has_news())
            || self.hub.as_ref().is_some_and(|hub| hub.has_mail())
    }

    fn turn(&mut self, control: &mut Control<'_, Self>) -> Option<Time> {
        self.lane.publish();
        let (clock, now) = (&self.lifecycle, control.now);
        if let Some(hub) = &mut self.hub {
            hub.port.set_gathering(!clock.hub_has_begun() && !clock.hub_is_abandoned());
        }
        let hub = self
            .hub
            .as_mut()
            .and_then(|hub| hub.turn(|| Now { unix_ns: clock.unix_nanos(now), steady_ns: now.as_nanos() }));
        let hub = hub.map(|span| now.after(span));
        let app = self.app.as_mut().and_then(|app| {
            let again = app.turn(control.now);
            for (path, session) in app.dials() {
                control.connect(Destination::Unix(path), ShardSession::App(AppConnection(session)));
            }
            again
        });
        let lifecycle = self.follow_lifecycle(control);
        let sample = self.overview.rates.turn(now, || self.overview.totals());
        app.into_iter().chain(lifecycle).chain(hub).chain(sample).min()
    }
}
