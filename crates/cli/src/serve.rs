//! `stilling serve`: the options and their defaults.

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{ArgAction, Args, ValueEnum};
use stilling::hand_over::{TakeOverConfig, are_listeners_passed};
use stilling::http::{Routes, Timeouts};
use stilling::settings::SourceRange;
use stilling::upstream::{AppConfig, AppProtocol};
use stilling::{
    Admin, DriverChoice, PacketLogConfig, PoolScaling, QueueTarget, ServeConfig, Server, UnprovenPeers,
};

use stilling_engine::DatagramDropPolicy;

use crate::hub::HubArguments;
use crate::reload;
use crate::resolved::{COAP_DEFAULT, ResolvedSettings};
use crate::settings::render::{self, ComputedDefaults};
use crate::settings::tables;
use crate::settings::units::{address, bytes, read_seconds};
use crate::settings::{Diagnostic, Diagnostics, SettingOrigin, SettingSources, SettingTable};
use crate::warnings::warnings;

const SOURCES_HELP: &str = "\
Each option is also a key of the file and a variable of the environment: max-queue and STILLING_MAX_QUEUE for --max-queue. \
Options override variables, variables override the file. `stilling options` lists all, `stilling check` verifies them.";

/// Options of `serve`. Capital short names are those of server-demo.
#[derive(Args)]
#[command(disable_help_flag = true, after_help = SOURCES_HELP)]
pub(crate) struct ServeArguments {
    /// Read settings from this file [default: stilling.toml in the current directory, if there is one]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Print the settings at the start and the counters at the end to standard output
    #[arg(short, long)]
    verbose: bool,
    /// Detach from the terminal and run in the background
    #[arg(short, long)]
    daemonize: bool,
    /// Listen on this port of 127.0.0.1 [default: 9000]
    #[arg(short, long, value_name = "PORT", conflicts_with = "listen",
          value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Listen on this address, such as 0.0.0.0:80 or [::]:9000; port 0 takes a free one; repeatable
    #[arg(short, long, value_name = "ADDRESS", value_parser = address())]
    listen: Vec<SocketAddr>,
    /// Receive CoAP requests on this address; repeatable [default: 127.0.0.1:5683, if no listener is named]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    coap: Vec<SocketAddr>,
    /// Take over from the server with this control socket, without a refused connection or the loss of an acknowledged
    /// message; then listen there for the next server. Each service needs its own path. With --daemonize the path is
    /// resolved before the server changes to /, and a command of --app starts after that
    #[arg(long, value_name = "PATH")]
    take_over: Option<PathBuf>,
    /// Accept threads, each with its own listeners [default: number of cores]
    #[arg(short = 'A', long, value_name = "N", value_parser = at_least_one())]
    accept_threads: Option<u32>,
    /// Maximum concurrent connections per accept thread; more wait in the backlog
    #[arg(short = 'C', long, value_name = "N", default_value_t = 100_000, value_parser = at_least_one())]
    accept_capacity: u32,
    /// Worker threads; 0 runs slow work in the accept threads [default: number of accept threads]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    worker_threads: Option<u32>,
    /// Duration of slow work in milliseconds
    #[arg(short = 'D', long, value_name = "MS", default_value_t = 30)]
    slow_duration: u32,
    /// Kernel interface; auto uses io_uring where it is allowed
    #[arg(long, value_enum, default_value_t = ServeDriver::Auto)]
    driver: ServeDriver,
    /// Keep connections out of the process's descriptor table (io_uring, Linux 6.13): the limit of open files then
    /// applies per accept thread, not to all together
    #[arg(long)]
    direct_descriptors: bool,
    /// Pin each accept thread to a core: for dedicated machines
    #[arg(long)]
    pin: bool,
    /// Serve /status, /metrics, /livez and /readyz on this address only, and nothing else there; off: nowhere [default:
    /// on every address]
    #[arg(long, value_name = "ADDRESS|off", value_parser = admin())]
    admin: Option<Admin>,
    /// Serve /test/* on non-loopback addresses, too
    #[arg(long)]
    demo: bool,
    /// Allow publishing by /publish/* without credentials on non-loopback addresses, too
    #[arg(long)]
    open_publish: bool,
    #[command(flatten)]
    hub: HubArguments,
    #[command(flatten)]
    datagrams: DatagramArguments,
    #[command(flatten)]
    elastic: ElasticArguments,
    #[command(flatten)]
    app: AppArguments,
    #[command(flatten)]
    limits: LimitArguments,
    #[command(flatten)]
    timeouts: TimeoutArguments,
    /// Print help
    #[arg(short = '?', visible_short_alias = 'h', long, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

/// UDP sockets: overload, unproven clients, the packet log.
#[derive(Args)]
#[command(next_help_heading = "Datagrams")]
struct DatagramArguments {
    /// Bytes of the kernel's receive buffer per UDP socket; a log line tells if the system grants less [default: up
    /// to 4 MiB]
    #[arg(long, value_name = "BYTES", value_parser = bytes(4096..=1_073_741_824))]
    datagram_receive_buffer: Option<u64>,
    /// Which of the CoAP datagrams that wait for an accept thread is dropped if there are too many; oldest serves the
    /// freshest requests
    #[arg(long, value_enum, default_value_t = DropChoice::Oldest)]
    datagram_drop: DropChoice,
    /// CoAP clients that get at most three times the bytes of their requests until they return an Echo value
    #[arg(long, value_enum, default_value_t = UnprovenChoice::Remote)]
    coap_unproven: UnprovenChoice,
    /// Average seconds of CoAP requests at worker processes, waiting included, beyond which new ones for the same pool
    /// are answered 5.03 or 4.29 unless a worker is free for them
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds())]
    coap_slow_time: f64,
    /// Address range whose CoAP clients may publish and subscribe without credentials, such as 10.0.0.0/8, with a fresh
    /// Echo value; repeatable [default: loopback addresses, if there are no users]
    #[arg(long, value_name = "RANGE")]
    coap_source: Vec<SourceRange>,
    /// Record every datagram of UDP sockets in pcapng files in this directory, for tshark and Wireshark
    #[arg(long, value_name = "DIRECTORY")]
    packet_log: Option<PathBuf>,
    /// Bytes of a file of the packet log; then the next one begins
    #[arg(long, value_name = "BYTES", default_value_t = 67_108_864, requires = "packet_log", value_parser = bytes(1_048_576..=1_099_511_627_776))]
    packet_log_file_size: u64,
    /// Files of the packet log; the oldest is removed for the next one
    #[arg(long, value_name = "N", default_value_t = 16, requires = "packet_log", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    packet_log_files: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum DropChoice {
    /// The one that has waited longest
    Oldest,
    /// The one that arrives
    Newest,
}

