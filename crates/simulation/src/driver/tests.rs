//! Tests of the contract checks and of what is specific to this driver. The driver suite tests the common contract.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::*;
use crate::faults::FaultRates;
use crate::network::{NetworkOptions, SimPeer};

const TOKEN: Token = Token::new(3, 1);

struct SimDriverFixture {
    network: Network,
    driver: SimDriver,
    peer: SimPeer,
}

type FixtureEvents = Vec<DriverEvent<SimSocket>>;

impl SimDriverFixture {
    fn new(faults: FaultRates) -> Self {
        let network = Network::new(7, NetworkOptions { faults, ..NetworkOptions::default() });
        let mut driver = SimDriver::with_buffers(&network, 2);
        let (here, there) = network.pair();
        driver.attach(TOKEN, here, SourceKind::Stream, false).expect("the slot is free");
        SimDriverFixture { network, driver, peer: SimPeer::new(there) }
    }

    fn turn(&mut self, wait: Wait, outgoing: &[Outgoing<'_>]) -> (Vec<IncompleteSend>, FixtureEvents) {
        let (mut incomplete_sends, mut events) = (Vec::new(), Vec::new());
        let now = self.network.now();
        self.driver
            .turn(now, wait, outgoing.iter().copied(), &mut incomplete_sends, &mut events)
            .expect("turns");
        (incomplete_sends, events)
    }

    fn observe(&mut self) -> FixtureEvents {
        self.turn(Wait::No, &[]).1
    }

    /// Turns until the source is closed; no other event is allowed.
    fn closed(&mut self, token: Token) {
        for _ in 0..1000 {
            let now = self.network.now();
            let events = self.turn(Wait::Until(now.after(Duration::from_millis(1))), &[]).1;
            match events[..] {
                [] => {}
                [DriverEvent::Closed { token: closed }] if closed == token => return,
                _ => panic!("an event of a closing source: {events:?}"),
            }
        }
        panic!("never closed");
    }
}

fn sending(token: Token, bytes: &[u8]) -> Outgoing<'_> {
    Outgoing::stream(token, Gather::One(bytes), false)
}

/// Checks that `act` breaks the contract and the panic contains `words`.
fn check_violation(words: &str, act: impl FnOnce(&mut SimDriverFixture)) {
    let mut fixture = SimDriverFixture::new(FaultRates::NONE);
    let panic = catch_unwind(AssertUnwindSafe(|| act(&mut fixture))).expect_err(words);
    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(message.starts_with("contract broken by the shard"), "{message}");
    assert!(message.contains(words), "{message} does not contain {words}");
}

/// Row 4.12: a shard that misuses a token or a buffer is stopped at once.
#[test]
fn a_shard_that_breaks_the_contract_is_stopped() {
    check_violation("3.1: attached twice", |fixture| {
        let (socket, _) = fixture.network.pair();
        let _ = fixture.driver.attach(TOKEN, socket, SourceKind::Stream, false);
    });
    check_violation("before the Closed of the slot's last source", |fixture| {
        fixture.driver.close(TOKEN);
        let (socket, _) = fixture.network.pair();
        let _ = fixture.driver.attach(Token::new(3, 2), socket, SourceKind::Stream, false);
    });
    check_violation("without a new generation", |fixture| {
        fixture.driver.close(TOKEN);
        fixture.closed(TOKEN);
        let (socket, _) = fixture.network.pair();
        let _ = fixture.driver.attach(TOKEN, socket, SourceKind::Stream, false);
    });
    check_violation("a second receive while one is armed", |fixture| {
        fixture.driver.receive(TOKEN);
        fixture.driver.await_readable(TOKEN);
    });
    check_violation("await_writable while one is armed", |fixture| {
        fixture.driver.await_writable(TOKEN);
        fixture.driver.await_writable(TOKEN);
    });
    check_violation("while a receive is armed", |fixture| {
        fixture.driver.receive(TOKEN);
        let _ = fixture.driver.recv_now(TOKEN, &mut [0]);
    });
    check_violation("close it after closing it", |fixture| {
        fixture.driver.close(TOKEN);
        fixture.driver.close(TOKEN);
    });
    check_violation("send on it after closing it", |fixture| {
        fixture.driver.close(TOKEN);
        fixture.turn(Wait::No, &[sending(TOKEN, b"late")]);
    });
    check_violation("two sends in one turn", |fixture| {
        fixture.turn(Wait::No, &[sending(TOKEN, b"a"), sending(TOKEN, b"b")]);
    });
    check_violation("receive on it although it is not attached", |fixture| {
        fixture.driver.close(TOKEN);
        fixture.closed(TOKEN);
        fixture.driver.receive(TOKEN);
    });
    check_violation("receive on it although it is not attached", |fixture| {
        fixture.driver.receive(Token::new(3, 0));
    });
    check_violation("accept on it although it is no listener", |fixture| fixture.driver.accept(TOKEN));
    check_violation("attached as the wrong kind of socket", |fixture| {
        let (socket, _) = fixture.network.pair();
        let _ = fixture.driver.listen(Token::new(9, 0), socket);
    });
}

