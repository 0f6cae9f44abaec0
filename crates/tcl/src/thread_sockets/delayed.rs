//! Listeners that try again in a while, because descriptors have run out.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use stilling_engine::Time;

use crate::slab::SlabKey;

/// Time until a connection without a descriptor for the query of its peer's address is tried again.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Listeners that wait, without duplicates.
#[derive(Debug, Default)]
pub(super) struct DelayedListeners {
    waiting: RefCell<Vec<SlabKey>>,
    /// `None`: no listener waits.
    retry_at: Cell<Option<Time>>,
}

impl DelayedListeners {
    pub(super) fn add(&self, key: SlabKey, now: Time) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.contains(&key) {
            waiting.push(key);
        }
        self.retry_at.set(Some(now.after(ACCEPT_RETRY)));
    }

    /// Moves the listeners to `due` when it is time. Returns the time until then.
    pub(super) fn resume(&self, now: Time, due: &mut Vec<SlabKey>) -> Option<Duration> {
        let at = self.retry_at.get()?;
        if now < at {
            return Some(at.since(now));
        }
        self.retry_at.set(None);
        due.append(&mut self.waiting.borrow_mut());
        None
    }
}
