//! The sessions of a pool, with their indexes: a passive data structure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use stilling_ring::Time;

use super::limits::{SESSION_COST, SESSION_STATE_SIZE_MAX, SESSIONS_EXPIRED_PER_CALL};
use super::{SessionCounters, SessionKey, SessionLimits, SessionUpdate};

/// The origin of sessions that share one part of the store: an IPv4 address, the 64 bits of an IPv6 network, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Origin(Option<IpAddr>);

impl Origin {
    fn of(peer: Option<IpAddr>) -> Origin {
        Origin(peer.map(|peer| match peer.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address => address,
        }))
    }
}

#[derive(Debug)]
struct SessionEntry {
    state: Arc<[u8]>,
    origin: Origin,
    used_at: Time,
    /// The number of its last use.
    use_number: u64,
}

/// Entries, and indexes of them by last use, by origin, and of the origins by cost.
#[derive(Debug)]
pub(super) struct SessionTable {
    limits: SessionLimits,
    entries: HashMap<SessionKey, SessionEntry>,
    by_use: BTreeMap<u64, SessionKey>,
    by_origin: BTreeMap<(Origin, u64), SessionKey>,
    costs: HashMap<Origin, usize>,
    by_cost: BTreeSet<(usize, Origin)>,
    uses: u64,
    counters: SessionCounters,
}

impl SessionTable {
    pub(super) fn new(limits: SessionLimits) -> SessionTable {
        SessionTable {
            limits,
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            by_origin: BTreeMap::new(),
            costs: HashMap::new(),
            by_cost: BTreeSet::new(),
            uses: 0,
            counters: SessionCounters::default(),
        }
    }

    pub(super) fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// Returns the state of a session, which counts as used now.
    pub(super) fn lookup(&mut self, key: &SessionKey, now: Time) -> Option<Arc<[u8]>> {
        self.expire(now);
        let entry = self.entries.get(key).filter(|entry| self.is_live(entry, now));
        let Some(state) = entry.map(|entry| Arc::clone(&entry.state)) else {
            self.counters.unknown += 1;
            return None;
        };
        self.touch(key, now);
        Some(state)
    }

    pub(super) fn apply(&mut self, update: SessionUpdate, now: Time) {
        self.expire(now);
        let SessionUpdate { key, peer, state, may_create } = update;
        let is_live = self.entries.get(&key).is_some_and(|entry| self.is_live(entry, now));
        let Some(state) = state else {
            self.counters.deleted += u64::from(self.remove(&key).is_some());
            return;
        };
        if state.len() > SESSION_STATE_SIZE_MAX {
            self.counters.too_large += 1;
        } else if is_live {
            self.replace(&key, state, now);
        } else if may_create {
            self.counters.expired += u64::from(self.remove(&key).is_some());
            self.insert(key, state, Origin::of(peer), now);
        } else {
            self.counters.unknown += 1;
        }
    }

    fn is_live(&self, entry: &SessionEntry, now: Time) -> bool {
        now.since(entry.used_at) < self.limits.idle_timeout
    }

    /// Removes sessions that were idle for too long, a bounded number in each call.
    fn expire(&mut self, now: Time) {
        for _ in 0..SESSIONS_EXPIRED_PER_CALL {
            let Some(key) = self.by_use.first_key_value().map(|(_, key)| *key) else { return };
            if self.entries.get(&key).is_some_and(|entry| self.is_live(entry, now)) {
                return;
            }
            self.remove(&key);
            self.counters.expired += 1;
        }
    }

    fn insert(&mut self, key: SessionKey, state: Arc<[u8]>, origin: Origin, now: Time) {
        self.uses += 1;
        self.by_use.insert(self.uses, key);
        self.by_origin.insert((origin, self.uses), key);
        self.change_cost(origin, 0, SESSION_COST + state.len());
        self.entries.insert(key, SessionEntry { state, origin, used_at: now, use_number: self.uses });
        self.counters.sessions += 1;
        self.counters.created += 1;
        self.make_room(&key);
    }

    fn replace(&mut self, key: &SessionKey, state: Arc<[u8]>, now: Time) {
        self.touch(key, now);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let (origin, after) = (entry.origin, state.len());
        let before = std::mem::replace(&mut entry.state, state).len();
        self.change_cost(origin, before, after);
        self.make_room(key);
    }

