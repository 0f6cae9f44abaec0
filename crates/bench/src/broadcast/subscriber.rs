//! A subscribing connection: every byte it receives is verified.
//!
//! If all subscribers receive the same bytes from one publisher, a read is compared with the expected deliveries as a
//! whole. Otherwise, and from the first difference on, each delivery is compared or decoded alone.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::codec::{BroadcastCodec, ReceivedItem, Subscription, shown};
use super::connection::would_block;
use super::expected::ExpectedDeliveries;
use super::limits::{CONTROL_SIZE_MAX, MISSED_RANGES_MAX, READ_SIZE};
use super::tally::{BroadcastTally, DeliveryFailure};
use crate::collect::Pattern;

/// What all subscribers of a run compare with.
pub(super) struct Verifier {
    pub(super) codec: Box<dyn BroadcastCodec>,
    pub(super) pattern: Pattern,
    /// One ring per publisher.
    pub(super) expected: Vec<ExpectedDeliveries>,
    /// All subscribers receive the same bytes, in an order known before.
    pub(super) is_uniform: bool,
    /// Distance of the counters of two messages to one subscriber.
    pub(super) stride: u64,
}

impl Verifier {
    /// Maximum bytes of an incomplete item.
    fn unfinished_max(&self) -> usize {
        let delivery = self.expected.iter().map(ExpectedDeliveries::size).max().unwrap_or(0);
        delivery + CONTROL_SIZE_MAX
    }

    /// Bytes of a buffer for one read behind an incomplete item.
    pub(super) fn buffer_size(&self) -> usize {
        READ_SIZE + self.unfinished_max()
    }
}

/// Messages of a publisher that were skipped by a later one.
#[derive(Debug)]
struct MissedRange {
    publisher: usize,
    first: u64,
    end: u64,
}

pub(super) struct FanOutSubscriber {
    stream: TcpStream,
    subscription: Subscription,
    /// Counter of the next message of each publisher.
    next: Vec<u64>,
    /// Bytes of the next delivery that have been compared.
    matched: usize,
    /// Input that is not decoded yet.
    unfinished: Vec<u8>,
    missed: Vec<MissedRange>,
    /// Sequence of the last decoded delivery; 0: none.
    sequence: u64,
    is_open: bool,
}

impl FanOutSubscriber {
    /// A subscriber whose stream has delivered `input` since its opening.
    pub(super) fn new(
        stream: TcpStream,
        subscription: Subscription,
        input: Vec<u8>,
        verifier: &Verifier,
    ) -> FanOutSubscriber {
        let first = u64::from(subscription.number) % verifier.stride;
        FanOutSubscriber {
            stream,
            subscription,
            next: vec![first; verifier.expected.len()],
            matched: 0,
            unfinished: input,
            missed: Vec::new(),
            sequence: 0,
            is_open: true,
        }
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Messages of a publisher before this counter are not awaited any more.
    pub(super) fn position(&self, publisher: usize) -> u64 {
        if self.is_open { self.next[publisher] } else { u64::MAX }
    }

    /// Reads once and verifies all input; returns the number of received bytes. A failure of the connection closes it.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        verifier: &Verifier,
        tally: &mut BroadcastTally,
    ) -> usize {
        let kept = self.unfinished.len();
        buffer[..kept].copy_from_slice(&self.unfinished);
        let count = match self.stream.read(&mut buffer[kept..kept + READ_SIZE]) {
            Ok(0) => return self.close(DeliveryFailure::Broken, "it closed the connection", tally),
            Ok(count) => count,
            Err(error) if would_block(&error) => return 0,
            Err(error) => return self.close(DeliveryFailure::Broken, &error.to_string(), tally),
        };
        if let Err(detail) = self.verify(&buffer[..kept + count], verifier, tally) {
            self.close(DeliveryFailure::Protocol, &detail, tally);
        }
        count
    }

    fn close(&mut self, failure: DeliveryFailure, detail: &str, tally: &mut BroadcastTally) -> usize {
        self.is_open = false;
        tally.fail(failure, 1, || format!("subscriber {}: {detail}", self.subscription.number));
        0
    }

    /// Verifies `input`, which begins with the unfinished input.
    fn verify(
        &mut self,
        input: &[u8],
        verifier: &Verifier,
        tally: &mut BroadcastTally,
    ) -> Result<(), String> {
        if !verifier.is_uniform || !self.unfinished.is_empty() {
            return self.decode(input, verifier, tally);
        }
        let expected = &verifier.expected[0];
        let same = expected.matching(self.next[0], self.matched, input);
        let matched = self.matched + same;
        let whole = (matched / expected.size()) as u64;
        self.next[0] += whole;
        tally.deliveries += whole;
        self.matched = matched % expected.size();
        if same == input.len() {
            return Ok(());
        }
        let begun = expected.delivery(self.next[0]).unwrap_or_default();
        let rest = [&begun[..self.matched.min(begun.len())], &input[same..]].concat();
        self.matched = 0;
        self.decode(&rest, verifier, tally)
    }

