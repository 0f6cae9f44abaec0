//! The judge, and what only this driver does. What all drivers promise is in the driver suite.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::*;
use crate::faults::Faults;
use crate::network::{Options, Peer};

const TOKEN: Token = Token::new(3, 1);

struct Rig {
    network: Network,
    driver: SimDriver,
    peer: Peer,
}

type Events = Vec<Event<SimSocket>>;

impl Rig {
    fn new(faults: Faults) -> Self {
        let network = Network::new(7, Options { faults, ..Options::default() });
        let mut driver = SimDriver::with_buffers(&network, 2);
        let (here, there) = network.pair();
        driver.attach(TOKEN, here, Kind::Stream, false).expect("the slot is free");
        Rig { network, driver, peer: Peer::new(there) }
    }

    fn turn(&mut self, wait: Wait, outgoing: &[Outgoing<'_>]) -> (Vec<SendStop>, Events) {
        let (mut stops, mut events) = (Vec::new(), Vec::new());
        let now = self.network.now();
        self.driver.turn(now, wait, outgoing.iter().copied(), &mut stops, &mut events).expect("turns");
        (stops, events)
    }

    fn news(&mut self) -> Events {
        self.turn(Wait::No, &[]).1
    }

    /// Turns until the source is closed; only that may be reported.
    fn closed(&mut self, token: Token) {
        for _ in 0..1000 {
            let now = self.network.now();
            let events = self.turn(Wait::Until(now.after(Duration::from_millis(1))), &[]).1;
            match events[..] {
                [] => {}
                [Event::Closed { token: closed }] if closed == token => return,
                _ => panic!("news of a closing source: {events:?}"),
            }
        }
        panic!("never closed");
    }
}

fn sending(token: Token, bytes: &[u8]) -> Outgoing<'_> {
    Outgoing::stream(token, Gather::One(bytes), false)
}

/// The act breaks the contract, and the judge says so with these words.
fn check_violation(words: &str, act: impl FnOnce(&mut Rig)) {
    let mut rig = Rig::new(Faults::NONE);
    let panic = catch_unwind(AssertUnwindSafe(|| act(&mut rig))).expect_err(words);
    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(message.starts_with("contract broken by the shard"), "{message}");
    assert!(message.contains(words), "{message} does not say {words}");
}

/// Row 4.12: a shard that misuses a token or a buffer is stopped at once.
#[test]
fn a_shard_that_breaks_the_contract_is_stopped() {
    check_violation("3.1: attached twice", |rig| {
        let (socket, _) = rig.network.pair();
        let _ = rig.driver.attach(TOKEN, socket, Kind::Stream, false);
    });
    check_violation("before the former tenant's Closed", |rig| {
        rig.driver.close(TOKEN);
        let (socket, _) = rig.network.pair();
        let _ = rig.driver.attach(Token::new(3, 2), socket, Kind::Stream, false);
    });
    check_violation("without a new generation", |rig| {
        rig.driver.close(TOKEN);
        rig.closed(TOKEN);
        let (socket, _) = rig.network.pair();
        let _ = rig.driver.attach(TOKEN, socket, Kind::Stream, false);
    });
    check_violation("a second receive while one is armed", |rig| {
        rig.driver.receive(TOKEN);
        rig.driver.readable(TOKEN);
    });
    check_violation("writable asked for twice", |rig| {
        rig.driver.writable(TOKEN);
        rig.driver.writable(TOKEN);
    });
    check_violation("while a receive is armed", |rig| {
        rig.driver.receive(TOKEN);
        let _ = rig.driver.recv_now(TOKEN, &mut [0]);
    });
    check_violation("close it after closing it", |rig| {
        rig.driver.close(TOKEN);
        rig.driver.close(TOKEN);
    });
    check_violation("send on it after closing it", |rig| {
        rig.driver.close(TOKEN);
        rig.turn(Wait::No, &[sending(TOKEN, b"late")]);
    });
    check_violation("two sends in one turn", |rig| {
        rig.turn(Wait::No, &[sending(TOKEN, b"a"), sending(TOKEN, b"b")]);
    });
    check_violation("receive on it although it is not attached", |rig| {
        rig.driver.close(TOKEN);
        rig.closed(TOKEN);
        rig.driver.receive(TOKEN);
    });
    check_violation("receive on it although it is not attached", |rig| rig.driver.receive(Token::new(3, 0)));
    check_violation("accept on it although it is no listener", |rig| rig.driver.accept(TOKEN));
    check_violation("attached as something that the socket is not", |rig| {
        let (socket, _) = rig.network.pair();
        let _ = rig.driver.listen(Token::new(9, 0), socket);
    });
}

