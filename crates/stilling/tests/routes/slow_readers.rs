//! Tests with more slow clients than the shards have memory for: none delays another.

use std::io::Read;

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling::http::{Method, Response, Routes};

use crate::support::{HANG_TIMEOUT, HttpTestServer, TestPeer, eventually, get, pattern};

on_both_drivers!(
    slow_readers_beyond_the_output_store_get_everything,
    a_pipelining_client_that_does_not_read_leaves_room_for_others,
);

/// Bytes of each response: several times what the system takes for a client that reads nothing.
const LONG: usize = 1_000_000;

/// The smallest store: one response's worth.
const STORE: usize = 65_536;

/// Clients, each of which leaves most of a response with the server.
const CLIENTS: usize = 40;

fn answers() -> Routes {
    let fixed: &'static [u8] = pattern(LONG).leak();
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("file"), fixed).expect("a file");
    let path = directory.path().to_owned();
    Routes::new()
        .inline(Method::Get, "/bytes", move |_| {
            // Moved into the handler: the directory must exist as long as the routes.
            let _ = &directory;
            Response::bytes("a/b", fixed)
        })
        .inline(Method::Get, "/short", move |_| Response::bytes("a/b", &fixed[..30_000]))
        .worker(Method::Get, "/open", move |_| Response::stream("a/b", fixed.take(LONG as u64)))
        .worker(Method::Get, "/sized", move |_| Response::stream_sized("a/b", LONG as u64, fixed))
        .files("/files", path)
}

fn small(driver: DriverChoice, workers: usize) -> HttpTestServer {
    HttpTestServer::with(driver, answers(), |config| {
        (config.shards, config.worker_threads) = (1, workers);
        config.send_buffer = Some(131_072);
        config.engine.output_bytes_max = STORE;
        // The clients wait for each other.
        config.engine.write_timeout = HANG_TIMEOUT;
    })
}

/// Row 4.36: the engine's unsent output is bounded, and no client that reads is closed for it, however many there
/// are.
fn slow_readers_beyond_the_output_store_get_everything(driver: DriverChoice) {
    let expected = pattern(LONG);
    for workers in [0, 2] {
        let server = small(driver, workers);
        let mut peers: Vec<TestPeer> = (0..CLIENTS).map(|_| server.connect()).collect();
        for (peer, path) in peers.iter_mut().zip(["/bytes", "/open", "/sized", "/files/file"].iter().cycle())
        {
            peer.send(get(path));
        }
        eventually("all outputs are blocked", || {
            assert!(server.unsent() <= STORE as u64, "{} bytes are held", server.unsent());
            (server.overview().engine(|counters| &counters.blocked_sends) >= CLIENTS as u64).then_some(())
        });
        // Each client reads to the end while the others wait.
        for peer in &mut peers {
            assert!(peer.answer().body == expected);
            assert!(server.unsent() <= STORE as u64, "{} bytes are held", server.unsent());
        }
        drop(peers);
        let overview = server.finish();
        assert_eq!(overview.engine(|counters| counters.closed(CloseReason::OutputFull)), 0);
        assert_eq!(overview.engine(|counters| counters.closed(CloseReason::SlowConsumer)), 0);
    }
}

/// Row 4.36: the same for many short responses.
fn a_pipelining_client_that_does_not_read_leaves_room_for_others(driver: DriverChoice) {
    const REQUESTS: usize = 40;
    let server = small(driver, 1);
    let mut peers: Vec<TestPeer> = (0..CLIENTS).map(|_| server.connect()).collect();
    for peer in &mut peers {
        peer.send(get("/short").repeat(REQUESTS));
    }
    eventually("all outputs are blocked", || {
        assert!(server.unsent() <= STORE as u64, "{} bytes are held", server.unsent());
        (server.overview().engine(|counters| &counters.blocked_sends) >= CLIENTS as u64).then_some(())
    });
    let expected = pattern(LONG);
    for peer in &mut peers {
        for _ in 0..REQUESTS {
            assert!(peer.answer().body == expected[..30_000]);
        }
    }
    drop(peers);
    let overview = server.finish();
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::OutputFull)), 0);
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::SlowConsumer)), 0);
}
