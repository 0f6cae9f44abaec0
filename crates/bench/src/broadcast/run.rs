//! A fan-out run from plan to report: opens all connections, publishes and receives in one loop, sums up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stilling_engine::net::raise_descriptor_limit;

use super::codec::{Subscription, codec_for};
use super::connection::{open, open_subscriber, wait_for_server};
use super::disturbance::Disturbance;
use super::error::BroadcastError;
use super::expected::ExpectedDeliveries;
use super::learned::LearnedDeliveries;
use super::limits::{MEMORY_WARM_UP_SUBSCRIBERS, PACED_POLL_SPAN, POLL_SPAN};
use super::plan::BroadcastPlan;
use super::poller::{Interest, Poller};
use super::publisher::{Publisher, expected_deliveries};
use super::report::{BroadcastReport, CpuTimes, FanOutFigures};
use super::resuming::Resuming;

use super::server_memory::{self, ServerMemory};
use super::subscriber::{DeliveryBytes, FanOutSubscriber, Verifier};
use super::tally::{BroadcastTally, DeliveryFailure};
use crate::collect::Pattern;
use crate::server_cpu;
use crate::statistics::process_cpu;

/// Executes a plan.
///
/// # Errors
/// The plan contradicts itself, the server is unreachable, or it refuses a subscription. Later failures are in the
/// report.
pub fn run(plan: &BroadcastPlan) -> Result<BroadcastReport, BroadcastError> {
    run_until(plan, &Arc::default())
}

/// Executes a plan. When `stop` is set, no more messages are published, those in flight are delivered, and the report
/// covers the messages so far.
///
/// # Errors
/// As [`run`].
pub fn run_until(plan: &BroadcastPlan, stop: &Arc<AtomicBool>) -> Result<BroadcastReport, BroadcastError> {
    plan.check()?;
    raise_descriptor_limit();
    wait_for_server(plan.to, plan.wait, plan.timeout, stop)?;
    let memory = || plan.server_pid.and_then(server_memory::of);
    let mut run = FanOutRun::open(plan)?;
    let (before, subscribed) = (run.memory_before, memory());
    let disturbance = (!plan.disturbance.is_empty()).then(|| Disturbance::start(plan)).transpose()?;
    let resuming = plan.resuming.to.map(|to| Resuming::start(plan, to)).transpose()?;
    run.start = Instant::now();
    let measure = CpuMeasurement::start(plan.server_pid);
    run.drive(stop)?;
    let cpu = measure.end();
    let delivered = memory();
    for subscriber in &run.subscribers {
        subscriber.finish(&run.verifier, &mut run.tally);
    }
    let messages = run.verifier.expected.iter().map(ExpectedDeliveries::sent).sum();
    let server_memory = match (before, subscribed, delivered) {
        (Some(before), Some(subscribed), Some(delivered)) => {
            let subscribers = plan.subscriber_count() - memory_warm_up(plan);
            Some(ServerMemory { before, subscribers, subscribed, delivered })
        }
        _ => None,
    };
    let found = FanOutFigures {
        messages,
        received_bytes: run.received,
        cpu,
        server_memory,
        disturbance: disturbance.map(|running| run.tally.add_disturbance(running.end())),
        resuming: resuming.map(|running| run.tally.add_resuming(running.end(messages))),
    };
    Ok(BroadcastReport::new(plan, &run.tally, found))
}

/// CPU times at the start of a load.
pub(super) struct CpuMeasurement {
    generator: Duration,
    server: Option<(u32, Duration)>,
}

impl CpuMeasurement {
    pub(super) fn start(server_pid: Option<u32>) -> CpuMeasurement {
        let server = server_pid.and_then(|process| Some((process, server_cpu::of(process)?)));
        CpuMeasurement { generator: process_cpu(), server }
    }

    pub(super) fn end(self) -> CpuTimes {
        let server =
            self.server.and_then(|(process, before)| Some(server_cpu::of(process)?.saturating_sub(before)));
        CpuTimes { generator: process_cpu().saturating_sub(self.generator), server }
    }
}

/// Number of the first subscribers, which do not count in the memory of each.
fn memory_warm_up(plan: &BroadcastPlan) -> u32 {
    MEMORY_WARM_UP_SUBSCRIBERS.min(plan.subscriber_count() / 2)
}

