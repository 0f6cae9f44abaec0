//! The reasons why something did not arrive.

/// Why something did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Its stream is frozen.
    Frozen,
    /// It is longer than a record can be.
    TooLarge,
    /// It named a condition that does not hold.
    Condition,
    /// It was shed before the hub: its source was over its budget.
    Shed,
    /// It could not be understood.
    Malformed,
    /// Its source is not allowed.
    Forbidden,
    /// The disk of its stream did not answer for too long.
    Hung,
    /// The disk of its stream had no room for too long.
    NoRoom,
    /// Its connection ended inside it. What had come is stored, unless the connection failed.
    Cut,
}

impl Loss {
    /// All of them, in the order of their numbers.
    pub const ALL: [Loss; 9] = [
        Loss::Frozen,
        Loss::TooLarge,
        Loss::Condition,
        Loss::Shed,
        Loss::Malformed,
        Loss::Forbidden,
        Loss::Hung,
        Loss::NoRoom,
        Loss::Cut,
    ];

    /// Its name in metrics and marker records.
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
            Loss::Cut => "cut",
        }
    }
}
