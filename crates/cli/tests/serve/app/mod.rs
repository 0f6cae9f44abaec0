//! `--app`: worker processes behind the server, tested from outside. The processes are `fake.py`, which behaves as the
//! path selects, and real programs.

mod affinity;
mod bodies;
mod failing;
mod frames;
mod hot_restart;
mod overload;
mod pools;
mod process_lifecycle;
mod real_programs;
mod reload;
mod rewriting;
mod sessions;
mod shared_pool;

use crate::support::{DriverUnderTest, MetricsClient, ServerUnderTest, TestPeer, binary};

fn fake() -> String {
    format!("exec python3 -I -S '{}/tests/serve/app/fake.py' {{socket}}", env!("CARGO_MANIFEST_DIR"))
}

/// A server before processes of `command`, with further options, separated by blanks.
fn before(driver: DriverUnderTest, command: &str, options: &str) -> ServerUnderTest {
    let mut server = binary();
    server.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--app", command]);
    server.args(options.split_whitespace());
    ServerUnderTest::spawn(server)
}

/// A server before fakes, all of them ready.
pub(crate) fn before_fakes(driver: DriverUnderTest, options: &str) -> (ServerUnderTest, MetricsClient) {
    let server = before(driver, &fake(), options);
    let wanted = options.split_once("--processes ").map_or(1, |(_, rest)| {
        rest.split_whitespace().next().and_then(|count| count.parse().ok()).expect("a number of processes")
    });
    let mut watcher = server.watch();
    watcher.until("all processes are ready", |metrics| ready(metrics) == wanted);
    (server, watcher)
}

fn ready(metrics: &crate::support::Metrics) -> u64 {
    metrics.sum("app_processes", "state=\"ready\"")
}

fn lives(metrics: &crate::support::Metrics, event: &str) -> u64 {
    metrics.sum("app_process_events_total", &format!("event=\"{event}\""))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n")
}

/// The request of [`get`] with `Connection: close`.
fn last(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
}

/// The pattern of the fake's bodies, from `start` on.
fn pattern(start: usize, size: usize) -> impl Iterator<Item = u8> {
    (start..start + size).map(|at| (at % 251) as u8)
}

/// Requests `path` on a connection of its own and returns the head and the whole, unchunked body.
#[track_caller]
fn ask_alone(server: &ServerUnderTest, path: &str) -> (String, Vec<u8>) {
    let mut peer = server.connect();
    peer.send(last(path));
    let answer = peer.head();
    let rest = peer.rest();
    let body = match answer.field("Transfer-Encoding") {
        Some(coding) => {
            assert_eq!((coding, answer.field("Content-Length")), ("chunked", None));
            without_chunks(&rest)
        }
        None => rest,
    };
    (answer.head, body)
}

/// Decodes the chunks of a body; nothing may follow the last chunk.
#[track_caller]
fn without_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line =
            rest.windows(2).position(|window| window == b"\r\n").expect("a line with the size of a chunk");
        let size = std::str::from_utf8(&rest[..line]).expect("the size is text");
        let size = usize::from_str_radix(size, 16).expect("the size is a hexadecimal number");
        rest = &rest[line + 2..];
        let (chunk, behind) = rest.split_at(size);
        assert_eq!(&behind[..2], b"\r\n");
        body.extend_from_slice(chunk);
        rest = &behind[2..];
        if size == 0 {
            assert_eq!(rest, b"", "nothing comes behind the last chunk");
            return body;
        }
    }
}

#[track_caller]
fn number(peer: &mut TestPeer, path: &str) -> i32 {
    let answer = peer.ask(get(path));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text().parse().expect("a number")
}
