//! One shard's dealings with syslog: who may send, which subject it is, and what was lost.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use stilling_engine::Token;
use stilling_engine::driver::Datagram;
use stilling_hub::{Door, Loss, Lost, Publication, Request, Traits, UnixNanos};
use stilling_wire::syslog::{self, Limits};

use super::held::Held;
use super::limits::{HELD_SIZE_MAX, HELD_SOURCE_SIZE_MAX, MESSAGE_SIZE_MAX, SHED_SUBJECTS_MAX};
use crate::hub::{HubDesk, Port};
use crate::settings::{SourceRange, SubjectTemplate, SubjectWords};

/// What was chosen about syslog.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) sources: Vec<SourceRange>,
    pub(crate) subject: SubjectTemplate,
}

/// One shard's.
#[derive(Debug)]
pub(crate) struct SyslogDesk {
    rules: Arc<Rules>,
    pub(super) limits: Limits,
    held: Held,
    /// What is to be counted, by [`Loss`].
    uncounted: [u64; Loss::ALL.len()],
    /// What was shed and is to be told in its stream.
    shed: Vec<Shed>,
    /// Memory for the subject of a message.
    subject: Vec<u8>,
}

#[derive(Debug)]
struct Shed {
    subject: Vec<u8>,
    count: u64,
    from_ns: UnixNanos,
    to_ns: UnixNanos,
}

/// Who publishes datagrams: no connection, which nobody will ever answer.
fn nobody() -> Token {
    Token::from_bits(u64::MAX)
}

impl SyslogDesk {
    pub(crate) fn new(rules: Arc<Rules>, payload_size_max: u32) -> SyslogDesk {
        SyslogDesk {
            rules,
            limits: Limits { message_size_max: payload_size_max.clamp(1, MESSAGE_SIZE_MAX) },
            held: Held::new(HELD_SIZE_MAX, HELD_SOURCE_SIZE_MAX),
            uncounted: [0; Loss::ALL.len()],
            shed: Vec::new(),
            subject: Vec::new(),
        }
    }

    /// Whether this address may send. Who cannot be told from others may not.
    pub(super) fn admits(&self, source: Option<IpAddr>) -> bool {
        source.is_some_and(|source| self.rules.sources.iter().any(|range| range.contains(source)))
    }

    /// Counts something that did not get through, or not whole.
    pub(super) fn count(&mut self, loss: Loss) {
        self.uncounted[loss as usize] += 1;
    }

    /// Whether everything has been handed to the hub.
    pub(crate) fn is_settled(&self) -> bool {
        self.held.is_empty() && self.shed.is_empty() && self.uncounted == [0; Loss::ALL.len()]
    }

    /// Reads a message and finds its subject, which is then in `subject`. Returns its severity.
    fn read(&mut self, message: &[u8]) -> u8 {
        let record = syslog::parse(message);
        let (facility, severity) = (record.priority.facility(), record.priority.severity());
        let words = SubjectWords { facility, severity, host: record.host, app: record.app };
        self.subject.clear();
        self.rules.subject.write(&words, &mut self.subject);
        severity
    }

    fn note_shed(&mut self, now_ns: UnixNanos) {
        let known = self.shed.iter().position(|shed| shed.subject == self.subject);
        let place = match known {
            None if self.shed.len() == SHED_SUBJECTS_MAX => SHED_SUBJECTS_MAX - 1,
            None => {
                let subject = self.subject.clone();
                self.shed.push(Shed { subject, count: 0, from_ns: now_ns, to_ns: now_ns });
                self.shed.len() - 1
            }
            Some(at) => at,
        };
        let shed = &mut self.shed[place];
        (shed.count, shed.to_ns) = (shed.count + 1, now_ns);
    }

    /// Hands to the hub what waits, as far as there is room, and no more than about so many bytes; what was lost comes
    /// behind it. Returns whether there was room for anything.
    pub(crate) fn settle(&mut self, port: &mut Port, size_max: usize) -> bool {
        let mut size = 0;
        while !self.held.is_empty() && size < size_max && port.has_room() {
            if let Some(waiting) = self.held.pop() {
                publish(port, nobody(), &waiting.subject, &waiting.message);
                size += waiting.subject.len() + waiting.message.len() + 1;
            }
        }
        if !self.held.is_empty() {
            return size > 0;
        }
        while !self.shed.is_empty() && port.has_room() {
            let Shed { subject, count, from_ns, to_ns } = self.shed.remove(0);
            lose(port, Lost { subject: &subject, count, from_ns, to_ns, ..nothing(Loss::Shed) });
        }
        for (loss, count) in Loss::ALL.into_iter().zip(&mut self.uncounted) {
            if *count > 0 && port.has_room() {
                lose(port, Lost { count: std::mem::take(count), ..nothing(loss) });
            }
        }
        true
    }
}

fn nothing(loss: Loss) -> Lost<'static> {
    Lost { door: Door::Syslog, subject: b"", loss, count: 0, from_ns: 0, to_ns: 0 }
}

fn lose(port: &mut Port, lost: Lost<'_>) {
    port.ask(nobody(), Traits::default(), &Request::Lost(lost));
}

/// There has to be room.
fn publish(port: &mut Port, token: Token, subject: &[u8], payload: &[u8]) {
    let publication =
        Publication { door: Door::Syslog, subject, reply: b"", headers: b"", payload, ticket: None };
    port.ask(token, Traits::default(), &Request::Publish(publication));
}

/// What ends a message in some senders' datagrams, and is no part of it.
fn without_end(mut message: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r' | b'\0'] = message {
        message = rest;
    }
    message
}

impl HubDesk {
    /// Deals with a datagram. `source` is `None` on a Unix socket, whose file says who may send.
    pub(crate) fn take_syslog_datagram(
        &mut self,
        datagram: &Datagram<'_>,
        source: Option<IpAddr>,
        now_ns: impl FnOnce() -> UnixNanos,
    ) {
        let HubDesk { port, syslog, .. } = self;
        if source.is_some() && !syslog.admits(source) {
            return syslog.count(Loss::Forbidden);
        }
        let size_max = syslog.limits.message_size_max as usize;
        let message = &datagram.payload[..datagram.payload.len().min(size_max)];
        if datagram.truncated || message.len() < datagram.payload.len() {
            syslog.count(Loss::TooLarge);
        }
        let message = without_end(message);
        if message.is_empty() {
            return syslog.count(Loss::Malformed);
        }
        let severity = syslog.read(message);
        if syslog.held.is_empty() && port.has_room() {
            return publish(port, nobody(), &syslog.subject, message);
        }
        let source = source.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        if !syslog.held.push(severity, source, &syslog.subject, message) {
            syslog.note_shed(now_ns());
        }
    }

    /// Publishes a message that came on a connection. There has to be room.
    pub(super) fn take_syslog(&mut self, token: Token, message: &[u8]) {
        let HubDesk { port, syslog, .. } = self;
        let message = without_end(message);
        if message.is_empty() {
            return syslog.count(Loss::Malformed);
        }
        syslog.read(message);
        publish(port, token, &syslog.subject, message);
    }
}
