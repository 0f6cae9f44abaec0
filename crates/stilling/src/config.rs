//! Configuration of a server, and its errors.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;
use stilling_engine::ShardConfig as EngineConfig;
use stilling_engine::driver::choice::DriverChoice;
use stilling_journal::OpenError;
use stilling_wire::http1::HttpLimits;
use stilling_workers::processes::{self, limits::PROCESSES_MAX, limits::SLOTS_MAX};
use stilling_workers::{PoolScaling, QueueTarget};

use crate::coap::{self, BridgeAccess, UnprovenPeers};
use crate::hand_over::{ActivationError, HandOverError, TakeOverConfig};
use crate::http::Timeouts;
use crate::packet_log::PacketLogConfig;
use crate::protocol::CustomListener;
use crate::settings::limits::{
    COAP_SOURCES_MAX, PACKET_LOG_FILE_SIZE_MAX, PACKET_LOG_FILE_SIZE_MIN, PACKET_LOG_FILES_MAX,
    PACKET_LOG_FILES_MIN,
};
use crate::settings::{MessagingConfig, SettingError, SourceRange};
use crate::upstream::limits::{AFFINITY_IDLE_MAX, POOL_NAME_SIZE_MAX, POOLS_MAX};
use crate::upstream::{AppConfig, AppProtocol};
use stilling_workers::sessions::limits::{SESSION_IDLE_MAX, SESSIONS_MAX_LIMIT};

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Addresses to listen on; port 0 takes a free port. Default: 127.0.0.1:9000.
    pub listen: Vec<SocketAddr>,
    /// Number of shards. Default: the cores that the process may use.
    pub shards: usize,
    /// Connections per shard. Default: 100,000, or what the descriptor limit allows.
    pub capacity: u32,
    /// Worker threads; 0: slow work runs in the shard. Default: as many as shards.
    pub worker_threads: usize,
    /// How the number of worker threads follows the load. Default: it is fixed.
    pub scaling: PoolScaling,
    /// Shards that may run slow work at the same time; such a shard does nothing else meanwhile. Default: none.
    pub accept_workers: usize,
    /// Jobs that may wait for a worker. Default: 4096.
    pub queue_max: usize,
    /// Maximum wait of a job. Default: 30 s.
    pub queue_age_max: Duration,
    /// Target wait to which a standing queue is cut; `None`: it is not cut. Default: the mean duration of jobs.
    pub queue_target: Option<QueueTarget>,
    /// Duration of a job of `/test/slow`. Default: 30 ms.
    pub slow_duration: Duration,
    /// The I/O driver. Default: `auto`.
    pub driver: DriverChoice,
    /// Keeps connections in the rings' descriptor tables (io_uring only): the limit of open files then applies to
    /// each shard and not to all together. Default: no.
    pub direct_descriptors: bool,
    /// Pins each shard to its own core. Default: no; it costs throughput where other processes use the cores too.
    pub pin: bool,
    /// Also answers `/test/*` on listeners that are not loopback, and beside routes.
    pub demo: bool,
    /// Also answers `/publish/*` without credentials on listeners that are not loopback. Default: no.
    pub open_publish: bool,
    /// Where `/status`, `/metrics`, `/livez` and `/readyz` are answered. Default: at every listener.
    pub admin: Admin,
    /// Bytes per shard of requests that wait for their bodies or for workers; more are answered 503. Default: 64 MiB.
    pub requests_held_max: usize,
    /// Bytes per shard of handlers' responses that wait for slow clients; further requests are answered 503. A
    /// streamed response counts as one piece, about 32 KiB, from its beginning to its end. Default: 256 MiB.
    pub responses_held_max: usize,
    /// Limits of the HTTP decoder.
    pub limits: HttpLimits,
    /// Timeouts for clients.
    pub timeouts: Timeouts,
    /// The engine's timeouts and bounds. Its `capacity` is replaced by the one above.
    pub engine: EngineConfig,
    /// Bytes of the kernel's send buffer per connection; `None`: the system's tuning.
    pub send_buffer: Option<usize>,
    /// TCP congestion control of accepted connections; `None`: the system's.
    pub congestion: Option<String>,
    /// Takes over from the server at a control socket, and hands over to the next server there. Default: no.
    pub take_over: Option<TakeOverConfig>,
    /// Also accepts from the listeners that the parent process passes (sd_listen_fds(3)). Default: no.
    pub passed_listeners: bool,
    /// Addresses for CoAP over UDP, each with a socket per shard; port 0 takes a free port. Default: none.
    pub coap: Vec<SocketAddr>,
    /// The server also starts without those addresses of `coap` that cannot be opened, and logs them. Default: no.
    pub coap_is_optional: bool,
    /// The CoAP clients that get at most three times the bytes of their requests until they prove their address. Default:
    /// remote ones.
    pub coap_unproven: UnprovenPeers,
    /// Average handling time of a pool of worker processes beyond which each accept thread sheds new CoAP requests for
    /// it. Default: 2 s.
    pub coap_slow_time: Duration,
    /// Addresses that may publish and subscribe over CoAP, without credentials, beside loopback addresses. With users
    /// loopback addresses need to be named as well. Default: none.
    pub coap_sources: Vec<SourceRange>,
    /// Bytes of the kernel's receive buffer that each UDP socket requests; a line of the log tells if the system grants
    /// less. Default: up to 4 MiB, without a line.
    pub datagram_receive_buffer: Option<usize>,
    /// Records all datagrams of UDP sockets in files. Default: no.
    pub packet_log: Option<PacketLogConfig>,
    /// Pools of worker processes, in place of worker threads and handlers; at most
    /// [`POOLS_MAX`](crate::upstream::limits::POOLS_MAX). Each answers the paths of its pattern, except the admin pages
    /// and the paths of the hub where they are enabled; paths without a pool are not found. Default: none.
    pub apps: Vec<AppConfig>,
    /// [Custom protocols](crate::protocol), each with its listener; at most
    /// [`HUB_LISTENERS_MAX`](crate::settings::limits::HUB_LISTENERS_MAX). With one the server has a hub. Default:
    /// none.
    pub protocols: Vec<CustomListener>,
    /// NATS, syslog, streams and users. Default: see [`MessagingConfig`].
    pub hub: MessagingConfig,
    /// Where the hub runs. Default: `Auto`.
    pub hub_thread: HubThread,
    /// Writes a line to the log: at the start, on the starting thread; on separate threads when the condition of a
    /// stream changes, a SYN flood begins or ends, and a backlog changes. Default: no log.
    pub log: Option<fn(&str)>,
}

