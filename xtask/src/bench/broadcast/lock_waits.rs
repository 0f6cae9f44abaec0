//! Row 2.8: waits for locks on the threads that serve clients, counted by `strace` during a broadcast and an auction.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::BroadcastBench;
use super::clients::MeasuredClients;
use super::load::FanOutLoad;
use super::peers::{BroadcastPeer, BroadcastStream, RunningPeer};
use super::scenarios::at;
use super::thrash;
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::server::READY_TIMEOUT;
use crate::bench::targets::BenchTarget;

pub(super) const TITLE: &str = "Waits for locks";

/// Every lock of a process ends in this system call when it has to wait, and no other wait of these threads uses it.
const TRACE: [&str; 4] = ["-f", "-q", "-e", "trace=futex"];

/// Time between two checks of whether all threads are traced.
const ATTACH_POLL: Duration = Duration::from_millis(10);

/// What clients do while the waits are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TracedLoad {
    Broadcast,
    Auction(BroadcastStream),
}

const LOADS: [(TracedLoad, &str); 3] = [
    (TracedLoad::Broadcast, "200 subscribers, 64 bytes, window 2,048"),
    (TracedLoad::Auction(BroadcastStream::AuctionInMemory), "the auction below, memory"),
    (TracedLoad::Auction(BroadcastStream::AuctionOnDisk), "the auction below, disk"),
];

/// What one load counted.
struct TracedFigures {
    deliveries: f64,
    serving: BTreeSet<String>,
    /// Waits by thread.
    waits: BTreeMap<String, u64>,
    failures: u64,
}

impl TracedFigures {
    fn waits_of_serving(&self) -> u64 {
        self.serving.iter().filter_map(|name| self.waits.get(name)).sum()
    }

    fn waits_of_others(&self) -> u64 {
        self.waits.values().sum::<u64>() - self.waits_of_serving()
    }
}

impl BroadcastBench {
    pub(super) fn lock_waits(&self) -> XtaskResult<PageSection> {
        let mut table = figures::table(
            "server | load | deliveries/s, traced | threads that serve clients | their waits | waits of other threads | failures",
        );
        for peer in [BroadcastPeer::StillingUring, BroadcastPeer::StillingPoll] {
            for (load, words) in LOADS {
                let found = self.trace(peer, load)?;
                let (name, waits) = (peer.name(), found.waits_of_serving());
                println!("{TITLE}, {name}, {words}: {waits} waits, {:.0} deliveries/s", found.deliveries);
                let what = format!("waits for locks, {name}: {words}");
                self.targets.add_target(BenchTarget::at_most(what, 0.0, Some(waits as f64), ""));
                table.push(vec![
                    name.to_owned(),
                    words.to_owned(),
                    figures::thousands(found.deliveries),
                    found.serving.iter().cloned().collect::<Vec<_>>().join(", "),
                    waits.to_string(),
                    found.waits_of_others().to_string(),
                    found.failures.to_string(),
                ]);
            }
        }
        let description = format!(
            "`strace {} -p SERVER` during each load: calls of `futex` that wait, by thread (row 2.8). Every lock that is not \
             free ends in one. The threads that serve clients are the shards (the first one is the main thread, `stilling`) and, \
             on more than two cores, the hub; they wait for sockets and for each other in their driver only. Other threads, \
             such as the journal, wait in `futex` for work. One run of each; tracing slows a server down.",
            TRACE.join(" ")
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }

    fn trace(&self, peer: BroadcastPeer, load: TracedLoad) -> XtaskResult<TracedFigures> {
        let folder = self.programs.folder.join("data");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let stream = match load {
            TracedLoad::Broadcast => BroadcastStream::None,
            TracedLoad::Auction(stream) => stream,
        };
        let running = peer.start(&self.programs, &folder, stream, &[])?;
        let tracer = FutexTracer::attach(running.server.first_process(), folder.join("futex"))?;
        let (deliveries, failures) = self.run_traced(peer, load, &running)?;
        let (names, waits) = tracer.end()?;
        drop(running);
        fs::remove_dir_all(&folder)?;
        let serving = names.into_iter().filter(|name| serves_clients(name)).collect();
        Ok(TracedFigures { deliveries, serving, waits, failures })
    }

    /// Returns deliveries per second, and failures.
    fn run_traced(
        &self,
        peer: BroadcastPeer,
        load: TracedLoad,
        running: &RunningPeer,
    ) -> XtaskResult<(f64, u64)> {
        match load {
            TracedLoad::Broadcast => {
                let load = FanOutLoad { seconds: self.seconds(), ..at(200, 64, 2048) };
                let report = load.generate(&MeasuredClients::usual(peer), &self.programs, running)?;
                Ok((report.deliveries_per_s, report.failures_total))
            }
            TracedLoad::Auction(_) => {
                let options = thrash::options(self.seconds());
                let figures = self.bid(peer, running, &options)?;
                Ok((figures.out_per_s, figures.failures_total))
            }
        }
    }
}

/// Whether a thread of this name reads requests of clients or is the hub.
fn serves_clients(name: &str) -> bool {
    // The thread that has started the process is the first shard.
    name == "stilling" || name == "hub" || name.starts_with("shard-")
}

/// A running `strace` of all threads of a process.
struct FutexTracer {
    child: Child,
    /// Names of the process's threads, by id.
    names: BTreeMap<u32, String>,
    output: PathBuf,
}

impl FutexTracer {
    /// Returns when all threads are traced.
    fn attach(process: u32, output: PathBuf) -> XtaskResult<FutexTracer> {
        let mut command = Command::new("strace");
        command.args(TRACE).arg("-o").arg(&output).arg("-p").arg(process.to_string());
        let child = command.stdin(Stdio::null()).spawn().map_err(|error| format!("strace: {error}"))?;
        let mut tracer = FutexTracer { child, names: BTreeMap::new(), output };
        let start = Instant::now();
        while !is_traced(process)? {
            if start.elapsed() > READY_TIMEOUT || tracer.child.try_wait()?.is_some() {
                return Err(
                    "strace does not attach: tracing needs the right to do so (CAP_SYS_PTRACE)".into()
                );
            }
            std::thread::sleep(ATTACH_POLL);
        }
        tracer.names = thread_names(process)?;
        Ok(tracer)
    }

