//! Parameters of a world: clients, network, processes and timeouts, drawn from the seed.

use std::net::SocketAddr;
use std::time::Duration;

use stilling::UnprovenPeers;
use stilling_ring::Time;
use stilling_workers::QueueTarget;
use stilling_workers::processes::QueueLimits;

use crate::SplitMix64;
use crate::faults::FaultRates;
use crate::network::NetworkOptions;

/// Time for a request with all its blocks on a slow network.
const SLOW_REQUEST_TIMEOUT: Duration = Duration::from_secs(1000);

/// Everything that the seed decides in advance.
pub(super) struct CoapWorldParameters {
    pub(super) random: SplitMix64,
    pub(super) network: NetworkOptions,
    /// Receive buffers of the driver.
    pub(super) buffers: u16,
    pub(super) clients: Vec<ClientParameters>,
    pub(super) observers: Vec<ObserverParameters>,
    /// Datagrams of the stranger.
    pub(super) strange_datagrams: u32,
    pub(super) unproven: UnprovenPeers,
    pub(super) processes: usize,
    pub(super) slots: usize,
    pub(super) queue: QueueLimits,
    /// How long a process may take to answer.
    pub(super) work_timeout: Duration,
    /// Longest work of a well-behaved process, in milliseconds.
    pub(super) work_ms_max: u64,
    /// Rate at which a process misbehaves, per thousand requests.
    pub(super) misbehaviour: u16,
    /// Longest time between two changes of the resource that changes, in milliseconds.
    pub(super) change_interval_ms: u64,
    pub(super) faults_until: Time,
    /// Drain while clients are still busy.
    pub(super) early_end: Option<Time>,
    pub(super) drain_timeout: Duration,
}

/// One client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientParameters {
    pub(super) address: SocketAddr,
    /// The server's address that it uses.
    pub(super) server: SocketAddr,
    /// Requests before the last one, which is sent without faults.
    pub(super) requests: u32,
    /// Longest pause between two requests, in milliseconds.
    pub(super) pause_ms_max: u64,
    pub(super) request_timeout: Duration,
    /// Whether all its messages are read-only, so that the ones of the resource that changes are frequent.
    pub(super) is_reader: bool,
}

/// One observer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObserverParameters {
    pub(super) address: SocketAddr,
    /// The server's address that it uses.
    pub(super) server: SocketAddr,
    pub(super) path: &'static str,
}

fn millis(random: &mut SplitMix64, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low, high))
}

impl CoapWorldParameters {
    pub(super) fn draw(random: &mut SplitMix64) -> CoapWorldParameters {
        let faults = if random.chance(100) { FaultRates::NONE } else { FaultRates::draw(random) };
        // Beyond the acknowledgement timeout in some worlds: requests are repeated although nothing is lost.
        let is_slow = random.chance(200);
        let latency_ms_max = if is_slow { 1500 } else { 60 };
        let latency = (Duration::from_micros(20), millis(random, 1, latency_ms_max));
        let network = NetworkOptions { latency, buffer: random.between(200, 20_000) as usize, faults };
        let processes = random.between(1, 3) as usize;
        let queue = QueueLimits {
            queue_max: random.between(1, 12) as usize,
            age_max: millis(random, 50, 5000),
            target: random.chance(300).then_some(QueueTarget::Service),
        };
        let faults_until = Time::ZERO.after(millis(random, 5_000, 120_000));
        let early_end = random.chance(150).then(|| Time::ZERO.after(millis(random, 500, 60_000)));
        CoapWorldParameters {
            network,
            buffers: random.between(1, 16) as u16,
            clients: (0..random.between(2, 7) as u16)
                .map(|number| ClientParameters::draw(number, is_slow, random))
                .collect(),
            strange_datagrams: random.below(30) as u32,
            unproven: if random.chance(300) { UnprovenPeers::All } else { UnprovenPeers::Remote },
            processes,
            slots: random.between(1, 2) as usize,
            queue,
            work_timeout: millis(random, 1000, 20_000),
            work_ms_max: if random.chance(300) { 3000 } else { random.between(1, 100) },
            misbehaviour: if random.chance(300) { 0 } else { random.between(1, 250) as u16 },
            change_interval_ms: if random.chance(300) { 0 } else { random.between(100, 20_000) },
            faults_until,
            early_end,
            drain_timeout: millis(random, 20, 20_000),
            random: random.fork(),
            // Last, so that the other parameters do not depend on them.
            observers: match random.chance(400) {
                true => (0..random.between(1, 4) as u16)
                    .map(|number| ObserverParameters::draw(number, is_slow, random))
                    .collect(),
                false => Vec::new(),
            },
        }
    }
}

/// The address of a client at this port, and that of the server which it uses.
fn addresses(port: u16, random: &mut SplitMix64) -> (SocketAddr, SocketAddr) {
    let is_remote = random.chance(150);
    let ip = if is_remote { [10, 0, 1, 1] } else { [127, 0, 0, 1] };
    let server_ip = if random.chance(500) { [10, 0, 0, 1] } else { [10, 0, 0, 2] };
    ((ip, port).into(), (server_ip, 5683).into())
}

impl ObserverParameters {
    fn draw(number: u16, is_slow: bool, random: &mut SplitMix64) -> ObserverParameters {
        let (address, server) = addresses(30_000 + number, random);
        // On a slow network a long state changes before its blocks are read.
        let path = ["obs", "obs-non", "obs-large"][random.below(if is_slow { 2 } else { 3 }) as usize];
        ObserverParameters { address, server, path }
    }
}

impl ClientParameters {
    fn draw(number: u16, is_slow: bool, random: &mut SplitMix64) -> ClientParameters {
        let (address, server) = addresses(20_000 + number, random);
        ClientParameters {
            address,
            server,
            requests: random.between(2, 7) as u32,
            // Beyond EXCHANGE_LIFETIME in some worlds.
            pause_ms_max: if random.chance(150) { 300_000 } else { random.between(1, 3000) },
            // A slow network needs seconds for each of a hundred blocks.
            request_timeout: if is_slow { SLOW_REQUEST_TIMEOUT } else { millis(random, 30_000, 300_000) },
            is_reader: random.chance(300),
        }
    }
}