/// Where the hub runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HubThread {
    /// On its own thread if the process may use more than two cores or a stream has a gate that is not built in, else
    /// in the first shard.
    #[default]
    Auto,
    /// In the first shard.
    Shard,
    /// On its own thread.
    Dedicated,
}

/// Where the admin pages are answered: `/status`, `/metrics`, `/livez`, `/readyz`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admin {
    /// At every listener, beside its other routes.
    #[default]
    Everywhere,
    /// At a separate listener, which answers nothing else. At the others these paths belong to routes and worker
    /// processes. Port 0 takes a free port: see [`Server::admin_address`](crate::Server::admin_address).
    At(SocketAddr),
    /// Nowhere.
    Off,
}

impl Admin {
    /// The address of the separate listener.
    #[must_use]
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            Admin::At(address) => Some(address),
            Admin::Everywhere | Admin::Off => None,
        }
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        ServeConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 9000))],
            shards: cores,
            capacity: 100_000,
            worker_threads: cores,
            scaling: PoolScaling::default(),
            accept_workers: 0,
            queue_max: 4096,
            queue_age_max: Duration::from_secs(30),
            queue_target: Some(QueueTarget::Service),
            slow_duration: Duration::from_millis(30),
            driver: DriverChoice::Auto,
            direct_descriptors: false,
            pin: false,
            demo: false,
            open_publish: false,
            admin: Admin::Everywhere,
            requests_held_max: 64 * 1024 * 1024,
            responses_held_max: 256 * 1024 * 1024,
            limits: HttpLimits::default(),
            timeouts: Timeouts::default(),
            engine: EngineConfig::default(),
            send_buffer: None,
            congestion: None,
            take_over: None,
            passed_listeners: false,
            coap: Vec::new(),
            coap_is_optional: false,
            coap_unproven: UnprovenPeers::default(),
            coap_slow_time: coap::limits::SLOW_TIME,
            coap_sources: Vec::new(),
            datagram_receive_buffer: None,
            packet_log: None,
            apps: Vec::new(),
            protocols: Vec::new(),
            hub: MessagingConfig::default(),
            hub_thread: HubThread::Auto,
            log: None,
        }
    }
}

