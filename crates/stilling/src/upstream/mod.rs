//! Worker processes behind the server: any program that speaks HTTP/1.1 on a Unix socket, or frames on its standard input
//! and output. Stilling is its reverse proxy and protects it from overload.
//!
//! ```text
//!   client's session            UpstreamPools (of a shard)           UpstreamConnection       process
//!   UpstreamRequest ─ submit ─► queue ─► admission ─► ConnectionCommand ─► send ─────────────► socket
//!   UpstreamEvent ◄─ by Recipient ◄──── shard ◄─ Outbox ◄──────────────── decode, rewrite ◄───
//! ```
//!
//! A request carries the [`Recipient`](stilling_engine::Recipient) of its response: a connection of the shard, or the
//! peer of a datagram socket (CoAP). The pool is independent of client
//! protocols; a session submits through an `UpstreamHandle` and receives events as mail of the shard. Only the tests
//! here, which run whole servers, import `crate::http`.
//!
//! Connections to the processes are ordinary connections of the client's shard; no other thread takes part in a
//! request. A process receives a request only when it has a free slot. Other requests wait in the shards' queues, which
//! are bounded by length and by age, and cost the process nothing.
//!
//! A slow client holds no slot: its body is received before the request is queued, and the response is read as fast as
//! the process sends it. Bodies and responses beyond the limits ([`limits::BODY_HELD_MAX`],
//! [`limits::RESPONSE_HELD_MAX`], or the memory for all) continue piece by piece: the sender is read only as fast as the
//! receiver reads, and the client must keep to [`limits::SLOT_RATE_MIN`] meanwhile.
//!
//! A reset by the client is noticed within [`limits::CLIENT_CHECK_INTERVAL`]; a client that has only shut down its
//! sending direction is still answered. After a reset, a queued request leaves the queue at once. If a process has the
//! request, the connection to the process is half-closed, and the slot is freed when the process closes the connection
//! or answers, because it may work on the request until then. The same holds for a request that timed out, unless the
//! process is killed for it.
//!
//! A process that speaks frames has one connection, its socket pair, for all its life: each shard that gets its slot uses
//! a duplicate of the descriptor, one shard at a time. A request is sent whole and its response received whole, also
//! after its client has left; after anything else the process is replaced, because the next frame could not be found.
//!
//! Stilling sets `X-Forwarded-Proto`, `X-Forwarded-Host` and `X-Forwarded-For` (the client's address; absent for
//! connections in a ring's own descriptor table, `direct_descriptors`, for which the system reports no address). It
//! drops the client's fields `X-Forwarded-*`, `X-Real-IP`, `Forwarded` and `Proxy`, and those with `_` in the name,
//! which many programs confuse with `-`.
//!
//! With affinity ([`AppConfig::affinity`]) a client has a process of its own, in place of the common queue.
//!
//! Failures: 503 when no slot is free in time, 504 when a process does not answer in time (a process that hangs is
//! killed and restarted), 502 when a process dies or its response is not HTTP.

mod codec;
mod connection;
mod handle;
mod hop_by_hop;
mod idle_connections;
pub mod limits;
mod message;
mod outbox;
mod path_pattern;
mod pending_request;
mod pool;
mod pools;
mod process_sockets;
mod process_streams;
mod request;
mod request_queue;
mod request_table;
mod response;
pub(crate) mod session_state;
pub(crate) mod simulated;
mod socket_folder;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stilling_ring::Wake;
use stilling_workers::processes::{
    self, AffinityCounters, PROCESS_SETS, ProcessCounters, Processes, QueueLimits, WorkerProgram,
    standard_streams,
};
use stilling_workers::sessions::limits::{SESSION_IDLE_TIMEOUT, SESSIONS_MAX};
use stilling_workers::sessions::{SessionCounters, SessionLimits, SessionPort, SessionStore};

pub use codec::AppProtocol;
pub(crate) use connection::{UpstreamConnection, UpstreamContext};
pub(crate) use handle::UpstreamHandle;
pub(crate) use hop_by_hop::has_too_many_connection_options;
pub(crate) use message::{
    BodyFraming, ClientMessage, ResponsePiece, UpstreamEvent, UpstreamFailure, UpstreamResponse,
};
pub(crate) use outbox::{ConnectionCommand, UpstreamDelivery};
pub use path_pattern::{AppRoutes, PathPattern};
pub(crate) use pool::{ConnectTarget, UpstreamPool};
pub(crate) use pools::UpstreamPools;
pub(crate) use request::UpstreamRequest;
pub(crate) use request_table::{PoolIndex, RequestId};