#[derive(Clone, Copy, ValueEnum)]
enum UnprovenChoice {
    /// Clients beyond loopback; some bytes per second are free, for clients without Echo
    Remote,
    /// Every client, without exception
    All,
}

impl DatagramArguments {
    fn apply(&self, config: &mut ServeConfig) {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        config.datagram_receive_buffer = self.datagram_receive_buffer.map(size);
        config.coap_unproven = match self.coap_unproven {
            UnprovenChoice::Remote => UnprovenPeers::Remote,
            UnprovenChoice::All => UnprovenPeers::All,
        };
        config.coap_slow_time = Duration::from_secs_f64(self.coap_slow_time);
        config.coap_sources.clone_from(&self.coap_source);
        config.packet_log = self.packet_log.clone().map(|directory| PacketLogConfig {
            file_size_max: self.packet_log_file_size,
            files_max: self.packet_log_files as usize,
            ..PacketLogConfig::new(directory)
        });
        config.engine.datagram_drop = match self.datagram_drop {
            DropChoice::Oldest => DatagramDropPolicy::Oldest,
            DropChoice::Newest => DatagramDropPolicy::Newest,
        };
    }
}

/// Scaling of the worker pool; by default all threads start at once and their number stays fixed.
#[derive(Args)]
#[command(next_help_heading = "Elastic workers")]
struct ElasticArguments {
    /// Maximum accept threads that run slow work at the same time when no worker thread is free, one job each; a busy
    /// one serves no other connection until the job ends
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    accept_workers: u32,
    /// Percent of the worker threads to keep free; below that more are started; 0: never
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=50))]
    free_threshold: u8,
    /// With a free threshold: worker threads started at a time, in percent of the running ones
    #[arg(long, value_name = "PERCENT", default_value_t = 50, requires = "free_threshold", value_parser = clap::value_parser!(u8).range(1..=50))]
    spawn_hunk: u8,
    /// With a free threshold: percent by which each hunk is smaller than the previous one, until the pool is back at
    /// its initial size
    #[arg(long, value_name = "PERCENT", default_value_t = 0, requires = "free_threshold", value_parser = clap::value_parser!(u8).range(0..=90))]
    spawn_factor: u8,
    /// With a free threshold: maximum worker threads; then jobs wait in the queue
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "free_threshold", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    worker_limit: u32,
    /// With a free threshold: seconds of surplus before a hunk of worker threads ends
    #[arg(long, value_name = "S", default_value_t = 10.0, requires = "free_threshold", value_parser = seconds())]
    shrink_after: f64,
}

