//! Hostile clients. Each proves that its disturbance has taken place, or fails.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use super::FairnessServer;
use super::pair::PairConnection;
use crate::XtaskResult;
use crate::bench::monitor;
use crate::bench::server::READY_TIMEOUT;

/// Messages per second to subscribers that never read.
const NOISE_RATE: u32 = 20_000;

/// Bytes of such a message.
const NOISE_SIZE: usize = 128;

/// Bursts of these messages per second.
const NOISE_BURSTS: u32 = 100;

/// End of a disconnected subscriber's output.
const FINAL_COMMANDS: &[u8] = b"\r\n-ERR 'Slow Consumer'\r\n";

/// Bytes of the receive buffer of a subscriber that never reads.
const UNREAD_BUFFER: usize = 8192;

/// Idle consumers, and idle consumers per connection.
const CONSUMERS: usize = 10_000;
const CONSUMERS_PER_CONNECTION: usize = 1000;

/// Connections that leave at once, and the subscriptions of each.
const LEAVING_CONNECTIONS: usize = 10;
const LEAVER_SUBSCRIPTIONS: usize = 10_000;

/// Most subscriptions of all other clients together.
const OTHER_SUBSCRIPTIONS: u64 = 1000;

/// Slow requests reset at once, the time from their sending to the reset, and the time between two resets.
const RESETS: usize = 50;
const RESET_AFTER: Duration = Duration::from_millis(50);
const RESETS_EVERY: Duration = Duration::from_millis(500);

/// Least requests of a reset that must be cancelled in the queue; the others may have begun.
const CANCELLED_MIN: u64 = RESETS as u64 / 2;

const READING_EVERY: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    UnreadFew,
    UnreadMany,
    IdleConsumers,
    Leavers,
    Resets,
    AllFew,
    AllMany,
}

/// Proof of a thread's disturbance, or the reason for its absence.
type Evidence = Result<String, String>;

/// A running disturbance; dropping it ends it.
#[derive(Default)]
pub(super) struct RunningDisturbance {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Evidence>>,
    open_connections: Vec<TcpStream>,
    consumers: usize,
}

impl Drop for RunningDisturbance {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for open_connections in &self.open_connections {
            let _ = open_connections.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Disturbance {
    pub(super) const ALL: [Disturbance; 7] = [
        Disturbance::UnreadFew,
        Disturbance::UnreadMany,
        Disturbance::IdleConsumers,
        Disturbance::Leavers,
        Disturbance::Resets,
        Disturbance::AllFew,
        Disturbance::AllMany,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Disturbance::UnreadFew => "2 clients that never read",
            Disturbance::UnreadMany => "20 clients that never read",
            Disturbance::IdleConsumers => "10,000 idle consumers",
            Disturbance::Leavers => "10 clients of 10,000 subscriptions that leave",
            Disturbance::Resets => "50 resets of slow requests, again and again",
            Disturbance::AllFew => "all together, 2 that never read",
            Disturbance::AllMany => "all together, 20 that never read",
        }
    }

    /// Starts the disturbance, in a measurement that takes `span` from now on.
    pub(super) fn begin(
        self,
        server_addresses: FairnessServer,
        span: Duration,
    ) -> XtaskResult<RunningDisturbance> {
        let mut running = RunningDisturbance::default();
        match self {
            Disturbance::UnreadFew => running.unread(server_addresses, 2)?,
            Disturbance::UnreadMany => running.unread(server_addresses, 20)?,
            Disturbance::IdleConsumers => running.consumers(server_addresses)?,
            Disturbance::Leavers => running.start_leavers(server_addresses, span)?,
            Disturbance::Resets => running.resets(server_addresses),
            Disturbance::AllFew => running.all(server_addresses, span, 2)?,
            Disturbance::AllMany => running.all(server_addresses, span, 20)?,
        }
        Ok(running)
    }
}

impl RunningDisturbance {
    /// Ends the disturbance and returns the evidence.
    ///
    /// # Errors
    /// If part of the disturbance has not taken place, so that the figures are meaningless.
    pub(super) fn finish(mut self, server_addresses: FairnessServer) -> XtaskResult<String> {
        self.is_over.store(true, Ordering::Release);
        let mut evidence = Vec::new();
        if self.consumers > 0 {
            expect_consumers(server_addresses.http, self.consumers)?;
            evidence.push(format!("{} consumers to the end", self.consumers));
        }
        for thread in self.threads.drain(..) {
            evidence.push(thread.join().map_err(|_| "a disturbance panicked")??);
        }
        Ok(evidence.join("; "))
    }