use pool::ProcessEndpoints;
use process_sockets::{ProcessSockets, SocketProgram};
use process_streams::{ProcessStreams, StreamProgram};
use request_queue::RequestQueue;
use session_state::PoolSessions;

/// A pool of worker processes: their program, how they are run, and the paths that they answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppConfig {
    /// The pool's name in the log, the metrics and the pages: letters, digits, `-` and `_`, at most
    /// [`POOL_NAME_SIZE_MAX`](limits::POOL_NAME_SIZE_MAX) bytes. Default: `app`.
    pub name: String,
    /// The paths that the pool answers. Of several pools the one with the longest pattern answers. Default: all.
    pub paths: PathPattern,
    /// The command, for `/bin/sh`. With [`AppProtocol::Http`], `{socket}` in it, and `STILLING_SOCKET` in its
    /// environment, is the path of the Unix socket to listen on.
    pub command: String,
    /// The protocol of the processes.
    pub speaks: AppProtocol,
    /// The number of processes, their slots, restarts and recycling.
    pub processes: processes::ProcessLimits,
    /// How long a process may take to begin a response, or to continue reading a request's body or sending a response.
    /// More than zero. Reached before the response has begun: 504, and the process is killed and restarted if it hangs
    /// ([`SlotPermit::mark_overdue`](processes::SlotPermit::mark_overdue)). Reached after that: the response is cut
    /// off, and the process continues to run.
    pub timeout: Duration,
    /// Whether each client has a process of its own: a connection over HTTP, an address with its port over CoAP. Without
    /// a free one its requests are refused. Default: false.
    pub affinity: bool,
    /// Time without requests after which a client loses its process, up to
    /// [`AFFINITY_IDLE_MAX`](limits::AFFINITY_IDLE_MAX).
    pub affinity_idle: Duration,
    /// Sessions whose state the server keeps for the processes; 0: none. Up to
    /// [`SESSIONS_MAX_LIMIT`](stilling_workers::sessions::limits::SESSIONS_MAX_LIMIT).
    pub sessions_max: usize,
    /// Time without a request after which a session ends, up to
    /// [`SESSION_IDLE_MAX`](stilling_workers::sessions::limits::SESSION_IDLE_MAX).
    pub session_idle: Duration,
}

impl AppConfig {
    /// One process for `command`, one request at a time, 60 s for each, for all paths.
    pub fn new(command: impl Into<String>) -> Self {
        AppConfig {
            name: "app".to_owned(),
            paths: PathPattern::Everything,
            command: command.into(),
            speaks: AppProtocol::Http,
            processes: processes::ProcessLimits::default(),
            timeout: limits::TIMEOUT,
            affinity: false,
            affinity_idle: limits::AFFINITY_IDLE,
            sessions_max: SESSIONS_MAX,
            session_idle: SESSION_IDLE_TIMEOUT,
        }
    }

    /// Maximum concurrent requests of all processes, and connections to them.
    pub fn slots(&self) -> usize {
        self.processes.processes * self.processes.slots
    }

    /// Connection slots that each shard reserves for connections to the processes: for the maximum number of open ones,
    /// and for as many that are being closed; both also to the processes that a reload replaces.
    pub(crate) fn reserved_connects(&self) -> u32 {
        u32::try_from(2 * PROCESS_SETS * self.slots()).unwrap_or(u32::MAX)
    }
}

/// The processes of a pool.
pub struct App {
    config: AppConfig,
    processes: Processes,
    transport: Transport,
    sessions: SessionStore,
    /// Environment variables that the processes do not inherit.
    secrets: Vec<String>,
}

/// How the shards reach the processes.
enum Transport {
    Sockets(ProcessSockets),
    Streams(ProcessStreams),
}

/// What each shard has of a pool.
pub(crate) struct ShardQueues {
    queues: Vec<RequestQueue>,
    sessions: Vec<SessionPort>,
}