impl ElasticArguments {
    fn scaling(&self) -> PoolScaling {
        PoolScaling {
            free_threshold: self.free_threshold,
            spawn_hunk: self.spawn_hunk,
            spawn_factor: self.spawn_factor,
            threads_max: self.worker_limit as usize,
            shrink_after: Duration::from_secs_f64(self.shrink_after),
        }
    }
}

/// Worker processes behind the server.
#[derive(Args)]
#[command(next_help_heading = "Worker processes")]
struct AppArguments {
    /// Start this command as worker processes that answer everything but /status, /metrics, /livez, /readyz, /publish/*,
    /// /subscribe/*, /nats and /auction. It must serve HTTP/1.1 on the Unix socket at the path that replaces {socket} and
    /// is in STILLING_SOCKET, or speak frames (--app-speaks). SIGHUP replaces the processes by new ones
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["worker_threads", "demo", "accept_workers", "free_threshold"])]
    app: Option<String>,
    /// Protocol of the worker processes
    #[arg(long, value_enum, default_value_t = SpeaksChoice::Http, requires = "app")]
    app_speaks: SpeaksChoice,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = 1, requires = "app", value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,
    /// Maximum concurrent requests per worker process; more wait in the queue
    #[arg(long, value_name = "N", default_value_t = 1, requires = "app", value_parser = clap::value_parser!(u32).range(1..=1024))]
    app_concurrency: u32,
    /// Requests after which a worker process is replaced; 0: never
    #[arg(long, value_name = "N", default_value_t = 0, requires = "app")]
    app_requests_max: u64,
    /// Resident bytes of a worker process and its descendants beyond which it is replaced; 0: no bound
    #[arg(long, value_name = "BYTES", default_value_t = 0, requires = "app", value_parser = bytes(0..))]
    app_memory_max: u64,
    /// Give each client a worker process of its own: a connection over HTTP, an address with its port over CoAP. Without a
    /// free one, requests are answered 503
    #[arg(long, requires = "app")]
    app_affinity: bool,
    /// Seconds without requests after which a client loses its own worker process
    #[arg(long, value_name = "S", default_value_t = 60.0, requires = "app", value_parser = seconds())]
    app_affinity_idle: f64,
    /// Sessions whose state the server keeps for the worker processes; 0: none. When full, the client with the most loses
    /// the one that it has used least recently
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "app", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    app_sessions: u32,
    /// Seconds without a request after which a session ends
    #[arg(long, value_name = "S", default_value_t = 1800.0, requires = "app", value_parser = seconds())]
    app_session_idle: f64,
    /// Maximum seconds for a worker process to answer a request or to continue its answer; then the answer is 504 or
    /// breaks off, and a hung process is killed and restarted
    #[arg(long, value_name = "S", default_value_t = 60.0, requires = "app", value_parser = seconds())]
    app_timeout: f64,
    /// Maximum seconds for a worker process to accept connections after its start; then it is killed and restarted
    #[arg(long, value_name = "S", default_value_t = 30.0, requires = "app", value_parser = seconds())]
    app_start_timeout: f64,
    /// Maximum seconds for a replaced worker process to finish its requests; then it gets SIGTERM anyway
    #[arg(long, value_name = "S", default_value_t = 30.0, requires = "app", value_parser = seconds())]
    app_drain_timeout: f64,
    /// Maximum seconds for a worker process to exit after SIGTERM; then it is killed
    #[arg(long, value_name = "S", default_value_t = 10.0, requires = "app", value_parser = seconds())]
    app_stop_timeout: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum SpeaksChoice {
    /// HTTP/1.1 on a Unix socket
    Http,
    /// Length-prefixed messages on standard input and output, one request at a time
    Frames,
}

