//! A run from plan to report: records the bodies, opens the source ports, sends and receives in one loop, sums up.

use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use stilling_engine::net::raise_descriptor_limit;
use stilling_ring::{SplitMix64, Time};

use super::datagrams::DatagramIo;
use super::endpoint::{Endpoint, LoadContext, RequestEncoder};
use super::error::CoapBenchError;
use super::executions;
use super::expected::ExpectedBodies;
use super::faults::FaultInjector;
use super::limits::{DATAGRAMS_PER_CALL, EVENTS_MAX, PACED_POLL_SPAN, POLL_SPAN, TIMER_TICK};
use super::plan::{CoapFaults, CoapPlan};
use super::report::{CoapReport, CoapRunFigures};
use super::tally::{CoapFailure, CoapTally};
use crate::http::{RateSchedule, Timeline};
use crate::server_cpu;
use crate::statistics::process_cpu;

/// Time for the answers to the first requests, before they are sent again by a new attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between two attempts to reach the server.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// Executes a plan.
///
/// # Errors
/// The plan contradicts itself, or the server does not answer the first requests. Later failures are in the report.
pub fn run(plan: &CoapPlan) -> Result<CoapReport, CoapBenchError> {
    run_until(plan, &Arc::default())
}

/// Executes a plan. When `stop` is set, no more requests start, those in flight finish, and the report covers the
/// requests so far.
///
/// # Errors
/// As [`run`].
pub fn run_until(plan: &CoapPlan, stop: &Arc<AtomicBool>) -> Result<CoapReport, CoapBenchError> {
    plan.check()?;
    raise_descriptor_limit();
    let expected = match plan.counts_executions {
        true => {
            executions::reset(plan)?;
            ExpectedBodies::recording(1).complete()
        }
        false => record(plan, stop)?,
    };
    let body_bytes = expected.sizes();
    let mut run = CoapRun::open(plan, expected)?;
    if !plan.steps.is_empty() {
        run.context.tally.timeline = Some(Timeline::new(&plan.steps, Time::ZERO));
    }
    let server_cpu = || plan.server_pids.iter().map(|process| server_cpu::of(*process)).sum::<Option<_>>();
    let server_before: Option<Duration> = server_cpu();
    let generator_before = process_cpu();
    run.drive(stop)?;
    let server_after: Option<Duration> = server_cpu();
    let server_spent = server_before.zip(server_after).map(|(before, after)| after.saturating_sub(before));
    let figures = CoapRunFigures {
        started: run.started,
        ports: run.endpoints.len() as u64 + run.retired.len() as u64,
        body_bytes,
        executions: plan.counts_executions.then(|| executions::read(plan)).transpose()?,
        generator_cpu: process_cpu().saturating_sub(generator_before),
        server_cpu: server_spent.filter(|_| !plan.server_pids.is_empty()),
    };
    if let Some(executions) = &figures.executions {
        executions.check(&mut run.context.tally);
    }
    Ok(CoapReport::new(plan, &run.context.tally, &run.context.faults, &figures))
}

/// Requests each variant once, and again until the server answers or the time for its start is over.
fn record(plan: &CoapPlan, stop: &AtomicBool) -> Result<ExpectedBodies, CoapBenchError> {
    let started = Instant::now();
    let first = CoapPlan {
        sockets: 1,
        window: 1,
        requests: Some(plan.variants.into()),
        span: None,
        rate: None,
        steps: Vec::new(),
        faults: CoapFaults::default(),
        is_confirmable: true,
        timeout: plan.timeout.min(ATTEMPT_TIMEOUT),
        ..plan.clone()
    };
    loop {
        let mut run = CoapRun::open(&first, ExpectedBodies::recording(plan.variants))?;
        run.ends_on_failure = true;
        run.drive(stop)?;
        let tally = &run.context.tally;
        if tally.completed == u64::from(plan.variants) {
            return Ok(run.context.expected.complete());
        }
        if started.elapsed() >= plan.wait || stop.load(Ordering::Relaxed) {
            let evidence = tally.evidence();
            let detail = evidence.iter().map(|(kind, words)| format!("{kind}: {words}"));
            let detail: Vec<_> = detail.collect();
            let detail = if detail.is_empty() { format!("{} shed", tally.shed) } else { detail.join("; ") };
            return Err(CoapBenchError::Server(plan.to, detail));
        }
        std::thread::park_timeout(ATTEMPT_PAUSE);
    }
}

