//! How a world is set up: sizes, speeds, timeouts and clients, drawn from the seed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stilling::Overview;
use stilling::http::Timeouts;
use stilling::parts::{
    Calendar, Endpoint, HttpConfig, HttpCounters, HttpEndpoint, HttpScope, JobOutcome, Lifecycle,
    ShardService, hub_in_memory,
};
use stilling::settings::{Durability, StreamConfig};
use stilling_engine::counters::Counters;
use stilling_engine::driver::Driver as _;
use stilling_engine::{Config, Shard};
use stilling_ring::{Time, Wake};
use stilling_wire::http1::Limits;
use stilling_workers::{Growth, Pool};

use super::honest::{Honest, Style};
use super::hostile::{Hostile, Manner};
use super::outside::{Client, Outside};
use super::own;
use super::talker::Talker;
use super::{CALENDAR_START, SimShard};
use crate::SplitMix64;
use crate::driver::SimDriver;
use crate::faults::Faults;
use crate::network::{Address, Network, Options, SimSocket};

/// Clients come within this time.
const ARRIVALS_MS: u64 = 400;

/// Everything that one seed decides beforehand.
pub(super) struct Setting {
    pub(super) random: SplitMix64,
    network: Options,
    shards: usize,
    buffers: u16,
    backlog: usize,
    defers: bool,
    engine: Config,
    http: HttpConfig,
    pub(super) pool: stilling_workers::Limits,
    /// Work that takes far too long, in a thousand.
    pub(super) stuck_rate: u16,
    pub(super) cramped: bool,
    /// There is a hub.
    pub(super) talks: bool,
    /// From here on the network is kind.
    pub(super) faults_until: Time,
    /// The server is asked to end while clients are still busy.
    pub(super) early_end: Option<Time>,
}

fn millis(random: &mut SplitMix64, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low, high))
}

/// In some worlds the pool grows and shrinks, and in some the shards do some of the work themselves.
fn elastic(mut pool: stilling_workers::Limits, random: &mut SplitMix64) -> stilling_workers::Limits {
    if pool.threads > 0 && random.chance(400) {
        pool.growth = Growth {
            free_threshold: random.between(1, 50) as u8,
            spawn_hunk: random.between(1, 50) as u8,
            spawn_factor: random.between(0, 90) as u8,
            threads_max: pool.threads + random.below(8) as usize,
            shrink_after: millis(random, 1, 200),
        };
    }
    if random.chance(100) {
        pool.inline_max = 1;
    }
    pool
}

fn draw_engine(cramped: bool, random: &mut SplitMix64) -> Config {
    let engine = Config {
        capacity: random.between(3, 40) as u32,
        park_after: millis(random, 1, 100),
        write_timeout: millis(random, 300, 1000),
        linger_timeout: millis(random, 50, 500),
        accept_retry: millis(random, 1, 20),
        ..Config::default()
    };
    // Drawn in any case: what follows is then the same in a world with room.
    let store = random.between(16, 48) as usize * 1024;
    if cramped { Config { input_bytes_max: store, output_bytes_max: store, ..engine } } else { engine }
}

fn draw_timeouts(random: &mut SplitMix64) -> Timeouts {
    Timeouts {
        first_byte: millis(random, 500, 1500),
        head: millis(random, 2000, 4000),
        body_grace: millis(random, 1000, 2000),
        body_rate_min: 1024,
        idle: millis(random, 1000, 3000),
        work: millis(random, 200, 1000),
        drain: millis(random, 20, 2000),
    }
}

impl Setting {
    pub(super) fn draw(random: &mut SplitMix64) -> Self {
        let kind = random.chance(100);
        let faults = if kind { Faults::NONE } else { Faults::draw(random) };
        let latency = (Duration::from_micros(20), Duration::from_micros(random.between(20, 3000)));
        let buffer = random.between(200, 20_000) as usize;
        let threads = random.below(5) as usize;
        let cramped = random.chance(100);
        let engine = draw_engine(cramped, random);
        let queue_age_max = millis(random, 30, 2000);
        let http = HttpConfig {
            limits: Limits::default(),
            timeouts: draw_timeouts(random),
            slow_duration: millis(random, 1, 30),
            has_workers: threads > 0,
            queue_age_max,
            routes: Arc::new(own::routes()),
            answers_held_max: 1 << 30,
            requests_held_max: if cramped { random.between(2000, 10_000) as usize } else { 1 << 20 },
            write_timeout: engine.write_timeout,
            has_app: false,
        };
        let queue_max = random.between(1, 16) as usize;
        let limits = stilling_workers::Limits::default();
        let queue_target = queue_max.is_multiple_of(3).then_some(stilling_workers::QueueTarget::Service);
        let pool =
            stilling_workers::Limits { threads, queue_max, age_max: queue_age_max, queue_target, ..limits };
        let pool = elastic(pool, &mut random.fork());
        let faults_until_ms = random.between(200, 1500);
        let early_end = random.chance(150).then(|| Time::ZERO.after(millis(random, 1, ARRIVALS_MS + 100)));
        Setting {
            network: Options { latency, buffer, faults },
            shards: if random.chance(300) { 2 } else { 1 },
            buffers: random.between(1, 16) as u16,
            backlog: random.between(4, 64) as usize,
            defers: random.chance(300),
            engine,
            http,
            pool,
            talks: !cramped && random.chance(500),
            stuck_rate: if random.chance(150) { 50 } else { 0 },
            cramped,
            faults_until: Time::ZERO.after(Duration::from_millis(faults_until_ms)),
            early_end,
            random: random.fork(),
        }
    }

