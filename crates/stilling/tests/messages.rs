//! A warm server allocates nothing per message, from the publication through the journal to the acknowledgement and
//! the subscriber, as measured by a counting allocator.
//!
//! It counts all threads except those that exclude themselves as clients. A single test, because two at once would
//! count each other.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use stilling::http::Routes;
use stilling::settings::{Durability, MessagingConfig, Retention, StreamConfig};
use stilling::{DriverChoice, HubThread, ServeConfig, Server};
use stilling_probe::allocations::{
    CountingAllocator, exclude_this_thread, process_allocations, run_until_allocation_free,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bound for answers that a test waits for.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages in flight.
const WINDOW: usize = 64;
/// Windows in one round.
const WINDOWS: usize = 10;
/// Rounds until permanent allocations have grown.
const WARM_UP: usize = 4;
/// A reused batch may still have to grow to a size that only others had, and a segment may become full.
const ATTEMPTS: usize = 40;

struct NatsClient {
    stream: TcpStream,
}

impl NatsClient {
    fn connect(address: SocketAddr, subscribe: &str) -> NatsClient {
        let mut stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        stream.set_nodelay(true).expect("a socket takes options");
        let hello = format!("CONNECT {{\"verbose\":false}}\r\nSUB {subscribe} 1\r\nPING\r\n");
        stream.write_all(hello.as_bytes()).expect("the server reads");
        let mut client = NatsClient { stream };
        // INFO and PONG.
        client.lines(2);
        client
    }

    /// Reads that many lines; no more may follow. Payloads contain no line ends.
    fn lines(&mut self, count: usize) {
        let mut bytes = [0; 65_536];
        let mut line_count = 0;
        while line_count < count {
            let read = self.stream.read(&mut bytes).expect("an answer");
            assert!(read > 0, "closed after {line_count} of {count} lines");
            let text = String::from_utf8_lossy(&bytes[..read]);
            assert!(!text.contains("-ERR") && !text.contains("error"), "{text}");
            line_count += bytes[..read].iter().filter(|byte| **byte == b'\n').count();
        }
        assert_eq!(line_count, count);
    }
}

/// Publishes, and waits for each window's acknowledgements and deliveries.
fn round(publisher: &mut NatsClient, subscriber: &mut NatsClient, window: &[u8]) {
    for _ in 0..WINDOWS {
        publisher.stream.write_all(window).expect("the server reads");
        publisher.lines(2 * WINDOW);
        subscriber.lines(2 * WINDOW);
    }
}

/// One connection per message, a whole window of them open at once, each from its accept to its close. The
/// acknowledgements go to `ack_client`, which is subscribed to them: a subscription allocates.
fn connection_round(address: SocketAddr, stream: &str, ack_client: &mut NatsClient) {
    let message = format!("CONNECT {{\"verbose\":false}}\r\nPUB {stream}.a _INBOX.a.1 4\r\nonce\r\nPING\r\n");
    let connect = |_| {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        NatsClient { stream }
    };
    let mut clients: Vec<_> = (0..WINDOW).map(connect).collect();
    for client in &mut clients {
        client.stream.write_all(message.as_bytes()).expect("the server reads");
    }
    for client in &mut clients {
        // INFO and PONG.
        client.lines(2);
        client.stream.shutdown(Shutdown::Write).expect("it is open");
        assert_eq!(client.stream.read(&mut [0]).expect("the end"), 0);
    }
    ack_client.lines(2 * WINDOW);
}

fn a_message_allocates_nothing_on(driver: DriverChoice, hub_thread: HubThread) {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = StreamConfig {
        durability: Durability::Memory,
        retention: Retention { bytes: 4 << 20, ..Retention::of(Durability::Memory) },
        ..StreamConfig::new("memory", ["memory.>"])
    };
    let config = ServeConfig {
        listen: Vec::new(),
        shards: 2,
        worker_threads: 1,
        hub: MessagingConfig {
            nats: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            data: folder.path().join("streams"),
            streams: vec![StreamConfig::new("disk", ["disk.>"]), memory],
            ..MessagingConfig::default()
        },
        hub_thread,
        driver,
        ..ServeConfig::default()
    };
    let server = Server::bind(config, Routes::new()).expect("a free port and the driver");
    let line = server.banner().iter().find_map(|line| line.strip_prefix("listening nats://"));
    let address: SocketAddr = line.expect("it listens").parse().expect("an address");
    let running = server.start().expect("a thread");
    let client = thread::spawn(move || {
        exclude_this_thread();
        for (stream, size) in [("disk", 128), ("disk", 4096), ("memory", 128), ("memory", 4096)] {
            let cold = process_allocations();
            let mut subscriber = NatsClient::connect(address, &format!("{stream}.>"));
            assert!(process_allocations() > cold, "a subscription, which takes memory, was not counted");
            let mut publisher = NatsClient::connect(address, "_INBOX.a.*");
            let payload = "x".repeat(size);
            let window = format!("PUB {stream}.a _INBOX.a.1 {size}\r\n{payload}\r\n").repeat(WINDOW);
            for _ in 0..WARM_UP {
                round(&mut publisher, &mut subscriber, window.as_bytes());
            }
            let outcome = run_until_allocation_free(ATTEMPTS, || {
                round(&mut publisher, &mut subscriber, window.as_bytes());
            });
            if let Err(counts) = outcome {
                let messages = WINDOW * WINDOWS;
                panic!(
                    "{driver:?}, {hub_thread:?}, {stream}, {size} bytes: {counts:?} for {messages} messages each"
                );
            }
        }
        let mut ack_client = NatsClient::connect(address, "_INBOX.a.*");
        for stream in ["disk", "memory"] {
            for _ in 0..WARM_UP {
                connection_round(address, stream, &mut ack_client);
            }
            if let Err(counts) =
                run_until_allocation_free(ATTEMPTS, || connection_round(address, stream, &mut ack_client))
            {
                panic!("{driver:?}, {hub_thread:?}, {stream}: {counts:?} for {WINDOW} connections each");
            }
        }
    });
    client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    drop(running);
}

/// "Heap allocations per message after warm-up (publish → journal → ack): 0", with a subscriber. Rows 0.11 and 0.19:
/// the same for a connection that brings one message, from its accept to its close.
#[test]
fn a_message_costs_a_warm_server_no_allocation() {
    for driver in [DriverChoice::Uring, DriverChoice::Poll] {
        for hub_thread in [HubThread::Dedicated, HubThread::Shard] {
            a_message_allocates_nothing_on(driver, hub_thread);
        }
    }
}
