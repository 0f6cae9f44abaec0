//! Long responses to slow clients take bounded memory, as measured by an allocator that adds up.
//!
//! One test for both drivers, because two at once would count each other's memory.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::{Domain, Socket, Type};
use stilling::engine::{CloseReason, ShardConfig};
use stilling::http::{Method, Response, Routes};
use stilling::{DriverChoice, RunningServer, ServeConfig, Server};
use stilling_probe::{HANG_TIMEOUT, eventually};

/// Bytes allocated and not freed, and their peak.
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

struct MeteringAllocator;

fn add_live(bytes: usize) {
    let live = LIVE.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn subtract_live(bytes: usize) {
    LIVE.fetch_sub(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is forwarded unchanged to the system allocator; the counting does not allocate.
unsafe impl GlobalAlloc for MeteringAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add_live(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        subtract_live(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add_live(size);
        subtract_live(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: MeteringAllocator = MeteringAllocator;

const CLIENTS: u64 = 200;
/// Bytes of each response: together far more than the memory of this machine.
const LENGTH: u64 = 50_000_000;
/// Heap bytes that one client may take: its piece, before and after framing. The engine's unsent output is in its own
/// store, which has its own bound.
const CLIENT_COST_MAX: u64 = 100 * 1024;
/// Bytes for everything that does not grow with clients.
const SLACK: u64 = 4 * 1024 * 1024;

/// A client with a small receive buffer.
fn connect(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a buffer can be small");
    socket.connect(&address.into()).expect("the server accepts");
    let stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    stream
}

/// Has every shard serve a client, so that one-time allocations, at least of address space, are made.
fn warm(server: &RunningServer, path: &str) {
    let overview = server.overview();
    while overview.engines.iter().any(|counters| counters.accepted.get() == 0) {
        let mut client = connect(server.addresses()[0]);
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
        client.read_exact(&mut [0; 4096]).expect("the beginning of the answer");
    }
    eventually("the first clients are gone", || {
        (overview.engine(|counters| &counters.open) == 0).then_some(())
    });
}

fn slow_clients_are_cheap_on(driver: DriverChoice, path: &str) {
    let routes = Routes::new()
        .worker(Method::Get, "/sized", |_| Response::stream_sized("a/b", LENGTH, std::io::repeat(b's')))
        .worker(Method::Get, "/open", |_| Response::stream("a/b", std::io::repeat(b'o').take(LENGTH)));
    // A store for ten of them.
    let engine = ShardConfig { output_bytes_max: 1 << 20, ..ShardConfig::default() };
    let config = ServeConfig {
        engine,
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        shards: 2,
        worker_threads: 2,
        capacity: 1000,
        send_buffer: Some(16_384),
        driver,
        ..ServeConfig::default()
    };
    let server = Server::bind(config, routes).expect("a free port and the driver").start().expect("a thread");
    let address = server.addresses()[0];
    warm(&server, path);
    let blocked = || server.overview().engine(|counters| &counters.blocked_sends);
    let cold = blocked();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(address)).collect();
    for client in &mut clients {
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads");
    }
    eventually("all outputs are blocked", || (blocked() >= cold + CLIENTS).then_some(()));
    // The clients read on slowly: more than the engine holds for one, so that further pieces are read.
    let mut bytes = [0; 4096];
    for _ in 0..40 {
        for client in &mut clients {
            client.read_exact(&mut bytes).expect("more of the answer");
        }
    }
    let grown = PEAK.load(Ordering::Relaxed) - before;
    drop(clients);
    let overview = server.end().expect("no shard has failed");
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::OutputFull)), 0);
    assert_eq!(overview.engine(|counters| counters.closed(CloseReason::SlowConsumer)), 0);
    let allowed = CLIENTS * CLIENT_COST_MAX + SLACK;
    assert!(grown < allowed, "{driver:?}, {path}: {grown} bytes, {allowed} are allowed");
}

/// Row 4.7's like: two hundred slow clients with a response of 50 MB each take memory for a piece each, not for a
/// response.
#[test]
fn slow_clients_are_cheap_however_long_their_answers() {
    for driver in [DriverChoice::Uring, DriverChoice::Poll] {
        for path in ["/sized", "/open"] {
            slow_clients_are_cheap_on(driver, path);
        }
    }
}
