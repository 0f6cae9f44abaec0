//! One shard's handle to the hub, with the hub itself on the shard that runs it.

use std::sync::Arc;
use std::time::Duration;

use stilling_engine::Token;
use stilling_engine::counters::Counter;
use stilling_hub::Now;
use stilling_ring::Time;
use stilling_wire::nats::NatsLimits;

use super::closing::HubCloser;
use super::lazy_journal::LazyJournal;
use super::limits::REMOVAL_INTERVAL;
use super::port::{HubMail, HubPort};
use super::runner::Runner;
use super::subscribe::StreamDirectory;
use crate::users::Users;

pub(crate) struct HubHandle {
    pub(crate) port: HubPort,
    pub(crate) users: Arc<Users>,
    pub(crate) streams: Arc<StreamDirectory>,
    /// Limits of a message and its subject.
    pub(crate) limits: NatsLimits,
    pub(crate) counters: Arc<HubHandleCounters>,
    /// The hub itself, on the shard that runs it.
    pub(crate) runner: Option<Runner<LazyJournal>>,
    pub(crate) shard: usize,
    /// Connections that may publish: NATS, WebSocket, syslog, custom protocols. Finished connections do not count.
    pub(crate) publisher_connections: u32,
    /// Publications by HTTP that wait for room or for their outcomes.
    pub(crate) pending_publications: u32,
    /// The same by CoAP.
    pub(crate) pending_coap_publications: u32,
    /// When the last bytes of a publication by HTTP arrived.
    pub(crate) last_publish_input: Time,
    closer: Option<HubCloser>,
}

/// Counters of one shard's sessions.
#[derive(Debug, Default)]
pub struct HubHandleCounters {
    /// Clients disconnected as slow consumers.
    pub slow_consumers: Counter,
    /// Clients refused: without valid credentials, or from an address that may not send syslog.
    pub unauthorized: Counter,
    /// NATS publications dropped because of an invalid subject or reply subject.
    pub publications_invalid: Counter,
    /// Bytes of memory for undecoded input of NATS clients over WebSocket.
    pub nats_undecoded: Counter,
    /// Publications by HTTP and CoAP refused because the hub had no room for too long.
    pub publications_shed: Counter,
    /// Publications by HTTP and CoAP without an outcome in time.
    pub publications_unanswered: Counter,
    /// Connections over SSE.
    pub sse: ProtocolCounters,
    /// Subscribers over WebSocket.
    pub websocket: ProtocolCounters,
    /// Filters that clients observe over CoAP.
    pub coap: ProtocolCounters,
}

/// Counters of one shard's connections of a protocol.
#[derive(Debug, Default)]
pub struct ProtocolCounters {
    /// Connections so far.
    pub opened: Counter,
    /// Connections that have ended.
    pub closed: Counter,
}

impl ProtocolCounters {
    /// Connections now.
    pub fn open(&self) -> u64 {
        self.opened.get().saturating_sub(self.closed.get())
    }
}

impl HubHandle {
    pub(crate) fn new(
        port: HubPort,
        users: Arc<Users>,
        payload_size_max: u32,
        counters: Arc<HubHandleCounters>,
        runner: Option<Runner<LazyJournal>>,
        shard: usize,
    ) -> HubHandle {
        HubHandle {
            port,
            users,
            streams: Arc::default(),
            limits: NatsLimits { payload_size_max, ..NatsLimits::default() },
            counters,
            runner,
            shard,
            publisher_connections: 0,
            pending_publications: 0,
            pending_coap_publications: 0,
            last_publish_input: Time::ZERO,
            closer: None,
        }
    }

    pub(crate) fn with_streams(self, streams: Arc<StreamDirectory>) -> HubHandle {
        HubHandle { streams, ..self }
    }

    /// Sets how the hub finishes if this shard leaves it early.
    pub(crate) fn with_closer(self, closer: HubCloser) -> HubHandle {
        HubHandle { closer: Some(closer), ..self }
    }