/// Limits of requests, answers and buffers.
#[derive(Args)]
#[command(next_help_heading = "Limits")]
struct LimitArguments {
    /// Maximum jobs that wait for a worker; more are answered 503
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_queue: u32,
    /// Maximum bytes of a request head; more are answered 431
    #[arg(long, value_name = "BYTES", default_value_t = 16_384, value_parser = bytes(256..=49_152))]
    max_head_size: u64,
    /// Maximum header fields of a request; more are answered 431
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    max_headers: u16,
    /// Maximum bytes of a request body; more are answered 413
    #[arg(long, value_name = "BYTES", default_value_t = 1_048_576, value_parser = bytes(0..))]
    max_body_size: u64,
    /// Maximum bytes of requests that wait for bodies, workers or worker processes, per accept thread; more are
    /// answered 503
    #[arg(long, value_name = "BYTES", default_value_t = 67_108_864, value_parser = bytes(65_536..=1_073_741_824))]
    max_requests_held: u64,
    /// Maximum bytes of answers and pages that wait for slow clients, per accept thread; further requests are answered
    /// 503
    #[arg(long, value_name = "BYTES", default_value_t = 268_435_456, value_parser = bytes(65_536..=1_099_511_627_776))]
    max_answers_held: u64,
    /// Maximum bytes of unfinished input per accept thread
    #[arg(long, value_name = "BYTES", default_value_t = 33_554_432, value_parser = bytes(65_536..=1_073_741_824))]
    max_input_held: u64,
    /// Maximum bytes of blocks with unsent output per accept thread; when full, the connections that hold most are
    /// closed
    #[arg(long, value_name = "BYTES", default_value_t = 67_108_864, value_parser = bytes(65_536..=1_073_741_824))]
    max_output_held: u64,
    /// Bytes of the kernel's send buffer per connection [default: the system's tuning]
    #[arg(long, value_name = "BYTES", value_parser = bytes(1..=1_073_741_824))]
    send_buffer: Option<u64>,
    /// TCP congestion control of accepted connections, such as reno [default: the system's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
}

