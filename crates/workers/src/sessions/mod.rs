//! Session state that worker processes keep in the server, so that every process can serve every request of a session.
//!
//! ```text
//!   shard 0: SessionPort ─ mailbox of updates ─┐
//!   shard 1: SessionPort ─ mailbox of updates ─┴─► SessionTable, of the shard that has it at the moment
//! ```
//!
//! The table belongs to one pool, and all shards use it. No shard waits for another one: a shard tries to get the table,
//! for the few steps of one access, and a failed lookup is [`Busy`](SessionLookup::Busy) and repeated in the next turn.
//! An update is first put into the shard's mailbox; the next access of any shard, usually the same call, makes all
//! updates in the mailboxes before its own. So a lookup sees every update that was made before it, and of concurrent
//! updates the last one counts.
//!
//! The state is opaque bytes, and states are shared by reference: none is copied while the table is in use.

pub mod limits;
mod table;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use stilling_ring::{MailboxFull, Receiver, Sender, Time, mailbox};

use crate::counters::count;
use limits::{
    SESSION_IDLE_TIMEOUT, SESSION_NAME_SIZE_MAX, SESSION_SIZE_MEAN_MAX, SESSION_UPDATES_MAX, SESSIONS_MAX,
};
use table::SessionTable;

/// The identity of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionKey {
    /// 128 random bits of the server, which no client can guess.
    Id(u128),
    /// A name that a client has chosen. It is the client's own: the same name of another address is another session.
    Name(IpAddr, SessionName),
}

/// Hides the identity: an id in a log would give its readers the session.
impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(…)")
    }
}

/// A name of a session: 1 to [`SESSION_NAME_SIZE_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionName {
    bytes: [u8; SESSION_NAME_SIZE_MAX],
    size: u8,
}

impl SessionName {
    /// `None`: it is empty or too long.
    #[must_use]
    pub fn new(name: &[u8]) -> Option<SessionName> {
        let mut bytes = [0; SESSION_NAME_SIZE_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        let size = u8::try_from(name.len()).ok().filter(|size| *size > 0)?;
        Some(SessionName { bytes, size })
    }
}

/// Bounds of the sessions of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Sessions. Reached: the session that the peer with the most has used least recently is evicted.
    pub sessions_max: usize,
    /// Bytes of all sessions, with [`SESSION_COST`](limits::SESSION_COST) for each. Reached: as `sessions_max`.
    pub size_max: usize,
    /// Time without a request after which a session ends.
    pub idle_timeout: Duration,
}

impl SessionLimits {
    /// So many sessions, with bytes in proportion.
    #[must_use]
    pub fn new(sessions_max: usize, idle_timeout: Duration) -> SessionLimits {
        // One session of the maximum size fits always.
        let size_max = (sessions_max * SESSION_SIZE_MEAN_MAX).max(2 * limits::SESSION_STATE_SIZE_MAX);
        SessionLimits { sessions_max, size_max, idle_timeout }
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        SessionLimits::new(SESSIONS_MAX, SESSION_IDLE_TIMEOUT)
    }
}

/// A change of a session by a process.
#[derive(Debug)]
pub struct SessionUpdate {
    /// The session.
    pub key: SessionKey,
    /// The client's address, if known: clients share the store by it.
    pub peer: Option<IpAddr>,
    /// The new state; `None`: the session ends.
    pub state: Option<Arc<[u8]>>,
    /// Whether the session may be new. Otherwise the update of an unknown session is ignored and counted.
    pub may_create: bool,
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionLookup {
    /// The state of the session.
    Found(Arc<[u8]>),
    /// There is no such session.
    Unknown,
    /// Another shard has the table at the moment: the lookup must be repeated.
    Busy,
}

/// A snapshot. Fields without "now" count since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Sessions, now.
    pub sessions: u64,
    /// Bytes of all sessions with [`SESSION_COST`](limits::SESSION_COST) for each, now.
    pub bytes: u64,
    /// Sessions created.
    pub created: u64,
    /// Sessions that a process deleted.
    pub deleted: u64,
    /// Sessions that were idle for too long.
    pub expired: u64,
    /// Sessions evicted from a full store.
    pub evicted: u64,
    /// Lookups and updates of unknown sessions.
    pub unknown: u64,
    /// States that were too large.
    pub too_large: u64,
    /// Updates without room in the mailbox.
    pub lost: u64,
}

/// The owner's view of the sessions of a pool.
#[derive(Clone)]
pub struct SessionStore(Arc<SharedTable>);

/// A shard's access to the sessions of a pool.
pub struct SessionPort {
    shared: Arc<SharedTable>,
    updates: Sender<SessionUpdate>,
}

struct SharedTable {
    inner: Mutex<LockedTable>,
    tally: SessionTally,
}

/// The counters after the last access, so that readers need not wait for the table.
#[derive(Debug, Default)]
struct SessionTally {
    sessions: AtomicU64,
    bytes: AtomicU64,
    created: AtomicU64,
    deleted: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    unknown: AtomicU64,
    too_large: AtomicU64,
    lost: AtomicU64,
}

impl SessionTally {
    /// Sets all but `lost`, which is counted without the table.
    fn set(&self, counters: &SessionCounters) {
        self.sessions.store(counters.sessions, Relaxed);
        self.bytes.store(counters.bytes, Relaxed);
        self.created.store(counters.created, Relaxed);
        self.deleted.store(counters.deleted, Relaxed);
        self.expired.store(counters.expired, Relaxed);
        self.evicted.store(counters.evicted, Relaxed);
        self.unknown.store(counters.unknown, Relaxed);
        self.too_large.store(counters.too_large, Relaxed);
    }

