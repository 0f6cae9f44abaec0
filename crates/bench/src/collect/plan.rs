//! Configuration of a run, checked before the run starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::InvalidCollectPlan;
use super::limits::{CLIENTS_MAX, SIZE_MAX, SIZE_MIN, SUBSCRIBERS_MAX, THREADS_MAX, WINDOW_MAX};
use super::monitor::Monitor;
use crate::plan_checks::{check_end, check_subject, check_timeout, share, within};

/// Protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectProtocol {
    /// The NATS client protocol.
    Nats,
    /// Redis: `XADD` to one stream; always acknowledged.
    Redis,
    /// Syslog over TCP, RFC 5424 in octet-counted frames; never acknowledged.
    Syslog,
}

impl CollectProtocol {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CollectProtocol::Nats => "nats",
            CollectProtocol::Redis => "redis",
            CollectProtocol::Syslog => "syslog",
        }
    }
}

/// Storage of a stream that the run creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectStorage {
    /// On disk.
    File,
    /// In memory.
    Memory,
}

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct CollectPlan {
    /// Address of the server.
    pub to: SocketAddr,
    /// Protocol of the server. Default: NATS.
    pub protocol: CollectProtocol,
    /// Publishing connections. Default: 4.
    pub clients: u16,
    /// Threads shared by the connections; with a connection per message each client has its own. Default: 1.
    pub threads: u16,
    /// Bytes of each payload. Default: 4096.
    pub size: u32,
    /// Messages in flight on each connection. Default: 256.
    pub window: u32,
    /// Ends the run after this number of messages in total; `None`: no limit.
    pub messages: Option<u64>,
    /// Ends the run after this time; messages in flight finish. With `messages`, the earlier end counts. Default: 10 s.
    pub span: Option<Duration>,
    /// Waits for acknowledgements. Default: true.
    pub confirmed: bool,
    /// Gives each message an id of its own (`Nats-Msg-Id`), so that a repeated one is stored once. Default: false.
    pub message_ids: bool,
    /// Opens a connection for each message. Default: false.
    pub per_message: bool,
    /// Client number N publishes to `<subject>.N`; the key of the stream in Redis. Default: `events`.
    pub subject: String,
    /// The stream that acknowledges the messages; its length counts the received ones; `None`: no stream. Default:
    /// `events`.
    pub stream: Option<String>,
    /// Creates the stream before the run, if the server supports it. Default: no.
    pub make_stream: Option<CollectStorage>,
    /// Subscribing connections, each with a thread. Default: 0.
    pub subscribers: u16,
    /// A file to which the server writes each payload as a line; the run ends when all have arrived. Default: none.
    pub received_file: Option<PathBuf>,
    /// Source of the server's own figures. Default: none.
    pub monitor: Option<Monitor>,
    /// Maximum time to wait for the server to start. Default: 10 s.
    pub wait: Duration,
    /// Maximum time for a connect, an acknowledgement or a delivery. Default: 30 s.
    pub timeout: Duration,
}

impl CollectPlan {
    /// The defaults: four connections publish 4,096 bytes to `events.0` … `events.3` for ten seconds, with 256 messages
    /// in flight each.
    pub fn new(to: SocketAddr) -> CollectPlan {
        CollectPlan {
            to,
            protocol: CollectProtocol::Nats,
            clients: 4,
            threads: 1,
            size: 4096,
            window: 256,
            messages: None,
            span: Some(Duration::from_secs(10)),
            confirmed: true,
            message_ids: false,
            per_message: false,
            subject: "events".to_owned(),
            stream: Some("events".to_owned()),
            make_stream: None,
            subscribers: 0,
            received_file: None,
            monitor: None,
            wait: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        }
    }

    pub(super) fn publishing_threads(&self) -> u16 {
        if self.per_message { self.clients } else { self.threads.min(self.clients) }
    }

    /// Number of messages of a client.
    pub(super) fn share(&self, client: u16) -> u64 {
        share(self.messages, client, self.clients)
    }

    /// Checks the plan for contradictions.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), InvalidCollectPlan> {
        let wrong = |why: &str| Err(InvalidCollectPlan(why.to_owned()));
        within("clients", self.clients.into(), 1, CLIENTS_MAX.into())?;
        within("threads", self.threads.into(), 1, THREADS_MAX.into())?;
        within("bytes of payload", self.size.into(), SIZE_MIN.into(), SIZE_MAX.into())?;
        within("messages in flight", self.window.into(), 1, WINDOW_MAX.into())?;
        within("subscribers", self.subscribers.into(), 0, SUBSCRIBERS_MAX.into())?;
        if self.per_message {
            within("clients with a thread each", self.clients.into(), 1, THREADS_MAX.into())?;
        }
        check_end(self.messages, self.span)?;
        check_timeout(self.timeout)?;
        check_subject(&self.subject)?;
        let is_nats = self.protocol == CollectProtocol::Nats;
        if self.confirmed && is_nats && self.stream.is_none() {
            return wrong("without a stream there are no acknowledgements");
        }
        if !self.confirmed && self.protocol == CollectProtocol::Redis {
            return wrong("Redis answers every command, so its acknowledgements cannot be left out");
        }
        if self.confirmed && self.protocol == CollectProtocol::Syslog {
            return wrong("syslog has no acknowledgements");
        }
        if !is_nats && (self.make_stream.is_some() || self.subscribers > 0) {
            return wrong("streams are created and subscribed to over NATS only");
        }
        if self.make_stream.is_some() && self.stream.is_none() {
            return wrong("a stream to create needs a name");
        }
        if self.per_message && self.subscribers > 0 {
            return wrong("subscribers need persistent connections, not a connection per message");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_found_before_anything_is_sent() {
        let plan = || CollectPlan::new(SocketAddr::from(([127, 0, 0, 1], 9)));
        assert_eq!(plan().check(), Ok(()));
        let check = |change: fn(&mut CollectPlan), detail: &str| {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(detail), "{error}");
        };
        check(|plan| plan.clients = 0, "clients");
        check(|plan| plan.size = 15, "16 to 1048576");
        check(|plan| plan.window = 0, "in flight");
        check(|plan| plan.messages = Some(0), "no messages");
        check(|plan| (plan.messages, plan.span) = (None, None), "ends after");
        check(|plan| plan.stream = None, "no acknowledgements");
        check(|plan| plan.subject = "a.*".to_owned(), "not a subject");
        check(|plan| (plan.protocol, plan.confirmed) = (CollectProtocol::Redis, false), "cannot be left out");
        check(|plan| plan.protocol = CollectProtocol::Syslog, "no acknowledgements");
        check(|plan| (plan.per_message, plan.subscribers) = (true, 1), "persistent connections");
    }
}
