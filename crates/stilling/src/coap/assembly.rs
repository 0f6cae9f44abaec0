//! Request bodies that arrive in blocks (RFC 7959 §2.5), bounded in number, size and time.

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_wire::coap::BlockValue;

use super::limits::{ASSEMBLIES_MAX, ASSEMBLY_IDLE_MIN, ASSEMBLY_TIMEOUT, REQUEST_BODY_SIZE_MAX};

/// What a block does to its body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockOutcome {
    /// More blocks are to come: 2.31.
    Continue,
    /// The body is complete: see [`Assemblies::take`].
    Complete(usize),
    /// Earlier blocks are missing: 4.08.
    Incomplete,
    /// The body is too long: 4.13.
    TooLarge,
    /// A block with the wrong number of bytes: 4.00.
    WrongSize,
    /// There is no room for another body: 5.03.
    NoRoom,
}

#[derive(Debug)]
struct Assembly {
    /// The client and the hash of its request's cache key; `None` if it is free.
    owner: Option<(DatagramPath, u128)>,
    last: Time,
    body: Vec<u8>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Assemblies {
    hash_key: HashKey,
    assemblies: Vec<Assembly>,
}

impl Assemblies {
    pub(super) fn new(hash_key: HashKey) -> Assemblies {
        let free = || Assembly { owner: None, last: Time::ZERO, body: Vec::new() };
        Assemblies { hash_key, assemblies: std::iter::repeat_with(free).take(ASSEMBLIES_MAX).collect() }
    }

    /// Adds a block. `announced` is the whole size, if the client has stated it.
    pub(super) fn add(
        &mut self,
        path: &DatagramPath,
        cache_key: &[u8],
        now: Time,
        block: BlockValue,
        announced: Option<u32>,
        payload: &[u8],
    ) -> BlockOutcome {
        if block.more && payload.len() != block.size.bytes() || payload.len() > block.size.bytes() {
            return BlockOutcome::WrongSize;
        }
        let owner = (*path, self.hash_key.hash_128(cache_key));
        let found = self.find(&owner, now);
        let end = block.offset() + payload.len();
        if end.max(announced.unwrap_or(0) as usize) > REQUEST_BODY_SIZE_MAX {
            found.into_iter().for_each(|at| self.free(at));
            return BlockOutcome::TooLarge;
        }
        let at = match (found, block.number()) {
            (Some(at), _) => at,
            (None, 0) => match self.free_slot(now) {
                Some(at) => at,
                None => return BlockOutcome::NoRoom,
            },
            (None, _) => return BlockOutcome::Incomplete,
        };
        let assembly = &mut self.assemblies[at];
        if block.number() == 0 {
            assembly.body.clear();
        }
        if assembly.body.len() != block.offset() {
            return BlockOutcome::Incomplete;
        }
        (assembly.owner, assembly.last) = (Some(owner), now);
        assembly.body.extend_from_slice(payload);
        if block.more { BlockOutcome::Continue } else { BlockOutcome::Complete(at) }
    }

    /// Moves a complete body into `body` and frees its memory for the next.
    pub(super) fn take(&mut self, at: usize, body: &mut Vec<u8>) {
        body.clear();
        body.extend_from_slice(&self.assemblies[at].body);
        self.free(at);
    }

    /// Bodies of which blocks are still to come.
    pub(super) fn open(&self, now: Time) -> u64 {
        self.assemblies.iter().filter(|assembly| assembly.is_open(now)).count() as u64
    }

    fn find(&self, owner: &(DatagramPath, u128), now: Time) -> Option<usize> {
        let is_match = |assembly: &Assembly| assembly.owner.as_ref() == Some(owner) && assembly.is_open(now);
        self.assemblies.iter().position(is_match)
    }

    fn free_slot(&self, now: Time) -> Option<usize> {
        let free = self.assemblies.iter().position(|assembly| !assembly.is_open(now));
        free.or_else(|| {
            let (at, oldest) =
                self.assemblies.iter().enumerate().min_by_key(|(_, assembly)| assembly.last)?;
            (now.since(oldest.last) >= ASSEMBLY_IDLE_MIN).then_some(at)
        })
    }

