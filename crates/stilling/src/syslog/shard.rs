//! The syslog state of one shard: permitted sources, subjects, losses, and the backlog.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{RecvFlags, Shutdown, recv, recvfrom};
use stilling_engine::Token;
use stilling_engine::driver::Datagram;
use stilling_hub::{
    ClientOptions, FilterTree, HashKey, HubRequest, Ingress, Loss, LossReport, Publication, StreamConfig,
    UnixNanos,
};
use stilling_wire::nats::{Filter, SubjectLimits};
use stilling_wire::syslog::{self, SyslogLimits};

use super::datagram_backlog::{DatagramBacklog, SyslogLane};
use super::limits::{
    BACKLOG_BYTES_PER_TURN, HELD_SIZE_MAX, HELD_SOURCE_SIZE_MAX, MESSAGE_SIZE_MAX, SHED_SUBJECTS_MAX,
};
use crate::hub::limits::UDP_FINAL_READS_MAX;
use crate::hub::{HubHandle, HubPort};
use crate::lifecycle::Lifecycle;
use crate::settings::{SourceRange, SubjectTemplate, TemplateValues};

/// Settings of syslog, and the streams of subjects.
#[derive(Debug)]
pub(crate) struct SyslogRules {
    sources: Vec<SourceRange>,
    subject: SubjectTemplate,
    /// The number of the stream that stores a subject. Filters of different streams do not overlap.
    streams: FilterTree,
}

impl SyslogRules {
    /// Rules for a server with these `streams`, in the order of their numbers. `key` is the hash key for their
    /// tokens.
    pub(crate) fn new(
        sources: Vec<SourceRange>,
        subject: SubjectTemplate,
        streams: &[StreamConfig],
        key: HashKey,
    ) -> SyslogRules {
        let mut filters = FilterTree::new(key);
        let limits = SubjectLimits::default();
        for (number, stream) in (0..).zip(streams) {
            for filter in
                stream.subjects.iter().filter_map(|text| Filter::parse(text.as_bytes(), &limits).ok())
            {
                filters.insert(filter, number);
            }
        }
        SyslogRules { sources, subject, streams: filters }
    }
}

/// Size in bytes of the buffer for the rest of the socket queues; larger than any message.
const DATAGRAM_SIZE_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct SyslogShard {
    rules: Arc<SyslogRules>,
    pub(super) limits: SyslogLimits,
    backlog: DatagramBacklog,
    /// Losses to be reported, by [`Loss`].
    uncounted: [u64; Loss::ALL.len()],
    /// Shed messages to be reported in their streams.
    shed: Vec<ShedCount>,
    /// Memory for the subject of a message.
    subject: Vec<u8>,
    /// Memory for the stream of a message.
    stream: Vec<u32>,
    /// The lane to publish from next.
    next_lane: SyslogLane,
    /// The backlog has used its share of this turn's room.
    has_published_backlog: bool,
    /// Copies of the Unix datagram sockets, to read the rest of their queues at the end.
    unix_sockets: Vec<OwnedFd>,
    /// The same for the UDP sockets.
    udp_sockets: Vec<OwnedFd>,
}

/// The parts of its shard that a syslog session uses.
pub(crate) struct SyslogContext<'a> {
    pub(crate) syslog: &'a mut SyslogShard,
    /// The hub; `None` when a successor has it.
    pub(crate) hub: Option<&'a mut HubHandle>,
    pub(crate) lifecycle: &'a Lifecycle,
}

#[derive(Debug)]
struct ShedCount {
    lane: SyslogLane,
    subject: Vec<u8>,
    count: u64,
    from_ns: UnixNanos,
    to_ns: UnixNanos,
}

/// The lane of datagrams without a stream. Losses are reported under its token, which is never parked.
const NO_STREAM: SyslogLane = SyslogLane::MAX;

/// The publisher of a lane's datagrams, which is no connection. The hub parks it like a connection while the stream
/// is full: the datagrams of the lane are held meanwhile, and those of other lanes are not.
fn lane_token(lane: SyslogLane) -> Token {
    // No connection has the last index.
    Token::new(u32::MAX, lane)
}

