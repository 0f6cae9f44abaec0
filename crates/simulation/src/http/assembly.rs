//! Builds a world from its parameters: the shards, the network and the rest of the world.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stilling::Overview;
use stilling::parts::{
    Endpoint, HttpEndpoint, HttpScope, JobOutcome, Lifecycle, ShardService, WallClock, hub_in_memory,
};
use stilling::settings::{Durability, StreamConfig};
use stilling_engine::Shard;
use stilling_engine::driver::Driver as _;
use stilling_ring::{Time, Wake};
use stilling_workers::Pool;

use super::hostile::{HostileClient, HostileStyle};
use super::http_world::{HttpWorld, HttpWorldClient};
use super::nats_clients::SimNatsClient;
use super::parameters::{ARRIVALS_MS, HttpWorldParameters};
use super::well_behaved::{WellBehaved, WellBehavedStyle};
use super::{CALENDAR_START, HttpSimShard};
use crate::driver::SimDriver;
use crate::network::{Address, Network, SimSocket};
use crate::overview;

impl HttpWorldParameters {
    /// Builds the first shard, and the world with everything else.
    pub(super) fn build(mut self) -> (HttpSimShard, Rc<RefCell<HttpWorld>>) {
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
        let (pool, submitters) = Pool::new(self.pool, network.clock(), wakes.clone());
        let calendar = WallClock::StartingAt(CALENDAR_START);
        let lifecycle = Arc::new(Lifecycle::new(wakes.clone(), calendar));
        let overview = Arc::new(self.overview(&pool));
        let mut hubs = Vec::new();
        if self.has_nats_clients {
            let events =
                StreamConfig { durability: Durability::Memory, ..StreamConfig::new("events", ["events.>"]) };
            hubs = hub_in_memory(&[events], &wakes, &overview, &lifecycle).expect("nothing is opened");
        }
        let mut hubs = hubs.into_iter();
        let address = Address::Tcp("10.0.0.1:9000".parse().expect("an address"));
        let hub_address = Address::Tcp("10.0.0.1:4222".parse().expect("an address"));
        let mut shards: Vec<HttpSimShard> = Vec::new();
        for (number, ((driver, submitter), wake)) in
            drivers.into_iter().zip(submitters).zip(wakes).enumerate()
        {
            let counters = Arc::clone(&overview.http[number]);
            let everything =
                HttpEndpoint { scope: HttpScope::Everything, demo: true, publishes: true, subscribes: true };
            let service = ShardService::new(
                vec![Endpoint::Http(everything), Endpoint::Nats],
                self.http.clone(),
                submitter,
                counters,
                Arc::clone(&overview),
                Arc::clone(&lifecycle),
            );
            let service = service.with_hub(hubs.next());
            let engine = Arc::clone(&overview.engines[number]);
            let mut shard = Shard::new(driver, service, self.engine.clone(), network.clock(), wake, engine);
            shard.listen(self.listener(&network, &address), self.defer_accept).expect("the first listener");
            if self.has_nats_clients {
                // No deferral: NATS clients wait for the INFO line.
                let listener = network.listen(hub_address.clone(), self.backlog, None);
                shard.listen(listener, false).expect("the second listener");
            }
            shards.push(shard);
        }
        let second = if self.shards == 2 { shards.pop() } else { None };
        let first = shards.pop().expect("there is at least one");
        let clients = self.clients();
        let http_world =
            HttpWorld::new(self, network, (address, hub_address), clients, second, pool, lifecycle, overview);
        (first, Rc::new(RefCell::new(http_world)))
    }

    fn overview(&self, pool: &Pool<JobOutcome>) -> Overview {
        overview::simulated(self.shards, self.engine.capacity, pool, self.pool.threads)
    }

    fn listener(&self, network: &Network, address: &Address) -> SimSocket {
        let defer = self.defer_accept.then_some(Duration::from_millis(300));
        network.listen(address.clone(), self.backlog, defer)
    }

    fn clients(&mut self) -> Vec<HttpWorldClient> {
        let (random, has_nats_clients) = (&mut self.random, self.has_nats_clients);
        let (well_behaved, hostile) = (random.between(3, 25), random.below(12));
        let mut start = || Time::ZERO.after(Duration::from_micros(random.below(ARRIVALS_MS * 1000)));
        let starts: Vec<Time> = (0..well_behaved + hostile).map(|_| start()).collect();
        let (well_behaved, hostile) = starts.split_at(well_behaved as usize);
        let well_behaved = well_behaved.iter().map(|start| {
            let style = WellBehavedStyle::ALL[random.index(WellBehavedStyle::ALL.len())];
            HttpWorldClient::WellBehaved(WellBehaved::new(style, *start, random))
        });
        let mut clients: Vec<HttpWorldClient> = well_behaved.collect();
        clients.extend(hostile.iter().map(|start| {
            let mut style = HostileStyle::ALL[random.index(HostileStyle::ALL.len())];
            if style.uses_nats() && !has_nats_clients {
                style = HostileStyle::Garbage;
            }
            HttpWorldClient::HostileClient(HostileClient::new(style, *start, random))
        }));
        if has_nats_clients {
            for number in 0..random.between(1, 6) as usize {
                let start = Time::ZERO.after(Duration::from_micros(random.below(ARRIVALS_MS * 1000)));
                clients.push(HttpWorldClient::SimNatsClient(match random.chance(300) {
                    true => SimNatsClient::subscriber(start, random),
                    false => SimNatsClient::publisher(number, start, random),
                }));
            }
        }
        clients
    }
}
