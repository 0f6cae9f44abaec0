//! One server of a hand-over: shards, hub, opening and journals, run step by step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stilling::Overview;
use stilling::parts::{
    Lifecycle, PredecessorState, SharedDisks, SimulatedHub, SimulatedSuccession, SteppedHub, SteppedJournal,
    SteppedOpening, SteppedRelease, SteppedThreads, hub_in_succession,
};
use stilling_journal::LogConfig;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_ring::{Time, Wake};

use super::HubLocation;
use crate::SplitMix64;
use crate::network::Network;
use crate::streams::disks::{self, ServerCrash};
use crate::streams::server::{ServerBuilder, ServerPlan, ServerShard, instant, step};

/// Time between two turns of an ending hub beside the shards.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(super) struct SuccessionServer {
    server_shards: Vec<ServerShard>,
    pub(super) lifecycle: Arc<Lifecycle>,
    overview: Arc<Overview>,
    threads: SteppedThreads,
    has_own_hub: bool,
    hub: Option<RunningHub>,
    opening: Option<(Time, SteppedOpening)>,
    journals: Vec<RunningJournal>,
    /// The hub has ended: the journals are closed from this time on, then the streams are released.
    sealing: Option<(Time, Option<SteppedRelease>)>,
    is_sealed_by_shard: bool,
    origin: Instant,
    disk_latency: Duration,
}

/// A hub beside the shards.
struct RunningHub {
    hub: SteppedHub,
    due: Option<Time>,
    /// Its waker; a hub without shards polls instead.
    hub_waker: Option<HubWaker>,
}

#[derive(Clone)]
struct HubWaker {
    wake: Arc<Wake>,
    has_woken: Arc<AtomicBool>,
}

struct RunningJournal {
    journal: SteppedJournal,
    writes_at: Option<Time>,
    reads_at: Option<Time>,
}

impl SuccessionServer {
    pub(super) fn start(
        plan: &ServerPlan,
        network: &Network,
        disks: &SharedDisks,
        (location, predecessor): (HubLocation, PredecessorState),
    ) -> Result<SuccessionServer, String> {
        let builder = ServerBuilder::new(plan, network);
        let hub_waker = (location == HubLocation::Own).then(|| {
            let has_woken = Arc::new(AtomicBool::new(false));
            let woken_flag = Arc::clone(&has_woken);
            HubWaker {
                wake: Arc::new(Wake::new(move || woken_flag.store(true, Ordering::Release))),
                has_woken,
            }
        });
        let succession = SimulatedSuccession {
            disks: disks.clone(),
            log: LogConfig { segment_size: plan.segment_size, ..LogConfig::default() },
            limits: plan.journal,
            now: instant(plan.origin, network.now()),
            predecessor,
            hub_wake: hub_waker.as_ref().map(|hub_waker| Arc::clone(&hub_waker.wake)),
        };
        let (lifecycle, overview) = (Arc::clone(&builder.lifecycle), Arc::clone(&builder.overview));
        let opened = hub_in_succession(&plan.streams, succession, &builder.wakes, &overview, &lifecycle);
        let SimulatedHub { shards, hub, threads } = opened.map_err(|error| error.to_string())?;
        builder.wakes.iter().for_each(|_| lifecycle.add_accepting_shard());
        let due = Some(network.now());
        Ok(SuccessionServer {
            server_shards: builder.server_shards(plan, network, shards),
            lifecycle,
            overview,
            threads,
            has_own_hub: hub.is_some(),
            hub: hub.map(|hub| RunningHub { hub, due, hub_waker }),
            opening: None,
            journals: Vec::new(),
            sealing: None,
            is_sealed_by_shard: false,
            origin: plan.origin,
            disk_latency: plan.disk_latency,
        })
    }

    /// Lets every shard accept at an address.
    pub(super) fn listen(
        &mut self,
        network: &Network,
        address: &crate::network::Address,
    ) -> Result<(), String> {
        self.server_shards
            .iter_mut()
            .try_for_each(|server_shard| server_shard.listen(network.listen(address.clone(), 64, None)))
    }

    /// Runs everything with work at `now`. Disks do nothing before `hangs_until`. Returns whether there was work.
    pub(super) fn run(
        &mut self,
        now: Time,
        hangs_until: Time,
        random: &mut SplitMix64,
    ) -> Result<bool, String> {
        let mut any = false;
        for server_shard in &mut self.server_shards {
            any |= server_shard.run(now, true)?;
        }
        self.begin_threads(now);
        any |= self.run_hub(now, random);
        let has_unsealed_journals = self.hub.is_none() && self.sealing.is_none() && !self.journals.is_empty();
        if has_unsealed_journals && !self.is_sealed_by_shard && !self.has_own_hub && self.has_stopped() {
            // The hub ended with its shard; the end of the process releases the streams.
            self.is_sealed_by_shard = true;
            self.seal_soon(now, None, random);
            any = true;
        }
        let at = instant(self.origin, now);
        if let Some((due, opening)) = &mut self.opening
            && now >= hangs_until.max(*due)
        {
            any = true;
            match opening.step(at) {
                Some(span) => *due = now.after(span),
                None => self.opening = None,
            }
        }
        self.begin_threads(now);
        for RunningJournal { journal, writes_at, reads_at } in &mut self.journals {
            // Blocks are built even while the disk hangs.
            journal.writer.build();
            any |= step(writes_at, now, (hangs_until, self.disk_latency), random, |act| {
                if act {
                    journal.writer.turn(at);
                    return true;
                }
                journal.writer.has_work() || journal.writer.due_at() <= at
            });
            any |= step(reads_at, now, (Time::ZERO, self.disk_latency), random, |act| {
                if act { journal.reader.turn() } else { journal.reader.has_work() }
            });
        }
        if let Some((due, _)) = &self.sealing
            && now >= hangs_until.max(*due)
        {
            any = true;
            let release = self.sealing.take();
            for RunningJournal { mut journal, .. } in self.journals.drain(..) {
                while journal.writer.turn(at) {}
                drop(journal.reader);
                // A frozen stream is not sealed; its server has reported it.
                drop(journal.writer.close());
            }
            drop(release);
        }
        Ok(any)
    }