impl Default for SyslogShard {
    /// Without permitted sources, and without streams.
    fn default() -> SyslogShard {
        let rules = SyslogRules::new(Vec::new(), SubjectTemplate::default(), &[], HashKey(0, 0));
        SyslogShard::new(Arc::new(rules), MESSAGE_SIZE_MAX)
    }
}

impl SyslogShard {
    pub(crate) fn new(rules: Arc<SyslogRules>, payload_size_max: u32) -> SyslogShard {
        SyslogShard {
            rules,
            limits: SyslogLimits { message_size_max: payload_size_max.clamp(1, MESSAGE_SIZE_MAX) },
            backlog: DatagramBacklog::new(HELD_SIZE_MAX, HELD_SOURCE_SIZE_MAX),
            uncounted: [0; Loss::ALL.len()],
            shed: Vec::new(),
            subject: Vec::new(),
            stream: Vec::new(),
            next_lane: 0,
            has_published_backlog: false,
            unix_sockets: Vec::new(),
            udp_sockets: Vec::new(),
        }
    }

    pub(crate) fn keep_unix_socket(&mut self, socket: OwnedFd) {
        self.unix_sockets.push(socket);
    }

    pub(crate) fn keep_udp_socket(&mut self, socket: OwnedFd) {
        self.udp_sockets.push(socket);
    }

    /// Whether this address may send. Rejects senders that cannot be identified.
    pub(super) fn admits(&self, source: Option<IpAddr>) -> bool {
        source.is_some_and(|source| self.rules.sources.iter().any(|range| range.contains(source)))
    }

    /// Counts a message that was lost, entirely or in part.
    pub(super) fn count(&mut self, loss: Loss) {
        self.uncounted[loss as usize] += 1;
    }

    /// Whether everything has been pushed to the hub.
    pub(crate) fn has_published_all(&self) -> bool {
        self.backlog.is_empty() && self.shed.is_empty() && self.uncounted == [0; Loss::ALL.len()]
    }

    /// Parses a message and stores its subject in `subject`. Returns its severity.
    fn parse(&mut self, message: &[u8]) -> u8 {
        let record = syslog::parse(message);
        let (facility, severity) = (record.priority.facility(), record.priority.severity());
        let values = TemplateValues { facility, severity, host: record.host, app: record.app };
        self.subject.clear();
        self.rules.subject.write(&values, &mut self.subject);
        severity
    }

    /// The lane of the message with the subject in `subject`.
    fn lane(&mut self) -> SyslogLane {
        self.stream.clear();
        self.rules.streams.find(&self.subject, &mut self.stream);
        self.stream.first().copied().unwrap_or(NO_STREAM)
    }

    /// Counts the message with the subject in `subject` as shed. In a full table it counts with another subject of
    /// its lane, because the loss is reported in the stream of the subject; a lane without an entry adds one.
    fn count_shed(&mut self, lane: SyslogLane, now_ns: UnixNanos) {
        let is_full = self.shed.len() >= SHED_SUBJECTS_MAX;
        let same_subject = self.shed.iter().position(|shed| shed.subject == self.subject);
        let same_lane = || self.shed.iter().rposition(|shed| shed.lane == lane).filter(|_| is_full);
        let at = same_subject.or_else(same_lane).unwrap_or_else(|| {
            let subject = self.subject.clone();
            self.shed.push(ShedCount { lane, subject, count: 0, from_ns: now_ns, to_ns: now_ns });
            self.shed.len() - 1
        });
        let shed = &mut self.shed[at];
        (shed.count, shed.to_ns) = (shed.count + 1, now_ns);
    }

    /// Pushes the backlog to the hub, as far as there is room, and at most about `size_max` bytes; losses follow the
    /// backlog of their lane. Returns whether there was room for anything.
    pub(crate) fn publish_backlog(&mut self, port: &mut HubPort, size_max: usize) -> bool {
        let size = self.publish_held(port, size_max);
        let mut at = 0;
        while at < self.shed.len() && port.has_room() {
            if !self.backlog.is_lane_empty(self.shed[at].lane) {
                at += 1;
                continue;
            }
            let ShedCount { subject, count, from_ns, to_ns, .. } = self.shed.remove(at);
            report_loss(
                port,
                LossReport { subject: &subject, count, from_ns, to_ns, ..empty_loss(Loss::Shed) },
            );
        }
        for (loss, count) in Loss::ALL.into_iter().zip(&mut self.uncounted) {
            if *count > 0 && port.has_room() {
                report_loss(port, LossReport { count: std::mem::take(count), ..empty_loss(loss) });
            }
        }
        self.backlog.is_empty() || size > 0
    }

