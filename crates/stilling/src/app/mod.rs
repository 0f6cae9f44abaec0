//! Worker processes behind the server: any program that speaks HTTP/1.1 on a Unix socket, with Stilling before it as
//! its overload shield.
//!
//! ```text
//!   session (shard)                      slot (thread)                     process
//!   Question: rewritten head, body ─► queue ─► Link: write ─────────────► socket
//!   Answer: rewritten head, body  ◄── lane ◄── Link: read, decode ◄──────
//! ```
//!
//! A request is given to a process only when the process has a free slot; all others wait in the pool's queue, which
//! is bounded by length and by age, and a client that waits in it costs the program nothing. A request or answer that
//! fits into [`limits::FIRST_BODY_MAX`] or [`limits::PIECE_SIZE_MAX`] is one job with one result; a longer one goes
//! piece by piece, in strict alternation between session and job, so that memory stays bounded.
//!
//! A process learns where a request comes from by `X-Forwarded-For`, but for connections that are kept in a ring's own
//! descriptor table (`direct_descriptors`), whose addresses the system does not tell. Only the last entry of that list is
//! Stilling's, what stands before it is the client's claim. `X-Forwarded-Proto` and `X-Forwarded-Host` are Stilling's
//! alone; `Forwarded` and fields with `_` in their names, which many programs cannot tell from those with `-`, are
//! dropped.
//!
//! What is said to the client when something fails: 503 when no process takes the request in time, 504 when one does
//! not answer in time (one that hangs is killed and started again), 502 when one dies or answers what is not HTTP.

mod answer;
mod exchange;
mod folder;
mod hop;
pub mod limits;
mod link;
mod question;
mod slot;
mod sockets;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use stilling_workers::Seat;
use stilling_workers::processes::{self, ProcessCounters, ProcessSlot, Processes, standard_streams};

pub(crate) use answer::{Answer, BodyFraming, Heard, Piece, Refusal, Said};
pub(crate) use exchange::exchange;
pub(crate) use question::Question;

use slot::AppSlot;
use sockets::{SocketExchange, Sockets};

/// The program behind the server, and how its processes are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppConfig {
    /// The command, for `/bin/sh`; `{socket}` in it, and `STILLING_SOCKET` in its environment, is the path of the Unix
    /// socket to listen on.
    pub command: String,
    /// Processes, their slots and their lives.
    pub processes: processes::Limits,
    /// How long a process may take to answer a request, or to go on with an answer or with a request's body. More than
    /// zero. Reached before the answer has begun: 504, and the process is killed and started again if it hangs
    /// ([`Pass::leave_late`](processes::Pass::leave_late)). Reached after that: the answer breaks off, the process lives.
    pub timeout: Duration,
}

impl AppConfig {
    /// One process for `command`, one request at a time, 60 s for each.
    pub fn new(command: impl Into<String>) -> Self {
        AppConfig {
            command: command.into(),
            processes: processes::Limits::default(),
            timeout: limits::TIMEOUT,
        }
    }

    /// Requests that all processes may have at once: as many threads carry them.
    pub fn slots(&self) -> usize {
        self.processes.processes * self.processes.slots
    }
}

/// The processes of a server.
pub struct App {
    config: AppConfig,
    processes: Processes,
    sockets: Sockets,
}

/// Slots that have no thread yet.
pub(crate) struct Seats(Vec<ProcessSlot>);

impl App {
    /// Plans the processes; none is started yet.
    ///
    /// # Errors
    /// The system gives no private folder for the sockets, or no descriptor.
    pub(crate) fn new(config: AppConfig) -> io::Result<(App, Seats)> {
        let (processes, slots) = Processes::new(config.processes.clone())?;
        let sockets = Sockets::new()?;
        Ok((App { config, processes, sockets }, Seats(slots)))
    }

    /// Starts the processes. Returns the seats for the threads that talk to them.
    pub(crate) fn start(&self, seats: Seats) -> io::Result<Vec<Box<dyn Seat>>> {
        let exchange = SocketExchange::new(self.config.command.clone(), self.sockets.clone());
        self.processes.start("app", Box::new(exchange), standard_streams())?;
        seats
            .0
            .into_iter()
            .map(|slot| {
                let path = self.sockets.path(slot.number());
                Ok(Box::new(AppSlot::new(slot, &path, self.config.timeout)?) as Box<dyn Seat>)
            })
            .collect()
    }

    /// Ends the processes and waits for their end; `hurry` is asked now and then whether they should be killed at
    /// once.
    pub(crate) fn end(&self, hurry: impl Fn() -> bool) {
        self.processes.stop(self.config.processes.stop_timeout);
        while !self.processes.join(limits::HURRY_LOOK) {
            if hurry() {
                self.processes.stop(Duration::ZERO);
            }
        }
        self.sockets.remove();
    }

    /// What has become of the processes so far.
    pub fn counters(&self) -> ProcessCounters {
        self.processes.counters()
    }

    /// What was chosen.
    pub fn config(&self) -> &AppConfig {
        &self.config
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.processes.stop(Duration::ZERO);
        self.sockets.remove();
    }
}