impl ServeConfig {
    /// Checks the configuration of a server with or without routes. Opens nothing.
    ///
    /// # Errors
    /// [`ServeError::Config`] with the first problem.
    pub fn check(&self, has_routes: bool) -> Result<(), ServeError> {
        let most = stilling_workers::QUEUE_MAX_LIMIT;
        let scaling = self.scaling;
        let threads_max = if scaling.is_enabled() { scaling.threads_max } else { self.worker_threads };
        self.check_apps()?;
        if let Some(PacketLogConfig { file_size_max, files_max, .. }) = &self.packet_log {
            in_range("packet_log.files_max", *files_max, PACKET_LOG_FILES_MIN, PACKET_LOG_FILES_MAX)?;
            let size = usize::try_from(*file_size_max).unwrap_or(usize::MAX);
            let (least, most) = (PACKET_LOG_FILE_SIZE_MIN, PACKET_LOG_FILE_SIZE_MAX);
            in_range("packet_log.file_size_max", size, least, most)?;
        }
        if !self.apps.is_empty() && has_routes {
            return Err(ServeError::Config(
                "apps has a pool, and there are routes: worker processes answer everything, so no handler would be called"
                    .into(),
            ));
        }
        in_range("queue_max", self.queue_max, 1, most)?;
        in_range("the number of worker threads", threads_max, 0, most)?;
        if !scaling.is_valid_for(self.worker_threads) {
            let threads = self.worker_threads;
            return Err(ServeError::Config(format!(
                "scaling does not fit {threads} worker threads: {scaling:?}"
            )));
        }
        if self.direct_descriptors && !self.hub.syslog_tcp.is_empty() {
            return Err(ServeError::Config(
                "direct descriptors do not provide peer addresses, which syslog over TCP needs for syslog-source: use only one of the two"
                    .into(),
            ));
        }
        let first = self.problems().into_iter().next();
        first.map_or(Ok(()), |problem| Err(ServeError::Config(problem.to_string())))
    }

    fn check_apps(&self) -> Result<(), ServeError> {
        in_range("the number of apps", self.apps.len(), 0, POOLS_MAX)?;
        for (index, app) in self.apps.iter().enumerate() {
            let processes::ProcessLimits { processes, slots, .. } = app.processes;
            in_range("app.processes.processes", processes, 1, PROCESSES_MAX)?;
            in_range("app.processes.slots", slots, 1, SLOTS_MAX)?;
            if app.speaks == AppProtocol::Frames && slots > 1 {
                return Err(ServeError::Config(format!(
                    "app.processes.slots is {slots}; a process that speaks frames serves one request at a time"
                )));
            }
            if app.timeout.is_zero() {
                return Err(ServeError::Config("app.timeout is zero; it must be positive".into()));
            }
            if app.affinity_idle.is_zero() || app.affinity_idle > AFFINITY_IDLE_MAX {
                return Err(ServeError::Config(format!(
                    "app.affinity_idle is {:?}; it must be positive, and at most {AFFINITY_IDLE_MAX:?}",
                    app.affinity_idle
                )));
            }
            in_range("app.sessions_max", app.sessions_max, 0, SESSIONS_MAX_LIMIT)?;
            if app.session_idle.is_zero() || app.session_idle > SESSION_IDLE_MAX {
                return Err(ServeError::Config(format!(
                    "app.session_idle is {:?}; it must be positive, and at most {SESSION_IDLE_MAX:?}",
                    app.session_idle
                )));
            }
            let name = &app.name;
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if !(1..=POOL_NAME_SIZE_MAX).contains(&name.len()) || !name.bytes().all(is_word) {
                return Err(ServeError::Config(format!(
                    "`{name}` is not a name of a pool: 1 to {POOL_NAME_SIZE_MAX} letters, digits, - and _"
                )));
            }
            let before = &self.apps[..index];
            if before.iter().any(|other| other.name == *name) {
                return Err(ServeError::Config(format!("there are two pools with the name `{name}`")));
            }
            if let Some(other) = before.iter().find(|other| other.paths == app.paths) {
                let (other, paths) = (&other.name, &app.paths);
                return Err(ServeError::Config(format!(
                    "the pools `{other}` and `{name}` both answer {paths}; give each its own paths"
                )));
            }
        }
        Ok(())
    }