/// Row 4.12: buffers are counted one by one.
#[test]
fn a_buffer_is_released_exactly_once() {
    let receive = |rig: &mut Rig| {
        rig.peer.write(b"x").expect("there is room");
        rig.driver.receive(TOKEN);
        match rig.news()[..] {
            [Event::Received { buffer, .. }] => buffer,
            ref other => panic!("{other:?}"),
        }
    };
    check_violation("although it is not lent", |rig| {
        let buffer = receive(rig);
        rig.driver.release(buffer);
        rig.driver.release(buffer);
    });
    check_violation("although it is not lent", |rig| {
        let buffer = receive(rig);
        rig.driver.release(buffer);
        let _ = rig.driver.buffer(buffer);
    });
    check_violation("1 receive buffers were never released", |rig| {
        receive(rig);
        rig.driver.close(TOKEN);
        rig.closed(TOKEN);
        rig.driver.assert_drained();
    });
    check_violation("3.1: it was never closed", |rig| rig.driver.assert_drained());
}

#[test]
fn a_stale_completion_never_reaches_the_next_tenant() {
    for armed in [Armed::Receive, Armed::Readable, Armed::No] {
        let mut rig = Rig::new(Faults::NONE.with(Fault::Stale, 1000));
        match armed {
            Armed::Receive => rig.driver.receive(TOKEN),
            Armed::Readable => rig.driver.readable(TOKEN),
            Armed::No => {
                let room = vec![0; Options::default().buffer];
                rig.turn(Wait::No, &[sending(TOKEN, &room)]);
                rig.driver.writable(TOKEN);
            }
        }
        assert!(rig.news().is_empty());
        rig.driver.close(TOKEN);
        rig.closed(TOKEN);
        let next = Token::new(3, 2);
        let (here, _there) = rig.network.pair();
        rig.driver.attach(next, here, Kind::Stream, false).expect("the slot is free");
        rig.driver.receive(next);
        let later = rig.network.now().after(Duration::from_secs(1));
        let events = rig.turn(Wait::Until(later), &[]).1;
        assert!(events.is_empty(), "{armed:?}: {events:?}");
        assert_eq!(rig.driver.counters().stale, 1, "{armed:?}");
        rig.driver.close(next);
        rig.closed(next);
        rig.driver.assert_drained();
    }
}

#[test]
fn a_late_completion_of_a_closed_source_is_swallowed_and_closed_comes_after_it() {
    let mut rig = Rig::new(Faults::NONE.with(Fault::Late, 1000));
    rig.peer.write(b"never seen").expect("there is room");
    rig.driver.receive(TOKEN);
    assert!(rig.news().is_empty(), "it is late");
    rig.driver.close(TOKEN);
    assert!(rig.news().is_empty(), "the receive is still in flight");
    assert_eq!(rig.driver.tokens_in_use(), 1);
    rig.closed(TOKEN);
    assert_eq!((rig.driver.counters().stale, rig.driver.buffers_lent()), (1, 0));
    rig.driver.assert_drained();
}

#[test]
fn what_was_put_off_comes_at_once_when_the_faults_stop() {
    for fault in [Fault::Late, Fault::NoBuffer] {
        let mut rig = Rig::new(Faults::NONE.with(fault, 1000));
        rig.peer.write(b"soon").expect("there is room");
        rig.driver.receive(TOKEN);
        assert!(rig.news().is_empty(), "{fault:?}");
        rig.network.stop_faults();
        let later = rig.network.now().after(Duration::from_secs(1));
        let events = rig.turn(Wait::Until(later), &[]).1;
        assert!(matches!(events[..], [Event::Received { len: 4, .. }]), "{fault:?}: {events:?}");
    }
}

#[test]
fn a_wait_moves_the_time_to_the_next_event_and_not_beyond_its_end() {
    let latency = (Duration::from_millis(3), Duration::from_millis(3));
    let network = Network::new(7, Options { latency, ..Options::default() });
    let mut driver = SimDriver::new(&network);
    let address = Address::Tcp("[::1]:0".parse().expect("an address"));
    let listener = network.listen(address, 1, None);
    let at = listener.listening_at().expect("it listens");
    driver.listen(TOKEN, listener).expect("the slot is free");
    driver.accept(TOKEN);
    let _peer = network.connect(at, None);
    let mut turn = |wait| {
        let (mut stops, mut events) = (Vec::new(), Vec::new());
        driver.turn(network.now(), wait, std::iter::empty(), &mut stops, &mut events).expect("turns");
        (events.len(), network.now().as_nanos())
    };
    assert_eq!(turn(Wait::No), (0, 0));
    assert_eq!(turn(Wait::Until(Time::from_nanos(1_000_000))), (0, 1_000_000));
    assert_eq!(turn(Wait::Forever), (1, 3_000_000));
}
