//! Decisions about a message, and errors of storing it.

use crate::gate::{GateRecords, RejectReason};
use crate::publish_outcome::RefusalReason;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoreDecision {
    /// Stores it, with this message id.
    Accept(Option<u128>),
    /// Stores the records of the gate instead, with this message id.
    AcceptAs(Option<u128>, GateRecords),
    /// It is stored already, under this sequence.
    Duplicate(u64),
    Reject(RefusalReason),
    /// The gate rejects it.
    RejectByGate(RejectReason),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ApplyError {
    /// No batch is free: the message must wait.
    NoBatch,
    /// It is longer than a batch.
    TooLarge,
}

/// Returns whether a header with prefix `Nats-` and this rest requests an unsupported feature. Such a message is
/// refused: storing it without the feature would not be what the client requested.
pub(super) fn is_unknown_condition(rest: &[u8]) -> bool {
    let is_one_of = |all: [&[u8]; 3]| all.contains(&rest);
    [&b"Expected-"[..], b"Batch-", b"Schedule"].iter().any(|start| rest.starts_with(start))
        || is_one_of([b"Rollup", b"TTL", b"Incr"])
}
