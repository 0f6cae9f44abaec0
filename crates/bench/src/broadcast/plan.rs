//! Configuration of a run, checked before the run starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::error::InvalidBroadcastPlan;
use super::limits::{
    BROADCAST_PUBLISHERS_MAX, BROADCAST_SIZE_MAX, BROADCAST_SIZE_MIN, BROADCAST_SUBSCRIBERS_MAX,
    BROADCAST_WINDOW_MAX, DISTURBANCES_PER_S_MAX, DISTURBING_SUBSCRIBERS_MAX, EXPECTED_SIZE_MAX,
    THRASH_CLIENTS_MAX,
};
use crate::plan_checks::{check_end, check_subject, check_timeout, share, within};

/// Protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadcastProtocol {
    /// The NATS client protocol.
    Nats,
    /// Redis: `PUBLISH` and `SUBSCRIBE`.
    Redis,
    /// MQTT 3.1.1 at QoS 0.
    Mqtt,
    /// Server-sent events of Stilling's HTTP port.
    Sse,
    /// WebSockets of Stilling's HTTP port, in binary frames.
    WebSocketRaw,
    /// WebSockets of Stilling's HTTP port, in text frames.
    WebSocketJson,
    /// The NATS client protocol over WebSocket.
    NatsWebSocket,
    /// Centrifugo: its JSON protocol over WebSocket, and its HTTP API.
    Centrifugo,
}

impl BroadcastProtocol {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            BroadcastProtocol::Nats => "nats",
            BroadcastProtocol::Redis => "redis",
            BroadcastProtocol::Mqtt => "mqtt",
            BroadcastProtocol::Sse => "sse",
            BroadcastProtocol::WebSocketRaw => "websocket",
            BroadcastProtocol::WebSocketJson => "websocket-json",
            BroadcastProtocol::NatsWebSocket => "nats-websocket",
            BroadcastProtocol::Centrifugo => "centrifugo",
        }
    }

    /// Whether subscribers use `/subscribe/` of Stilling's HTTP port.
    pub(super) fn is_subscription_over_http(self) -> bool {
        use BroadcastProtocol::{Sse, WebSocketJson, WebSocketRaw};
        matches!(self, Sse | WebSocketRaw | WebSocketJson)
    }

    /// Whether messages are published with this protocol, too; otherwise with NATS.
    fn publishes(self) -> bool {
        use BroadcastProtocol::{Centrifugo, Mqtt, Nats, Redis};
        matches!(self, Nats | Redis | Mqtt | Centrifugo)
    }
}

/// Configuration of a fan-out run.
#[derive(Clone, Debug)]
pub struct BroadcastPlan {
    /// Address of the server.
    pub to: SocketAddr,
    /// Protocol of the server. Default: NATS.
    pub protocol: BroadcastProtocol,
    /// NATS address for the publishers of WebSocket and SSE runs. The subject of SSE runs and of Stilling's WebSockets must
    /// be one of a stream. Default: none.
    pub publish_to: Option<SocketAddr>,
    /// Publishing connections. Default: 1.
    pub publishers: u16,
    /// Subscribing connections. Default: 200.
    pub subscribers: u32,
    /// Bytes of each payload. Default: 64.
    pub size: u32,
    /// Messages of each publisher that not all subscribers have received. Default: 2048.
    pub window: u32,
    /// Ends the run after this number of messages in total; `None`: no limit.
    pub messages: Option<u64>,
    /// Ends the run after this time; messages in flight finish. With `messages`, the earlier end counts. Default: 10 s.
    pub span: Option<Duration>,
    /// The subject of all messages; with `subjects`, its first part. Default: `bench`.
    pub subject: String,
    /// Subjects `<subject>.N` with one subscriber each, to which messages go in turn; `None`: one subject for all.
    pub subjects: Option<u32>,
    /// Gives each subscriber a subscription id of its own, so that no two subscribers get the same bytes. Default: false.
    pub distinct_sids: bool,
    /// Publishes nothing, and expects the messages of a run in another process that has one publisher. Default: false.
    pub is_passive: bool,
    /// Source address of the subscribers; `None`: the system's choice. Default: none.
    pub source: Option<Ipv4Addr>,
    /// Messages per second of each publisher; `None`: as many as the window allows. Default: none.
    pub rate: Option<u32>,
    /// Disturbing subscribers. Default: none.
    pub disturbance: DisturbancePlan,
    /// Resuming subscribers, on a stream of the subject. Default: none.
    pub resuming: ResumingPlan,
    /// Process of the server, for its CPU time and memory. Default: none.
    pub server_pid: Option<u32>,
    /// Maximum time to wait for the server to start. Default: 10 s.
    pub wait: Duration,
    /// Maximum time for a connect, and maximum time without any delivery. Default: 30 s.
    pub timeout: Duration,
}

