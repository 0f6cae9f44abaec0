//! A subscribing connection: every byte it receives is verified.
//!
//! If all subscribers receive the same bytes from one publisher, a read is compared with the expected deliveries as a
//! whole. Otherwise, and from the first difference on, each delivery is compared or decoded alone.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::codec::{BroadcastCodec, ReceivedItem, Subscription, shown};
use super::connection::would_block;
use super::expected::ExpectedDeliveries;
use super::frames::{FrameStripper, PONG};
use super::learned::LearnedDeliveries;
use super::limits::{CONTROL_SIZE_MAX, MISSED_RANGES_MAX, READ_SIZE};
use super::tally::{BroadcastTally, DeliveryFailure};
use crate::collect::Pattern;

/// What all subscribers of a run compare with.
pub(super) struct Verifier {
    pub(super) codec: Box<dyn BroadcastCodec>,
    pub(super) pattern: Pattern,
    /// One ring per publisher.
    pub(super) expected: Vec<ExpectedDeliveries>,
    pub(super) deliveries: DeliveryBytes,
    /// Distance of the counters of two messages to one subscriber.
    pub(super) stride: u64,
}

/// What is known of the bytes that a subscriber receives.
pub(super) enum DeliveryBytes {
    /// Subscribers receive different bytes, or in an order that is not known before.
    Various,
    /// All subscribers receive the expected bytes, in the order of publication.
    Known,
    /// All subscribers receive the same bytes in the order of publication, which the first of them decodes.
    Learned(LearnedDeliveries),
}

impl Verifier {
    /// Maximum bytes of an incomplete item.
    fn unfinished_max(&self) -> usize {
        let delivery = self.expected.iter().map(ExpectedDeliveries::size).max().unwrap_or(0);
        delivery + CONTROL_SIZE_MAX
    }

    /// Bytes of a buffer for one read behind an incomplete item.
    pub(super) fn buffer_size(&self) -> usize {
        // One byte is the room of a line end.
        READ_SIZE + self.unfinished_max() + 1
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
    /// WebSocket frames around the input.
    frames: Option<FrameStripper>,
    /// Bytes of the next delivery that have been compared.
    matched: usize,
    /// Offset of the next delivery among the learned ones.
    learned_start: u64,
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
            frames: verifier.codec.framing().map(|_| FrameStripper::default()),
            matched: 0,
            learned_start: 0,
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
        verifier: &mut Verifier,
        tally: &mut BroadcastTally,
    ) -> usize {
        let kept = self.unfinished.len();
        buffer[..kept].copy_from_slice(&self.unfinished);
        let start = kept + usize::from(self.frames.is_some());
        let count = match self.stream.read(&mut buffer[start..start + READ_SIZE]) {
            Ok(0) => return self.close(DeliveryFailure::Broken, "it closed the connection", tally),
            Ok(count) => count,
            Err(error) if would_block(&error) => return 0,
            Err(error) => return self.close(DeliveryFailure::Broken, &error.to_string(), tally),
        };
        let verified = self.strip(&mut buffer[kept..start + count], verifier).and_then(|size| {
            let input = &buffer[..kept + size];
            self.verify(input, verifier, tally)
        });
        if let Err(detail) = verified {
            self.close(DeliveryFailure::Protocol, &detail, tally);
        }
        count
    }

    /// Removes the heads of frames from new input, and answers pings; returns the size of what is left.
    fn strip(&mut self, input: &mut [u8], verifier: &Verifier) -> Result<usize, String> {
        let Some((frames, framing)) = self.frames.as_mut().zip(verifier.codec.framing()) else {
            return Ok(input.len());
        };
        let size = frames.strip(framing, input)?;
        for _ in 0..std::mem::take(&mut frames.pongs_due) {
            self.stream.write_all(PONG).map_err(|error| format!("cannot answer: {error}"))?;
        }
        Ok(size)
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
        verifier: &mut Verifier,
        tally: &mut BroadcastTally,
    ) -> Result<(), String> {
        match verifier.deliveries {
            DeliveryBytes::Learned(_) => self.verify_learned(input, verifier, tally),
            DeliveryBytes::Known if self.unfinished.is_empty() => self.verify_known(input, verifier, tally),
            _ => self.decode(input, verifier, tally),
        }
    }

