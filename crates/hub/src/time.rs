//! The two clocks of the hub: one that may be set, for what is stored, and a steady one for spans.

/// Unix time in nanoseconds.
pub type UnixNanos = u64;

/// Nanoseconds since an arbitrary moment, by a clock that is never set.
pub type SteadyNanos = u64;

/// What time it is. The calendar may be set, forward and back: what lasts so long, or comes so often, goes by the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// For what is stored and told.
    pub unix_ns: UnixNanos,
    /// For spans.
    pub steady_ns: SteadyNanos,
}

impl From<UnixNanos> for Now {
    /// One clock for both, as a simulation has it.
    fn from(now_ns: UnixNanos) -> Now {
        Now { unix_ns: now_ns, steady_ns: now_ns }
    }
}
