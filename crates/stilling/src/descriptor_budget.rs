//! The number of connections that the limit of open files allows.

use stilling_engine::limits::{DIRECT_DESCRIPTORS_MAX, WAITING_ACCEPTS_MAX};
use stilling_engine::net;

use crate::config::{ServeConfig, ServeError};

/// Descriptors reserved for other uses than connections: standard streams, rings, epoll, wakes, listeners, files.
const DESCRIPTORS_KEPT: u64 = 64;
/// The same, per shard.
const DESCRIPTORS_KEPT_PER_SHARD: u64 = 8;
/// Slots of a shard's direct descriptor table reserved for accepted connections without a connection slot: accepting
/// stops a moment after the last connection slot is taken. If more arrive in that moment, the system closes them
/// (counted as refused for lack of descriptors); the others wait in the backlog.
const SLOTS_KEPT: u64 = 64;

/// Descriptors reserved per worker process, beside one per slot: two pipes and the process descriptor that reports
/// its exit.
const DESCRIPTORS_KEPT_PER_PROCESS: u64 = 8;

/// What the limit of open files leaves for connections.
pub(crate) struct DescriptorBudget {
    /// The capacity was lowered.
    pub(crate) reduced: bool,
    /// Slots of each shard's direct descriptor table, if it has one.
    pub(crate) slots: u32,
}

impl DescriptorBudget {
    /// Lowers the capacity to what the limit of open files allows: for all shards together, or, with direct
    /// descriptors, per shard. `listeners` is the number of open descriptors.
    pub(crate) fn fit(config: &mut ServeConfig, listeners: usize) -> Result<DescriptorBudget, ServeError> {
        let (limit, _) = net::raise_descriptor_limit();
        Self::within(limit, config, listeners as u64)
    }

    fn within(limit: u64, config: &mut ServeConfig, listeners: u64) -> Result<DescriptorBudget, ServeError> {
        let shards = config.shards as u64;
        let of_app = config.app.as_ref().map_or(0, |app| {
            DESCRIPTORS_KEPT_PER_PROCESS * app.processes.processes as u64 + u64::from(app.reserved_connects())
        });
        let kept = DESCRIPTORS_KEPT + of_app + shards * DESCRIPTORS_KEPT_PER_SHARD + listeners;
        let left = limit.saturating_sub(kept);
        let slots_max = limit.min(DIRECT_DESCRIPTORS_MAX.into());
        let available = if !config.direct_descriptors {
            left / shards
        } else if left > 0 {
            slots_max.saturating_sub(SLOTS_KEPT)
        } else {
            0
        };
        let available = u32::try_from(available).unwrap_or(u32::MAX);
        if available == 0 {
            return Err(ServeError::Descriptors(limit));
        }
        let reduced = config.capacity > available;
        config.capacity = config.capacity.min(available);
        // At most `slots_max`, which fits a u32.
        let slots = slots_max.min(u64::from(config.capacity) + WAITING_ACCEPTS_MAX as u64) as u32;
        Ok(DescriptorBudget { reduced, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 3.27: open and reserved descriptors are counted exactly.
    #[test]
    fn there_is_room_for_exactly_what_the_limit_leaves() {
        let config =
            |shards, direct_descriptors| ServeConfig { shards, direct_descriptors, ..ServeConfig::default() };
        let capacity = |limit, shards, listeners, direct| {
            let mut config = config(shards, direct);
            DescriptorBudget::within(limit, &mut config, listeners)
                .map(|room| (config.capacity, room.reduced))
                .ok()
        };
        let kept = DESCRIPTORS_KEPT + 2 * DESCRIPTORS_KEPT_PER_SHARD + 7;
        assert_eq!(capacity(kept + 1, 2, 7, false), None);
        assert_eq!(capacity(kept + 2, 2, 7, false), Some((1, true)));
        assert_eq!(capacity(kept + 2, 2, 8, false), None);
        assert_eq!(capacity(kept + 199_999, 2, 7, false), Some((99_999, true)));
        assert_eq!(capacity(kept + 200_000, 2, 7, false), Some((100_000, false)));
        assert_eq!(capacity(kept, 2, 7, true), None);
        assert_eq!(capacity(kept + 1, 2, 7, true), Some(((kept + 1 - SLOTS_KEPT) as u32, true)));
        assert_eq!(capacity(u64::MAX, 2, 7, false), Some((100_000, false)));
    }
}
