//! The generator in virtual time: the shipped code on the simulated driver, against a scripted server. Results do not
//! depend on the speed of the machine, so figures are exact.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::driver::Driver;
use stilling_engine::{Shard, ShardConfig};
use stilling_ring::{Time, Wake};
use stilling_simulation::{Address, Network, NetworkOptions, SimDriver, SimPeer, SimPeerListener};
use stilling_wire::http1::HttpLimits;

use super::generator::{GeneratorShared, LoadGenerator};
use super::plan::{HttpPlan, RunLength};
use super::schedule::RateStep;
use super::start_barrier::StartBarrier;
use super::tally::{HttpTally, LiveCounters, RequestFailure};
use super::{Url, request};

const CORRECT_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const LAST: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";

/// Action of the server for a request, by its number and arrival time.
enum ServerAction {
    Answer(Time),
    /// Answers now, announces the close of the connection, and closes.
    AnswerAndClose,
    /// Resets every connection and stops listening.
    Vanish,
}

type ServerActionScript = fn(u64, Time) -> ServerAction;

struct SimulatedConnection {
    peer: Option<SimPeer>,
    unread: Vec<u8>,
    /// Due times of the answers to its requests.
    due: VecDeque<Time>,
}

struct SimulatedHttpServer {
    network: Network,
    listener: Option<SimPeerListener>,
    request: Vec<u8>,
    action_script: ServerActionScript,
    connections: Vec<SimulatedConnection>,
    requests: u64,
    /// Actions so far; after one the shard may have events.
    actions: u64,
    idle_steps: u32,
}

impl SimulatedHttpServer {
    fn apply_action(&mut self) {
        while let Some(peer) = self.listener.as_ref().and_then(SimPeerListener::accept) {
            self.connections.push(SimulatedConnection {
                peer: Some(peer),
                unread: Vec::new(),
                due: VecDeque::new(),
            });
        }
        let now = self.network.now();
        for at in 0..self.connections.len() {
            self.read(at, now);
            let connection = &mut self.connections[at];
            while connection.due.front().is_some_and(|due| *due <= now)
                && let Some(peer) = &mut connection.peer
            {
                connection.due.pop_front();
                self.actions += 1;
                assert_eq!(peer.write(CORRECT_RESPONSE).expect("there is room"), CORRECT_RESPONSE.len());
            }
        }
    }

    fn read(&mut self, at: usize, now: Time) {
        let connection = &mut self.connections[at];
        let mut bytes = [0; 4096];
        while let Some(peer) = &mut connection.peer {
            match peer.read(&mut bytes) {
                Ok(0) => connection.peer = None,
                Ok(count) => connection.unread.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => connection.peer = None,
            }
        }
        while self.connections[at].unread.len() >= self.request.len() && self.connections[at].peer.is_some() {
            let rest = self.connections[at].unread.split_off(self.request.len());
            let asked = std::mem::replace(&mut self.connections[at].unread, rest);
            assert_eq!(asked, self.request);
            self.requests += 1;
            match (self.action_script)(self.requests, now) {
                ServerAction::Answer(due) => self.connections[at].due.push_back(due),
                ServerAction::AnswerAndClose => {
                    self.actions += 1;
                    let mut peer = self.connections[at].peer.take().expect("looked above");
                    assert_eq!(peer.write(LAST).expect("there is room"), LAST.len());
                }
                ServerAction::Vanish => {
                    self.actions += 1;
                    self.listener = None;
                    self.connections
                        .iter_mut()
                        .filter_map(|connection| connection.peer.take())
                        .for_each(SimPeer::reset);
                }
            }
        }
    }