    /// The first shard, and everything else.
    pub(super) fn build(mut self) -> (SimShard, Rc<RefCell<Outside>>) {
        let network = Network::new(self.random.bits(), self.network);
        let drivers: Vec<SimDriver> =
            (0..self.shards).map(|_| SimDriver::with_buffers(&network, self.buffers)).collect();
        let wakes: Vec<Arc<Wake>> = drivers
            .iter()
            .map(|driver| {
                let handle = driver.wake_handle();
                Arc::new(Wake::new(move || handle.wake()))
            })
            .collect();
        let (pool, lanes) = Pool::new(self.pool, network.clock(), wakes.clone());
        let calendar = Calendar::From(CALENDAR_START);
        let lifecycle = Arc::new(Lifecycle::new(wakes.clone(), calendar));
        let overview = Arc::new(self.overview(&pool));
        let mut hubs = Vec::new();
        if self.talks {
            let events =
                StreamConfig { durability: Durability::Memory, ..StreamConfig::new("events", ["events.>"]) };
            hubs = hub_in_memory(&[events], &wakes, &overview, &lifecycle).expect("nothing is opened");
        }
        let mut hubs = hubs.into_iter();
        let address = Address::Tcp("10.0.0.1:9000".parse().expect("an address"));
        let hub_address = Address::Tcp("10.0.0.1:4222".parse().expect("an address"));
        let mut shards: Vec<SimShard> = Vec::new();
        for (number, ((driver, lane), wake)) in drivers.into_iter().zip(lanes).zip(wakes).enumerate() {
            let counters = Arc::clone(&overview.http[number]);
            let everything = HttpEndpoint { scope: HttpScope::Everything, demo: true, publishes: true };
            let service = ShardService::new(
                vec![Endpoint::Http(everything), Endpoint::Nats],
                self.http.clone(),
                lane,
                counters,
                Arc::clone(&overview),
                Arc::clone(&lifecycle),
            );
            let service = service.with_hub(hubs.next());
            let engine = Arc::clone(&overview.engines[number]);
            let mut shard = Shard::new(driver, service, self.engine.clone(), network.clock(), wake, engine);
            shard.listen(self.listener(&network, &address), self.defers).expect("the first listener");
            if self.talks {
                // Its clients wait to be greeted.
                let listener = network.listen(hub_address.clone(), self.backlog, None);
                shard.listen(listener, false).expect("the second listener");
            }
            shards.push(shard);
        }
        let second = if self.shards == 2 { shards.pop() } else { None };
        let first = shards.pop().expect("there is at least one");
        let clients = self.clients();
        let outside =
            Outside::new(self, network, (address, hub_address), clients, second, pool, lifecycle, overview);
        (first, Rc::new(RefCell::new(outside)))
    }

    fn overview(&self, pool: &Pool<JobOutcome>) -> Overview {
        Overview {
            started: std::time::SystemTime::UNIX_EPOCH,
            driver: "sim".to_owned(),
            driver_fallback: None,
            listeners: Vec::new(),
            capacity: self.engine.capacity,
            workers: self.pool.threads,
            engines: (0..self.shards).map(|_| Arc::new(Counters::default())).collect(),
            http: (0..self.shards).map(|_| Arc::new(HttpCounters::default())).collect(),
            pool: pool.clone(),
            app: None,
            hub: std::sync::OnceLock::new(),
            hub_handles: (0..self.shards).map(|_| Arc::default()).collect(),
            rates: Default::default(),
            volumes: Arc::default(),
        }
    }

    fn listener(&self, network: &Network, address: &Address) -> SimSocket {
        let defer = self.defers.then_some(Duration::from_millis(300));
        network.listen(address.clone(), self.backlog, defer)
    }

    fn clients(&mut self) -> Vec<Client> {
        let (random, talks) = (&mut self.random, self.talks);
        let (honest, hostile) = (random.between(3, 25), random.below(12));
        let mut start = || Time::ZERO.after(Duration::from_micros(random.below(ARRIVALS_MS * 1000)));
        let starts: Vec<Time> = (0..honest + hostile).map(|_| start()).collect();
        let (honest, hostile) = starts.split_at(honest as usize);
        let honest = honest.iter().map(|start| {
            let style = Style::ALL[random.index(Style::ALL.len())];
            Client::Honest(Honest::new(style, *start, random))
        });
        let mut clients: Vec<Client> = honest.collect();
        clients.extend(hostile.iter().map(|start| {
            let mut manner = Manner::ALL[random.index(Manner::ALL.len())];
            if manner.is_of_hub() && !talks {
                manner = Manner::Garbage;
            }
            Client::Hostile(Hostile::new(manner, *start, random))
        }));
        if talks {
            for number in 0..random.between(1, 6) as usize {
                let start = Time::ZERO.after(Duration::from_micros(random.below(ARRIVALS_MS * 1000)));
                clients.push(Client::Talker(match random.chance(300) {
                    true => Talker::listener(start, random),
                    false => Talker::publisher(number, start, random),
                }));
            }
        }
        clients
    }
}