    /// Detaches. Returns the names of the threads, and the waits of each.
    fn end(mut self) -> XtaskResult<(Vec<String>, BTreeMap<String, u64>)> {
        self.stop()?;
        let waits = count_waits(&fs::read_to_string(&self.output)?, &self.names);
        Ok((self.names.values().cloned().collect(), waits))
    }

    fn stop(&mut self) -> XtaskResult {
        if self.child.try_wait()?.is_none() {
            // On SIGINT it detaches from the threads, which go on.
            Command::new("kill").args(["-INT", &self.child.id().to_string()]).status()?;
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for FutexTracer {
    fn drop(&mut self) {
        // A failed run has reported why.
        let _ = self.stop();
    }
}

fn tasks(process: u32) -> XtaskResult<Vec<PathBuf>> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
}

fn is_traced(process: u32) -> XtaskResult<bool> {
    let is_traced = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    Ok(tasks(process)?.iter().all(|task| is_traced(task)))
}

fn thread_names(process: u32) -> XtaskResult<BTreeMap<u32, String>> {
    let mut names = BTreeMap::new();
    for task in tasks(process)? {
        let id = task.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        if let Some(id) = id {
            names.insert(id, fs::read_to_string(task.join("comm"))?.trim().to_owned());
        }
    }
    Ok(names)
}

/// Counts the calls that wait. A line is `<thread> futex(<address>, <operation>, …`, or the rest of an interrupted one.
fn count_waits(trace: &str, names: &BTreeMap<u32, String>) -> BTreeMap<String, u64> {
    let mut waits = BTreeMap::new();
    for line in trace.lines() {
        let Some((thread, call)) = line.trim_start().split_once(' ') else { continue };
        let call = call.trim_start();
        let waits_for_lock = call.contains("FUTEX_WAIT") || call.contains("FUTEX_LOCK_PI");
        if call.starts_with("futex(") && waits_for_lock {
            let name = thread.parse().ok().and_then(|thread: u32| names.get(&thread));
            *waits.entry(name.map_or("started later", String::as_str).to_owned()).or_default() += 1;
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_thread() {
        let names = [(7, "stilling"), (8, "shard-1"), (9, "journal")].map(|(id, name)| (id, name.to_owned()));
        let trace = "\
7     futex(0x55b7, FUTEX_WAKE_PRIVATE, 1) = 1
8     futex(0x55b7, FUTEX_WAIT_BITSET_PRIVATE, 2, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>
9     futex(0x55b8, FUTEX_WAIT_PRIVATE, 2, NULL) = 0
8     <... futex resumed>) = -1 EAGAIN (Resource temporarily unavailable)
9     futex(0x55b8, FUTEX_WAIT_PRIVATE, 2, NULL) = -1 EAGAIN (Resource temporarily unavailable)
10    futex(0x55b9, FUTEX_WAIT_PRIVATE, 2, NULL) = 0
7     +++ exited with 0 +++
";
        let waits = count_waits(trace, &names.clone().into());
        let expected = [("journal", 2), ("shard-1", 1), ("started later", 1)];
        assert_eq!(waits, expected.map(|(name, count)| (name.to_owned(), count)).into());
        let serving = names.into_iter().map(|(_, name)| name).filter(|name| serves_clients(name)).collect();
        let found = TracedFigures { deliveries: 1.0, serving, waits, failures: 0 };
        assert_eq!((found.waits_of_serving(), found.waits_of_others()), (1, 3));
    }
}
