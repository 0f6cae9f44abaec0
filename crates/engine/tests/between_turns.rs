//! Actions of a shard's owner on its connections between turns have the same effects as a callback.

use std::time::Duration;

use stilling_engine::driver::Wait;
use stilling_engine::limits::{ARENA_SIZE, SEND_MAX};
use stilling_engine::{CloseReason, Io, OutputFull, Service, Session, ShardConfig, Token};
use stilling_simulation::single_shard::{SingleShard, read};

/// Leaves all input to the owner of the shard.
#[derive(Default)]
struct InputService {
    tokens: Vec<Token>,
    ended: Vec<CloseReason>,
    deadlines: usize,
    /// Answers input with as much as there is room for, without consuming it.
    answers: bool,
}

/// Number of calls with input, and its length in the last one.
#[derive(Default)]
struct InputSession {
    call_count: usize,
    len: usize,
}

impl Service for InputService {
    type Session = InputSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> InputSession {
        InputSession::default()
    }
}

impl Session for InputSession {
    type Service = InputService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut InputService) {
        service.tokens.push(io.token());
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut InputService) -> usize {
        (self.call_count, self.len) = (self.call_count + 1, bytes.len());
        if !bytes.is_empty() {
            io.pause();
        }
        if service.answers {
            io.send(&vec![b'x'; io.room()]).expect("there is room");
        }
        0
    }

    fn deadline(&mut self, _: &mut Io<'_>, service: &mut InputService) {
        service.deadlines += 1;
    }

    fn closed(&mut self, reason: CloseReason, service: &mut InputService) {
        service.ended.push(reason);
    }
}

fn fixture(buffer: usize) -> SingleShard<InputService> {
    SingleShard::new(InputService::default(), ShardConfig { capacity: 100, ..ShardConfig::default() }, buffer)
}

/// Row 3.32: the owner reads the unconsumed input, responds, and resumes the session, without a turn in between.
#[test]
fn the_owner_reads_and_answers_between_turns() {
    let mut fixture = fixture(1000);
    let mut client = fixture.client();
    let token = fixture.service().tokens[0];
    assert_eq!(fixture.shard.unread(token), b"");
    assert_eq!(client.write(b"question").expect("there is room"), 8);
    fixture.run_turns();
    assert_ne!(fixture.shard.prepare_to_wait(), Wait::No);
    assert_eq!(fixture.shard.unread(token), b"question");
    fixture.shard.consume(token, 5);
    assert_eq!(fixture.shard.unread(token), b"ion");
    let call_count = fixture.shard.with(token, |session, io| {
        io.send(b"answer").expect("there is room");
        io.resume();
        (session.call_count, session.len)
    });
    assert_eq!(call_count, Some((1, 8)));
    assert_eq!(fixture.shard.prepare_to_wait(), Wait::No, "there is something to send");
    fixture.run_turns();
    assert_eq!(read(&mut client, usize::MAX).0, b"answer");
    assert_eq!(fixture.shard.with(token, |session, _| (session.call_count, session.len)), Some((2, 3)));
}

/// A foreign loop does not wait before the driver has carried out the requests of a call, also if nothing is to be
/// sent. A call without requests costs one turn.
#[test]
fn effects_without_output_are_carried_out_before_the_shard_waits() {
    let mut fixture = fixture(1000);
    let mut clients: Vec<_> = (0..3).map(|_| fixture.client()).collect();
    let [resumed, finished, aborted] = fixture.service().tokens[..] else { panic!("three connections") };
    let turns_before_a_wait = |fixture: &mut SingleShard<InputService>| {
        let mut turns = 0;
        while fixture.shard.prepare_to_wait() == Wait::No {
            fixture.shard.turn(false).expect("it turns");
            turns += 1;
            assert!(turns < 100, "it never waits");
        }
        turns
    };
    clients[0].write(b"first").expect("there is room");
    fixture.run_turns();
    // The session has paused input: later input is not received before it resumes.
    clients[0].write(b"second").expect("there is room");
    fixture.run_turns();
    assert_eq!(fixture.shard.unread(resumed), b"first");
    assert_eq!(turns_before_a_wait(&mut fixture), 0, "it waits");
    fixture.shard.consume(resumed, 5);
    fixture.shard.with(resumed, |_, io| io.resume()).expect("it is open");
    assert!(turns_before_a_wait(&mut fixture) > 0, "it is to be received from");
    fixture.run_turns();
    assert_eq!(fixture.shard.unread(resumed), b"second");
    fixture.shard.with(finished, |_, io| io.finish(CloseReason::Done)).expect("it is open");
    assert!(turns_before_a_wait(&mut fixture) > 0, "it is to be closed");
    fixture.run_turns();
    assert_eq!(read(&mut clients[1], 10), (vec![], true));
    fixture.shard.with(aborted, |_, io| io.abort(CloseReason::ProtocolError)).expect("it is open");
    assert!(turns_before_a_wait(&mut fixture) > 0, "it is to be closed");
    fixture.run_turns();
    assert_eq!(fixture.service().ended, [CloseReason::Done, CloseReason::ProtocolError]);
    fixture.shard.with(resumed, |_, _| ()).expect("it is open");
    assert_eq!(turns_before_a_wait(&mut fixture), 1);
}