    /// Publishes held datagrams, one lane after the other from where the last call ended. Returns the number of
    /// bytes.
    fn publish_held(&mut self, port: &mut HubPort, size_max: usize) -> usize {
        let mut size = 0;
        for _ in 0..self.backlog.lanes().count() {
            let Some(lane) = self.backlog.next_lane(self.next_lane).or_else(|| self.backlog.next_lane(0))
            else {
                break;
            };
            while !self.backlog.is_lane_empty(lane) && size < size_max && port.has_room_for(lane_token(lane))
            {
                if let Some(waiting) = self.backlog.pop(lane) {
                    publish(port, lane_token(lane), &waiting.subject, &waiting.message);
                    size += waiting.subject.len() + waiting.message.len() + 1;
                }
            }
            self.next_lane = lane.wrapping_add(1);
            if size >= size_max {
                break;
            }
        }
        size
    }

    /// The tokens that wait for room.
    fn waiting_tokens(&self) -> impl Iterator<Item = Token> {
        let has_reports = self.uncounted != [0; Loss::ALL.len()]
            || self.shed.iter().any(|shed| self.backlog.is_lane_empty(shed.lane));
        let reports = has_reports.then(|| lane_token(NO_STREAM));
        self.backlog.lanes().map(lane_token).chain(reports)
    }
}

fn empty_loss(loss: Loss) -> LossReport<'static> {
    let (from_ns, to_ns) = (UnixNanos::EPOCH, UnixNanos::EPOCH);
    LossReport { ingress: Ingress::Syslog, subject: b"", loss, count: 0, from_ns, to_ns }
}

fn report_loss(port: &mut HubPort, lost: LossReport<'_>) {
    port.push_request(lane_token(NO_STREAM), ClientOptions::default(), &HubRequest::LossReport(lost));
}

/// The caller has made sure of room.
fn publish(port: &mut HubPort, token: Token, subject: &[u8], payload: &[u8]) {
    let publication = Publication {
        ingress: Ingress::Syslog,
        subject,
        reply: b"",
        headers: b"",
        payload: payload.into(),
        ticket: None,
    };
    port.push_request(token, ClientOptions::default(), &HubRequest::Publish(publication));
}

/// Removes the terminators that some senders put into datagrams.
fn trim_terminators(mut message: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r' | b'\0'] = message {
        message = rest;
    }
    message
}

impl SyslogShard {
    /// Publishes a part of the backlog before connections take the new room, once per turn.
    pub(crate) fn publish_backlog_share(&mut self, port: &mut HubPort) {
        if !self.has_published_backlog && port.has_waiting() && !self.has_published_all() {
            self.has_published_backlog = self.publish_backlog(port, BACKLOG_BYTES_PER_TURN);
        }
    }

    /// Ends a turn of the shard: publishes the backlog, as far as there is room.
    pub(crate) fn turn(&mut self, port: &mut HubPort) {
        self.publish_backlog(port, usize::MAX);
        self.has_published_backlog = false;
        port.set_shard_waiters(self.waiting_tokens());
    }

    /// Ends the Unix datagram sockets: senders get an error and can connect to the successor's.
    pub(crate) fn end_unix_sockets(&self) {
        for socket in &self.unix_sockets {
            // A socket allows this at any time.
            let _ = rustix::net::shutdown(socket, Shutdown::Read);
        }
    }

    /// Reads the rest of the queues of the Unix datagram sockets, which have no other reader now.
    pub(crate) fn read_unix_sockets(&mut self, port: &mut HubPort, now_ns: impl Fn() -> UnixNanos) {
        let mut bytes = [0; DATAGRAM_SIZE_MAX];
        let from = SocketAddr::from(([0, 0, 0, 0], 0));
        for socket in std::mem::take(&mut self.unix_sockets) {
            while let Ok((size, whole)) = recv(&socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                let (payload, truncated) = (&bytes[..size], whole > size);
                let datagram = Datagram { from, local: None, payload, truncated };
                self.receive(port, &datagram, None, &now_ns);
            }
        }
    }

