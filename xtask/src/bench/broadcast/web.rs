//! WebSocket and SSE: the formats of a stream beside its NATS subscribers, and beside servers for WebSocket.

use super::BroadcastBench;
use super::clients::MeasuredClients;
use super::load::FanOutLoad;
use super::peers::BroadcastPeer::{Centrifugo, NatsServer, StillingPoll, StillingUring};
use super::scenarios::at;
use crate::XtaskResult;
use crate::bench::figures::{self, Column, PageSection, Series};
use crate::bench::harness;
use crate::bench::sample::BenchSample;
use crate::bench::targets::BenchTarget;

/// Names of one driver's rows.
struct DriverRows {
    nats: &'static str,
    nats_web: &'static str,
    binary: &'static str,
    text: &'static str,
    sse: &'static str,
}

const URING: DriverRows = DriverRows {
    nats: "stilling uring, NATS",
    nats_web: "stilling uring, NATS over WebSocket",
    binary: "stilling uring, binary",
    text: "stilling uring, text",
    sse: "stilling uring, SSE",
};

const POLL: DriverRows = DriverRows {
    nats: "stilling poll, NATS",
    nats_web: "stilling poll, NATS over WebSocket",
    binary: "stilling poll, binary",
    text: "stilling poll, text",
    sse: "stilling poll, SSE",
};

const NATS_SERVER: &str = "nats-server, NATS over WebSocket";
const CENTRIFUGO: &str = "Centrifugo";

const CLIENTS: [MeasuredClients; 12] = [
    MeasuredClients::of_stream(URING.nats, StillingUring),
    MeasuredClients::web(URING.nats_web, StillingUring, "nats-websocket"),
    MeasuredClients::web(URING.binary, StillingUring, "websocket"),
    MeasuredClients::web(URING.text, StillingUring, "websocket-json"),
    MeasuredClients::web(URING.sse, StillingUring, "sse"),
    MeasuredClients::of_stream(POLL.nats, StillingPoll),
    MeasuredClients::web(POLL.nats_web, StillingPoll, "nats-websocket"),
    MeasuredClients::web(POLL.binary, StillingPoll, "websocket"),
    MeasuredClients::web(POLL.text, StillingPoll, "websocket-json"),
    MeasuredClients::web(POLL.sse, StillingPoll, "sse"),
    MeasuredClients::web(NATS_SERVER, NatsServer, "nats-websocket"),
    MeasuredClients::web(CENTRIFUGO, Centrifugo, "centrifugo"),
];

/// Least part of the NATS figure, in messages or bytes per second.
const NATS_PART: f64 = 0.8;

/// Least deliveries per second, as a multiple of the best peer's.
const BEST_PEER_TIMES: f64 = 6.0;

