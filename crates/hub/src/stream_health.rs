//! The condition of a stream as shown on the admin pages.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, TryLockError};

/// What a stream does with publications.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum StreamCondition {
    /// It stores them.
    #[default]
    Open,
    /// It stores them, but a write has not returned for more than a second.
    Slow,
    /// It stores few or none until its disk has room.
    Waiting,
    /// It refuses them until its directory can be opened, which is retried.
    Closed,
    /// It refuses them until the next start.
    Frozen,
}

impl StreamCondition {
    /// Returns the condition's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StreamCondition::Open => "open",
            StreamCondition::Slow => "slow disk",
            StreamCondition::Waiting => "waiting for disk space",
            StreamCondition::Closed => "not open",
            StreamCondition::Frozen => "frozen",
        }
    }
}

/// Health of a stream and its disk.
#[derive(Clone, Debug, Default)]
pub struct StreamHealth {
    /// Current condition.
    pub condition: StreamCondition,
    /// Reason of a condition other than [`Open`](StreamCondition::Open), and the remedy.
    pub reason: Option<Arc<str>>,
    /// Latest damage, found at the start or by a reader.
    pub damage: Option<Arc<str>>,
    /// Error of the last read; cleared by a successful one.
    pub read_error: Option<Arc<str>>,
    /// Error of the last round of retention; cleared by a successful one.
    pub retention_error: Option<Arc<str>>,
}

impl StreamHealth {
    /// Returns everything that needs attention although the stream stores messages.
    pub fn details(&self) -> impl Iterator<Item = &str> {
        [&self.damage, &self.read_error, &self.retention_error]
            .into_iter()
            .filter_map(|detail| detail.as_deref())
    }
}

/// A [`StreamHealth`] that the hub writes and other threads read. Neither side blocks on a suspended thread of the
/// other.
///
/// The hub writes the older copy and then marks it as the newest. If a reader still holds the older copy, the hub
/// retries in its next turn.
#[derive(Debug, Default)]
pub struct SharedHealth {
    copies: [RwLock<StreamHealth>; 2],
    newest: AtomicUsize,
}

impl SharedHealth {
    /// Returns a copy. Retries if the hub has written twice meanwhile.
    #[must_use]
    pub fn get(&self) -> StreamHealth {
        loop {
            match self.copies[self.newest.load(Ordering::Acquire)].try_read() {
                Ok(health) => return health.clone(),
                Err(TryLockError::Poisoned(health)) => return health.into_inner().clone(),
                Err(TryLockError::WouldBlock) => hint::spin_loop(),
            }
        }
    }

    /// Sets the health; called by the hub's thread only. Returns `false` if a reader holds the copy to be written.
    pub(crate) fn set(&self, health: &StreamHealth) -> bool {
        let older = 1 - self.newest.load(Ordering::Relaxed);
        let mut copy = match self.copies[older].try_write() {
            Ok(copy) => copy,
            Err(TryLockError::Poisoned(copy)) => copy.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        *copy = health.clone();
        drop(copy);
        self.newest.store(older, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A suspended reader or writer does not block other readers.
    #[test]
    fn health_is_read_beside_a_suspended_reader_and_a_suspended_writer() {
        let health = |reason: &str| StreamHealth { reason: Some(reason.into()), ..StreamHealth::default() };
        let shared = SharedHealth::default();
        let is = |reason: &str| shared.get().reason.as_deref() == Some(reason);
        assert!(shared.set(&health("first")) && is("first"));
        let reader = shared.copies[shared.newest.load(Ordering::Relaxed)].read().expect("no panic");
        assert!(is("first"));
        assert!(shared.set(&health("second")) && is("second"));
        assert!(!shared.set(&health("third")) && is("second"), "the reader still has the older copy");
        drop(reader);
        let writer = shared.copies[1 - shared.newest.load(Ordering::Relaxed)].write().expect("no panic");
        assert!(is("second"));
        drop(writer);
        assert!(shared.set(&health("third")) && is("third"));
    }
}
