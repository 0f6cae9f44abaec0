//! Requests that worker processes answer, and their overload.

use super::super::super::limits::{NO_WORKER_HOLD, SHED_REPLIES_PER_SECOND_MAX, SLOW_TIME};
use super::*;
use crate::upstream::{
    BodyFraming, PathPattern, ResponsePiece, UpstreamFailure, UpstreamRequest, UpstreamResponse,
};

const SLOTS: usize = 2;

fn fixture() -> Fixture {
    fixture_with(CoapSettings::default())
}

fn fixture_with(settings: CoapSettings) -> Fixture {
    fixture_of(settings, false)
}

fn fixture_of(settings: CoapSettings, has_affinity: bool) -> Fixture {
    let mut fixture = Fixture::new();
    let pattern: PathPattern = "/app/*".parse().expect("a pattern");
    let key = HashKey(1, 2);
    let shard = CoapShard::new(Arc::clone(&fixture.counters), key, fixture.now);
    fixture.shard = shard.with_settings(settings, fixture.now).with_pools(
        AppRoutes::new([&pattern].into_iter()),
        std::iter::once(ForwardingPool { slots: SLOTS, has_affinity }),
        fixture.now,
    );
    fixture
}

fn piece(bytes: &[u8], is_last: bool) -> ResponsePiece {
    ResponsePiece { bytes: bytes.to_vec(), start: 0, is_last }
}

fn response(head: &str, body: &[u8], is_last: bool) -> UpstreamEvent {
    let bytes = [head.as_bytes(), body].concat();
    UpstreamEvent::Response(UpstreamResponse {
        status: head[9..12].parse().expect("a status"),
        has_date: false,
        framing: BodyFraming::Close,
        head_len: head.len(),
        piece: ResponsePiece { bytes, start: head.len(), is_last },
    })
}

fn ok(body: &[u8]) -> UpstreamEvent {
    response("HTTP/1.1 200 OK\r\n", body, true)
}

