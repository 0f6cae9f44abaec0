//! One process through all its lives.
//!
//! ```text
//!   Resting ─► Starting ─► Serving ─► Emptying ─► Leaving ─┐
//!      ▲          │ late      │ condemned │          │ late │
//!      │          └────────►  Dying ◄─────┴──────────┘      │
//!      └───────── dead ◄────────┴───────────────────────────┘   (or Over, when all is to end)
//! ```
//!
//! Every state but `Serving` ends by itself at some time: no request, however long, keeps a process from being replaced.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

use super::Program;
use super::backoff::Backoff;
use super::counters::{Tally, count};
use super::door::Door;
use super::limits::{LOOK_FIRST, LOOK_MAX, Limits};
use super::relay::Relay;

/// What a life needs from the supervisor for a step.
pub(super) struct World<'a> {
    pub(super) now: Instant,
    pub(super) limits: &'a Limits,
    pub(super) tally: &'a Tally,
    pub(super) relay: &'a Relay,
    pub(super) program: &'a mut dyn Program,
    /// When the processes that still live are to be killed, if the end was asked for.
    pub(super) kill_at: Option<Instant>,
}

/// A process that runs, or that nobody has waited for yet.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    pub(super) group: Pid,
    pub(super) pidfd: OwnedFd,
}

#[derive(Debug)]
enum State {
    /// Not running; is started at that time.
    Resting { until: Instant, backoff: Duration },
    /// Running, but does not answer yet.
    Starting { running: Running, ready_by: Instant, look_at: Instant, look_wait: Duration },
    /// Takes jobs.
    Serving { running: Running, since: Instant },
    /// Finishes its jobs, to be replaced.
    Emptying { running: Running, since: Instant, leave_by: Instant },
    /// Has been asked to end.
    Leaving { running: Running, kill_at: Instant },
    /// Has been killed, after it had served for that long.
    Dying { running: Running, lived: Duration },
    /// Is not started again.
    Over,
}

#[derive(Debug)]
pub(super) struct Life {
    door: Arc<Door>,
    backoff: Backoff,
    /// Lives so far; the number of the present one.
    lives: u64,
    state: State,
}

impl Life {
    pub(super) fn new(door: Arc<Door>, now: Instant) -> Life {
        let state = State::Resting { until: now, backoff: Duration::ZERO };
        Life { door, backoff: Backoff::default(), lives: 0, state }
    }

    /// Does what is due. Returns whether the process groups have changed.
    pub(super) fn step(&mut self, world: &mut World<'_>) -> bool {
        let before = self.running().map(|running| running.group);
        // A step may be followed by the next at once; each state but the last is left by at most one of them.
        while let Some(next) = self.next(world) {
            self.state = next;
        }
        before != self.running().map(|running| running.group)
    }