/// Timeouts of clients and jobs.
#[derive(Args)]
#[command(next_help_heading = "Timeouts (seconds)")]
struct TimeoutArguments {
    /// From the connect to the first byte
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds())]
    first_byte_timeout: f64,
    /// For a whole request head
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds())]
    head_timeout: f64,
    /// For a request body before its minimum rate applies
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds())]
    body_timeout: f64,
    /// Minimum rate of a request body after that, in bytes per second; also the minimum rate at which a client reads
    /// the answer of a worker process. For an answer too long to be held at least 32 KiB/s apply, because the process
    /// waits for the client
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = bytes(1..))]
    min_body_rate: u64,
    /// Between two requests of a connection
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds())]
    idle_timeout: f64,
    /// For a client to receive pending output; each KiB received extends it by a second, at most to the full
    /// timeout
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds())]
    write_timeout: f64,
    /// For a job to wait for a worker; then 503
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds())]
    queue_timeout: f64,
    /// Acceptable wait: when even the shortest recent wait is longer, jobs that have waited twice as long are answered
    /// 503; auto: the mean duration of jobs, at least 5 ms
    #[arg(long, value_name = "S|auto|off", default_value = "auto", value_parser = queue_target())]
    queue_target: QueueTargetChoice,
    /// For a job to wait and finish; then 503, and the connection of a running job closes
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds())]
    work_timeout: f64,
    /// For requests in flight to finish after SIGTERM, SIGINT or a hand-over
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds())]
    drain_timeout: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum ServeDriver {
    /// io_uring where the kernel allows it, else epoll
    Auto,
    /// io_uring, or an error
    Uring,
    /// epoll
    Poll,
}

fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=16_000_000)
}

/// Parses a time from 1 ms to a year; a bare number is seconds.
fn seconds() -> impl TypedValueParser<Value = f64> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let seconds = read_seconds(&text)?;
        if (0.001..=31_536_000.0).contains(&seconds) {
            Ok(seconds)
        } else {
            Err("it must be in the range 0.001 to 31536000".to_owned())
        }
    })
}

/// The error of a growing pool that begins without a thread or above its limit, if it does.
fn contradiction(config: &ServeConfig) -> Option<String> {
    let (threads, scaling) = (config.worker_threads, config.scaling);
    let PoolScaling { free_threshold, threads_max, .. } = scaling;
    if scaling.is_valid_for(threads) {
        None
    } else if threads == 0 {
        Some(format!("--free-threshold {free_threshold} needs worker threads, and --worker-threads is 0"))
    } else {
        Some(format!(
            "--free-threshold {free_threshold} cannot add worker threads: there are {threads}, and --worker-limit is {threads_max}"
        ))
    }
}

fn admin() -> impl TypedValueParser<Value = Admin> {
    clap::builder::StringValueParser::new().try_map(|text| match text.as_str() {
        "off" => Ok(Admin::Off),
        _ => {
            text.parse().map(Admin::At).map_err(|_| format!("`{text}` is not off or an address with a port"))
        }
    })
}

#[derive(Clone, Copy)]
struct QueueTargetChoice(Option<QueueTarget>);

fn queue_target() -> impl TypedValueParser<Value = QueueTargetChoice> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let target = match text.as_str() {
            "off" => None,
            "auto" => Some(QueueTarget::Service),
            _ => {
                let seconds =
                    read_seconds(&text).map_err(|_| format!("`{text}` is not auto, off, or seconds"))?;
                if !(0.001..=31_536_000.0).contains(&seconds) {
                    return Err("it must be in the range 0.001 to 31536000".to_owned());
                }
                Some(QueueTarget::Fixed(Duration::from_secs_f64(seconds)))
            }
        };
        Ok(QueueTargetChoice(target))
    })
}

impl LimitArguments {
    fn apply(self, config: &mut ServeConfig) {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        config.queue_max = self.max_queue as usize;
        config.requests_held_max = size(self.max_requests_held);
        config.responses_held_max = size(self.max_answers_held);
        config.send_buffer = self.send_buffer.map(size);
        config.congestion = self.congestion;
        // The option's range ends far below `u32::MAX`.
        config.limits.head_size_max = u32::try_from(self.max_head_size).unwrap_or(u32::MAX);
        config.limits.headers_max = self.max_headers;
        config.limits.body_size_max = self.max_body_size;
        config.engine.input_bytes_max = size(self.max_input_held);
        config.engine.output_bytes_max = size(self.max_output_held);
    }
}