    /// All problems of listeners, streams and users.
    #[must_use]
    pub fn problems(&self) -> Vec<SettingError> {
        let protocols: Vec<SocketAddr> = self.protocols.iter().map(|listener| listener.address).collect();
        let mut problems = self.hub.problems_with_protocols(&self.http_addresses(), &protocols, &self.coap);
        if self.coap_sources.len() > COAP_SOURCES_MAX {
            let count = self.coap_sources.len();
            let reason = format!("{count} ranges exceed the maximum of {COAP_SOURCES_MAX}");
            problems.push(SettingError::option("coap-source", reason));
        }
        problems
    }

    /// Whether the server has a hub: if anything can publish to it.
    pub(crate) fn has_hub(&self) -> bool {
        self.hub.has_listeners() || !self.protocols.is_empty()
    }

    /// The addresses that may publish and subscribe over CoAP; none without a hub.
    pub(crate) fn coap_access(&self) -> BridgeAccess {
        let is_open = self.hub.users.is_empty();
        let loopback = if is_open { SourceRange::loopback() } else { Vec::new() };
        let sources = loopback.into_iter().chain(self.coap_sources.iter().copied());
        BridgeAccess::new(sources.filter(|_| self.has_hub()))
    }

    /// The HTTP addresses, each with the name of its option.
    #[must_use]
    pub fn http_addresses(&self) -> Vec<(&'static str, SocketAddr)> {
        let admin = self.admin.address().map(|address| ("admin", address));
        self.listen.iter().map(|address| ("listen", *address)).chain(admin).collect()
    }
}

fn in_range(name: &str, value: usize, least: usize, most: usize) -> Result<(), ServeError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ServeError::Config(format!("{name} is {value}; it must be in the range {least} to {most}")))
}

/// Why a server did not start, or stopped.
#[derive(Debug)]
pub enum ServeError {
    /// The configuration contradicts itself, or a value is out of range: the value and what is allowed.
    Config(String),
    /// An address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// An address overlaps an address of the predecessor that this server is not configured to listen on.
    Overlap {
        /// The configured address.
        address: SocketAddr,
        /// The predecessor's address.
        predecessor_address: SocketAddr,
    },
    /// A Unix socket cannot be made at this path.
    SocketFile(std::path::PathBuf, io::Error),
    /// The requested driver is not available.
    Driver(io::Error),
    /// Direct descriptors were requested and are not available.
    DirectDescriptors(io::Error),
    /// The descriptor limit leaves no room for one connection per shard.
    DescriptorLimit(u64),
    /// A shard would have too many listeners: their number and the maximum.
    TooManyListeners(usize, u32),
    /// The parent process passed invalid variables or descriptors.
    Activation(ActivationError),
    /// The parent process passed a descriptor that cannot be listened on: its name and the error.
    PassedListener(String, io::Error),
    /// The listeners could not be copied for a successor.
    CopyListeners(io::Error),
    /// The predecessor did not hand over to this server.
    HandOver(HandOverError),
    /// The data directory cannot hold streams: the reason.
    Data(String),
    /// The streams on disk cannot be opened.
    OpenStreams(OpenError),
    /// A thread could not be started.
    Threads(io::Error),
    /// The worker processes cannot be prepared or started.
    App(io::Error),
    /// A shard failed: its number and the error.
    Shard(usize, io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Config(what) => write!(f, "invalid configuration: {what}"),
            ServeError::Listen(address, error) => {
                write!(f, "cannot listen on {address}: {}", why_not(address, error))
            }
            ServeError::SocketFile(path, error) if error.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "cannot bind the socket {}: another process receives there, or the file is not a socket; stop the process, remove the file, or choose another path",
                path.display()
            ),
            ServeError::SocketFile(path, error) => {
                write!(f, "cannot bind the socket {}: {error}", path.display())
            }
            ServeError::Overlap { address, predecessor_address } => write!(
                f,
                "cannot listen on {address}: the predecessor listens on {predecessor_address}, which overlaps it; configure both, or stop the predecessor first"
            ),
            ServeError::Driver(error) => {
                write!(f, "io_uring is not available here ({error}); use --driver poll, or auto")
            }
            ServeError::DirectDescriptors(error) => {
                write!(
                    f,
                    "direct descriptors are not available here: {error}; serve without --direct-descriptors"
                )
            }
            ServeError::DescriptorLimit(limit) => write!(
                f,
                "the limit of {limit} open files leaves no room for connections; raise it (ulimit -n) or use fewer accept threads"
            ),
            ServeError::TooManyListeners(listeners, most) => write!(
                f,
                "{listeners} listeners for one accept thread are more than the {most} it can have; use more accept threads"
            ),
            ServeError::Activation(error) => error.fmt(f),
            ServeError::PassedListener(name, error) if error.kind() == io::ErrorKind::InvalidInput => {
                write!(f, "the parent process passed `{name}`, which is not a listening TCP socket")
            }
            ServeError::PassedListener(name, error) => {
                write!(f, "cannot listen on `{name}`, which the parent process passed: {error}")
            }
            ServeError::CopyListeners(error) => write!(f, "cannot keep listeners for a successor: {error}"),
            ServeError::HandOver(error) => write!(f, "cannot take over: {error}"),
            ServeError::App(error) => write!(f, "cannot prepare the worker processes: {error}"),
            ServeError::Data(reason) => write!(f, "cannot store streams: {reason}"),
            ServeError::OpenStreams(error) => write!(f, "cannot open the streams: {error}"),
            ServeError::Threads(error) => write!(f, "cannot start a thread: {error}"),
            ServeError::Shard(number, error) => write!(f, "shard {number} failed: {error}"),
        }
    }
}

