//! A shard with the sessions of the server, without worker threads, turned by the test at times that it chooses.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::{Driver, poll::Poll};
use stilling_engine::{Clock, Shard, ShardConfig, Wake};
use stilling_hub::{HashKey, JournalStorage, Now};
use stilling_ring::ManualTime;
use stilling_workers::{Pool, PoolLimits};

use super::{Endpoint, ShardHub, ShardService};
use crate::config::ServeConfig;
use crate::http::HttpConfig;
use crate::hub::{HubHandle, Runner};
use crate::lifecycle::{Lifecycle, WallClock};
use crate::overview::Overview;
use crate::rates::Rates;
use crate::syslog::{SyslogRules, SyslogShard};
use crate::upstream::AppRoutes;

/// The service of the only shard of a server, with its lifecycle.
pub(crate) fn service_of_one_shard(endpoint: Endpoint, apps: AppRoutes) -> (ShardService, Arc<Lifecycle>) {
    let ServeConfig { limits, timeouts, .. } = ServeConfig::default();
    let config = HttpConfig {
        limits,
        timeouts,
        slow_duration: Default::default(),
        has_workers: false,
        queue_age_max: Default::default(),
        routes: Arc::default(),
        write_timeout: Default::default(),
        requests_held_max: 0,
        responses_held_max: 0,
        apps,
        auction_filters: Vec::new(),
    };
    let wakes = vec![Arc::new(Wake::new(|| ()))];
    let limits = PoolLimits { threads: 0, ..PoolLimits::default() };
    let (workers, mut submitters) = Pool::new(limits, Clock::real(), wakes.clone());
    let overview = Overview {
        started: SystemTime::now(),
        driver: String::new(),
        driver_fallback: None,
        listeners: Vec::new(),
        receive_buffers: Vec::new(),
        not_opened: Vec::new(),
        capacity: 1,
        workers: 0,
        engines: vec![Arc::default()],
        http: vec![Arc::default()],
        coap: vec![Arc::default()],
        pool: workers,
        apps: Vec::new(),
        hub: OnceLock::new(),
        hub_handles: Vec::new(),
        rates: Rates::default(),
        volumes: Arc::default(),
        listen: Default::default(),
        packet_log: None,
    };
    let counters = Arc::clone(&overview.http[0]);
    let lifecycle = Arc::new(Lifecycle::new(wakes, WallClock::System));
    let submitter = submitters.pop().expect("one for the shard");
    let overview = Arc::new(overview);
    let service =
        ShardService::new(vec![endpoint], config, submitter, counters, overview, Arc::clone(&lifecycle));
    (service, lifecycle)
}

/// A hub handle for sessions over HTTP.
pub(crate) fn shard_hub(hub: HubHandle) -> ShardHub {
    let subject = "syslog".parse().expect("a template");
    let rules = SyslogRules::new(Vec::new(), subject, &[], HashKey(1, 2));
    ShardHub { hub, nats: Default::default(), syslog: SyslogShard::new(Arc::new(rules), 1024) }
}

pub(crate) struct ShardFixture {
    pub(crate) shard: Shard<Poll, ShardService>,
    pub(crate) time: ManualTime,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) engine_counters: Arc<EngineCounters>,
    /// The hub, if there is one; it runs after each turn of the shard.
    runner: Option<Runner<JournalStorage>>,
    address: SocketAddr,
}

impl ShardFixture {
    pub(crate) fn new(endpoint: Endpoint, hub: Option<(ShardHub, Runner<JournalStorage>)>) -> ShardFixture {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket takes options");
        let address = listener.local_addr().expect("it is bound");
        let (hub, runner) = hub.unzip();
        let (service, lifecycle) = service_of_one_shard(endpoint, AppRoutes::default());
        let driver = Poll::new().expect("the system has epoll");
        let handle = driver.wake_handle();
        let wake = Arc::new(Wake::new(move || handle.wake()));
        let config = ShardConfig { capacity: 8, ..ShardConfig::default() };
        let engine_counters = Arc::<EngineCounters>::default();
        let (clock, time) = Clock::manual();
        let service = service.with_hub(hub);
        let mut shard = Shard::new(driver, service, config, clock, wake, Arc::clone(&engine_counters));
        shard.listen(OwnedFd::from(listener), false).expect("the first listener");
        ShardFixture { shard, time, lifecycle, engine_counters, runner, address }
    }

    /// A connection that the shard has accepted.
    pub(crate) fn connect(&mut self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_nonblocking(true).expect("a socket takes options");
        let accepted = self.engine_counters.accepted.get();
        self.turn_until("it is accepted", |fixture| fixture.engine_counters.accepted.get() > accepted);
        stream
    }

    pub(crate) fn turn(&mut self) {
        self.shard.turn(false).expect("the driver works");
        if let Some(runner) = &mut self.runner {
            runner.turn(Now::simulated(0));
        }
    }

    /// Turns the shard until the condition holds.
    #[track_caller]
    pub(crate) fn turn_until(&mut self, what: &str, mut condition: impl FnMut(&ShardFixture) -> bool) {
        stilling_probe::eventually(what, || {
            self.turn();
            condition(self).then_some(())
        });
    }

    /// Turns the shard until it has received as many bytes.
    #[track_caller]
    pub(crate) fn turn_until_received(&mut self, count: u64) {
        self.turn_until("the bytes are received", |fixture| {
            fixture.engine_counters.received_bytes.get() >= count
        });
    }

    /// Turns the shard until the client has received all that the condition waits for, or the end.
    #[track_caller]
    pub(crate) fn read(&mut self, client: &mut TcpStream, is_all: impl Fn(&str) -> bool) -> String {
        let (mut text, mut piece) = (String::new(), [0; 4096]);
        self.turn_until("it is answered", |_| match client.read(&mut piece) {
            Ok(0) => true,
            Ok(count) => {
                text.push_str(std::str::from_utf8(&piece[..count]).expect("it is text"));
                is_all(&text)
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                false
            }
        });
        text
    }
}
