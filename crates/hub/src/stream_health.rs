//! The condition of a stream as an operator's page shows it.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, TryLockError};

/// What a stream does with publications.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum StreamCondition {
    /// It takes them.
    #[default]
    Open,
    /// It takes them, and a write has not returned for longer than a second.
    Slow,
    /// It takes few or none until its disk has room.
    Waiting,
    /// It takes none until its folder can be opened, which is tried again.
    Closed,
    /// It takes none until the next start.
    Frozen,
}

impl StreamCondition {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StreamCondition::Open => "open",
            StreamCondition::Slow => "slow disk",
            StreamCondition::Waiting => "waiting for room",
            StreamCondition::Closed => "not open",
            StreamCondition::Frozen => "frozen",
        }
    }
}

/// What is to be known of a stream's disk.
#[derive(Clone, Debug, Default)]
pub struct StreamHealth {
    /// What it does now.
    pub condition: StreamCondition,
    /// Why it does not take everything, and what to do.
    pub reason: Option<Arc<str>>,
    /// Damage that was found at the start or by reading: the latest.
    pub damage: Option<Arc<str>>,
    /// Why reading failed the last time, until it succeeds.
    pub reading: Option<Arc<str>>,
    /// Why old records could not be removed the last time, until they can be.
    pub retention: Option<Arc<str>>,
}

impl StreamHealth {
    /// Everything that needs attention without keeping the stream from taking messages.
    pub fn details(&self) -> impl Iterator<Item = &str> {
        [&self.damage, &self.reading, &self.retention].into_iter().filter_map(|detail| detail.as_deref())
    }
}

/// A [`StreamHealth`] that the hub writes and other threads read. Neither waits for the other, wherever that is suspended.
///
/// The hub writes the copy that is not the newest, and names it the newest afterwards. A reader of the other copy keeps the
/// hub from writing it, and the hub tries again in its next turn.
#[derive(Debug, Default)]
pub struct SharedHealth {
    copies: [RwLock<StreamHealth>; 2],
    /// The index of the newest copy.
    newest: AtomicUsize,
}

impl SharedHealth {
    /// A copy of it. Looks again if the hub has written twice meanwhile.
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

    /// Returns whether it could be set at once; if not, the copy to be written is being read. For the hub's thread alone.
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

    /// A reader or a writer that is suspended in the middle keeps no other from reading.
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
