//! A publishing connection: messages in batches of half a window.

use std::collections::VecDeque;
use std::io::Read;
use std::net::TcpStream;

use super::codec::{ReceivedItem, subject_of};
use super::connection::{OutputBuffer, would_block};
use super::expected::ExpectedDeliveries;
use super::limits::CONTROL_SIZE_MAX;
use super::plan::BroadcastPlan;
use super::subscriber::Verifier;
use crate::collect::PayloadId;

/// Batches of a window, if it has more than one message.
const BATCHES: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct PublishedBatch {
    /// Counter behind its last message.
    pub(super) end: u64,
    /// Time before its first byte was written, in nanoseconds after the start.
    pub(super) written_ns: u64,
}

pub(super) struct Publisher {
    number: u16,
    stream: TcpStream,
    output: OutputBuffer,
    /// Messages of one batch.
    batch_size: u64,
    batches_max: usize,
    batches: VecDeque<PublishedBatch>,
    /// Messages still to send.
    left: u64,
    /// Subscribers that have not received all of the oldest batch.
    pub(super) waiting: usize,
    /// The right answer to a publication; empty without answers.
    answer: Vec<u8>,
    answers_due: u64,
    unfinished: Vec<u8>,
    payload: Vec<u8>,
    is_writing: bool,
}

/// Messages of a batch and number of batches for a window.
fn batches_of(window: u32) -> (u64, u64) {
    let window = u64::from(window);
    if window < BATCHES { (1, 1) } else { (window / BATCHES, BATCHES) }
}

/// The empty ring for a publisher's deliveries of `size` bytes.
pub(super) fn expected_deliveries(size: usize, window: u32) -> ExpectedDeliveries {
    let (batch_size, batches) = batches_of(window);
    ExpectedDeliveries::new(size, batch_size * batches)
}

impl Publisher {
    /// A publisher whose stream has delivered `input` since its opening.
    pub(super) fn new(
        plan: &BroadcastPlan,
        number: u16,
        stream: TcpStream,
        input: Vec<u8>,
        verifier: &Verifier,
    ) -> Publisher {
        let (batch_size, batches_max) = batches_of(plan.window);
        Publisher {
            number,
            stream,
            output: OutputBuffer::default(),
            batch_size,
            batches_max: batches_max as usize,
            batches: VecDeque::new(),
            left: plan.share(number),
            waiting: 0,
            answer: verifier.codec.publications().publication_answer(plan.receivers()),
            answers_due: 0,
            unfinished: input,
            payload: Vec::with_capacity(plan.size as usize),
            is_writing: false,
        }
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether the window has room for a batch.
    pub(super) fn may_publish(&self) -> bool {
        self.left > 0 && self.batches.len() < self.batches_max
    }

    /// Whether the rate of the plan allows a batch at this time after the start.
    pub(super) fn is_due(&self, plan: &BroadcastPlan, now: u64) -> bool {
        let sent = plan.share(self.number) - self.left;
        plan.rate.is_none_or(|rate| u128::from(sent) * 1_000_000_000 <= u128::from(now) * u128::from(rate))
    }

    /// Whether all messages so far have been received and answered.
    pub(super) fn is_idle(&self) -> bool {
        self.batches.is_empty() && self.answers_due == 0
    }

    pub(super) fn has_more(&self) -> bool {
        self.left > 0
    }

    pub(super) fn oldest_batch(&self) -> Option<PublishedBatch> {
        self.batches.front().copied()
    }

    pub(super) fn remove_oldest_batch(&mut self) {
        self.batches.pop_front();
    }

    /// Encodes a batch and its expected deliveries. `head` is that of any subscription.
    pub(super) fn publish(&mut self, plan: &BroadcastPlan, head: &[u8], verifier: &mut Verifier, now: u64) {
        let Verifier { codec, pattern, expected, .. } = verifier;
        let expected = &mut expected[usize::from(self.number)];
        let count = self.batch_size.min(self.left);
        let mut subject = plan.subject.clone();
        let start = self.output.bytes().len();
        for _ in 0..count {
            let counter = expected.sent();
            if plan.subjects.is_some() {
                subject = subject_of(plan, counter);
            }
            self.payload.clear();
            pattern.write(PayloadId { client: self.number, counter }, &mut self.payload);
            expected.push([head, &self.payload, codec.delivery_tail()]);
            codec.publications().push_publication(&subject, &self.payload, self.output.bytes());
        }
        codec.publications().finish_batch(start, self.output.bytes());
        self.left -= count;
        if plan.is_passive {
            self.output.bytes().truncate(start);
        } else if !self.answer.is_empty() {
            self.answers_due += count;
        }
        self.batches.push_back(PublishedBatch { end: expected.sent(), written_ns: now });
    }

    /// Writes what the kernel accepts; returns whether the readiness to wait for has changed.
    pub(super) fn write(&mut self) -> Result<bool, String> {
        let is_done = self.output.write(&mut self.stream).map_err(|error| error.to_string())?;
        let was_writing = std::mem::replace(&mut self.is_writing, !is_done);
        Ok(was_writing != self.is_writing)
    }

    pub(super) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Reads once and verifies the answers; returns the number of received bytes.
    pub(super) fn receive(&mut self, buffer: &mut [u8], verifier: &Verifier) -> Result<usize, String> {
        let kept = self.unfinished.len();
        buffer[..kept].copy_from_slice(&self.unfinished);
        let room = buffer.len() - CONTROL_SIZE_MAX;
        let count = match self.stream.read(&mut buffer[kept..kept + room]) {
            Ok(0) => return Err("it closed a publisher's connection".to_owned()),
            Ok(count) => count,
            Err(error) if would_block(&error) => return Ok(0),
            Err(error) => return Err(error.to_string()),
        };
        let input = &buffer[..kept + count];
        let mut start = 0;
        loop {
            let rest = &input[start..];
            if self.answers_due > 0 && rest.starts_with(&self.answer) {
                self.answers_due -= 1;
                start += self.answer.len();
                continue;
            }
            match verifier.codec.publications().next_answer(rest)? {
                ReceivedItem::Control { size, answer } => {
                    self.output.bytes().extend_from_slice(answer);
                    start += size;
                }
                ReceivedItem::Incomplete => break,
                ReceivedItem::Delivery { .. } => return Err("a message to a publisher".to_owned()),
            }
        }
        self.unfinished.clear();
        self.unfinished.extend_from_slice(&input[start..]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_stay_within_the_window() {
        for window in [1, 2, 3, 64, 2047, 2048] {
            let (size, count) = batches_of(window);
            assert!(size * count <= u64::from(window) && size * count + 1 >= u64::from(window), "{window}");
        }
    }
}