    fn snapshot(&self) -> SessionCounters {
        SessionCounters {
            sessions: self.sessions.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            created: self.created.load(Relaxed),
            deleted: self.deleted.load(Relaxed),
            expired: self.expired.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            unknown: self.unknown.load(Relaxed),
            too_large: self.too_large.load(Relaxed),
            lost: self.lost.load(Relaxed),
        }
    }
}

struct LockedTable {
    table: SessionTable,
    /// One for each shard.
    updates: Vec<Receiver<SessionUpdate>>,
}

impl SessionStore {
    /// Makes an empty store and the ports of `shards` shards.
    #[must_use]
    pub fn new(limits: SessionLimits, shards: usize) -> (SessionStore, Vec<SessionPort>) {
        let (senders, updates): (Vec<_>, Vec<_>) = (0..shards).map(|_| mailbox(SESSION_UPDATES_MAX)).unzip();
        let inner = Mutex::new(LockedTable { table: SessionTable::new(limits), updates });
        let shared = Arc::new(SharedTable { inner, tally: SessionTally::default() });
        let port = |updates| SessionPort { shared: Arc::clone(&shared), updates };
        let ports = senders.into_iter().map(port).collect();
        (SessionStore(shared), ports)
    }

    /// Returns a snapshot of the counters.
    #[must_use]
    pub fn counters(&self) -> SessionCounters {
        self.0.tally.snapshot()
    }
}

impl SessionPort {
    /// Returns the state of a session, which counts as used now.
    #[must_use]
    pub fn lookup(&self, key: &SessionKey, now: Time) -> SessionLookup {
        self.shared.with_table(now, |table| match table.lookup(key, now) {
            Some(state) => SessionLookup::Found(state),
            None => SessionLookup::Unknown,
        })
    }

    /// Makes an update: every later lookup sees it.
    pub fn update(&mut self, update: SessionUpdate, now: Time) {
        if let Err(MailboxFull(update)) = self.updates.push(update) {
            self.shared.flush(now);
            if self.updates.push(update).is_err() {
                count(&self.shared.tally.lost);
            }
        }
        self.updates.publish();
        self.shared.flush(now);
    }
}

impl SharedTable {
    /// Makes all updates that wait, and calls `access`, unless another thread has the table.
    fn with_table(
        &self,
        now: Time,
        access: impl FnOnce(&mut SessionTable) -> SessionLookup,
    ) -> SessionLookup {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return SessionLookup::Busy,
        };
        let LockedTable { table, updates } = &mut *inner;
        for updates in updates {
            while let Some(update) = updates.pop() {
                table.apply(update, now);
            }
        }
        let outcome = access(table);
        self.tally.set(&table.counters());
        outcome
    }

    /// Makes all updates that wait, unless another thread has the table: the next access makes them.
    fn flush(&self, now: Time) {
        let _ = self.with_table(now, |_| SessionLookup::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(key: SessionKey, state: &[u8]) -> SessionUpdate {
        SessionUpdate { key, peer: None, state: Some(state.into()), may_create: true }
    }

    /// Row 1.5: a name is the client's own.
    #[test]
    fn a_name_of_another_address_is_another_session() {
        let (_, mut ports) = SessionStore::new(SessionLimits::default(), 1);
        let name = SessionName::new(b"cart").expect("a name");
        let [own, other] = [1, 2].map(|last| SessionKey::Name([192, 0, 2, last].into(), name));
        ports[0].update(update(own, b"mine"), Time::ZERO);
        assert_eq!(ports[0].lookup(&own, Time::ZERO), SessionLookup::Found(b"mine"[..].into()));
        assert_eq!(ports[0].lookup(&other, Time::ZERO), SessionLookup::Unknown);
        assert!(SessionName::new(b"").is_none() && SessionName::new(&[b'a'; 65]).is_none());
        assert!(SessionName::new(&[b'a'; 64]).is_some());
    }

    /// Row 1.5, invariant: a shard does not wait for another one, and an update made meanwhile is not lost.
    #[test]
    fn a_shard_does_not_wait_for_another_one() {
        let (store, mut ports) = SessionStore::new(SessionLimits::default(), 2);
        let key = SessionKey::Id(7);
        let busy = store.0.inner.lock().expect("free");
        ports[1].update(update(key, b"new"), Time::ZERO);
        assert_eq!(ports[0].lookup(&key, Time::ZERO), SessionLookup::Busy);
        drop(busy);
        assert_eq!(ports[0].lookup(&key, Time::ZERO), SessionLookup::Found(b"new"[..].into()));
        let busy = store.0.inner.lock().expect("free");
        for _ in 0..=SESSION_UPDATES_MAX {
            ports[1].update(update(key, b"many"), Time::ZERO);
        }
        drop(busy);
        assert_eq!(store.counters().lost, 1);
    }

    /// Row 1.5: a shard that has made an update finds it, whatever other shards do at the same time.
    #[test]
    fn every_shard_finds_its_updates() {
        let (store, ports) = SessionStore::new(SessionLimits::default(), 4);
        std::thread::scope(|scope| {
            for (shard, mut port) in ports.into_iter().enumerate() {
                scope.spawn(move || {
                    let key = SessionKey::Id(shard as u128);
                    for round in 0..2000_u32 {
                        port.update(update(key, &round.to_le_bytes()), Time::ZERO);
                        let found = loop {
                            match port.lookup(&key, Time::ZERO) {
                                SessionLookup::Busy => std::thread::yield_now(),
                                found => break found,
                            }
                        };
                        assert_eq!(found, SessionLookup::Found(round.to_le_bytes()[..].into()));
                    }
                });
            }
        });
        assert_eq!((store.counters().sessions, store.counters().lost), (4, 0));
    }
}
