//! Promises about sends whose bytes lie in several pieces.

use stilling_engine::Token;
use stilling_engine::driver::{Chain, Driver, Gather, Kind, Outgoing, Pieces, Wait};
use stilling_engine::limits::PIECES_MAX;
use stilling_ring::BlockWriter;

use super::{News, Place, Rig, Stage, pattern};

/// A part of the suite's pattern, private and shared pieces in turn.
struct Mixed {
    pieces: Pieces,
    chain: Chain,
    arena: Vec<u8>,
}

impl Mixed {
    /// The pattern from `from` on in pieces of these lengths, each shared one in a block of its own.
    fn new(from: usize, lens: impl IntoIterator<Item = usize>) -> Self {
        let (mut pieces, mut chain, mut arena) = (Pieces::default(), Chain::default(), Vec::new());
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
        Mixed { pieces, chain, arena }
    }

    fn gather(&self) -> Gather<'_> {
        self.pieces.gather(self.chain, &self.arena)
    }
}

fn part(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(pattern).collect()
}

/// Cuts `len` bytes into pieces of 700 and 5000.
fn cut(len: usize) -> Vec<usize> {
    let (mut lens, mut left) = (Vec::new(), len);
    while left > 0 {
        let len = [700, 5000][lens.len() % 2].min(left);
        lens.push(len);
        left -= len;
    }
    lens
}

/// Row 4.35: private bytes and shared ranges are one send, in as many pieces as one may have.
pub fn pieces_are_sent_in_their_order<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    for lens in [vec![1, 5000, 7, 1024, 300], vec![3], vec![8; PIECES_MAX]] {
        let len = lens.iter().sum();
        let mixed = Mixed::new(len, lens);
        let stop = stage.send_gather(token, mixed.gather(), false);
        assert!(stop.is_none(), "{stop:?}");
        drop(mixed);
        stage.expect_at_peer(&mut peer, &part(len, len));
        stage.send_whole(token, b"together");
        stage.expect_at_peer(&mut peer, b"together");
    }
}

/// Row 4.36: a send in pieces stops short in any of them, and what is sent next follows the last byte that was taken; the one
/// that ends it closes.
pub fn pieces_that_stop_short_go_on_where_they_stopped<R: Rig>() {
    const LEN: usize = 1 << 20;
    for arms in [false, true] {
        let mut stage = Stage::<R>::new();
        let (token, mut peer) = stage.connection();
        if arms {
            stage.driver.receive(token);
        }
        let (mut sent, mut read, mut stops) = (0, Vec::new(), 0);
        loop {
            let mixed = Mixed::new(sent, cut(LEN - sent));
            let Some(stop) = stage.send_gather(token, mixed.gather(), true) else { break };
            assert!(stop.error.is_none(), "{stop:?}");
            assert!(stage.events.is_empty(), "{:?} although it stopped short", stage.events);
            (sent, stops) = (sent + stop.sent as usize, stops + 1);
            stage.driver.writable(token);
            stage.peer_reads_until_news(&mut peer, |byte| read.push(byte));
            stage.expect(News::Writable(token));
        }
        assert!(stops > 0, "the send never stopped, so nothing was tested");
        stage.expect(News::Closed(token));
        while read.len() < LEN {
            let more = stage.peer_reads(&mut peer).expect("the peer reads");
            assert!(!more.is_empty(), "the end came after {} bytes", read.len());
            read.extend(more);
        }
        assert!(read == part(0, LEN), "the bytes arrived changed");
        assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
        stage.expect_silence();
    }
}

/// Row 4.35: a turn may have more pieces than a driver prepares at once.
pub fn many_sends_in_pieces_in_one_turn<R: Rig>() {
    const CONNECTIONS: usize = 100;
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    let (mut peers, mut tokens): (Vec<R::Peer>, Vec<Token>) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        peers.push(stage.rig.dial(&destination));
        let socket = stage.accepted(listener);
        tokens.push(stage.attach(socket, Kind::Stream));
    }
    let answers: Vec<Mixed> = (0..CONNECTIONS).map(|at| Mixed::new(at, [20; 81])).collect();
    let outgoing: Vec<_> = std::iter::zip(&tokens, &answers)
        .map(|(token, answer)| Outgoing::stream(*token, answer.gather(), true))
        .collect();
    let stops = stage.turn(Wait::No, &outgoing);
    assert!(stops.is_empty(), "{stops:?}");
    for (at, peer) in peers.iter_mut().enumerate() {
        stage.expect_at_peer(peer, &part(at, 20 * 81));
        assert_eq!(stage.peer_reads(peer).expect("the end"), b"");
    }
    for _ in 0..CONNECTIONS {
        let News::Closed(token) = stage.news() else { panic!("expected an end") };
        let at = tokens.iter().position(|known| *known == token).expect("it is open");
        tokens.swap_remove(at);
    }
}

/// Row 4.36: a pipe takes pieces as a socket does.
pub fn a_pipe_takes_pieces<R: Rig>() {
    const LEN: usize = 20_000;
    let mut stage = Stage::<R>::new();
    let (socket, mut peer) = stage.rig.pipe_from_driver();
    let token = stage.attach(socket, Kind::Pipe);
    let mut sent = 0;
    loop {
        let mixed = Mixed::new(sent, cut(LEN));
        match stage.send_gather(token, mixed.gather(), false) {
            None => sent += LEN,
            Some(stop) => {
                assert!(stop.error.is_none(), "{stop:?}");
                sent += stop.sent as usize;
                break;
            }
        }
    }
    stage.driver.writable(token);
    stage.expect_silence();
    stage.expect_at_peer(&mut peer, &part(0, sent));
    stage.expect(News::Writable(token));
    let mixed = Mixed::new(sent, cut(LEN));
    assert!(stage.send_gather(token, mixed.gather(), true).is_none());
    stage.expect(News::Closed(token));
    stage.expect_at_peer(&mut peer, &part(sent, LEN));
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
}
