//! State shared by the connections of one shard: a part for each protocol, and the mail for all of them.

mod drain;
mod session;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::driver::{Datagram, Destination};
use stilling_engine::{
    DatagramIo, DatagramPath, Detached, PassedDatagram, Recipient, Service, ShardControl, Token,
};
use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_workers::{JobCompletion, JobSubmitter};

use self::drain::{ShardDrain, UnfinishedRequests};
use self::session::{MailKind, SessionKind};
use super::hub_turn::{next_hub_mail, turn_hub};
use crate::coap::limits::HANDED_EXCHANGES_SIZE_MAX;
use crate::coap::{
    CoapCall, CoapCounters, CoapEndpoint, CoapSettings, CoapShard, ExchangeHandover, ForwardingPool,
    HubBridge, UnprovenPeers,
};
use crate::http::{
    HttpConfig, HttpContext, HttpCounters, HttpEndpoint, HttpScope, HttpSession, HttpShard, JobOutcome,
};
use crate::hub::{HubHandle, random_number};
use crate::lifecycle::{DatagramReader, Lifecycle};
use crate::nats::{NatsContext, NatsSession, NatsShard};
use crate::overview::Overview;
use crate::packet_log::PacketCapture;
use crate::protocol::{CustomConnection, CustomContext, CustomProtocol};
use crate::sse::SseContext;
use crate::syslog::{SyslogContext, SyslogSession, SyslogShard, SyslogTransport};
use crate::upstream::simulated::SimulatedPool;
use crate::upstream::{
    ClientMessage, ConnectTarget, PoolIndex, RequestId, UpstreamConnection, UpstreamContext,
    UpstreamDelivery, UpstreamHandle, UpstreamPools,
};
use crate::websocket::{WebSocketContext, WebSocketShard};

pub use self::session::{ShardMail, ShardSession};

/// The protocol of a listener or datagram socket.
#[derive(Clone)]
pub enum Endpoint {
    /// HTTP.
    Http(HttpEndpoint),
    /// The NATS client protocol.
    Nats,
    /// Syslog.
    Syslog(SyslogTransport),
    /// CoAP over UDP.
    Coap(CoapEndpoint),
    /// A protocol of the embedding program.
    Custom(Arc<dyn CustomProtocol>),
}

/// A shard's access to the hub, with the shard's state of the protocols that need a hub.
pub struct ShardHub {
    pub(crate) hub: HubHandle,
    pub(crate) nats: NatsShard,
    pub(crate) syslog: SyslogShard,
}

/// State shared by the connections of one shard.
pub struct ShardService {
    /// The protocol of each listener and datagram socket, in the order in which they were added to the shard.
    endpoints: Vec<Endpoint>,
    http: HttpShard,
    nats: NatsShard,
    syslog: SyslogShard,
    websocket: WebSocketShard,
    /// Only if the shard has a socket for CoAP.
    coap: Option<Box<CoapShard>>,
    hub_bridge: HubBridge,
    pub(super) hub: Option<Box<HubHandle>>,
    /// There was a hub, which a successor has taken over.
    hub_handed_over: bool,
    /// `None` without worker processes.
    upstream: Option<Box<UpstreamPools>>,
    overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    drain: ShardDrain,
    /// Dropped when the shard has stopped receiving datagrams.
    datagram_reader: Option<DatagramReader>,
    exchanges: Arc<ExchangeHandover>,
    /// Identify listeners and datagram sockets for a predecessor and a successor.
    socket_ids: Vec<u64>,
    /// `None` without a packet log.
    packets: Option<PacketCapture>,
    /// The sender of the last mail.
    last_mail_source: u8,
}

/// Senders of mail for the sessions of a shard: worker processes, the hub, worker threads.
const MAIL_SOURCES: u8 = 3;

impl ShardService {
    /// The service of one shard.
    pub fn new(
        endpoints: Vec<Endpoint>,
        http: HttpConfig,
        submitter: JobSubmitter<JobOutcome>,
        counters: Arc<HttpCounters>,
        overview: Arc<Overview>,
        lifecycle: Arc<Lifecycle>,
    ) -> Self {
        let drain = ShardDrain::new(http.timeouts.drain);
        let (http_overview, http_lifecycle) = (Arc::clone(&overview), Arc::clone(&lifecycle));
        ShardService {
            endpoints,
            http: HttpShard::new(http, submitter, counters, http_overview, http_lifecycle),
            nats: NatsShard::default(),
            syslog: SyslogShard::default(),
            websocket: WebSocketShard::default(),
            coap: None,
            hub_bridge: HubBridge::default(),
            hub: None,
            hub_handed_over: false,
            upstream: None,
            overview,
            lifecycle,
            drain,
            datagram_reader: None,
            exchanges: Arc::default(),
            socket_ids: Vec::new(),
            packets: None,
            last_mail_source: 0,
        }
    }

