//! The real server: what disturbing and resuming subscribers receive is complete, too.

use std::net::SocketAddr;

use stilling::http::Routes;
use stilling::settings::{Durability, MessagingConfig, Retention, StreamConfig};
use stilling::{DriverChoice, RunningServer, ServeConfig, Server};
use stilling_bench::broadcast::{
    self, BroadcastPlan, BroadcastProtocol, BroadcastReport, DisturbancePlan, ResumingPlan,
};
use stilling_probe::eventually;

use crate::TIMEOUT;

const DRIVERS: [DriverChoice; 2] = [DriverChoice::Uring, DriverChoice::Poll];

/// A server with a stream in memory for `bench`.
struct StreamServer {
    running: RunningServer,
    http: SocketAddr,
    nats: SocketAddr,
}

impl StreamServer {
    fn start(driver: DriverChoice) -> StreamServer {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let memory = StreamConfig {
            durability: Durability::Memory,
            retention: Retention::of(Durability::Memory),
            ..StreamConfig::new("bench", ["bench"])
        };
        let config = ServeConfig {
            listen: vec![any],
            shards: 2,
            driver,
            hub: MessagingConfig { nats: vec![any], streams: vec![memory], ..MessagingConfig::default() },
            ..ServeConfig::default()
        };
        let server = Server::bind(config, Routes::new()).expect("free ports and the driver");
        let line = server.banner().iter().find_map(|line| line.strip_prefix("listening nats://"));
        let nats = line.expect("it listens").parse().expect("an address");
        let running = server.start().expect("a thread");
        StreamServer { http: running.addresses()[0], nats, running }
    }

    /// A run over NATS.
    fn plan(&self) -> BroadcastPlan {
        BroadcastPlan {
            subscribers: 10,
            size: 64,
            window: 64,
            messages: Some(20_000),
            span: None,
            timeout: TIMEOUT,
            ..BroadcastPlan::new(self.nats)
        }
    }

    /// Runs, checks that all was delivered, and ends the server.
    fn run(self, plan: &BroadcastPlan) -> BroadcastReport {
        let report = broadcast::run(plan).expect("there is a report");
        assert!(report.is_good(), "{plan:?}: {:?}", report.figures.evidence);
        assert_eq!(report.deliveries, report.messages * u64::from(plan.subscribers));
        self.running.end().expect("the server ends well");
        report
    }
}

/// Row 2.11: joining, leaving and reconnecting subscribers receive no wrong message, and cost the others none.
#[test]
fn subscribers_join_and_reconnect_during_a_broadcast() {
    for driver in DRIVERS {
        let server = StreamServer::start(driver);
        let disturbance =
            DisturbancePlan { joins_per_s: 10_000, reconnects_per_s: 200, ..DisturbancePlan::default() };
        let found = {
            let plan = BroadcastPlan { disturbance, messages: Some(100_000), ..server.plan() };
            server.run(&plan).disturbance.expect("a disturbance was planned")
        };
        assert!(
            found.joins > 0 && found.reconnects > 0 && found.deliveries > 0 && found.elapsed_s > 0.0,
            "{driver:?}: {found:?}"
        );
    }
}

/// Row 2.18: stopped and trickling subscribers delay no other one.
#[test]
fn stopped_and_trickling_subscribers_cost_the_others_no_message() {
    for driver in DRIVERS {
        let server = StreamServer::start(driver);
        let disturbance = DisturbancePlan { stopped: 1, trickling: 2, ..DisturbancePlan::default() };
        let plan = BroadcastPlan { disturbance, size: 4096, messages: Some(5_000), ..server.plan() };
        let found = server.run(&plan).disturbance.expect("a disturbance was planned");
        assert!(found.deliveries <= 2 * 5_000, "{driver:?}: {found:?}");
    }
}

/// Row 2.18: the same over WebSocket and SSE, with slow subscribers of the same protocol.
#[test]
fn slow_subscribers_over_websocket_and_sse_cost_the_others_no_message() {
    for driver in DRIVERS {
        for protocol in
            [BroadcastProtocol::WebSocketRaw, BroadcastProtocol::WebSocketJson, BroadcastProtocol::Sse]
        {
            let server = StreamServer::start(driver);
            let disturbance = DisturbancePlan { stopped: 1, trickling: 2, ..DisturbancePlan::default() };
            // Long enough for each trickling subscriber's first read.
            let (to, publish_to) = (server.http, Some(server.nats));
            let plan = BroadcastPlan { protocol, to, publish_to, disturbance, ..server.plan() };
            let plan = BroadcastPlan { messages: Some(1_000), rate: Some(500), ..plan };
            let found = server.run(&plan).disturbance.expect("a disturbance was planned");
            assert!((1..=2_000).contains(&found.deliveries), "{driver:?}, {protocol:?}: {found:?}");
            assert_eq!(found.disconnected, 0, "{driver:?}, {protocol:?}");
        }
    }
}

/// Row 2.18: delivered and reported messages of subscribers that resume add up to the published ones.
#[test]
fn resuming_subscribers_account_for_every_message() {
    for driver in DRIVERS {
        let server = StreamServer::start(driver);
        let resuming = ResumingPlan { to: Some(server.http), slow: 3, flapping: 6 };
        let plan = BroadcastPlan { resuming, messages: Some(100_000), ..server.plan() };
        let found = server.run(&plan).resuming.expect("resuming subscribers were planned");
        assert_eq!((found.subscribers, found.published), (9, 100_000), "{driver:?}");
        assert_eq!(found.delivered + found.reported, 9 * 100_000, "{driver:?}: {found:?}");
    }
}

/// Rows 2.2 and 2.4: every format of a stream's subscribers is compared as a whole.
#[test]
fn records_of_a_stream_are_the_same_for_all_subscribers() {
    for driver in DRIVERS {
        for protocol in
            [BroadcastProtocol::WebSocketRaw, BroadcastProtocol::WebSocketJson, BroadcastProtocol::Sse]
        {
            let server = StreamServer::start(driver);
            let plan =
                BroadcastPlan { protocol, to: server.http, publish_to: Some(server.nats), ..server.plan() };
            server.run(&plan);
        }
    }
}

/// A run in another process publishes for a passive one.
#[test]
fn a_passive_run_receives_the_messages_of_another_run() {
    let server = StreamServer::start(DriverChoice::Poll);
    let active = BroadcastPlan { messages: Some(50), rate: Some(100), window: 1, ..server.plan() };
    let passive = BroadcastPlan { is_passive: true, messages: Some(50), ..server.plan() };
    // Its subscribers are open before the other run begins.
    let waiting = std::thread::spawn(move || broadcast::run(&passive).expect("there is a report"));
    let open = || server.running.overview().engine(|engine| &engine.open);
    eventually("the passive subscribers are open", || (open() >= 11).then_some(()));
    let report = broadcast::run(&active).expect("there is a report");
    assert!(report.is_good(), "{report:?}");
    let passive = waiting.join().expect("it ends");
    assert!(passive.is_good(), "{:?}", passive.figures.evidence);
    assert_eq!(passive.deliveries, 500);
}
