//! A publisher on a slow link that breaks: in the end the stream has every message once and in order.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use socket2::SockRef;

use super::NatsServerFixture;
use crate::support::{DriverUnderTest, binary};

on_both_drivers! {
    a_slow_link_that_breaks_loses_and_repeats_nothing,
}

/// Bytes per packet, as on most links.
const PACKET: usize = 1400;

/// Time per packet, for a rate of about 450 kB per second.
const PACKET_TAKES: Duration = Duration::from_millis(3);

/// Bytes after which the first connection breaks; each later one lasts a little longer, and the last ones hold.
const BREAKS_AFTER: usize = 30_000;

const BREAKS: u32 = 5;

const MESSAGES: usize = 300;
const MESSAGE_SIZE: usize = 1000;

struct SlowLink {
    address: SocketAddr,
    broken: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl SlowLink {
    fn to(server: SocketAddr) -> SlowLink {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let (broken, over) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let (breaks, ends) = (Arc::clone(&broken), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            std::thread::scope(|passages| {
                for near in listener.incoming() {
                    if ends.load(Relaxed) {
                        return;
                    }
                    let near = near.expect("a connection");
                    let far = TcpStream::connect(server).expect("the server is there");
                    let breaks = &*breaks;
                    passages.spawn(move || pass(&near, &far, breaks));
                }
            });
        });
        SlowLink { address, broken, over, thread: Some(thread) }
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        // Wakes the thread from its accept.
        let _ = TcpStream::connect(self.address);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(
            std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()),
            "the link itself failed"
        );
    }
}

/// Forwards both directions of a connection, until an end closes it or it breaks.
fn pass(near: &TcpStream, far: &TcpStream, broken: &AtomicU32) {
    let so_far = broken.load(Relaxed);
    let lasts = (so_far < BREAKS).then(|| BREAKS_AFTER + so_far as usize * 7_001);
    std::thread::scope(|directions| {
        directions.spawn(|| crawl(far, near, None));
        if crawl(near, far, lasts) {
            broken.fetch_add(1, Relaxed);
            for end in [near, far] {
                // A reset, as when the link's state is lost: bytes in flight are lost.
                let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
            }
        }
        for end in [near, far] {
            let _ = end.shutdown(Shutdown::Both);
        }
    });
}

/// Forwards bytes packet by packet. Returns whether the link broke.
fn crawl(mut from: &TcpStream, mut to: &TcpStream, lasts: Option<usize>) -> bool {
    let (mut packet, mut carried) = ([0; PACKET], 0);
    while let Ok(len @ 1..) = from.read(&mut packet) {
        carried += len;
        if lasts.is_some_and(|lasts| carried > lasts) {
            return true;
        }
        // The delay of the link; there is no condition to wait for.
        std::thread::sleep(PACKET_TAKES);
        if to.write_all(&packet[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    false
}

/// Row 0.7.
fn a_slow_link_that_breaks_loses_and_repeats_nothing(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let link = SlowLink::to(fixture.nats());
    let mut command = binary();
    command.args(["pub", "--server", &format!("nats://{}", link.address), "--timeout", "120"]);
    command.args(["--lines", "events.a"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut publisher = command.spawn().expect("it starts");
    let mut input = publisher.stdin.take().expect("it is piped");
    let message = |number: usize| format!("{number:0MESSAGE_SIZE$}");
    for number in 0..MESSAGES {
        writeln!(input, "{}", message(number)).expect("it reads");
    }
    drop(input);
    let status = publisher.wait().expect("it is ours");
    assert!(status.success(), "{status}");
    assert_eq!(link.broken.load(Relaxed), BREAKS, "the link broke as often as it was to");
    let expected: Vec<_> = (0..MESSAGES).map(|number| (number as u64 + 1, message(number))).collect();
    let (records, behind) = fixture.records("events", MESSAGES);
    assert!(records == expected, "{:?}", records.iter().map(|record| record.0).collect::<Vec<_>>());
    assert_eq!(behind, 0);
    drop(link);
    fixture.server.finish();
}
