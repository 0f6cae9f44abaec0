//! What a desk makes of connections that do not come about, in a time of the test's own: the process behind it does nothing.

use std::io;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::{NO_PLACE, Token};
use stilling_ring::{Time, Wake};
use stilling_wire::http1::{Event, Limits, RequestDecoder};
use stilling_workers::processes::{self, Processes, Program, QueueLimits};

use super::super::desk::{Desk, Mail};
use super::super::exchange::{Exchange, Trouble};
use super::super::{Question, Refusal, Said};
use super::world::eventually;
use crate::http::Held;

const TIMEOUT: Duration = Duration::from_secs(7);

/// Lives, and is ready at once.
struct Sleeper;

impl Program for Sleeper {
    fn command(&mut self, _: usize) -> io::Result<Command> {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Ok(command)
    }

    fn is_ready(&mut self, _: usize) -> bool {
        true
    }
}

/// A desk before one process with one slot.
fn desk() -> (Desk, Processes) {
    let wake = Arc::new(Wake::new(|| ()));
    let limits = processes::Limits::default();
    let (processes, mut entrances) =
        Processes::new(limits, QueueLimits::default(), vec![wake]).expect("an eventfd");
    processes.start("app", Box::new(Sleeper), Box::new(|_, _| ())).expect("it starts");
    eventually("the process is ready", || processes.counters().ready == 1);
    let entrance = entrances.pop().expect("one for the shard");
    (Desk::new(entrance, vec![PathBuf::from("nowhere")], TIMEOUT), processes)
}

/// A request of a client, as it is given to a connection that is to be made.
fn dialed(desk: &mut Desk, client: Token, now: Time) -> Box<Exchange> {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let step = RequestDecoder::default().decode(&Limits::default(), request).expect("it is HTTP");
    let Event::Head(head) = step.event else { panic!("it is a whole head") };
    let question = Question::new(&head, None, Vec::new(), Held::new(&Arc::default()));
    desk.ask(client, question, now).expect("there is room in the queue");
    let (_, mut session) = desk.dials().next().expect("it is its turn");
    session.exchange.take().expect("it is dialed for it")
}

fn refusal(desk: &mut Desk, client: Token) -> Option<Refusal> {
    match desk.next_mail()? {
        (to, Mail::Said(_, Said::Refused(refusal))) if to == client => Some(refusal),
        _ => panic!("the client of that job is refused or hears nothing"),
    }
}

/// Row 3.27: want of places is this side's: the client is told to come again, the process is not blamed.
#[test]
fn a_connection_without_a_place_is_answered_503_and_not_held_against_the_process() {
    let (mut desk, processes) = desk();
    for client in [Token::new(70, 1), Token::new(71, 1)] {
        let exchange = dialed(&mut desk, client, Time::ZERO);
        desk.fail(exchange, Trouble::Refused(NO_PLACE));
        desk.turn(Time::ZERO);
        assert_eq!(refusal(&mut desk, client), Some(Refusal::Unavailable));
        assert_eq!((processes.requests().busy, processes.counters().ready), (0, 1), "its slot is free");
    }
}

/// Row 4.26: the client hears in time, the slot is the connection's until it is made or not, and then the process is blamed.
#[test]
fn a_connection_that_is_not_made_in_time_is_answered_504_before_it_fails() {
    let (mut desk, processes) = desk();
    let client = Token::new(70, 1);
    let exchange = dialed(&mut desk, client, Time::ZERO);
    let due = Time::ZERO.after(TIMEOUT);
    let before = due.before(Duration::from_nanos(1));
    assert_eq!((desk.turn(before), refusal(&mut desk, client)), (Some(due), None));
    desk.turn(due);
    assert_eq!(refusal(&mut desk, client), Some(Refusal::Late));
    assert_eq!(processes.requests().busy, 1);
    desk.fail(exchange, Trouble::Refused(ErrorKind::TimedOut));
    desk.turn(due);
    assert_eq!((refusal(&mut desk, client), processes.requests().busy), (None, 0));
    eventually("it is replaced", || processes.counters().killed == 1);
}
