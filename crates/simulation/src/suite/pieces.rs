//! Contract tests for sends in several pieces.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, Gather, Outgoing, PieceChain, PieceList, SourceKind, Wait};
use stilling_engine::limits::PIECES_MAX;
use stilling_ring::BlockWriter;

use super::{AddressKind, DriverFixture, DriverRig, ObservedEvent, pattern};

/// A part of the suite's pattern, alternating private and shared pieces.
struct GatherInput {
    pieces: PieceList,
    chain: PieceChain,
    arena: Vec<u8>,
}

impl GatherInput {
    /// The pattern from `from` on in pieces of these lengths; each shared piece has its own block.
    fn new(from: usize, lens: impl IntoIterator<Item = usize>) -> Self {
        let (mut pieces, mut chain, mut arena) = (PieceList::default(), PieceChain::default(), Vec::new());
        let mut at = from;
        for (number, len) in lens.into_iter().enumerate() {
            let bytes = part(at, len);
            at += len;
            if number.is_multiple_of(2) {
                arena.extend_from_slice(&bytes);
                pieces.push_private(&mut chain, arena.len() - len..arena.len());
            } else {
                let mut writer = BlockWriter::new(len);
                let range = writer.append(&bytes).expect("it is as long");
                pieces.push_shared(&mut chain, &writer.share(), range);
            }
        }
        GatherInput { pieces, chain, arena }
    }

    fn gather(&self) -> Gather<'_> {
        self.pieces.gather(self.chain, &self.arena)
    }
}

fn part(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(pattern).collect()
}

fn cut(len: usize) -> Vec<usize> {
    let (mut lens, mut left) = (Vec::new(), len);
    while left > 0 {
        let len = [700, 5000][lens.len() % 2].min(left);
        lens.push(len);
        left -= len;
    }
    lens
}

/// Row 4.35: private bytes and shared ranges form one send, with up to the maximum number of pieces.
pub fn pieces_are_sent_in_their_order<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    for lens in [vec![1, 5000, 7, 1024, 300], vec![3], vec![8; PIECES_MAX]] {
        let len = lens.iter().sum();
        let mixed = GatherInput::new(len, lens);
        let stop = fixture.send_gather(token, mixed.gather(), false);
        assert!(stop.is_none(), "{stop:?}");
        drop(mixed);
        fixture.expect_at_peer(&mut peer, &part(len, len));
        fixture.send_whole(token, b"together");
        fixture.expect_at_peer(&mut peer, b"together");
    }
}

/// Row 4.36: a send in pieces stops short in any of them; the next send continues after the last accepted byte, and the
/// send that completes it closes.
pub fn a_short_send_in_pieces_continues_where_it_stopped<R: DriverRig>() {
    const LEN: usize = 1 << 20;
    for arms in [false, true] {
        let mut fixture = DriverFixture::<R>::new();
        let (token, mut peer) = fixture.connection();
        if arms {
            fixture.driver.receive(token);
        }
        let (mut sent, mut read, mut incomplete_sends) = (0, Vec::new(), 0);
        loop {
            let mixed = GatherInput::new(sent, cut(LEN - sent));
            let Some(stop) = fixture.send_gather(token, mixed.gather(), true) else { break };
            assert!(stop.error.is_none(), "{stop:?}");
            assert!(fixture.events.is_empty(), "{:?} although it stopped short", fixture.events);
            (sent, incomplete_sends) = (sent + stop.sent as usize, incomplete_sends + 1);
            fixture.driver.await_writable(token);
            fixture.peer_reads_until_event(&mut peer, |byte| read.push(byte));
            fixture.expect(ObservedEvent::Writable(token));
        }
        assert!(incomplete_sends > 0, "the send never stopped, so nothing was tested");
        fixture.expect(ObservedEvent::Closed(token));
        while read.len() < LEN {
            let more = fixture.peer_reads(&mut peer).expect("the peer reads");
            assert!(!more.is_empty(), "the end came after {} bytes", read.len());
            read.extend(more);
        }
        assert!(read == part(0, LEN), "the bytes arrived changed");
        assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
        fixture.expect_silence();
    }
}

/// Row 4.35: a turn may have more pieces than a driver prepares at once.
pub fn many_sends_in_pieces_in_one_turn<R: DriverRig>() {
    const CONNECTIONS: usize = 100;
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let (mut peers, mut tokens): (Vec<R::Peer>, Vec<Token>) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        peers.push(fixture.rig.dial(&destination));
        let socket = fixture.accepted(listener);
        tokens.push(fixture.attach(socket, SourceKind::Stream));
    }
    let answers: Vec<GatherInput> = (0..CONNECTIONS).map(|at| GatherInput::new(at, [20; 81])).collect();
    let outgoing: Vec<_> = std::iter::zip(&tokens, &answers)
        .map(|(token, answer)| Outgoing::stream(*token, answer.gather(), true))
        .collect();
    let incomplete_sends = fixture.turn(Wait::No, &outgoing);
    assert!(incomplete_sends.is_empty(), "{incomplete_sends:?}");
    for (at, peer) in peers.iter_mut().enumerate() {
        fixture.expect_at_peer(peer, &part(at, 20 * 81));
        assert_eq!(fixture.peer_reads(peer).expect("the end"), b"");
    }
    for _ in 0..CONNECTIONS {
        let ObservedEvent::Closed(token) = fixture.observed() else { panic!("expected an end") };
        let at = tokens.iter().position(|known| *known == token).expect("it is open");
        tokens.swap_remove(at);
    }
}

/// Row 4.36: a pipe accepts pieces like a socket.
pub fn a_pipe_accepts_pieces<R: DriverRig>() {
    const LEN: usize = 20_000;
    let mut fixture = DriverFixture::<R>::new();
    let (socket, mut peer) = fixture.rig.pipe_from_driver();
    let token = fixture.attach(socket, SourceKind::Pipe);
    let mut sent = 0;
    loop {
        let mixed = GatherInput::new(sent, cut(LEN));
        match fixture.send_gather(token, mixed.gather(), false) {
            None => sent += LEN,
            Some(stop) => {
                assert!(stop.error.is_none(), "{stop:?}");
                sent += stop.sent as usize;
                break;
            }
        }
    }
    fixture.driver.await_writable(token);
    fixture.expect_silence();
    fixture.expect_at_peer(&mut peer, &part(0, sent));
    fixture.expect(ObservedEvent::Writable(token));
    let mixed = GatherInput::new(sent, cut(LEN));
    assert!(fixture.send_gather(token, mixed.gather(), true).is_none());
    fixture.expect(ObservedEvent::Closed(token));
    fixture.expect_at_peer(&mut peer, &part(sent, LEN));
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
}