struct FanOutRun<'p> {
    plan: &'p BroadcastPlan,
    verifier: Verifier,
    /// Head of the deliveries in the expected bytes.
    head: Vec<u8>,
    subscribers: Vec<FanOutSubscriber>,
    publishers: Vec<Publisher>,
    tally: BroadcastTally,
    poller: Poller,
    ready: Vec<usize>,
    buffer: Vec<u8>,
    start: Instant,
    open_subscribers: usize,
    /// A publisher's connection has failed, so no more messages can be sent.
    is_broken: bool,
    /// Received bytes, as the sign of progress.
    received: u64,
    /// Memory of the server with the first subscribers.
    memory_before: Option<u64>,
    /// Positions of one subscriber before a read.
    positions: Vec<u64>,
}

impl<'p> FanOutRun<'p> {
    fn open(plan: &'p BroadcastPlan) -> Result<FanOutRun<'p>, BroadcastError> {
        let codec = codec_for(plan);
        let head = Subscription::new(plan, &*codec, 0).head;
        let size = head.len() + plan.size as usize + codec.delivery_tail().len();
        let has_one_order = plan.publishers == 1 && plan.subjects.is_none();
        let is_uniform = has_one_order && !plan.distinct_sids;
        let codec_has_known_deliveries = codec.has_known_deliveries();
        let verifier = Verifier {
            codec,
            pattern: Pattern::new(plan.size),
            expected: (0..plan.publishers).map(|_| expected_deliveries(size, plan.window)).collect(),
            deliveries: match (is_uniform, codec_has_known_deliveries) {
                (false, _) => DeliveryBytes::Various,
                (true, true) => DeliveryBytes::Known,
                (true, false) => DeliveryBytes::Learned(LearnedDeliveries::default()),
            },
            stride: u64::from(plan.subjects.unwrap_or(1)),
        };
        let mut run = FanOutRun {
            plan,
            head,
            subscribers: Vec::with_capacity(plan.subscriber_count() as usize),
            publishers: Vec::with_capacity(plan.publishers.into()),
            tally: BroadcastTally::new(),
            poller: Poller::new()?,
            ready: Vec::new(),
            buffer: vec![0; verifier.buffer_size()],
            verifier,
            start: Instant::now(),
            open_subscribers: plan.subscriber_count() as usize,
            is_broken: false,
            received: 0,
            memory_before: None,
            positions: vec![0; plan.publishers.into()],
        };
        run.open_connections()?;
        Ok(run)
    }

    fn open_connections(&mut self) -> Result<(), BroadcastError> {
        let FanOutRun { plan, verifier, .. } = self;
        let codec = &*verifier.codec;
        for number in 0..plan.subscriber_count() {
            if number == memory_warm_up(plan) {
                self.memory_before = plan.server_pid.and_then(server_memory::of);
            }
            let subscription = Subscription::new(plan, codec, number);
            let (stream, input) = open_subscriber(plan, codec, &subscription)?;
            self.poller.add(&stream, number as usize)?;
            self.subscribers.push(FanOutSubscriber::new(stream, subscription, input, verifier));
        }
        let mut opening = Vec::new();
        for number in 0..plan.publishers {
            opening.clear();
            codec.publications().open_publisher(number, &mut opening);
            let size = |input: &[u8]| codec.publications().publisher_opening_size(input);
            let to = plan.publish_to.unwrap_or(plan.to);
            let (stream, input) = open(to, plan.timeout, &opening, size)?;
            self.poller.add(&stream, self.subscribers.len() + usize::from(number))?;
            self.publishers.push(Publisher::new(plan, number, stream, input, verifier));
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Publishes until the end of the run, and receives until all messages have arrived or nothing arrives any more.
    fn drive(&mut self, stop: &AtomicBool) -> Result<(), BroadcastError> {
        let mut progress = (self.received, Instant::now());
        loop {
            let is_late = self.plan.span.is_some_and(|span| self.start.elapsed() >= span);
            let is_over = is_late || stop.load(Ordering::Relaxed);
            if !is_over {
                self.publish();
            }
            let is_done = |publisher: &Publisher| publisher.is_idle() && (is_over || !publisher.has_more());
            if self.publishers.iter().all(is_done) {
                return Ok(());
            }
            if self.received > progress.0 {
                progress = (self.received, Instant::now());
            }
            let is_lost = self.is_broken || self.open_subscribers == 0;
            if is_lost || progress.1.elapsed() >= self.plan.timeout {
                self.tally.last_ns = progress.1.duration_since(self.start).as_nanos() as u64;
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Publishes as many batches as there is room for.
    fn publish(&mut self) {
        for number in 0..self.publishers.len() {
            while self.publishers[number].may_publish() {
                let now = self.now();
                if !self.publishers[number].is_due(self.plan, now) {
                    break;
                }
                let is_first = self.publishers[number].oldest_batch().is_none();
                self.publishers[number].publish(self.plan, &self.head, &mut self.verifier, now);
                if is_first {
                    self.count_waiting(number);
                }
                self.write(number);
            }
        }
    }

    fn write(&mut self, number: usize) {
        let publisher = &mut self.publishers[number];
        let written = publisher.write().and_then(|is_changed| {
            let interest = if publisher.is_writing() { Interest::ReadOrWrite } else { Interest::Read };
            let id = self.subscribers.len() + number;
            let changed = is_changed.then(|| self.poller.set_interest(publisher.stream(), id, interest));
            changed.transpose().map(|_| ()).map_err(|error| error.to_string())
        });
        self.check_publisher(number, written);
    }

    fn check_publisher<T>(&mut self, number: usize, result: Result<T, String>) {
        if let Err(detail) = result {
            self.is_broken = true;
            self.tally.fail(DeliveryFailure::Protocol, 1, || format!("publisher {number}: {detail}"));
        }
    }

    /// Removes the batches of a publisher that all subscribers have received, and counts the subscribers that have not
    /// received all of the next one.
    fn count_waiting(&mut self, number: usize) {
        let now = self.now();
        let publisher = &mut self.publishers[number];
        while let Some(batch) = publisher.oldest_batch() {
            let is_waiting = |subscriber: &&FanOutSubscriber| subscriber.position(number) < batch.end;
            publisher.waiting = self.subscribers.iter().filter(is_waiting).count();
            if publisher.waiting > 0 {
                return;
            }
            publisher.remove_oldest_batch();
            self.tally.latency.saturating_record(now.saturating_sub(batch.written_ns));
        }
    }

    /// Waits for sockets and handles each ready one.
    fn wait(&mut self) -> Result<(), BroadcastError> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(if self.plan.rate.is_some() { PACED_POLL_SPAN } else { POLL_SPAN }, &mut ready)?;
        for number in ready.drain(..) {
            match number.checked_sub(self.subscribers.len()) {
                None => self.receive(number)?,
                Some(publisher) => self.receive_answers(publisher),
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Result<(), BroadcastError> {
        let FanOutRun { subscribers, publishers, verifier, tally, buffer, positions, .. } = self;
        let subscriber = &mut subscribers[number];
        for (publisher, position) in positions.iter_mut().enumerate() {
            *position = subscriber.position(publisher);
        }
        let count = subscriber.receive(buffer, verifier, tally);
        self.received += count as u64;
        if !subscriber.is_open() {
            self.poller.remove(subscriber.stream())?;
            self.open_subscribers -= 1;
        }
        for publisher in 0..publishers.len() {
            let Some(batch) = self.publishers[publisher].oldest_batch() else { continue };
            let after = self.subscribers[number].position(publisher);
            if self.positions[publisher] < batch.end && after >= batch.end {
                self.publishers[publisher].waiting -= 1;
                if self.publishers[publisher].waiting == 0 {
                    self.tally.last_ns = self.now();
                    self.count_waiting(publisher);
                }
            }
        }
        Ok(())
    }

    fn receive_answers(&mut self, number: usize) {
        let FanOutRun { publishers, verifier, buffer, .. } = self;
        let received = publishers[number].receive(buffer, verifier);
        if let Ok(count) = &received {
            self.received += *count as u64;
        }
        self.check_publisher(number, received);
        self.write(number);
    }
}