/// Subscribers that disturb a run, in addition to those that are measured. They use NATS; those that are stopped or read
/// slowly use SSE or WebSocket in runs of Stilling's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DisturbancePlan {
    /// Subscribers that never read. Default: 0.
    pub stopped: u32,
    /// Subscribers that read 1 KiB per second. Default: 0.
    pub trickling: u32,
    /// Subscriptions per second that begin, and end, on open connections. Default: 0.
    pub joins_per_s: u32,
    /// Connections per second that open, subscribe and close. Default: 0.
    pub reconnects_per_s: u32,
}

impl DisturbancePlan {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == DisturbancePlan::default()
    }
}

/// Subscribers over WebSocket and SSE that resume behind their last message, in addition to those that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumingPlan {
    /// Stilling's HTTP port; `None`: no such subscribers. Default: none.
    pub to: Option<SocketAddr>,
    /// Subscribers that read slowly. Default: 0.
    pub slow: u32,
    /// Subscribers that close their connection again and again. Default: 0.
    pub flapping: u32,
}

fn wrong(why: &str) -> Result<(), InvalidBroadcastPlan> {
    Err(InvalidBroadcastPlan(why.to_owned()))
}

impl BroadcastPlan {
    /// The defaults: one connection publishes 64 bytes to 200 subscribers for ten seconds, with a window of 2,048
    /// messages.
    pub fn new(to: SocketAddr) -> BroadcastPlan {
        BroadcastPlan {
            to,
            protocol: BroadcastProtocol::Nats,
            publish_to: None,
            publishers: 1,
            subscribers: 200,
            size: 64,
            window: 2048,
            messages: None,
            span: Some(Duration::from_secs(10)),
            subject: "bench".to_owned(),
            subjects: None,
            distinct_sids: false,
            is_passive: false,
            source: None,
            rate: None,
            disturbance: DisturbancePlan::default(),
            resuming: ResumingPlan::default(),
            server_pid: None,
            wait: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        }
    }

    /// Number of subscribing connections.
    pub fn subscriber_count(&self) -> u32 {
        self.subjects.unwrap_or(self.subscribers)
    }

    /// Number of subscribers that receive one message.
    pub(super) fn receivers(&self) -> u32 {
        if self.subjects.is_some() { 1 } else { self.subscribers }
    }

    /// Number of messages of a publisher.
    pub(super) fn share(&self, publisher: u16) -> u64 {
        share(self.messages, publisher, self.publishers)
    }

    /// Checks the plan for contradictions.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), InvalidBroadcastPlan> {
        within("publishers", self.publishers.into(), 1, BROADCAST_PUBLISHERS_MAX.into())?;
        within("subscribers", self.subscriber_count().into(), 1, BROADCAST_SUBSCRIBERS_MAX.into())?;
        within("bytes of payload", self.size.into(), BROADCAST_SIZE_MIN.into(), BROADCAST_SIZE_MAX.into())?;
        within("messages in the window", self.window.into(), 1, BROADCAST_WINDOW_MAX.into())?;
        let expected = u64::from(self.size) * u64::from(self.window) * u64::from(self.publishers);
        within("bytes in the windows of all publishers", expected, 1, EXPECTED_SIZE_MAX)?;
        check_end(self.messages, self.span)?;
        check_timeout(self.timeout)?;
        let has_sids = matches!(self.protocol, BroadcastProtocol::Nats | BroadcastProtocol::NatsWebSocket);
        if self.distinct_sids && !has_sids {
            return wrong("only NATS has subscription ids");
        }
        if self.protocol.publishes() == self.publish_to.is_some() {
            return wrong(
                "WebSocket and SSE runs publish over NATS to an address of its own, and no others do",
            );
        }
        if self.subjects.is_some() && self.publishers > 1 {
            return wrong("messages go to many subjects in turn from one publisher");
        }
        if self.rate == Some(0) {
            return wrong("a rate must be above 0");
        }
        if self.is_passive && self.messages.is_none_or(|messages| messages > self.window.into()) {
            return wrong("a passive run needs a number of messages, at most those of the window");
        }
        self.check_additional()?;
        Ok(check_subject(&self.subject)?)
    }

    /// Checks the disturbing and resuming subscribers.
    fn check_additional(&self) -> Result<(), InvalidBroadcastPlan> {
        let DisturbancePlan { stopped, trickling, joins_per_s, reconnects_per_s } = self.disturbance;
        let ResumingPlan { to, slow, flapping } = self.resuming;
        for count in [stopped, trickling, slow, flapping] {
            within("disturbing subscribers", count.into(), 0, DISTURBING_SUBSCRIBERS_MAX.into())?;
        }
        for rate in [joins_per_s, reconnects_per_s] {
            within("joins or reconnects per second", rate.into(), 0, DISTURBANCES_PER_S_MAX.into())?;
        }
        let is_nats = self.protocol == BroadcastProtocol::Nats || self.publish_to.is_some();
        if !self.disturbance.is_empty() && !is_nats {
            return wrong("disturbing subscribers use NATS");
        }
        if to.is_some() != (slow + flapping > 0) {
            return wrong("resuming subscribers need an HTTP address, and it needs them");
        }
        let has_one_order = self.publishers == 1 && self.subjects.is_none();
        if (to.is_some() || !self.disturbance.is_empty()) && !has_one_order {
            return wrong(
                "disturbing and resuming subscribers check the order of one publisher on one subject",
            );
        }
        Ok(())
    }
}

