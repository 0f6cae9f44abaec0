//! Start positions of subscriptions to a stream, and notices about what they miss.

use stilling_journal::Gap;

use crate::time::UnixNanos;

/// Where a subscription to a stream begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartFrom {
    /// After the last visible record.
    New,
    /// At a sequence; 0 and 1 are the oldest record.
    Sequence(u64),
    /// At the last records, at most this many.
    Last(u64),
    /// At the first record of this time or later.
    Time(UnixNanos),
    /// After the last record that an earlier subscription received.
    After {
        /// Epoch of the stream.
        epoch: u64,
        /// Sequence of that record.
        sequence: u64,
    },
    /// At the sequence `next`, by the stream's policy for [slow subscribers](crate::SlowSubscribers): a live subscription
    /// whose client was too slow.
    Behind {
        /// Sequence after the last record that it was sent.
        next: u64,
    },
}

/// A request to send a subscription the records of a stream from a position on, until it is up to date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatchUpRequest<'a> {
    /// Number of the stream.
    pub stream: u32,
    /// Checked filter of the subscription.
    pub filter: &'a [u8],
    /// Start position.
    pub from: StartFrom,
}

/// A notice in the order of a subscription's messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubscriptionNotice {
    /// Kept records follow. From this position a client resumes that has no id of the stream yet.
    Started {
        /// Epoch of the stream.
        epoch: u64,
        /// Sequence before the first one to be sent.
        after: u64,
    },
    /// Records of these sequences are missing.
    Gap(Gap),
    /// Records of these sequences are not sent because the client was too slow.
    Skipped {
        /// First sequence.
        first: u64,
        /// Last sequence.
        last: u64,
    },
    /// The requested position does not exist; the subscription continues at another one.
    Reset {
        /// Why the position does not exist.
        cause: ResetCause,
        /// Epoch of the stream.
        epoch: u64,
        /// The next sequence.
        next: u64,
    },
    /// All earlier records have been sent. New ones follow as they become visible.
    CaughtUp {
        /// Epoch of the stream.
        epoch: u64,
        /// Last visible sequence.
        through: u64,
    },
    /// There is no room for the subscription.
    Refused,
    /// The client was too slow, and its stream disconnects such clients.
    Disconnected,
}

/// Why a position does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetCause {
    /// It belongs to another epoch of the stream: everything kept is new to the subscriber, and is sent.
    Epoch,
    /// The stream has not reached it: new records are sent.
    Ahead,
}

impl ResetCause {
    /// Returns the name in notices.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ResetCause::Epoch => "epoch",
            ResetCause::Ahead => "ahead",
        }
    }
}
