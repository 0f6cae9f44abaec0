//! What the owner of a shard does to its connections between turns: with the same effects as a callback.

use std::time::Duration;

use stilling_engine::driver::Wait;
use stilling_engine::limits::{ARENA_SIZE, SEND_MAX};
use stilling_engine::{CloseReason, Config, Full, Io, Service, Session, Token};
use stilling_simulation::alone::{Alone, read};

/// Leaves all input to the owner of the shard.
#[derive(Default)]
struct Channels {
    tokens: Vec<Token>,
    ended: Vec<CloseReason>,
    /// Deadlines that have come.
    late: usize,
    /// Input is answered with as much as there is room for, and kept.
    answers: bool,
}

/// How often it was shown input, and how much there was last.
#[derive(Default)]
struct Channel {
    shown: usize,
    len: usize,
}

impl Service for Channels {
    type Session = Channel;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> Channel {
        Channel::default()
    }
}

impl Session for Channel {
    type Service = Channels;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut Channels) {
        service.tokens.push(io.token());
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Channels) -> usize {
        (self.shown, self.len) = (self.shown + 1, bytes.len());
        if !bytes.is_empty() {
            io.pause();
        }
        if service.answers {
            io.send(&vec![b'x'; io.room()]).expect("there is room");
        }
        0
    }

    fn deadline(&mut self, _: &mut Io<'_>, service: &mut Channels) {
        service.late += 1;
    }

    fn closed(&mut self, reason: CloseReason, service: &mut Channels) {
        service.ended.push(reason);
    }
}

fn world(buffer: usize) -> Alone<Channels> {
    Alone::new(Channels::default(), Config { capacity: 100, ..Config::default() }, buffer)
}

/// Row 3.32: the owner reads what is unread, answers, and has the session go on, without a turn in between.
#[test]
fn the_owner_reads_and_answers_between_turns() {
    let mut world = world(1000);
    let mut client = world.client();
    let token = world.service().tokens[0];
    assert_eq!(world.shard.unread(token), b"");
    assert_eq!(client.write(b"question").expect("there is room"), 8);
    world.turns();
    assert_ne!(world.shard.prepare_to_wait(), Wait::No);
    assert_eq!(world.shard.unread(token), b"question");
    world.shard.consume(token, 5);
    assert_eq!(world.shard.unread(token), b"ion");
    let shown = world.shard.with(token, |session, io| {
        io.send(b"answer").expect("there is room");
        io.resume();
        (session.shown, session.len)
    });
    assert_eq!(shown, Some((1, 8)));
    assert_eq!(world.shard.prepare_to_wait(), Wait::No, "there is something to send");
    world.turns();
    assert_eq!(read(&mut client, usize::MAX).0, b"answer");
    assert_eq!(world.shard.with(token, |session, _| (session.shown, session.len)), Some((2, 3)));
}

/// What the driver has to do for an effect comes before a wait, also where nothing is to be sent: a loop that turns the
/// shard only when it is asked to, or when there is news, does not sleep over it. A call without an effect costs one turn.
#[test]
fn effects_without_output_are_carried_out_before_the_shard_waits() {
    let mut world = world(1000);
    let mut clients: Vec<_> = (0..3).map(|_| world.client()).collect();
    let [resumed, finished, aborted] = world.service().tokens[..] else { panic!("three connections") };
    let turns_before_a_wait = |world: &mut Alone<Channels>| {
        let mut turns = 0;
        while world.shard.prepare_to_wait() == Wait::No {
            world.shard.turn(false).expect("it turns");
            turns += 1;
            assert!(turns < 100, "it never waits");
        }
        turns
    };
    clients[0].write(b"first").expect("there is room");
    world.turns();
    // Its session has paused it: what comes now is not received before it goes on.
    clients[0].write(b"second").expect("there is room");
    world.turns();
    assert_eq!(world.shard.unread(resumed), b"first");
    assert_eq!(turns_before_a_wait(&mut world), 0, "it waits");
    world.shard.consume(resumed, 5);
    world.shard.with(resumed, |_, io| io.resume()).expect("it is open");
    assert!(turns_before_a_wait(&mut world) > 0, "it is to be received from");
    world.turns();
    assert_eq!(world.shard.unread(resumed), b"second");
    world.shard.with(finished, |_, io| io.finish(CloseReason::Done)).expect("it is open");
    assert!(turns_before_a_wait(&mut world) > 0, "it is to be closed");
    world.turns();
    assert_eq!(read(&mut clients[1], 10), (vec![], true));
    world.shard.with(aborted, |_, io| io.abort(CloseReason::ProtocolError)).expect("it is open");
    assert!(turns_before_a_wait(&mut world) > 0, "it is to be closed");
    world.turns();
    assert_eq!(world.service().ended, [CloseReason::Done, CloseReason::ProtocolError]);
    world.shard.with(resumed, |_, _| ()).expect("it is open");
    assert_eq!(turns_before_a_wait(&mut world), 1);
}