/// Row 4.12: buffers are counted one by one.
#[test]
fn a_buffer_is_released_exactly_once() {
    let receive = |fixture: &mut SimDriverFixture| {
        fixture.peer.write(b"x").expect("there is room");
        fixture.driver.receive(TOKEN);
        match fixture.observe()[..] {
            [DriverEvent::Received { buffer, .. }] => buffer,
            ref other => panic!("{other:?}"),
        }
    };
    check_violation("although it is not lent", |fixture| {
        let buffer = receive(fixture);
        fixture.driver.release(buffer);
        fixture.driver.release(buffer);
    });
    check_violation("although it is not lent", |fixture| {
        let buffer = receive(fixture);
        fixture.driver.release(buffer);
        let _ = fixture.driver.buffer(buffer);
    });
    check_violation("1 receive buffers were never released", |fixture| {
        receive(fixture);
        fixture.driver.close(TOKEN);
        fixture.closed(TOKEN);
        fixture.driver.assert_drained();
    });
    check_violation("3.1: it was never closed", |fixture| fixture.driver.assert_drained());
}

#[test]
fn a_stale_completion_never_reaches_the_next_source_of_its_slot() {
    for armed in [ArmedRead::Receive, ArmedRead::Readable, ArmedRead::No] {
        let mut fixture = SimDriverFixture::new(FaultRates::NONE.with(NetworkFault::Stale, 1000));
        match armed {
            ArmedRead::Receive => fixture.driver.receive(TOKEN),
            ArmedRead::Readable => fixture.driver.await_readable(TOKEN),
            ArmedRead::No => {
                let room = vec![0; NetworkOptions::default().buffer];
                fixture.turn(Wait::No, &[sending(TOKEN, &room)]);
                fixture.driver.await_writable(TOKEN);
            }
        }
        assert!(fixture.observe().is_empty());
        fixture.driver.close(TOKEN);
        fixture.closed(TOKEN);
        let next = Token::new(3, 2);
        let (here, _there) = fixture.network.pair();
        fixture.driver.attach(next, here, SourceKind::Stream, false).expect("the slot is free");
        fixture.driver.receive(next);
        let later = fixture.network.now().after(Duration::from_secs(1));
        let events = fixture.turn(Wait::Until(later), &[]).1;
        assert!(events.is_empty(), "{armed:?}: {events:?}");
        assert_eq!(fixture.driver.counters().stale, 1, "{armed:?}");
        fixture.driver.close(next);
        fixture.closed(next);
        fixture.driver.assert_drained();
    }
}

#[test]
fn a_late_completion_of_a_closed_source_is_discarded_before_closed() {
    let mut fixture = SimDriverFixture::new(FaultRates::NONE.with(NetworkFault::Late, 1000));
    fixture.peer.write(b"never seen").expect("there is room");
    fixture.driver.receive(TOKEN);
    assert!(fixture.observe().is_empty(), "it is late");
    fixture.driver.close(TOKEN);
    assert!(fixture.observe().is_empty(), "the receive is still in flight");
    assert_eq!(fixture.driver.tokens_in_use(), 1);
    fixture.closed(TOKEN);
    assert_eq!((fixture.driver.counters().stale, fixture.driver.buffers_lent()), (1, 0));
    fixture.driver.assert_drained();
}

#[test]
fn delayed_completions_are_delivered_when_the_faults_stop() {
    for fault in [NetworkFault::Late, NetworkFault::NoBuffer] {
        let mut fixture = SimDriverFixture::new(FaultRates::NONE.with(fault, 1000));
        fixture.peer.write(b"soon").expect("there is room");
        fixture.driver.receive(TOKEN);
        assert!(fixture.observe().is_empty(), "{fault:?}");
        fixture.network.stop_faults();
        let later = fixture.network.now().after(Duration::from_secs(1));
        let events = fixture.turn(Wait::Until(later), &[]).1;
        assert!(matches!(events[..], [DriverEvent::Received { len: 4, .. }]), "{fault:?}: {events:?}");
    }
}

#[test]
fn a_wait_moves_the_time_to_the_next_event_and_not_beyond_its_end() {
    let latency = (Duration::from_millis(3), Duration::from_millis(3));
    let network = Network::new(7, NetworkOptions { latency, ..NetworkOptions::default() });
    let mut driver = SimDriver::new(&network);
    let address = Address::Tcp("[::1]:0".parse().expect("an address"));
    let listener = network.listen(address, 1, None);
    let at = listener.listening_at().expect("it listens");
    driver.listen(TOKEN, listener).expect("the slot is free");
    driver.accept(TOKEN);
    let _peer = network.connect(at, None);
    let mut turn = |wait| {
        let (mut incomplete_sends, mut events) = (Vec::new(), Vec::new());
        driver
            .turn(network.now(), wait, std::iter::empty(), &mut incomplete_sends, &mut events)
            .expect("turns");
        (events.len(), network.now().as_nanos())
    };
    assert_eq!(turn(Wait::No), (0, 0));
    assert_eq!(turn(Wait::Until(Time::from_nanos(1_000_000))), (0, 1_000_000));
    assert_eq!(turn(Wait::Forever), (1, 3_000_000));
}
