//! Decisions about a message, and errors of storing it.

use crate::deliveries::RefusalReason;
use crate::gate::{GateRecords, RejectReason};

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
