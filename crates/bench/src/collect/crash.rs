//! What a server still has after it was killed: acknowledged messages must all be there, each once, in their order, at
//! the places that their acknowledgements named, and nothing that nobody sent.
//!
//! ```text
//!   for each kill:  start ─► replay what is new, compare ─► load ─► SIGKILL at a random moment ─► read what is left of
//!                                                                                                  the answers
//!   at the end:     start ─► replay everything, compare with everything that was ever acknowledged
//! ```
//!
//! An acknowledgement that the system still held when the server died counts: it had been given. A message without an
//! acknowledgement may be there or not.
//!
//! A killed process does not lose what it has handed to the system, synced or not. So this shows that acknowledgements,
//! order and recovery agree; it cannot show what a power failure would take.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::api::Api;
use super::buffer::Buffer;
use super::error::CollectError;
use super::limits::LOOK_INTERVAL;
use super::pattern::Mark;
use super::plan::{Plan, Storage};
use super::run::{Run, connect};
use super::speech::{self, Heard, Speech};

/// Most acknowledgements before a kill.
const ACKS_BEFORE_KILL_MAX: u64 = 2000;

/// Microseconds between the last of them and the kill, at most.
const DELAY_US_MAX: u64 = 3000;

/// A server that can be killed and started again with what it had on disk.
pub trait Victim {
    /// Starts it; returns where it listens, as soon as it may be connected to.
    ///
    /// # Errors
    /// If it does not start.
    fn start(&mut self) -> Result<SocketAddr, CollectError>;

    /// Whether it has not ended by itself.
    fn is_running(&mut self) -> bool {
        true
    }

    /// Ends it without any warning, and waits until it is gone.
    ///
    /// # Errors
    /// If it had gone already: then it was not this kill that is judged.
    fn kill(&mut self) -> Result<(), CollectError>;
}

/// A server that is a process: its command, with places for what differs.
#[derive(Debug)]
pub struct Process {
    command: Vec<String>,
    address: SocketAddr,
    child: Option<Child>,
}

impl Process {
    /// In each word of the command, `{address}` and `{port}` stand for where it is to listen, `{data}` for where it is
    /// to keep its data.
    pub fn new(command: &[String], address: SocketAddr, data: &Path) -> Process {
        let word = |word: &String| {
            let word = word.replace("{address}", &address.to_string());
            word.replace("{port}", &address.port().to_string()).replace("{data}", &data.to_string_lossy())
        };
        Process { command: command.iter().map(word).collect(), address, child: None }
    }
}

impl Victim for Process {
    fn start(&mut self) -> Result<SocketAddr, CollectError> {
        let shown = self.command.join(" ");
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| CollectError::Local("no command".to_owned()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| CollectError::Local(format!("`{shown}`: {error}")))?;
        self.child = Some(child);
        Ok(self.address)
    }

    fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn kill(&mut self) -> Result<(), CollectError> {
        let shown = self.command.join(" ");
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Ok(Some(status)) = child.try_wait() {
            return Err(CollectError::Server(format!("`{shown}` ended by itself: {status}")));
        }
        let killed = child.kill().and_then(|()| child.wait());
        killed
            .map(|_| ())
            .map_err(|error| CollectError::Local(format!("`{shown}` is not to be killed: {error}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Everything that can be chosen.
#[derive(Clone, Debug)]
pub struct CrashPlan {
    /// How often the server is killed. Default: 10.
    pub kills: u32,
    /// Decides the moments. Default: 1.
    pub seed: u64,
    /// Publishing connections, each with a thread. Default: 4.
    pub clients: u16,
    /// Bytes of each payload. Default: 512.
    pub size: u32,
    /// Messages in flight on each connection. Default: 256.
    pub window: u32,
    /// Client number N publishes to `<subject>.N`. Default: `events`.
    pub subject: String,
    /// The stream, which must keep everything. Default: `events`.
    pub stream: String,
    /// Makes the stream at the first start. Default: no.
    pub make_stream: Option<Storage>,
    /// How long a server may take to start, to answer, to go on. Default: 30 s.
    pub timeout: Duration,
}

impl Default for CrashPlan {
    fn default() -> Self {
        CrashPlan {
            kills: 10,
            seed: 1,
            clients: 4,
            size: 512,
            window: 256,
            subject: "events".to_owned(),
            stream: "events".to_owned(),
            make_stream: None,
            timeout: Duration::from_secs(30),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CrashReport {
    /// Kills done.
    pub kills: u32,
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    /// Messages that were found in the stream.
    pub found: u64,
    /// Those of them that nobody had acknowledged.
    pub found_unacknowledged: u64,
    /// Acknowledged messages that are not there.
    pub lost: u64,
    /// Messages that nobody sent, or not so, or that are there twice.
    pub invented: u64,
    /// Messages before an earlier one of their client, or not at the place that was acknowledged.
    pub reordered: u64,
    /// Answers that are no acknowledgements.
    pub refused: u64,
    /// Starts at which the server ended by itself, and was started again.
    pub failed_starts: u64,
    /// From a start until the stream could be asked, at most, in milliseconds.
    pub longest_start_ms: u64,
    /// The first thing of each kind in words.
    pub evidence: BTreeMap<&'static str, String>,
}

impl CrashReport {
    /// Whether nothing was lost, invented or reordered, and something was at stake.
    pub fn is_good(&self) -> bool {
        self.lost + self.invented + self.reordered + self.refused == 0 && self.acknowledged > 0
    }

    fn note(&mut self, kind: &'static str, words: impl FnOnce() -> String) {
        let count = match kind {
            "lost" => &mut self.lost,
            "invented" => &mut self.invented,
            "refused" => &mut self.refused,
            _ => &mut self.reordered,
        };
        *count += 1;
        if let Entry::Vacant(empty) = self.evidence.entry(kind) {
            empty.insert(words());
        }
    }
}

/// One client over all kills.
struct Client {
    number: u16,
    speech: Box<dyn Speech>,
    sent: u64,
    /// How many there were at the last look.
    looked: u64,
    /// What was acknowledged since the last look: which message, at which place.
    acknowledged: Vec<(Mark, u64)>,
    refusals: Vec<String>,
}

/// Kills the server as often as planned and compares; `watch` is called after each kill.
///
/// # Errors
/// If the server does not start, does not answer, or stops answering before it is killed. What it has lost is in the
/// report.
pub fn run(
    victim: &mut dyn Victim,
    plan: &CrashPlan,
    mut watch: impl FnMut(&CrashReport),
) -> Result<CrashReport, CollectError> {
    let mut report = CrashReport::default();
    // The address is that of each start.
    let load = Plan {
        clients: plan.clients,
        size: plan.size,
        window: plan.window,
        subject: plan.subject.clone(),
        stream: Some(plan.stream.clone()),
        timeout: plan.timeout,
        ..Plan::new(SocketAddr::from(([127, 0, 0, 1], 1)))
    };
    load.check()?;
    let run = Run::new(load);
    let mut clients: Vec<Client> = (0..plan.clients)
        .map(|number| Client {
            number,
            speech: speech::of(&run, number),
            sent: 0,
            looked: 0,
            acknowledged: Vec::new(),
            refusals: Vec::new(),
        })
        .collect();
    let mut random = Random(plan.seed);
    let mut all: BTreeMap<u64, Mark> = BTreeMap::new();
    let mut last = 0;
    for kill in 0..plan.kills {
        let (to, mut api) = started(victim, plan, kill == 0, &mut report)?;
        last = compare(&mut api, plan, &run, last + 1, &mut clients, &mut all, &mut report)?;
        drop(api);
        let acks = random.below(ACKS_BEFORE_KILL_MAX);
        let delay = Duration::from_micros(random.below(DELAY_US_MAX));
        load_until_killed(victim, plan, to, &mut clients, acks, delay)?;
        report.kills += 1;
        watch(&report);
    }
    let (_, mut api) = started(victim, plan, plan.kills == 0, &mut report)?;
    compare(&mut api, plan, &run, last + 1, &mut clients, &mut all, &mut report)?;
    compare_all(&mut api, plan, &run, &all, &mut report)?;
    drop(api);
    victim.kill()?;
    Ok(report)
}

/// Starts the server and waits until it can say how long the stream is.
fn started(
    victim: &mut dyn Victim,
    plan: &CrashPlan,
    is_first: bool,
    report: &mut CrashReport,
) -> Result<(SocketAddr, Api), CollectError> {
    let begun = Instant::now();
    let mut to = victim.start()?;
    let mut how_it_ended = None;
    loop {
        let ready = Api::connect(to, plan.timeout).and_then(|mut api| {
            if let Some(storage) = plan.make_stream.filter(|_| is_first) {
                api.make_stream(&plan.stream, &format!("{}.>", plan.subject), storage)?;
            }
            api.stream_state(&plan.stream)?;
            Ok(api)
        });
        match ready {
            Ok(api) => {
                report.longest_start_ms = report.longest_start_ms.max(begun.elapsed().as_millis() as u64);
                return Ok((to, api));
            }
            // A port can be taken for a moment longer than the process lived: the kernel takes an io_uring apart behind
            // its back. So a server that ends at its start is started again, as a supervisor does, and that is counted.
            Err(error) if !victim.is_running() => {
                // Who has ended by itself is killed in vain, which says how it ended.
                how_it_ended = Some(victim.kill().err().unwrap_or(error));
                if begun.elapsed() >= plan.timeout {
                    break;
                }
                report.failed_starts += 1;
                thread::sleep(LOOK_INTERVAL);
                to = victim.start()?;
            }
            Err(error) if begun.elapsed() >= plan.timeout => {
                how_it_ended.get_or_insert(error);
                break;
            }
            Err(_) => thread::sleep(LOOK_INTERVAL),
        }
    }
    Err(how_it_ended.unwrap_or_else(|| CollectError::server("it does not start")))
}

/// Publishes over all connections until the server is dead.
fn load_until_killed(
    victim: &mut dyn Victim,
    plan: &CrashPlan,
    to: SocketAddr,
    clients: &mut [Client],
    acks: u64,
    delay: Duration,
) -> Result<(), CollectError> {
    let (heard, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for client in clients {
            let (heard, over) = (&heard, &over);
            scope.spawn(move || {
                // Without a connection there is nothing in flight, and nothing to be judged.
                if let Ok(stream) = connect(to, plan.timeout) {
                    client.publish(stream, plan, heard, over);
                }
            });
        }
        let begun = Instant::now();
        let mut outcome = Ok(());
        while heard.load(Ordering::Acquire) < acks {
            if begun.elapsed() > plan.timeout {
                let words = format!("{} of {acks} acknowledgements came", heard.load(Ordering::Acquire));
                outcome = Err(CollectError::Server(words));
                break;
            }
            thread::sleep(Duration::from_micros(100));
        }
        thread::sleep(delay);
        let killed = victim.kill();
        over.store(true, Ordering::Release);
        outcome.and(killed)
    })
}

impl Client {
    /// Publishes until the connection ends, then reads what is left of the answers.
    fn publish(&mut self, mut stream: TcpStream, plan: &CrashPlan, heard: &AtomicU64, over: &AtomicBool) {
        let (mut input, mut output) = (Buffer::default(), Vec::new());
        let (mut in_flight, mut writes) = (0, true);
        self.speech.begin(&mut output);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
        loop {
            while writes && in_flight < plan.window {
                self.speech.publish(self.sent, &mut output);
                self.sent += 1;
                in_flight += 1;
            }
            if writes && !output.is_empty() {
                writes = stream.write_all(&output).is_ok();
                output.clear();
            }
            match input.fill(&mut stream) {
                Ok(0) => return,
                Ok(_) => {}
                // A dead server's connection ends; the flag is for one that was never accepted.
                Err(error) if super::buffer::is_for_later(&error) && !over.load(Ordering::Acquire) => {
                    continue;
                }
                Err(_) => return,
            }
            while let Some(said) = self.speech.next(&mut input) {
                match said {
                    Heard::Ack(ack) => {
                        let counter = ack.counter.unwrap_or(0);
                        let mark = Mark { client: self.number, counter };
                        self.acknowledged.push((mark, ack.place.1));
                        in_flight = in_flight.saturating_sub(1);
                        heard.fetch_add(1, Ordering::AcqRel);
                    }
                    Heard::Bad { failure, words, .. } => {
                        self.refusals.push(format!("{}: {words}", failure.name()));
                        in_flight = in_flight.saturating_sub(1);
                    }
                    Heard::Stray { words, .. } => self.refusals.push(words),
                    Heard::Fault(words) => return self.refusals.push(words),
                    Heard::Ping => self.speech.pong(&mut output),
                    Heard::Pong | Heard::Nothing => {}
                }
            }
        }
    }
}

/// Replays from sequence `from` on and compares with what was acknowledged since the last look; tells the last sequence.
fn compare(
    api: &mut Api,
    plan: &CrashPlan,
    run: &Run,
    from: u64,
    clients: &mut [Client],
    all: &mut BTreeMap<u64, Mark>,
    report: &mut CrashReport,
) -> Result<u64, CollectError> {
    let mut found: BTreeMap<Mark, u64> = BTreeMap::new();
    let last = api.replay(&plan.stream, from, |stored| {
        let sequence = stored.sequence;
        let mark = run.pattern.check(stored.payload);
        let sent = |mark: &Mark| {
            let client = clients.get(usize::from(mark.client));
            client.is_some_and(|client| (client.looked..client.sent).contains(&mark.counter))
        };
        match mark.filter(sent) {
            None => report.note("invented", || format!("a payload that nobody sent, at {sequence}")),
            Some(mark) => match found.entry(mark) {
                Entry::Occupied(first) => {
                    report.note("invented", || format!("{mark:?} at {} and at {sequence}", first.get()));
                }
                Entry::Vacant(place) => {
                    place.insert(sequence);
                }
            },
        }
        Ok(())
    })?;
    report.found += found.len() as u64;
    let mut earlier: Option<(Mark, u64)> = None;
    for (mark, sequence) in &found {
        // Sorted by client and counter, so the places of one client have to rise.
        let before = earlier.filter(|(earlier, place)| earlier.client == mark.client && place > sequence);
        if let Some((earlier, place)) = before {
            report.note("reordered", || format!("{mark:?} at {sequence} before {earlier:?} at {place}"));
        }
        earlier = Some((*mark, *sequence));
    }
    let mut acknowledged = 0;
    for client in clients {
        for words in client.refusals.drain(..) {
            report.note("refused", || words);
        }
        for (mark, sequence) in client.acknowledged.drain(..) {
            acknowledged += 1;
            match found.get(&mark) {
                None => report.note("lost", || {
                    format!("{mark:?}, acknowledged at {sequence}; the stream ends at {last}")
                }),
                Some(place) if *place != sequence => {
                    report.note("reordered", || format!("{mark:?} at {place}, acknowledged at {sequence}"));
                }
                Some(_) => {
                    if let Some(other) = all.insert(sequence, mark) {
                        report.note("reordered", || {
                            format!("{sequence} was given to {other:?} and to {mark:?}")
                        });
                    }
                }
            }
        }
        client.looked = client.sent;
    }
    report.acknowledged += acknowledged;
    report.found_unacknowledged += (found.len() as u64).saturating_sub(acknowledged);
    Ok(last)
}

/// Replays everything: what was there after an earlier kill has to be there after all of them.
fn compare_all(
    api: &mut Api,
    plan: &CrashPlan,
    run: &Run,
    all: &BTreeMap<u64, Mark>,
    report: &mut CrashReport,
) -> Result<(), CollectError> {
    let mut missing = all.clone();
    let first = api.stream_state(&plan.stream)?.first.max(1);
    api.replay(&plan.stream, first, |stored| {
        let acknowledged = missing.remove(&stored.sequence);
        if let Some(acknowledged) =
            acknowledged.filter(|mark| run.pattern.check(stored.payload) != Some(*mark))
        {
            let sequence = stored.sequence;
            report.note("lost", || {
                format!("{acknowledged:?} at {sequence}, where there is something else now")
            });
        }
        Ok(())
    })?;
    for (sequence, mark) in missing {
        report.note("lost", || format!("{mark:?} at {sequence}, which was there after an earlier kill"));
    }
    Ok(())
}

/// The moments: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}
