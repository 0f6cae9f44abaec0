//! Long reads after a full receive buffer: the lengths that a session is shown, an end, a reset or a pause in the
//! middle, and a shard short of room for input. Over the simulated network.

use std::ops::Range;
use std::time::Duration;

use stilling_engine::limits::{
    BLOCK_SIZE, BLOCKS_MAX, LONG_READ_SIZE, RECEIVE_BUFFER_SIZE, SHARED_MIN, SPARE_BLOCKS_MAX,
};
use stilling_engine::{CloseReason, Io, Service, Session, ShardConfig, SharedBlock};
use stilling_simulation::SimPeer;
use stilling_simulation::single_shard::SingleShard;

/// Bytes that the network holds in one direction.
const BUFFER: usize = 4 * LONG_READ_SIZE;

#[derive(Default)]
struct LongReadService {
    /// The session consumes whole pieces of this many bytes.
    piece: usize,
    /// The session pauses after this many bytes.
    pauses_at: Option<usize>,
    call_lens: Vec<usize>,
    consumed: Vec<u8>,
    ended: usize,
    closed: Vec<CloseReason>,
    /// The session shares what it consumes and keeps the references, each with the number of bytes before it; and the
    /// lengths of pieces that could not be shared.
    holds_references: bool,
    references: Vec<(usize, SharedBlock, Range<usize>)>,
    unshared: Vec<usize>,
}

struct LongReadSession;

impl Service for LongReadService {
    type Session = LongReadSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> LongReadSession {
        LongReadSession
    }
}

impl Session for LongReadSession {
    type Service = LongReadService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut LongReadService) -> usize {
        service.call_lens.push(bytes.len());
        let mut whole = bytes.len() / service.piece * service.piece;
        if let Some(at) = service.pauses_at
            && service.consumed.len() + whole >= at
        {
            whole = at - service.consumed.len();
            service.pauses_at = None;
            io.pause();
            io.set_deadline(Some(io.now().after(Duration::from_millis(5))));
        }
        if service.holds_references {
            match io.share(&bytes[..whole]) {
                Some((block, range)) => {
                    service.references.push((service.consumed.len(), block.clone(), range));
                }
                None => service.unshared.push(whole),
            }
        }
        service.consumed.extend(&bytes[..whole]);
        whole
    }

    fn deadline(&mut self, io: &mut Io<'_>, _: &mut LongReadService) {
        io.resume();
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut LongReadService) {
        service.ended += 1;
        io.finish(CloseReason::PeerClosed);
    }

    fn closed(&mut self, reason: CloseReason, service: &mut LongReadService) {
        service.closed.push(reason);
    }
}