    /// Evicts sessions until the bounds hold: of the origin with the highest cost the one that was used least recently,
    /// except `newest`.
    fn make_room(&mut self, newest: &SessionKey) {
        while self.entries.len() > self.limits.sessions_max
            || self.counters.bytes > self.limits.size_max as u64
        {
            let Some((_, origin)) = self.by_cost.last() else { return };
            let mut of_origin = self.by_origin.range((*origin, 0)..=(*origin, u64::MAX));
            let oldest = of_origin.next().map(|(_, key)| *key).filter(|key| key != newest);
            // The origin with the highest cost has only the newest session: another one's must go.
            let others = || self.by_use.values().find(|key| *key != newest).copied();
            let Some(key) = oldest.or_else(others) else { return };
            self.remove(&key);
            self.counters.evicted += 1;
        }
    }

    fn touch(&mut self, key: &SessionKey, now: Time) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.uses += 1;
        self.by_use.remove(&entry.use_number);
        self.by_origin.remove(&(entry.origin, entry.use_number));
        self.by_use.insert(self.uses, *key);
        self.by_origin.insert((entry.origin, self.uses), *key);
        // A shard reads the clock before it has the store: an earlier time does not make the session older.
        (entry.used_at, entry.use_number) = (entry.used_at.max(now), self.uses);
    }

    fn remove(&mut self, key: &SessionKey) -> Option<SessionEntry> {
        let entry = self.entries.remove(key)?;
        self.by_use.remove(&entry.use_number);
        self.by_origin.remove(&(entry.origin, entry.use_number));
        self.change_cost(entry.origin, SESSION_COST + entry.state.len(), 0);
        self.counters.sessions -= 1;
        Some(entry)
    }

    fn change_cost(&mut self, origin: Origin, before: usize, after: usize) {
        let cost = self.costs.remove(&origin).unwrap_or_default();
        self.by_cost.remove(&(cost, origin));
        let cost = cost - before + after;
        if cost > 0 {
            self.costs.insert(origin, cost);
            self.by_cost.insert((cost, origin));
        }
        self.counters.bytes = self.counters.bytes - before as u64 + after as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: SessionLimits = SessionLimits {
        sessions_max: 6,
        size_max: 6 * SESSION_COST + 3000,
        idle_timeout: Duration::from_secs(10),
    };

    fn at(second: u64) -> Time {
        Time::ZERO.after(Duration::from_secs(second))
    }

    fn peer(number: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(192, 0, 2, number).into())
    }

    fn set(number: u8, session: u128, size: usize) -> SessionUpdate {
        let state = Some(vec![7; size].into());
        SessionUpdate { key: SessionKey::Id(session), peer: peer(number), state, may_create: true }
    }

    fn size_of(table: &mut SessionTable, session: u128, now: u64) -> Option<usize> {
        table.lookup(&SessionKey::Id(session), at(now)).map(|state| state.len())
    }

    /// Row 1.5: a peer that floods evicts its own sessions.
    #[test]
    fn a_full_store_evicts_from_the_peer_with_the_most() {
        let mut table = SessionTable::new(LIMITS);
        for session in 0..2 {
            table.apply(set(1, session, 10), at(0));
        }
        for session in 100..200 {
            table.apply(set(2, session, 10), at(1));
        }
        assert_eq!([0, 1].map(|session| size_of(&mut table, session, 2)), [Some(10); 2]);
        assert_eq!(
            [195, 196, 199].map(|session| size_of(&mut table, session, 2)),
            [None, Some(10), Some(10)]
        );
        let counters = table.counters();
        assert_eq!((counters.sessions, counters.created, counters.evicted), (6, 102, 96));
    }

    /// Row 1.5: IPv6 addresses of one network are one peer.
    #[test]
    fn addresses_of_one_network_share_a_part() {
        let mut table = SessionTable::new(LIMITS);
        table.apply(set(1, 0, 10), at(0));
        for session in 100..200_u16 {
            let peer = Some(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, session, 0, 0, 1).into());
            table.apply(SessionUpdate { peer, ..set(0, session.into(), 10) }, at(1));
        }
        assert_eq!(size_of(&mut table, 0, 2), Some(10));
    }

    /// Row 1.5: the bound of bytes counts the states, and a state that is too large leaves the previous one.
    #[test]
    fn bytes_are_bounded() {
        let mut table = SessionTable::new(LIMITS);
        for session in 0..5 {
            table.apply(set(1, session, 1000), at(0));
        }
        assert_eq!([1, 2, 4].map(|session| size_of(&mut table, session, 0)), [Some(1000); 3]);
        assert_eq!(table.counters().evicted, 1);
        table.apply(set(1, 4, SESSION_STATE_SIZE_MAX + 1), at(0));
        assert_eq!((size_of(&mut table, 4, 0), table.counters().too_large), (Some(1000), 1));
        assert!(table.counters().bytes <= LIMITS.size_max as u64);
    }

    /// Row 1.5: an id of the server that has ended does not return when an earlier request of it ends late.
    #[test]
    fn a_deleted_session_stays_deleted() {
        let mut table = SessionTable::new(LIMITS);
        table.apply(set(1, 0, 10), at(0));
        table.apply(SessionUpdate { state: None, ..set(1, 0, 0) }, at(0));
        table.apply(SessionUpdate { may_create: false, ..set(1, 0, 10) }, at(0));
        assert_eq!(size_of(&mut table, 0, 0), None);
        let counters = table.counters();
        assert_eq!((counters.sessions, counters.bytes, counters.deleted, counters.unknown), (0, 0, 1, 2));
    }

    /// Row 1.5.
    #[test]
    fn an_idle_session_ends_even_before_it_is_removed() {
        let mut table = SessionTable::new(SessionLimits { sessions_max: 100, size_max: 1 << 20, ..LIMITS });
        let count = SESSIONS_EXPIRED_PER_CALL as u128 + 3;
        (0..count).for_each(|session| table.apply(set(1, session, 1), at(0)));
        assert_eq!(size_of(&mut table, 0, 9), Some(1));
        assert_eq!(size_of(&mut table, count - 1, 10), None);
        assert_eq!(table.counters().sessions, 3);
        assert_eq!(size_of(&mut table, 0, 18), Some(1));
        assert_eq!((table.counters().sessions, table.counters().expired), (1, count as u64 - 1));
    }

    /// The obvious implementation: a list from the session used least recently to the newest.
    #[derive(Default)]
    struct Model(Vec<(u128, u8, usize, u64)>);

    impl Model {
        fn take(&mut self, session: u128, now: u64) -> Option<(u128, u8, usize, u64)> {
            self.0.retain(|(.., used)| now - used < LIMITS.idle_timeout.as_secs());
            let at = self.0.iter().position(|(other, ..)| *other == session)?;
            Some(self.0.remove(at))
        }

        fn cost(&self, of: impl Fn(u8) -> bool) -> usize {
            self.0.iter().filter(|(_, peer, ..)| of(*peer)).map(|(_, _, size, _)| size + SESSION_COST).sum()
        }

        fn set(&mut self, session: u128, peer: u8, size: usize, now: u64) {
            let peer = self.take(session, now).map_or(peer, |(_, peer, ..)| peer);
            self.0.push((session, peer, size, now));
            while self.0.len() > LIMITS.sessions_max || self.cost(|_| true) > LIMITS.size_max {
                let most = (0..4).max_by_key(|peer| (self.cost(|of| of == *peer), *peer)).expect("a peer");
                let candidates = &self.0[..self.0.len() - 1];
                let at = candidates.iter().position(|(_, peer, ..)| *peer == most).unwrap_or(0);
                self.0.remove(at);
            }
        }
    }

    proptest! {
        /// Row 1.5: the indexes agree with the obvious implementation after every operation, and the bounds hold.
        #[test]
        fn the_table_behaves_like_its_model(
            operations in proptest::collection::vec((0..3_u8, 0..10_u128, 0..4_u8, 0..1500_usize, 0..4_u64), 0..200)
        ) {
            let (mut table, mut model, mut now) = (SessionTable::new(LIMITS), Model::default(), 0);
            for (kind, session, peer, size, pause) in operations {
                now += pause;
                match kind {
                    0 => {
                        let expected = model.take(session, now);
                        model.0.extend(expected.map(|entry| (entry.0, entry.1, entry.2, now)));
                        prop_assert_eq!(size_of(&mut table, session, now), expected.map(|entry| entry.2));
                    }
                    1 => {
                        model.set(session, peer, size, now);
                        table.apply(set(peer, session, size), at(now));
                    }
                    _ => {
                        model.take(session, now);
                        table.apply(SessionUpdate { state: None, ..set(peer, session, 0) }, at(now));
                    }
                }
                prop_assert_eq!(table.counters().sessions, model.0.len() as u64);
                prop_assert_eq!(table.counters().bytes, model.cost(|_| true) as u64);
                prop_assert!(table.counters().bytes <= LIMITS.size_max as u64);
            }
        }
    }
}