impl App {
    /// Sets up the processes without starting them, and a queue for each shard; `wakes` has one entry per shard. The
    /// processes do not inherit the environment variables `secrets`.
    ///
    /// # Errors
    /// If the system provides no private folder for the sockets, or no descriptor.
    pub(crate) fn new(
        config: AppConfig,
        secrets: Vec<String>,
        queue: QueueLimits,
        wakes: Vec<Arc<Wake>>,
    ) -> io::Result<(App, ShardQueues)> {
        let limits = SessionLimits::new(config.sessions_max, config.session_idle);
        let (sessions, session_ports) = SessionStore::new(limits, wakes.len());
        let limits = config.processes.clone();
        let (processes, queues) = if config.affinity {
            let (processes, queues) = Processes::new(limits, queue, wakes)?;
            let serving = config.processes.processes;
            let by_client = |queue| RequestQueue::by_client(queue, serving, config.affinity_idle);
            (processes, queues.into_iter().map(by_client).collect())
        } else {
            let (processes, queues) = Processes::new(limits, queue, wakes)?;
            (processes, queues.into_iter().map(RequestQueue::Common).collect())
        };
        let transport = match config.speaks {
            AppProtocol::Http => Transport::Sockets(ProcessSockets::new()?),
            AppProtocol::Frames => {
                Transport::Streams(ProcessStreams::new(PROCESS_SETS * config.processes.processes))
            }
        };
        let shard_queues = ShardQueues { queues, sessions: session_ports };
        Ok((App { config, processes, transport, sessions, secrets }, shard_queues))
    }

    /// The pool's part in each shard; `index` is its position in the configuration.
    pub(crate) fn pools(&self, index: PoolIndex, queues: ShardQueues) -> Vec<UpstreamPool> {
        let endpoints = match &self.transport {
            Transport::Sockets(sockets) => {
                let numbers = 0..PROCESS_SETS * self.config.processes.processes;
                ProcessEndpoints::Paths(numbers.map(|process| sockets.path(process)).collect())
            }
            Transport::Streams(streams) => ProcessEndpoints::Streams(streams.clone()),
        };
        let AppConfig { name, timeout, sessions_max, .. } = &self.config;
        let pool = |(queue, port)| {
            let sessions = (*sessions_max > 0).then(|| PoolSessions::new(port, name));
            UpstreamPool::new(index, queue, sessions, endpoints.clone(), *timeout)
        };
        queues.queues.into_iter().zip(queues.sessions).map(pool).collect()
    }

    pub(crate) fn start(&self) -> io::Result<()> {
        let program = self.program(self.config.command.clone());
        self.processes.start(&self.config.name, program, standard_streams())
    }

    /// Replaces the processes by those of another command, or of the same; see [`Processes::reload`].
    pub(crate) fn reload(&self, command: String) {
        self.processes.reload(self.program(command));
    }

    fn program(&self, command: String) -> Box<dyn WorkerProgram> {
        let secrets = self.secrets.clone();
        match &self.transport {
            Transport::Sockets(sockets) => Box::new(SocketProgram::new(command, secrets, sockets.clone())),
            Transport::Streams(streams) => Box::new(StreamProgram::new(command, secrets, streams.clone())),
        }
    }

    fn remove_sockets(&self) {
        if let Transport::Sockets(sockets) = &self.transport {
            sockets.remove();
        }
    }

    /// Counters of the requests for the pool.
    pub fn requests(&self) -> stilling_workers::PoolCounters {
        self.processes.requests()
    }

    /// Counters of the sessions.
    pub fn sessions(&self) -> SessionCounters {
        self.sessions.counters()
    }

    /// Counters of affinity.
    pub fn affinity(&self) -> AffinityCounters {
        self.processes.affinity()
    }

    /// Begins to stop the processes.
    pub(crate) fn begin_end(&self) {
        self.processes.stop(self.config.processes.stop_timeout);
    }

    /// Waits for the end of the processes. `kill_now` is polled: if it returns true, they are killed at once.
    pub(crate) fn wait_for_end(&self, kill_now: impl Fn() -> bool) {
        while !self.processes.join(limits::SHUTDOWN_CHECK_INTERVAL) {
            if kill_now() {
                self.processes.stop(Duration::ZERO);
            }
        }
        self.remove_sockets();
    }

    /// Counters of the processes.
    pub fn counters(&self) -> ProcessCounters {
        self.processes.counters()
    }

    /// The settings.
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
        self.remove_sockets();
    }
}