fn fixture(service: LongReadService, input_bytes_max: usize) -> SingleShard<LongReadService> {
    SingleShard::new(service, ShardConfig { capacity: 10, input_bytes_max, ..ShardConfig::default() }, BUFFER)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn write(peer: &mut SimPeer, bytes: &[u8]) {
    assert_eq!(peer.write(bytes).expect("it is open"), bytes.len(), "the network accepts all bytes");
}

/// Row 0.5: a burst is shown in few long pieces, not in one per buffer.
#[test]
fn a_full_buffer_is_followed_by_one_long_read() {
    let mut fixture = fixture(LongReadService { piece: 1, ..LongReadService::default() }, 1 << 20);
    let mut client = fixture.client();
    let bytes = pattern(RECEIVE_BUFFER_SIZE + LONG_READ_SIZE + 100);
    write(&mut client, &bytes);
    fixture.run_turns();
    assert_eq!(fixture.service().call_lens, [RECEIVE_BUFFER_SIZE, LONG_READ_SIZE, 100]);
    assert_eq!(fixture.service().consumed, bytes);
    write(&mut client, &bytes[..RECEIVE_BUFFER_SIZE - 1]);
    fixture.run_turns();
    assert_eq!(
        fixture.service().call_lens[3..],
        [RECEIVE_BUFFER_SIZE - 1],
        "a buffer with room is all there was"
    );
}

/// Row 0.5: unconsumed bytes of one read come before those of the next.
#[test]
fn messages_that_lie_across_buffers_arrive_whole() {
    for piece in [3, 4095, 4096, 4097, 10_000, LONG_READ_SIZE - RECEIVE_BUFFER_SIZE] {
        let mut fixture = fixture(LongReadService { piece, ..LongReadService::default() }, 1 << 20);
        let mut client = fixture.client();
        let bytes = pattern(BUFFER / piece * piece);
        write(&mut client, &bytes);
        fixture.run_turns();
        assert!(fixture.service().consumed == bytes, "pieces of {piece}");
        assert_eq!(fixture.shard.held_bytes(), (0, 0));
        let call_lens = fixture.service().call_lens.clone();
        assert!(call_lens.len() <= 2 * BUFFER / (LONG_READ_SIZE / 2), "pieces of {piece} took {call_lens:?}");
    }
}

/// Row 4.34: input before an end or a reset is shown before it.
#[test]
fn a_long_read_precedes_an_end_or_a_reset() {
    for (ends, len) in [true, false].into_iter().flat_map(|ends| {
        [RECEIVE_BUFFER_SIZE, RECEIVE_BUFFER_SIZE + 1, RECEIVE_BUFFER_SIZE + LONG_READ_SIZE]
            .map(|len| (ends, len))
    }) {
        let mut fixture = fixture(LongReadService { piece: 1, ..LongReadService::default() }, 1 << 20);
        let mut client = fixture.client();
        let bytes = pattern(len);
        write(&mut client, &bytes);
        if ends {
            client.shutdown();
            fixture.run_turns();
            let service = fixture.service();
            assert!(service.consumed == bytes, "{len} bytes before the end");
            assert_eq!((service.ended, &service.closed[..]), (1, &[CloseReason::PeerClosed][..]));
        } else {
            client.reset();
            fixture.run_turns();
            let service = fixture.service();
            assert!(service.consumed == bytes, "{} of {len} bytes before a reset", service.consumed.len());
            assert_eq!((service.ended, &service.closed[..]), (0, &[CloseReason::PeerReset][..]));
        }
    }
}

/// Row 0.14: a session that pauses in the middle of a long read is shown the rest when it resumes, and nothing is read
/// beyond.
#[test]
fn a_session_that_pauses_in_the_middle_loses_nothing() {
    for pauses_at in [1, RECEIVE_BUFFER_SIZE, RECEIVE_BUFFER_SIZE + 1, LONG_READ_SIZE] {
        let service = LongReadService { piece: 1, pauses_at: Some(pauses_at), ..LongReadService::default() };
        let mut fixture = fixture(service, 1 << 20);
        let mut client = fixture.client();
        let bytes = pattern(BUFFER);
        write(&mut client, &bytes);
        fixture.run_turns();
        assert!(fixture.service().consumed == bytes, "paused at {pauses_at}");
        assert_eq!(fixture.shard.held_bytes(), (0, 0));
    }
}

/// Row 0.14: when the store is half full, reads are short, so that the unconsumed rest finds room.
#[test]
fn a_shard_short_of_room_reads_no_more_than_a_buffer() {
    let piece = RECEIVE_BUFFER_SIZE - 900;
    // The first client leaves enough for a block of the store that takes more than half of it.
    let mut fixture = fixture(LongReadService { piece, ..LongReadService::default() }, 7 * 1024);
    let mut first = fixture.client();
    write(&mut first, &pattern(piece - 1));
    fixture.run_turns();
    let mut second = fixture.client();
    write(&mut second, &pattern(RECEIVE_BUFFER_SIZE + 50));
    fixture.run_turns();
    let service = fixture.service();
    assert_eq!(service.call_lens[1], RECEIVE_BUFFER_SIZE);
    assert!(service.call_lens[2..].iter().all(|len| *len < RECEIVE_BUFFER_SIZE), "{:?}", service.call_lens);
    assert_eq!(service.consumed.len(), piece);
    assert_eq!(service.closed, []);
}

/// Design, section 4: shared input stays unchanged while references exist. When references hold all blocks, reads are
/// short and nothing is lost; memory shrinks when they end.
#[test]
fn references_preserve_input_and_blocks_are_bounded() {
    let mut fixture =
        fixture(LongReadService { piece: 1, holds_references: true, ..LongReadService::default() }, 1 << 20);
    let mut client = fixture.client();
    assert_eq!(fixture.shard.block_bytes(), 0, "a shard that has read nothing long has no block");
    let mut bytes = pattern(BUFFER);
    let mut written: Vec<u8> = Vec::new();
    for round in 0..2 * BLOCKS_MAX {
        bytes.rotate_left(round);
        write(&mut client, &bytes);
        written.extend(&bytes);
        fixture.run_turns();
    }
    let held_bytes = fixture.shard.block_bytes();
    let service = fixture.service();
    assert!(service.consumed == written, "{} of {} bytes", service.consumed.len(), written.len());
    let shared: usize = service.references.iter().map(|(_, _, range)| range.len()).sum();
    assert_eq!(held_bytes, BLOCKS_MAX * BLOCK_SIZE);
    assert!(
        shared > BLOCKS_MAX * (BLOCK_SIZE - LONG_READ_SIZE) && shared <= held_bytes,
        "{shared} bytes are shared"
    );
    let long = service.unshared.iter().filter(|len| **len >= SHARED_MIN);
    assert!(long.clone().count() > 0 && long.max() <= Some(&RECEIVE_BUFFER_SIZE), "{:?}", service.unshared);
    for (at, block, range) in &service.references {
        assert!(block.bytes(range.clone()) == &written[*at..at + range.len()], "it has changed");
    }
    service.references.clear();
    (service.holds_references, service.call_lens) = (false, Vec::new());
    write(&mut client, &bytes);
    fixture.run_turns();
    assert!(fixture.service().call_lens.contains(&LONG_READ_SIZE), "blocks are free again");
    for _ in 0..BLOCKS_MAX * 4 {
        fixture.run_turns();
    }
    assert_eq!(fixture.shard.block_bytes(), (SPARE_BLOCKS_MAX + 1) * BLOCK_SIZE);
}

/// A shard without shared input stays in one block, from its start.
#[test]
fn without_references_one_block_is_enough() {
    let mut fixture = fixture(LongReadService { piece: 1, ..LongReadService::default() }, 1 << 20);
    let mut client = fixture.client();
    for _ in 0..20 {
        write(&mut client, &pattern(BUFFER));
        fixture.run_turns();
    }
    assert_eq!(fixture.shard.block_bytes(), BLOCK_SIZE);
}