impl TimeoutArguments {
    fn apply(self, config: &mut ServeConfig) {
        let span = Duration::from_secs_f64;
        config.queue_age_max = span(self.queue_timeout);
        config.queue_target = self.queue_target.0;
        config.timeouts = Timeouts {
            first_byte: span(self.first_byte_timeout),
            head: span(self.head_timeout),
            body_grace: span(self.body_timeout),
            body_rate_min: self.min_body_rate,
            idle: span(self.idle_timeout),
            work: span(self.work_timeout),
            drain: span(self.drain_timeout),
        };
        config.engine.write_timeout = span(self.write_timeout);
    }
}

impl AppArguments {
    fn config(self) -> Option<AppConfig> {
        let span = Duration::from_secs_f64;
        let mut config = AppConfig::new(self.app?);
        config.speaks = match self.app_speaks {
            SpeaksChoice::Http => AppProtocol::Http,
            SpeaksChoice::Frames => AppProtocol::Frames,
        };
        config.timeout = span(self.app_timeout);
        config.processes.processes = self.processes as usize;
        config.processes.slots = self.app_concurrency as usize;
        config.processes.requests_max = self.app_requests_max;
        config.processes.memory_max = self.app_memory_max;
        config.affinity = self.app_affinity;
        config.affinity_idle = span(self.app_affinity_idle);
        config.sessions_max = self.app_sessions as usize;
        config.session_idle = span(self.app_session_idle);
        config.processes.start_timeout = span(self.app_start_timeout);
        config.processes.drain_timeout = span(self.app_drain_timeout);
        config.processes.stop_timeout = span(self.app_stop_timeout);
        Some(config)
    }
}