    /// Advances the time to the next event, at most to `limit`, unless an action is due now.
    fn sleep(&mut self, limit: Option<Time>) -> io::Result<bool> {
        let actions = self.actions;
        self.apply_action();
        if self.actions > actions {
            return Ok(true);
        }
        let due = self
            .connections
            .iter()
            .filter(|connection| connection.peer.is_some())
            .filter_map(|connection| connection.due.front());
        let next = due.copied().chain(self.network.next_event()).min();
        let reached = next.filter(|next| limit.is_none_or(|limit| *next <= limit));
        let to = reached.or(limit).ok_or_else(|| io::Error::other("all sides wait for each other"))?;
        self.idle_steps = if to > self.network.now() { 0 } else { self.idle_steps + 1 };
        if self.idle_steps > 10_000 {
            return Err(io::Error::other("no time passes any more"));
        }
        self.network.advance_to(to);
        self.apply_action();
        Ok(reached.is_some())
    }
}

struct SimulatedRun {
    tally: HttpTally,
    /// Backlog full, waited too long.
    dropped: (u64, u64),
    requests_seen: u64,
}

fn simulate(change: fn(&mut HttpPlan), action_script: ServerActionScript) -> SimulatedRun {
    let mut plan = HttpPlan::new(Url::parse("http://10.0.0.1/").expect("a URL"));
    plan.connections = 2;
    change(&mut plan);
    plan.check().expect("the plan is sound");
    let network = Network::new(1, NetworkOptions::default());
    let to: SocketAddr = plan.url.addresses()[0];
    let request = request::encode(&plan.request());
    let server = Rc::new(RefCell::new(SimulatedHttpServer {
        network: network.clone(),
        listener: Some(network.listen_as_peer(Address::Tcp(to))),
        request: request.clone(),
        action_script,
        connections: Vec::new(),
        requests: 0,
        actions: 0,
        idle_steps: 0,
    }));
    let mut driver = SimDriver::new(&network);
    let world = Rc::clone(&server);
    driver.set_wait_hook(Box::new(move |limit| world.borrow_mut().sleep(limit)));
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let config = ShardConfig {
        capacity: plan.connections,
        write_timeout: plan.timeout,
        connect_timeout: plan.timeout,
        ..ShardConfig::default()
    };
    let shared = Arc::new(GeneratorShared {
        to,
        request,
        reply_to: request::expected_reply(&plan.request()),
        limits: HttpLimits::default(),
        expected_body: b"ok".to_vec(),
        start: StartBarrier::new(vec![Arc::clone(&wake)]),
        live: vec![LiveCounters::default()],
        plan,
    });
    let clock = network.clock();
    let generator = LoadGenerator::new(&shared, 0, clock.clone());
    let mut shard = Shard::new(driver, generator, config, clock, wake, Arc::default());
    shard.turn(false).expect("a turn");
    shard.run().expect("the world goes on");
    assert_eq!(shard.open_connections(), 0);
    shard.audit().expect("nothing is left");
    shard.driver().assert_drained();
    let dropped = shard.service().dropped();
    let tally = std::mem::replace(&mut shard.service().tally, HttpTally::new());
    let requests_seen = server.borrow().requests;
    SimulatedRun { tally, dropped, requests_seen }
}

const fn ms(millis: u64) -> u64 {
    millis * 1_000_000
}

/// Answers at once, except from 1 s to 2 s: those answers come at 2 s.
fn stalls(_: u64, now: Time) -> ServerAction {
    let stalled = (ms(1000)..ms(2000)).contains(&now.as_nanos());
    ServerAction::Answer(if stalled { Time::from_nanos(ms(2000)) } else { now })
}

fn open_loop(plan: &mut HttpPlan) {
    plan.rate = Some(100.0);
    plan.length = RunLength::Duration(Duration::from_secs(3));
}

/// Number of times of at least `nanos`, to the histogram's precision.
fn at_least(histogram: &hdrhistogram::Histogram<u64>, nanos: u64) -> u64 {
    histogram
        .iter_recorded()
        .filter(|value| value.value_iterated_to() >= nanos)
        .map(|value| value.count_at_value())
        .sum()
}

