//! Caches encoded heads of responses without extra fields: equal heads within one second are encoded once, so that a
//! constant response costs two copies.

use stilling_wire::http1::{Date, Persistence, ResponseEncoder, Status};

/// Encoded heads that a shard caches; a power of two. Full: a head replaces another.
const HEAD_CACHE_SLOTS: usize = 16;

/// Bytes of a cached head; a longer one is encoded for each response.
pub(super) const HEAD_SIZE_MAX: usize = 256;

/// Everything a head depends on, except the date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadKey {
    pub(super) status: Status,
    pub(super) connection: Persistence,
    pub(super) content_type: Option<&'static str>,
    pub(super) length: u64,
    pub(super) is_dated: bool,
}

impl HeadKey {
    fn slot_index(&self) -> usize {
        let text = self.content_type.map_or(0, str::len);
        let mixed = usize::from(self.status.code()) ^ (self.length as usize) ^ (text << 2);
        (mixed ^ (self.connection as usize) << 3) % HEAD_CACHE_SLOTS
    }
}

#[derive(Debug)]
pub(super) struct HeadCache {
    slots: Box<[CachedHead; HEAD_CACHE_SLOTS]>,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct CachedHead {
    key: HeadKey,
    /// The second of its date.
    second: u64,
    /// 0: the slot is empty.
    len: u16,
    bytes: [u8; HEAD_SIZE_MAX],
}

impl HeadCache {
    pub(super) fn new() -> Self {
        let key = HeadKey {
            status: Status::Ok,
            connection: Persistence::Implicit,
            content_type: None,
            length: 0,
            is_dated: true,
        };
        let none = CachedHead { key, second: 0, len: 0, bytes: [0; HEAD_SIZE_MAX] };
        HeadCache {
            slots: Box::new([none; HEAD_CACHE_SLOTS]),
            scratch: Vec::with_capacity(2 * HEAD_SIZE_MAX),
        }
    }

    /// The head for `key` with the date of this second. `None`: the head is too long, or its media type is invalid.
    pub(super) fn get(&mut self, key: &HeadKey, second: u64, date: &Date) -> Option<&[u8]> {
        let head = &mut self.slots[key.slot_index()];
        if head.len == 0 || head.second != second || head.key != *key {
            let retry: &[(&str, &str)] = match key.status {
                Status::ServiceUnavailable => &[("Retry-After", super::response_writer::RETRY_AFTER)],
                _ => &[],
            };
            let reply = ResponseEncoder {
                status: key.status,
                date: key.is_dated.then_some(date.as_bytes()),
                connection: key.connection,
                content_length: (key.status != Status::NotModified).then_some(key.length),
                content_type: key.content_type,
                extra: retry,
            };
            // A long media type must not make the scratch memory grow.
            if key.content_type.is_some_and(|text| text.len() > HEAD_SIZE_MAX / 2) {
                return None;
            }
            self.scratch.clear();
            reply.encode(&mut self.scratch).ok()?;
            head.bytes.get_mut(..self.scratch.len())?.copy_from_slice(&self.scratch);
            (head.key, head.second, head.len) = (*key, second, self.scratch.len() as u16);
        }
        Some(&head.bytes[..usize::from(head.len)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(status: Status, length: u64, content_type: Option<&'static str>) -> HeadKey {
        HeadKey { status, connection: Persistence::Implicit, content_type, length, is_dated: true }
    }

    fn encoded(key: &HeadKey, date: &Date) -> Vec<u8> {
        let mut out = Vec::new();
        let retry = [("Retry-After", "1")];
        let reply = ResponseEncoder {
            status: key.status,
            date: key.is_dated.then_some(date.as_bytes()),
            connection: key.connection,
            content_length: Some(key.length),
            content_type: key.content_type,
            extra: if key.status == Status::ServiceUnavailable { &retry } else { &[] },
        };
        reply.encode(&mut out).expect("nothing breaks the framing");
        out
    }

    #[test]
    fn a_cached_head_equals_the_encoded_one() {
        let mut head_cache = HeadCache::new();
        let mut keys = Vec::new();
        for status in [Status::Ok, Status::Created, Status::NotFound, Status::ServiceUnavailable] {
            for length in (0..40).chain([u64::MAX]) {
                for content_type in [None, Some("text/plain"), Some("text/xhtml"), Some("application/json")] {
                    let first = key(status, length, content_type);
                    keys.extend([first, HeadKey { connection: Persistence::Close, ..first }]);
                    keys.push(HeadKey { connection: Persistence::Http10KeepAlive, is_dated: false, ..first });
                }
            }
        }
        for second in [784_111_777, 784_111_778, 784_111_777] {
            let date = Date::from_unix_seconds(second);
            for key in &keys {
                for _ in 0..2 {
                    assert_eq!(head_cache.get(key, second, &date), Some(&*encoded(key, &date)), "{key:?}");
                }
            }
        }
    }

    #[test]
    fn a_head_that_cannot_be_cached_is_not_returned() {
        let (mut head_cache, date) = (HeadCache::new(), Date::from_unix_seconds(1));
        let long: &'static str = "x".repeat(HEAD_SIZE_MAX).leak();
        assert_eq!(head_cache.get(&key(Status::Ok, 1, Some(long)), 1, &date), None);
        let middle = long.get(..HEAD_SIZE_MAX / 2).expect("it is longer");
        let kept = key(Status::Ok, 1, Some(middle));
        assert_eq!(head_cache.get(&kept, 1, &date), Some(&*encoded(&kept, &date)));
        assert_eq!(head_cache.get(&key(Status::Ok, 1, Some("a\r\nb")), 1, &date), None);
        assert_eq!(head_cache.scratch.capacity(), 2 * HEAD_SIZE_MAX);
        let good = key(Status::Ok, 1, Some("a"));
        assert_eq!(head_cache.get(&good, 1, &date), Some(&*encoded(&good, &date)));
    }
}