/// Row 5.1: an end requested between turns is one like any other; a closed connection cannot be acted on.
#[test]
fn a_connection_can_be_ended_between_turns() {
    let mut world = world(1000);
    let (mut finished, mut aborted) = (world.client(), world.client());
    let tokens = world.service().tokens.clone();
    let outcome = world.shard.with(tokens[0], |_, io| {
        io.send(b"bye").expect("there is room");
        io.finish(CloseReason::Done);
    });
    assert_eq!(outcome, Some(()));
    assert_eq!(world.shard.with(tokens[1], |_, io| io.abort(CloseReason::ProtocolError)), Some(()));
    assert_eq!(world.shard.with(tokens[1], |_, _| ()), None, "it is being closed");
    assert!(world.service().ended.is_empty(), "the driver has not closed them yet");
    world.turns();
    assert_eq!((read(&mut finished, 10), read(&mut aborted, 10)), ((b"bye".to_vec(), true), (vec![], true)));
    let ended = world.service().ended.clone();
    assert!([CloseReason::Done, CloseReason::ProtocolError].iter().all(|reason| ended.contains(reason)));
    let next = world.client();
    for token in tokens {
        assert_eq!(world.shard.with(token, |_, _| ()), None, "its slot may have a new tenant");
        assert_eq!(world.shard.unread(token), b"");
        world.shard.consume(token, 0);
    }
    drop(next);
}

/// Row 4.35: what is sent between two turns is bounded like what is sent within one, however many connections there are.
#[test]
fn calls_between_turns_have_the_room_of_one_turn() {
    const CLIENTS: usize = 2 * ARENA_SIZE / SEND_MAX;
    let mut world = world(2 * SEND_MAX);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| world.client()).collect();
    let mut left = world.service().tokens.clone();
    let mut rounds = 0;
    while !left.is_empty() {
        let before = left.len();
        left.retain(|token| {
            let outcome = world.shard.with(*token, |_, io| io.send(&[b'x'; SEND_MAX]));
            outcome.expect("it is open") == Err(Full)
        });
        let sent = before - left.len();
        assert!((1..=ARENA_SIZE / SEND_MAX + 1).contains(&sent), "{sent} connections were sent to");
        world.shard.turn(false).expect("turns");
        rounds += 1;
    }
    assert!(rounds > 1);
    world.turns();
    for client in &mut clients {
        assert_eq!(read(client, usize::MAX).0.len(), SEND_MAX);
    }
    assert!(world.service().ended.is_empty());
}

/// Row 4.35: what sessions send because the owner has them go on is bounded in the same way.
#[test]
fn sessions_that_go_on_between_turns_have_the_room_of_one_turn() {
    const CLIENTS: usize = 2 * ARENA_SIZE / SEND_MAX;
    let mut world = world(2 * SEND_MAX);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| world.client()).collect();
    for client in &mut clients {
        client.write(b"?").expect("there is room");
    }
    world.turns();
    world.service().answers = true;
    for token in world.service().tokens.clone() {
        world.shard.with(token, |_, io| io.resume()).expect("it is open");
    }
    let before = world.shard.counters().sent_bytes.get();
    world.shard.turn(false).expect("turns");
    let sent = world.shard.counters().sent_bytes.get() - before;
    assert!(sent > 0 && sent <= (ARENA_SIZE + SEND_MAX) as u64, "{sent} bytes in one turn");
    world.turns();
    for client in &mut clients {
        assert_eq!(read(client, usize::MAX).0.len(), SEND_MAX);
    }
}

/// Row 0.9: a deadline that is set between turns counts from then, not from the last turn.
#[test]
fn a_deadline_set_between_turns_counts_from_now() {
    let mut world = world(1000);
    let _client = world.client();
    let token = world.service().tokens[0];
    world.network.advance_to(world.network.now().after(Duration::from_secs(3)));
    let now = world.network.now();
    let set = world.shard.with(token, |_, io| {
        io.set_deadline(Some(io.now().after(Duration::from_secs(1))));
        io.now()
    });
    assert_eq!(set, Some(now));
    world.turns();
    assert_eq!(world.service().late, 0);
    world.network.advance_to(now.after(Duration::from_secs(1)));
    world.turns();
    assert_eq!(world.service().late, 1);
}