/// Row 5.4: a server that stalls for a second at 100 requests/s delays a hundred requests, not two, each by the exact
/// rest of the stall at its intended start.
#[test]
fn a_stall_counts_against_every_request_scheduled_during_it() {
    let SimulatedRun { tally, dropped, requests_seen } = simulate(open_loop, stalls);
    assert_eq!((tally.requests, tally.ok, requests_seen), (300, 300, 300));
    assert_eq!((tally.failures_total(), dropped, tally.unsent), (0, (0, 0), 0));
    for k in 1..=100 {
        // The k-th latest was due k × 10 ms before the end of the stall.
        assert_eq!(at_least(&tally.latency, ms(10 * k)), 101 - k, "at least {} ms", 10 * k);
    }
    assert_eq!(at_least(&tally.latency, ms(1)), 100);
    // The uncorrected time shows only the two requests in flight.
    assert_eq!(at_least(&tally.service, ms(1)), 2);
}

/// Row 5.4: a stall appears in the step and in the tenth of a second in which the requests were due, and goodput in
/// those in which answers arrived.
#[test]
fn each_step_has_figures_of_its_own() {
    let change: fn(&mut HttpPlan) = |plan| {
        let step = |rate| RateStep { rate, span: Duration::from_secs(1) };
        plan.steps = vec![step(100.0), step(200.0), step(100.0)];
        plan.length = RunLength::Duration(Duration::from_secs(3));
    };
    let SimulatedRun { tally, .. } = simulate(change, stalls);
    let timeline = tally.timeline.expect("there are steps");
    let counts: Vec<_> =
        timeline.steps.iter().map(|step| (step.started, step.ok, step.shed, step.ok_arrived)).collect();
    assert_eq!(counts, [(100, 100, 0, 100), (200, 200, 0, 0), (100, 100, 0, 300)]);
    assert_eq!(at_least(&timeline.steps[1].latency, ms(500)), 101);
    assert_eq!(at_least(&timeline.steps[0].latency, ms(1)) + at_least(&timeline.steps[2].latency, ms(1)), 0);
    let windows: Vec<_> =
        timeline.windows.iter().map(|window| (window.ok, window.latency_max_nanos)).collect();
    assert_eq!(windows.len(), 30);
    assert_eq!((windows[9], windows[10], windows[20]), ((10, 0), (20, ms(1000)), (10, 0)));
    assert_eq!(tally.requests, 400);
}

#[test]
fn a_closed_loop_sees_the_same_stall_once_per_connection() {
    let action_script: ServerActionScript = |n, now| match stalls(n, now) {
        ServerAction::Answer(due) => ServerAction::Answer(due.max(now.after(Duration::from_millis(10)))),
        other => other,
    };
    let change: fn(&mut HttpPlan) = |plan| plan.length = RunLength::Duration(Duration::from_secs(3));
    let tally = simulate(change, action_script).tally;
    assert_eq!((tally.ok, tally.failures_total()), (402, 0));
    assert_eq!((at_least(&tally.latency, ms(10)), at_least(&tally.latency, ms(11))), (402, 2));
}

#[test]
fn the_backlog_is_bounded_and_what_it_refuses_is_counted() {
    let change: fn(&mut HttpPlan) = |plan| {
        open_loop(plan);
        plan.backlog_max = 20;
    };
    let SimulatedRun { tally, dropped, .. } = simulate(change, stalls);
    // Two are in flight and twenty wait; the one due at the end of the stall finds no room either.
    assert_eq!(dropped, (79, 0));
    assert_eq!((tally.requests, tally.ok, tally.failures_total(), tally.unsent), (221, 221, 0, 0));
}

#[test]
fn every_request_of_the_schedule_is_answered_failed_or_dropped_for_a_reason() {
    let change: fn(&mut HttpPlan) = |plan| {
        open_loop(plan);
        plan.timeout = Duration::from_millis(300);
    };
    let SimulatedRun { tally, dropped, .. } = simulate(change, stalls);
    assert!(tally.failures(RequestFailure::Timeout) > 0 && dropped.1 > 0, "{tally:?}");
    assert_eq!(tally.failures(RequestFailure::Timeout), tally.failures_total());
    assert_eq!(tally.requests, tally.ok + tally.failures_total());
    assert_eq!(tally.requests + dropped.0 + dropped.1 + tally.unsent, 300);
}

