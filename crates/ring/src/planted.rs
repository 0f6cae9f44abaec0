//! Bugs that are planted on purpose, so that the simulator can prove that it would see them.
//!
//! A simulator that finds nothing proves little unless it is known to find what is there. Builds with
//! `--cfg stilling_planted` contain a few classic faults, each behind [`planted!`](crate::planted!) with its
//! name; at most one is active, chosen for the whole process. In every other build the macro is the literal
//! `false` and the fault is not compiled in.
//!
//! | name | where | what goes wrong |
//! |---|---|---|
//! | `lost wake` | `Wake::notify` | every eighth wake that was needed is dropped |
//! | `lost job` | worker pool | a worker takes a job and forgets it |
//! | `double answer` | worker pool | a worker's result is handed in twice |
//! | `lost unread` | a shard's detach | what a leaving connection had not consumed stays behind |
//! | `early reuse` | shared blocks | a block is filled anew although a part of it is still referenced |
//! | `unbuilt payload` | journal | a batch is written without the bytes of every fourth payload that lay in a shared block |
//! | `early block release` | a turn's output | a block is released for the next one before its range has been sent |
//! | `previous peer` | a turn's output | a datagram goes to the peer of the one before |
//! | `range sent twice` | a shard | what is kept of a short send begins with the piece in which it stopped |
//! | `stale generation` | simulated driver | a completion reaches the next tenant of its slot |
//! | `lost completion` | simulated driver | a completion is never told |
//! | `double-freed buffer` | simulated driver | a receive buffer is free twice |
//! | `early watermark` | journal | a watermark is told before the write that it covers |
//! | `unsynced directory` | journal | a segment's name is not made durable before its records are told |
//! | `double acknowledgement` | hub | a publisher is told twice that its message is kept |
//! | `unsynced acknowledgement` | journal | what a failed write had is acknowledged |
//! | `lost retry` | journal | what waits for room is acknowledged and forgotten |
//! | `unsynced tail` | journal | what recovery found is trusted although no sync is known to cover it |
//! | `unread block` | journal | a block that cannot be read counts as blank when a stream is opened |
//! | `unlisted folder` | journal | a folder that cannot be listed counts as empty when a stream is opened |
//! | `untold damage` | journal | a reader passes over a damaged batch without a gap |
//! | `untold segment` | journal | a reader passes over a missing segment without a gap |
//! | `forgotten window` | server | message ids from before a restart are not known any more |
//! | `unsynced duplicate` | hub | a duplicate is acknowledged although its original is not durable |
//! | `previous tenant` | a shard | mail for a connection that is gone reaches the next one in its slot |
//! | `early sight` | hub | a subscriber sees a message before it is durable, and its publisher hears nothing |
//! | `overtaken publication` | hub | the PING of a connection whose stream is full is answered before what it has published |
//! | `dropped delivery` | hub | what a shard that has all its pieces is to be handed is dropped instead of kept |
//! | `early opening` | server | a successor opens the streams before its predecessor has released them; there are no locks |
//! | `early release` | server | a predecessor goes on acknowledging when it has released the streams; there are no locks |
//! | `dropped wait` | server | what a shard gathered while the streams were being opened is dropped |
//! | `missing sync` | simulated disk | a durable write comes back before it is durable |

/// Whether this build contains the planted bugs at all.
pub const AVAILABLE: bool = cfg!(stilling_planted);

/// Chooses the one bug that is active from now on in all threads, or none.
///
/// # Panics
/// If a bug is chosen in a build that contains none: a run that only seems to have a bug proves nothing.
pub fn choose(name: Option<&'static str>) {
    assert!(AVAILABLE || name.is_none(), "planted bugs exist only in builds with --cfg stilling_planted");
    #[cfg(stilling_planted)]
    {
        *chosen::lock() = name;
    }
}

/// Whether `name` is the chosen bug; what [`planted!`](crate::planted!) asks.
#[cfg(stilling_planted)]
#[doc(hidden)]
#[must_use]
pub fn is_chosen(name: &str) -> bool {
    *chosen::lock() == Some(name)
}

#[cfg(stilling_planted)]
mod chosen {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    static NAME: Mutex<Option<&'static str>> = Mutex::new(None);

    pub(super) fn lock() -> MutexGuard<'static, Option<&'static str>> {
        NAME.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `planted!("name")` is true where the planted bug of that name shall strike; `false` in ordinary builds.
#[cfg(not(stilling_planted))]
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        false
    };
}

/// `planted!("name")` is true where the planted bug of that name shall strike; `false` in ordinary builds.
#[cfg(stilling_planted)]
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        $crate::planted::is_chosen($name)
    };
}

#[cfg(all(test, not(loom), not(stilling_planted)))]
mod tests {
    #[test]
    fn an_ordinary_build_has_no_planted_bugs_and_refuses_to_pretend() {
        const { assert!(!planted!("lost wake")) };
        super::choose(None);
        assert!(std::panic::catch_unwind(|| super::choose(Some("lost wake"))).is_err());
    }
}