/// The meaning of the system's error for an address, with a remedy.
fn why_not(address: &SocketAddr, error: &io::Error) -> String {
    let all = if address.is_ipv6() { "[::]" } else { "0.0.0.0" };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ADDRINUSE) => "another process listens there; stop it or choose another port".to_owned(),
        Some(Errno::ADDRNOTAVAIL) => {
            format!("no network interface of this machine has that address; {all} listens on all interfaces")
        }
        Some(Errno::AFNOSUPPORT) => "this machine has no IPv6".to_owned(),
        Some(Errno::ACCESS) if address.port() < 1024 => format!(
            "this user may not listen on port {}; choose one from 1024 on, or run with CAP_NET_BIND_SERVICE",
            address.port()
        ),
        Some(Errno::MFILE) => {
            "too few open files are allowed; raise the limit (ulimit -n) or use fewer accept threads"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServeError::Listen(_, error)
            | ServeError::SocketFile(_, error)
            | ServeError::Driver(error)
            | ServeError::DirectDescriptors(error)
            | ServeError::PassedListener(_, error)
            | ServeError::CopyListeners(error)
            | ServeError::Threads(error)
            | ServeError::App(error)
            | ServeError::Shard(_, error) => Some(error),
            ServeError::Activation(error) => Some(error),
            ServeError::HandOver(error) => Some(error),
            ServeError::OpenStreams(error) => Some(error),
            ServeError::Config(_)
            | ServeError::Data(_)
            | ServeError::Overlap { .. }
            | ServeError::DescriptorLimit(_)
            | ServeError::TooManyListeners(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::protocol::unopened_listener;

    /// Cases: a change of the defaults, whether there are routes, and a part of the error.
    #[test]
    fn an_invalid_configuration_is_refused_before_anything_is_opened() {
        type ServeConfigChange = fn(&mut ServeConfig);
        fn app(config: &mut ServeConfig) -> &mut AppConfig {
            config.apps = vec![AppConfig::new("true")];
            &mut config.apps[0]
        }
        let check = |change: ServeConfigChange, has_routes: bool| {
            let mut config = ServeConfig::default();
            change(&mut config);
            config.check(has_routes)
        };
        assert!(check(|_| (), true).is_ok());
        assert!(check(|config| _ = app(config), false).is_ok());
        assert!(check(|config| config.worker_threads = 0, false).is_ok());
        fn protocols(config: &mut ServeConfig, addresses: &[&str]) {
            let listener = |address: &&str| unopened_listener(address.parse().expect("an address"));
            config.protocols = addresses.iter().map(listener).collect();
        }
        assert!(check(|config| protocols(config, &["127.0.0.1:9001", "127.0.0.1:0"]), true).is_ok());
        let wrong: [(ServeConfigChange, bool, &str); 25] = [
            (|config| app(config).name = "a b".to_owned(), false, "`a b` is not a name of a pool"),
            (
                |config| config.apps = vec![AppConfig::new("true"); 2],
                false,
                "there are two pools with the name `app`",
            ),
            (
                |config| {
                    let other = AppConfig { name: "b".to_owned(), ..AppConfig::new("true") };
                    config.apps = vec![AppConfig::new("true"), other];
                },
                false,
                "the pools `app` and `b` both answer /*",
            ),
            (
                |config| config.admin = Admin::At(config.listen[0]),
                true,
                "admin: 127.0.0.1:9000 is taken: `listen`",
            ),
            (
                |config| config.listen = vec![config.listen[0]; 2],
                true,
                "listen: 127.0.0.1:9000 is named twice",
            ),
            (|config| app(config).processes.processes = 0, false, "processes is 0"),
            (|config| app(config).processes.processes = PROCESSES_MAX + 1, false, "processes is 1025"),
            (|config| app(config).processes.slots = 0, false, "slots is 0"),
            (|config| app(config).processes.slots = SLOTS_MAX + 1, false, "slots is 1025"),
            (
                |config| {
                    let app = app(config);
                    (app.speaks, app.processes.slots) = (AppProtocol::Frames, 2);
                },
                false,
                "slots is 2; a process that speaks frames serves one request at a time",
            ),
            (|config| app(config).timeout = Duration::ZERO, false, "app.timeout is zero"),
            (|config| app(config).affinity_idle = Duration::ZERO, false, "app.affinity_idle is 0ns"),
            (|config| app(config).affinity_idle = Duration::MAX, false, "at most 86400s"),
            (|config| app(config).session_idle = Duration::ZERO, false, "app.session_idle is 0ns"),
            (|config| app(config).session_idle = Duration::MAX, false, "at most 604800s"),
            (|config| app(config).sessions_max = 1_000_001, false, "app.sessions_max is 1000001"),
            (|config| _ = app(config), true, "there are routes"),
            (|config| config.queue_max = 0, false, "queue_max is 0"),
            (
                |config| {
                    config.direct_descriptors = true;
                    config.hub.syslog_tcp = vec![SocketAddr::from(([127, 0, 0, 1], 514))];
                },
                false,
                "do not provide peer addresses",
            ),
            (
                |config| {
                    config.worker_threads = 0;
                    config.scaling.free_threshold = 10;
                },
                false,
                "scaling does not fit 0 worker threads",
            ),
            (
                |config| protocols(config, &["0.0.0.0:9000"]),
                true,
                "protocols: 0.0.0.0:9000 is taken: `listen` listens on 127.0.0.1:9000",
            ),
            (
                |config| {
                    config.hub.nats = vec![SocketAddr::from(([127, 0, 0, 1], 4222))];
                    protocols(config, &["127.0.0.1:4222"]);
                },
                true,
                "protocols: 127.0.0.1:4222 is taken: `nats` listens on",
            ),
            (
                |config| protocols(config, &["127.0.0.1:7"; 2]),
                true,
                "protocols: 127.0.0.1:7 is taken: `protocols` listens on",
            ),
            (
                |config| protocols(config, &["127.0.0.1:7", "0.0.0.0:7"]),
                true,
                "protocols: 0.0.0.0:7 is taken: `protocols` listens on 127.0.0.1:7",
            ),
            (
                |config| protocols(config, &["127.0.0.1:0"; 65]),
                true,
                "protocols: 65 addresses exceed the maximum of 64",
            ),
        ];
        for (change, has_routes, named) in wrong {
            let error = check(change, has_routes).expect_err(named);
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    /// Row 4.19: the error line names the next step without a system manual.
    #[test]
    fn an_address_that_is_refused_is_explained() {
        for (address, errno, explanation) in [
            ("127.0.0.1:9000", Errno::ADDRINUSE, "another process listens there"),
            ("192.0.2.1:9000", Errno::ADDRNOTAVAIL, "has that address; 0.0.0.0 listens on"),
            ("[2001:db8::1]:9000", Errno::ADDRNOTAVAIL, "has that address; [::] listens on"),
            ("[::1]:9000", Errno::AFNOSUPPORT, "no IPv6"),
            ("0.0.0.0:80", Errno::ACCESS, "this user may not listen on port 80; choose"),
            ("0.0.0.0:8000", Errno::ACCESS, "Permission denied"),
            ("0.0.0.0:80", Errno::MFILE, "ulimit -n"),
            ("0.0.0.0:80", Errno::NOBUFS, "No buffer space"),
        ] {
            let error = ServeError::Listen(address.parse().unwrap(), errno.into()).to_string();
            assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
            assert!(error.contains(explanation), "{error}");
        }
    }

    #[test]
    fn an_error_of_the_system_is_the_source() {
        let error = ServeError::Threads(io::ErrorKind::WouldBlock.into());
        assert!(error.source().is_some_and(<dyn Error>::is::<io::Error>));
        assert!(ServeError::DescriptorLimit(1).source().is_none());
    }
}
