//! The number of connections that the limit of open files allows.

use stilling_engine::limits::{DIRECT_DESCRIPTORS_MAX, WAITING_ACCEPTS_MAX};
use stilling_engine::net;
use stilling_workers::processes::PROCESS_SETS;

use crate::config::{ServeConfig, ServeError};
use crate::upstream::AppConfig;

/// Descriptors reserved for other uses than connections: standard streams, rings, epoll, wakes, listeners, files.
const DESCRIPTORS_RESERVED: u64 = 64;
/// The same, per shard.
const DESCRIPTORS_RESERVED_PER_SHARD: u64 = 8;
/// Slots of a shard's direct descriptor table reserved for accepted connections without a connection slot: accepting
/// stops a moment after the last connection slot is taken. If more arrive in that moment, the system closes them
/// (counted as refused for lack of descriptors); the others wait in the backlog.
const SLOTS_RESERVED: u64 = 64;

/// Descriptors reserved per worker process, beside one per slot: two pipes, the process descriptor that reports its exit,
/// and a socket pair if it speaks frames.
const DESCRIPTORS_RESERVED_PER_PROCESS: u64 = 8;

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
        let of_pool = |app: &AppConfig| {
            DESCRIPTORS_RESERVED_PER_PROCESS * (PROCESS_SETS * app.processes.processes) as u64
                + u64::from(app.reserved_connects())
        };
        let app_descriptors = config.apps.iter().map(of_pool).sum::<u64>();
        let reserved =
            DESCRIPTORS_RESERVED + app_descriptors + shards * DESCRIPTORS_RESERVED_PER_SHARD + listeners;
        let available_descriptors = limit.saturating_sub(reserved);
        let slots_max = limit.min(DIRECT_DESCRIPTORS_MAX.into());
        let available = if !config.direct_descriptors {
            available_descriptors / shards
        } else if available_descriptors > 0 {
            slots_max.saturating_sub(SLOTS_RESERVED)
        } else {
            0
        };
        let available = u32::try_from(available).unwrap_or(u32::MAX);
        if available == 0 {
            return Err(ServeError::DescriptorLimit(limit));
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
    fn capacity_is_what_the_descriptor_limit_leaves() {
        let config =
            |shards, direct_descriptors| ServeConfig { shards, direct_descriptors, ..ServeConfig::default() };
        let capacity = |limit, shards, listeners, direct| {
            let mut config = config(shards, direct);
            DescriptorBudget::within(limit, &mut config, listeners)
                .map(|budget| (config.capacity, budget.reduced))
                .ok()
        };
        let reserved = DESCRIPTORS_RESERVED + 2 * DESCRIPTORS_RESERVED_PER_SHARD + 7;
        assert_eq!(capacity(reserved + 1, 2, 7, false), None);
        assert_eq!(capacity(reserved + 2, 2, 7, false), Some((1, true)));
        assert_eq!(capacity(reserved + 2, 2, 8, false), None);
        assert_eq!(capacity(reserved + 199_999, 2, 7, false), Some((99_999, true)));
        assert_eq!(capacity(reserved + 200_000, 2, 7, false), Some((100_000, false)));
        assert_eq!(capacity(reserved, 2, 7, true), None);
        assert_eq!(capacity(reserved + 1, 2, 7, true), Some(((reserved + 1 - SLOTS_RESERVED) as u32, true)));
        assert_eq!(capacity(u64::MAX, 2, 7, false), Some((100_000, false)));
    }
}
