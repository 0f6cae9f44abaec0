//! A single shard over a simulated network, turned by hand, for tests of one mechanism at a time.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::Wait;
use stilling_engine::{Service, Shard, ShardConfig};
use stilling_ring::Wake;

use crate::driver::SimDriver;
use crate::network::{Address, Network, NetworkOptions, SimPeer};

/// Milliseconds simulated by [`run_turns`](SingleShard::run_turns).
const SHORT_MS: u32 = 20;

/// Turns in a row without a wait before the shard counts as spinning.
const TURNS_MAX: u32 = 1000;

/// A shard, its network and its listening address.
pub struct SingleShard<S: Service> {
    /// The network.
    pub network: Network,
    /// The shard.
    pub shard: Shard<SimDriver, S>,
    address: Address,
}

impl<S: Service> SingleShard<S> {
    /// Creates a listening shard on a network without faults, with `buffer` bytes per direction of a connection.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn new(service: S, config: ShardConfig, buffer: usize) -> Self {
        SingleShard::on_network(
            Network::new(1, NetworkOptions { buffer, ..NetworkOptions::default() }),
            service,
            config,
        )
    }

    /// Creates a listening shard on the given network.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn on_network(network: Network, service: S, config: ShardConfig) -> Self {
        let address = Address::Tcp("10.0.0.1:80".parse().expect("an address"));
        let listener = network.listen(address, config.capacity as usize, None);
        let address = listener.listening_at().expect("it listens");
        let (wake, counters) = (Arc::new(Wake::new(|| ())), Arc::new(EngineCounters::default()));
        let driver = SimDriver::new(&network);
        let mut shard = Shard::new(driver, service, config, network.clock(), wake, counters);
        shard.listen(listener, false).expect("the first listener");
        SingleShard { network, shard, address }
    }

    /// Returns a connected client.
    pub fn client(&mut self) -> SimPeer {
        let client = self.start_connecting();
        self.run_turns();
        client
    }

    /// Returns a client that is still connecting.
    pub fn start_connecting(&mut self) -> SimPeer {
        self.network.connect(self.address.clone(), None)
    }

    /// Runs network and shard for 20 milliseconds of virtual time.
    ///
    /// # Panics
    /// If the shard spins, or its audit finds a connection that waits for nothing.
    pub fn run_turns(&mut self) {
        for _ in 0..SHORT_MS {
            self.network.advance_to(self.network.now().after(Duration::from_millis(1)));
            self.shard.turn(false).expect("turns");
            let mut turns = 0;
            while self.shard.prepare_to_wait() == Wait::No {
                self.shard.turn(false).expect("turns");
                turns += 1;
                assert!(turns < TURNS_MAX, "it spins");
            }
            self.shard.audit().unwrap_or_else(|why| panic!("{why}"));
        }
    }

    /// The shard's service.
    pub fn service(&mut self) -> &mut S {
        self.shard.service()
    }
}

impl<S: Service> std::fmt::Debug for SingleShard<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SingleShard").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Reads the available bytes, at most `most`; the flag is true if the end of the stream follows them.
///
/// # Panics
/// If reading fails.
pub fn read(peer: &mut SimPeer, most: usize) -> (Vec<u8>, bool) {
    let (mut all, mut into) = (Vec::new(), [0; 1000]);
    loop {
        let room = into.len().min(most - all.len());
        if room == 0 {
            return (all, false);
        }
        match peer.read(&mut into[..room]) {
            Ok(0) => return (all, true),
            Ok(len) => all.extend(&into[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (all, false),
            Err(error) => panic!("{error}"),
        }
    }
}
