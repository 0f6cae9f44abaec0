//! Deliberate bugs: the simulator must find each of them.
//!
//! Builds with `--cfg stilling_planted` contain the classic faults below, each behind [`planted!`](crate::planted!)
//! with its name; at most one is active, chosen for the whole process. In every other build the macro is the literal
//! `false` and the fault is not compiled in.
//!
//! | name | where | what goes wrong |
//! |---|---|---|
//! | `lost wake` | `Wake::notify` | every eighth needed wake is dropped |
//! | `lost job` | worker pool | a worker pops a job and drops it |
//! | `double answer` | worker pool | a worker returns its result twice |
//! | `accepts dropped at detach` | a shard's detach | connections accepted before a listener is released are refused |
//! | `lost unread` | a shard's detach | the unconsumed input of a detached connection is lost |
//! | `lost readable` | a shard's session | a wait that was ignored and is requested again causes no call |
//! | `early reuse` | shared blocks | a block is reset although a part of it is still referenced |
//! | `unbuilt payload` | journal | a batch is written without the bytes of every fourth payload in a shared block |
//! | `early block release` | a turn's output | a block is released for reuse before its range has been sent |
//! | `previous peer` | a turn's output | a datagram goes to the peer of the one before |
//! | `range sent twice` | a shard | after a short send, the piece in which it stopped is sent again from its start |
//! | `stale generation` | simulated driver | a completion reaches the next connection in its slot |
//! | `lost completion` | simulated driver | a completion is never reported |
//! | `double-freed buffer` | simulated driver | a receive buffer is freed twice |
//! | `early watermark` | journal | a watermark is published before the write that it covers |
//! | `unsynced directory` | journal | records are reported before their segment's name is durable |
//! | `unsynced parent` | journal | records are reported before the name of their directory is durable |
//! | `double acknowledgement` | hub | a publisher gets two acknowledgements for one message |
//! | `unsynced acknowledgement` | journal | the records of a failed write are acknowledged |
//! | `lost retry` | journal | records that wait for disk space are acknowledged and dropped |
//! | `unsynced tail` | journal | recovery trusts its tail although no sync is known to cover it |
//! | `unsynced snapshot` | journal | recovery trusts a gate's snapshot although no sync is known to cover it |
//! | `unread block` | journal | a block that cannot be read counts as blank when a stream is opened |
//! | `unlisted directory` | journal | a directory that cannot be listed counts as empty when a stream is opened |
//! | `unreported damage` | journal | a reader skips a damaged batch without a gap |
//! | `unreported segment` | journal | a reader skips a missing segment without a gap |
//! | `lost window` | server | message ids from before a restart are lost |
//! | `unsynced duplicate` | hub | a duplicate is acknowledged although its original is not durable |
//! | `stale mail` | a shard | mail for a closed connection reaches the next one in its slot |
//! | `a full store closes the requesting connection` | a shard | it is disconnected, not the one that holds most |
//! | `early feed reuse` | hub | a feed's block is reused although the output of this turn refers to it |
//! | `late resume` | hub | a subscription that resumes misses the record after its position |
//! | `lost hand-over` | hub | a subscription that has caught up misses the next live record |
//! | `overtaken feed` | hub | an item of a connection overtakes messages of the feed that it reads |
//! | `missing sid` | hub | the last line of a run from a feed keeps the placeholder of its sid |
//! | `early rejection` | hub | a gate's rejection leaves before the records that it was judged on are durable |
//! | `rejected id remembered` | hub | the id of a message that its gate rejected counts as stored |
//! | `early visibility` | hub | a subscriber gets a message before it is durable, and its publisher gets no answer |
//! | `early delivery` | hub | a subscriber gets a record before it is durable |
//! | `early subscription` | hub | a subscription gets messages from before its SUB was processed |
//! | `early unsubscription` | hub | a subscription misses messages from before its UNSUB was processed |
//! | `overtaken publication` | hub | a PING is answered before publications that wait for their full stream |
//! | `dropped delivery` | hub | a delivery for a shard that holds all its batches is dropped instead of queued |
//! | `early opening` | server | a successor opens the streams, unlocked, before its predecessor has released them |
//! | `early release` | server | a predecessor acknowledges after it has released the streams; there are no locks |
//! | `dropped wait` | server | requests that a shard queued while the streams were opening are dropped |
//! | `executed duplicate` | CoAP | a repeated request is executed again |
//! | `block of another ETag` | CoAP | the later blocks of an answer are those of the former answer |
//! | `missing sync` | simulated disk | a durable write completes before it is durable |

/// Whether this build contains the planted bugs.
pub const AVAILABLE: bool = cfg!(stilling_planted);

/// Activates one bug in all threads, or none.
///
/// # Panics
/// If a bug is chosen in a build that contains none: such a run would prove nothing.
pub fn choose(name: Option<&'static str>) {
    assert!(AVAILABLE || name.is_none(), "planted bugs exist only in builds with --cfg stilling_planted");
    #[cfg(stilling_planted)]
    {
        *chosen::lock() = name;
    }
}

/// Whether `name` is the active bug, for [`planted!`](crate::planted!).
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

/// `planted!("name")` is true if the planted bug of that name is active; `false` in ordinary builds.
#[cfg(not(stilling_planted))]
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        false
    };
}

/// `planted!("name")` is true if the planted bug of that name is active; `false` in ordinary builds.
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
    fn an_ordinary_build_has_no_planted_bugs_and_rejects_a_choice() {
        const { assert!(!planted!("lost wake")) };
        super::choose(None);
        assert!(std::panic::catch_unwind(|| super::choose(Some("lost wake"))).is_err());
    }
}
