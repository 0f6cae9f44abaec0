//! Subscribers over SSE, WebSocket and NATS: they read at their own pace, leave and return, and resume by the means of
//! their protocol.

use std::collections::BTreeSet;
use std::time::Duration;

use stilling_ring::Time;

use super::decode::{self, ClientOpcode, ServerFrame};
use super::ledger::{EpochKey, NatsRun};
use super::message::STREAMS;
use super::parameters::LAST_PUBLISHERS;
use super::position::SubscriberPosition;
use super::world::BroadcastContext;
use crate::SplitMix64;
use crate::streams::message::MessageName;
use crate::streams::wire::{ClientWire, NatsInput, NatsMessage, WireError};

/// Interval of reads in the last phase, in which all subscribers come up to date.
const LAST_READ_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of such a read.
const LAST_READ_SIZE: usize = 4000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriberProtocol {
    Sse {
        is_json: bool,
    },
    WebSocket {
        is_json: bool,
    },
    /// A NATS subscription: what is published while it is connected.
    Nats,
    /// A JetStream consumer, created again behind the last record.
    Consumer,
}

/// A slow subscriber reads at most so many bytes per interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPace {
    pub(super) bytes: usize,
    pub(super) interval: Duration,
}

#[derive(Debug)]
pub(super) struct BroadcastSubscriber {
    protocol: SubscriberProtocol,
    position: SubscriberPosition,
    pace: Option<ReadPace>,
    reads_at: Time,
    /// More may have arrived than its pace allows to read now.
    has_unread: bool,
    /// Longest connection of a flapping subscriber.
    stay: Option<Duration>,
    leaves_at: Option<Time>,
    /// The head of the response has arrived, or the PONG behind SUB.
    is_open: bool,
    /// The request for a consumer has been sent.
    is_requested: bool,
    /// Filter of a second subscription of each connection, over NATS.
    second_filter: Option<String>,
    /// Messages of this connection, over NATS, with the index of their subscription.
    received: Vec<(usize, MessageName)>,
    /// Messages known as stored when this connection over NATS was made: it does not receive them.
    earlier: BTreeSet<MessageName>,
    /// This connection receives everything that the last publishers send.
    expects_last: bool,
}

impl BroadcastSubscriber {
    pub(super) fn new(
        protocol: SubscriberProtocol,
        position: SubscriberPosition,
        pace: Option<ReadPace>,
        stay: Option<Duration>,
        second_filter: Option<String>,
    ) -> BroadcastSubscriber {
        BroadcastSubscriber {
            protocol,
            position,
            pace,
            reads_at: Time::ZERO,
            has_unread: false,
            stay,
            leaves_at: None,
            is_open: false,
            is_requested: false,
            second_filter,
            received: Vec::new(),
            earlier: BTreeSet::new(),
            expects_last: false,
        }
    }

    pub(super) fn is_on_nats(&self) -> bool {
        matches!(self.protocol, SubscriberProtocol::Nats | SubscriberProtocol::Consumer)
    }

    /// Most bytes that wait for its connection: its messages that it has not received.
    pub(super) fn pending_max(&self, context: &BroadcastContext<'_>) -> usize {
        let ledger = &*context.ledger;
        if self.protocol != SubscriberProtocol::Nats {
            let passed = self.position.passed(ledger);
            let is_passed = |name| passed.contains(&name);
            return ledger.encoded_size_max(self.position.stream(), self.position.filter(), is_passed);
        }
        let received: BTreeSet<_> = self.received.iter().copied().collect();
        let size_max = |(subscription, filter): (usize, &str)| {
            let is_excluded = |name| self.earlier.contains(&name) || received.contains(&(subscription, name));
            ledger.encoded_size_max(self.position.stream(), filter, is_excluded)
        };
        self.filters().enumerate().map(size_max).sum()
    }

    /// Whether it has two subscriptions on a connection. Such a connection gets copies instead of a position in a feed, so
    /// those of a burst may fill the output memory.
    pub(super) fn has_copies(&self) -> bool {
        self.second_filter.is_some()
    }

