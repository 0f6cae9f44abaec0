//! The supervisor's thread: waits for deaths, deadlines and the bell, and lets each life take its next step.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::bell::Bell;
use super::counters::Tally;
use super::door::Door;
use super::keeper::Keeper;
use super::life::{Life, World};
use super::relay::{Relay, Sink, timespec};
use super::{Limits, Program};

/// The system's usual timer slack, in nanoseconds.
const TIMER_SLACK: u64 = 50_000;

/// How soon a keeper that could not be started is tried again.
const KEEPER_RETRY: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    limits: Limits,
    lives: Vec<Life>,
    tally: Arc<Tally>,
    bell: Arc<Bell>,
    program: Box<dyn Program>,
    relay: Relay,
    keeper: Option<Keeper>,
    /// When the end was asked for.
    asked: Option<Instant>,
}

impl Supervisor {
    pub(super) fn new(
        name: &'static str,
        limits: Limits,
        doors: Vec<Arc<Door>>,
        tally: Arc<Tally>,
        bell: Arc<Bell>,
        program: Box<dyn Program>,
        sink: Sink,
    ) -> io::Result<Supervisor> {
        let relay = Relay::start(name, limits.processes, sink)?;
        for door in &doors {
            door.hand_notices(relay.notices());
        }
        let keeper = Some(Keeper::start(program.folder().as_deref())?);
        let now = Instant::now();
        let lives = doors.into_iter().map(|door| Life::new(door, now)).collect();
        Ok(Supervisor { limits, lives, tally, bell, program, relay, keeper, asked: None })
    }

    /// Until the end is asked for and all processes have ended.
    pub(super) fn run(mut self) {
        let _over = Over(Arc::clone(&self.tally));
        // What is started inherits it, and is not to be run with a server's finer one.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK));
        loop {
            self.bell.hush();
            let changed = self.step();
            self.replace_one();
            self.count();
            if changed || self.keeper.is_none() {
                self.tell_keeper();
            }
            if self.lives.iter().all(Life::is_over) {
                break;
            }
            self.wait();
        }
        self.relay.end();
    }

    /// Does what is due for each process. Returns whether the process groups have changed.
    fn step(&mut self) -> bool {
        let now = Instant::now();
        let kill_at = self.bell.stopping().map(|grace| *self.asked.get_or_insert(now) + grace);
        let mut world = World {
            now,
            limits: &self.limits,
            tally: &self.tally,
            relay: &self.relay,
            program: &mut *self.program,
            kill_at,
        };
        let mut changed = false;
        for life in &mut self.lives {
            changed |= life.step(&mut world);
        }
        changed
    }

    /// Replaces a process that has done its number of requests: one at a time, and only while another one serves,
    /// if there is another one.
    fn replace_one(&mut self) {
        let serving = self.lives.iter().filter(|life| life.is_serving()).count();
        if (serving > 1 || self.lives.len() == 1)
            && !self.lives.iter().any(Life::is_changing)
            && let Some(worn) = self.lives.iter_mut().find(|life| life.is_worn())
        {
            worn.replace(Instant::now() + self.limits.drain_timeout);
            // It may be empty already.
            self.bell.ring();
        }
    }

    fn count(&self) {
        let number = |number: usize| number as u64;
        let serving = self.lives.iter().filter(|life| life.is_serving()).count();
        self.tally.ready.store(number(serving), Relaxed);
        let resting = self.lives.iter().filter_map(Life::resting);
        let backoff = resting.clone().max().unwrap_or(Duration::ZERO);
        self.tally.resting.store(number(resting.count()), Relaxed);
        self.tally.backoff_nanos.store(backoff.as_nanos() as u64, Relaxed);
    }

    /// Makes sure that there is a keeper, and that it knows who lives.
    fn tell_keeper(&mut self) {
        let groups = || self.lives.iter().filter_map(|life| Some(life.running()?.group));
        let knows = self.keeper.as_mut().is_some_and(|keeper| keeper.hears(groups()).is_ok());
        if !knows {
            let next = Keeper::start(self.program.folder().as_deref()).ok();
            if let Some(former) = std::mem::replace(&mut self.keeper, next) {
                former.retire();
            }
            // Should it fail again, the next round tries again.
            if let Some(keeper) = &mut self.keeper {
                let _ = keeper.hears(groups());
            }
        }
    }

    fn wait(&self) {
        let mut due = self.lives.iter().filter_map(Life::due).min();
        if self.keeper.is_none() {
            let retry = Instant::now() + KEEPER_RETRY;
            due = Some(due.map_or(retry, |due| due.min(retry)));
        }
        let wait = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
        let running = self.lives.iter().filter_map(Life::running).map(|running| running.pidfd.as_fd());
        let mut polled: Vec<PollFd<'_>> = std::iter::once(self.bell.as_fd())
            .chain(running)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // An interrupted wait is a wait for nothing.
        let _ = poll(&mut polled, wait.as_ref());
    }
}

/// Tells that all is over when the thread is left, also by a panic: what it owned then, the keeper has ended.
struct Over(Arc<Tally>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.all_is_over();
    }
}