    /// Reads the rest of the queues of the UDP sockets, which have no other reader now, and closes them. Datagrams
    /// arrive until then, so at most [`UDP_FINAL_READS_MAX`] are read.
    pub(crate) fn read_udp_sockets(&mut self, port: &mut HubPort, now_ns: impl Fn() -> UnixNanos) {
        let mut bytes = [0; DATAGRAM_SIZE_MAX];
        for socket in std::mem::take(&mut self.udp_sockets) {
            for _ in 0..UDP_FINAL_READS_MAX {
                let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
                let Ok((size, whole, Some(from))) = recvfrom(&socket, &mut bytes, flags) else { break };
                let Ok(from) = SocketAddr::try_from(from) else { break };
                let (payload, truncated) = (&bytes[..size], whole > size);
                let datagram = Datagram { from, local: None, payload, truncated };
                self.receive(port, &datagram, Some(from.ip()), &now_ns);
            }
        }
    }

    /// Closes the descriptors of the UDP sockets: another server reads their queues.
    pub(crate) fn close_udp_sockets(&mut self) {
        self.udp_sockets.clear();
    }

    /// Publishes a datagram, or holds it until there is room. `source` is `None` on a Unix socket, where the file
    /// mode decides which processes may send.
    pub(crate) fn receive(
        &mut self,
        port: &mut HubPort,
        datagram: &Datagram<'_>,
        source: Option<IpAddr>,
        now_ns: impl FnOnce() -> UnixNanos,
    ) {
        if source.is_some() && !self.admits(source) {
            return self.count(Loss::Forbidden);
        }
        let size_max = self.limits.message_size_max as usize;
        let message = &datagram.payload[..datagram.payload.len().min(size_max)];
        if datagram.truncated || message.len() < datagram.payload.len() {
            self.count(Loss::TooLarge);
        }
        let message = trim_terminators(message);
        if message.is_empty() {
            return self.count(Loss::Malformed);
        }
        let severity = self.parse(message);
        let lane = self.lane();
        if self.backlog.is_lane_empty(lane) && port.has_room_for(lane_token(lane)) {
            return publish(port, lane_token(lane), &self.subject, message);
        }
        let source = source.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        if !self.backlog.push(lane, (severity, source), &self.subject, message) {
            self.count_shed(lane, now_ns());
        }
    }

    /// Publishes a message from a connection. The caller has made sure of room.
    pub(super) fn publish(&mut self, port: &mut HubPort, token: Token, message: &[u8]) {
        let message = trim_terminators(message);
        if message.is_empty() {
            return self.count(Loss::Malformed);
        }
        self.parse(message);
        publish(port, token, &self.subject, message);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn count_shed(shard: &mut SyslogShard, lane: SyslogLane, number: usize) {
        shard.subject = format!("stream{lane}.{number}").into_bytes();
        shard.count_shed(lane, UnixNanos::from_nanos(number as u64));
    }

    #[test]
    fn a_full_table_counts_shed_messages_for_their_own_stream() {
        const STREAMS: SyslogLane = 3;
        let mut shard = SyslogShard::default();
        // The first stream fills the table, and the subjects of the others come in turn.
        for number in 0..SHED_SUBJECTS_MAX {
            count_shed(&mut shard, 0, number);
        }
        for number in 0..100 {
            (0..STREAMS).for_each(|lane| count_shed(&mut shard, lane, number));
        }
        assert_eq!(shard.shed.len(), SHED_SUBJECTS_MAX + STREAMS as usize - 1);
        let mut counts = BTreeMap::new();
        for shed in &shard.shed {
            let prefix = format!("stream{}.", shed.lane);
            assert!(shed.subject.starts_with(prefix.as_bytes()), "the subject is one of the stream's");
            assert!(shed.from_ns <= shed.to_ns);
            *counts.entry(shed.lane).or_insert(0) += shed.count;
        }
        assert_eq!(counts, BTreeMap::from([(0, 100 + SHED_SUBJECTS_MAX as u64), (1, 100), (2, 100)]));
        assert_eq!(shard.shed[1].count, 2, "a subject that has an entry goes on counting there");
    }
}