    /// Adds access to a hub.
    pub fn with_hub(self, hub: Option<ShardHub>) -> Self {
        let Some(ShardHub { hub, nats, syslog }) = hub else { return self };
        ShardService { hub: Some(Box::new(hub)), nats, syslog, ..self }
    }

    /// Sets the addresses of all listeners of the shard, in order, as INFO reports them to NATS clients.
    pub(crate) fn with_addresses(mut self, addresses: Vec<SocketAddr>) -> Self {
        if let Some(packets) = &mut self.packets {
            packets.set_addresses(addresses.clone());
        }
        self.nats.set_addresses(addresses);
        self
    }

    pub(crate) fn with_upstream(self, pools: Option<UpstreamPools>) -> Self {
        ShardService { upstream: pools.map(Box::new), ..self }
    }

    /// Adds the CoAP endpoint, if the shard has a socket for it.
    pub(crate) fn with_coap(
        mut self,
        counters: Arc<CoapCounters>,
        settings: CoapSettings,
        now: Time,
    ) -> Self {
        if self.endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Coap(_))) {
            let key = HashKey(random_number(), random_number());
            let pools = self.overview.apps.iter().map(|app| ForwardingPool {
                slots: app.config().slots(),
                has_affinity: app.config().affinity,
            });
            let clock_offset = self.lifecycle.unix_nanos(now).as_nanos().saturating_sub(now.as_nanos());
            let coap = CoapShard::new(counters, key, now)
                .with_settings(settings, now)
                .with_clock_offset(Duration::from_nanos(clock_offset));
            self.coap = Some(Box::new(coap.with_pools(self.http.app_routes().clone(), pools, now)));
        }
        self
    }

    /// Adds a CoAP endpoint with a pool, for simulations: its message ids and tables follow from `seed`.
    pub fn with_simulated_coap(
        self,
        counters: Arc<CoapCounters>,
        unproven: UnprovenPeers,
        pool: SimulatedPool,
        (seed, now): (u64, Time),
    ) -> Self {
        let SimulatedPool { pools, routes, slots } = pool;
        let settings = CoapSettings { unproven, ..CoapSettings::default() };
        let coap = CoapShard::new(counters, HashKey(seed, !seed), now).with_settings(settings, now);
        let pool = ForwardingPool { slots, has_affinity: false };
        let coap = Some(Box::new(coap.with_pools(routes, std::iter::once(pool), now)));
        ShardService { coap, ..self.with_upstream(Some(pools)) }
    }

    /// Adds the shard's part of the packet log.
    pub(crate) fn with_packets(self, packets: Option<PacketCapture>) -> Self {
        ShardService { packets, ..self }
    }

    /// Makes a successor wait until the shard has stopped receiving datagrams.
    pub(crate) fn with_datagram_reader(self, datagram_reader: Option<DatagramReader>) -> Self {
        ShardService { datagram_reader, ..self }
    }

    /// Sets the numbers that identify the shard's listeners and datagram sockets for a predecessor and a successor, in
    /// order, and the way of exchanges between them.
    pub(crate) fn with_exchange_handover(
        self,
        exchanges: Arc<ExchangeHandover>,
        socket_ids: Vec<u64>,
    ) -> Self {
        ShardService { exchanges, socket_ids, ..self }
    }

    /// Before a datagram is received from the predecessor's sockets: restores their exchanges. Called once.
    pub(crate) fn restore_exchanges(&mut self, now: Time) {
        let ShardService { coap: Some(coap), exchanges, socket_ids, .. } = self else { return };
        coap.restore_exchanges(now, exchanges.incoming(), |id| {
            socket_ids.iter().position(|known| *known == id).map(|number| number as u32)
        });
    }

    /// The datagram sockets have stopped receiving: a successor may go on, with the exchanges of this shard.
    fn release_datagrams(&mut self, now: Time) {
        let Some(reader) = self.datagram_reader.take() else { return };
        if let Some(coap) = self.coap.as_ref().filter(|_| self.lifecycle.is_handed_over()) {
            let share = HANDED_EXCHANGES_SIZE_MAX / self.overview.engines.len().max(1);
            let id = |socket: u32| self.socket_ids.get(socket as usize).copied();
            self.exchanges.add_outgoing(&coap.handed_exchanges(now, share, id));
        }
        drop(reader);
    }

    /// Releases the hub as the drop of the shard does, for simulations that keep stopped shards.
    pub fn leave_hub(&mut self) {
        self.hub = None;
    }

    /// Keeps another descriptor of a datagram socket, to read the rest of its receive queue at the end.
    pub(crate) fn keep_datagram_socket(&mut self, transport: SyslogTransport, socket: OwnedFd) {
        match transport {
            SyslogTransport::Unix => self.syslog.keep_unix_socket(socket),
            SyslogTransport::Udp => self.syslog.keep_udp_socket(socket),
            SyslogTransport::Tcp => {}
        }
    }

    pub(crate) fn delegate(&mut self, detached: Detached<OwnedFd, ShardSession>) {
        let Detached { session, socket, unread } = detached;
        if let Some(session) = session.into_http() {
            self.http.delegate(Detached { session, socket, unread });
        }
    }

    /// The context of HTTP sessions.
    #[inline]
    pub(super) fn http(&mut self) -> HttpContext<'_> {
        HttpContext {
            http: &mut self.http,
            hub: self.hub.as_deref_mut(),
            hub_handed_over: self.hub_handed_over,
            upstream: self.upstream.as_deref_mut().map(UpstreamHandle::new),
        }
    }

    #[inline]
    pub(super) fn nats(&mut self) -> NatsContext<'_> {
        NatsContext { nats: &mut self.nats, hub: self.hub.as_deref_mut(), lifecycle: &self.lifecycle }
    }

    pub(super) fn syslog(&mut self) -> SyslogContext<'_> {
        SyslogContext { syslog: &mut self.syslog, hub: self.hub.as_deref_mut(), lifecycle: &self.lifecycle }
    }

    pub(super) fn sse(&mut self) -> SseContext<'_> {
        SseContext { hub: self.hub.as_deref_mut(), lifecycle: &self.lifecycle }
    }

    pub(super) fn websocket(&mut self) -> WebSocketContext<'_> {
        WebSocketContext {
            hub: self.hub.as_deref_mut(),
            lifecycle: &self.lifecycle,
            websocket: &mut self.websocket,
        }
    }

    pub(super) fn custom(&mut self) -> CustomContext<'_> {
        CustomContext::new(self.hub.as_deref_mut(), &self.lifecycle, self.http.idle_timeout())
    }

    pub(super) fn upstream(&mut self, pool: PoolIndex) -> UpstreamContext<'_> {
        let pools = self.upstream.as_deref_mut().expect("a connection to a process is made by a pool");
        UpstreamContext {
            pool: pools.get_mut(pool),
            abandoned_requests: &self.http.counters.app_requests_abandoned,
            is_draining: self.lifecycle.is_draining(),
        }
    }

    fn poll_upstream_mail(&mut self) -> Option<(Recipient, MailKind)> {
        Some(match self.upstream.as_mut()?.next_delivery()? {
            UpstreamDelivery::Event(client, id, event) => (client, MailKind::UpstreamEvent(id, event)),
            UpstreamDelivery::Command(connection, command) => {
                (connection.into(), MailKind::UpstreamCommand(command))
            }
        })
    }

    fn poll_hub_mail(&mut self) -> Option<(Recipient, MailKind)> {
        let hub = self.hub.as_mut()?;
        loop {
            let (token, mail) = next_hub_mail(hub, &mut self.syslog)?;
            if !HubBridge::is_own(token) {
                return Some((token.into(), MailKind::Hub(mail)));
            }
            // It is no connection. What it causes leaves at the end of the turn.
            if let Some(coap) = &mut self.coap {
                self.hub_bridge.receive(token, mail, hub, coap);
            }
        }
    }

    fn poll_worker_mail(&mut self) -> Option<(Recipient, MailKind)> {
        let JobCompletion { ticket, position, outcome } = self.http.submitter.next_result()?;
        Some((Token::from_bits(ticket).into(), MailKind::Job(position, outcome)))
    }

    /// Drops a reply that the protocol of its datagram socket does not accept, and abandons its request, so that it
    /// does not hold the process's slot.
    fn drop_reply(&mut self, id: RequestId) {
        self.http.counters.app_replies_dropped.add(1);
        if let Some(pools) = self.upstream.as_deref_mut() {
            UpstreamHandle::new(pools).abandon(id, false);
        }
    }

    /// The hub's part of the end of a turn. Returns when to call again at the latest.
    fn turn_hub(&mut self, now: Time) -> Option<Time> {
        let hub = self.hub.as_mut()?;
        let lifecycle = &self.lifecycle;
        hub.port.set_gathering(!lifecycle.hub_has_started() && !lifecycle.hub_is_abandoned());
        turn_hub(hub, &mut self.syslog, || lifecycle.both_clocks(now)).map(|span| now.after(span))
    }

    /// The worker processes' part of the end of a turn: opens connections to them. Returns when to call again at the
    /// latest.
    fn turn_upstream(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        let pools = self.upstream.as_mut()?;
        let again = pools.turn(control.now);
        for (target, attempt) in pools.connects() {
            let session = ShardSession(SessionKind::Upstream(UpstreamConnection::new(attempt)));
            match target {
                ConnectTarget::Path(path) => control.connect(Destination::Unix(path), session),
                ConnectTarget::Socket(socket) => control.connect_open(socket, session),
            }
        }
        again
    }

    /// Makes the calls of the CoAP endpoint.
    fn run_coap_calls(&mut self, now: Time) {
        let Some(coap) = self.coap.as_mut() else { return };
        while let Some(call) = coap.next_call() {
            if let CoapCall::Hub(call) = call {
                self.hub_bridge.call(call, self.hub.as_deref_mut(), coap);
                continue;
            }
            let Some(mut upstream) = self.upstream.as_deref_mut().map(UpstreamHandle::new) else {
                // Without pools no path has one.
                continue;
            };
            match call {
                CoapCall::Forward { exchange, path, request } => {
                    let mut submitted = upstream.submit(path.into(), request, now);
                    if submitted.is_err()
                        && let Some((oldest, queued)) =
                            coap.oldest_queued(exchange, |id| upstream.is_queued(id))
                    {
                        upstream.abandon(queued, true);
                        coap.refused(oldest, now);
                        submitted = submitted.or_else(|request| upstream.submit(path.into(), request, now));
                    }
                    match submitted {
                        Ok(id) => coap.submitted(exchange, id),
                        Err(_) => coap.refused(exchange, now),
                    }
                }
                CoapCall::Report { pool, line } => upstream.print_line(pool, line),
                CoapCall::Continue(id) => upstream.send(id, ClientMessage::PieceWanted),
                CoapCall::Abandon { request, is_late } => upstream.abandon(request, is_late),
                CoapCall::Hub(_) => {}
            }
        }
    }

    /// Sends CoAP messages that are no replies. Returns when to call again at the latest.
    fn turn_coap(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        let coap = self.coap.as_mut()?;
        while let Some((path, message)) = coap.poll_transmit(control.now) {
            if control.send_datagram(&path, message).is_err() {
                return Some(control.now);
            }
            coap.transmitted();
        }
        coap.publish_metrics(control.now);
        self.run_coap_calls(control.now);
        self.coap.as_ref()?.next_deadline(control.now)
    }

    /// Continues the drain, if there is one. Returns when to call again at the latest.
    fn turn_drain(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        let ShardService { drain, hub, syslog, upstream, coap, lifecycle, datagram_reader, .. } = self;
        let unfinished = UnfinishedRequests {
            abandoned: upstream.as_ref().map_or(0, |pools| pools.abandoned_requests_open()),
            coap_pending: coap.as_ref().map_or(0, |coap| coap.pending()),
            has_datagram_sockets: datagram_reader.is_some(),
        };
        let had_hub = hub.is_some();
        let again = drain.turn(hub, syslog, unfinished, lifecycle, control);
        if let Some(coap) = coap.as_mut().filter(|_| drain.stops_datagrams()) {
            coap.stop_receiving();
        }
        if self.drain.datagrams_stopped() {
            self.release_datagrams(control.now);
        }
        if had_hub && self.hub.is_none() {
            self.hub_handed_over = true;
            self.coap.iter_mut().for_each(|coap| self.hub_bridge.hub_left(coap));
        }
        again
    }
}

