//! Builds a world from its parameters: the shard, the network and the rest of the world.

use std::sync::Arc;
use std::time::Duration;

use stilling::http::{Routes, Timeouts};
use stilling::parts::{
    CoapEndpoint, Endpoint, HttpConfig, Lifecycle, ShardService, SimulatedPool, WallClock,
};
use stilling::upstream::PathPattern;
use stilling_engine::driver::Driver as _;
use stilling_engine::{Shard, ShardConfig};
use stilling_ring::Wake;
use stilling_wire::http1::HttpLimits;
use stilling_workers::{Pool, PoolLimits};

use super::CoapSimShard;
use super::client::CoapWorldClient;
use super::observer::SimulatedObserver;
use super::parameters::CoapWorldParameters;
use super::process::{SimulatedProcess, socket_path};
use super::world::{CoapWorld, CoapWorldParts};
use crate::SplitMix64;
use crate::driver::SimDriver;
use crate::network::Network;
use crate::overview;

/// Start of every world, in seconds since 1970.
const CALENDAR_START: u64 = 1_700_000_000;

/// Builds the shard, and the world with everything else.
pub(super) fn build(mut parameters: CoapWorldParameters) -> (CoapSimShard, CoapWorld) {
    let network = Network::new(parameters.random.bits(), parameters.network);
    let driver = SimDriver::with_buffers(&network, parameters.buffers);
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let wakes = vec![Arc::clone(&wake)];
    let no_workers = PoolLimits { threads: 0, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::new(no_workers, network.clock(), wakes.clone());
    let lifecycle = Arc::new(Lifecycle::new(wakes, WallClock::StartingAt(CALENDAR_START)));
    let engine = engine_config(&parameters);
    let overview = Arc::new(overview::simulated(1, engine.capacity, &pool, 0));
    let (app, slots) = SimulatedPool::new(
        &PathPattern::Below("/app/".to_owned()),
        (0..parameters.processes).map(socket_path).collect(),
        (parameters.slots, parameters.work_timeout),
        parameters.queue,
        Arc::clone(&wake),
    )
    .expect("a descriptor");
    let service = ShardService::new(
        vec![Endpoint::Coap(CoapEndpoint { demo: true })],
        http_config(&parameters, &engine),
        submitters.pop().expect("one for the shard"),
        Arc::clone(&overview.http[0]),
        Arc::clone(&overview),
        Arc::clone(&lifecycle),
    )
    .with_simulated_coap(
        Arc::clone(&overview.coap[0]),
        parameters.unproven,
        app,
        (parameters.random.bits(), network.now()),
    );
    let counters = Arc::clone(&overview.engines[0]);
    let mut shard = Shard::new(driver, service, engine, network.clock(), wake, counters);
    let socket = network.bind("0.0.0.0:5683".parse().expect("an address"));
    shard.receive_paced_datagrams(socket).expect("the driver accepts it");
    let random = &mut parameters.random;
    let clients = parameters
        .clients
        .iter()
        .zip(0..)
        .map(|(of, number)| CoapWorldClient::new(number, *of, &network, random))
        .collect();
    // Their draws are apart from those of the others.
    let observers = parameters.observers.iter().map(|of| {
        let random = SplitMix64::new(u64::from(of.address.port()) ^ parameters.faults_until.as_nanos());
        SimulatedObserver::new(*of, &network, random)
    });
    let observers = observers.collect();
    let processes = (0..parameters.processes).map(SimulatedProcess::new).collect();
    let parts = CoapWorldParts { clients, observers, processes, slots, lifecycle, overview };
    (shard, CoapWorld::new(parameters, network, parts))
}

fn engine_config(parameters: &CoapWorldParameters) -> ShardConfig {
    let defaults = ShardConfig::default();
    let connections = 2 * parameters.processes * parameters.slots;
    ShardConfig {
        capacity: 8,
        reserved_connects: connections as u32,
        connect_timeout: defaults.connect_timeout.min(parameters.work_timeout),
        connect_write_timeout: parameters.work_timeout,
        accept_retry: Duration::from_millis(10),
        ..defaults
    }
}

fn http_config(parameters: &CoapWorldParameters, engine: &ShardConfig) -> HttpConfig {
    HttpConfig {
        limits: HttpLimits::default(),
        timeouts: Timeouts { drain: parameters.drain_timeout, ..Timeouts::default() },
        slow_duration: Duration::ZERO,
        has_workers: false,
        queue_age_max: parameters.queue.age_max,
        routes: Arc::new(Routes::new()),
        responses_held_max: 1 << 30,
        requests_held_max: 1 << 20,
        write_timeout: engine.write_timeout,
        apps: Default::default(),
        auction_filters: Vec::new(),
    }
}
