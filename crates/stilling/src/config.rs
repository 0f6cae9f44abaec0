//! What can be chosen about a server, and what can go wrong with it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use stilling_engine::Config as EngineConfig;
use stilling_engine::driver::choice::DriverChoice;
use stilling_wire::http1::Limits;
use stilling_workers::{Growth, QueueTarget};

use crate::app::AppConfig;
use crate::hand_over::{ActivationError, HandOverError, TakeOver};
use crate::http::Timeouts;

/// Everything that can be chosen about a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where to listen; port 0 takes a free port. Default: 127.0.0.1:9000.
    pub listen: Vec<SocketAddr>,
    /// Shards. Default: as many as the process may use cores.
    pub shards: usize,
    /// Connections per shard. Default: 100,000, or what the descriptor limit allows.
    pub capacity: u32,
    /// Worker threads; 0: slow work runs in the shard. Default: as many as shards.
    pub worker_threads: usize,
    /// How the number of worker threads follows the work. Default: it does not.
    pub growth: Growth,
    /// How many shards may do slow work themselves at the same time, and nothing else meanwhile. Default: none.
    pub accept_workers: usize,
    /// Jobs that may wait for a worker. Default: 4096.
    pub queue_max: usize,
    /// How long a job may wait. Default: 30 s.
    pub queue_age_max: Duration,
    /// The wait that a standing queue is cut to; `None`: it is not cut. Default: `None`.
    pub queue_target: Option<QueueTarget>,
    /// How long slow work takes. Default: 30 ms.
    pub slow_duration: Duration,
    /// Which driver. Default: `auto`.
    pub driver: DriverChoice,
    /// Keep connections in descriptor tables of the rings (io_uring only): the limit of open files then holds
    /// for each shard and not for all together. Default: no.
    pub direct_descriptors: bool,
    /// Keep each shard on a core of its own. Default: no; it costs where others use the cores too.
    pub pin: bool,
    /// Answer `/test/*` on listeners that are not loopback, too, and beside routes.
    pub demo: bool,
    /// Bytes of requests, per shard, that may wait for their bodies or for workers, for handlers; more
    /// are answered 503. Default: 64 MiB.
    pub requests_held_max: usize,
    /// What the HTTP decoder accepts.
    pub limits: Limits,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// The engine's own timeouts and bounds; its capacity is replaced by the one above.
    pub engine: EngineConfig,
    /// Bytes of the kernel's send buffer per connection; `None`: the system's tuning.
    pub send_buffer: Option<usize>,
    /// TCP congestion control of accepted connections; `None`: the system's.
    pub congestion: Option<String>,
    /// Succeed the server at a control socket, and be succeeded there. Default: no.
    pub take_over: Option<TakeOver>,
    /// Accept from the listeners that the parent process passes (sd_listen_fds(3)), too. Default: no.
    pub passed_listeners: bool,
    /// Worker processes that answer everything but the pages about the server itself. They take the place of worker
    /// threads and handlers. Default: none.
    pub app: Option<AppConfig>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        ServeConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 9000))],
            shards: cores,
            capacity: 100_000,
            worker_threads: cores,
            growth: Growth::default(),
            accept_workers: 0,
            queue_max: 4096,
            queue_age_max: Duration::from_secs(30),
            queue_target: None,
            slow_duration: Duration::from_millis(30),
            driver: DriverChoice::Auto,
            direct_descriptors: false,
            pin: false,
            demo: false,
            requests_held_max: 64 * 1024 * 1024,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            engine: EngineConfig::default(),
            send_buffer: None,
            congestion: None,
            take_over: None,
            passed_listeners: false,
            app: None,
        }
    }
}

/// Why a server did not start, or stopped.
#[derive(Debug)]
pub enum ServeError {
    /// An address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// The demanded driver is not available.
    Driver(io::Error),
    /// Direct descriptors were demanded and are not available.
    DirectDescriptors(io::Error),
    /// The descriptor limit leaves no room for a single connection per shard.
    Descriptors(u64),
    /// A shard would have so many listeners, and the most that it can have.
    Listeners(usize, u32),
    /// The parent process passed something wrong.
    Activation(ActivationError),
    /// The parent process passed a descriptor that cannot be listened on: its name and why.
    Passed(String, io::Error),
    /// The listeners could not be copied for a successor.
    Copies(io::Error),
    /// The server before did not hand over, or not to this one.
    HandOver(HandOverError),
    /// A thread could not be started.
    Threads(io::Error),
    /// The worker processes cannot be prepared or started.
    App(io::Error),
    /// A shard failed.
    Shard(usize, io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Listen(address, error) if error.kind() == io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "cannot listen on {address}: another process listens there; stop it or choose another port"
                )
            }
            ServeError::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            ServeError::Driver(error) => {
                write!(f, "io_uring is not available here ({error}); use --driver poll, or auto")
            }
            ServeError::DirectDescriptors(error) => {
                write!(
                    f,
                    "direct descriptors are not available here: {error}; serve without --direct-descriptors"
                )
            }
            ServeError::Descriptors(limit) => write!(
                f,
                "the limit of {limit} open files leaves no room for connections; raise it (ulimit -n) or use fewer accept threads"
            ),
            ServeError::Listeners(listeners, most) => write!(
                f,
                "{listeners} listeners for one accept thread are more than the {most} it can have; use more accept threads"
            ),
            ServeError::Activation(error) => error.fmt(f),
            ServeError::Passed(name, error) if error.kind() == io::ErrorKind::InvalidInput => {
                write!(f, "the parent process passed `{name}`, which is no listening TCP socket")
            }
            ServeError::Passed(name, error) => {
                write!(f, "cannot listen on `{name}`, which the parent process passed: {error}")
            }
            ServeError::Copies(error) => write!(f, "cannot keep listeners for a successor: {error}"),
            ServeError::HandOver(error) => write!(f, "cannot take over: {error}"),
            ServeError::App(error) => write!(f, "cannot prepare the worker processes: {error}"),
            ServeError::Threads(error) => write!(f, "cannot start a thread: {error}"),
            ServeError::Shard(number, error) => write!(f, "shard {number} failed: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}
