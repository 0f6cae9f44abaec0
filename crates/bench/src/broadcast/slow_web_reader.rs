//! A subscriber over SSE or WebSocket that disturbs a run by reading slowly.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::codec::{ReceivedItem, Subscription, codec_for, shown};
use super::connection::{open_subscriber, would_block};
use super::disturbance::{DisturbanceFailure, ReadOutcome};
use super::error::BroadcastError;
use super::plan::BroadcastPlan;
use super::tally::DeliveryFailure;
use crate::collect::Pattern;

pub(super) struct SlowWebReader {
    stream: TcpStream,
    subscription: Subscription,
    unfinished: Vec<u8>,
    /// Counter of the next message, once one has been received.
    next: Option<u64>,
    pub(super) received: u64,
}

impl SlowWebReader {
    /// Opens a connection of the run's protocol, and returns when it has subscribed.
    pub(super) fn open(plan: &BroadcastPlan) -> Result<SlowWebReader, BroadcastError> {
        let codec = codec_for(plan);
        let subscription = Subscription::new(plan, &*codec, 0);
        let (stream, unfinished) = open_subscriber(plan, &*codec, &subscription)?;
        Ok(SlowWebReader { stream, subscription, unfinished, next: None, received: 0 })
    }

    /// Reads once, and verifies all complete messages: right, and without a gap or a repetition.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        pattern: &Pattern,
        plan: &BroadcastPlan,
    ) -> Result<ReadOutcome, DisturbanceFailure> {
        match self.stream.read(buffer) {
            Ok(0) => return Ok(ReadOutcome::Closed),
            Ok(count) => self.unfinished.extend_from_slice(&buffer[..count]),
            Err(error) if would_block(&error) => return Ok(ReadOutcome::Open),
            // A server that closes with unread input resets the connection.
            Err(_) => return Ok(ReadOutcome::Closed),
        }
        let codec = codec_for(plan);
        let input = std::mem::take(&mut self.unfinished);
        let mut start = 0;
        loop {
            let rest = &input[start..];
            let item = codec.next_item(&self.subscription, rest);
            match item.map_err(|detail| (DeliveryFailure::Protocol, detail))? {
                ReceivedItem::Delivery { size, payload, .. } => {
                    self.check(&rest[payload], pattern)?;
                    start += size;
                }
                ReceivedItem::Control { size, answer } => {
                    let _ = self.stream.write_all(answer);
                    start += size;
                }
                ReceivedItem::Incomplete => break,
            }
        }
        self.unfinished.extend_from_slice(&input[start..]);
        Ok(ReadOutcome::Open)
    }

    fn check(&mut self, payload: &[u8], pattern: &Pattern) -> Result<(), DisturbanceFailure> {
        let Some(id) = pattern.check(payload) else {
            return Err((DeliveryFailure::WrongPayload, shown(payload)));
        };
        let next = *self.next.get_or_insert(id.counter);
        let detail = || format!("a slow subscriber: message {} instead of {next}", id.counter);
        if id.counter < next {
            return Err((DeliveryFailure::Repeated, detail()));
        }
        if id.counter > next {
            return Err((DeliveryFailure::Undelivered, detail()));
        }
        self.next = Some(next + 1);
        self.received += 1;
        Ok(())
    }
}
