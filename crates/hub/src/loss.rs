//! Reasons why messages were not stored.

/// Reason why a message was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The stream is frozen.
    Frozen,
    /// The message exceeds the maximum size.
    TooLarge,
    /// A condition of the message does not hold.
    Condition,
    /// The message was shed before the hub: its source exceeded its budget.
    Shed,
    /// The message could not be parsed.
    Malformed,
    /// The source is not allowed.
    Forbidden,
    /// The stream's disk did not respond within the stall timeout, or its directory was not open.
    Hung,
    /// The stream's disk had no room, and the stream was full or had waited for the stall timeout.
    NoRoom,
    /// The connection ended inside the message. The received part is stored, unless the connection failed.
    Truncated,
    /// The gate of the stream rejected the message.
    Rejected,
}

impl Loss {
    /// All reasons in numeric order.
    pub const ALL: [Loss; 10] = [
        Loss::Frozen,
        Loss::TooLarge,
        Loss::Condition,
        Loss::Shed,
        Loss::Malformed,
        Loss::Forbidden,
        Loss::Hung,
        Loss::NoRoom,
        Loss::Truncated,
        Loss::Rejected,
    ];

    /// Returns the reason's name in metrics and loss markers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Loss::Frozen => "frozen",
            Loss::TooLarge => "too_large",
            Loss::Condition => "condition",
            Loss::Shed => "shed",
            Loss::Malformed => "malformed",
            Loss::Forbidden => "forbidden",
            Loss::Hung => "hung",
            Loss::NoRoom => "no_room",
            Loss::Truncated => "truncated",
            Loss::Rejected => "rejected",
        }
    }
}
