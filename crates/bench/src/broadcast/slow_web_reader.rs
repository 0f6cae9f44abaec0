//! A subscriber over SSE or WebSocket that disturbs a run by reading slowly.

use std::io::Write;
use std::net::TcpStream;

use super::codec::{ReceivedItem, Subscription, codec_for};
use super::connection::open_subscriber;
use super::disturbance::{DisturbanceFailure, ReadOutcome, check_next, read_once};
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
        if let Some(outcome) = read_once(&mut self.stream, buffer, &mut self.unfinished) {
            return Ok(outcome);
        }
        let codec = codec_for(plan);
        let input = std::mem::take(&mut self.unfinished);
        let mut start = 0;
        loop {
            let rest = &input[start..];
            let item = codec.next_item(&self.subscription, rest);
            match item.map_err(|detail| (DeliveryFailure::Protocol, detail))? {
                ReceivedItem::Delivery { size, payload, .. } => {
                    self.next = Some(check_next(&rest[payload], pattern, self.next, "a slow subscriber")?);
                    self.received += 1;
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
}