    /// Starts all disturbances, with `unread` clients that never read.
    fn all(&mut self, server_addresses: FairnessServer, span: Duration, unread: usize) -> XtaskResult {
        self.consumers(server_addresses)?;
        self.start_leavers(server_addresses, span)?;
        self.resets(server_addresses);
        self.unread(server_addresses, unread)
    }

    /// Starts subscribers that never read, and a publisher for them. Disconnected subscribers are replaced.
    fn unread(&mut self, server_addresses: FairnessServer, count: usize) -> XtaskResult {
        let mut publisher = PairConnection::open(server_addresses.nats)?;
        publisher.write.set_write_timeout(Some(READY_TIMEOUT))?;
        publisher.round_trip()?;
        let is_over = Arc::clone(&self.is_over);
        let message = format!("PUB noise.a {NOISE_SIZE}\r\n{}\r\n", "x".repeat(NOISE_SIZE));
        let burst = message.repeat((NOISE_RATE / NOISE_BURSTS) as usize);
        self.threads.push(thread::spawn(move || {
            let (mut due, mut bursts) = (Instant::now(), 0);
            while !is_over.load(Ordering::Acquire) {
                let sent = publisher.write.write_all(burst.as_bytes());
                sent.map_err(|error| format!("the publisher to clients that never read: {error}"))?;
                (due, bursts) = (due + Duration::from_secs(1) / NOISE_BURSTS, bursts + 1);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(format!("{} messages that are not read", bursts * (NOISE_RATE / NOISE_BURSTS)))
        }));
        let is_over = Arc::clone(&self.is_over);
        self.threads.push(thread::spawn(move || {
            unread_until(server_addresses, count, &is_over)
                .map_err(|error| format!("{count} clients that never read: {error}"))
        }));
        Ok(())
    }

    /// Creates consumers of subjects without publications.
    fn consumers(&mut self, server_addresses: FairnessServer) -> XtaskResult {
        for connection in 0..CONSUMERS / CONSUMERS_PER_CONNECTION {
            let mut client = PairConnection::open(server_addresses.nats)?;
            let mut questions = format!("SUB _D.{connection} 1\r\n");
            for consumer in 0..CONSUMERS_PER_CONNECTION {
                let filter = format!("fair.idle.{connection}.{consumer}");
                let config = format!(
                    "{{\"stream_name\":\"fair\",\"config\":{{\"deliver_subject\":\"_D.{connection}\",\
                     \"ack_policy\":\"none\",\"filter_subject\":\"{filter}\"}}}}"
                );
                let length = config.len();
                questions += &format!("PUB $JS.API.CONSUMER.CREATE.fair _R {length}\r\n{config}\r\n");
            }
            client.write.write_all(questions.as_bytes())?;
            client.round_trip()?;
            self.open_connections.push(client.write);
        }
        self.consumers = CONSUMERS;
        expect_consumers(server_addresses.http, CONSUMERS)
    }

    /// Starts clients with many subscriptions that leave in the middle of the measurement.
    fn start_leavers(&mut self, server_addresses: FairnessServer, span: Duration) -> XtaskResult {
        let mut start_leavers = Vec::new();
        for leaver in 0..LEAVING_CONNECTIONS {
            let mut client = PairConnection::open(server_addresses.nats)?;
            let subscription = |number| format!("SUB leaver.{leaver}.{number} {number}\r\n");
            let subscriptions: String = (0..LEAVER_SUBSCRIPTIONS).map(subscription).collect();
            client.write.write_all(subscriptions.as_bytes())?;
            client.round_trip()?;
            start_leavers.push(client);
        }
        let all = (LEAVING_CONNECTIONS * LEAVER_SUBSCRIPTIONS) as u64;
        until(server_addresses.http, "hub_subscriptions", |count| count >= all)?;
        self.threads.push(thread::spawn(move || {
            thread::sleep(span / 2);
            drop(start_leavers);
            let began = Instant::now();
            until(server_addresses.http, "hub_subscriptions", |count| count <= OTHER_SUBSCRIPTIONS)?;
            Ok(format!("{all} subscriptions gone in {} ms", began.elapsed().as_millis()))
        }));
        Ok(())
    }

    /// Repeatedly sends slow requests and resets them together.
    fn resets(&mut self, server_addresses: FairnessServer) {
        let is_over = Arc::clone(&self.is_over);
        self.threads.push(thread::spawn(move || {
            let (mut due, mut times, mut cancelled) = (Instant::now(), 0, 0);
            while !is_over.load(Ordering::Acquire) {
                cancelled += resets_once(server_addresses.http)?;
                (due, times) = (due + RESETS_EVERY, times + 1);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(format!("{} resets, {cancelled} cancelled in the queue", times * RESETS))
        }));
    }
}

/// Repeatedly gets `count` subscribers that never read disconnected. Returns their last output.
fn unread_until(server_addresses: FairnessServer, count: usize, is_over: &AtomicBool) -> Evidence {
    let slow_consumers = || monitor::figure(server_addresses.http, "hub_slow_consumers_total").map_err(text);
    let mut all = 0;
    loop {
        let before = slow_consumers()?;
        let mut subscribers = Vec::new();
        for _ in 0..count {
            subscribers.push(unread_subscriber(server_addresses.nats).map_err(text)?);
        }
        while slow_consumers()? < before + count as u64 {
            if is_over.load(Ordering::Acquire) {
                return match all {
                    0 => Err("they were not all disconnected within the measurement".to_owned()),
                    all => Ok(format!("{all} disconnected with `-ERR 'Slow Consumer'`")),
                };
            }
            thread::sleep(READING_EVERY);
        }
        for mut subscriber in subscribers {
            let mut rest = Vec::new();
            subscriber.read_to_end(&mut rest).map_err(text)?;
            if !rest.ends_with(FINAL_COMMANDS) {
                return Err(format!(
                    "a subscriber got no reason for its disconnect, after {} bytes",
                    rest.len()
                ));
            }
            all += 1;
        }
    }
}

fn unread_subscriber(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_recv_buffer_size(UNREAD_BUFFER)?;
    socket.connect(&to.into())?;
    let mut stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(READY_TIMEOUT))?;
    stream.write_all(b"CONNECT {\"verbose\":false}\r\nSUB noise.> 1\r\n")?;
    Ok(stream)
}

/// Sends slow requests and resets all of them. Returns the number cancelled in the queue.
fn resets_once(http: SocketAddr) -> Result<u64, String> {
    const CANCELLED: &str = "jobs_total{outcome=\"cancelled\"}";
    let before = monitor::figure(http, CANCELLED).map_err(text)?;
    let request = format!("GET /test/slow HTTP/1.1\r\nHost: {http}\r\n\r\n");
    let mut clients = Vec::new();
    for _ in 0..RESETS {
        let mut client = TcpStream::connect(http).map_err(text)?;
        client.write_all(request.as_bytes()).map_err(text)?;
        clients.push(client);
    }
    thread::sleep(RESET_AFTER);
    for client in &clients {
        // A close with this option is a reset.
        SockRef::from(client).set_linger(Some(Duration::ZERO)).map_err(text)?;
    }
    drop(clients);
    until(http, CANCELLED, |count| count >= before + CANCELLED_MIN).map(|count| count - before)
}

fn expect_consumers(http: SocketAddr, count: usize) -> XtaskResult {
    until(http, "hub_consumers", |found| found == count as u64)?;
    Ok(())
}

/// Reads a figure until it is as expected, and returns it.
fn until(http: SocketAddr, name: &str, is_expected: impl Fn(u64) -> bool) -> Result<u64, String> {
    let began = Instant::now();
    loop {
        let value = monitor::figure(http, name).map_err(text)?;
        if is_expected(value) {
            return Ok(value);
        }
        if began.elapsed() > READY_TIMEOUT {
            return Err(format!("`{name}` stays {value}"));
        }
        thread::sleep(READING_EVERY);
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