    /// Decodes items one by one, and keeps what is incomplete.
    #[inline(never)]
    fn decode(
        &mut self,
        input: &[u8],
        verifier: &Verifier,
        tally: &mut BroadcastTally,
    ) -> Result<(), String> {
        let mut start = 0;
        loop {
            let rest = &input[start..];
            if let Some(size) = self.next_delivery_size(rest, verifier) {
                self.next[0] += verifier.stride;
                tally.deliveries += 1;
                start += size;
                continue;
            }
            match verifier.codec.next_item(&self.subscription, rest)? {
                ReceivedItem::Incomplete => break,
                ReceivedItem::Control { size, answer } => {
                    // Nothing else is written, so the socket has room.
                    self.stream.write_all(answer).map_err(|error| format!("cannot answer: {error}"))?;
                    start += size;
                }
                ReceivedItem::Delivery { size, payload, sequence } => {
                    self.check_sequence(sequence, tally);
                    self.check(&rest[payload], verifier, tally);
                    start += size;
                }
            }
        }
        if input.len() - start > verifier.unfinished_max() {
            return Err(format!("an item without an end: {}", shown(&input[start..])));
        }
        self.keep(&input[start..], verifier);
        Ok(())
    }

    /// Keeps incomplete input: as compared bytes if it is the start of the next delivery.
    fn keep(&mut self, rest: &[u8], verifier: &Verifier) {
        self.unfinished.clear();
        let is_next = |expected: &ExpectedDeliveries| {
            expected.delivery(self.next[0]).is_some_and(|delivery| delivery.starts_with(rest))
        };
        if verifier.is_uniform && is_next(&verifier.expected[0]) {
            self.matched = rest.len();
        } else {
            self.unfinished.extend_from_slice(rest);
        }
    }

    /// The size of the delivery at the start of `input`, if it is exactly the next one of the only publisher.
    fn next_delivery_size(&self, input: &[u8], verifier: &Verifier) -> Option<usize> {
        let [expected] = &verifier.expected[..] else { return None };
        let delivery = expected.delivery(self.next[0])?;
        // Heads of subscriptions differ, and have the same size.
        let head = &self.subscription.head;
        let is_next = input.len() >= delivery.len()
            && input.starts_with(head)
            && input[head.len()..delivery.len()] == delivery[head.len()..];
        is_next.then_some(delivery.len())
    }

    fn check_sequence(&mut self, sequence: Option<u64>, tally: &mut BroadcastTally) {
        let Some(sequence) = sequence else { return };
        let last = std::mem::replace(&mut self.sequence, sequence);
        if sequence <= last {
            let number = self.subscription.number;
            let detail = || format!("subscriber {number}: sequence {sequence} after {last}");
            tally.fail(DeliveryFailure::WrongSequence, 1, detail);
        }
    }

    /// Checks a payload that may be any message.
    fn check(&mut self, payload: &[u8], verifier: &Verifier, tally: &mut BroadcastTally) {
        let number = self.subscription.number;
        let stride = verifier.stride;
        let is_own = |counter: u64| stride == 1 || counter % stride == u64::from(number);
        let known = verifier.pattern.check(payload);
        let known = known.filter(|id| usize::from(id.client) < verifier.expected.len() && is_own(id.counter));
        let Some(id) = known else {
            let detail = || format!("subscriber {number}: {}", shown(payload));
            return tally.fail(DeliveryFailure::WrongPayload, 1, detail);
        };
        let (publisher, counter) = (usize::from(id.client), id.counter);
        let expected = self.next[publisher];
        let detail = || {
            format!("subscriber {number}: message {counter} instead of {expected} of publisher {publisher}")
        };
        if counter >= verifier.expected[publisher].sent() {
            return tally.fail(DeliveryFailure::NeverSent, 1, detail);
        }
        if counter < expected {
            return match self.take_missed(publisher, counter, stride) {
                true => tally.arrive_late(detail),
                false => tally.fail(DeliveryFailure::Repeated, 1, detail),
            };
        }
        if counter > expected {
            tally.fail(DeliveryFailure::Undelivered, (counter - expected) / stride, detail);
            self.add_missed(MissedRange { publisher, first: expected, end: counter });
        }
        self.next[publisher] = counter + stride;
        tally.deliveries += 1;
    }

    fn add_missed(&mut self, range: MissedRange) {
        if range.first < range.end && self.missed.len() < MISSED_RANGES_MAX {
            self.missed.push(range);
        }
    }

    /// Returns whether a message was missed; it is not afterwards.
    fn take_missed(&mut self, publisher: usize, counter: u64, stride: u64) -> bool {
        let holds =
            |range: &MissedRange| range.publisher == publisher && (range.first..range.end).contains(&counter);
        let Some(at) = self.missed.iter().position(holds) else { return false };
        let MissedRange { first, end, .. } = self.missed.swap_remove(at);
        self.add_missed(MissedRange { publisher, first, end: counter });
        self.add_missed(MissedRange { publisher, first: counter + stride, end });
        true
    }

    /// Counts the messages that never arrived.
    pub(super) fn finish(&self, verifier: &Verifier, tally: &mut BroadcastTally) {
        for (publisher, expected) in verifier.expected.iter().enumerate() {
            let missing = expected.sent().saturating_sub(self.next[publisher]).div_ceil(verifier.stride);
            let number = self.subscription.number;
            let detail =
                || format!("subscriber {number}: the last {missing} messages of publisher {publisher}");
            tally.fail(DeliveryFailure::Undelivered, missing, detail);
        }
    }
}