    /// Ends this shard's use of the hub. If the shard runs the hub, the hub continues separately until the other shards
    /// have left and everything is written; then the streams are closed and released.
    pub(crate) fn disconnect(mut self: Box<Self>, now: Now) {
        let runner = self.runner.take();
        let closer = self.closer.take();
        drop(self);
        if let Some((runner, closer)) = runner.zip(closer) {
            closer.close(runner, now);
        }
    }

    pub(crate) fn next_mail(&mut self) -> Option<(Token, HubMail)> {
        self.port.next_mail()
    }

    /// Ends a turn of the shard. Returns the maximum sleep.
    pub(crate) fn turn(&mut self, now: impl Fn() -> Now) -> Option<Duration> {
        if self.port.has_requests() {
            self.port.set_turn_end(now().unix_ns);
        }
        self.port.flush();
        // Subscriptions of closed connections are removed in portions.
        let left = self.port.has_removals().then_some(REMOVAL_INTERVAL);
        let Some(runner) = &mut self.runner else { return left };
        runner.turn(now());
        runner.next_check_in().into_iter().chain(left).min()
    }

    /// Whether a connection of the shard has mail, or the hub has work.
    pub(crate) fn has_mail(&self) -> bool {
        self.port.has_mail() || self.runner.as_ref().is_some_and(|runner| !runner.is_quiet())
    }

    /// Whether the hub has received all requests of this shard's connections.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.port.has_sent_all()
    }

    /// Whether the hub has received all requests of this shard and, if the shard runs the hub, has finished the
    /// requests of all others.
    pub(crate) fn is_done(&self) -> bool {
        self.has_sent_all() && self.runner.as_ref().is_none_or(|runner| runner.is_done_but_for(self.shard))
    }
}

#[cfg(test)]
mod tests {
    use stilling_hub::{ClientOptions, HubRequest};

    use super::super::testing::{GREEDY, fill, hub_of_one_shard};
    use super::*;

    /// Invariant 4: neither connections that wait for room nor endless deliveries delay control requests.
    #[test]
    fn control_requests_go_first_and_waiting_connections_get_room_between_deliveries() {
        let (mut port, mut runner, counters) = hub_of_one_shard();
        let (member, token) = (Token::from_bits(1), Token::from_bits(GREEDY));
        port.subscribe(member, ClientOptions::default(), (b"a", b"", b"1")).expect("there is room");
        for _ in 0..3 {
            fill(&mut port);
        }
        port.flush();
        runner.turn(Now::simulated(0));
        assert_eq!(counters.registrations.get(), 1);
        // Waiting connections take everything that comes back at once.
        let mut order = String::new();
        while let Some((token, mail)) = port.next_mail() {
            match mail {
                HubMail::Delivery => assert_eq!(token, member),
                HubMail::Room => {
                    while port.has_room() {
                        port.push_request(token, ClientOptions::default(), &HubRequest::Barrier);
                    }
                }
            }
            order.push(if mail == HubMail::Room { 'r' } else { 'd' });
        }
        assert!(order.contains("rd"), "deliveries come behind room: {order}");
        for _ in 0..3 {
            port.wait(token);
        }
        port.disconnect(member);
        port.flush();
        assert!(!port.has_room() && port.has_control(), "every publication batch is with the hub, and full");
        // In one turn, waiting connections fill what came back before the shard's turn ends.
        for _ in 0..4 {
            runner.turn(Now::simulated(0));
            while let Some((token, mail)) = port.next_mail() {
                if mail == HubMail::Room {
                    fill(&mut port);
                    assert_eq!(token.bits(), GREEDY);
                }
            }
            port.flush();
        }
        assert!(!port.has_control());
        runner.turn(Now::simulated(0));
        assert_eq!(counters.registrations.get(), 0, "it has left");
    }
}
