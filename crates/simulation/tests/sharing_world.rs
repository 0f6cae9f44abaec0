//! Output from shared blocks: what subscribers receive, and how long a block is referenced.

use std::collections::VecDeque;
use std::time::Duration;

use stilling_engine::limits::{PIECES_MAX, SEND_MAX, SHARED_MIN};
use stilling_engine::{
    BlockWriter, CloseReason, Io, OutputFull, Recipient, Service, Session, ShardConfig, SharedBlock, Token,
};
use stilling_simulation::sharing::{SharingReport, run};
use stilling_simulation::single_shard::{SingleShard, read};

/// Row 4.35: however sends split private bytes and shared ranges, every byte arrives once and in order, and blocks are
/// free after the turn.
#[test]
fn every_subscriber_gets_its_messages_from_reused_blocks() {
    let mut sum = SharingReport::default();
    for seed in 0..300 {
        let report = run(seed).unwrap_or_else(|failure| panic!("{failure}"));
        sum.delivered += report.delivered;
        sum.reused_blocks += report.reused_blocks;
        sum.referenced += report.referenced;
        sum.stopped_sends += report.stopped_sends;
        sum.notifications += report.notifications;
    }
    assert!(sum.delivered > 20_000 && sum.reused_blocks > 1000, "{sum:?}");
    assert!(sum.referenced > 1000 && sum.stopped_sends > 1000 && sum.notifications > 10_000, "{sum:?}");
}

/// Bytes that the network holds per direction.
const BUFFER: usize = 50_000;

/// Sends its block whole to a connection as often as its mail requests, each time followed by a full stop.
struct RangeSender {
    block: SharedBlock,
    send_max: usize,
    tokens: Vec<Token>,
    mail: VecDeque<(Token, usize)>,
    outcomes: Vec<Result<(), OutputFull>>,
    ended: Vec<CloseReason>,
}

struct RangeReceiver;

impl Service for RangeSender {
    type Session = RangeReceiver;
    type Mail = usize;

    fn accepted(&mut self, _listener: u32) -> RangeReceiver {
        RangeReceiver
    }

    fn next_mail(&mut self) -> Option<(Recipient, usize)> {
        self.mail.pop_front().map(|(token, times)| (token.into(), times))
    }

    fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }
}

impl Session for RangeReceiver {
    type Service = RangeSender;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut RangeSender) {
        service.tokens.push(io.token());
        io.set_send_max(service.send_max);
        io.set_deadline(Some(io.now().after(Duration::from_secs(10))));
    }

    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut RangeSender) -> usize {
        bytes.len()
    }

    fn delivered(&mut self, times: usize, io: &mut Io<'_>, service: &mut RangeSender) {
        for _ in 0..times {
            service.outcomes.push(io.send_shared(&service.block, 0..SHARED_MIN));
            let _ = io.send(b".");
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut RangeSender) {
        service.ended.push(reason);
    }
}

/// A world with a block full of `b'x'`, and its writer.
fn fixture(send_max: usize) -> (SingleShard<RangeSender>, BlockWriter) {
    let mut writer = BlockWriter::new(SHARED_MIN);
    writer.append(&[b'x'; SHARED_MIN]).expect("it is as long");
    let service = RangeSender {
        block: writer.share(),
        send_max,
        tokens: Vec::new(),
        mail: VecDeque::new(),
        outcomes: Vec::new(),
        ended: Vec::new(),
    };
    (SingleShard::new(service, ShardConfig { capacity: 10, ..ShardConfig::default() }, BUFFER), writer)
}

/// Row 4.35: a sleeping shard references no block: a turn that sends from a block does not wait.
#[test]
fn a_turn_that_sends_from_a_block_does_not_wait() {
    let (mut world, mut writer) = fixture(SEND_MAX);
    let mut client = world.client();
    let token = world.service().tokens[0];
    world.service().mail.push_back((token, 1));
    world.shard.turn(false).expect("turns");
    world.service().block = BlockWriter::new(0).share();
    assert!(!writer.reset(), "the output of the turn refers to it");
    let before = world.network.now();
    world.shard.turn(true).expect("turns");
    assert!(writer.reset(), "the turn is over");
    assert_eq!(world.network.now(), before);
    world.shard.turn(true).expect("turns");
    assert!(world.network.now() > before, "without such output it waits");
    assert_eq!(read(&mut client, usize::MAX).0.len(), SHARED_MIN + 1);
}

/// Row 4.35: shared ranges count against the connection's limit of unsent bytes; refused ranges are not sent.
#[test]
fn shared_ranges_have_no_more_room_than_private_bytes() {
    let (mut world, _writer) = fixture(SEND_MAX);
    let mut client = world.client();
    let token = world.service().tokens[0];
    world.service().mail.push_back((token, 100));
    world.run_turns();
    let mut received = read(&mut client, usize::MAX).0;
    while !received.ends_with(&[b'.'; 2]) {
        world.run_turns();
        let more = read(&mut client, usize::MAX).0;
        assert!(!more.is_empty(), "the rest never comes");
        received.extend(more);
    }
    world.run_turns();
    received.extend(read(&mut client, usize::MAX).0);
    let sent_ranges = world.service().outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(sent_ranges, SEND_MAX / (SHARED_MIN + 1));
    assert_eq!(received.iter().filter(|byte| **byte == b'x').count(), sent_ranges * SHARED_MIN);
    assert_eq!((received.len() - sent_ranges * SHARED_MIN, world.service().ended.len()), (100, 0));
}

/// Row 4.35: a connection may get more ranges in a turn than one send has pieces.
#[test]
fn more_ranges_than_a_send_has_pieces_arrive_whole() {
    const RANGES: usize = PIECES_MAX / 2 + 50;
    let (mut world, _writer) = fixture(1 << 20);
    let mut client = world.client();
    let token = world.service().tokens[0];
    world.service().mail.push_back((token, RANGES));
    let mut received = Vec::new();
    for _ in 0..20 {
        world.run_turns();
        received.extend(read(&mut client, usize::MAX).0);
    }
    let one = [&[b'x'; SHARED_MIN][..], b"."].concat();
    assert!(received == one.repeat(RANGES), "{} bytes came", received.len());
    assert!(world.service().outcomes.iter().all(Result::is_ok) && world.service().ended.is_empty());
}
