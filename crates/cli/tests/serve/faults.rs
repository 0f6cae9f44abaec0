//! A hundred thousand clients that vanish in every state, beside well-behaved ones.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use stilling_ring::SplitMix64;

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, eventually};

on_every_driver!(vanishing_clients_leave_nothing_behind);

const FAULTS: usize = 100_000;
const THREADS: usize = 4;
/// Connected, silent clients of a thread; the oldest one is replaced.
const SILENT: usize = 40;

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";
const SLOW: &str = "GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n";
const HEAD: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\nX-Fil";
const BODY: &str = "POST /test/fast HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nbod";
const CHUNK: &str = "POST /test/slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab";
const LAST: &str = "GET /test/fast HTTP/1.0\r\n\r\n";
const WRONG: &str = "GET /test/fast HTTP/1.1\nHost";

/// State of a client when it vanishes: the number of awaited answers, and everything that it sends before.
fn state(random: &mut SplitMix64) -> (usize, String) {
    let choices: [(usize, &[&str]); 14] = [
        (0, &[]),
        (0, &[HEAD]),
        (0, &[BODY]),
        (0, &[CHUNK]),
        (0, &[SLOW]),
        (0, &[FAST]),
        (0, &[LAST]),
        (0, &[WRONG]),
        (1, &[FAST]),
        (1, &[FAST, HEAD]),
        (1, &[FAST, SLOW]),
        (1, &[FAST, FAST, LAST, FAST]),
        (2, &[FAST, FAST, FAST, FAST, SLOW, FAST]),
        (0, &[FAST, FAST, FAST, BODY]),
    ];
    let (answers, request_bytes) = choices[random.index(choices.len())];
    (answers, request_bytes.concat())
}

/// One thread's share of the clients, from a source address of its own so that ports suffice.
fn vanish(server: SocketAddr, thread: usize) {
    let mut random = SplitMix64::new(thread as u64);
    let mut silent = VecDeque::new();
    for at in 0..FAULTS / THREADS {
        let source = Ipv4Addr::new(127, 0, 1 + thread as u8, 1 + (at % 200) as u8);
        let mut peer = TestPeer::connect_from(source, server);
        let (answers, request_bytes) = state(&mut random);
        peer.send(&request_bytes);
        for _ in 0..answers {
            assert_eq!(peer.answer().status, 200);
        }
        let gone = match random.below(4) {
            0 => peer,
            1 => {
                peer.half_close();
                peer.read_until_closed();
                continue;
            }
            2 => {
                peer.reset();
                continue;
            }
            _ => {
                silent.push_back(peer);
                if silent.len() <= SILENT {
                    continue;
                }
                silent.pop_front().expect("it is not empty")
            }
        };
        if random.below(2) == 0 {
            gone.reset();
        }
    }
}

/// Rows 4.8, 4.12, 4.34, 4.36: resets, early ends and silence in every state, from fixed seeds. The server keeps
/// running, every connection has one close reason, no slot, byte or descriptor is lost, and a well-behaved client is
/// served all the time.
fn vanishing_clients_leave_nothing_behind(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 2 -w 4 -D 1 --queue-target off");
    let mut watcher = server.watch();
    eventually("both shards have what they need", || {
        server.connect().ask(LAST);
        let metrics = watcher.fetch();
        [0, 1]
            .iter()
            .all(|shard| metrics.value(&format!("accepted_total{{shard=\"{shard}\"}}")) > 0)
            .then_some(())
    });
    watcher.until_alone();
    let descriptors = server.descriptors();
    let over = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let mut served = 0;
            while !over.load(Ordering::Relaxed) {
                let mut peer = server.connect();
                for request in [FAST, SLOW, LAST] {
                    assert_eq!(peer.ask(request).status, 200);
                    served += 1;
                }
                assert_eq!(peer.rest(), b"");
            }
            served
        });
        let address = server.address();
        let vanishing = (0..THREADS).map(|thread| scope.spawn(move || vanish(address, thread)));
        let vanishing: Vec<_> = vanishing.collect();
        let outcomes: Vec<_> = vanishing.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        for outcome in outcomes {
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        honest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(served > 0);
    let metrics = watcher.until_alone();
    for reason in ["done", "peer_closed", "peer_reset", "protocol_error"] {
        assert!(metrics.closed(reason) > 0, "no connection was closed for {reason}");
    }
    let others = ["write_timeout", "input_full", "output_full", "system_error", "connect_failed"];
    for reason in others {
        assert_eq!(metrics.closed(reason), 0, "{reason}");
    }
    assert_eq!(metrics.answers(408) + metrics.answers(500) + metrics.answers(503), 0);
    assert_eq!(metrics.value("driver_overflows_total"), 0);
    eventually("all descriptors are closed", || (server.descriptors() == descriptors).then_some(()));
    drop(watcher);
    server.finish();
}