impl Fixture {
    /// The next call, which is to forward.
    fn forwarded(&mut self) -> (PendingId, Box<UpstreamRequest>) {
        match self.shard.next_call() {
            Some(CoapCall::Forward { exchange, request, .. }) => (exchange, request),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request that is forwarded, under the id `number` of the pool.
    fn forward(&mut self, path: &DatagramPath, message: MessageId, number: u32) -> RequestId {
        let datagram = request(CON, Code::POST, message, "app/x", &[], b"body");
        assert_eq!(self.send(path, &datagram), None);
        let (exchange, _) = self.forwarded();
        let id = RequestId::for_test(number);
        self.shard.submitted(exchange, id);
        id
    }

    fn end(&mut self, id: RequestId, event: UpstreamEvent) -> Received {
        self.shard.worker_event(id, event, self.now);
        let [(_, answer)] = &self.transmit()[..] else { panic!("one answer") };
        answer.clone()
    }
}

/// Row 1.24: a request is forwarded once; its duplicates get nothing before the answer, and the same answer after it.
#[test]
fn a_duplicate_of_a_forwarded_request_is_not_executed() {
    let (mut fixture, path) = (fixture(), client(1));
    let id = fixture.forward(&path, 1, 7);
    let datagram = request(CON, Code::POST, 1, "app/x", &[], b"body");
    assert_eq!(fixture.send(&path, &datagram), None);
    assert!(fixture.shard.next_call().is_none());
    let answer = fixture.end(id, ok(b"done"));
    assert_eq!((answer.kind, answer.code, answer.id), (MessageType::Acknowledgement, Code::CHANGED, 1));
    assert_eq!(answer.payload, b"done");
    assert_eq!(fixture.send(&path, &datagram), Some(answer));
    assert!(fixture.shard.next_call().is_none());
    // An event of an ended request reaches no other.
    let next = fixture.forward(&path, 2, 8);
    fixture.shard.worker_event(id, ok(b"late"), fixture.now);
    assert!(fixture.transmit().is_empty());
    assert_eq!(fixture.end(next, ok(b"next")).payload, b"next");
}

/// A slow worker: an empty acknowledgement first, then the answer in a message of its own.
#[test]
fn a_late_answer_is_a_separate_response() {
    let (mut fixture, path) = (fixture(), client(1));
    let id = fixture.forward(&path, 1, 7);
    let [(_, acknowledgement)] = &fixture.advance()[..] else { panic!("one message") };
    assert_eq!((acknowledgement.kind, acknowledgement.code), (MessageType::Acknowledgement, Code::EMPTY));
    let answer = fixture.end(id, ok(b"late"));
    assert_eq!((answer.kind, answer.code, answer.token), (CON, Code::CHANGED, vec![0, 1]));
}

/// Failures of workers have codes, and each is counted.
#[test]
fn failures_are_answered_and_counted() {
    let (mut fixture, path) = (fixture(), client(1));
    let aborted = UpstreamEvent::Aborted;
    let failed = UpstreamEvent::Failed;
    for (message, (event, code)) in [
        (failed(UpstreamFailure::BadGateway), Code::BAD_GATEWAY),
        (aborted, Code::BAD_GATEWAY),
        (failed(UpstreamFailure::Timeout), Code::GATEWAY_TIMEOUT),
        (failed(UpstreamFailure::Unavailable), Code::SERVICE_UNAVAILABLE),
        (UpstreamEvent::Expired, Code::SERVICE_UNAVAILABLE),
        (UpstreamEvent::Refused, Code::SERVICE_UNAVAILABLE),
    ]
    .into_iter()
    .enumerate()
    {
        fixture.now = fixture.now.after(NO_WORKER_HOLD);
        let id = fixture.forward(&path, message as MessageId, message as u32);
        let answer = fixture.end(id, event);
        assert_eq!(answer.code, code);
        assert_eq!(answer.value(OptionNumber::MAX_AGE).is_some(), code == Code::SERVICE_UNAVAILABLE);
    }
    let counters = &fixture.counters;
    let counts = [&counters.worker_failures, &counters.worker_timeouts, &counters.no_worker];
    assert_eq!(counts.map(stilling_engine::counters::Counter::get), [2, 1, 3]);
}

/// A response in pieces is requested as fast as it comes; one beyond the bound is 5.02, and its request is abandoned.
#[test]
fn responses_are_bounded() {
    let (mut fixture, path) = (fixture(), client(1));
    let id = fixture.forward(&path, 1, 7);
    let part = vec![b'x'; BODY_SIZE_MAX / 2];
    fixture.shard.worker_event(id, response("HTTP/1.1 200 OK\r\n", &part, false), fixture.now);
    assert!(matches!(fixture.shard.next_call(), Some(CoapCall::Continue(of)) if of == id));
    fixture.shard.worker_event(id, UpstreamEvent::Piece(piece(&part, false)), fixture.now);
    assert!(matches!(fixture.shard.next_call(), Some(CoapCall::Continue(of)) if of == id));
    fixture.shard.worker_event(id, UpstreamEvent::Piece(piece(b"x", false)), fixture.now);
    assert!(matches!(fixture.shard.next_call(), Some(CoapCall::Abandon { request, .. }) if request == id));
    let [(_, answer)] = &fixture.transmit()[..] else { panic!("one answer") };
    assert_eq!((answer.code, fixture.counters.responses_too_large.get()), (Code::BAD_GATEWAY, 1));
}

/// A request that is never answered ends with 5.04, and its slot is freed.
#[test]
fn a_request_without_an_answer_is_abandoned() {
    let (mut fixture, path) = (fixture(), client(1));
    let id = fixture.forward(&path, 1, 7);
    fixture.advance();
    let [(_, answer)] = &fixture.advance()[..] else { panic!("one answer") };
    assert_eq!(answer.code, Code::GATEWAY_TIMEOUT);
    assert!(matches!(fixture.shard.next_call(), Some(CoapCall::Abandon { request, .. }) if request == id));
}

/// Rows 1.9 and 1.10: new requests are shed while no worker is free; duplicates and next blocks are served, and an
/// answer ends it.
#[test]
fn only_new_requests_are_shed() {
    let (mut fixture, path) = (fixture(), client(1));
    let first = request(
        CON,
        Code::PUT,
        1,
        "app/long",
        &[block_option(OptionNumber::BLOCK1, 0, true, 16)],
        &[b'a'; 16],
    );
    let last =
        request(CON, Code::PUT, 2, "app/long", &[block_option(OptionNumber::BLOCK1, 1, false, 16)], b"b");
    assert_eq!(fixture.send(&path, &first).map(|reply| reply.code), Some(Code::CONTINUE));
    let [one, two] = [2, 3].map(|port| fixture.forward(&client(port), 1, port.into()));
    let third = fixture.forward(&client(4), 1, 4);
    assert_eq!(fixture.end(third, UpstreamEvent::Expired).code, Code::SERVICE_UNAVAILABLE);
    // Shed: another client's, then one of a client with its share.
    let new = |message| request(CON, Code::GET, message, "app/new", &[], b"");
    for (port, code) in [(5, Code::SERVICE_UNAVAILABLE), (2, Code::TOO_MANY_REQUESTS)] {
        let reply = fixture.send(&client(port), &new(9)).expect("a reply");
        assert_eq!(reply.code, code);
        assert!(reply.value(OptionNumber::MAX_AGE).is_some());
        assert_eq!(fixture.send(&client(port), &new(9)), Some(reply), "the duplicate");
    }
    assert!(fixture.shard.next_call().is_none());
    // The next block completes its request, which is forwarded.
    assert_eq!(fixture.send(&path, &last), None);
    let (exchange, upstream) = fixture.forwarded();
    assert_eq!(upstream.parts().1, b"aaaaaaaaaaaaaaaab");
    fixture.shard.submitted(exchange, RequestId::for_test(9));
    assert_eq!(fixture.send(&client(6), b"\x40\0\0\x01").map(|reply| reply.kind), Some(MessageType::Reset));
    // Other resources are served.
    assert_eq!(fixture.ask(&client(8), Code::GET, "test", &[], b"").code, Code::CONTENT);
    assert_eq!(fixture.end(one, ok(b"1")).code, Code::CHANGED);
    assert_eq!(fixture.send(&client(7), &new(1)), None);
    assert_eq!(fixture.end(two, ok(b"2")).code, Code::CHANGED);
    let counters = &fixture.counters;
    assert_eq!((counters.shed_unavailable.get(), counters.shed_too_many.get()), (1, 1));
}

/// Rows 1.4, 1.9: a client for which no process is free is answered 5.03, and requests of others are not shed for it.
#[test]
fn a_refused_client_is_no_overload() {
    for (event, is_shed) in [(UpstreamEvent::Refused, false), (UpstreamEvent::Expired, true)] {
        let mut fixture = fixture_of(CoapSettings::default(), true);
        for port in 1..=2 {
            fixture.forward(&client(port), 1, port.into());
        }
        let third = fixture.forward(&client(3), 1, 3);
        let answer = fixture.end(third, event);
        assert_eq!(answer.code, Code::SERVICE_UNAVAILABLE);
        assert!(answer.value(OptionNumber::MAX_AGE).is_some());
        assert_eq!(fixture.counters.no_worker.get(), 1);
        let reply = fixture.send(&client(4), &request(CON, Code::GET, 1, "app/new", &[], b""));
        assert_eq!(reply.is_some(), is_shed, "{reply:?}");
    }
}

/// Row 1.8: handling times of 300 ms are slow with a threshold of 200 ms and not with the default of 2 s.
#[test]
fn the_threshold_decides_from_which_handling_time_on_requests_are_shed() {
    for (slow_time, is_shed) in [(Duration::from_millis(200), true), (SLOW_TIME, false)] {
        let mut fixture = fixture_with(CoapSettings { slow_time, ..CoapSettings::default() });
        for message in 0..16 {
            let id = fixture.forward(&client(1), message, message.into());
            fixture.now = fixture.now.after(Duration::from_millis(300));
            fixture.end(id, ok(b""));
        }
        for port in 2..=3 {
            fixture.forward(&client(port), 1, (100 + port).into());
        }
        let reply = fixture.send(&client(4), &request(CON, Code::GET, 1, "app/new", &[], b""));
        assert_eq!(
            reply.map(|reply| reply.code),
            is_shed.then_some(Code::SERVICE_UNAVAILABLE),
            "{slow_time:?}"
        );
    }
}

/// Row 1.6: the beginning and the end of an overload are reported once each; the end although no request arrives.
#[test]
fn overload_is_reported_when_it_begins_and_when_it_ends() {
    let mut fixture = fixture();
    let reports = |fixture: &mut Fixture| {
        fixture.shard.publish_metrics(fixture.now);
        std::iter::from_fn(|| fixture.shard.next_call())
            .map(|call| match call {
                CoapCall::Report { line, .. } => line,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    assert!(reports(&mut fixture).is_empty());
    let id = fixture.forward(&client(1), 1, 7);
    fixture.end(id, UpstreamEvent::Expired);
    let begins = reports(&mut fixture);
    assert!(begins.len() == 1 && begins[0].contains("no worker was free"), "{begins:?}");
    assert!(reports(&mut fixture).is_empty());
    assert_eq!(fixture.counters.overloaded_pools.get(), 1);
    fixture.now = fixture.shard.next_deadline(fixture.now).expect("its end is to be reported");
    let ends = reports(&mut fixture);
    assert!(ends.len() == 1 && ends[0].contains("overload ended"), "{ends:?}");
    assert_eq!(
        (fixture.counters.overloaded_pools.get(), fixture.shard.next_deadline(fixture.now)),
        (0, None)
    );
}

/// Row 1.10: beyond the limit of replies new requests get none; duplicates still do.
#[test]
fn beyond_the_limit_of_replies_new_requests_get_none() {
    let mut fixture = fixture();
    for port in 1..=3 {
        fixture.forward(&client(port), 1, port.into());
    }
    let refused = RequestId::for_test(3);
    let known = fixture.end(refused, UpstreamEvent::Expired);
    let new = |message| request(NON, Code::GET, message, "app/new", &[], b"");
    let replies = (0..2 * SHED_REPLIES_PER_SECOND_MAX)
        .filter(|number| {
            let port = 1000 + (number >> 8) as u16;
            fixture.send_raw(&client(port), &new((number & 0xff) as MessageId)).is_some()
        })
        .count();
    assert_eq!(replies, SHED_REPLIES_PER_SECOND_MAX as usize);
    assert_eq!(fixture.counters.shed_silently.get(), u64::from(SHED_REPLIES_PER_SECOND_MAX));
    let duplicate = request(CON, Code::POST, 1, "app/x", &[], b"body");
    assert_eq!(fixture.send(&client(3), &duplicate), Some(known));
}

/// Row 1.4: a full queue with affinity drops no request of another client.
#[test]
fn a_pool_with_affinity_drops_no_waiting_request() {
    for (has_affinity, oldest) in [(false, Some(RequestId::for_test(1))), (true, None)] {
        let mut fixture = fixture_of(CoapSettings::default(), has_affinity);
        fixture.forward(&client(1), 1, 1);
        assert_eq!(fixture.send(&client(2), &request(CON, Code::GET, 1, "app/x", &[], b"")), None);
        let (exchange, _) = fixture.forwarded();
        assert_eq!(fixture.shard.oldest_queued(exchange, |_| true).map(|(_, id)| id), oldest);
    }
}

/// Row 1.10: a full queue drops the request that waits for longest.
#[test]
fn the_oldest_waiting_request_is_found() {
    let mut fixture = fixture();
    let [working, waiting, _] = [1, 2, 3].map(|port| fixture.forward(&client(port), 1, port.into()));
    let datagram = request(CON, Code::POST, 1, "app/x", &[], b"body");
    fixture.send(&client(4), &datagram);
    let (exchange, _) = fixture.forwarded();
    let oldest = fixture.shard.oldest_queued(exchange, |id| id != working);
    assert_eq!(oldest.map(|(_, id)| id), Some(waiting));
    assert!(oldest.is_some_and(|(of, _)| of < exchange));
    assert_eq!(fixture.shard.oldest_queued(exchange, |_| false), None);
}

/// Row 1.4: a process that belongs to its client alone is not taken by a spoofed datagram, whatever its size and blocks;
/// loopback addresses and pools without affinity need no proof.
#[test]
fn a_process_of_a_client_needs_a_proven_address() {
    let block = |option, number: u32| (option, vec![u8::try_from(number << 4 | 2).expect("a byte")]);
    let long = [b'x'; 1000];
    let spoofed = [
        (vec![], &long[..0]),
        (vec![], &long[..]),
        (vec![block(OptionNumber::BLOCK2, 1)], &long[..0]),
        (vec![block(OptionNumber::BLOCK1, 0)], &long[..64]),
        (vec![block(OptionNumber::BLOCK1, 1)], &long[..64]),
    ];
    let mut fixture = fixture_of(CoapSettings::default(), true);
    for (id, (options, payload)) in (1..).zip(spoofed) {
        fixture.next_id = id;
        let code = if payload.is_empty() { Code::GET } else { Code::POST };
        let answer = fixture.ask(&stranger(1), code, "app/x", &options, payload);
        assert_eq!(answer.code, Code::UNAUTHORIZED, "{options:?}");
        assert!(answer.value(OptionNumber::ECHO).is_some() && fixture.shard.next_call().is_none());
    }
    assert_eq!((fixture.counters.echo_required.get(), fixture.shard.pending()), (5, 0));
    // With the value of the answer, and from then on also without.
    let echo = fixture.shard.exchange.peers.echo(stranger(1).peer, fixture.now).to_vec();
    for (id, options) in [(20, vec![(OptionNumber::ECHO, echo)]), (21, Vec::new())] {
        let datagram = request(CON, Code::GET, id, "app/x", &options, b"");
        assert_eq!(fixture.send(&stranger(1), &datagram), None);
        fixture.forwarded();
    }
    let datagram = request(CON, Code::GET, 22, "app/x", &[], b"");
    assert_eq!(fixture.send(&client(1), &datagram), None);
    fixture.forwarded();
    let answer = fixture.send(&stranger(2), &datagram).expect("the value proves one address");
    assert_eq!(answer.code, Code::UNAUTHORIZED);

    let mut fixture = fixture_of(CoapSettings::default(), false);
    assert_eq!(fixture.send(&stranger(1), &datagram), None);
    fixture.forwarded();
    let strict = CoapSettings { unproven: UnprovenPeers::All, ..CoapSettings::default() };
    let mut fixture = fixture_of(strict, true);
    let answer = fixture.send(&client(1), &datagram).expect("loopback is not trusted");
    assert_eq!(answer.code, Code::UNAUTHORIZED);
}
