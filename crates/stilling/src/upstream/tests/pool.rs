//! Tests of failed connects and of recipients, at times that the test chooses: the process behind the pool does
//! nothing.

use std::io;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::{DatagramPath, NO_FREE_SLOT, Recipient, Token};
use stilling_ring::{Time, Wake};
use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};
use stilling_workers::processes::{self, Processes, QueueLimits, WorkerProgram};

use super::super::outbox::UpstreamDelivery;
use super::super::pending_request::{PendingRequest, UpstreamError};
use super::super::pool::ProcessEndpoints;
use super::super::request_queue::RequestQueue;
use super::super::{PoolIndex, RequestId, UpstreamEvent, UpstreamFailure, UpstreamPool, UpstreamRequest};
use super::fixture::eventually;
use crate::memory::MemoryReservation;

const TIMEOUT: Duration = Duration::from_secs(7);

const CLIENT: Recipient = Recipient::Connection(Token::new(70, 1));

/// Sleeps, and is ready at once.
struct SleepProgram;

impl WorkerProgram for SleepProgram {
    fn command(&mut self, _: usize, _: u64) -> io::Result<Command> {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Ok(command)
    }

    fn is_ready(&mut self, _: usize) -> Result<bool, String> {
        Ok(true)
    }
}

fn pool() -> (UpstreamPool, Processes) {
    let wake = Arc::new(Wake::new(|| ()));
    let limits = processes::ProcessLimits::default();
    let (processes, mut queues) =
        Processes::new(limits, QueueLimits::default(), vec![wake]).expect("an eventfd");
    processes.start("app", Box::new(SleepProgram), Box::new(|_, _| ())).expect("it starts");
    eventually("the process is ready", || processes.counters().ready == 1);
    let queue = queues.pop().expect("one for the shard");
    let endpoints = ProcessEndpoints::Paths(vec![PathBuf::from("nowhere")]);
    let queue = RequestQueue::Common(queue);
    (UpstreamPool::new(PoolIndex(0), queue, None, endpoints, TIMEOUT), processes)
}

fn request() -> Box<UpstreamRequest> {
    let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let step = RequestDecoder::default().decode(&HttpLimits::default(), head).expect("it is HTTP");
    let RequestEvent::Head(head) = step.event else { panic!("it is a whole head") };
    UpstreamRequest::new(PoolIndex(0), &head, None, Vec::new(), MemoryReservation::new(&Arc::default()))
}

/// Submits a request and returns it with its slot.
fn connecting(pool: &mut UpstreamPool, client: Recipient, now: Time) -> Box<PendingRequest> {
    pool.submit(client, request(), now).expect("there is room in the queue");
    let (_, attempt) = pool.connects().next().expect("it is its turn");
    attempt.request
}

/// A pool with an event for a queued request of `client`. The only slot is occupied until the third value is dropped.
pub(crate) fn pool_with_event(client: Recipient) -> (UpstreamPool, RequestId, impl Sized) {
    let (mut pool, processes) = pool();
    let with_slot = connecting(&mut pool, CLIENT, Time::ZERO);
    let id = pool.submit(client, request(), Time::ZERO).expect("there is room in the queue");
    pool.outbox.send_event(client, id, UpstreamEvent::BodyWanted);
    (pool, id, (with_slot, processes))
}

/// The recipient and the failure of the next answered request.
fn failure(pool: &mut UpstreamPool) -> Option<(Recipient, UpstreamFailure)> {
    match pool.next_delivery()? {
        UpstreamDelivery::Event(to, _, UpstreamEvent::Failed(failure)) => Some((to, failure)),
        other => panic!("expected a failure or nothing: {other:?}"),
    }
}

/// Row 3.27: without a connection slot in the server, the client is answered 503, and the process is not killed.
#[test]
fn a_request_without_a_connection_slot_is_answered_503_and_the_process_is_kept() {
    let (mut pool, processes) = pool();
    for client in [CLIENT, Recipient::Connection(Token::new(71, 1))] {
        let pending = connecting(&mut pool, client, Time::ZERO);
        pool.fail(pending, UpstreamError::ConnectFailed(NO_FREE_SLOT));
        pool.turn(Time::ZERO);
        assert_eq!(failure(&mut pool), Some((client, UpstreamFailure::Unavailable)));
        assert_eq!((processes.requests().busy, processes.counters().ready), (0, 1), "its slot is free");
    }
}

/// Row 4.26: the client is answered in time; the connection attempt keeps the slot until it fails, and then the process
/// is killed.
#[test]
fn a_connection_that_is_not_made_in_time_is_answered_504_before_it_fails() {
    let (mut pool, processes) = pool();
    let pending = connecting(&mut pool, CLIENT, Time::ZERO);
    let due = Time::ZERO.after(TIMEOUT);
    let before = due.before(Duration::from_nanos(1));
    assert_eq!((pool.turn(before), failure(&mut pool)), (Some(due), None));
    pool.turn(due);
    assert_eq!(failure(&mut pool), Some((CLIENT, UpstreamFailure::Timeout)));
    assert_eq!(processes.requests().busy, 1);
    pool.fail(pending, UpstreamError::ConnectFailed(ErrorKind::TimedOut));
    pool.turn(due);
    assert_eq!((failure(&mut pool), processes.requests().busy), (None, 0));
    eventually("it is replaced", || processes.counters().killed == 1);
}

/// A response leaves with the address that its request came with, although two clients share the socket.
#[test]
fn each_answer_has_the_address_of_its_request() {
    let (mut pool, _processes) = pool();
    let local = Some(IpAddr::from([192, 0, 2, 1]));
    let datagram = |port: u16| {
        let peer = SocketAddr::from(([192, 0, 2, 9], port));
        Recipient::Peer(DatagramPath { socket: 3, peer, local })
    };
    for client in [datagram(1), CLIENT, datagram(2)] {
        let pending = connecting(&mut pool, client, Time::ZERO);
        pool.fail(pending, UpstreamError::ConnectFailed(NO_FREE_SLOT));
        pool.turn(Time::ZERO);
        assert_eq!(failure(&mut pool), Some((client, UpstreamFailure::Unavailable)));
    }
}