impl Service for ShardService {
    type Session = ShardSession;
    type Mail = ShardMail;

    fn accepted(&mut self, listener: u32) -> ShardSession {
        self.accepted_from(listener, || None)
    }

    fn accepted_from(&mut self, listener: u32, peer: impl FnOnce() -> Option<IpAddr>) -> ShardSession {
        ShardSession(match &self.endpoints[listener as usize] {
            &Endpoint::Http(endpoint) => {
                let mut session = HttpSession::new(endpoint, listener);
                if self.http.needs_peer_addresses() || endpoint.scope == HttpScope::NatsWebSocket {
                    session.set_peer(peer());
                }
                SessionKind::Http(session)
            }
            Endpoint::Nats => SessionKind::Nats(NatsSession::new(listener, peer())),
            // The latter has no connections.
            Endpoint::Syslog(_) | Endpoint::Coap(_) => SessionKind::Syslog(SyslogSession::new(peer())),
            Endpoint::Custom(protocol) => {
                SessionKind::Custom(CustomConnection::accept(protocol.as_ref(), peer()))
            }
        })
    }

    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        if let (&Endpoint::Coap(endpoint), Some(coap)) =
            (&self.endpoints[io.socket() as usize], &mut self.coap)
        {
            let (now, path) = (io.now(), io.path());
            if let Some(reply) = coap.receive(now, &path, datagram.payload, datagram.truncated, endpoint) {
                // One reply always fits.
                let _ = io.reply(reply);
            }
            self.run_coap_calls(now);
            return;
        }
        let source = match self.endpoints[io.socket() as usize] {
            Endpoint::Syslog(SyslogTransport::Unix) => None,
            _ => Some(datagram.from.ip()),
        };
        let (lifecycle, now) = (&self.lifecycle, io.now());
        if let Some(hub) = &mut self.hub {
            self.syslog.receive(&mut hub.port, datagram, source, || lifecycle.unix_nanos(now));
        }
    }

    fn datagram_passed(&mut self, now: Time, path: &DatagramPath, datagram: &PassedDatagram<'_>) {
        let is_unix = matches!(
            self.endpoints.get(path.socket as usize),
            Some(Endpoint::Syslog(SyslogTransport::Unix)) | None
        );
        if let Some(packets) = self.packets.as_mut().filter(|_| !is_unix) {
            packets.record(self.lifecycle.unix_nanos(now).as_nanos(), path, datagram);
        }
    }

    /// Passes mail for a peer to the protocol of the socket that received the peer's datagram.
    fn delivered(&mut self, mail: ShardMail, io: &mut DatagramIo<'_>) {
        match (&self.endpoints[io.socket() as usize], mail.0) {
            (Endpoint::Coap(_), MailKind::UpstreamEvent(id, event)) => match &mut self.coap {
                Some(coap) => {
                    coap.worker_event(id, event, io.now());
                    self.run_coap_calls(io.now());
                }
                None => self.drop_reply(id),
            },
            // These submit no requests for datagrams.
            (
                Endpoint::Http(_) | Endpoint::Nats | Endpoint::Syslog(_) | Endpoint::Custom(_),
                MailKind::UpstreamEvent(id, _),
            ) => self.drop_reply(id),
            // For connections only.
            (_, MailKind::Job(..) | MailKind::UpstreamCommand(_) | MailKind::Hub(_)) => {}
        }
    }

    fn next_mail(&mut self) -> Option<(Recipient, ShardMail)> {
        // Round robin: each sender may have more mail than a turn can deliver.
        for _ in 0..MAIL_SOURCES {
            self.last_mail_source = (self.last_mail_source + 1) % MAIL_SOURCES;
            let mail = match self.last_mail_source {
                0 => self.poll_upstream_mail(),
                1 => self.poll_hub_mail(),
                _ => self.poll_worker_mail(),
            };
            if let Some((recipient, mail)) = mail {
                return Some((recipient, ShardMail(mail)));
            }
        }
        None
    }

    fn has_mail(&self) -> bool {
        self.http.submitter.has_result()
            || self.upstream.as_ref().is_some_and(|pools| pools.has_work())
            || self.hub.as_ref().is_some_and(|hub| hub.has_mail())
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        self.http.submitter.publish();
        let now = control.now;
        let hub = self.turn_hub(now);
        let upstream = self.turn_upstream(control);
        let coap = self.turn_coap(control);
        let drain = self.turn_drain(control);
        let packets = self.packets.as_mut().and_then(|packets| packets.turn(now));
        let sample = self.overview.rates.turn(now, || self.overview.totals());
        [hub, upstream, coap, drain, packets, sample].into_iter().flatten().min()
    }
}