    /// When to look again, if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Resting { until, .. } => Some(*until),
            State::Starting { ready_by, look_at, .. } => Some(*look_at.min(ready_by)),
            State::Leaving { kill_at, .. } => Some(*kill_at),
            State::Emptying { leave_by, .. } => Some(*leave_by),
            State::Serving { .. } | State::Dying { .. } | State::Over => None,
        }
    }

    pub(super) fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Starting { running, .. }
            | State::Serving { running, .. }
            | State::Emptying { running, .. }
            | State::Leaving { running, .. }
            | State::Dying { running, .. } => Some(running),
            State::Resting { .. } | State::Over => None,
        }
    }

    pub(super) fn is_serving(&self) -> bool {
        matches!(self.state, State::Serving { .. })
    }

    /// Whether it serves and has done its number of requests.
    pub(super) fn is_worn(&self) -> bool {
        self.is_serving() && self.door.is_worn()
    }

    /// Whether it is being replaced.
    pub(super) fn is_changing(&self) -> bool {
        matches!(self.state, State::Emptying { .. } | State::Leaving { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// The wait after its last death, while it waits.
    pub(super) fn resting(&self) -> Option<Duration> {
        match self.state {
            State::Resting { backoff, .. } if !backoff.is_zero() => Some(backoff),
            _ => None,
        }
    }

    /// Takes no more jobs, to be replaced when those that it has are done, and at the latest then.
    pub(super) fn replace(&mut self, leave_by: Instant) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Serving { running, since } => {
                self.door.close();
                self.state = State::Emptying { running, since, leave_by };
            }
            other => self.state = other,
        }
    }

    /// The state that follows now, if another one does.
    fn next(&mut self, world: &mut World<'_>) -> Option<State> {
        if let Some(running) = self.running()
            && running.has_ended()
        {
            return Some(self.bury(world));
        }
        let now = world.now;
        match std::mem::replace(&mut self.state, State::Over) {
            State::Resting { .. } if world.kill_at.is_some() => Some(State::Over),
            State::Resting { until, .. } if now >= until => Some(self.begin(world)),
            State::Starting { running, .. }
            | State::Serving { running, .. }
            | State::Emptying { running, .. }
                if world.kill_at.is_some() =>
            {
                self.door.close();
                running.signal(Signal::TERM);
                Some(State::Leaving { running, kill_at: world.kill_at.unwrap_or(now) })
            }
            State::Starting { running, ready_by, look_at, look_wait } => {
                if now >= look_at && world.program.is_ready(self.door.number) {
                    self.door.open(self.lives);
                    return Some(State::Serving { running, since: now });
                }
                if now >= ready_by {
                    let late = format!("did not answer within {:?}", world.limits.start_timeout);
                    return Some(self.kill(running, Duration::ZERO, &late, world));
                }
                let (look_at, look_wait) = if now >= look_at {
                    (now + look_wait, (look_wait * 2).min(LOOK_MAX))
                } else {
                    (look_at, look_wait)
                };
                self.stays(State::Starting { running, ready_by, look_at, look_wait })
            }
            State::Serving { running, since } | State::Emptying { running, since, .. }
                if self.door.is_condemned(self.lives) =>
            {
                let lived = now.saturating_duration_since(since);
                Some(self.kill(running, lived, "does not answer", world))
            }
            State::Emptying { running, leave_by, .. } if self.door.is_empty() || now >= leave_by => {
                count(&world.tally.recycled);
                running.signal(Signal::TERM);
                Some(State::Leaving { running, kill_at: now + world.limits.stop_timeout })
            }
            State::Leaving { running, kill_at } => {
                let kill_at = world.kill_at.map_or(kill_at, |of_all| of_all.min(kill_at));
                if now >= kill_at {
                    // As good as a long life: it had been asked to end.
                    return Some(self.kill(running, Duration::MAX, "did not end in time", world));
                }
                self.stays(State::Leaving { running, kill_at })
            }
            state => self.stays(state),
        }
    }

    fn stays(&mut self, state: State) -> Option<State> {
        self.state = state;
        None
    }

    /// A new life.
    fn begin(&mut self, world: &mut World<'_>) -> State {
        self.lives += 1;
        match Running::start(self.door.number, world) {
            Ok(running) => {
                count(&world.tally.started);
                State::Starting {
                    running,
                    ready_by: world.now + world.limits.start_timeout,
                    look_at: world.now,
                    look_wait: LOOK_FIRST,
                }
            }
            Err(error) => {
                count(&world.tally.died);
                self.rest(Duration::ZERO, &format!("does not start: {error}"), world)
            }
        }
    }

    fn kill(&mut self, running: Running, lived: Duration, why: &str, world: &mut World<'_>) -> State {
        self.door.close();
        count(&world.tally.killed);
        world.relay.notices().say(self.door.number, &format!("{why}; killed"));
        running.signal(Signal::KILL);
        State::Dying { running, lived }
    }

    /// The process has ended: nothing of its group survives it, and somebody hears how it ended.
    fn bury(&mut self, world: &mut World<'_>) -> State {
        self.door.close();
        let state = std::mem::replace(&mut self.state, State::Over);
        let (running, lived, by_itself) = match state {
            State::Starting { running, .. } => (running, Duration::ZERO, true),
            State::Serving { running, since } | State::Emptying { running, since, .. } => {
                (running, world.now.saturating_duration_since(since), true)
            }
            State::Leaving { running, .. } => (running, Duration::MAX, false),
            State::Dying { running, lived } => (running, lived, false),
            State::Resting { .. } | State::Over => return state,
        };
        let status = running.reap();
        if by_itself {
            count(&world.tally.died);
        }
        let how =
            status.map_or_else(|error| format!("is lost: {error}"), |status| format!("ended ({status})"));
        self.rest(lived, &how, world)
    }

    fn rest(&mut self, lived: Duration, how: &str, world: &World<'_>) -> State {
        if world.kill_at.is_some() {
            return State::Over;
        }
        let backoff = self.backoff.after_death(lived);
        world.relay.notices().say(self.door.number, &format!("{how}; starts again in {backoff:?}"));
        State::Resting { until: world.now + backoff, backoff }
    }
}

impl Running {
    fn start(number: usize, world: &mut World<'_>) -> io::Result<Running> {
        let [out, err] = world.relay.streams(number)?;
        let mut command = world.program.command(number)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        match pidfd_open(group, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Running { child, group, pidfd }),
            Err(error) => {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    /// Whether it has ended. It stays a zombie, so its number cannot be anybody else's yet; but where this process has
    /// inherited that `SIGCHLD` is ignored, nothing stays of it, and there is no child to wait for (`ECHILD`).
    fn has_ended(&self) -> bool {
        use std::os::fd::AsFd;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(Some(_)) | Err(Errno::CHILD))
    }

    fn signal(&self, signal: Signal) {
        // A group that is gone already needs none.
        let _ = kill_process_group(self.group, signal);
    }

    fn reap(mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.child.wait()
    }
}
