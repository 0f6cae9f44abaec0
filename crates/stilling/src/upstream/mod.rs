//! Worker processes behind the server: any program that speaks HTTP/1.1 on a Unix socket, with Stilling before it as
//! its overload shield.
//!
//! ```text
//!   client's session            UpstreamPool (one per shard)          UpstreamConnection       process
//!   UpstreamRequest ─ submit ─► queue ─► its turn ─► ConnectionCommand ─► send ──────────────► socket
//!   UpstreamEvent ◄─ by Recipient ◄──── shard ◄─ Outbox ◄──────────────── decode, rewrite ◄───
//! ```
//!
//! A request carries the [`Recipient`](stilling_engine::Recipient) of its answer: a connection of the shard, or the peer of
//! a datagram socket. The pool knows no client protocol and no session of one; a session uses it by an `UpstreamHandle`
//! and gets events as mail of the shard. No protocol over datagrams submits requests yet. Nothing here imports `crate::http` except tests, which run whole servers.
//!
//! Connections to the processes are ordinary connections of the shard that has the client; no other thread takes part in
//! a request. A request is given to a process only when the process has a free slot; all others wait in the shards'
//! queues, which are bounded by length and by age, and a client that waits there costs the program nothing.
//!
//! A slow client holds no slot: its body is received before the request asks for one, and the process's response is taken
//! as fast as the process gives it. What is too long for that ([`limits::BODY_HELD_MAX`], [`limits::ANSWER_HELD_MAX`], or
//! the memory for all) goes on piece by piece: the sender is read from only as fast as the receiver takes, and the client
//! has to keep to [`limits::SLOT_RATE_MIN`] meanwhile.
//!
//! A client that resets its connection is noticed within [`limits::CLIENT_CHECK_INTERVAL`]; one that has only ended its own sending
//! is answered. Its place in the queue is free at once. The connection to a process that had its request is half-closed,
//! and the process loses nothing else; the slot is free when the process closes the connection or answers, because it may
//! work on the request until then. The same holds for a request that was not answered in time, if the process is not
//! killed for it.
//!
//! A process learns where a request comes from by `X-Forwarded-For`, except for connections in a ring's own descriptor
//! table (`direct_descriptors`), whose addresses the system does not tell. `X-Forwarded-For` (the peer's address),
//! `X-Forwarded-Proto` and `X-Forwarded-Host` are Stilling's alone. Whatever the client sends of `X-Forwarded-*`,
//! `X-Real-IP`, `Forwarded`, `Proxy` or with `_` in its name, which many programs confuse with `-`, is dropped.
//!
//! Failures: 503 when no process takes the request in time, 504 when a process does not answer in time (one that hangs is
//! killed and started again), 502 when a process dies or does not answer HTTP.

mod connection;
mod handle;
mod hop_by_hop;
mod idle_connections;
pub mod limits;
mod message;
mod outbox;
mod pending_request;
mod pool;
mod process_sockets;
mod request;
mod request_table;
mod response;
mod socket_folder;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stilling_ring::Wake;
use stilling_workers::processes::{
    self, ProcessCounters, Processes, QueueLimits, ShardAdmissionQueue, standard_streams,
};

pub(crate) use connection::{UpstreamConnection, UpstreamContext};
pub(crate) use handle::UpstreamHandle;
pub(crate) use hop_by_hop::nominates_too_many;
pub(crate) use message::{
    BodyFraming, ClientMessage, ResponsePiece, UpstreamEvent, UpstreamFailure, UpstreamResponse,
};
pub(crate) use outbox::{ConnectionCommand, UpstreamDelivery};
pub(crate) use pool::UpstreamPool;
pub(crate) use request::UpstreamRequest;
pub(crate) use request_table::RequestId;

use process_sockets::{ProcessSockets, SocketProgram};

/// The program behind the server, and how its processes are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppConfig {
    /// The command, for `/bin/sh`; `{socket}` in it, and `STILLING_SOCKET` in its environment, is the path of the Unix
    /// socket to listen on.
    pub command: String,
    /// Processes, their slots and their lives.
    pub processes: processes::ProcessLimits,
    /// How long a process may take to answer a request, or to go on with a response or with a request's body. More than
    /// zero. Reached before the response has begun: 504, and the process is killed and started again if it hangs
    /// ([`SlotPermit::mark_overdue`](processes::SlotPermit::mark_overdue)). Reached after that: the response breaks off, the process lives.
    pub timeout: Duration,
}

impl AppConfig {
    /// One process for `command`, one request at a time, 60 s for each.
    pub fn new(command: impl Into<String>) -> Self {
        AppConfig {
            command: command.into(),
            processes: processes::ProcessLimits::default(),
            timeout: limits::TIMEOUT,
        }
    }

    /// Requests that all processes may have at once, and connections to them.
    pub fn slots(&self) -> usize {
        self.processes.processes * self.processes.slots
    }

    /// Places of each shard that are kept for connections to the processes: for all that it may have, and as many
    /// that are being closed.
    pub(crate) fn reserved_connects(&self) -> u32 {
        u32::try_from(2 * self.slots()).unwrap_or(u32::MAX)
    }
}

/// The processes of a server.
pub struct App {
    config: AppConfig,
    processes: Processes,
    sockets: ProcessSockets,
    /// Environment variables with secrets, which the processes do not inherit.
    secrets: Vec<String>,
}

/// The queue of each shard, for the shards' pools.
pub(crate) struct ShardQueues(Vec<ShardAdmissionQueue<RequestId>>);

impl App {
    /// Plans the processes, and a queue for each shard that one of `wakes` wakes; no process is started yet. The processes
    /// do not inherit the environment variables `secrets`.
    ///
    /// # Errors
    /// The system gives no private folder for the sockets, or no descriptor.
    pub(crate) fn new(
        config: AppConfig,
        secrets: Vec<String>,
        queue: QueueLimits,
        wakes: Vec<Arc<Wake>>,
    ) -> io::Result<(App, ShardQueues)> {
        let (processes, queues) = Processes::new(config.processes.clone(), queue, wakes)?;
        let sockets = ProcessSockets::new()?;
        Ok((App { config, processes, sockets, secrets }, ShardQueues(queues)))
    }

    /// A pool for each shard.
    pub(crate) fn pools(&self, queues: ShardQueues) -> Vec<UpstreamPool> {
        let path = |process| self.sockets.path(process);
        let addresses: Vec<_> = (0..self.config.processes.processes).map(path).collect();
        let pool = |queue| UpstreamPool::new(queue, addresses.clone(), self.config.timeout);
        queues.0.into_iter().map(pool).collect()
    }

    /// Starts the processes.
    pub(crate) fn start(&self) -> io::Result<()> {
        let program =
            SocketProgram::new(self.config.command.clone(), self.secrets.clone(), self.sockets.clone());
        self.processes.start("app", Box::new(program), standard_streams())
    }

    /// What has become of the requests for them so far.
    pub fn requests(&self) -> stilling_workers::PoolCounters {
        self.processes.requests()
    }

    /// Ends the processes and waits for their end; `hurry` is asked now and then whether they should be killed at
    /// once.
    pub(crate) fn end(&self, hurry: impl Fn() -> bool) {
        self.processes.stop(self.config.processes.stop_timeout);
        while !self.processes.join(limits::SHUTDOWN_CHECK_INTERVAL) {
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
