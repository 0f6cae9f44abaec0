//! A simulated worker process: listens on its socket, executes requests, and misbehaves at a rate.

use std::path::PathBuf;
use std::time::Duration;

use stilling_ring::Time;
use stilling_workers::processes::SimulatedProcesses;

use super::content::{ContentKind, content, read_request_body, version_size};
use super::ledger::Ledger;
use super::process_connection::{HttpRequest, ProcessConnection, Work, WorkEnd};
use crate::SplitMix64;
use crate::network::{Address, Network, SimPeerListener};

/// Longest time from the end of a process to the next one's readiness, in milliseconds.
const RESTART_MS_MAX: u64 = 1500;
/// Longest time until the supervisor notices the end of a process, in microseconds.
const EXIT_NOTICE_US_MAX: u64 = 5000;
/// How long a process that is being replaced may work on its requests.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Rate at which idle connections are closed, per thousand steps.
const IDLE_CLOSED_RATE: u16 = 2;
/// Rate of replacements, per thousand requests.
const REPLACED_RATE: u16 = 20;

/// What the processes have in common.
pub(super) struct ProcessContext<'a> {
    pub(super) now: Time,
    pub(super) network: &'a Network,
    pub(super) slots: &'a mut SimulatedProcesses,
    pub(super) ledger: &'a mut Ledger,
    pub(super) random: &'a mut SplitMix64,
    /// Rate of misbehaviour, per thousand requests.
    pub(super) misbehaviour: u16,
    pub(super) work_ms_max: u64,
    pub(super) deaths: &'a mut u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    /// Has ended; the supervisor notices it at that time.
    Ended(Time),
    /// Starts, and is ready at that time.
    Starting(Time),
    Serving,
    /// Does nothing until it is killed.
    Hanging,
    /// Finishes its requests, until that time at most.
    Draining(Time),
}

/// See the [module](self).
pub(super) struct SimulatedProcess {
    number: usize,
    path: PathBuf,
    state: ProcessState,
    listener: Option<SimPeerListener>,
    connections: Vec<ProcessConnection>,
}

/// The path of a process's socket.
pub(super) fn socket_path(number: usize) -> PathBuf {
    PathBuf::from(format!("/sim/app/{number}"))
}

impl SimulatedProcess {
    pub(super) fn new(number: usize) -> SimulatedProcess {
        SimulatedProcess {
            number,
            path: socket_path(number),
            state: ProcessState::Starting(Time::ZERO),
            listener: None,
            connections: Vec::new(),
        }
    }

    /// When [`step`](Self::step) is due.
    pub(super) fn wake_at(&self) -> Option<Time> {
        let state = match self.state {
            ProcessState::Ended(at) | ProcessState::Starting(at) | ProcessState::Draining(at) => Some(at),
            ProcessState::Hanging => return None,
            ProcessState::Serving => None,
        };
        let works = self.connections.iter().filter_map(|connection| connection.work.as_ref());
        works.map(|work| work.ends_at).chain(state).min()
    }

    /// Does what is possible at this time. Returns whether there was anything.
    pub(super) fn step(&mut self, context: &mut ProcessContext<'_>) -> Result<bool, String> {
        let before = self.state;
        self.advance_state(context);
        let is_running = matches!(self.state, ProcessState::Serving | ProcessState::Draining(_));
        let any = is_running && self.serve(context)?;
        Ok(any || self.state != before)
    }

    fn advance_state(&mut self, context: &mut ProcessContext<'_>) {
        let is_running = !matches!(self.state, ProcessState::Ended(_) | ProcessState::Starting(_));
        let is_left_hanging = self.state == ProcessState::Hanging && context.misbehaviour == 0;
        if is_running && context.slots.is_kill_requested(self.number) || is_left_hanging {
            self.die(context);
        }
        match self.state {
            ProcessState::Ended(at) if at <= context.now => {
                context.slots.close(self.number);
                let span = Duration::from_millis(context.random.between(1, RESTART_MS_MAX));
                self.state = ProcessState::Starting(context.now.after(span));
            }
            ProcessState::Starting(at) if at <= context.now => {
                self.listener = Some(context.network.listen_as_peer(Address::Unix(self.path.clone())));
                context.slots.open(self.number);
                self.state = ProcessState::Serving;
            }
            ProcessState::Draining(until) if until <= context.now || context.slots.is_idle(self.number) => {
                self.die(context);
            }
            _ => {}
        }
    }

    /// Ends the process: its connections are closed, or reset if the system discards what they hold.
    fn die(&mut self, context: &mut ProcessContext<'_>) {
        *context.deaths += 1;
        self.listener = None;
        for connection in self.connections.drain(..) {
            if context.random.chance(300) {
                connection.reset();
            }
        }
        let span = Duration::from_micros(context.random.below(EXIT_NOTICE_US_MAX));
        self.state = ProcessState::Ended(context.now.after(span));
    }

