//! Outcomes of publications, as their connections learn them.

/// Result of publishing a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishOutcome {
    /// A stream stored the message, as durably as the stream is configured.
    Stored {
        /// Number of the stream.
        stream: u32,
        /// Sequence of the record.
        sequence: u64,
        /// The message was already in the stream.
        duplicate: bool,
    },
    /// No stream matches the subject; the message was sent to its subscribers.
    Forwarded {
        /// Number of these subscriptions.
        subscriptions: u32,
    },
    /// The message was not accepted.
    Refused(RefusalReason),
}

/// Reason why a message was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// The stream is frozen after a disk error.
    Frozen {
        /// Number of the stream.
        stream: u32,
    },
    /// The disk has not responded within the stall timeout. The message may be sent again later.
    Hung {
        /// Number of the stream.
        stream: u32,
    },
    /// The disk has no room, and the stream is full or has waited for the stall timeout. The message may be sent again
    /// later.
    NoRoom {
        /// Number of the stream.
        stream: u32,
    },
    /// The stream's directory is not open yet. The message may be sent again later.
    Closed {
        /// Number of the stream.
        stream: u32,
    },
    /// The message exceeds the stream's maximum size.
    TooLarge {
        /// Number of the stream.
        stream: u32,
    },
    /// The message expects another last sequence of the stream.
    WrongLastSequence {
        /// Number of the stream.
        stream: u32,
        /// The stream's last sequence.
        last: u64,
    },
    /// The message expects another stream.
    WrongStream {
        /// Number of the stream.
        stream: u32,
    },
    /// The message has an unknown condition.
    UnknownCondition {
        /// Number of the stream.
        stream: u32,
    },
    /// The stream's gate rejects the message. The reason is separate: [`DeliveryItem::Rejection`](crate::DeliveryItem::Rejection).
    Gate {
        /// Number of the stream.
        stream: u32,
    },
}

impl RefusalReason {
    /// Returns the number of the stream.
    #[must_use]
    pub const fn stream(self) -> u32 {
        match self {
            RefusalReason::Frozen { stream }
            | RefusalReason::Hung { stream }
            | RefusalReason::NoRoom { stream }
            | RefusalReason::Closed { stream }
            | RefusalReason::TooLarge { stream }
            | RefusalReason::WrongLastSequence { stream, .. }
            | RefusalReason::WrongStream { stream }
            | RefusalReason::UnknownCondition { stream }
            | RefusalReason::Gate { stream } => stream,
        }
    }
}