/// Configuration of a run of bidding clients.
#[derive(Clone, Debug)]
pub struct ThrashPlan {
    /// Address of the server, which speaks NATS.
    pub to: SocketAddr,
    /// Bidding clients. Default: 200.
    pub clients: u32,
    /// Ends the run after this time. Default: 10 s.
    pub span: Duration,
    /// Ends the run after this number of accepted bids; `None`: no limit.
    pub bids: Option<u64>,
    /// First part of the subjects: `<subject>.<auction>.open` and `.bid`. Default: `auction`.
    pub subject: String,
    /// Process of the server, for its CPU time. Default: none.
    pub server_pid: Option<u32>,
    /// Maximum time to wait for the server to start. Default: 10 s.
    pub wait: Duration,
    /// Maximum time for a connect, and maximum time without an accepted bid. Default: 30 s.
    pub timeout: Duration,
}

impl ThrashPlan {
    /// The defaults: 200 clients bid for ten seconds.
    pub fn new(to: SocketAddr) -> ThrashPlan {
        ThrashPlan {
            to,
            clients: 200,
            span: Duration::from_secs(10),
            bids: None,
            subject: "auction".to_owned(),
            server_pid: None,
            wait: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        }
    }

    /// Checks the plan for contradictions.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), InvalidBroadcastPlan> {
        // With one client there is no other bidder to answer.
        within("clients", self.clients.into(), 2, THRASH_CLIENTS_MAX.into())?;
        if self.span.is_zero() || self.bids == Some(0) {
            return wrong("no bids at all");
        }
        check_timeout(self.timeout)?;
        Ok(check_subject(&self.subject)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_found_before_a_connection_opens() {
        let plan = || BroadcastPlan::new(SocketAddr::from(([127, 0, 0, 1], 9)));
        assert_eq!(plan().check(), Ok(()));
        let check = |change: fn(&mut BroadcastPlan), detail: &str| {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(detail), "{error}");
        };
        check(|plan| plan.publishers = 0, "publishers");
        check(|plan| plan.subscribers = 0, "subscribers");
        check(|plan| plan.subjects = Some(0), "subscribers");
        check(|plan| plan.size = 15, "16 to 65536");
        check(|plan| plan.window = 0, "in the window");
        check(|plan| (plan.window, plan.size) = (65_536, 65_536), "of all publishers");
        check(|plan| plan.messages = Some(0), "no messages");
        check(|plan| (plan.messages, plan.span) = (None, None), "ends after");
        check(|plan| plan.subject = "a.*".to_owned(), "not a subject");
        check(|plan| (plan.protocol, plan.distinct_sids) = (BroadcastProtocol::Redis, true), "only NATS");
        check(|plan| plan.protocol = BroadcastProtocol::Sse, "over NATS");
        check(|plan| plan.publish_to = Some(plan.to), "over NATS");
        check(|plan| (plan.publishers, plan.subjects) = (2, Some(3)), "one publisher");
        check(|plan| plan.rate = Some(0), "a rate");
        check(|plan| (plan.is_passive, plan.messages) = (true, Some(2049)), "passive");
        check(|plan| plan.disturbance.stopped = 2000, "0 to 1024");
        check(|plan| plan.resuming.slow = 1, "HTTP address");
        check(|plan| (plan.publishers, plan.disturbance.joins_per_s) = (2, 1), "one publisher");
        check(|plan| (plan.protocol, plan.disturbance.stopped) = (BroadcastProtocol::Mqtt, 1), "use NATS");
        let lonely = ThrashPlan { clients: 1, ..ThrashPlan::new(plan().to) };
        assert!(lonely.check().unwrap_err().to_string().contains("2 to"));
    }
}