impl ServeArguments {
    pub(crate) fn run(self, sources: SettingSources) -> Result<(), Box<dyn Error>> {
        let (verbose, daemonize) = (self.verbose, self.daemonize);
        let resolved = self.resolve(sources)?;
        let config = resolved.config.clone();
        if verbose {
            write!(std::io::stdout(), "{}", resolved.toml)?;
        }
        let _ = stilling_engine::driver::allocator::disable_fastbins();
        let mut server = Server::bind(config, Routes::new())?;
        for warning in warnings(&resolved, server.exposures()) {
            log_line(&format!("warning: {warning}"));
        }
        // Before the banner: a reader of it may send a signal at once.
        server.watch_signals()?;
        server.reload_on_hangup(reload::read_apps, log_line)?;
        let mut out = std::io::stdout().lock();
        let listeners = server.banner().iter().take_while(|line| line.starts_with("listening ")).count();
        let (listening, rest) = server.banner().split_at(listeners);
        for line in listening.iter().chain(&resolved.not_opened()).chain(rest) {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
        drop(out);
        if daemonize {
            // The listeners are open and no thread runs yet, so the child inherits everything it needs.
            nix::unistd::daemon(false, false)?;
        }
        let overview = server.run()?;
        if verbose {
            write!(std::io::stdout(), "{}", stilling::render_metrics(&overview))?;
        }
        Ok(())
    }

    /// The options that a pool contradicts. clap reports those of `--app`.
    fn contradicting(&self, app: &SettingTable) -> Vec<Diagnostic> {
        let options = [
            (self.demo, "demo"),
            (self.worker_threads.is_some(), "worker-threads"),
            (self.elastic.accept_workers > 0, "accept-workers"),
            (self.elastic.free_threshold > 0, "free-threshold"),
        ];
        let of = |(is_used, option): (bool, &str)| {
            let reason = || format!("an app replaces the worker threads, so {option} cannot be used with it");
            is_used.then(|| Diagnostic::new(&app.origin, reason()))
        };
        options.into_iter().filter_map(of).collect()
    }

    /// Resolves all settings and checks that they fit together.
    ///
    /// # Errors
    /// [`Diagnostics`].
    pub(crate) fn resolve(self, mut sources: SettingSources) -> Result<ResolvedSettings, Box<dyn Error>> {
        let app_tables = sources.take_tables("app");
        let contradicting = app_tables.first().map_or(Vec::new(), |table| self.contradicting(table));
        let defaults = ServeConfig::default();
        let shards = self.accept_threads.map_or(defaults.shards, |threads| threads as usize);
        let is_named = self.port.is_some()
            || !self.listen.is_empty()
            || !self.coap.is_empty()
            || self.hub.names_a_listener();
        let is_passed = are_listeners_passed()?;
        // A parent that passes listeners has chosen the addresses.
        let listens_by_default = !is_named && !is_passed;
        let listen = match self.port {
            Some(port) => vec![SocketAddr::from(([127, 0, 0, 1], port))],
            None if listens_by_default => defaults.listen,
            None => self.listen,
        };
        let mut wrong = std::mem::take(&mut sources.wrong);
        let hub = self.hub.resolve(listens_by_default, &mut sources, &mut wrong);
        let apps = tables::apps(&app_tables, &mut wrong);
        wrong.extend(contradicting);
        let mut config = ServeConfig {
            listen,
            shards,
            capacity: self.accept_capacity,
            worker_threads: self.worker_threads.map_or(shards, |threads| threads as usize),
            scaling: self.elastic.scaling(),
            accept_workers: self.elastic.accept_workers as usize,
            slow_duration: Duration::from_millis(self.slow_duration.into()),
            driver: match self.driver {
                ServeDriver::Auto => DriverChoice::Auto,
                ServeDriver::Uring => DriverChoice::Uring,
                ServeDriver::Poll => DriverChoice::Poll,
            },
            direct_descriptors: self.direct_descriptors,
            pin: self.pin,
            demo: self.demo,
            open_publish: self.open_publish,
            admin: self.admin.unwrap_or_default(),
            take_over: self.take_over.map(|path| TakeOverConfig { path, report: log_line }),
            passed_listeners: true,
            coap: if listens_by_default { vec![COAP_DEFAULT.into()] } else { self.coap },
            // Another program may have the default port; a named address must open.
            coap_is_optional: listens_by_default,
            apps: self.app.config().map_or_else(|| apps.items.clone(), |app| vec![app]),
            hub: hub.config.clone(),
            hub_thread: hub.thread,
            log: Some(log_line),
            ..defaults
        };
        self.datagrams.apply(&mut config);
        self.limits.apply(&mut config);
        self.timeouts.apply(&mut config);

        let problems = config.problems().into_iter();
        wrong.extend(problems.map(|problem| hub.diagnostic(problem, &sources)));
        wrong.extend(contradiction(&config).map(|reason| Diagnostic::new(&SettingOrigin::Default, reason)));
        if !wrong.is_empty() {
            return Err(Box::new(Diagnostics::sorted(wrong)));
        }
        let shown: String = app_tables.iter().map(|table| render::table("app", table)).collect();
        let toml = render::render(&sources.effective, computed(&config), &(shown + &hub.tables));
        Ok(ResolvedSettings {
            config,
            sources,
            toml,
            warnings: hub.warnings,
            opens_defaults: listens_by_default || is_passed,
        })
    }
}

/// Values of options with defaults that depend on the machine or on other options.
fn computed(config: &ServeConfig) -> ComputedDefaults {
    fn texts<T: ToString>(values: &[T]) -> Vec<String> {
        values.iter().map(T::to_string).collect()
    }
    let mut computed = vec![
        ("listen", texts(&config.listen)),
        ("accept-threads", texts(&[config.shards])),
        ("nats", texts(&config.hub.nats)),
        ("coap", texts(&config.coap)),
        ("syslog-source", texts(&config.hub.syslog_sources)),
    ];
    if config.apps.is_empty() {
        computed.push(("worker-threads", texts(&[config.worker_threads])));
    }
    computed
}

fn log_line(line: &str) {
    // One write, so that lines of several processes do not mix. A failed write does not stop the server.
    let _ = std::io::stderr().write_all(format!("stilling: {line}\n").as_bytes());
}
