//! Requests of connections that go into a publication batch before those that wait for room.

use std::collections::VecDeque;

use stilling_engine::Token;
use stilling_hub::{ClientOptions, HubRequest, PublicationBatch, ShardSubscriptions};

/// A request that cannot be delayed until the next call of its connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum ControlRequest {
    MarkReached(u64),
    CancelPulls,
    CloseAfterAcks,
}

/// Moves control requests into a publication batch, as far as it has room.
pub(super) fn push_control(
    table: &mut ShardSubscriptions,
    publication_batch: &mut PublicationBatch,
    control: &mut VecDeque<(Token, ControlRequest)>,
) {
    while !publication_batch.is_full()
        && let Some((token, request)) = control.pop_front()
    {
        let request = match request {
            ControlRequest::MarkReached(mark) => HubRequest::MarkReached { mark },
            ControlRequest::CancelPulls => HubRequest::CancelPulls,
            ControlRequest::CloseAfterAcks => HubRequest::CloseAfterAcks,
        };
        table.push(publication_batch, token.bits(), ClientOptions::default(), &request);
    }
}