    fn verify_known(
        &mut self,
        input: &[u8],
        verifier: &Verifier,
        tally: &mut BroadcastTally,
    ) -> Result<(), String> {
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

    /// Compares with the learned deliveries, decodes what differs, and learns the deliveries that follow the last one.
    fn verify_learned(
        &mut self,
        input: &[u8],
        verifier: &mut Verifier,
        tally: &mut BroadcastTally,
    ) -> Result<(), String> {
        let DeliveryBytes::Learned(mut learned) =
            std::mem::replace(&mut verifier.deliveries, DeliveryBytes::Various)
        else {
            return Ok(());
        };
        self.unfinished.clear();
        let verified = self.compare_or_decode(input, &mut learned, verifier, tally);
        verifier.deliveries = DeliveryBytes::Learned(learned);
        verified
    }

    fn compare_or_decode(
        &mut self,
        input: &[u8],
        learned: &mut LearnedDeliveries,
        verifier: &Verifier,
        tally: &mut BroadcastTally,
    ) -> Result<(), String> {
        let mut input = Cow::Borrowed(input);
        let mut start = 0;
        loop {
            let same = learned.matching(self.learned_start + self.matched as u64, &input[start..]);
            start += same;
            self.advance(same, learned, tally);
            if start == input.len() {
                return Ok(());
            }
            if self.matched > 0 {
                let begun = learned.range(self.learned_start, self.learned_start + self.matched as u64);
                input = Cow::Owned([begun, &input[start..]].concat());
                (start, self.matched) = (0, 0);
            }
            match self.decode_to_learn(&input[start..], learned, verifier, tally)? {
                Some(size) => start += size,
                None if input.len() - start > verifier.unfinished_max() => {
                    return Err(format!("an item without an end: {}", shown(&input[start..])));
                }
                None => {
                    self.unfinished.extend_from_slice(&input[start..]);
                    return Ok(());
                }
            }
        }
    }

    /// Counts the learned deliveries that further `same` bytes complete.
    fn advance(&mut self, same: usize, learned: &LearnedDeliveries, tally: &mut BroadcastTally) {
        let offset = self.learned_start + (self.matched + same) as u64;
        while let Some(delivery) = learned.get(self.next[0]).filter(|delivery| delivery.end <= offset) {
            self.next[0] += 1;
            tally.deliveries += 1;
            (self.learned_start, self.sequence) = (delivery.end, delivery.sequence);
        }
        self.matched = (offset - self.learned_start) as usize;
    }

    /// Decodes one item; returns its size if it is complete.
    fn decode_to_learn(
        &mut self,
        input: &[u8],
        learned: &mut LearnedDeliveries,
        verifier: &Verifier,
        tally: &mut BroadcastTally,
    ) -> Result<Option<usize>, String> {
        match verifier.codec.next_item(&self.subscription, input)? {
            ReceivedItem::Incomplete => Ok(None),
            ReceivedItem::Control { size, answer } => {
                self.stream.write_all(answer).map_err(|error| format!("cannot answer: {error}"))?;
                Ok(Some(size))
            }
            ReceivedItem::Delivery { size, payload, sequence } => {
                let counter = self.next[0];
                self.check_sequence(sequence, tally);
                self.check(&input[payload], verifier, tally);
                if self.next[0] == counter + 1 {
                    if counter == learned.len() {
                        let kept_max = verifier.expected[0].capacity();
                        learned.push(&input[..size], self.sequence, kept_max);
                    } else if !learned.ends_with(counter, &input[..size]) {
                        let detail = || format!("message {counter} with other bytes: {}", shown(input));
                        tally.fail(DeliveryFailure::WrongPayload, 1, detail);
                    }
                }
                let last = self.next[0].checked_sub(1).and_then(|last| learned.get(last));
                self.learned_start = last.map_or(learned.end(), |last| last.end);
                Ok(Some(size))
            }
        }
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
        if matches!(verifier.deliveries, DeliveryBytes::Known) && is_next(&verifier.expected[0]) {
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