    /// Starts what the server has spawned beside its shards.
    fn begin_threads(&mut self, now: Time) {
        let running = |journal| RunningJournal { journal, writes_at: None, reads_at: None };
        self.journals.extend(self.threads.take_journals().into_iter().map(running));
        if let Some(opening) = self.threads.take_opening() {
            self.opening = Some((now, opening));
        }
        if let Some(hub) = self.threads.take_closing() {
            self.hub = Some(RunningHub { hub, due: Some(now), hub_waker: None });
        }
    }

    fn seal_soon(&mut self, now: Time, release: Option<SteppedRelease>, random: &mut SplitMix64) {
        let span = random.between(10, self.disk_latency.as_micros() as u64);
        self.sealing = Some((now.after(Duration::from_micros(span)), release));
    }

    fn run_hub(&mut self, now: Time, random: &mut SplitMix64) -> bool {
        let Some(RunningHub { hub, due, hub_waker }) = &mut self.hub else { return false };
        let is_woken =
            hub_waker.as_ref().is_some_and(|hub_waker| hub_waker.has_woken.swap(false, Ordering::AcqRel));
        if !is_woken && due.is_none_or(|at| at > now) {
            return false;
        }
        if let Some(hub_waker) = hub_waker {
            hub_waker.wake.clear_parked();
        }
        if !hub.turn(&self.lifecycle, now) {
            if let Some(RunningHub { hub, .. }) = self.hub.take() {
                self.seal_soon(now, Some(hub.end()), random);
            }
            return true;
        }
        *due = match hub_waker {
            _ if !hub.is_quiet() => Some(now),
            None => Some(now.after(CLOSE_POLL_INTERVAL)),
            Some(hub_waker) => {
                hub_waker.wake.set_parked();
                if hub.is_quiet() { hub.next_check_in().map(|span| now.after(span)) } else { Some(now) }
            }
        };
        true
    }

    /// Time of the next work known to the server.
    pub(super) fn wakes_at(&self, hangs_until: Time) -> Option<Time> {
        let server_shards = self.server_shards.iter().filter_map(ServerShard::wakes_at);
        let hub = self.hub.as_ref().and_then(|hub| hub.due);
        let opening = self.opening.as_ref().map(|(due, _)| hangs_until.max(*due));
        let sealing = self.sealing.as_ref().map(|(due, _)| hangs_until.max(*due));
        let journals = self.journals.iter().flat_map(|running| {
            let span = running.journal.writer.due_at().saturating_duration_since(self.origin);
            [Some(running.writes_at.unwrap_or(Time::ZERO.after(span))), running.reads_at]
        });
        server_shards.chain(hub).chain(opening).chain(sealing).chain(journals.flatten()).min()
    }

    pub(super) fn frozen(&self) -> u64 {
        let hub = self.overview.hub.get();
        hub.map_or(0, |hub| hub.streams.iter().map(|stream| stream.frozen.get()).sum())
    }

    pub(super) fn describe(&mut self) -> String {
        format!(
            "stopped {}, hub {:?}, journals {}, sealing {}, opening {}, wakes at {:?}",
            self.has_stopped(),
            self.hub.as_ref().map(|hub| hub.due),
            self.journals.len(),
            self.is_sealing(),
            self.is_opening(),
            self.wakes_at(Time::ZERO),
        )
    }

    pub(super) fn is_sealing(&self) -> bool {
        self.sealing.is_some()
    }

    pub(super) fn has_streams(&self) -> bool {
        !self.journals.is_empty()
    }

    pub(super) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Whether every shard has stopped and is empty.
    pub(super) fn has_stopped(&mut self) -> bool {
        self.server_shards.iter_mut().all(ServerShard::has_stopped)
    }

    /// Whether hub and streams are gone.
    pub(super) fn has_released(&self) -> bool {
        self.hub.is_none() && self.sealing.is_none() && self.journals.is_empty()
    }

    pub(super) fn check_end(&mut self) -> Result<(), String> {
        self.server_shards.iter_mut().try_for_each(ServerShard::check_end)
    }

    /// Kills the server; its journals stop at a random point within their next steps.
    pub(super) fn kill(mut self, disks: &SharedDisks, now: Time, random: &mut SplitMix64) {
        self.begin_threads(now);
        let SuccessionServer { server_shards, hub, opening, journals, sealing, origin, .. } = self;
        drop((server_shards, hub, opening));
        let at = instant(origin, now);
        let mut all = disks.all();
        for RunningJournal { journal, .. } in journals {
            let streams = journal.streams.clone();
            let content: Vec<SimulatedDisk> = streams.iter().map(|&stream| all[stream].clone()).collect();
            let crash = match &sealing {
                Some(_) => disks::seal(journal, &content, (Some(ServerCrash::Kill), at), random),
                None => disks::crash(journal, &content, (ServerCrash::Kill, at), random),
            };
            streams.into_iter().zip(crash).for_each(|(stream, disk)| all[stream] = disk);
        }
        disks.replace(all);
    }
}