struct CoapRun<'p> {
    plan: &'p CoapPlan,
    /// Intended starts, in an open loop.
    schedule: Option<RateSchedule>,
    endpoints: Vec<Endpoint>,
    context: LoadContext,
    io: DatagramIo,
    epoll: OwnedFd,
    events: Vec<Event>,
    /// Used source ports. They stay open, so that the system does not assign them again.
    retired: Vec<UdpSocket>,
    start: Instant,
    started: u64,
    /// Due requests that were started or not sent, with a rate.
    due: u64,
    next_endpoint: usize,
    ends_on_failure: bool,
}

impl<'p> CoapRun<'p> {
    fn open(plan: &'p CoapPlan, expected: ExpectedBodies) -> io::Result<CoapRun<'p>> {
        // Answers to an earlier run on the same port have other generations.
        let first_generation = SplitMix64::new(plan.seed ^ u64::from(std::process::id()) << 32).bits() as u32;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut endpoints = Vec::with_capacity(plan.sockets.into());
        for number in 0..plan.sockets {
            let endpoint = Endpoint::open(number, plan, first_generation)?;
            watch(&epoll, &endpoint.socket, number.into())?;
            endpoints.push(endpoint);
        }
        let context = LoadContext {
            encoder: RequestEncoder::new(plan),
            expected,
            faults: FaultInjector::new(plan.faults, plan.seed),
            tally: CoapTally::new(),
            is_confirmable: plan.is_confirmable,
            loses: plan.faults.loss > 0.0,
            timeout_ns: plan.timeout.as_nanos() as u64,
            endpoints: plan.sockets,
            first_generation,
            in_flight: 0,
            now_ns: 0,
        };
        Ok(CoapRun {
            plan,
            schedule: plan.schedule(),
            endpoints,
            context,
            io: DatagramIo::new(),
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            retired: Vec::new(),
            start: Instant::now(),
            started: 0,
            due: 0,
            next_endpoint: 0,
            ends_on_failure: false,
        })
    }

    fn read_clock(&mut self) {
        self.context.now_ns = self.start.elapsed().as_nanos() as u64;
    }

    /// Starts requests until the end of the run, and receives until all are answered or given up.
    fn drive(&mut self, stop: &AtomicBool) -> io::Result<()> {
        self.start = Instant::now();
        let mut checked_ns = 0;
        let whole = self.plan.whole_span();
        loop {
            self.read_clock();
            let is_late = whole.is_some_and(|span| self.start.elapsed() >= span);
            let is_complete = self.plan.requests.is_some_and(|requests| self.started >= requests);
            let has_failed = self.ends_on_failure && !self.context.tally.failures().is_empty();
            let is_over = is_late || is_complete || has_failed || stop.load(Ordering::Relaxed);
            if !is_over {
                self.start_due_requests();
            }
            if self.context.now_ns - checked_ns >= TIMER_TICK.as_nanos() as u64 {
                checked_ns = self.context.now_ns;
                self.check_timers()?;
            }
            self.flush()?;
            if is_over && (self.context.in_flight == 0 || has_failed) {
                return Ok(());
            }
            self.wait_and_receive()?;
        }
    }

    fn start_due_requests(&mut self) {
        match self.schedule.take() {
            None => {
                for number in 0..self.endpoints.len() {
                    self.fill(number);
                }
            }
            Some(schedule) => {
                self.start_scheduled(&schedule);
                self.schedule = Some(schedule);
            }
        }
    }

    /// Starts the due requests of an open loop.
    fn start_scheduled(&mut self, schedule: &RateSchedule) {
        let due = schedule.count_within(Duration::from_nanos(self.context.now_ns));
        while self.due < due && self.plan.requests.is_none_or(|requests| self.started < requests) {
            let Some(number) = self.endpoint_with_room() else {
                self.context.tally.not_sent += due - self.due;
                self.due = due;
                return;
            };
            let intended_ns = schedule.at(self.due).as_nanos() as u64;
            self.due += 1;
            self.start_request(number, intended_ns);
        }
    }

    /// The next endpoint in turn that has room.
    fn endpoint_with_room(&mut self) -> Option<usize> {
        let count = self.endpoints.len();
        let turn = (0..count).map(|step| (self.next_endpoint + step) % count);
        let number = turn.into_iter().find(|number| self.endpoints[*number].has_room())?;
        self.next_endpoint = (number + 1) % count;
        Some(number)
    }

    /// Starts requests in all free slots of an endpoint.
    fn fill(&mut self, number: usize) {
        while self.endpoints[number].has_room()
            && self.plan.requests.is_none_or(|requests| self.started < requests)
        {
            self.start_request(number, self.context.now_ns);
        }
    }

    fn start_request(&mut self, number: usize, intended_ns: u64) {
        let variant = match self.plan.counts_executions {
            true => self.started as u32,
            false => (self.started % u64::from(self.plan.variants)) as u32,
        };
        self.endpoints[number].start(&mut self.context, variant, intended_ns);
        self.started += 1;
    }

    /// Retransmits, gives up, and replaces source ports that have used their ids.
    fn check_timers(&mut self) -> io::Result<()> {
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            endpoint.handle_timers(&mut self.context);
            if endpoint.needs_port() {
                let old = endpoint.renew(self.plan.to)?;
                epoll::delete(&self.epoll, &old)?;
                watch(&self.epoll, &endpoint.socket, number as u64)?;
                self.retired.push(old);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        for endpoint in self.endpoints.iter_mut().filter(|endpoint| !endpoint.outbox.is_empty()) {
            match self.io.send(&endpoint.socket, &mut endpoint.outbox) {
                Ok(unsent) => self.context.tally.unsent += unsent as u64,
                Err(error) => note_refused(&mut self.context.tally, error)?,
            }
        }
        Ok(())
    }

    fn wait_and_receive(&mut self) -> io::Result<()> {
        let span = if self.schedule.is_some() { PACED_POLL_SPAN } else { POLL_SPAN };
        let timeout = Timespec { tv_sec: 0, tv_nsec: span.subsec_nanos().into() };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = std::mem::take(&mut self.events);
        for event in &events {
            let data = event.data;
            self.receive_all(data.u64() as usize)?;
        }
        self.events = events;
        self.events.clear();
        Ok(())
    }

    /// Receives what an endpoint's socket has.
    fn receive_all(&mut self, number: usize) -> io::Result<()> {
        loop {
            let endpoint = &mut self.endpoints[number];
            let received = match self.io.receive(&endpoint.socket) {
                Ok(received) => received,
                Err(error) => return note_refused(&mut self.context.tally, error),
            };
            self.context.now_ns = self.start.elapsed().as_nanos() as u64;
            for at in 0..received {
                endpoint.receive(&mut self.context, self.io.datagram(at));
            }
            if received < DATAGRAMS_PER_CALL {
                return Ok(());
            }
        }
    }
}

/// Counts the report that the server's port is closed; other errors end the run.
fn note_refused(tally: &mut CoapTally, error: io::Error) -> io::Result<()> {
    if error.kind() != io::ErrorKind::ConnectionRefused {
        return Err(error);
    }
    tally.fail(CoapFailure::Refused, || "the port is closed".to_owned());
    Ok(())
}

fn watch(epoll: &OwnedFd, socket: &UdpSocket, number: u64) -> io::Result<()> {
    epoll::add(epoll, socket, EventData::new_u64(number), EventFlags::IN)?;
    Ok(())
}