/// A run that ends during the stall has no connection for the due requests and counts them.
#[test]
fn what_is_due_at_the_end_without_a_free_connection_is_counted_as_unsent() {
    let change: fn(&mut HttpPlan) = |plan| {
        open_loop(plan);
        plan.length = RunLength::Duration(Duration::from_millis(1500));
    };
    let SimulatedRun { tally, dropped, .. } = simulate(change, stalls);
    assert_eq!((tally.requests, tally.ok, tally.unsent, dropped), (102, 102, 48, (0, 0)));
    assert_eq!(tally.ok_in_window, 100);
}

/// Row 4.15: an announced close is no failure; requests behind it are sent again.
#[test]
fn requests_behind_an_announced_close_are_sent_again() {
    for rate in [None, Some(1000.0)] {
        let change: fn(&mut HttpPlan) = match rate {
            None => |plan| (plan.pipeline, plan.length) = (4, RunLength::Requests(1000)),
            Some(_) => {
                |plan| (plan.pipeline, plan.rate, plan.length) = (4, Some(1000.0), RunLength::Requests(1000))
            }
        };
        let action_script: ServerActionScript = |n, now| {
            if n.is_multiple_of(10) {
                ServerAction::AnswerAndClose
            } else {
                ServerAction::Answer(now.after(Duration::from_millis(5)))
            }
        };
        let SimulatedRun { tally, requests_seen, .. } = simulate(change, action_script);
        assert_eq!((tally.requests, tally.ok, tally.failures_total()), (1000, 1000, 0), "rate {rate:?}");
        assert!(tally.reconnects > 10 && requests_seen >= 1000, "{} {requests_seen}", tally.reconnects);
    }
}

#[test]
fn a_server_that_is_gone_ends_the_run_with_its_losses_counted() {
    for keep_alive in [true, false] {
        let change: fn(&mut HttpPlan) = if keep_alive {
            |plan| plan.length = RunLength::Requests(1_000_000)
        } else {
            |plan| (plan.keep_alive, plan.length) = (false, RunLength::Requests(1_000_000))
        };
        let action_script: ServerActionScript = |n, now| match n {
            500 => ServerAction::Vanish,
            _ => ServerAction::Answer(now.after(Duration::from_millis(1))),
        };
        let SimulatedRun { tally, .. } = simulate(change, action_script);
        assert_eq!(tally.failures(RequestFailure::Reset), 2, "keep-alive {keep_alive}");
        assert!(tally.failures(RequestFailure::ConnectFailed) > 2);
        assert_eq!(tally.requests + tally.unsent, 1_000_000);
    }
}

#[test]
fn the_warm_up_is_sent_and_not_counted() {
    let change: fn(&mut HttpPlan) = |plan| {
        (plan.rate, plan.length) = (Some(100.0), RunLength::Requests(200));
        plan.warmup = Duration::from_millis(1500);
    };
    let SimulatedRun { tally, requests_seen, .. } = simulate(change, stalls);
    assert_eq!((tally.requests, tally.ok, requests_seen), (200, 200, 350));
    // Measurement starts in the middle of the stall.
    assert_eq!(at_least(&tally.latency, ms(1)), 50);
}

#[test]
fn held_connections_answer_once_and_stay_until_the_end() {
    let change: fn(&mut HttpPlan) = |plan| {
        plan.connections = 1000;
        plan.length = RunLength::Hold(Duration::from_secs(60));
    };
    let SimulatedRun { tally, requests_seen, .. } = simulate(change, |_, now| ServerAction::Answer(now));
    assert_eq!((tally.ok, tally.held, requests_seen), (1000, 1000, 1000));
    let lost =
        simulate(
            change,
            |n, now| if n == 7 { ServerAction::AnswerAndClose } else { ServerAction::Answer(now) },
        )
        .tally;
    assert_eq!((lost.ok, lost.held, lost.failures(RequestFailure::CutOff)), (1000, 999, 1));
}
