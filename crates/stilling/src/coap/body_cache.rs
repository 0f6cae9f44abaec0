//! Answers longer than a block, of which clients request further blocks: no worker is needed for them.
//!
//! An answer belongs to the path and the cache key of its request, and its ETag is on each of its blocks. So a client
//! never gets a block of another client's answer, nor one of two answers as one.
//!
//! States of observed resources are not stored here: all their observers read the further blocks from the one state.

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;
use stilling_ring::{Time, planted};
use stilling_wire::coap::{Code, ContentFormat};

use super::byte_ring::{ByteRing, RingPosition};
use super::limits::EXCHANGE_LIFETIME;

/// Entries that share the same bits of their hash.
const WAYS: usize = 4;

/// Bytes of a validator (RFC 7252 §5.10.6).
const ETAG_SIZE_MAX: usize = 8;

/// Validator of a representation. Equal representations have equal ones, also in another process: a client may
/// continue a transfer after a hot restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ETag {
    bytes: [u8; ETAG_SIZE_MAX],
    size: u8,
}

impl ETag {
    /// The validator with these bytes, at least one; a hash of them if they are too many for an option.
    pub(super) fn of_value(value: &[u8]) -> Option<ETag> {
        if value.is_empty() {
            return None;
        }
        let mut bytes = (ETAG_KEY.hash_128(value) as u64).to_be_bytes();
        let size = if value.len() <= ETAG_SIZE_MAX {
            bytes[..value.len()].copy_from_slice(value);
            value.len()
        } else {
            ETAG_SIZE_MAX
        };
        Some(ETag { bytes, size: size as u8 })
    }
}

impl std::ops::Deref for ETag {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.size)]
    }
}

impl PartialEq<ETag> for &[u8] {
    fn eq(&self, other: &ETag) -> bool {
        **self == **other
    }
}

/// The key of a body's hash, the same in each process.
const ETAG_KEY: HashKey = HashKey(0x5354_494c, 0x4c49_4e47);

/// The validator of a body with this format.
pub(super) fn etag_of(format: Option<ContentFormat>, body: &[u8]) -> ETag {
    let hash = ETAG_KEY.hash_128(body) as u64;
    let bytes = (hash ^ format.map_or(u64::MAX, |format| format.0.into())).to_be_bytes();
    ETag { bytes, size: ETAG_SIZE_MAX as u8 }
}

