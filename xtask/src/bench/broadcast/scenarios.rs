//! Scenarios: loads, and the servers that receive them.

use super::load::FanOutLoad;
use super::peers::{ALL, BroadcastPeer};

/// One table of the section.
pub(super) struct BroadcastScenario {
    pub(super) title: &'static str,
    pub(super) words: &'static str,
    pub(super) load: FanOutLoad,
    pub(super) peers: &'static [BroadcastPeer],
    /// The project's targets, besides that nothing fails.
    pub(super) targets: &'static [BroadcastTarget],
}

/// A target of Stilling on each of its drivers.
#[derive(Clone, Copy)]
pub(super) enum BroadcastTarget {
    /// Least deliveries per second, as a multiple of this peer's.
    RateTimes(BroadcastPeer, f64),
    /// Most server CPU per delivery, as a multiple of this peer's.
    CpuTimes(BroadcastPeer, f64),
    /// Most time of the 99th percentile of last deliveries, as a multiple of this peer's.
    P99Times(BroadcastPeer, f64),
    /// Least deliveries per second, as multiples of two peers', or else of bare's.
    PeersOrBare { nats: f64, redis: f64, bare: f64 },
}

const USUAL_LOAD: FanOutLoad = FanOutLoad {
    subscribers: 200,
    size: 64,
    window: 2048,
    seconds: 3,
    subjects: None,
    distinct_sids: false,
    further: &[],
    stilling_options: &[],
};

const USUAL: BroadcastScenario =
    BroadcastScenario { title: "", words: "", load: USUAL_LOAD, peers: &ALL, targets: &[] };

/// Servers of loads that only the NATS protocol has, or in which each subscriber gets other bytes.
const NATS_PEERS: [BroadcastPeer; 3] =
    [BroadcastPeer::StillingUring, BroadcastPeer::StillingPoll, BroadcastPeer::NatsServer];

/// Servers of 10,000 subscribers with more than one message in the window: mosquitto would need minutes for a round.
const FAST_PEERS: [BroadcastPeer; 5] = [
    BroadcastPeer::StillingUring,
    BroadcastPeer::StillingPoll,
    BroadcastPeer::NatsServer,
    BroadcastPeer::Redis,
    BroadcastPeer::Bare,
];

const EITHER_P99: [BroadcastTarget; 2] = [
    BroadcastTarget::P99Times(BroadcastPeer::NatsServer, 1.0),
    BroadcastTarget::P99Times(BroadcastPeer::Redis, 1.0),
];

pub(super) const fn at(subscribers: u32, size: u32, window: u32) -> FanOutLoad {
    FanOutLoad { subscribers, size, window, ..USUAL_LOAD }
}

pub(super) const SCENARIOS: [BroadcastScenario; 16] = [
    BroadcastScenario {
        title: "200 subscribers, 64 bytes, window 2,048",
        targets: &[
            BroadcastTarget::PeersOrBare { nats: 8.0, redis: 6.0, bare: 0.65 },
            BroadcastTarget::CpuTimes(BroadcastPeer::NatsServer, 0.12),
            BroadcastTarget::CpuTimes(BroadcastPeer::Redis, 0.12),
        ],
        ..USUAL
    },
    BroadcastScenario {
        title: "200 subscribers, 64 bytes, window 64",
        load: at(200, 64, 64),
        targets: &[
            BroadcastTarget::RateTimes(BroadcastPeer::NatsServer, 2.5),
            BroadcastTarget::RateTimes(BroadcastPeer::Redis, 1.5),
            BroadcastTarget::CpuTimes(BroadcastPeer::NatsServer, 0.35),
            BroadcastTarget::CpuTimes(BroadcastPeer::Redis, 0.7),
        ],
        ..USUAL
    },
    BroadcastScenario {
        title: "200 subscribers, 64 bytes, window 1",
        load: at(200, 64, 1),
        targets: &EITHER_P99,
        ..USUAL
    },
    BroadcastScenario {
        title: "200 subscribers, 256 bytes, window 2,048",
        load: at(200, 256, 2048),
        targets: &[
            BroadcastTarget::RateTimes(BroadcastPeer::NatsServer, 4.0),
            BroadcastTarget::RateTimes(BroadcastPeer::Redis, 4.0),
        ],
        ..USUAL
    },
    BroadcastScenario { title: "200 subscribers, 256 bytes, window 64", load: at(200, 256, 64), ..USUAL },
    BroadcastScenario { title: "200 subscribers, 256 bytes, window 1", load: at(200, 256, 1), ..USUAL },
    BroadcastScenario {
        title: "200 subscribers, 4 KB, window 2,048",
        words: ": the window is 8.4 MB for each subscriber, 1.7 GB for all. Redis and mosquitto hold it without a limit, and \
             nats-server up to 64 MB for each. Stilling runs with `--max-output-held=1073741824`; by default it holds 64 MiB per \
             accept thread, then closes the connections that hold most. The memory is what each server held beside the \
             sockets' buffers.",
        load: FanOutLoad { stilling_options: &["--max-output-held=1073741824"], ..at(200, 4096, 2048) },
        ..USUAL
    },
    BroadcastScenario { title: "200 subscribers, 4 KB, window 64", load: at(200, 4096, 64), ..USUAL },
    BroadcastScenario { title: "200 subscribers, 4 KB, window 1", load: at(200, 4096, 1), ..USUAL },
    BroadcastScenario {
        title: "10,000 subscribers, 64 bytes, window 2,048",
        load: at(10_000, 64, 2048),
        peers: &FAST_PEERS,
        ..USUAL
    },
    BroadcastScenario { title: "10,000 subscribers, 64 bytes, window 64", load: at(10_000, 64, 64), ..USUAL },
    BroadcastScenario { title: "10,000 subscribers, 64 bytes, window 1", load: at(10_000, 64, 1), ..USUAL },
    BroadcastScenario {
        title: "10,000 subscribers, 256 bytes, window 64",
        load: at(10_000, 256, 64),
        peers: &FAST_PEERS,
        ..USUAL
    },
    BroadcastScenario {
        title: "10,000 subscribers, 4 KB, window 64",
        words: ": a window of 2,048 such messages would be 84 GB for the servers that hold a copy per subscriber.",
        load: at(10_000, 4096, 64),
        peers: &FAST_PEERS,
        ..USUAL
    },
    BroadcastScenario {
        title: "200 subscription ids, 64 bytes, window 2,048",
        words: ": no two subscribers get the same bytes.",
        load: FanOutLoad { distinct_sids: true, ..USUAL_LOAD },
        peers: &NATS_PEERS,
        targets: &[BroadcastTarget::RateTimes(BroadcastPeer::NatsServer, 1.5)],
    },
    BroadcastScenario {
        title: "1,000 subjects with one subscriber each, 64 bytes, window 2,048",
        words: ": each message goes to one subscriber.",
        load: FanOutLoad { subjects: Some(1000), ..USUAL_LOAD },
        peers: &NATS_PEERS,
        targets: &[BroadcastTarget::RateTimes(BroadcastPeer::NatsServer, 1.5)],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_tell_all_scenarios_apart() {
        let mut titles: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), SCENARIOS.len());
    }
}