    /// Accepts, receives, executes and answers what is possible. Returns whether there was anything.
    fn serve(&mut self, context: &mut ProcessContext<'_>) -> Result<bool, String> {
        let mut any = false;
        while let Some(peer) = self.listener.as_ref().and_then(SimPeerListener::accept) {
            self.connections.push(ProcessConnection::new(peer));
            any = true;
        }
        for at in 0..self.connections.len() {
            let connection = &mut self.connections[at];
            any |= connection.transfer();
            if let Some(request) = connection.next_request()? {
                any = true;
                connection.work = Some(begin_work(&request, context)?);
            }
            if let Some(work) = connection.work.take_if(|work| work.ends_at <= context.now) {
                any = true;
                if !self.end_work(at, work.end, context) {
                    return Ok(true);
                }
            }
        }
        let closes_idle = context.misbehaviour > 0 && context.random.chance(IDLE_CLOSED_RATE);
        self.connections.retain(|connection| !(connection.is_over() || closes_idle && connection.is_idle()));
        Ok(any)
    }

    /// Ends the work of a connection. Returns whether the process still runs.
    fn end_work(&mut self, connection: usize, end: WorkEnd, context: &mut ProcessContext<'_>) -> bool {
        let (bytes, closes, dies) = match end {
            WorkEnd::Answer { bytes, closes } => (bytes, closes, false),
            WorkEnd::Death(bytes) => (bytes, true, true),
            WorkEnd::Hang if context.misbehaviour > 0 => {
                self.state = ProcessState::Hanging;
                return false;
            }
            WorkEnd::Hang => (Vec::new(), true, true),
        };
        self.connections[connection].answer(&bytes, closes);
        self.connections[connection].transfer();
        if dies {
            self.die(context);
            return false;
        }
        if context.random.chance(REPLACED_RATE) && self.state == ProcessState::Serving {
            context.slots.close(self.number);
            self.state = ProcessState::Draining(context.now.after(DRAIN_TIMEOUT));
        }
        true
    }
}

/// Executes a request, and draws when and how its work ends.
fn begin_work(request: &HttpRequest, context: &mut ProcessContext<'_>) -> Result<Work, String> {
    let random = &mut *context.random;
    let misbehaves = random.chance(context.misbehaviour);
    let ends_at = context.now.after(Duration::from_micros(random.below(context.work_ms_max * 1000)));
    let misbehaviour = if misbehaves { random.between(1, 7) } else { 0 };
    if misbehaviour == 1 {
        return Ok(Work { ends_at, end: WorkEnd::Death(Vec::new()) });
    }
    let body = execute(request, context.ledger)?;
    let closes = random.chance(200);
    let mut bytes = response(&body, closes, random);
    let cut = random.index(bytes.len());
    let end = match misbehaviour {
        2 => WorkEnd::Death(Vec::new()),
        3 => WorkEnd::Death(bytes[..cut].to_vec()),
        4 => WorkEnd::Hang,
        5 => WorkEnd::Answer { bytes: b"What?\r\n\r\n".to_vec(), closes },
        6 => {
            bytes.truncate(cut);
            WorkEnd::Answer { bytes, closes: true }
        }
        7 => {
            let bytes = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".to_vec();
            WorkEnd::Answer { bytes, closes: false }
        }
        _ => WorkEnd::Answer { bytes, closes },
    };
    Ok(Work { ends_at, end })
}

/// The body of the answer to a request.
fn execute(request: &HttpRequest, ledger: &mut Ledger) -> Result<Vec<u8>, String> {
    let HttpRequest { method, path, body } = request;
    match (&method[..], &path[..]) {
        ("POST", "/app/execute") | ("PUT", "/app/replace") => {
            let (id, answer_size) = read_request_body(body)?;
            ledger.execute(id, method == "PUT")?;
            Ok(content(ContentKind::Answer, id, answer_size))
        }
        ("GET", "/app/version") => {
            let version = ledger.version();
            Ok(content(ContentKind::Version, version, version_size(version)))
        }
        ("GET", path) => {
            let parts = path.strip_prefix("/app/read/").and_then(|rest| rest.split_once('/'));
            let parsed = parts.and_then(|(id, size)| Some((id.parse().ok()?, size.parse().ok()?)));
            let (id, size) = parsed.ok_or_else(|| format!("a process got a wrong path: {path}"))?;
            Ok(content(ContentKind::Answer, id, size))
        }
        _ => Err(format!("a process got a wrong request: {method} {path}")),
    }
}

/// A response with this body: with its length, or in chunks. One that ends with its connection would be complete
/// wherever its process dies.
fn response(body: &[u8], closes: bool, random: &mut SplitMix64) -> Vec<u8> {
    let connection = if closes && random.chance(500) { "Connection: close\r\n" } else { "" };
    let head = |framing: &str| format!("HTTP/1.1 200 OK\r\n{connection}{framing}\r\n\r\n").into_bytes();
    if random.chance(700) {
        let mut bytes = head(&format!("Content-Length: {}", body.len()));
        bytes.extend_from_slice(body);
        return bytes;
    }
    let mut bytes = head("Transfer-Encoding: chunked");
    for chunk in body.chunks(1 + random.index(700)) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}