    fn free(&mut self, at: usize) {
        self.assemblies[at].owner = None;
    }
}

impl Assembly {
    fn is_open(&self, now: Time) -> bool {
        self.owner.is_some() && now.since(self.last) < ASSEMBLY_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use stilling_wire::coap::BlockSize;

    use super::*;

    fn path(port: u16) -> DatagramPath {
        DatagramPath { socket: 0, peer: ([127, 0, 0, 1], port).into(), local: None }
    }

    fn block(number: u32, more: bool) -> BlockValue {
        BlockValue::new(number, more, BlockSize::MIN).expect("a small number")
    }

    fn assemblies() -> Assemblies {
        Assemblies::new(HashKey(1, 2))
    }

    #[test]
    fn blocks_in_order_make_a_body() {
        let mut all = assemblies();
        let now = Time::ZERO;
        for port in 1..=3 {
            assert_eq!(
                all.add(&path(port), b"k", now, block(0, true), None, &[port as u8; 16]),
                BlockOutcome::Continue
            );
        }
        for port in 1..=3 {
            let outcome = all.add(&path(port), b"k", now, block(1, false), None, &[port as u8; 3]);
            let BlockOutcome::Complete(at) = outcome else { panic!("{outcome:?}") };
            let mut body = Vec::new();
            all.take(at, &mut body);
            assert_eq!(body, [port as u8; 19]);
        }
        assert_eq!(all.open(now), 0);
    }

    #[test]
    fn missing_wrong_and_late_blocks_are_refused() {
        let mut all = assemblies();
        let mut add = |key: &[u8], seconds: u64, block, payload: &[u8]| {
            let now = Time::from_nanos(seconds * 1_000_000_000);
            all.add(&path(1), key, now, block, None, payload)
        };
        assert_eq!(add(b"a", 0, block(1, true), &[0; 16]), BlockOutcome::Incomplete);
        assert_eq!(add(b"a", 0, block(0, true), &[0; 16]), BlockOutcome::Continue);
        assert_eq!(add(b"a", 0, block(2, true), &[0; 16]), BlockOutcome::Incomplete);
        assert_eq!(add(b"b", 0, block(1, true), &[0; 16]), BlockOutcome::Incomplete, "another request");
        assert_eq!(add(b"a", 0, block(1, true), &[0; 15]), BlockOutcome::WrongSize);
        assert_eq!(add(b"a", 0, block(1, false), &[0; 17]), BlockOutcome::WrongSize);
        assert_eq!(add(b"a", 59, block(1, true), &[0; 16]), BlockOutcome::Continue);
        assert_eq!(add(b"a", 119, block(2, true), &[0; 16]), BlockOutcome::Incomplete, "it is late");
        assert_eq!(add(b"a", 119, block(4096, false), &[0; 16]), BlockOutcome::TooLarge);
    }

    #[test]
    fn an_announced_size_is_checked_at_once() {
        let announced = Some(REQUEST_BODY_SIZE_MAX as u32 + 1);
        let outcome = assemblies().add(&path(1), b"k", Time::ZERO, block(0, true), announced, &[0; 16]);
        assert_eq!(outcome, BlockOutcome::TooLarge);
    }

    #[test]
    fn a_full_table_replaces_only_idle_bodies() {
        let mut all = assemblies();
        let begin =
            |all: &mut Assemblies, port, now| all.add(&path(port), b"k", now, block(0, true), None, &[0; 16]);
        for port in 0..ASSEMBLIES_MAX as u16 {
            assert_eq!(begin(&mut all, port, Time::ZERO), BlockOutcome::Continue);
        }
        assert_eq!(begin(&mut all, 9999, Time::ZERO), BlockOutcome::NoRoom);
        let later = Time::ZERO.after(ASSEMBLY_IDLE_MIN);
        assert_eq!(begin(&mut all, 9999, later), BlockOutcome::Continue);
        assert_eq!(all.open(later), ASSEMBLIES_MAX as u64);
    }
}