/// The head of a stored answer: everything but its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyHead {
    pub(super) code: Code,
    pub(super) format: Option<ContentFormat>,
    pub(super) etag: ETag,
    pub(super) max_age: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct CachedBody {
    path: DatagramPath,
    /// Of the cache key of the request.
    hash: u128,
    head: BodyHead,
    since: Time,
    body: RingPosition,
    size: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct BodyCache {
    hash_key: HashKey,
    entries: Vec<Option<CachedBody>>,
    bodies: ByteRing,
}

impl BodyCache {
    /// A cache for `count` answers with `size` bytes together.
    pub(super) fn new(hash_key: HashKey, count: usize, size: usize) -> BodyCache {
        let sets = count.div_ceil(WAYS).next_power_of_two();
        BodyCache { hash_key, entries: vec![None; sets * WAYS], bodies: ByteRing::new(size) }
    }

    fn set(&self, path: &DatagramPath, cache_key: &[u8]) -> (usize, u128) {
        let hash = self.hash_key.hash_128(cache_key);
        let peer = std::hash::BuildHasher::hash_one(&self.hash_key, path);
        let sets = self.entries.len() / WAYS;
        (((peer ^ hash as u64) as usize & (sets - 1)) * WAYS, hash)
    }

    /// Stores an answer, in place of an older one for the same path and key.
    pub(super) fn insert(
        &mut self,
        path: &DatagramPath,
        cache_key: &[u8],
        now: Time,
        head: BodyHead,
        body: &[u8],
    ) {
        let (start, hash) = self.set(path, cache_key);
        let Some(position) = self.bodies.push(&[body]) else { return };
        let set = &mut self.entries[start..start + WAYS];
        let is_same = |entry: &CachedBody| entry.path == *path && entry.hash == hash;
        let same = set.iter().position(|entry| entry.as_ref().is_some_and(is_same));
        let oldest = || (0..WAYS).min_by_key(|way| set[*way].as_ref().map(|entry| entry.since));
        let way = same.or_else(oldest).unwrap_or(0);
        let stored = match &set[way] {
            Some(former) if same.is_some() && planted!("block of another ETag") => (former.body, former.size),
            _ => (position, body.len()),
        };
        let (body, size) = stored;
        set[way] = Some(CachedBody { path: *path, hash, head, since: now, body, size });
    }

    /// Removes the answer for this path and key: the client continues with another one.
    pub(super) fn remove(&mut self, path: &DatagramPath, cache_key: &[u8]) {
        let (start, hash) = self.set(path, cache_key);
        for entry in &mut self.entries[start..start + WAYS] {
            if entry.as_ref().is_some_and(|entry| entry.path == *path && entry.hash == hash) {
                *entry = None;
            }
        }
    }

    /// The newest answer for this path and key.
    pub(super) fn find(&self, path: &DatagramPath, cache_key: &[u8], now: Time) -> Option<(BodyHead, &[u8])> {
        let (start, hash) = self.set(path, cache_key);
        let is_match = |entry: &&CachedBody| {
            entry.path == *path && entry.hash == hash && now.since(entry.since) < EXCHANGE_LIFETIME
        };
        let entry = self.entries[start..start + WAYS].iter().flatten().find(is_match)?;
        Some((entry.head, self.bodies.get(entry.body, entry.size)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn path(port: u16) -> DatagramPath {
        DatagramPath { socket: 0, peer: ([127, 0, 0, 1], port).into(), local: None }
    }

    fn head(body: &[u8]) -> BodyHead {
        BodyHead { code: Code::CONTENT, format: None, etag: etag_of(None, body), max_age: None }
    }

    /// Row 1.12: an answer is found only for the path and the key of its own request, however full the cache is.
    #[test]
    fn an_answer_is_found_for_its_own_request_only() {
        let mut cache = BodyCache::new(HashKey(1, 2), 64, 4096);
        for number in 0..2000_u16 {
            let (port, key) = (number % 100, number.to_be_bytes());
            let body = vec![number as u8; 100];
            cache.insert(&path(port), &key, Time::ZERO, head(&body), &body);
            assert_eq!(cache.find(&path(port), &key, Time::ZERO), Some((head(&body), &body[..])));
            assert_eq!(cache.find(&path(port + 1), &key, Time::ZERO), None);
            for earlier in number.saturating_sub(200)..number {
                let found = cache.find(&path(earlier % 100), &earlier.to_be_bytes(), Time::ZERO);
                assert!(found.is_none_or(|(_, body)| body == [earlier as u8; 100]), "{earlier}");
            }
        }
    }

    #[test]
    fn the_newest_answer_counts_until_it_expires() {
        let mut cache = BodyCache::new(HashKey(1, 2), 64, 4096);
        cache.insert(&path(1), b"k", Time::ZERO, head(b"old"), b"old");
        cache.insert(&path(1), b"k", Time::ZERO, head(b"new"), b"new");
        assert_eq!(cache.find(&path(1), b"k", Time::ZERO), Some((head(b"new"), &b"new"[..])));
        let late = Time::ZERO.after(EXCHANGE_LIFETIME);
        assert!(cache.find(&path(1), b"k", late.before(Duration::from_nanos(1))).is_some());
        assert_eq!(cache.find(&path(1), b"k", late), None);
    }

    #[test]
    fn the_validator_depends_on_body_and_format() {
        let tags = [etag_of(None, b"a"), etag_of(None, b"b"), etag_of(Some(ContentFormat::JSON), b"a")];
        assert!(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2]);
        assert_eq!(tags[0], etag_of(None, b"a"));
    }
}
