//! Clients that would harm others, if the server let them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Stage;
use super::pair::Connection;
use crate::Outcome;

/// Messages per second to subscribers that never read.
const NOISE_RATE: u32 = 20_000;

/// Bytes of such a message.
const NOISE_SIZE: usize = 128;

/// How often the noise is sent in one second.
const NOISE_BURSTS: u32 = 100;

/// Idle consumers, and how many of them a connection has.
const CONSUMERS: usize = 10_000;
const CONSUMERS_PER_CONNECTION: usize = 1000;

/// Connections that leave at once, and the subscriptions of each.
const LEAVERS: usize = 10;
const LEAVER_SUBSCRIPTIONS: usize = 10_000;

/// Slow requests that are reset at once.
const RESETS: usize = 50;

/// What is beside the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    UnreadFew,
    UnreadMany,
    IdleConsumers,
    Leavers,
    Resets,
    All,
}

/// What runs; dropping it ends it.
#[derive(Default)]
pub(super) struct Running {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    held: Vec<TcpStream>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for held in &self.held {
            let _ = held.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Disturbance {
    pub(super) const ALL: [Disturbance; 6] = [
        Disturbance::UnreadFew,
        Disturbance::UnreadMany,
        Disturbance::IdleConsumers,
        Disturbance::Leavers,
        Disturbance::Resets,
        Disturbance::All,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Disturbance::UnreadFew => "2 clients that never read",
            Disturbance::UnreadMany => "20 clients that never read",
            Disturbance::IdleConsumers => "10,000 idle consumers",
            Disturbance::Leavers => "10 clients of 10,000 subscriptions that leave",
            Disturbance::Resets => "50 resets of slow requests",
            Disturbance::All => "all together",
        }
    }

    /// Begins, in a measurement that takes `span` from now on.
    pub(super) fn begin(self, stage: Stage, span: Duration) -> Outcome<Running> {
        let mut running = Running::default();
        match self {
            Disturbance::UnreadFew => running.unread(stage, 2)?,
            Disturbance::UnreadMany => running.unread(stage, 20)?,
            Disturbance::IdleConsumers => running.consumers(stage)?,
            Disturbance::Leavers => running.leavers(stage, span)?,
            Disturbance::Resets => running.resets(stage, span),
            Disturbance::All => {
                running.consumers(stage)?;
                running.leavers(stage, span)?;
                running.resets(stage, span);
                running.unread(stage, 20)?;
            }
        }
        Ok(running)
    }
}

impl Running {
    /// Subscribers that never read, and a publisher for them.
    fn unread(&mut self, stage: Stage, count: usize) -> Outcome {
        for _ in 0..count {
            let mut subscriber = Connection::open(stage.nats)?;
            subscriber.write.write_all(b"SUB noise.> 1\r\n")?;
            subscriber.round_trip()?;
            self.held.push(subscriber.write);
        }
        let mut publisher = Connection::open(stage.nats)?;
        publisher.round_trip()?;
        let is_over = Arc::clone(&self.is_over);
        let message = format!("PUB noise.a {NOISE_SIZE}\r\n{}\r\n", "x".repeat(NOISE_SIZE));
        let burst = message.repeat((NOISE_RATE / NOISE_BURSTS) as usize);
        self.threads.push(thread::spawn(move || {
            let mut due = Instant::now();
            while !is_over.load(Ordering::Acquire) && publisher.write.write_all(burst.as_bytes()).is_ok() {
                due += Duration::from_secs(1) / NOISE_BURSTS;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }));
        Ok(())
    }

    /// Consumers of subjects that nothing is published to.
    fn consumers(&mut self, stage: Stage) -> Outcome {
        for connection in 0..CONSUMERS / CONSUMERS_PER_CONNECTION {
            let mut client = Connection::open(stage.nats)?;
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
            self.held.push(client.write);
        }
        Ok(())
    }

    /// Clients with many subscriptions that leave in the middle.
    fn leavers(&mut self, stage: Stage, span: Duration) -> Outcome {
        let mut leavers = Vec::new();
        for leaver in 0..LEAVERS {
            let mut client = Connection::open(stage.nats)?;
            let subscription = |number| format!("SUB leaver.{leaver}.{number} {number}\r\n");
            let subscriptions: String = (0..LEAVER_SUBSCRIPTIONS).map(subscription).collect();
            client.write.write_all(subscriptions.as_bytes())?;
            client.round_trip()?;
            leavers.push(client);
        }
        self.threads.push(thread::spawn(move || {
            thread::sleep(span / 2);
            drop(leavers);
        }));
        Ok(())
    }

    /// Slow requests that are reset together.
    fn resets(&mut self, stage: Stage, span: Duration) {
        self.threads.push(thread::spawn(move || {
            thread::sleep(span / 4);
            let request = format!("GET /test/slow HTTP/1.1\r\nHost: {}\r\n\r\n", stage.http);
            let mut clients = Vec::new();
            for _ in 0..RESETS {
                let Ok(mut client) = TcpStream::connect(stage.http) else { break };
                let _ = client.write_all(request.as_bytes());
                clients.push(client);
            }
            thread::sleep(Duration::from_millis(50));
            for client in &mut clients {
                // A close with this option is a reset.
                let _ = socket2::SockRef::from(&*client).set_linger(Some(Duration::ZERO));
                let _ = client.set_nonblocking(true).and_then(|()| client.read(&mut [0; 1]));
            }
            drop(clients);
        }));
    }
}
