//! 10,000 subscribers of one stream: the server's own memory for each.

use super::BroadcastBench;
use super::clients::MeasuredClients;
use super::load::FanOutLoad;
use super::peers::BroadcastPeer::{NatsServer, StillingPoll, StillingUring};
use super::scenarios::at;
use crate::XtaskResult;
use crate::bench::figures::{self, Column, PageSection};
use crate::bench::harness;
use crate::bench::targets::BenchTarget;

pub(super) const TITLE: &str = "10,000 subscribers of one stream, memory of each";

/// Most bytes of the server's own memory for each subscriber.
const EACH_MAX: f64 = 512.0;

const NATS_SERVER: &str = "nats-server, no stream";

const CLIENTS: [MeasuredClients; 7] = [
    MeasuredClients::of_stream("stilling uring, NATS", StillingUring),
    MeasuredClients::web("stilling uring, binary", StillingUring, "websocket"),
    MeasuredClients::web("stilling uring, SSE", StillingUring, "sse"),
    MeasuredClients::of_stream("stilling poll, NATS", StillingPoll),
    MeasuredClients::web("stilling poll, binary", StillingPoll, "websocket"),
    MeasuredClients::web("stilling poll, SSE", StillingPoll, "sse"),
    MeasuredClients::of_stream(NATS_SERVER, NatsServer),
];

impl BroadcastBench {
    pub(super) fn crowd(&self) -> XtaskResult<PageSection> {
        let load = FanOutLoad { seconds: self.seconds(), ..at(10_000, 64, 64) };
        let series = harness::series(self.options.rounds, TITLE, &CLIENTS, |clients| {
            load.measure(clients, &self.programs)
        })?;
        let own: Vec<_> =
            CLIENTS.iter().map(|clients| clients.name).filter(|name| *name != NATS_SERVER).collect();
        for series in series.iter().filter(|series| own.contains(&series.server)) {
            let each = series.samples.iter().map(|sample| sample.memory_each).collect::<Option<Vec<_>>>();
            let what = format!("memory of each subscriber, {}", series.server);
            self.targets.add_target(BenchTarget::at_most(what, EACH_MAX, each.map(figures::median), "B"));
        }
        self.judge_failures(TITLE, &own, &series);
        let columns = [
            Column::of("bytes of each", |sample| sample.memory_each, figures::thousands),
            Column::of("deliveries/s", |sample| Some(sample.rate), figures::thousands),
            Column::of("server CPU s per million", |sample| Some(sample.cpu_s), super::four_places),
            Column::of("p50 ms", |sample| sample.p50_ms, figures::two_places),
            Column::of("p99 ms", |sample| sample.p99_ms, figures::two_places),
            Column::of("memory MB", super::memory_mb, figures::thousands),
            Column::sum("failures", |sample| sample.failures),
        ];
        let description = format!(
            "`{}` with the protocols of the rows. The bytes are the growth of the server's `Pss` from the first 500 subscribers on \
             until all have subscribed, divided by their number; the kernel's memory for sockets, about the same for all, is not \
             included.",
            load.shown()
        );
        let table = figures::with_ratios(&series, &columns, &[]);
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }
}