/// A table: its title, its load, and whether the targets apply to it.
type WebScenario = (&'static str, FanOutLoad, bool);

pub(super) const SCENARIOS: [WebScenario; 4] = [
    ("WebSocket and SSE, 200 subscribers, 64 bytes, window 2,048", at(200, 64, 2048), true),
    ("WebSocket and SSE, 200 subscribers, 64 bytes, window 64", at(200, 64, 64), false),
    ("WebSocket and SSE, 200 subscribers, 64 bytes, window 1", at(200, 64, 1), false),
    ("WebSocket and SSE, 200 subscribers, 4 KB, window 64", at(200, 4096, 64), false),
];

fn rate(sample: &BenchSample) -> Option<f64> {
    Some(sample.rate)
}

fn megabytes(sample: &BenchSample) -> Option<f64> {
    sample.received_mb_s
}

/// The ratio to the peer with the best figure.
fn least_ratio(series: &[Series], row: &str, of: fn(&BenchSample) -> Option<f64>) -> Option<f64> {
    let ratios = [NATS_SERVER, CENTRIFUGO].map(|peer| figures::ratio(series, row, peer, of));
    let ratios = ratios.into_iter().collect::<Option<Vec<_>>>()?;
    ratios.into_iter().reduce(f64::min)
}

impl BroadcastBench {
    pub(super) fn web(&self, (title, load, has_targets): &WebScenario) -> XtaskResult<PageSection> {
        let load = FanOutLoad { seconds: self.seconds(), ..*load };
        let series = harness::series(self.options.rounds, title, &CLIENTS, |clients| {
            load.measure(clients, &self.programs)
        })?;
        for rows in [URING, POLL] {
            if *has_targets {
                self.judge_web(&rows, title, &series);
            }
            self.judge_failures(
                title,
                &[rows.nats, rows.nats_web, rows.binary, rows.text, rows.sse],
                &series,
            );
        }
        let description = format!(
            "`{}` with the protocols of the rows. Stilling's subscribers are those of a stream in memory; *binary* and *text* \
             are WebSocket frames with a payload and with a JSON object, which SSE has, too. Publishers use NATS, or Centrifugo's \
             HTTP API. Megabytes are those that the subscribers received, with all of the protocol but TCP. The peers are compared in \
             messages: a JSON object with sequence, subject and time has about twice the bytes of a message of nats-server.",
            load.shown()
        );
        Ok(PageSection { title: (*title).to_owned(), description, table: table(&series) })
    }

    fn judge_web(&self, rows: &DriverRows, title: &str, series: &[Series]) {
        let part = |row: &str, of, what: &str| {
            let ratio = figures::ratio(series, row, rows.nats, of);
            let what = format!("{what}, {row} ÷ {}: {title}", rows.nats);
            self.targets.add_target(BenchTarget::at_least(what, NATS_PART, ratio, "×"));
        };
        part(rows.binary, rate, "deliveries/s");
        part(rows.text, megabytes, "bytes/s");
        part(rows.sse, megabytes, "bytes/s");
        for row in [rows.binary, rows.text, rows.sse] {
            let least = least_ratio(series, row, rate);
            let what = format!("deliveries/s, {row} ÷ the best peer: {title}");
            self.targets.add_target(BenchTarget::at_least(what, BEST_PEER_TIMES, least, "×"));
        }
    }
}

fn table(series: &[Series]) -> Vec<Vec<String>> {
    let columns = [
        Column::of("deliveries/s", rate, figures::thousands),
        Column::of("received MB/s", megabytes, figures::thousands),
        Column::of("server CPU s per million", |sample| Some(sample.cpu_s), super::four_places),
        Column::of("p50 ms", |sample| sample.p50_ms, figures::two_places),
        Column::of("p99 ms", |sample| sample.p99_ms, figures::two_places),
        Column::of("memory MB", super::memory_mb, figures::thousands),
        Column::sum("failures", |sample| sample.failures),
    ];
    let pairs = [URING, POLL].map(|rows| {
        let of_nats = [rows.nats_web, rows.binary, rows.text, rows.sse].map(|row| (row, rows.nats));
        let of_peers = [
            (rows.nats_web, NATS_SERVER),
            (rows.binary, NATS_SERVER),
            (rows.text, NATS_SERVER),
            (rows.sse, NATS_SERVER),
            (rows.text, CENTRIFUGO),
            (rows.sse, CENTRIFUGO),
        ];
        of_nats.into_iter().chain(of_peers)
    });
    let pairs: Vec<_> = pairs.into_iter().flatten().collect();
    figures::with_ratios(series, &columns, &pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_all_clients_apart() {
        let mut names = CLIENTS.map(|clients| clients.name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CLIENTS.len());
    }

    #[test]
    fn the_best_peer_is_that_of_the_compared_figure() {
        let series = |server, rate, megabytes| {
            let sample = BenchSample { rate, received_mb_s: Some(megabytes), ..BenchSample::default() };
            Series { server, samples: vec![sample] }
        };
        let all =
            [series(URING.text, 60.0, 120.0), series(NATS_SERVER, 10.0, 4.0), series(CENTRIFUGO, 5.0, 8.0)];
        assert_eq!(least_ratio(&all, URING.text, rate), Some(6.0));
        assert_eq!(least_ratio(&all, URING.text, megabytes), Some(15.0));
        assert_eq!(least_ratio(&all[..2], URING.text, rate), None);
    }
}