/// Row 5.1: an end requested between turns works like any other; a closed connection cannot be acted on.
#[test]
fn a_connection_can_be_ended_between_turns() {
    let mut fixture = fixture(1000);
    let (mut finished, mut aborted) = (fixture.client(), fixture.client());
    let tokens = fixture.service().tokens.clone();
    let outcome = fixture.shard.with(tokens[0], |_, io| {
        io.send(b"bye").expect("there is room");
        io.finish(CloseReason::Done);
    });
    assert_eq!(outcome, Some(()));
    assert_eq!(fixture.shard.with(tokens[1], |_, io| io.abort(CloseReason::ProtocolError)), Some(()));
    assert_eq!(fixture.shard.with(tokens[1], |_, _| ()), None, "it is being closed");
    assert!(fixture.service().ended.is_empty(), "the driver has not closed them yet");
    fixture.run_turns();
    assert_eq!((read(&mut finished, 10), read(&mut aborted, 10)), ((b"bye".to_vec(), true), (vec![], true)));
    let ended = fixture.service().ended.clone();
    assert!([CloseReason::Done, CloseReason::ProtocolError].iter().all(|reason| ended.contains(reason)));
    let next = fixture.client();
    for token in tokens {
        assert_eq!(fixture.shard.with(token, |_, _| ()), None, "its slot may be reused");
        assert_eq!(fixture.shard.unread(token), b"");
        fixture.shard.consume(token, 0);
    }
    drop(next);
}

/// Row 4.35: output sent between two turns is bounded like that of one turn, whatever the number of connections.
#[test]
fn calls_between_turns_have_the_room_of_one_turn() {
    const CLIENTS: usize = 2 * ARENA_SIZE / SEND_MAX;
    let mut fixture = fixture(2 * SEND_MAX);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| fixture.client()).collect();
    let mut left = fixture.service().tokens.clone();
    let mut rounds = 0;
    while !left.is_empty() {
        let before = left.len();
        left.retain(|token| {
            let outcome = fixture.shard.with(*token, |_, io| io.send(&[b'x'; SEND_MAX]));
            outcome.expect("it is open") == Err(OutputFull)
        });
        let sent = before - left.len();
        assert!((1..=ARENA_SIZE / SEND_MAX + 1).contains(&sent), "{sent} connections were sent to");
        fixture.shard.turn(false).expect("turns");
        rounds += 1;
    }
    assert!(rounds > 1);
    fixture.run_turns();
    for client in &mut clients {
        assert_eq!(read(client, usize::MAX).0.len(), SEND_MAX);
    }
    assert!(fixture.service().ended.is_empty());
}

/// Row 4.35: output of sessions that the owner resumes is bounded in the same way.
#[test]
fn sessions_resumed_between_turns_have_the_space_of_one_turn() {
    const CLIENTS: usize = 2 * ARENA_SIZE / SEND_MAX;
    let mut fixture = fixture(2 * SEND_MAX);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| fixture.client()).collect();
    for client in &mut clients {
        client.write(b"?").expect("there is room");
    }
    fixture.run_turns();
    fixture.service().answers = true;
    for token in fixture.service().tokens.clone() {
        fixture.shard.with(token, |_, io| io.resume()).expect("it is open");
    }
    let before = fixture.shard.counters().sent_bytes.get();
    fixture.shard.turn(false).expect("turns");
    let sent = fixture.shard.counters().sent_bytes.get() - before;
    assert!(sent > 0 && sent <= (ARENA_SIZE + SEND_MAX) as u64, "{sent} bytes in one turn");
    fixture.run_turns();
    for client in &mut clients {
        assert_eq!(read(client, usize::MAX).0.len(), SEND_MAX);
    }
}

/// Row 0.9: a deadline set between turns counts from then, not from the last turn.
#[test]
fn a_deadline_set_between_turns_counts_from_now() {
    let mut fixture = fixture(1000);
    let _client = fixture.client();
    let token = fixture.service().tokens[0];
    fixture.network.advance_to(fixture.network.now().after(Duration::from_secs(3)));
    let now = fixture.network.now();
    let set = fixture.shard.with(token, |_, io| {
        io.set_deadline(Some(io.now().after(Duration::from_secs(1))));
        io.now()
    });
    assert_eq!(set, Some(now));
    fixture.run_turns();
    assert_eq!(fixture.service().deadlines, 0);
    fixture.network.advance_to(now.after(Duration::from_secs(1)));
    fixture.run_turns();
    assert_eq!(fixture.service().deadlines, 1);
}