    pub(super) fn is_slow(&self) -> bool {
        self.pace.is_some()
    }

    pub(super) fn position(&self) -> &SubscriberPosition {
        &self.position
    }

    /// The filters of its subscriptions.
    fn filters(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.position.filter()).chain(self.second_filter.as_deref())
    }

    fn key(&self, run: u32) -> EpochKey {
        EpochKey::new(self.position.stream(), run)
    }

    pub(super) fn dialled(&mut self, wire: &mut ClientWire, context: &mut BroadcastContext<'_>) {
        (self.is_open, self.is_requested) = (false, false);
        self.reads_at = context.now;
        if self.protocol == SubscriberProtocol::Nats {
            self.earlier = context.ledger.proven_until(self.key(context.run), u64::MAX);
        }
        self.leaves_at = self.stay.filter(|_| !context.is_last_phase).map(|most| {
            context.now.after(Duration::from_micros(context.random.below(most.as_micros() as u64)))
        });
        match self.protocol {
            SubscriberProtocol::Sse { is_json } => {
                let from = self.position.connect();
                // A browser repeats its first request and adds the header.
                let (query, header) = if from.contains('-') { ("new", &*from) } else { (&*from, "") };
                wire.line(&format!("GET {} HTTP/1.1", self.target(is_json, query)));
                wire.line("Host: localhost");
                if !header.is_empty() {
                    wire.line(&format!("Last-Event-ID: {header}"));
                }
                wire.line("Accept: text/event-stream\r\n");
            }
            SubscriberProtocol::WebSocket { is_json } => {
                let from = self.position.connect();
                decode::request_websocket(wire, &self.target(is_json, &from));
            }
            SubscriberProtocol::Nats => {
                wire.line("CONNECT {\"verbose\":false,\"headers\":true}");
                for (sid, filter) in (1..).zip(self.filters()) {
                    wire.line(&format!("SUB {filter} {sid}"));
                }
                wire.line("PING");
            }
            SubscriberProtocol::Consumer => wire.line("CONNECT {\"verbose\":false,\"headers\":true}"),
        }
    }

    fn target(&self, is_json: bool, from: &str) -> String {
        let filter = self.position.filter().replace('>', "%3E");
        let format = if is_json { "json" } else { "raw" };
        format!("/subscribe/{filter}?format={format}&from={from}")
    }

    /// Requests the consumer of a new connection, whose run of the server is known.
    fn request_consumer(&mut self, wire: &mut ClientWire, run: u32) {
        let next = self.position.connect_consumer(self.key(run));
        let (stream, filter) = (STREAMS[self.position.stream()], self.position.filter());
        // A consumer of an earlier connection may still exist.
        let own = format!("{}.{}", self.position.number(), wire.attempt);
        let config = format!(
            "{{\"stream_name\":\"{stream}\",\"config\":{{\"deliver_subject\":\"_D.{own}\",\"ack_policy\":\"none\",\
             \"filter_subject\":\"{filter}\",\"deliver_policy\":\"by_start_sequence\",\"opt_start_seq\":{next}}}}}"
        );
        wire.line(&format!("SUB _D.{own} 1"));
        wire.line(&format!("SUB _R.{own} 2"));
        wire.publish(
            &format!("$JS.API.CONSUMER.CREATE.{stream}"),
            &format!("_R.{own}"),
            "",
            config.as_bytes(),
        );
    }

    /// Whether a flapping subscriber leaves now.
    pub(super) fn leaves(&self, context: &BroadcastContext<'_>) -> bool {
        !context.is_last_phase && self.leaves_at.is_some_and(|at| at <= context.now)
    }

    /// Most bytes that it reads now.
    pub(super) fn budget(&mut self, context: &BroadcastContext<'_>) -> usize {
        let Some(ReadPace { bytes, interval }) = self.pace else { return usize::MAX };
        if context.is_last_phase && context.may_close_anyone {
            // Otherwise they might not come up to date before they are disconnected again.
            return usize::MAX;
        }
        if context.now < self.reads_at {
            self.has_unread = true;
            return 0;
        }
        let (bytes, interval) = match context.is_last_phase {
            true => (bytes.max(LAST_READ_SIZE), interval.min(LAST_READ_INTERVAL)),
            false => (bytes, interval),
        };
        self.reads_at = context.now.after(interval);
        bytes
    }

    /// Notes how much of its budget it has read.
    pub(super) fn note_read(&mut self, len: usize, budget: usize) {
        if budget > 0 {
            self.has_unread = len == budget;
        }
    }

    /// Time at which it has something to do.
    pub(super) fn next_step(&self, now: Time) -> Option<Time> {
        let reads_at = Some(self.reads_at).filter(|_| self.pace.is_some() && self.has_unread);
        reads_at.into_iter().chain(self.leaves_at).filter(|at| *at > now).min()
    }

    /// From now on the last publishers send.
    pub(super) fn expect_last(&mut self) {
        self.expects_last = self.protocol == SubscriberProtocol::Nats;
    }

    /// Ends a connection.
    pub(super) fn left(&mut self, run: u32, context: &mut BroadcastContext<'_>) {
        (self.leaves_at, self.expects_last) = (None, false);
        let (key, received) = (self.key(run), std::mem::take(&mut self.received));
        for (subscription, filter) in self.filters().enumerate() {
            let own = received.iter().filter(|(of, _)| *of == subscription);
            let names = own.map(|(_, name)| *name).collect();
            context.ledger.end_nats_run(NatsRun { key, filter: Some(filter.to_owned()), names });
        }
        let names = received.into_iter().map(|(_, name)| name).collect();
        context.ledger.end_nats_run(NatsRun { key, filter: None, names });
    }

    /// Whether everything that is known has been received.
    pub(super) fn is_up_to_date(&self, run: u32, context: &BroadcastContext<'_>) -> bool {
        let key = self.key(run);
        let last = context.ledger.last_of(key, self.position.filter());
        let last = last.map(|(_, name)| name).filter(|name| LAST_PUBLISHERS.contains(&name.publisher));
        if self.protocol != SubscriberProtocol::Nats {
            // A consumer reports no gap where all that it wants has been removed or damaged.
            let may_have_nothing = self.protocol == SubscriberProtocol::Consumer
                && context.ledger.may_lack_records(self.position.stream());
            let is_up_to_date = self.position.is_up_to_date(key, context.ledger);
            return self.is_open && (is_up_to_date || may_have_nothing && last.is_none());
        }
        self.is_open && (!self.expects_last || self.has_last(key, context))
    }

    /// Whether each of its subscriptions over NATS has received the last record, if that is of a last publisher.
    fn has_last(&self, key: EpochKey, context: &BroadcastContext<'_>) -> bool {
        self.filters().enumerate().all(|(subscription, filter)| {
            let last = context.ledger.last_of(key, filter).map(|(_, name)| name);
            let last = last.filter(|name| LAST_PUBLISHERS.contains(&name.publisher));
            last.is_none_or(|name| self.received.contains(&(subscription, name)))
        })
    }

    /// Handles what has been received.
    pub(super) fn receive(
        &mut self,
        wire: &mut ClientWire,
        run: u32,
        context: &mut BroadcastContext<'_>,
    ) -> Result<(), WireError> {
        match self.protocol {
            SubscriberProtocol::Sse { is_json } => {
                if !self.is_head_received(wire, 200)? {
                    return Ok(());
                }
                while let Some(input) = decode::next_event(wire, is_json).map_err(WireError::Wrong)? {
                    let key = self.key(run);
                    self.position.receive(input, key, context.ledger).map_err(WireError::Wrong)?;
                }
                Ok(())
            }
            SubscriberProtocol::WebSocket { is_json } => {
                if !self.is_head_received(wire, 101)? {
                    return Ok(());
                }
                self.receive_frames(wire, is_json, run, context)
            }
            SubscriberProtocol::Nats | SubscriberProtocol::Consumer => {
                if self.protocol == SubscriberProtocol::Consumer
                    && wire.is_connected()
                    && !std::mem::replace(&mut self.is_requested, true)
                {
                    self.request_consumer(wire, run);
                }
                while let Some(input) = wire.next_nats()? {
                    match input {
                        NatsInput::Pong => self.is_open = true,
                        NatsInput::Message(message) => self.receive_nats(message, run, context)?,
                    }
                }
                Ok(())
            }
        }
    }

    fn is_head_received(&mut self, wire: &mut ClientWire, expected: u16) -> Result<bool, WireError> {
        if !self.is_open
            && let Some(status) = decode::next_head(wire).map_err(WireError::Wrong)?
        {
            if status != expected {
                return Err(WireError::Ended(format!("the server answers {status}")));
            }
            self.is_open = true;
        }
        Ok(self.is_open)
    }

    fn receive_frames(
        &mut self,
        wire: &mut ClientWire,
        is_json: bool,
        run: u32,
        context: &mut BroadcastContext<'_>,
    ) -> Result<(), WireError> {
        while let Some(frame) = decode::next_frame(wire).map_err(WireError::Wrong)? {
            match frame {
                ServerFrame::Ping(payload) => {
                    let mask = (context.random.bits() as u32).to_be_bytes();
                    decode::send_frame(wire, (ClientOpcode::Pong, true), &payload, mask);
                }
                ServerFrame::Pong => {}
                ServerFrame::Close(code) => return Err(WireError::Ended(format!("closed with {code}"))),
                frame => {
                    let key = self.key(run);
                    let input = decode::decode_message(&frame, is_json).map_err(WireError::Wrong)?;
                    self.position.receive(input, key, context.ledger).map_err(WireError::Wrong)?;
                }
            }
        }
        Ok(())
    }

    fn receive_nats(
        &mut self,
        NatsMessage { subject, sid, reply, payload }: NatsMessage,
        run: u32,
        context: &mut BroadcastContext<'_>,
    ) -> Result<(), WireError> {
        let key = self.key(run);
        if self.protocol == SubscriberProtocol::Nats {
            let name = context.ledger.identify(key, (Some(&subject), &payload)).map_err(WireError::Wrong)?;
            let subscription =
                (1..).zip(self.filters()).position(|(own, _): (u32, _)| own.to_string() == sid);
            let subscription =
                subscription.ok_or_else(|| WireError::Wrong(format!("{name} came for the sid {sid}")))?;
            self.received.push((subscription, name));
            return Ok(());
        }
        if subject.starts_with("_R.") {
            let text = String::from_utf8_lossy(&payload).into_owned();
            self.is_open = true;
            return match text.contains("\"error\"") {
                // The stream may not be open yet.
                true => Err(WireError::Ended(text)),
                false => Ok(()),
            };
        }
        if subject.starts_with("_D.") || reply.is_empty() {
            // A status message of the server.
            return Ok(());
        }
        let sequence = reply.split('.').nth(5).and_then(|word| word.parse().ok());
        let sequence = sequence.ok_or_else(|| WireError::Wrong(format!("a record has the reply {reply}")))?;
        let record = (subject.as_str(), payload.as_slice());
        self.position.receive_from_consumer(sequence, record, key, context.ledger).map_err(WireError::Wrong)
    }
}

/// Draws how a subscriber reads and stays.
pub(super) fn draw_habits(random: &mut SplitMix64) -> (Option<ReadPace>, Option<Duration>) {
    let pace = random.chance(350).then(|| ReadPace {
        bytes: random.between(100, 6000) as usize,
        interval: match random.below(10) {
            // Longer than the write timeout.
            0 => Duration::from_millis(random.between(5000, 12_000)),
            _ => Duration::from_micros(random.between(500, 60_000)),
        },
    });
    let stay = random.chance(350).then(|| Duration::from_micros(random.between(1000, 400_000)));
    (pace, stay)
}
